//! Tasks on several servers: which of them runs, why the others do not, and what becomes of one that crashed.

#![cfg(all(feature = "schedule", feature = "testkit"))]
#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use leasehold::observe::{Event, Observer};
use leasehold::schedule::{Outcome, Run, Scheduler, SkipReason, Task, Tick, Timetable, WallClock};
use leasehold::store::memory::MemoryStore;
use leasehold::store::noop::NoopStore;
use leasehold::testkit::{Fault, FaultStore, TestClock};
use leasehold::{Clock, Close, ErrorKind, LockManager, Operation};
use parking_lot::Mutex;

const MINUTE: Duration = Duration::from_secs(60);
const TTL: Duration = Duration::from_secs(30);

fn tick(minute: u32) -> Tick {
    format!("2026-11-30T02:{minute:02}:00Z").parse().unwrap()
}

/// One store and the servers that share it; it is 02:30:00 for as long as nobody says otherwise.
struct Fleet {
    store: FaultStore,
    clock: Clock,
    events: Events,
}

#[derive(Clone, Debug, Default)]
struct Events(Arc<Mutex<Vec<String>>>);

impl Observer for Events {
    fn observe(&self, event: &Event) {
        match event {
            Event::Skipped(skipped) => self.0.lock().push(format!("{} {}", skipped.task, skipped.reason)),
            Event::TickLost(lost) => self.0.lock().push(format!("{} lost {}", lost.task, lost.tick)),
            _ => {}
        }
    }
}

impl Fleet {
    fn new() -> Self {
        let clock = Clock::from(TestClock::start());
        let store = FaultStore::new(MemoryStore::with_clock(clock.clone()));
        Self { store, clock, events: Events::default() }
    }

    fn manager(&self) -> LockManager {
        let builder = LockManager::builder(self.store.clone()).clock(self.clock.clone()).ttl(TTL);
        builder.observer(self.events.clone()).build().unwrap()
    }

    fn server(&self, task: Task) -> Scheduler {
        let now = tick(30).time();
        let builder = Scheduler::builder(&self.manager()).wall_clock(WallClock::from_fn(move || now));
        builder.task(task).allow_unshared().build().unwrap()
    }

    fn told(&self) -> Vec<String> {
        std::mem::take(&mut *self.events.0.lock())
    }
}

fn report() -> Task {
    Task::new("report").timetable(Timetable::cron("* * * * *", "UTC").unwrap()).on_one_server()
}

async fn run(server: &Scheduler, minute: u32) -> Outcome<u32> {
    server.run("report", tick(minute), async |run| run.lost().len() as u32).await.unwrap()
}

fn reason<T: std::fmt::Debug>(outcome: &Outcome<T>) -> &SkipReason {
    &outcome.skipped().unwrap_or_else(|| panic!("it ran: {outcome:?}")).reason
}

#[tokio::test(start_paused = true)]
async fn a_tick_runs_once_also_for_those_who_come_late() {
    let fleet = Fleet::new();
    let (one, two) = (fleet.server(report()), fleet.server(report()));
    assert!(run(&one, 30).await.skipped().is_none());
    assert_eq!(*reason(&run(&two, 30).await), SkipReason::OtherServer);
    tokio::time::sleep(29 * MINUTE).await;
    let late = run(&two, 30).await;
    let shown = late.skipped().unwrap().to_string();
    assert!(shown.contains("\"report\" at 2026-11-30T02:30:00Z: another server has this tick"), "{shown}");
    assert!(shown.contains("report@2026-11-30T02:30:00Z") && shown.contains("(pid "), "{shown}");
    assert_eq!(fleet.told(), ["report other_server", "report other_server"]);
    assert!(run(&two, 31).await.skipped().is_none(), "the next tick is another one");
}

#[tokio::test(start_paused = true)]
async fn a_claim_outlives_its_server() {
    let fleet = Fleet::new();
    let locks = fleet.manager();
    let ran = locks.on_one_server("report", tick(30)).allow_unshared().claim_for(MINUTE * 60);
    let now = tick(30).time();
    ran.wall_clock(WallClock::from_fn(move || now)).run(async |_| ()).await.unwrap();
    locks.close(Close::Release).await.unwrap();
    tokio::time::sleep(59 * MINUTE).await;
    assert_eq!(*reason(&run(&fleet.server(report()), 30).await), SkipReason::OtherServer);
    tokio::time::sleep(2 * MINUTE).await;
    assert!(fleet.manager().holder("report@2026-11-30T02:30:00Z").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn nothing_is_asked_if_a_condition_is_not_met() {
    let fleet = Fleet::new();
    let open = Arc::new(AtomicBool::new(false));
    let condition = Arc::clone(&open);
    let server = fleet.server(report().when("open", move || condition.load(Ordering::Relaxed)));
    assert_eq!(*reason(&run(&server, 30).await), SkipReason::Condition("open".to_owned()));
    assert_eq!(fleet.store.total_calls(), 0);
    open.store(true, Ordering::Relaxed);
    assert!(run(&server, 30).await.skipped().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_run_that_lasts_keeps_the_next_tick_from_being_claimed() {
    let fleet = Fleet::new();
    let task = || report().without_overlapping(TTL);
    let (one, two) = (fleet.server(task()), fleet.server(task()));
    let slow =
        tokio::spawn(async move { one.run("report", tick(29), async |_| tokio::time::sleep(5 * MINUTE).await).await });
    tokio::time::sleep(MINUTE).await;
    let skipped = run(&two, 30).await;
    assert_eq!(*reason(&skipped), SkipReason::StillRunning);
    assert!(skipped.skipped().unwrap().to_string().contains("key \"report\", held by"), "{skipped:?}");
    assert!(fleet.manager().holder("report@2026-11-30T02:30:00Z").await.unwrap().is_none(), "the claim comes last");
    assert!(slow.await.unwrap().unwrap().skipped().is_none());
    // Nobody has claimed it, so whoever is late may still run it.
    assert!(run(&two, 30).await.skipped().is_none());
    assert_eq!(fleet.told(), ["report still_running"]);
}

#[tokio::test(start_paused = true)]
async fn a_tick_that_is_too_old_is_skipped() {
    let fleet = Fleet::new();
    let server = fleet.server(report().claim_for(20 * MINUTE));
    assert_eq!(*reason(&run(&server, 19).await), SkipReason::TooLate(11 * MINUTE));
    assert!(run(&server, 20).await.skipped().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_tick_that_has_become_too_old_when_it_is_granted_is_skipped() {
    let fleet = Fleet::new();
    let now = Arc::new(Mutex::new(tick(30).time()));
    let shown = Arc::clone(&now);
    let wall = WallClock::from_fn(move || *shown.lock());
    let task = report().claim_for(20 * MINUTE);
    let builder = Scheduler::builder(&fleet.manager()).wall_clock(wall).task(task).allow_unshared();
    let server = builder.build().unwrap();
    fleet.store.once(Operation::Acquire, Fault::delay(Duration::from_secs(1)));
    let slow = tokio::spawn(async move { run(&server, 30).await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    *now.lock() += 11 * MINUTE;
    assert_eq!(*reason(&slow.await.unwrap()), SkipReason::TooLate(11 * MINUTE));
    let claim = fleet.manager().holder("report@2026-11-30T02:30:00Z").await.unwrap().unwrap();
    assert_eq!(claim.info.reason.as_deref(), Some("tick skipped"));
    assert_eq!(fleet.told(), ["report too_late"]);
}

#[tokio::test(start_paused = true)]
async fn a_lost_tick_is_told_also_if_the_answer_that_says_so_is_lost() {
    let fleet = Fleet::new();
    let (one, two) = (fleet.server(report()), fleet.server(report()));
    let crash = tokio::spawn(async move { one.run("report", tick(27), async |_| panic!("boom")).await.map(drop) });
    assert!(crash.await.unwrap_err().is_panic());
    // Nor is there an answer to what would take it back.
    fleet.store.always(Operation::Transfer, Fault::lose_reply());
    let lost = two.look("report").await.unwrap();
    assert!(lost.len() == 1 && lost[0].tick == tick(27), "{lost:?}");
}

#[tokio::test(start_paused = true)]
async fn a_tick_whose_server_crashed_is_told_to_the_next_run_and_to_nobody_else() {
    let overlapping: fn() -> Task = report;
    let alone: fn() -> Task = || report().without_overlapping(TTL);
    for (task, meanwhile) in [(overlapping, SkipReason::OtherServer), (alone, SkipReason::StillRunning)] {
        let fleet = Fleet::new();
        let (one, two, three) = (fleet.server(task()), fleet.server(task()), fleet.server(task()));
        let crash = tokio::spawn(async move { one.run("report", tick(27), async |_| pending::<()>().await).await });
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(*reason(&run(&two, 27).await), meanwhile);
        crash.abort();
        crash.await.unwrap_err();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let told = two
            .run("report", tick(28), async |run: Run| run.lost().to_vec())
            .await
            .unwrap()
            .into_value()
            .unwrap()
            .unwrap();
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].tick == tick(27) && told[0].begun, "{told:?}");
        assert!(told[0].to_string().contains("the run at 2026-11-30T02:27:00Z did not end"), "{}", told[0]);
        assert_eq!(run(&three, 29).await.into_value().unwrap(), Some(0));
        assert_eq!(*reason(&run(&three, 27).await), SkipReason::OtherServer, "it is told, not free");
        // By choice it runs again, once.
        let again = |server: &Scheduler| server.occurrence("report", tick(27)).unwrap().again();
        assert!(again(&two).run(async |_| ()).await.unwrap().skipped().is_none());
        assert_eq!(*reason(&again(&three).run(async |_| ()).await.unwrap()), SkipReason::OtherServer);
        assert!(three.look("report").await.unwrap().is_empty());
        assert!(fleet.told().contains(&"report lost 2026-11-30T02:27:00Z".to_owned()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_lasts_is_not_taken_for_lost() {
    let fleet = Fleet::new();
    let (one, two) = (fleet.server(report()), fleet.server(report()));
    let slow =
        tokio::spawn(async move { one.run("report", tick(27), async |_| tokio::time::sleep(5 * MINUTE).await).await });
    tokio::time::sleep(2 * MINUTE).await;
    assert_eq!(run(&two, 29).await.into_value().unwrap(), Some(0));
    assert!(two.look("report").await.unwrap().is_empty());
    assert!(slow.await.unwrap().unwrap().skipped().is_none());
    assert_eq!(run(&two, 30).await.into_value().unwrap(), Some(0));
}

#[tokio::test(start_paused = true)]
async fn work_that_panics_is_told_as_lost() {
    let fleet = Fleet::new();
    let (one, two) = (fleet.server(report()), fleet.server(report()));
    let crash = tokio::spawn(async move { one.run("report", tick(27), async |_| panic!("boom")).await.map(drop) });
    assert!(crash.await.unwrap_err().is_panic());
    assert_eq!(run(&two, 28).await.into_value().unwrap(), Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_run_never_began_is_lost_after_a_while() {
    let fleet = Fleet::new();
    let (one, two) = (fleet.server(report()), fleet.server(report()));
    // The claim is granted; then the store is gone.
    fleet.store.always(Operation::Transfer, Fault::fail(ErrorKind::Unavailable));
    let error = one.run("report", tick(27), async |_| ()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    fleet.store.heal();
    assert_eq!(run(&two, 28).await.into_value().unwrap(), Some(0), "it may still begin");
    tokio::time::sleep(TTL).await;
    let lost =
        two.run("report", tick(29), async |run: Run| run.lost().to_vec()).await.unwrap().into_value().unwrap().unwrap();
    assert!(lost.len() == 1 && !lost[0].begun && lost[0].tick == tick(27), "{lost:?}");
}

#[tokio::test(start_paused = true)]
async fn without_an_answer_from_the_store_nothing_runs() {
    let fleet = Fleet::new();
    let server = fleet.server(report().without_overlapping(TTL));
    let runs = AtomicU32::new(0);
    for operation in [Operation::Inspect, Operation::Acquire] {
        fleet.store.always(operation, Fault::fail(ErrorKind::Unavailable));
        let work = async |_| runs.fetch_add(1, Ordering::Relaxed);
        assert_eq!(server.run("report", tick(30), work).await.unwrap_err().kind(), ErrorKind::Unavailable);
        fleet.store.heal();
    }
    let locks = fleet.manager();
    fleet.store.always(Operation::Acquire, Fault::fail(ErrorKind::Unavailable));
    let alone = locks.without_overlapping("report", TTL).allow_unshared().run(async |_| ()).await;
    assert_eq!(alone.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(runs.into_inner(), 0);
}

#[tokio::test]
async fn twenty_servers_at_once_run_each_tick_once() {
    let fleet = Fleet::new();
    let servers: Vec<_> = (0..20).map(|_| fleet.server(report().without_overlapping(TTL))).collect();
    let runs = Arc::new(AtomicU32::new(0));
    for minute in 10..30 {
        let mut crowd = tokio::task::JoinSet::new();
        for server in servers.clone() {
            let runs = Arc::clone(&runs);
            crowd.spawn(async move {
                server.run("report", tick(minute), async |_| runs.fetch_add(1, Ordering::Relaxed)).await.unwrap();
            });
        }
        while let Some(ended) = crowd.join_next().await {
            ended.unwrap();
        }
        // None twice, and none nowhere: nobody holds a lease just to look.
        assert_eq!(runs.load(Ordering::Relaxed), minute - 9);
    }
}

#[tokio::test]
async fn stores_that_will_not_do_are_refused_with_the_tasks_named() {
    let tasks = |locks: &LockManager| {
        Scheduler::builder(locks)
            .task(report())
            .task(Task::new("mail").without_overlapping(TTL))
            .task(Task::new("free"))
    };
    for locks in [LockManager::new(MemoryStore::new()), LockManager::new(NoopStore::new())] {
        let error = tasks(&locks).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let said = error.to_string();
        assert!(
            said.contains("\"report\", \"mail\": use a store that the servers share") && !said.contains("free"),
            "{said}"
        );
        let error = locks.without_overlapping("mail", TTL).run(async |_| ()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
    assert!(tasks(&LockManager::new(MemoryStore::new())).allow_unshared().build().is_ok());
}

#[tokio::test]
async fn tasks_of_one_name_and_names_that_make_no_key_are_reported() {
    let locks = LockManager::new(MemoryStore::new());
    let twice = Scheduler::builder(&locks).task(report()).task(report()).allow_unshared().build().unwrap_err();
    assert!(twice.kind() == ErrorKind::InvalidConfig && twice.to_string().contains("\"report\""), "{twice}");
    for task in [Task::new("").on_one_server(), report().without_overlapping(Duration::ZERO)] {
        let error = Scheduler::builder(&locks).task(task).allow_unshared().build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
    let server = Scheduler::builder(&locks).task(report()).allow_unshared().build().unwrap();
    assert_eq!(server.occurrence("reprot", tick(30)).unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[tokio::test(start_paused = true)]
async fn whoever_stands_still_between_claim_and_run_finds_the_tick_given_up() {
    let fleet = Fleet::new();
    let task = || report().without_overlapping(Duration::from_secs(1));
    let (one, two) = (fleet.server(task()), fleet.server(task()));
    // The step from claim to run is under way for long.
    fleet.store.once(Operation::Transfer, Fault::delay(Duration::from_secs(3)));
    let slow = tokio::spawn(async move { one.run("report", tick(27), async |_| ()).await.unwrap() });
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(two.look("report").await.unwrap().is_empty(), "it may still begin");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let lost = two.look("report").await.unwrap();
    assert!(lost.len() == 1 && lost[0].tick == tick(27) && !lost[0].begun, "{lost:?}");
    assert_eq!(*reason(&slow.await.unwrap()), SkipReason::GivenUp);
    assert!(two.occurrence("report", tick(27)).unwrap().again().run(async |_| ()).await.unwrap().skipped().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_lost_tick_that_finds_the_last_run_going_on_may_be_tried_again() {
    let fleet = Fleet::new();
    let task = || report().without_overlapping(TTL);
    let (one, two) = (fleet.server(task()), fleet.server(task()));
    let crash = tokio::spawn(async move { one.run("report", tick(27), async |_| panic!("boom")).await.map(drop) });
    assert!(crash.await.unwrap_err().is_panic());
    assert_eq!(two.look("report").await.unwrap().len(), 1);
    let again = || two.occurrence("report", tick(27)).unwrap().again();
    // Between the claim and the lease of the run somebody else begins.
    fleet.store.once(Operation::Transfer, Fault::delay(Duration::from_secs(2)));
    let late = tokio::spawn(again().run_future(|_| async {}));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let other = fleet.manager().lock("report").try_acquire().await.unwrap().unwrap();
    assert_eq!(*reason(&late.await.unwrap().unwrap()), SkipReason::StillRunning);
    other.release().await.unwrap();
    assert!(again().run(async |_| ()).await.unwrap().skipped().is_none());
    assert_eq!(*reason(&again().run(async |_| ()).await.unwrap()), SkipReason::OtherServer);
}
