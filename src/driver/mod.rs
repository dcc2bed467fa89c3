//! The driver: a whole run under control, with an agent that decides each step.
//!
//! Owns the loop and nothing else: it is the gate with somebody to ask. What a step is, what a limit refuses and what is
//! recorded is the session's, the same as for a loop of your own.
//!
//! ```no_run
//! use std::sync::Arc;
//! use holdpoint::driver::{Agent, AgentError, Limits, Proposal, StepInput};
//! use holdpoint::gate::{Runtime, SideEffect, Tool, ToolOutput, ToolSpec, tool_fn};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let schema = r#"{"type":"object","properties":{"to":{"type":"string"}},"required":["to"]}"#;
//! let greet = tool_fn(ToolSpec::new("greet", SideEffect::LocalMutation, schema), |call| async move {
//!     Ok(ToolOutput::new(r#"{"said":"hello"}"#, format!("greeted {}", call.args)))
//! });
//! let agent = |input: StepInput| async move {
//!     Ok::<_, AgentError>(match input.steps.len() {
//!         0 => Proposal::tool_call("greet", r#"{"to":"ada"}"#),
//!         _ => Proposal::complete(r#"{"greeted":1}"#),
//!     })
//! };
//! let runtime = Runtime::builder("agent.db").tool(greet).start().await?;
//! let run = runtime.driver(Arc::new(agent)).start("greet ada", Limits::default()).await?;
//! println!("{} {}", run.id, run.status);
//! runtime.stop().await;
//! # Ok(()) }
//! ```

#[cfg(test)]
mod tests;

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

pub use async_trait::async_trait;
use futures_util::FutureExt as _;
pub use holdpoint_actors::session::{AgentError, CallError, ModelCaller, SessionError, StepInput};
pub use holdpoint_core::decision::Proposal;
pub use holdpoint_core::ids::RunId;
pub use holdpoint_core::run::{Limits, Reason, Run, RunStatus};

use holdpoint_actors::session::{Attached, Gate, OpenStep, Session, Verdict};

/// Decides each step of a run from what it is handed, and from nothing else: after a pause or a crash it is handed the
/// same again.
///
/// A function from [`StepInput`] to a future is an agent.
#[async_trait]
pub trait Agent: Send + Sync + 'static {
    /// Decides what the run does next. `input` is a copy, and its model the only one to ask.
    ///
    /// # Errors
    /// Why it can't; the run ends then. `?` on what the model's handle fails with keeps the reason: a limit ends the run as
    /// that limit, a model without a usable answer as `model_unavailable`, anything else as `agent_error`.
    async fn decide(&self, input: StepInput) -> Result<Proposal, AgentError>;
}

#[async_trait]
impl<F, D> Agent for F
where
    F: Fn(StepInput) -> D + Send + Sync + 'static,
    D: Future<Output = Result<Proposal, AgentError>> + Send,
{
    async fn decide(&self, input: StepInput) -> Result<Proposal, AgentError> {
        self(input).await
    }
}

/// Why a run was not driven to its end or its next pause.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// The session could not be had, or could not go on.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The agent panicked. Its step stays undecided and nobody holds the run: resumed, it goes on with another step.
    #[error("decide a step of run {run}: the agent panicked: {panic}")]
    AgentPanicked {
        /// The run.
        run: RunId,
        /// What the panic said.
        panic: String,
    },
}

/// Drives runs through a gate with one agent. Cheap to clone, and good for any number of runs at once.
///
/// Dropping the future of a call stops the run where it stands: a tool or a model request that is out is still recorded, the
/// lease is given up, and an open step stays as the record has it, for [`Driver::resume`].
#[derive(Clone)]
pub struct Driver {
    gate: Gate,
    agent: Arc<dyn Agent>,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("gate", &self.gate).finish_non_exhaustive()
    }
}

impl Driver {
    /// A driver of runs of `gate`, decided by `agent`.
    pub fn new(gate: Gate, agent: Arc<dyn Agent>) -> Driver {
        Driver { gate, agent }
    }

    /// Begins a run under an id that is drawn for it, and drives it until it is over or waits for a person.
    ///
    /// # Errors
    /// When the limits are unusable (nothing is written then), the record can't be reached, the lease is lost, or the agent
    /// panics. A run that ended, however badly, is no error.
    pub async fn start(&self, goal: &str, limits: Limits) -> Result<Run, DriverError> {
        self.start_with_id(self.gate.draw_run_id(), goal, limits).await
    }

    /// Begins a run as [`Driver::start`] does, under an id of the caller's.
    ///
    /// # Errors
    /// As [`Driver::start`], and when the id is taken.
    pub async fn start_with_id(&self, id: RunId, goal: &str, limits: Limits) -> Result<Run, DriverError> {
        let session = self.gate.begin(id, goal, limits).await?;
        self.drive(session, None).await
    }

    /// Goes on with a run: collects its grant and executes exactly what was granted, or takes over what was cut off, and then
    /// drives it as [`Driver::start`] does.
    ///
    /// # Errors
    /// As [`Driver::start`]; and when the run is held by somebody else, is over, or waits for a decision still: nothing is
    /// changed then, and it may be tried again.
    pub async fn resume(&self, id: RunId) -> Result<Run, DriverError> {
        match self.gate.attach(id).await? {
            Attached::Open(session) | Attached::Denied(session, _) => self.drive(session, None).await,
            Attached::Allowed(session, step) => self.drive(session, Some(step)).await,
            Attached::Pending(_, run) | Attached::Ended(run) => Ok(run),
        }
    }

    /// Executes what a grant allowed, then decides step after step.
    async fn drive(&self, session: Session, granted: Option<OpenStep>) -> Result<Run, DriverError> {
        let held = Held { session: Arc::new(session), closed: false };
        let session = Arc::clone(&held.session);
        let driven = self.steps(&session, granted).await;
        held.close().await;
        match driven {
            Ok(()) => Ok(session.run().await),
            Err(error) => self.cancelled(session.run_id()).await.ok_or(error),
        }
    }

    async fn steps(&self, session: &Session, granted: Option<OpenStep>) -> Result<(), DriverError> {
        if let Some(step) = granted {
            step.execute().await?;
        }
        while !session.done().await {
            let Some(step) = session.step().await? else { break };
            let input = session.input().await?;
            let decided = AssertUnwindSafe(async { self.agent.decide(input).await }).catch_unwind().await;
            match decided {
                Ok(Ok(proposal)) => {
                    if let Verdict::Allowed { .. } = step.propose(proposal).await? {
                        step.execute().await?;
                    }
                }
                Ok(Err(error)) => {
                    step.fail(error).await?;
                }
                Err(panic) => {
                    let panic = holdpoint_actors::panic_text(&*panic);
                    return Err(DriverError::AgentPanicked { run: session.run_id().clone(), panic });
                }
            }
        }
        Ok(())
    }

    /// The run, when a person cancelled it or its grant ran out under the loop: what the loop met then is no error.
    async fn cancelled(&self, id: &RunId) -> Option<Run> {
        let ended = [Some(Reason::OperatorCancelled), Some(Reason::ApprovalExpired)];
        let run = self.gate.run(id).await.ok()?;
        Some(run).filter(|run| run.status.is_terminal() && ended.contains(&run.reason))
    }
}

/// A session that is closed however its loop ends: also when the loop's future is dropped.
struct Held {
    session: Arc<Session>,
    closed: bool,
}

impl Held {
    async fn close(mut self) {
        self.session.close().await;
        self.closed = true;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.closed {
            return;
        }
        // Without a runtime the lease guard is all there is: it has the run recovered.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let session = Arc::clone(&self.session);
            runtime.spawn(async move { session.close().await });
        }
    }
}
