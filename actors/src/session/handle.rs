//! What a caller holds: a session, and its open step.
//!
//! Owns nothing but the way in. Every call runs in a task of its own, so a caller that goes away in the middle stops
//! neither a tool nor its record; calls are serialised by a lock.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use holdpoint_core::approval::Approval;
use holdpoint_core::decision::Proposal;
use holdpoint_core::ids::{LeaseOwner, RunId, StepId};
use holdpoint_core::run::{Limits, Run};
use holdpoint_core::step::Step;
use holdpoint_core::tool::ToolSpec;
use tokio::sync::Mutex;

use super::commit::Stop;
use super::execute::Executed;
use super::model::{AgentError, ModelCaller};
use super::story::Core;
use super::{Attached, Beginning, Pace, SessionError, Shared, Verdict};

/// One hold on a run, from `begin` or `attach` until the run pauses or ends, the lease is lost, a call fails, or
/// `close`. It has at most one open step.
///
/// Close it when it is no longer used; one that is dropped unclosed leaves its run to recovery.
pub struct Session {
    core: Arc<Mutex<Core>>,
    run_id: RunId,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Session").field(&self.run_id).finish()
    }
}

/// What whoever decides may look at.
#[derive(Debug, Clone)]
pub struct StepInput {
    /// The run as the step started.
    pub run: Run,
    /// The steps before this one.
    pub steps: Vec<Arc<Step>>,
    /// Every approval, in insertion order.
    pub approvals: Vec<Arc<Approval>>,
    /// The tools, by name.
    pub tools: Vec<ToolSpec>,
    /// The open step's handle to the model. Without an open step, or a model, it refuses.
    pub model: ModelCaller,
}

/// An open step, as its session names it.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) id: StepId,
    pub(super) index: i64,
    pub(super) model: ModelCaller,
}

impl Session {
    pub(super) fn around(core: Core) -> Session {
        let run_id = core.run_id();
        Session { core: Arc::new(Mutex::new(core)), run_id }
    }

    pub(super) async fn begin(
        shared: Arc<Shared>,
        id: RunId,
        goal: String,
        limits: Limits,
        beginning: Beginning,
    ) -> Result<Session, SessionError> {
        let run = id.clone();
        let begun = tokio::spawn(Core::begin(shared, id, goal, limits, beginning)).await;
        begun.unwrap_or_else(|panic| Err(died(run, &panic))).map(Session::around)
    }

    pub(super) async fn attach(
        shared: Arc<Shared>,
        id: RunId,
        pace: Pace,
        gone: Option<LeaseOwner>,
    ) -> Result<Attached, SessionError> {
        let run = id.clone();
        let attached = tokio::spawn(Core::attach(shared, id, pace, gone)).await;
        let (core, found) = attached.unwrap_or_else(|panic| Err(died(run, &panic)))?;
        Ok(found.with(core, Session::around))
    }

    /// The run's id.
    pub fn run_id(&self) -> &RunId {
        &self.run_id
    }

    /// Checks the limits and starts the next step. `None` when a limit, or a person, ended the run: see `run`.
    ///
    /// # Errors
    /// When the session is over, a step is open, or the record can't be reached.
    pub async fn step(&self) -> Result<Option<OpenStep>, SessionError> {
        let started = self.detached(|core| Box::pin(core.step())).await?;
        Ok(started.map(|opened| OpenStep::of(self, opened)))
    }

    /// The open step, if there is one.
    pub async fn current(&self) -> Option<OpenStep> {
        let core = self.core.lock().await;
        Some(OpenStep::of(self, core.open_step()?))
    }

    /// What whoever decides the open step, or the next one, may look at.
    ///
    /// # Errors
    /// When the record can't be read.
    pub async fn input(&self) -> Result<StepInput, SessionError> {
        self.detached(|core| Box::pin(core.input())).await
    }

    /// The run as the session last read or wrote it.
    pub async fn run(&self) -> Run {
        self.core.lock().await.run()
    }

    /// Whether the session is over and every further call fails.
    pub async fn done(&self) -> bool {
        self.core.lock().await.is_over()
    }

    /// Ends the session: what is drafted is committed and the lease given up. An open step stays as the record has it.
    pub async fn close(&self) {
        if let Err(error) = self.detached(|core| Box::pin(core.close())).await {
            tracing::warn!(run = %self.run_id, %error, "a session did not close");
        }
    }

    async fn detached<R: Send + 'static>(
        &self,
        act: impl for<'a> FnOnce(&'a mut Core) -> Acting<'a, R> + Send + 'static,
    ) -> Result<R, SessionError> {
        detached(&self.core, &self.run_id, act).await
    }
}

/// A session's step in flight. Its decision is proposed once, and an allowed one executed once.
pub struct OpenStep {
    core: Arc<Mutex<Core>>,
    run_id: RunId,
    opened: Opened,
}

impl fmt::Debug for OpenStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenStep").field("opened", &self.opened).finish_non_exhaustive()
    }
}

impl OpenStep {
    pub(super) fn of(session: &Session, opened: Opened) -> OpenStep {
        OpenStep { core: Arc::clone(&session.core), run_id: session.run_id.clone(), opened }
    }

    /// Its id, which its tool call carries.
    pub fn id(&self) -> &StepId {
        &self.opened.id
    }

    /// Its position in the run, from zero.
    pub fn index(&self) -> i64 {
        self.opened.index
    }

    /// Its handle to the model: the only one that whoever decides gets.
    pub fn model(&self) -> ModelCaller {
        self.opened.model.clone()
    }

    /// Records a decision verbatim, checks it, and puts it to the policy; runs nothing.
    ///
    /// # Errors
    /// When the step has a decision already, the session is over, or the record can't be reached.
    pub async fn propose(&self, proposal: Proposal) -> Result<Verdict, SessionError> {
        let id = self.opened.id.clone();
        detached(&self.core, &self.run_id, move |core| {
            Box::pin(async move { core.propose(&id, proposal).await })
        })
        .await
    }

    /// Runs the request that an allowed verdict let through, and records what came of it.
    ///
    /// # Errors
    /// When there is no allowed verdict, the grant has aged out, the lease is lost, or the record can't be reached:
    /// nothing ran then.
    pub async fn execute(&self) -> Result<Executed, SessionError> {
        let id = self.opened.id.clone();
        detached(&self.core, &self.run_id, move |core| Box::pin(async move { core.execute(&id).await })).await
    }

    /// Ends the step, and the run, because its decision could not be made: with the reason of the limit that the step's
    /// caller met, as `model_unavailable`, or as `agent_error`. A record that the caller could not reach is an error here too,
    /// and the run is left to be gone on with.
    ///
    /// # Errors
    /// As [`OpenStep::propose`].
    pub async fn fail(&self, why: impl Into<AgentError>) -> Result<Verdict, SessionError> {
        let (id, why) = (self.opened.id.clone(), why.into());
        detached(&self.core, &self.run_id, move |core| Box::pin(async move { core.fail(&id, &why).await }))
            .await
    }
}

type Acting<'a, R> = BoxFuture<'a, Result<R, SessionError>>;

/// Runs `act` on the session in a task of its own, so that a caller that goes away stops nothing.
async fn detached<R: Send + 'static>(
    core: &Arc<Mutex<Core>>,
    run: &RunId,
    act: impl for<'a> FnOnce(&'a mut Core) -> Acting<'a, R> + Send + 'static,
) -> Result<R, SessionError> {
    let (core, id) = (Arc::clone(core), run.clone());
    let acting = tokio::spawn(async move {
        let mut core = core.lock_owned().await;
        match AssertUnwindSafe(act(&mut core)).catch_unwind().await {
            Ok(acted) => acted,
            // Nobody knows how far it came, so the session is over and its run is left to recovery.
            Err(panic) => {
                let why = format!("its session died: {}", crate::panic_text(&*panic));
                let error = SessionError::Internal { run: id, why };
                Err(core.stop(Stop::Failed(error.clone())).unwrap_or(error))
            }
        }
    });
    acting.await.unwrap_or_else(|panic| Err(died(run.clone(), &panic)))
}

fn died(run: RunId, panic: &tokio::task::JoinError) -> SessionError {
    SessionError::Internal { run, why: format!("its session died: {panic}") }
}
