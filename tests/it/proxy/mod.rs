//! The proxy whole, in this process, in front of the demonstration's payment server: what a host sees, what the world
//! sees, what is recorded.

#![expect(clippy::unwrap_used, reason = "a test that can not go on fails")]

mod opening;

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use holdpoint::proxy::config::Config;
use holdpoint::proxy::journal::{Journal, KeptJournal};
use holdpoint::proxy::owned::OwnedError;
use holdpoint::proxy::serve::{Opened, Prepared, ServeError, Served};
use holdpoint_actors::clock::wall;
use holdpoint_actors::connection::GroupRecord;
use holdpoint_actors::store::{Answer, GroupStore, OperatorStore, Verdict};
use holdpoint_actors::tree::Tree;
use holdpoint_core::approval::Approval;
use serde_json::{Value, json};
use tokio::io::{
    AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf,
};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A folder with a configuration and a pinned server.
struct Place {
    folder: tempfile::TempDir,
    world: tempfile::TempDir,
    config: Value,
}

impl Place {
    fn new() -> Place {
        let (folder, world) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let ledger = world.path().join("ledger");
        let config = json!({
            "database": "runs.db", "session": "test", "hold": "0s",
            "servers": [{
                "name": "bank", "manifest": "bank.json", "default_timeout": "20s", "connect_timeout": "20s",
                "command": [env!("CARGO_BIN_EXE_holdpoint"), "payment-server", "--ledger", ledger],
                "rules": {
                    "balance": {"side_effect": "read_only"},
                    "pay": {"side_effect": "remote_mutation", "fixed": {"currency": "EUR"}},
                    "refund": {"side_effect": "destructive", "description": "Gives it back."},
                },
            }],
        });
        let place = Place { folder, world, config };
        place.save();
        place.pin();
        place
    }

    fn pin(&self) {
        let pinned = Command::new(env!("CARGO_BIN_EXE_holdpoint"))
            .args(["pin", "--yes", "--config"])
            .arg(self.path("proxy.json"))
            .output()
            .unwrap();
        assert!(pinned.status.success(), "{}", String::from_utf8_lossy(&pinned.stderr));
    }

    fn with(mut self, change: impl FnOnce(&mut Value)) -> Place {
        change(&mut self.config);
        self.save();
        self
    }

    fn save(&self) {
        fs::write(self.path("proxy.json"), self.config.to_string()).unwrap();
        fs::set_permissions(self.path("proxy.json"), Permissions::from_mode(0o600)).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn prepare(&self) -> Result<Prepared, ServeError> {
        Prepared::check(Config::load(&self.path("proxy.json")).unwrap())
    }

    async fn serve(&self) -> Host {
        let journal = Arc::new(KeptJournal::default());
        self.serve_with(journal.clone(), journal).await
    }

    /// Serves with `journal`, which keeps its lines in `kept`.
    async fn serve_with(&self, journal: Arc<dyn Journal>, kept: Arc<KeptJournal>) -> Host {
        let opened = Opened::open(self.prepare().unwrap(), journal).await.unwrap();
        let tree = opened.tree();
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let (read, write) = tokio::io::split(theirs);
        let (stop, stopped) = watch::channel(false);
        let served = tokio::spawn(opened.serve(read, write, stopped));
        let (read, input) = tokio::io::split(ours);
        let output = BufReader::new(read).lines();
        let mut host = Host { input, output, served, stop, journal: kept, tree, next: 1 };
        let hello = host.ask("initialize", json!({"protocolVersion": "2025-06-18"})).await;
        assert_eq!(hello["result"]["serverInfo"]["name"], "gated-tools");
        host.send(json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
        host
    }

    fn operator(&self) -> OperatorStore {
        OperatorStore::open(&self.path("runs.db"), false).unwrap()
    }

    fn pending(&self) -> Vec<Approval> {
        self.operator()
            .read(|reader| {
                let mut all = Vec::new();
                for (run, id) in reader.pending_approvals()? {
                    all.extend(reader.approval(&run, &id)?);
                }
                Ok(all)
            })
            .unwrap()
    }

    fn approve_the_only_one(&self) -> Approval {
        let mut all = self.pending();
        assert_eq!(all.len(), 1, "{all:?}");
        let approval = all.remove(0);
        let answer = Answer {
            run: &approval.run_id,
            approval: &approval.id,
            verdict: Verdict::Approve,
            shown: Some(&approval.hash),
            by: "ana",
            note: "",
        };
        self.operator().decide(&answer, wall()).unwrap();
        approval
    }

    /// What the server did, line by line.
    fn effects(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.world.path().join("ledger")).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// A host over a pair of streams.
struct Host {
    input: WriteHalf<DuplexStream>,
    output: Lines<BufReader<ReadHalf<DuplexStream>>>,
    served: JoinHandle<Served>,
    stop: watch::Sender<bool>,
    journal: Arc<KeptJournal>,
    tree: Tree,
    next: u64,
}

impl Host {
    async fn send(&mut self, message: Value) {
        self.input.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }

    async fn receive(&mut self) -> Value {
        serde_json::from_str(&self.output.next_line().await.unwrap().expect("the output ended")).unwrap()
    }

    async fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.next;
        self.next += 1;
        self.send(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).await;
        let answer = self.receive().await;
        assert_eq!(answer["id"], id, "{answer}");
        answer
    }

    /// Calls a tool; gives its text and whether it is an error.
    async fn call(&mut self, tool: &str, arguments: Value) -> (String, bool) {
        let answer = self.ask("tools/call", json!({"name": tool, "arguments": arguments})).await;
        let result = &answer["result"];
        let text = result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"));
        (text.to_owned(), result["isError"] == true)
    }

    async fn end(mut self) -> (Served, Vec<String>) {
        self.input.shutdown().await.unwrap();
        (self.served.await.unwrap(), self.journal.lines())
    }
}

/// The processes whose command line names this file.
fn processes_of(ledger: &Path) -> usize {
    let all = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| fs::read(entry.unwrap().path().join("cmdline")).ok());
    let ledger = ledger.to_str().unwrap().as_bytes();
    all.filter(|line| line.windows(ledger.len()).any(|part| part == ledger)).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_lists_reads_asks_and_collects() {
    let place = Place::new();
    let mut host = place.serve().await;
    let listed = host.ask("tools/list", json!({})).await;
    let tools = listed["result"]["tools"].as_array().unwrap();
    let names: Vec<&str> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["bank_balance", "bank_pay", "bank_refund", "gate_status"]);
    assert_eq!(tools[2]["description"], "Gives it back.");
    assert!(tools[1]["inputSchema"]["properties"].get("currency").is_none(), "a fixed parameter is hidden");
    let (text, failed) = host.call("bank_balance", json!({"account": "a"})).await;
    assert_eq!((text.as_str(), failed), ("account a holds 120.00 EUR", false));
    let payment = json!({"to": "kim", "amount": 10});
    let (text, failed) = host.call("bank_pay", payment.clone()).await;
    assert!(text.starts_with("PENDING_APPROVAL: ") && !failed, "{text}");
    assert_eq!(place.effects(), Vec::<Value>::new());
    let asked = place.approve_the_only_one().request.unwrap();
    assert_eq!((asked.spec.name.as_str(), asked.args.as_str()), ("bank_pay", r#"{"to":"kim","amount":10}"#));
    let (text, failed) = host.call("bank_pay", payment.clone()).await;
    assert_eq!((text.as_str(), failed), ("paid 10 to kim", false));
    let (text, failed) = host.call("bank_pay", payment).await;
    assert!(text.starts_with("DUPLICATE: ") && failed, "{text}");
    let effect = json!({"tool": "pay", "arguments": {"to": "kim", "amount": 10, "currency": "EUR"}});
    assert_eq!(place.effects(), [effect]);
    let unknown = host.ask("tools/call", json!({"name": "nobody"})).await;
    assert_eq!(unknown["error"]["code"], -32602);
    let (served, lines) = host.end().await;
    assert_eq!(served, Served::Ended);
    assert!(
        lines.iter().any(|line| line == "bank: registered pay as bank_pay (remote_mutation)"),
        "{lines:?}"
    );
    assert!(lines.iter().any(|line| line.starts_with("serving session test on database ")), "{lines:?}");
    assert_eq!(processes_of(&place.world.path().join("ledger")), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_held_call_tells_how_long_it_has_waited() {
    let place = Place::new().with(|config| config["hold"] = json!("1h"));
    let mut host = place.serve().await;
    let arguments = json!({"to": "kim", "amount": 1});
    let params = json!({"name": "bank_pay", "arguments": arguments, "_meta": {"progressToken": "t"}});
    host.send(json!({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": params})).await;
    let progress = host.receive().await;
    assert_eq!(
        (&progress["method"], &progress["params"]["progressToken"]),
        (&json!("notifications/progress"), &json!("t"))
    );
    assert_eq!(progress["params"]["total"].as_f64(), Some(3600.0));
    let waited = progress["params"]["progress"].as_f64().unwrap();
    assert!((0.9..3600.0).contains(&waited), "{waited}");
    place.approve_the_only_one();
    let answer = loop {
        let heard = host.receive().await;
        if heard["id"] == 9 {
            break heard;
        }
        let later = heard["params"]["progress"].as_f64().unwrap();
        assert!(later > waited, "{heard}");
    };
    assert_eq!(answer["result"]["content"][0]["text"], "paid 1 to kim");
    host.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_ends_mid_call_leaves_a_question() {
    let place = Place::new().with(|config| config["servers"][0]["rules"]["pay"]["outcome"] = json!("allow"));
    let mut host = place.serve().await;
    let payment = json!({"to": "kim", "amount": 1, "mode": "exit"});
    let (text, failed) = host.call("bank_pay", payment).await;
    assert!(text.starts_with("UNKNOWN_OUTCOME: ") && !failed, "{text}");
    let question = place.pending().remove(0);
    assert!(text.contains(question.id.as_str()), "{text}");
    let (text, _) = host.call("bank_pay", json!({"to": "lou", "amount": 1})).await;
    assert!(text.starts_with("BLOCKED: "), "{text}");
    assert_eq!(place.effects().len(), 1);
    let (served, _) = host.end().await;
    assert_eq!(served, Served::Ended);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ended_proxy_leaves_no_server_written_down_also_none_that_was_just_started_again() {
    let place = Place::new().with(|config| config["servers"][0]["rules"]["pay"]["outcome"] = json!("allow"));
    let mut host = place.serve().await;
    host.call("bank_pay", json!({"to": "kim", "amount": 1, "mode": "exit"})).await;
    let (served, _) = host.end().await;
    assert_eq!(served, Served::Ended);
    let left = GroupStore::new(place.path("runs.db")).list_groups().unwrap();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_too_deep_to_record_counts_as_executed() {
    let place = Place::new().with(|config| config["servers"][0]["rules"]["pay"]["outcome"] = json!("allow"));
    let mut host = place.serve().await;
    let (text, failed) = host.call("bank_pay", json!({"to": "kim", "amount": 1, "mode": "deep"})).await;
    assert!(text.starts_with("UNRECORDED: ") && !failed, "{text}");
    let (text, failed) = host.call("bank_pay", json!({"to": "kim", "amount": 1, "mode": "error"})).await;
    assert!(text.contains("declined by kim") && failed, "{text}");
    host.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_under_way_is_recorded_when_the_host_goes_away() {
    let place = Place::new().with(|config| config["servers"][0]["rules"]["pay"]["outcome"] = json!("allow"));
    let mut host = place.serve().await;
    let params = json!({"name": "bank_pay", "arguments": {"to": "kim", "amount": 1, "mode": "block"}});
    host.send(json!({"jsonrpc": "2.0", "id": 77, "method": "tools/call", "params": params})).await;
    while place.effects().is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    host.stop.send_replace(true);
    fs::write(place.world.path().join("ledger.release"), "").unwrap();
    assert_eq!(host.receive().await["id"], 77, "it is answered all the same");
    assert_eq!(host.served.await.unwrap(), Served::Ended);
    let mut again = place.serve().await;
    let (text, _) = again.call("bank_pay", json!({"to": "kim", "amount": 1, "mode": "block"})).await;
    assert!(text.starts_with("DUPLICATE: ") && text.ends_with("paid 1 to kim"), "{text}");
    again.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_under_way_is_answered_when_the_actors_are_lost_and_the_next_proxy_asks_about_it() {
    let place = Place::new().with(|config| {
        config["servers"][0]["rules"]["pay"]["outcome"] = json!("allow");
        config["lease_ttl"] = json!("3s");
    });
    let mut host = place.serve().await;
    let payment = json!({"to": "kim", "amount": 1, "mode": "block"});
    let params = json!({"name": "bank_pay", "arguments": payment});
    host.send(json!({"jsonrpc": "2.0", "id": 77, "method": "tools/call", "params": params})).await;
    while place.effects().is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    host.tree.die();
    let answer = host.receive().await;
    let text = answer["result"]["content"][0]["text"].as_str().unwrap();
    assert!(answer["id"] == 77 && text.starts_with("UNKNOWN_OUTCOME: "), "{answer}");
    assert_eq!(host.served.await.unwrap(), Served::ActorsLost);
    let again = place.serve().await;
    while place.pending().is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert!(place.pending()[0].is_interruption(), "it is recovered when the dead one's lease ends");
    assert_eq!((again.end().await.0, place.effects().len()), (Served::Ended, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_server_the_list_is_an_error_that_names_no_path() {
    let place = Place::new().with(|config| {
        config["servers"][0]["command"] = json!(["/nowhere/to/be/found"]);
    });
    let mut host = place.serve().await;
    let listed = host.ask("tools/list", json!({})).await;
    let why = listed["error"]["message"].as_str().unwrap();
    assert!(why.contains("no tools can be offered") && !why.contains('/'), "{why}");
    let served = host.served.await.unwrap();
    assert!(matches!(&served, Served::NothingOffered(why) if why.contains("bank")), "{served:?}");
    assert!(
        host.journal.lines().iter().any(|line| line.starts_with("error: ")),
        "{:?}",
        host.journal.lines()
    );
}

/// A journal that breaks as it is written to.
#[derive(Debug)]
struct Breaking;

impl Journal for Breaking {
    fn line(&self, line: &str) {
        panic!("a test breaks at {line:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_and_a_call_are_answered_also_when_the_opening_panics() {
    let place = Place::new();
    let mut host = place.serve_with(Arc::new(Breaking), Arc::default()).await;
    let listed = host.ask("tools/list", json!({})).await;
    assert!(listed["error"]["message"].as_str().unwrap().contains("no tools can be offered"), "{listed}");
    let (text, failed) = host.call("bank_pay", json!({"to": "kim", "amount": 1})).await;
    assert!(text.starts_with("UNAVAILABLE: ") && failed, "{text}");
    let (served, _) = host.end().await;
    assert!(matches!(served, Served::NothingOffered(_)), "{served:?}");
    assert_eq!((place.effects(), processes_of(&place.world.path().join("ledger"))), (Vec::new(), 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tool_in_the_status_tools_place_is_refused() {
    let clash = Place::new().with(|config| {
        config["servers"][0]["rules"]["balance"]["rename"] = json!("gate_status");
    });
    let opened = Opened::open(clash.prepare().unwrap(), Arc::new(KeptJournal::default())).await.unwrap();
    let (reports, checked) = opened.check_servers().await;
    assert_eq!(reports[0].registered.len(), 3);
    assert!(checked.unwrap_err().to_string().contains("status tool"), "both are named");
    let renamed = clash.with(|config| config["status_tool"] = json!("waiting"));
    let opened = Opened::open(renamed.prepare().unwrap(), Arc::new(KeptJournal::default())).await.unwrap();
    opened.check_servers().await.1.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_two_servers_offer_is_refused() {
    let place = Place::new().with(|config| {
        let mut second = config["servers"][0].clone();
        second["name"] = json!("till");
        second["manifest"] = json!("till.json");
        second["rules"] = json!({"balance": {"side_effect": "read_only", "rename": "bank_balance"}});
        config["servers"].as_array_mut().unwrap().push(second);
    });
    place.pin();
    let opened = Opened::open(place.prepare().unwrap(), Arc::new(KeptJournal::default())).await.unwrap();
    let refused = opened.check_servers().await.1.unwrap_err().to_string();
    assert!(refused.contains("\"till\" offers \"bank_balance\""), "{refused}");
}

/// When a process started, as the kernel counts it.
fn start_time(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dead_process_s_server_left_running_is_ended_at_the_start() {
    let place = Place::new();
    place.serve().await.end().await;
    let mut owner = Command::new("true").spawn().unwrap();
    owner.wait().unwrap();
    let mut left = Command::new("sleep").arg("100").process_group(0).spawn().unwrap();
    let kernel = fs::read_to_string("/proc/stat").unwrap();
    let forks = kernel.lines().find_map(|line| line.strip_prefix("processes ")).unwrap();
    let group = GroupRecord {
        pgid: left.id(),
        leader_start_time: start_time(left.id()),
        boot_id: fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim().to_owned(),
        pid_namespace: fs::read_link("/proc/self/ns/pid").unwrap().to_str().unwrap().to_owned(),
        forks_before: forks.parse().unwrap(),
        owner_pid: owner.id(),
        owner_start_time: 1,
        session: "test".to_owned(),
        server: "bank".to_owned(),
    };
    GroupStore::new(place.path("runs.db")).record_group(&group).unwrap();
    let ended = std::thread::spawn(move || left.wait().unwrap());
    let host = place.serve().await;
    assert_eq!(ended.join().unwrap().signal(), Some(9));
    let told = format!("ended what server bank had left running (group {})", group.pgid);
    assert!(host.end().await.1.contains(&told));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_tool_is_not_offered_nor_one_without_a_rule() {
    let place = Place::new().with(|config| {
        config["servers"][0]["rules"].as_object_mut().unwrap().remove("refund");
    });
    let mut manifest: Value = serde_json::from_slice(&fs::read(place.path("bank.json")).unwrap()).unwrap();
    manifest["tools"]["pay"]["description_hash"] = json!("0".repeat(64));
    manifest["tools"]["pay"]["description"] = json!("Pay nobody.");
    fs::write(place.path("bank.json"), manifest.to_string()).unwrap();
    let opened = Opened::open(place.prepare().unwrap(), Arc::new(KeptJournal::default())).await.unwrap();
    let (reports, checked) = opened.check_servers().await;
    checked.unwrap();
    assert_eq!(reports[0].refused.len(), 1, "{reports:?}");
    assert_eq!(reports[0].refused[0].tool, "pay");

    let mut host = place.serve().await;
    let listed = host.ask("tools/list", json!({})).await;
    let tools = listed["result"]["tools"].as_array().unwrap();
    let names: Vec<&str> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["bank_balance", "gate_status"]);
    for name in ["bank_pay", "bank_refund"] {
        let called =
            host.ask("tools/call", json!({"name": name, "arguments": {"to": "kim", "amount": 1}})).await;
        assert_eq!(called["error"]["code"], -32602, "{called}");
    }
    host.end().await;
    assert_eq!(place.effects(), Vec::<Value>::new());
}

#[test]
fn what_is_wrong_with_the_operators_files_is_found_before_anything_starts() {
    let place = Place::new();
    fs::set_permissions(place.path("bank.json"), Permissions::from_mode(0o664)).unwrap();
    assert!(matches!(place.prepare(), Err(ServeError::Manifest { .. })));
    fs::set_permissions(place.path("bank.json"), Permissions::from_mode(0o600)).unwrap();
    fs::write(place.path("bank.json"), r#"{"server":"bank","server":"bank","tools":{}}"#).unwrap();
    let error = place.prepare().unwrap_err().to_string();
    assert!(error.contains("manifest") && error.contains("bank.json"), "{error}");
    fs::write(place.path("runs.db"), "").unwrap();
    fs::set_permissions(place.path("runs.db"), Permissions::from_mode(0o646)).unwrap();
    assert!(matches!(place.prepare(), Err(ServeError::Database(_))));
    fs::set_permissions(place.path("runs.db"), Permissions::from_mode(0o600)).unwrap();
    fs::rename(place.path("runs.db"), place.path("elsewhere.db")).unwrap();
    symlink(place.path("elsewhere.db"), place.path("runs.db")).unwrap();
    let error = place.prepare().unwrap_err();
    assert!(matches!(error, ServeError::Database(OwnedError::Symlink(_))), "{error}");
    let reaching = Place::new();
    let inside = reaching.path("").to_str().unwrap().to_owned();
    let reaching = reaching.with(|config| config["servers"][0]["command"] = json!(["x", inside]));
    assert!(matches!(reaching.prepare(), Err(ServeError::Reach(_))));
}
