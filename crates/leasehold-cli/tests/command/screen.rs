//! What people on a terminal see of the operator's commands.

use crate::across::owner_files;
use crate::support::{BINARY, Place, wait_until};
use crate::terminal_support::Terminal;

fn on_80_columns(place: &Place, script: &str) -> Terminal {
    let script = format!("leasehold() {{ '{BINARY}' \"$@\"; }}; stty cols 80 -onlcr; {script}");
    Terminal::start(place, &["sh", "-c", &script])
}

#[test]
fn people_are_told_how_to_end_what_they_have() {
    let place = Place::new();
    for (command, part) in [
        ("leasehold hold deploy --for 1h --reason 'a freeze'", "\"deploy\" is held for 1h, fencing token "),
        ("leasehold acquire kept --keeper=$$", "\"kept\" is held and kept by process "),
    ] {
        let terminal = on_80_columns(&place, command);
        terminal.expect(part);
        terminal.expect("  end it   leasehold release ");
        assert_eq!(terminal.finish().0, Some(0));
    }
    wait_until("only one is held", || owner_files(&place) == 1);
    let terminal = on_80_columns(&place, "leasehold release deploy -v --owner-file state/leasehold/owners/*");
    terminal.expect("\"deploy\" was given back");
}

#[test]
fn a_table_fits_80_columns() {
    let place = Place::new();
    let reason = "a reason that goes on and on and on until nobody reads it any more, and then some";
    place.run(["hold", "import:nightly", "--for", "1h", "--reason", reason]).expect(0);
    let terminal = on_80_columns(&place, "leasehold list; echo e''nd");
    terminal.expect("end");
    let shown = terminal.shown();
    assert!(shown.contains("import:nightly") && shown.contains("a reason"), "{shown}");
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    // Programs that read a table get all of it.
    assert!(place.run(["list"]).expect(0).stdout.contains(reason));
}

#[test]
fn a_removal_is_typed_on_the_terminal() {
    let place = Place::new();
    place.run(["acquire", "k", "--ttl", "1h"]).expect(0);
    let terminal = on_80_columns(&place, "leasehold force-release k");
    terminal.expect("Type the key to remove it: ");
    terminal.type_in("k\n");
    assert_eq!(terminal.finish().0, Some(0));
    assert!(place.is_free("k"));
}

#[test]
fn a_watch_repaints_the_screen() {
    let place = Place::new();
    // Whoever started this may ignore the signal, which would be inherited.
    let terminal = on_80_columns(&place, &format!("env --default-signal=INT '{BINARY}' show k --watch=100ms"));
    terminal.expect_times("\x1b[H\x1b[2J\"k\" is free", 3);
    terminal.type_in("\x03");
    terminal.finish();
}
