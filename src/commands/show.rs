//! `holdpoint show`: one run, every approval that it waits for, and its steps.

use clap::builder::NonEmptyStringValueParser;
use std::io::Write;
use std::path::Path;

use holdpoint::view::{ApprovalView, Detail, LateOutcome, RunSummary, StepSummary, Waiting};
use holdpoint_actors::clock;
use holdpoint_core::approval::Approval;
use holdpoint_core::ids::RunId;
use serde::Serialize;

use super::decide::NOT_COLLECTED;
use super::records::Records;
use super::runs::status_style;
use super::{More, Page, PageArgs};
use crate::error::CommandError;
use crate::text::table::{Cell, Table};
use crate::text::{Ui, counted, line, style, times, waiting};

/// The most bytes of a goal or a reason in the header.
const TEXT_BYTES_MAX: usize = 4_000;
/// The most bytes of an id in the header.
const ID_BYTES_MAX: usize = 256;
/// The most bytes of a step's summary.
const SUMMARY_BYTES_MAX: usize = 60;

/// Show a run: where it stands, what it waits for, and its steps
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The run's id
    #[arg(value_name = "RUN", value_parser = NonEmptyStringValueParser::new())]
    run: String,
    #[command(flatten)]
    page: PageArgs<500>,
}

/// What is printed in JSON.
#[derive(Debug, Serialize)]
struct Listing {
    run: RunSummary,
    steps: Vec<StepSummary>,
    steps_total: i64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    steps_truncated: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    approvals: Vec<ApprovalView>,
    approvals_total: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting_approval: Option<ApprovalView>,
    /// What the attempt that it asks about came to after all.
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt_came_to: Option<LateOutcome>,
    limit: u32,
    offset: u32,
}

pub(super) fn run(args: &Args, database: &Path, ui: &mut Ui) -> Result<(), CommandError> {
    let page = args.page.page();
    let id = RunId::from(args.run.as_str());
    let mut records = Records::open_to_read(database)?;
    let limit = if page.limit == 0 { i64::MAX } else { page.limit.into() };
    // One snapshot, so that the parts fit together.
    let detail = records.detail_page(&id, limit, page.offset.into())?;
    if !ui.json() {
        return print(&detail, page, (&mut records, database), ui.out());
    }
    let waiting = detail.waiting().map(|waiting| whole(&waiting.approval, &mut records)).transpose()?;
    Ok(ui.write_json(&Listing {
        steps_truncated: page.leaves_of(&detail.steps).is_some(),
        waiting_approval: waiting.as_ref().map(ApprovalView::of),
        attempt_came_to: detail.waiting().and_then(|waiting| waiting.attempt_came_to.clone()),
        run: detail.run,
        steps: detail.steps.rows,
        steps_total: detail.steps.total,
        approvals: detail.approvals.rows.iter().map(ApprovalView::of).collect(),
        approvals_total: detail.approvals.total,
        limit: page.limit,
        offset: page.offset,
    })?)
}

/// An approval of a page, read whole. A page cuts a long request, and whoever made it long would choose what a person
/// reads before they decide.
fn whole(approval: &Approval, records: &mut Records) -> Result<Approval, CommandError> {
    Ok(records.approval(&approval.run_id, &approval.id)?)
}

fn print(
    detail: &Detail,
    page: Page,
    (records, database): (&mut Records, &Path),
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    header(&detail.run, out)?;
    for waits in &detail.pending.rows {
        // One at a time, so that many long ones don't fill the memory.
        let waits = Waiting { approval: whole(&waits.approval, records)?, ..waits.clone() };
        waiting::write(out, &waits, database, clock::wall())?;
    }
    if let Some(granted) = &detail.granted {
        grant(granted, out)?;
    }
    if let Some(more) = page.leaves_of(&detail.pending) {
        writeln!(out, "\nwaiting approvals: {more}")?;
    }
    if detail.steps.rows.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    steps(&detail.steps.rows, page.leaves_of(&detail.steps), out)
}

/// Says of a run that still waits why nobody has to decide anything.
fn grant(approval: &Approval, out: &mut dyn Write) -> Result<(), CommandError> {
    let (id, by) = (line(approval.id.as_str(), ID_BYTES_MAX), line(&approval.decided_by, ID_BYTES_MAX));
    writeln!(out, "granted   {id} by {by}, {}", times::stamp_or_dash(approval.decided_at))?;
    for text in NOT_COLLECTED {
        writeln!(out, "          {text}")?;
    }
    Ok(())
}

fn header(run: &RunSummary, out: &mut dyn Write) -> Result<(), CommandError> {
    let (bold, colour) = (style::BOLD, status_style(run));
    writeln!(out, "run       {bold}{}{bold:#}", line(&run.id, ID_BYTES_MAX))?;
    writeln!(out, "goal      {}", counted(&run.goal, TEXT_BYTES_MAX))?;
    write!(out, "status    {colour}{}{colour:#}", line(&run.status, ID_BYTES_MAX))?;
    if !run.reason.is_empty() {
        write!(out, " ({})", line(&run.reason, ID_BYTES_MAX))?;
    }
    if !run.reason_detail.is_empty() {
        write!(out, ": {}", counted(&run.reason_detail, TEXT_BYTES_MAX))?;
    }
    writeln!(out, "\nsteps     {}", run.steps)?;
    writeln!(out, "created   {}", times::stamp_or_dash(run.created_at))?;
    if let Some(at) = run.finished_at {
        writeln!(out, "finished  {}", times::stamp(at))?;
    }
    if run.model_calls > 0 {
        let (usage, cost) = (run.usage, times::dollars(run.estimated_cost_micros));
        writeln!(
            out,
            "model     {} calls, {} tokens in, {} out, about {cost}",
            run.model_calls, usage.input_tokens, usage.output_tokens
        )?;
    }
    Ok(())
}

fn steps(steps: &[StepSummary], more: Option<More>, out: &mut dyn Write) -> Result<(), CommandError> {
    let headings = ["STEP", "TOOL", "DECISION", "STATUS", "POLICY", "OBSERVATION", "SUMMARY"];
    let mut table = Table::new(&headings);
    for step in steps {
        let (observation, summary) = match (&step.unread, &step.late) {
            (Some(damage), _) => (step.observation.to_owned(), format!("can't be read: {damage}")),
            // What came of the call is news; that the run was cancelled, and why, stands above.
            (None, Some(late)) => {
                (format!("{}, then {}", step.observation, late.observation), late.summary.clone())
            }
            (None, None) => (step.observation.to_owned(), step.summary.clone()),
        };
        table.row(vec![
            Cell::own(step.index),
            Cell::foreign(&step.tool),
            Cell::foreign(&step.decision),
            Cell::foreign(step.status),
            Cell::foreign(step.policy),
            Cell::foreign(&observation),
            Cell::foreign_cut(&summary, SUMMARY_BYTES_MAX),
        ]);
    }
    table.write(out)?;
    if let Some(more) = more {
        writeln!(out, "{more}")?;
    }
    Ok(())
}
