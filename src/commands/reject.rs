//! `holdpoint reject`: refuse what a run waits for.

use holdpoint::view::Verdict;

use super::{Database, decide};
use crate::error::CommandError;
use crate::text::Ui;

/// Show what a run waits for, and refuse it, which ends the run
///
/// The request is printed first, and refused after `y` at the prompt, or without a question when --approval names it
/// or --yes is given. Identical calls are refused for as long as the tool's repeat window; the note is told to the
/// model.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    decide: decide::DecideArgs,
}

pub(super) fn run(args: &Args, database: &Database, ui: &mut Ui) -> Result<(), CommandError> {
    decide::run(Verdict::Reject, &args.decide, database, ui)
}
