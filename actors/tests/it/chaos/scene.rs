//! A tree on which calls are made while its actors die.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use holdpoint_actors::address::Address;
use holdpoint_actors::approval;
use holdpoint_actors::executor::ToolOutput;
use holdpoint_actors::faults::{Failure, Point};
use holdpoint_actors::policy::{Policy, PolicyError};
use holdpoint_actors::session::{Beginning, OpenStep, Pace, Session, SessionError, Verdict};
use holdpoint_actors::store::{self, Lane, Options, faults};
use holdpoint_actors::supervisor;
use holdpoint_actors::tree::Tree;
use holdpoint_core::attempt::Ending;
use holdpoint_core::decision::Proposal;
use holdpoint_core::ids::{LeaseOwner, RunId, StepId};
use holdpoint_core::json::Json;
use holdpoint_core::ledger::Ledger;
use holdpoint_core::policy::{PolicyDecision, PolicyView};
use holdpoint_core::run::{Run, RunStatus};
use holdpoint_core::step::StepStatus;
use holdpoint_core::tool::{SideEffect, ToolRequest, ToolSpec};
use holdpoint_core::transition::{Durability, LeaseTerms};
use ractor::ActorRef;

use crate::bench::*;

use super::table::{Came, Death, Kind, Step, Victim, expected};
use super::{SOON, counted};

pub(super) async fn die<M: ractor::Message>(address: &Address<M>, death: Death, fail: fn(Failure) -> M) {
    let actor: ActorRef<M> = address.find(SOON).await.expect("an actor to kill");
    let told = match death {
        Death::Panic => actor.cast(fail(Failure::Panic)),
        Death::Error => actor.cast(fail(Failure::Error)),
        Death::Kill => {
            actor.kill();
            Ok(())
        }
    };
    // One that can't be told is dead already.
    if told.is_err() {
        return;
    }
    actor.wait(Some(SOON)).await.expect("it dies");
}

/// Has the victim die, and waits until it is dead.
pub(super) async fn strike(tree: Tree, victim: Victim, death: Death) {
    match victim {
        Victim::StoreWriter => die(tree.store.address(), death, store::Msg::Fail).await,
        Victim::LeaseKeeper => die(&tree.lease, death, holdpoint_actors::lease::Msg::Fail).await,
        Victim::PolicyEvaluator => die(&tree.policy, death, holdpoint_actors::policy::Msg::Fail).await,
        Victim::ToolExecutor => die(&tree.executor, death, holdpoint_actors::executor::Msg::Fail).await,
        Victim::ApprovalWaiter => die(&tree.approval, death, approval::Msg::Fail).await,
        Victim::Supervisor => end(tree, death).await,
    }
}

/// Has the supervisor die, and waits until its children have gone with it.
async fn end(tree: Tree, death: Death) {
    let supervisor = tree.supervisor().clone();
    match death {
        Death::Panic => drop(supervisor.cast(supervisor::Msg::Fail(Failure::Panic))),
        Death::Error => drop(supervisor.cast(supervisor::Msg::Fail(Failure::Error))),
        Death::Kill => supervisor.kill(),
    }
    supervisor.wait(Some(SOON)).await.expect("it dies");
    gone(&tree).await;
}

/// Waits until nobody of the tree is left whom a call asks.
pub(super) async fn gone(tree: &Tree) {
    let (store, policy, executor) = (tree.store.address().cell(), tree.policy.cell(), tree.executor.cell());
    while store.borrow().is_some() || policy.borrow().is_some() || executor.borrow().is_some() {
        tokio::task::yield_now().await;
    }
}

/// Kills the writer once it has something to do.
pub(super) async fn kill_with_work(tree: Tree) {
    loop {
        let seen = tree.store.observe(SOON).await.expect("it tells");
        if seen.waiting_intents + seen.waiting_outcomes > 0 {
            return strike(tree, Victim::StoreWriter, Death::Kill).await;
        }
        tokio::task::yield_now().await;
    }
}

/// Strikes that wait for a run's call inside its policy or its tool.
#[derive(Clone, Default)]
pub(super) struct Armed(Arc<Mutex<HashMap<RunId, BoxFuture<'static, ()>>>>);

impl Armed {
    pub(super) fn add(&self, run: &RunId, strike: impl Future<Output = ()> + Send + 'static) {
        self.0.lock().unwrap().insert(run.clone(), Box::pin(strike));
    }

    /// Strikes from a task of its own: whoever meets it may be what dies.
    pub(super) async fn meet(&self, run: &RunId) {
        let strike = self.0.lock().unwrap().remove(run);
        if let Some(strike) = strike {
            tokio::spawn(strike).await.expect("the strike lands");
        }
    }
}

/// Allows everything but what a person is to be asked about, by the run's name.
pub(super) struct ByName(pub(super) Armed);

#[async_trait]
impl Policy for ByName {
    async fn evaluate(
        &self,
        request: &ToolRequest,
        _view: &PolicyView,
    ) -> Result<PolicyDecision, PolicyError> {
        self.0.meet(&request.run_id).await;
        let asks = request.run_id.as_str().starts_with("approved");
        Ok(if asks { ask_for("the payment") } else { PolicyDecision::allow("") })
    }
}

/// Records a run whose tool was started with these arguments by a process that is gone.
pub(super) async fn left_executing(tree: &Tree, spec: ToolSpec, run: &RunId, args: &str) {
    let (terms, at) = (LeaseTerms { owner: LeaseOwner::from("gone"), ttl: Duration::ZERO }, start());
    let (step, tool) = (StepId::from(format!("{run}.s")), spec.name.clone());
    let request = ToolRequest { run_id: run.clone(), step_id: step.clone(), spec, args: Json::trusted(args) };
    let mut ledger = Ledger::begin(terms, Run::begun(run.clone(), "g", limits(), at), &[]);
    ledger.start_step(step, at);
    ledger.decide(call(&tool, args).recorded(), None, at).unwrap();
    ledger.record_policy(PolicyDecision::allow(""), None, None, at).unwrap();
    ledger.start_tool(&request, None, at).unwrap();
    tree.store.apply(Lane::Intent, ledger.take(Durability::Synced)).await.unwrap();
}

/// One tree on which calls are made while its actors die.
pub(super) struct Scene {
    pub(super) bench: Bench,
    pub(super) process: Process,
    pub(super) tools: Vec<Arc<Scripted>>,
    pub(super) faults: faults::Faults,
    pub(super) in_policy: Armed,
    pub(super) in_tool: Armed,
    /// How often a tool yields before it answers.
    pub(super) slow: Arc<AtomicUsize>,
}

impl Scene {
    pub(super) async fn new() -> Scene {
        Scene::within(Duration::from_secs(10)).await
    }

    /// A scene whose tools and whose policy have so long for an answer.
    pub(super) async fn within(deadline: Duration) -> Scene {
        let (bench, in_policy, in_tool) = (Bench::new(), Armed::default(), Armed::default());
        let classes = [
            ("read", SideEffect::ReadOnly),
            ("local", SideEffect::LocalMutation),
            ("remote", SideEffect::RemoteMutation),
        ];
        let slow = Arc::new(AtomicUsize::new(0));
        let tools: Vec<_> = classes
            .into_iter()
            .map(|(name, class)| {
                let (armed, slow) = (in_tool.clone(), Arc::clone(&slow));
                let spec = ToolSpec { timeout: deadline, ..spec(name, class) };
                Scripted::with(spec, move |call| {
                    let (armed, slow) = (armed.clone(), Arc::clone(&slow));
                    Box::pin(async move {
                        armed.meet(&call.run_id).await;
                        for _ in 0..slow.load(Ordering::Acquire) {
                            tokio::task::yield_now().await;
                        }
                        Ok(ToolOutput::new("{\"done\":true}", "done"))
                    })
                })
            })
            .collect();
        let options = Options::default();
        let faults = options.faults.clone();
        let process = bench
            .process_with(&tools, Arc::new(ByName(in_policy.clone())), options, |spec| {
                spec.policy_timeout = deadline;
            })
            .await;
        Scene { bench, process, tools, faults, in_policy, in_tool, slow }
    }

    /// How often a run's step has reached the world.
    pub(super) fn effects(&self, run: &RunId) -> usize {
        let calls = self.tools.iter().flat_map(|tool| tool.call_ids());
        calls.filter(|(of, _)| of == run.as_str()).count()
    }

    /// How often a step has reached the world.
    pub(super) fn effects_of(&self, step: &StepId) -> usize {
        let calls = self.tools.iter().flat_map(|tool| tool.call_ids());
        calls.filter(|(_, of)| of == step.as_str()).count()
    }

    /// Readies a call of `kind`: what a person must have said is said.
    pub(super) async fn ready(&self, kind: Kind, run: &RunId) {
        match kind {
            Kind::Read | Kind::Local | Kind::Remote => {}
            Kind::Approved => {
                let (_session, _, verdict) = self.propose(kind, run).await.unwrap();
                self.bench.approve(&pending(verdict));
            }
            Kind::ReRun => {
                self.leave_executing(kind, run).await;
                let approval = asks(self.process.gate.attach_with(run.clone(), Pace::Effects).await);
                self.bench.approve(&approval);
            }
        }
    }

    /// Records a run whose tool was started by a process that is gone.
    pub(super) async fn leave_executing(&self, kind: Kind, run: &RunId) {
        let spec = self.tools.iter().find(|tool| tool.spec.name == kind.tool()).unwrap().spec.clone();
        left_executing(self.process.tree(), spec, run, "{}").await;
    }

    pub(super) async fn propose(
        &self,
        kind: Kind,
        run: &RunId,
    ) -> Result<(Session, OpenStep, Verdict), SessionError> {
        let beginning = Beginning { pace: Pace::Effects, ..Beginning::default() };
        let session = self.process.gate.begin_with(run.clone(), "g", limits(), beginning).await?;
        let step = session.step().await?.expect("a step");
        let verdict = step.propose(call(kind.tool(), "{}")).await?;
        Ok((session, step, verdict))
    }

    /// Makes the call, from its proposal or from its grant to its answer.
    pub(super) async fn execute(&self, kind: Kind, run: &RunId) -> Result<(Session, Ending), SessionError> {
        let (session, step) = match kind {
            Kind::Read | Kind::Local | Kind::Remote => {
                let (session, step, verdict) = self.propose(kind, run).await?;
                allowed(&verdict);
                (session, step)
            }
            Kind::Approved | Kind::ReRun => {
                let attached = self.process.gate.attach_with(run.clone(), Pace::Effects).await;
                match attached {
                    Err(error) => return Err(error),
                    found => granted(found),
                }
            }
        };
        let ending = step.execute().await?.ending;
        Ok((session, ending))
    }

    /// Makes the call, and ends its run.
    pub(super) async fn make(&self, kind: Kind, run: &RunId) -> Result<Ending, SessionError> {
        let (session, ending) = self.execute(kind, run).await?;
        let last = session.step().await?.expect("a step");
        ended(last.propose(Proposal::complete("")).await?);
        Ok(ending)
    }

    /// Arms the death of `victim` for the call of `run` at `step`.
    pub(super) fn arm(&self, victim: Victim, death: Death, step: Step, run: &RunId) {
        let tree = self.process.tree().clone();
        let hook = |point| {
            let tree = tree.clone();
            self.process.tree().hooks.once(point, run.clone(), move || strike(tree, victim, death));
        };
        match step {
            Step::Judging => self.in_policy.add(run, strike(tree, victim, death)),
            Step::Sent => self.in_tool.add(run, async move {
                strike(tree, victim, death).await;
                if matches!(victim, Victim::ToolExecutor | Victim::Supervisor) {
                    // The call ends with its executor, however long the tool would have taken.
                    std::future::pending().await
                }
            }),
            Step::Starting => hook(Point::Starting),
            Step::Started => hook(Point::Started),
            Step::Answered => hook(Point::Answered),
            Step::FirstAbsent => self.arm_commit(Point::Starting, faults::Point::Commit, death, run),
            Step::FirstPresent => self.arm_commit(Point::Starting, faults::Point::Answer, death, run),
            Step::SecondAbsent => self.arm_commit(Point::Answered, faults::Point::Commit, death, run),
            Step::SecondPresent => self.arm_commit(Point::Answered, faults::Point::Answer, death, run),
            Step::Recorded => {}
        }
    }

    /// Has the writer die in the batch after `point`: before its commit, or between it and the replies. Its thread
    /// panics or finds the disk failing; killed from outside, the writer dies with a job that waits to be begun.
    pub(super) fn arm_commit(&self, point: Point, at: faults::Point, death: Death, run: &RunId) {
        let (faults, tree) = (self.faults.clone(), self.process.tree().clone());
        self.process.tree().hooks.once(point, run.clone(), move || async move {
            match death {
                Death::Panic => faults.add(at, faults::Act::Panic),
                Death::Error => faults.add(at, faults::Act::SyncFails),
                Death::Kill => {
                    let hold = |reply| store::Msg::Hold(true, reply);
                    tree.store.address().ask(SOON, hold).await.expect("it holds back");
                    tokio::spawn(kill_with_work(tree));
                }
            }
        });
    }

    /// Reads what the call came to off the record, and holds its answer to that.
    pub(super) fn came_to(&self, kind: Kind, run: &RunId, answer: &Result<Ending, SessionError>) -> Came {
        let recorded = self.bench.operator().read(|reader| reader.run(run)).unwrap();
        let effects = self.effects(run);
        let came = match answer {
            Err(SessionError::Unavailable(_)) => {
                let untouched = match (kind, &recorded) {
                    (Kind::Read | Kind::Local | Kind::Remote, recorded) => recorded.is_none(),
                    (Kind::Approved | Kind::ReRun, Some(run)) => run.status == RunStatus::WaitingForApproval,
                    (Kind::Approved | Kind::ReRun, None) => false,
                };
                assert!(untouched, "unavailable, and something is recorded: {recorded:?}");
                assert_eq!(effects, 0, "unavailable, and it ran");
                return Came::Unavailable;
            }
            Ok(Ending::Answered) => Came::Answered,
            Ok(Ending::NotSent) => Came::NotSent,
            Ok(Ending::NoAnswer) => Came::NoAnswer,
            other => panic!("an answer that the table does not have: {other:?}"),
        };
        let step = &self.bench.steps(run)[0];
        assert_eq!(effects, usize::from(came != Came::NotSent), "what reached the world");
        assert_eq!(step.status, if came == Came::Answered { StepStatus::Done } else { StepStatus::Failed });
        assert_eq!(recorded.unwrap().status, RunStatus::Completed);
        let kept = self.bench.operator().read(|reader| reader.ending(&step.id)).unwrap();
        assert_eq!(kept, answer.as_ref().ok().copied().filter(|ending| *ending != Ending::Answered));
        came
    }

    /// Waits until a run stands so in the record.
    pub(super) async fn until(&self, run: &RunId, so: impl Fn(&Run, bool) -> bool) {
        while !so(&self.bench.run(run), self.bench.lease(run).is_some()) {
            tokio::task::yield_now().await;
        }
    }

    /// Waits until every actor is there.
    pub(super) async fn whole(&self) {
        loop {
            let seen = self.process.tree().observe().await;
            let asked = seen.store.is_some() && seen.policy.is_some() && seen.executor.is_some();
            if asked && seen.lease.is_some() && seen.approval.is_some() {
                return;
            }
        }
    }

    pub(super) async fn case(&self, victim: Victim, death: Death, step: Step, kind: Kind) {
        let name = format!("{}.{victim:?}.{death:?}.{step:?}", format!("{kind:?}").to_lowercase());
        let run = RunId::from(name.as_str());
        self.whole().await;
        self.ready(kind, &run).await;
        self.arm(victim, death, step, &run);
        let answer = tokio::time::timeout(SOON, self.make(kind, &run)).await;
        let answer = answer.unwrap_or_else(|_| panic!("{name}: nobody answered"));
        if step == Step::Recorded {
            strike(self.process.tree().clone(), victim, death).await;
        }
        let came = self.came_to(kind, &run, &answer);
        assert!(expected(victim, step).contains(&came), "{name}: {came:?}, {answer:?}");
        self.again(kind, &run, came).await;
        counted(victim, death, step, kind);
    }

    /// What the next call of the same run finds: nothing that ran runs again.
    pub(super) async fn again(&self, kind: Kind, run: &RunId, came: Came) {
        let effects = self.effects(run);
        let answer = match (kind, came) {
            (Kind::Approved | Kind::ReRun, Came::Unavailable) => {
                // The grant is still there, and is used once.
                assert_eq!(self.make_when_back(kind, run).await, Ending::Answered);
                assert_eq!(self.effects(run), 1);
                return;
            }
            (Kind::Read | Kind::Local | Kind::Remote, Came::Unavailable) => {
                assert_eq!(self.make_when_back(kind, run).await, Ending::Answered);
                assert_eq!(self.effects(run), 1);
                return;
            }
            (_, Came::Answered | Came::NotSent | Came::NoAnswer) => {
                self.process.gate.attach_with(run.clone(), Pace::Effects).await
            }
        };
        is_run_state(answer);
        assert_eq!(self.effects(run), effects);
    }

    /// Makes the call again for as long as the actor that died is not back.
    pub(super) async fn make_when_back(&self, kind: Kind, run: &RunId) -> Ending {
        loop {
            match self.make(kind, run).await {
                Err(SessionError::Unavailable(_)) => tokio::task::yield_now().await,
                answer => return answer.unwrap(),
            }
        }
    }
}
