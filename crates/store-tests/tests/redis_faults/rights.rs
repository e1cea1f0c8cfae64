//! The rights that the store needs of a user: those that its documentation lists are enough, and none is too much.

use std::time::Duration;

use ::redis::Value;
use leasehold::store::redis::RedisStore;
use leasehold::store::{Claim, Level, Page, Store, Waiting};
use leasehold::testkit::Server;
use leasehold::{ErrorKind, Key, LockManager, LostReason, OwnerToken, Renew};
use store_tests::{redis, valkey};

use crate::refusals::is_told;
use crate::setting::{Direct, LONG, SHORT, fence, soon};

/// As the documentation of the store lists them.
pub(crate) const RULES: &str = include_str!("../../../../docs/stores.md");

/// The rules for a user of locks under `leasehold:`, each with whether locks work without it.
const NEEDED: &[&str] = &[
    "~leasehold:*",
    "+eval",
    "+evalsha",
    "+get",
    "+set",
    "+del",
    "+pttl",
    "+pexpire",
    "+hget",
    "+hset",
    "+hmget",
    "+hincrby",
    "+scan",
];
const OPTIONAL: &[&str] =
    &["+client|tracking", "+pexpiretime", "+time", "+role", "+command|info", "+info", "+config|get"];

struct Bench {
    server: Server,
    direct: Direct,
    users: u32,
}

impl Bench {
    fn new(server: Server) -> Self {
        let direct = Direct::to(server.address());
        Self { server, direct, users: 0 }
    }

    /// A store for a new user with these rules and no others.
    async fn store(&mut self, rules: &[&str]) -> leasehold::Result<RedisStore> {
        self.users += 1;
        let user = format!("user{}", self.users);
        self.direct.ask(&format!("ACL SETUSER {user} on >pw resetchannels {}", rules.join(" ")));
        soon("an answer", RedisStore::connect(&format!("redis://{user}:pw@{}", self.server.address()))).await
    }

    async fn locks(&mut self, rules: &[&str]) -> leasehold::Result<LockManager> {
        LockManager::builder(self.store(rules).await?).ttl(LONG).renew(Renew::Off).build()
    }

    /// What was refused to this user while it worked.
    fn refused(&mut self) -> Vec<String> {
        let log: Vec<Vec<Value>> = ::redis::from_redis_value(self.direct.ask("ACL LOG")).unwrap();
        self.direct.ask("ACL LOG RESET");
        log.iter().map(|entry| format!("{:?}", entry.get(7))).collect()
    }
}

/// Everything that locks do, as this user; the step at which it ended if it did not go well.
async fn everything(bench: &mut Bench, rules: &[&str]) -> Result<LockManager, String> {
    let told = |step: &'static str| move |error: leasehold::Error| format!("{step}: {error}");
    let locks = bench.locks(rules).await.map_err(told("connect"))?;
    let others = bench.locks(rules).await.map_err(told("connect"))?;
    // Asked again, as after a lost answer.
    let store = bench.store(rules).await.map_err(told("connect"))?;
    let (own, owner) = (Key::new("leasehold", "again").unwrap(), OwnerToken::mint().unwrap());
    for step in ["grant", "repeat"] {
        store.acquire(&Claim::new(&own, &owner, LONG)).await.map_err(told(step))?;
    }
    if !store.release(&own, &owner).await.map_err(told("release"))? {
        return Err("release: nothing".to_owned());
    }
    let key = format!("k{}", bench.users);
    let lock = locks.lock(&key);
    let first = lock.try_acquire().await.map_err(told("acquire"))?.ok_or("acquire: held")?;
    first.extend(LONG * 2).await.map_err(told("extend"))?;
    let holder = locks.holder(&key).await.map_err(told("inspect"))?.ok_or("inspect: free")?;
    if holder.fencing != first.fencing_token() || holder.info.pid.is_none() {
        return Err("inspect: it tells little".to_owned());
    }
    let listing = locks.list(&key, Page::first(10)).await.map_err(told("list"))?;
    if listing.entries.len() != 1 {
        return Err("list: it is not there".to_owned());
    }
    let owner = first.hand_over().await.map_err(told("hand over"))?;
    let second = lock.resume(&owner).await.map_err(told("transfer"))?;
    if fence(&second) <= fence(&first) {
        return Err("transfer: an old token".to_owned());
    }
    let other = others.lock(&key);
    let (third, released) = tokio::join!(other.acquire_within(Duration::from_secs(20)), async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        second.release().await
    });
    released.map_err(told("release"))?;
    let third = third.map_err(told("wait"))?.ok_or("wait: in vain")?;
    locks.force_release(&key, None).await.map_err(told("force release"))?.ok_or("force release: free")?;
    match locks.capabilities().waiting {
        Waiting::Hint => assert_eq!(soon("the loss", third.lost()).await, LostReason::NotHeld),
        _ => assert_eq!(third.extend(LONG).await.unwrap_err().kind(), ErrorKind::NotHeld),
    }
    locks.probe().await.map_err(told("probe"))?;
    Ok(locks)
}

async fn the_documented_rights_are_enough(mut bench: Bench, own: &[&str]) {
    let all = [NEEDED, OPTIONAL, own].concat();
    let line = format!("ACL SETUSER locks on >password resetchannels {}\n", all.join(" "));
    assert!(RULES.contains(&line), "not in the documentation: {line}");

    bench.refused();
    let locks = everything(&mut bench, &all).await.unwrap();
    assert_eq!(locks.capabilities().waiting, Waiting::Hint);
    let probe = locks.probe().await.unwrap();
    assert!(probe.findings.iter().all(|finding| !finding.what.contains("unknown")), "{probe:?}");
    let refused = bench.refused();
    // What the client library says of itself, which nobody needs.
    assert!(refused.iter().all(|command| command.contains("client|setinfo")), "{refused:?}");

    // None of what may be left out is needed.
    let locks = everything(&mut bench, NEEDED).await.unwrap();
    assert_eq!(locks.capabilities().waiting, Waiting::Poll);
    let probe = locks.probe().await.unwrap();
    assert!(probe.findings.iter().any(|finding| finding.level == Level::Warn), "{probe:?}");
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn what_is_documented_is_enough_on_redis() {
    the_documented_rights_are_enough(Bench::new(redis().start().unwrap()), &[]).await;
}

#[tokio::test]
#[cfg_attr(not(has_valkey_server), ignore = "valkey-server is not installed")]
async fn what_is_documented_is_enough_on_valkey() {
    the_documented_rights_are_enough(Bench::new(valkey().start().unwrap()), &["+delifeq"]).await;
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn nothing_that_is_documented_as_needed_is_too_much() {
    everything_needed_is_needed(Bench::new(redis().start().unwrap())).await;
}

#[tokio::test]
#[cfg_attr(not(has_valkey_server), ignore = "valkey-server is not installed")]
async fn nothing_that_is_documented_as_needed_is_too_much_on_valkey() {
    everything_needed_is_needed(Bench::new(valkey().start().unwrap())).await;
}

async fn everything_needed_is_needed(mut bench: Bench) {
    for left_out in NEEDED {
        let rules: Vec<_> = [NEEDED, OPTIONAL].concat().into_iter().filter(|rule| rule != left_out).collect();
        let failure = everything(&mut bench, &rules).await.expect_err(left_out);
        if failure.starts_with("grant") {
            // What was refused has left nothing behind.
            assert_eq!(bench.direct.number("EXISTS leasehold:again"), 0, "{left_out}");
        }
        bench.direct.ask("FLUSHALL");
        // Told as what it is.
        assert!(
            failure.contains("may not run scripts") || failure.contains("the rights that"),
            "{left_out}: {failure}"
        );
    }
}

/// Enough to take a key, and neither to note who holds it nor to take that back.
#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn a_grant_that_stands_is_not_denied() {
    let mut bench = Bench::new(redis().start().unwrap());
    let rules: Vec<_> = NEEDED.iter().copied().filter(|rule| !["+del", "+hset"].contains(rule)).collect();
    let store = bench.store(&rules).await.unwrap();
    let (key, owner) = (Key::new("leasehold", "k").unwrap(), OwnerToken::mint().unwrap());
    let error = store.acquire(&Claim::new(&key, &owner, LONG)).await.unwrap_err();
    assert_eq!(bench.direct.number("EXISTS leasehold:k"), 1);
    is_told(&error, ErrorKind::Indeterminate, &["STANDS", "the rights that"]);
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn each_optional_right_can_be_left_out() {
    let mut bench = Bench::new(redis().start().unwrap());
    for left_out in OPTIONAL {
        let rules: Vec<_> = [NEEDED, OPTIONAL].concat().into_iter().filter(|rule| rule != left_out).collect();
        let locks = everything(&mut bench, &rules).await.unwrap_or_else(|error| panic!("{left_out}: {error}"));
        let polls = *left_out == "+client|tracking";
        assert_eq!(locks.capabilities().waiting == Waiting::Poll, polls, "{left_out}");
        let probe = locks.probe().await.unwrap();
        let says = |word: &str| probe.findings.iter().any(|finding| finding.what.contains(word));
        assert_eq!(says("ask again and again"), polls, "{left_out}: {probe:?}");
        assert_eq!(says("may not read"), *left_out == "+info", "{left_out}: {probe:?}");
    }
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn without_the_time_tokens_count_and_are_kept_for_good() {
    let mut bench = Bench::new(redis().start().unwrap());
    let locks = bench.locks(NEEDED).await.unwrap();
    for expected in 1..4 {
        let guard = locks.lock("k").try_acquire().await.unwrap().unwrap();
        assert_eq!(fence(&guard).get(), expected);
        guard.release().await.unwrap();
    }
    assert_eq!(bench.direct.number("PTTL leasehold:k:fence{leasehold:k}"), -1);
    let dated = bench.locks(&[NEEDED, &["+time"]].concat()).await.unwrap();
    let guard = dated.lock("k").try_acquire().await.unwrap().unwrap();
    assert!(fence(&guard).get() > 1_000_000_000_000_000, "{guard:?}");
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn one_way_to_the_time_is_enough_for_tokens_to_grow_over_a_lost_companion() {
    let mut bench = Bench::new(redis().start().unwrap());
    for way in ["+pexpiretime", "+time"] {
        let locks = bench.locks(&[NEEDED, &[way]].concat()).await.unwrap();
        let lock = locks.lock("k");
        let mut forget = || {
            assert_eq!(bench.direct.number("DEL leasehold:k:fence{leasehold:k}"), 1);
            // The end of a lease tells the time to the millisecond.
            std::thread::sleep(Duration::from_millis(2));
        };
        let first = lock.try_acquire().await.unwrap().unwrap();
        let owner = first.hand_over().await.unwrap();
        forget();
        let second = lock.resume(&owner).await.unwrap();
        assert!(fence(&second) > fence(&first), "{way}: {second:?} after {first:?}");
        forget();
        second.extend(LONG).await.unwrap();
        forget();
        let floor = locks.force_release("k", None).await.unwrap().unwrap().fence_floor.unwrap();
        assert!(floor > fence(&second), "{way}: {floor:?} after {second:?}");
        forget();
        let third = lock.try_acquire().await.unwrap().unwrap();
        assert!(fence(&third) >= floor, "{way}: {third:?} after {floor:?}");
        third.release().await.unwrap();
    }
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn another_database_takes_the_right_to_choose_it() {
    let mut bench = Bench::new(redis().start().unwrap());
    let url = |user: u32| format!("redis://user{user}:pw@{}/3", bench.server.address());
    let (without, with) = (url(1), url(2));
    bench.store(NEEDED).await.unwrap();
    bench.store(&[NEEDED, &["+select"]].concat()).await.unwrap();
    let error = RedisStore::connect(&without).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
    let locks = LockManager::connect(&with).await.unwrap();
    let _guard = locks.lock("k").try_acquire().await.unwrap().unwrap();
    assert_eq!(bench.direct.number("EXISTS leasehold:k"), 0);
    bench.direct.ask("SELECT 3");
    assert_eq!(bench.direct.number("EXISTS leasehold:k"), 1);
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn a_user_that_is_removed_while_it_holds_is_told_and_what_it_holds_ends() {
    let mut bench = Bench::new(redis().start().unwrap());
    let store = bench.store(&[NEEDED, OPTIONAL].concat()).await.unwrap();
    let locks = LockManager::builder(store).ttl(SHORT).build().unwrap();
    let guard = locks.lock("k").try_acquire().await.unwrap().unwrap();
    // Its connections end with it.
    bench.direct.ask("ACL DELUSER user1");
    let error = soon("an answer", locks.lock("other").ttl(LONG).try_acquire()).await.unwrap_err();
    let error = if error.kind() == ErrorKind::Rejected {
        error
    } else {
        // The end of the connection was noticed by this very request.
        soon("an answer", locks.lock("other").ttl(LONG).try_acquire()).await.unwrap_err()
    };
    is_told(&error, ErrorKind::Rejected, &["failed to acquire", "check the user name"]);
    // Renewals fail, and are tried again until the lease is over.
    assert_eq!(soon("the loss", guard.lost()).await, LostReason::Expired);
}
