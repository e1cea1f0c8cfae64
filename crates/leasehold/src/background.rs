//! Work that goes on when nobody waits for it: undos, releases of dropped guards, the renewal task.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::own_runtime::OwnRuntime;
use crate::stealable::{offer, stealable};

/// Spawns on the manager's own runtime if it has one, else on the one it was built in; without one, or when that one is
/// gone, on that of the call at hand.
#[derive(Debug)]
pub(crate) struct Background {
    runtime: Option<Handle>,
    /// Held so that it goes on.
    _own: Option<OwnRuntime>,
    tickets: Arc<Tickets>,
    /// How often something could not be given back.
    given_up: AtomicUsize,
}

#[derive(Debug, Default)]
struct Tickets {
    out: AtomicUsize,
    none: Notify,
}

impl Background {
    pub(crate) fn on(own: Option<OwnRuntime>) -> Self {
        let runtime = own.as_ref().map(|own| own.handle().clone()).or_else(|| Handle::try_current().ok());
        Self { runtime, _own: own, tickets: Arc::default(), given_up: AtomicUsize::new(0) }
    }

    /// Spawns `work`, and code that blocks right after that does not hold it up as long as another worker is free;
    /// `false` if there is no runtime to do so.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) -> bool {
        let work = Arc::new(Mutex::new(Some(Box::pin(work) as Work)));
        let here = Handle::try_current().ok();
        self.runtime.iter().chain(here.iter()).any(|runtime| {
            let slot = Arc::clone(&work);
            let task = runtime.spawn(stealable(async move {
                let work = slot.lock().take();
                if let Some(work) = work {
                    work.await;
                }
            }));
            // A runtime that was shut down drops the task at once and leaves the work in its slot.
            let is_taken = !task.is_finished() || work.lock().is_none();
            if is_taken {
                offer(runtime);
            }
            is_taken
        })
    }

    /// Counts something that [`idle`](Self::idle) waits for, until the ticket is dropped.
    pub(crate) fn ticket(&self) -> Ticket {
        self.tickets.out.fetch_add(1, Ordering::AcqRel);
        Ticket(Arc::clone(&self.tickets))
    }

    /// How many tickets are out.
    pub(crate) fn running(&self) -> usize {
        self.tickets.out.load(Ordering::Acquire)
    }

    /// Something could not be given back.
    pub(crate) fn gave_up(&self) {
        self.given_up.fetch_add(1, Ordering::AcqRel);
    }

    /// How often something could not be given back.
    pub(crate) fn given_up(&self) -> usize {
        self.given_up.load(Ordering::Acquire)
    }

    /// Resolves when no ticket is out.
    pub(crate) async fn idle(&self) {
        loop {
            let none = self.tickets.none.notified();
            tokio::pin!(none);
            none.as_mut().enable();
            if self.running() == 0 {
                return;
            }
            none.await;
        }
    }
}

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Something that closing a manager waits for.
#[derive(Debug)]
pub(crate) struct Ticket(Arc<Tickets>);

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.0.out.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.none.notify_waiters();
        }
    }
}
