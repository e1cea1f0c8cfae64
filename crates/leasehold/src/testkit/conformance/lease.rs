//! Taking and giving back.

use super::Outcome;
use super::bench::{Bench, LONG, check, owner, token};
use crate::store::Expiry;

pub(super) async fn a_free_key_is_granted(bench: &Bench<'_>) -> Outcome {
    let (client, key, owner) = (bench.client().await?, bench.key("free")?, owner()?);
    client.check_free(&key).await?;
    client.take(&key, &owner, LONG).await?;
    client.check_held(&key, &owner).await
}

pub(super) async fn a_held_key_is_contended(bench: &Bench<'_>) -> Outcome {
    let (client, key, holder) = (bench.client().await?, bench.key("held")?, owner()?);
    client.take(&key, &holder, LONG).await?;
    for _ in 0..3 {
        client.be_refused(&key, &owner()?).await?;
    }
    client.check_held(&key, &holder).await
}

pub(super) async fn asking_again_by_the_same_owner_is_granted(bench: &Bench<'_>) -> Outcome {
    let (client, key, owner) = (bench.client().await?, bench.key("again")?, owner()?);
    let first = client.take(&key, &owner, LONG).await?;
    let second = client.take(&key, &owner, LONG).await?;
    check!(token(&first) == token(&second), "asking again changed the token: {first:?}, then {second:?}");
    client.check_held(&key, &owner).await
}

pub(super) async fn one_release_undoes_every_ask(bench: &Bench<'_>) -> Outcome {
    let (client, key, first) = (bench.client().await?, bench.key("counted")?, owner()?);
    for _ in 0..3 {
        client.take(&key, &first, LONG).await?;
    }
    client.check_released(&key, &first).await?;
    client.check_free(&key).await?;
    client.take(&key, &owner()?, LONG).await?;
    Ok(())
}

pub(super) async fn a_second_release_is_false(bench: &Bench<'_>) -> Outcome {
    let (client, key, holder) = (bench.client().await?, bench.key("twice")?, owner()?);
    client.take(&key, &holder, LONG).await?;
    client.check_released(&key, &holder).await?;
    check!(!client.release(&key, &holder).await?, "a second release found a lease");
    let next = owner()?;
    client.take(&key, &next, LONG).await?;
    check!(!client.release(&key, &holder).await?, "a second release found the lease of the next holder");
    client.check_held(&key, &next).await
}

pub(super) async fn release_needs_owner(bench: &Bench<'_>) -> Outcome {
    let (client, key, holder) = (bench.client().await?, bench.key("foreign")?, owner()?);
    client.take(&key, &holder, LONG).await?;
    check!(!client.release(&key, &owner()?).await?, "a release by another owner claims to have found its lease");
    client.check_held(&key, &holder).await?;
    client.be_refused(&key, &owner()?).await?;
    Ok(())
}

pub(super) async fn release_of_an_unknown_key_is_false(bench: &Bench<'_>) -> Outcome {
    let (client, key) = (bench.client().await?, bench.key("unknown")?);
    check!(!client.release(&key, &owner()?).await?, "a release of a key that nobody ever held found a lease");
    client.check_free(&key).await
}

pub(super) async fn contention_tells_nothing_false(bench: &Bench<'_>) -> Outcome {
    let (client, key, holder) = (bench.client().await?, bench.key("told")?, owner()?);
    client.take(&key, &holder, LONG).await?;
    let contention = client.be_refused(&key, &owner()?).await?;
    if let Some(remaining) = contention.retry_after {
        check!(remaining <= LONG, "a lease of {LONG:?} is said to stand for {remaining:?}");
        check!(!remaining.is_zero(), "a held lease is said to stand no longer");
    }
    if let Some(told) = contention.holder {
        check!(told.owner == holder, "the refusal names {told:?}, who does not hold");
    }
    Ok(())
}

pub(super) async fn the_name_and_the_limits_make_sense(bench: &Bench<'_>) -> Outcome {
    let client = bench.client().await?;
    let (name, capabilities) = (client.name(), bench.capabilities());
    let lower = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || "+-.".contains(letter);
    check!(!name.is_empty() && name.chars().all(lower), "{name:?} is no URL scheme");
    check!(!capabilities.min_ttl.is_zero(), "the shortest ttl is zero");
    check!(!capabilities.ttl_step.is_zero(), "ttls are rounded to multiples of zero");
    check!(
        !capabilities.hand_over || capabilities.expiry == Expiry::Ttl,
        "a lease that ends with its session cannot pass to another"
    );
    check!(client.capabilities() == *capabilities, "two clients of one place differ in their capabilities");
    Ok(())
}

pub(super) async fn probe_answers(bench: &Bench<'_>) -> Outcome {
    let (one, other) = (bench.client().await?.probe().await?, bench.client().await?.probe().await?);
    check!(one.identity == other.identity, "one place says to be {:?} and {:?}", one.identity, other.identity);
    Ok(())
}

pub(super) async fn close_can_be_called_twice(bench: &Bench<'_>) -> Outcome {
    let client = bench.client().await?;
    client.take(&bench.key("closed")?, &owner()?, LONG).await?;
    client.close().await?;
    client.close().await?;
    Ok(())
}
