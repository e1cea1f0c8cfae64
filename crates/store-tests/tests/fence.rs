//! A late holder is refused by Redis itself.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::time::Duration;

use leasehold::{FencingToken, Renew, fence};
use store_tests::{Site, on_every_server};

on_every_server! {
    a_holder_that_woke_up_late_changes_nothing
}

async fn a_holder_that_woke_up_late_changes_nothing(site: Site) {
    let locks = site.manager().await;
    let lock = locks.lock("page").ttl(Duration::from_secs(60)).renew(Renew::Off);
    let early = lock.acquire().await.unwrap().fencing_token().unwrap();
    // The guard was dropped; its holder goes on all the same, as one that was stopped would.
    let late = lock.acquire().await.unwrap().fencing_token().unwrap();
    let mut client = site.client();
    let script = redis::Script::new(fence::REDIS_SET);
    let mut set = |token: FencingToken, value: &str| -> bool {
        let mut call = script.key("{page}content");
        call.key("{page}fence").arg(token.get()).arg(value).invoke(&mut client).unwrap()
    };
    assert!(set(early, "first"));
    assert!(set(late, "second"));
    assert!(!set(early, "third"), "a late write went through");
    assert!(set(late, "fourth"), "the same holder may come again");
    // Beyond what Lua's numbers tell apart.
    let (large, larger) = (FencingToken::new(u64::MAX - 1), FencingToken::new(u64::MAX));
    assert!(set(large, "fifth") && set(larger, "sixth") && !set(large, "seventh"));
    let content: String = redis::cmd("GET").arg("{page}content").query(&mut site.client()).unwrap();
    assert_eq!(content, "sixth");
}
