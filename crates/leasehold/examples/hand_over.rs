//! A lease that passes from one process to another: nobody else can come between, and the token of the giver is dead as
//! soon as the other has taken it on.
//!
//! `cargo run -p leasehold --example hand_over`

use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs, io, process};

use leasehold::store::sqlite::SqliteStore;
use leasehold::{ErrorKind, LockManager, OwnerToken};

/// Where the other process finds the leases.
const FILE: &str = "HAND_OVER_FILE";

#[tokio::main]
pub(crate) async fn main() -> Result<(), Box<dyn Error>> {
    if let Some(file) = env::var_os(FILE) {
        return take_on(file.as_ref()).await;
    }
    let directory = env::temp_dir().join(format!("leasehold-hand-over-{}", process::id()));
    fs::create_dir(&directory)?;
    let file = directory.join("leases.db");
    let mut successor = Command::new(env::current_exe()?);
    // The same program, as this one was called.
    successor.args(env::args_os().skip(1)).env(FILE, &file);
    let given = give(file, successor).await;
    fs::remove_dir_all(directory)?;
    given
}

/// Starts something and leaves the rest, and the lease, to another process.
async fn give(file: PathBuf, mut successor: Command) -> Result<(), Box<dyn Error>> {
    let locks = LockManager::new(SqliteStore::open(&file).await?);
    let guard = locks.lock("import").acquire().await?;
    let fence = guard.fencing_token();

    // From here on the lease stands for its whole ttl without us.
    let owner = guard.hand_over().await?;
    assert!(guard.check().is_err());

    // The token is a secret: not an argument, and not a variable.
    let mut child = successor.stdin(Stdio::piped()).spawn()?;
    if let Some(mut input) = child.stdin.take() {
        writeln!(input, "{}", owner.expose())?;
    }
    assert!(tokio::task::spawn_blocking(move || child.wait()).await??.success());

    // It was taken on, so the token that we gave is worth nothing any more; and given back, with a higher number.
    let dead = locks.lock("import").resume(&owner).await;
    assert_eq!(dead.map(drop).map_err(|error| error.kind()), Err(ErrorKind::NotHeld));
    let guard = locks.lock("import").try_acquire().await?.ok_or("the lease was not given back")?;
    assert!(guard.fencing_token() > fence);
    Ok(guard.release().await?)
}

/// What the other process does.
async fn take_on(file: &Path) -> Result<(), Box<dyn Error>> {
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    let owner: OwnerToken = line.trim().parse()?;
    let locks = LockManager::new(SqliteStore::open(file).await?);
    // Under a token of its own, and renewed from now on.
    let guard = locks.lock("import").resume(&owner).await?;
    guard.check()?;
    Ok(guard.release().await?)
}
