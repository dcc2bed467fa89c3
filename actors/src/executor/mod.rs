//! `ToolExecutor`: calls tools, each under its timeout and behind its fence.
//!
//! Owns the calls in flight; if it dies, each that was sent is in doubt. A tool that panics is observed as an error.
//! Sessions ask it; it asks tools, and so connections. It never writes to the store.

mod outcome;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use holdpoint_core::attempt::Upstream;
use holdpoint_core::ids::{RunId, StepId};
use holdpoint_core::json::Json;
use holdpoint_core::tool::ToolSpec;
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort};
use serde::Serialize;
use tokio::task::JoinSet;

pub use outcome::CallEnd;

use crate::faults::Failure;
use crate::faults::process::{self, Broken};
use crate::lease::Fence;

/// A capability that may be asked for. Arguments were checked against its schema and the policy let them pass.
#[async_trait]
pub trait Tool: Send + Sync + 'static {
    /// Describes the tool. Read at registration and at each request.
    fn spec(&self) -> ToolSpec;

    /// Says which upstream server's tool it is, if it is one: records of other programs are read by these names.
    fn upstream(&self) -> Option<Upstream> {
        None
    }

    /// Calls it. Dropped when its timeout passes; cooperative tools stop then.
    ///
    /// # Errors
    /// By what is known of the effect: see [`ToolFailure`].
    async fn call(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure>;
}

/// One call.
#[derive(Debug, Clone)]
pub struct ToolCall {
    /// The run.
    pub run_id: RunId,
    /// The step, the same again when an approved call is run again: an idempotency key.
    pub step_id: StepId,
    /// The arguments, an object, as they were written.
    pub args: Json,
    /// How long it may take.
    pub timeout: Duration,
    /// What must still hold at the moment of sending.
    pub fence: Fence,
    /// Set before the tool is called: a call that died before that is known not to have run.
    pub started: Started,
}

/// Whether a call has begun. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Started(Arc<AtomicBool>);

impl Started {
    /// Notes that the tool is about to be called.
    pub fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether it was.
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// What a tool answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolOutput {
    /// The content, which should be JSON; empty is `{}`.
    pub content: Vec<u8>,
    /// One line about it.
    pub summary: String,
}

impl ToolOutput {
    /// An answer of `content` with a line about it.
    pub fn new(content: impl Into<Vec<u8>>, summary: impl Into<String>) -> ToolOutput {
        ToolOutput { content: content.into(), summary: summary.into() }
    }
}

/// Why a tool gave no result, by what is known of its effect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ToolFailure {
    /// It answered that it failed, or refused the call before doing anything.
    #[error("{0}")]
    Failed(String),
    /// It was sent and no answer can be learnt.
    #[error("{0}")]
    NoAnswer(String),
    /// The time ran out before an answer.
    #[error("{0}")]
    TimedOut(String),
    /// It never left: known not to have run.
    #[error("{0}")]
    NotSent(String),
    /// It answered, and the answer can't be recorded.
    #[error("{reason}")]
    Unrecordable {
        /// Why.
        reason: String,
        /// The answer as it came.
        raw: Vec<u8>,
    },
    /// Going on is pointless: the run ends.
    #[error("{0}")]
    Abort(String),
}

/// What the executor takes.
#[derive(Debug)]
pub enum Msg {
    /// Calls a tool.
    Execute(Box<Execution>),
    /// Asks how it fares.
    Observe(RpcReplyPort<Observation>),
    /// Ends it in the way named. Only in builds for tests.
    Fail(Failure),
}

/// A call to make.
pub struct Execution {
    /// The tool.
    pub tool: Arc<dyn Tool>,
    /// Its name in the record.
    pub name: String,
    /// The call.
    pub call: ToolCall,
    /// Where the end goes.
    pub reply: RpcReplyPort<CallEnd>,
}

impl std::fmt::Debug for Execution {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Execution")
            .field("name", &self.name)
            .field("step", &self.call.step_id)
            .finish_non_exhaustive()
    }
}

/// How the executor fares.
#[derive(Debug, Clone, Serialize)]
pub struct Observation {
    /// Calls in flight.
    pub in_flight: usize,
    /// Calls since it started.
    pub executed: u64,
}

/// The actor.
#[derive(Debug, Clone, Copy, Default)]
pub struct ToolExecutor;

/// What it knows.
#[derive(Debug)]
pub struct State {
    in_flight: JoinSet<()>,
    executed: u64,
}

impl Actor for ToolExecutor {
    type Msg = Msg;
    type State = State;
    type Arguments = ();

    async fn pre_start(&self, _me: ActorRef<Msg>, (): ()) -> Result<State, ActorProcessingErr> {
        Ok(State { in_flight: JoinSet::new(), executed: 0 })
    }

    async fn handle(
        &self,
        _me: ActorRef<Msg>,
        message: Msg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        while state.in_flight.try_join_next().is_some() {}
        match message {
            Msg::Execute(execution) => {
                state.executed += 1;
                state.in_flight.spawn(execute(*execution));
            }
            Msg::Observe(reply) => {
                crate::answer(
                    reply,
                    Observation { in_flight: state.in_flight.len(), executed: state.executed },
                );
            }
            Msg::Fail(failure) => failure.happen()?,
        }
        Ok(())
    }
}

/// Calls the tool, once and honestly unless this build is deliberately broken.
async fn wrongly(tool: &dyn Tool, mut call: ToolCall) -> Result<ToolOutput, ToolFailure> {
    if process::is(Broken::ArgsAltered)
        && let Ok(args) = Json::checked(call.args.as_str().replace("40", "41").as_bytes())
    {
        call.args = args;
    }
    let again = process::is(Broken::BlindRetry).then(|| call.clone());
    match (tool.call(call).await, again) {
        (Err(ToolFailure::NoAnswer(_) | ToolFailure::TimedOut(_)), Some(again)) => tool.call(again).await,
        (Err(ToolFailure::NoAnswer(text)), None) if process::is(Broken::UnknownAsFailed) => {
            Err(ToolFailure::Failed(text))
        }
        (answer, _) => answer,
    }
}

async fn execute(execution: Execution) {
    let Execution { tool, name, call, reply } = execution;
    if reply.is_closed() {
        return;
    }
    if !call.fence.may_send() {
        let failure = ToolFailure::NotSent("not sent: the lease could not be kept".to_owned());
        return crate::answer(reply, CallEnd::of(&name, Err(failure)));
    }
    process::reach("executor.sending");
    let timeout = if process::is(Broken::BlindRetry) { call.timeout * 2 } else { call.timeout };
    call.started.set();
    let calling = AssertUnwindSafe(async move { wrongly(&*tool, call).await }).catch_unwind();
    let end = match tokio::time::timeout(timeout, calling).await {
        Ok(Ok(answer)) => CallEnd::of(&name, answer),
        Ok(Err(panic)) => CallEnd::of_panic(&name, &crate::panic_text(&*panic)),
        Err(_) => {
            let text = format!(
                "{name}: no answer within {}",
                holdpoint_core::duration::format_go_duration(timeout.into())
            );
            CallEnd::of(&name, Err(ToolFailure::TimedOut(text)))
        }
    };
    crate::answer(reply, end);
}
