//! Requests that meet the end of a lease, and the grant to the next holder.

use std::time::Duration;

use super::bench::{Bench, Client, LONG, PATIENCE, check, owner};
use super::{Failure, Outcome};
use crate::store::{Attempt, BoxFuture, Claim};
use crate::types::{Key, OwnerToken};

/// How many leases end, each with a request that comes a millisecond later than that of the one before.
const ENDS: u64 = 12;

/// How long before the end of its lease the first request is sent, and how much earlier others begin to ask.
const BEFORE: Duration = Duration::from_millis(8);

/// What a holder asks for, and whether that keeps its lease.
type Request = fn(Client, Key, OwnerToken) -> BoxFuture<Result<bool, Failure>>;

pub(super) async fn a_release_at_the_end_spares_the_next_holder(bench: &Bench<'_>) -> Outcome {
    at_the_end(bench, |client, key, holder| {
        Box::pin(async move {
            client.release(&key, &holder).await?;
            Ok(false)
        })
    })
    .await
}

pub(super) async fn an_extend_at_the_end_spares_the_next_holder(bench: &Bench<'_>) -> Outcome {
    at_the_end(bench, |client, key, holder| {
        Box::pin(async move { Ok(client.extend_one(&key, &holder, LONG).await?.is_some()) })
    })
    .await
}

/// The holders of several keys send that request about when their leases end, while others ask for the keys.
async fn at_the_end(bench: &Bench<'_>, request: Request) -> Outcome {
    let mut ends = Vec::new();
    for number in 0..ENDS {
        let (client, rival) = (bench.client().await?, bench.client().await?);
        let (key, holder, next) = (bench.key(&format!("end {number}"))?, owner()?, owner()?);
        let ttl = bench.ample_ttl();
        client.take(&key, &holder, ttl).await?;
        let early = ttl.saturating_sub(2 * BEFORE);
        let sent = tokio::spawn({
            let (key, holder) = (key.clone(), holder.clone());
            async move {
                tokio::time::sleep(early + BEFORE + Duration::from_millis(number)).await;
                request(client, key, holder).await
            }
        });
        let (clock, limit) = (bench.clock(), bench.now() + ttl + PATIENCE);
        ends.push(tokio::spawn(async move {
            tokio::time::sleep(early).await;
            let mut is_granted = false;
            while !is_granted && !sent.is_finished() {
                is_granted = asks(&rival, &key, &next).await?;
            }
            let is_kept = sent.await.map_err(|error| Failure::new(format!("a task of the case failed: {error}")))??;
            check!(!(is_kept && is_granted), "{key} was kept by its holder and granted to another");
            while !is_granted && !is_kept {
                is_granted = asks(&rival, &key, &next).await?;
                check!(is_granted || clock.now() < limit, "{key} was still held long after its end");
            }
            rival.check_held(&key, if is_kept { &holder } else { &next }).await
        }));
    }
    for end in ends {
        end.await.map_err(|error| Failure::new(format!("a task of the case failed: {error}")))??;
    }
    Ok(())
}

/// Asks once, and rests a moment if it is refused.
async fn asks(client: &Client, key: &Key, owner: &OwnerToken) -> Result<bool, Failure> {
    let is_granted = matches!(client.acquire(&Claim::new(key, owner, LONG)).await?, Attempt::Acquired(_));
    if !is_granted {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(is_granted)
}
