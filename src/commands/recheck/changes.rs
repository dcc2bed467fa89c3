//! `holdpoint recheck --policy`: what another configuration would have decided, added up over many runs.
//!
//! Owns the table and the sums under it. It holds the rows of the table and one run at a time, whatever a session's length.

use std::path::Path;
use std::sync::Arc;

use holdpoint::codes::Code;
use holdpoint::recheck::{Change, Changes, Shift, Totals};
use serde::Serialize;

use super::{Judge, SCOPE, Selection, file_name, proved_something, write_text};
use crate::commands::records::Records;
use crate::error::CommandError;
use crate::text::table::{Cell, Table};
use crate::text::{Ui, line, plural, style};

/// The most bytes of a reason in the table.
const WHY_BYTES_MAX: usize = 100;
/// The most bytes of a name.
const NAME_BYTES_MAX: usize = 240;

/// What is asked.
#[derive(Debug)]
pub(super) struct Asked<'a> {
    /// The other configuration.
    pub(super) path: &'a Path,
    /// The present one.
    pub(super) present: &'a Path,
    pub(super) selection: &'a Selection,
}

/// What is printed in JSON.
#[derive(Debug, Serialize)]
struct Listing<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<&'a str>,
    policy_id: &'a str,
    present_policy_id: &'a str,
    totals: Totals,
    changes: Vec<&'a Change>,
}

/// Puts the runs to the other configuration's policy, and to the present one's to tell what is so already. Fails when
/// something would change, or nothing could be re-checked.
pub(super) fn run(
    asked: &Asked<'_>,
    records: &mut Records,
    (other, present): (&Judge, &Judge),
    ui: &mut Ui,
) -> Result<(), CommandError> {
    let mut changes = Changes::default();
    asked.selection.each(records, |record| {
        let record = Arc::new(record);
        let report = other.recheck(&record)?;
        changes.add(&report, Some(&present.recheck(&record)?));
        if asked.selection.is_run() && !ui.json() {
            write_text(&report, ui)?;
            writeln!(ui.out())?;
        }
        Ok(())
    })?;
    let totals = changes.totals();
    if ui.json() {
        let (session, run) = match asked.selection {
            Selection::Session { name, .. } => (Some(name.as_str()), None),
            Selection::Run(run) => (None, Some(run.as_str())),
        };
        let (policy_id, present_policy_id) = (other.policy_id.as_str(), present.policy_id.as_str());
        let changes = changes.rows();
        ui.write_json(&Listing { session, run, policy_id, present_policy_id, totals, changes })?;
    } else {
        print(asked, &changes, other, ui)?;
    }
    proved_something(totals.runs, totals.rechecked, totals.not_recheckable, asked.selection)?;
    if totals.different == 0 {
        return Ok(());
    }
    let message = format!(
        "{} would have decided {} of {} otherwise",
        asked.path.display(),
        totals.different,
        plural(totals.rechecked, "decision")
    );
    let error = CommandError::new(Code::RecheckDiffers, message);
    Err(if asked.selection.is_run() { error } else { error.hint("--run RUN shows one run line by line") })
}

fn print(asked: &Asked<'_>, changes: &Changes, other: &Judge, ui: &mut Ui) -> Result<(), CommandError> {
    let (totals, rows) = (changes.totals(), changes.rows());
    let dim = style::DIM;
    if !rows.is_empty() {
        table(&rows).write(ui.out())?;
        writeln!(ui.out())?;
    }
    let over = match asked.selection {
        Selection::Session { name, .. } => format!("session {}", line(name, NAME_BYTES_MAX)),
        Selection::Run(run) => format!("run {}", line(run.as_str(), NAME_BYTES_MAX)),
    };
    let name = |path| line(&file_name(path), NAME_BYTES_MAX);
    writeln!(
        ui.out(),
        "{} over {over}: {} in {} re-checked, {} as recorded, {} otherwise",
        name(asked.path),
        plural(totals.rechecked, "decision"),
        plural(totals.runs, "run"),
        totals.same,
        totals.different
    )?;
    if totals.different > 0 {
        let Totals { looser, stricter, otherwise, already, .. } = totals;
        writeln!(ui.out(), "{looser} looser, {stricter} stricter, {otherwise} with another approval")?;
        if already > 0 {
            writeln!(ui.out(), "{already} of them {} already decides so", name(asked.present))?;
        }
    }
    if totals.not_recheckable > 0 {
        let decisions = plural(totals.not_recheckable, "decision");
        writeln!(ui.out(), "{decisions} can't be re-checked: the record does not hold enough of them")?;
    }
    writeln!(ui.out(), "{dim}policy {}{dim:#}", other.policy_id)?;
    Ok(writeln!(ui.out(), "{dim}{SCOPE}{dim:#}")?)
}

fn table(rows: &[&Change]) -> Table {
    let mut table =
        Table::new(&["CHANGE", "TOOL", "RECORDED", "NOW", "DECISIONS", "RUNS", "WHY", "FOR EXAMPLE"]);
    for row in rows {
        let colour = match row.shift {
            Shift::Looser => style::BAD,
            Shift::Stricter => style::WAITS,
            Shift::Otherwise => style::PLAIN,
        };
        let examples: Vec<&str> = row.examples.iter().map(|run| run.as_str()).collect();
        table.row(vec![
            Cell::own(row.shift).styled(colour),
            Cell::foreign(&row.tool),
            Cell::foreign(&row.recorded),
            Cell::foreign(&row.now).styled(colour),
            Cell::own(row.decisions),
            Cell::own(row.runs),
            Cell::foreign_cut(&row.why, WHY_BYTES_MAX),
            Cell::foreign(&examples.join(" ")),
        ]);
    }
    table
}
