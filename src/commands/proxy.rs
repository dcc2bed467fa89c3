//! `holdpoint proxy`.

use holdpoint::codes::Code;

use crate::error::CommandError;

/// Serve over stdio as an MCP server, in front of the configured servers
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The configuration of the proxy
    #[arg(long, value_name = "FILE")]
    config: std::path::PathBuf,
}

pub(super) fn run(_args: &Args) -> Result<(), CommandError> {
    Err(CommandError::new(Code::Internal, "proxy is not a part of this build yet"))
}
