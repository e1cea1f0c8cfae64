//! `show`: who holds a key.

use leasehold::store::Holder;
use leasehold::{Close, LockManager};
use serde_json::{Value, json};

use super::busy;
use super::watch::watch;
use crate::cli::Show;
use crate::config::{self, Settings};
use crate::exit::{self, Failure};
use crate::output;

/// Prints who holds the key.
pub(crate) async fn show(settings: &Settings, arguments: &Show) -> Result<u8, Failure> {
    let name = config::key_name(&arguments.key)?;
    let manager = settings.build(settings.open().await?)?;
    let look = async || {
        let inspection = manager.inspect(name).await.map_err(|error| settings.failure(&error))?;
        let code = if inspection.holders.is_empty() { exit::NO } else { exit::DONE };
        Ok((text(settings, &manager, name, &inspection.holders, arguments.json), code))
    };
    let code = watch(arguments.watch.as_deref(), look).await;
    manager.close(Close::Release).await.ok();
    code
}

fn text(settings: &Settings, manager: &LockManager, name: &str, holders: &[Holder], json: bool) -> String {
    let held = !holders.is_empty();
    if json {
        let object = json!({
            "schema": "leasehold.show/1",
            "key": name,
            "namespace": manager.namespace(),
            "held": held,
            "holders": holders.iter().map(as_json).collect::<Vec<_>>(),
        });
        return format!("{object}\n");
    }
    let place = busy::store(settings, manager);
    if held {
        let blocks: String = holders.iter().map(block).collect();
        format!("\"{name}\" is held\n{blocks}{place}")
    } else {
        format!("\"{name}\" is free\n{place}")
    }
}

fn block(holder: &Holder) -> String {
    let fencing = holder.fencing.map_or_else(|| "none".to_owned(), |token| token.to_string());
    format!("{}  fencing  {fencing}   owner fingerprint {}\n", output::holder_block(holder), holder.owner.fingerprint())
}

/// A holder as the JSON schemas tell it; what is not known is null.
pub(super) fn as_json(holder: &Holder) -> Value {
    let info = &holder.info;
    json!({
        "host": info.host,
        "pid": info.pid,
        "command": info.command,
        "label": info.label,
        "reason": info.reason,
        "since": holder.since.and_then(output::rfc3339),
        "held_ms": holder.since.map(|since| output::millis(output::ago(since))),
        "renewed": holder.renewed.and_then(output::rfc3339),
        "remaining_ms": holder.remaining.map(output::millis),
        "fencing": holder.fencing.map(leasehold::FencingToken::get),
        "owner_fingerprint": holder.owner.fingerprint(),
    })
}
