//! `stores`: what is compiled in.

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use leasehold::config::schemes;
use serde_json::json;

use crate::cli::Stores;
use crate::exit::{self, Failure};
use crate::output;

/// What is said about each scheme: an example, and what it is.
const ABOUT: [(&str, &str, &str); 13] = [
    ("memory", "memory:", "one process; this command refuses it"),
    ("noop", "noop:", "excludes nobody, for tests"),
    ("sqlite", "sqlite:///path", "a file: the processes of one machine"),
    ("redis", "redis://host/0", "a Redis or Valkey server"),
    ("rediss", "rediss://host/0", "the same, encrypted"),
    ("redis+unix", "redis+unix:///path", "the same, by a socket"),
    ("redis+cluster", "redis+cluster://a,b", "a cluster"),
    ("rediss+cluster", "rediss+cluster://a,b", "the same, encrypted"),
    ("redis+sentinel", "redis+sentinel://a,b/name", "the primary that sentinels know"),
    ("rediss+sentinel", "rediss+sentinel://a,b/name", "the same, encrypted"),
    ("postgres", "postgres://host/db", "a table of PostgreSQL"),
    ("postgresql", "postgresql://host/db", "the same"),
    ("redlock", "redlock://a,b,c", "a majority of independent servers"),
];

/// Prints the schemes of store URLs.
pub(crate) fn stores(arguments: &Stores) -> Result<u8, Failure> {
    let about = |scheme: &str| ABOUT.iter().find(|(known, ..)| *known == scheme).map(|(_, url, what)| (*url, *what));
    let text = if arguments.json {
        let stores: Vec<_> = schemes()
            .map(|(scheme, compiled)| json!({"scheme": scheme, "compiled": compiled, "url": about(scheme).map(|it| it.0)}))
            .collect();
        format!("{}\n", json!({"schema": "leasehold.stores/1", "stores": stores}))
    } else {
        let mut table = Table::new();
        table.load_style(NOTHING).set_header(["SCHEME", "URL", "WHAT"]);
        for (scheme, compiled) in schemes() {
            let (url, what) = about(scheme).unwrap_or(("", ""));
            let what = if compiled { what } else { "not compiled in" };
            table.add_row([scheme, url, what]);
        }
        output::lines(&table)
    };
    output::print(&text).map(|()| exit::DONE)
}
