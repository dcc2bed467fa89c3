//! One real actor in front of one real server: `examples/fake_mcp.rs`, which misbehaves on demand.

mod answers;
mod connecting;
#[cfg(target_os = "linux")]
mod containment;
mod endings;
mod groups;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ractor::{Actor, ActorRef};

use super::*;
use crate::address;

/// Longer than anything here takes: a test that reaches it has hung.
const PATIENCE: Duration = Duration::from_secs(30);

/// An example of this package, as a program. `cargo test` builds examples, but not when one target was asked for.
fn example(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let program = tests.parent().unwrap().parent().unwrap().join("examples").join(name);
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("examples/{name}.rs"));
    let changed = |path: &std::path::Path| path.metadata().and_then(|file| file.modified()).ok();
    if changed(&program) < changed(&source) {
        let build = ["build", "--quiet", "-p", "holdpoint-actors", "--examples"];
        let built = std::process::Command::new(env!("CARGO")).args(build).status().unwrap();
        assert!(built.success(), "the examples do not build");
    }
    program
}

fn fake_mcp() -> String {
    example("fake_mcp").to_str().unwrap().to_owned()
}

fn spec(mode: &str) -> ServerSpec {
    ServerSpec {
        name: "fake".to_owned(),
        command: vec![fake_mcp(), mode.to_owned()],
        ..ServerSpec::default()
    }
}

/// A server that knows itself and its children by the numbers that they have here.
fn in_sight(mode: &str) -> ServerSpec {
    ServerSpec { pid_namespace: Some(false), ..spec(mode) }
}

/// Offers whatever is listed.
fn everything() -> Check {
    Arc::new(|listing| Ok(listing.tools().map(|tool| tool.name.clone()).collect()))
}

struct Connection {
    actor: ActorRef<Msg>,
    handle: JoinHandle<()>,
    door: Door,
    ledger: Arc<MemoryLedger>,
}

impl Connection {
    async fn start(spec: ServerSpec) -> Self {
        Self::checked(spec, everything()).await
    }

    async fn checked(spec: ServerSpec, check: Check) -> Self {
        let ledger = Arc::new(MemoryLedger::default());
        let door = Door::new(&spec.name);
        let arguments = Arguments { spec, session: "test".to_owned(), ledger: ledger.clone(), check };
        let (actor, handle) = McpConnection::spawn(None, McpConnection, arguments).await.unwrap();
        Self { actor, handle, door, ledger }
    }

    /// Starts and waits until it is connected.
    async fn ready(mode: &str) -> Self {
        let connection = Self::start(spec(mode)).await;
        connection.tools().await.unwrap();
        connection
    }

    async fn tools(&self) -> Result<Arc<Loaded>, String> {
        address::ask(&self.actor, PATIENCE, Msg::Tools).await.unwrap()
    }

    async fn observe(&self) -> Observation {
        address::ask(&self.actor, PATIENCE, Msg::Observe).await.unwrap()
    }

    /// Observes until what is seen satisfies; ends with the test's patience.
    async fn observe_until(&self, satisfied: impl Fn(&Observation) -> bool) -> Observation {
        let started = Instant::now();
        loop {
            let seen = self.observe().await;
            if satisfied(&seen) {
                return seen;
            }
            assert!(started.elapsed() < PATIENCE, "waited in vain; at the end: {seen:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn call(&self, tool: &str, arguments: &str) -> CallEnding {
        self.call_within(tool, arguments, PATIENCE).await
    }

    async fn call_within(&self, tool: &str, arguments: &str, timeout: Duration) -> CallEnding {
        let request =
            CallRequest { tool: tool.to_owned(), arguments: arguments.to_owned(), timeout, fence: None };
        self.door.call(self.actor.clone(), request).await
    }

    /// Calls within a short time, until a call has left in it: on a busy machine one may not, and is then not sent.
    async fn call_that_left_within(&self, tool: &str, arguments: &str, timeout: Duration) -> CallEnding {
        loop {
            let ending = self.call_within(tool, arguments, timeout).await;
            if !matches!(ending, CallEnding::NotSent { .. }) {
                return ending;
            }
        }
    }

    /// Calls in a task of its own and waits until the call, alone, is in flight.
    async fn call_in_flight(&self, tool: &str, arguments: &str) -> JoinHandle<CallEnding> {
        let (door, actor) = (self.door.clone(), self.actor.clone());
        let (tool, arguments) = (tool.to_owned(), arguments.to_owned());
        // A call that was just answered may not be counted out yet.
        self.observe_until(|seen| seen.in_flight == 0).await;
        let call = tokio::spawn(async move {
            let request = CallRequest { tool, arguments, timeout: PATIENCE, fence: None };
            door.call(actor, request).await
        });
        self.observe_until(|seen| seen.in_flight == 1).await;
        call
    }

    /// Starts a server that is in sight and waits until it is connected.
    async fn ready_in_sight(mode: &str) -> Self {
        let connection = Self::start(in_sight(mode)).await;
        connection.tools().await.unwrap();
        connection
    }

    /// The process ids of the server, which is in sight, and of the child that it started.
    async fn pids(&self) -> Vec<u32> {
        let CallEnding::Answered { raw_result } = self.call("pids", "{}").await else { panic!("no pids") };
        let result: serde_json::Value = serde_json::from_str(&raw_result).unwrap();
        let text = result["content"][0]["text"].as_str().unwrap();
        text.split(' ').map(|pid| pid.parse().unwrap()).collect()
    }

    async fn close(self) {
        address::ask(&self.actor, PATIENCE, Msg::Close).await.unwrap();
        self.handle.await.unwrap();
    }
}

/// What the tool `held` of the server waits for before it answers.
struct Release {
    _folder: tempfile::TempDir,
    file: PathBuf,
}

impl Release {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { file: folder.path().join("release"), _folder: folder }
    }

    /// The arguments of the calls that it holds.
    fn arguments(&self) -> String {
        serde_json::json!({ "until": self.file }).to_string()
    }

    /// Lets them be answered.
    fn release(&self) {
        std::fs::write(&self.file, "").unwrap();
    }
}

/// Waits until none of the processes is alive.
async fn all_gone(pids: &[u32]) {
    let gone = async {
        while pids.iter().any(|pid| reap::ProcessStat::read(*pid).is_some_and(|stat| stat.alive())) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("processes are left");
}

fn answered(ending: CallEnding) -> String {
    match ending {
        CallEnding::Answered { raw_result } => raw_result,
        other @ (CallEnding::KnownFailure { .. }
        | CallEnding::TimedOut { .. }
        | CallEnding::NoAnswer { .. }
        | CallEnding::Unrecordable { .. }
        | CallEnding::NotSent { .. }) => panic!("not answered: {other:?}"),
    }
}

fn no_answer(ending: CallEnding) -> String {
    match ending {
        CallEnding::NoAnswer { text } => text,
        other @ (CallEnding::KnownFailure { .. }
        | CallEnding::TimedOut { .. }
        | CallEnding::Answered { .. }
        | CallEnding::Unrecordable { .. }
        | CallEnding::NotSent { .. }) => panic!("not without an answer: {other:?}"),
    }
}

fn not_sent(ending: CallEnding) -> String {
    match ending {
        CallEnding::NotSent { text } => text,
        other @ (CallEnding::KnownFailure { .. }
        | CallEnding::TimedOut { .. }
        | CallEnding::Answered { .. }
        | CallEnding::Unrecordable { .. }
        | CallEnding::NoAnswer { .. }) => panic!("not unsent: {other:?}"),
    }
}
