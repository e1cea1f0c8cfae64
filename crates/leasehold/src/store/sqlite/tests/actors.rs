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
        let mut process = Command::new(env::current_exe().unwrap())
            .args(["--exact", "store::sqlite::tests::actors::actor", "--ignored", "--nocapture"])
            .env("LEASEHOLD_ACTOR_FILE", path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let orders = process.stdin.take().unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut actor = Self { process, orders, answers };
        assert_eq!(actor.answer(), "opened");
        actor
    }

    /// `take`, `extend` or `give` with the name of a key.
    pub(super) fn tell(&mut self, order: &str) -> String {
        writeln!(self.orders, "{order}").unwrap();
        self.answer()
    }

    fn answer(&mut self) -> String {
        let said = self.answers.by_ref().find_map(|line| line.unwrap().strip_prefix("says: ").map(str::to_owned));
        said.expect("the process ended")
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
            _ => panic!("{order}"),
        };
        println!("says: {}", said.map_or_else(|error| error.to_string(), str::to_owned));
    }
}
