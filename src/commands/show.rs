//! `holdpoint show`: one run, every approval that it waits for, and its steps.

use std::io::Write;
use std::path::Path;

use holdpoint::view::{ApprovalView, RunSummary, StepSummary};
use holdpoint_core::ids::RunId;
use serde::Serialize;

use super::records::{Records, Waiting};
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
    #[arg(value_name = "RUN")]
    run: String,
    #[command(flatten)]
    page: PageArgs<500>,
}

/// Everything about a run that is printed. Steps, waiting approvals and all approvals are paged alike.
#[derive(Debug)]
struct Detail {
    run: RunSummary,
    steps: Vec<StepSummary>,
    steps_total: u64,
    pending: Vec<Waiting>,
    pending_total: u64,
    approvals: Vec<ApprovalView>,
    approvals_total: u64,
}

/// What is printed in JSON.
#[derive(Debug, Serialize)]
struct Listing {
    run: RunSummary,
    steps: Vec<StepSummary>,
    steps_total: u64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    steps_truncated: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    approvals: Vec<ApprovalView>,
    approvals_total: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting_approval: Option<ApprovalView>,
    limit: u32,
    offset: u32,
}

pub(super) fn run(args: &Args, database: &Path, ui: &mut Ui) -> Result<(), CommandError> {
    let page = args.page.page();
    let records = Records::open_to_read(database)?;
    let detail = read(&records, &RunId::from(args.run.as_str()), page)?;
    if !ui.json() {
        return print(&detail, page, database, ui.out());
    }
    let waiting = match detail.pending.as_slice() {
        [only] if detail.pending_total == 1 => Some(ApprovalView::of(&only.approval)),
        _ => None,
    };
    Ok(ui.write_json(&Listing {
        steps_truncated: page.leaves(detail.steps.len() as u64, detail.steps_total).is_some(),
        run: detail.run,
        steps: detail.steps,
        steps_total: detail.steps_total,
        approvals: detail.approvals,
        approvals_total: detail.approvals_total,
        waiting_approval: waiting,
        limit: page.limit,
        offset: page.offset,
    })?)
}

fn read(records: &Records, id: &RunId, page: Page) -> Result<Detail, CommandError> {
    let run = records.summary(id)?;
    let (steps, steps_total) = page.collect(|limit, offset| records.steps(id, limit, offset))?;
    let (pending, pending_total) = page.collect(|limit, offset| records.pending(id, limit, offset))?;
    let (approvals, approvals_total) = page.collect(|limit, offset| records.approvals(id, limit, offset))?;
    let approvals = approvals.iter().map(ApprovalView::of).collect();
    Ok(Detail { run, steps, steps_total, pending, pending_total, approvals, approvals_total })
}

fn print(detail: &Detail, page: Page, database: &Path, out: &mut dyn Write) -> Result<(), CommandError> {
    header(&detail.run, out)?;
    for waits in &detail.pending {
        waiting::write(out, &waits.approval, waits.reason.as_deref(), database)?;
    }
    if let Some(more) = page.leaves(detail.pending.len() as u64, detail.pending_total) {
        writeln!(out, "\nwaiting approvals: {more}")?;
    }
    if detail.steps.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    steps(&detail.steps, page.leaves(detail.steps.len() as u64, detail.steps_total), out)
}

fn header(run: &RunSummary, out: &mut dyn Write) -> Result<(), CommandError> {
    let (bold, colour) = (style::BOLD, status_style(run.status));
    writeln!(out, "run       {bold}{}{bold:#}", line(&run.id, ID_BYTES_MAX))?;
    writeln!(out, "goal      {}", counted(&run.goal, TEXT_BYTES_MAX))?;
    write!(out, "status    {colour}{}{colour:#}", run.status)?;
    if !run.reason.is_empty() {
        write!(out, " ({})", run.reason)?;
    }
    if !run.reason_detail.is_empty() {
        write!(out, ": {}", counted(&run.reason_detail, TEXT_BYTES_MAX))?;
    }
    writeln!(out, "\nsteps     {}", run.steps)?;
    writeln!(out, "created   {}", times::stamp(run.created_at))?;
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
        table.row(vec![
            Cell::own(step.index),
            Cell::foreign(&step.tool),
            Cell::foreign(&step.decision),
            Cell::foreign(step.status),
            Cell::foreign(step.policy),
            Cell::foreign(step.observation),
            Cell::foreign_cut(&step.summary, SUMMARY_BYTES_MAX),
        ]);
    }
    table.write(out)?;
    if let Some(more) = more {
        writeln!(out, "{more}")?;
    }
    Ok(())
}
