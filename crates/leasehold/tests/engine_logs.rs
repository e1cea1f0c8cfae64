//! What is logged, and how loudly: a healthy service is quiet, contention included; and what spans say.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

mod support {
    pub(crate) mod bent;
    pub(crate) mod rig;
}

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use leasehold::store::noop::NoopStore;
use leasehold::testkit::Fault;
use leasehold::{FencingToken, LockManager, Renew, Wait};
use parking_lot::Mutex;
use support::rig::{Rig, TTL, ms, secs, settle, until_nothing_is_left};
use tokio::time::{sleep, timeout};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

type Fields = BTreeMap<String, String>;

/// Keeps spans with all that was recorded on them, and the lines of events above debug.
#[derive(Clone, Default)]
struct Logs(Arc<Mutex<Kept>>);

#[derive(Default)]
struct Kept {
    spans: Vec<(&'static str, Fields)>,
    lines: Vec<String>,
}

impl Logs {
    fn listen() -> (Self, tracing::subscriber::DefaultGuard) {
        let logs = Self::default();
        let guard = tracing::subscriber::set_default(logs.clone());
        (logs, guard)
    }

    fn lines(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().lines)
    }

    /// The spans of this name since the last call.
    fn spans(&self, name: &str) -> Vec<Fields> {
        self.0.lock().spans.iter().filter(|(span, _)| *span == name).map(|(_, fields)| fields.clone()).collect()
    }
}

struct Visitor<'a>(&'a mut Fields);

impl Visit for Visitor<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
}

impl Subscriber for Logs {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("leasehold")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = Fields::new();
        span.record(&mut Visitor(&mut fields));
        let mut kept = self.0.lock();
        kept.spans.push((span.metadata().name(), fields));
        Id::from_u64(u64::try_from(kept.spans.len()).unwrap())
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        let index = usize::try_from(span.into_u64()).unwrap() - 1;
        values.record(&mut Visitor(&mut self.0.lock().spans[index].1));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        if *event.metadata().level() < Level::DEBUG {
            let mut fields = Fields::new();
            event.record(&mut Visitor(&mut fields));
            self.0.lock().lines.push(format!("{}: {}", event.metadata().level(), fields["message"]));
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test(start_paused = true)]
async fn a_healthy_service_is_quiet() {
    let (logs, _guard) = Logs::listen();
    let rig = Rig::new();
    let manager = rig.manager();
    let lock = manager.lock("k");
    let guard = lock.try_acquire().await.unwrap().unwrap();
    assert!(lock.try_acquire().await.unwrap().is_none());
    assert!(lock.acquire_within(secs(1)).await.unwrap().is_none());
    assert!(timeout(ms(10), lock.acquire()).await.is_err());
    // A renewal that is made good by the next one is nothing yet.
    rig.store.once(leasehold::Operation::Extend, Fault::fail(leasehold::ErrorKind::Unavailable));
    sleep(TTL).await;
    guard.release().await.unwrap();
    drop(lock.try_acquire().await.unwrap().unwrap());
    until_nothing_is_left(&manager).await;
    manager.with_lock("k", async |_| ()).await.unwrap().into_value().unwrap();
    assert_eq!(logs.lines(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn what_went_wrong_is_said() {
    let (logs, _guard) = Logs::listen();
    let rig = Rig::new();
    let manager = rig.manager();
    let brief = manager.lock("k").ttl(secs(1)).renew(Renew::Off).try_acquire().await.unwrap().unwrap();
    sleep(secs(2)).await;
    brief.release().await.unwrap_err();
    assert_eq!(
        logs.lines(),
        ["WARN: lease lost", "ERROR: release found the lease gone: the work may have outlived it"]
    );
    let guard = manager.lock("k").try_acquire().await.unwrap().unwrap();
    rig.store.outage(Fault::fail(leasehold::ErrorKind::Unavailable));
    guard.release().await.unwrap_err();
    assert_eq!(logs.lines(), ["WARN: release failed: it is repeated in the background, the ttl ends the lease"]);
    rig.store.heal();
    until_nothing_is_left(&manager).await;
    let guard = manager.lock("k").try_acquire().await.unwrap().unwrap();
    rig.store.outage(Fault::fail(leasehold::ErrorKind::Unavailable));
    sleep(TTL).await;
    let lines = logs.lines();
    assert!(lines.contains(&"WARN: renewal failed".to_owned()), "{lines:?}");
    assert_eq!(lines.last().unwrap(), "WARN: lease lost");
    rig.store.heal();
    drop(guard);
    until_nothing_is_left(&manager).await;
    assert!(manager.force_release("k", None).await.unwrap().is_none());
    assert_eq!(logs.lines(), Vec::<String>::new(), "nothing was there");
    let guard = manager.lock("k").try_acquire().await.unwrap().unwrap();
    assert!(manager.force_release("k", None).await.unwrap().is_some());
    assert_eq!(logs.lines(), ["WARN: force release"]);
    guard.lost().await;
    logs.lines();
    LockManager::new(NoopStore);
    assert_eq!(logs.lines(), ["WARN: this store excludes nobody"]);
}

#[tokio::test(start_paused = true)]
async fn spans_say_how_it_went() {
    let (logs, _guard) = Logs::listen();
    let rig = Rig::new();
    let manager = rig.manager();
    let lock = manager.lock("k").wait(Wait::UpTo(secs(5)));
    let mut owner = String::new();
    lock.run(async |_| {
        owner = manager.holder("k").await.unwrap().unwrap().owner.fingerprint();
        sleep(TTL).await;
    })
    .await
    .unwrap()
    .unwrap()
    .into_value()
    .unwrap();
    let is = |span: &Fields, fields: &[(&str, &str)]| {
        for (name, value) in fields {
            assert_eq!(span.get(*name).map(String::as_str), Some(*value), "{name} of {span:?}");
        }
    };
    let who = [("namespace", "leasehold"), ("key", "k"), ("owner", owner.as_str())];
    for name in ["lock.with", "lock.acquire", "lock.release", "lock.renew"] {
        let spans = logs.spans(name);
        is(&spans[0], &who);
        assert!(spans[0].contains_key("store") && spans[0].contains_key("fencing"), "{spans:?}");
    }
    is(&logs.spans("lock.with")[0], &[("outcome", "ran"), ("ttl", "30.0"), ("wait", "5.0")]);
    is(&logs.spans("lock.acquire")[0], &[("outcome", "granted"), ("waited", "0.0"), ("attempts", "1")]);
    is(&logs.spans("lock.release")[0], &[("outcome", "ok"), ("held", "30.0")]);
    is(&logs.spans("lock.renew")[0], &[("outcome", "ok"), ("leases", "1"), ("renewed", "1")]);

    let guard = lock.try_acquire().await.unwrap().unwrap();
    assert!(lock.try_acquire().await.unwrap().is_none());
    assert!(lock.acquire_within(secs(1)).await.unwrap().is_none());
    assert!(timeout(ms(10), lock.acquire()).await.is_err());
    guard.release().await.unwrap();
    let outcomes: Vec<_> = logs.spans("lock.acquire").into_iter().map(|span| span["outcome"].clone()).collect();
    assert_eq!(outcomes, ["granted", "granted", "contended", "timed out", "cancelled"]);
    let guard = lock.try_acquire().await.unwrap().unwrap();
    let owner = guard.owner_token().fingerprint();
    let token = guard.hand_over().await.unwrap();
    let of_lease = |span: &Fields, owner: &str, fencing: Option<FencingToken>, outcome| {
        is(span, &[("namespace", "leasehold"), ("key", "k"), ("store", "bent"), ("owner", owner)]);
        is(span, &[("fencing", &fencing.unwrap().to_string()), ("ttl", "30.0"), ("outcome", outcome)]);
    };
    of_lease(&logs.spans("lock.extend")[0], &owner, guard.fencing_token(), "ok");
    let resumed = lock.resume(&token).await.unwrap();
    let owner = resumed.owner_token().fingerprint();
    of_lease(&logs.spans("lock.resume")[0], &owner, resumed.fencing_token(), "resumed");
    assert!(lock.resume(&token).await.is_err());
    let refused = &logs.spans("lock.resume")[1];
    is(refused, &[("outcome", "not held"), ("key", "k")]);
    assert!(!refused.contains_key("owner"), "{refused:?}");
    resumed.extend(secs(60)).await.unwrap();
    is(&logs.spans("lock.extend")[1], &[("ttl", "60.0"), ("owner", &owner), ("outcome", "ok")]);
    resumed.release().await.unwrap();
    let panics = tokio::spawn(async move {
        let run = lock.run_future(|_| async {
            settle().await;
            assert!(std::hint::black_box(false), "by design");
        });
        run.await.map(drop)
    });
    assert!(panics.await.unwrap_err().is_panic());
    is(&logs.spans("lock.with")[1], &[("outcome", "panicked")]);
}

/// Panics once, at a point of the spans of calls or at the line about a dropped guard.
#[derive(Clone)]
struct Panics(&'static str, Arc<AtomicBool>);

/// The spans at which it may, by their ids; 1 is any other.
const SPANS: [(&str, u64); 4] = [("lock.release", 2), ("lock.acquire", 3), ("lock.resume", 4), ("lock.with", 5)];

impl Panics {
    fn at(&self, point: &str) {
        assert!(self.0 != point || self.1.swap(true, Ordering::Relaxed), "the subscriber panics");
    }

    fn at_span(&self, what: &str, id: &Id) {
        if let Some((name, _)) = SPANS.iter().find(|(_, known)| *known == id.into_u64()) {
            self.at(&format!("{what} {name}"));
        }
    }
}

impl Subscriber for Panics {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("leasehold")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let name = span.metadata().name();
        self.at(&format!("new span {name}"));
        Id::from_u64(SPANS.iter().find(|(known, _)| *known == name).map_or(1, |(_, id)| *id))
    }

    fn record(&self, id: &Id, _: &Record<'_>) {
        self.at_span("record", id);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::new();
        event.record(&mut Visitor(&mut fields));
        if fields["message"] == "guard dropped without release" {
            self.at("event");
        }
    }

    fn enter(&self, id: &Id) {
        self.at_span("enter", id);
    }

    fn exit(&self, id: &Id) {
        self.at_span("exit", id);
    }
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_that_panics_loses_no_release() {
    for point in ["new span lock.release", "enter lock.release", "event"] {
        let panicked = Arc::<AtomicBool>::default();
        let _listens = tracing::subscriber::set_default(Panics(point, Arc::clone(&panicked)));
        let rig = Rig::new();
        let manager = rig.manager();
        let guard = manager.lock("k").try_acquire().await.unwrap().unwrap();
        if point == "event" {
            drop(guard);
        } else {
            assert!(tokio::spawn(guard.release()).await.unwrap_err().is_panic());
        }
        assert!(panicked.load(Ordering::Relaxed), "{point}");
        sleep(secs(2)).await;
        assert!(rig.is_free("k").await, "{point}");
        until_nothing_is_left(&manager).await;
    }
}

/// Nobody gets a guard then, so nobody could give the lease back.
#[tokio::test(start_paused = true)]
async fn a_subscriber_that_panics_leaves_no_lease_behind() {
    for point in [
        "new span lock.acquire",
        "enter lock.acquire",
        "record lock.acquire",
        "exit lock.acquire",
        "enter lock.resume",
        "record lock.resume",
        "exit lock.resume",
        "record lock.with",
        "exit lock.with",
    ] {
        let rig = Rig::new();
        let manager = rig.manager();
        let panicked = Arc::<AtomicBool>::default();
        let listens = tracing::subscriber::set_default(Panics(point, Arc::clone(&panicked)));
        let lock = manager.lock("k").ttl(secs(20));
        let call = tokio::spawn(async move {
            let token = lock.acquire().await.unwrap().hand_over().await.unwrap();
            lock.resume(&token).await.unwrap().release().await.unwrap();
            lock.run(async |_| settle().await).await.map(drop)
        });
        // A line of the log is no reason to fail, a panic elsewhere goes on to the caller.
        _ = call.await;
        assert!(panicked.load(Ordering::Relaxed), "{point}");
        drop(listens);
        // What was handed over and not taken on stands until its ttl.
        sleep(secs(30)).await;
        assert!(rig.is_free("k").await, "{point}");
        until_nothing_is_left(&manager).await;
    }
}
