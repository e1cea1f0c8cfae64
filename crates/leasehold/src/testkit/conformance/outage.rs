//! A place that fails.

use super::bench::{Bench, check, owner};
use super::{Failure, Outage, Outcome};
use crate::error::{Error, ErrorKind};
use crate::store::Claim;

pub(super) async fn an_outage_is_not_contention(bench: &Bench<'_>) -> Outcome {
    let (client, key, owner) = (bench.client().await?, bench.key("unreachable")?, owner()?);
    client.check_free(&key).await?;
    let outage = start(bench).await?;
    let answer = client.acquire(&Claim::new(&key, &owner, ttl(bench))).await;
    drop(outage);
    let error = match answer {
        Ok(attempt) => {
            return Err(Failure::new(format!("a place that is out answered {attempt:?}")));
        }
        Err(error) => error,
    };
    check_kind(&error)?;
    if error.kind() != ErrorKind::Indeterminate {
        client.check_free(&key).await?;
    }
    Ok(())
}

pub(super) async fn an_outage_is_not_a_loss(bench: &Bench<'_>) -> Outcome {
    let (client, key, owner) = (bench.client().await?, bench.key("held")?, owner()?);
    let ttl = ttl(bench);
    client.take(&key, &owner, ttl).await?;
    let outage = start(bench).await?;
    match client.extend(&[Claim::new(&key, &owner, ttl)]).await {
        Err(error) => check_kind(&error)?,
        Ok(answers) => {
            for answer in answers {
                match answer {
                    Err(error) => check_kind(&error)?,
                    Ok(grant) => {
                        return Err(Failure::new(format!("a place that is out extended to {grant:?}")));
                    }
                }
            }
        }
    }
    match client.release(&key, &owner).await {
        Err(error) => check_kind(&error)?,
        Ok(found) => {
            return Err(Failure::new(format!("a place that is out released: {found}")));
        }
    }
    drop(outage);
    Ok(())
}

pub(super) async fn leases_outlive_an_outage(bench: &Bench<'_>) -> Outcome {
    let (client, key, owner) = (bench.client().await?, bench.key("outlives")?, owner()?);
    client.take(&key, &owner, super::bench::LONG).await?;
    let outage = start(bench).await?;
    bench.sleep(bench.ttl() / 4).await;
    drop(outage);
    check!(client.extend_one(&key, &owner, super::bench::LONG).await?.is_some(), "the lease was gone after an outage");
    client.check_released(&key, &owner).await
}

/// Short enough that a store which waits for a sixth of it does not make the case long.
fn ttl(bench: &Bench<'_>) -> std::time::Duration {
    bench.ttl() * 10
}

async fn start(bench: &Bench<'_>) -> Result<Outage, Failure> {
    bench.fixture().outage().await.ok_or_else(|| Failure::new("the fixture refused a second outage"))
}

fn check_kind(error: &Error) -> Outcome {
    let kinds = [ErrorKind::Unavailable, ErrorKind::Indeterminate, ErrorKind::Rejected];
    check!(kinds.contains(&error.kind()), "an outage was told as {error:?}");
    Ok(())
}
