//! Stands in for the guardian where there is none: outside Linux.

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

use leasehold::clock::Moment;
use rustix::process::Pid;

use super::descendants::Descendants;
use super::trampoline::Environment;
use crate::exit;

pub(super) const NAME: &str = "__guard";

#[derive(Debug)]
pub(super) struct Guardian {
    pub(super) id: Pid,
}

impl Guardian {
    pub(super) fn start(_: Pid, _: &Descendants, _: &Environment, _: Moment) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn group(&self) -> u32 {
        self.id.as_raw_nonzero().get().unsigned_abs()
    }

    pub(super) fn tell(&mut self, _: Moment, _: bool, _: bool, _: bool) {}

    pub(super) fn dismiss(&mut self) {}
}

pub(super) fn run(_: impl Iterator<Item = OsString>) -> ExitCode {
    ExitCode::from(exit::USAGE)
}
