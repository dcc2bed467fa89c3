//! A finished run, judged again by stricter rules; and a record that somebody altered, found out.
//!
//! `cargo run --example recheck`: a scripted loop reads, writes and publishes behind a policy that lets it. Then the same
//! record is put to a policy under which nothing leaves the machine, which names the step that it would have stopped. Last,
//! one event is altered in a copy of the database, and the chain of events shows where. No model, no network.

#![expect(clippy::print_stdout, reason = "an example talks to the person who runs it")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use holdpoint::gate::{
    Json, Limits, Policy, PolicyDecision, PolicyError, PolicyView, Proposal, RunId, Runtime, SideEffect,
    Tool, ToolCall, ToolFailure, ToolOutput, ToolRequest, ToolSpec, Verdict, async_trait,
};
use holdpoint::recheck::{Report, Specs, recheck, text};
use holdpoint::view::Records;

/// A tool that answers with its arguments: what matters here is whether it may run.
struct Notes(&'static str, SideEffect);

#[async_trait]
impl Tool for Notes {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: self.0.to_owned(),
            description: format!("Does {} with the notes.", self.0),
            input_schema: Json::trusted(
                r#"{"type":"object","required":["path"],"properties":{"path":{"type":"string"}}}"#,
            ),
            side_effect: self.1,
            timeout: Duration::from_secs(1),
            terminal: false,
        }
    }

    async fn call(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        Ok(ToolOutput::new(call.args.as_str(), format!("{} is done", self.0)))
    }
}

/// Rules with a name, so that each recorded decision says which rules made it.
struct Rules {
    id: &'static str,
    may_publish: bool,
}

#[async_trait]
impl Policy for Rules {
    async fn evaluate(
        &self,
        request: &ToolRequest,
        _view: &PolicyView,
    ) -> Result<PolicyDecision, PolicyError> {
        Ok(match request.spec.side_effect {
            SideEffect::ReadOnly | SideEffect::LocalMutation => {
                PolicyDecision::allow("it stays on this machine")
            }
            SideEffect::RemoteMutation if self.may_publish => PolicyDecision::allow("publishing is fine"),
            SideEffect::RemoteMutation | SideEffect::Destructive => {
                PolicyDecision::deny("nothing leaves this machine")
            }
        })
    }

    fn id(&self) -> Option<String> {
        Some(self.id.to_owned())
    }
}

const LENIENT: Rules = Rules { id: "rules v1", may_publish: true };
const STRICT: Rules = Rules { id: "rules v2: nothing leaves", may_publish: false };

type Told<T> = Result<T, Box<dyn std::error::Error>>;

/// The scripted run: three calls, and the end.
async fn record(database: &Path, run: &RunId) -> Told<()> {
    let runtime = Runtime::builder(database)
        .policy(Arc::new(LENIENT))
        .tool(Arc::new(Notes("read", SideEffect::ReadOnly)))
        .tool(Arc::new(Notes("write", SideEffect::LocalMutation)))
        .tool(Arc::new(Notes("publish", SideEffect::RemoteMutation)))
        .start()
        .await?;
    let session =
        runtime.gate().begin(run.clone(), "summarise the notes and post them", Limits::default()).await?;
    let script = [
        Proposal::tool_call("read", r#"{"path":"notes.md"}"#),
        Proposal::tool_call("write", r#"{"path":"summary.md"}"#),
        Proposal::tool_call("publish", r#"{"path":"summary.md"}"#),
        Proposal::complete(r#"{"published":"summary.md"}"#),
    ];
    for proposal in script {
        let step = session.step().await?.ok_or("no limit is reached in four steps")?;
        if let Verdict::Allowed { .. } = step.propose(proposal).await? {
            step.execute().await?;
        }
    }
    println!("run {run} ran under {:?} and is {}\n", LENIENT.id, session.run().await.status);
    session.close().await;
    runtime.stop().await;
    Ok(())
}

/// A copy of the record in which the last policy decision says that it was a denial.
fn alter(database: &Path, copy: &Path) -> Told<()> {
    let copied = copy.to_str().ok_or("the path is text")?;
    rusqlite::Connection::open(database)?.execute("VACUUM INTO ?", [copied])?;
    rusqlite::Connection::open(copy)?.execute(
        r#"UPDATE events SET payload_json = replace(payload_json, '"outcome":"allow"', '"outcome":"deny"')
           WHERE seq = (SELECT MAX(seq) FROM events WHERE type = 'step.policy')"#,
        [],
    )?;
    Ok(())
}

/// The event at which the chain of a record breaks.
fn broken_at(database: &Path) -> Told<Option<i64>> {
    let report = Records::open_to_read(database)?.read(|reader| reader.verify(0, 0))?;
    Ok(report.broken.map(|broken| broken.seq))
}

/// The whole story; gives what re-checking found and where each record breaks.
async fn run(folder: &Path) -> Told<(Report, [Option<i64>; 2])> {
    let (database, copy) = (folder.join("runs.db"), folder.join("altered.db"));
    let run = RunId::from("notes-1");
    record(&database, &run).await?;

    let report = recheck(&database, &run, Arc::new(STRICT), Specs::Recorded).await?;
    print!("{}", text(&report));
    for stopped in report.different() {
        println!("would have been stopped: step {}, {}", stopped.step_index.unwrap_or(-1), stopped.tool);
    }

    alter(&database, &copy)?;
    let breaks = [broken_at(&database)?, broken_at(&copy)?];
    println!();
    for (name, broken) in ["the record", "its altered copy"].iter().zip(breaks) {
        let found = broken.map_or("is whole".to_owned(), |seq| format!("breaks at event {seq}"));
        println!("the chain of {name} {found}");
    }
    Ok((report, breaks))
}

#[tokio::main]
async fn main() -> Told<()> {
    let folder = tempfile::tempdir()?;
    run(folder.path()).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn stricter_rules_stop_the_publishing_and_the_altered_event_is_found() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let (report, breaks) = run(folder.path()).await.expect("the story goes as told");
        let stopped: Vec<&str> = report.different().map(|evaluation| evaluation.tool.as_str()).collect();
        assert_eq!((report.rechecked(), stopped), (3, vec!["publish"]));
        let [whole, altered] = breaks;
        assert!(whole.is_none() && altered.is_some());
    }
}
