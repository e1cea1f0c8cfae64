//! `list`: what is held.

use std::ffi::OsStr;

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use leasehold::store::{Entry, Holder, Page};
use leasehold::{Close, Key, LockManager};
use serde_json::json;

use super::show;
use super::watch::watch;
use crate::cli::List;
use crate::config::Settings;
use crate::exit::{self, Failure};
use crate::output;

/// How many keys are asked for at a time.
const PAGE: usize = 500;

/// Prints every held key that starts with the prefix.
pub(crate) async fn list(settings: &Settings, arguments: &List) -> Result<u8, Failure> {
    let prefix = prefix(arguments.prefix.as_deref())?;
    let manager = settings.build(settings.open().await?)?;
    let look = async || {
        let entries = entries(settings, &manager, prefix).await?;
        Ok((text(settings, &manager, &entries, arguments), exit_code(arguments, &entries)))
    };
    let code = watch(arguments.watch.as_deref(), look).await;
    manager.close(Close::Release).await.ok();
    code
}

/// A prefix of keys as it was typed.
pub(super) fn prefix(typed: Option<&OsStr>) -> Result<&str, Failure> {
    typed
        .unwrap_or_default()
        .to_str()
        .ok_or_else(|| Failure::new(exit::DATA, "invalid prefix: it is not UTF-8: encode it"))
}

/// Every held key that starts with the prefix.
pub(super) async fn entries(settings: &Settings, manager: &LockManager, prefix: &str) -> Result<Vec<Entry>, Failure> {
    let mut entries = Vec::new();
    let mut page = Page::first(PAGE);
    loop {
        let listing = manager.list(prefix, page).await.map_err(|error| settings.failure(&error))?;
        entries.extend(listing.entries);
        match listing.next {
            Some(next) => page = Page::after(next, PAGE),
            None => return Ok(entries),
        }
    }
}

fn exit_code(arguments: &List, entries: &[Entry]) -> u8 {
    if entries.is_empty() && arguments.exit_code { exit::NO } else { exit::DONE }
}

fn text(settings: &Settings, manager: &LockManager, entries: &[Entry], arguments: &List) -> String {
    let namespace = manager.namespace();
    if arguments.json {
        return entries.iter().map(|entry| line(namespace, entry)).collect();
    }
    if entries.is_empty() {
        let nothing = format!("nothing is held: store {}  namespace {namespace}", settings.place());
        // A watch is looked at, and what it shows would stay as it was.
        if arguments.watch.is_some() {
            return nothing + "\n";
        }
        if !settings.quiet {
            output::tell(&nothing);
        }
        return String::new();
    }
    if settings.verbose {
        output::tell(&format!("store {}  namespace {namespace}", settings.place()));
    }
    table(namespace, entries)
}

fn line(namespace: &str, entry: &Entry) -> String {
    let object = json!({
        "schema": "leasehold.list/1",
        "key": name(namespace, entry),
        "namespace": namespace,
        "holders": entry.holders.iter().map(show::as_json).collect::<Vec<_>>(),
    });
    format!("{object}\n")
}

/// For people.
pub(super) fn table(namespace: &str, entries: &[Entry]) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(["KEY", "HOLDER", "PID", "HELD", "LEASE", "FENCE", "REASON"]);
    for entry in entries {
        for holder in &entry.holders {
            table.add_row(row(&name(namespace, entry), holder));
        }
    }
    output::lines(&table)
}

fn row(name: &str, holder: &Holder) -> [String; 7] {
    let dash = || "-".to_owned();
    [
        output::clean(name),
        output::name(holder),
        holder.info.pid.map_or_else(dash, |pid| pid.to_string()),
        holder.since.map_or_else(dash, |since| output::words(output::ago(since))),
        holder.remaining.map_or_else(dash, output::words),
        holder.fencing.map_or_else(dash, |token| token.to_string()),
        holder.info.reason.as_deref().map(output::clean).unwrap_or_default(),
    ]
}

/// The name without its namespace; keys that other clients wrote may have any form and are shown as stored.
pub(super) fn name(namespace: &str, entry: &Entry) -> String {
    Key::from_stored(namespace, &entry.key).map_or_else(|| entry.key.clone(), |key| key.name().to_owned())
}
