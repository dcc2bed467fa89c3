//! `holdpoint payment-server`: the fake payment server of the demonstration. Not for people, so not in the help.

use std::io;
use std::path::PathBuf;

use holdpoint::codes::Code;

use crate::error::CommandError;
use crate::payments::{Ended, Mode, Server};

/// Serve the fake payments of the demonstration over stdio
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The file to which each payment appends a line
    #[arg(long, value_name = "FILE", env = "PAYMENTS_LEDGER")]
    ledger: PathBuf,
    /// What happens after the effect of a payment that does not say so itself
    #[arg(long, value_enum, env = "PAYMENTS_MODE")]
    mode: Option<Mode>,
}

pub(super) fn run(args: Args) -> Result<(), CommandError> {
    let server = Server::new(args.ledger, args.mode, io::stdout());
    match server.serve(io::stdin().lock())? {
        Ended::InputEnded => Ok(()),
        Ended::ByPayment => {
            Err(CommandError::new(Code::Exit1, "a payment ended its server, as it was told to"))
        }
    }
}
