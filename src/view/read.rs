//! Reads of one snapshot: what a list of runs, a run's page and a person who decides need to see.
//!
//! Owns what belongs together. Every function takes a [`Reader`], so that what is asked of one reader is of one moment;
//! [`Records`](super::Records) has the same for whoever needs one thing only. Pages cut long texts in SQL, so that a
//! crafted database can't fill a reader's memory. Never decides.

use std::collections::HashMap;

use holdpoint_actors::store::{ListedRun, Page, ReadError, Reader};
use holdpoint_core::approval::{Approval, ApprovalStatus};
use holdpoint_core::attempt::{Attempt, is_interrupted};
use holdpoint_core::ids::{ApprovalId, RunId};
use holdpoint_core::run::RunStatus;

use super::error::{CANDIDATES_MAX, Error};
use super::line::{counted, line};
use super::shapes::{LateOutcome, RunSummary, StepSummary};

/// The most bytes of a late outcome's kind and line in a warning.
const KIND_BYTES_MAX: usize = 256;
const SUMMARY_BYTES_MAX: usize = 1_000;

/// All rows there are.
const ALL: i64 = i64::MAX;

/// An approval that waits, and why the policy asks for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// The approval.
    pub approval: Approval,
    /// The policy's reason, as the record has it. It may hold text that a model chose.
    pub reason: Option<String>,
    /// What the attempt whose outcome it asks about came to after all, when that became known since.
    pub attempt_came_to: Option<LateOutcome>,
}

/// A run as its page shows it: steps, what waits and all approvals, each a page of the same limit and offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Detail {
    /// The run.
    pub run: RunSummary,
    /// Its steps.
    pub steps: Page<StepSummary>,
    /// What it waits for; nothing of a run that does not wait, since nobody can decide that any more.
    pub pending: Page<Waiting>,
    /// Every approval that it ever asked for.
    pub approvals: Page<Approval>,
    /// The grant that nobody has collected yet, when the run still waits and nothing is left to decide.
    pub granted: Option<Approval>,
}

impl Detail {
    /// The one approval that a person has to decide; none when there are several, or none on this page.
    pub fn waiting(&self) -> Option<&Waiting> {
        match self.pending.rows.as_slice() {
            [only] if self.pending.total == 1 => Some(only),
            _ => None,
        }
    }
}

/// Every run, newest first.
///
/// # Errors
/// When the record can't be read; so everywhere below.
pub fn runs(reader: &Reader<'_>) -> Result<Vec<RunSummary>, ReadError> {
    Ok(runs_page(reader, ALL, 0)?.rows)
}

/// A page of runs, newest first: at least one row, from `offset` on, and how many there are in all.
pub fn runs_page(reader: &Reader<'_>, limit: i64, offset: i64) -> Result<Page<RunSummary>, ReadError> {
    summaries(reader, reader.runs_page(limit, offset)?)
}

/// A page of the runs that wait for a person, or for somebody to collect what a person granted; newest first.
pub fn waiting_runs_page(
    reader: &Reader<'_>,
    limit: i64,
    offset: i64,
) -> Result<Page<RunSummary>, ReadError> {
    summaries(reader, reader.waiting_runs_page(limit, offset)?)
}

fn summaries(reader: &Reader<'_>, page: Page<ListedRun>) -> Result<Page<RunSummary>, ReadError> {
    let ids: Vec<RunId> = page.rows.iter().map(|run| RunId::from(run.id.as_str())).collect();
    let mut pending: HashMap<RunId, Vec<ApprovalId>> = HashMap::new();
    for (run, approval) in reader.pending_approval_ids_of(&ids, 2)? {
        pending.entry(run).or_default().push(approval);
    }
    let none = Vec::new();
    let rows = page.rows.into_iter().zip(&ids);
    let rows = rows.map(|(run, id)| RunSummary::of(run, pending.get(id).unwrap_or(&none))).collect();
    Ok(Page { rows, total: page.total })
}

/// A run, with the approval that it waits for; none when there is no such run.
pub fn summary(reader: &Reader<'_>, id: &RunId) -> Result<Option<RunSummary>, ReadError> {
    let Some(run) = reader.listed_run(id)? else { return Ok(None) };
    let pending = reader.pending_approval_ids_of(std::slice::from_ref(id), 2)?;
    let ids: Vec<&str> = pending.iter().map(|(_, approval)| approval.as_str()).collect();
    Ok(Some(RunSummary::of(run, &ids)))
}

/// The steps of a run, in order; none of a run that there isn't.
pub fn steps(reader: &Reader<'_>, run: &RunId) -> Result<Vec<StepSummary>, ReadError> {
    Ok(steps_page(reader, run, ALL, 0)?.rows)
}

/// A page of a run's steps, in order.
pub fn steps_page(
    reader: &Reader<'_>,
    run: &RunId,
    limit: i64,
    offset: i64,
) -> Result<Page<StepSummary>, ReadError> {
    let page = reader.steps_page(run, limit, offset)?;
    let mut rows = Vec::with_capacity(page.rows.len());
    for step in &page.rows {
        let late = if is_interrupted(step) { reader.late_outcome(run, &step.id)? } else { None };
        let late = late.map(|(observation, summary)| LateOutcome { observation, summary });
        rows.push(StepSummary::of(step, late));
    }
    Ok(Page { rows, total: page.total })
}

/// Everything about a run; none when there is no such run.
pub fn detail(reader: &Reader<'_>, run: &RunId) -> Result<Option<Detail>, ReadError> {
    detail_page(reader, run, ALL, 0)
}

/// A page of everything about a run: its steps, what waits and its approvals share `limit` and `offset`.
pub fn detail_page(
    reader: &Reader<'_>,
    id: &RunId,
    limit: i64,
    offset: i64,
) -> Result<Option<Detail>, ReadError> {
    let Some(run) = summary(reader, id)? else { return Ok(None) };
    let approvals = |status| reader.approvals_page(id, status, limit, offset);
    // A run that was cancelled keeps undecided approvals; nobody can decide them any more.
    let waits = run.known_status() == Some(RunStatus::WaitingForApproval);
    let undecided =
        if waits { approvals(Some(ApprovalStatus::Pending))? } else { Page { rows: Vec::new(), total: 0 } };
    let mut pending = Page { rows: Vec::new(), total: undecided.total };
    for approval in undecided.rows {
        let reason = reader.approval_reason(id, &approval.id)?;
        let attempt_came_to = attempt_came_to(reader, &approval)?;
        pending.rows.push(Waiting { approval, reason, attempt_came_to });
    }
    let granted = if waits && pending.total == 0 { waits_for(reader, id, 1)?.pop() } else { None };
    Ok(Some(Detail {
        run,
        steps: steps_page(reader, id, limit, offset)?,
        pending,
        approvals: approvals(None)?,
        granted,
    }))
}

/// What a waiting run waits for: at most `max` of its undecided approvals, else the grant that nobody has collected.
pub fn waits_for(reader: &Reader<'_>, run: &RunId, max: i64) -> Result<Vec<Approval>, ReadError> {
    let undecided = reader.approvals_page(run, Some(ApprovalStatus::Pending), max, 0)?;
    if !undecided.rows.is_empty() {
        return Ok(undecided.rows);
    }
    let granted = |offset| reader.approvals_page(run, Some(ApprovalStatus::Approved), 1, offset);
    let first = granted(0)?;
    // Those before the last were collected by earlier steps.
    Ok(if first.total > 1 { granted(first.total - 1)?.rows } else { first.rows })
}

/// The approval that a person means: the one that is named, else the only one that waits. It is read whole.
///
/// # Errors
/// The first of these that holds: there is no such run; it does not wait; none is named, and none or several wait;
/// there is no such approval; it has expired, as far as the record knows; it was decided.
pub fn pending_approval(reader: &Reader<'_>, run: &RunId, id: Option<&ApprovalId>) -> Result<Waiting, Error> {
    let found = reader.listed_run(run)?.ok_or_else(|| Error::NoRun(run.clone()))?;
    if found.status != RunStatus::WaitingForApproval.as_str() {
        return Err(Error::RunNotWaiting { run: run.clone(), status: found.status });
    }
    let id = match id {
        Some(id) => id.clone(),
        None => only_pending(reader, run)?,
    };
    let approval = reader
        .approval(run, &id)?
        .ok_or_else(|| Error::NoApproval { run: run.clone(), approval: id.clone() })?;
    match approval.status {
        ApprovalStatus::Pending => {}
        ApprovalStatus::Expired => {
            return Err(Error::Expired { approval: id, at: None, events: Vec::new() });
        }
        status @ (ApprovalStatus::Approved | ApprovalStatus::Rejected) => {
            return Err(Error::NotPending { approval: id, status });
        }
    }
    let reason = reader.approval_reason(run, &id)?;
    let attempt_came_to = attempt_came_to(reader, &approval)?;
    Ok(Waiting { approval, reason, attempt_came_to })
}

/// What the attempt that an approval asks about as of an unknown outcome came to after all; nothing while it is unknown.
pub fn attempt_came_to(reader: &Reader<'_>, approval: &Approval) -> Result<Option<LateOutcome>, ReadError> {
    let named = approval.is_interruption().then(|| Attempt::named_in(&approval.capability)).flatten();
    let Some(attempt) = named else { return Ok(None) };
    let late = reader.late_outcome(&attempt.run_id, &attempt.step_id)?;
    Ok(late.map(|(observation, summary)| LateOutcome { observation, summary }))
}

/// What a person is warned of who decides whether an attempt of unknown outcome is made again: one line, escaped.
pub fn careful(came_to: Option<&LateOutcome>) -> String {
    let Some(LateOutcome { observation, summary }) = came_to else {
        return "an earlier attempt may have had its effect: approving repeats the call".to_owned();
    };
    let (kind, summary) = (line(observation, KIND_BYTES_MAX), counted(summary, SUMMARY_BYTES_MAX));
    format!(
        "the earlier attempt's outcome is known by now ({kind}: {summary}): approving repeats the call all the same"
    )
}

fn only_pending(reader: &Reader<'_>, run: &RunId) -> Result<ApprovalId, Error> {
    let max = i64::try_from(CANDIDATES_MAX).unwrap_or(i64::MAX);
    let page = reader.approvals_page(run, Some(ApprovalStatus::Pending), max, 0)?;
    let mut candidates: Vec<ApprovalId> = page.rows.into_iter().map(|approval| approval.id).collect();
    match candidates.len() {
        0 => Err(Error::NoPending(run.clone())),
        1 => Ok(candidates.remove(0)),
        named => {
            let named = i64::try_from(named).unwrap_or(i64::MAX);
            let more = u64::try_from(page.total.saturating_sub(named)).unwrap_or(0);
            Err(Error::Ambiguous { run: run.clone(), candidates, more })
        }
    }
}
