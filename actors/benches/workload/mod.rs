//! A store in a folder, and callers that put whole calls through it: for benchmarks.
//!
//! Owns the two arms that are compared: the store as it is, two transitions a call and everything that waits in one
//! transaction; and one that commits once per state change, four transactions a call.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use holdpoint_actors::address::Address;
use holdpoint_actors::clock;
use holdpoint_actors::store::{Arguments, Lane, Options, StoreClient, StoreWriter};
use holdpoint_actors::supervisor::{self, ChildSpec, Supervisor};
use holdpoint_core::decision::Proposal;
use holdpoint_core::ids::{LeaseOwner, RunId, StepId};
use holdpoint_core::json::Json;
use holdpoint_core::ledger::{Ledger, RunEnd};
use holdpoint_core::policy::PolicyDecision;
use holdpoint_core::run::{Limits, Reason, Run};
use holdpoint_core::step::{Observation, ObservationKind};
use holdpoint_core::time::UnixNanos;
use holdpoint_core::tool::{RecordedSpec, SideEffect, ToolRequest, ToolSpec};
use holdpoint_core::transition::{Durability, LeaseTerms};
use ractor::{Actor, ActorRef};
use tokio::task::JoinSet;

/// What can go wrong in a benchmark.
pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// When the store commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arm {
    /// Everything that waits, in one transaction; two transitions a call.
    Batched,
    /// A transaction for every change of state: four a call.
    EachState,
}

/// A store that runs.
#[derive(Debug)]
pub(crate) struct Store {
    client: StoreClient,
    supervisor: ActorRef<supervisor::Msg>,
    arm: Arm,
    /// Calls begun, so that no two are the same.
    begun: Arc<AtomicU64>,
}

fn spec() -> ToolSpec {
    ToolSpec {
        name: "bank_pay".to_owned(),
        description: "Pay somebody.".to_owned(),
        input_schema: Json::trusted(r#"{"type":"object"}"#),
        side_effect: SideEffect::RemoteMutation,
        timeout: Duration::from_secs(30),
        terminal: true,
    }
}

impl Store {
    /// Opens a database, made when it is missing.
    ///
    /// # Errors
    /// When it can't be opened, or its writer does not start.
    pub(crate) async fn start(path: &Path, arm: Arm) -> Result<Store, Failure> {
        let batch_max = match arm {
            Arm::Batched => Options::default().batch_max,
            Arm::EachState => 1,
        };
        let writer = Arguments::open(path, Options { batch_max, ..Options::default() })?;
        let (cell, address) = Address::vacant();
        let client = StoreClient::new(address, &writer);
        let child = ChildSpec::new("store-writer", cell, move || (StoreWriter, writer.clone()));
        let (supervisor, _running) = Actor::spawn(None, Supervisor, vec![child]).await?;
        Ok(Store { client, supervisor, arm, begun: Arc::default() })
    }

    /// Puts `calls` calls through it, `callers` at a time, and says how long that took and how many commits it synced.
    ///
    /// # Errors
    /// The first call's that was refused.
    pub(crate) async fn run(&self, callers: u64, calls: u64) -> Result<(Duration, u64), Failure> {
        let upto = self.begun.load(Ordering::Relaxed) + calls;
        let synced = self.synced_commits().await?;
        let before = clock::monotonic();
        let mut set = JoinSet::new();
        for _ in 0..callers.min(calls) {
            let (client, arm, begun) = (self.client.clone(), self.arm, Arc::clone(&self.begun));
            set.spawn(async move {
                while let Ok(number) = begun.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |number| {
                    (number < upto).then_some(number + 1)
                }) {
                    call(&client, arm, number).await?;
                }
                Ok::<(), Failure>(())
            });
        }
        while let Some(caller) = set.join_next().await {
            caller??;
        }
        let took = clock::monotonic().duration_since(before);
        Ok((took, self.synced_commits().await? - synced))
    }

    async fn synced_commits(&self) -> Result<u64, Failure> {
        let counts = self.client.observe(Duration::from_secs(10)).await;
        Ok(counts.ok_or("the writer does not say what it did")?.synced_commits)
    }

    /// Stops it and waits until the file is closed.
    ///
    /// # Errors
    /// When the supervisor was gone before.
    pub(crate) async fn stop(self) -> Result<(), Failure> {
        self.supervisor.cast(supervisor::Msg::Stop)?;
        Ok(self.supervisor.wait(None).await?)
    }
}

/// One call of a mutating tool, from its intent to its outcome.
async fn call(client: &StoreClient, arm: Arm, number: u64) -> Result<(), Failure> {
    let now = UnixNanos::from_nanos(1_790_000_000_000_000_000);
    let terms = LeaseTerms {
        owner: LeaseOwner::from(format!("bench:000000000000/{number:012x}")),
        ttl: Duration::from_secs(30),
    };
    let (spec, run_id) = (spec(), RunId::from(format!("bench.{number:020}")));
    let step_id = StepId::from(format!("step.{number:020}"));
    let args = format!(r#"{{"to":"ACME Ltd","amount":{number}}}"#);
    let recorded: RecordedSpec = spec.recorded();
    let run = Run::begun(run_id.clone(), "call bank_pay", Limits::default(), now);
    let mut ledger = Ledger::begin(terms, run, std::slice::from_ref(&recorded));
    let each = arm == Arm::EachState;
    let _place = client.admit().await?;
    ledger.start_step(step_id.clone(), now);
    if each {
        client.apply(Lane::Intent, ledger.take(Durability::Synced)).await?;
    }
    ledger.decide(Proposal::tool_call("bank_pay", args.as_str()).recorded(), Some(&recorded), now)?;
    if each {
        client.apply(Lane::Outcome, ledger.take(Durability::Synced)).await?;
    }
    ledger.record_policy(PolicyDecision::allow("allowed"), None, None, now)?;
    let request = ToolRequest { run_id, step_id, spec, args: Json::trusted(args.as_str()) };
    ledger.start_tool(&request, None, now)?;
    let lane = if each { Lane::Outcome } else { Lane::Intent };
    client.apply(lane, ledger.take(Durability::Synced)).await?;
    let answer = Observation::new(ObservationKind::ToolResult, Json::trusted(r#"{"paid":true}"#), "paid");
    ledger.end_step(Some(answer.clone()), "paid", now)?;
    let end = RunEnd::new(Reason::GoalCompleted, "terminal tool bank_pay").with_result(Some(answer.content));
    ledger.end_run(end, now)?;
    client.apply(Lane::Outcome, ledger.take(Durability::Synced)).await?;
    Ok(())
}
