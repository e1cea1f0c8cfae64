//! Sessions that say nothing, or that linger at the server.

use std::time::Duration;

use leasehold::store::postgres::PostgresAdvisoryStore;
use leasehold::store::{Attempt, Claim, Store};
use leasehold::testkit::{Accident, Proxy};
use leasehold::{ErrorKind, Key, LockManager, LostReason, OwnerToken, Renew};
use rustix::process::{Pid, Signal, kill_process};
use store_tests::{Table, run};

use crate::network::CHECK;
use crate::setting::{HELD, SOON, manager, number, soon};

/// The server may take its time to end what broke, and until then it holds what it held.
#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn what_is_left_of_a_broken_session_is_never_told_as_somebody_else() {
    run(async {
        let table = Table::new();
        let proxy = Proxy::start(table.server().address()).unwrap();
        let locks = manager(&table.url_at(proxy.address())).await;
        for pause in [150, 150, 2500].map(Duration::from_millis) {
            let guard = locks.lock("k").try_acquire().await.unwrap().unwrap();
            let pid = number(&table, &HELD.replace("count(*)", "pid::bigint")).await;
            let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
            kill_process(pid, Signal::STOP).unwrap();
            proxy.reset();
            assert_eq!(soon("the loss", guard.lost()).await, LostReason::ConnectionLost);
            let going_on = async {
                tokio::time::sleep(pause).await;
                kill_process(pid, Signal::CONT).unwrap();
            };
            let again = async {
                loop {
                    match locks.lock("k").try_acquire().await {
                        Ok(guard) => break guard.expect("nobody else has it"),
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
                    }
                }
            };
            let (again, ()) = tokio::join!(soon("the lock", again), going_on);
            again.release().await.unwrap();
        }
    });
}

/// The server knows nothing of it, and its own look after clients finds nothing: they are there.
#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_silent_session_is_ended_at_the_server_also_if_another_was_begun_before() {
    run(async {
        let table = Table::new();
        let proxy = Proxy::start(table.server().address()).unwrap();
        let store = PostgresAdvisoryStore::connect(&table.url_at(proxy.address())).await.unwrap();
        let locks = LockManager::builder(store).ttl(Duration::from_secs(15)).renew(Renew::Off).build().unwrap();
        let others = manager(&table.url()).await;
        let guard = locks.lock("k").try_acquire().await.unwrap().unwrap();
        proxy.once(Accident::lose_request().silently().containing(CHECK));
        soon("an answer", guard.extend(Duration::from_secs(15))).await.unwrap_err();
        assert_eq!(proxy.pending(), 0);
        let other = soon("another session", locks.lock("other").ttl(4 * SOON).acquire()).await.unwrap();
        assert!(others.lock("k").try_acquire().await.unwrap().is_none());
        assert_eq!(soon("the loss", guard.lost()).await, LostReason::Expired);
        let freed = async {
            loop {
                soon("a third", locks.lock("third").acquire()).await.unwrap().release().await.unwrap();
                if let Some(guard) = others.lock("k").try_acquire().await.unwrap() {
                    break guard;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        soon("the lock is free", freed).await.release().await.unwrap();
        // Nobody else's session is touched.
        other.extend(SOON).await.unwrap();
    });
}

/// Who asks sets the limits, as an engine does.
#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn an_answer_that_does_not_come_is_neither_contention_nor_a_loss() {
    const LIMIT: Duration = Duration::from_millis(500);
    run(async {
        let table = Table::new();
        let proxy = Proxy::start(table.server().address()).unwrap();
        let store = PostgresAdvisoryStore::connect(&table.url_at(proxy.address())).await.unwrap();
        let owner = OwnerToken::mint().unwrap();
        let keys = ["k", "other"].map(|name| Key::new("n", name).unwrap());
        let claims = keys.each_ref().map(|key| Claim::new(key, &owner, 4 * SOON));
        assert!(matches!(store.acquire(&claims[0]).await.unwrap(), Attempt::Acquired(_)));
        proxy.replies().hold();
        for what in ["an extend", "an acquire", "an acquire of what is held", "a release"] {
            let told = tokio::time::timeout(LIMIT, async {
                match what {
                    "an extend" => store.extend(&claims[..1]).await.map(|answers| format!("{answers:?}")),
                    "an acquire" => store.acquire(&claims[1]).await.map(|attempt| format!("{attempt:?}")),
                    "a release" => store.release(&keys[0], &owner).await.map(|released| released.to_string()),
                    _ => store.acquire(&claims[0]).await.map(|attempt| format!("{attempt:?}")),
                }
            });
            if let Ok(Ok(answer)) = told.await {
                panic!("{what} was answered {answer}");
            }
        }
        proxy.heal();
        // The release goes on by itself.
        soon("nothing is left", async {
            while store.release(&keys[1], &owner).await.is_err() || number(&table, HELD).await > 0 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
        .await;
    });
}
