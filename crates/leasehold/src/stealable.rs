//! Tasks that any free worker of their runtime takes over, whatever the one that woke them does next.
//!
//! A worker of tokio keeps the task that it woke last to itself, so as to run it next, and tells no other worker of it. If
//! the code at hand then blocks, that task stands still for as long, although other workers have nothing to do. What is
//! woken after it takes its place and moves it to where the others look: an empty task does.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use tokio::runtime::{Handle, RuntimeFlavor};

/// Has other workers look for what this thread has just spawned or woken on `runtime`.
pub(crate) fn offer(runtime: &Handle) {
    if has_workers(runtime) {
        runtime.spawn(async {});
    }
}

/// `work`, as a task that is offered to other workers each time it is woken. The first time is up to whoever spawns it.
pub(crate) async fn stealable(work: impl Future<Output = ()>) {
    let Some(runtime) = Handle::try_current().ok().filter(has_workers) else {
        return work.await;
    };
    let mut work = pin!(work);
    let mut waker: Option<(Waker, Waker)> = None;
    poll_fn(|context| {
        let task = context.waker();
        let (_, ours) = match &mut waker {
            Some(both) if both.0.will_wake(task) => both,
            other => other.insert((task.clone(), Offering { task: task.clone(), runtime: runtime.clone() }.into())),
        };
        work.as_mut().poll(&mut Context::from_waker(ours))
    })
    .await;
}

/// Where there is a single thread there is nobody to look.
fn has_workers(runtime: &Handle) -> bool {
    runtime.runtime_flavor() != RuntimeFlavor::CurrentThread
}

/// Wakes a task, and has others look for it.
struct Offering {
    task: Waker,
    runtime: Handle,
}

impl From<Offering> for Waker {
    fn from(offering: Offering) -> Self {
        Arc::new(offering).into()
    }
}

impl Wake for Offering {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.task.wake_by_ref();
        offer(&self.runtime);
    }
}
