//! What stands in a server: to be changed only together with everybody who shares a key.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold::LockManager;
use leasehold::store::HolderInfo;
use redis::Connection;
use store_tests::{Site, on_every_server, on_servers_that_push};

on_every_server! {
    a_lease_is_a_string_with_a_companion
    names_are_these
    the_companion_outlives_the_lease
    values_pass_on
}

mod waiting {
    use super::*;
    on_servers_that_push! { those_who_wait_stand_in_the_companion }
}

fn keys(client: &mut Connection) -> Vec<String> {
    let mut keys: Vec<String> = redis::cmd("KEYS").arg("*").query(client).unwrap();
    keys.sort();
    keys
}

fn ask<T: redis::FromRedisValue>(client: &mut Connection, command: &[&str]) -> T {
    redis::cmd(command[0]).arg(&command[1..]).query(client).unwrap()
}

async fn manager(site: &Site) -> LockManager {
    let mut info = HolderInfo::default();
    info.host = Some("host".to_owned());
    info.pid = Some(7);
    info.command = Some("import".to_owned());
    site.builder().await.holder_info(info).ttl(Duration::from_secs(60)).build().unwrap()
}

async fn a_lease_is_a_string_with_a_companion(site: Site) {
    let (locks, mut client) = (manager(&site).await, site.client());
    let lock = locks.lock("deploy").label("nightly").reason("because\nof it");
    let guard = lock.try_acquire().await.unwrap().unwrap();
    let companion = "leasehold:deploy:fence{leasehold:deploy}";
    assert_eq!(keys(&mut client), ["leasehold:deploy", companion]);

    assert_eq!(ask::<String>(&mut client, &["TYPE", "leasehold:deploy"]), "string");
    let token = guard.owner_token().expose();
    assert_eq!(ask::<String>(&mut client, &["GET", "leasehold:deploy"]), token);
    assert_eq!(token.len(), 32);
    let left: i64 = ask(&mut client, &["PTTL", "leasehold:deploy"]);
    assert!((30_000..=60_000).contains(&left), "{left}");

    assert_eq!(ask::<String>(&mut client, &["TYPE", companion]), "hash");
    let fields: BTreeMap<String, String> = ask(&mut client, &["HGETALL", companion]);
    let names: Vec<_> = fields.keys().map(String::as_str).collect();
    assert_eq!(names, ["fence", "held", "holder"]);
    let (since, owner) = fields["held"].split_once(' ').unwrap();
    assert_eq!(owner, token);
    assert_eq!(fields["holder"], "host\n7\nimport\nnightly\nbecause of it");
    assert_eq!(fields["fence"], guard.fencing_token().unwrap().get().to_string());
    // Milliseconds of the holder's clock; microseconds of the server's.
    let (seconds, _): (u64, u64) = ask(&mut client, &["TIME"]);
    for (time, per_second) in [(since, 1000), (&*fields["fence"], 1_000_000)] {
        let at = time.parse::<u64>().unwrap() / per_second;
        assert!(seconds.abs_diff(at) < 60, "{time}, now {seconds}");
    }
    guard.extend(Duration::from_secs(60)).await.unwrap();
    let renewed: u64 = ask(&mut client, &["HGET", companion, "renewed"]);
    assert!(seconds.abs_diff(renewed / 1000) < 60, "{renewed}, now {seconds}");
    guard.release().await.unwrap();
    assert_eq!(keys(&mut client), [companion]);
    let after: BTreeMap<String, String> = ask(&mut client, &["HGETALL", companion]);
    assert_eq!(after["fence"], fields["fence"]);
}

async fn names_are_these(site: Site) {
    for (namespace, name, expected) in [
        ("leasehold", "deploy", ["leasehold:deploy", "leasehold:deploy:fence{leasehold:deploy}"]),
        ("", "deploy", ["deploy", "deploy:fence{deploy}"]),
        ("app.1", "a:b", ["app.1:a:b", "app.1:a:b:fence{app.1:a:b}"]),
        ("leasehold", "{tenant}:x", ["leasehold:{tenant}:x", "leasehold:{tenant}:x:fence"]),
        ("", "täglich ü", ["täglich ü", "täglich ü:fence{täglich ü}"]),
        ("", "{}x", ["{}x", "{}x:fence{1531}"]),
        ("", "a}b", ["a}b", "a}b:fence{ddb9}"]),
    ] {
        let mut client = site.client();
        let locks = site.builder().await.namespace(namespace).build().unwrap();
        let guard = locks.lock(name).try_acquire().await.unwrap().unwrap();
        assert_eq!(keys(&mut client), expected);
        guard.release().await.unwrap();
        ask::<()>(&mut client, &["FLUSHALL"]);
    }
}

async fn the_companion_outlives_the_lease(site: Site) {
    let (locks, mut client) = (manager(&site).await, site.client());
    let guard = locks.lock("deploy").try_acquire().await.unwrap().unwrap();
    let companion = "leasehold:deploy:fence{leasehold:deploy}";
    // Thirty days from its first use, or the last extension.
    let left = |client: &mut Connection| -> i64 { ask(client, &["PTTL", companion]) };
    assert!((2_591_000_000..=2_592_000_000).contains(&left(&mut client)));
    ask::<()>(&mut client, &["PEXPIRE", companion, "100000"]);
    guard.extend(Duration::from_secs(60)).await.unwrap();
    assert!((2_591_000_000..=2_592_000_000).contains(&left(&mut client)));
    let guard = locks.lock("deploy").resume(&guard.hand_over().await.unwrap()).await.unwrap();
    guard.release().await.unwrap();
    let guard = locks.lock("deploy").try_acquire().await.unwrap().unwrap();
    // Removed by an operator, the token of the one who was removed stays known.
    locks.force_release("deploy", None).await.unwrap().unwrap();
    assert!((2_591_000_000..=2_592_000_000).contains(&left(&mut client)));
    drop(guard);
}

async fn values_pass_on(site: Site) {
    let (locks, mut client) = (manager(&site).await, site.client());
    let lock = locks.lock("deploy");
    let guard = lock.try_acquire().await.unwrap().unwrap();
    let mut latest = guard.fencing_token();
    let mut grew = |client: &mut Connection, token| {
        assert!(token > latest);
        latest = token;
        let noted: u64 = ask(client, &["HGET", "leasehold:deploy:fence{leasehold:deploy}", "fence"]);
        assert_eq!(latest.unwrap().get(), noted);
    };
    let token = guard.hand_over().await.unwrap();
    assert_eq!(ask::<String>(&mut client, &["GET", "leasehold:deploy"]), token.expose());
    let guard = lock.resume(&token).await.unwrap();
    assert_ne!(guard.owner_token(), &token);
    assert_eq!(ask::<String>(&mut client, &["GET", "leasehold:deploy"]), guard.owner_token().expose());
    grew(&mut client, guard.fencing_token());
    guard.release().await.unwrap();
    let guard = lock.try_acquire().await.unwrap().unwrap();
    grew(&mut client, guard.fencing_token());
    let removed = locks.force_release("deploy", None).await.unwrap().unwrap();
    grew(&mut client, removed.fence_floor);
}

async fn those_who_wait_stand_in_the_companion(site: Site) {
    let (holder, mut client) = (manager(&site).await, site.client());
    let guard = holder.lock("deploy").try_acquire().await.unwrap().unwrap();
    let line = |client: &mut Connection| -> String {
        ask(client, &["HGET", "leasehold:deploy:fence{leasehold:deploy}", "line"])
    };
    let mut waiters = Vec::new();
    for place in 1..3 {
        let locks = site.manager().await;
        waiters.push(tokio::spawn(async move { locks.lock("deploy").acquire().await.unwrap().release().await }));
        let there = async {
            while ask::<Option<String>>(&mut client, &["HGET", "leasehold:deploy:fence{leasehold:deploy}", "line"])
                .is_none_or(|line| line.len() < 9 * place)
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), there).await.unwrap();
    }
    let places = line(&mut client);
    assert_eq!(places.len(), 18);
    for place in places.as_bytes().chunks(9) {
        assert!(place[..8].iter().all(|byte| b"0123456789abcdef".contains(byte)) && place[8] == b' ', "{places:?}");
    }
    guard.release().await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap().unwrap();
    }
    assert_eq!(line(&mut client), "");
}
