//! `extend`: lets a lease stand longer, by its owner token.

use leasehold::store::Expiry;
use leasehold::{Close, ErrorKind};

use super::owner::Owner;
use super::release::{is_held, not_held};
use crate::cli::{Extend, Global};
use crate::config::{self, Settings};
use crate::exit::{self, Failure};
use crate::output;

/// Pushes the end of the lease out; that it is held is part of the answer.
pub(crate) async fn extend(global: &Global, arguments: &Extend) -> Result<u8, Failure> {
    let name = config::key_name(&arguments.key)?;
    let settings = Settings::new(global, config::flags(false, None, arguments.ttl.as_deref())?)?;
    let owner = Owner::find(arguments.owner_file.as_deref())?;
    owner.check(&config::key(&settings, name)?)?;
    let manager = settings.build(settings.open().await?)?;
    let ttl = manager.ttl();
    let is_session = manager.capabilities().expiry == Expiry::Session;
    // A lease that is bound to a connection has no end to push out.
    let extend = async { if is_session { Ok(()) } else { manager.lock(name).extend_by(&owner.token, ttl).await } };
    let extended = match extend.await {
        // A lease whose keeper is dead is free, however long it could have stood.
        Ok(()) if !is_held(&settings, &manager, name, &owner).await? => Err(not_held(&settings, &manager, name).await),
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotHeld => Err(not_held(&settings, &manager, name).await),
        Err(error) => Err(settings.failure(&error)),
    };
    manager.close(Close::Release).await.ok();
    extended?;
    owner.renew();
    if settings.verbose {
        output::tell(&format!("\"{name}\" is held for another {}", output::precise(ttl)));
    }
    Ok(exit::DONE)
}
