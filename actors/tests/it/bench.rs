//! A database in a folder of its own, the programs that share it, and what is in it.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use holdpoint_actors::clock::{Clock, CountingMint, HandClock, Mint};
use holdpoint_actors::executor::Tool;
use holdpoint_actors::policy::Policy;
use holdpoint_actors::session::{Gate, GateSpec, Observer, Session};
use holdpoint_actors::store::{self, Answer, DecideError, OperatorStore, Verdict as Said};
use holdpoint_actors::tree::{Running, Tree, TreeSpec};
use holdpoint_core::approval::Approval;
use holdpoint_core::decision::Proposal;
use holdpoint_core::event::Event;
use holdpoint_core::ids::{ApprovalId, RunId};
use holdpoint_core::run::{Lease, Limits, Reason, Run, RunStatus};
use holdpoint_core::step::{Step, StepStatus};
use holdpoint_core::time::UnixNanos;
use rusqlite::Connection;
use rusqlite::types::ValueRef;

pub(crate) use crate::scripted::*;
pub(crate) use crate::verdicts::*;

/// The moment at which every test begins.
pub(crate) fn start() -> UnixNanos {
    UnixNanos::parse("2026-10-01T09:00:00Z").unwrap()
}

/// The run that most tests have.
pub(crate) fn r() -> RunId {
    RunId::from("r")
}

/// Limits that no test meets by accident.
pub(crate) fn limits() -> Limits {
    Limits { max_steps: 20, max_consecutive_tool_failures: 5, loop_threshold: 5, ..Limits::default() }
}

pub(crate) fn call(tool: &str, args: &str) -> Proposal {
    Proposal::tool_call(tool, args)
}

/// A clock that moves on by a second at each reading, and counts its readings.
#[derive(Debug)]
pub(crate) struct Readings {
    clock: HandClock,
    count: AtomicUsize,
}

impl Readings {
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }
}

impl Clock for Readings {
    fn now(&self) -> UnixNanos {
        self.count.fetch_add(1, Ordering::AcqRel);
        self.clock.now()
    }
}

/// A database, and the clocks of everything that opens it.
pub(crate) struct Bench {
    folder: tempfile::TempDir,
    /// What is recorded.
    pub(crate) clock: Arc<Readings>,
    /// What leases are judged by.
    pub(crate) wall: Arc<HandClock>,
    mint: Arc<CountingMint>,
}

/// One program that has the database open.
pub(crate) struct Process {
    pub(crate) running: Running,
    pub(crate) gate: Gate,
    pub(crate) seen: Seen,
}

/// The events that an observer was told of.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen(Arc<Mutex<Vec<Event>>>);

impl Seen {
    pub(crate) fn events(&self) -> Vec<Event> {
        self.0.lock().unwrap().clone()
    }
}

impl Observer for Seen {
    fn committed(&self, event: &Event) {
        self.0.lock().unwrap().push(event.clone());
    }
}

impl Bench {
    pub(crate) fn new() -> Bench {
        let clock =
            Readings { clock: HandClock::new(start(), Duration::from_secs(1)), count: AtomicUsize::new(0) };
        Bench {
            folder: tempfile::tempdir().unwrap(),
            clock: Arc::new(clock),
            wall: Arc::new(HandClock::new(start(), Duration::ZERO)),
            mint: Arc::new(CountingMint::default()),
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("runs.db")
    }

    /// Opens the database as a program with these tools and this policy.
    pub(crate) async fn process(&self, tools: &[Arc<Scripted>], policy: Arc<dyn Policy>) -> Process {
        self.process_with(tools, policy, store::Options::default(), |_| {}).await
    }

    pub(crate) async fn process_with(
        &self,
        tools: &[Arc<Scripted>],
        policy: Arc<dyn Policy>,
        mut options: store::Options,
        more: impl FnOnce(&mut GateSpec),
    ) -> Process {
        options.clock = Arc::clone(&self.wall) as Arc<dyn Clock>;
        let spec = TreeSpec { database: self.path(), store: options, policy: Arc::clone(&policy) };
        let running = Tree::start(spec).await.unwrap();
        let seen = Seen::default();
        let mut gate =
            GateSpec::new(policy, tools.iter().map(|tool| Arc::clone(tool) as Arc<dyn Tool>).collect());
        gate.clock = Arc::clone(&self.clock) as Arc<dyn Clock>;
        gate.mint = Arc::clone(&self.mint) as Arc<dyn Mint>;
        gate.observer = Some(Arc::new(seen.clone()));
        more(&mut gate);
        let gate = Gate::new(running.tree.clone(), gate).unwrap();
        Process { running, gate, seen }
    }

    /// A person's command, in a process of its own.
    pub(crate) fn operator(&self) -> OperatorStore {
        OperatorStore::open(&self.path(), false).unwrap()
    }

    pub(crate) fn decide(
        &self,
        run: &RunId,
        approval: &ApprovalId,
        verdict: Said,
    ) -> Result<(), DecideError> {
        let answer = Answer { run, approval, shown: None, verdict, by: "ana", note: "said so" };
        self.operator().decide(&answer, self.wall.now()).map(|_| ())
    }

    pub(crate) fn approve(&self, approval: &Approval) {
        self.decide(&approval.run_id, &approval.id, Said::Approve).unwrap();
    }

    pub(crate) fn reject(&self, approval: &Approval) {
        self.decide(&approval.run_id, &approval.id, Said::Reject).unwrap();
    }

    pub(crate) fn cancel(&self, run: &RunId) {
        self.operator().cancel(run, "ana", "stop", self.wall.now()).unwrap();
    }

    /// Another connection to the file, as another program would have it.
    pub(crate) fn sql(&self, statement: &str) {
        assert!(Connection::open(self.path()).unwrap().execute(statement, []).unwrap() > 0, "{statement}");
    }

    pub(crate) fn run(&self, id: &RunId) -> Run {
        self.operator().read(|reader| reader.run(id)).unwrap().unwrap()
    }

    pub(crate) fn lease(&self, id: &RunId) -> Option<Lease> {
        self.operator().read(|reader| reader.lease(id)).unwrap()
    }

    pub(crate) fn steps(&self, id: &RunId) -> Vec<Step> {
        self.operator().read(|reader| reader.steps(id)).unwrap()
    }

    pub(crate) fn approvals(&self, id: &RunId) -> Vec<Approval> {
        self.operator().read(|reader| reader.approvals(id)).unwrap()
    }

    pub(crate) fn events(&self, id: &RunId) -> Vec<Event> {
        self.operator().read(|reader| reader.events(id)).unwrap()
    }

    /// The kinds of a run's events, in a line.
    pub(crate) fn kinds(&self, id: &RunId) -> String {
        self.events(id).iter().map(|event| event.kind.as_str()).collect::<Vec<_>>().join(" ")
    }

    /// Every row that a run has, as text.
    pub(crate) fn rows(&self, id: &RunId) -> String {
        let conn = Connection::open(self.path()).unwrap();
        let mut out = String::new();
        for query in [
            "SELECT * FROM runs WHERE id = ?",
            "SELECT * FROM steps WHERE run_id = ? ORDER BY rowid",
            "SELECT * FROM approvals WHERE run_id = ? ORDER BY rowid",
            "SELECT run_id, step_id, at, type, payload_json FROM events WHERE run_id = ? ORDER BY seq",
        ] {
            let mut statement = conn.prepare(query).unwrap();
            let names: Vec<String> = statement.column_names().map(str::to_owned).collect();
            let mut rows = statement.query([id.as_str()]).unwrap();
            while let Some(row) = rows.next().unwrap() {
                for (at, name) in names.iter().enumerate() {
                    let text = match row.get_ref(at).unwrap() {
                        ValueRef::Integer(number) => number.to_string(),
                        ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned(),
                        other @ (ValueRef::Null | ValueRef::Real(_) | ValueRef::Blob(_)) => {
                            format!("{other:?}")
                        }
                    };
                    writeln!(out, "{name}={text}").unwrap();
                }
                out.push('\n');
            }
        }
        out
    }

    /// Checks what must hold of every record, whatever happened: the chain, and that rows and events tell one story.
    pub(crate) fn verify(&self) {
        let report = self.operator().read(|reader| reader.verify(0, 0)).unwrap();
        assert!(report.broken.is_none(), "{report:?}");
        let runs: Vec<String> = {
            let conn = Connection::open(self.path()).unwrap();
            let mut statement = conn.prepare("SELECT id FROM runs").unwrap();
            statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
        };
        for id in runs.iter().map(|id| RunId::from(id.as_str())) {
            self.agrees(&id);
        }
    }

    fn agrees(&self, id: &RunId) {
        let (run, steps, events) = (self.run(id), self.steps(id), self.events(id));
        let of = |kind: &str| events.iter().filter(|event| event.kind == kind).count();
        let starts = of("step.started");
        assert_eq!((of("run.created"), of("run.started")), (1, 1));
        assert_eq!(run.step_count, i64::try_from(starts).unwrap(), "a step is an event");
        assert_eq!(steps.len(), starts, "and a row");
        assert_eq!(of("run.finished"), usize::from(run.status.is_terminal()), "{id}: {}", self.kinds(id));
        assert_eq!(of("approval.requested"), self.approvals(id).len());
        for step in &steps {
            let own = |kind: &str| {
                events.iter().filter(|event| event.kind == kind && event.step_id == step.id.as_str()).count()
            };
            let (tools_started, over) = (own("step.tool_started"), own("step.tool_finished"));
            let late = events.iter().filter(|e| e.payload.contains(r#""late":true"#)).count();
            let interrupted = own("step.interrupted");
            match step.status {
                StepStatus::Executing => assert!(tools_started > over),
                StepStatus::Done | StepStatus::Failed
                    if tools_started > 0 && run.reason != Some(Reason::OperatorCancelled) =>
                {
                    let ended = over.saturating_sub(late) + interrupted + own("step.failed");
                    assert!(ended >= tools_started, "{id}: {}", self.kinds(id));
                }
                StepStatus::Interrupted => assert!(interrupted > 0),
                StepStatus::Deciding
                | StepStatus::AwaitingApproval
                | StepStatus::Done
                | StepStatus::Failed => {}
            }
        }
        let held = self.lease(id).is_some();
        assert!(!held || run.status == RunStatus::Running, "only a running run is held");
    }
}

impl Process {
    pub(crate) fn tree(&self) -> &Tree {
        &self.running.tree
    }

    pub(crate) async fn begin(&self) -> Session {
        self.gate.begin(r(), "g", limits()).await.unwrap()
    }

    /// Begins a run with one call that waits for a person.
    pub(crate) async fn waiting(&self, tool: &str, args: &str) -> Arc<Approval> {
        let session = self.begin().await;
        pending(propose(&session, call(tool, args)).await.1)
    }

    pub(crate) async fn counts(&self) -> store::Observation {
        self.tree().store.observe(Duration::from_secs(10)).await.unwrap()
    }
}
