//! An MCP server's tools inside an embedded driver: pinned once, classed by rules, and run under the gate.
//!
//! `cargo run --example mcp_tools -- --database agent.db`; without a database it takes one that it throws away. The server
//! is this program once more, so that it needs nothing: it keeps notes, in memory.

#![expect(
    clippy::print_stdout,
    reason = "an example talks to the person who runs it, and a server to its client"
)]

use std::error::Error;
use std::io::{BufRead as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use holdpoint::driver::{AgentError, Proposal, Run, StepInput};
use holdpoint::gate::{Limits, RunStatus, Runtime};
use holdpoint::mcp::{Manifest, ServerSpec, UpstreamSpec, parse_rules, pin};
use serde_json::{Value, json};

/// What an operator says about the tools. `forget` has no rule, so nobody can use it.
const RULES: &str = r#"{"add":{"side_effect":"local_mutation"},"list":{"side_effect":"read_only"}}"#;

/// What the server offers was pinned before, or is now. A person would read it first.
async fn pinned(server: &ServerSpec, path: &Path) -> Result<Manifest, Box<dyn Error>> {
    if path.exists() {
        return Ok(Manifest::parse_strict(&std::fs::read(path)?)?);
    }
    let manifest = pin(server).await?;
    std::fs::write(path, manifest.to_text())?;
    Ok(manifest)
}

/// Decides from what happened so far. A model would stand here.
async fn decide(input: StepInput) -> Result<Proposal, AgentError> {
    Ok(match input.steps.len() {
        0 => Proposal::tool_call("notes_add", r#"{"text":"buy milk"}"#),
        1 => Proposal::tool_call("notes_list", "{}"),
        _ => {
            let last = input.steps.last().and_then(|step| step.observation.as_ref());
            Proposal::complete(last.map_or("null", |observation| observation.content.as_str()))
        }
    })
}

async fn work(database: &Path) -> Result<Run, Box<dyn Error>> {
    let command = vec![std::env::current_exe()?.to_string_lossy().into_owned(), "serve".to_owned()];
    let default_timeout = Some(Duration::from_secs(5));
    let server = ServerSpec { name: "notes".to_owned(), command, default_timeout, ..ServerSpec::default() };
    let manifest = pinned(&server, &database.with_extension("notes.json")).await?;
    let rules = parse_rules(RULES.as_bytes())?;
    let upstream = UpstreamSpec { server, manifest, rules, terminal: false };
    let runtime = Runtime::builder(database).server(upstream).start().await?;
    for line in runtime.reports().iter().flat_map(|report| report.lines()) {
        println!("{line}");
    }
    let driven = runtime.driver(Arc::new(decide)).start("keep a note", Limits::default()).await;
    runtime.stop().await;
    Ok(driven?)
}

/// A server of three tools, over its standard input and output.
fn serve() -> Result<(), Box<dyn Error>> {
    let schema = json!({"type": "object", "properties": {"text": {"type": "string"}}});
    let tool =
        |name: &str| json!({"name": name, "description": format!("{name} notes"), "inputSchema": schema});
    let mut notes: Vec<String> = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let request: Value = serde_json::from_str(&line?)?;
        let params = &request["params"];
        let result = match request["method"].as_str() {
            Some("initialize") => json!({
                "protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}},
                "serverInfo": {"name": "notes", "version": "1"},
            }),
            Some("tools/list") => json!({"tools": [tool("add"), tool("list"), tool("forget")]}),
            Some("tools/call") => {
                if params["name"] == "add" {
                    notes.push(params["arguments"]["text"].as_str().unwrap_or_default().to_owned());
                }
                json!({"content": [{"type": "text", "text": notes.join("\n")}]})
            }
            _ => json!({}),
        };
        // A notification is not answered.
        if let Some(id) = request.get("id") {
            println!("{}", json!({"jsonrpc": "2.0", "id": id, "result": result}));
            std::io::stdout().flush()?;
        }
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "serve") {
        return serve();
    }
    let folder = tempfile::tempdir()?;
    let database = match arguments.as_slice() {
        [flag, database, ..] if flag == "--database" => PathBuf::from(database),
        _ => folder.path().join("agent.db"),
    };
    let run = work(&database).await?;
    let result = run.result.as_ref().map_or("nothing", |result| result.as_str());
    println!("{} with {result}", run.status);
    // Cargo runs this as a test, too.
    assert_eq!(run.status, RunStatus::Completed);
    assert!(result.contains("buy milk"), "{result}");
    Ok(())
}
