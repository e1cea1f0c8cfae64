//! `list`: what is held.

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use leasehold::store::{Entry, Holder, Page};
use leasehold::{Close, Key};
use serde_json::json;

use super::show;
use crate::cli::List;
use crate::config::Settings;
use crate::exit::{self, Failure};
use crate::output;

/// How many keys are asked for at a time.
const PAGE: usize = 500;

/// Prints every held key that starts with the prefix.
pub(crate) async fn list(settings: &Settings, arguments: &List) -> Result<u8, Failure> {
    let prefix = match arguments.prefix.as_deref() {
        None => "",
        Some(prefix) => {
            prefix.to_str().ok_or_else(|| Failure::new(exit::DATA, "invalid prefix: it is not UTF-8: encode it"))?
        }
    };
    let manager = settings.build(settings.open().await?)?;
    let mut entries = Vec::new();
    let mut page = Page::first(PAGE);
    loop {
        let listing = manager.list(prefix, page).await.map_err(|error| settings.failure(&error))?;
        entries.extend(listing.entries);
        match listing.next {
            Some(next) => page = Page::after(next, PAGE),
            None => break,
        }
    }
    manager.close(Close::Release).await.ok();
    let namespace = manager.namespace();
    if arguments.json {
        output::print(&entries.iter().map(|entry| line(namespace, entry)).collect::<String>())?;
    } else if entries.is_empty() {
        if !settings.quiet {
            output::tell(&format!("nothing is held: store {}  namespace {namespace}", settings.place()));
        }
    } else {
        output::print(&table(namespace, &entries))?;
        if settings.verbose {
            output::tell(&format!("store {}  namespace {namespace}", settings.place()));
        }
    }
    Ok(if entries.is_empty() && arguments.exit_code { exit::NO } else { exit::DONE })
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

fn table(namespace: &str, entries: &[Entry]) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(["KEY", "HOLDER", "PID", "HELD", "LEASE", "FENCE", "REASON"]);
    for entry in entries {
        for holder in &entry.holders {
            table.add_row(row(&name(namespace, entry), holder));
        }
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
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
fn name(namespace: &str, entry: &Entry) -> String {
    Key::from_stored(namespace, &entry.key).map_or_else(|| entry.key.clone(), |key| key.name().to_owned())
}
