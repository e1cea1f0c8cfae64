//! pgbouncer, which lends few connections to many.

use leasehold::testkit::Server;
use tokio_postgres::Client;

use crate::postgres::{Table, client};

const START: &str = r#"
set -eu
as=
if [ "$(id -u)" = 0 ]; then
    chown -R postgres "{dir}"
    as="setpriv --reuid=postgres --regid=postgres --clear-groups --pdeathsig KILL --"
fi
exec $as pgbouncer "{dir}/pgbouncer.ini"
"#;

/// A pooler in front of a database.
#[derive(Debug)]
pub struct Pooler {
    server: Server,
    table: Table,
}

impl Pooler {
    /// Starts one that lends a connection for each `session`, `transaction` or `statement`.
    ///
    /// # Panics
    ///
    /// It does not start.
    pub fn start(table: Table, mode: &str) -> Self {
        Self::with(table, mode, "default_pool_size = 40")
    }

    /// Starts one of this mode with more lines of settings.
    ///
    /// # Panics
    ///
    /// It does not start.
    pub fn with(table: Table, mode: &str, settings: &str) -> Self {
        let port = table.server().port();
        let settings = format!(
            "[databases]\n* = host=127.0.0.1 port={port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {{port}}\n\
            unix_socket_dir =\nauth_type = trust\nauth_file = {{dir}}/users\npool_mode = {mode}\n\
            max_client_conn = 400\n{settings}\n"
        );
        let server = Server::builder("/bin/sh")
            .file("start.sh", START)
            .file("pgbouncer.ini", settings)
            .file("users", "\"postgres\" \"\"\n")
            .args(["{dir}/start.sh"])
            .start();
        Self { server: server.expect("pgbouncer starts"), table }
    }

    /// The pooler's process.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// The database behind it.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// How the database is named through the pooler.
    pub fn url(&self) -> String {
        self.table.url_at(self.server.address())
    }

    /// A session that knows nothing of leases.
    pub async fn client(&self) -> Client {
        client(&self.url()).await
    }
}

impl Drop for Pooler {
    /// What it has said may tell why a test failed.
    #[allow(clippy::print_stderr, reason = "as the failure itself")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the pooler said:\n{}", self.server.log());
        }
    }
}
