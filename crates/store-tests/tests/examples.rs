//! Examples that need a server.

#![allow(clippy::unwrap_used, reason = "an error fails the test")]

use std::env;
use std::process::Command;

use store_tests::Table;

#[allow(dead_code, reason = "its parts are looked at elsewhere")]
#[path = "../../leasehold/examples/postgres_fencing.rs"]
mod postgres_fencing;

/// In a process with this, the test runs its example and nothing else.
const RUNS_IT: &str = "LEASEHOLD_TEST_RUNS_EXAMPLE";

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_late_write_is_refused_by_postgres() {
    if env::var_os(RUNS_IT).is_some() {
        return postgres_fencing::main().unwrap();
    }
    let table = Table::new();
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "a_late_write_is_refused_by_postgres", "--include-ignored", "--nocapture"]);
    let ended = command.env(RUNS_IT, "yes").env("DATABASE_URL", table.url()).output().unwrap();
    assert!(ended.status.success() && String::from_utf8_lossy(&ended.stdout).contains("1 passed"), "{ended:?}");
}
