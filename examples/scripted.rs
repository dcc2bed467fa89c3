//! A whole run with an agent that needs no model: it looks at an account and pays out of it, and the payment waits for a
//! person.
//!
//! `cargo run --example scripted` approves the payment itself. With a path, `cargo run --example scripted -- agent.db`, it
//! stops where the run waits: approve with the command that it prints, and run it again.

#![expect(clippy::print_stdout, reason = "an example talks to the person who runs it")]

use std::sync::Arc;

use holdpoint::approver::{Approver as _, Decision, Local};
use holdpoint::driver::{
    AgentError, DriverError, Limits, Proposal, Run, RunId, RunStatus, SessionError, StepInput,
};
use holdpoint::gate::{Runtime, SideEffect, ToolOutput, ToolSpec, tool_fn};

const PAY: &str = r#"{
    "type": "object",
    "required": ["to", "amount"],
    "properties": {"to": {"type": "string"}, "amount": {"type": "integer", "minimum": 1}}
}"#;

/// Decides from what is on the record and nothing else, so that it decides alike after a restart.
async fn decide(input: StepInput) -> Result<Proposal, AgentError> {
    Ok(match input.steps.iter().filter(|step| step.observation.is_some()).count() {
        0 => Proposal::tool_call("balance", "{}"),
        1 => Proposal::tool_call("pay", r#"{"to":"ada","amount":20}"#),
        _ => Proposal::complete(r#"{"paid":20}"#),
    })
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let own = std::env::temp_dir().join(format!("holdpoint-scripted-{}", std::process::id()));
    let given = std::env::args().nth(1).map(std::path::PathBuf::from);
    let database = match &given {
        Some(path) => path.clone(),
        None => {
            std::fs::create_dir(&own)?;
            own.join("agent.db")
        }
    };

    let balance = ToolSpec::new("balance", SideEffect::ReadOnly, r#"{"type":"object"}"#);
    let balance = tool_fn(balance, |_| async { Ok(ToolOutput::new(r#"{"balance":120}"#, "balance: 120")) });
    let pay = tool_fn(ToolSpec::new("pay", SideEffect::RemoteMutation, PAY), |call| async move {
        println!("paying {}", call.args);
        // A real one would send `call.step_id` along: it is the same when an approved payment is run again.
        Ok(ToolOutput::new(r#"{"paid":true}"#, "paid"))
    });
    let runtime = Runtime::builder(&database).tool(balance).tool(pay).start().await?;
    let driver = runtime.driver(Arc::new(decide));

    let id = RunId::from("invoice-7");
    let started = driver.start_with_id(id.clone(), "pay invoice 7", Limits::default()).await;
    let mut run = match started {
        Err(DriverError::Session(SessionError::Exists(_))) => driver.resume(id.clone()).await?,
        started => started?,
    };
    println!("{} is {}", run.id, run.status);
    if run.status == RunStatus::WaitingForApproval && given.is_none() {
        approve(&database, &run).await?;
        run = driver.resume(id.clone()).await?;
        println!("{} is {}", run.id, run.status);
    }
    runtime.stop().await;
    if given.is_some() && run.status == RunStatus::WaitingForApproval {
        println!("approve with: holdpoint --db {} approve {}", database.display(), run.id);
    }
    if given.is_none() {
        std::fs::remove_dir_all(&own)?;
    }
    Ok(())
}

/// The person at the other end: looks at what is asked, and says yes to exactly that.
async fn approve(database: &std::path::Path, run: &Run) -> Result<(), Box<dyn std::error::Error>> {
    let approver = Local::open(database)?;
    for pending in approver.pending(&run.id, 10).await? {
        let asked = &pending.approval;
        println!("asked: {} {}", asked.kind, asked.presentation);
        let decision = Decision {
            run: run.id.clone(),
            approval: asked.id.clone(),
            hash: asked.hash.clone(),
            by: "ada".to_owned(),
            note: "go ahead".to_owned(),
        };
        approver.approve(&decision).await?;
    }
    Ok(())
}
