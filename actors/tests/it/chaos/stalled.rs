//! Stalls: whoever has to answer goes on for ever, and the call ends by its deadline, whatever its kind.

use std::future::pending;
use std::time::Duration;

use holdpoint_actors::session::{Attached, Pace, SessionError, Verdict};
use holdpoint_core::attempt::Ending;
use holdpoint_core::ids::RunId;
use holdpoint_core::run::{Reason, Run, RunStatus};
use holdpoint_core::step::StepStatus;

use super::counted;
use super::scene::Scene;
use super::table::{KINDS, Kind, Step};
use crate::bench::*;

/// Long enough for whatever is not stalled here, on a busy machine too.
const DEADLINE: Duration = Duration::from_secs(3);

fn run_of(kind: Kind) -> RunId {
    RunId::from(format!("{kind:?}.stalled").to_lowercase())
}

/// What the policy's stall ends the run as.
async fn judged(scene: &Scene, kind: Kind, run: &RunId) -> Result<Run, SessionError> {
    match kind {
        Kind::Read | Kind::Local | Kind::Remote => match scene.propose(kind, run).await?.2 {
            Verdict::Ended { run } => Ok(run),
            other @ (Verdict::Allowed { .. } | Verdict::Denied { .. } | Verdict::Pending { .. }) => {
                panic!("{kind:?}: {other:?}")
            }
        },
        Kind::Approved | Kind::ReRun => {
            match scene.process.gate.attach_with(run.clone(), Pace::Effects).await? {
                Attached::Ended(run) => Ok(run),
                other @ (Attached::Open(_)
                | Attached::Allowed(..)
                | Attached::Denied(..)
                | Attached::Pending(..)) => panic!("{kind:?}: {other:?}"),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tool_that_stalls_past_its_deadline_has_timed_out_and_does_not_run_again() {
    let scene = Scene::within(DEADLINE).await;
    let calls = KINDS.map(async |kind| {
        let run = run_of(kind);
        scene.ready(kind, &run).await;
        scene.in_tool.add(&run, pending());
        assert_eq!(scene.make(kind, &run).await, Ok(Ending::TimedOut), "{kind:?}");
        assert_eq!(scene.effects(&run), 1, "{kind:?}");
        assert_eq!(scene.bench.steps(&run)[0].status, StepStatus::Failed, "{kind:?}");
        is_run_state(scene.process.gate.attach_with(run.clone(), Pace::Effects).await);
        assert_eq!(scene.effects(&run), 1, "{kind:?}");
        counted("Tool", "Stall", Step::Sent, kind);
    });
    futures_util::future::join_all(calls).await;
    scene.bench.verify();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_that_stalls_past_its_deadline_ends_the_run_and_nothing_runs() {
    let scene = Scene::within(DEADLINE).await;
    let calls = KINDS.map(async |kind| {
        let run = run_of(kind);
        scene.ready(kind, &run).await;
        scene.in_policy.add(&run, pending());
        let ended = judged(&scene, kind, &run).await.unwrap();
        assert_eq!(
            (ended.status, ended.reason),
            (RunStatus::Failed, Some(Reason::InternalError)),
            "{kind:?}"
        );
        assert!(ended.reason_detail.contains("overran its deadline"), "{}", ended.reason_detail);
        assert_eq!(scene.effects(&run), 0, "{kind:?}");
        counted("Policy", "Stall", Step::Judging, kind);
    });
    futures_util::future::join_all(calls).await;
    scene.bench.verify();
}
