//! `holdpoint runs`: every run of a database, newest first.

use std::io::Write;
use std::path::Path;

use holdpoint::view::RunSummary;
use holdpoint_core::run::RunStatus;
use serde::Serialize;

use super::records::Records;
use super::{More, Page, PageArgs};
use crate::error::CommandError;
use crate::text::table::{Cell, Table};
use crate::text::{Ui, style, times};

/// The most bytes of a goal in the list.
const GOAL_BYTES_MAX: usize = 60;

/// List runs, newest first
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    page: PageArgs<100>,
}

/// What is printed in JSON.
#[derive(Debug, Serialize)]
struct Listing {
    runs: Vec<RunSummary>,
    total: u64,
    limit: u32,
    offset: u32,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
}

pub(super) fn run(args: &Args, database: &Path, ui: &mut Ui) -> Result<(), CommandError> {
    let page = args.page.page();
    let records = Records::open_to_read(database)?;
    let (runs, total) = page.collect(|limit, offset| records.runs(limit, offset))?;
    let more = page.leaves(runs.len() as u64, total);
    if ui.json() {
        let Page { limit, offset } = page;
        return Ok(ui.write_json(&Listing { runs, total, limit, offset, truncated: more.is_some() })?);
    }
    print(&runs, total, more, ui.out())
}

fn print(
    runs: &[RunSummary],
    total: u64,
    more: Option<More>,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    if total == 0 {
        return Ok(writeln!(out, "no runs")?);
    }
    let mut table = Table::new(&["RUN", "STATUS", "REASON", "STEPS", "CREATED", "APPROVAL", "GOAL"]);
    for run in runs {
        table.row(vec![
            Cell::foreign(&run.id),
            status_cell(run.status),
            Cell::foreign(run.reason),
            Cell::own(run.steps),
            Cell::own(times::stamp(run.created_at)),
            Cell::foreign(run.pending_approval_id.as_deref().unwrap_or_default()),
            Cell::foreign_cut(&run.goal, GOAL_BYTES_MAX),
        ]);
    }
    table.write(out)?;
    if let Some(more) = more {
        writeln!(out, "{more}")?;
    }
    Ok(())
}

/// A run's status, in the colour of what it means for a person.
pub(super) fn status_cell(status: RunStatus) -> Cell {
    Cell::own(status).styled(status_style(status))
}

/// The colour of a run's status.
pub(super) fn status_style(status: RunStatus) -> anstyle::Style {
    match status {
        RunStatus::Running => style::MOVING,
        RunStatus::WaitingForApproval | RunStatus::Interrupted => style::WAITS,
        RunStatus::Completed => style::GOOD,
        RunStatus::Failed => style::BAD,
        RunStatus::Cancelled => style::DIM,
    }
}

#[cfg(test)]
mod tests {
    use holdpoint::view::Usage;
    use holdpoint_core::time::UnixNanos;

    use super::*;

    fn summary(id: &str, status: RunStatus, goal: &str) -> RunSummary {
        RunSummary {
            id: id.to_owned(),
            goal: goal.to_owned(),
            status,
            reason: "",
            reason_detail: String::new(),
            steps: 1,
            created_at: UnixNanos::parse("2026-10-01T09:00:00Z").unwrap(),
            finished_at: None,
            pending_approval_id: None,
            model_calls: 0,
            usage: Usage::default(),
            estimated_cost_micros: 0,
        }
    }

    fn printed(runs: &[RunSummary], total: u64, more: Option<More>) -> String {
        let mut out = Vec::new();
        print(runs, total, more, &mut out).unwrap();
        let text = anstream::adapter::strip_str(&String::from_utf8(out).unwrap()).to_string();
        // The zone is whoever's runs the test.
        text.replace(
            &times::stamp(UnixNanos::parse("2026-10-01T09:00:00Z").unwrap()),
            "2026-10-01 09:00:00 +0000",
        )
    }

    #[test]
    fn runs_are_a_table_that_no_goal_can_break() {
        let mut waiting = summary("shop.0123456789abcdef", RunStatus::WaitingForApproval, "call pay");
        waiting.pending_approval_id = Some("a1".to_owned());
        let mut ended =
            summary("r\u{202e}2", RunStatus::Failed, &format!("line\nbreak \x1b[2J {}", "x".repeat(100)));
        ended.reason = "goal_failed";
        insta::assert_snapshot!(printed(&[waiting, ended], 5, Some(More { left: 3, next: 2 })), @r"
        RUN                    STATUS                REASON       STEPS  CREATED                    APPROVAL  GOAL
        shop.0123456789abcdef  WAITING_FOR_APPROVAL  -            1      2026-10-01 09:00:00 +0000  a1        call pay
        r\u{202e}2             FAILED                goal_failed  1      2026-10-01 09:00:00 +0000  -         line break \x1b[2J xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…
        … 3 more; --offset 2 shows them
        ");
    }

    #[test]
    fn an_empty_database_says_so() {
        assert_eq!(printed(&[], 0, None), "no runs\n");
    }
}
