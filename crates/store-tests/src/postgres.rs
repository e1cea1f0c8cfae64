//! PostgreSQL servers.

use std::future::Future;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use leasehold::store::postgres::PostgresStore;
use leasehold::store::{SharedStore, Store, Waiting};
use leasehold::testkit::{Residue, Server, ServerBuilder};
use leasehold::{ErrorKind, LockManager, Result};
use rustix::process::{Pid, Signal, kill_process};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls};

/// Makes the cluster at the first start. The server refuses to be root, so it is whom its package made for it.
const START: &str = r#"
set -eu
cd "{dir}"
bin=$(dirname "$LEASEHOLD_TEST_POSTGRES_PROGRAM")
as=
if [ "$(id -u)" = 0 ]; then
    chown postgres "{dir}"
    as="setpriv --reuid=postgres --regid=postgres --clear-groups --pdeathsig KILL --"
fi
[ ! -e prepare.sh ] || . ./prepare.sh
if [ ! -e data ] && [ -e copy ]; then
    cp -R "$(cat copy)" data
    [ -z "$as" ] || chown -R postgres data
    chmod -R go= data
fi
if [ ! -e data/PG_VERSION ]; then
    $as "$bin/initdb" -D data -U postgres -A trust --no-sync --no-locale -E UTF8 >/dev/null
fi
# What a killed server leaves behind ends by itself, but takes a moment.
for _ in $(seq 1000); do
    left=$(find /proc/[0-9]*/cwd -maxdepth 0 -lname "{dir}/data" 2>/dev/null || true)
    [ -n "$left" ] || break
    sleep 0.01
done
exec $as "$bin/postgres" -D data -p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories="{dir}" -c fsync=off "$@"
"#;

/// A PostgreSQL server; everybody may do everything. Later arguments override these.
#[derive(Debug)]
pub struct Postgres(Server);

impl Postgres {
    /// Starts one, with these arguments, too.
    ///
    /// # Panics
    ///
    /// It does not start.
    pub fn start(arguments: &[&str]) -> Self {
        Self(Self::builder(arguments).start().expect("postgres starts"))
    }

    /// Starts one with these files in its directory, after a script there.
    ///
    /// # Panics
    ///
    /// It does not start.
    pub fn prepared(script: &str, arguments: &[&str], files: &[(&str, String)]) -> Self {
        let with = |builder: ServerBuilder, (name, content): &(&str, String)| builder.file(*name, content);
        let builder = Self::builder(arguments).file("prepare.sh", script);
        Self(files.iter().fold(builder, with).start().expect("postgres starts"))
    }

    /// Starts one with the data in a folder, as a copy.
    ///
    /// # Panics
    ///
    /// It does not start.
    pub fn copy(data: &Path, arguments: &[&str]) -> Self {
        Self(Self::builder(arguments).file("copy", data.to_string_lossy()).start().expect("postgres starts"))
    }

    /// The folder of the server's programs.
    ///
    /// # Panics
    ///
    /// It is not installed.
    pub fn programs() -> std::path::PathBuf {
        program().parent().expect("a program is in a folder").to_owned()
    }

    /// How to start one.
    ///
    /// # Panics
    ///
    /// It is not installed.
    pub fn builder(arguments: &[&str]) -> ServerBuilder {
        let program = program();
        let start = START.replace("$LEASEHOLD_TEST_POSTGRES_PROGRAM", &program.to_string_lossy());
        Server::builder("/bin/sh")
            .file("start.sh", start)
            .args(["{dir}/start.sh"])
            .args(arguments.iter().copied())
            .ready(lets_in)
    }

    /// The server.
    pub fn server(&self) -> &Server {
        &self.0
    }

    /// How a database of it is named.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@{}/{database}", self.0.address())
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // In order, so that no shared memory is left behind.
        if let Some(pid) = self.0.pid().and_then(|pid| Pid::from_raw(pid.cast_signed())) {
            kill_process(pid, Signal::QUIT).ok();
            self.0.terminate().ok();
        }
    }
}

/// Where the server program is: what the variable says, or where Debian puts it.
fn program() -> std::path::PathBuf {
    let known = std::env::var_os("LEASEHOLD_TEST_POSTGRES").map(Into::into);
    let installed = || Server::find("postgres").or_else(|| newest(Path::new("/usr/lib/postgresql")));
    let program: std::path::PathBuf = known.or_else(installed).expect("postgres is installed");
    // Its companions are where it is, not where a link to it is.
    program.canonicalize().expect("postgres is installed")
}

fn newest(folder: &Path) -> Option<std::path::PathBuf> {
    let versions = std::fs::read_dir(folder).ok()?.filter_map(Result::ok);
    versions.map(|version| version.path().join("bin/postgres")).filter(|program| program.is_file()).max()
}

/// Whether a server accepts sessions, be it after a password.
fn lets_in(address: SocketAddr) -> bool {
    let ask = || {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let words = b"user\0postgres\0database\0postgres\0\0";
        let length = u32::try_from(words.len() + 8).unwrap_or_default();
        let version: u32 = 3 << 16;
        stream.write_all(&[&length.to_be_bytes()[..], &version.to_be_bytes(), words].concat())?;
        let mut kind = [0];
        stream.read_exact(&mut kind)?;
        // Goodbye.
        stream.write_all(&[b'X', 0, 0, 0, 4])?;
        std::io::Result::Ok(kind)
    };
    ask().is_ok_and(|kind| kind == *b"R")
}

/// A database of its own on a server that the tests of a process share.
#[derive(Clone, Debug)]
pub struct Table {
    server: Arc<Postgres>,
    database: String,
}

impl Table {
    /// An empty database.
    ///
    /// # Panics
    ///
    /// There is no server.
    pub fn new() -> Self {
        static SHARED: Mutex<Weak<Postgres>> = Mutex::new(Weak::new());
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let server = shared.upgrade().unwrap_or_else(|| {
            let server = Arc::new(Postgres::start(&["-c", "max_connections=500"]));
            *shared = Arc::downgrade(&server);
            server
        });
        Self::on(server, format!("d{}", NUMBER.fetch_add(1, Ordering::Relaxed)))
    }

    /// A server that nobody else has, with these arguments.
    ///
    /// # Panics
    ///
    /// It does not start.
    pub fn alone(arguments: &[&str]) -> Self {
        Self::of(Postgres::start(arguments))
    }

    /// An empty database of this server.
    ///
    /// # Panics
    ///
    /// It cannot be made.
    pub fn of(server: Postgres) -> Self {
        Self::on(Arc::new(server), "d".to_owned())
    }

    fn on(server: Arc<Postgres>, database: String) -> Self {
        let url = server.url("postgres");
        let create = format!("CREATE DATABASE {database}");
        // Blocking, on a runtime of its own, since some callers have none.
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("it starts");
            runtime.block_on(async {
                let client = client(&url).await;
                // What it is copied from may be used by a process of the server for longer than the server waits.
                let is_used = |error: &tokio_postgres::Error| error.code() == Some(&SqlState::OBJECT_IN_USE);
                let mut made = client.batch_execute(&create).await;
                for _ in 1..10 {
                    if made.as_ref().is_err_and(is_used) {
                        made = client.batch_execute(&create).await;
                    }
                }
                made.expect("a database is made");
            });
        })
        .join()
        .expect("a database is made");
        Self { server, database }
    }

    /// A server that follows this one, with these arguments.
    ///
    /// # Panics
    ///
    /// It cannot be copied, or does not start.
    pub fn follower(&self, arguments: &[&str]) -> Postgres {
        let copy = tempfile::tempdir().expect("there is a place for it");
        let (folder, port) = (copy.path().join("copy"), self.server().port().to_string());
        let copied = Command::new(Postgres::programs().join("pg_basebackup"))
            .args(["-h", "127.0.0.1", "-p", &port, "-U", "postgres", "-R", "-X", "stream", "-c", "fast", "-D"])
            .arg(&folder)
            .status();
        assert!(copied.expect("it is installed").success(), "the server is copied");
        Postgres::copy(&folder, arguments)
    }

    /// The server.
    pub fn server(&self) -> &Server {
        self.server.server()
    }

    /// How it is named.
    pub fn url(&self) -> String {
        self.server.url(&self.database)
    }

    /// How it is named behind another address.
    pub fn url_at(&self, address: SocketAddr) -> String {
        format!("postgres://postgres@{address}/{}", self.database)
    }

    /// The name of the database.
    pub fn database(&self) -> &str {
        &self.database
    }

    /// A store with connections of its own, as another process would have it.
    pub async fn store(&self) -> PostgresStore {
        let url = self.url();
        connected(true, || PostgresStore::connect(&url)).await.expect("the server lets us in")
    }

    /// A manager with connections of its own.
    pub async fn manager(&self) -> LockManager {
        LockManager::builder(SharedStore::from(self.store().await)).build().expect("the defaults hold")
    }

    /// A session that knows nothing of leases.
    pub async fn client(&self) -> Client {
        client(&self.url()).await
    }

    /// Waits until these managers hold on to nothing and no lease is left: far less than a ttl.
    ///
    /// # Panics
    ///
    /// It takes longer.
    pub async fn at_rest(&self, managers: &[LockManager]) {
        let client = self.client().await;
        let statement = "SELECT count(*) FROM leasehold WHERE owner <> '' AND expires > clock_timestamp()";
        for _ in 0..6000 {
            let held: i64 = client.query_one(statement, &[]).await.expect("the table is there").get(0);
            if held == 0 && managers.iter().all(|manager| Residue::of(manager).is_none()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("left: {:?}", managers.iter().map(Residue::of).collect::<Vec<_>>());
    }
}

impl Default for Table {
    fn default() -> Self {
        Self::new()
    }
}

/// Connects, again if need be, as on a busy machine: a server may not answer in time, and where others `are_heard` what
/// says so may come too late.
///
/// # Errors
///
/// The server refuses, or did not answer ten times.
pub async fn connected<S, F>(are_heard: bool, connect: impl Fn() -> F) -> Result<S>
where
    S: Store,
    F: Future<Output = Result<S>>,
{
    for _ in 1..10 {
        match connect().await {
            Ok(store) if are_heard && store.capabilities().waiting == Waiting::Poll => store.close().await?,
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                tokio::time::sleep(Duration::from_millis(100)).await
            }
            answer => return answer,
        }
    }
    connect().await
}

/// A session of this database that knows nothing of leases.
pub(crate) async fn client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("the server lets us in");
    tokio::spawn(connection);
    client
}

/// A server all of whose processes stand still, until it is dropped.
#[derive(Debug)]
pub struct Paused<'a>(&'a Table);

impl Table {
    /// Stops the server with all its sessions, as where its machine hangs.
    ///
    /// # Panics
    ///
    /// It does not run.
    pub fn pause(&self) -> Paused<'_> {
        assert!(self.signal(Signal::STOP) > 1, "the server runs");
        Paused(self)
    }

    /// Ends the server in order, and all sessions with it, as `pg_ctl stop -m fast` does.
    ///
    /// # Panics
    ///
    /// It does not run, or does not end.
    pub fn end_in_order(&self) {
        let pid = self.server().pid().and_then(|pid| Pid::from_raw(pid.cast_signed())).expect("the server runs");
        kill_process(pid, Signal::INT).expect("the server runs");
        // Which asks for less, and waits.
        self.server().terminate().expect("the server ends");
    }

    /// Sends a signal to all processes of the server; answers with their number.
    fn signal(&self, signal: Signal) -> usize {
        let data = self.server().dir().join("data").canonicalize().expect("there is data");
        let processes = std::fs::read_dir("/proc").expect("there are processes").filter_map(Result::ok);
        let ours = processes.filter(|entry| std::fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd == data));
        let pids = ours.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
        pids.filter(|pid| kill_process(*pid, signal).is_ok()).count()
    }
}

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        self.0.signal(Signal::CONT);
    }
}
