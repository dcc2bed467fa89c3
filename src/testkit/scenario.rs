//! A scenario: one run's worth of somebody's tools, policy and agent, the deaths that cut it off, and what it leaves.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use holdpoint_actors::clock::{Clock, CountingMint, HandClock, Mint, WallClock};
use holdpoint_actors::policy::{DefaultPolicy, Policy};
use holdpoint_actors::session::{ModelConfig, Reconcile, Session, SessionError};
use holdpoint_actors::tree::Child;
use holdpoint_core::approval::Approval;
use holdpoint_core::event::{Event, EventKind};
use holdpoint_core::ids::RunId;
use holdpoint_core::json::Json;
use holdpoint_core::run::{LEASE_TTL_SECONDS, Limits, Run};
use holdpoint_core::step::Step;
use holdpoint_core::time::UnixNanos;

use super::Failures;
use super::stage::Harness;
use crate::driver::{Agent, StepInput};
use crate::gate::Tool;
use crate::mcp::UpstreamSpec;

/// Where a scenario is disrupted: right after this was committed, or happened, and before whatever follows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Point {
    /// `step.started` is on the record; nothing is decided.
    StepStarted,
    /// `model.dispatched` is, of the step's first attempt; the request has not left.
    ModelDispatched,
    /// The model has answered; its outcome is not on the record.
    ModelAnswered,
    /// `step.decided` is; the policy has not seen the request.
    StepDecided,
    /// The policy has allowed the request, and nothing of that is on the record.
    PolicyAllowed,
    /// `step.tool_started` is on the record; the tool was not called.
    ToolStarted,
    /// The tool has returned; its outcome is not on the record.
    ToolEffect,
    /// `step.tool_finished` is on the record.
    ToolFinished,
    /// `run.resumed` is, whichever step it concerns.
    Resumed,
    /// `step.interrupted` is: whoever took the run over died before saying what follows.
    Interrupted,
    /// Attaching found an approved step, which was not executed. Only a loop of one's own comes here.
    AttachAllowed,
}

impl Point {
    /// The event after which it lies, when it lies after one.
    pub(super) fn event(self) -> Option<EventKind> {
        match self {
            Point::StepStarted => Some(EventKind::StepStarted),
            Point::ModelDispatched => Some(EventKind::ModelDispatched),
            Point::StepDecided => Some(EventKind::StepDecided),
            Point::ToolStarted => Some(EventKind::StepToolStarted),
            Point::ToolFinished => Some(EventKind::StepToolFinished),
            Point::Resumed => Some(EventKind::RunResumed),
            Point::Interrupted => Some(EventKind::StepInterrupted),
            Point::ModelAnswered | Point::PolicyAllowed | Point::ToolEffect | Point::AttachAllowed => None,
        }
    }
}

/// What dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Victim {
    /// The whole process: its lease stays until it runs out.
    Process,
    /// One actor, which its supervisor starts again.
    Actor(Child),
    /// The connection to an MCP server, and that with it. Both are started again.
    Connection(&'static str),
}

/// A death in the middle of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disruption {
    pub(super) step: i64,
    pub(super) at: Point,
    pub(super) victim: Victim,
}

impl Disruption {
    /// The process dies when the step `step`, counted from zero, comes to `at`. [`Point::Resumed`] looks at no step.
    pub fn crash(step: i64, at: Point) -> Disruption {
        Disruption { step, at, victim: Victim::Process }
    }

    /// The actor `child` dies when the step `step` comes to `at`; the process goes on.
    pub fn kill(child: Child, step: i64, at: Point) -> Disruption {
        Disruption { step, at, victim: Victim::Actor(child) }
    }

    /// The connection to the [server](Scenario::server) of this name dies when the step `step` comes to `at`, and the
    /// server with it. Both are started again, and the server's tools are offered once its pins have been checked.
    pub fn kill_connection(server: &'static str, step: i64, at: Point) -> Disruption {
        Disruption { step, at, victim: Victim::Connection(server) }
    }
}

impl fmt::Display for Disruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.victim {
            Victim::Process => write!(f, "a crash at step {} {:?}", self.step, self.at),
            Victim::Actor(child) => write!(f, "the death of {child:?} at step {} {:?}", self.step, self.at),
            Victim::Connection(server) => {
                write!(f, "the death of the connection to {server} at step {} {:?}", self.step, self.at)
            }
        }
    }
}

/// What a scenario's operator says to a pending approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// Yes; the run is resumed.
    Approve,
    /// No; the run is cancelled.
    Reject,
    /// Nothing; the scenario ends with the run waiting.
    Leave,
}

type OwnLoop = dyn Fn(Arc<Session>) -> BoxFuture<'static, Result<(), SessionError>> + Send + Sync;

/// Who decides a scenario's run.
#[derive(Clone)]
pub(super) enum Decider {
    Agent(Arc<dyn Agent>),
    Loop(Arc<OwnLoop>),
}

/// One run, from its beginning to its end through whatever is done to it.
///
/// Recorded times and ids count from a fixed start unless told otherwise, so that two runs of one scenario leave the same
/// record. Leases run out when the scenario says that time has passed, so nothing waits.
#[derive(Clone)]
pub struct Scenario {
    pub(super) decider: Decider,
    pub(super) tools: Vec<Arc<dyn Tool>>,
    pub(super) servers: Vec<UpstreamSpec>,
    pub(super) policy: Arc<dyn Policy>,
    pub(super) model: Option<ModelConfig>,
    pub(super) goal: String,
    pub(super) limits: Limits,
    pub(super) reconcile: Option<Arc<dyn Reconcile>>,
    pub(super) operator: Arc<dyn Fn(&Approval) -> Reply + Send + Sync>,
    pub(super) times: Option<(Arc<dyn Clock>, Arc<dyn Mint>)>,
    pub(super) database: Option<PathBuf>,
    pub(super) lease_ttl: Duration,
    pub(super) recheck: bool,
}

impl fmt::Debug for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scenario")
            .field("goal", &self.goal)
            .field("tools", &self.tools.len())
            .finish_non_exhaustive()
    }
}

impl Scenario {
    /// A run that `agent` decides. Every life of the process hands it the same record again, so it must decide from what it
    /// is handed.
    pub fn of(agent: Arc<dyn Agent>) -> Scenario {
        Scenario::decided_by(Decider::Agent(agent))
    }

    /// A run that a loop of one's own decides over a gate. It drives the session it is handed until that is done; when
    /// `current` finds a step, that step is approved and waits to be executed.
    pub fn of_loop<F, D>(own: F) -> Scenario
    where
        F: Fn(Arc<Session>) -> D + Send + Sync + 'static,
        D: Future<Output = Result<(), SessionError>> + Send + 'static,
    {
        Scenario::decided_by(Decider::Loop(Arc::new(move |session| Box::pin(own(session)))))
    }

    fn decided_by(decider: Decider) -> Scenario {
        Scenario {
            decider,
            tools: Vec::new(),
            servers: Vec::new(),
            policy: Arc::new(DefaultPolicy),
            model: None,
            goal: "a scenario".to_owned(),
            limits: Limits::default(),
            reconcile: None,
            operator: Arc::new(|_| Reply::Approve),
            times: None,
            database: None,
            lease_ttl: Duration::from_secs(LEASE_TTL_SECONDS),
            recheck: false,
        }
    }

    /// Adds a tool.
    #[must_use]
    pub fn tool(mut self, tool: Arc<dyn Tool>) -> Scenario {
        self.tools.push(tool);
        self
    }

    /// Adds the tools of an MCP server, see [`crate::mcp`]. Each life of the process starts it anew, and it dies with that.
    #[must_use]
    pub fn server(mut self, server: UpstreamSpec) -> Scenario {
        self.servers.push(server);
        self
    }

    /// Names the policy; without it, the runtime's own.
    #[must_use]
    pub fn policy(mut self, policy: Arc<dyn Policy>) -> Scenario {
        self.policy = policy;
        self
    }

    /// Names the model that the agent may ask.
    #[must_use]
    pub fn model(mut self, model: ModelConfig) -> Scenario {
        self.model = Some(model);
        self
    }

    /// Says what the run is for.
    #[must_use]
    pub fn goal(mut self, goal: impl Into<String>) -> Scenario {
        self.goal = goal.into();
        self
    }

    /// Caps the run.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Scenario {
        self.limits = limits;
        self
    }

    /// Names who finds out what became of what was cut off.
    #[must_use]
    pub fn reconcile(mut self, reconcile: Arc<dyn Reconcile>) -> Scenario {
        self.reconcile = Some(reconcile);
        self
    }

    /// Says what the operator answers; without it, everything is approved.
    #[must_use]
    pub fn operator(mut self, answer: impl Fn(&Approval) -> Reply + Send + Sync + 'static) -> Scenario {
        self.operator = Arc::new(answer);
        self
    }

    /// Names the sources of recorded times and of ids.
    #[must_use]
    pub fn times(mut self, clock: Arc<dyn Clock>, mint: Arc<dyn Mint>) -> Scenario {
        self.times = Some((clock, mint));
        self
    }

    /// Runs in this database, whose file may hold tables of one's own; without it, in one that goes with the scenario.
    #[must_use]
    pub fn database(mut self, path: impl Into<PathBuf>) -> Scenario {
        self.database = Some(path.into());
        self
    }

    /// Has the policy asked again about everything once the run is over: one that reads anything but what it is handed fails.
    #[must_use]
    pub fn recheck(mut self) -> Scenario {
        self.recheck = true;
        self
    }

    /// Runs it, with each disruption in its turn, until the run is over or its operator leaves it waiting.
    pub async fn run(&self, disruptions: &[Disruption]) -> Outcome {
        Harness::run(self, disruptions).await
    }

    /// The sources of times and ids: of the scenario, or new ones that count from a fixed start.
    pub(super) fn sources(&self) -> (Arc<dyn Clock>, Arc<dyn Mint>) {
        self.times.clone().unwrap_or_else(|| {
            let start = UnixNanos::from_nanos(1_767_225_600_000_000_000);
            (Arc::new(HandClock::new(start, Duration::from_millis(1))), Arc::new(CountingMint::default()))
        })
    }

    /// A clock for leases, which stands until it is moved.
    pub(super) fn wall() -> HandClock {
        HandClock::new(WallClock.now(), Duration::ZERO)
    }
}

/// One call that a tool received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The index of its step.
    pub step: i64,
    /// The tool.
    pub tool: String,
    /// The arguments.
    pub args: Json,
    /// Whether the runtime heard of its end. It did not when it died with the call.
    pub returned: bool,
}

/// What a scenario left behind.
#[derive(Debug)]
pub struct Outcome {
    /// The run's id; empty when none was begun.
    pub run_id: RunId,
    /// The run as it stands in the record.
    pub run: Option<Run>,
    /// Its steps.
    pub steps: Vec<Step>,
    /// Its approvals.
    pub approvals: Vec<Approval>,
    /// Its events.
    pub events: Vec<Event>,
    /// Every call of a tool, in order, in whichever life of the process.
    pub calls: Vec<Call>,
    /// What the agent was handed, in order, in whichever life.
    pub inputs: Vec<StepInput>,
    /// The disruptions that came about, in order.
    pub disrupted: Vec<Disruption>,
    /// How many times the run was gone on with after its first life: after an approval, and after a crash.
    pub resumes: usize,
    /// Where the contract of an interrupted run was broken: a disruption never came about; the run or a step is left in
    /// flight, or held; a tool was started again before its last start was closed, or more often than once and once an
    /// approval of its step; an approval was used twice; a tool was called without a start on the record; something was
    /// recorded by a process that had died; the chain of events is broken.
    pub failures: Failures,
    pub(super) place: super::stage::Place,
}

impl Outcome {
    /// The database that the run is in. One of the scenario's own goes when this value goes.
    pub fn database(&self) -> &std::path::Path {
        self.place.path()
    }

    /// How often each step's tool was called, by the step's index.
    pub fn calls_by_step(&self) -> HashMap<i64, usize> {
        let mut counts = HashMap::new();
        for call in &self.calls {
            *counts.entry(call.step).or_default() += 1;
        }
        counts
    }
}
