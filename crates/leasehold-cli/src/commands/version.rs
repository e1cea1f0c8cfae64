//! `version`.

use leasehold::config::schemes;
use serde_json::json;

use crate::cli::Version;
use crate::exit::{self, Failure};
use crate::output;

/// Prints the version.
pub(crate) fn version(arguments: &Version) -> Result<u8, Failure> {
    let version = env!("CARGO_PKG_VERSION");
    let text = if arguments.json {
        let stores: Vec<_> = schemes().filter(|(_, compiled)| *compiled).map(|(name, _)| name).collect();
        let (system, machine) = (std::env::consts::OS, std::env::consts::ARCH);
        let object = json!({
            "schema": "leasehold.version/1",
            "version": version,
            "system": system,
            "machine": machine,
            "stores": stores,
        });
        format!("{object}\n")
    } else {
        format!("leasehold {version}\n")
    };
    output::print(&text).map(|()| exit::DONE)
}
