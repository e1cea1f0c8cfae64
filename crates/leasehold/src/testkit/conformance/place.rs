//! The store's own line.

use super::bench::{Bench, Client, LONG, check, owner};
use super::expiry::check_kept;
use super::{Failure, Outcome};
use crate::store::BoxFuture;
use crate::types::{Key, OwnerToken};

pub(super) async fn a_waiter_is_in_line_after_its_attempt(bench: &Bench<'_>) -> Outcome {
    let mut line = Line::of(bench, 1).await?;
    check!(bench.is_quiet(&mut line.waiters[0].1).await, "a place fired while the key was held");
    line.free().await?;
    line.check_served(bench, 0).await
}

pub(super) async fn places_are_served_in_order(bench: &Bench<'_>) -> Outcome {
    let mut line = Line::of(bench, 6).await?;
    line.free().await?;
    for index in 0..6 {
        line.check_served(bench, index).await?;
        for (later, (_, place)) in line.waiters.iter_mut().enumerate().skip(index + 1) {
            check!(bench.is_quiet(place).await, "place {later} fired while {index} held");
        }
        line.leave(index).await?;
    }
    line.client.check_free(&line.key).await
}

pub(super) async fn a_newcomer_does_not_overtake_the_line(bench: &Bench<'_>) -> Outcome {
    let mut line = Line::of(bench, 1).await?;
    line.free().await?;
    bench.client().await?.be_refused(&line.key, &owner()?).await?;
    line.check_served(bench, 0).await
}

pub(super) async fn asking_again_keeps_the_place(bench: &Bench<'_>) -> Outcome {
    let mut line = Line::of(bench, 3).await?;
    for _ in 0..2 {
        for index in 0..3 {
            let owner = line.waiters[index].0.clone();
            let newer = line.client.wait(&line.key, &owner, LONG).await?;
            check!(newer.is_none(), "who stands in line was given a second place");
            line.client.be_refused(&line.key, &owner).await?;
        }
    }
    line.free().await?;
    for index in 0..3 {
        line.check_served(bench, index).await?;
        line.leave(index).await?;
    }
    Ok(())
}

pub(super) async fn a_dropped_place_leaves_the_line(bench: &Bench<'_>) -> Outcome {
    let mut line = Line::of(bench, 1).await?;
    line.waiters.clear();
    line.free().await?;
    bench.soon_free(&line.client, &line.key).await?;
    line.client.take(&line.key, &owner()?, LONG).await?;
    Ok(())
}

pub(super) async fn dropped_places_keep_the_order_of_the_others(bench: &Bench<'_>) -> Outcome {
    let mut line = Line::of(bench, 7).await?;
    let owners: Vec<_> = line.waiters.iter().map(|(owner, _)| owner.clone()).collect();
    // From the middle, the head, and the end.
    for gone in [3, 0, 6] {
        line.waiters.retain(|(owner, _)| *owner != owners[gone]);
    }
    line.free().await?;
    for index in 0..4 {
        line.check_served(bench, index).await?;
        line.leave(index).await?;
    }
    line.client.check_free(&line.key).await
}

pub(super) async fn a_dropped_grant_passes_on(bench: &Bench<'_>) -> Outcome {
    let mut line = Line::of(bench, 3).await?;
    line.free().await?;
    // The head was granted, but nobody has looked: it is gone before it knows.
    drop(line.waiters.remove(0));
    line.check_served(bench, 0).await?;
    line.leave(0).await?;
    line.check_served(bench, 1).await
}

pub(super) async fn a_fired_place_keeps_its_grant(bench: &Bench<'_>) -> Outcome {
    let mut line = Line::of(bench, 2).await?;
    line.free().await?;
    let (owner, mut place) = line.waiters.remove(0);
    check!(bench.fires(&mut place).await, "the head of the line was not told of the release");
    drop(place);
    check!(bench.is_quiet(&mut line.waiters[0].1).await, "a place that had fired gave its grant away when dropped");
    line.client.take(&line.key, &owner, LONG).await?;
    line.client.check_released(&line.key, &owner).await?;
    line.check_served(bench, 0).await
}

pub(super) async fn release_by_a_waiter_leaves_the_line(bench: &Bench<'_>) -> Outcome {
    let mut line = Line::of(bench, 2).await?;
    let (gone, place) = line.waiters.remove(0);
    check!(!line.client.release(&line.key, &gone).await?, "a waiter's release claims to have found a lease");
    line.client.check_held(&line.key, &line.holder).await?;
    line.free().await?;
    line.check_served(bench, 0).await?;
    // What is left of the place belongs to nobody's lease.
    drop(place);
    line.client.check_held(&line.key, &line.waiters[0].0).await
}

pub(super) async fn who_dropped_its_place_stands_at_the_end(bench: &Bench<'_>) -> Outcome {
    let mut line = Line::of(bench, 2).await?;
    let (returning, place) = line.waiters.remove(0);
    drop(place);
    let place = line.client.line_up(&line.key, &returning).await?;
    line.waiters.push((returning, place));
    line.free().await?;
    for index in 0..2 {
        line.check_served(bench, index).await?;
        line.leave(index).await?;
    }
    Ok(())
}

pub(super) async fn an_expired_lease_goes_to_the_head_of_the_line(bench: &Bench<'_>) -> Outcome {
    let ttl = bench.ample_ttl();
    let mut line = Line::with_ttl(bench, 2, ttl).await?;
    bench.sleep(ttl).await;
    bench.until_free(&line.client, &line.key).await?;
    // Whoever asks first, it is not his turn.
    line.client.be_refused(&line.key, &owner()?).await?;
    line.check_served(bench, 0).await?;
    line.leave(0).await?;
    line.check_served(bench, 1).await
}

pub(super) async fn a_grant_that_nobody_comes_for_expires(bench: &Bench<'_>) -> Outcome {
    let mut line = Line::of(bench, 0).await?;
    let (silent, next) = (owner()?, owner()?);
    let silent_place = line.client.wait(&line.key, &silent, bench.ttl()).await?;
    let next_place = line.client.line_up(&line.key, &next).await?;
    line.waiters.push((next, next_place));
    line.free().await?;
    // The head is granted, keeps its place, and does not ask.
    bench.sleep(bench.ttl()).await;
    bench.until_free(&line.client, &line.key).await?;
    line.client.be_refused(&line.key, &owner()?).await?;
    line.check_served(bench, 0).await?;
    drop(silent_place);
    line.client.be_refused(&line.key, &silent).await?;
    line.client.check_held(&line.key, &line.waiters[0].0).await
}

pub(super) async fn force_release_grants_to_the_head_of_the_line(bench: &Bench<'_>) -> Outcome {
    let mut line = Line::of(bench, 2).await?;
    let removed = line.client.force_release(&line.key, None).await?;
    let floor = removed.and_then(|removed| removed.fence_floor);
    line.check_served(bench, 0).await?;
    let told = line.client.take(&line.key, &line.waiters[0].0, LONG).await?.fencing;
    check!(told > floor || floor.is_none(), "the next token {told:?} does not exceed the floor {floor:?}");
    Ok(())
}

pub(super) async fn a_place_is_granted_its_whole_ttl(bench: &Bench<'_>) -> Outcome {
    let (client, key, holder, waiter) = (bench.client().await?, bench.key("whole")?, owner()?, owner()?);
    client.take(&key, &holder, LONG).await?;
    let Some(mut place) = client.wait(&key, &waiter, bench.ttl()).await? else {
        return Err(Failure::new("a first ask that waits got no place"));
    };
    bench.sleep(bench.ttl() / 2).await;
    client.check_released(&key, &holder).await?;
    check!(bench.fires(&mut place).await, "the head of the line was not told of the release");
    let sent = bench.now();
    let grant = client.take(&key, &waiter, bench.ttl()).await?;
    check_kept(bench, &key, sent + grant.validity).await
}

/// A held key and those who wait for it.
struct Line {
    client: Client,
    key: Key,
    holder: OwnerToken,
    waiters: Vec<(OwnerToken, BoxFuture)>,
}

impl Line {
    async fn of(bench: &Bench<'_>, waiters: usize) -> Result<Self, Failure> {
        Self::with_ttl(bench, waiters, LONG).await
    }

    async fn with_ttl(bench: &Bench<'_>, waiters: usize, ttl: std::time::Duration) -> Result<Self, Failure> {
        let (client, key, holder) = (bench.client().await?, bench.key("line")?, owner()?);
        client.take(&key, &holder, ttl).await?;
        let mut line = Self { client, key, holder, waiters: Vec::new() };
        for _ in 0..waiters {
            let owner = owner()?;
            let place = line.client.line_up(&line.key, &owner).await?;
            line.waiters.push((owner, place));
        }
        Ok(line)
    }

    /// The first holder goes.
    async fn free(&mut self) -> Outcome {
        self.client.check_released(&self.key, &self.holder).await
    }

    /// That waiter was told that it is its turn, and holds.
    async fn check_served(&mut self, bench: &Bench<'_>, index: usize) -> Outcome {
        let (owner, place) = &mut self.waiters[index];
        check!(bench.fires(place).await, "waiter {index} was not told that it is its turn");
        self.client.take(&self.key, owner, LONG).await?;
        self.client.check_held(&self.key, owner).await
    }

    async fn leave(&mut self, index: usize) -> Outcome {
        self.client.check_released(&self.key, &self.waiters[index].0).await
    }
}
