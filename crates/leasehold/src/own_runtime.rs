//! A thread with a runtime of our own, which nothing that a program does on its runtime can hold up.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::error::{Error, ErrorKind, Result};

/// A thread with a tokio runtime of its own, for the connections of a store and the renewal of leases.
///
/// Code that blocks keeps the runtime it runs on from renewing leases, which then are lost; [`check`] says so, but only
/// when the code gets to ask. With a runtime of their own they are renewed all the same, and lost only if their store is
/// out. Scoped work is still stopped at its next await, which code that blocks has none of.
///
/// A handle: the thread ends with the last clone, managers that use it included. In a forked child there is no thread.
///
/// ```
/// # use leasehold::{LockManager, OwnRuntime, store::memory::MemoryStore};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let runtime = OwnRuntime::start()?;
/// // Opened there, so that its connections live there.
/// let store = runtime.run(async { MemoryStore::new() }).await?;
/// let locks = LockManager::builder(store).own_runtime(runtime).build()?;
/// # drop(locks);
/// # Ok(())
/// # }
/// ```
///
/// [`check`]: crate::LeaseHandle::check
#[derive(Clone, Debug)]
pub struct OwnRuntime(Arc<Thread>);

#[derive(Debug)]
struct Thread {
    handle: Handle,
    /// The process that has the thread.
    pid: u32,
    /// Dropped, it ends the thread.
    _goes_on: oneshot::Sender<()>,
}

impl OwnRuntime {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] if the system has no thread left, or no file descriptor.
    pub fn start() -> Result<Self> {
        let failed = |error: std::io::Error| {
            Error::new(ErrorKind::Unavailable, "no thread could be started for the leases").with_source(error)
        };
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let handle = runtime.handle().clone();
        let (goes_on, ends) = oneshot::channel::<()>();
        let thread = thread::Builder::new().name("leasehold".to_owned());
        thread
            .spawn(move || {
                // Nothing is ever sent.
                runtime.block_on(ends).ok();
                // Not to wait for a name server that does not answer.
                runtime.shutdown_background();
            })
            .map_err(failed)?;
        Ok(Self(Arc::new(Thread { handle, pid: std::process::id(), _goes_on: goes_on })))
    }

    /// Carries `work` out on the thread, such as opening a store whose connections are to live there.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Closed`] in a forked child or if the thread was ended by a panic; a panic of the work goes on here.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the work is dropped, too, on the thread and soon after.
    pub async fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Result<T> {
        // Nobody would ever answer there.
        if self.0.pid != std::process::id() {
            return Err(Error::new(ErrorKind::Closed, "the thread of the leases belongs to the parent process"));
        }
        if self.is_here() {
            return Ok(work.await);
        }
        match Errand(self.0.handle.spawn(work)).await {
            Ok(value) => Ok(value),
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(Error::new(ErrorKind::Closed, "the thread of the leases has ended")),
            },
        }
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.0.handle
    }

    fn is_here(&self) -> bool {
        Handle::try_current().is_ok_and(|here| here.id() == self.0.handle.id())
    }
}

/// Work on the thread that somebody waits for.
struct Errand<T>(JoinHandle<T>);

impl<T> Future for Errand<T> {
    type Output = std::result::Result<T, tokio::task::JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl<T> Drop for Errand<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn in_a_forked_child_it_refuses_at_once() {
        let mut runtime = OwnRuntime::start().unwrap();
        Arc::get_mut(&mut runtime.0).unwrap().pid += 1;
        assert_eq!(runtime.run(async {}).await.unwrap_err().kind(), ErrorKind::Closed);
    }
}
