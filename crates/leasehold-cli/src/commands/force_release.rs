//! `force-release`: an operator removes somebody's lease, after having been shown whose it is.

use std::env;
use std::io::{self, BufRead, Write};
use std::time::Duration;

use leasehold::store::{Entry, Holder, Removed};
use leasehold::{Close, ErrorKind, FencingToken, LockManager};
use rustix::process::Pid;
use serde_json::json;

use super::owner::Owner;
use super::{busy, list, show};
use crate::cli::ForceRelease;
use crate::config::{self, Settings};
use crate::exit::{self, Failure};
use crate::output;
use crate::process;

/// Shows who holds the key, asks, and removes that holder and nobody else.
pub(crate) async fn force_release(settings: &Settings, arguments: &ForceRelease) -> Result<u8, Failure> {
    let older_than = config::length("--older-than", arguments.older_than.as_deref())?.unwrap_or_default();
    let name = arguments.key.as_deref().map(config::key_name).transpose()?;
    let prefix = list::prefix(arguments.all.as_deref())?;
    let manager = settings.build(settings.open().await?)?;
    let removal = Removal { settings, manager: &manager, arguments };
    let ended = match name {
        Some(name) => removal.one(name).await,
        None => removal.all(prefix, older_than).await,
    };
    manager.close(Close::Release).await.ok();
    ended
}

/// How often a removal is asked for again.
const REPEATS: u32 = 2;

#[derive(Clone, Copy, Debug)]
struct Removal<'a> {
    settings: &'a Settings,
    manager: &'a LockManager,
    arguments: &'a ForceRelease,
}

impl Removal<'_> {
    async fn one(self, name: &str) -> Result<u8, Failure> {
        let Self { settings, manager, .. } = self;
        let holder = manager.holder(name).await.map_err(|error| settings.failure(&error))?;
        let Some(holder) = holder else {
            if !settings.quiet {
                let place = busy::store(settings, manager);
                output::tell_block(&format!(
                    "\"{name}\" is free: there is nothing to remove (exit {})\n{place}",
                    exit::NO
                ));
            }
            return Ok(exit::NO);
        };
        output::tell_block(&format!(
            "\"{name}\" is held\n{}{}  you      {}\n",
            output::holder_block(&holder),
            busy::store(settings, manager),
            you(name, &holder)
        ));
        self.ask("the key", name)?;
        self.remove(name, &holder).await.map(|()| exit::DONE)
    }

    async fn all(self, prefix: &str, older_than: Duration) -> Result<u8, Failure> {
        let Self { settings, manager, .. } = self;
        let namespace = manager.namespace();
        let is_old =
            |holder: &Holder| older_than.is_zero() || holder.since.is_some_and(|since| output::ago(since) > older_than);
        let mut entries = list::entries(settings, manager, prefix).await?;
        for entry in &mut entries {
            entry.holders.retain(is_old);
        }
        entries.retain(|entry| !entry.holders.is_empty());
        if entries.is_empty() {
            if !settings.quiet {
                let place = busy::store(settings, manager);
                output::tell_block(&format!("nothing to remove (exit {})\n{place}", exit::NO));
            }
            return Ok(exit::NO);
        }
        let place = busy::store(settings, manager);
        output::tell_block(&format!("these are held\n{}{place}", list::table(namespace, &entries)));
        if prefix.is_empty() {
            self.ask("the word", "all")?
        } else {
            self.ask("the prefix", prefix)?
        }
        let mut changed = 0;
        for (entry, holder) in entries.iter().flat_map(|entry: &Entry| entry.holders.iter().map(move |it| (entry, it)))
        {
            match self.remove(&list::name(namespace, entry), holder).await {
                // Those are given back or held by others by now; the rest is still to be removed.
                Err(failure) if failure.code == exit::REFUSED => {
                    changed += 1;
                    output::tell(&failure.message);
                }
                removed => removed?,
            }
        }
        Ok(if changed == 0 { exit::DONE } else { exit::REFUSED })
    }

    /// Has the operator type a word, so that no slip of the hand removes anything.
    fn ask(self, what: &str, word: &str) -> Result<(), Failure> {
        if self.arguments.yes {
            return Ok(());
        }
        let mut stderr = io::stderr().lock();
        let asked = write!(stderr, "Type {what} to remove it: ").and_then(|()| stderr.flush());
        drop(stderr);
        let mut typed = String::new();
        let read = asked.and_then(|()| io::stdin().lock().read_line(&mut typed));
        if read.is_ok() && typed.trim_end_matches(['\r', '\n']) == word {
            return Ok(());
        }
        Err(Failure::new(
            exit::REFUSED,
            format!("{what} was not typed as it is, nothing was removed: try again, or say --yes"),
        ))
    }

    /// Removes the holder that was shown, and nobody else.
    async fn remove(self, name: &str, holder: &Holder) -> Result<(), Failure> {
        let Self { settings, manager, arguments } = self;
        let Some(removed) = self.removed(name, holder).await? else {
            return Err(Failure::new(
                exit::REFUSED,
                format!(
                    "\"{name}\" is not held any more by the holder that was shown, nothing was removed: look again with \
                     leasehold{} show {}",
                    settings.options_again(),
                    output::quoted(name)
                ),
            ));
        };
        self.tell(name, holder, &removed);
        let floor = removed.fence_floor.map(FencingToken::get);
        if arguments.json {
            let object = json!({
                "schema": "leasehold.force-release/1",
                "key": name,
                "namespace": manager.namespace(),
                "holder": show::as_json(holder),
                "fence_floor": floor,
                "reason": arguments.reason,
            });
            return output::print(&format!("{object}\n"));
        }
        let fence = floor.map_or_else(
            || "this store has no fencing tokens to tell the holder by".to_owned(),
            |floor| format!("let the resource refuse fencing tokens up to {floor}"),
        );
        output::print(&format!(
            "removed the lease on \"{name}\"\n  fence    {fence}\n  holder   may be at work until its next renewal fails\n"
        ))
    }

    /// Removes a holder; `None` = somebody else has the key, or nobody. It is asked again if the answer was lost, which can
    /// meet nobody else.
    async fn removed(self, name: &str, holder: &Holder) -> Result<Option<Removed>, Failure> {
        let Self { settings, manager, .. } = self;
        let failed = |error| settings.failure(&error);
        let mut lost = 0;
        loop {
            match manager.force_release(name, Some(&holder.owner)).await {
                Err(error) if error.kind() == ErrorKind::Indeterminate && lost < REPEATS => lost += 1,
                // By a request whose answer was lost, or else it has ended: it is not there any more.
                Ok(None) if lost > 0 => {
                    let removed = Removed::new(vec![holder.clone()]);
                    return Ok(Some(holder.fencing.map_or(removed.clone(), |token| removed.fence_floor(token))));
                }
                removed => return removed.map_err(failed),
            }
        }
    }

    /// The record of who removed what, and why.
    fn tell(self, name: &str, holder: &Holder, removed: &Removed) {
        let reason = self.arguments.reason.as_deref().map(output::clean);
        let reason = reason.map_or_else(String::new, |reason| format!("; reason: {reason}"));
        let floor = removed.fence_floor.map_or_else(String::new, |floor| format!("; fence {floor}"));
        output::tell(&format!(
            "force-released \"{name}\", held by {}{floor}{reason}",
            output::holder_in_a_line(holder)
        ));
    }
}

/// Whether the holder has to do with whoever asks.
fn you(name: &str, holder: &Holder) -> String {
    if Owner::find(None).is_ok_and(|owner| owner.token == holder.owner) {
        return format!("this is you: you have its owner token; leasehold release {} is enough", output::quoted(name));
    }
    let inherited = env::var("LEASEHOLD_FENCING_TOKEN").ok().and_then(|token| token.parse().ok());
    if env::var("LEASEHOLD_KEY").is_ok_and(|key| key == name)
        && inherited.is_some()
        && holder.fencing.map(FencingToken::get) == inherited
    {
        return "this is you: the run that started this command".to_owned();
    }
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    match holder.info.pid.filter(|_| holder.info.host.as_ref() == Some(&host)) {
        Some(pid) if process::is_ancestor(pid) => format!("this is you: process {pid} started this command"),
        Some(pid) => {
            let lives = i32::try_from(pid).ok().and_then(Pid::from_raw).and_then(process::start_of).is_some();
            let state = if lives { "runs" } else { "does not run any more" };
            format!("not you: process {pid} of this host, which {state}")
        }
        None => "not you".to_owned(),
    }
}
