//! The approval channel and the views under it, as a library: on records that the gate wrote.
//!
//! Owns the scene: a run that waits for a publication to be approved, its times moved by hand.

#![expect(clippy::unwrap_used, reason = "a test that can not go on fails")]

#[cfg(feature = "webhook")]
mod checks;
#[cfg(feature = "webhook")]
mod client;
#[cfg(feature = "webhook")]
mod decisions;
#[cfg(feature = "webhook")]
mod example;
mod local;
mod serving;
mod views;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use holdpoint::approver::Decision;
use holdpoint::gate::{
    Approval, Event, HandClock, Json, Limits, Observer, Policy, PolicyDecision, PolicyError, PolicyView,
    Proposal, RunId, Runtime, SideEffect, Tool, ToolCall, ToolFailure, ToolOutput, ToolRequest, ToolSpec,
    Verdict, async_trait,
};
use holdpoint_core::time::UnixNanos;
use serde_json::{Value, json};

const REASON: &str = "publishing pushes a branch and opens a pull request";

/// When the runs of a scene begin.
fn start() -> UnixNanos {
    UnixNanos::parse("2026-10-01T09:00:00Z").unwrap()
}

/// Counts how often something was published.
#[derive(Default)]
struct Publish(AtomicUsize);

#[async_trait]
impl Tool for Publish {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "publish_proposal".to_owned(),
            description: "Pushes the branch and opens a pull request.".to_owned(),
            input_schema: Json::trusted(r#"{"type":"object"}"#),
            side_effect: SideEffect::RemoteMutation,
            timeout: Duration::from_secs(5),
            terminal: true,
        }
    }

    async fn call(&self, _call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(ToolOutput::new(r#"{"pr":1}"#, "opened pull request 1"))
    }
}

/// Asks for a person, and shows the given title.
struct Publication(String);

#[async_trait]
impl Policy for Publication {
    async fn evaluate(
        &self,
        request: &ToolRequest,
        _view: &PolicyView,
    ) -> Result<PolicyDecision, PolicyError> {
        let json = |value: Value| Json::trusted(value.to_string());
        let capability = json(json!({"tool": request.spec.name, "proposal_id": "p-1"}));
        let presentation = json(json!({"title": self.0, "head_ref": "steward/lib-v1.2.4"}));
        Ok(PolicyDecision::need_approval("publication", REASON, capability, presentation))
    }
}

/// A record with runs that wait, in a folder that goes with it.
struct Scene {
    _folder: tempfile::TempDir,
    path: PathBuf,
    title: String,
    approval: Approval,
    published: Arc<Publish>,
}

impl Scene {
    /// One run, `r1`, which waits with this title before the person.
    async fn titled(title: &str) -> Scene {
        Scene::of(title, &["r1"], Limits::default()).await
    }

    /// One run, `r1`, whose approval must be decided within ten minutes of its beginning.
    async fn expiring() -> Scene {
        let ttl = Duration::from_secs(600).as_nanos().try_into().unwrap();
        Scene::of("t", &["r1"], Limits { approval_ttl: ttl, ..Limits::default() }).await
    }

    async fn of(title: &str, runs: &[&str], limits: Limits) -> Scene {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.db");
        let published = Arc::<Publish>::default();
        let mut approvals = Vec::new();
        let runtime = runtime(&path, title, &published).await;
        for run in runs {
            let goal = format!("upgrade a library in {run}");
            let session = runtime.gate().begin((*run).into(), &goal, limits.clone()).await.unwrap();
            let step = session.step().await.unwrap().unwrap();
            let call = Proposal::tool_call("publish_proposal", r#"{"proposal_id":"p-1"}"#);
            let Verdict::Pending { approval, .. } = step.propose(call).await.unwrap() else {
                panic!("it waits for a person");
            };
            approvals.push(Approval::clone(&approval));
            session.close().await;
        }
        runtime.stop().await;
        let approval = approvals.remove(0);
        Scene { _folder: folder, path, title: title.to_owned(), approval, published }
    }

    /// The owner of the runs, started again.
    async fn runtime(&self) -> Runtime {
        runtime(&self.path, &self.title, &self.published).await
    }

    /// A decision on what waits in `r1`.
    fn decision(&self, by: &str) -> Decision {
        Decision {
            run: self.approval.run_id.clone(),
            approval: self.approval.id.clone(),
            hash: self.approval.hash.clone(),
            by: by.to_owned(),
            note: "n".to_owned(),
        }
    }

    fn run(&self) -> RunId {
        self.approval.run_id.clone()
    }

    /// Does to the file what somebody with an SQLite shell could.
    fn tamper(&self, sql: &str) {
        let conn = rusqlite::Connection::open(&self.path).unwrap();
        conn.busy_timeout(Duration::from_secs(5)).unwrap();
        conn.execute_batch(sql).unwrap();
    }

    /// One text of the database.
    fn read(&self, sql: &str) -> String {
        let conn = rusqlite::Connection::open(&self.path).unwrap();
        conn.busy_timeout(Duration::from_secs(5)).unwrap();
        conn.query_row(sql, [], |row| row.get(0)).unwrap()
    }

    /// What became of the approval, and of its run.
    fn standing(&self) -> String {
        self.read("SELECT a.status || ' ' || r.status || ' ' || r.reason FROM approvals a JOIN runs r ON r.id = a.run_id WHERE r.id = 'r1'")
    }
}

async fn runtime(path: &std::path::Path, title: &str, published: &Arc<Publish>) -> Runtime {
    Runtime::builder(path)
        .tool(Arc::clone(published) as Arc<dyn Tool>)
        .policy(Arc::new(Publication(title.to_owned())))
        .clock(Arc::new(HandClock::new(start(), Duration::from_secs(1))))
        .start()
        .await
        .unwrap()
}

/// Keeps what it is told, and says that there is news.
#[derive(Default)]
struct Told(Mutex<Vec<Event>>, tokio::sync::Notify);

impl Observer for Told {
    fn committed(&self, event: &Event) {
        self.0.lock().unwrap().push(event.clone());
        self.1.notify_one();
    }
}

impl Told {
    fn kinds(&self) -> Vec<String> {
        self.0.lock().unwrap().iter().map(|event| event.kind.clone()).collect()
    }
}
