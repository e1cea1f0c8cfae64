//! `bench`: what a lease costs on the store that is configured, from here.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use leasehold::clock::{Clock, Moment};
use leasehold::observe::{Event, Observer};
use leasehold::{Close, LockGuard, LockManager, OwnerToken};
use serde_json::{Value, json};

use crate::cli::Bench;
use crate::config::{self, Settings};
use crate::exit::{self, Failure};
use crate::output;

/// How many cycles there are, and for how long at most, unless it is said.
const DEFAULTS: (usize, Duration) = (1000, Duration::from_secs(10));

/// There are this many times fewer hand-overs than cycles: each waits for the other party first.
const HAND_OVER_SHARE: usize = 10;

/// How long the holder lets the other wait before it releases: enough to stand in line.
const HEAD_START: Duration = Duration::from_millis(20);

/// How often progress is shown.
const PROGRESS: Duration = Duration::from_millis(100);

/// Takes and gives back a key of its own, alone and then in turn with another party.
pub(crate) async fn bench(settings: &Settings, arguments: &Bench) -> Result<u8, Failure> {
    let limit = config::length("--for", arguments.length.as_deref())?.unwrap_or(DEFAULTS.1);
    let count = arguments.count.unwrap_or(DEFAULTS.0);
    let requests = Requests::default();
    let ours = settings.build(settings.open().await?.observer(requests.clone()))?;
    let theirs = settings.open().await?.build().map_err(|error| settings.failure(&error))?;
    let word = OwnerToken::mint().map_err(|error| settings.failure(&error))?.fingerprint();
    let bench = Measure { settings, clock: Clock::system(), key: format!("leasehold:bench:{word}") };
    let measured = bench.all(&ours, &theirs, &requests, count, limit).await;
    theirs.close(Close::Release).await.ok();
    ours.close(Close::Release).await.ok();
    let results = measured?;
    output::print(&if arguments.json || !io::stdout().is_terminal() {
        format!("{}\n", results.as_json(settings))
    } else {
        results.text(settings)
    })?;
    Ok(exit::DONE)
}

/// Counts the calls of the store. One may take several requests to a server, or to several.
#[derive(Clone, Debug, Default)]
struct Requests(Arc<AtomicU64>);

impl Requests {
    /// How many there were, at least this many: another thread may be telling of the last ones.
    async fn of(&self, least: usize) -> u64 {
        for _ in 0..1000 {
            if self.0.load(Ordering::Relaxed) >= least as u64 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.0.load(Ordering::Relaxed)
    }
}

impl Observer for Requests {
    fn observe(&self, event: &Event) {
        if matches!(event, Event::StoreCall(_)) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[derive(Debug)]
struct Measure<'a> {
    settings: &'a Settings,
    clock: Clock,
    key: String,
}

impl Measure<'_> {
    async fn all(
        &self,
        ours: &LockManager,
        theirs: &LockManager,
        requests: &Requests,
        count: usize,
        limit: Duration,
    ) -> Result<Results, Failure> {
        let start = self.clock.now();
        let mut progress = Progress::new(count);
        let (mut acquire, mut release) = (Vec::new(), Vec::new());
        while acquire.len() < count && self.clock.now().since(start) < limit / 2 {
            let sent = self.clock.now();
            let guard = self.take(ours).await?;
            let granted = self.clock.now();
            self.give_back(guard).await?;
            acquire.push(granted.since(sent));
            release.push(self.clock.now().since(granted));
            progress.show("cycles", acquire.len(), self.clock.now());
        }
        let cycles = acquire.len();
        let took = self.clock.now().since(start);
        let asked = requests.of(2 * cycles).await;
        let mut hand_over = Vec::new();
        let rounds = (count / HAND_OVER_SHARE).max(1);
        let mut progress = Progress::new(rounds);
        let mut held = Some(self.take(ours).await?);
        while let Some(guard) = held.take_if(|_| hand_over.len() < rounds) {
            let left = limit.saturating_sub(self.clock.now().since(start));
            if left.is_zero() {
                held = Some(guard);
                break;
            }
            let next = if hand_over.len() % 2 == 0 { theirs } else { ours };
            let release = async {
                tokio::time::sleep(HEAD_START).await;
                let sent = self.clock.now();
                self.give_back(guard).await.map(|()| sent)
            };
            let wait = async { (self.wait(next, left).await, self.clock.now()) };
            let (sent, (granted, at)) = tokio::join!(release, wait);
            let sent = sent?;
            held = granted?;
            if held.is_some() {
                hand_over.push(at.since(sent));
            }
            progress.show("hand-overs", hand_over.len(), self.clock.now());
        }
        if let Some(guard) = held {
            self.give_back(guard).await?;
        }
        progress.end();
        Ok(Results {
            cycles,
            took,
            asked,
            parts: [("acquire", acquire), ("release", release), ("hand-over", hand_over)]
                .map(|(name, all)| (name, Spread::of(all))),
        })
    }

    async fn take(&self, manager: &LockManager) -> Result<LockGuard, Failure> {
        let granted = manager.lock(&self.key).try_acquire().await.map_err(|error| self.settings.failure(&error))?;
        granted.ok_or_else(|| Failure::new(exit::BUSY, format!("somebody else holds \"{}\": try again", self.key)))
    }

    /// `None` = the time that is left was over before.
    async fn wait(&self, manager: &LockManager, left: Duration) -> Result<Option<LockGuard>, Failure> {
        manager.lock(&self.key).acquire_within(left).await.map_err(|error| self.settings.failure(&error))
    }

    async fn give_back(&self, guard: LockGuard) -> Result<(), Failure> {
        guard.release().await.map_err(|error| self.settings.failure(&error))
    }
}

#[derive(Debug)]
struct Results {
    cycles: usize,
    took: Duration,
    asked: u64,
    parts: [(&'static str, Option<Spread>); 3],
}

impl Results {
    /// Whole cycles a second, one after the other.
    #[allow(clippy::cast_precision_loss, reason = "a rate needs no more than a few digits")]
    fn rate(&self) -> f64 {
        (self.cycles as f64 / self.took.as_secs_f64()).round()
    }

    #[allow(clippy::cast_precision_loss, reason = "so does this")]
    fn requests(&self) -> f64 {
        (self.asked as f64 / self.cycles.max(1) as f64 * 100.0).round() / 100.0
    }

    fn text(&self, settings: &Settings) -> String {
        let mut table = Table::new();
        table.load_style(NOTHING).set_header(["WHAT", "COUNT", "P50", "P90", "P99", "MAX"]);
        for (name, spread) in &self.parts {
            if let Some(Spread { count, p50, p90, p99, max }) = *spread {
                let lengths = [p50, p90, p99, max].map(|length| format!("{length:.1?}"));
                let [p50, p90, p99, max] = lengths;
                table.add_row([(*name).to_owned(), count.to_string(), p50, p90, p99, max]);
            }
        }
        format!(
            "store {}\n{}{} cycles/s, one after the other; {} calls of the store per cycle\n",
            settings.place(),
            output::lines(&table),
            self.rate(),
            self.requests()
        )
    }

    fn as_json(&self, settings: &Settings) -> Value {
        let micros = |length: Duration| u64::try_from(length.as_micros()).unwrap_or(u64::MAX);
        let part = |spread: &Option<Spread>| {
            spread.map(|Spread { count, p50, p90, p99, max }| {
                json!({
                    "count": count, "p50_us": micros(p50), "p90_us": micros(p90), "p99_us": micros(p99),
                    "max_us": micros(max),
                })
            })
        };
        let [acquire, release, hand_over] = &self.parts;
        json!({
            "schema": "leasehold.bench/1",
            "store": settings.place(),
            "cycles_per_second": self.rate(),
            "requests_per_cycle": self.requests(),
            "acquire": part(&acquire.1),
            "release": part(&release.1),
            "hand_over": part(&hand_over.1),
        })
    }
}

/// How lengths of time are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Spread {
    count: usize,
    p50: Duration,
    p90: Duration,
    p99: Duration,
    max: Duration,
}

impl Spread {
    /// `None` of nothing.
    fn of(mut all: Vec<Duration>) -> Option<Self> {
        all.sort_unstable();
        let at = |share: usize| all.get((all.len() * share).div_ceil(100).saturating_sub(1)).copied();
        Some(Self { count: all.len(), p50: at(50)?, p90: at(90)?, p99: at(99)?, max: at(100)? })
    }
}

/// A bar for people who wait.
#[derive(Debug)]
struct Progress {
    total: usize,
    is_seen: bool,
    shown: Option<Moment>,
}

impl Progress {
    const WIDTH: usize = 30;

    fn new(total: usize) -> Self {
        Self { total, is_seen: io::stderr().is_terminal(), shown: None }
    }

    fn show(&mut self, what: &str, done: usize, now: Moment) {
        if !self.is_seen || self.shown.is_some_and(|shown| now.since(shown) < PROGRESS) {
            return;
        }
        self.shown = Some(now);
        let full = (done * Self::WIDTH / self.total.max(1)).min(Self::WIDTH);
        let bar = format!("{}{}", "#".repeat(full), ".".repeat(Self::WIDTH - full));
        output::tell_raw(&format!("\r[{bar}] {done}/{} {what} ", self.total));
    }

    fn end(&self) {
        if self.is_seen {
            // Takes the bar away.
            io::stderr().write_all(b"\r\x1b[K").ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_of_what_was_measured() {
        assert_eq!(Spread::of(Vec::new()), None);
        let ms = Duration::from_millis;
        let spread = Spread::of((1..=200).rev().map(ms).collect()).unwrap();
        assert_eq!((spread.p50, spread.p90, spread.p99, spread.max), (ms(100), ms(180), ms(198), ms(200)));
    }
}
