//! A process that owns a connection and waits to be killed. For the tests of `connection`.
//!
//! `fake_owner SERVER` starts `SERVER orphan`, prints the record of its group as JSON, then the process ids of the
//! server and of the server's child, and sleeps.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use holdpoint_actors::connection::{
    Arguments, CallEnding, CallRequest, Door, McpConnection, MemoryLedger, Msg, ServerSpec,
};
use ractor::Actor;

type Failure = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let server = std::env::args().nth(1).ok_or("name the server")?;
    let ledger = Arc::new(MemoryLedger::default());
    let arguments = Arguments {
        spec: ServerSpec {
            name: "fake".to_owned(),
            command: vec![server, "orphan".to_owned()],
            ..ServerSpec::default()
        },
        session: "owner".to_owned(),
        ledger: ledger.clone(),
        check: Arc::new(|listing| Ok(listing.tools().map(|tool| tool.name.clone()).collect())),
    };
    let (actor, _handle) = McpConnection::spawn(None, McpConnection, arguments).await?;
    actor.call(Msg::Tools, None).await?.expect("an answer to Tools")?;
    let pids = CallRequest {
        tool: "pids".to_owned(),
        arguments: "{}".to_owned(),
        timeout: Duration::from_secs(10),
        fence: None,
    };
    let CallEnding::Answered { raw_result } = Door::new("fake").call(&actor, pids).await else {
        return Err("the server does not tell its processes".into());
    };
    let result: serde_json::Value = serde_json::from_str(&raw_result)?;
    let record = serde_json::to_string(&ledger.groups()[0])?;
    let pids = result["content"][0]["text"].as_str().unwrap_or_default();
    writeln!(std::io::stdout(), "{record}\n{pids}")?;
    std::future::pending().await
}
