//! A writer in a folder of its own, and transitions to give it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use holdpoint_core::approval::Approval;
use holdpoint_core::decision::Proposal;
use holdpoint_core::ids::{ApprovalId, LeaseOwner, RunId, StepId};
use holdpoint_core::json::Json;
use holdpoint_core::ledger::{Ledger, RunEnd};
use holdpoint_core::policy::PolicyDecision;
use holdpoint_core::run::{Limits, Reason, Run};
use holdpoint_core::step::{Observation, ObservationKind};
use holdpoint_core::time::UnixNanos;
use holdpoint_core::tool::{SideEffect, ToolRequest, ToolSpec};
use holdpoint_core::transition::{Durability, LeaseTerms, Transition};
use ractor::{Actor, ActorRef};
use rusqlite::Connection;
use tempfile::TempDir;

use crate::address::Address;
use crate::clock::{Clock, HandClock};
use crate::store::{
    Applied, Arguments, Lane, Msg, Observation as Counts, OperatorStore, Options, StoreClient, StoreWriter,
};
use crate::supervisor::{self, ChildSpec, Supervisor};

/// The moment at which every test begins.
pub(super) const START: &str = "2026-10-01T09:00:00Z";

pub(super) fn start_time() -> UnixNanos {
    UnixNanos::parse(START).unwrap()
}

pub(super) fn at(seconds: u64) -> UnixNanos {
    start_time().plus(Duration::from_secs(seconds))
}

/// How a test opens its database: as a program does, but without writing a log of its full length first.
pub(in crate::store) fn plain() -> Options {
    Options { log_bytes: 0, ..Options::default() }
}

/// A running store.
pub(super) struct Bench {
    pub(super) folder: TempDir,
    pub(super) path: PathBuf,
    pub(super) clock: Arc<HandClock>,
    pub(super) client: StoreClient,
    pub(super) address: Address<Msg>,
    pub(super) supervisor: ActorRef<supervisor::Msg>,
}

impl Bench {
    pub(super) async fn start() -> Bench {
        Bench::start_with(plain()).await
    }

    pub(super) async fn start_with(options: Options) -> Bench {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runs.db");
        Bench::start_on(folder, path, options).await
    }

    pub(super) async fn start_on(folder: TempDir, path: PathBuf, mut options: Options) -> Bench {
        let clock = Arc::new(HandClock::new(start_time(), Duration::ZERO));
        options.clock = Arc::clone(&clock) as Arc<dyn Clock>;
        let writer = Arguments::open(&path, options).unwrap();
        let (cell, address) = Address::vacant();
        let client = StoreClient::new(address.clone(), &writer);
        let child = ChildSpec::new("store-writer", cell, move || (StoreWriter, writer.clone()));
        let (supervisor, _running) = Actor::spawn(None, Supervisor, vec![child]).await.unwrap();
        Bench { folder, path, clock, client, address, supervisor }
    }

    /// Another connection to the file, as another program would have it.
    pub(super) fn other(&self) -> Connection {
        Connection::open(&self.path).unwrap()
    }

    pub(super) fn operator(&self) -> OperatorStore {
        OperatorStore::open(&self.path, false).unwrap()
    }

    pub(super) async fn intent(&self, transition: Transition) -> Applied {
        self.client.apply(Lane::Intent, transition).await.unwrap()
    }

    pub(super) async fn outcome(&self, transition: Transition) -> Applied {
        self.client.apply(Lane::Outcome, transition).await.unwrap()
    }

    pub(super) async fn counts(&self) -> Counts {
        self.client.observe(Duration::from_secs(10)).await.unwrap()
    }

    /// Holds the writer back before its next batch, or lets it go on.
    pub(super) async fn hold(&self, held: bool) {
        let second = Duration::from_secs(10);
        self.address.ask(second, |reply| Msg::Hold(held, reply)).await.unwrap();
    }

    /// Waits until what is observed is so.
    pub(super) async fn until(&self, so: impl Fn(&Counts) -> bool) -> Counts {
        loop {
            let counts = self.counts().await;
            if so(&counts) {
                return counts;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Stops the writer and waits until its thread has let go of the file.
    pub(super) async fn stop(self) -> TempDir {
        self.supervisor.cast(supervisor::Msg::Stop).unwrap();
        self.supervisor.wait(None).await.unwrap();
        assert!(self.client.let_go().await);
        self.folder
    }
}

/// One number from one query.
pub(super) fn number(conn: &Connection, sql: &str) -> i64 {
    conn.query_row(sql, [], |row| row.get(0)).unwrap()
}

/// One text from one query.
pub(super) fn text(conn: &Connection, sql: &str) -> String {
    conn.query_row(sql, [], |row| row.get(0)).unwrap()
}

/// Every row of a query, as text with bars.
pub(super) fn rows(conn: &Connection, sql: &str) -> Vec<String> {
    let mut statement = conn.prepare(sql).unwrap();
    let width = statement.column_count();
    let mut rows = statement.query([]).unwrap();
    let mut lines = Vec::new();
    while let Some(row) = rows.next().unwrap() {
        let cells = (0..width).map(|i| match row.get_ref(i).unwrap() {
            rusqlite::types::ValueRef::Null => "NULL".to_owned(),
            rusqlite::types::ValueRef::Integer(n) => n.to_string(),
            rusqlite::types::ValueRef::Real(n) => n.to_string(),
            rusqlite::types::ValueRef::Text(t) | rusqlite::types::ValueRef::Blob(t) => {
                String::from_utf8_lossy(t).into_owned()
            }
        });
        lines.push(cells.collect::<Vec<_>>().join("|"));
    }
    lines
}

pub(super) fn terms(owner: &str) -> LeaseTerms {
    LeaseTerms { owner: LeaseOwner::from(owner), ttl: Duration::from_secs(30) }
}

pub(super) fn spec(name: &str) -> ToolSpec {
    ToolSpec {
        name: name.to_owned(),
        description: format!("does <{name}> & more"),
        input_schema: Json::trusted(r#"{"type": "object"}"#),
        side_effect: SideEffect::RemoteMutation,
        timeout: Duration::from_secs(30),
        terminal: false,
    }
}

/// A run that begins, not yet committed.
pub(super) fn ledger(run: &str, owner: &str) -> Ledger {
    let limits = Limits::default().approval_ttl(Duration::from_secs(60));
    let begun = Run::begun(RunId::from(run), "a goal", limits, start_time());
    Ledger::begin(terms(owner), begun, &[spec("pay").recorded()])
}

/// A run that begins, as one transition.
pub(in crate::store) fn begun(run: &str, durability: Durability) -> Transition {
    ledger(run, "me").take(durability)
}

/// Starts a step, decides on a payment and has the policy allow it.
pub(super) fn propose(ledger: &mut Ledger, step: &str, now: UnixNanos) -> ToolRequest {
    let spec = spec("pay");
    ledger.start_step(StepId::from(step), now);
    let proposal = Proposal::tool_call("pay", r#"{"to": "<a&b>", "n": 1.50}"#);
    ledger.decide(proposal.recorded(), Some(&spec.recorded()), now).unwrap();
    ToolRequest {
        run_id: ledger.run().id.clone(),
        step_id: StepId::from(step),
        spec,
        args: Json::trusted(r#"{"to": "<a&b>", "n": 1.50}"#),
    }
}

/// A run whose step has its tool started.
pub(super) fn executing(run: &str, owner: &str) -> Ledger {
    let mut ledger = ledger(run, owner);
    let request = propose(&mut ledger, &format!("{run}-s0"), at(1));
    ledger.record_policy(PolicyDecision::allow("fine"), None, None, at(1)).unwrap();
    ledger.start_tool(&request, None, at(1)).unwrap();
    ledger
}

/// The end of the open step and of the run.
pub(super) fn finish(ledger: &mut Ledger, now: UnixNanos) {
    let answer = Observation::new(ObservationKind::ToolResult, Json::trusted(r#"{"paid": true}"#), "paid");
    ledger.end_step(Some(answer), "", now).unwrap();
    let end =
        RunEnd::new(Reason::GoalCompleted, "done").with_result(Some(Json::trusted(r#"{"paid": true}"#)));
    ledger.end_run(end, now).unwrap();
}

/// A run that waits for a person to approve its one payment.
pub(super) fn waiting(run: &str) -> (Ledger, Arc<Approval>) {
    let mut ledger = ledger(run, "me");
    let request = propose(&mut ledger, &format!("{run}-s0"), at(1));
    let shown = Json::trusted(r#"{"tool":"pay"}"#);
    let decision = PolicyDecision::need_approval("remote_mutation", "ask first", shown.clone(), shown);
    ledger.record_policy(decision, None, None, at(1)).unwrap();
    let approval = ledger.pause(ApprovalId::from(format!("{run}-a0")), request, at(2)).unwrap();
    (ledger, approval)
}

/// Opens and closes a database, so that the file is there at this build's version.
pub(super) fn make(path: &Path) {
    drop(Arguments::open(path, plain()).unwrap());
}
