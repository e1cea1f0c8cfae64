//! PostgreSQL: poolers, a standby, rights, idle timeouts, settings that forget.

use store_tests::{Pooler, Table, run};

use super::examine;
use crate::support::address_of_nobody;

/// Has statements carried out in a database.
fn change(table: &Table, statements: &str) {
    run(async { table.client().await.batch_execute(statements).await.unwrap() });
}

fn in_mode(url: &str, mode: &str) -> String {
    format!("{url}?mode={mode}")
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
#[cfg_attr(not(has_pgbouncer), ignore = "pgbouncer is not installed")]
fn a_pooler_that_lends_to_transactions_is_found() {
    let pooler = Pooler::start(Table::new(), "transaction");
    examine(&pooler.url(), &[], 1).finds("warn", "nothing is heard of releases", "poolers");
    examine(&in_mode(&pooler.url(), "advisory"), &[], 77).finds("fail", "pooler", "the server");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn a_standby_is_refused_and_its_primary_warned() {
    let table = Table::alone(&["-c", "wal_level=replica"]);
    let standby = table.follower(&[]);
    examine(&standby.url(table.database()), &[], 77).finds("fail", "standby", "the server that the message names");
    examine(&table.url(), &[], 1).finds("warn", "1 replicas follow this server later", "synchronous_standby_names");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn missing_rights_are_found() {
    let table = Table::new();
    // Roles are the server's, which other tests share.
    let user = |rights: &str| format!("{rights}_{}", table.database());
    let url = |name: &str| table.url().replace("postgres@", &format!("{name}@"));
    let (nobody, reader, silent) = (user("nobody"), user("reader"), user("silent"));
    change(&table, &format!("REVOKE CREATE ON SCHEMA public FROM public; CREATE ROLE {nobody} LOGIN"));
    examine(&url(&nobody), &[], 77).finds("fail", "CREATE TABLE", "rights");
    // The tables are made by whoever may.
    run(async { drop(table.store().await) });
    change(
        &table,
        &format!(
            "CREATE ROLE {reader} LOGIN; GRANT SELECT ON leasehold TO {reader};
             CREATE ROLE {silent} LOGIN; GRANT SELECT, INSERT, UPDATE, DELETE ON leasehold TO {silent};
             GRANT USAGE ON SEQUENCE leasehold_fence TO {silent}"
        ),
    );
    examine(&url(&reader), &[], 77).finds("fail", "42501", "rights");
    examine(&url(&silent), &[], 1).finds("warn", "nothing is heard of releases", "the table of waiters");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn settings_that_harm_are_found() {
    let table = Table::new();
    let database = table.database();
    change(
        &table,
        &format!(
            "ALTER DATABASE {database} SET idle_session_timeout = '90s';
             ALTER DATABASE {database} SET synchronous_commit = off"
        ),
    );
    examine(&table.url(), &[], 1)
        .finds("warn", "idle for 90s (idle_session_timeout)", "SET idle_session_timeout = 0")
        .finds("warn", "synchronous_commit off", "SET synchronous_commit = on");
    // Sessions that hold locks switch it off for themselves.
    examine(&in_mode(&table.url(), "advisory"), &[], 1).finds("ok", "which has switched that off", "");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn whoever_does_not_get_in_is_told_why() {
    let table = Table::new();
    let nobody = table.url().replace("postgres@", "nosuchrole@");
    examine(&nobody, &[], 77).finds("fail", "check the user name", "rights");
    examine(&format!("{}x", table.url()), &[], 77).finds("fail", "name a database", "the server");
    let nowhere = table.url_at(address_of_nobody());
    examine(&nowhere, &[], 69).finds("fail", "refused", "see that the store runs");
}
