//! `holdpoint doctor`.

use holdpoint::codes::Code;

use super::Database;
use crate::error::CommandError;
use crate::text::Ui;
/// Check the database, the configuration and what a running proxy reports
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The configuration of the proxy
    #[arg(long, value_name = "FILE")]
    config: Option<std::path::PathBuf>,
}

pub(super) fn run(_args: &Args, _database: &Database, _ui: &mut Ui) -> Result<(), CommandError> {
    Err(CommandError::new(Code::Internal, "doctor is not a part of this build yet"))
}
