//! Every rule of the store interface, with each call on another thread.

use std::sync::mpsc;
use std::task::Waker;
use std::thread;
use std::time::Duration;

use super::*;
use crate::store::Contention;
use crate::store::memory::MemoryStore;
use crate::testkit::ScriptedStore;
use crate::testkit::conformance::Fixture;

crate::conformance! { hosted, OnAThread(MemoryStore::new()), without: [outages] }

/// One place; each client has a thread of its own.
struct OnAThread(MemoryStore);

#[async_trait]
impl Fixture for OnAThread {
    async fn client(&self) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(Hosted::new(Arc::new(self.0.clone()), OwnRuntime::start()?)))
    }

    fn ttl(&self) -> Duration {
        Duration::from_millis(300)
    }
}

/// A wake-up that tells in which runtime it is dropped.
struct Tells(mpsc::Sender<Option<tokio::runtime::Id>>);

impl Future for Tells {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

impl Drop for Tells {
    fn drop(&mut self) {
        self.0.send(Handle::try_current().ok().map(|runtime| runtime.id())).ok();
    }
}

#[test]
fn a_wake_up_that_nobody_takes_is_dropped_inside_of_the_runtime() {
    let (tells, told) = mpsc::channel();
    let contended = Attempt::Contended(Contention::new().wake(Wake::Hint(Box::pin(Tells(tells)))));
    let store = ScriptedStore::new().on_acquire("k", Ok(contended));
    let runtime = OwnRuntime::start().unwrap();
    let hosted = Hosted::new(Arc::new(store.clone()), runtime.clone());
    let (key, owner) = (Key::new("leasehold", "k").unwrap(), OwnerToken::mint().unwrap());
    let claim = Claim::new(&key, &owner, Duration::from_secs(30));
    let mut acquire = hosted.acquire(&claim);
    _ = acquire.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    while store.verify().is_err() {
        thread::yield_now();
    }
    // So that the answer is most likely there, and is dropped here.
    thread::sleep(Duration::from_millis(50));
    drop(acquire);
    let dropped_in = told.recv_timeout(Duration::from_secs(15)).unwrap();
    assert_eq!(dropped_in, Some(runtime.handle().id()));
}
