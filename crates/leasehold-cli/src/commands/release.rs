//! `release`: gives back a lease by its owner token.

use std::time::Duration;

use leasehold::store::Expiry;
use leasehold::{Close, ErrorKind, LockManager};
use rustix::io::Errno;
use rustix::process::Signal;

use super::owner::{Keeper, Owner};
use crate::cli::Release;
use crate::config::{self, Settings};
use crate::exit::{self, Failure};
use crate::output;

/// How long a keeper that was asked to end may take: it gives the lease back itself.
const PATIENCE: Duration = Duration::from_secs(10);

/// Gives the lease back, and removes the owner file.
pub(crate) async fn release(settings: &Settings, arguments: &Release) -> Result<u8, Failure> {
    let name = config::key_name(&arguments.key)?;
    let owner = Owner::find(arguments.owner_file.as_deref())?;
    owner.check(&config::key(settings, name)?)?;
    let manager = settings.build(settings.open().await?)?;
    let released = give_back(settings, &manager, name, &owner).await;
    manager.close(Close::Release).await.ok();
    released?;
    owner.discard();
    if settings.verbose {
        output::tell(&format!("\"{name}\" was given back"));
    }
    Ok(exit::DONE)
}

async fn give_back(settings: &Settings, manager: &LockManager, name: &str, owner: &Owner) -> Result<(), Failure> {
    // One whose keeper is dead may be free already; and what is held now is given back if it is not held afterwards.
    if !is_held(settings, manager, name, owner).await? {
        return Err(not_held(settings, manager, name).await);
    }
    // It gives the lease back itself. If another one did, it would take that for a loss, and tell the script.
    let kept = match &owner.keeper {
        Some(keeper) => end(keeper).await,
        None => true,
    };
    if manager.capabilities().expiry == Expiry::Session {
        return if kept {
            Ok(())
        } else {
            Err(Failure::new(
                exit::UNAVAILABLE,
                format!("\"{name}\" is still held: its keeper does not end: kill the process that show names"),
            ))
        };
    }
    if owner.keeper.is_some() && !is_held(settings, manager, name, owner).await? {
        return Ok(());
    }
    match manager.lock(name).release_by(&owner.token).await {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotHeld => Err(not_held(settings, manager, name).await),
        // The answer was lost.
        Err(error) if error.kind() == ErrorKind::Indeterminate => match is_held(settings, manager, name, owner).await {
            Ok(false) => Ok(()),
            _ => Err(settings.failure(&error)),
        },
        Err(error) => Err(settings.failure(&error)),
    }
}

/// Whether the owner token holds the key.
pub(super) async fn is_held(
    settings: &Settings,
    manager: &LockManager,
    name: &str,
    owner: &Owner,
) -> Result<bool, Failure> {
    let inspection = manager.inspect(name).await.map_err(|error| settings.failure(&error))?;
    if manager.capabilities().expiry == Expiry::Session {
        // A server knows the session and not the owner. The keeper ends when it loses the lease.
        let is_kept = owner.keeper.as_ref().is_some_and(Keeper::is_at_work);
        return Ok(is_kept && !inspection.holders.is_empty());
    }
    Ok(inspection.holders.iter().any(|holder| holder.owner == owner.token))
}

/// Asks a keeper to end, and waits until it has; whether that is so.
async fn end(keeper: &Keeper) -> bool {
    let Some(process) = keeper.process() else { return true };
    if let Err(error) = process.signal(Signal::TERM) {
        // That of another user goes on.
        return Errno::from_io_error(&error) == Some(Errno::SRCH);
    }
    // One that is stopped would not hear it.
    process.signal(Signal::CONT).ok();
    tokio::time::timeout(PATIENCE, process.ended()).await.is_ok()
}

/// Whose the lease is, if not that of the owner token.
pub(super) async fn not_held(settings: &Settings, manager: &LockManager, name: &str) -> Failure {
    let now = match manager.holder(name).await {
        Ok(Some(holder)) => format!("now by {}", output::holder_in_a_line(&holder)),
        Ok(None) => "nor by anybody else".to_owned(),
        Err(error) => format!("now unknown: {}", settings.failure(&error)),
    };
    Failure::new(
        exit::LOST,
        format!(
            "\"{name}\" is not held by this owner token, {now}: its lease was given back, ended or was removed; what \
             was done under it may have overlapped with another holder"
        ),
    )
}
