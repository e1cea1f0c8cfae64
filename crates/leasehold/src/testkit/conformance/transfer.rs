//! Passing a lease on.

use std::sync::Arc;

use super::bench::{Bench, LONG, check, owner, token};
use super::expiry::check_kept;
use super::{Failure, Outcome};
use crate::store::{Claim, HolderInfo};

pub(super) async fn transfer_passes_the_lease_on(bench: &Bench<'_>) -> Outcome {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let (key, giver, taker) = (bench.key("passed")?, owner()?, owner()?);
    client.take(&key, &giver, LONG).await?;
    other.give(&key, &giver, &taker, LONG).await?;
    client.check_held(&key, &taker).await?;
    client.be_refused(&key, &owner()?).await?;
    check!(other.extend_one(&key, &taker, LONG).await?.is_some(), "the taker could not extend");
    other.check_released(&key, &taker).await?;
    client.check_free(&key).await
}

pub(super) async fn transfer_ends_the_giver(bench: &Bench<'_>) -> Outcome {
    let (client, key, giver, taker) = (bench.client().await?, bench.key("ended")?, owner()?, owner()?);
    client.take(&key, &giver, LONG).await?;
    client.give(&key, &giver, &taker, LONG).await?;
    check!(client.extend_one(&key, &giver, LONG).await?.is_none(), "the giver could still extend");
    check!(!client.release(&key, &giver).await?, "the giver could still release");
    client.be_refused(&key, &giver).await?;
    client.check_held(&key, &taker).await
}

pub(super) async fn transfer_raises_the_fence(bench: &Bench<'_>) -> Outcome {
    let (client, key) = (bench.client().await?, bench.key("raised")?);
    let mut holder = owner()?;
    let mut last = client.take(&key, &holder, LONG).await?;
    for _ in 0..3 {
        let taker = owner()?;
        let grant = client.give(&key, &holder, &taker, LONG).await?;
        bench.check_grew(&last, &grant)?;
        (holder, last) = (taker, grant);
    }
    client.check_released(&key, &holder).await?;
    let next = client.take(&key, &owner()?, LONG).await?;
    bench.check_grew(&last, &next)
}

pub(super) async fn a_repeated_transfer_changes_nothing(bench: &Bench<'_>) -> Outcome {
    let (client, key, giver, taker) = (bench.client().await?, bench.key("repeated")?, owner()?, owner()?);
    client.take(&key, &giver, LONG).await?;
    let first = client.give(&key, &giver, &taker, LONG).await?;
    for _ in 0..2 {
        let again = client.give(&key, &giver, &taker, LONG).await?;
        check!(token(&again) == token(&first), "a repeat changed the token: {first:?}, then {again:?}");
    }
    client.check_held(&key, &taker).await
}

pub(super) async fn a_late_repeat_of_a_transfer_is_none(bench: &Bench<'_>) -> Outcome {
    let (client, key) = (bench.client().await?, bench.key("late")?);
    let (first, second, third) = (owner()?, owner()?, owner()?);
    client.take(&key, &first, LONG).await?;
    client.give(&key, &first, &second, LONG).await?;
    client.give(&key, &second, &third, LONG).await?;
    let late = client.pass_on(&key, &first, &second, LONG).await?;
    check!(late.is_none(), "a transfer was repeated after the lease had passed on: {late:?}");
    client.check_held(&key, &third).await
}

pub(super) async fn of_two_resumers_one_wins(bench: &Bench<'_>) -> Outcome {
    let (client, key) = (bench.client().await?, bench.key("two")?);
    let (giver, one, other) = (owner()?, owner()?, owner()?);
    client.take(&key, &giver, LONG).await?;
    client.give(&key, &giver, &one, LONG).await?;
    let second = client.pass_on(&key, &giver, &other, LONG).await?;
    check!(second.is_none(), "a token that was used passed the lease on again: {second:?}");
    client.check_held(&key, &one).await
}

pub(super) async fn of_two_resumers_at_once_one_wins(bench: &Bench<'_>) -> Outcome {
    let (client, key, giver) = (bench.client().await?, bench.key("rush")?, owner()?);
    client.take(&key, &giver, LONG).await?;
    let mut resumers = Vec::new();
    for _ in 0..8 {
        let (client, key, giver, taker) = (bench.client().await?, key.clone(), giver.clone(), owner()?);
        resumers.push(tokio::spawn(async move {
            let won = client.pass_on(&key, &giver, &taker, LONG).await?.is_some();
            Ok::<_, Failure>(won.then_some(taker))
        }));
    }
    let mut winners = Vec::new();
    for resumer in resumers {
        let taker = resumer.await.map_err(|error| Failure::new(format!("a task of the case failed: {error}")))??;
        winners.extend(taker);
    }
    check!(winners.len() == 1, "{} of 8 resumers won", winners.len());
    client.check_held(&key, &winners[0]).await
}

pub(super) async fn transfer_needs_the_owner(bench: &Bench<'_>) -> Outcome {
    let (client, key, holder) = (bench.client().await?, bench.key("guarded")?, owner()?);
    client.take(&key, &holder, LONG).await?;
    let stolen = client.pass_on(&key, &owner()?, &owner()?, LONG).await?;
    check!(stolen.is_none(), "a stranger passed the lease on: {stolen:?}");
    client.check_held(&key, &holder).await
}

pub(super) async fn transfer_never_creates(bench: &Bench<'_>) -> Outcome {
    let (client, key, giver, taker) = (bench.client().await?, bench.key("free")?, owner()?, owner()?);
    let created = client.pass_on(&key, &giver, &taker, LONG).await?;
    check!(created.is_none(), "a lease that never was has passed on: {created:?}");
    client.check_free(&key).await?;
    client.take(&key, &giver, LONG).await?;
    client.check_released(&key, &giver).await?;
    let recreated = client.pass_on(&key, &giver, &taker, LONG).await?;
    check!(recreated.is_none(), "a released lease has passed on: {recreated:?}");
    client.check_free(&key).await
}

pub(super) async fn transfer_from_an_expired_lease_is_none(bench: &Bench<'_>) -> Outcome {
    let (client, key, giver, taker) = (bench.client().await?, bench.key("expired")?, owner()?, owner()?);
    client.take(&key, &giver, bench.ttl()).await?;
    bench.sleep(bench.ttl()).await;
    bench.until_free(&client, &key).await?;
    let revived = client.pass_on(&key, &giver, &taker, LONG).await?;
    check!(revived.is_none(), "an expired lease has passed on: {revived:?}");
    client.check_free(&key).await
}

pub(super) async fn transfer_gives_the_whole_ttl(bench: &Bench<'_>) -> Outcome {
    let mut attempt = 0;
    loop {
        let (client, key) = (bench.client().await?, bench.key(&format!("whole {attempt}"))?);
        let (giver, taker) = (owner()?, owner()?);
        let mut sent = bench.now();
        let mut grant = Some(client.take(&key, &giver, bench.ample_ttl()).await?);
        let mut valid_until = sent;
        // A repeat re-arms the ttl as well.
        for _ in 0..2 {
            let Some(latest) = grant else { break };
            valid_until = sent + latest.validity;
            bench.sleep(bench.ttl()).await;
            sent = bench.now();
            grant = client.pass_on(&key, &giver, &taker, bench.ample_ttl()).await?;
        }
        if let Some(grant) = grant {
            return check_kept(bench, &key, sent + grant.validity).await;
        }
        bench.check_over(valid_until, attempt)?;
        attempt += 1;
    }
}

pub(super) async fn a_transfer_can_be_undone(bench: &Bench<'_>) -> Outcome {
    let (client, key, giver, taker) = (bench.client().await?, bench.key("undone")?, owner()?, owner()?);
    client.take(&key, &giver, LONG).await?;
    let there = client.give(&key, &giver, &taker, LONG).await?;
    let back = client.give(&key, &taker, &giver, LONG).await?;
    bench.check_grew(&there, &back)?;
    client.check_held(&key, &giver).await?;
    check!(!client.release(&key, &taker).await?, "the taker could release what it had given back");
    client.check_released(&key, &giver).await
}

pub(super) async fn transfer_keeps_the_holder_unless_given(bench: &Bench<'_>) -> Outcome {
    let (client, key, first, second) = (bench.client().await?, bench.key("told")?, owner()?, owner()?);
    let named = |label: &str| Arc::new(HolderInfo { label: Some(label.to_owned()), ..HolderInfo::default() });
    client.acquire(&Claim::new(&key, &first, LONG).holder(&named("first"))).await?;
    let label = async || Ok::<_, Failure>(client.holder(&key).await?.and_then(|holder| holder.info.label.clone()));
    if label().await?.is_none() {
        // Metadata is advisory; this store keeps none.
        return Ok(());
    }
    client.transfer(&first, &Claim::new(&key, &second, LONG).holder(&named("second"))).await?;
    let shown = label().await?;
    check!(shown.as_deref() == Some("second"), "after a transfer by second the holder is called {shown:?}");
    client.give(&key, &second, &owner()?, LONG).await?;
    let shown = label().await?;
    check!(shown.as_deref() == Some("second"), "a transfer without a holder changed it to {shown:?}");
    Ok(())
}

pub(super) async fn another_client_acts_by_owner(bench: &Bench<'_>) -> Outcome {
    let (key, holder) = (bench.key("by owner")?, owner()?);
    let first = bench.client().await?.take(&key, &holder, LONG).await?;
    let again = bench.client().await?.take(&key, &holder, LONG).await?;
    check!(token(&first) == token(&again), "through another client the same owner is another holder");
    let extended = bench.client().await?.extend_one(&key, &holder, LONG).await?;
    check!(extended.is_some(), "through another client the owner could not extend");
    bench.client().await?.check_released(&key, &holder).await?;
    bench.client().await?.check_free(&key).await
}

pub(super) async fn leases_stand_when_a_client_closes(bench: &Bench<'_>) -> Outcome {
    let (client, key, holder) = (bench.client().await?, bench.key("stands")?, owner()?);
    client.take(&key, &holder, LONG).await?;
    client.close().await?;
    let other = bench.client().await?;
    other.check_held(&key, &holder).await?;
    other.be_refused(&key, &owner()?).await?;
    Ok(())
}
