//! What a call costs in commits, counted through the whole product: the proxy's process, a real server over stdio. The
//! same on every machine, so these are asserted and times are not.

#![expect(clippy::unwrap_used, reason = "a test that can not go on fails")]

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use holdpoint::doctor_socket::observe_all;
use serde_json::{Value, json};

/// Calls that are counted: enough that a part of a commit too many would show.
const CALLS: u64 = 50;

struct Place {
    folder: tempfile::TempDir,
    world: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let place = Place { folder: tempfile::tempdir().unwrap(), world: tempfile::tempdir().unwrap() };
        let config = json!({
            "database": "runs.db", "session": "counts",
            "servers": [{
                "name": "bank", "manifest": "bank.json", "default_timeout": "20s",
                "command": [env!("CARGO_BIN_EXE_holdpoint"), "payment-server", "--ledger", place.world.path().join("ledger")],
                "rules": {
                    "balance": {"side_effect": "read_only"},
                    "pay": {"side_effect": "remote_mutation", "outcome": "allow", "repeat_window": "0s"},
                },
            }],
        });
        fs::write(place.config(), config.to_string()).unwrap();
        fs::set_permissions(place.config(), Permissions::from_mode(0o600)).unwrap();
        let pinned = place.holdpoint("pin").arg("--yes").output().unwrap();
        assert!(pinned.status.success(), "{}", String::from_utf8_lossy(&pinned.stderr));
        place
    }

    fn config(&self) -> PathBuf {
        self.folder.path().join("gate.json")
    }

    fn database(&self) -> PathBuf {
        self.folder.path().join("runs.db")
    }

    fn holdpoint(&self, command: &str) -> Command {
        let mut holdpoint = Command::new(env!("CARGO_BIN_EXE_holdpoint"));
        holdpoint.arg(command).arg("--config").arg(self.config());
        holdpoint
    }

    /// Effects that happened.
    fn payments(&self) -> u64 {
        fs::read_to_string(self.world.path().join("ledger")).unwrap().lines().count() as u64
    }
}

/// A proxy that serves, and the host in front of it.
struct Host {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Host {
    fn start(place: &Place) -> Host {
        let mut command = place.holdpoint("proxy");
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        let mut host = Host { child, answers };
        host.ask("initialize", json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}}));
        host.say(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        // The list waits for the servers.
        host.ask("tools/list", json!({}));
        host
    }

    fn say(&mut self, message: &Value) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{message}").unwrap();
    }

    fn ask(&mut self, method: &str, params: Value) -> Value {
        self.say(&json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}));
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    fn call(&mut self, tool: &str, arguments: Value) {
        let answer = self.ask("tools/call", json!({"name": tool, "arguments": arguments}));
        assert!(answer["result"]["isError"] != true && answer["result"].is_object(), "{answer}");
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

/// What the proxy's writer says it did.
fn writer(database: &Path) -> Value {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let observed = runtime.block_on(observe_all(database));
    assert_eq!(observed.len(), 1);
    observed[0].answer.as_ref().unwrap()["actors"]["store"].clone()
}

fn between(before: &Value, after: &Value, count: &str) -> u64 {
    after[count].as_u64().unwrap() - before[count].as_u64().unwrap()
}

#[test]
fn a_call_that_changes_something_costs_two_synced_commits_through_the_whole_product() {
    let place = Place::new();
    let mut host = Host::start(&place);
    host.call("bank_pay", json!({"to": "first", "amount": 1}));
    let before = writer(&place.database());
    for number in 0..CALLS {
        host.call("bank_pay", json!({"to": "bob", "amount": number}));
    }
    let after = writer(&place.database());
    assert_eq!(place.payments(), CALLS + 1);
    assert_eq!(between(&before, &after, "synced_commits"), 2 * CALLS);
    assert_eq!(between(&before, &after, "written_commits"), 0, "and nothing beside them");
    assert_eq!(between(&before, &after, "applied"), 2 * CALLS);
    assert_eq!(between(&before, &after, "flushes"), 0);
    host.end();
}

#[test]
fn a_read_has_no_sync_on_its_path_through_the_whole_product() {
    let place = Place::new();
    let mut host = Host::start(&place);
    host.call("bank_balance", json!({"account": "first"}));
    let before = writer(&place.database());
    for number in 0..CALLS {
        host.call("bank_balance", json!({"account": number.to_string()}));
    }
    let after = writer(&place.database());
    assert_eq!(between(&before, &after, "synced_commits"), 0);
    assert_eq!(
        between(&before, &after, "written_commits"),
        2 * CALLS,
        "its start and its outcome are recorded"
    );
    host.end();
}
