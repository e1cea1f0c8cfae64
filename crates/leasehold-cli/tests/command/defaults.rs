//! The command and the library, both on their defaults, are one world.

use std::process::Command;

use leasehold::{Close, LockManager};

use crate::support::{Place, wait_until};

/// Not a test of its own: takes `shared` as the library does, on the default file of its environment, until `go` exists.
#[test]
#[ignore = "is started by others"]
fn library_side() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let locks = LockManager::connect("sqlite:").await.unwrap();
        match locks.lock("shared").try_acquire().await.unwrap() {
            None => answer("busy\n"),
            Some(guard) => {
                answer("held\n");
                while !std::path::Path::new("go").exists() {
                    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
                }
                guard.release().await.unwrap();
            }
        }
        locks.close(Close::Release).await.unwrap();
    });
}

/// Appears whole.
fn answer(text: &str) {
    std::fs::write("answer.new", text).unwrap();
    std::fs::rename("answer.new", "answer").unwrap();
}

fn library(place: &Place) -> Command {
    let test = std::env::current_exe().unwrap();
    let mut command =
        place.program([test.as_os_str(), "--exact".as_ref(), "defaults::library_side".as_ref(), "--ignored".as_ref()]);
    on_defaults(place, &mut command);
    command
}

/// Takes away what a test's environment says about the store; the state directory stands for that of the user, which
/// is one for all tests.
fn on_defaults(place: &Place, command: &mut Command) {
    command.env_remove("LEASEHOLD_STORE").env("XDG_STATE_HOME", place.path("state"));
}

#[test]
fn the_library_excludes_the_command() {
    let place = Place::new();
    let first = place.start(library(&place));
    wait_until("the library has answered", || place.path("answer").exists());
    assert_eq!(place.read("answer"), "held\n");
    let run = |options: &[&str]| {
        let mut command = place.command([&["run", "shared"], options, &["--", "true"]].concat());
        on_defaults(&place, &mut command);
        place.start(command).finish()
    };
    run(&["-n"]).expect(75);
    std::fs::write(place.path("go"), "").unwrap();
    first.finish().expect(0);
    run(&["-w", "50"]).expect(0);
}

#[test]
fn the_command_excludes_the_library() {
    let place = Place::new();
    let mut command = place.command(["run", "shared", "-c", "touch up; while [ ! -e go ]; do sleep 0.02; done"]);
    on_defaults(&place, &mut command);
    let first = place.start(command);
    wait_until("the command runs", || place.path("up").exists());
    place.start(library(&place)).finish().expect(0);
    assert_eq!(place.read("answer"), "busy\n");
    std::fs::write(place.path("go"), "").unwrap();
    first.finish().expect(0);
}
