//! What is decided about a run from outside its session: a person's answer, a cancellation, a damaged record, a lease.
//!
//! Owns the transitions that need no session. Never checks who decides: the store's guards say whether it may.

use std::sync::Arc;

use super::{Illegal, RunEnd};
use crate::approval::{Approval, ApprovalEvent};
use crate::attempt::Ending;
use crate::event::NewEvent;
use crate::ids::{LeaseOwner, RunId};
use crate::json::Json;
use crate::run::{Limits, Reason, Run, RunEvent, RunStatus};
use crate::step::{Observation, ObservationKind, Step, StepStatus};
use crate::time::UnixNanos;
use crate::transition::{
    ApprovalWrite, Durability, EndingWrite, Guard, LeaseTerms, LeaseWrite, RunUpdate, RunWrite, Standing,
    StepWrite, Transition,
};

/// What of a run an operator's command needs to decide on it.
#[derive(Debug, Clone)]
pub struct Waiting {
    /// The run, WAITING.
    pub run: Run,
    /// The approval, pending and intact.
    pub approval: Approval,
}

/// Who decides, and what they note.
#[derive(Debug, Clone, Copy)]
pub struct Decider<'a> {
    /// Their name, in their own words.
    pub by: &'a str,
    /// Their note.
    pub note: &'a str,
}

/// Approves: the run stays WAITING until somebody collects the grant (T6).
pub fn approve(waiting: &Waiting, decider: Decider<'_>, now: UnixNanos) -> Result<Transition, Illegal> {
    decided(waiting, ApprovalEvent::Approved, decider, now).map(|(transition, _)| transition)
}

/// Rejects: the run is CANCELLED and its awaiting step failed (T6).
pub fn reject(waiting: &Waiting, decider: Decider<'_>, now: UnixNanos) -> Result<Transition, Illegal> {
    let (mut t, approval) = decided(waiting, ApprovalEvent::Rejected, decider, now)?;
    let fields = [("approval_id", approval.id.as_str()), ("note", decider.note)];
    let summary = format!("approval rejected: {}", decider.note);
    let observation = Observation::of_fields(ObservationKind::PolicyDenied, &fields, summary);
    t.steps.push(StepWrite::Outcome {
        step: approval.step_id.clone(),
        status: StepStatus::Failed,
        observation: Json::trusted(observation.to_json()),
        observation_hash: observation.content_hash,
        finished_at: now,
    });
    end(&mut t, waiting.run.clone(), RunEnd::new(Reason::ApprovalRejected, decider.note), now, None)?;
    Ok(t)
}

fn decided(
    waiting: &Waiting,
    event: ApprovalEvent,
    decider: Decider<'_>,
    now: UnixNanos,
) -> Result<(Transition, Arc<Approval>), Illegal> {
    let mut approval = waiting.approval.clone();
    let mut t = Transition::of(waiting.run.id.clone(), Durability::Synced);
    t.guards.push(Guard::RunIs { any_of: vec![RunStatus::WaitingForApproval] });
    t.guards.push(Guard::ApprovalIs {
        approval: approval.id.clone(),
        status: approval.status,
        hash: approval.hash.clone(),
    });
    approval.status = approval.status.after(event)?;
    approval.decided_at = Some(now);
    decider.by.clone_into(&mut approval.decided_by);
    decider.note.clone_into(&mut approval.note);
    let approval = Arc::new(approval);
    t.events.push(NewEvent::approval_decided(&approval, now));
    t.approvals.push(ApprovalWrite::Decide(Arc::clone(&approval)));
    Ok((t, approval))
}

/// Cancels any run that is not over: steps in flight fail, pending approvals stay as they are (T12).
pub fn cancel(run: &Run, decider: Decider<'_>, now: UnixNanos) -> Result<Transition, Illegal> {
    let mut t = Transition::of(run.id.clone(), Durability::Synced);
    t.guards.push(Guard::RunIs { any_of: RunStatus::NOT_TERMINAL.to_vec() });
    let fields = [("by", decider.by), ("note", decider.note)];
    let summary = format!("cancelled by operator: {}", decider.note);
    let observation = Observation::of_fields(ObservationKind::Interrupted, &fields, summary);
    t.steps.push(StepWrite::OutcomeOfInFlight {
        observation: Json::trusted(observation.to_json()),
        observation_hash: observation.content_hash,
        finished_at: now,
    });
    end(&mut t, run.clone(), RunEnd::new(Reason::OperatorCancelled, decider.note), now, Some(decider.by))?;
    Ok(t)
}

/// Fails a run that the runtime refuses to go on with, and its steps in flight: decisions and policies stay as they are
/// stored, readable or not (T15).
pub fn fail_internal(run: &Run, guard: Guard, why: &str, now: UnixNanos) -> Result<Transition, Illegal> {
    let mut t = Transition::of(run.id.clone(), Durability::Synced);
    t.guards.push(guard);
    let detail = format!("internal: {why}");
    let kind = ObservationKind::InvalidDecision;
    let observation = Observation::of_fields(kind, &[("error", &detail)], detail.as_str());
    t.steps.push(StepWrite::OutcomeOfInFlight {
        observation: Json::trusted(observation.to_json()),
        observation_hash: observation.content_hash,
        finished_at: now,
    });
    end(&mut t, run.clone(), RunEnd::new(Reason::InternalError, detail), now, None)?;
    Ok(t)
}

/// Appends what a tool returned after its run was cancelled; only to a run that a person cancelled (T14).
pub fn late_outcome(step: &Step, observation: &Observation, ending: Ending, now: UnixNanos) -> Transition {
    let mut t = Transition::of(step.run_id.clone(), Durability::Synced);
    t.guards.push(Guard::RunIs { any_of: vec![RunStatus::Cancelled] });
    if ending != Ending::Answered {
        t.endings.push(EndingWrite { step_id: step.id.clone(), ending });
    }
    t.events.push(NewEvent::tool_finished(step, observation, true, now));
    t
}

/// Gives a lease up, if `owner` still holds it.
pub fn release(run: RunId, owner: LeaseOwner) -> Transition {
    let mut t = Transition::of(run, Durability::Written);
    t.guards.push(Guard::Held { owner, live: false });
    t.run = Some(RunWrite::Update(RunUpdate { lease: LeaseWrite::Clear, ..RunUpdate::default() }));
    t
}

/// Renews a lease, if its owner still holds it.
pub fn renew(run: RunId, terms: LeaseTerms) -> Transition {
    let mut t = Transition::of(run, Durability::Written);
    t.guards.push(Guard::Held { owner: terms.owner.clone(), live: false });
    t.run = Some(RunWrite::Update(RunUpdate { lease: LeaseWrite::Take(terms), ..RunUpdate::default() }));
    t
}

fn end(
    t: &mut Transition,
    mut run: Run,
    end: RunEnd,
    now: UnixNanos,
    by: Option<&str>,
) -> Result<(), Illegal> {
    run.status = run.status.after(RunEvent::Ended(end.reason))?;
    run.reason = Some(end.reason);
    run.reason_detail = end.detail;
    run.finished_at = Some(now);
    t.run = Some(RunWrite::Update(RunUpdate {
        standing: Some(Standing {
            status: run.status,
            reason: run.reason,
            reason_detail: run.reason_detail.clone(),
            finished_at: run.finished_at,
            result: run.result.clone(),
        }),
        lease: LeaseWrite::Clear,
        ..RunUpdate::default()
    }));
    t.events.push(NewEvent::run_finished(&run, now, by));
    Ok(())
}

/// The limits of a run that must hold before it begins.
pub fn check_begin(id: &RunId, limits: &Limits) -> Result<(), String> {
    if id.as_str().is_empty() {
        return Err("a run needs an id".to_owned());
    }
    limits.check()
}
