//! What people read: colours where they are wanted, lines that fit, errors that say what, why and what next.

use crate::support::{BINARY, Place};
use crate::terminal_support::Terminal;

/// What a script shows on a terminal of 80 columns that has colours.
fn shown(place: &Place, script: &str) -> String {
    let script = format!("leasehold() {{ '{BINARY}' \"$@\"; }}; stty cols 80 -onlcr; TERM=xterm; {script}; echo e''nd");
    let terminal = Terminal::start(place, &["sh", "-c", &script]);
    terminal.expect("end\n");
    terminal.finish().1
}

#[test]
fn colours_are_for_terminals_only() {
    let place = Place::new();
    place.run(["acquire", "k", "--ttl", "1h"]).expect(0);
    for (command, coloured) in [
        ("leasehold doctor -s noop:", "\x1b[31mfail \x1b[0m exclude"),
        ("leasehold run k -n -- true", "\x1b[33mleasehold:\x1b[0m busy: \"k\" is held"),
        ("leasehold list", "\x1b[1mKEY  HOLDER"),
        ("leasehold list -s nosuch:", "\x1b[31mleasehold:\x1b[0m unknown store"),
        ("leasehold list nothing", "\x1b[1mleasehold:\x1b[0m nothing is held"),
    ] {
        // Empty, it says nothing.
        let with = shown(&place, &format!("export NO_COLOR=; {command}"));
        assert!(with.contains(coloured), "{command}: {with}");
        let without = format!(
            "(export NO_COLOR=1; {command}); (export TERM=dumb; {command}); (unset TERM; {command}); \
             {command} >out 2>&1; cat out"
        );
        let without = shown(&place, &without);
        assert!(!without.contains('\x1b'), "{command}: {without}");
    }
    let json = shown(&place, "leasehold list -s nosuch: --log-format json");
    assert!(json.contains("\"level\":\"error\"") && !json.contains('\x1b'), "{json}");
    // Help has none anywhere.
    assert!(!shown(&place, "leasehold --help; leasehold run --help").contains('\x1b'));
}

#[test]
fn numbers_are_whole_at_80_columns() {
    let place = Place::new();
    let key = "import:customers:of:the:whole:group:2026-11-30";
    let reason = "a reason that goes on and on and on until nobody reads it any more, and then some";
    place.run(["hold", key, "--for", "1h", "--reason", reason]).expect(0);
    let text = shown(&place, "export NO_COLOR=1; leasehold list");
    let fence = place.run(["list"]).expect(0).stdout;
    let fence = fence.lines().nth(1).unwrap().split_whitespace().nth(5).unwrap();
    let row = text.lines().find(|line| line.starts_with("import:customers")).unwrap();
    assert!(row.contains(&format!("  {fence}  a reason")) && row.matches('…').count() == 2, "{text}");
    // A program, or a pipe, gets all of it.
    let piped = place.run(["list"]).expect(0).stdout;
    assert!(piped.contains(key) && piped.contains(reason), "{piped}");
}

#[test]
fn what_is_shown_fits_80_columns() {
    let place = Place::new();
    for command in [
        "list",
        "stores",
        "config show",
        "bench --count 20",
        "doctor",
        "doctor -s noop:",
        "doctor -s redis://127.0.0.1:1",
    ] {
        let text = shown(&place, &format!("export NO_COLOR=1; leasehold {command} 2>/dev/null"));
        // A temporary directory has a name of any length; the bar of the bench is written over.
        let long = |line: &&str| line.chars().count() > 80 && !line.contains("sqlite://") && !line.contains('\r');
        assert_eq!(text.lines().find(long), None, "{command}: {text}");
    }
}
