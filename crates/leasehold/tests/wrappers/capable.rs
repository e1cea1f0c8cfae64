//! What a store cannot do, nothing in front of it can; and a store that cannot lock refuses by name.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::store::breaker::Breaker;
use leasehold::store::cache::{Cache, CacheStore, Locking, Prefixed};
use leasehold::store::memory::MemoryStore;
use leasehold::store::noop::NoopStore;
use leasehold::store::quorum::Quorum;
use leasehold::store::retry::Retry;
use leasehold::store::{Capabilities, Claim, Page, Scope, Store};
use leasehold::testkit::FaultStore;
use leasehold::{Close, Error, ErrorKind, LockManager, OwnerToken, Result};

use crate::support::rig::{TTL, key};

/// A cache that would do everything it is asked for, if it could be trusted with locks.
#[derive(Clone, Debug)]
struct Unfit(Locking);

#[async_trait]
impl Cache for Unfit {
    fn name(&self) -> &'static str {
        "sessions"
    }

    fn reach(&self) -> Scope {
        Scope::Network
    }

    fn locking(&self) -> Locking {
        self.0
    }

    async fn add(&self, _: &str, _: &[u8], _: Duration) -> Result<bool> {
        Ok(true)
    }

    async fn forget_if(&self, _: &str, _: &[u8]) -> Result<bool> {
        Ok(true)
    }

    async fn extend_if(&self, _: &str, _: &[u8], _: Duration) -> Result<bool> {
        Ok(true)
    }

    async fn get(&self, _: &str) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }
}

fn refused<T: fmt::Debug>(answer: Result<T>, why: &str) {
    let error: Error = answer.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let text = error.to_string();
    assert!(text.contains("the cache \"sessions\" cannot lock") && text.contains(why), "{text}");
}

/// The same unfit cache behind everything that can stand in front of it.
fn wrapped(locking: Locking) -> Vec<Arc<dyn Store>> {
    let cache = Unfit(locking);
    let store = CacheStore::new(cache.clone());
    vec![
        Arc::new(store.clone()),
        Arc::new(store.clone().declare_scope(Scope::Network)),
        Arc::new(CacheStore::new(Prefixed::new("app:", cache))),
        Arc::new(Breaker::new(store.clone())),
        Arc::new(Retry::new(store.clone())),
        Arc::new(Breaker::new(Retry::new(FaultStore::new(store)))),
    ]
}

#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_lock_refuses_every_call_by_name_through_every_wrapper() {
    for (locking, why) in [(Locking::Tagged, "it is tagged"), (Locking::NoAtomicAdd, "it cannot add an entry only if")]
    {
        for store in wrapped(locking) {
            let locks = LockManager::new(store);
            assert!(!locks.can_lock() && !locks.is_shared());
            let owner = OwnerToken::mint().unwrap();
            // More often than a breaker takes to open: this is no failure of the store.
            for _ in 0..10 {
                refused(locks.lock("k").try_acquire().await, why);
            }
            refused(locks.lock("k").acquire().await, why);
            refused(locks.with_lock("k", async |_| ()).await, why);
            refused(locks.lock("k").release_by(&owner).await, why);
            refused(locks.lock("k").extend_by(&owner, TTL).await, why);
            refused(locks.holder("k").await, why);
            refused(locks.force_release("k", None).await, why);
            refused(locks.list("", Page::first(1)).await, why);
            refused(locks.ping().await, why);
            // No token was ever handed over, so the engine refuses this one by itself.
            let error = locks.lock("k").resume(&owner).await.unwrap_err();
            assert_eq!((error.kind(), error.store()), (ErrorKind::Unsupported, Some("sessions")));
            refused(locks.close(Close::Release).await, why);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn it_refuses_each_method_of_the_interface_by_name_through_every_wrapper() {
    for store in wrapped(Locking::Tagged) {
        let (why, key, owner) = ("it is tagged", key("k"), OwnerToken::mint().unwrap());
        let claim = || Claim::new(&key, &owner, TTL);
        refused(store.acquire(&claim()).await, why);
        refused(store.extend(&[claim()]).await, why);
        refused(store.extend(&[]).await, why);
        refused(store.release(&key, &owner).await, why);
        refused(store.transfer(&owner, &claim()).await, why);
        refused(store.force_release(&key, None).await, why);
        refused(store.force_release(&key, Some(&owner)).await, why);
        refused(store.inspect(&key).await, why);
        refused(store.list("", Page::first(1)).await, why);
        refused(store.probe().await, why);
        refused(store.close().await, why);
    }
}

/// So a wrapper that forgets one does not compile; and with no other would it pass a call on to a default.
#[test]
fn no_method_of_the_interfaces_has_a_body() {
    for (source, name, methods) in [
        (include_str!("../../src/store.rs"), "pub trait Store:", 11),
        (include_str!("../../src/store/cache.rs"), "pub trait Cache:", 7),
    ] {
        let body = source.split_once(name).unwrap().1.split_once("{\n").unwrap().1.split_once("\n}").unwrap().0;
        let code: Vec<_> = body.lines().map(str::trim_start).filter(|line| !line.starts_with("//")).collect();
        let code = code.join("\n");
        assert_eq!(code.matches("fn ").count(), methods, "{code}");
        assert!(!code.contains(['{', '}']), "{name} {code}");
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_that_requires_exclusion_is_built_on_one_that_cannot_lock() {
    for store in wrapped(Locking::Tagged) {
        let error = LockManager::builder(store).require_scope(Scope::Process).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
    let nodes = (0..3).map(|_| CacheStore::new(Unfit(Locking::Tagged)));
    let error = Quorum::builder(nodes).build().unwrap_err();
    assert!(error.to_string().contains("it cannot lock"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn an_operator_may_declare_a_store_shared() {
    let cache = Unfit(Locking::Atomic);
    let store = CacheStore::new(cache).declare_scope(Scope::Process);
    assert_eq!(store.capabilities(), Capabilities::new(Scope::Process));
    let locks = LockManager::new(Breaker::new(store.declare_scope(Scope::Network)));
    assert!(locks.is_shared() && locks.can_lock());
}

#[tokio::test(start_paused = true)]
async fn a_foreign_entry_is_no_lease() {
    #[derive(Debug)]
    struct Data;

    #[async_trait]
    impl Cache for Data {
        fn name(&self) -> &'static str {
            "data"
        }

        fn reach(&self) -> Scope {
            Scope::Process
        }

        fn locking(&self) -> Locking {
            Locking::Atomic
        }

        async fn add(&self, _: &str, _: &[u8], _: Duration) -> Result<bool> {
            Ok(false)
        }

        async fn forget_if(&self, _: &str, _: &[u8]) -> Result<bool> {
            panic!("somebody's data was to be removed")
        }

        async fn extend_if(&self, _: &str, _: &[u8], _: Duration) -> Result<bool> {
            panic!("somebody's data was to be extended")
        }

        async fn get(&self, _: &str) -> Result<Option<Vec<u8>>> {
            Ok(Some(vec![b'x'; 4096]))
        }
    }

    let locks = LockManager::new(CacheStore::new(Data));
    assert_eq!(locks.lock("k").acquire().await.unwrap_err().kind(), ErrorKind::Rejected);
    assert_eq!(locks.holder("k").await.unwrap_err().kind(), ErrorKind::Rejected);
    assert_eq!(locks.force_release("k", None).await.unwrap_err().kind(), ErrorKind::Rejected);
}

#[test]
fn wrappers_pass_on_every_capability() {
    let memory = || MemoryStore::new();
    let stores: [(Box<dyn Store>, Capabilities); 4] = [
        (Box::new(Breaker::new(memory())), memory().capabilities()),
        (Box::new(Retry::new(memory())), memory().capabilities()),
        (Box::new(Breaker::new(NoopStore::new())), NoopStore::new().capabilities()),
        (Box::new(Retry::new(Breaker::new(NoopStore::new()))), NoopStore::new().capabilities()),
    ];
    for (store, capabilities) in stores {
        assert_eq!(store.capabilities(), capabilities);
    }
}
