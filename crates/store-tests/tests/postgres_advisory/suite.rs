//! The suite for stores.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::store::Store;
use leasehold::store::postgres::PostgresAdvisoryStore;
use leasehold::testkit::conformance::{self, Needs, cases};
use parking_lot::Mutex;
use store_tests::{Table, run};

/// The suite that every store has to pass, but for what a session cannot do by its nature.
#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn the_suite_holds_but_for_what_a_session_cannot_do() {
    run(async {
        let table = Table::new();
        let mut failed = Vec::new();
        let capable = [Needs::Nothing, Needs::Fencing, Needs::Wakes];
        for case in cases().iter().filter(|case| capable.contains(&case.needs())) {
            let fixture = Fixture(table.clone(), Mutex::default());
            if let Err(failure) = case.run(&fixture).await {
                failed.push(case.name());
                println!("{}: {failure}", case.name());
            }
        }
        assert_eq!(failed, EXCEPTIONS);
    });
}

/// Those that look for the owner in another session, or remove its lock.
const EXCEPTIONS: [&str; 7] = [
    "clients_exclude_each_other",
    "force_release_frees_the_key",
    "force_release_compares_the_owner",
    "inspect_tells_the_holder",
    "inspect_never_takes_the_lease",
    "the_fence_grows_over_force_release",
    "the_floor_of_a_removal_holds",
];

/// A database, and its clients: what they hold would not outlive them.
struct Fixture(Table, Mutex<Vec<Arc<dyn Store>>>);

#[async_trait]
impl conformance::Fixture for Fixture {
    async fn client(&self) -> leasehold::Result<Arc<dyn Store>> {
        let client: Arc<dyn Store> = Arc::new(PostgresAdvisoryStore::connect(&self.0.url()).await?);
        self.1.lock().push(Arc::clone(&client));
        Ok(client)
    }

    fn ttl(&self) -> Duration {
        Duration::from_millis(300)
    }
}
