//! Random sequences of calls of the gate, the session and the operator, against a small reference model.
//!
//! Owns the model of one run of several steps as whoever embeds the gate may rely on it: what each call answers in each
//! state, allowed or not. A sequence that fails is shrunk to the shortest that does. Every call is tried in every state.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use holdpoint_actors::clock::Clock;
use holdpoint_actors::session::{Attached, Gate, OpenStep, Session, SessionError, Verdict};
use holdpoint_actors::store::{Answer, OperatorStore, Verdict as Said};
use holdpoint_actors::tree::Running;
use holdpoint_core::approval::ApprovalStatus;
use holdpoint_core::decision::Proposal;
use holdpoint_core::ids::RunId;
use holdpoint_core::run::RunStatus;
use proptest::prelude::{BoxedStrategy, Just, Strategy};
use proptest::sample::select;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest};
use tokio::runtime::Runtime;

use crate::bench::{Bench, GOOD_FOR, LEASE, limits};

/// Calls of one sequence.
const CALLS: usize = 18;
/// Sequences after which the actors are started anew.
const SEQUENCES_OF_A_BENCH: u64 = 400;

/// What somebody proposes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Proposed {
    Read,
    Pay,
    /// A payment that the tool declines.
    Declined,
    /// A payment that a person is asked about.
    Asked,
    /// One that the policy refuses.
    Refused,
    UnknownTool,
    NotJson,
    Complete,
    GiveUp,
}

const PROPOSED: [Proposed; 9] = [
    Proposed::Read,
    Proposed::Pay,
    Proposed::Declined,
    Proposed::Asked,
    Proposed::Refused,
    Proposed::UnknownTool,
    Proposed::NotJson,
    Proposed::Complete,
    Proposed::GiveUp,
];

/// What somebody calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    Begin,
    Step,
    Propose(usize),
    Execute,
    FailStep,
    Close,
    Attach,
    Approve,
    Reject,
    Cancel,
    /// The lease's time passes.
    LeasePasses,
    /// A question's and a grant's time passes.
    GrantPasses,
}

/// Where the session is, as its holder knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hold {
    /// Nobody has one.
    None,
    /// Between two steps.
    Idle,
    /// A step waits for its decision.
    Deciding,
    /// It has an allowed call, which this many effects follow.
    Allowed,
    /// It has collected a grant; the run still waits.
    Granted,
}

/// Where the run is, as anybody can read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Absent,
    Running,
    Waiting,
    Completed,
    Failed,
    Cancelled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Question {
    None,
    Pending,
    Approved,
    Rejected,
    Expired,
}

/// The reference: one run, and what the last call had to answer.
#[derive(Debug, Clone)]
pub(crate) struct Model {
    standing: Standing,
    hold: Hold,
    question: Question,
    /// Whether the question or its grant is too old.
    stale: bool,
    /// Whether the lease has run out since it was stamped.
    lapsed: bool,
    steps: usize,
    effects: usize,
    /// Whether the last call was to be let happen.
    allowed: bool,
}

pub(crate) struct Reference;

impl ReferenceStateMachine for Reference {
    type State = Model;
    type Transition = Call;

    fn init_state() -> BoxedStrategy<Model> {
        Just(Model {
            standing: Standing::Absent,
            hold: Hold::None,
            question: Question::None,
            stale: false,
            lapsed: false,
            steps: 0,
            effects: 0,
            allowed: true,
        })
        .boxed()
    }

    fn transitions(state: &Model) -> BoxedStrategy<Call> {
        let mut likely = match (state.standing, state.hold) {
            (Standing::Absent, _) => vec![Call::Begin],
            (_, Hold::Idle) => vec![Call::Step],
            (_, Hold::Deciding) => vec![Call::Propose(usize::MAX)],
            (_, Hold::Allowed | Hold::Granted) => vec![Call::Execute],
            (_, Hold::None) => vec![Call::Attach, Call::Approve],
        };
        // What goes on comes often enough to get anywhere, and everything else comes too.
        likely.extend(likely.clone());
        likely.extend(likely.clone());
        likely.extend([Call::Begin, Call::Step, Call::Propose(usize::MAX), Call::Execute, Call::FailStep]);
        likely.extend([Call::Close, Call::Attach, Call::Approve, Call::Reject, Call::Cancel]);
        likely.extend([Call::LeasePasses, Call::GrantPasses]);
        (select(likely), 0..PROPOSED.len())
            .prop_map(|(call, which)| match call {
                Call::Propose(_) => Call::Propose(which),
                other @ (Call::Begin
                | Call::Step
                | Call::Execute
                | Call::FailStep
                | Call::Close
                | Call::Attach
                | Call::Approve
                | Call::Reject
                | Call::Cancel
                | Call::LeasePasses
                | Call::GrantPasses) => other,
            })
            .boxed()
    }

    fn apply(mut state: Model, call: &Call) -> Model {
        state.allowed = state.after(*call);
        state
    }
}

impl Model {
    /// Moves, and says whether the call was to be let happen.
    fn after(&mut self, call: Call) -> bool {
        match call {
            Call::Begin => self.begin(),
            Call::Step => self.step(),
            Call::Propose(which) => self.propose(PROPOSED[which % PROPOSED.len()]),
            Call::Execute => self.execute(),
            Call::FailStep => {
                let open = self.hold == Hold::Deciding;
                if open && self.writes(false) {
                    self.end(Standing::Failed);
                }
                open
            }
            Call::Close => {
                let had = self.hold != Hold::None;
                self.hold = Hold::None;
                had
            }
            Call::Attach => self.attach(),
            Call::Approve => self.decide(true),
            Call::Reject => self.decide(false),
            Call::Cancel => {
                let open = matches!(self.standing, Standing::Running | Standing::Waiting);
                if open {
                    // What was asked stays as it was asked: nobody has answered it.
                    self.standing = Standing::Cancelled;
                }
                open
            }
            Call::LeasePasses => {
                self.lapsed = true;
                true
            }
            Call::GrantPasses => {
                self.stale |= matches!(self.question, Question::Pending | Question::Approved);
                true
            }
        }
    }

    fn begin(&mut self) -> bool {
        let absent = self.standing == Standing::Absent;
        if absent {
            (self.standing, self.hold, self.lapsed) = (Standing::Running, Hold::Idle, false);
        }
        absent
    }

    /// Whether the session may write; one that may not is over.
    fn writes(&mut self, must_live: bool) -> bool {
        let may = self.standing == Standing::Running && !(must_live && self.lapsed);
        if !may {
            self.hold = Hold::None;
        }
        may
    }

    fn step(&mut self) -> bool {
        if self.hold != Hold::Idle || !self.writes(false) {
            return false;
        }
        self.steps += 1;
        self.hold = Hold::Deciding;
        true
    }

    fn propose(&mut self, proposed: Proposed) -> bool {
        if self.hold != Hold::Deciding {
            return false;
        }
        if !self.writes(false) {
            // Its run was cancelled under it, which ends it as a run that is over does.
            return true;
        }
        match proposed {
            Proposed::Read | Proposed::Pay | Proposed::Declined => self.hold = Hold::Allowed,
            Proposed::Asked => {
                self.standing = Standing::Waiting;
                (self.question, self.stale, self.hold) = (Question::Pending, false, Hold::None);
            }
            Proposed::Refused | Proposed::UnknownTool | Proposed::NotJson => self.hold = Hold::Idle,
            Proposed::Complete => self.end(Standing::Completed),
            Proposed::GiveUp => self.end(Standing::Failed),
        }
        true
    }

    fn end(&mut self, standing: Standing) {
        self.standing = standing;
        self.hold = Hold::None;
    }

    fn execute(&mut self) -> bool {
        match self.hold {
            Hold::Allowed => {
                let may = self.writes(true);
                if may {
                    self.effects += 1;
                    self.hold = Hold::Idle;
                }
                may
            }
            Hold::Granted => {
                self.hold = Hold::None;
                let granted = self.standing == Standing::Waiting && self.question == Question::Approved;
                if granted && self.stale {
                    (self.standing, self.question) = (Standing::Cancelled, Question::Expired);
                } else if granted {
                    self.effects += 1;
                    (self.standing, self.hold, self.lapsed) = (Standing::Running, Hold::Idle, false);
                    return true;
                }
                false
            }
            Hold::None | Hold::Idle | Hold::Deciding => false,
        }
    }

    fn attach(&mut self) -> bool {
        if self.hold != Hold::None {
            return false;
        }
        match (self.standing, self.question) {
            (Standing::Running, _) => {
                // Nobody holds it: a session that is over has given its lease up.
                (self.hold, self.lapsed) = (Hold::Idle, false);
                true
            }
            (Standing::Waiting, Question::Pending | Question::Approved) if self.stale => {
                (self.standing, self.question) = (Standing::Cancelled, Question::Expired);
                true
            }
            (Standing::Waiting, Question::Approved) => {
                self.hold = Hold::Granted;
                true
            }
            (Standing::Waiting, _)
            | (Standing::Absent | Standing::Completed | Standing::Failed | Standing::Cancelled, _) => false,
        }
    }

    fn decide(&mut self, approve: bool) -> bool {
        if (self.standing, self.question) != (Standing::Waiting, Question::Pending) {
            return false;
        }
        if self.stale {
            (self.standing, self.question) = (Standing::Cancelled, Question::Expired);
            return false;
        }
        if approve {
            self.question = Question::Approved;
        } else {
            (self.standing, self.question) = (Standing::Cancelled, Question::Rejected);
        }
        true
    }
}

/// The actors that sequences are made on, one after another.
struct Stage {
    runtime: Runtime,
    bench: Bench,
    running: Running,
    gate: Gate,
    operator: OperatorStore,
    made: u64,
}

impl Stage {
    fn new() -> Result<Stage, String> {
        let runtime = crate::one_thread()?;
        let bench = Bench::new(false)?;
        let running = runtime.block_on(bench.tree())?;
        let gate = {
            let _inside = runtime.enter();
            bench.gate(&running)?
        };
        let operator = bench.operator()?;
        Ok(Stage { runtime, bench, running, gate, operator, made: 0 })
    }

    fn close(self) {
        self.runtime.block_on(self.running.tree.stop());
    }
}

thread_local! {
    static STAGE: RefCell<Option<Stage>> = const { RefCell::new(None) };
}

/// Counts runs, so that each sequence has one of its own, its repetitions while it is shrunk too.
static RUNS: AtomicU64 = AtomicU64::new(0);
static CALLED: AtomicU64 = AtomicU64::new(0);

/// A sequence's run, and what its caller holds.
pub(crate) struct Real {
    id: RunId,
    session: Option<Session>,
    step: Option<OpenStep>,
}

/// The real gate, held to the reference.
struct Held;

impl StateMachineTest for Held {
    type SystemUnderTest = Real;
    type Reference = Reference;

    fn init_test(_model: &Model) -> Real {
        STAGE.with_borrow_mut(|stage| {
            if stage.as_ref().is_some_and(|stage| stage.made >= SEQUENCES_OF_A_BENCH) {
                stage.take().into_iter().for_each(Stage::close);
            }
            if stage.is_none() {
                *stage = Some(Stage::new().expect("a stage"));
            }
            stage.iter_mut().for_each(|stage| stage.made += 1);
        });
        let number = RUNS.fetch_add(1, Ordering::Relaxed);
        Real { id: RunId::from(format!("sequence-{number}")), session: None, step: None }
    }

    fn apply(mut real: Real, model: &Model, call: Call) -> Real {
        CALLED.fetch_add(1, Ordering::Relaxed);
        STAGE.with_borrow_mut(|stage| {
            let Stage { runtime, bench, gate, operator, .. } = stage.as_mut().expect("a stage");
            let done = runtime.block_on(real.call(gate, bench, operator, call));
            assert_eq!(done, Ok(model.allowed), "{call:?} in {model:?}");
            if model.hold == Hold::None {
                real.session = None;
            }
            if !matches!(model.hold, Hold::Deciding | Hold::Allowed | Hold::Granted) {
                real.step = None;
            }
            let seen = real.seen(operator, bench).expect("the rows");
            let said = (model.standing, model.question, model.steps, model.effects);
            assert_eq!(seen, said, "after {call:?} in {model:?}");
        });
        real
    }

    fn teardown(real: Real, model: Model) {
        STAGE.with_borrow_mut(|stage| {
            let Stage { runtime, bench, .. } = stage.as_mut().expect("a stage");
            if let Some(session) = real.session {
                runtime.block_on(session.close());
            }
            assert_eq!(bench.world.effects(&real.id), model.effects);
            bench.world.forget(&real.id);
        });
    }
}

impl Real {
    /// Makes a call, and says whether it was let happen.
    async fn call(
        &mut self,
        gate: &Gate,
        bench: &Bench,
        operator: &mut OperatorStore,
        call: Call,
    ) -> Result<bool, String> {
        let done = match call {
            Call::Begin => match gate.begin(self.id.clone(), "g", limits()).await {
                Ok(session) => {
                    self.session = Some(session);
                    Ok(true)
                }
                Err(error) => Err(error),
            },
            Call::Step => match &self.session {
                Some(session) => session.step().await.map(|step| {
                    let started = step.is_some();
                    self.step = step.or(self.step.take());
                    started
                }),
                None => Ok(false),
            },
            Call::Propose(which) => match &self.step {
                Some(step) => step.propose(proposal(PROPOSED[which % PROPOSED.len()])).await.map(|verdict| {
                    // Each of the four is an answer.
                    matches!(
                        verdict,
                        Verdict::Allowed { .. }
                            | Verdict::Denied { .. }
                            | Verdict::Pending { .. }
                            | Verdict::Ended { .. }
                    )
                }),
                None => Ok(false),
            },
            Call::Execute => match &self.step {
                Some(step) => step.execute().await.map(|_| true),
                None => Ok(false),
            },
            Call::FailStep => match &self.step {
                Some(step) => step.fail(std::io::Error::other("no idea")).await.map(|_| true),
                None => Ok(false),
            },
            Call::Close => match self.session.take() {
                Some(session) => {
                    session.close().await;
                    Ok(true)
                }
                None => Ok(false),
            },
            Call::Attach => self.attach(gate).await,
            Call::Approve => Ok(self.decide(operator, bench, Said::Approve)?),
            Call::Reject => Ok(self.decide(operator, bench, Said::Reject)?),
            Call::Cancel => Ok(operator.cancel(&self.id, "ana", "", bench.clock.now()).is_ok()),
            Call::LeasePasses => {
                bench.wall.advance(LEASE + Duration::from_secs(1));
                Ok(true)
            }
            Call::GrantPasses => {
                bench.clock.advance(GOOD_FOR + Duration::from_secs(1));
                Ok(true)
            }
        };
        match done {
            Ok(done) => Ok(done),
            // A fault of ours is no refusal.
            Err(error @ (SessionError::Internal { .. } | SessionError::Unavailable(_))) => {
                Err(error.to_string())
            }
            Err(_) => Ok(false),
        }
    }

    async fn attach(&mut self, gate: &Gate) -> Result<bool, SessionError> {
        match gate.attach(self.id.clone()).await? {
            Attached::Open(session) | Attached::Denied(session, _) => self.session = Some(session),
            Attached::Allowed(session, step) => (self.session, self.step) = (Some(session), Some(step)),
            Attached::Pending(..) | Attached::Ended(_) => {}
        }
        Ok(true)
    }

    fn decide(&self, operator: &mut OperatorStore, bench: &Bench, verdict: Said) -> Result<bool, String> {
        let approvals =
            operator.read(|reader| reader.approvals(&self.id)).map_err(|error| error.to_string())?;
        let Some(latest) = approvals.last() else { return Ok(false) };
        let answer =
            Answer { run: &self.id, approval: &latest.id, shown: None, verdict, by: "ana", note: "" };
        Ok(operator.decide(&answer, bench.clock.now()).is_ok())
    }

    fn seen(
        &self,
        operator: &mut OperatorStore,
        bench: &Bench,
    ) -> Result<(Standing, Question, usize, usize), String> {
        let read = operator.read(|reader| {
            Ok((reader.run(&self.id)?, reader.steps(&self.id)?.len(), reader.approvals(&self.id)?.pop()))
        });
        let (run, steps, latest) = read.map_err(|error| error.to_string())?;
        let standing = match run.map(|run| run.status) {
            None => Standing::Absent,
            Some(RunStatus::Running | RunStatus::Interrupted) => Standing::Running,
            Some(RunStatus::WaitingForApproval) => Standing::Waiting,
            Some(RunStatus::Completed) => Standing::Completed,
            Some(RunStatus::Failed) => Standing::Failed,
            Some(RunStatus::Cancelled) => Standing::Cancelled,
        };
        let question = match latest.map(|approval| approval.status) {
            None => Question::None,
            Some(ApprovalStatus::Pending) => Question::Pending,
            Some(ApprovalStatus::Approved) => Question::Approved,
            Some(ApprovalStatus::Rejected) => Question::Rejected,
            Some(ApprovalStatus::Expired) => Question::Expired,
        };
        Ok((standing, question, steps, bench.world.effects(&self.id)))
    }
}

fn proposal(proposed: Proposed) -> Proposal {
    match proposed {
        Proposed::Read => Proposal::tool_call("read", r#"{"of":"a"}"#),
        Proposed::Pay => Proposal::tool_call("pay", r#"{"amount":40}"#),
        Proposed::Declined => Proposal::tool_call("pay", r#"{"amount":"fail"}"#),
        Proposed::Asked => Proposal::tool_call("pay", r#"{"amount":"ask"}"#),
        Proposed::Refused => Proposal::tool_call("pay", r#"{"amount":"deny"}"#),
        Proposed::UnknownTool => Proposal::tool_call("nobody's", "{}"),
        Proposed::NotJson => Proposal::tool_call("pay", r#"{"amount":"#),
        Proposed::Complete => Proposal::complete(""),
        Proposed::GiveUp => Proposal::fail("no idea"),
    }
}

/// What the sequences counted.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) sequences: u64,
    pub(crate) calls: u64,
    pub(crate) failed: Vec<String>,
}

/// Makes so many sequences from this seed on.
pub(crate) fn make(seed: u64, count: u64) -> Result<Made, String> {
    let cases = u32::try_from(count).map_err(|error| error.to_string())?;
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 2_000, ..Config::default() };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config.clone(), rng);
    // A sequence that fails says so through its report, once it is as short as it gets.
    std::panic::set_hook(Box::new(|_| {}));
    let ran = runner.run(&Reference::sequential_strategy(CALLS), |(model, calls, seen)| {
        Held::test_sequential(config.clone(), model, calls, seen);
        Ok(())
    });
    STAGE.with_borrow_mut(|stage| stage.take().into_iter().for_each(Stage::close));
    let failed = ran.err().map(|error| format!("sequences of seed {seed}: {error}")).into_iter().collect();
    Ok(Made { sequences: RUNS.load(Ordering::Relaxed), calls: CALLED.load(Ordering::Relaxed), failed })
}
