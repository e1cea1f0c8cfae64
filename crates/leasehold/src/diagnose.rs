//! Whether a live store does what leases need: asked of the store itself, on a key of its own.

use std::time::{Duration, SystemTime};

use crate::clock::wall_now;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::LockGuard;
use crate::manager::LockManager;
use crate::options::{Close, Renew};
use crate::store::{Fencing, Finding, Level, Scope, TimeAuthority, Waiting};
use crate::types::OwnerToken;

/// How many round trips are measured, and for how long at most.
const ROUND_TRIPS: (usize, Duration) = (100, Duration::from_secs(2));

/// The longest ttl on the key of its own, which is how long a diagnosis that is killed can leave it held.
const SCRATCH_TTL: Duration = Duration::from_secs(10);

/// How long the holder lets the other manager wait before it releases: enough to have asked once.
const HEAD_START: Duration = Duration::from_millis(50);

/// How late a hand-over may be where waiters are woken; a poll takes up to a second.
const LATE: Duration = Duration::from_millis(500);

/// How far this machine's clock may be from the store's before somebody should look at it.
const CLOCKS_APART: Duration = Duration::from_secs(2);

/// What was found, see [`LockManager::diagnose`].
#[non_exhaustive]
#[derive(Clone, Debug, Default)]
pub struct Diagnosis {
    /// What was looked at, in the order in which it was, and what was found.
    pub checks: Vec<Check>,
    /// How long the store takes to answer; `None` if it does not.
    pub round_trips: Option<RoundTrips>,
    /// The first error that the store answered with. What follows from it is not checked.
    pub error: Option<Error>,
}

/// One thing that was looked at.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct Check {
    /// A word for it.
    pub name: &'static str,
    /// What was found.
    pub finding: Finding,
}

/// How long the store takes to answer, on the path that leases use.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundTrips {
    /// How many were measured.
    pub count: usize,
    /// Half of them took no longer.
    pub p50: Duration,
    /// All but one in a hundred took no longer.
    pub p99: Duration,
}

impl RoundTrips {
    fn of(mut all: Vec<Duration>) -> Option<Self> {
        all.sort_unstable();
        let at = |share: usize| all.get((all.len() * share).div_ceil(100).saturating_sub(1)).copied();
        Some(Self { count: all.len(), p50: at(50)?, p99: at(99)? })
    }
}

impl Diagnosis {
    /// The level of the worst finding.
    pub fn worst(&self) -> Level {
        self.checks.iter().map(|check| check.finding.level).max().unwrap_or(Level::Ok)
    }

    /// Adds something that was looked at elsewhere.
    pub fn add(&mut self, name: &'static str, finding: Finding) {
        self.checks.push(Check { name, finding });
    }

    fn ok(&mut self, name: &'static str, what: impl Into<String>) {
        self.add(name, Finding::new(Level::Ok, what, ""));
    }

    fn fail(&mut self, name: &'static str, error: Error) {
        let fix = match error.kind() {
            ErrorKind::Unavailable | ErrorKind::Indeterminate => "see that the store runs and can be reached from here",
            ErrorKind::Rejected => "give this user the rights that the message names",
            _ => "see what the message says",
        };
        self.add(name, Finding::new(Level::Fail, error.to_string(), fix));
        self.error.get_or_insert(error);
    }
}

impl LockManager {
    /// Asks the live store whether it does what leases need: reachability and what it knows of itself, round trips against
    /// the ttl, its clock against this machine's, and the whole life of a lease on a key of its own, with a second
    /// manager on the same store as the other party. For services at start-up, and for people.
    ///
    /// It takes some hundred round trips, but measures for two seconds at most; each is bounded by the operation limit. The
    /// key is named `leasehold:doctor:` and a random word.
    ///
    /// ```
    /// # use leasehold::{LockManager, store::{Level, memory::MemoryStore}};
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// let locks = LockManager::new(MemoryStore::new());
    /// let diagnosis = locks.diagnose().await;
    /// assert!(diagnosis.worst() < Level::Fail);
    /// # });
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// None: what does not work is a finding of [`Level::Fail`].
    ///
    /// # Cancel safety
    ///
    /// What was held is given back in the background if the future is dropped.
    pub async fn diagnose(&self) -> Diagnosis {
        let second = Self::builder(self.engine().shared().clone()).clock(self.engine().clock.clone());
        let second = second.namespace(self.namespace()).build();
        match second {
            Ok(second) => {
                let diagnosis = self.diagnose_with(&second).await;
                second.close(Close::Release).await.ok();
                diagnosis
            }
            Err(error) => {
                let mut diagnosis = Diagnosis::default();
                diagnosis.fail("second", error);
                diagnosis
            }
        }
    }

    /// As [`diagnose`](Self::diagnose), with the other party given: one that has a connection of its own to the same store
    /// and the same namespace tells more.
    ///
    /// # Errors
    ///
    /// None.
    ///
    /// # Cancel safety
    ///
    /// As [`diagnose`](Self::diagnose).
    pub async fn diagnose_with(&self, second: &Self) -> Diagnosis {
        let mut diagnosis = Diagnosis::default();
        if let Err(error) = self.look_at_store(&mut diagnosis).await {
            diagnosis.fail("reach", error);
            return diagnosis;
        }
        self.look_at_promises(&mut diagnosis);
        if let Err((step, error)) = self.look_at_cycle(second, &mut diagnosis).await {
            diagnosis.fail(step, error);
        }
        diagnosis
    }

    async fn look_at_store(&self, diagnosis: &mut Diagnosis) -> Result<()> {
        let clock = &self.engine().clock;
        let before = wall_now();
        let sent = clock.now();
        let probe = self.probe().await?;
        let first = clock.now().since(sent);
        diagnosis.ok("reach", format!("the {} store answers", self.store_name()));
        for finding in probe.findings {
            diagnosis.add("store", finding);
        }
        if let Some(theirs) = probe.server_time {
            diagnosis.add("clock", clocks(before, first, theirs, self.capabilities().time));
        }
        let mut all = vec![first];
        while all.len() < ROUND_TRIPS.0 && clock.now().since(sent) < ROUND_TRIPS.1 {
            all.push(self.ping().await?);
        }
        diagnosis.round_trips = RoundTrips::of(all);
        if let Some(round_trips) = diagnosis.round_trips {
            diagnosis.add("round trip", self.judge(round_trips));
        }
        Ok(())
    }

    /// A renewal has to be answered within the operation limit, and two of them before the lease ends.
    fn judge(&self, RoundTrips { count, p50, p99 }: RoundTrips) -> Finding {
        let (ttl, limit) = (self.ttl(), self.engine().limit(self.ttl()));
        let what = format!("{count} round trips: p50 {p50:.1?}, p99 {p99:.1?}; a ttl of {ttl:?} allows {limit:?}");
        let fix = "a longer ttl, or a store that is nearer or less busy";
        match p99 {
            p99 if p99 >= limit => Finding::new(Level::Fail, what, fix),
            p99 if p99 >= limit / 4 => Finding::new(Level::Warn, what, fix),
            _ => Finding::new(Level::Ok, what, ""),
        }
    }

    fn look_at_promises(&self, diagnosis: &mut Diagnosis) {
        let capabilities = self.capabilities();
        let scope = capabilities.scope;
        let what = format!("exclusion reaches as far as: {scope}");
        diagnosis.add(
            "scope",
            match scope {
                Scope::None => Finding::new(Level::Fail, what, "everybody is granted every key: name another store"),
                Scope::Process => Finding::new(Level::Warn, what, "name a store that processes share"),
                _ => Finding::new(Level::Ok, what, ""),
            },
        );
        diagnosis.add(
            "fencing",
            match capabilities.fencing {
                Fencing::Monotonic => Finding::new(Level::Ok, "fencing tokens grow, also over restarts", ""),
                Fencing::BestEffort => Finding::new(
                    Level::Warn,
                    "fencing tokens grow unless the store loses data",
                    "where a resource relies on them: a store that is durable",
                ),
                Fencing::None => Finding::new(
                    Level::Warn,
                    "there are no fencing tokens: a holder that wakes up too late cannot be told",
                    "where that matters: another store",
                ),
            },
        );
    }

    /// The whole life of a lease; `Err` with the step at which the store gave up.
    async fn look_at_cycle(&self, second: &Self, diagnosis: &mut Diagnosis) -> Steps {
        let clock = &self.engine().clock;
        let word = OwnerToken::mint().map_err(|error| ("acquire", error))?.fingerprint();
        let name = format!("leasehold:doctor:{word}");
        let ttl = self.ttl().min(SCRATCH_TTL).max(self.capabilities().min_ttl);
        let ours = self.lock(&name).ttl(ttl).renew(Renew::Off).reason("doctor");
        let theirs = second.lock(&name).ttl(ttl).renew(Renew::Off).reason("doctor");
        let Some(guard) = ours.try_acquire().await.map_err(|error| ("acquire", error))? else {
            let what = "a key that nobody holds is not granted";
            diagnosis.add("acquire", Finding::new(Level::Fail, what, "report this: it should not be possible"));
            return Ok(());
        };
        diagnosis.ok("acquire", "a free key is granted");
        if let Some(other) = theirs.try_acquire().await.map_err(|error| ("exclude", error))? {
            let what = "a held key is granted to somebody else as well: this store does not exclude";
            diagnosis.add("exclude", Finding::new(Level::Fail, what, "do not use it for locks"));
            other.release().await.map_err(|error| ("release", error))?;
            return guard.release().await.map_err(|error| ("release", error));
        }
        diagnosis.ok("exclude", "a held key is refused to others");
        guard.extend(ttl).await.map_err(|error| ("extend", error))?;
        diagnosis.ok("extend", "a lease can be extended");
        let first = guard.fencing_token();
        let release = async {
            tokio::time::sleep(HEAD_START).await;
            let sent = clock.now();
            guard.release().await.map(|()| sent)
        };
        let wait = async { (theirs.acquire_within(ttl).await, clock.now()) };
        let (released, (granted, at)) = tokio::join!(release, wait);
        let released = released.map_err(|error| ("release", error))?;
        diagnosis.ok("release", "a lease can be given back");
        let Some(other) = granted.map_err(|error| ("hand-over", error))? else {
            let what = format!("somebody who waits for a key was not granted it within {ttl:?} after its release");
            diagnosis.add("hand-over", Finding::new(Level::Fail, what, "report this: it should not be possible"));
            return Ok(());
        };
        diagnosis.add("hand-over", self.judge_hand_over(at.since(released)));
        if self.capabilities().fencing != Fencing::None && other.fencing_token() <= first {
            let what = "the next holder was given no higher fencing token";
            diagnosis.add("fencing", Finding::new(Level::Fail, what, "do not rely on fencing tokens of this store"));
        }
        end(other).await
    }

    fn judge_hand_over(&self, took: Duration) -> Finding {
        let what = format!("the next in line is granted a key {took:.1?} after its release");
        match self.capabilities().waiting {
            Waiting::Hint | Waiting::Place if took > LATE => {
                let fix = "wake-ups are late or lost, and waiters poll instead: see that notifications are allowed";
                Finding::new(Level::Warn, what, fix)
            }
            _ => Finding::new(Level::Ok, what, ""),
        }
    }
}

/// What a part of the cycle comes to: an error with the step at which it happened.
type Steps = std::result::Result<(), (&'static str, Error)>;

async fn end(guard: LockGuard) -> Steps {
    guard.release().await.map_err(|error| ("release", error))
}

/// The store's clock against this machine's, which was read half a round trip before the store's on average.
fn clocks(before: SystemTime, round_trip: Duration, theirs: SystemTime, time: TimeAuthority) -> Finding {
    let ours = before + round_trip / 2;
    let (apart, side) = match theirs.duration_since(ours) {
        Ok(ahead) => (ahead, "ahead of"),
        Err(error) => (error.duration(), "behind"),
    };
    let what = format!("the store's clock is {apart:.1?} {side} this machine's");
    match apart.saturating_sub(round_trip) {
        apart if apart < CLOCKS_APART => Finding::new(Level::Ok, what, ""),
        _ if time == TimeAuthority::Client => {
            Finding::new(Level::Fail, what, "leases end by the clients' clocks here: synchronise them (NTP)")
        }
        _ => Finding::new(Level::Warn, what, "leases do not mind, schedules and logs do: synchronise the clocks (NTP)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_what_was_measured() {
        let ms = Duration::from_millis;
        assert_eq!(RoundTrips::of(Vec::new()), None);
        let one = RoundTrips::of(vec![ms(3)]).unwrap();
        assert_eq!((one.count, one.p50, one.p99), (1, ms(3), ms(3)));
        let hundred = RoundTrips::of((1..=100).rev().map(ms).collect()).unwrap();
        assert_eq!((hundred.count, hundred.p50, hundred.p99), (100, ms(50), ms(99)));
    }

    #[test]
    fn clocks_apart_matter_by_whose_they_are() {
        let (now, second) = (SystemTime::UNIX_EPOCH + Duration::from_secs(1000), Duration::from_secs(1));
        let level = |theirs, time| clocks(now, second / 10, theirs, time).level;
        assert_eq!(level(now + second, TimeAuthority::Client), Level::Ok);
        for theirs in [now + second * 5, now - second * 5] {
            assert_eq!(level(theirs, TimeAuthority::Store), Level::Warn);
            assert_eq!(level(theirs, TimeAuthority::Client), Level::Fail);
        }
        assert!(clocks(now, second / 10, now - second * 5, TimeAuthority::Store).what.contains("behind"));
    }
}
