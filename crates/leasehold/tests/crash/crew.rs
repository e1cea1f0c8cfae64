//! The workers, and what is done to them.

use std::env;
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fastrand::Rng;
use leasehold::clock::{Clock, Moment};
use rustix::process::{Pid, Signal, kill_process};

use super::records::{Entry, What, read};
use super::worker::{LONGEST_TTL, Order, journal};

/// How long nothing is done to anybody, at most.
const LULL: Duration = Duration::from_millis(200);

/// How many are stopped at a time, at most: the others have to get on.
const STOPPED: usize = 3;

/// No cycle at all for this long means that the workers do not get on. Five times what a few stops in a row take.
const STUCK: Duration = Duration::from_secs(60);

/// One run of the test.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) store: PathBuf,
    pub(crate) keys: u64,
    pub(crate) workers: usize,
    /// Of all workers together.
    pub(crate) cycles: u64,
    pub(crate) seed: u64,
}

/// All that was done.
#[derive(Debug, Default)]
pub(crate) struct Deeds {
    pub(crate) lives: Vec<Life>,
}

/// What one worker wrote, and what was done to it.
#[derive(Debug, Default)]
pub(crate) struct Life {
    pub(crate) number: u64,
    pub(crate) entries: Vec<Entry>,
    pub(crate) stops: Vec<Stop>,
    /// When it still lived and had just been sentenced; `None` if it ended by itself.
    pub(crate) killed: Option<Moment>,
}

/// A time during which a worker stood still.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stop {
    pub(crate) from: Moment,
    pub(crate) until: Moment,
    /// Whether it kept all others from writing meanwhile.
    pub(crate) in_a_write: bool,
}

impl Deeds {
    /// What was done to whom: one line for each worker, to be read beside what it wrote.
    pub(crate) fn log(&self) -> String {
        let line = |life: &Life| format!("worker-{}: killed {:?}, {:?}\n", life.number, life.killed, life.stops);
        self.lives.iter().map(line).collect()
    }
}

impl fmt::Display for Deeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kills = self.lives.iter().filter(|life| life.killed.is_some()).count();
        let in_a_write = |life: &Life| life.stops.iter().any(|stop| stop.in_a_write && Some(stop.until) > life.killed);
        let while_writing = self.lives.iter().filter(|life| life.killed.is_some() && in_a_write(life)).count();
        let stops = self.lives.iter().flat_map(|life| &life.stops);
        let in_a_write = stops.clone().filter(|stop| stop.in_a_write).count();
        write!(f, "{kills} kills (at least {while_writing} inside a write), ")?;
        write!(f, "{} stops ({in_a_write} inside a write)", stops.count())
    }
}

#[derive(Debug)]
pub(crate) struct Crew<'a> {
    plan: &'a Plan,
    rng: Rng,
    hands: Vec<Hand>,
    spawned: u64,
    deeds: Deeds,
}

/// One worker at work.
#[derive(Debug)]
struct Hand {
    process: Child,
    number: u64,
    /// How many cycles it and its successors have to do.
    cycles: u64,
    life: Life,
    stopped: Option<Stop>,
}

impl<'a> Crew<'a> {
    pub(crate) fn new(plan: &'a Plan) -> Self {
        let rng = Rng::with_seed(plan.seed);
        Self { plan, rng, hands: Vec::new(), spawned: 0, deeds: Deeds::default() }
    }

    /// Has the cycles done, with kills and stops in between.
    pub(crate) fn work(mut self) -> Deeds {
        let cycles = self.plan.cycles.div_ceil(self.plan.workers as u64);
        for _ in 0..self.plan.workers {
            self.spawn(cycles);
        }
        let mut due = now();
        let mut progress = (0, now());
        while !self.hands.is_empty() {
            super::super::pause();
            self.reap();
            self.wake();
            if now() >= due && !self.hands.is_empty() {
                due = now() + LULL.mul_f64(self.rng.f64());
                self.strike();
            }
            let written = self.written();
            if written != progress.0 {
                progress = (written, now());
            }
            assert!(now().since(progress.1) < STUCK, "nobody gets on");
        }
        self.deeds
    }

    fn spawn(&mut self, cycles: u64) {
        let number = self.spawned;
        self.spawned += 1;
        let Plan { store, keys, seed, .. } = self.plan;
        let order = Order { parent: std::process::id().into(), number, keys: *keys, cycles, seed: *seed };
        let output = fs::File::create(store.with_file_name(format!("output-{number}"))).unwrap();
        let process = Command::new(env::current_exe().unwrap())
            .args(["--exact", "worker", "--ignored", "--nocapture"])
            .envs(order.variables(store))
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        self.hands.push(Hand { process, number, cycles, life: Life { number, ..Life::default() }, stopped: None });
    }

    /// Takes note of those who have ended by themselves.
    fn reap(&mut self) {
        for index in (0..self.hands.len()).rev() {
            if self.hands[index].process.try_wait().unwrap().is_some() {
                self.bury(index);
            }
        }
    }

    /// Lets those go on who were stopped for long enough.
    fn wake(&mut self) {
        for hand in &mut self.hands {
            if hand.stopped.is_some_and(|stop| now() >= stop.until) {
                hand.go_on();
            }
        }
    }

    /// Kills or stops somebody.
    fn strike(&mut self) {
        let index = self.rng.usize(0..self.hands.len());
        let are_stopped = self.hands.iter().filter(|hand| hand.stopped.is_some()).count();
        let hand = &mut self.hands[index];
        match self.rng.u8(0..10) {
            0..2 => self.kill(index),
            // After a look at where that meets it.
            2..4 => {
                hand.stop(&self.plan.store, Duration::ZERO);
                self.kill(index);
            }
            _ if hand.stopped.is_none() && are_stopped < STOPPED => {
                hand.stop(&self.plan.store, LONGEST_TTL.mul_f64(1.1 + self.rng.f64()));
            }
            _ => {}
        }
    }

    fn kill(&mut self, index: usize) {
        let hand = &mut self.hands[index];
        // Alive at this moment, unless it has just ended by itself.
        let alive = now();
        hand.signal(Signal::KILL);
        if hand.process.wait().unwrap().signal().is_some() {
            hand.life.killed = Some(alive);
        }
        self.bury(index);
    }

    /// Keeps what a worker did, and replaces it if that was not all it had to.
    fn bury(&mut self, index: usize) {
        let mut hand = self.hands.swap_remove(index);
        let status = hand.process.wait().unwrap();
        assert!(hand.life.killed.is_some() || status.success(), "worker {}: {status}", hand.number);
        let mut life = hand.life;
        life.stops.extend(hand.stopped.take().map(|stop| Stop { until: now(), ..stop }));
        life.entries = read(&journal(&self.plan.store, hand.number));
        let done = life.entries.iter().filter(|entry| entry.what == What::Held).count() as u64;
        match hand.cycles.checked_sub(done) {
            None | Some(0) => {}
            Some(left) => self.spawn(left),
        }
        self.deeds.lives.push(life);
    }

    /// How much is written in all.
    fn written(&self) -> u64 {
        let length = |number| fs::metadata(journal(&self.plan.store, number)).map_or(0, |found| found.len());
        self.hands.iter().map(|hand| length(hand.number)).sum::<u64>() + self.spawned
    }
}

impl Hand {
    fn signal(&self, signal: Signal) {
        // Not reaped yet, so the number is still its own.
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    fn stop(&mut self, store: &Path, pause: Duration) {
        let from = now();
        self.signal(Signal::STOP);
        if self.stopped.is_none() && self.stands_still() {
            let in_a_write = keeps_others_from_writing(store, self.process.id());
            self.stopped = Some(Stop { from, until: from + pause, in_a_write });
        }
    }

    fn go_on(&mut self) {
        let Some(stop) = self.stopped.take() else { return };
        self.signal(Signal::CONT);
        self.life.stops.push(Stop { until: now(), ..stop });
    }

    /// Waits until all its threads do; `false` if it has ended.
    fn stands_still(&self) -> bool {
        let tasks = format!("/proc/{}/task", self.process.id());
        loop {
            let tasks = fs::read_dir(&tasks).map(|tasks| tasks.filter_map(Result::ok).collect()).unwrap_or_default();
            let states: Vec<_> = Vec::into_iter(tasks).filter_map(|task: fs::DirEntry| state(&task.path())).collect();
            if states.iter().any(|state| matches!(state, 'Z' | 'X')) || states.is_empty() {
                return false;
            }
            if states.iter().all(|state| *state == 'T') {
                return true;
            }
            super::super::pause();
        }
    }
}

fn state(task: &Path) -> Option<char> {
    let stat = fs::read_to_string(task.join("stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Whether this process, which stands still, has a lock without which nobody can write: that of writers or the one for
/// the repair of the log, in the shared memory, or any on the file itself, alone.
fn keeps_others_from_writing(store: &Path, process: u32) -> bool {
    const WRITERS: u64 = 120;
    const REPAIR: u64 = 122;
    let inode = |suffix| fs::metadata(format!("{}{suffix}", store.display())).map(|found| found.ino()).ok();
    let (file, shared_memory) = (inode(""), inode("-shm"));
    let is_one = |line: &str| {
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        let [_, "POSIX", _, "WRITE", holder, place, first, last] = words[..] else { return false };
        let on = place.rsplit(':').next().and_then(|inode| inode.parse().ok());
        let (first, last) = (first.parse().unwrap_or(0), last.parse().unwrap_or(u64::MAX));
        let covers = |byte| (first..=last).contains(&byte);
        holder.parse() == Ok(process) && (on == file || on == shared_memory && (covers(WRITERS) || covers(REPAIR)))
    };
    // While other processes change theirs, a look may miss a line.
    (0..5).any(|_| fs::read_to_string("/proc/locks").unwrap_or_default().lines().any(is_one))
}

fn now() -> Moment {
    Clock::system().now()
}
