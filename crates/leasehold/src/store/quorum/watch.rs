//! What nodes tell by themselves: that a lease is gone, that a key is free.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use super::Core;
use super::record::Record;
use crate::store::{BoxFuture, Loss};

/// A flag that is raised when so many nodes have raised theirs that no majority is left.
pub(super) fn watch(core: &Arc<Core>, record: &Arc<Record>) -> Loss {
    let lost = Loss::new();
    if let Some(runtime) = tokio::runtime::Handle::try_current().ok().or_else(|| core.runtime.clone()) {
        runtime.spawn(look_out(core.spare(), Arc::clone(record), lost.clone()));
    }
    lost
}

async fn look_out(spare: usize, record: Arc<Record>, lost: Loss) {
    let patience = record.ttl();
    loop {
        let changed = record.changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        if !record.is_wanted() || !lost.is_watched() {
            return;
        }
        let losses = record.losses();
        let raised: Vec<_> = losses.iter().filter_map(Loss::raised).collect();
        if let Some(reason) = raised.get(spare) {
            return lost.raise(*reason);
        }
        let still: Vec<_> = losses.into_iter().filter(|loss| loss.raised().is_none()).collect();
        let wait = |loss: Loss| -> BoxFuture {
            Box::pin(async move {
                loss.wait().await;
            })
        };
        let waits = still.into_iter().map(wait).collect();
        tokio::select! {
            () = any_of(waits, 1) => {}
            () = changed => {}
            // Looks whether anybody still cares.
            () = tokio::time::sleep(patience) => {}
        }
    }
}

/// Resolves when so many of these have, or all of them if there are fewer; of none, never.
pub(super) async fn any_of(mut futures: Vec<BoxFuture>, mut count: usize) {
    let is_empty = futures.is_empty();
    count = count.min(futures.len());
    poll_fn(|context| {
        futures.retain_mut(|future| {
            let is_ready = count > 0 && future.as_mut().poll(context).is_ready();
            count -= usize::from(is_ready);
            !is_ready
        });
        if count == 0 && !is_empty { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
