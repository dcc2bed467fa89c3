//! The lives of a scenario's process: each opens the database anew, goes on with the run, and dies where it is told to.
//!
//! Owns the deaths. A process dies by the death of every actor at once, after which nothing that its tasks still try is
//! recorded or reaches a tool, a policy or an agent: its lease stays, as a killed process leaves it. The next life begins
//! when the lease has run out.
//!
//! Longer than the others: every point at which a life may end is wired in one place, so that none is forgotten.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use holdpoint_actors::clock::{Clock, HandClock, Mint};
use holdpoint_actors::model::{Model, ModelError};
use holdpoint_actors::policy::{Policy, PolicyError};
use holdpoint_actors::session::{
    Attached, Gate, GateSpec, ModelConfig, Observer, Reconcile, Reconciliation, Session, SessionError,
};
use holdpoint_actors::store::{self, Answer, OperatorStore, Verdict};
use holdpoint_actors::tree::{Tree, TreeSpec};
use holdpoint_core::approval::{Approval, ApprovalStatus};
use holdpoint_core::attempt::Upstream;
use holdpoint_core::event::Event;
use holdpoint_core::ids::RunId;
use holdpoint_core::model::{ModelRequest, ModelResponse};
use holdpoint_core::policy::{Outcome as PolicyOutcome, PolicyDecision, PolicyView};
use holdpoint_core::run::{Run, RunStatus};
use holdpoint_core::tool::{ToolRequest, ToolSpec};
use serde::Deserialize;
use tokio::sync::Semaphore;

use super::folder::Folder;
use super::scenario::{Call, Decider, Disruption, Outcome, Point, Reply, Scenario, Victim};
use super::{Failures, contract, recheck};
use crate::driver::{Agent, AgentError, Driver, DriverError, Proposal, StepInput};
use crate::gate::{Tool, ToolCall, ToolFailure, ToolOutput};
use crate::mcp::Servers;

/// Lives of one scenario. A run that is not over by then is asked about for ever.
const LIVES_MAX: usize = 100;

/// Where the database is.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    _own: Option<Folder>,
}

impl Place {
    fn of(scenario: &Scenario) -> std::io::Result<Place> {
        match &scenario.database {
            Some(path) => Ok(Place { path: path.clone(), _own: None }),
            None => {
                let folder = Folder::new()?;
                Ok(Place { path: folder.path().join("testkit.db"), _own: Some(folder) })
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// What is remembered across lives.
#[derive(Default)]
struct Notes {
    run_id: Option<RunId>,
    /// Each step's index by its id.
    steps: HashMap<String, i64>,
    /// The step that started last.
    newest_step: Option<i64>,
    /// The newest event that was told of.
    told: i64,
    calls: Vec<Call>,
    inputs: Vec<StepInput>,
    disrupted: Vec<Disruption>,
}

/// What one life ended with.
enum End {
    /// It died.
    Crashed,
    /// The run is over, or waits.
    Stopped(RunId, RunStatus),
    /// An error, and whether an actor had died in this life.
    Failed(String, bool),
}

/// Runs one scenario.
pub(super) struct Harness<'a> {
    scenario: &'a Scenario,
    disruptions: &'a [Disruption],
    place: Place,
    clock: Arc<dyn Clock>,
    mint: Arc<dyn Mint>,
    wall: Arc<HandClock>,
    notes: Arc<Mutex<Notes>>,
    failures: Failures,
}

impl Harness<'_> {
    pub(super) async fn run(scenario: &Scenario, disruptions: &[Disruption]) -> Outcome {
        let place = match Place::of(scenario) {
            Ok(place) => place,
            Err(error) => {
                let mut nothing = Outcome::nothing(Place { path: PathBuf::new(), _own: None });
                nothing.failures.add(format!("make a folder for the database: {error}"));
                return nothing;
            }
        };
        let (clock, mint) = scenario.sources();
        let mut harness = Harness {
            scenario,
            disruptions,
            place,
            clock,
            mint,
            wall: Arc::new(Scenario::wall()),
            notes: Arc::default(),
            failures: Failures::default(),
        };
        let lives = harness.live().await;
        let mut outcome = harness.outcome(lives);
        if scenario.recheck && outcome.run.is_some() {
            let asked = recheck(outcome.place.path(), &outcome.run_id, Arc::clone(&scenario.policy));
            outcome.failures.extend(asked.await);
        }
        outcome
    }

    /// Lives until the run is over or left waiting; gives the number of lives.
    async fn live(&mut self) -> usize {
        for life in 1..=LIVES_MAX {
            match self.one_life().await {
                // The lease of the dead runs out.
                End::Crashed => {
                    self.wall.advance(self.scenario.lease_ttl + Duration::from_secs(1));
                    self.check_silence();
                }
                End::Stopped(run, RunStatus::WaitingForApproval) => {
                    if !self.decide(&run) {
                        return life;
                    }
                }
                End::Stopped(..) => return life,
                // An actor's death may cost the session; the run is gone on with as after a crash.
                End::Failed(_, true) => self.wall.advance(self.scenario.lease_ttl + Duration::from_secs(1)),
                End::Failed(why, false) => {
                    self.failures.add(format!("the run was not driven to its end: {why}"));
                    return life;
                }
            }
        }
        self.failures.add(format!("the run was gone on with {LIVES_MAX} times and is not over"));
        LIVES_MAX
    }

    /// Whether the dead left it at what had been told of.
    fn check_silence(&mut self) {
        let (run, told) = {
            let notes = self.notes();
            (notes.run_id.clone(), notes.told)
        };
        let Some(run) = run else { return };
        let newest = read(&self.place, &run).map(|record| record.events.last().map_or(0, |event| event.seq));
        match newest {
            Ok(newest) if newest == told => {}
            Ok(newest) => self.failures.add(format!(
                "a process recorded something after it had died: event {newest}, and {told} was its last"
            )),
            Err(why) => self.failures.add(format!("the run can't be read after a crash: {why}")),
        }
    }

    async fn one_life(&mut self) -> End {
        let armed = self.disruptions.get(self.notes().disrupted.len()).copied();
        let stage = Arc::new(Stage {
            armed,
            actors: OnceLock::new(),
            dead: AtomicBool::new(false),
            hurt: AtomicBool::new(false),
            died: Semaphore::new(0),
            notes: Arc::clone(&self.notes),
        });
        let gate = match self.open(&stage).await {
            Ok(gate) => gate,
            Err(why) => {
                stage.stop().await;
                return End::Failed(why, false);
            }
        };
        match stage.end_of(self.go_on(&gate, &stage)).await {
            None => End::Crashed,
            Some(ended) => {
                stage.stop().await;
                ended
            }
        }
    }

    async fn open(&self, stage: &Arc<Stage>) -> Result<Gate, String> {
        let scenario = self.scenario;
        let watched = |policy: &Arc<dyn Policy>| -> Arc<dyn Policy> {
            Arc::new(WatchedPolicy { policy: Arc::clone(policy), stage: Arc::clone(stage) })
        };
        let policy = watched(&scenario.policy);
        let options =
            store::Options { clock: Arc::clone(&self.wall) as Arc<dyn Clock>, ..store::Options::default() };
        let spec =
            TreeSpec { database: self.place.path.clone(), store: options, policy: Arc::clone(&policy) };
        let tree = Tree::start(spec).await.map_err(|error| error.to_string())?.tree;
        let served = Servers::start(&tree, scenario.servers.clone(), &self.place.path).await;
        let (servers, offered) = match served {
            Ok(served) => served,
            Err(error) => {
                tree.stop().await;
                return Err(error.to_string());
            }
        };
        // One life, one tree.
        drop(stage.actors.set(Actors { tree: tree.clone(), servers }));
        let tools = scenario
            .tools
            .iter()
            .cloned()
            .chain(offered)
            .map(|tool| -> Arc<dyn Tool> { Arc::new(WatchedTool { tool, stage: Arc::clone(stage) }) });
        let mut spec = GateSpec::new(policy, tools.collect());
        spec.model = scenario.model.clone().map(|config| {
            let model = WatchedModel { model: Arc::clone(&config.model), stage: Arc::clone(stage) };
            ModelConfig { model: Arc::new(model), ..config }
        });
        spec.reconcile = scenario.reconcile.as_ref().map(|reconcile| -> Arc<dyn Reconcile> {
            Arc::new(WatchedReconcile { reconcile: Arc::clone(reconcile), stage: Arc::clone(stage) })
        });
        spec.observer = Some(Arc::clone(stage) as Arc<dyn Observer>);
        spec.clock = Arc::clone(&self.clock);
        spec.mint = Arc::clone(&self.mint);
        spec.lease_ttl = scenario.lease_ttl;
        spec.lease_label = "testkit".to_owned();
        Gate::new(tree, spec).map_err(|error| error.to_string())
    }

    /// Begins the run, or goes on with it.
    async fn go_on(&self, gate: &Gate, stage: &Arc<Stage>) -> End {
        let known = self.notes().run_id.clone();
        let (goal, limits) = (self.scenario.goal.as_str(), self.scenario.limits.clone());
        let driven: Result<Run, DriverError> = match &self.scenario.decider {
            Decider::Agent(agent) => {
                let agent = WatchedAgent { agent: Arc::clone(agent), stage: Arc::clone(stage) };
                let driver = Driver::new(gate.clone(), Arc::new(agent));
                match known {
                    None => driver.start(goal, limits).await,
                    Some(run) => driver.resume(run).await,
                }
            }
            Decider::Loop(own) => {
                let session = match known {
                    None => gate.begin(gate.draw_run_id(), goal, limits).await.map(Ok),
                    Some(run) => attach(gate, run, stage).await,
                };
                match session {
                    Ok(Ok(session)) => {
                        let session = Arc::new(session);
                        let looped = own(Arc::clone(&session)).await;
                        let run = session.run().await;
                        session.close().await;
                        looped.map(|()| run).map_err(DriverError::from)
                    }
                    Ok(Err(run)) => Ok(run),
                    Err(error) => Err(error.into()),
                }
            }
        };
        match driven {
            Ok(run) => End::Stopped(run.id, run.status),
            Err(error) => {
                let hurt = stage.hurt.load(Ordering::Acquire) && matches!(error, DriverError::Session(_));
                End::Failed(error.to_string(), hurt)
            }
        }
    }

    /// Asks the operator; whether the run is to be gone on with.
    fn decide(&mut self, run: &RunId) -> bool {
        let decided = OperatorStore::open(&self.place.path, false)
            .map_err(|error| error.to_string())
            .and_then(|mut store| {
                let approvals =
                    store.read(|reader| reader.approvals(run)).map_err(|error| error.to_string())?;
                let pending = approvals.iter().rfind(|approval| approval.status == ApprovalStatus::Pending);
                let approval = pending.ok_or_else(|| "no approval is pending".to_owned())?;
                let verdict = match (self.scenario.operator)(approval) {
                    Reply::Leave => return Ok(false),
                    Reply::Approve => Verdict::Approve,
                    Reply::Reject => Verdict::Reject,
                };
                let answer = Answer {
                    run,
                    approval: &approval.id,
                    shown: Some(&approval.hash),
                    verdict,
                    by: "testkit",
                    note: "as the scenario's operator says",
                };
                let decided = store.decide(&answer, self.clock.now()).map_err(|error| error.to_string())?;
                if let Some(event) = decided.last() {
                    self.notes().told = event.seq;
                }
                Ok(verdict == Verdict::Approve)
            });
        decided.unwrap_or_else(|why| {
            self.failures.add(format!("the run waits and nobody can be asked: {why}"));
            false
        })
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        locked(&self.notes)
    }

    fn outcome(self, lives: usize) -> Outcome {
        let Harness { place, notes, failures, disruptions, .. } = self;
        let mut outcome = Outcome::nothing(place);
        outcome.failures = failures;
        {
            let mut notes = locked(&notes);
            outcome.calls = std::mem::take(&mut notes.calls);
            outcome.inputs = std::mem::take(&mut notes.inputs);
            outcome.disrupted = std::mem::take(&mut notes.disrupted);
            outcome.run_id = notes.run_id.take().unwrap_or_else(|| RunId::from(""));
        }
        outcome.resumes = lives.saturating_sub(1);
        contract::judge(&mut outcome, disruptions);
        outcome
    }
}

impl Outcome {
    fn nothing(place: Place) -> Outcome {
        Outcome {
            run_id: RunId::from(""),
            run: None,
            steps: Vec::new(),
            approvals: Vec::new(),
            events: Vec::new(),
            calls: Vec::new(),
            inputs: Vec::new(),
            disrupted: Vec::new(),
            resumes: 0,
            failures: Failures::default(),
            place,
        }
    }
}

/// Attaches for a loop of one's own. The run itself when there is no session to have.
async fn attach(gate: &Gate, run: RunId, stage: &Arc<Stage>) -> Result<Result<Session, Run>, SessionError> {
    Ok(match gate.attach(run).await? {
        Attached::Open(session) | Attached::Denied(session, _) => Ok(session),
        Attached::Allowed(session, step) => {
            stage.reach(Point::AttachAllowed, Some(step.index()));
            stage.alive().await;
            Ok(session)
        }
        Attached::Pending(_, run) | Attached::Ended(run) => Err(run),
    })
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The actors of one life.
struct Actors {
    tree: Tree,
    servers: Servers,
}

/// One life: what is to happen in it, and whether it is over.
struct Stage {
    armed: Option<Disruption>,
    actors: OnceLock<Actors>,
    dead: AtomicBool,
    /// Whether an actor was killed.
    hurt: AtomicBool,
    died: Semaphore,
    notes: Arc<Mutex<Notes>>,
}

impl Stage {
    /// A step has come to a point.
    fn reach(&self, point: Point, step: Option<i64>) {
        let Some(armed) = self.armed.filter(|armed| armed.at == point) else { return };
        if point != Point::Resumed && step != Some(armed.step) {
            return;
        }
        let Some(Actors { tree, servers }) = self.actors.get() else { return };
        // Once a life.
        let first = match armed.victim {
            Victim::Process => !self.dead.swap(true, Ordering::AcqRel),
            Victim::Actor(_) | Victim::Connection(_) => !self.hurt.swap(true, Ordering::AcqRel),
        };
        if !first {
            return;
        }
        // A policy runs on a thread of its own, so what follows a death may be seen elsewhere before this returns. Who asks
        // for the next disruption waits for this one to be noted.
        let mut notes = locked(&self.notes);
        match armed.victim {
            Victim::Process => {
                tree.die();
                servers.kill(|_| true);
            }
            Victim::Actor(child) => tree.kill(child),
            // Without such a server it never came about, and the contract says so.
            Victim::Connection(server) if !servers.kill(|name| name == server) => return,
            Victim::Connection(_) => {}
        }
        notes.disrupted.push(armed);
        drop(notes);
        if self.is_dead() {
            self.died.add_permits(1);
        }
    }

    /// What `living` ended with; none when the process died, whatever `living` made of that before its death was complete.
    async fn end_of(&self, living: impl Future<Output = End>) -> Option<End> {
        let ended = tokio::select! {
            biased;
            _ = self.died.acquire() => return None,
            ended = living => ended,
        };
        if self.is_dead() {
            drop(self.died.acquire().await);
            return None;
        }
        Some(ended)
    }

    /// Ends what a life that was not cut off has left.
    async fn stop(&self) {
        if let Some(Actors { tree, servers }) = self.actors.get() {
            servers.close().await;
            tree.stop().await;
        }
    }

    fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Never returns in a process that has died.
    async fn alive(&self) {
        if self.is_dead() {
            std::future::pending::<()>().await;
        }
    }

    fn index(&self, step: &str) -> Option<i64> {
        locked(&self.notes).steps.get(step).copied()
    }
}

#[derive(Deserialize)]
struct Started {
    index: i64,
}

impl Observer for Stage {
    fn committed(&self, event: &Event) {
        {
            let mut notes = locked(&self.notes);
            notes.run_id.get_or_insert_with(|| event.run_id.clone());
            notes.told = event.seq;
            if event.kind == "step.started"
                && let Ok(started) = serde_json::from_str::<Started>(&event.payload)
            {
                notes.steps.insert(event.step_id.clone(), started.index);
                notes.newest_step = Some(started.index);
            }
        }
        let at = self
            .armed
            .map(|armed| armed.at)
            .filter(|at| at.event().is_some_and(|kind| kind.as_str() == event.kind));
        if let Some(at) = at {
            self.reach(at, self.index(&event.step_id));
        }
    }
}

struct WatchedTool {
    tool: Arc<dyn Tool>,
    stage: Arc<Stage>,
}

#[async_trait]
impl Tool for WatchedTool {
    fn spec(&self) -> ToolSpec {
        self.tool.spec()
    }

    fn upstream(&self) -> Option<Upstream> {
        self.tool.upstream()
    }

    async fn call(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        self.stage.alive().await;
        let step = self.stage.index(call.step_id.as_str());
        let at = {
            let mut notes = locked(&self.stage.notes);
            let (tool, args) = (self.tool.spec().name, call.args.clone());
            notes.calls.push(Call { step: step.unwrap_or(-1), tool, args, returned: false });
            notes.calls.len() - 1
        };
        let answer = self.tool.call(call).await;
        self.stage.reach(Point::ToolEffect, step);
        self.stage.alive().await;
        if let Some(call) = locked(&self.stage.notes).calls.get_mut(at) {
            call.returned = true;
        }
        answer
    }
}

struct WatchedModel {
    model: Arc<dyn Model>,
    stage: Arc<Stage>,
}

#[async_trait]
impl Model for WatchedModel {
    fn name(&self) -> &str {
        self.model.name()
    }

    async fn generate(&self, request: &ModelRequest) -> Result<ModelResponse, ModelError> {
        self.stage.alive().await;
        let answer = self.model.generate(request).await;
        let step = locked(&self.stage.notes).newest_step;
        self.stage.reach(Point::ModelAnswered, step);
        self.stage.alive().await;
        answer
    }
}

struct WatchedPolicy {
    policy: Arc<dyn Policy>,
    stage: Arc<Stage>,
}

#[async_trait]
impl Policy for WatchedPolicy {
    async fn evaluate(
        &self,
        request: &ToolRequest,
        view: &PolicyView,
    ) -> Result<PolicyDecision, PolicyError> {
        let decided = self.policy.evaluate(request, view).await;
        let allowed = decided.as_ref().is_ok_and(|decision| decision.outcome == PolicyOutcome::Allow);
        if allowed && view.run.status == RunStatus::Running {
            self.stage.reach(Point::PolicyAllowed, self.stage.index(request.step_id.as_str()));
        }
        // An evaluation must end even in a process that has died: a thread waits for it.
        if self.stage.is_dead() { Err(PolicyError("the process has died".to_owned())) } else { decided }
    }

    fn id(&self) -> Option<String> {
        self.policy.id()
    }
}

struct WatchedReconcile {
    reconcile: Arc<dyn Reconcile>,
    stage: Arc<Stage>,
}

#[async_trait]
impl Reconcile for WatchedReconcile {
    async fn reconcile(&self, view: &PolicyView) -> Result<Reconciliation, String> {
        self.stage.alive().await;
        self.reconcile.reconcile(view).await
    }
}

struct WatchedAgent {
    agent: Arc<dyn Agent>,
    stage: Arc<Stage>,
}

#[async_trait]
impl Agent for WatchedAgent {
    async fn decide(&self, input: StepInput) -> Result<Proposal, AgentError> {
        self.stage.alive().await;
        locked(&self.stage.notes).inputs.push(input.clone());
        self.agent.decide(input).await
    }
}

/// What is read back of a run.
pub(super) struct Record {
    pub(super) run: Run,
    pub(super) steps: Vec<holdpoint_core::step::Step>,
    pub(super) approvals: Vec<Approval>,
    pub(super) events: Vec<Event>,
    pub(super) held_by: Option<String>,
    pub(super) broken: Option<String>,
}

/// Reads a run from a fresh open of the file.
pub(super) fn read(place: &Place, id: &RunId) -> Result<Record, String> {
    let mut store = OperatorStore::open(place.path(), true).map_err(|error| error.to_string())?;
    let read = store.read(|reader| {
        let Some(run) = reader.run(id)? else { return Ok(None) };
        Ok(Some(Record {
            run,
            steps: reader.steps(id)?,
            approvals: reader.approvals(id)?,
            events: reader.events(id)?,
            held_by: reader.lease(id)?.map(|lease| lease.owner.to_string()),
            broken: reader.verify(0, 0)?.broken.map(|broken| format!("{broken:?}")),
        }))
    });
    read.map_err(|error| error.to_string())?.ok_or_else(|| format!("there is no run {id}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The policy's thread kills the actors; the session's thread can hear of that first.
    #[tokio::test]
    async fn what_a_session_makes_of_its_process_dying_is_no_end_of_its_own() {
        let stage = Arc::new(Stage {
            armed: None,
            actors: OnceLock::new(),
            dead: AtomicBool::new(false),
            hurt: AtomicBool::new(false),
            died: Semaphore::new(0),
            notes: Arc::default(),
        });
        let dying = Arc::clone(&stage);
        let living = async move {
            dying.dead.store(true, Ordering::Release);
            let completes = Arc::clone(&dying);
            tokio::spawn(async move { completes.died.add_permits(1) });
            End::Failed("the writer is not running".to_owned(), false)
        };
        assert!(stage.end_of(living).await.is_none());
    }
}
