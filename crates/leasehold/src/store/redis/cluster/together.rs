//! Futures that are awaited together, but not at any price.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// How long the others wait for those that are late, once the first is there: far longer than servers differ that are
/// well, and little beside a ttl.
const LATE: Duration = Duration::from_millis(500);

/// All of them at once. `None` = not there long after the first was; it is dropped.
pub(super) async fn together<F: Future>(futures: Vec<F>) -> Vec<Option<F::Output>> {
    let mut futures: Vec<_> = futures.into_iter().map(|future| (Box::pin(future), None)).collect();
    let mut late = pin!(None);
    poll_fn(|context| {
        for (future, output) in &mut futures {
            if output.is_none()
                && let Poll::Ready(value) = future.as_mut().poll(context)
            {
                *output = Some(value);
            }
        }
        let there = futures.iter().filter(|(_, output)| output.is_some()).count();
        if there == futures.len() {
            return Poll::Ready(());
        }
        if there == 0 {
            return Poll::Pending;
        }
        if late.is_none() {
            late.set(Some(tokio::time::sleep(LATE)));
        }
        late.as_mut().as_pin_mut().map_or(Poll::Pending, |late| late.poll(context))
    })
    .await;
    futures.into_iter().map(|(_, output)| output).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_is_late_is_left_behind() {
        let after = |millis| async move {
            tokio::time::sleep(Duration::from_millis(millis)).await;
            millis
        };
        assert_eq!(together(vec![after(9_000), after(9_400)]).await, [Some(9_000), Some(9_400)]);
        assert_eq!(together(vec![after(10), after(9_000), after(400)]).await, [Some(10), None, Some(400)]);
        assert_eq!(together(Vec::<std::future::Ready<()>>::new()).await, []);
    }
}
