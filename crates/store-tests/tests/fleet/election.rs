//! Three replicas that campaign while they are killed, stopped and cut off: never two leaders by their own `check`, always
//! a new one soon after a loss, and none that is stuck.

use std::collections::BTreeSet;
use std::env;
use std::time::Duration;

use leasehold::clock::Moment;
use leasehold::election::Candidate;
use leasehold::testkit::{History, Proxy, Record};
use leasehold::{Clock, FencingToken, Key};
use rustix::process::Signal;
use store_tests::{Site, Table};
use tokio::time::sleep;

use crate::crew::{Member, Said, connect_patiently, dismissed, run, say};

const TTL: Duration = Duration::from_secs(1);
const REPLICAS: usize = 3;
/// How many leaderships there have to be at least.
const LEADERSHIPS: usize = 3;
/// How soon after the end of a lease there has to be another leader: ten times and more of what asking again takes.
const BOUND: Duration = Duration::from_secs(15);

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn one_leads_over_redis() {
    run(async {
        let site = Site::redis();
        let proxy = Proxy::start(site.server().address()).unwrap();
        one_leads("redis", &site.url(), Some((&proxy, format!("redis://{}", proxy.address())))).await;
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn one_leads_over_postgres() {
    run(async {
        let table = Table::new();
        let proxy = Proxy::start(table.server().address()).unwrap();
        one_leads("postgres", &table.url(), Some((&proxy, table.url_at(proxy.address())))).await;
    });
}

#[test]
fn one_leads_over_sqlite() {
    run(async {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}", directory.path().join("leases.db").display());
        one_leads("sqlite", &url, None).await;
    });
}

/// How long it is watched.
pub(crate) fn length() -> Duration {
    let seconds = env::var("LEASEHOLD_TEST_SECONDS").ok().map_or(20, |seconds| seconds.parse().unwrap());
    Duration::from_secs(seconds)
}

/// The first replica is behind the link, if there is one.
async fn one_leads(store: &str, url: &str, link: Option<(&Proxy, String)>) {
    let said = Said::default();
    let clock = Clock::system();
    let begin = clock.now();
    let mut number = 0;
    let mut names = [0; REPLICAS];
    let mut start = |index: usize, names: &mut [u64; REPLICAS]| {
        let url = link.as_ref().filter(|_| index == 0).map_or(url, |(_, url)| url);
        number += 1;
        names[index] = number;
        let variables = [("LEASEHOLD_TEST_URL", url.to_owned()), ("LEASEHOLD_TEST_NUMBER", number.to_string())];
        Member::start("election::replica", &variables, &said)
    };
    let mut crew: Vec<_> = (0..REPLICAS).map(|index| start(index, &mut names)).collect();
    let mut deeds = [0; 3];
    // On a busy machine there may be few turns in that time.
    while clock.now().since(begin) < length() || leaderships(&said.lock()).len() < LEADERSHIPS {
        sleep(TTL.mul_f64(0.5 + fastrand::f64())).await;
        // Half of the time whoever has led last: else it may happen that nothing befalls any leader.
        let leader = last_leader(&said.lock()).and_then(|leader| names.iter().position(|name| *name == leader));
        let index = leader.filter(|_| fastrand::bool()).unwrap_or_else(|| fastrand::usize(..REPLICAS));
        match (fastrand::u8(..3), &link) {
            (0, _) => {
                let fresh = start(index, &mut names);
                std::mem::replace(&mut crew[index], fresh).kill();
                deeds[0] += 1;
            }
            (1, Some((proxy, _))) => {
                proxy.hold();
                sleep(TTL.mul_f64(2.0 * fastrand::f64())).await;
                proxy.heal();
                proxy.reset();
                deeds[1] += 1;
            }
            _ => {
                crew[index].signal(Signal::STOP);
                sleep(TTL.mul_f64(2.0 * fastrand::f64())).await;
                crew[index].signal(Signal::CONT);
                deeds[2] += 1;
            }
        }
    }
    let end = clock.now();
    // Each leads in its turn, so none is stuck: it ends only when it has led since it was asked to.
    crew.iter_mut().for_each(Member::dismiss);
    crew.into_iter().for_each(Member::end);
    let [kills, cuts, stops] = deeds;
    judge(&said.lock(), begin, end, &format!("{store}: {kills} kills, {cuts} cuts, {stops} stops"));
}

/// The replica that has led last, as far as it has been told.
fn last_leader(lines: &[String]) -> Option<u64> {
    let line = lines.iter().rev().find_map(|line| line.strip_prefix("led "))?;
    line.split(' ').next()?.parse().ok()
}

/// The fencing tokens of those who have led.
fn leaderships(lines: &[String]) -> BTreeSet<u64> {
    let led = lines.iter().filter_map(|line| line.strip_prefix("led "));
    led.map(|line| line.split(' ').nth(1).unwrap().parse().unwrap()).collect()
}

fn judge(lines: &[String], begin: Moment, end: Moment, what: &str) {
    let history = History::new();
    let mut beliefs: Vec<_> = lines
        .iter()
        .filter_map(|line| line.strip_prefix("led "))
        .map(|line| {
            let numbers: Vec<u64> = line.split(' ').map(|number| number.parse().unwrap()).collect();
            let [replica, token, from, until] = numbers[..] else { panic!("{line}") };
            // One replica may lead again and again, each time as somebody else.
            let (from, until) = (Moment::from_nanos(from), Moment::from_nanos(until));
            let record = Record::new(Key::new("", "leader").unwrap(), replica * 1_000_000 + token, from, until);
            history.record(record.fencing(Some(FencingToken::new(token))));
            (from, until)
        })
        .collect();
    assert_eq!(history.check(), [], "{what}");
    beliefs.sort_unstable();
    let (mut seen, mut longest, leaders) = (begin, Duration::ZERO, leaderships(lines).len());
    for (from, until) in beliefs {
        if from < end {
            longest = longest.max(from.since(seen));
        }
        seen = seen.max(until);
    }
    eprintln!("election over {what}; {leaders} leaderships, at most {longest:?} without one");
    assert!(longest < TTL + BOUND, "{what}: {longest:?} without a leader");
    assert!(leaders >= LEADERSHIPS, "{what}: {leaders} leaderships");
}

/// Not a test of its own: a replica, until its input has ended and it has led once more.
#[test]
#[ignore = "started by another test"]
fn replica() {
    let (Ok(url), Ok(number)) = (env::var("LEASEHOLD_TEST_URL"), env::var("LEASEHOLD_TEST_NUMBER")) else { return };
    run(async move {
        let locks = connect_patiently(&url).await.build().unwrap();
        let candidate = Candidate::campaign(locks.lock("leader").ttl(TTL));
        tokio::select! {
            () = dismissed() => {}
            () = believe(&candidate, &number) => {}
        }
        candidate.health().unwrap();
        tokio::time::timeout(BOUND * 2, candidate.elected()).await.expect("it leads in its turn").unwrap();
        // The network may be out just now; then the ttl ends it.
        candidate.resign().await.ok();
        locks.close(leasehold::Close::Release).await.ok();
    });
}

/// Tells again and again for how long this replica leads, by its own word; never ends.
async fn believe(candidate: &Candidate, number: &str) {
    let clock = Clock::system();
    loop {
        candidate.health().unwrap();
        let Some(lease) = candidate.leadership() else {
            sleep(Duration::from_millis(1)).await;
            continue;
        };
        let from = clock.now();
        let mut until = None;
        loop {
            let now = clock.now();
            // Valid at some moment after `now`, so it was at `now`.
            if !candidate.is_leader() || lease.check().is_err() || now.since(from) > Duration::from_millis(200) {
                break;
            }
            until = Some(now);
            sleep(Duration::from_millis(1)).await;
        }
        if let (Some(until), Some(token)) = (until, lease.fencing_token()) {
            say(&format!("led {number} {} {} {}", token.get(), from.as_nanos(), until.as_nanos()));
        }
    }
}
