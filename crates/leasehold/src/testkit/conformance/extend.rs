//! Pushing the end out.

use std::sync::Arc;

use super::Outcome;
use super::bench::{Bench, LONG, check, owner, token};
use crate::error::ErrorKind;
use crate::store::{Claim, HolderInfo};

pub(super) async fn extend_answers_the_owner(bench: &Bench<'_>) -> Outcome {
    let (client, key, owner) = (bench.client().await?, bench.key("mine")?, owner()?);
    let first = client.take(&key, &owner, LONG).await?;
    for _ in 0..3 {
        let Some(grant) = client.extend_one(&key, &owner, LONG).await? else {
            return Err(super::Failure::new("the holder's extend was refused"));
        };
        check!(!grant.validity.is_zero(), "extended to no time at all");
        check!(token(&grant) == token(&first), "extend changed the token: {first:?}, then {grant:?}");
    }
    client.check_held(&key, &owner).await
}

pub(super) async fn extend_needs_owner(bench: &Bench<'_>) -> Outcome {
    let (client, key, holder) = (bench.client().await?, bench.key("foreign")?, owner()?);
    client.take(&key, &holder, LONG).await?;
    let answer = client.extend_one(&key, &owner()?, LONG).await?;
    check!(answer.is_none(), "another owner's extend was granted: {answer:?}");
    client.check_held(&key, &holder).await
}

pub(super) async fn extend_never_creates(bench: &Bench<'_>) -> Outcome {
    let (client, key) = (bench.client().await?, bench.key("unknown")?);
    let answer = client.extend_one(&key, &owner()?, LONG).await?;
    check!(answer.is_none(), "a lease that never was has been extended: {answer:?}");
    client.check_free(&key).await
}

pub(super) async fn extend_never_recreates_a_released_lease(bench: &Bench<'_>) -> Outcome {
    let (client, key, holder) = (bench.client().await?, bench.key("released")?, owner()?);
    client.take(&key, &holder, LONG).await?;
    client.check_released(&key, &holder).await?;
    let answer = client.extend_one(&key, &holder, LONG).await?;
    check!(answer.is_none(), "a released lease was extended: {answer:?}");
    client.check_free(&key).await?;
    client.take(&key, &owner()?, LONG).await?;
    Ok(())
}

pub(super) async fn extend_answers_each_claim_in_order(bench: &Bench<'_>) -> Outcome {
    let (client, mine, stranger) = (bench.client().await?, owner()?, owner()?);
    let mut keys = Vec::new();
    for (index, held_by) in
        [Some(&mine), None, Some(&stranger), Some(&mine), Some(&stranger), None, Some(&mine)].into_iter().enumerate()
    {
        // Named so that their order is not that of the alphabet.
        let key = bench.key(&format!("batch {}", (index * 5) % 7))?;
        if let Some(owner) = held_by {
            client.take(&key, owner, LONG).await?;
        }
        keys.push((key, held_by == Some(&mine)));
    }
    let claims: Vec<_> = keys.iter().map(|(key, _)| Claim::new(key, &mine, LONG)).collect();
    let mut answers = client.extend(&claims).await?;
    // A store of several servers may not wait for one that is late, but not each time.
    for _ in 0..3 {
        if answers.iter().any(|answer| matches!(answer, Err(error) if error.kind() == ErrorKind::Indeterminate)) {
            answers = client.extend(&claims).await?;
        }
    }
    check!(answers.len() == keys.len(), "{} claims were extended with {} answers", keys.len(), answers.len());
    for (index, (answer, (key, held))) in answers.into_iter().zip(&keys).enumerate() {
        let extended = answer?.is_some();
        check!(extended == *held, "claim {index}, on {key}: extended = {extended}, held = {held}");
    }
    for (key, held) in &keys {
        if *held {
            client.check_held(key, &mine).await?;
        } else {
            check!(
                client.holder(key).await?.is_none_or(|holder| holder.owner == stranger),
                "the batch took {key}, which it does not hold"
            );
        }
    }
    Ok(())
}

pub(super) async fn extend_of_nothing_answers_nothing(bench: &Bench<'_>) -> Outcome {
    let answers = bench.client().await?.extend(&[]).await?;
    check!(answers.is_empty(), "no claim was extended with {} answers", answers.len());
    Ok(())
}

pub(super) async fn extend_keeps_the_holder_unless_given(bench: &Bench<'_>) -> Outcome {
    let (client, key, owner) = (bench.client().await?, bench.key("described")?, owner()?);
    let named = |label: &str| Arc::new(HolderInfo { label: Some(label.to_owned()), ..HolderInfo::default() });
    let (first, second) = (named("first"), named("second"));
    client.acquire(&Claim::new(&key, &owner, LONG).holder(&first)).await?;
    let label =
        async || Ok::<_, super::Failure>(client.holder(&key).await?.and_then(|holder| holder.info.label.clone()));
    let Some(shown) = label().await? else {
        // Metadata is advisory; this store keeps none.
        return Ok(());
    };
    check!(shown == "first", "the holder called itself first, not {shown:?}");
    client.extend_one(&key, &owner, LONG).await?;
    let shown = label().await?;
    check!(shown.as_deref() == Some("first"), "an extend without a holder changed it to {shown:?}");
    client.extend(&[Claim::new(&key, &owner, LONG).holder(&second)]).await?;
    let shown = label().await?;
    check!(shown.as_deref() == Some("second"), "an extend with a holder left it at {shown:?}");
    Ok(())
}
