//! The least that a user has to be allowed in a cluster.

use leasehold::store::redis::RedisStore;
use leasehold::{ErrorKind, LockManager};
use store_tests::{Cluster, run};

use crate::{LONG, take};

const DOCS: &str = include_str!("../../../../docs/stores.md");

/// What the documentation says that one server asks for, that a cluster does besides, and that replicas do.
fn rights() -> String {
    let of_one = DOCS.lines().find_map(|line| line.strip_prefix("ACL SETUSER locks on >password ")).unwrap();
    let (_, besides) = DOCS.split_once("Rights beyond those of one server:").unwrap();
    let (besides, _) = besides.split_once('.').unwrap();
    let besides: Vec<_> = besides.split('`').skip(1).step_by(2).collect();
    assert_eq!(besides, ["+cluster|slots", "+cluster|info", "+asking"]);
    assert!(DOCS.contains("`+wait`"));
    format!("{of_one} {} +wait", besides.join(" "))
}

fn set(cluster: &Cluster, rules: &str) {
    for node in 0..3 {
        let words: Vec<_> = ["ACL", "SETUSER", "locks"].into_iter().chain(rules.split_whitespace()).collect();
        cluster.ask::<()>(node, &words);
    }
}

async fn connect(cluster: &Cluster, options: &str) -> leasehold::Result<LockManager> {
    LockManager::connect(&format!("{}{options}", cluster.url().replace("://", "://locks:pw@"))).await
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn the_documented_rights_suffice() {
    run(async {
        let cluster = Cluster::start();
        set(&cluster, &format!("on >pw {}", rights()));
        let locks = connect(&cluster, "").await.unwrap();
        let name = cluster.name_at(0, "allowed");
        let stored = format!("leasehold:{name}");
        let slot = cluster.slot(&stored);
        let guard = take(&locks, &name).await;
        guard.extend(LONG).await.unwrap();
        cluster.begin_move(slot, 0, 1);
        for key in [&stored, &format!("{stored}:fence{{{stored}}}")] {
            cluster.move_key(key, 0, 1);
        }
        guard.extend(LONG * 2).await.unwrap();
        cluster.end_move(slot, 0, 1);
        assert_eq!(locks.list("", leasehold::store::Page::first(9)).await.unwrap().entries.len(), 1);
        locks.probe().await.unwrap();
        guard.release().await.unwrap();
        // There are no replicas, but they may be waited for.
        let sure = connect(&cluster, "?wait_replicas=1").await.unwrap();
        let error = sure.lock(&name).try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
        set(&cluster, "-wait");
        let error = sure.lock(&name).try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
        assert!(error.to_string().contains("'wait'"), "{error}");
        assert!(!cluster.ask::<bool>(1, &["EXISTS", &stored]) && locks.holder(&name).await.unwrap().is_none());
    });
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn a_right_that_is_missing_in_the_middle_of_a_move_is_told() {
    run(async {
        let cluster = Cluster::start();
        set(&cluster, &format!("on >pw {} -asking", rights()));
        let locks = connect(&cluster, "").await.unwrap();
        let name = cluster.name_at(0, "moving");
        let stored = format!("leasehold:{name}");
        let guard = take(&locks, &name).await;
        cluster.begin_move(cluster.slot(&stored), 0, 1);
        for key in [&stored, &format!("{stored}:fence{{{stored}}}")] {
            cluster.move_key(key, 0, 1);
        }
        let error = guard.extend(LONG * 2).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
        assert!(error.to_string().contains("'asking'"), "{error}");
        guard.check().unwrap();
    });
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn a_missing_right_is_told() {
    run(async {
        let cluster = Cluster::start();
        set(&cluster, &format!("on >pw {} -cluster|slots", rights()));
        let error = connect(&cluster, "").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
        assert!(error.to_string().contains("cluster|slots"), "{error}");
        // Without this one nobody can tell who sees the cluster well.
        set(&cluster, "+cluster|slots -cluster|info");
        let locks = connect(&cluster, "").await.unwrap();
        take(&locks, "k").await.release().await.unwrap();
        set(&cluster, "-eval");
        let error = connect(&cluster, "").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
        assert!(error.to_string().contains("+eval"), "{error}");
        let wrong = cluster.url().replace("://", "://locks:guess3d@");
        let error = RedisStore::connect(&wrong).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
        assert!(!format!("{error} {error:?}").contains("guess3d"), "{error}");
    });
}
