//! Other processes that use the same file.

use std::collections::HashMap;
use std::io::{Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use super::*;

/// A process with a store of its own, which does what it is told and says what came of it.
pub(super) struct Actor {
    process: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Actor {
    /// Starts it and has it open the file.
    pub(super) fn start(path: &Path) -> Self {
        Self::start_as(Command::new(env::current_exe().unwrap()), path)
    }

    /// The same by a command that executes this program with the arguments that are added.
    pub(super) fn start_as(command: Command, path: &Path) -> Self {
        Self::try_start_as(command, path).expect("the process ended")
    }

    pub(super) fn try_start_as(mut command: Command, path: &Path) -> Option<Self> {
        let mut process = command
            .args(["--exact", "store::sqlite::tests::actors::actor", "--ignored", "--nocapture"])
            .env("LEASEHOLD_ACTOR_FILE", path)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let orders = process.stdin.take().unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut actor = Self { process, orders, answers };
        assert_eq!(actor.try_answer()?, "opened");
        Some(actor)
    }

    /// `take`, `extend` or `give` with the name of a key.
    pub(super) fn tell(&mut self, order: &str) -> String {
        self.order(order);
        self.answer()
    }

    pub(super) fn order(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
    }

    pub(super) fn answer(&mut self) -> String {
        self.try_answer().expect("the process ended")
    }

    fn try_answer(&mut self) -> Option<String> {
        self.answers.by_ref().find_map(|line| line.unwrap().strip_prefix("says: ").map(str::to_owned))
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
async fn actor() {
    let Some(path) = env::var_os("LEASEHOLD_ACTOR_FILE") else {
        return;
    };
    let store = match SqliteStore::open(path).await {
        Ok(store) => store,
        Err(error) => return println!("says: {error}"),
    };
    println!("says: opened");
    let mut owners = HashMap::new();
    for order in std::io::stdin().lines() {
        let order = order.unwrap();
        let (verb, name) = order.split_once(' ').unwrap();
        let owner = owners.entry(name.to_owned()).or_insert_with(owner).clone();
        let key = key(name);
        let claim = Claim::new(&key, &owner, TTL).tie(Tie::Process);
        let said = match verb {
            "take" => store.acquire(&claim).await.map(|attempt| match attempt {
                Attempt::Acquired(_) => "taken",
                Attempt::Contended(_) => "held",
            }),
            "extend" => store.extend(&[claim]).await.map(|mut answers| match answers.remove(0).unwrap() {
                Some(_) => "extended",
                None => "lost",
            }),
            "give" => store.release(&key, &owner).await.map(|given| if given { "given" } else { "lost" }),
            "wait" => {
                let wake = hint(refused(&store, &claim.waits(true)).await);
                println!("says: waiting");
                tokio::time::timeout(Duration::from_secs(20), wake).await.expect("the wake-up was lost");
                Ok("woken")
            }
            "notices" => {
                let has = store.ask(Urgency::Must, TTL, |worker| Ok(worker.watches.has_notices())).await;
                has.map(|has| if has { "kept" } else { "none" })
            }
            _ => panic!("{order}"),
        };
        println!("says: {}", said.map_or_else(|error| error.to_string(), str::to_owned));
    }
}
