//! Runs that an agent decides: driven to their ends and pauses, resumed, dropped, cancelled, and the same as a loop of
//! one's own.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use holdpoint_actors::clock::{Clock, CountingMint, HandClock, Mint};
use holdpoint_actors::session::{GateSpec, ModelConfig, Observer, Reconcile, Reconciliation};
use holdpoint_actors::store::{self, Answer, OperatorStore, Verdict as Said};
use holdpoint_actors::tree::{Running, Tree, TreeSpec};
use holdpoint_core::approval::{Approval, INTERRUPTED_SIDE_EFFECT};
use holdpoint_core::event::Event;
use holdpoint_core::json::Json;
use holdpoint_core::model::{Block, Message, ModelRequest, ModelResponse, Role, Usage};
use holdpoint_core::policy::{PolicyDecision, PolicyView};
use holdpoint_core::step::{ObservationKind, Step, StepStatus};
use holdpoint_core::time::UnixNanos;
use holdpoint_core::tool::{SideEffect, ToolSpec};
use rusqlite::Connection;
use tokio::sync::Semaphore;

use super::*;
use crate::gate::{DefaultPolicy, Tool, ToolCall, ToolFailure, ToolOutput, tool_fn};
use crate::replay::Scripted;

/// A clock that moves on by a second at each reading, and counts its readings.
#[derive(Debug)]
struct Readings {
    clock: HandClock,
    count: AtomicUsize,
}

impl Clock for Readings {
    fn now(&self) -> UnixNanos {
        self.count.fetch_add(1, Ordering::AcqRel);
        self.clock.now()
    }
}

/// The events that an observer was told of.
#[derive(Debug, Clone, Default)]
struct Seen(Arc<Mutex<Vec<Event>>>);

impl Observer for Seen {
    fn committed(&self, event: &Event) {
        self.0.lock().unwrap().push(event.clone());
    }
}

/// A database with one program over it.
struct Bench {
    folder: tempfile::TempDir,
    clock: Arc<Readings>,
    seen: Seen,
    running: Running,
    gate: Gate,
}

impl Bench {
    async fn new() -> Bench {
        Bench::with(|_| {}).await
    }

    async fn with(more: impl FnOnce(&mut GateSpec)) -> Bench {
        let folder = tempfile::tempdir().unwrap();
        let start = UnixNanos::parse("2026-10-01T09:00:00Z").unwrap();
        let clock = HandClock::new(start, Duration::from_secs(1));
        let clock = Arc::new(Readings { clock, count: AtomicUsize::new(0) });
        let policy = Arc::new(DefaultPolicy);
        let tree = TreeSpec {
            database: folder.path().join("runs.db"),
            store: store::Options::default(),
            policy: Arc::clone(&policy) as Arc<_>,
        };
        let running = Tree::start(tree).await.unwrap();
        let seen = Seen::default();
        let mut spec = GateSpec::new(policy, tools());
        spec.clock = Arc::clone(&clock) as Arc<dyn Clock>;
        spec.mint = Arc::new(CountingMint::default()) as Arc<dyn Mint>;
        spec.observer = Some(Arc::new(seen.clone()));
        more(&mut spec);
        let gate = Gate::new(running.tree.clone(), spec).unwrap();
        Bench { folder, clock, seen, running, gate }
    }

    fn driver(&self, agent: impl Agent) -> Driver {
        Driver::new(self.gate.clone(), Arc::new(agent))
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("runs.db")
    }

    fn operator(&self) -> OperatorStore {
        OperatorStore::open(&self.path(), false).unwrap()
    }

    fn run(&self) -> Run {
        self.operator().read(|reader| reader.run(&r())).unwrap().unwrap()
    }

    fn steps(&self) -> Vec<Step> {
        self.operator().read(|reader| reader.steps(&r())).unwrap()
    }

    fn events(&self) -> Vec<Event> {
        self.operator().read(|reader| reader.events(&r())).unwrap()
    }

    fn is_held(&self) -> bool {
        self.operator().read(|reader| reader.lease(&r())).unwrap().is_some()
    }

    fn approval(&self) -> Approval {
        self.operator().read(|reader| reader.approvals(&r())).unwrap().pop().unwrap()
    }

    fn decide(&self, verdict: Said) {
        let approval = self.approval();
        let answer =
            Answer { run: &r(), approval: &approval.id, shown: None, verdict, by: "ana", note: "said so" };
        self.operator().decide(&answer, approval.created_at).unwrap();
    }

    fn cancel(&self) {
        self.operator().cancel(&r(), "ana", "stop", self.clock.clock.now()).unwrap();
    }

    fn kinds(&self) -> String {
        self.events().iter().map(|event| event.kind.as_str()).collect::<Vec<_>>().join(" ")
    }

    /// Every row of the run but the lease's, as text.
    fn rows(&self) -> String {
        let conn = Connection::open(self.path()).unwrap();
        let mut out = String::new();
        for query in [
            "SELECT id, status, reason, reason_detail, step_count, result_json, active_ms, finished_at FROM runs WHERE id = ?",
            "SELECT * FROM steps WHERE run_id = ? ORDER BY rowid",
            "SELECT * FROM approvals WHERE run_id = ? ORDER BY rowid",
            "SELECT step_id, at, type, payload_json FROM events WHERE run_id = ? ORDER BY seq",
        ] {
            let mut statement = conn.prepare(query).unwrap();
            let columns = statement.column_count();
            let mut rows = statement.query([r().as_str()]).unwrap();
            while let Some(row) = rows.next().unwrap() {
                let values = (0..columns).map(|at| format!("{:?}", row.get_ref(at).unwrap()));
                writeln!(out, "{}", values.collect::<Vec<_>>().join(" | ")).unwrap();
            }
        }
        out
    }

    /// Resumes the run once what was dropped has let go of it.
    async fn resumed(&self, driver: &Driver) -> Run {
        loop {
            match driver.resume(r()).await {
                Err(DriverError::Session(SessionError::RunState { .. } | SessionError::Leased { .. })) => {
                    tokio::task::yield_now().await;
                }
                resumed => return resumed.unwrap(),
            }
        }
    }

    /// Waits until nobody holds the run.
    async fn released(&self) {
        while self.is_held() {
            tokio::task::yield_now().await;
        }
    }

    async fn stop(self) {
        self.running.tree.stop().await;
        let report = self.operator().read(|reader| reader.verify(0, 0)).unwrap();
        assert!(report.broken.is_none(), "{report:?}");
    }
}

fn r() -> RunId {
    RunId::from("r")
}

fn limits() -> Limits {
    Limits { max_steps: 20, max_consecutive_tool_failures: 5, loop_threshold: 5, ..Limits::default() }
}

const SCHEMA: &str =
    r#"{"type":"object","properties":{"n":{"type":"integer"}},"additionalProperties":false}"#;

fn echo(name: &str, class: SideEffect) -> Arc<dyn Tool> {
    tool_fn(ToolSpec::new(name, class, SCHEMA), |call: ToolCall| async move {
        Ok(ToolOutput::new(call.args.as_str(), "echoed"))
    })
}

fn tools() -> Vec<Arc<dyn Tool>> {
    let finish = ToolSpec::new("finish", SideEffect::LocalMutation, SCHEMA).terminal();
    let abort = ToolSpec::new("abort", SideEffect::LocalMutation, SCHEMA);
    vec![
        echo("read", SideEffect::ReadOnly),
        echo("write", SideEffect::LocalMutation),
        echo("push", SideEffect::RemoteMutation),
        echo("wipe", SideEffect::Destructive),
        tool_fn(finish, |_| async { Ok(ToolOutput::new("{}", "finished")) }),
        tool_fn(abort, |_| async { Err(ToolFailure::Abort("no".to_owned())) }),
    ]
}

fn call(tool: &str, args: &str) -> Proposal {
    Proposal::tool_call(tool, args)
}

fn read(n: i64) -> Proposal {
    call("read", &format!("{{\"n\":{n}}}"))
}

/// An agent that proposes the decision for each step's index.
fn deciding(decisions: Vec<Proposal>) -> impl Agent {
    move |input: StepInput| {
        let index = usize::try_from(input.run.step_count - 1).unwrap();
        let decision = decisions[index].clone();
        async move { Ok(decision) }
    }
}

#[track_caller]
fn is(run: &Run, status: RunStatus, reason: Reason) {
    assert_eq!((run.status, run.reason), (status, Some(reason)), "{}", run.reason_detail);
}

#[tokio::test]
async fn an_agent_is_handed_the_run_and_decides_it_to_its_end() {
    let bench = Bench::new().await;
    let handed: Arc<Mutex<Vec<StepInput>>> = Arc::default();
    let inputs = Arc::clone(&handed);
    let agent = move |input: StepInput| {
        inputs.lock().unwrap().push(input.clone());
        async move {
            Ok(match input.steps.len() {
                n @ 0..2 => read(i64::try_from(n).unwrap()),
                _ => Proposal::complete(r#"{"answer":42}"#),
            })
        }
    };
    let run = bench.driver(agent).start_with_id(r(), "find out", limits()).await.unwrap();
    is(&run, RunStatus::Completed, Reason::GoalCompleted);
    assert_eq!(run, bench.run(), "the run as it is stored");
    assert_eq!(run.result, Some(Json::trusted(r#"{"answer":42}"#)));
    let one = "step.started step.decided step.policy step.tool_started step.tool_finished";
    assert_eq!(
        bench.kinds(),
        format!("run.created run.started {one} {one} step.started step.decided run.finished")
    );
    assert_eq!(*bench.seen.0.lock().unwrap(), bench.events());
    assert!(!bench.is_held());
    {
        let handed = handed.lock().unwrap();
        let counts: Vec<_> = handed.iter().map(|input| (input.run.step_count, input.steps.len())).collect();
        assert_eq!(counts, [(1, 0), (2, 1), (3, 2)], "the run as its step started, and the steps before it");
        let names: Vec<_> = handed[0].tools.iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!(names, ["abort", "finish", "push", "read", "wipe", "write"]);
        assert_eq!(handed[2].steps[1].observation.as_ref().unwrap().summary, "echoed");
    }
    bench.stop().await;
}

#[tokio::test]
async fn a_run_that_is_started_without_an_id_draws_one() {
    let bench = Bench::new().await;
    let driver = bench.driver(deciding(vec![Proposal::complete("")]));
    let (one, other) =
        (driver.start("g", limits()).await.unwrap(), driver.start("g", limits()).await.unwrap());
    assert_ne!(one.id, other.id);
    assert!(one.id.as_str().len() == 32 && one.id.as_str().bytes().all(|b| b.is_ascii_hexdigit()));
    let taken = driver.start_with_id(one.id.clone(), "g", limits()).await;
    assert_eq!(taken.unwrap_err(), DriverError::Session(SessionError::Exists(one.id)));
    let unusable = driver.start("g", Limits { max_steps: 0, ..limits() }).await;
    assert!(matches!(unusable, Err(DriverError::Session(SessionError::Invalid(_)))), "{unusable:?}");
    bench.stop().await;
}

/// The driver's loop, written by somebody else over the gate.
async fn own_loop(gate: &Gate, decisions: &[Proposal], session: Session, granted: Option<OpenStep>) {
    if let Some(step) = granted {
        step.execute().await.unwrap();
    }
    while !session.done().await {
        let Some(step) = session.step().await.unwrap() else { break };
        let index = usize::try_from(step.index()).unwrap();
        if let Verdict::Allowed { .. } = step.propose(decisions[index].clone()).await.unwrap() {
            step.execute().await.unwrap();
        }
    }
    session.close().await;
    assert_eq!(gate.run(&r()).await.unwrap(), session.run().await);
}

#[tokio::test]
async fn a_driven_run_and_a_loop_of_ones_own_leave_the_same_rows_events_and_readings() {
    let decisions = vec![
        read(1),
        call("wipe", "{}"),
        call("read", r#"{"n":"one"}"#),
        call("push", r#"{"n":7}"#),
        call("finish", r#"{"n":8}"#),
    ];
    let driven = Bench::new().await;
    let driver = driven.driver(deciding(decisions.clone()));
    let paused = driver.start_with_id(r(), "g", limits()).await.unwrap();
    assert_eq!(paused.status, RunStatus::WaitingForApproval);
    driven.decide(Said::Approve);
    is(&driver.resume(r()).await.unwrap(), RunStatus::Completed, Reason::GoalCompleted);

    let own = Bench::new().await;
    let session = own.gate.begin(r(), "g", limits()).await.unwrap();
    own_loop(&own.gate, &decisions, session, None).await;
    own.decide(Said::Approve);
    let Ok(Attached::Allowed(session, step)) = own.gate.attach(r()).await else { panic!("granted") };
    own_loop(&own.gate, &decisions, session, Some(step)).await;

    assert_eq!(driven.rows(), own.rows());
    assert_eq!(driven.clock.count.load(Ordering::Acquire), own.clock.count.load(Ordering::Acquire));
    let commits = |counts: store::Observation| (counts.synced_commits, counts.written_commits);
    let soon = Duration::from_secs(10);
    let counts = driven.running.tree.store.observe(soon).await.unwrap();
    assert_eq!(commits(counts), commits(own.running.tree.store.observe(soon).await.unwrap()));
    driven.stop().await;
    own.stop().await;
}

#[tokio::test]
async fn the_clock_is_read_once_for_each_change_of_state_that_an_agent_causes() {
    let cases = [
        ("fail", vec![Proposal::fail("gave up")], 5),
        ("terminal", vec![call("finish", "{}")], 6),
        ("abort", vec![call("abort", "{}")], 6),
        ("loop", vec![read(1), read(1)], 11),
        ("all", vec![read(1), call("wipe", "{}"), call("nope", "{}"), Proposal::complete("")], 16),
    ];
    for (name, decisions, readings) in cases {
        let bench = Bench::new().await;
        let limits = Limits { loop_threshold: 2, ..limits() };
        bench.driver(deciding(decisions)).start_with_id(r(), "g", limits).await.unwrap();
        assert_eq!(bench.clock.count.load(Ordering::Acquire), readings, "{name}");
    }
    let bench = Bench::new().await;
    let failing = |_: StepInput| async { Err(AgentError::msg("no idea")) };
    bench.driver(failing).start_with_id(r(), "g", limits()).await.unwrap();
    assert_eq!(bench.clock.count.load(Ordering::Acquire), 4, "agent error");

    let bench = Bench::new().await;
    let driver = bench.driver(deciding(vec![call("push", "{}"), read(1), Proposal::complete("")]));
    driver.start_with_id(r(), "g", limits()).await.unwrap();
    assert_eq!(bench.clock.count.load(Ordering::Acquire), 5, "a pause");
    bench.decide(Said::Approve);
    driver.resume(r()).await.unwrap();
    assert_eq!(bench.clock.count.load(Ordering::Acquire), 16, "and what followed its grant");
}

#[tokio::test]
async fn an_agent_that_cannot_decide_ends_the_run_with_its_reason() {
    let ask = |input: StepInput| async move {
        let go = Message { role: Role::User, content: vec![Block::text("go")] };
        let request = ModelRequest { messages: vec![go], max_output_tokens: 5, ..ModelRequest::default() };
        let answer = input.model.generate(&request).await?;
        Ok(Proposal::complete(format!("{:?}", answer.text)))
    };
    let said = ModelResponse {
        text: "so".to_owned(),
        usage: Usage { input_tokens: 3, output_tokens: 2, cached_input_tokens: 0 },
        ..ModelResponse::default()
    };
    let one_call = Limits { max_model_calls: 1, ..limits() };
    for (answers, limits, status, reason) in [
        (vec![said.clone()], one_call, RunStatus::Completed, Reason::GoalCompleted),
        (vec![], limits(), RunStatus::Failed, Reason::ModelUnavailable),
        (
            vec![said.clone()],
            Limits { max_total_tokens: 1, ..limits() },
            RunStatus::Failed,
            Reason::LimitTokens,
        ),
    ] {
        let model = Arc::new(Scripted::new(answers));
        let bench = Bench::with(|spec| spec.model = Some(ModelConfig::new(model))).await;
        let run = bench.driver(ask).start_with_id(r(), "g", limits).await.unwrap();
        is(&run, status, reason);
        assert_eq!(run, bench.run(), "with the totals of the record");
        assert_eq!(bench.kinds().contains("limit.exceeded"), status == RunStatus::Failed);
        bench.stop().await;
    }
    let bench = Bench::new().await;
    let lost = |_: StepInput| async { Err(std::io::Error::other("no plan"))? };
    let run = bench.driver(lost).start_with_id(r(), "g", limits()).await.unwrap();
    is(&run, RunStatus::Failed, Reason::AgentError);
    assert_eq!(run.reason_detail, "no plan");
    let run = bench.driver(ask).start("g", limits()).await.unwrap();
    is(&run, RunStatus::Failed, Reason::AgentError);
    assert!(run.reason_detail.contains("without one"), "{}", run.reason_detail);
    bench.stop().await;
}

#[tokio::test]
async fn an_agent_that_panics_leaves_its_step_undecided_and_the_run_to_be_resumed() {
    let bench = Bench::new().await;
    let fragile = |input: StepInput| async move {
        assert!(!input.steps.is_empty(), "nothing to go by");
        Ok(Proposal::complete(""))
    };
    let driver = bench.driver(fragile);
    let panicked = driver.start_with_id(r(), "g", limits()).await.unwrap_err();
    assert_eq!(panicked, DriverError::AgentPanicked { run: r(), panic: "nothing to go by".to_owned() });
    let left = (bench.run().status, bench.steps()[0].status, bench.is_held());
    assert_eq!(left, (RunStatus::Running, StepStatus::Deciding, false));
    is(&driver.resume(r()).await.unwrap(), RunStatus::Completed, Reason::GoalCompleted);
    let statuses: Vec<_> = bench.steps().iter().map(|step| step.status).collect();
    assert_eq!(statuses, [StepStatus::Interrupted, StepStatus::Done]);
    bench.stop().await;
}

#[tokio::test]
async fn a_call_that_is_dropped_while_its_agent_thinks_leaves_the_run_free_and_its_step_as_it_was() {
    let bench = Bench::new().await;
    let (thinking, forever) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (begun, wait) = (Arc::clone(&thinking), Arc::clone(&forever));
    let slow = move |_: StepInput| {
        let (begun, wait) = (Arc::clone(&begun), Arc::clone(&wait));
        async move {
            begun.add_permits(1);
            wait.acquire().await.unwrap().forget();
            Ok(Proposal::complete(""))
        }
    };
    let driver = bench.driver(slow);
    {
        let driving = std::pin::pin!(driver.start_with_id(r(), "g", limits()));
        let entered = std::pin::pin!(thinking.acquire());
        futures_util::future::select(driving, entered).await;
    }
    bench.released().await;
    assert_eq!((bench.run().status, bench.steps()[0].status), (RunStatus::Running, StepStatus::Deciding));
    forever.add_permits(1);
    is(&bench.resumed(&driver).await, RunStatus::Completed, Reason::GoalCompleted);
    assert_eq!(bench.steps()[0].status, StepStatus::Interrupted);
    bench.stop().await;
}

/// A tool that says when it is entered, and returns when it is let.
fn latched(name: &str, class: SideEffect) -> (Arc<dyn Tool>, Arc<Semaphore>, Arc<Semaphore>) {
    let (entered, release) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (inside, let_go) = (Arc::clone(&entered), Arc::clone(&release));
    let tool = tool_fn(ToolSpec::new(name, class, SCHEMA), move |_| {
        let (inside, let_go) = (Arc::clone(&inside), Arc::clone(&let_go));
        async move {
            inside.add_permits(1);
            let_go.acquire().await.unwrap().forget();
            Ok(ToolOutput::new("{}", "done"))
        }
    });
    (tool, entered, release)
}

#[tokio::test]
async fn a_call_that_is_dropped_while_its_tool_runs_still_records_what_came_of_it() {
    let (work, entered, release) = latched("work", SideEffect::LocalMutation);
    let bench = Bench::with(|spec| spec.tools.push(work)).await;
    let driver = bench.driver(deciding(vec![call("work", "{}"), Proposal::complete("")]));
    {
        let driving = std::pin::pin!(driver.start_with_id(r(), "g", limits()));
        futures_util::future::select(driving, std::pin::pin!(entered.acquire())).await;
    }
    release.add_permits(1);
    bench.released().await;
    assert_eq!(bench.steps()[0].status, StepStatus::Done);
    is(&bench.resumed(&driver).await, RunStatus::Completed, Reason::GoalCompleted);
    assert_eq!(bench.steps().len(), 2, "nothing ran again");
    bench.stop().await;
}

#[tokio::test]
async fn a_run_is_resumed_once_it_is_approved_and_refused_before_and_after() {
    let bench = Bench::new().await;
    let driver = bench.driver(deciding(vec![call("push", "{}"), Proposal::complete("")]));
    assert_eq!(driver.resume(r()).await.unwrap_err(), DriverError::Session(SessionError::NotFound(r())));
    driver.start_with_id(r(), "g", limits()).await.unwrap();
    let events = bench.events();
    for _ in 0..2 {
        let waits = driver.resume(r()).await;
        assert!(matches!(waits, Err(DriverError::Session(SessionError::RunState { .. }))), "{waits:?}");
    }
    assert_eq!(bench.events(), events, "nothing changed");
    bench.decide(Said::Approve);
    is(&driver.resume(r()).await.unwrap(), RunStatus::Completed, Reason::GoalCompleted);
    let over = driver.resume(r()).await;
    assert!(matches!(over, Err(DriverError::Session(SessionError::RunState { .. }))), "{over:?}");
    bench.stop().await;
}

#[tokio::test]
async fn a_run_that_a_person_cancels_is_returned_cancelled_and_not_as_an_error() {
    let (work, entered, release) = latched("work", SideEffect::LocalMutation);
    let bench = Arc::new(Bench::with(|spec| spec.tools.push(work)).await);
    let driver = bench.driver(deciding(vec![call("work", "{}"), read(1)]));
    let driving = tokio::spawn(async move { driver.start_with_id(r(), "g", limits()).await });
    entered.acquire().await.unwrap().forget();
    bench.cancel();
    release.add_permits(1);
    is(&driving.await.unwrap().unwrap(), RunStatus::Cancelled, Reason::OperatorCancelled);
    assert!(bench.kinds().ends_with("run.finished step.tool_finished"), "what the tool did is on the record");

    let other = Arc::new(Bench::new().await);
    let person = Arc::clone(&other);
    let decide = move |_: StepInput| {
        person.cancel();
        async { Ok(read(1)) }
    };
    let run = other.driver(decide).start_with_id(r(), "g", limits()).await.unwrap();
    is(&run, RunStatus::Cancelled, Reason::OperatorCancelled);
    assert!(!other.kinds().contains("step.decided"));
}

#[tokio::test]
async fn a_driver_whose_run_somebody_took_over_stops_and_says_so() {
    let bench = Arc::new(Bench::new().await);
    let path = bench.path();
    let overtaken = move |_: StepInput| {
        let conn = Connection::open(&path).unwrap();
        conn.execute("UPDATE runs SET lease_owner = 'somebody else'", []).unwrap();
        async { Ok(call("write", "{}")) }
    };
    let driven = bench.driver(overtaken).start_with_id(r(), "g", limits()).await;
    assert_eq!(driven.unwrap_err(), DriverError::Session(SessionError::LeaseLost(r())));
    assert!(bench.is_held() && !bench.kinds().contains("step.decided"), "it is somebody else's");
}

#[tokio::test]
async fn a_run_that_is_being_driven_is_refused_a_second_driver() {
    let (work, entered, release) = latched("work", SideEffect::ReadOnly);
    let bench = Bench::with(|spec| spec.tools.push(work)).await;
    let driver = bench.driver(deciding(vec![call("work", "{}"), Proposal::complete("")]));
    let first = driver.clone();
    let driving = tokio::spawn(async move { first.start_with_id(r(), "g", limits()).await });
    entered.acquire().await.unwrap().forget();
    assert!(driver.resume(r()).await.is_err());
    release.add_permits(1);
    is(&driving.await.unwrap().unwrap(), RunStatus::Completed, Reason::GoalCompleted);
    bench.stop().await;
}

/// Knows that what was cut off had happened.
struct Knows(Reconciliation);

#[async_trait]
impl Reconcile for Knows {
    async fn reconcile(&self, view: &PolicyView) -> Result<Reconciliation, String> {
        assert_eq!(view.steps.last().unwrap().status, StepStatus::Interrupted);
        Ok(self.0.clone())
    }
}

/// Leaves a run whose effect was cut off: its step executes, and nobody holds it.
async fn cut_off(reconcile: Option<Reconciliation>) -> Bench {
    let bench =
        Bench::with(|spec| spec.reconcile = reconcile.map(|known| Arc::new(Knows(known)) as Arc<_>)).await;
    let session = bench.gate.begin(r(), "g", limits()).await.unwrap();
    let step = session.step().await.unwrap().unwrap();
    step.propose(call("write", "{}")).await.unwrap();
    step.execute().await.unwrap();
    session.close().await;
    let conn = Connection::open(bench.path()).unwrap();
    conn.execute("UPDATE steps SET status = 'executing', observation_json = '', finished_at = ''", [])
        .unwrap();
    bench
}

#[tokio::test]
async fn what_was_cut_off_goes_on_as_whoever_knows_says_and_else_waits_for_a_person() {
    let detail = || "checked".to_owned();
    let pause =
        PolicyDecision::need_approval("again", "was it done?", Json::empty_object(), Json::empty_object());
    let completed = Reconciliation::Completed { result: Some(Json::trusted("{\"n\":1}")), detail: detail() };
    let cases = [
        (Some(Reconciliation::Continue), RunStatus::Completed, Some(Reason::GoalCompleted)),
        (Some(completed), RunStatus::Completed, Some(Reason::GoalCompleted)),
        (
            Some(Reconciliation::Conflict { detail: detail() }),
            RunStatus::Failed,
            Some(Reason::ReconcileConflict),
        ),
        (Some(Reconciliation::Waiting { pause, detail: detail() }), RunStatus::WaitingForApproval, None),
        (None, RunStatus::WaitingForApproval, None),
    ];
    for (known, status, reason) in cases {
        let asked = known.is_some();
        let bench = cut_off(known).await;
        let driver = bench.driver(deciding(vec![read(0), Proposal::complete("")]));
        let run = driver.resume(r()).await.unwrap();
        assert_eq!((run.status, run.reason), (status, reason), "{}", run.reason_detail);
        if status == RunStatus::WaitingForApproval {
            assert_eq!(bench.approval().kind, if asked { "again" } else { INTERRUPTED_SIDE_EFFECT });
            bench.decide(Said::Approve);
            is(&driver.resume(r()).await.unwrap(), RunStatus::Completed, Reason::GoalCompleted);
            let starts = bench.kinds().matches("step.tool_started").count();
            assert_eq!((bench.steps().len(), starts), (2, 2), "the same step ran again");
        }
        bench.stop().await;
    }
}

#[tokio::test]
async fn an_invalid_decision_is_observed_and_the_agent_asked_again() {
    let bench = Bench::new().await;
    let driver = bench.driver(deciding(vec![call("nope", "{}"), Proposal::complete("")]));
    is(&driver.start_with_id(r(), "g", limits()).await.unwrap(), RunStatus::Completed, Reason::GoalCompleted);
    let kinds: Vec<_> = bench.steps().iter().map(|s| s.observation.as_ref().map(|o| o.kind)).collect();
    assert_eq!(kinds, [Some(ObservationKind::InvalidDecision), None]);
    bench.stop().await;
}
