//! A future dropped at any await leaves nothing in the store and nothing in the manager.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

#[path = "fixtures/bed.rs"]
mod bed;

use leasehold::testkit::Fault;
use leasehold::{ErrorKind, Lock, LockGuard, LostReason, Operation, Renew};
use tokio::time::timeout;

use self::bed::{Bed, Happened, Recorder, SECOND, TTL, at_rest, key, ms, others_run, seeded};

#[tokio::test(start_paused = true)]
async fn a_cancel_race_on_600_keys_leaves_nothing_where_waiters_have_places() {
    cancel_race(&Bed::new()).await;
}

#[tokio::test(start_paused = true)]
async fn a_cancel_race_on_600_keys_leaves_nothing_where_waiters_poll() {
    cancel_race(&Bed::polled()).await;
}

/// Every key has one call that is dropped at some moment, one fault that its requests may meet, and every third key
/// another holder at first.
async fn cancel_race(bed: &Bed) {
    let mut random = seeded();
    let (locks, others) = (bed.manager(), bed.manager());
    let mut tasks = Vec::new();
    for number in 0..600 {
        let name = format!("race {number}");
        let lock = locks.lock(&name);
        let holder = if number % 3 == 0 { others.lock(&name).try_acquire().await.unwrap() } else { None };
        let some = ms(random.u64(1..40));
        let fault = match random.u8(0..8) {
            0 => Some(Fault::delay(some)),
            1 => Some(Fault::delay_reply(some)),
            2 => Some(Fault::lose_reply()),
            3 => Some(Fault::lose_reply().silently()),
            4 => Some(Fault::apply_late(ms(random.u64(1..900))).silently()),
            5 => Some(Fault::apply_late(ms(random.u64(1..900)))),
            _ => None,
        };
        if let Some(fault) = fault {
            bed.store.once(Operation::Acquire, fault.on(&key(&name)));
        }
        let (patience, held_for, call) = (ms(random.u64(0..60)), ms(random.u64(0..60)), random.u8(0..3));
        tasks.push(tokio::spawn(async move {
            let holding = async {
                tokio::time::sleep(held_for).await;
                drop(holder);
            };
            let calling = async {
                let guard = timeout(patience, call_for(&lock, call)).await;
                drop(guard);
            };
            tokio::join!(holding, calling);
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    at_rest(&locks).await;
    at_rest(&others).await;
    assert_eq!(bed.held().await, Vec::<String>::new());
    for number in 0..600 {
        let guard = locks.lock(&format!("race {number}")).try_acquire().await.unwrap();
        guard.unwrap().release().await.unwrap();
    }
}

async fn call_for(lock: &Lock, call: u8) -> Option<LockGuard> {
    match call {
        0 => lock.try_acquire().await.ok().flatten(),
        1 => lock.acquire_within(ms(30)).await.ok().flatten(),
        _ => lock.acquire().await.ok(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_storm_of_2000_dropped_acquires_on_few_keys_leaves_nothing() {
    for bed in [Bed::new(), Bed::polled()] {
        let mut random = seeded();
        let locks = bed.manager();
        bed.store.always(Operation::Acquire, Fault::delay(ms(1)));
        bed.store.always(Operation::Acquire, Fault::delay_reply(ms(2)).on(&key("storm 1")));
        let tasks: Vec<_> = (0..2000)
            .map(|number| {
                let lock = locks.lock(&format!("storm {}", number % 5));
                let (start, patience, hold) = (ms(random.u64(0..300)), ms(random.u64(0..200)), ms(random.u64(0..10)));
                tokio::spawn(async move {
                    tokio::time::sleep(start).await;
                    if let Ok(Ok(guard)) = timeout(patience, lock.acquire()).await {
                        guard.check().unwrap();
                        tokio::time::sleep(hold).await;
                        if number % 2 == 0 {
                            guard.release().await.unwrap();
                        }
                        return true;
                    }
                    false
                })
            })
            .collect();
        let mut granted = 0;
        for task in tasks {
            granted += usize::from(task.await.unwrap());
        }
        assert!(granted > 0, "the storm never granted anything");
        at_rest(&locks).await;
        assert_eq!(bed.held().await, Vec::<String>::new());
        for number in 0..5 {
            assert!(locks.lock(&format!("storm {number}")).try_acquire().await.unwrap().is_some());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_undo_that_overtakes_its_acquire_still_cleans_up() {
    for late in [50, 500] {
        for fault in [Fault::delay(ms(late)), Fault::apply_late(ms(late)).silently()] {
            let bed = Bed::new();
            let locks = bed.manager();
            bed.store.once(Operation::Acquire, fault);
            assert!(timeout(ms(5), locks.lock("overtaken").try_acquire()).await.is_err());
            tokio::time::sleep(ms(late)).await;
            at_rest(&locks).await;
            assert_eq!(bed.owner("overtaken").await, None, "applied {late} ms late");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn contended_does_not_settle_an_earlier_lost_request() {
    let bed = Bed::polled();
    let (locks, others) = (bed.manager(), bed.manager());
    let holder = others.lock("ghost").try_acquire().await.unwrap().unwrap();
    // The first request arrives when the call is long over and the holder gone; its repeat is answered "contended".
    bed.store.once(Operation::Acquire, Fault::apply_late(ms(300)));
    assert!(locks.lock("ghost").try_acquire().await.unwrap().is_none());
    holder.release().await.unwrap();
    tokio::time::sleep(ms(310)).await;
    at_rest(&locks).await;
    assert_eq!(bed.owner("ghost").await, None);
}

#[tokio::test(start_paused = true)]
async fn a_place_that_was_granted_does_not_hide_the_request_that_is_under_way() {
    let bed = Bed::new();
    let (locks, others) = (bed.manager(), bed.manager());
    let holder = others.lock("place").try_acquire().await.unwrap().unwrap();
    let waiter = tokio::spawn({
        let lock = locks.lock("place");
        async move { lock.acquire().await.is_ok() }
    });
    others_run().await;
    // The waiter gets the lease through its place, asks for its terms, and is gone before the question arrives.
    bed.store.once(Operation::Acquire, Fault::delay(ms(50)));
    holder.release().await.unwrap();
    others_run().await;
    waiter.abort();
    tokio::time::sleep(ms(60)).await;
    at_rest(&locks).await;
    assert_eq!(bed.owner("place").await, None);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_dropped_with_a_place_leaves_the_line_and_a_granted_one_gives_it_back() {
    let bed = Bed::new();
    let (locks, others, third) = (bed.manager(), bed.manager(), bed.manager());
    let holder = others.lock("line").try_acquire().await.unwrap().unwrap();
    let dropped = tokio::spawn({
        let lock = locks.lock("line");
        async move { lock.acquire().await.is_ok() }
    });
    others_run().await;
    let patient = tokio::spawn({
        let lock = third.lock("line");
        async move { lock.acquire().await.unwrap() }
    });
    others_run().await;
    holder.release().await.unwrap();
    // Granted to the first waiter by now, who has not been polled since.
    dropped.abort();
    let guard = timeout(SECOND, patient).await.unwrap().unwrap();
    guard.release().await.unwrap();
    at_rest(&locks).await;
    assert_eq!(bed.held().await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_head_passes_the_line_on() {
    for bed in [Bed::new(), Bed::polled()] {
        let (locks, others) = (bed.manager(), bed.manager());
        let holder = others.lock("head").try_acquire().await.unwrap().unwrap();
        let mut waiters = Vec::new();
        for _ in 0..4 {
            let lock = locks.lock("head");
            waiters.push(tokio::spawn(async move { lock.acquire().await.unwrap().release().await }));
            others_run().await;
        }
        waiters.remove(0).abort();
        waiters.remove(1).abort();
        others_run().await;
        // The head's request is under way when the head goes.
        bed.store.once(Operation::Acquire, Fault::delay(ms(500)));
        tokio::time::sleep(SECOND).await;
        waiters.remove(0).abort();
        holder.release().await.unwrap();
        timeout(5 * SECOND, waiters.remove(0)).await.unwrap().unwrap().unwrap();
        at_rest(&locks).await;
        assert_eq!(bed.held().await, Vec::<String>::new());
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_chases_the_ghost_of_an_uncertain_acquisition() {
    for late in [5, 50, 500] {
        let bed = Bed::new();
        let locks = bed.manager();
        // Repeated with success at once; the first request arrives after the release.
        bed.store.once(Operation::Acquire, Fault::apply_late(ms(30 + late)));
        let guard = locks.lock("chased").try_acquire().await.unwrap().unwrap();
        guard.release().await.unwrap();
        tokio::time::sleep(ms(30 + late)).await;
        at_rest(&locks).await;
        assert_eq!(bed.owner("chased").await, None, "{late} ms after the release");
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_guard_chases_the_ghost_of_an_uncertain_acquisition() {
    let bed = Bed::new();
    let locks = bed.manager();
    bed.store.once(Operation::Acquire, Fault::apply_late(ms(80)));
    drop(locks.lock("chased").try_acquire().await.unwrap());
    tokio::time::sleep(ms(80)).await;
    at_rest(&locks).await;
    assert_eq!(bed.owner("chased").await, None);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_release_gives_back_in_the_background() {
    for fault in [Fault::delay(SECOND), Fault::hang(), Fault::fail(ErrorKind::Unavailable), Fault::starve()] {
        let bed = Bed::new();
        let locks = bed.manager();
        let guard = locks.lock("dropped").try_acquire().await.unwrap().unwrap();
        bed.store.once(Operation::Release, fault);
        drop(timeout(ms(1), guard.release()).await);
        tokio::time::sleep(ms(200)).await;
        assert_eq!(bed.owner("dropped").await, None);
        at_rest(&locks).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_that_was_never_polled_gives_back_too() {
    let bed = Bed::new();
    let locks = bed.manager();
    let guard = locks.lock("unpolled").try_acquire().await.unwrap().unwrap();
    drop(guard.release());
    at_rest(&locks).await;
    assert_eq!(bed.owner("unpolled").await, None);
}

#[tokio::test(start_paused = true)]
async fn a_release_whose_answer_was_lost_is_repeated_and_succeeds() {
    for fault in [Fault::lose_reply(), Fault::lose_reply().silently(), Fault::apply_late(ms(5))] {
        let bed = Bed::new();
        let locks = bed.manager();
        let guard = locks.lock("repeated").try_acquire().await.unwrap().unwrap();
        bed.store.once(Operation::Release, fault);
        guard.release().await.unwrap();
        assert_eq!(bed.store.calls(Operation::Release), 2);
        assert_eq!(bed.owner("repeated").await, None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_repeated_release_of_an_expired_lease_is_no_success() {
    let bed = Bed::new();
    let locks = bed.manager();
    let lock = locks.lock("late").renew(Renew::Off);
    let guard = lock.try_acquire().await.unwrap().unwrap();
    tokio::time::sleep(TTL).await;
    bed.store.once(Operation::Release, Fault::lose_reply());
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::NotHeld);
}

#[tokio::test(start_paused = true)]
async fn an_outage_does_not_hide_that_the_lease_was_lost() {
    for fault in [Fault::hang(), Fault::fail(ErrorKind::Unavailable), Fault::lose_reply()] {
        let bed = Bed::new();
        let locks = bed.manager();
        let guard = locks.lock("outage").try_acquire().await.unwrap().unwrap();
        bed.store.outage(fault);
        guard.lost().await;
        let error = guard.release().await.unwrap_err();
        assert_eq!((error.kind(), error.lost_reason()), (ErrorKind::NotHeld, Some(LostReason::Expired)));
    }
}

#[tokio::test(start_paused = true)]
async fn releasing_a_lost_lease_is_one_request_and_no_dropped_guard() {
    let bed = Bed::new();
    let events = Recorder::default();
    let locks = bed.builder().observer(events.clone()).build().unwrap();
    let lock = locks.lock("lost").renew(Renew::Off);
    let guard = lock.try_acquire().await.unwrap().unwrap();
    tokio::time::sleep(TTL).await;
    assert_eq!(guard.release().await.unwrap_err().lost_reason(), Some(LostReason::Expired));
    at_rest(&locks).await;
    assert_eq!(bed.store.calls(Operation::Release), 1);
    let lost = Happened::Lost(LostReason::Expired);
    assert_eq!(events.all(), [lost, Happened::Released(Some(ErrorKind::NotHeld))]);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_extend_changes_nothing() {
    let bed = Bed::new();
    let locks = bed.manager();
    let guard = locks.lock("extended").try_acquire().await.unwrap().unwrap();
    for fault in [Fault::hang(), Fault::delay(SECOND), Fault::delay_reply(SECOND)] {
        bed.store.once(Operation::Extend, fault);
        let before = guard.remaining();
        assert!(timeout(ms(5), guard.extend(10 * TTL)).await.is_err());
        assert_eq!((guard.ttl(), guard.remaining()), (TTL, before - ms(5)));
        guard.check().unwrap();
    }
    // Renewal goes on, and so may the caller.
    tokio::time::sleep(10 * TTL).await;
    guard.extend(2 * TTL).await.unwrap();
    assert_eq!(guard.ttl(), 2 * TTL);
    guard.release().await.unwrap();
    assert_eq!(bed.held().await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_hand_over_leaves_the_guard_as_it_was() {
    let bed = Bed::new();
    let locks = bed.manager();
    let guard = locks.lock("given").try_acquire().await.unwrap().unwrap();
    bed.store.once(Operation::Extend, Fault::hang());
    assert!(timeout(ms(5), guard.hand_over()).await.is_err());
    tokio::time::sleep(10 * TTL).await;
    guard.check().unwrap();
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn followers_dropped_from_the_middle_of_a_line_take_nobody_along() {
    let bed = Bed::polled();
    let locks = bed.manager();
    let holder = locks.lock("middle").try_acquire().await.unwrap().unwrap();
    let mut waiters = Vec::new();
    for _ in 0..20 {
        let lock = locks.lock("middle");
        waiters.push(tokio::spawn(async move {
            let guard = lock.acquire().await.unwrap();
            tokio::time::sleep(ms(1)).await;
            guard.release().await
        }));
        others_run().await;
    }
    for middle in (1..20).step_by(2) {
        waiters[middle].abort();
    }
    holder.release().await.unwrap();
    for waiter in waiters.into_iter().step_by(2) {
        timeout(5 * SECOND, waiter).await.unwrap().unwrap().unwrap();
    }
    at_rest(&locks).await;
}
