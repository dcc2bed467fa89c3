//! A loop of your own behind the gate: two tools, a policy, an approval, and a payment that happens once.
//!
//! Run it twice: `cargo run --example gate -- agent.db`. The first run stops at the payment and says which command
//! approves it; after that command, the second run collects the grant and pays.

#![expect(clippy::print_stdout, reason = "an example talks to the person who runs it")]

use std::sync::Arc;
use std::time::Duration;

use holdpoint::gate::{
    Attached, Limits, Proposal, RunId, RunStatus, Runtime, Session, SessionError, SideEffect, Tool,
    ToolOutput, ToolSpec, Verdict, tool_fn,
};

const PAY_SCHEMA: &str = r#"{
    "type": "object",
    "required": ["to", "amount"],
    "properties": {"to": {"type": "string"}, "amount": {"type": "integer", "minimum": 1}}
}"#;

fn balance() -> Arc<dyn Tool> {
    let schema = r#"{"type":"object","additionalProperties":false}"#;
    let spec =
        ToolSpec::new("balance", SideEffect::ReadOnly, schema).describe("Tells the account's balance.");
    tool_fn(spec, |_call| async { Ok(ToolOutput::new(r#"{"balance":120}"#, "balance: 120")) })
}

/// A tool with a state of its own would be a type that implements [`Tool`].
fn pay() -> Arc<dyn Tool> {
    let spec = ToolSpec::new("pay", SideEffect::RemoteMutation, PAY_SCHEMA)
        .describe("Pays an amount to somebody.")
        .timeout(Duration::from_secs(5));
    tool_fn(spec, |call| async move {
        // A real tool would send `call.step_id` along: it is the same when an approved payment is run again.
        println!("  paying: {} (idempotency key {})", call.args, call.step_id);
        Ok(ToolOutput::new(r#"{"paid":true}"#, "paid"))
    })
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    run(&std::env::args().nth(1).ok_or("usage: gate DATABASE")?).await
}

async fn run(database: &str) -> Result<(), Box<dyn std::error::Error>> {
    let runtime = Runtime::builder(database).tool(balance()).tool(pay()).start().await?;
    let run = RunId::from("invoice-7");
    let session = match runtime.gate().begin(run.clone(), "pay invoice 7", Limits::default()).await {
        Ok(session) => Some(session),
        Err(SessionError::Exists(_)) => collect(&runtime, run).await?,
        Err(error) => return Err(error.into()),
    };
    if let Some(session) = session {
        decide(&session, database).await?;
        session.close().await;
    }
    runtime.stop().await;
    Ok(())
}

/// The run was begun before: collects its grant, if there is one.
async fn collect(runtime: &Runtime, run: RunId) -> Result<Option<Session>, SessionError> {
    match runtime.gate().attach(run).await {
        Ok(Attached::Allowed(session, step)) => {
            println!("approved: {}", step.execute().await?.observation.content);
            Ok(Some(session))
        }
        Ok(Attached::Open(session) | Attached::Denied(session, _)) => Ok(Some(session)),
        Ok(Attached::Pending(approval, _)) => {
            println!("waiting for a person: approval {}", approval.id);
            Ok(None)
        }
        Ok(Attached::Ended(run)) => {
            println!("over: {}", run.status);
            Ok(None)
        }
        Err(error @ (SessionError::RunState { .. } | SessionError::Leased { .. })) => {
            println!("not now: {error}");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Decides what to do from what happened so far. A model would stand here.
async fn decide(session: &Session, database: &str) -> Result<(), SessionError> {
    while let Some(step) = session.step().await? {
        let proposal = match session.input().await?.steps.len() {
            0 => Proposal::tool_call("balance", "{}"),
            1 => Proposal::tool_call("pay", r#"{"to":"ada","amount":20}"#),
            _ => Proposal::complete(r#"{"invoice":7,"paid":true}"#),
        };
        match step.propose(proposal).await? {
            Verdict::Allowed { request } => {
                println!("running {}", request.spec.name);
                println!("  {}", step.execute().await?.observation.content);
            }
            Verdict::Denied { observation } => println!("refused: {}", observation.summary),
            Verdict::Pending { approval, run } => {
                println!("waiting for a person; approve with");
                println!("  holdpoint --db {database} approve {} --approval {}", run.id, approval.id);
                return Ok(());
            }
            Verdict::Ended { run } => {
                println!("over: {}", run.status);
                assert_eq!(run.status, RunStatus::Completed);
                return Ok(());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use holdpoint::view::{Records, RunSummary};

    use super::run;

    fn invoice(database: &str) -> RunSummary {
        Records::open_to_read(database).unwrap().summary(&"invoice-7".into()).unwrap()
    }

    #[tokio::test]
    async fn the_first_run_stops_at_the_payment_and_the_one_after_the_approval_pays() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("agent.db").to_str().unwrap().to_owned();
        // Undecided, a second one finds it where it was.
        for _ in 0..2 {
            run(&database).await.unwrap();
            assert_eq!(invoice(&database).status, "WAITING_FOR_APPROVAL");
        }
        let mut records = Records::open_to_decide(&database).unwrap();
        let waiting = records.pending_approval(&"invoice-7".into(), None).unwrap();
        records.approve_shown(&waiting.approval, "ada", "").unwrap();
        run(&database).await.unwrap();
        let paid = invoice(&database);
        assert_eq!((paid.status.as_str(), paid.steps), ("COMPLETED", 3));
        run(&database).await.unwrap();
        assert_eq!(invoice(&database), paid, "it is over, and nothing is paid again");
    }
}
