//! Slots that move from one server to another while their keys are held.

use std::time::Duration;

use leasehold::ErrorKind;
use store_tests::{Cluster, run};

use crate::{LONG, pushed, soon, take, until, waiter};

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn a_lease_survives_the_move_of_its_slot() {
    run(async {
        let cluster = Cluster::start();
        let (locks, others) = (cluster.manager(LONG).await, pushed(&cluster).await);
        let name = cluster.name_at(0, "moved");
        let slot = cluster.slot(&format!("leasehold:{name}"));
        let guard = take(&locks, &name).await;
        let waiter = waiter(&others, &name).await;
        cluster.move_slot(slot, 0, 1);
        assert!(others.lock(&name).try_acquire().await.unwrap().is_none());
        let holder = locks.holder(&name).await.unwrap().unwrap();
        assert_eq!(holder.fencing, guard.fencing_token());
        guard.extend(LONG).await.unwrap();
        guard.check().unwrap();
        assert!(!waiter.is_finished());
        let fence = guard.fencing_token();
        guard.release().await.unwrap();
        // Nobody asks without having been told: by the new keeper.
        let next = soon("the push of the new keeper", waiter).await.unwrap();
        assert!(next.fencing_token() > fence);

        cluster.move_slot(slot, 1, 2);
        next.extend(LONG).await.unwrap();
        // Whoever holds a key is told of its loss by the new keeper, too.
        let told = |_| async {
            let names: Vec<String> = cluster.ask(2, &["KEYS", "leasehold:*"]);
            names.contains(&format!("leasehold:{name}")).then_some(())
        };
        until("the key at its new place", || told(())).await;
        cluster.ask::<()>(2, &["DEL", &format!("leasehold:{name}")]);
        soon("the loss", next.lost()).await;
    });
}

/// A key that has moved while its companion has not, both moved, and neither.
#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn a_lease_is_kept_in_the_middle_of_a_move() {
    run(async {
        let cluster = Cluster::start();
        let (locks, others) = (cluster.manager(LONG).await, cluster.manager(LONG).await);
        let name = cluster.name_at(0, "moving");
        let stored = format!("leasehold:{name}");
        let companion = format!("{stored}:fence{{{stored}}}");
        let slot = cluster.slot(&stored);
        let guard = take(&locks, &name).await;

        cluster.begin_move(slot, 0, 1);
        guard.extend(LONG).await.unwrap();
        assert!(others.lock(&name).try_acquire().await.unwrap().is_none());

        cluster.move_key(&stored, 0, 1);
        // Half a move lasts as long as servers take for a key; it is waited for.
        let (extended, ()) = tokio::join!(guard.extend(LONG * 2), async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            cluster.move_key(&companion, 0, 1);
        });
        extended.unwrap();
        assert!(guard.remaining() > LONG);

        // Nothing is left at the old place, which still keeps the slot.
        assert!(others.lock(&name).try_acquire().await.unwrap().is_none());
        assert_eq!(others.holder(&name).await.unwrap().unwrap().fencing, guard.fencing_token());
        let owner = guard.hand_over().await.unwrap();
        let resumed = others.lock(&name).resume(&owner).await.unwrap();
        assert!(resumed.fencing_token() > guard.fencing_token());
        resumed.extend(LONG * 3).await.unwrap();
        resumed.check().unwrap();
        let fence = resumed.fencing_token();
        resumed.release().await.unwrap();

        // A free key cannot be taken before the move is complete: the servers do not decide on keys that are not there.
        let error = locks.lock(&name).try_acquire().await.unwrap_err();
        assert!([ErrorKind::Unavailable, ErrorKind::Indeterminate].contains(&error.kind()), "{error}");
        cluster.end_move(slot, 0, 1);
        assert!(take(&others, &name).await.fencing_token() > fence);
    });
}

/// Who keeps nothing is on no map, and is not to be forgotten with those who wait for what moves there.
#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn a_waiter_is_woken_by_a_newcomer() {
    run(async {
        let cluster = Cluster::with(1, Duration::from_secs(30));
        cluster.make_newcomer(3);
        let (holder, locks) = (cluster.manager(LONG).await, pushed(&cluster).await);
        let name = cluster.name_at(1, "moving");
        let stored = format!("leasehold:{name}");
        let guard = take(&holder, &name).await;
        cluster.begin_move(cluster.slot(&stored), 1, 3);
        for key in [&stored, &format!("{stored}:fence{{{stored}}}")] {
            cluster.move_key(key, 1, 3);
        }
        let waiter = waiter(&locks, &name).await;
        // Draws a new map.
        locks.probe().await.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!waiter.is_finished());
        cluster.end_move(cluster.slot(&stored), 1, 3);
        let fence = guard.fencing_token();
        guard.release().await.unwrap();
        let next = soon("the push of the newcomer", waiter).await.unwrap();
        assert!(next.fencing_token() > fence);
    });
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn a_move_that_is_called_off_harms_nothing() {
    run(async {
        let cluster = Cluster::start();
        let locks = cluster.manager(LONG).await;
        let name = cluster.name_at(2, "staying");
        let stored = format!("leasehold:{name}");
        let slot = cluster.slot(&stored);
        cluster.begin_move(slot, 2, 0);
        let error = locks.lock(&name).try_acquire().await.unwrap_err();
        assert!([ErrorKind::Unavailable, ErrorKind::Indeterminate].contains(&error.kind()), "{error}");
        for node in [0, 2] {
            cluster.ask::<()>(node, &["CLUSTER", "SETSLOT", &slot.to_string(), "STABLE"]);
        }
        let guard = take(&locks, &name).await;
        guard.extend(LONG).await.unwrap();
        guard.release().await.unwrap();
    });
}
