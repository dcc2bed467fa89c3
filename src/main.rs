//! The `holdpoint` binary: parses the command line, runs one command, and says how it ended.
//!
//! Never prints anything but protocol on stdout while it serves: logs and complaints go to stderr.

mod commands;
mod demo;
mod error;
mod exit;
mod payments;
mod text;

use std::process::ExitCode;

fn main() -> ExitCode {
    commands::main().into()
}
