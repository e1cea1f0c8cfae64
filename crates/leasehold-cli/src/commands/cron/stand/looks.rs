//! Looking for ticks that were lost.

use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::schedule::LostTick;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::Fleet;
use crate::cli::LostTicks;
use crate::output;
use crate::signals::Signals;

/// How long a tick waits for that look before it is started without; what the look finds later is told to the next. While the
/// store is so slow the others do not wait at all.
const LOOK_LIMIT: Duration = Duration::from_secs(2);

/// A look for lost ticks, and how long it took.
pub(super) type Look = JoinHandle<(Vec<LostTick>, Duration)>;

impl Fleet<'_> {
    pub(super) async fn look_at_all(&mut self, signals: &mut Signals) {
        for index in 0..self.plans.len() {
            if self.asked.is_none() {
                self.look(index, signals).await;
            }
        }
        self.reap();
    }

    /// Looks for ticks that were lost.
    pub(super) async fn look(&mut self, index: usize, signals: &mut Signals) {
        let mut look = self.looks[index].take().unwrap_or_else(|| self.begin_look(index));
        let limit = sleep(if self.is_slow { Duration::ZERO } else { LOOK_LIMIT });
        tokio::pin!(limit);
        let looked = loop {
            tokio::select! {
                biased;
                looked = &mut look => break Some(looked),
                signal = signals.next() => self.hear(signal),
                () = &mut limit => {
                    self.is_slow = true;
                    break None;
                }
            }
            if self.asked.is_some() {
                break None;
            }
        };
        match looked {
            None => self.looks[index] = Some(look),
            Some(looked) => {
                let (lost, took) = looked.unwrap_or_default();
                self.is_slow = took > LOOK_LIMIT;
                self.learn(index, lost);
            }
        }
    }

    fn begin_look(&self, index: usize) -> Look {
        let (scheduler, name) = (self.scheduler.clone(), self.plans[index].name.clone());
        tokio::spawn(async move {
            let clock = Clock::system();
            let began = clock.now();
            let lost = scheduler.look(&name).await.unwrap_or_default();
            (lost, clock.now().since(began))
        })
    }

    /// Tells of ticks that were lost, and runs them again if that is asked for.
    fn learn(&mut self, index: usize, lost: Vec<LostTick>) {
        let plan = &self.plans[index];
        for lost in &lost {
            output::tell(&format!("warning: \"{}\": {}", plan.name, output::clean(&lost.to_string())));
        }
        let ticks = lost.into_iter().map(|lost| lost.tick);
        match plan.arguments.lost {
            LostTicks::Report => self.lost[index].extend(ticks),
            LostTicks::Run => self.again[index].extend(ticks),
        }
        self.catch_up(index);
    }

    /// Runs what was lost again; what finds the last run still going on is tried at the next tick, or look.
    fn catch_up(&mut self, index: usize) {
        for tick in std::mem::take(&mut self.again[index]) {
            self.start(index, tick, true, Vec::new());
        }
    }
}
