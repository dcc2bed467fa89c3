//! The operator's commands, as a person or a script runs them: the real binary on databases that the gate wrote.
//!
//! Owns the fixture: a record with a finished run and runs that wait, times moved by hand, zone UTC, so that output can
//! be compared byte for byte apart from ids that are drawn at random.

#![expect(clippy::unwrap_used, reason = "a test that can not go on fails")]

#[cfg(feature = "bench")]
mod benching;
#[cfg(feature = "otlp")]
mod collecting;
mod deciding;
mod exporting;
mod reading;
mod recheck;
mod refusals;
mod released;
mod servers;
mod serving;
mod terminal;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use holdpoint::gate::{
    HandClock, Json, Limits, Proposal, RunId, Runtime, SideEffect, Tool, ToolCall, ToolFailure, ToolOutput,
    ToolSpec, Verdict, async_trait,
};
use holdpoint_core::time::UnixNanos;
use serde_json::Value;

/// Text that turns the reading direction, clears the screen and hides behind combining marks.
const HOSTILE: &str = "ali\u{202e}ec\x1b[2J\u{200b}e\u{301}\u{301}\u{301}\u{301}\u{301}\u{301}\u{301}";

struct Account(&'static str, SideEffect);

#[async_trait]
impl Tool for Account {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: self.0.to_owned(),
            description: "Of the test.".to_owned(),
            input_schema: Json::trusted(r#"{"type":"object"}"#),
            side_effect: self.1,
            timeout: Duration::from_secs(5),
            terminal: false,
        }
    }

    async fn call(&self, _call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        Ok(ToolOutput::new(r#"{"balance":120}"#, "balance: 120"))
    }
}

/// A record in a folder that goes with it.
struct Record {
    folder: tempfile::TempDir,
    path: PathBuf,
}

/// What a run of the record does.
enum Plan {
    /// Reads the balance and completes.
    Reads,
    /// Asks to pay with these arguments, and waits.
    Pays(Value),
}

impl Record {
    /// A record without runs.
    fn empty() -> Record {
        Record::of(Vec::new(), Limits::default())
    }

    /// A record of runs, oldest first.
    fn of(runs: Vec<(&str, &str, Plan)>, limits: Limits) -> Record {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gate.db");
        let threads =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        threads.block_on(write(&path, runs, limits));
        // Everything in one file, and nothing left to be written by a connection that closes late.
        let conn = rusqlite::Connection::open(&path).unwrap();
        conn.busy_timeout(Duration::from_secs(5)).unwrap();
        conn.pragma_query_value(None, "wal_checkpoint", |row| row.get::<_, i64>(0)).unwrap();
        drop(conn);
        Record { folder, path }
    }

    /// A record of one run that waits to pay.
    fn waiting(args: Value) -> Record {
        Record::of(vec![("r1", "pay the invoice", Plan::Pays(args))], Limits::default())
    }

    /// A command on this record.
    fn command(&self, line: &str) -> Command {
        let mut command = bare(line);
        command.env("HOLDPOINT_DB", &self.path);
        command
    }

    /// Runs a command on this record.
    fn run(&self, line: &str) -> Ran {
        Ran::of(&mut self.command(line))
    }

    /// Runs a command whose output is JSON.
    fn json(&self, line: &str) -> Value {
        let ran = self.run(&format!("--json {line}"));
        assert_eq!(ran.status, 0, "{line}: {}", ran.err);
        serde_json::from_str(&ran.out).unwrap()
    }

    /// The approval that a run waits for.
    fn approval(&self, run: &str) -> String {
        self.json(&format!("show {run}"))["waiting_approval"]["id"].as_str().unwrap().to_owned()
    }

    /// Does to the file what somebody with an SQLite shell could.
    fn tamper(&self, sql: &str) {
        rusqlite::Connection::open(&self.path).unwrap().execute_batch(sql).unwrap();
    }

    fn folder(&self) -> &Path {
        self.folder.path()
    }
}

async fn write(path: &Path, runs: Vec<(&str, &str, Plan)>, limits: Limits) {
    let start = UnixNanos::parse("2026-10-01T09:00:00Z").unwrap();
    let runtime = Runtime::builder(path)
        .tool(Arc::new(Account("balance", SideEffect::ReadOnly)))
        .tool(Arc::new(Account("pay", SideEffect::RemoteMutation)))
        .clock(Arc::new(HandClock::new(start, Duration::from_secs(1))))
        .start()
        .await
        .unwrap();
    for (id, goal, plan) in runs {
        let session = runtime.gate().begin(RunId::from(id), goal, limits.clone()).await.unwrap();
        let step = session.step().await.unwrap().unwrap();
        match plan {
            Plan::Reads => {
                let verdict = step.propose(Proposal::tool_call("balance", "{}")).await.unwrap();
                assert!(matches!(verdict, Verdict::Allowed { .. }), "{verdict:?}");
                step.execute().await.unwrap();
                let last = session.step().await.unwrap().unwrap();
                last.propose(Proposal::complete(r#"{"done":true}"#)).await.unwrap();
            }
            Plan::Pays(args) => {
                let verdict = step.propose(Proposal::tool_call("pay", args.to_string())).await.unwrap();
                assert!(matches!(verdict, Verdict::Pending { .. }), "{verdict:?}");
            }
        }
        session.close().await;
    }
    runtime.stop().await;
}

/// The binary, with nothing of the caller's environment that it reads.
fn bare(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_holdpoint"));
    command
        .args(line.split_whitespace())
        .env("TZ", "UTC")
        .env("USER", "tester")
        .env("TERM", "xterm")
        .stdin(Stdio::null());
    for name in ["HOLDPOINT_DB", "AGENTRT_DB", "NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "HOLDPOINT_LOG"] {
        command.env_remove(name);
    }
    command
}

/// How a command went.
struct Ran {
    status: i32,
    out: String,
    err: String,
}

impl Ran {
    fn of(command: &mut Command) -> Ran {
        Ran::from(command.output().unwrap())
    }

    /// The code in brackets after `error`.
    fn code(&self) -> &str {
        self.err.split_once("error[").and_then(|(_, rest)| rest.split_once(']')).map_or("", |(code, _)| code)
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Ran {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ran { status: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
    }
}

/// Fails when text holds anything that a terminal acts on, or that turns or hides what is read.
fn assert_harmless(text: &str) {
    let bad = |c: char| {
        (c.is_control() && c != '\n')
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
    };
    assert!(!text.contains(bad), "{text:?}");
    assert!(!text.contains("\u{301}\u{301}\u{301}\u{301}\u{301}"), "a tower of marks: {text:?}");
}
