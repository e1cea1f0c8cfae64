//! The end of a lease by its ttl.

use std::time::Duration;

use super::bench::{Bench, Client, LONG, check, owner};
use super::{Failure, Outcome};
use crate::clock::Moment;
use crate::error::ErrorKind;
use crate::store::{Attempt, Claim, Grant};
use crate::types::{Key, OwnerToken};

pub(super) async fn an_expired_lease_is_free(bench: &Bench<'_>) -> Outcome {
    let (client, key) = (bench.client().await?, bench.key("expired")?);
    client.take(&key, &owner()?, bench.ttl()).await?;
    bench.until_free(&client, &key).await?;
    let next = owner()?;
    bench.client().await?.take(&key, &next, LONG).await?;
    client.check_held(&key, &next).await
}

pub(super) async fn an_expired_owner_cannot_release(bench: &Bench<'_>) -> Outcome {
    let (client, key, holder, _) = expired(bench).await?;
    check!(!client.release(&key, &holder).await?, "the release of an expired lease found it");
    client.check_free(&key).await
}

pub(super) async fn a_late_release_spares_the_next_holder(bench: &Bench<'_>) -> Outcome {
    let (client, key, holder, _) = expired(bench).await?;
    let next = owner()?;
    client.take(&key, &next, LONG).await?;
    check!(!client.release(&key, &holder).await?, "the release of an expired lease found that of the next holder");
    client.check_held(&key, &next).await
}

pub(super) async fn a_late_extend_spares_the_next_holder(bench: &Bench<'_>) -> Outcome {
    let (client, key, holder, _) = expired(bench).await?;
    let next = owner()?;
    client.take(&key, &next, LONG).await?;
    let answer = client.extend_one(&key, &holder, LONG).await?;
    check!(answer.is_none(), "the former holder extended the lease of the next: {answer:?}");
    client.check_held(&key, &next).await
}

pub(super) async fn extend_never_recreates_an_expired_lease(bench: &Bench<'_>) -> Outcome {
    let (client, key, holder, _) = expired(bench).await?;
    let answer = client.extend_one(&key, &holder, LONG).await?;
    check!(answer.is_none(), "an expired lease was extended: {answer:?}");
    client.check_free(&key).await?;
    client.take(&key, &owner()?, LONG).await?;
    Ok(())
}

pub(super) async fn extend_never_shortens(bench: &Bench<'_>) -> Outcome {
    let (client, key, owner) = (bench.client().await?, bench.key("long")?, owner()?);
    client.take(&key, &owner, LONG).await?;
    let answer = client.extend_one(&key, &owner, bench.ttl()).await?;
    check!(answer.is_some(), "the holder's extend was refused");
    check_outlives(bench, &client, &key, &owner).await
}

pub(super) async fn extend_pushes_the_end_out(bench: &Bench<'_>) -> Outcome {
    let mut attempt = 0;
    loop {
        let (client, key, owner) = (bench.client().await?, bench.key(&format!("extended {attempt}"))?, owner()?);
        let taken = bench.now();
        let grant = client.take(&key, &owner, bench.ample_ttl()).await?;
        if client.extend_one(&key, &owner, LONG).await?.is_some() {
            bench.sleep(bench.ample_ttl()).await;
            return check_outlives(bench, &client, &key, &owner).await;
        }
        bench.check_over(taken + grant.validity, attempt)?;
        attempt += 1;
    }
}

pub(super) async fn asking_again_re_arms_the_ttl(bench: &Bench<'_>) -> Outcome {
    let (client, key, owner) = (bench.client().await?, bench.key("re-armed")?, owner()?);
    client.take(&key, &owner, bench.ttl()).await?;
    client.take(&key, &owner, LONG).await?;
    check_outlives(bench, &client, &key, &owner).await
}

pub(super) async fn asking_again_never_shortens(bench: &Bench<'_>) -> Outcome {
    let (client, key, owner) = (bench.client().await?, bench.key("again")?, owner()?);
    client.take(&key, &owner, LONG).await?;
    client.take(&key, &owner, bench.ttl()).await?;
    check_outlives(bench, &client, &key, &owner).await
}

pub(super) async fn an_expired_owner_can_ask_again(bench: &Bench<'_>) -> Outcome {
    let (client, key, holder, first) = expired(bench).await?;
    let second = client.take(&key, &holder, LONG).await?;
    bench.check_grew(&first, &second)?;
    client.check_held(&key, &holder).await
}

pub(super) async fn the_validity_of_a_grant_is_kept(bench: &Bench<'_>) -> Outcome {
    for index in 0..3 {
        let (client, key) = (bench.client().await?, bench.key(&format!("valid {index}"))?);
        let sent = bench.now();
        let grant = client.take(&key, &owner()?, bench.ttl()).await?;
        check_kept(bench, &key, sent + grant.validity).await?;
    }
    Ok(())
}

pub(super) async fn the_validity_of_an_extension_is_kept(bench: &Bench<'_>) -> Outcome {
    let mut attempt = 0;
    loop {
        let (client, key, owner) = (bench.client().await?, bench.key(&format!("valid {attempt}"))?, owner()?);
        let taken = bench.now();
        let first = client.take(&key, &owner, bench.ample_ttl()).await?;
        bench.sleep(bench.ttl()).await;
        let sent = bench.now();
        if let Some(grant) = client.extend_one(&key, &owner, bench.ample_ttl()).await? {
            return check_kept(bench, &key, sent + grant.validity).await;
        }
        bench.check_over(taken + first.validity, attempt)?;
        attempt += 1;
    }
}

pub(super) async fn ttls_between_steps_are_kept(bench: &Bench<'_>) -> Outcome {
    let step = bench.capabilities().ttl_step;
    for part in [step / 4, step / 2, step - step / 100] {
        let (client, key) = (bench.client().await?, bench.key(&format!("part {part:?}"))?);
        let ttl = bench.ttl() + part;
        let sent = bench.now();
        let grant = client.take(&key, &owner()?, ttl).await?;
        check!(grant.validity + step >= ttl, "a ttl of {ttl:?} was cut to {:?}", grant.validity);
        check_kept(bench, &key, sent + grant.validity).await?;
    }
    Ok(())
}

pub(super) async fn the_shortest_ttl_is_granted_and_ends(bench: &Bench<'_>) -> Outcome {
    let (client, key) = (bench.client().await?, bench.key("shortest")?);
    // A store that has to answer within such a time may be too slow for it on a busy machine, but not each time.
    for attempt in 1.. {
        match client.acquire(&Claim::new(&key, &owner()?, bench.capabilities().min_ttl)).await {
            Ok(Attempt::Acquired(_)) => break,
            Err(error) if error.kind() == ErrorKind::Indeterminate && attempt < 20 => {
                bench.until_free(&client, &key).await?;
            }
            Ok(Attempt::Contended(contention)) => {
                return Err(Failure::new(format!("a free key was refused: {contention:?}")));
            }
            Err(error) => return Err(error.into()),
        }
    }
    bench.until_free(&client, &key).await
}

pub(super) async fn force_release_of_an_expired_lease_is_none(bench: &Bench<'_>) -> Outcome {
    let (client, key, holder, _) = expired(bench).await?;
    for expected in [None, Some(&holder)] {
        let removed = client.force_release(&key, expected).await?;
        check!(removed.is_none(), "an expired lease was removed: {removed:?}");
    }
    Ok(())
}

pub(super) async fn an_expired_fence_grows(bench: &Bench<'_>) -> Outcome {
    let (client, key, _, mut last) = expired(bench).await?;
    for _ in 0..2 {
        let grant = client.take(&key, &owner()?, bench.ttl()).await?;
        bench.check_grew(&last, &grant)?;
        last = grant;
        bench.until_free(&client, &key).await?;
    }
    Ok(())
}

/// A key whose lease has expired, with its former holder.
async fn expired(bench: &Bench<'_>) -> Result<(Client, Key, OwnerToken, Grant), Failure> {
    let (client, key, owner) = (bench.client().await?, bench.key("expired")?, owner()?);
    let grant = client.take(&key, &owner, bench.ttl()).await?;
    bench.sleep(bench.ttl()).await;
    bench.until_free(&client, &key).await?;
    Ok((client, key, owner, grant))
}

/// Still held after more than the bench's ttl.
async fn check_outlives(bench: &Bench<'_>, client: &Client, key: &Key, holder: &OwnerToken) -> Outcome {
    bench.sleep(bench.ttl() * 2).await;
    client.check_held(key, holder).await?;
    client.be_refused(key, &owner()?).await?;
    Ok(())
}

/// Nobody else is granted the key before that moment, and somebody is soon after.
pub(super) async fn check_kept(bench: &Bench<'_>, key: &Key, valid_until: Moment) -> Outcome {
    let (rival, owner) = (bench.client().await?, owner()?);
    let limit = valid_until + bench.ttl() * 5 + Duration::from_secs(5);
    loop {
        let attempt = rival.acquire(&Claim::new(key, &owner, LONG)).await?;
        let now = bench.now();
        if let Attempt::Acquired(_) = attempt {
            let early = valid_until.since(now);
            check!(early.is_zero(), "{key} was granted to another {early:?} before the end of its validity");
            return Ok(());
        }
        check!(now < limit, "{key} was still held long after its validity");
        bench.sleep(bench.ttl() / 50).await;
    }
}
