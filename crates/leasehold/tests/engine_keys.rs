//! What is refused before a store is asked, and what stores and people get to see: keys, namespaces, ttls, tokens.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

#[path = "fixtures/bed.rs"]
mod bed;

use std::time::Duration;

use leasehold::store::noop::NoopStore;
use leasehold::store::{Fencing, HolderInfo, Page, Scope};
use leasehold::{ErrorKind, FencingToken, Key, LockManager, LostReason, MAX_TTL, Operation, OwnerToken, Renew, Wait};

use self::bed::{Bed, SECOND, TTL, at_rest, key, ms};

#[tokio::test(start_paused = true)]
async fn malformed_keys_are_refused_before_the_store_is_asked() {
    let bed = Bed::new();
    let locks = bed.manager();
    let token = OwnerToken::mint().unwrap();
    for name in ["", &"x".repeat(513), "a\nb", "a\0b", "\u{7f}", "tab\t", "c1\u{85}"] {
        let lock = locks.lock(name);
        assert_eq!(lock.key().map(drop).unwrap_err().kind(), ErrorKind::InvalidInput);
        let errors = [
            lock.try_acquire().await.map(drop).unwrap_err(),
            lock.acquire_within(SECOND).await.map(drop).unwrap_err(),
            lock.acquire().await.map(drop).unwrap_err(),
            lock.run(async |_| ()).await.map(drop).unwrap_err(),
            lock.resume(&token).await.map(drop).unwrap_err(),
            lock.release_by(&token).await.unwrap_err(),
            lock.extend_by(&token, TTL).await.unwrap_err(),
            lock.holder().await.map(drop).unwrap_err(),
            locks.with_lock(name, async |_| ()).await.map(drop).unwrap_err(),
            locks.try_with_lock(name, async |_| ()).await.map(drop).unwrap_err(),
            locks.inspect(name).await.map(drop).unwrap_err(),
            locks.force_release(name, None).await.map(drop).unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{name:?}");
            let line = error.to_string();
            assert!(line.contains("invalid key") && !line.contains('\n'), "{line}");
            assert!(error.operation().is_some() && error.store().is_some(), "in its context: {line}");
        }
    }
    assert_eq!(bed.store.total_calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn odd_but_valid_keys_are_kept_apart() {
    let bed = Bed::new();
    let locks = bed.manager();
    let names = ["a", "A", " a", "a ", "ä", "a\u{308}", "{a}", "a:b", "a*", "%61", "../a", "😀", &"x".repeat(512)];
    let mut guards = Vec::new();
    for name in names {
        guards.push(locks.lock(name).try_acquire().await.unwrap().expect(name));
    }
    for name in names {
        assert!(locks.lock(name).try_acquire().await.unwrap().is_none(), "{name:?}");
    }
    assert_eq!(bed.held().await.len(), names.len());
}

#[tokio::test(start_paused = true)]
async fn ttls_out_of_range_are_refused_with_the_reason() {
    let bed = Bed::new();
    let locks = bed.manager();
    let guard = locks.lock("held").try_acquire().await.unwrap().unwrap();
    let token = OwnerToken::mint().unwrap();
    bed.store.clear_log();
    for ttl in [Duration::ZERO, Duration::from_nanos(1), ms(9), MAX_TTL + Duration::from_nanos(1), Duration::MAX] {
        let lock = locks.lock("other").ttl(ttl);
        let built = bed.builder().ttl(ttl).build();
        let errors = [
            lock.try_acquire().await.map(drop).unwrap_err(),
            lock.acquire().await.map(drop).unwrap_err(),
            lock.clone().wait(Wait::No).run(async |_| ()).await.map(drop).unwrap_err(),
            lock.resume(&token).await.map(drop).unwrap_err(),
            lock.extend_by(&token, ttl).await.unwrap_err(),
            guard.extend(ttl).await.unwrap_err(),
            built.map(drop).unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{ttl:?}");
            assert!(error.message().contains("10ms") && error.message().contains("86400s"), "{error}");
        }
    }
    assert_eq!(bed.store.total_calls(), 0);
    guard.check().unwrap();
    assert_eq!(guard.ttl(), TTL);
    for ttl in [ms(10), MAX_TTL] {
        locks.lock("edge").ttl(ttl).try_acquire().await.unwrap().unwrap().release().await.unwrap();
    }
    let hasty = locks.lock("other").renew(Renew::Every(TTL)).try_acquire().await;
    assert_eq!(hasty.map(drop).unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[tokio::test(start_paused = true)]
async fn ttls_between_the_steps_of_a_store_round_up() {
    let bed = Bed::shaped(|shaped| shaped.promising(|capabilities| capabilities.ttl_limits(SECOND, SECOND)));
    let locks = bed.manager();
    let asked = |bed: &Bed| bed.store.log().pop().unwrap().ttl;
    let guard = locks.lock("steps").ttl(ms(1001)).try_acquire().await.unwrap().unwrap();
    assert_eq!((guard.ttl(), asked(&bed)), (2 * SECOND, Some(2 * SECOND)));
    guard.extend(ms(2500)).await.unwrap();
    assert_eq!((guard.ttl(), asked(&bed)), (3 * SECOND, Some(3 * SECOND)));
    let token = guard.hand_over().await.unwrap();
    let lock = locks.lock("steps").ttl(Duration::from_nanos(3_000_000_001));
    lock.extend_by(&token, ms(4100)).await.unwrap();
    assert_eq!(asked(&bed), Some(5 * SECOND));
    let resumed = lock.resume(&token).await.unwrap();
    assert_eq!((resumed.ttl(), asked(&bed)), (4 * SECOND, Some(4 * SECOND)));
    // Less than the store's least is refused, not rounded.
    let error = locks.lock("steps").ttl(ms(999)).try_acquire().await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.message().contains("1s"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn each_lock_has_its_own_ttl() {
    let bed = Bed::new();
    let locks = bed.manager();
    assert_eq!(locks.ttl(), TTL);
    let short = locks.lock("short").ttl(SECOND).renew(Renew::Off).try_acquire().await.unwrap().unwrap();
    let long = locks.lock("long").ttl(10 * TTL).renew(Renew::Off).try_acquire().await.unwrap().unwrap();
    let plain = locks.lock("plain").renew(Renew::Off).try_acquire().await.unwrap().unwrap();
    tokio::time::sleep(SECOND).await;
    assert!(short.check().is_err() && long.check().is_ok() && plain.check().is_ok());
    tokio::time::sleep(TTL).await;
    assert!(long.check().is_ok() && plain.check().is_err());
    assert_eq!(bed.held().await, ["leasehold:long"]);
}

#[tokio::test(start_paused = true)]
async fn namespaces_separate_managers_and_the_empty_one_is_the_exact_key() {
    let bed = Bed::new();
    let manager = |namespace: &str| bed.builder().namespace(namespace).build().unwrap();
    let (prod, stage, bare) = (manager("prod"), manager("stage"), manager(""));
    let guard = prod.lock("deploy").try_acquire().await.unwrap().unwrap();
    assert_eq!(bed.held().await, ["prod:deploy"]);
    assert!(prod.lock("deploy").try_acquire().await.unwrap().is_none());
    assert!(stage.holder("deploy").await.unwrap().is_none());
    let other = stage.lock("deploy").try_acquire().await.unwrap().unwrap();
    assert!(bare.lock("prod:deploy").try_acquire().await.unwrap().is_none());
    assert!(stage.force_release("prod:deploy", None).await.unwrap().is_none());
    guard.check().unwrap();
    other.release().await.unwrap();
    let exact = bare.lock("foreign lock").try_acquire().await.unwrap().unwrap();
    assert_eq!(bed.held().await, ["foreign lock", "prod:deploy"]);
    exact.release().await.unwrap();
    let error = bed.builder().namespace("a:b").build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
}

#[tokio::test(start_paused = true)]
async fn listing_stays_within_the_namespace() {
    let bed = Bed::new();
    let manager = |namespace: &str| bed.builder().namespace(namespace).build().unwrap();
    let (app, apps, bare) = (manager("app"), manager("app2"), manager(""));
    let mut guards = Vec::new();
    for (locks, name) in [(&app, "a/1"), (&app, "a/2"), (&app, "b"), (&apps, "a/1"), (&bare, "a/9"), (&bare, "plain")] {
        guards.push(locks.lock(name).try_acquire().await.unwrap().unwrap());
    }
    let names = async |locks: &LockManager, prefix: &str| -> Vec<String> {
        let listing = locks.list(prefix, Page::first(10)).await.unwrap();
        let named = |stored: &str| Key::from_stored(locks.namespace(), stored).unwrap().name().to_owned();
        listing.entries.iter().map(|entry| named(&entry.key)).collect()
    };
    assert_eq!(names(&app, "").await, ["a/1", "a/2", "b"]);
    assert_eq!(names(&app, "a/").await, ["a/1", "a/2"]);
    assert_eq!(names(&apps, "").await, ["a/1"]);
    assert_eq!(names(&app, "%").await, [""; 0]);
    assert_eq!(names(&bare, "a/").await, ["a/9"]);
    assert_eq!(bare.list("", Page::first(10)).await.unwrap().entries.len(), 6);
    let first = app.list("", Page::first(2)).await.unwrap();
    let rest = app.list("", Page::after(first.next.unwrap(), 2)).await.unwrap();
    assert_eq!(rest.entries.iter().map(|entry| entry.key.as_str()).collect::<Vec<_>>(), ["app:b"]);
    assert_eq!(rest.next, None);
}

#[tokio::test(start_paused = true)]
async fn two_tasks_that_share_a_lock_do_not_share_a_lease() {
    let bed = Bed::new();
    let locks = bed.manager();
    let lock = std::sync::Arc::new(locks.lock("shared").ttl(ms(200)).renew(Renew::Off));
    let first = lock.try_acquire().await.unwrap().unwrap();
    assert!(lock.try_acquire().await.unwrap().is_none());
    tokio::time::sleep(ms(200)).await;
    let second = tokio::spawn({
        let lock = std::sync::Arc::clone(&lock);
        async move { lock.try_acquire().await.unwrap().unwrap() }
    });
    let second = second.await.unwrap();
    assert_eq!(first.release().await.unwrap_err().kind(), ErrorKind::NotHeld);
    second.check().unwrap();
    assert!(lock.holder().await.unwrap().is_some());
    second.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_another_tool_removed_is_lost_at_the_next_renewal() {
    let bed = Bed::new();
    let locks = bed.manager();
    let guard = locks.lock("removed").try_acquire().await.unwrap().unwrap();
    leasehold::store::Store::force_release(&bed.memory, &key("removed"), None).await.unwrap().unwrap();
    let successor = bed.manager().lock("removed").try_acquire().await.unwrap().unwrap();
    let begin = bed.clock.clone();
    let before = leasehold::clock::TimeSource::now(&begin);
    assert_eq!(guard.lost().await, LostReason::NotHeld);
    assert!(leasehold::clock::TimeSource::now(&begin).since(before) < TTL / 2);
    drop(guard);
    at_rest(&locks).await;
    successor.check().unwrap();
    assert!(bed.owner("removed").await.is_some());
}

#[tokio::test(start_paused = true)]
async fn the_fence_grows_over_every_end_of_a_lease() {
    let bed = Bed::new();
    let (locks, others) = (bed.manager(), bed.manager());
    let lock = locks.lock("fence");
    let mut fences: Vec<FencingToken> = Vec::new();
    let mut note = |guard: &leasehold::LockGuard| fences.push(guard.fencing_token().unwrap());
    let guard = lock.try_acquire().await.unwrap().unwrap();
    note(&guard);
    guard.extend(2 * TTL).await.unwrap();
    assert_eq!(Some(guard.fencing_token()), lock.holder().await.unwrap().map(|holder| holder.fencing));
    guard.release().await.unwrap();
    let expiring = lock.clone().renew(Renew::Off).try_acquire().await.unwrap().unwrap();
    note(&expiring);
    tokio::time::sleep(TTL).await;
    let removed = others.lock("fence").try_acquire().await.unwrap().unwrap();
    note(&removed);
    let floor = locks.force_release("fence", None).await.unwrap().unwrap().fence_floor.unwrap();
    assert!(Some(floor) >= removed.fencing_token());
    drop(removed);
    let given = lock.try_acquire().await.unwrap().unwrap();
    note(&given);
    assert!(given.fencing_token().unwrap() > floor);
    let taken = others.lock("fence").resume(&given.hand_over().await.unwrap()).await.unwrap();
    note(&taken);
    drop(taken);
    at_rest(&others).await;
    note(&lock.acquire_within(SECOND).await.unwrap().unwrap());
    assert_eq!(fences.len(), 6);
    assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
}

#[tokio::test(start_paused = true)]
async fn force_release_heeds_what_was_expected() {
    let bed = Bed::new();
    let (locks, operator) = (bed.manager(), bed.manager());
    let guard = locks.lock("stuck").try_acquire().await.unwrap().unwrap();
    let shown = operator.holder("stuck").await.unwrap().unwrap().owner;
    guard.release().await.unwrap();
    let next = locks.lock("stuck").try_acquire().await.unwrap().unwrap();
    assert!(operator.force_release("stuck", Some(&shown)).await.unwrap().is_none());
    assert!(operator.holder("stuck").await.unwrap().is_some());
    let shown = operator.holder("stuck").await.unwrap().unwrap().owner;
    let removed = operator.force_release("stuck", Some(&shown)).await.unwrap().unwrap();
    assert_eq!(removed.holders[0].owner, shown);
    assert!(operator.force_release("stuck", None).await.unwrap().is_none());
    assert_eq!(next.release().await.unwrap_err().kind(), ErrorKind::NotHeld);
}

#[tokio::test(start_paused = true)]
async fn an_expired_lease_reads_as_free() {
    let bed = Bed::new();
    let locks = bed.manager();
    let guard = locks.lock("expired").renew(Renew::Off).try_acquire().await.unwrap().unwrap();
    let holder = locks.holder("expired").await.unwrap().unwrap();
    assert_eq!((holder.remaining, holder.fencing), (Some(TTL), guard.fencing_token()));
    tokio::time::sleep(TTL).await;
    assert!(locks.holder("expired").await.unwrap().is_none());
    assert!(locks.lock("expired").holder().await.unwrap().is_none());
    assert!(locks.inspect("expired").await.unwrap().holders.is_empty());
    assert!(locks.list("", Page::first(9)).await.unwrap().entries.is_empty());
    assert!(locks.force_release("expired", None).await.unwrap().is_none());
    assert_eq!(bed.store.calls(Operation::Acquire), 1, "looking takes nothing");
}

#[tokio::test(start_paused = true)]
async fn people_see_who_holds_and_why_unless_told_otherwise() {
    let bed = Bed::new();
    let locks = bed.manager();
    let lock = locks.lock("seen").reason("quarterly\nreport").label(&"l".repeat(300));
    let guard = lock.try_acquire().await.unwrap().unwrap();
    let holder = lock.holder().await.unwrap().unwrap();
    assert_eq!(holder.info.pid, Some(std::process::id()));
    assert_eq!(holder.info.reason.as_deref(), Some("quarterly report"));
    assert_eq!(holder.info.label.as_deref(), Some("l".repeat(256).as_str()));
    assert!(holder.info.host.is_some());
    assert!(holder.info.command.as_deref().is_some_and(|command| !command.contains('/')));
    // Renewals keep it; whoever takes the lease on tells its own.
    tokio::time::sleep(2 * TTL).await;
    assert_eq!(lock.holder().await.unwrap().unwrap().info, holder.info);
    let token = guard.hand_over().await.unwrap();
    let resumed = locks.lock("seen").reason("second half").resume(&token).await.unwrap();
    let reason = lock.holder().await.unwrap().unwrap().info.reason.clone();
    assert_eq!(reason.as_deref(), Some("second half"));
    resumed.release().await.unwrap();

    let silent = bed.builder().without_holder_info().build().unwrap();
    let lock = silent.lock("unseen").reason("secret").label("secret");
    let _guard = lock.try_acquire().await.unwrap().unwrap();
    assert_eq!(*lock.holder().await.unwrap().unwrap().info, HolderInfo::default());
}

#[tokio::test(start_paused = true)]
async fn owner_tokens_are_new_each_time_and_shown_nowhere() {
    let bed = Bed::new();
    let locks = bed.manager();
    let lock = locks.lock("secret");
    let mut owners = std::collections::HashSet::new();
    for _ in 0..100 {
        let guard = lock.try_acquire().await.unwrap().unwrap();
        let owner = bed.owner("secret").await.unwrap();
        let secret = owner.expose();
        let shown = format!("{guard:?} {:?} {lock:?} {locks:?}", guard.handle());
        assert!(!shown.contains(&secret) && !shown.contains(&secret[..8]), "{shown}");
        assert!(owners.insert(secret));
        guard.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn required_scope_and_fencing_are_checked_at_construction() {
    let bed = Bed::new();
    let error = bed.builder().require_scope(Scope::Host).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.message().contains("\"process\"") && error.message().contains("\"host\""), "{error}");
    assert!(bed.builder().require_scope(Scope::Process).require_fencing(Fencing::Monotonic).build().is_ok());
    let noop = || LockManager::builder(NoopStore::new());
    assert_eq!(noop().require_scope(Scope::Process).build().unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(noop().require_fencing(Fencing::BestEffort).build().unwrap_err().kind(), ErrorKind::Unsupported);
}

#[tokio::test(start_paused = true)]
async fn noop_grants_everything_and_promises_nothing() {
    let locks = LockManager::new(NoopStore::new());
    assert_eq!((locks.scope(), locks.is_shared(), locks.store_name()), (Scope::None, false, "noop"));
    let one = locks.lock("free").try_acquire().await.unwrap().unwrap();
    let two = locks.lock("free").try_acquire().await.unwrap().unwrap();
    assert_eq!((one.fencing_token(), two.fencing_token()), (None, None));
    let ran = locks.with_lock("free", async |_| locks.try_with_lock("free", async |_| 7).await).await.unwrap();
    assert_eq!(ran.value.unwrap().unwrap().value, 7);
    one.extend(TTL).await.unwrap();
    one.release().await.unwrap();
    two.keep().await.unwrap();
    at_rest(&locks).await;
}
