//! The middle of the story: an allowed request is started in the record, executed, and its outcome recorded.
//!
//! Owns the three endings and keeps them apart: not sent, failed, in doubt. An effect never leaves before its start is
//! committed, and an answer never before its outcome is.

use std::sync::Arc;
use std::time::Duration;

use holdpoint_core::across_calls::IndexWrite;
use holdpoint_core::attempt::Ending;
use holdpoint_core::ids::StepId;
use holdpoint_core::ledger::{self, RunEnd};
use holdpoint_core::run::Reason;
use holdpoint_core::step::{Observation, Step};
use holdpoint_core::tool::ToolRequest;
use holdpoint_core::transition::Durability;

use super::commit::{Committed, Stop};
use super::registry::Registered;
use super::story::{Allowed, Core};
use super::{Pace, SessionError};
use crate::address::AskError;
use crate::executor::{self, CallEnd, Execution, Started, ToolCall, ToolFailure};
use crate::faults::Point;
use crate::faults::process::{self, Broken};
use crate::store::Lane;

/// What a tool's deadline leaves its executor for the answer.
const EXECUTOR_GRACE: Duration = Duration::from_secs(5);
/// How far back a deliberately broken build tells its times.
const BACK: Duration = Duration::from_secs(60);

/// What came of an execution.
#[derive(Debug, Clone)]
pub struct Executed {
    /// What was recorded.
    pub observation: Observation,
    /// How the call ended.
    pub ending: Ending,
    /// Whether the run is over with it.
    pub run_over: bool,
}

/// An outcome that is drafted and not committed yet.
#[derive(Debug)]
pub(super) struct Deferred {
    pub(super) durability: Durability,
    step: Arc<Step>,
    observation: Observation,
    ending: Ending,
}

impl Core {
    /// Runs the allowed request (T4a, T7) and records what came of it (T5).
    pub(super) async fn execute(&mut self, step: &StepId) -> Result<Executed, SessionError> {
        self.at_step(step)?;
        let Some(allowed) = self.allowed.take() else {
            return Err(self.misused("the step has no allowed verdict to execute"));
        };
        match self.run_tool(allowed).await {
            Ok(executed) => Ok(executed),
            Err(stop) => {
                let why = self.stopped(stop).err();
                Err(why.unwrap_or_else(|| self.misused("the run was cancelled or had ended")))
            }
        }
    }

    async fn run_tool(&mut self, allowed: Allowed) -> Result<Executed, Stop> {
        let Allowed { request, judged } = allowed;
        let tool = self
            .shared
            .registry
            .get(&request.spec.name)
            .cloned()
            .ok_or_else(|| SessionError::NotRegistered(request.spec.name.clone()))?;
        if let Some(grant) = &judged.grant {
            self.judge_age(&Arc::clone(grant)).await?;
        }
        self.held().await?;
        let at = if judged.grant.is_some() { self.shared.clock.now() } else { judged.at };
        self.enter(&judged)?;
        let grant = judged.grant.as_ref().map(|grant| &grant.id);
        self.ledger.start_tool(&request, grant, at).map_err(|e| self.illegal(e))?;
        let durability = durability_of(&request);
        let hooks = self.shared.tree.hooks.clone();
        hooks.at(Point::Starting, &request.run_id).await;
        let committed = self.commit_intent(durability).await?;
        hooks.at(Point::Started, &request.run_id).await;
        let end = match committed {
            Committed::Told => self.call(tool, &request).await,
            // An intent that was in doubt is never followed by its effect.
            Committed::FoundLater => not_sent(&request, "the record was restarted before it could leave"),
        };
        hooks.at(Point::Answered, &request.run_id).await;
        self.record(&request, end).await
    }

    /// Has the executor call the tool. By how far the call had come when it died, it is not sent or in doubt.
    async fn call(&mut self, tool: Registered, request: &ToolRequest) -> CallEnd {
        let Some(fence) = self.guard.as_ref().map(|guard| guard.fence().clone()) else {
            return not_sent(request, "the run is not held");
        };
        let started = Started::default();
        let call = ToolCall {
            run_id: request.run_id.clone(),
            step_id: request.step_id.clone(),
            args: request.args.clone(),
            timeout: request.spec.timeout,
            fence,
            started: started.clone(),
        };
        let name = request.spec.name.clone();
        let within = request.spec.timeout.saturating_add(EXECUTOR_GRACE);
        let executor = self.shared.tree.executor.clone();
        let asked = executor.ask(within, move |reply| {
            executor::Msg::Execute(Box::new(Execution { tool: tool.tool, name, call, reply }))
        });
        match asked.await {
            Ok(end) => end,
            Err(AskError::Down) => not_sent(request, "nobody could take the call"),
            Err(AskError::Lost) if !started.get() => {
                not_sent(request, "the executor was restarted before it left")
            }
            Err(AskError::Lost) => {
                let text =
                    format!("{}: no answer can be learnt: the executor was restarted", request.spec.name);
                CallEnd::of(&request.spec.name, Err(ToolFailure::NoAnswer(text)))
            }
            Err(AskError::Late) => {
                let text = format!("{}: no answer from the executor in time", request.spec.name);
                CallEnd::of(&request.spec.name, Err(ToolFailure::TimedOut(text)))
            }
        }
    }

    async fn record(&mut self, request: &ToolRequest, end: CallEnd) -> Result<Executed, Stop> {
        let CallEnd { observation, ending, abort } = end;
        let now = self.shared.clock.now();
        let now = if process::is(Broken::TimesRunBack) { now.minus(BACK) } else { now };
        let step = self.ledger.open_step().cloned();
        let summary = observation.summary.clone();
        self.ledger.end_step(Some(observation.clone()), &summary, now).map_err(|e| self.illegal(e))?;
        if ending != Ending::Answered {
            self.ledger.keep_ending(request.step_id.clone(), ending);
        }
        self.endings.insert(request.step_id.clone(), ending);
        if let Some(detail) = abort {
            self.end_run(RunEnd::new(Reason::ToolAbort, detail))?;
        } else if request.spec.terminal && !observation.is_failure() {
            let detail = format!("terminal tool {}", request.spec.name);
            let end =
                RunEnd::new(Reason::GoalCompleted, detail).with_result(Some(observation.content.clone()));
            self.end_run(end)?;
        }
        if let Some(step) = step {
            let observation = observation.clone();
            self.deferred = Some(Deferred { durability: durability_of(request), step, observation, ending });
        }
        let run_over = self.run().status.is_terminal();
        // A run of one call that is not over yet says what follows from the failure in the same commit.
        if run_over || self.pace == Pace::EveryState {
            match self.commit_next(Durability::Written).await {
                Ok(_) if run_over => self.finish(self.run()),
                Ok(_) => {}
                Err(Stop::Cancelled(run)) => self.finish(run),
                // Not as before the call: something ran.
                Err(Stop::Failed(SessionError::Unavailable(why))) => {
                    return Err(SessionError::OutcomeLost { run: self.run_id(), why }.into());
                }
                Err(stop) => return Err(stop),
            }
        }
        Ok(Executed { observation, ending, run_over: self.over.is_some() })
    }

    /// The run was cancelled while its tool ran: the outcome goes on the record all the same, and what an index cached of
    /// the call meanwhile is forgotten.
    pub(super) async fn record_late(&mut self, deferred: Deferred) {
        let Deferred { step, observation, ending, .. } = deferred;
        let mut late = ledger::late_outcome(&step, &observation, ending, self.shared.clock.now());
        if self.pace == Pace::Effects {
            late.index.push(IndexWrite::Unsettle { run_id: self.run_id() });
        }
        if let Err(stop) = self.commit_completed(Lane::Outcome, &Arc::new(late)).await {
            tracing::warn!(run = %self.run_id(), ?stop, "a late outcome could not be recorded");
        }
    }
}

fn durability_of(request: &ToolRequest) -> Durability {
    if request.spec.side_effect.is_read() { Durability::Written } else { Durability::Synced }
}

fn not_sent(request: &ToolRequest, why: &str) -> CallEnd {
    let text = format!("{}: not sent: {why}", request.spec.name);
    CallEnd::of(&request.spec.name, Err(ToolFailure::NotSent(text)))
}
