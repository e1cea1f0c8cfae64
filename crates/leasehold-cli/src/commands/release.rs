//! `release`: gives back a lease by its owner token.

use std::time::Duration;

use leasehold::store::Expiry;
use leasehold::{Close, ErrorKind, LockManager};

use super::owner::{Keeper, Owner};
use crate::cli::Release;
use crate::config::{self, Settings};
use crate::exit::{self, Failure};
use crate::output;
use crate::process::Watched;

/// How long a keeper that was asked to end may take: it gives the lease back itself.
const PATIENCE: Duration = Duration::from_secs(10);

/// Gives the lease back, and removes the owner file.
pub(crate) async fn release(settings: &Settings, arguments: &Release) -> Result<u8, Failure> {
    let name = config::key_name(&arguments.key)?;
    let owner = Owner::find(arguments.owner_file.as_deref())?;
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
    let is_session = manager.capabilities().expiry == Expiry::Session;
    // One whose keeper is dead may be free already.
    if (is_session || owner.keeper.is_some()) && !is_held(settings, manager, name, owner).await? {
        return Err(not_held(settings, manager, name).await);
    }
    // A lease that is bound to a connection ends with the process that has it.
    if is_session {
        end(owner.keeper).await;
        return match is_held(settings, manager, name, owner).await? {
            false => Ok(()),
            true => Err(Failure::new(
                exit::UNAVAILABLE,
                format!("\"{name}\" is still held: its keeper did not give it back: end the process that show names"),
            )),
        };
    }
    match manager.lock(name).release_by(&owner.token).await {
        Ok(()) => {
            // It would learn of it by its next renewal only.
            end(owner.keeper).await;
            Ok(())
        }
        Err(error) if error.kind() == ErrorKind::NotHeld => Err(not_held(settings, manager, name).await),
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
    Ok(inspection.holders.iter().any(|holder| holder.owner == owner.token))
}

/// Asks a keeper to end, and waits until it has.
async fn end(keeper: Option<Keeper>) {
    let Some(keeper) = keeper else { return };
    // Opened before it is looked at: what is found to be the keeper then is what is open.
    let Ok(process) = Watched::open(keeper.id) else { return };
    if keeper.lives() && process.terminate().is_ok() {
        tokio::time::timeout(PATIENCE, process.ended()).await.ok();
    }
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
