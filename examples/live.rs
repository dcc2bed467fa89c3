//! A live agent against any OpenAI-compatible endpoint, which stops for an operator before it pays.
//!
//! `LIVE_BASE_URL` names the endpoint (`http://127.0.0.1:11434/v1` is an Ollama server; without it, OpenAI's own),
//! `LIVE_MODEL` the model, `LIVE_API_KEY` its key, if it wants one. Run it twice:
//! `cargo run --example live --features openai -- agent.db`. The first run stops at the payment and says which command
//! approves it; after that command, the second run collects the grant, pays, and goes on to its report.

#![expect(clippy::print_stdout, reason = "an example talks to the person who runs it")]

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use holdpoint::driver::{DriverError, Run, RunId};
use holdpoint::gate::{
    Limits, ModelConfig, Reason, RunStatus, Runtime, SessionError, SideEffect, Tool, ToolOutput, ToolSpec,
    tool_fn,
};
use holdpoint::model::openai::{self, OpenAi};
use holdpoint::model::{Model, free, parse_dollars};
use holdpoint::render::Render;

const SYSTEM: &str = "You settle invoices. Work with the tools alone, one call at a time. Look the invoice up before you \
     pay it, and end with the report.";

fn tools() -> [Arc<dyn Tool>; 3] {
    let lookup = r#"{"type":"object","required":["number"],"properties":{"number":{"type":"integer"}}}"#;
    let pay = r#"{"type":"object","required":["to","amount"],
        "properties":{"to":{"type":"string"},"amount":{"type":"integer","minimum":1}}}"#;
    let report = r#"{"type":"object","required":["text"],"properties":{"text":{"type":"string"}}}"#;
    [
        tool_fn(
            ToolSpec::new("invoice", SideEffect::ReadOnly, lookup).describe("Looks an invoice up."),
            |_call| async { Ok(ToolOutput::new(r#"{"to":"ada","amount":20}"#, "20 to ada")) },
        ),
        // A change elsewhere: the default policy holds it for a person.
        tool_fn(
            ToolSpec::new("pay", SideEffect::RemoteMutation, pay).describe("Pays an amount to somebody."),
            |call| async move {
                println!("  paying: {} (idempotency key {})", call.args, call.step_id);
                Ok(ToolOutput::new(r#"{"paid":true}"#, "paid"))
            },
        ),
        tool_fn(
            ToolSpec::new("report", SideEffect::ReadOnly, report)
                .describe("Ends the work with a report.")
                .terminal(),
            |call| async move { Ok(ToolOutput::new(call.args.as_str(), "reported")) },
        ),
    ]
}

/// Begins the run, or goes on with it when it was begun before.
async fn work(model: OpenAi, database: &Path) -> Result<Run, Box<dyn Error>> {
    // What a server of your own costs is nothing. A paid model needs its price here, or the limit on cost refuses it.
    let prices = free([model.name()]);
    let model = ModelConfig::new(Arc::new(model)).prices(prices).retries(2);
    let mut builder = Runtime::builder(database).model(model);
    for tool in tools() {
        builder = builder.tool(tool);
    }
    let runtime = builder.start().await?;
    let agent =
        Render::new(|input| format!("Your task: {}", input.run.goal)).system(SYSTEM).max_output_tokens(1_024);
    let driver = runtime.driver(Arc::new(agent));
    let limits = Limits {
        max_steps: 12,
        max_model_calls: 20,
        max_estimated_cost_micros: parse_dollars("$0.50")?,
        ..Limits::default()
    };
    let run = RunId::from("invoice-7");
    let driven = match driver.start_with_id(run.clone(), "settle invoice 7", limits).await {
        Err(DriverError::Session(SessionError::Exists(_))) => driver.resume(run).await,
        driven => driven,
    };
    runtime.stop().await;
    Ok(driven?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let database = std::env::args().nth(1).ok_or("usage: live DATABASE")?;
    let from = |name: &str| std::env::var(name).unwrap_or_default();
    let model = from("LIVE_MODEL");
    if model.is_empty() {
        return Err("LIVE_MODEL names the model, as its server does".into());
    }
    let (base_url, api_key) = (from("LIVE_BASE_URL"), from("LIVE_API_KEY").into());
    let model = OpenAi::new(openai::Config { model, base_url, api_key, ..openai::Config::default() })?;
    let run = work(model, database.as_ref()).await?;
    println!("{} after {} steps and {} model calls", run.status, run.step_count, run.totals.model_calls);
    match (run.status, run.reason) {
        (RunStatus::WaitingForApproval, _) => {
            println!("it waits for you: look with `holdpoint --db {database} show {}`,", run.id);
            println!("decide with `holdpoint --db {database} approve {}`, and run this again", run.id);
        }
        (_, Some(Reason::ModelUnavailable)) => println!("the model gave no answer that can be used"),
        (_, reason) => println!("{}", reason.map_or(String::new(), |reason| format!("because: {reason}"))),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use holdpoint::view::Records;

    use super::*;

    /// An endpoint that answers with these calls, one after the other.
    fn endpoint(calls: &'static [(&str, &str)]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("an endpoint");
        let base = format!("http://{}/v1", listener.local_addr().expect("its address"));
        std::thread::spawn(move || {
            for (name, arguments) in calls {
                let (mut stream, _) = listener.accept().expect("a request");
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).expect("the head");
                    head.extend(byte);
                }
                let head = String::from_utf8_lossy(&head).to_lowercase();
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                let length = length.and_then(|length| length.parse().ok()).expect("a length");
                stream.read_exact(&mut vec![0; length]).expect("the body");
                let body = format!(
                    r#"{{"choices":[{{"message":{{"tool_calls":[{{"id":"c","function":{{"name":"{name}","arguments":{arguments:?}}}}}]}},"finish_reason":"tool_calls"}}],"usage":{{"prompt_tokens":9,"completion_tokens":2}}}}"#
                );
                let head =
                    format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
                stream.write_all((head + &body).as_bytes()).expect("an answer");
            }
        });
        base
    }

    fn model(base_url: &str) -> OpenAi {
        let (model, base_url) = ("gpt".to_owned(), base_url.to_owned());
        OpenAi::new(openai::Config { model, base_url, ..openai::Config::default() }).expect("an adapter")
    }

    #[tokio::test]
    async fn the_agent_stops_before_it_pays_and_goes_on_when_a_person_approves() {
        let folder = tempfile::tempdir().expect("a folder");
        let database = folder.path().join("agent.db");
        let base = endpoint(&[
            ("invoice", r#"{"number":7}"#),
            ("pay", r#"{"to":"ada","amount":20}"#),
            ("report", r#"{"text":"paid"}"#),
        ]);
        let run = work(model(&base), &database).await.expect("the first run");
        assert_eq!((run.status, run.totals.model_calls), (RunStatus::WaitingForApproval, 2));
        let mut records = Records::open_to_decide(&database).expect("the record");
        let waiting = records.pending_approval(&run.id, None).expect("what it waits for");
        records.approve_shown(&waiting.approval, "ada", "").expect("a decision");
        let run = work(model(&base), &database).await.expect("the second run");
        assert_eq!((run.status, run.reason), (RunStatus::Completed, Some(Reason::GoalCompleted)));
        assert_eq!((run.totals.model_calls, run.totals.input_tokens), (3, 27));
    }
}
