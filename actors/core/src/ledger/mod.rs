//! The ledger of one run: its rows in memory, and the draft of what has not been committed yet.
//!
//! Owns the order of events inside a commit and the guards that each write needs; it is the one place where a run's
//! story is composed, live and in recovery. Never commits: a session takes the draft as a [`Transition`] whenever
//! something outside could notice it. A session whose transition is refused is over, so nothing is rolled back here.
//! Longer than its neighbours, because the order of a run's events is meant to be read in one place.

pub mod model;
mod outside;

use std::sync::Arc;

use crate::approval::{Approval, ApprovalEvent, ApprovalStatus, IllegalApprovalMove};
use crate::attempt::Ending;
use crate::decision::Decision;
use crate::event::NewEvent;
use crate::ids::{ApprovalId, LeaseOwner, PolicyId, SpecHash, StepId};
use crate::json::Json;
use crate::limits::Repeated;
use crate::policy::{PolicyDecision, PolicyView, SeenView};
use crate::run::{IllegalRunMove, Lease, Reason, Run, RunEvent, RunStatus};
use crate::step::{IllegalStepMove, Observation, ObservationKind, Step, StepEvent, StepStatus};
use crate::time::UnixNanos;
use crate::tool::{RecordedSpec, ToolRequest};
use crate::transition::{
    ApprovalWrite, Durability, EndingWrite, Guard, LeaseTerms, LeaseWrite, RunUpdate, RunWrite, Standing,
    StepWrite, Transition,
};

pub use outside::{
    Decider, Waiting, approve, cancel, check_begin, fail_internal, late_outcome, reject, release, renew,
};

/// A move that no state machine has: a fault of the caller, never of the input.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Illegal {
    /// Of a run.
    #[error(transparent)]
    Run(#[from] IllegalRunMove),
    /// Of a step.
    #[error(transparent)]
    Step(#[from] IllegalStepMove),
    /// Of an approval.
    #[error(transparent)]
    Approval(#[from] IllegalApprovalMove),
    /// There is no open step to move.
    #[error("move the open step: there is none")]
    NoOpenStep,
}

/// The rows of one run and the draft of its next commit.
#[derive(Debug)]
pub struct Ledger {
    run: Run,
    steps: Vec<Arc<Step>>,
    approvals: Vec<Arc<Approval>>,
    terms: LeaseTerms,
    open: Option<usize>,
    /// The spec of the request that is judged, when it is not the one that was decided on.
    judged_spec: Option<SpecHash>,
    draft: Draft,
}

/// What is not committed yet. Unless it makes the run or enters it from elsewhere, it requires the writer's hold: that
/// is said once, in [`Ledger::take`], so that no write can forget it.
#[derive(Debug)]
struct Draft {
    guards: Vec<Guard>,
    run_is_new: bool,
    entered: bool,
    /// Whether an effect starts, for which the lease must not have run out.
    starts_effect: bool,
    /// What the draft needs, whoever takes it: a person's question, a decision and a takeover are synced.
    durability: Durability,
    update: Option<RunUpdate>,
    specs: Vec<RecordedSpec>,
    steps: Vec<Touched>,
    approvals: Vec<ApprovalWrite>,
    endings: Vec<EndingWrite>,
    events: Vec<NewEvent>,
}

impl Default for Draft {
    fn default() -> Draft {
        Draft {
            guards: Vec::new(),
            run_is_new: false,
            entered: false,
            starts_effect: false,
            durability: Durability::Written,
            update: None,
            specs: Vec::new(),
            steps: Vec::new(),
            approvals: Vec::new(),
            endings: Vec::new(),
            events: Vec::new(),
        }
    }
}

#[derive(Debug)]
struct Touched {
    index: usize,
    is_new: bool,
}

/// How a run ends.
#[derive(Debug, Clone)]
pub struct RunEnd {
    /// Why.
    pub reason: Reason,
    /// In words.
    pub detail: String,
    /// What it produced.
    pub result: Option<Json>,
    /// Whether a limit is to blame, which is an event of its own.
    pub limit: bool,
}

impl RunEnd {
    /// An end for `reason`, with `detail`.
    pub fn new(reason: Reason, detail: impl Into<String>) -> RunEnd {
        RunEnd { reason, detail: detail.into(), result: None, limit: false }
    }

    /// The same end, with what the run produced.
    #[must_use]
    pub fn with_result(mut self, result: Option<Json>) -> RunEnd {
        self.result = result;
        self
    }

    /// The same end, because of a limit.
    #[must_use]
    pub fn by_limit(mut self) -> RunEnd {
        self.limit = true;
        self
    }
}

impl Ledger {
    /// Begins a run: its row, every registered spec, `run.created`, `run.started`.
    pub fn begin(terms: LeaseTerms, run: Run, specs: &[RecordedSpec]) -> Ledger {
        let mut ledger = Ledger::of(terms, run, Vec::new(), Vec::new());
        ledger.draft.run_is_new = true;
        ledger.draft.guards.push(Guard::RunAbsent);
        ledger.draft.specs.extend_from_slice(specs);
        ledger.draft.events.push(NewEvent::run_created(&ledger.run, specs));
        ledger.draft.events.push(NewEvent::run_started(&ledger.run));
        ledger
    }

    /// Opens the ledger of a stored run.
    pub fn of(terms: LeaseTerms, run: Run, steps: Vec<Arc<Step>>, approvals: Vec<Arc<Approval>>) -> Ledger {
        Ledger { run, steps, approvals, terms, open: None, judged_spec: None, draft: Draft::default() }
    }

    /// The run.
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// The run as somebody else changed it meanwhile: its accounting, or a person's cancellation.
    pub fn set_run(&mut self, run: Run) {
        self.run = run;
    }

    /// The steps, in order.
    pub fn steps(&self) -> &[Arc<Step>] {
        &self.steps
    }

    /// The approvals, in insertion order.
    pub fn approvals(&self) -> &[Arc<Approval>] {
        &self.approvals
    }

    /// Who writes.
    pub fn terms(&self) -> &LeaseTerms {
        &self.terms
    }

    /// The open step.
    pub fn open_step(&self) -> Option<&Arc<Step>> {
        self.open.map(|i| &self.steps[i])
    }

    /// Makes the step at `index` the open one: the step that a grant resumes.
    pub fn reopen_step(&mut self, index: usize) {
        self.open = (index < self.steps.len()).then_some(index);
    }

    /// What a policy may see: the run as it stands, the steps before the open one, every approval.
    pub fn view(&self) -> PolicyView {
        let before = self.open.unwrap_or(self.steps.len());
        PolicyView {
            run: self.run.clone(),
            steps: self.steps[..before].to_vec(),
            approvals: self.approvals.clone(),
        }
    }

    /// Starts the next step (T2).
    pub fn start_step(&mut self, id: StepId, now: UnixNanos) {
        if !self.draft.run_is_new {
            self.draft.guards.push(Guard::StepCount { count: self.run.step_count });
        }
        self.update().steps_started += 1;
        let step = Step::begun(id, self.run.id.clone(), self.run.step_count, now);
        self.run.step_count += 1;
        self.draft.events.push(NewEvent::step_started(&step));
        self.steps.push(Arc::new(step));
        let index = self.steps.len() - 1;
        self.open = Some(index);
        self.draft.steps.push(Touched { index, is_new: true });
    }

    /// Records a decision verbatim, and the spec of the tool that it names (T3).
    pub fn decide(
        &mut self,
        decision: Decision,
        spec: Option<&RecordedSpec>,
        now: UnixNanos,
    ) -> Result<(), Illegal> {
        let step = self.touch()?;
        step.decision = Some(decision);
        step.spec_hash = spec.map(|spec| spec.hash.clone());
        let event = NewEvent::step_decided(step, now);
        self.draft.specs.extend(spec.cloned());
        self.draft.events.push(event);
        Ok(())
    }

    /// Records what the policy answered. The event stands beside whatever the answer caused.
    pub fn record_policy(
        &mut self,
        decision: PolicyDecision,
        id: Option<PolicyId>,
        view: Option<&SeenView>,
        at: UnixNanos,
    ) -> Result<(), Illegal> {
        self.ask_policy(id)?;
        let judged_spec = self.judged_spec.take();
        let step = self.touch()?;
        let spec = judged_spec.as_ref().or(step.spec_hash.as_ref());
        let event = NewEvent::step_policy(step, &decision, spec, view, at);
        step.policy = Some(decision);
        self.draft.events.push(event);
        Ok(())
    }

    /// Names the policy that is asked about the open step, whether or not it comes to an answer.
    pub fn ask_policy(&mut self, id: Option<PolicyId>) -> Result<(), Illegal> {
        self.touch()?.policy_id = id;
        Ok(())
    }

    /// Names the spec that a recorded request is judged under now. The step keeps the one that it was decided on; the
    /// policy's answer names this one.
    pub fn judge_under(&mut self, spec: &RecordedSpec) {
        self.judged_spec = Some(spec.hash.clone());
        self.draft.specs.push(spec.clone());
    }

    /// Starts the tool (T4a, and the rest of T7): from here on its effect may have happened.
    pub fn start_tool(
        &mut self,
        request: &ToolRequest,
        grant: Option<&ApprovalId>,
        at: UnixNanos,
    ) -> Result<(), Illegal> {
        self.draft.starts_effect = true;
        let step = self.touch()?;
        step.status = step.status.after(StepEvent::ToolStarted)?;
        if grant.is_some() {
            // The wait for a person is not active time: the step's clock starts again.
            step.started_at = at;
        }
        let event = NewEvent::tool_started(step, request, grant, at);
        self.draft.events.push(event);
        Ok(())
    }

    /// Ends the open step, well when `observation` is no failure (T4b, T5).
    pub fn end_step(
        &mut self,
        observation: Option<Observation>,
        detail: &str,
        now: UnixNanos,
    ) -> Result<(), Illegal> {
        let failed = observation.as_ref().is_some_and(Observation::is_failure);
        self.close_step(failed, observation, detail, now)
    }

    /// Fails the open step with nothing observed: its policy or its decider failed.
    pub fn fail_step(&mut self, detail: &str, now: UnixNanos) -> Result<(), Illegal> {
        self.close_step(true, None, detail, now)
    }

    fn close_step(
        &mut self,
        failed: bool,
        observation: Option<Observation>,
        detail: &str,
        now: UnixNanos,
    ) -> Result<(), Illegal> {
        let step = self.touch()?;
        let executed = step.status == StepStatus::Executing;
        step.status = step.status.after(if failed { StepEvent::Failed } else { StepEvent::Succeeded })?;
        // From here on a policy may see the step, and must see what it would after a restart.
        step.decision = step.decision.take().map(Decision::stored);
        step.observation = observation.map(Observation::stored);
        step.policy = step.policy.take().map(PolicyDecision::stored);
        step.finished_at = Some(now);
        let active = now.millis_since(step.started_at).max(0);
        let mut events = Vec::new();
        if let Some(observation) = step.observation.as_ref().filter(|_| executed) {
            events.push(NewEvent::tool_finished(step, observation, false, now));
        }
        if failed {
            events.push(NewEvent::step_failed(step, detail, now));
        }
        self.draft.events.extend(events);
        self.run.active_ms = self.run.active_ms.saturating_add(active);
        self.update().add_active_ms += active;
        self.open = None;
        Ok(())
    }

    /// Keeps how the step's call ended, beside the text that its observation records.
    pub fn keep_ending(&mut self, step_id: StepId, ending: Ending) {
        self.draft.endings.push(EndingWrite { step_id, ending });
    }

    /// Records a loop, before the end that it causes.
    pub fn detect_loop(&mut self, repeated: &Repeated, at: UnixNanos) {
        let event = NewEvent::loop_detected(&self.run, repeated, at);
        self.draft.events.push(event);
    }

    /// Ends the run and gives its lease up.
    pub fn end_run(&mut self, end: RunEnd, now: UnixNanos) -> Result<(), Illegal> {
        self.run.status = self.run.status.after(RunEvent::Ended(end.reason))?;
        self.run.reason = Some(end.reason);
        self.run.reason_detail = end.detail;
        self.run.result = end.result;
        self.run.finished_at = Some(now);
        self.stand();
        if end.limit {
            let event = NewEvent::limit_exceeded(&self.run, now);
            self.draft.events.push(event);
        }
        let event = NewEvent::run_finished(&self.run, now, None);
        self.draft.events.push(event);
        Ok(())
    }

    /// Parks the run on a new approval of the open step's request, giving the lease up (T4d).
    ///
    /// The policy's answer must have been recorded just before.
    pub fn pause(
        &mut self,
        id: ApprovalId,
        request: ToolRequest,
        now: UnixNanos,
    ) -> Result<Arc<Approval>, Illegal> {
        self.run.status = self.run.status.after(RunEvent::Paused)?;
        let ttl = self.run.limits.approval_ttl;
        self.draft.durability = Durability::Synced;
        let step = self.touch()?;
        step.status = step.status.after(StepEvent::Paused)?;
        step.observation = None;
        step.finished_at = None;
        let decision = step.policy.clone().unwrap_or_else(|| PolicyDecision::deny("no decision"));
        let json = |field: Option<Json>| field.filter(|f| !f.is_blank()).unwrap_or_else(Json::empty_object);
        let (capability, presentation) = (json(decision.capability), json(decision.presentation));
        let approval = Arc::new(Approval {
            hash: Approval::hash_of(&decision.kind, &capability, &presentation, &request),
            id,
            run_id: step.run_id.clone(),
            step_id: step.id.clone(),
            kind: decision.kind,
            capability,
            presentation,
            request: Some(request),
            status: ApprovalStatus::Pending,
            created_at: now,
            expires_at: (ttl > 0).then(|| UnixNanos::from_nanos(now.as_nanos().saturating_add(ttl))),
            decided_at: None,
            decided_by: String::new(),
            note: String::new(),
            decode_error: None,
        });
        let event = NewEvent::approval_requested(step, &approval, &decision.reason);
        self.draft.events.push(event);
        self.draft.approvals.push(ApprovalWrite::Insert(Arc::clone(&approval)));
        self.approvals.push(Arc::clone(&approval));
        self.open = None;
        self.stand();
        Ok(approval)
    }

    /// Requires that the run still waits: the writes that follow leave it waiting, or end it.
    pub fn require_waiting(&mut self) {
        self.enter(Guard::RunIs { any_of: vec![RunStatus::WaitingForApproval] });
    }

    /// Moves a waiting run to RUNNING by a grant, taking the lease (T7): of two who try, one wins.
    pub fn resume_by(&mut self, grant: &Approval, at: UnixNanos) -> Result<(), Illegal> {
        self.require_waiting();
        self.draft.guards.push(Guard::ApprovalIs {
            approval: grant.id.clone(),
            status: ApprovalStatus::Approved,
            hash: grant.hash.clone(),
        });
        self.run.status = self.run.status.after(RunEvent::Resumed)?;
        self.stand();
        self.draft.events.push(NewEvent::run_resumed_by(grant, at));
        Ok(())
    }

    /// Takes over an abandoned run (T8): every step in flight is marked interrupted.
    ///
    /// `seen` is the lease that was read; `gone` names an owner of this process whose session is known to be gone.
    pub fn take_over(
        &mut self,
        seen: Option<Lease>,
        gone: Option<LeaseOwner>,
        now: UnixNanos,
    ) -> Result<(), Illegal> {
        self.run.status = self.run.status.after(RunEvent::TakenOver)?;
        if let Some(previous) = &seen {
            let event = NewEvent::lease_taken_over(&self.run, previous, &self.terms.owner, now);
            self.draft.events.push(event);
        }
        self.enter(Guard::Abandoned { seen, gone });
        self.draft.durability = Durability::Synced;
        self.stand();
        if self.damage().is_some() {
            return Ok(());
        }
        let in_flight: Vec<usize> = (0..self.steps.len())
            .filter(|&i| matches!(self.steps[i].status, StepStatus::Deciding | StepStatus::Executing))
            .collect();
        for index in in_flight {
            self.open = Some(index);
            let step = self.touch()?;
            let was = step.status;
            step.status = was.after(StepEvent::CutOff)?;
            let summary = format!("step interrupted while {was}");
            let fields = [("previous_status", was.as_str())];
            step.observation = Some(Observation::of_fields(ObservationKind::Interrupted, &fields, summary));
            step.finished_at = Some(now);
            let event = NewEvent::step_interrupted(step, now);
            self.draft.events.push(event);
        }
        self.open = None;
        Ok(())
    }

    /// Goes on after an interruption that left nothing unknown (T9).
    pub fn resume_after_interruption(&mut self, now: UnixNanos) {
        let event = NewEvent::run_resumed_after_interruption(&self.run, now);
        self.draft.events.push(event);
    }

    /// Expires an approval, pending or a grant never collected, and cancels the run (T13).
    pub fn expire(&mut self, approval: &Approval, now: UnixNanos) -> Result<(), Illegal> {
        self.require_waiting();
        self.draft.durability = Durability::Synced;
        let mut expired = approval.clone();
        self.draft.guards.push(Guard::ApprovalIs {
            approval: approval.id.clone(),
            status: approval.status,
            hash: approval.hash.clone(),
        });
        expired.status = approval.status.after(ApprovalEvent::Expired)?;
        if approval.status == ApprovalStatus::Pending {
            expired.decided_at = Some(now);
            "expired".clone_into(&mut expired.note);
        }
        let expired = Arc::new(expired);
        self.draft.events.push(NewEvent::approval_decided(&expired, now));
        self.replace(&expired);
        let detail = format!("approval {} expired", approval.id);
        self.end_run(RunEnd::new(Reason::ApprovalExpired, detail), now)
    }

    fn replace(&mut self, approval: &Arc<Approval>) {
        self.draft.approvals.push(ApprovalWrite::Decide(Arc::clone(approval)));
        if let Some(slot) = self.approvals.iter_mut().find(|a| a.id == approval.id) {
            *slot = Arc::clone(approval);
        }
    }

    /// The first row that cannot be read. Such a run is never continued from.
    pub fn damage(&self) -> Option<String> {
        let step = self.steps.iter().find_map(|step| {
            let error = step.decode_error.as_ref()?;
            Some(format!("step {} ({}) could not be decoded: {error}", step.index, step.id))
        });
        step.or_else(|| {
            self.approvals.iter().find_map(|approval| {
                let error = approval.decode_error.as_ref()?;
                Some(format!("approval {} could not be decoded: {error}", approval.id))
            })
        })
    }

    /// Whether nothing of the run is in the record yet.
    pub fn is_new(&self) -> bool {
        self.draft.run_is_new
    }

    /// Whether nothing waits to be committed.
    pub fn is_clean(&self) -> bool {
        let d = &self.draft;
        !d.run_is_new
            && d.update.is_none()
            && d.steps.is_empty()
            && d.events.is_empty()
            && d.approvals.is_empty()
    }

    /// Takes what has been drafted as one transition, as durable as `durability` or as it needs, and starts a clean
    /// draft.
    pub fn take(&mut self, durability: Durability) -> Transition {
        let mut draft = std::mem::take(&mut self.draft);
        if !draft.run_is_new && !draft.entered {
            let held = Guard::Held { owner: self.terms.owner.clone(), live: draft.starts_effect };
            draft.guards.insert(0, held);
        }
        let durability = durability.max(draft.durability);
        let held = || (self.run.status == RunStatus::Running).then(|| self.terms.clone());
        let run = if draft.run_is_new {
            Some(RunWrite::Insert { run: self.run.clone(), lease: held() })
        } else {
            draft.update.map(RunWrite::Update)
        };
        let steps = draft
            .steps
            .into_iter()
            .map(|touched| {
                let step = Arc::clone(&self.steps[touched.index]);
                if touched.is_new { StepWrite::Insert(step) } else { StepWrite::Update(step) }
            })
            .collect();
        Transition {
            guards: draft.guards,
            run,
            specs: draft.specs,
            steps,
            approvals: draft.approvals,
            endings: draft.endings,
            events: draft.events,
            ..Transition::of(self.run.id.clone(), durability)
        }
    }

    fn update(&mut self) -> &mut RunUpdate {
        self.draft.update.get_or_insert_default()
    }

    fn enter(&mut self, guard: Guard) {
        if !self.draft.entered {
            self.draft.entered = true;
            self.draft.guards.insert(0, guard);
        }
    }

    /// Writes where the run stands now; a run that is RUNNING holds the writer's lease, any other none.
    fn stand(&mut self) {
        let standing = Standing {
            status: self.run.status,
            reason: self.run.reason,
            reason_detail: self.run.reason_detail.clone(),
            finished_at: self.run.finished_at,
            result: self.run.result.clone(),
        };
        let lease = if self.run.status == RunStatus::Running {
            LeaseWrite::Take(self.terms.clone())
        } else {
            LeaseWrite::Clear
        };
        let update = self.update();
        update.standing = Some(standing);
        update.lease = lease;
    }

    /// The open step, to be rewritten in this draft if its stored status is still the one that was read.
    fn touch(&mut self) -> Result<&mut Step, Illegal> {
        let index = self.open.ok_or(Illegal::NoOpenStep)?;
        if !self.draft.steps.iter().any(|touched| touched.index == index) {
            let step = &self.steps[index];
            self.draft.guards.push(Guard::StepIs { step: step.id.clone(), status: step.status });
            self.draft.steps.push(Touched { index, is_new: false });
        }
        Ok(Arc::make_mut(&mut self.steps[index]))
    }
}

#[cfg(test)]
mod tests;
