//! A real record with the real actors over it, whose clocks are moved by hand and whose tool waits to be released.
//!
//! Owns the file, in memory where the system has such a place, and what the world saw of each run. The layers that hold
//! the product to a model all stand on it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use holdpoint_actors::clock::{Clock, HandClock};
use holdpoint_actors::executor::{Tool, ToolCall, ToolFailure, ToolOutput};
use holdpoint_actors::policy::{Policy, PolicyError};
use holdpoint_actors::session::{Gate, GateSpec};
use holdpoint_actors::store::{self, OperatorStore};
use holdpoint_actors::tree::{Running, Tree, TreeSpec};
use holdpoint_core::approval::{Approval, latest_of};
use holdpoint_core::ids::RunId;
use holdpoint_core::json::Json;
use holdpoint_core::policy::{PolicyDecision, PolicyView};
use holdpoint_core::run::Limits;
use holdpoint_core::time::UnixNanos;
use holdpoint_core::tool::{SideEffect, ToolRequest, ToolSpec};
use tokio::sync::Semaphore;

/// How long a lease lasts; longer than any walk takes by the real clock.
pub(crate) const LEASE: Duration = Duration::from_secs(600);
/// How long a question, and a grant, is good for.
pub(crate) const GOOD_FOR: Duration = Duration::from_secs(1_800);

/// Limits that no walk meets by accident.
pub(crate) fn limits() -> Limits {
    let limits =
        Limits { max_steps: 50, max_consecutive_tool_failures: 50, loop_threshold: 50, ..Limits::default() };
    limits.approval_ttl(GOOD_FOR).grant_ttl(GOOD_FOR)
}

/// What the tool knows of a run.
#[derive(Debug, Default)]
struct Seen {
    effects: usize,
    /// The calls that wait in the tool, the latest last.
    inside: Vec<Arc<Semaphore>>,
}

/// The tool, whose calls are the world's effects. A call waits inside until it is released, unless it is told not to.
#[derive(Debug, Clone)]
pub(crate) struct World {
    seen: Arc<Mutex<HashMap<RunId, Seen>>>,
    holds: bool,
}

impl World {
    pub(crate) fn new(holds: bool) -> World {
        World { seen: Arc::default(), holds }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RunId, Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often a run's call has had its effect.
    pub(crate) fn effects(&self, run: &RunId) -> usize {
        self.lock().get(run).map_or(0, |seen| seen.effects)
    }

    /// The call that came last, to be released.
    pub(crate) fn inside(&self, run: &RunId) -> Option<Arc<Semaphore>> {
        self.lock().get_mut(run)?.inside.pop()
    }

    /// Forgets a run.
    pub(crate) fn forget(&self, run: &RunId) {
        self.lock().remove(run);
    }
}

/// One of the tools: they differ in name and in class.
#[derive(Debug)]
struct Named {
    name: &'static str,
    class: SideEffect,
    world: World,
}

#[async_trait]
impl Tool for Named {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: self.name.to_owned(),
            description: self.name.to_owned(),
            input_schema: Json::trusted(r#"{"type":"object"}"#),
            side_effect: self.class,
            timeout: Duration::from_secs(300),
            terminal: false,
        }
    }

    async fn call(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let gate = Arc::new(Semaphore::new(0));
        {
            let mut seen = self.world.lock();
            let seen = seen.entry(call.run_id.clone()).or_default();
            seen.effects += 1;
            if self.world.holds {
                seen.inside.push(Arc::clone(&gate));
            }
        }
        if self.world.holds {
            // Nobody closes it.
            drop(gate.acquire().await);
        }
        let fails = call.args.as_str().contains("fail");
        if fails {
            Err(ToolFailure::Failed("declined".to_owned()))
        } else {
            Ok(ToolOutput::new("{}", "done"))
        }
    }
}

/// Puts to a person what the run's name says.
#[derive(Debug)]
struct ByName;

#[async_trait]
impl Policy for ByName {
    async fn evaluate(
        &self,
        request: &ToolRequest,
        view: &PolicyView,
    ) -> Result<PolicyDecision, PolicyError> {
        // A repetition that a person has already allowed is not asked about in other words.
        let granted = latest_of(&view.approvals, &request.step_id).is_some_and(Approval::is_interruption);
        if granted {
            return Ok(PolicyDecision::allow(""));
        }
        let asks = request.run_id.as_str().contains("ask") || request.args.as_str().contains("ask");
        let refuses = request.args.as_str().contains("deny");
        Ok(match (refuses, asks) {
            (true, _) => PolicyDecision::deny("not this"),
            (false, true) => PolicyDecision::need_approval(
                "release",
                "somebody decides",
                request.args.clone(),
                Json::empty_object(),
            ),
            (false, false) => PolicyDecision::allow(""),
        })
    }
}

/// A record, and the clocks of everybody who has it open.
#[derive(Debug)]
pub(crate) struct Bench {
    folder: tempfile::TempDir,
    /// What leases are judged by.
    pub(crate) wall: Arc<HandClock>,
    /// What is recorded, and what questions are judged by.
    pub(crate) clock: Arc<HandClock>,
    pub(crate) world: World,
}

impl Bench {
    /// A record in memory where there is such a place: what is looked at here is no disk.
    pub(crate) fn new(holds: bool) -> Result<Bench, String> {
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        let start = UnixNanos::parse("2026-10-01T09:00:00Z").map_err(|error| error.to_string())?;
        Ok(Bench {
            folder: folder.map_err(|error| error.to_string())?,
            wall: Arc::new(HandClock::new(start, Duration::ZERO)),
            clock: Arc::new(HandClock::new(start, Duration::from_millis(1))),
            world: World::new(holds),
        })
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("runs.db")
    }

    /// One more process's actors over the record.
    pub(crate) async fn tree(&self) -> Result<Running, String> {
        let options = store::Options {
            proxy_index: false,
            log_bytes: 0,
            free_min: 0,
            clock: Arc::clone(&self.wall) as Arc<dyn Clock>,
            ..store::Options::default()
        };
        let spec = TreeSpec { database: self.path(), store: options, policy: Arc::new(ByName) };
        Tree::start(spec).await.map_err(|error| error.to_string())
    }

    /// A gate over a tree: what a process knows beside the record.
    pub(crate) fn gate(&self, running: &Running) -> Result<Gate, String> {
        let named = |name, class| Arc::new(Named { name, class, world: self.world.clone() }) as Arc<dyn Tool>;
        let tools = vec![named("read", SideEffect::ReadOnly), named("pay", SideEffect::RemoteMutation)];
        let mut spec = GateSpec::new(Arc::new(ByName), tools);
        spec.clock = Arc::clone(&self.clock) as Arc<dyn Clock>;
        spec.lease_ttl = LEASE;
        Gate::new(running.tree.clone(), spec).map_err(|error| error.to_string())
    }

    /// An operator's command.
    pub(crate) fn operator(&self) -> Result<OperatorStore, String> {
        OperatorStore::open(&self.path(), false).map_err(|error| error.to_string())
    }
}
