//! `holdpoint check`.

use holdpoint::codes::Code;

use crate::error::CommandError;
use crate::text::Ui;
/// Do everything that serving does before the first call, and report
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The configuration of the proxy
    #[arg(long, value_name = "FILE")]
    config: std::path::PathBuf,
}

pub(super) fn run(_args: &Args, _ui: &mut Ui) -> Result<(), CommandError> {
    Err(CommandError::new(Code::Internal, "check is not a part of this build yet"))
}
