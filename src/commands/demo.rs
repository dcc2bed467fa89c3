//! `holdpoint demo`.

use holdpoint::codes::Code;

use crate::error::CommandError;
use crate::text::Ui;
/// Tell the story with a fake payment server, in about twenty seconds
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Keep the files, and print the commands to look at them
    #[arg(long)]
    keep: bool,
}

pub(super) fn run(_args: &Args, _ui: &mut Ui) -> Result<(), CommandError> {
    Err(CommandError::new(Code::Internal, "demo is not a part of this build yet"))
}
