//! `config show`: what the settings are, and where each was said.

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use leasehold::config::{Setting, Source};
use serde_json::{Value, json};

use crate::cli::{ConfigShow, Global};
use crate::config::{Said, place};
use crate::exit::{self, Failure};
use crate::output;

/// Prints every setting; if they do not go together, that is said afterwards.
pub(crate) fn show(global: &Global, arguments: &ConfigShow) -> Result<u8, Failure> {
    let said = Said::gather(global, leasehold::config::Config::default())?;
    let mut settings = said.config.describe();
    for setting in settings.iter_mut().filter(|setting| setting.name == "store") {
        setting.value = said.config.url().map(place);
    }
    if arguments.json {
        let files: Vec<_> =
            said.files.iter().map(|(path, found)| json!({"path": path.to_string_lossy(), "found": found})).collect();
        let object = json!({
            "schema": "leasehold.config/1",
            "settings": settings.iter().map(as_json).collect::<Vec<_>>(),
            "files": files,
        });
        output::print(&format!("{object}\n"))?;
    } else {
        output::print(&table(&settings))?;
        for (path, found) in &said.files {
            let state = if *found { "read" } else { "not there" };
            output::print(&format!("{}: {state}\n", output::clean(&path.display().to_string())))?;
        }
    }
    said.config.resolve().map_err(|error| Failure::from_error(&error, false))?;
    Ok(exit::DONE)
}

fn table(settings: &[Setting]) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(["NAME", "VALUE", "SOURCE"]);
    for setting in settings {
        let value = match setting.value.as_deref() {
            None => "-".to_owned(),
            Some("") => "\"\"".to_owned(),
            Some(value) => output::clean(value),
        };
        table.add_row([setting.name.to_owned(), value, output::clean(&setting.source.to_string())]);
    }
    output::lines(&table)
}

fn as_json(setting: &Setting) -> Value {
    let (source, from) = match &setting.source {
        Source::Flag => ("flag", None),
        Source::Environment(name) => ("environment", Some(name.to_string())),
        Source::File(path) => ("file", Some(path.display().to_string())),
        Source::Url => ("url", None),
        _ => ("default", None),
    };
    json!({"name": setting.name, "value": setting.value, "source": source, "from": from})
}
