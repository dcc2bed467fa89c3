//! The scene of the killed actor. It embeds the gate, as a service would, because only who holds the actors can kill
//! one: a proxy gives nobody that power.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use holdpoint::gate::{
    Ending, Json, Limits, Observation, ObservationKind, Proposal, RunId, Runtime, Session, SideEffect, Tool,
    ToolCall, ToolFailure, ToolOutput, ToolSpec, Verdict, async_trait,
};
use holdpoint_actors::address::REACH;

use super::error::{Error, ensure};
use super::scenes::Story;
use super::world::until;

/// Pays, and does not answer: by the time that the actor dies, nobody else knows that it paid.
struct PayAndWait {
    ledger: PathBuf,
}

#[async_trait]
impl Tool for PayAndWait {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "pay".to_owned(),
            description: "Pays an amount to somebody.".to_owned(),
            input_schema: Json::trusted(r#"{"type":"object"}"#),
            side_effect: SideEffect::LocalMutation,
            timeout: Duration::from_secs(30),
            terminal: false,
        }
    }

    async fn call(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let line = format!("{{\"arguments\":{}}}\n", call.args);
        let paid =
            std::fs::File::options().create(true).append(true).open(&self.ledger).and_then(|mut ledger| {
                ledger.write_all(line.as_bytes())?;
                ledger.sync_all()
            });
        paid.map_err(|error| ToolFailure::Failed(error.to_string()))?;
        std::future::pending().await
    }
}

/// A read, to see that calls go on.
struct Balance;

#[async_trait]
impl Tool for Balance {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "balance".to_owned(),
            description: "Tells the balance.".to_owned(),
            input_schema: Json::trusted(r#"{"type":"object"}"#),
            side_effect: SideEffect::ReadOnly,
            timeout: Duration::from_secs(5),
            terminal: false,
        }
    }

    async fn call(&self, _call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        Ok(ToolOutput::new(r#""120.00 EUR""#, "balance"))
    }
}

impl Story<'_> {
    pub(super) async fn an_actor_is_killed(&mut self) -> Result<(), Error> {
        self.teller.scene(7, "An actor is killed in the middle of a call, and the call is answered").await?;
        self.teller
            .line("", "The gate as a library, in this process: who embeds it holds its actors.")
            .await?;
        let (database, ledger) = (self.world.path("embedded/gate.db"), self.world.ledger_file("embedded"));
        let runtime =
            Runtime::builder(&database).tool(Arc::new(PayAndWait { ledger })).tool(Arc::new(Balance));
        let runtime = runtime.start().await.map_err(not_as_told)?;
        let told = self.kill_the_executor(&runtime).await;
        runtime.stop().await;
        told
    }

    async fn kill_the_executor(&mut self, runtime: &Runtime) -> Result<(), Error> {
        let session = runtime.gate().begin(RunId::from("embedded"), "pay frank", Limits::default()).await;
        let session = session.map_err(not_as_told)?;
        self.teller.line("agent", r#"pay {"to":"frank","amount":9}"#).await?;
        let executor = runtime.gate().tree().executor.find(REACH).await;
        let executor = executor.ok_or_else(|| Error::NotAsTold("there is no executor".to_owned()))?;
        let paid = self.world.ledger("embedded");
        let (ended, killed) = tokio::join!(call(&session, "pay", r#"{"to":"frank","amount":9}"#), async {
            paid.reaches(1).await?;
            executor.kill();
            Ok::<(), Error>(())
        });
        killed?;
        self.teller.line("crash", "the tool executor is killed; the tool has paid and not answered").await?;
        let (observation, ending) = ended?;
        let error = observation.field("error").unwrap_or_default();
        ensure(observation.kind == ObservationKind::ToolError && ending == Ending::NoAnswer, || {
            format!("the call ended {ending}: {}", observation.content)
        })?;
        self.teller.found("answer", &format!("in doubt, not failed: {error}")).await?;
        self.paid("embedded", &["9 to frank"]).await?;
        let again = until("the executor's second life", async || {
            let found = runtime.gate().tree().executor.find(REACH).await;
            Ok(found.filter(|actor| actor.get_id() != executor.get_id()))
        })
        .await?;
        drop(again);
        let (read, _) = call(&session, "balance", "{}").await?;
        ensure(read.kind == ObservationKind::ToolResult, || format!("the read gave {}", read.content))?;
        self.teller.found("", "The supervisor has started another; the next call is answered by it.").await?;
        session.close().await;
        Ok(())
    }
}

async fn call(session: &Session, tool: &str, args: &str) -> Result<(Observation, Ending), Error> {
    let step = session.step().await.map_err(not_as_told)?;
    let step = step.ok_or_else(|| Error::NotAsTold("the run is over".to_owned()))?;
    match step.propose(Proposal::tool_call(tool, args)).await.map_err(not_as_told)? {
        Verdict::Allowed { .. } => {
            let executed = step.execute().await.map_err(not_as_told)?;
            Ok((executed.observation, executed.ending))
        }
        other @ (Verdict::Denied { .. } | Verdict::Pending { .. } | Verdict::Ended { .. }) => {
            Err(Error::NotAsTold(format!("{tool} was not allowed: {other:?}")))
        }
    }
}

fn not_as_told(error: impl std::fmt::Display) -> Error {
    Error::NotAsTold(error.to_string())
}
