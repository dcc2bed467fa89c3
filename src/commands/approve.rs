//! `holdpoint approve`: grant what a run waits for.

use holdpoint::view::Verdict;

use super::{Database, decide};
use crate::error::CommandError;
use crate::text::Ui;

/// Show what a run waits for, and grant it
///
/// The request is printed first: the arguments of the call, then what the policy says about it. It is granted after
/// `y` at the prompt, or without a question when --approval names it or --yes is given. A grant holds for exactly
/// what was shown. It does not run anything by itself.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    decide: decide::DecideArgs,
}

pub(super) fn run(args: &Args, database: &Database, ui: &mut Ui) -> Result<(), CommandError> {
    decide::run(Verdict::Approve, &args.decide, database, ui)
}
