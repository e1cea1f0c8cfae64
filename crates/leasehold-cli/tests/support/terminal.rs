//! A pseudo-terminal with a program on it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};

use crate::support::{BINARY, Place, wait_until};

/// A session of its own with a program on a terminal, which is hung up with it.
#[derive(Debug)]
pub(crate) struct Terminal {
    keyboard: File,
    shown: Arc<Mutex<Vec<u8>>>,
    child: Child,
}

impl Terminal {
    /// Runs a program as the first process of the session.
    pub(crate) fn start(place: &Place, arguments: &[&str]) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let keyboard = openpt(flags).unwrap();
        grantpt(&keyboard).unwrap();
        unlockpt(&keyboard).unwrap();
        let screen: OwnedFd = ioctl_tiocgptpeer(&keyboard, flags).unwrap();
        let mut command: Command = place.program(["setsid", "--ctty"].iter().chain(arguments));
        let child = command
            .env("TERM", "dumb")
            .env("PS1", "ready> ")
            .stdin(screen.try_clone().unwrap())
            .stdout(screen.try_clone().unwrap())
            .stderr(Stdio::from(screen))
            .spawn()
            .unwrap();
        let shown = Arc::new(Mutex::new(Vec::new()));
        let (mut source, sink) = (File::from(keyboard.try_clone().unwrap()), Arc::clone(&shown));
        // Ends when the last of the session has closed the terminal.
        thread::spawn(move || {
            let mut some = [0; 1024];
            while let Ok(length @ 1..) = source.read(&mut some) {
                sink.lock().unwrap().extend_from_slice(&some[..length]);
            }
        });
        Self { keyboard: keyboard.into(), shown, child }
    }

    /// Runs `leasehold` as the first process of the session.
    pub(crate) fn run(place: &Place, arguments: &[&str]) -> Self {
        Self::start(place, &[&[BINARY, "run"], arguments].concat())
    }

    /// A shell that people work with, which puts each job in a group of its own.
    pub(crate) fn shell(place: &Place) -> Self {
        let terminal = Self::start(place, &["bash", "--norc", "--noprofile", "--noediting", "-i"]);
        terminal.expect("ready> ");
        terminal
    }

    pub(crate) fn type_in(&self, text: &str) {
        (&self.keyboard).write_all(text.as_bytes()).unwrap();
    }

    pub(crate) fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned()
    }

    /// Waits until a text is shown.
    pub(crate) fn expect(&self, text: &str) {
        self.expect_times(text, 1);
    }

    /// Waits until a text is shown this often.
    pub(crate) fn expect_times(&self, text: &str, times: usize) {
        wait_until(&format!("{text:?} is shown"), || self.shown().matches(text).count() >= times);
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the end of the program; the code, and everything that was shown.
    pub(crate) fn finish(mut self) -> (Option<i32>, String) {
        let mut status = None;
        wait_until("the program ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        (status.unwrap().code(), self.shown())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        if thread::panicking() {
            eprintln!("shown on the terminal:\n{}", self.shown());
        }
    }
}
