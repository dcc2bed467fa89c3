//! `holdpoint payment-server`: the fake payment server of the demonstration. Not for people, so not in the help.

use holdpoint::codes::Code;

use crate::error::CommandError;

/// Serve the fake payments of the demonstration over stdio
#[derive(Debug, clap::Args)]
pub(super) struct Args {}

pub(super) fn run(_args: &Args) -> Result<(), CommandError> {
    Err(CommandError::new(Code::Internal, "payment-server is not a part of this build yet"))
}
