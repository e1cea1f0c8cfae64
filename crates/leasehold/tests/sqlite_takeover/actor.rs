//! A process that locks.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use leasehold::observe::{Event, Observer};
use leasehold::store::Tie;
use leasehold::store::sqlite::SqliteStore;
use leasehold::{LockGuard, LockManager, Operation, Renew};
use rustix::process::{Signal, geteuid, getpid, kill_process};
use tempfile::TempDir;

/// Longer than any test, so that nothing comes free by it.
const LONG: Duration = Duration::from_secs(600);
/// Five times and more of what a take-over needs on a busy machine.
const SOON: Duration = Duration::from_secs(30);

const FILE: &str = "LEASEHOLD_TAKEOVER_FILE";
/// The group of another user.
const NOBODY: u32 = 65_534;

/// Where a test takes place: a directory that another user may use, too.
pub(crate) struct Scene(TempDir);

impl Scene {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        if geteuid().is_root() {
            std::os::unix::fs::chown(directory.path(), None, Some(NOBODY)).unwrap();
        }
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o2775)).unwrap();
        // The build directory may be closed to others.
        let scene = Self(directory);
        // By another process: a file that this one is writing could not be executed while a fork has it open, too.
        let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(scene.path("program")).status();
        assert!(copied.unwrap().success());
        scene
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Has the only lease in the file altered.
    pub(crate) fn alter(&self, sql: &str) {
        let db = rusqlite::Connection::open(self.path("leases.db")).unwrap();
        db.busy_timeout(Duration::from_secs(5)).unwrap();
        assert_eq!(db.execute(&format!("UPDATE leases SET {sql}"), []).unwrap(), 1);
    }

    pub(crate) fn actor(&self) -> Actor {
        self.actor_within(&[])
    }

    /// An actor that is started by a command, which executes what follows its arguments.
    pub(crate) fn actor_within(&self, command: &[&str]) -> Actor {
        let program = self.path("program");
        let words = command.iter().map(OsStr::new).chain([program.as_os_str()]).collect::<Vec<_>>();
        let mut process = Command::new(words[0])
            .args(&words[1..])
            .args(["--exact", "actor::act", "--ignored", "--nocapture"])
            .env(FILE, self.path("leases.db"))
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let orders = process.stdin.take().unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut actor = Actor { process, orders, answers };
        assert_eq!(actor.answer(), "ready");
        actor
    }
}

/// The handle on such a process.
pub(crate) struct Actor {
    process: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Actor {
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Has an order obeyed; see [`obey`].
    pub(crate) fn tell(&mut self, order: &str) -> String {
        writeln!(self.orders, "{order}").unwrap();
        self.answer()
    }

    /// Has it wait for the lease, and comes back when it does.
    pub(crate) fn have_wait(&mut self) {
        writeln!(self.orders, "wait").unwrap();
        self.line("asks");
    }

    /// Has it turn into another program, and comes back when it has.
    pub(crate) fn become_program(&mut self, program: &Path) {
        writeln!(self.orders, "become {}", program.display()).unwrap();
        assert!(self.answers.next().is_none(), "it went on");
    }

    pub(crate) fn answer(&mut self) -> String {
        self.line("says: ")
    }

    fn line(&mut self, start: &str) -> String {
        let said = self.answers.by_ref().find_map(|line| line.unwrap().strip_prefix(start).map(str::to_owned));
        said.expect("the actor ended")
    }

    /// Has it kill itself, also where its number is not known here; comes back when whoever started it has seen that.
    pub(crate) fn die(&mut self) {
        writeln!(self.orders, "die").unwrap();
        self.process.wait().unwrap();
    }

    /// Leaves a zombie.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
    }

    /// Leaves nothing.
    pub(crate) fn bury(&mut self) {
        self.kill();
        self.process.wait().unwrap();
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// The other end of the above.
#[tokio::test]
#[ignore = "started by other tests"]
async fn act() {
    let Some(path) = std::env::var_os(FILE) else {
        return;
    };
    let store = SqliteStore::open(Path::new(&path)).await.unwrap();
    let locks = LockManager::builder(store).observer(Watcher).build().unwrap();
    println!("says: ready");
    let mut guard = None;
    for order in std::io::stdin().lines() {
        let order = order.unwrap();
        let (verb, argument) = order.split_once(' ').unwrap_or((&order, ""));
        println!("says: {}", obey(&locks, &mut guard, verb, argument).await);
    }
}

/// `take` asks once, `wait` waits, `resume` needs a token; `take` may be given a ttl in milliseconds instead of
/// [`LONG`], and `take-for` a group that the lease is for.
async fn obey(locks: &LockManager, guard: &mut Option<LockGuard>, verb: &str, argument: &str) -> String {
    let ttl = argument.parse().map_or(LONG, Duration::from_millis);
    let lock = locks.lock("k").renew(Renew::Off).ttl(ttl);
    let held = || guard.as_ref().unwrap();
    let done = match verb {
        "take" | "wait" => {
            let wait = if verb == "wait" { SOON } else { Duration::ZERO };
            *guard = lock.acquire_within(wait).await.unwrap();
            if guard.is_some() { "taken" } else { "held" }
        }
        "take-for" => {
            *guard = lock.ttl(LONG).tie(Tie::Group(argument.parse().unwrap())).try_acquire().await.unwrap();
            if guard.is_some() { "taken" } else { "held" }
        }
        "resume" => {
            *guard = Some(lock.resume(&argument.parse().unwrap()).await.unwrap());
            "taken"
        }
        "look" => match lock.holder().await.unwrap() {
            Some(_) => "held",
            None => "free",
        },
        "probe" => match locks.probe().await.unwrap().findings.iter().any(|finding| finding.what.contains("/proc")) {
            true => "blind",
            false => "sees",
        },
        "hand-over" => return held().hand_over().await.unwrap().expose(),
        "keep" => {
            held().keep().await.unwrap();
            "kept"
        }
        "tie" => {
            held().tie_to(Tie::Group(argument.parse().unwrap())).await.unwrap();
            "tied"
        }
        "give" => {
            guard.take().unwrap().release().await.unwrap();
            "given"
        }
        "die" => {
            kill_process(getpid(), Signal::KILL).unwrap();
            // The first process of a pid namespace has to end by itself.
            std::process::exit(9)
        }
        "become" => return Command::new(argument).stdout(Stdio::null()).exec().to_string(),
        _ => panic!("{verb}"),
    };
    done.to_owned()
}

/// Says when the store has answered.
#[derive(Debug)]
struct Watcher;

impl Observer for Watcher {
    fn observe(&self, event: &Event) {
        if let Event::StoreCall(call) = event
            && call.operation == Operation::Acquire
        {
            println!("asks");
        }
    }
}
