//! The server's wall clock is stepped: leases end early or late there, and nobody is told anything false or waits for ever.

use std::fs;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use leasehold::{LostReason, Renew, config};
use store_tests::{Postgres, Table, run};

use crate::setting::{LONG, SOON, builder, manager, soon};

const MINUTE: Duration = Duration::from_secs(60);

/// Gives the server a wall clock that obeys.
const PREPARE: &str = r#"
[ -e clock ] || printf '\0\0\0\0\0\0\0\0' >clock
[ -e clock.so ] || cc -shared -fPIC -O1 -Wall -Werror -o clock.so clock.c
export TEST_CLOCK="{dir}/clock" LD_PRELOAD="{dir}/clock.so"
"#;

fn clocked() -> Table {
    Table::of(Postgres::prepared(PREPARE, &[], &[("clock.c", include_str!("../redis_faults/clock.c").to_owned())]))
}

/// Sets the clock to so many seconds beside the true time.
async fn step(table: &Table, seconds: i64) {
    let client = table.client().await;
    let now = async || {
        let row = client.query_one("SELECT extract(epoch FROM clock_timestamp())::bigint", &[]).await.unwrap();
        row.get::<_, i64>(0)
    };
    let before = now().await;
    let clock = fs::File::options().write(true).open(table.server().dir().join("clock")).unwrap();
    clock.write_all_at(&seconds.to_ne_bytes(), 0).unwrap();
    let stepped = now().await - before;
    assert!((seconds - 1..seconds + 60).contains(&stepped), "{stepped}");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_step_forward_ends_leases_and_their_holders_are_told() {
    run(async {
        let table = clocked();
        let locks = builder(&table.url(), MINUTE).await.renew(Renew::Every(Duration::from_secs(1))).build().unwrap();
        let others = manager(&table.url(), MINUTE).await;
        let first = locks.lock("k").try_acquire().await.unwrap().unwrap();
        let longer = locks.lock("longer").ttl(LONG).try_acquire().await.unwrap().unwrap();
        step(&table, 120).await;
        // Not by its own deadline, which the step did not move, but by the server's word.
        assert_eq!(soon("the loss", first.lost()).await, LostReason::NotHeld);
        let second = soon("the key", others.lock("k").acquire()).await.unwrap();
        assert!(second.fencing_token() > first.fencing_token());
        second.check().unwrap();
        assert!(locks.lock("k").try_acquire().await.unwrap().is_none());
        // What the step did not end can be renewed to its full length.
        longer.check().unwrap();
        longer.extend(LONG).await.unwrap();
        assert!(longer.remaining() > LONG - MINUTE);
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn after_a_step_back_nobody_waits_longer_than_asked_for() {
    run(async {
        let table = clocked();
        let (locks, others) = (manager(&table.url(), MINUTE).await, manager(&table.url(), MINUTE).await);
        // Its holder is gone without a word.
        std::mem::forget(locks.lock("orphan").try_acquire().await.unwrap().unwrap());
        let live = locks.lock("live").ttl(MINUTE).try_acquire().await.unwrap().unwrap();
        let released = locks.lock("released").try_acquire().await.unwrap().unwrap();
        released.release().await.unwrap();
        step(&table, -3600).await;
        let orphan = others.lock("orphan");
        let waited = tokio::time::timeout(SOON, orphan.acquire_within(Duration::from_secs(2)));
        assert!(waited.await.unwrap().unwrap().is_none());
        // What was given back is free.
        assert!(others.lock("released").try_acquire().await.unwrap().is_some());

        // The holder's deadline is its own; renewals neither shorten nor prolong what they should not.
        live.extend(MINUTE).await.unwrap();
        assert!(live.remaining() <= MINUTE);
        let token = live.fencing_token();
        live.release().await.unwrap();
        let next = soon("the key", others.lock("live").acquire()).await.unwrap();
        assert!(next.fencing_token() > token);
        // Whoever knows better than the clock can end it.
        assert!(others.force_release("orphan", None).await.unwrap().is_some());
        assert!(others.lock("orphan").try_acquire().await.unwrap().is_some());
    });
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn locks_of_a_session_or_a_transaction_know_no_clock() {
    run(async {
        for (mode, seconds) in [("advisory", 7200), ("advisory", -7200), ("xact", 7200), ("xact", -7200)] {
            let table = clocked();
            let url = format!("{}?mode={mode}", table.url());
            let open = async || config::open(&url).await.unwrap().ttl(MINUTE).build().unwrap();
            let (ours, theirs) = (open().await, open().await);
            let guard = ours.lock("k").try_acquire().await.unwrap().unwrap();
            step(&table, seconds).await;
            guard.extend(MINUTE).await.unwrap();
            let lock = theirs.lock("k");
            assert!(lock.try_acquire().await.unwrap().is_none(), "{mode} {seconds}");
            let (next, released) = tokio::join!(soon(mode, lock.acquire()), guard.release());
            released.unwrap();
            next.unwrap().release().await.unwrap();
            assert!(theirs.lock("k").try_acquire().await.unwrap().is_some(), "{mode} {seconds}");
        }
    });
}
