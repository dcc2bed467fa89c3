//! In place of `guard` where there is no Linux: a server is held by its process group and nothing else.

use std::convert::Infallible;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus};

use rustix::process::Signal;

use super::contain::Containment;

/// Never sent: there is no guard to send it to.
pub(super) const TERMINATE: Signal = Signal::TERM;
/// Never sent: there is no guard to send it to.
pub(super) const END: Signal = Signal::USR1;

/// How a server is started.
#[derive(Debug)]
pub(super) struct Plan;

impl Plan {
    pub(super) fn new(_way: Containment, _rehearsal: bool) -> io::Result<(Self, Report)> {
        Ok((Self, Report(None)))
    }

    pub(super) fn install(self, command: &mut Command) {
        command.process_group(0);
    }
}

/// What no guard tells.
#[derive(Debug)]
pub(super) struct Report(Option<Infallible>);

impl Report {
    pub(super) fn started(&mut self) -> (Option<u32>, Option<ExitStatus>) {
        (None, self.ended())
    }

    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.0.map(|never| match never {})
    }
}

/// Nothing is done to contain a server that could fail.
pub(super) fn failed_step(_error: &io::Error) -> Option<String> {
    None
}
