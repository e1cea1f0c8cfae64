//! Only the holder's link is cut, while the next one in line reaches the store: no two jobs of a key ever live at a time.
//!
//! `LEASEHOLD_TEST_ROUNDS` is how many cuts there are on each store.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use leasehold::testkit::Proxy;
use rustix::time::{ClockId, clock_gettime};

use crate::site::Site;
use crate::support::{Running, wait_until};

on_servers! { no_two_jobs_of_a_key_live_at_a_time }

/// Cuts on each store, if nothing else was said.
const ROUNDS: usize = 10;

/// Rounds at a time.
const WIDTH: usize = 3;

/// Where a job notes that it lives.
const BEAT: &str = "LEASEHOLD_TEST_BEAT";

/// A job, as a shell starts it: by itself, deaf to TERM, as a grandchild, and both.
const JOBS: [&str; 4] = ["exec JOB", "trap '' TERM; exec JOB", "JOB & wait", "trap '' TERM; JOB & wait"];

/// Not a test of its own: the job, which notes the time as often as it can.
#[test]
#[ignore = "is started by others"]
fn beat() {
    let Some(path) = std::env::var_os(BEAT) else { return };
    let file = File::create(path).unwrap();
    // It ends with the test if nothing else ends it.
    for _ in 0..200_000 {
        let now = clock_gettime(ClockId::Realtime);
        let now = Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap());
        file.write_all_at(&now.as_nanos().to_le_bytes(), 0).unwrap();
        thread::sleep(Duration::from_micros(200));
    }
}

fn no_two_jobs_of_a_key_live_at_a_time(site: &Site) {
    let rounds = std::env::var("LEASEHOLD_TEST_ROUNDS").map_or(ROUNDS, |rounds| rounds.parse().unwrap());
    let (begun, passed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..WIDTH.min(rounds) {
            scope.spawn(|| {
                loop {
                    let number = begun.fetch_add(1, Ordering::Relaxed);
                    if number >= rounds {
                        return;
                    }
                    passed.fetch_add(Round::new(site, number).play(), Ordering::Relaxed);
                }
            });
        }
    });
    // On a machine that is too busy a lease may be lost before its link is cut.
    let passed = passed.into_inner();
    assert!(passed >= rounds * JOBS.len() / 4, "of {rounds} rounds only {passed} keys were passed on");
}

/// Some keys whose holders share a link.
struct Round<'a> {
    site: &'a Site,
    number: usize,
    proxy: Proxy,
}

impl<'a> Round<'a> {
    fn new(site: &'a Site, number: usize) -> Self {
        Self { site, number, proxy: Proxy::start(site.server().address()).unwrap() }
    }

    /// Answers with how many keys went from one who was cut off to the next.
    fn play(&self) -> usize {
        let mut firsts: Vec<_> = (0..JOBS.len()).map(|key| self.first(key)).collect();
        for (key, first) in firsts.iter_mut().enumerate() {
            wait_until("the first job lives, or was not granted the key", || {
                self.last_beat(key).is_some() || first.has_ended()
            });
        }
        let seconds: Vec<_> = (0..JOBS.len()).map(|key| self.second(key)).collect();
        // In line, at any moment between two renewals.
        thread::sleep(Duration::from_millis(fastrand::u64(100..1600)));
        self.cut();
        let ended: Vec<_> = firsts.into_iter().map(Running::finish).collect();
        for first in &ended {
            assert!([69, 79].contains(&first.code()), "{first:?}");
        }
        let mut passed = 0;
        for (key, second) in seconds.into_iter().enumerate() {
            let second = second.finish().expect(0);
            let start: u128 = second.stdout.trim().parse().unwrap();
            if let Some(last) = self.last_beat(key) {
                let longer = Duration::from_nanos(u64::try_from(last.saturating_sub(start)).unwrap());
                let said = &ended[key].stderr;
                assert!(last < start, "round {}, key {key}: the first lived {longer:?} longer: {said}", self.number);
                passed += 1;
            }
        }
        passed
    }

    fn cut(&self) {
        match self.number % 5 {
            0 => self.proxy.hold(),
            1 => self.proxy.requests().hold(),
            2 => self.proxy.replies().hold(),
            3 => {
                self.proxy.refuse();
                self.proxy.reset();
            }
            _ => {
                self.proxy.refuse();
                self.proxy.hang_up();
            }
        }
    }

    fn name(&self, key: usize) -> String {
        format!("r{}k{key}", self.number)
    }

    fn first(&self, key: usize) -> Running {
        let test = std::env::current_exe().unwrap();
        let job = format!("'{}' --exact links::beat --ignored -q >/dev/null", test.display());
        let (name, url) = (self.name(key), self.site.url_at(self.proxy.address()));
        let mut command =
            self.site.command(["run", &name, "-s", &url, "--ttl", "4s", "-c", &JOBS[key].replace("JOB", &job)]);
        command.env(BEAT, self.site.path(&format!("{name}.beat")));
        self.site.start(command)
    }

    fn second(&self, key: usize) -> Running {
        self.site.start(self.site.command(["run", &self.name(key), "-w", "60", "--", "date", "+%s%N"]))
    }

    fn last_beat(&self, key: usize) -> Option<u128> {
        let beat = std::fs::read(self.site.path(&format!("{}.beat", self.name(key)))).ok()?;
        Some(u128::from_le_bytes(beat.try_into().ok()?))
    }
}
