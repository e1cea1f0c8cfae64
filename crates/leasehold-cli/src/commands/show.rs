//! `show`: who holds a key.

use leasehold::Close;
use leasehold::store::Holder;
use serde_json::{Value, json};

use crate::cli::Show;
use crate::config::{self, Settings};
use crate::exit::{self, Failure};
use crate::output;

/// Prints who holds the key.
pub(crate) async fn show(settings: &Settings, arguments: &Show) -> Result<u8, Failure> {
    let name = config::key_name(&arguments.key)?;
    let manager = settings.build(settings.open().await?)?;
    let inspection = manager.inspect(name).await.map_err(|error| settings.failure(&error))?;
    manager.close(Close::Release).await.ok();
    let held = !inspection.holders.is_empty();
    let text = if arguments.json {
        let object = json!({
            "schema": "leasehold.show/1",
            "key": name,
            "namespace": manager.namespace(),
            "held": held,
            "holders": inspection.holders.iter().map(as_json).collect::<Vec<_>>(),
        });
        format!("{object}\n")
    } else {
        let place = format!("  store    {}  namespace {}\n", settings.place(), manager.namespace());
        if held {
            let blocks: String = inspection.holders.iter().map(block).collect();
            format!("\"{name}\" is held\n{blocks}{place}")
        } else {
            format!("\"{name}\" is free\n{place}")
        }
    };
    output::print(&text)?;
    Ok(if held { exit::DONE } else { exit::NO })
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
