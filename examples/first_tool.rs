//! The first governed tool, whole: a payment that waits for a person.
#![expect(clippy::print_stdout, reason = "an example talks to the person who runs it")]

use std::sync::Arc;

use holdpoint::driver::{AgentError, Limits, Proposal, StepInput};
use holdpoint::gate::{Runtime, SideEffect, ToolOutput, ToolSpec, tool_fn};

async fn decide(input: StepInput) -> Result<Proposal, AgentError> {
    Ok(match input.steps.len() {
        0 => Proposal::tool_call("pay", r#"{"to":"ada"}"#),
        _ => Proposal::complete("{}"),
    })
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let schema = r#"{"type":"object","required":["to"],"properties":{"to":{"type":"string"}}}"#;
    let pay = tool_fn(ToolSpec::new("pay", SideEffect::RemoteMutation, schema), |call| async move {
        Ok(ToolOutput::new(r#"{"paid":true}"#, format!("paid {}", call.args)))
    });
    let runtime = Runtime::builder("agent.db").tool(pay).start().await?;
    let run = runtime.driver(Arc::new(decide)).start("pay ada", Limits::default()).await?;
    println!("{} is {}", run.id, run.status);
    runtime.stop().await;
    Ok(())
}
