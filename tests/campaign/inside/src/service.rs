//! An embedding service: a program of its own that holds the gate as a library, on a record that proxies share.
//!
//! Owns the translation of the gate's verdicts into the words that a proxy's host is told, so that one checker judges
//! both. Speaks the same protocol on its standard streams. A payment is one run under a name of its own; asked again, it
//! attaches to that run and goes on from whatever the record says. Its tools write the world's ledger.

use std::io::{BufRead as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use holdpoint::gate::{
    ApprovalId, Attached, Ending, Executed, Gate, Json, Limits, Observation, ObservationKind, OpenStep,
    Policy, PolicyDecision, PolicyError, PolicyView, Proposal, RunId, RunStatus, Runtime, Session,
    SessionError, SideEffect, StepStatus, Tool, ToolCall, ToolFailure, ToolOutput, ToolRequest, ToolSpec,
    Verdict,
};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::payments;

/// The shortest lease that can be kept, as the proxies of the same world have it.
const LEASE: Duration = Duration::from_secs(3);
/// What its runs are called, which the checker knows too.
const EMBEDDED: &str = "embedded-";

/// What it says to a call: the text, and whether it is an error.
type Said = (String, bool);

/// Pays, or tells a balance, at one of the servers that the proxies of this world have.
#[derive(Debug)]
struct Pays {
    name: &'static str,
    class: SideEffect,
    ledger: PathBuf,
}

#[async_trait]
impl Tool for Pays {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: self.name.to_owned(),
            description: "Pay somebody.".to_owned(),
            input_schema: Json::trusted(r#"{"type":"object"}"#),
            side_effect: self.class,
            timeout: Duration::from_secs(20),
            terminal: false,
        }
    }

    async fn call(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let arguments: Value = call.args.decode().map_err(|error| ToolFailure::Failed(error.to_string()))?;
        if self.class.is_read() {
            return Ok(ToolOutput::new("{}", "the account holds 120.00 EUR"));
        }
        let ledger = self.ledger.clone();
        // A sync takes its time, and the runtime has others to serve.
        let applied =
            tokio::task::spawn_blocking(move || payments::apply(&ledger, &json!("pay"), &arguments)).await;
        match applied {
            Ok(Ok(())) => Ok(ToolOutput::new("{}", "paid")),
            Ok(Err(why)) => Err(ToolFailure::NoAnswer(why)),
            Err(error) => Err(ToolFailure::NoAnswer(error.to_string())),
        }
    }
}

/// The bank's payments are put to a person, as the proxies' rules have it.
#[derive(Debug)]
struct AsTheRulesSay;

#[async_trait]
impl Policy for AsTheRulesSay {
    async fn evaluate(
        &self,
        request: &ToolRequest,
        view: &PolicyView,
    ) -> Result<PolicyDecision, PolicyError> {
        let asked_about = view.approvals.iter().rfind(|approval| approval.step_id == request.step_id);
        let granted = asked_about.is_some_and(|approval| approval.kind == "interrupted_side_effect");
        if request.spec.name != "bank_pay" || granted {
            return Ok(PolicyDecision::allow(""));
        }
        let capability = json!({"name": request.spec.name}).to_string();
        let capability = capability.replace('}', &format!(",\"args\":{}}}", request.args.as_str()));
        let asked = (Json::trusted(capability), Json::empty_object());
        Ok(PolicyDecision::need_approval("remote_mutation", "the rules say so", asked.0, asked.1))
    }
}

/// Serves until the input ends.
pub(crate) async fn serve(database: &Path, world: &Path) -> Result<(), String> {
    let pays =
        |name, class, server: &str| Arc::new(Pays { name, class, ledger: world.join(server).join("ledger") });
    let runtime = Runtime::builder(database)
        .tool(pays("petty_balance", SideEffect::ReadOnly, "petty"))
        .tool(pays("petty_pay", SideEffect::RemoteMutation, "petty"))
        .tool(pays("bank_pay", SideEffect::RemoteMutation, "bank"))
        .policy(Arc::new(AsTheRulesSay))
        .lease_ttl(LEASE)
        .lease_label("embedded")
        .start()
        .await
        .map_err(|error| error.to_string())?;
    let (lines, mut incoming) = mpsc::unbounded_channel();
    // The end of the input drops the sender, and that ends the loop.
    std::thread::spawn(move || {
        let read = std::io::stdin().lock().lines().map_while(Result::ok);
        read.map(|line| lines.send(line)).all(|sent| sent.is_ok())
    });
    let mut calls = tokio::task::JoinSet::new();
    while let Some(line) = incoming.recv().await {
        let Ok(message) = serde_json::from_str::<Value>(&line) else { continue };
        let Some(id) = message.get("id").cloned() else { continue };
        let gate = runtime.gate().clone();
        calls.spawn(async move {
            let params = &message["params"];
            let result = if message["method"] == "tools/call" {
                let tool = params["name"].as_str().unwrap_or_default().to_owned();
                let (text, is_error) = call(&gate, &tool, &params["arguments"]).await;
                json!({"content": [{"type": "text", "text": text}], "isError": is_error})
            } else {
                json!({})
            };
            let said = json!({"jsonrpc": "2.0", "id": id, "result": result});
            // When nobody reads any more, the input ends too.
            drop(writeln!(std::io::stdout().lock(), "{said}"));
        });
    }
    while calls.join_next().await.is_some() {}
    runtime.stop().await;
    Ok(())
}

async fn call(gate: &Gate, tool: &str, arguments: &Value) -> Said {
    let run = RunId::from(format!("{EMBEDDED}{tool}-{}", arguments["ref"].as_str().unwrap_or_default()));
    let began = match gate.begin(run.clone(), "pay", Limits { max_steps: 9, ..limits() }).await {
        Ok(session) => go_on(&session, tool, arguments).await,
        Err(SessionError::Exists(_)) => attach(gate, &run, tool, arguments).await,
        Err(error) => Err(error),
    };
    began.unwrap_or_else(|error| {
        let word = match error {
            SessionError::Leased { .. } => "IN_PROGRESS",
            SessionError::OutcomeLost { .. } => "UNRECORDED",
            SessionError::ApprovalExpired(_) => "EXPIRED",
            SessionError::NotFound(_)
            | SessionError::Exists(_)
            | SessionError::RunState { .. }
            | SessionError::LeaseLost(_)
            | SessionError::Closed { .. }
            | SessionError::ApprovalHash(_)
            | SessionError::NotRegistered(_)
            | SessionError::Invalid(_)
            | SessionError::Stale
            | SessionError::Unavailable(_)
            | SessionError::Internal { .. } => "UNAVAILABLE",
        };
        (format!("{word}: {error}"), true)
    })
}

fn limits() -> Limits {
    Limits { max_consecutive_tool_failures: 9, loop_threshold: 9, ..Limits::default() }
}

/// A new step of a run that holds nothing to execute: unless it was paid already, it is paid now.
async fn go_on(session: &Session, tool: &str, arguments: &Value) -> Result<Said, SessionError> {
    let done = |observation: &Observation| observation.kind == ObservationKind::ToolResult;
    let steps = session.input().await?.steps;
    if steps.iter().any(|step| step.status == StepStatus::Done && step.observation.as_ref().is_some_and(done))
    {
        complete(session).await?;
        return Ok(("DUPLICATE: it was paid before".to_owned(), true));
    }
    let Some(step) = session.step().await? else {
        return Ok(("UNAVAILABLE: its run is over".to_owned(), true));
    };
    match step.propose(Proposal::tool_call(tool, arguments.to_string())).await? {
        Verdict::Allowed { .. } => execute(session, &step).await,
        Verdict::Pending { approval, .. } => Ok(asked(&approval.kind, &approval.id)),
        Verdict::Denied { observation } => Ok((format!("DENIED: {}", observation.summary), true)),
        Verdict::Ended { run } => Ok((format!("UNAVAILABLE: its run is {}", run.status), true)),
    }
}

async fn attach(gate: &Gate, run: &RunId, tool: &str, arguments: &Value) -> Result<Said, SessionError> {
    match gate.attach(run.clone()).await {
        Ok(Attached::Open(session)) => go_on(&session, tool, arguments).await,
        Ok(Attached::Allowed(session, step)) => execute(&session, &step).await,
        Ok(Attached::Denied(session, observation)) => {
            session.close().await;
            Ok((format!("DENIED: {}", observation.summary), true))
        }
        Ok(Attached::Pending(approval, _)) => Ok(asked(&approval.kind, &approval.id)),
        Ok(Attached::Ended(_)) => Ok(("EXPIRED: nobody decided in time".to_owned(), true)),
        Err(SessionError::RunState { .. }) => standing(gate, run).await,
        Err(error) => Err(error),
    }
}

fn asked(kind: &str, approval: &ApprovalId) -> Said {
    let word = if kind == "interrupted_side_effect" { "INTERRUPTED" } else { "PENDING_APPROVAL" };
    (format!("{word}: an operator decides (approval {approval})"), true)
}

/// What a run that nothing can be done with now is told as.
async fn standing(gate: &Gate, run: &RunId) -> Result<Said, SessionError> {
    let wanted = run.clone();
    let read = gate.tree().store.read(move |reader| Ok((reader.run(&wanted)?, reader.approvals(&wanted)?)));
    let (found, approvals) = read.await.map_err(|error| SessionError::Unavailable(error.to_string()))?;
    Ok(match (found.map(|run| run.status), approvals.last()) {
        (Some(RunStatus::Completed), _) => ("DUPLICATE: it was paid before".to_owned(), true),
        (Some(RunStatus::Cancelled | RunStatus::Failed), _) => ("REJECTED: its run is over".to_owned(), true),
        (Some(RunStatus::WaitingForApproval), Some(latest)) => asked(&latest.kind, &latest.id),
        (Some(RunStatus::WaitingForApproval), None)
        | (Some(RunStatus::Running | RunStatus::Interrupted) | None, _) => {
            ("IN_PROGRESS: another session has it".to_owned(), true)
        }
    })
}

async fn execute(session: &Session, step: &OpenStep) -> Result<Said, SessionError> {
    let Executed { observation, ending, .. } = step.execute().await?;
    let said = match ending {
        Ending::Answered => (observation.summary, false),
        Ending::KnownFailure | Ending::Unrecordable => (observation.summary, true),
        Ending::NotSent => (format!("UNAVAILABLE: {}", observation.summary), true),
        Ending::TimedOut | Ending::NoAnswer => (format!("UNKNOWN_OUTCOME: {}", observation.summary), true),
    };
    // What was paid stays paid, whatever becomes of the run's end.
    match complete(session).await {
        Ok(()) => {}
        Err(error) => drop(writeln!(std::io::stderr(), "complete {}: {error}", session.run_id())),
    }
    Ok(said)
}

async fn complete(session: &Session) -> Result<(), SessionError> {
    if let Some(step) = session.step().await? {
        step.propose(Proposal::complete("")).await?;
    }
    Ok(())
}
