//! The `holdpoint` binary: parses the command line, runs one command, and says how it ended.
//!
//! Never prints anything but protocol on stdout while it serves: logs and complaints go to stderr.

mod commands;
mod demo;
mod error;
mod exit;
mod payments;
mod signals;
mod text;

#[cfg(all(feature = "faults", not(debug_assertions)))]
compile_error!(
    "the feature `faults` lets a process be killed and broken from its environment: it is for the crash campaign, \
     whose profiles keep debug assertions, and never for a binary that is shipped"
);

use std::process::ExitCode;

fn main() -> ExitCode {
    commands::main().into()
}
