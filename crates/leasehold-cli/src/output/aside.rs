//! Messages written by a thread of their own, so that a reader that stands still holds nothing up.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How many messages wait at most; a `run` has a dozen to tell.
const LONGEST_LINE: usize = 64;

/// Messages on their way to stderr.
#[derive(Debug)]
pub(super) struct Aside {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    is_on: bool,
    has_writer: bool,
    /// Whether one is being written, which is none of the waiting any more.
    is_writing: bool,
    waiting: VecDeque<String>,
}

impl Aside {
    pub(super) const fn new() -> Self {
        let state = State { is_on: false, has_writer: false, is_writing: false, waiting: VecDeque::new() };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// From now on messages are taken.
    pub(super) fn turn_on(&self) {
        self.lock().is_on = true;
    }

    /// Takes a message, or drops it if too many wait; `false` if it can be written at once as well.
    pub(super) fn take(&'static self, message: &str) -> bool {
        let mut state = self.lock();
        if !state.is_on {
            return false;
        }
        if !state.has_writer {
            state.has_writer = thread::Builder::new().spawn(|| self.write()).is_ok();
        }
        if !state.has_writer {
            // Without a thread there is nobody who could wait for the reader.
            return !has_room();
        }
        if state.waiting.len() < LONGEST_LINE {
            state.waiting.push_back(message.to_owned());
            self.changed.notify_all();
        }
        true
    }

    /// Waits until everything is written, at most this long.
    pub(super) fn finish(&self, patience: Duration) {
        let unwritten = |state: &mut State| state.is_writing || !state.waiting.is_empty();
        drop(self.changed.wait_timeout_while(self.lock(), patience, unwritten));
    }

    fn write(&self) {
        let mut state = self.lock();
        loop {
            if let Some(message) = state.waiting.pop_front() {
                state.is_writing = true;
                drop(state);
                // There is nowhere left to complain.
                io::stderr().write_all(message.as_bytes()).ok();
                state = self.lock();
                state.is_writing = false;
                self.changed.notify_all();
            } else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a message can be written without waiting.
fn has_room() -> bool {
    let stderr = rustix::stdio::stderr();
    poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}
