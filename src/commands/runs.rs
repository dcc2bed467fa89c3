//! `holdpoint runs`: every run of a database, newest first; or what waits for a person, with what is asked.

use std::io::Write;
use std::path::Path;

use holdpoint::view::{ReadError, Reader, RunSummary, fields, read};
use holdpoint_core::approval::{Approval, ApprovalStatus};
use holdpoint_core::ids::RunId;
use holdpoint_core::run::RunStatus;
use serde::Serialize;

use super::records::Records;
use super::{More, Page, PageArgs, Rows};
use crate::error::CommandError;
use crate::text::table::{Cell, Table};
use crate::text::{Ui, style, times};

/// The most bytes of a goal in the list.
const GOAL_BYTES_MAX: usize = 60;

/// The most bytes of a call's arguments in the list.
const CALL_BYTES_MAX: usize = 100;
/// How many approvals of one run are listed; the gate lets a run wait for one.
const APPROVALS_MAX: i64 = 20;

/// List runs, newest first
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Only the runs that wait, and what each of them asks for
    #[arg(long)]
    waiting: bool,
    #[command(flatten)]
    page: PageArgs<100>,
}

/// What is printed in JSON.
#[derive(Debug, Serialize)]
struct Listing {
    runs: Vec<RunSummary>,
    total: i64,
    limit: u32,
    offset: u32,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
}

pub(super) fn run(args: &Args, database: &Path, ui: &mut Ui) -> Result<(), CommandError> {
    let page = args.page.page();
    let mut records = Records::open_to_read(database)?;
    if args.waiting && !ui.json() {
        let asked = page.collect(|limit, offset| records.read(|reader| asked(reader, limit, offset)))?;
        return print_asked(&asked, page.leaves_of(&asked), ui.out());
    }
    let runs =
        page.collect(|limit, offset| records.read(|reader| summaries(reader, args.waiting, limit, offset)))?;
    let more = page.leaves_of(&runs);
    if ui.json() {
        let (Page { limit, offset }, Rows { rows, total }) = (page, runs);
        return Ok(ui.write_json(&Listing {
            runs: rows,
            total,
            limit,
            offset,
            truncated: more.is_some(),
        })?);
    }
    print(&runs, more, ui.out())
}

fn summaries(
    reader: &Reader<'_>,
    waiting: bool,
    limit: i64,
    offset: i64,
) -> Result<Rows<RunSummary>, ReadError> {
    if waiting {
        read::waiting_runs_page(reader, limit, offset)
    } else {
        read::runs_page(reader, limit, offset)
    }
}

/// A run that waits, and the approvals that it waits for.
#[derive(Debug)]
struct Asked {
    run: String,
    approvals: Vec<Approval>,
}

fn asked(reader: &Reader<'_>, limit: i64, offset: i64) -> Result<Rows<Asked>, ReadError> {
    let Rows { rows, total } = reader.waiting_runs_page(limit, offset)?;
    let mut asked = Vec::new();
    for run in rows {
        let id = RunId::from(run.id.as_str());
        asked.push(Asked { run: run.id, approvals: read::waits_for(reader, &id, APPROVALS_MAX)? });
    }
    Ok(Rows { rows: asked, total })
}

fn print_asked(asked: &Rows<Asked>, more: Option<More>, out: &mut dyn Write) -> Result<(), CommandError> {
    if asked.total == 0 {
        return Ok(writeln!(out, "nothing waits")?);
    }
    let mut table = Table::new(&["RUN", "APPROVAL", "STATE", "KIND", "EXPIRES", "CALL"]);
    for Asked { run, approvals } in &asked.rows {
        for approval in approvals {
            let pending = approval.status == ApprovalStatus::Pending;
            let (state, colour) =
                if pending { ("pending", style::WAITS) } else { ("granted", style::MOVING) };
            let expires = approval.expires_at.filter(|_| pending);
            let call = approval.request.as_ref().map_or_else(
                || "(can't be read)".to_owned(),
                |request| format!("{} {}", request.spec.name, fields::one_line(&request.args)),
            );
            table.row(vec![
                Cell::foreign(run),
                Cell::foreign(approval.id.as_str()),
                Cell::own(state).styled(colour),
                Cell::foreign(&approval.kind),
                Cell::own(times::stamp_or_dash(expires)),
                Cell::foreign_cut(&call, CALL_BYTES_MAX),
            ]);
        }
    }
    table.write(out)?;
    if let Some(more) = more {
        writeln!(out, "{more}")?;
    }
    Ok(())
}

fn print(runs: &Rows<RunSummary>, more: Option<More>, out: &mut dyn Write) -> Result<(), CommandError> {
    if runs.total == 0 {
        return Ok(writeln!(out, "no runs")?);
    }
    let mut table = Table::new(&["RUN", "STATUS", "REASON", "STEPS", "CREATED", "APPROVAL", "GOAL"]);
    for run in &runs.rows {
        table.row(vec![
            Cell::foreign(&run.id),
            Cell::foreign(&run.status).styled(status_style(run)),
            Cell::foreign(&run.reason),
            Cell::own(run.steps),
            Cell::own(times::stamp_or_dash(run.created_at)),
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

/// The colour of a run's status, by what it means for a person.
pub(super) fn status_style(run: &RunSummary) -> anstyle::Style {
    match run.known_status() {
        Some(RunStatus::Running) => style::MOVING,
        Some(RunStatus::WaitingForApproval | RunStatus::Interrupted) => style::WAITS,
        Some(RunStatus::Completed) => style::GOOD,
        Some(RunStatus::Failed) => style::BAD,
        Some(RunStatus::Cancelled) => style::DIM,
        None => style::PLAIN,
    }
}

#[cfg(test)]
mod tests {
    use holdpoint_core::time::UnixNanos;

    use super::*;

    fn summary(id: &str, status: RunStatus, goal: &str) -> RunSummary {
        RunSummary {
            id: id.to_owned(),
            goal: goal.to_owned(),
            status: status.to_string(),
            steps: 1,
            created_at: Some(UnixNanos::parse("2026-10-01T09:00:00Z").unwrap()),
            ..RunSummary::default()
        }
    }

    fn printed(rows: Vec<RunSummary>, total: i64, more: Option<More>) -> String {
        let mut out = Vec::new();
        print(&Rows { rows, total }, more, &mut out).unwrap();
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
        ended.reason = "goal_failed".to_owned();
        insta::assert_snapshot!(printed(vec![waiting, ended], 5, Some(More { left: 3, next: 2 })), @r"
        RUN                    STATUS                REASON       STEPS  CREATED                    APPROVAL  GOAL
        shop.0123456789abcdef  WAITING_FOR_APPROVAL  -            1      2026-10-01 09:00:00 +0000  a1        call pay
        r\u{202e}2             FAILED                goal_failed  1      2026-10-01 09:00:00 +0000  -         line break \x1b[2J xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…
        … 3 more; --offset 2 shows them
        ");
    }

    #[test]
    fn an_empty_database_says_so() {
        assert_eq!(printed(Vec::new(), 0, None), "no runs\n");
    }
}
