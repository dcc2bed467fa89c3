//! The session: the life of a call, top to bottom.
//!
//! Owns every transition of a run and its steps; the gate, the driver and the proxy are adapters over it. Read in this
//! order: [`Gate`] opens a [`Session`] on a run (`begin` here, `attach` in `attach.rs`); the session starts a step,
//! lets whoever decides ask the model
//! (`model/`), takes a proposal, asks the policy (`story.rs`), calls the tool (`execute.rs`), and ends (`end.rs`); every change of
//! state passes `commit.rs`, which is where a lost reply is settled. Nothing here has SQL, and nothing outside notices a
//! change before its commit.

mod attach;
mod commit;
mod end;
mod execute;
mod handle;
mod model;
mod observe;
mod recover;
mod registry;
mod story;

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use holdpoint_core::across_calls::{Admission, IndexWrite};
use holdpoint_core::approval::Approval;
use holdpoint_core::event::Event;
use holdpoint_core::ids::{LeaseOwner, PolicyId, RunId};
use holdpoint_core::json::Json;
use holdpoint_core::policy::{PolicyDecision, PolicyView, check_policy_id};
use holdpoint_core::run::{LEASE_TTL_SECONDS, Limits, Run};
use holdpoint_core::step::Observation;
use holdpoint_core::time::UnixNanos;
use holdpoint_core::tool::{ToolRequest, ToolSpec};
use holdpoint_core::transition::LeaseTerms;

pub use commit::SessionError;
pub use execute::Executed;
pub use handle::{OpenStep, Session, StepInput};
pub use model::{AgentError, CallError, ModelCaller, ModelConfig};
pub use registry::Acceptance;

use crate::clock::{Clock, Mint, RandomMint, WallClock, lock};
use crate::executor::Tool;
use crate::lease::{Recover, TTL_MIN};
use crate::policy::{EVALUATION_TIMEOUT, Policy};
use crate::tree::Tree;
use registry::Registry;

/// What the gate made of a proposal.
#[derive(Debug, Clone)]
pub enum Verdict {
    /// It may run: execute it. The request is a copy of exactly what will run.
    Allowed {
        /// The request.
        request: ToolRequest,
    },
    /// It ended without running: the policy refused it, or it was invalid. The session goes on.
    Denied {
        /// What the step observed.
        observation: Observation,
    },
    /// The run waits for a person and the session is over.
    Pending {
        /// What the person is asked.
        approval: Arc<Approval>,
        /// The run as it waits.
        run: Run,
    },
    /// The run is over and so is the session.
    Ended {
        /// The run as it ended.
        run: Run,
    },
}

/// What attaching to a run found.
#[derive(Debug)]
pub enum Attached {
    /// An open session; start a step.
    Open(Session),
    /// An approved request that may run: the step is open, the run still waits until it is executed.
    Allowed(Session, OpenStep),
    /// An approved request that was refused now; the session goes on.
    Denied(Session, Observation),
    /// The run waits for a person.
    Pending(Arc<Approval>, Run),
    /// The run is over.
    Ended(Run),
}

/// When the session commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// At every change of state, so that every crash point of the specification exists as stored state.
    EveryState,
    /// Only when something outside could notice: before an effect, before an answer. For runs of one call.
    Effects,
}

/// How a run is begun, beyond its id, goal and limits.
#[derive(Debug, Clone)]
pub struct Beginning {
    /// When the session commits.
    pub pace: Pace,
    /// What becomes of the proxy's index with the first commit.
    pub index: Vec<IndexWrite>,
    /// A decision that must still hold inside the first commit.
    pub admission: Option<Arc<Admission>>,
}

impl Default for Beginning {
    fn default() -> Beginning {
        Beginning { pace: Pace::EveryState, index: Vec::new(), admission: None }
    }
}

/// What somebody who knows the outside found out about a run that was cut off.
#[derive(Debug, Clone)]
pub enum Reconciliation {
    /// Nothing stands in the way of the next step.
    Continue,
    /// The interrupted operation had succeeded: the run completes.
    Completed {
        /// With this result.
        result: Option<Json>,
        /// And this to say.
        detail: String,
    },
    /// A person must decide whether the interrupted request runs again.
    Waiting {
        /// The approval to ask for; anything but a request for an approval fails the run.
        pause: PolicyDecision,
        /// And this to say when it cannot be asked for.
        detail: String,
    },
    /// What is outside contradicts the record: the run fails.
    Conflict {
        /// How.
        detail: String,
    },
}

/// Finds out what became of a run that was cut off.
#[async_trait]
pub trait Reconcile: Send + Sync + 'static {
    /// Looks at the run as it was found, its steps in flight marked interrupted.
    ///
    /// # Errors
    /// Whatever keeps it from finding out; the run then fails.
    async fn reconcile(&self, view: &PolicyView) -> Result<Reconciliation, String>;
}

/// Is told of every event, in order, after its commit. It must return at once.
pub trait Observer: Send + Sync + 'static {
    /// An event was committed.
    fn committed(&self, event: &Event);
}

/// What a gate is made of.
pub struct GateSpec {
    /// The policy that the tree's evaluator asks, for its identity.
    pub policy: Arc<dyn Policy>,
    /// The tools.
    pub tools: Vec<Arc<dyn Tool>>,
    /// The model that whoever decides may ask, if there is one.
    pub model: Option<ModelConfig>,
    /// Who finds out about runs that were cut off; without one, interrupted effects wait for a person.
    pub reconcile: Option<Arc<dyn Reconcile>>,
    /// Who is told of events.
    pub observer: Option<Arc<dyn Observer>>,
    /// Recorded times.
    pub clock: Arc<dyn Clock>,
    /// Ids.
    pub mint: Arc<dyn Mint>,
    /// How long the policy may take over one answer before it counts as having none.
    pub policy_timeout: Duration,
    /// How long a lease lasts.
    pub lease_ttl: Duration,
    /// What a lease's owner begins with.
    pub lease_label: String,
}

impl GateSpec {
    /// A gate with `policy` and `tools`, the wall clock, random ids and thirty-second leases.
    pub fn new(policy: Arc<dyn Policy>, tools: Vec<Arc<dyn Tool>>) -> GateSpec {
        GateSpec {
            policy,
            tools,
            model: None,
            reconcile: None,
            observer: None,
            clock: Arc::new(WallClock),
            mint: Arc::new(RandomMint),
            policy_timeout: EVALUATION_TIMEOUT,
            lease_ttl: Duration::from_secs(LEASE_TTL_SECONDS),
            lease_label: "holdpoint".to_owned(),
        }
    }
}

impl fmt::Debug for GateSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GateSpec")
            .field("tools", &self.tools.len())
            .field("lease_label", &self.lease_label)
            .finish_non_exhaustive()
    }
}

/// Why a gate could not be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GateError {
    /// A tool is unusable.
    #[error("register tool {tool:?}: {why}")]
    Tool {
        /// Which.
        tool: String,
        /// Why.
        why: String,
    },
    /// The policy's identity is unusable.
    #[error("register the policy: {0}")]
    Policy(String),
    /// The model can't be asked as configured.
    #[error("configure the model: {0}")]
    Model(String),
    /// The lease is too short to be kept.
    #[error("keep a lease of {0:?}: it must be at least {TTL_MIN:?}")]
    Lease(Duration),
}

/// The gate: the runtime's controls around calls that somebody else decides on. Cheap to clone.
#[derive(Clone)]
pub struct Gate(Arc<Shared>);

pub(crate) struct Shared {
    tree: Tree,
    registry: Registry,
    policy_id: Option<PolicyId>,
    model: Option<Arc<ModelConfig>>,
    reconcile: Option<Arc<dyn Reconcile>>,
    observer: Option<Arc<dyn Observer>>,
    clock: Arc<dyn Clock>,
    mint: Arc<dyn Mint>,
    policy_timeout: Duration,
    lease_ttl: Duration,
    owner_prefix: String,
    claims: Mutex<HashSet<RunId>>,
    recover: Arc<dyn Recover>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("tools", &self.registry).finish_non_exhaustive()
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("tools", &self.0.registry).finish_non_exhaustive()
    }
}

impl Gate {
    /// Checks the tools and the policy.
    ///
    /// # Errors
    /// The first tool that is unusable, and why.
    pub fn new(tree: Tree, spec: GateSpec) -> Result<Gate, GateError> {
        if spec.lease_ttl < TTL_MIN {
            return Err(GateError::Lease(spec.lease_ttl));
        }
        let policy_id = spec.policy.id();
        if let Some(id) = &policy_id {
            check_policy_id(id).map_err(GateError::Policy)?;
        }
        if let Some(model) = &spec.model {
            model.check().map_err(GateError::Model)?;
        }
        let registry = Registry::of(spec.tools)?;
        let nonce = twelve(&spec.mint.id());
        Ok(Gate(Arc::new_cyclic(|shared| Shared {
            recover: Arc::new(Recoverer(shared.clone())),
            registry,
            policy_id: policy_id.filter(|id| !id.is_empty()).map(PolicyId::from),
            model: spec.model.map(Arc::new),
            reconcile: spec.reconcile,
            observer: spec.observer,
            clock: spec.clock,
            mint: spec.mint,
            policy_timeout: spec.policy_timeout,
            lease_ttl: spec.lease_ttl,
            owner_prefix: format!("{}:{nonce}", spec.lease_label),
            claims: Mutex::new(HashSet::new()),
            tree,
        })))
    }

    /// Begins a run under an id of the caller's, and opens a session on it.
    ///
    /// # Errors
    /// When the id is taken or the limits are unusable; nothing is written then.
    pub async fn begin(&self, id: RunId, goal: &str, limits: Limits) -> Result<Session, SessionError> {
        self.begin_with(id, goal, limits, Beginning::default()).await
    }

    /// Begins a run as [`Gate::begin`] does, with more to say about how.
    ///
    /// # Errors
    /// As [`Gate::begin`].
    pub async fn begin_with(
        &self,
        id: RunId,
        goal: &str,
        limits: Limits,
        beginning: Beginning,
    ) -> Result<Session, SessionError> {
        Session::begin(Arc::clone(&self.0), id, goal.to_owned(), limits, beginning).await
    }

    /// Opens a session on an existing run: collects a grant, or takes over what was cut off.
    ///
    /// # Errors
    /// When the run is held by somebody else, waits for a person still, or is over; nothing is changed then.
    pub async fn attach(&self, id: RunId) -> Result<Attached, SessionError> {
        Session::attach(Arc::clone(&self.0), id, Pace::EveryState, None).await
    }

    /// Attaches as [`Gate::attach`] does, at a pace of the caller's.
    ///
    /// # Errors
    /// As [`Gate::attach`].
    pub async fn attach_with(&self, id: RunId, pace: Pace) -> Result<Attached, SessionError> {
        Session::attach(Arc::clone(&self.0), id, pace, None).await
    }

    /// The specs of the registered tools, by name.
    pub fn tools(&self) -> Vec<ToolSpec> {
        self.0.registry.specs()
    }

    /// Draws an id for a run of its own.
    pub fn draw_run_id(&self) -> RunId {
        RunId::from(self.0.mint.id())
    }

    /// A run as it stands in the record.
    ///
    /// # Errors
    /// When there is none, or the record can't be read.
    pub async fn run(&self, id: &RunId) -> Result<Run, SessionError> {
        let wanted = id.clone();
        let read = self.0.tree.store.read(move |reader| reader.run(&wanted)).await;
        read.map_err(|error| SessionError::Unavailable(error.to_string()))?
            .ok_or_else(|| SessionError::NotFound(id.clone()))
    }

    /// The tree under the gate.
    pub fn tree(&self) -> &Tree {
        &self.0.tree
    }

    /// Reads the gate's clock.
    pub fn now(&self) -> UnixNanos {
        self.0.clock.now()
    }
}

/// The last twelve digits of an id: of one that counts, those that differ.
fn twelve(id: &str) -> String {
    id[id.len() - 12..].to_owned()
}

impl Shared {
    /// Draws the owner of one hold: a stray outcome of an earlier attempt can't pass for a later one's.
    fn terms(&self) -> LeaseTerms {
        let hex = twelve(&self.mint.id());
        LeaseTerms { owner: LeaseOwner::from(format!("{}/{hex}", self.owner_prefix)), ttl: self.lease_ttl }
    }

    /// Claims a run for one session of this gate.
    fn claim(self: &Arc<Self>, run: &RunId) -> Option<Claim> {
        lock(&self.claims).insert(run.clone()).then(|| Claim { shared: Arc::clone(self), run: run.clone() })
    }
}

/// A gate's own hold on a run, so that it refuses a second session on it.
struct Claim {
    shared: Arc<Shared>,
    run: RunId,
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Claim").field(&self.run).finish()
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        lock(&self.shared.claims).remove(&self.run);
    }
}

/// Recovers lost sessions' runs through the gate that made them.
#[derive(Debug)]
struct Recoverer(std::sync::Weak<Shared>);

impl Recover for Recoverer {
    fn recover(&self, run: RunId, gone: LeaseOwner) {
        let Some(shared) = self.0.upgrade() else { return };
        tokio::spawn(async move {
            match Session::attach(shared, run.clone(), Pace::Effects, Some(gone)).await {
                Ok(Attached::Pending(approval, _)) => {
                    tracing::warn!(%run, approval = %approval.id, "a call was cut off; its outcome is unknown and a person decides");
                }
                Ok(
                    Attached::Open(session) | Attached::Allowed(session, _) | Attached::Denied(session, _),
                ) => {
                    session.close().await;
                }
                Ok(Attached::Ended(_)) => {}
                Err(error) => {
                    tracing::warn!(%run, %error, "a lost session's run waits for its lease to run out")
                }
            }
        });
    }
}
