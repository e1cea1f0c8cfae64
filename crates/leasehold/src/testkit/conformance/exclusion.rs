//! One holder at a time, whoever asks.

use std::sync::Arc;
use std::time::Duration;

use super::bench::{Bench, LONG, check, owner};
use super::{Failure, Outcome, Task};
use crate::store::{Attempt, Claim};
use crate::testkit::{History, Record};

pub(super) async fn clients_exclude_each_other(bench: &Bench<'_>) -> Outcome {
    let (one, other) = (bench.client().await?, bench.client().await?);
    let (key, first, second) = (bench.key("shared")?, owner()?, owner()?);
    one.take(&key, &first, LONG).await?;
    other.be_refused(&key, &second).await?;
    bench.check_seen(&other, &key, &first).await?;
    check!(!other.release(&key, &second).await?, "another client's release found the lease");
    one.check_released(&key, &first).await?;
    other.take(&key, &second, LONG).await?;
    one.be_refused(&key, &first).await?;
    Ok(())
}

pub(super) async fn of_many_asks_at_once_one_wins(bench: &Bench<'_>) -> Outcome {
    let key = bench.key("rush")?;
    let mut asks = Vec::new();
    for _ in 0..16 {
        let (client, key, owner) = (bench.client().await?, key.clone(), owner()?);
        asks.push(tokio::spawn(async move {
            let attempt = client.acquire(&Claim::new(&key, &owner, LONG)).await?;
            Ok::<_, Failure>(matches!(attempt, Attempt::Acquired(_)))
        }));
    }
    let mut winners = 0;
    for ask in asks {
        winners += usize::from(join(ask).await??);
    }
    check!(winners == 1, "{winners} of 16 owners hold the key");
    Ok(())
}

pub(super) async fn holders_never_overlap(bench: &Bench<'_>) -> Outcome {
    let history = Arc::new(History::new());
    let mut workers = Vec::new();
    for worker in 0..4 {
        workers.push(tokio::spawn(worker_of(bench, worker, &history).await?));
    }
    for worker in workers {
        join(worker).await??;
    }
    let violations = history.check();
    check!(violations.is_empty(), "of {} holdings, some contradict: {violations:?}", history.len());
    check!(history.len() > 20, "only {} of 160 asks were granted", history.len());
    Ok(())
}

/// Asks for three keys in turn, and records what it holds.
async fn worker_of(bench: &Bench<'_>, worker: u64, history: &Arc<History>) -> Result<Task, Failure> {
    let (client, clock, history) = (bench.client().await?, bench.clock(), Arc::clone(history));
    let keys = [bench.key("a")?, bench.key("b")?, bench.key("c")?];
    Ok(Box::pin(async move {
        for round in 0..40 {
            let key = &keys[(round + usize::try_from(worker).unwrap_or(0)) % keys.len()];
            let owner = owner()?;
            if let Attempt::Acquired(grant) = client.acquire(&Claim::new(key, &owner, LONG)).await? {
                let from = clock.now();
                tokio::time::sleep(Duration::from_millis(1)).await;
                let holder = worker * 1000 + u64::try_from(round).unwrap_or(0);
                history.record(Record::new(key.clone(), holder, from, clock.now()).fencing(grant.fencing));
                client.check_released(key, &owner).await?;
            } else {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        Ok(())
    }))
}

async fn join<T>(task: tokio::task::JoinHandle<T>) -> Result<T, Failure> {
    task.await.map_err(|error| Failure::new(format!("a task of the case failed: {error}")))
}
