//! Tokens that grow.

use super::Outcome;
use super::bench::{Bench, LONG, check, owner, token};

pub(super) async fn every_grant_has_a_token(bench: &Bench<'_>) -> Outcome {
    let (client, key, owner) = (bench.client().await?, bench.key("token")?, owner()?);
    let granted = client.take(&key, &owner, LONG).await?;
    let extended = client.extend_one(&key, &owner, LONG).await?;
    check!(token(&granted).is_some(), "a grant without a token");
    check!(extended.is_some_and(|grant| grant.fencing == granted.fencing), "an extension with another token, or none");
    if let Some(told) = client.holder(&key).await?.and_then(|holder| holder.fencing) {
        check!(Some(told) == granted.fencing, "granted with {:?}, inspected with {told:?}", granted.fencing);
    }
    Ok(())
}

pub(super) async fn the_fence_grows_over_release(bench: &Bench<'_>) -> Outcome {
    let (client, key) = (bench.client().await?, bench.key("released")?);
    let mut last = None;
    for _ in 0..5 {
        let owner = owner()?;
        let grant = client.take(&key, &owner, LONG).await?;
        if let Some(last) = &last {
            bench.check_grew(last, &grant)?;
        }
        last = Some(grant);
        client.check_released(&key, &owner).await?;
    }
    Ok(())
}

pub(super) async fn the_fence_grows_over_force_release(bench: &Bench<'_>) -> Outcome {
    let (client, key) = (bench.client().await?, bench.key("removed")?);
    let first = client.take(&key, &owner()?, LONG).await?;
    client.force_release(&key, None).await?;
    let second = client.take(&key, &owner()?, LONG).await?;
    bench.check_grew(&first, &second)
}

pub(super) async fn the_floor_of_a_removal_holds(bench: &Bench<'_>) -> Outcome {
    let (client, key) = (bench.client().await?, bench.key("floor")?);
    let first = client.take(&key, &owner()?, LONG).await?;
    let floor = client.force_release(&key, None).await?.and_then(|removed| removed.fence_floor);
    check!(floor.is_some(), "the removal names no floor");
    check!(floor >= first.fencing, "the floor {floor:?} lies below the removed token {:?}", first.fencing);
    let second = client.take(&key, &owner()?, LONG).await?;
    check!(second.fencing > floor, "the token {:?} does not exceed the floor {floor:?}", second.fencing);
    Ok(())
}

pub(super) async fn asking_again_and_extend_keep_the_token(bench: &Bench<'_>) -> Outcome {
    let (client, key, owner) = (bench.client().await?, bench.key("kept")?, owner()?);
    let first = client.take(&key, &owner, LONG).await?;
    for _ in 0..3 {
        let again = client.take(&key, &owner, LONG).await?;
        check!(again.fencing == first.fencing, "asking again: {:?}, then {:?}", first.fencing, again.fencing);
        let extended = client.extend_one(&key, &owner, LONG).await?.and_then(|grant| grant.fencing);
        check!(extended == first.fencing, "extended: {:?}, then {extended:?}", first.fencing);
    }
    Ok(())
}

pub(super) async fn the_fence_is_the_same_for_every_client(bench: &Bench<'_>) -> Outcome {
    let key = bench.key("clients")?;
    let mut last = None;
    for _ in 0..4 {
        let (client, owner) = (bench.client().await?, owner()?);
        let grant = client.take(&key, &owner, LONG).await?;
        if let Some(last) = &last {
            bench.check_grew(last, &grant)?;
        }
        last = Some(grant);
        client.check_released(&key, &owner).await?;
        client.close().await?;
    }
    Ok(())
}
