//! The conformance suite on a place that takes long to set up, so that all cases share it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::Result;
use leasehold::store::Store;
use leasehold::store::redis::RedisStore;
use leasehold::testkit::Server;
use leasehold::testkit::conformance::{Fixture, Needs, Outage, cases, check_declared};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::ask;

/// What every machine keeps up with.
const TTL: Duration = Duration::from_millis(300);

/// Cases at a time.
const WIDTH: usize = 4;

/// Runs every case that makes sense for a store without places in line. `url` makes the address for a user, which
/// stands in it as `user:password@`; `servers` are those that know users.
///
/// # Panics
///
/// A case fails.
pub async fn run_suite(url: impl Fn(&str) -> String + Send + Sync, servers: &[&Server]) {
    let addresses: Vec<_> = servers.iter().map(|server| server.address().to_string()).collect();
    let place = |number: usize| {
        let user = format!("u{number}");
        for server in servers {
            let rights = ["ACL", "SETUSER", &user, "on", ">pw", "~*", "&*", "+@all"];
            ask::<()>(server, &rights).expect("the server makes users");
        }
        Place { url: url(&format!("{user}:pw@")), user, servers: addresses.clone() }
    };
    check_declared(&place(0), &["places"]).await.expect("exactly that is declared which is");
    let turns = Arc::new(Semaphore::new(WIDTH));
    let mut running = JoinSet::new();
    let places = [Needs::Places, Needs::PlacesAndExpiry, Needs::PlacesAndRemoval];
    let fitting = cases().iter().filter(|case| !places.contains(&case.needs()));
    let mut count = 0;
    for (number, case) in fitting.enumerate() {
        let (place, turns) = (place(number + 1), Arc::clone(&turns));
        count += 1;
        running.spawn(async move {
            let _turn = turns.acquire().await.expect("it is not closed");
            (case.name(), case.run(&place).await)
        });
    }
    let mut failures = Vec::new();
    while let Some(ended) = running.join_next().await {
        if let (name, Err(failure)) = ended.expect("a case does not panic") {
            failures.push(format!("{name}: {failure}"));
        }
    }
    assert!(failures.is_empty(), "{} of {count} cases failed:\n{}", failures.len(), failures.join("\n"));
}

/// What one user may do.
struct Place {
    url: String,
    user: String,
    servers: Vec<String>,
}

#[async_trait]
impl Fixture for Place {
    async fn client(&self) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(RedisStore::connect(&self.url).await?))
    }

    fn ttl(&self) -> Duration {
        TTL
    }

    /// This user loses the right to run scripts.
    async fn outage(&self) -> Option<Outage> {
        let (user, servers) = (self.user.clone(), self.servers.clone());
        let permit = move |rule: &str| {
            for server in &servers {
                let client = redis::Client::open(format!("redis://{server}")).expect("an address");
                let mut connection = client.get_connection().expect("the server answers");
                redis::cmd("ACL").arg(&["SETUSER", &user, rule]).exec(&mut connection).expect("the user is known");
            }
        };
        permit("-@scripting");
        Some(Box::new(Heal(permit)))
    }
}

struct Heal<F: Fn(&str)>(F);

impl<F: Fn(&str)> Drop for Heal<F> {
    fn drop(&mut self) {
        self.0("+@all");
    }
}
