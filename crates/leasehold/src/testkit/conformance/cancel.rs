//! Calls that are dropped half-way.

use std::future;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use super::bench::{Bench, Client, LONG, owner};
use super::{Failure, Outcome};
use crate::error::ErrorKind;
use crate::store::Claim;
use crate::types::{Key, OwnerToken};

/// How many fresh keys the race is run on: few enough to be quick, many enough to meet every moment.
const RACES: usize = 600;

/// After these many milliseconds an undo that found nothing is repeated, as it may have overtaken the request.
const UNDO_AGAIN: [u64; 3] = [10, 100, 1000];

pub(super) async fn a_cancelled_ask_can_be_undone(bench: &Bench<'_>) -> Outcome {
    let client = bench.client().await?;
    let mut races = Vec::new();
    for index in 0..RACES {
        let (client, key, owner) = (client.clone(), bench.key(&format!("race {index}"))?, owner()?);
        races.push((
            key.clone(),
            tokio::spawn(async move {
                ask_and_drop(&client, &key, &owner, index).await;
                undo(&client, &key, &owner).await
            }),
        ));
        if index.is_multiple_of(16) {
            tokio::task::yield_now().await;
        }
    }
    let mut keys = Vec::new();
    for (key, race) in races {
        race.await.map_err(|error| Failure::new(format!("a task of the case failed: {error}")))??;
        keys.push(key);
    }
    for key in &keys {
        let owner = owner()?;
        client.check_free(key).await?;
        client.take(key, &owner, LONG).await?;
        // Not every store can have so many at a time.
        client.check_released(key, &owner).await?;
    }
    Ok(())
}

pub(super) async fn dropped_waiters_leave_nothing(bench: &Bench<'_>) -> Outcome {
    let (client, key, holder) = (bench.client().await?, bench.key("storm")?, owner()?);
    client.take(&key, &holder, LONG).await?;
    let mut wakes = Vec::new();
    for _ in 0..100 {
        wakes.push(client.wait(&key, &owner()?, LONG).await?);
    }
    // Half of them before the lease is free, half of them while it passes through the line.
    wakes.truncate(50);
    client.check_released(&key, &holder).await?;
    drop(wakes);
    bench.soon_free(&client, &key).await?;
    client.take(&key, &owner()?, LONG).await?;
    Ok(())
}

/// Drops an ask at a moment that differs with `index`; also the wake-up, if there is one.
async fn ask_and_drop(client: &Client, key: &Key, owner: &OwnerToken, index: usize) {
    let claim = Claim::new(key, owner, LONG).waits(true);
    let ask = pin!(client.acquire(&claim));
    if index.is_multiple_of(3) {
        let limit = Duration::from_micros(fastrand::u64(..3000));
        drop(tokio::time::timeout(limit, ask).await);
        return;
    }
    let mut ask = ask;
    let mut polls = index % 7;
    future::poll_fn(|context| {
        if polls == 0 || ask.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        polls -= 1;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

async fn undo(client: &Client, key: &Key, owner: &OwnerToken) -> Outcome {
    let mut pauses = UNDO_AGAIN.into_iter();
    loop {
        let undone = match client.release(key, owner).await {
            // So many at a time may take a store that waits for several servers longer than it waits.
            Err(error) if [ErrorKind::Unavailable, ErrorKind::Indeterminate].contains(&error.kind()) => Err(error),
            answer => Ok(answer?),
        };
        match (undone, pauses.next()) {
            (Ok(true), _) | (Ok(false), None) => return Ok(()),
            (Err(error), None) => return Err(error.into()),
            (_, Some(pause)) => tokio::time::sleep(Duration::from_millis(pause)).await,
        }
    }
}
