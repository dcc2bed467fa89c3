//! `holdpoint cancel`: end a run that has not ended.

use clap::builder::NonEmptyStringValueParser;
use std::path::Path;

use holdpoint::view::RunSummary;
use holdpoint_core::ids::RunId;
use serde::Serialize;

use super::decide::{Who, run_line, tell_events};
use super::records::Records;
use crate::error::CommandError;
use crate::text::Ui;

/// End a run that has not ended, without a question
///
/// A tool that is running can't be recalled; what it answers is recorded beside the cancelled run. To refuse one
/// request rather than the whole run, reject it.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The run's id
    #[arg(value_name = "RUN", value_parser = NonEmptyStringValueParser::new())]
    run: String,
    #[command(flatten)]
    who: Who,
}

/// What is printed in JSON.
#[derive(Debug, Serialize)]
struct Report {
    run: RunSummary,
}

pub(super) fn run(args: &Args, database: &Path, ui: &mut Ui) -> Result<(), CommandError> {
    let id = RunId::from(args.run.as_str());
    let mut records = Records::open_to_decide(database)?;
    let events = records.cancel(&id, &args.who.name(), &args.who.note)?;
    tell_events(&events, ui)?;
    let run = records.summary(&id)?;
    if ui.json() {
        return Ok(ui.write_json(&Report { run })?);
    }
    run_line(&run, ui.out())
}
