//! `holdpoint check`: everything that serving does before the first call, without a host.

use std::path::PathBuf;
use std::sync::Arc;

use holdpoint::proxy::journal::StderrJournal;
use holdpoint::proxy::serve::{Opened, Prepared};
use holdpoint_core::pin::report::Report;
use serde::Serialize;

use super::{block_on, servers};
use crate::error::CommandError;
use crate::text::{Ui, line, plural, style};

/// The most bytes of a path or a name.
const NAME_BYTES_MAX: usize = 4_096;

/// Do everything that serving does before the first call, and report
///
/// The database is made or migrated, the servers are started, and each tool is judged against its manifest and its
/// rule, as at a start; then everything is stopped. The doctor looks at more and changes nothing.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The configuration of the proxy
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

/// What is printed in JSON.
#[derive(Debug, Serialize)]
struct Listing<'a> {
    reports: &'a [Report],
    status_tool: &'a str,
    session: &'a str,
    database: String,
}

pub(super) fn run(args: &Args, ui: &mut Ui) -> Result<(), CommandError> {
    let config = servers::load(&args.config)?;
    let prepared = Prepared::check(config).map_err(servers::of_serve)?;
    let config = prepared.config().clone();
    let (reports, loaded) = block_on(async {
        let opened = Opened::open(prepared, Arc::new(StderrJournal)).await?;
        Ok(opened.check_servers().await)
    })?
    .map_err(servers::of_serve)?;
    let database = config.database.display().to_string();
    if ui.json() {
        let (status_tool, session) = (config.status_tool.as_str(), config.session.as_str());
        ui.write_json(&Listing { reports: &reports, status_tool, session, database })?;
    } else {
        let dim = style::DIM;
        for text in reports.iter().flat_map(Report::lines) {
            writeln!(ui.out(), "{text}")?;
        }
        let refused = reports.iter().map(|report| report.refused.len()).sum::<usize>();
        if refused > 0 {
            let bad = style::BAD;
            let tools = plural(refused, "tool");
            writeln!(
                ui.out(),
                "{bad}refused{bad:#}      {tools} with a rule, and not offered for the reason above"
            )?;
        }
        writeln!(ui.out(), "{dim}status tool{dim:#}  {}", line(&config.status_tool, NAME_BYTES_MAX))?;
        writeln!(ui.out(), "{dim}session{dim:#}      {}", config.session)?;
        writeln!(ui.out(), "{dim}database{dim:#}     {}", line(&database, NAME_BYTES_MAX))?;
    }
    loaded.map_err(servers::of_serve)
}
