//! `man`: the pages of the manual, made from the same definition as the help.

use std::fs;
use std::io;

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::cli::{self, Manual};
use crate::exit::{self, Failure, TABLE};
use crate::output;

/// Prints one page, or writes all of them.
pub(crate) fn man(arguments: &Manual) -> Result<u8, Failure> {
    let mut all = cli::definition().disable_help_subcommand(true);
    all.build();
    let Some(directory) = &arguments.write else {
        let page = arguments.page.iter().try_fold(&all, |command, name| command.find_subcommand(name));
        let page = page.ok_or_else(|| {
            let name = output::clean(&arguments.page.join(" "));
            Failure::new(exit::USAGE, format!("there is no page \"{name}\": it is no subcommand; see leasehold --help"))
        })?;
        return output::print(&render(page)).map(|()| exit::DONE);
    };
    for page in pages(&all) {
        let path = directory.join(format!("{}.1", name(page)));
        fs::write(&path, render(page)).map_err(|error| {
            let path = output::clean(&path.display().to_string());
            Failure::new(exit::CANT_CREATE, format!("cannot write {path}: {error}; name a directory of yours"))
        })?;
    }
    Ok(exit::DONE)
}

/// A command and everything below it.
fn pages(command: &Command) -> Vec<&Command> {
    let below = command.get_subcommands().filter(|command| !command.is_hide_set()).flat_map(pages);
    std::iter::once(command).chain(below).collect()
}

/// What the page is called: `leasehold-run`.
fn name(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

fn render(command: &Command) -> String {
    let page = Man::new(command.clone());
    let mut text = title(name(command)).into_bytes();
    // Nothing fails on the way to memory.
    sections(&page, command, &mut text).ok();
    String::from_utf8_lossy(&text).into_owned()
}

/// The first line; without a date, which would have to be kept by hand.
fn title(name: &str) -> String {
    format!(".TH \"{name}\" \"1\" \"\" \"leasehold {}\" \"Leasehold\"\n", env!("CARGO_PKG_VERSION"))
}

fn sections(page: &Man, command: &Command, text: &mut Vec<u8>) -> io::Result<()> {
    page.render_name_section(text)?;
    synopsis(command).to_writer(text)?;
    page.render_description_section(text)?;
    page.render_options_section(text)?;
    if command.has_subcommands() {
        page.render_subcommands_section(text)?;
    }
    let mut rest = Roff::new();
    examples(&mut rest, &command.get_after_help().map(ToString::to_string).unwrap_or_default());
    // Those that run something end with most of the codes, the others with a few.
    if ["leasehold", "leasehold-run", "leasehold-resume", "leasehold-cron", "leasehold-elect"].contains(&name(command))
    {
        exit_status(&mut rest);
    }
    see_also(&mut rest, command);
    rest.to_writer(text)
}

/// As the help has it: all options by name would say less.
fn synopsis(command: &Command) -> Roff {
    let usage = command.clone().render_usage().to_string();
    let mut page = Roff::new();
    page.control("SH", ["SYNOPSIS"]);
    page.text([roman(usage.trim_start_matches("Usage: "))]);
    page
}

/// The examples as they stand, and what is said beside them as text.
fn examples(page: &mut Roff, help: &str) {
    page.control("SH", ["EXAMPLES"]);
    let mut is_code = false;
    for line in help.lines().filter(|line| *line != "Examples:") {
        let indented = line.starts_with("  ");
        if !line.is_empty() && indented != is_code {
            page.control(if indented { "nf" } else { "fi" }, []);
            is_code = indented;
        }
        match line {
            "" if is_code => page.text([roman("")]),
            "" => page.control("PP", []),
            _ => page.text([roman(line)]),
        };
    }
    if is_code {
        page.control("fi", []);
    }
}

fn exit_status(page: &mut Roff) {
    page.control("SH", ["EXIT STATUS"]);
    for row in &TABLE {
        page.control("TP", []);
        page.text([bold(row.label())]);
        page.text([roman(row.plain())]);
    }
}

fn see_also(page: &mut Roff, command: &Command) {
    page.control("SH", ["SEE ALSO"]);
    let others = match name(command) {
        "leasehold" => "flock(1), crontab(5), systemd.service(5)",
        "leasehold-run" => "leasehold(1), leasehold-acquire(1), leasehold-show(1)",
        "leasehold-acquire" => "leasehold(1), leasehold-release(1), leasehold-extend(1), leasehold-resume(1)",
        _ => "leasehold(1)",
    };
    page.text([roman(others)]);
}
