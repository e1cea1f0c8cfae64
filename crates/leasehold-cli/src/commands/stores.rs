//! `stores`: what is compiled in.

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use leasehold::config::schemes;
use serde_json::json;

use crate::cli::Stores;
use crate::exit::{self, Failure};
use crate::output;

/// What is said about each scheme: an example, and what it is.
const ABOUT: [(&str, &str, &str); 3] = [
    ("memory", "memory:", "one process; this command refuses it"),
    ("noop", "noop:", "excludes nobody, for tests"),
    ("sqlite", "sqlite:///path", "a file: the processes of one machine"),
];

/// Prints the schemes of store URLs.
pub(crate) fn stores(arguments: &Stores) -> Result<u8, Failure> {
    let about = |scheme: &str| ABOUT.iter().find(|(known, ..)| *known == scheme).map(|(_, url, what)| (*url, *what));
    let text = if arguments.json {
        let stores: Vec<_> = schemes()
            .iter()
            .map(|(scheme, compiled)| json!({"scheme": scheme, "compiled": compiled, "url": about(scheme).map(|it| it.0)}))
            .collect();
        format!("{}\n", json!({"schema": "leasehold.stores/1", "stores": stores}))
    } else {
        let mut table = Table::new();
        table.load_style(NOTHING).set_header(["SCHEME", "URL", "WHAT"]);
        for (scheme, compiled) in schemes() {
            let (url, what) = about(scheme).unwrap_or(("", ""));
            let what = if *compiled { what } else { "not compiled in" };
            table.add_row([*scheme, url, what]);
        }
        output::lines(&mut table)
    };
    output::print(&text).map(|()| exit::DONE)
}
