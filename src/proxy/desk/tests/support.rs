//! A desk over a bank that is not one: real store, real actors, tools in this process.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use holdpoint_actors::clock::{Clock, HandClock, Mint, RandomMint, wall};
use holdpoint_actors::executor::{Tool, ToolCall, ToolFailure, ToolOutput};
use holdpoint_actors::policy::{Policy, PolicyError};
use holdpoint_actors::recheck::{Rechecker, read};
use holdpoint_actors::store::{Answer as Decision, OperatorStore, Options, Verdict};
use holdpoint_actors::tree::{Tree, TreeSpec};
use holdpoint_core::approval::{Approval, ApprovalStatus};
use holdpoint_core::attempt::Upstream;
use holdpoint_core::ids::{RunId, SessionName};
use holdpoint_core::json::Json;
use holdpoint_core::policy::{Outcome, PolicyDecision, PolicyView};
use holdpoint_core::recheck::Report;
use holdpoint_core::run::Limits;
use holdpoint_core::step::Step;
use holdpoint_core::tool::{SideEffect, ToolRequest, ToolSpec};
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::Notify;

use crate::proxy::desk::{Desk, DeskSpec};
use crate::proxy::front::{CallAnswer, Cancelled, HostCall};
use crate::proxy::gated::GatePolicy;
use crate::proxy::hold::Waiter;
use crate::proxy::journal::{Journal, KeptJournal};
use crate::proxy::policy::{ClassPolicy, PolicyTool, ProxyPolicy};
use crate::proxy::recheck::RecordedPolicy;

/// What the bank has done and what it waits for.
#[derive(Debug, Default)]
pub(super) struct Bank {
    ledger: Mutex<Vec<String>>,
    pub(super) entered: Notify,
    pub(super) release: Notify,
}

impl Bank {
    /// How many payments took effect.
    pub(super) fn payments(&self) -> usize {
        self.ledger.lock().unwrap().len()
    }
}

#[derive(Debug)]
struct BankTool {
    bank: Arc<Bank>,
    upstream: Upstream,
    schema: &'static str,
}

const PAY: &str = r#"{"type":"object","properties":{"to":{"type":"string"},"amount":{"type":"number"},"mode":{"type":"string"}},"required":["to","amount"],"additionalProperties":false}"#;
const BALANCE: &str = r#"{"type":"object","properties":{"account":{"type":"string"}},"required":["account"],"additionalProperties":false}"#;

#[async_trait]
impl Tool for BankTool {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: self.upstream.name.clone(),
            description: format!("Does {}.", self.upstream.remote),
            input_schema: Json::trusted(self.schema),
            side_effect: self.upstream.class,
            timeout: Duration::from_secs(20),
            terminal: true,
        }
    }

    fn upstream(&self) -> Option<Upstream> {
        Some(self.upstream.clone())
    }

    async fn call(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        if self.upstream.remote == "balance" {
            return Ok(ToolOutput::new("\"42\"", ""));
        }
        let args: Value = call.args.decode().unwrap();
        let (to, mode) = (args["to"].as_str().unwrap_or("nobody"), args["mode"].as_str().unwrap_or(""));
        if mode == "unsent" {
            return Err(ToolFailure::NotSent("bank_pay: not sent: the connection is down".to_owned()));
        }
        self.bank.ledger.lock().unwrap().push(to.to_owned());
        // One that blocks ends as the rest of its mode says.
        let mode = match mode.strip_prefix("block") {
            Some(rest) => {
                self.bank.entered.notify_one();
                self.bank.release.notified().await;
                rest.trim_start_matches('-')
            }
            None => mode,
        };
        match mode {
            "error" => Err(ToolFailure::Failed(format!("bank/pay: 20 bytes, error: card declined for {to}"))),
            "timeout" => Err(ToolFailure::TimedOut("bank_pay: no answer within 20s".to_owned())),
            "lost" => Err(ToolFailure::NoAnswer("mcp: server \"bank\": connection closed".to_owned())),
            "deep" => Err(ToolFailure::Unrecordable {
                reason: "nested deeper than 256 levels".into(),
                raw: b"[".to_vec(),
            }),
            "structured" => Ok(ToolOutput::new(format!(r#"{{"to":"{to}","amount":1.50}}"#), "")),
            _ => Ok(ToolOutput::new(format!("\"paid {to}\""), "")),
        }
    }
}

/// What a test changes.
pub(super) struct Settings {
    pub(super) hold: Duration,
    pub(super) window: Duration,
    pub(super) max_pending: usize,
    pub(super) approval_ttl: Duration,
    pub(super) grant_ttl: Duration,
    pub(super) pay: Option<Outcome>,
    pub(super) fixed: BTreeMap<String, Json>,
    pub(super) mint: Arc<dyn Mint>,
    pub(super) policy_breaks: bool,
    /// What reads the operator's lines in the desk's own's place.
    pub(super) reads_along: Option<Arc<dyn Journal>>,
    /// What waits for decisions in the tree's own's place.
    pub(super) waiter: Option<Arc<dyn Waiter>>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            hold: Duration::ZERO,
            window: Duration::from_secs(600),
            max_pending: 5,
            approval_ttl: Duration::from_secs(86_400),
            grant_ttl: Duration::from_secs(86_400),
            pay: None,
            fixed: BTreeMap::new(),
            mint: Arc::new(RandomMint),
            policy_breaks: false,
            reads_along: None,
            waiter: None,
        }
    }
}

/// A policy that panics, and names the run as it does.
struct Breaking;

#[async_trait]
impl Policy for Breaking {
    async fn evaluate(&self, request: &ToolRequest, _: &PolicyView) -> Result<PolicyDecision, PolicyError> {
        panic!("a test breaks at run {}", request.run_id)
    }
}

/// A database, a bank and a clock, which desks share as processes do.
#[derive(Debug)]
pub(super) struct Place {
    _folder: TempDir,
    pub(super) path: PathBuf,
    pub(super) bank: Arc<Bank>,
    pub(super) clock: Arc<HandClock>,
}

impl Place {
    pub(super) fn new() -> Place {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runs.db");
        let clock = Arc::new(HandClock::new(wall(), Duration::from_micros(1)));
        Place { _folder: folder, path, bank: Arc::default(), clock }
    }

    pub(super) async fn desk(&self, change: impl FnOnce(&mut Settings)) -> TestDesk {
        let mut settings = Settings::default();
        change(&mut settings);
        let policy = GatePolicy::new("test/1".to_owned());
        let store = Options { proxy_index: true, ..Options::default() };
        let evaluated: Arc<dyn Policy> =
            if settings.policy_breaks { Arc::new(Breaking) } else { Arc::new(policy.clone()) };
        let spec = TreeSpec { database: self.path.clone(), store, policy: evaluated };
        let running = Tree::start(spec).await.unwrap();
        let tool = |remote: &str, class, schema| -> Arc<dyn Tool> {
            let (name, remote) = (format!("bank_{remote}"), remote.to_owned());
            let upstream = Upstream { name, server: "bank".into(), remote, class };
            Arc::new(BankTool { bank: Arc::clone(&self.bank), upstream, schema })
        };
        let tools = vec![
            tool("balance", SideEffect::ReadOnly, BALANCE),
            tool("pay", SideEffect::RemoteMutation, PAY),
            tool("refund", SideEffect::Destructive, PAY),
        ];
        let policy_tools = tools.iter().map(|tool| {
            let upstream = tool.upstream().unwrap();
            let is_pay = upstream.remote == "pay";
            let fixed = if is_pay { settings.fixed.clone() } else { BTreeMap::new() };
            PolicyTool { upstream, fixed, rule: settings.pay.filter(|_| is_pay) }
        });
        let proxy_policy = ProxyPolicy::new(ClassPolicy::default(), policy_tools);
        let (judged_by, offered) = (Arc::new(proxy_policy.clone()), tools.clone());
        let journal = Arc::new(KeptJournal::default());
        let limits = Limits { max_steps: 3, ..Limits::default() };
        let windows =
            ["bank_balance", "bank_pay", "bank_refund"].map(|name| (name.to_owned(), settings.window));
        let spec = DeskSpec {
            session: SessionName::from("s"),
            database: self.path.clone(),
            policy: proxy_policy,
            windows: HashMap::from(windows),
            limits: limits.approval_ttl(settings.approval_ttl).grant_ttl(settings.grant_ttl),
            hold: settings.hold,
            waiter: settings.waiter.unwrap_or_else(|| Arc::new(running.tree.approval.clone())),
            max_pending: settings.max_pending,
            status_tool: "gate_status".to_owned(),
            lease_ttl: None,
            clock: Arc::clone(&self.clock) as Arc<dyn Clock>,
            mint: settings.mint,
            journal: settings.reads_along.unwrap_or(Arc::clone(&journal) as Arc<dyn Journal>),
            tools,
        };
        let desk = Desk::open(running.tree.clone(), &policy, spec).unwrap();
        TestDesk {
            desk,
            tree: running.tree,
            journal,
            path: self.path.clone(),
            clock: Arc::clone(&self.clock),
            policy: judged_by,
            tools: offered,
        }
    }

    pub(super) fn operator(&self) -> OperatorStore {
        OperatorStore::open(&self.path, false).unwrap()
    }

    /// Every approval that waits, oldest first.
    pub(super) fn pending(&self) -> Vec<Approval> {
        let mut operator = self.operator();
        operator
            .read(|reader| {
                let mut all = Vec::new();
                for (run, id) in reader.pending_approvals()? {
                    all.extend(reader.approval(&run, &id)?);
                }
                Ok(all)
            })
            .unwrap()
    }

    /// The one approval that waits.
    pub(super) fn only_pending(&self) -> Approval {
        let mut all = self.pending();
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }

    pub(super) fn decide(&self, approval: &Approval, verdict: Verdict, note: &str) {
        let answer = Decision {
            run: &approval.run_id,
            approval: &approval.id,
            verdict,
            shown: Some(&approval.hash),
            by: "ana",
            note,
        };
        self.operator().decide(&answer, self.clock.now()).unwrap();
    }

    pub(super) fn approve(&self, approval: &Approval) {
        self.decide(approval, Verdict::Approve, "");
    }

    pub(super) fn reject(&self, approval: &Approval, note: &str) {
        self.decide(approval, Verdict::Reject, note);
    }

    pub(super) fn cancel(&self, run: &RunId, note: &str) {
        self.operator().cancel(run, "ana", note, self.clock.now()).unwrap();
    }

    pub(super) fn steps(&self, run: &RunId) -> Vec<Step> {
        self.operator().read(|reader| reader.steps(run)).unwrap()
    }

    /// Where the decisions of a run come from.
    pub(super) fn origins(&self, run: &RunId) -> Vec<String> {
        self.steps(run).into_iter().map(|step| step.decision.unwrap().origin).collect()
    }

    /// The events of a run, by kind.
    pub(super) fn events(&self, run: &RunId) -> Vec<String> {
        let events = self.operator().read(|reader| reader.events(run)).unwrap();
        events.into_iter().map(|event| event.kind).collect()
    }

    /// The session's rows: run, whether open, outcome.
    pub(super) fn rows(&self) -> Vec<(RunId, bool, i64)> {
        let conn = rusqlite::Connection::open(&self.path).unwrap();
        let mut statement =
            conn.prepare("SELECT run_id, open, outcome FROM proxy_calls ORDER BY id").unwrap();
        let rows = statement.query_map([], |row| {
            Ok((RunId::from(row.get::<_, String>(0)?), row.get::<_, i64>(1)? == 1, row.get(2)?))
        });
        rows.unwrap().collect::<Result<_, _>>().unwrap()
    }

    pub(super) fn last_run(&self) -> RunId {
        self.rows().pop().unwrap().0
    }

    pub(super) fn sql(&self, sql: &str) {
        rusqlite::Connection::open(&self.path).unwrap().execute_batch(sql).unwrap();
    }

    /// The approval that waits and asks about a call whose outcome is unknown.
    pub(super) fn question(&self) -> Approval {
        let asked = self.only_pending();
        assert!(asked.is_interruption() && asked.status == ApprovalStatus::Pending, "{asked:?}");
        asked
    }
}

/// One proxy's desk.
pub(super) struct TestDesk {
    pub(super) desk: Arc<Desk>,
    pub(super) tree: Tree,
    pub(super) journal: Arc<KeptJournal>,
    path: PathBuf,
    clock: Arc<HandClock>,
    policy: Arc<ProxyPolicy>,
    pub(super) tools: Vec<Arc<dyn Tool>>,
}

/// What a host got.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Got {
    pub(super) text: String,
    pub(super) is_error: bool,
    pub(super) structured: Option<Value>,
}

impl Got {
    #[track_caller]
    pub(super) fn is(&self, prefix: &str, is_error: bool) -> &str {
        assert!(self.text.starts_with(&format!("{prefix}: ")), "wanted {prefix}: {self:?}");
        assert_eq!(self.is_error, is_error, "{self:?}");
        &self.text
    }
}

impl TestDesk {
    pub(super) async fn call(&self, tool: &str, args: &str) -> Got {
        self.call_with(tool, args, Cancelled::never()).await
    }

    pub(super) async fn call_with(&self, tool: &str, args: &str, cancelled: Cancelled) -> Got {
        let arguments = Some(args.as_bytes().to_vec());
        let call = HostCall { name: tool.to_owned(), arguments, progress: None, cancelled };
        match self.desk.take(call).await {
            CallAnswer::Result(text) => {
                let result: Value = serde_json::from_str(&text).unwrap();
                Got {
                    text: result["content"][0]["text"].as_str().unwrap().to_owned(),
                    is_error: result["isError"] == true,
                    structured: result.get("structuredContent").cloned(),
                }
            }
            CallAnswer::NoSuchTool => panic!("no such tool"),
            CallAnswer::ShuttingDown => panic!("shutting down"),
        }
    }

    pub(super) async fn pay(&self, args: &str) -> Got {
        self.call("bank_pay", args).await
    }

    /// Makes a payment that blocks in the bank, has a person cancel it there, and gives its answer once the bank has let it
    /// go on.
    pub(super) async fn pay_cancelled(self: &Arc<Self>, place: &Place, args: &'static str) -> Got {
        let paying = Arc::clone(self);
        let paying = tokio::spawn(async move { paying.pay(args).await });
        place.bank.entered.notified().await;
        place.cancel(&place.last_run(), "stop it");
        place.bank.release.notify_one();
        paying.await.unwrap()
    }

    /// What the status tool says about an approval.
    pub(super) async fn status_of(&self, approval: &Approval) -> String {
        let got = self.call("gate_status", &format!(r#"{{"approval_id":"{}"}}"#, approval.id)).await;
        got.is("GATE_STATUS", false).to_owned()
    }

    pub(super) fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    /// Puts everything that the session recorded to this desk's policy again.
    pub(super) async fn recheck(&self, place: &Place) -> Vec<Report> {
        let mut reports = Vec::new();
        for (run, _, _) in place.rows() {
            let record = place.operator().read(|reader| read(reader, &run)).unwrap();
            let record = Arc::new(record.expect("the run began"));
            let policy = RecordedPolicy::new(Arc::clone(&self.policy), "test/1", Arc::clone(&record));
            reports.push(Rechecker::new(Arc::new(policy)).unwrap().recheck(&record).await);
        }
        reports
    }

    /// Ends it as a process that is asked to.
    pub(super) async fn end(self) {
        self.desk.begin_end();
        self.tree.stop().await;
        drop(self.path);
    }
}
