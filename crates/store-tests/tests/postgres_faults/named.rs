//! A reply is lost to a statement that has a name, as those have that are asked again and again.

use std::time::Duration;

use leasehold::store::postgres::PostgresStore;
use leasehold::store::{Attempt, Claim, Store};
use leasehold::testkit::{Accident, Proxy};
use leasehold::{ErrorKind, Key, LockGuard, LockManager, OwnerToken, config};
use store_tests::{Table, run};

use crate::setting::{LONG, ROOMY, soon};

/// How often a statement is asked until its next use is by name.
const UNTIL_NAMED: usize = 4;

/// How long a call may take until it is repeated, and then again: with what it takes to connect anew.
const LIMIT: Duration = Duration::from_secs(3);

/// Whose statement gets no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Acquire,
    Extend,
    Release,
}

/// A table, a server that tells what it was asked, a network in front of it, and a manager behind that.
struct Bench {
    table: Table,
    proxy: Proxy,
    locks: LockManager,
}

impl Bench {
    async fn new(mode: &str) -> Self {
        let table = Table::alone(&["-c", "log_statement=all"]);
        let proxy = Proxy::start(table.server().address()).unwrap();
        let url = format!("{}?mode={mode}", table.url_at(proxy.address()));
        let builder = config::open(&url).await.unwrap().ttl(ROOMY).operation_limit(LIMIT);
        let locks = builder.build().unwrap();
        Self { table, proxy, locks }
    }

    /// How many statements with a name the server was asked.
    fn named(&self) -> usize {
        self.table.server().log().matches("LOG:  execute s").count()
    }

    /// The lock, which nobody else has.
    async fn take(&self) -> LockGuard {
        let taking = async {
            loop {
                match self.locks.lock("k").try_acquire().await {
                    Ok(guard) => break guard,
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        };
        soon("the lock", taking).await.unwrap()
    }

    /// Uses everything so often that it has a name on the present connection.
    async fn warm_up(&self) {
        for _ in 0..UNTIL_NAMED {
            let guard = self.take().await;
            guard.extend(ROOMY).await.unwrap();
            guard.release().await.unwrap();
        }
    }

    /// Whether that statement had a name, as far as can be told.
    async fn loses(&self, part: Part, what: &str, accident: Accident) -> bool {
        self.warm_up().await;
        let guard = if part == Part::Acquire { None } else { Some(self.take().await) };
        let named = self.named();
        self.proxy.once(accident);
        let failed = match (part, guard) {
            (Part::Release, Some(guard)) => soon(what, guard.release()).await.err(),
            (_, Some(guard)) => {
                let failed = soon(what, guard.extend(ROOMY)).await.err();
                // Or it would be this one that has it.
                soon(what, guard.release()).await.ok();
                failed
            }
            (_, None) => match soon(what, self.locks.lock("k").try_acquire()).await {
                Ok(guard) => {
                    let guard = guard.unwrap_or_else(|| panic!("{part:?} {what}: nobody else has it"));
                    assert!(self.locks.lock("k").try_acquire().await.unwrap().is_none());
                    guard.release().await.unwrap();
                    None
                }
                Err(error) => Some(error),
            },
        };
        assert_eq!(self.proxy.pending(), 0, "{part:?} {what}");
        if let Some(error) = failed {
            let kinds = [ErrorKind::Indeterminate, ErrorKind::Unavailable, ErrorKind::NotHeld];
            let is_certain = error.kind() == ErrorKind::NotHeld;
            assert!(
                kinds.contains(&error.kind()) && !(is_certain && part == Part::Acquire),
                "{part:?} {what}: {error}"
            );
        }
        !what.starts_with("reply") || self.named() > named
    }
}

async fn losses(mode: &str, parts: &[Part]) {
    let bench = Bench::new(mode).await;
    for part in parts {
        for (what, accident) in [
            ("request reset", Accident::lose_request()),
            ("request swallowed", Accident::lose_request().silently()),
            ("reply reset", Accident::lose_reply()),
            ("reply swallowed", Accident::lose_reply().silently()),
        ] {
            // On a busy machine a connection may be replaced just before, and nothing has a name on the next one.
            let mut had_a_name = false;
            for _ in 0..3 {
                had_a_name = had_a_name || bench.loses(*part, what, accident.clone()).await;
            }
            assert!(had_a_name, "{part:?} {what} had no name");
        }
    }
    bench.take().await.release().await.unwrap();
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_named_statement_on_the_table_that_is_lost_is_no_contention() {
    run(losses("table", &[Part::Acquire, Part::Release]));
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_named_statement_of_a_session_that_is_lost_is_no_contention() {
    run(losses("advisory", &[Part::Acquire, Part::Extend, Part::Release]));
}

/// One token, however often it was asked for.
#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_named_claim_whose_reply_is_lost_is_granted_once() {
    run(async {
        let table = Table::new();
        let proxy = Proxy::start(table.server().address()).unwrap();
        let store = PostgresStore::connect(&table.url_at(proxy.address())).await.unwrap();
        let (key, owner) = (Key::new("", "k").unwrap(), OwnerToken::mint().unwrap());
        let claim = Claim::new(&key, &owner, LONG);
        for _ in 0..UNTIL_NAMED {
            assert!(matches!(store.acquire(&claim).await.unwrap(), Attempt::Acquired(_)));
            assert!(store.release(&key, &owner).await.unwrap());
        }
        proxy.once(Accident::lose_reply());
        let error = soon("an answer", store.acquire(&claim)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error}");
        let given = store.inspect(&key).await.unwrap().holders[0].fencing;
        let Attempt::Acquired(grant) = store.acquire(&claim).await.unwrap() else { panic!("refused") };
        assert_eq!(grant.fencing, given);
        assert!(store.release(&key, &owner).await.unwrap());
    });
}
