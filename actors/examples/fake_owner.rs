//! A process that owns a connection and waits to be killed. For the tests of `connection`.
//!
//! `fake_owner GROUPS SERVER...` starts the server, waits until that many of its groups are written down, prints their
//! records as a JSON array, then the process ids of the server and of the server's child, and sleeps. `PID_NAMESPACE` is
//! the operator's word on a namespace; the server inherits `HOLD`.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use holdpoint_actors::address;
use holdpoint_actors::connection::{
    Arguments, CallEnding, CallRequest, Door, McpConnection, MemoryLedger, Msg, ServerSpec,
};
use ractor::Actor;

type Failure = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut words = std::env::args().skip(1);
    let groups: usize = words.next().ok_or("say how many groups")?.parse()?;
    let ledger = Arc::new(MemoryLedger::default());
    let arguments = Arguments {
        spec: ServerSpec {
            name: "fake".to_owned(),
            command: words.collect(),
            inherit_env: vec!["HOLD".to_owned()],
            pid_namespace: std::env::var("PID_NAMESPACE").ok().map(|word| word.parse()).transpose()?,
            ..ServerSpec::default()
        },
        session: "owner".to_owned(),
        ledger: ledger.clone(),
        check: Arc::new(|listing| Ok(listing.tools().map(|tool| tool.name.clone()).collect())),
    };
    let (actor, _handle) = McpConnection::spawn(None, McpConnection, arguments).await?;
    address::ask(&actor, Duration::from_secs(60), Msg::Tools).await??;
    let pids = CallRequest {
        tool: "pids".to_owned(),
        arguments: "{}".to_owned(),
        timeout: Duration::from_secs(10),
        fence: None,
    };
    let CallEnding::Answered { raw_result } = Door::new("fake").call(actor.clone(), pids).await else {
        return Err("the server does not tell its processes".into());
    };
    let result: serde_json::Value = serde_json::from_str(&raw_result)?;
    while ledger.groups().len() < groups {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let records = serde_json::to_string(&ledger.groups())?;
    let pids = result["content"][0]["text"].as_str().unwrap_or_default();
    writeln!(std::io::stdout(), "{records}\n{pids}")?;
    std::future::pending().await
}
