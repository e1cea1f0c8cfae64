//! `acquire` and `hold`: take a key and leave it held when this process ends, until its ttl or by a keeper.

use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::store::{Expiry, Fencing, HolderInfo, Scope};
use leasehold::{Close, ErrorKind, Lock, LockGuard, LockManager, OwnerToken, Renew, Wait};
use rustix::process::Pid;

use self::answer::Answer;
use self::ends::Renewals;
pub(crate) use self::keeper::keep;
use super::owner::{self, Keeper};
use super::{block_on, busy, grace, run};
use crate::child::OnLost;
use crate::cli::{Acquire, Global, Reach};
use crate::config::{self, Settings};
use crate::exit::{self, Failure};
use crate::file::{self, Mode};
use crate::output;
use crate::process;
use crate::signals::Signals;

mod answer;
mod ends;
mod front;
mod keeper;
mod told;

/// Takes the key and prints the answer; whatever ends otherwise is told to a shell that evaluates the output.
pub(crate) fn acquire(global: &Global, arguments: &Acquire) -> Result<u8, Failure> {
    let taken = block_on(async {
        match arguments.keeper {
            Some(id) => front::have_kept(global, arguments, id).await,
            None => leave_standing(global, arguments).await,
        }
    });
    if let Err(failure) = &taken {
        Answer::failed(arguments, failure).print(arguments.format).ok();
    }
    taken
}

/// What was asked for, checked as far as it can be before anything is touched.
#[derive(Debug)]
struct Request<'a> {
    name: &'a str,
    wait: Wait,
    busy_code: u8,
    label: Option<String>,
    on_lost: OnLost,
    place: Place,
    arguments: &'a Acquire,
}

/// Where the secret goes.
#[derive(Debug)]
enum Place {
    /// Into this file.
    File(PathBuf),
    /// Into a file of its own here.
    Directory(PathBuf),
}

impl<'a> Request<'a> {
    fn new(settings: &Settings, arguments: &'a Acquire) -> Result<Self, Failure> {
        let name = config::key_name(&arguments.key)?;
        if let Some(label) = arguments.label.iter().find(|label| !label.contains('=') || label.starts_with('=')) {
            let label = output::clean(label);
            return Err(Failure::new(exit::USAGE, format!("invalid --label \"{label}\": write it as name=value")));
        }
        let waiting = &arguments.waiting;
        Ok(Self {
            name,
            wait: settings.wait(),
            busy_code: if waiting.skip_ok { 0 } else { waiting.conflict_exit_code.unwrap_or(exit::BUSY) },
            label: (!arguments.label.is_empty()).then(|| arguments.label.join(" ")),
            on_lost: run::on_lost(arguments.on_lost.as_deref())?,
            place: place(arguments.owner_file.as_deref())?,
            arguments,
        })
    }

    /// Writes the secret; removed again if what comes back is dropped before it is kept.
    fn write(&self, token: &OwnerToken, keeper: Option<&Keeper>) -> Result<Secret, Failure> {
        let path = match &self.place {
            Place::File(path) => path.clone(),
            Place::Directory(directory) => owner::path_in(directory, token),
        };
        owner::write(&path, token, keeper)?;
        Ok(Secret { path, token: token.clone(), stays: false })
    }
}

fn place(file: Option<&Path>) -> Result<Place, Failure> {
    let Some(path) = file else {
        return owner::directory().map(Place::Directory);
    };
    file::check(path, Mode::Secret)?;
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    if path.to_str().is_none() {
        return Err(Failure::new(exit::USAGE, "the owner file's name is not UTF-8: choose another one"));
    }
    Ok(Place::File(path))
}

/// The file with the secret in it, as long as it is not sure to be wanted.
#[derive(Debug)]
struct Secret {
    path: PathBuf,
    token: OwnerToken,
    stays: bool,
}

impl Drop for Secret {
    fn drop(&mut self) {
        if !self.stays {
            owner::discard(&self.path, &self.token);
        }
    }
}

/// A lease that is held, and where its secret is.
#[derive(Debug)]
struct Taken {
    guard: LockGuard,
    secret: Secret,
    waited: Duration,
}

/// Takes the key for its ttl: nobody renews it, and nobody's end ends it.
async fn leave_standing(global: &Global, arguments: &Acquire) -> Result<u8, Failure> {
    let (settings, request) = prepare(global, arguments)?;
    let mut signals = install()?;
    let about = rustix::process::getppid();
    let manager = tokio::select! {
        biased;
        signal = signals.next_ending() => return Err(busy::interrupted(signal, request.name)),
        manager = open(&settings, arguments, Renew::Off, about, None) => manager?,
    };
    if manager.capabilities().expiry == Expiry::Session {
        return Err(ends_with_connection(&manager, &request));
    }
    let lock = lock(&manager, &request);
    let outcome = tokio::select! {
        biased;
        signal = signals.next_ending() => Err(busy::interrupted(signal, request.name)),
        outcome = leave(&settings, &manager, &lock, &request) => outcome,
    };
    let ended = match outcome {
        Ok(Some(taken)) => publish(&settings, &manager, &lock, &request, taken).await,
        Ok(None) => {
            let code = busy_code(&settings, &manager, &lock, &request).await;
            Answer::busy(&manager, request.name, code).print(arguments.format).map(|()| code)
        }
        Err(failure) => Err(failure),
    };
    // What was begun in the store is undone before this process is gone; whoever is in a hurry leaves it to the ttl.
    tokio::select! {
        biased;
        _ = signals.next_ending() => {}
        _ = manager.close(Close::Release) => {}
    }
    ended
}

/// A lease that nothing would hold.
fn ends_with_connection(manager: &LockManager, request: &Request<'_>) -> Failure {
    let advice = if request.arguments.by_hand {
        let length = manager.ttl().as_secs();
        format!("let a command hold it, such as leasehold run {} -- sleep {length}", output::quoted(request.name))
    } else {
        "say --keeper for a process that holds it".to_owned()
    };
    let store = manager.store_name();
    Failure::new(exit::CONFIG, format!("a lease of the {store} store ends with its connection: {advice}"))
}

/// Acquires the lease and lets go of it, so that nothing of this process ends it.
async fn leave(
    settings: &Settings,
    manager: &LockManager,
    lock: &Lock,
    request: &Request<'_>,
) -> Result<Option<Taken>, Failure> {
    let Some(taken) = take(settings, lock, request, None).await? else {
        return Ok(None);
    };
    // After the secret is written: until then the lease ends with this process where the store can tell.
    if let Err(error) = taken.guard.keep().await {
        let failure = settings.failure(&error);
        return Err(failure.note(&given_back(request.name, taken.guard.release().await)));
    }
    if settings.verbose {
        output::tell(&format!(
            "acquired \"{}\" after {}: store {}  namespace {}",
            request.name,
            output::precise(taken.waited),
            settings.place(),
            manager.namespace()
        ));
    }
    Ok(Some(taken))
}

/// Tells where the secret is; a lease of which nobody could be told is given back.
async fn publish(
    settings: &Settings,
    manager: &LockManager,
    lock: &Lock,
    request: &Request<'_>,
    mut taken: Taken,
) -> Result<u8, Failure> {
    let answer = Answer::acquired(manager, &taken, None);
    if let Err(failure) = answer.print(request.arguments.format) {
        return Err(failure.note(&given_back(request.name, lock.release_by(&taken.secret.token).await)));
    }
    taken.secret.stays = true;
    answer.explain(settings, request.arguments.format);
    Ok(exit::DONE)
}

/// What became of a lease that nobody is told of.
fn given_back(name: &str, released: leasehold::Result<()>) -> String {
    match released {
        Err(error) if error.kind() != ErrorKind::NotHeld => {
            format!("\"{name}\" may be held until its ttl is over, since it could not be given back either: {error}")
        }
        _ => format!("\"{name}\" was given back"),
    }
}

fn prepare<'a>(global: &Global, arguments: &'a Acquire) -> Result<(Settings, Request<'a>), Failure> {
    let waiting = &arguments.waiting;
    let flags = config::flags(waiting.nonblock, waiting.wait.as_deref(), arguments.ttl.as_deref())?;
    let settings = Settings::new(global, flags)?;
    let request = Request::new(&settings, arguments)?;
    Ok((settings, request))
}

fn install() -> Result<Signals, Failure> {
    Signals::install().map_err(|error| Failure::new(exit::OS, format!("cannot install signal handlers: {error}")))
}

/// Opens the store; the holder is the process that the lease is held for.
async fn open(
    settings: &Settings,
    arguments: &Acquire,
    renew: Renew,
    about: Option<Pid>,
    renewals: Option<&Renewals>,
) -> Result<LockManager, Failure> {
    let mut builder = settings.open().await?.renew(renew).margin(grace::margin(settings.ttl()));
    builder = match arguments.require_scope {
        Some(Reach::Host) => builder.require_scope(Scope::Host),
        Some(Reach::Network) => builder.require_scope(Scope::Network),
        None => builder,
    };
    if arguments.require_fencing {
        builder = builder.require_fencing(Fencing::Monotonic);
    }
    builder = if arguments.no_holder_info {
        builder.without_holder_info()
    } else {
        let mut info = HolderInfo::default();
        info.host = Some(rustix::system::uname().nodename().to_string_lossy().into_owned());
        info.pid = about.map(|id| id.as_raw_nonzero().get().unsigned_abs());
        info.command = about.and_then(process::program_of);
        builder.holder_info(info)
    };
    if let Some(renewals) = renewals {
        builder = builder.observer(renewals.clone());
    }
    settings.build(builder)
}

fn lock(manager: &LockManager, request: &Request<'_>) -> Lock {
    let mut lock = manager.lock(request.name);
    if let Some(reason) = &request.arguments.reason {
        lock = lock.reason(reason);
    }
    if let Some(label) = &request.label {
        lock = lock.label(label);
    }
    lock
}

/// Waits for the key as asked, and writes the secret; `None` = somebody else holds it.
async fn take(
    settings: &Settings,
    lock: &Lock,
    request: &Request<'_>,
    keeper: Option<&Keeper>,
) -> Result<Option<Taken>, Failure> {
    let clock = Clock::system();
    let asked = clock.now();
    let acquire = async {
        match request.wait {
            Wait::No => lock.try_acquire().await,
            Wait::UpTo(wait) => lock.acquire_within(wait).await,
            _ => lock.acquire().await.map(Some),
        }
    };
    let granted = tokio::select! {
        biased;
        granted = acquire => granted.map_err(|error| settings.failure(&error))?,
        () = busy::announce(lock, request.name, settings.quiet) => None,
    };
    let Some(guard) = granted else {
        return Ok(None);
    };
    let waited = clock.now().since(asked);
    match request.write(guard.owner_token(), keeper) {
        Ok(secret) => Ok(Some(Taken { guard, secret, waited })),
        Err(failure) => {
            guard.release().await.ok();
            Err(failure)
        }
    }
}

/// Says who holds the key, and answers with the code.
async fn busy_code(settings: &Settings, manager: &LockManager, lock: &Lock, request: &Request<'_>) -> u8 {
    if !settings.quiet {
        let holder = lock.holder().await.ok().flatten();
        let code = request.busy_code;
        output::tell_block(&busy::block(settings, manager, request.name, request.wait, code, holder.as_ref()));
    }
    request.busy_code
}
