//! The embedding facade: open a record, start the actors over it, and get a gate for a loop of your own.
//!
//! Owns defaults and nothing else: what the gate does is told in `holdpoint_actors::session`.
//!
//! ```no_run
//! use holdpoint::gate::{Limits, Proposal, Runtime, Verdict};
//! # use std::sync::Arc;
//! # async fn example(tool: Arc<dyn holdpoint::gate::Tool>) -> Result<(), Box<dyn std::error::Error>> {
//! let runtime = Runtime::builder("agent.db").tool(tool).start().await?;
//! let session = runtime.gate().begin("run-1".into(), "pay the invoice", Limits::default()).await?;
//! let step = session.step().await?.expect("no limit is reached yet");
//! match step.propose(Proposal::tool_call("pay", r#"{"amount":10}"#)).await? {
//!     Verdict::Allowed { .. } => println!("{:?}", step.execute().await?.observation),
//!     Verdict::Pending { approval, .. } => println!("waiting: holdpoint approve {}", approval.run_id),
//!     Verdict::Denied { observation } => println!("refused: {}", observation.summary),
//!     Verdict::Ended { run } => println!("over: {}", run.status),
//! }
//! session.close().await;
//! runtime.stop().await;
//! # Ok(()) }
//! ```

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use async_trait::async_trait;
pub use holdpoint_actors::clock::{Clock, HandClock, WallClock};
pub use holdpoint_actors::executor::{Tool, ToolCall, ToolFailure, ToolOutput};
pub use holdpoint_actors::policy::{DefaultPolicy, Policy, PolicyError};
pub use holdpoint_actors::session::{
    Acceptance, AgentError, Attached, CallError, Executed, Gate, GateError, ModelCaller, ModelConfig,
    Observer, OpenStep, Reconcile, Reconciliation, Session, SessionError, StepInput, Verdict,
};
pub use holdpoint_actors::tree::{TreeError, TreeObservation};
pub use holdpoint_core::approval::{Approval, ApprovalStatus};
pub use holdpoint_core::attempt::Ending;
pub use holdpoint_core::decision::{Origin, Proposal};
pub use holdpoint_core::event::Event;
pub use holdpoint_core::ids::{ApprovalId, RunId, StepId};
pub use holdpoint_core::json::{EncodeError, Json};
pub use holdpoint_core::policy::{Outcome, PolicyDecision, PolicyView};
pub use holdpoint_core::run::{Limits, Reason, Run, RunStatus};
pub use holdpoint_core::step::{Observation, ObservationKind, Step, StepStatus};
pub use holdpoint_core::tool::{SideEffect, ToolRequest, ToolSpec};

use crate::driver::{Agent, Driver};
use crate::mcp::{LoadError, Report, Servers, UpstreamSpec};
use holdpoint_actors::session::GateSpec;
use holdpoint_actors::store;
use holdpoint_actors::tree::{Running, Tree, TreeSpec};

/// A record that is open, and the actors that run over it.
#[derive(Debug)]
pub struct Runtime {
    running: Running,
    gate: Gate,
    servers: Servers,
}

/// Why a runtime did not start.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The record or an actor.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// A tool or the policy.
    #[error(transparent)]
    Gate(#[from] GateError),
    /// An MCP server could not be had, or offers nothing that may be used.
    #[error(transparent)]
    Server(#[from] Box<LoadError>),
}

/// What a runtime is started with. Made by [`Runtime::builder`].
pub struct RuntimeBuilder {
    database: PathBuf,
    policy: Arc<dyn Policy>,
    tools: Vec<Arc<dyn Tool>>,
    servers: Vec<UpstreamSpec>,
    model: Option<ModelConfig>,
    reconcile: Option<Arc<dyn Reconcile>>,
    observer: Option<Arc<dyn Observer>>,
    clock: Arc<dyn Clock>,
    lease_ttl: Option<Duration>,
    lease_label: Option<String>,
}

impl fmt::Debug for RuntimeBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuntimeBuilder").field("database", &self.database).finish_non_exhaustive()
    }
}

impl RuntimeBuilder {
    /// Adds a tool.
    #[must_use]
    pub fn tool(mut self, tool: Arc<dyn Tool>) -> RuntimeBuilder {
        self.tools.push(tool);
        self
    }

    /// Adds the tools of an MCP server, those that were pinned and have a rule; see [`crate::mcp`].
    #[must_use]
    pub fn server(mut self, server: UpstreamSpec) -> RuntimeBuilder {
        self.servers.push(server);
        self
    }

    /// Names the policy. Without one, reads and local changes run, remote ones wait for a person, the rest is refused.
    #[must_use]
    pub fn policy(mut self, policy: Arc<dyn Policy>) -> RuntimeBuilder {
        self.policy = policy;
        self
    }

    /// Names the model that whoever decides a step may ask, its prices and its patience.
    #[must_use]
    pub fn model(mut self, model: ModelConfig) -> RuntimeBuilder {
        self.model = Some(model);
        self
    }

    /// Names who finds out what became of a run that was cut off. Without one, interrupted effects wait for a person.
    #[must_use]
    pub fn reconcile(mut self, reconcile: Arc<dyn Reconcile>) -> RuntimeBuilder {
        self.reconcile = Some(reconcile);
        self
    }

    /// Names who is told of every event, after its commit.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> RuntimeBuilder {
        self.observer = Some(observer);
        self
    }

    /// Names the source of recorded times; the wall clock without one.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> RuntimeBuilder {
        self.clock = clock;
        self
    }

    /// Says how long a lease lasts: thirty seconds without this, three at least. It is what a restart waits for.
    #[must_use]
    pub fn lease_ttl(mut self, ttl: Duration) -> RuntimeBuilder {
        self.lease_ttl = Some(ttl);
        self
    }

    /// Says what a lease's owner begins with, for whoever reads the record.
    #[must_use]
    pub fn lease_label(mut self, label: impl Into<String>) -> RuntimeBuilder {
        self.lease_label = Some(label.into());
        self
    }

    /// Opens or makes the record and starts the actors.
    ///
    /// # Errors
    /// When the database is refused, a tool or the policy is unusable, or a server can't be had. Nothing runs then.
    pub async fn start(self) -> Result<Runtime, RuntimeError> {
        let spec = TreeSpec {
            database: self.database.clone(),
            store: store::Options::default(),
            policy: Arc::clone(&self.policy),
        };
        let running = Tree::start(spec).await?;
        let (servers, offered) = match Servers::start(&running.tree, self.servers, &self.database).await {
            Ok(started) => started,
            Err(error) => {
                running.tree.stop().await;
                return Err(Box::new(error).into());
            }
        };
        let tools = self.tools.into_iter().chain(offered).collect();
        let mut spec = GateSpec::new(self.policy, tools);
        spec.model = self.model;
        spec.reconcile = self.reconcile;
        spec.observer = self.observer;
        spec.clock = self.clock;
        spec.lease_ttl = self.lease_ttl.unwrap_or(spec.lease_ttl);
        spec.lease_label = self.lease_label.unwrap_or(spec.lease_label);
        match Gate::new(running.tree.clone(), spec) {
            Ok(gate) => Ok(Runtime { running, gate, servers }),
            Err(error) => {
                servers.close().await;
                running.tree.stop().await;
                Err(error.into())
            }
        }
    }
}

impl Runtime {
    /// Describes a runtime over the record at `database`, which is made when it is missing.
    pub fn builder(database: impl AsRef<Path>) -> RuntimeBuilder {
        RuntimeBuilder {
            database: database.as_ref().to_owned(),
            policy: Arc::new(DefaultPolicy),
            tools: Vec::new(),
            servers: Vec::new(),
            model: None,
            reconcile: None,
            observer: None,
            clock: Arc::new(WallClock),
            lease_ttl: None,
            lease_label: None,
        }
    }

    /// The gate.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// A driver of whole runs that `agent` decides.
    pub fn driver(&self, agent: Arc<dyn Agent>) -> Driver {
        Driver::new(self.gate.clone(), agent)
    }

    /// What became of the tools of each MCP server, in the order in which the servers were added.
    pub fn reports(&self) -> &[Report] {
        &self.servers.reports
    }

    /// Asks every actor how it fares.
    pub async fn observe(&self) -> TreeObservation {
        self.running.tree.observe().await
    }

    /// Resolves when the actors have ended: asked to, or because one could not be kept alive.
    pub async fn ended(&mut self) {
        if let Err(error) = (&mut self.running.ended).await {
            tracing::error!(%error, "the supervisor ended by a panic");
        }
    }

    /// Closes the servers, works everything off, closes the record and ends the actors.
    pub async fn stop(self) {
        self.servers.close().await;
        self.running.tree.stop().await;
    }
}

/// Makes a tool of a spec and a function from a call to a future.
///
/// ```
/// use holdpoint::gate::{SideEffect, ToolOutput, ToolSpec, tool_fn};
///
/// let spec = ToolSpec::new("double", SideEffect::ReadOnly, r#"{"type":"object"}"#).describe("Doubles a number.");
/// let tool = tool_fn(spec, |call| async move { Ok(ToolOutput::new(call.args.as_str(), "doubled")) });
/// assert_eq!(tool.spec().name, "double");
/// ```
pub fn tool_fn<F, D>(spec: ToolSpec, call: F) -> Arc<dyn Tool>
where
    F: Fn(ToolCall) -> D + Send + Sync + 'static,
    D: Future<Output = Result<ToolOutput, ToolFailure>> + Send + 'static,
{
    Arc::new(FnTool { spec, call })
}

struct FnTool<F> {
    spec: ToolSpec,
    call: F,
}

#[async_trait]
impl<F, D> Tool for FnTool<F>
where
    F: Fn(ToolCall) -> D + Send + Sync + 'static,
    D: Future<Output = Result<ToolOutput, ToolFailure>> + Send + 'static,
{
    fn spec(&self) -> ToolSpec {
        self.spec.clone()
    }

    async fn call(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        (self.call)(call).await
    }
}

/// Makes a policy of a function from a request and what it may look at to a decision. It has no name on the record; a policy
/// that has one implements [`Policy`].
///
/// ```
/// use holdpoint::gate::{PolicyDecision, policy_fn};
///
/// let policy = policy_fn(|request, _view| {
///     let reads = request.spec.side_effect.is_read();
///     Ok(if reads { PolicyDecision::allow("it reads") } else { PolicyDecision::deny("nothing changes today") })
/// });
/// # let _: std::sync::Arc<dyn holdpoint::gate::Policy> = policy;
/// ```
pub fn policy_fn<F>(decide: F) -> Arc<dyn Policy>
where
    F: Fn(&ToolRequest, &PolicyView) -> Result<PolicyDecision, PolicyError> + Send + Sync + 'static,
{
    Arc::new(FnPolicy(decide))
}

struct FnPolicy<F>(F);

#[async_trait]
impl<F> Policy for FnPolicy<F>
where
    F: Fn(&ToolRequest, &PolicyView) -> Result<PolicyDecision, PolicyError> + Send + Sync + 'static,
{
    async fn evaluate(
        &self,
        request: &ToolRequest,
        view: &PolicyView,
    ) -> Result<PolicyDecision, PolicyError> {
        (self.0)(request, view)
    }
}
