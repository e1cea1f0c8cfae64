//! The order in which observers are told of a lease of which several threads know. Alone in its process, since whether a
//! line is logged is decided once for all threads.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use leasehold::observe::{Event, Observer};
use leasehold::store::memory::MemoryStore;
use leasehold::testkit::Residue;
use leasehold::{LockManager, Renew};
use parking_lot::Mutex;
use tracing::span::{Attributes, Id, Record};
use tracing::{Level, Metadata, Subscriber};

#[derive(Clone, Debug, Default)]
struct Names(Arc<Mutex<Vec<&'static str>>>);

impl Observer for Names {
    fn observe(&self, event: &Event) {
        self.0.lock().push(match event {
            Event::Acquired(_) => "acquired",
            Event::Ended(_) => "ended",
            Event::Lost(_) => "lost",
            Event::Released(it) if it.failed.is_some() => "release-failed",
            _ => return,
        });
    }
}

/// A subscriber that a warning keeps, from when it says so until it may go on.
struct Kept(SyncSender<()>, Mutex<Receiver<()>>);

impl Subscriber for Kept {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.send(()).unwrap();
        self.1.lock().recv().unwrap();
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// One thread notices that the time is over and is kept by a log; another one goes on to release.
#[tokio::test]
async fn what_follows_from_the_end_of_a_lease_is_told_after_it() {
    let told = Names::default();
    let manager = LockManager::builder(MemoryStore::new()).observer(told.clone()).build().unwrap();
    let guard = manager.lock("k").ttl(Duration::from_secs(3)).renew(Renew::Off).acquire().await.unwrap();
    let (handle, (warns, warned), (go_on, may_go_on)) = (guard.handle(), sync_channel(1), sync_channel(1));
    let other = std::thread::spawn(move || {
        let kept = Kept(warns, Mutex::new(may_go_on));
        tracing::subscriber::with_default(kept, || {
            while handle.check().is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
    });
    // In the way of the renewal task, which would notice it, too.
    warned.recv_timeout(Duration::from_secs(60)).unwrap();
    guard.release().await.unwrap_err();
    go_on.send(()).unwrap();
    other.join().unwrap();
    while !Residue::of(&manager).is_none() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(told.0.lock().join(" "), "acquired ended lost release-failed");
}
