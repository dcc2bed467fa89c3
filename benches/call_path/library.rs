//! What a step costs a program that embeds the gate, by the number of steps in its run and the size of what it observes.

use std::sync::Arc;
use std::time::Duration;

use holdpoint::gate::{
    Json, Limits, Proposal, Runtime, SideEffect, Tool, ToolCall, ToolFailure, ToolOutput, ToolSpec,
    async_trait,
};
use holdpoint_actors::clock::monotonic;

use crate::numbers::{median, micros, told};
use crate::report::Section;
use crate::{Outcome, Size};

/// Observes so many bytes.
struct Observe(usize);

#[async_trait]
impl Tool for Observe {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "observe".to_owned(),
            description: "Observes.".to_owned(),
            input_schema: Json::trusted(r#"{"type":"object"}"#),
            side_effect: SideEffect::LocalMutation,
            timeout: Duration::from_secs(30),
            terminal: false,
        }
    }

    async fn call(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let text = format!(r#"{{"args":{},"text":"{}"}}"#, call.args.as_str(), "x".repeat(self.0));
        Ok(ToolOutput::new(text, "observed"))
    }
}

/// Steps of the runs that are compared.
const STEPS: [u64; 3] = [10, 100, 400];

/// Measures.
pub(crate) fn steps(size: &Size) -> Outcome<Section> {
    let mut section = Section::new(
        "A step of the library",
        "A run of so many steps, each an allowed local change, through `holdpoint::gate`. The mean of a run's steps; runs of each length take turns.",
    );
    let runtime = tokio::runtime::Runtime::new()?;
    for (bytes, what) in [(16, "small observations"), (8 * 1024, "8 KiB observations")] {
        let rounds = runtime.block_on(runs(bytes, size.runs))?;
        for (at, steps) in STEPS.iter().enumerate() {
            let of = |f: &dyn Fn(&[Run; 3]) -> f64| median(&rounds.iter().map(f).collect::<Vec<_>>());
            let each = of(&|round| round[at].each);
            let ratio = of(&|round| round[at].each / round[0].each);
            let synced = of(&|round| round[at].synced);
            section.row(
                format!("{steps} steps, {what}"),
                format!("{ratio:.2} of a step of 10; {synced:.2} synced commits a step; {}", told(each)),
                if at == 0 { "2 synced commits" } else { "flat, 2 synced commits" },
            );
        }
    }
    Ok(section)
}

/// What a step of one run took, in microseconds, and the commits it synced.
#[derive(Debug, Clone, Copy, Default)]
struct Run {
    each: f64,
    synced: f64,
}

async fn runs(bytes: usize, rounds: u64) -> Outcome<Vec<[Run; 3]>> {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let runtime =
        Runtime::builder(folder.path().join("runs.db")).tool(Arc::new(Observe(bytes))).start().await?;
    let mut measured = Vec::new();
    for round in 0..=rounds {
        let mut lengths = [Run::default(); 3];
        for (at, steps) in STEPS.into_iter().enumerate() {
            lengths[at] = run(&runtime, &format!("run-{round}-{steps}"), steps).await?;
        }
        // The first round warms up.
        if round > 0 {
            measured.push(lengths);
        }
    }
    runtime.stop().await;
    Ok(measured)
}

async fn run(runtime: &Runtime, id: &str, steps: u64) -> Outcome<Run> {
    let limits = Limits { max_steps: 1_000, ..Limits::default() };
    let session = runtime.gate().begin(id.into(), "measure", limits).await?;
    let before = synced_commits(runtime).await?;
    let began = monotonic();
    for n in 0..steps {
        let step = session.step().await?.ok_or("a limit was met")?;
        step.propose(Proposal::tool_call("observe", format!(r#"{{"n":{n}}}"#))).await?;
        step.execute().await?;
    }
    let took = monotonic().duration_since(began);
    let synced = synced_commits(runtime).await? - before;
    session.close().await;
    Ok(Run { each: micros(took) / steps as f64, synced: synced as f64 / steps as f64 })
}

async fn synced_commits(runtime: &Runtime) -> Outcome<u64> {
    Ok(runtime.observe().await.store.ok_or("the store does not count")?.synced_commits)
}
