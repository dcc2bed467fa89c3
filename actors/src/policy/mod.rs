//! `PolicyEvaluator`: asks the policy, and fails closed.
//!
//! Owns the policy. A panic, an error or an overrun is a policy error and nothing runs. An evaluation runs on a
//! blocking thread under a permit that it keeps until it ends, so a policy that hangs costs permits, never the runtime;
//! a policy that says that it never blocks is evaluated on the runtime, without the way there and back. Sessions ask
//! it; it asks nobody.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use holdpoint_core::json::EncodeError;
use holdpoint_core::policy::{PolicyDecision, PolicyView, default_decision};
use holdpoint_core::tool::ToolRequest;
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort};
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::faults::Failure;

/// Evaluations at one time, stray ones included. A policy that needs more is not answering.
pub const EVALUATIONS_MAX: usize = 64;

/// How long one evaluation may take before it counts as an error.
pub const EVALUATION_TIMEOUT: Duration = Duration::from_secs(5);

/// Decides whether a checked request may run. Whoever asks for the call has no influence over it.
#[async_trait]
pub trait Policy: Send + Sync + 'static {
    /// Decides on `request`, whose arguments and schema are in policy form, looking at `view` if it wants to.
    ///
    /// # Errors
    /// Whatever keeps it from deciding; the run then ends as an internal error and nothing runs.
    async fn evaluate(&self, request: &ToolRequest, view: &PolicyView)
    -> Result<PolicyDecision, PolicyError>;

    /// Whether an evaluation never holds its thread up: it computes for less than a millisecond, and what it waits for,
    /// it awaits. Such a policy is evaluated on the runtime; any other on a thread that may block.
    fn never_blocks(&self) -> bool {
        false
    }

    /// Names the policy, so that a recorded decision says which one made it. Read once; at most 256 printable bytes.
    fn id(&self) -> Option<String> {
        None
    }
}

/// Why a policy could not decide.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PolicyError(pub String);

impl From<EncodeError> for PolicyError {
    fn from(error: EncodeError) -> PolicyError {
        PolicyError(error.to_string())
    }
}

/// Reads and local changes run, remote ones wait for a person, the rest is refused.
#[derive(Debug, Clone, Copy, Default)]
pub struct DefaultPolicy;

#[async_trait]
impl Policy for DefaultPolicy {
    async fn evaluate(
        &self,
        request: &ToolRequest,
        _view: &PolicyView,
    ) -> Result<PolicyDecision, PolicyError> {
        Ok(default_decision(request))
    }

    fn never_blocks(&self) -> bool {
        true
    }
}

/// What the evaluator takes.
#[derive(Debug)]
pub enum Msg {
    /// Asks the policy.
    Evaluate(Box<Question>),
    /// Asks how it fares.
    Observe(RpcReplyPort<Observation>),
    /// Ends it in the way named. Only in builds for tests.
    Fail(Failure),
}

/// A request to decide on.
#[derive(Debug)]
pub struct Question {
    /// The request, in policy form.
    pub request: ToolRequest,
    /// What the policy may look at.
    pub view: PolicyView,
    /// Where the answer goes.
    pub reply: RpcReplyPort<Result<PolicyDecision, PolicyError>>,
}

/// How the evaluator fares.
#[derive(Debug, Clone, Serialize)]
pub struct Observation {
    /// Evaluations running now.
    pub running: usize,
    /// Permits left.
    pub permits: usize,
    /// Evaluations since it started.
    pub evaluated: u64,
}

/// The actor.
#[derive(Debug, Clone, Copy, Default)]
pub struct PolicyEvaluator;

/// What it needs, given again at each restart.
#[derive(Clone)]
pub struct Arguments {
    /// The policy.
    pub policy: Arc<dyn Policy>,
    /// Permits; shared across restarts, so that a stray evaluation keeps its own.
    pub permits: Arc<Semaphore>,
}

impl std::fmt::Debug for Arguments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arguments").field("permits", &self.permits).finish_non_exhaustive()
    }
}

/// What it knows.
#[derive(Debug)]
pub struct State {
    arguments: Arguments,
    running: JoinSet<()>,
    evaluated: u64,
}

impl Actor for PolicyEvaluator {
    type Msg = Msg;
    type State = State;
    type Arguments = Arguments;

    async fn pre_start(&self, _me: ActorRef<Msg>, arguments: Arguments) -> Result<State, ActorProcessingErr> {
        Ok(State { arguments, running: JoinSet::new(), evaluated: 0 })
    }

    async fn handle(
        &self,
        _me: ActorRef<Msg>,
        message: Msg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        while state.running.try_join_next().is_some() {}
        match message {
            Msg::Evaluate(question) => {
                state.evaluated += 1;
                let arguments = state.arguments.clone();
                state.running.spawn(evaluate(arguments, *question));
            }
            Msg::Observe(reply) => {
                let seen = Observation {
                    running: state.running.len(),
                    permits: state.arguments.permits.available_permits(),
                    evaluated: state.evaluated,
                };
                crate::answer(reply, seen);
            }
            Msg::Fail(failure) => failure.happen()?,
        }
        Ok(())
    }
}

async fn evaluate(arguments: Arguments, question: Question) {
    let Question { request, view, reply } = question;
    let Ok(permit) = Arc::clone(&arguments.permits).acquire_owned().await else {
        return;
    };
    if reply.is_closed() {
        return;
    }
    let policy = arguments.policy;
    let evaluated = if policy.never_blocks() {
        let _permit = permit;
        Ok(contained(&*policy, &request, &view).await)
    } else {
        let runtime = tokio::runtime::Handle::current();
        let evaluation = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            runtime.block_on(contained(&*policy, &request, &view))
        });
        evaluation.await
    };
    let cut_off = |_| Err(PolicyError("the evaluation was cut off".to_owned()));
    crate::answer(reply, evaluated.unwrap_or_else(cut_off));
}

/// Evaluates; a panic there is an error like any other.
async fn contained(
    policy: &dyn Policy,
    request: &ToolRequest,
    view: &PolicyView,
) -> Result<PolicyDecision, PolicyError> {
    // Already the call that makes the future may panic.
    let evaluate = AssertUnwindSafe(async { policy.evaluate(request, view).await }).catch_unwind();
    evaluate.await.unwrap_or_else(|panic| Err(PolicyError(format!("panic: {}", crate::panic_text(&*panic)))))
}
