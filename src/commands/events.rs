//! `holdpoint events`: a run's record, event by event.

use clap::builder::NonEmptyStringValueParser;
use std::path::Path;

use holdpoint::trace;
use holdpoint_core::ids::RunId;
use serde::Serialize;

use super::PageArgs;
use super::records::Records;
use crate::error::CommandError;
use crate::text::Ui;

/// Print a run's events, oldest first; with --json one object a line, payloads whole
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The run's id
    #[arg(value_name = "RUN", value_parser = NonEmptyStringValueParser::new())]
    run: String,
    #[command(flatten)]
    page: PageArgs<500>,
}

/// The last line in JSON when events are left: `meta` tells it from an event.
#[derive(Debug, Serialize)]
struct Meta {
    meta: bool,
    truncated: bool,
    total: i64,
    returned: i64,
    offset: u32,
}

pub(super) fn run(args: &Args, database: &Path, ui: &mut Ui) -> Result<(), CommandError> {
    let page = args.page.page();
    let id = RunId::from(args.run.as_str());
    let mut records = Records::open_to_read(database)?;
    records.summary(&id)?;
    let json = ui.json();
    // Each page is printed as it is read, so a log of any length is streamed.
    let (read, total) = page.read(
        |limit, offset| Ok(records.read(|reader| reader.events_page(&id, limit, offset))?),
        |event| -> Result<(), CommandError> {
            let line = if json { trace::json_line(&event) } else { trace::short_text_line(&event) };
            Ok(ui.out().write_all(line.as_bytes())?)
        },
    )?;
    let Some(more) = page.leaves(read, total) else { return Ok(()) };
    if json {
        let meta = Meta { meta: true, truncated: true, total, returned: read, offset: page.offset };
        serde_json::to_writer(ui.out(), &meta).map_err(std::io::Error::from)?;
        return Ok(ui.out().write_all(b"\n")?);
    }
    Ok(writeln!(ui.out(), "{more}")?)
}
