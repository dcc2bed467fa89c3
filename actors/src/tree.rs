//! The tree of actors as a session sees it: where to find each, and how to start them all.
//!
//! Owns the order in which children start: the store first, whoever asks after whoever is asked.

use std::path::PathBuf;
use std::sync::Arc;

use ractor::{Actor, ActorRef};
use serde::Serialize;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use crate::address::{self, Address};
use crate::approval::{self, ApprovalWaiter};
use crate::clock::Clock;
use crate::executor::{self, ToolExecutor};
use crate::faults::Hooks;
use crate::lease::{self, LeaseKeeper, LiveSessions};
use crate::policy::{self, EVALUATIONS_MAX, Policy, PolicyEvaluator};
use crate::store::{self, StoreClient, StoreWriter};
use crate::supervisor::{self, ChildObservation, ChildSpec, Supervisor};

/// Where each actor is found.
#[derive(Clone, Debug)]
pub struct Tree {
    /// The store.
    pub store: StoreClient,
    /// Who evaluates the policy.
    pub policy: Address<policy::Msg>,
    /// Who calls tools.
    pub executor: Address<executor::Msg>,
    /// Who renews leases.
    pub lease: Address<lease::Msg>,
    /// Who waits for approvals.
    pub approval: Address<approval::Msg>,
    /// The sessions of this process.
    pub sessions: LiveSessions,
    /// The clock by which leases are judged: the one that the writer stamps them with.
    pub wall: Arc<dyn Clock>,
    /// What tests let happen in the middle of a call.
    pub hooks: Hooks,
    supervisor: ActorRef<supervisor::Msg>,
}

/// What the tree is started with.
pub struct TreeSpec {
    /// The database file.
    pub database: PathBuf,
    /// How the store is opened.
    pub store: store::Options,
    /// The policy.
    pub policy: Arc<dyn Policy>,
}

impl std::fmt::Debug for TreeSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TreeSpec").field("database", &self.database).finish_non_exhaustive()
    }
}

/// Why the tree did not start.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// The database can't be opened.
    #[error(transparent)]
    Store(#[from] store::OpenError),
    /// A child did not start.
    #[error("start the actors: {0}")]
    Start(String),
}

/// An actor of the tree, as whoever lets one die names it.
#[cfg(any(feature = "faults", feature = "testkit"))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Child {
    /// The one that writes the record.
    StoreWriter,
    /// The one that renews leases.
    LeaseKeeper,
    /// The one that asks the policy.
    PolicyEvaluator,
    /// The one that calls tools.
    ToolExecutor,
    /// The one that waits for approvals.
    ApprovalWaiter,
}

#[cfg(any(feature = "faults", feature = "testkit"))]
impl Child {
    /// Every one.
    pub const ALL: [Child; 5] = [
        Child::StoreWriter,
        Child::LeaseKeeper,
        Child::PolicyEvaluator,
        Child::ToolExecutor,
        Child::ApprovalWaiter,
    ];
}

/// A tree that runs, and its end.
#[derive(Debug)]
pub struct Running {
    /// Where to find its actors.
    pub tree: Tree,
    /// Resolves when the supervisor ends: asked to, or because a child could not be kept alive.
    pub ended: JoinHandle<()>,
}

/// How the whole tree fares, for an operator.
#[derive(Debug, Clone, Serialize)]
pub struct TreeObservation {
    /// Each child.
    pub children: Vec<ChildObservation>,
    /// The store.
    pub store: Option<store::Observation>,
    /// Policy evaluations.
    pub policy: Option<policy::Observation>,
    /// Tool calls.
    pub executor: Option<executor::Observation>,
    /// Leases.
    pub lease: Option<lease::Observation>,
    /// Approvals waited for.
    pub approval: Option<approval::Observation>,
}

impl Tree {
    /// Opens the database and starts the actors over it.
    ///
    /// # Errors
    /// When the database is refused, with the sentence that says why, or a child does not start.
    pub async fn start(spec: TreeSpec) -> Result<Running, TreeError> {
        let (store_cell, store_address) = Address::vacant();
        let (policy_cell, policy_address) = Address::vacant();
        let (executor_cell, executor_address) = Address::vacant();
        let (lease_cell, lease_address) = Address::vacant();
        let (approval_cell, approval_address) = Address::vacant();
        let wall = Arc::clone(&spec.store.clock);
        let writer = store::Arguments::open(&spec.database, spec.store)?;
        let store = StoreClient::new(store_address, &writer);
        let sessions = LiveSessions::new(lease_address.clone());
        let leases = lease::Arguments { sessions: sessions.clone(), store: store.clone() };
        let waits = approval::Arguments {
            store: store.clone(),
            database: spec.database.clone(),
            wall: Arc::clone(&wall),
        };
        let evaluations = policy::Arguments {
            policy: Arc::clone(&spec.policy),
            permits: Arc::new(Semaphore::new(EVALUATIONS_MAX)),
        };
        let children = vec![
            ChildSpec::new("store-writer", store_cell, move || (StoreWriter, writer.clone())),
            ChildSpec::new("lease-keeper", lease_cell, move || (LeaseKeeper, leases.clone())),
            ChildSpec::new("policy-evaluator", policy_cell, move || (PolicyEvaluator, evaluations.clone())),
            ChildSpec::new("tool-executor", executor_cell, || (ToolExecutor, ())),
            ChildSpec::new("approval-waiter", approval_cell, move || (ApprovalWaiter, waits.clone())),
        ];
        let (supervisor, ended) = Actor::spawn(None, Supervisor, children)
            .await
            .map_err(|error| TreeError::Start(error.to_string()))?;
        let tree = Tree {
            store,
            policy: policy_address,
            executor: executor_address,
            lease: lease_address,
            approval: approval_address,
            sessions,
            wall,
            hooks: Hooks::default(),
            supervisor,
        };
        Ok(Running { tree, ended })
    }

    /// Starts one more child under the supervisor.
    ///
    /// # Errors
    /// Why it did not start.
    pub async fn add(&self, child: ChildSpec) -> Result<(), String> {
        supervisor::add(&self.supervisor, child).await
    }

    /// Where the supervisor is, for observing and for faults.
    pub fn supervisor(&self) -> &ActorRef<supervisor::Msg> {
        &self.supervisor
    }

    /// Asks every actor how it fares; one that does not answer within a second is left out.
    pub async fn observe(&self) -> TreeObservation {
        const WITHIN: std::time::Duration = std::time::Duration::from_secs(1);
        let children = address::ask(&self.supervisor, WITHIN, supervisor::Msg::Observe).await;
        TreeObservation {
            children: children.unwrap_or_default(),
            store: self.store.observe(WITHIN).await,
            policy: self.policy.ask(WITHIN, policy::Msg::Observe).await.ok(),
            executor: self.executor.ask(WITHIN, executor::Msg::Observe).await.ok(),
            lease: self.lease.ask(WITHIN, lease::Msg::Observe).await.ok(),
            approval: self.approval.ask(WITHIN, approval::Msg::Observe).await.ok(),
        }
    }

    /// Lets an actor die at its next pause; its supervisor starts it again.
    #[cfg(any(feature = "faults", feature = "testkit"))]
    pub fn kill(&self, child: Child) {
        match child {
            Child::StoreWriter => kill(self.store.address()),
            Child::LeaseKeeper => kill(&self.lease),
            Child::PolicyEvaluator => kill(&self.policy),
            Child::ToolExecutor => kill(&self.executor),
            Child::ApprovalWaiter => kill(&self.approval),
        }
    }

    /// Lets every actor die and none be started again, as when their process is killed: what is sent to one from here on
    /// reaches nobody.
    #[cfg(any(feature = "faults", feature = "testkit"))]
    pub fn die(&self) {
        // First, so that it starts nobody again. An actor takes its end before any message.
        self.supervisor.get_cell().kill();
        Child::ALL.into_iter().for_each(|child| self.kill(child));
    }

    /// Works everything off and stops; resolves when the tree has ended and its writer has let go of the database.
    pub async fn stop(&self) {
        self.store.keep_no_reader();
        if self.supervisor.cast(supervisor::Msg::Stop).is_ok() && self.supervisor.wait(None).await.is_err() {
            tracing::debug!("the supervisor was gone before it was waited for");
        }
        if !self.store.let_go().await {
            tracing::warn!("the writer's thread did not end in time; it still has the database open");
        }
    }
}

/// Lets the actor at an address die at its next pause; its supervisor starts it again.
#[cfg(any(feature = "faults", feature = "testkit"))]
pub fn kill<M: ractor::Message>(address: &Address<M>) {
    if let Some(actor) = address.cell().borrow().as_ref() {
        actor.get_cell().kill();
    }
}

/// A cell that an actor of kind `M` can be published in.
pub type Cell<M> = watch::Sender<Option<ActorRef<M>>>;
