//! `proxy` and `check` as processes: the streams, the signals, the exit status. What is answered to a host is tested
//! beside the proxy.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
#[cfg(target_os = "linux")]
use rustix::process::{Resource, Rlimit, prlimit};
use serde_json::{Value, json};

use super::servers::Gate;
use super::{Ran, bare};

/// A proxy that serves, spoken to by hand.
pub(super) struct Host {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Host {
    pub(super) fn start(gate: &Gate) -> Host {
        Host::start_with(gate, bare("proxy"), Stdio::piped())
    }

    fn start_with(gate: &Gate, mut command: Command, stderr: Stdio) -> Host {
        command.arg("--config").arg(gate.path("gate.json"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr);
        let mut child = command.spawn().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        let mut host = Host { child, answers };
        let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}});
        assert_eq!(host.ask("initialize", hello)["result"]["serverInfo"]["name"], "gated-tools");
        host.say(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        host
    }

    fn say(&mut self, message: &Value) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{message}").unwrap();
    }

    fn ask(&mut self, method: &str, params: Value) -> Value {
        self.say(&json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}));
        self.hear()
    }

    fn hear(&mut self) -> Value {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        serde_json::from_str(&line)
            .unwrap_or_else(|problem| panic!("only protocol on stdout: {problem}: {line}"))
    }

    pub(super) fn call(&mut self, tool: &str, arguments: Value) -> String {
        self.say_call(1, tool, &arguments);
        text_of(&self.hear())
    }

    fn say_call(&mut self, id: u64, tool: &str, arguments: &Value) {
        let params = json!({"name": tool, "arguments": arguments});
        self.say(&json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}));
    }

    /// Ends the proxy by a signal, or by closing its input, and gives its status and stderr.
    pub(super) fn end(mut self, signal: Option<Signal>) -> (i32, String) {
        match signal {
            Some(signal) => kill_process(Pid::from_child(&self.child), signal).unwrap(),
            None => drop(self.child.stdin.take()),
        }
        self.ended()
    }

    /// Waits for the proxy to end, and gives its status and stderr.
    fn ended(self) -> (i32, String) {
        let output = self.child.wait_with_output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    }
}

fn text_of(answer: &Value) -> String {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

pub(super) fn pinned() -> Gate {
    let gate = Gate::new();
    assert_eq!(gate.run("pin").status, 0);
    gate
}

#[test]
fn a_payment_is_asked_for_approved_from_another_process_and_collected() {
    let gate = pinned();
    let mut host = Host::start(&gate);
    assert_eq!(host.ask("tools/list", json!({}))["result"]["tools"].as_array().unwrap().len(), 3);
    let payment = json!({"to": "alice", "amount": 20});
    let answer = host.call("shop_pay", payment.clone());
    assert!(answer.starts_with("PENDING_APPROVAL: "), "{answer}");
    let database = format!("--db {}", gate.path("gate.db").display());
    let listed = Ran::of(&mut bare(&format!("{database} --json runs")));
    let listed: Value = serde_json::from_str(&listed.out).unwrap();
    let run = listed["runs"][0]["id"].as_str().unwrap();
    let approved = Ran::of(&mut bare(&format!("{database} approve {run} --yes")));
    assert_eq!(approved.status, 0, "{}", approved.err);
    assert!(approved.out.contains("tool      shop_pay"), "{}", approved.out);
    let collected = host.call("shop_pay", payment);
    assert!(collected.contains("alice"), "{collected}");
    let doctor = Ran::of(&mut bare(&format!("{database} doctor")));
    assert!(doctor.out.contains("a proxy answers at "), "{}", doctor.out);
    assert!(doctor.out.contains("shop: state ready"), "{}", doctor.out);
    assert!(doctor.out.contains("held_by "), "{}", doctor.out);
    let (status, said) = host.end(None);
    assert_eq!(status, 0, "{said}");
    assert!(said.lines().all(|line| line.starts_with("holdpoint: ")), "{said}");
    assert!(said.contains(&format!("approve {run} --approval ")), "the operator is told how: {said}");
    assert_eq!(Ran::of(&mut bare(&format!("{database} verify"))).status, 0);
}

#[test]
fn a_payment_that_an_operator_cancels_while_it_executes_is_told_as_executed() {
    let gate = pinned();
    let mut host = Host::start(&gate);
    let payment = json!({"to": "alice", "amount": 20, "mode": "block"});
    assert!(host.call("shop_pay", payment.clone()).starts_with("PENDING_APPROVAL: "));
    let database = format!("--db {}", gate.path("gate.db").display());
    let operator = |line: &str| {
        let ran = Ran::of(&mut bare(&format!("{database} {line}")));
        assert_eq!(ran.status, 0, "{line}: {}", ran.err);
        ran.out
    };
    let listed: Value = serde_json::from_str(&operator("--json runs")).unwrap();
    let run = listed["runs"][0]["id"].as_str().unwrap();
    let approval = json!({"approval_id": listed["runs"][0]["pending_approval_id"]});
    operator(&format!("approve {run} --yes"));
    host.say_call(7, "shop_pay", &payment);
    while fs::read_to_string(gate.ledger()).unwrap_or_default().is_empty() {
        std::thread::yield_now();
    }
    operator(&format!("cancel {run} --note stop"));
    fs::write(gate.ledger().with_extension("release"), "").unwrap();
    let answer = host.hear();
    assert_eq!((&answer["id"], text_of(&answer).as_str()), (&json!(7), "paid 20 to alice"));
    let judge = |host: &mut Host| {
        let status = host.call("gate_status", approval.clone());
        assert!(status.contains("APPROVED and executed, and it succeeded."), "{status}");
        let refused = host.call("shop_pay", payment.clone());
        assert!(refused.starts_with("REJECTED: ") && refused.contains("\"stop\""), "{refused}");
        assert!(refused.ends_with("it succeeded and gave this result: paid 20 to alice"), "{refused}");
    };
    judge(&mut host);
    host.child.kill().unwrap();
    host.child.wait().unwrap();
    judge(&mut Host::start(&gate));
    let shown = operator(&format!("show {run}"));
    assert!(shown.contains("CANCELLED (operator_cancelled): stop"), "{shown}");
    assert!(shown.contains("interrupted, then tool_result"), "{shown}");
    let shown: Value = serde_json::from_str(&operator(&format!("--json show {run}"))).unwrap();
    assert_eq!(shown["steps"][0]["observation"], "interrupted");
    assert_eq!(shown["steps"][0]["late"]["observation"], "tool_result");
    operator("verify");
}

#[test]
fn each_signal_that_means_an_end_ends_it_in_order() {
    let gate = pinned();
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
        let mut host = Host::start(&gate);
        assert_eq!(host.ask("tools/list", json!({}))["result"]["tools"].as_array().unwrap().len(), 3);
        let (status, said) = host.end(Some(signal));
        assert_eq!(status, 0, "{signal:?}: {said}");
        assert!(!gate.path("gate.db.holdpoint.sock").exists(), "{signal:?}");
    }
}

/// A proxy in which a write past a file's limit is an error, as on a disk that fails, and not a signal that ends it.
#[cfg(target_os = "linux")]
fn on_a_disk_that_may_fail(gate: &Gate) -> Host {
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]);
    command.arg(bare("proxy").get_program()).arg("proxy");
    Host::start_with(gate, command, Stdio::piped())
}

/// From here on no write of the process to any file succeeds.
#[cfg(target_os = "linux")]
fn fail_the_disk(host: &Host) {
    let nothing = Rlimit { current: Some(0), maximum: Some(0) };
    prlimit(Some(Pid::from_child(&host.child)), Resource::Fsize, nothing).unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn a_proxy_whose_disk_fails_answers_every_call_under_way_and_ends_with_status_70() {
    let mut gate = pinned();
    gate.config["servers"][0]["rules"]["pay"]["outcome"] = json!("allow");
    gate.config["lease_ttl"] = json!("3s");
    gate.save();
    let mut host = on_a_disk_that_may_fail(&gate);
    let payments =
        [(77, "alice"), (78, "bob")].map(|(id, to)| (id, json!({"to": to, "amount": 20, "mode": "block"})));
    for (id, payment) in &payments {
        host.say_call(*id, "shop_pay", payment);
    }
    let effects = || fs::read_to_string(gate.ledger()).unwrap_or_default().lines().count();
    while effects() < payments.len() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    // The writer finds out as it copies its log or renews a lease. What it wrote last can't be made certain by any other.
    fail_the_disk(&host);
    let mut answers = payments.each_ref().map(|_| host.hear());
    answers.sort_by_key(|answer| answer["id"].as_u64());
    for ((id, _), answer) in payments.iter().zip(&answers) {
        let told = text_of(answer);
        assert!(answer["id"] == *id && told.starts_with("UNKNOWN_OUTCOME: "), "{answer}");
    }
    // Its input stays open: it ends by itself.
    let input = host.child.stdin.take();
    let (status, said) = host.ended();
    drop(input);
    assert_eq!(status, 70, "{said}");
    assert!(said.contains("error[exit.70]: a part of the program could not be kept alive"), "{said}");
    assert!(said.contains("hint: start the proxy again"), "{said}");

    let mut again = Host::start(&gate);
    for (_, payment) in &payments {
        let asked = loop {
            let answer = again.call("shop_pay", payment.clone());
            if !answer.starts_with("IN_PROGRESS: ") {
                break answer;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        };
        assert!(asked.starts_with("INTERRUPTED: "), "{asked}");
    }
    assert_eq!(again.end(None).0, 0);
    assert_eq!(effects(), payments.len(), "nothing ran again");
    let verified = Ran::of(&mut bare(&format!("--db {} verify", gate.path("gate.db").display())));
    assert_eq!(verified.status, 0, "{}", verified.err);
}

#[test]
fn a_proxy_that_can_offer_nothing_ends_with_status_one() {
    let gate = pinned();
    let mut manifest = gate.manifest();
    for tool in manifest["tools"].as_object_mut().unwrap().values_mut() {
        tool["schema_hash"] = json!("0000");
    }
    fs::write(gate.path("shop.json"), manifest.to_string()).unwrap();
    let mut host = Host::start(&gate);
    let listed = host.ask("tools/list", json!({}));
    let told = listed["error"]["message"].as_str().unwrap().to_owned();
    assert!(!told.contains(gate.folder().to_str().unwrap()) && !told.contains("holdpoint"), "{told}");
    let (status, said) = host.end(None);
    assert_eq!(status, 1, "{said}");
    assert!(
        said.contains("shop: refused pay") && said.contains("error[server.nothing_registered]"),
        "{said}"
    );
    let checked = gate.run("check");
    assert_eq!((checked.status, checked.code()), (1, "server.nothing_registered"), "{}", checked.err);
    assert!(checked.out.contains("shop: refused pay"), "the report comes all the same: {}", checked.out);
}

#[test]
fn what_is_wrong_with_the_gate_s_own_files_is_told_before_a_host_is_greeted() {
    let mut gate = Gate::new();
    for command in ["proxy", "check"] {
        let ran = gate.run(command);
        assert_eq!((ran.status, ran.code(), ran.out.as_str()), (1, "config.unreadable", ""), "{command}");
        assert!(ran.err.contains("hint: holdpoint pin makes the manifest of shop"), "{}", ran.err);
    }
    assert_eq!(gate.run("pin").status, 0);
    fs::write(gate.path("gate.db"), "this is no database, though it is long enough to be taken for one")
        .unwrap();
    std::os::unix::fs::symlink(gate.path("gate.db"), gate.path("link.db")).unwrap();
    let mut refused = |database: &str, code: &str| {
        gate.config["database"] = json!(database);
        gate.save();
        for command in ["proxy", "check"] {
            let ran = gate.run(command);
            assert_eq!((ran.status, ran.code(), ran.out.as_str()), (1, code, ""), "{command}: {}", ran.err);
        }
    };
    refused("link.db", "store.symlink");
    refused(".", "store.not_regular");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(gate.path("gate.db"), mode).unwrap();
    gate.config["database"] = json!("gate.db");
    gate.save();
    let ran = gate.run("check");
    assert_eq!((ran.status, ran.code()), (1, "store.not_a_database"), "{}", ran.err);
}

#[test]
fn the_record_is_its_owner_s_alone_under_any_umask() {
    for umask in ["000", "002", "077"] {
        let gate = pinned();
        let mut command = Command::new("sh");
        command.args(["-c", &format!("umask {umask}; exec \"$0\" \"$@\"")]);
        command.arg(bare("proxy").get_program()).arg("proxy");
        let mut host = Host::start_with(&gate, command, Stdio::piped());
        host.call("shop_pay", json!({"to": "alice", "amount": 20}));
        for name in ["gate.db", "gate.db-wal", "gate.db-shm"] {
            let mode = fs::metadata(gate.path(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o7777, 0o600, "{name} under {umask}");
        }
        assert_eq!(host.end(None).0, 0);
    }
}

#[test]
fn a_check_reports_and_leaves_nothing_running() {
    let gate = pinned();
    let ran = gate.run("check");
    insta::assert_snapshot!(ran.out.replace(gate.folder().to_str().unwrap(), "<folder>"), @r"
    shop: registered balance as shop_balance (read_only)
    shop: registered pay as shop_pay (remote_mutation)
    shop: unclassified refund: no rule
    status tool  gate_status
    session      test
    database     <folder>/gate.db
    ");
    assert_eq!(ran.status, 0, "{}", ran.err);
    let told: Value = serde_json::from_str(&gate.run("--json check").out).unwrap();
    assert_eq!(told["reports"][0]["registered"][1]["name"], "shop_pay");
    assert_eq!((&told["status_tool"], &told["session"]), (&json!("gate_status"), &json!("test")));
}

#[test]
fn a_check_counts_the_tools_whose_rules_keep_them_from_being_offered() {
    let mut gate = pinned();
    gate.config["servers"][0]["rules"]["pay"]["side_effect"] = json!("remote");
    gate.save();
    let ran = gate.run("check");
    assert_eq!(ran.status, 0, "{}", ran.err);
    assert!(ran.out.contains("\nshop: refused pay: "), "{}", ran.out);
    assert!(
        ran.out.contains("\nrefused      1 tool with a rule, and not offered for the reason above\n"),
        "{}",
        ran.out
    );
}

#[test]
fn a_host_that_never_reads_stderr_is_served_to_the_end() {
    let gate = pinned();
    let (unread, mut full) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&full, true).unwrap();
    while full.write(&[b'x'; 4096]).is_ok() {}
    while full.write(b"x").is_ok() {}
    rustix::io::ioctl_fionbio(&full, false).unwrap();
    let mut host = Host::start_with(&gate, bare("proxy"), full.into());
    let answer = host.call("shop_pay", json!({"to": "alice", "amount": 20}));
    assert!(answer.starts_with("PENDING_APPROVAL: "), "{answer}");
    assert_eq!(host.end(None).0, 0);
    drop(unread);
}

#[test]
fn every_line_on_stderr_says_whose_it_is_log_lines_included() {
    let gate = pinned();
    let mut command = bare("proxy");
    command.env("HOLDPOINT_LOG", "debug");
    let mut host = Host::start_with(&gate, command, Stdio::piped());
    host.call("shop_pay", json!({"to": "alice", "amount": 20}));
    let (status, said) = host.end(None);
    assert_eq!(status, 0, "{said}");
    assert!(said.contains(" DEBUG "), "a log line is there to be judged: {said}");
    let strangers: Vec<&str> = said.lines().filter(|line| !line.starts_with("holdpoint: ")).collect();
    assert!(strangers.is_empty(), "{strangers:?}");
}

#[test]
fn a_host_that_closed_stderr_is_served_to_the_end() {
    let gate = pinned();
    let (reader, broken) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = bare("proxy");
    command.env("HOLDPOINT_LOG", "trace");
    let mut host = Host::start_with(&gate, command, broken.into());
    let answer = host.call("shop_pay", json!({"to": "alice", "amount": 20}));
    assert!(answer.starts_with("PENDING_APPROVAL: "), "{answer}");
    assert_eq!(host.end(None).0, 0);
}

#[test]
fn a_host_that_stopped_reading_does_not_keep_the_proxy_from_ending() {
    let gate = pinned();
    let mut host = Host::start(&gate);
    // The answers are more than the pipe holds.
    let line = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    let mut input = host.child.stdin.take().unwrap();
    rustix::io::ioctl_fionbio(&input, true).unwrap();
    while writeln!(input, "{line}").is_ok() {}
    kill_process(Pid::from_child(&host.child), Signal::TERM).unwrap();
    assert_eq!(host.child.wait().unwrap().code(), Some(0));
}
