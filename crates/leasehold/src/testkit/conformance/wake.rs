//! Being told of a release.

use super::Outcome;
use super::bench::{Bench, LONG, PATIENCE, check, owner};

pub(super) async fn a_release_by_another_client_wakes(bench: &Bench<'_>) -> Outcome {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let (key, holder, waiter) = (bench.key("woken")?, owner()?, owner()?);
    client.take(&key, &holder, LONG).await?;
    let wake = other.line_up(&key, &waiter).await?;
    let sleeper = tokio::spawn(wake);
    tokio::task::yield_now().await;
    client.check_released(&key, &holder).await?;
    let woken = tokio::time::timeout(PATIENCE, sleeper).await;
    check!(matches!(woken, Ok(Ok(()))), "a release by another client woke nobody");
    other.take(&key, &waiter, LONG).await?;
    Ok(())
}

pub(super) async fn a_wake_is_armed_by_the_attempt_that_failed(bench: &Bench<'_>) -> Outcome {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let (key, holder, waiter) = (bench.key("armed")?, owner()?, owner()?);
    client.take(&key, &holder, LONG).await?;
    let mut wake = other.line_up(&key, &waiter).await?;
    // Before anybody looks at the wake-up for the first time.
    client.check_released(&key, &holder).await?;
    check!(bench.fires(&mut wake).await, "a release between the attempt and its wait was missed");
    other.take(&key, &waiter, LONG).await?;
    Ok(())
}

pub(super) async fn asking_again_keeps_a_wake(bench: &Bench<'_>) -> Outcome {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let (key, holder, waiter) = (bench.key("kept")?, owner()?, owner()?);
    client.take(&key, &holder, LONG).await?;
    let mut wake = other.line_up(&key, &waiter).await?;
    for _ in 0..3 {
        if let Some(newer) = other.wait(&key, &waiter, LONG).await? {
            wake = newer;
        }
    }
    client.check_released(&key, &holder).await?;
    check!(bench.fires(&mut wake).await, "who asked again was not woken");
    other.take(&key, &waiter, LONG).await?;
    Ok(())
}
