//! `holdpoint pin`.

use holdpoint::codes::Code;

use crate::error::CommandError;
use crate::text::Ui;
/// Ask each server for its tools, and write them down as what may be offered
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The configuration of the proxy
    #[arg(long, value_name = "FILE")]
    config: std::path::PathBuf,
    /// Replace manifests without being asked
    #[arg(long)]
    yes: bool,
}

pub(super) fn run(_args: &Args, _ui: &mut Ui) -> Result<(), CommandError> {
    Err(CommandError::new(Code::Internal, "pin is not a part of this build yet"))
}
