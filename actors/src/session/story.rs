//! The story of a step: started, decided, judged, executed, recorded.
//!
//! Owns the order. What commits together is composed by the ledger; when it commits is said here: before an effect
//! leaves, before an answer does, and, at the slower pace, at every change of state.
//!
//! Longer than the others: it is the story of a step from top to bottom, and a story is not told in pieces.

use std::collections::HashMap;
use std::sync::Arc;

use holdpoint_core::across_calls::{Admission, IndexWrite};
use holdpoint_core::approval::Approval;
use holdpoint_core::attempt::{self, Ending};
use holdpoint_core::decision::{Ask, Proposal};
use holdpoint_core::ids::{ApprovalId, RunId, StepId};
use holdpoint_core::ledger::{self, Ledger, RunEnd};
use holdpoint_core::limits::{self, Exceeded};
use holdpoint_core::policy::{Outcome, PolicyDecision, SeenView};
use holdpoint_core::run::{Limits, Reason, Run, RunStatus};
use holdpoint_core::step::{Observation, ObservationKind};
use holdpoint_core::time::UnixNanos;
use holdpoint_core::tool::ToolRequest;
use holdpoint_core::transition::Durability;

use super::commit::Stop;
use super::execute::Deferred;
use super::handle::{Opened, StepInput};
use super::model::{AgentError, Book, ModelCaller};
use super::registry::Registered;
use super::{Beginning, Claim, Pace, SessionError, Shared, Verdict};
use crate::address::AskError;
use crate::faults::Point;
use crate::faults::process::{self, Broken};
use crate::lease::LeaseGuard;
use crate::policy::{self, Question};
use crate::store::CallPermit;

/// The session itself, behind its lock.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) shared: Arc<Shared>,
    pub(super) ledger: Ledger,
    /// Above the guard, so that it goes first: what the guard's end sets off needs the run unclaimed.
    pub(super) claim: Option<Claim>,
    pub(super) guard: Option<LeaseGuard>,
    pub(super) permit: Option<CallPermit>,
    pub(super) pace: Pace,
    pub(super) index: Vec<IndexWrite>,
    pub(super) admission: Option<Arc<Admission>>,
    pub(super) allowed: Option<Allowed>,
    pub(super) proposed: bool,
    pub(super) over: Option<SessionError>,
    pub(super) deferred: Option<Deferred>,
    pub(super) endings: HashMap<StepId, Ending>,
    /// The open step's handle to the model, and what the session has in flight there.
    pub(super) model: ModelCaller,
    pub(super) book: Arc<Book>,
}

/// What an allowed verdict leaves for the execution.
#[derive(Debug)]
pub(super) struct Allowed {
    pub(super) request: ToolRequest,
    pub(super) judged: Judged,
}

/// A policy's answer and the readings that belong to it.
#[derive(Debug)]
pub(super) struct Judged {
    pub(super) decision: PolicyDecision,
    pub(super) view: SeenView,
    pub(super) at: UnixNanos,
    /// The grant that is being collected, and when that began.
    pub(super) grant: Option<Arc<Approval>>,
}

impl Core {
    pub(super) fn new(shared: Arc<Shared>, ledger: Ledger, pace: Pace, claim: Claim) -> Core {
        Core {
            shared,
            ledger,
            claim: Some(claim),
            guard: None,
            permit: None,
            pace,
            index: Vec::new(),
            admission: None,
            allowed: None,
            proposed: false,
            over: None,
            deferred: None,
            endings: HashMap::new(),
            model: ModelCaller::none(),
            book: Arc::default(),
        }
    }

    /// Begins a run (T1).
    pub(super) async fn begin(
        shared: Arc<Shared>,
        id: RunId,
        goal: String,
        limits: Limits,
        beginning: Beginning,
    ) -> Result<Core, SessionError> {
        ledger::check_begin(&id, &limits).map_err(SessionError::Invalid)?;
        let claim = shared.claim(&id).ok_or_else(|| busy(&id))?;
        let run = Run::begun(id, goal, limits, shared.clock.now());
        let ledger = Ledger::begin(shared.terms(), run, shared.registry.recorded());
        let mut core = Core::new(Arc::clone(&shared), ledger, beginning.pace, claim);
        core.index = beginning.index;
        core.admission = beginning.admission;
        if core.pace == Pace::EveryState
            && let Err(stop) = core.commit_intent(Durability::Synced).await
        {
            return Err(core.stop(stop).unwrap_or_else(|| busy(&core.run_id())));
        }
        Ok(core)
    }

    /// Checks the limits and starts the next step (T2). `None` when the run is over.
    pub(super) async fn step(&mut self) -> Result<Option<Opened>, SessionError> {
        self.usable()?;
        if let Some(step) = self.ledger.open_step() {
            return Err(self.misused(&format!("step {} is still open", step.index)));
        }
        match self.start_step().await {
            Ok(()) => Ok(self.open_step()),
            Err(stop) => self.stopped(stop).map(|()| None),
        }
    }

    async fn start_step(&mut self) -> Result<(), Stop> {
        if self.pace == Pace::EveryState {
            // Model calls and operators change the run between steps.
            let run = self.reread().await?;
            if run.status != RunStatus::Running {
                return Err(Stop::Ended(run));
            }
            self.ledger.set_run(run);
        }
        self.held().await?;
        let clock = Arc::clone(&self.shared.clock);
        if let Some(exceeded) = limits::exceeded(self.ledger.run(), self.ledger.steps(), || clock.now()) {
            return self.end_by_limit(exceeded).await;
        }
        let now = self.shared.clock.now();
        self.ledger.start_step(StepId::from(self.shared.mint.id()), now);
        self.proposed = false;
        self.allowed = None;
        // A model may be asked before anything else happens, and only on behalf of a step that is recorded.
        if self.pace == Pace::EveryState || self.shared.model.is_some() {
            self.commit_intent(Durability::Written).await?;
        }
        self.open_model();
        Ok(())
    }

    async fn end_by_limit(&mut self, exceeded: Exceeded) -> Result<(), Stop> {
        let mut end = RunEnd::new(exceeded.reason, exceeded.detail);
        match exceeded.repeated {
            Some(repeated) => {
                let at = self.shared.clock.now();
                self.ledger.detect_loop(&repeated, at);
            }
            None => end = end.by_limit(),
        }
        self.end_run(end)?;
        self.commit_next(Durability::Written).await?;
        Err(Stop::Ended(self.run()))
    }

    /// Records a decision (T3), checks it, and puts it to the policy.
    pub(super) async fn propose(
        &mut self,
        step: &StepId,
        proposal: Proposal,
    ) -> Result<Verdict, SessionError> {
        self.at_step(step)?;
        if self.proposed {
            return Err(self.misused("the step has a decision already"));
        }
        match self.judge(proposal).await {
            Ok(verdict) => Ok(verdict),
            Err(stop) => self.stopped(stop).map(|()| Verdict::Ended { run: self.run() }),
        }
    }

    async fn judge(&mut self, proposal: Proposal) -> Result<Verdict, Stop> {
        self.held().await?;
        self.proposed = true;
        let tool = self.shared.registry.get(&proposal.tool).filter(|_| proposal.kind == "tool_call").cloned();
        let now = self.shared.clock.now();
        let recorded = tool.as_ref().map(|tool| &tool.recorded);
        self.ledger.decide(proposal.recorded(), recorded, now).map_err(|e| self.illegal(e))?;
        if self.pace == Pace::EveryState {
            self.commit_intent(Durability::Written).await?;
        }
        let ask = match self.validate(&proposal, tool.as_ref()) {
            Ok(ask) => ask,
            Err(error) => return self.refuse_invalid(&error).await,
        };
        match (ask, tool) {
            (Asked::Complete(result), _) => {
                self.end_with_step(RunEnd::new(Reason::GoalCompleted, "").with_result(result)).await
            }
            (Asked::Fail(message), _) => self.end_with_step(RunEnd::new(Reason::GoalFailed, message)).await,
            (Asked::Call(args), Some(tool)) => {
                let request = ToolRequest {
                    run_id: self.run_id(),
                    step_id: self.ledger.open_step().map_or_else(|| StepId::from(""), |step| step.id.clone()),
                    spec: tool.spec.clone(),
                    args,
                };
                let judged = self.evaluate(&request, None).await?;
                self.act_on(request, judged).await
            }
            (Asked::Call(_), None) => self.refuse_invalid("the tool is not registered").await,
        }
    }

    fn validate(&self, proposal: &Proposal, tool: Option<&Registered>) -> Result<Asked, String> {
        Ok(match proposal.validate()? {
            Ask::Complete { result } => Asked::Complete(result),
            Ask::Fail { message } => Asked::Fail(message),
            Ask::ToolCall { tool: name } => {
                let tool = tool.ok_or_else(|| format!("unknown tool {name:?}"))?;
                Asked::Call(tool.check(&proposal.args)?)
            }
        })
    }

    async fn refuse_invalid(&mut self, error: &str) -> Result<Verdict, Stop> {
        let summary = format!("invalid decision: {error}");
        let observation =
            Observation::of_fields(ObservationKind::InvalidDecision, &[("error", error)], summary);
        let now = self.shared.clock.now();
        self.ledger.end_step(Some(observation.clone()), error, now).map_err(|e| self.illegal(e))?;
        self.flush(Durability::Written).await?;
        Ok(Verdict::Denied { observation })
    }

    /// Ends the open step well, with nothing observed, and the run with it.
    async fn end_with_step(&mut self, end: RunEnd) -> Result<Verdict, Stop> {
        let now = self.shared.clock.now();
        self.ledger.end_step(None, "", now).map_err(|e| self.illegal(e))?;
        self.end_run(end)?;
        self.commit_next(Durability::Written).await?;
        Err(Stop::Ended(self.run()))
    }

    /// Asks the policy. Whatever keeps it from answering is an answer: nothing runs.
    pub(super) async fn evaluate(
        &mut self,
        request: &ToolRequest,
        collecting: Option<(Arc<Approval>, UnixNanos)>,
    ) -> Result<Judged, Stop> {
        let view = self.ledger.view();
        let seen = view.seen();
        let handed = request.policy_form().map_err(|error| SessionError::Internal {
            run: self.run_id(),
            why: format!("the request has no policy form: {error}"),
        })?;
        if let Some((grant, at)) = collecting.clone().filter(|_| process::is(Broken::PolicyNotAskedAgain)) {
            return Ok(Judged { decision: PolicyDecision::allow(""), view: seen, at, grant: Some(grant) });
        }
        let policy = self.shared.tree.policy.clone();
        self.shared.tree.hooks.at(Point::Judging, &request.run_id).await;
        let asked = policy.ask(self.shared.policy_timeout, move |reply| {
            policy::Msg::Evaluate(Box::new(Question { request: handed, view, reply }))
        });
        let error = match asked.await {
            Ok(Ok(decision)) => {
                let (grant, at) = match collecting {
                    Some((grant, resumed_at)) => (Some(grant), resumed_at),
                    None => (None, self.shared.clock.now()),
                };
                return Ok(Judged { decision, view: seen, at, grant });
            }
            Ok(Err(error)) => error.to_string(),
            Err(AskError::Late) => "the evaluation overran its deadline".to_owned(),
            Err(error @ (AskError::Down | AskError::Lost)) if self.pace == Pace::Effects => {
                // Nothing is recorded yet, so nothing has to be ended.
                return Err(SessionError::Unavailable(format!("the policy: {error}")).into());
            }
            Err(error @ (AskError::Down | AskError::Lost)) => error.to_string(),
        };
        if collecting.is_some() {
            self.ledger.require_waiting();
        }
        self.fail_by_policy(&error, None).await
    }

    /// Fails the run because the policy could not be asked, or answered something unusable.
    async fn fail_by_policy<T>(&mut self, error: &str, judged: Option<Judged>) -> Result<T, Stop> {
        if let Some(judged) = judged {
            let id = self.shared.policy_id.clone();
            let recorded = judged.decision.without_json();
            self.ledger
                .record_policy(recorded, id, Some(&judged.view), judged.at)
                .map_err(|e| self.illegal(e))?;
        }
        self.ledger.ask_policy(self.shared.policy_id.clone()).map_err(|e| self.illegal(e))?;
        let now = self.shared.clock.now();
        self.ledger.fail_step(&format!("policy error: {error}"), now).map_err(|e| self.illegal(e))?;
        self.end_run(RunEnd::new(Reason::InternalError, format!("policy: {error}")))?;
        self.commit_next(Durability::Written).await?;
        Err(Stop::Ended(self.run()))
    }

    /// Acts on the policy's answer, up to and not including running the tool. One dispatch, fresh or collecting.
    pub(super) async fn act_on(&mut self, request: ToolRequest, judged: Judged) -> Result<Verdict, Stop> {
        if let Err(error) = judged.decision.check() {
            if judged.grant.is_some() {
                self.ledger.require_waiting();
            }
            return self.fail_by_policy(&error.to_string(), Some(judged)).await;
        }
        match judged.decision.outcome {
            Outcome::Allow => Ok(self.allow(request, judged)),
            Outcome::RequireApproval if self.is_granted(&request, &judged) => Ok(self.allow(request, judged)),
            Outcome::RequireApproval => self.pause(request, judged).await,
            Outcome::Deny => self.deny(&request, judged).await,
            Outcome::Abort => self.abort(&request, judged).await,
        }
    }

    /// Whether what the policy asks for is exactly what was granted.
    fn is_granted(&self, request: &ToolRequest, judged: &Judged) -> bool {
        let Some(grant) = &judged.grant else { return false };
        let decision = &judged.decision;
        let json = |field: &Option<_>| field.clone().unwrap_or_else(holdpoint_core::json::Json::empty_object);
        let (capability, presentation) = (json(&decision.capability), json(&decision.presentation));
        Approval::hash_of(&decision.kind, &capability, &presentation, request) == grant.hash
            || process::is(Broken::BentTaken)
    }

    fn allow(&mut self, request: ToolRequest, judged: Judged) -> Verdict {
        let shown = request.clone();
        self.allowed = Some(Allowed { request, judged });
        Verdict::Allowed { request: shown }
    }

    /// Enters the run, when a grant is being collected, and records the policy's answer.
    pub(super) fn enter(&mut self, judged: &Judged) -> Result<(), SessionError> {
        if let Some(grant) = &judged.grant {
            self.ledger.resume_by(grant, judged.at).map_err(|e| self.illegal(e))?;
        }
        self.record_policy(judged)
    }

    fn record_policy(&mut self, judged: &Judged) -> Result<(), SessionError> {
        let id = self.shared.policy_id.clone();
        let (decision, view) = (judged.decision.clone(), Some(&judged.view));
        self.ledger.record_policy(decision, id, view, judged.at).map_err(|e| self.illegal(e))
    }

    async fn pause(&mut self, request: ToolRequest, judged: Judged) -> Result<Verdict, Stop> {
        if judged.grant.is_some() {
            self.ledger.require_waiting();
        }
        let now = self.shared.clock.now();
        self.record_policy(&judged)?;
        let id = ApprovalId::from(self.shared.mint.id());
        let approval = self.ledger.pause(id, request, now).map_err(|e| self.illegal(e))?;
        self.commit_next(Durability::Synced).await?;
        let run = self.run();
        self.finish(run.clone());
        Ok(Verdict::Pending { approval, run })
    }

    async fn deny(&mut self, request: &ToolRequest, judged: Judged) -> Result<Verdict, Stop> {
        let observation = refusal_of(request, &judged, "denied");
        let now = self.shared.clock.now();
        self.enter(&judged)?;
        let summary = observation.summary.clone();
        self.ledger.end_step(Some(observation.clone()), &summary, now).map_err(|e| self.illegal(e))?;
        self.flush(Durability::Written).await?;
        Ok(Verdict::Denied { observation })
    }

    async fn abort(&mut self, request: &ToolRequest, judged: Judged) -> Result<Verdict, Stop> {
        let observation = refusal_of(request, &judged, "aborted");
        if judged.grant.is_some() {
            self.ledger.require_waiting();
        }
        self.record_policy(&judged)?;
        let now = self.shared.clock.now();
        let summary = observation.summary.clone();
        self.ledger.end_step(Some(observation), &summary, now).map_err(|e| self.illegal(e))?;
        self.end_run(RunEnd::new(Reason::PolicyAbort, judged.decision.reason))?;
        self.commit_next(Durability::Written).await?;
        Err(Stop::Ended(self.run()))
    }

    /// Ends the step and the run because the decision could not be made.
    pub(super) async fn fail(&mut self, step: &StepId, why: &AgentError) -> Result<Verdict, SessionError> {
        self.at_step(step)?;
        if self.proposed {
            return Err(self.misused("the step has a decision already"));
        }
        let stop = self.end_by_failure(why).await;
        self.stopped(stop)?;
        Ok(Verdict::Ended { run: self.run() })
    }

    /// A limit that the step's caller met ends the run as that limit, and a model without an answer as that. What is wrong
    /// with the session or the record is not the run's fault: it is left to be gone on with.
    async fn end_by_failure(&mut self, why: &AgentError) -> Stop {
        match why.of_session() {
            Some(SessionError::LeaseLost(_)) => return self.lost(why).await,
            Some(error) => return Stop::Failed(error.clone()),
            None => {}
        }
        let ended: Result<(), Stop> = async {
            self.held().await?;
            let now = self.shared.clock.now();
            self.ledger.fail_step(&format!("agent error: {why}"), now).map_err(|e| self.illegal(e))?;
            let reason = why.reason();
            let end = RunEnd::new(reason, why.to_string());
            self.end_run(if reason == Reason::AgentError { end } else { end.by_limit() })?;
            self.commit_next(Durability::Written).await.map(|_| ())
        }
        .await;
        ended.err().unwrap_or_else(|| Stop::Ended(self.run()))
    }

    /// What whoever decides may look at.
    pub(super) async fn input(&mut self) -> Result<StepInput, SessionError> {
        let view = self.ledger.view();
        Ok(StepInput {
            run: view.run,
            steps: view.steps,
            approvals: view.approvals,
            tools: self.shared.registry.specs(),
            model: self.open_step().map_or_else(ModelCaller::none, |opened| opened.model),
        })
    }

    // What follows are the small common parts of the chapters above.

    pub(super) fn run_id(&self) -> RunId {
        self.ledger.run().id.clone()
    }

    pub(super) fn run(&self) -> Run {
        self.ledger.run().clone()
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.is_some()
    }

    pub(super) fn open_step(&self) -> Option<Opened> {
        let step = self.ledger.open_step()?;
        Some(Opened { id: step.id.clone(), index: step.index, model: self.model.clone() })
    }

    /// Commits what is drafted at the slower pace; at the faster one, it waits for what follows from it.
    async fn flush(&mut self, durability: Durability) -> Result<(), Stop> {
        if self.pace == Pace::EveryState {
            self.commit_next(durability).await?;
        }
        Ok(())
    }

    /// Ends the run in the draft, and its row of the index with it.
    pub(super) fn end_run(&mut self, end: RunEnd) -> Result<(), SessionError> {
        let now = self.shared.clock.now();
        self.ledger.end_run(end, now).map_err(|e| self.illegal(e))?;
        if self.pace == Pace::Effects && !process::is(Broken::SettleForgotten) {
            let (outcome, _) = attempt::last_attempt(
                self.ledger.steps(),
                self.ledger.approvals(),
                |step| self.endings.get(step).copied(),
                |tool| self.shared.registry.get(tool).map(|tool| &tool.upstream),
            );
            self.index.push(IndexWrite::Settle { run_id: self.run_id(), outcome, at: now });
        }
        Ok(())
    }

    pub(super) fn usable(&self) -> Result<(), SessionError> {
        self.over.clone().map_or(Ok(()), Err)
    }

    pub(super) fn at_step(&self, step: &StepId) -> Result<(), SessionError> {
        self.usable()?;
        match self.ledger.open_step() {
            Some(open) if &open.id == step => Ok(()),
            Some(_) | None => Err(self.misused("the step is over")),
        }
    }

    pub(super) fn misused(&self, why: &str) -> SessionError {
        SessionError::RunState { run: self.run_id(), why: why.to_owned() }
    }
}

/// A valid proposal whose arguments were checked.
enum Asked {
    Call(holdpoint_core::json::Json),
    Complete(Option<holdpoint_core::json::Json>),
    Fail(String),
}

pub(super) fn busy(run: &RunId) -> SessionError {
    SessionError::RunState { run: run.clone(), why: "this gate holds it in another session".to_owned() }
}

fn refusal_of(request: &ToolRequest, judged: &Judged, how: &str) -> Observation {
    let on_resume = if judged.grant.is_some() { " on resume" } else { "" };
    let reason = &judged.decision.reason;
    let fields = [("tool", request.spec.name.as_str()), ("reason", reason.as_str())];
    Observation::of_fields(ObservationKind::PolicyDenied, &fields, format!("{how}{on_resume}: {reason}"))
}
