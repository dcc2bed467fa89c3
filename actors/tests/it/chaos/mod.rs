//! The table *What a death answers*, walked: each actor, at each named step of a call, of each kind, by panic, error and
//! kill.
//!
//! A case makes one call at the pace of a run of one call, has the actor die at the step, and holds the answer to the
//! table. Whatever happened, the record must verify, and the world, which is what the tool was called with, must not
//! show a call twice that nobody allowed twice.

mod connection;
mod scene;
mod soak;
mod stalled;
mod table;

use std::fmt::Debug;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::time::Duration;

use holdpoint_actors::approval;
use holdpoint_actors::faults::Point;
use holdpoint_actors::session::SessionError;
use holdpoint_actors::tree::Running;
use holdpoint_core::attempt::Ending;
use holdpoint_core::decision::Proposal;
use holdpoint_core::ids::RunId;
use holdpoint_core::run::RunStatus;
use holdpoint_core::step::StepStatus;

use crate::bench::*;
use scene::{Scene, gone, strike};
use table::{Came, DEATHS, Death, IN_DOUBT, KINDS, Kind, STEPS, Step, Victim, expected, is_possible};

/// How long an answer may take before nobody answered.
const SOON: Duration = Duration::from_secs(20);

/// Names the file in which whoever runs these tests has their cases counted.
const COUNTS: &str = "HOLDPOINT_CHAOS_COUNTS";

/// Writes a case down that has come to its end, for whoever counts them.
fn counted(who: impl Debug, how: impl Debug, step: Step, kind: Kind) {
    if let Some(path) = std::env::var_os(COUNTS) {
        let line = format!("{who:?} {how:?} {step:?} {kind:?}\n").replace('"', "");
        let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
        // In one piece: the tests run side by side.
        file.write_all(line.as_bytes()).unwrap();
    }
}

async fn walk(victim: Victim, steps: &[Step]) {
    for step in steps {
        for death in DEATHS.into_iter().filter(|death| is_possible(*death, *step)) {
            let scene = Scene::new().await;
            for kind in KINDS {
                scene.case(victim, death, *step, kind).await;
            }
            assert_eq!(scene.faults.left(), 0, "{victim:?} {death:?} {step:?}: a fault did not strike");
            scene.bench.verify();
            assert!(scene.process.tree().sessions.is_empty(), "nothing is held");
            scene.process.tree().stop().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_is_answered_as_the_table_says_when_the_writer_dies() {
    walk(Victim::StoreWriter, &STEPS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_is_answered_as_the_table_says_when_a_commit_is_in_doubt() {
    walk(Victim::StoreWriter, &IN_DOUBT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_is_answered_as_the_table_says_when_the_evaluator_dies() {
    walk(Victim::PolicyEvaluator, &STEPS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_is_answered_as_the_table_says_when_the_executor_dies() {
    walk(Victim::ToolExecutor, &STEPS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_is_answered_as_the_table_says_when_the_keeper_dies() {
    walk(Victim::LeaseKeeper, &STEPS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_is_answered_as_the_table_says_when_the_waiter_dies() {
    walk(Victim::ApprovalWaiter, &STEPS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_held_call_hears_of_its_approval_whoever_died_meanwhile() {
    let victims = [
        Victim::StoreWriter,
        Victim::LeaseKeeper,
        Victim::PolicyEvaluator,
        Victim::ToolExecutor,
        Victim::ApprovalWaiter,
    ];
    for victim in victims {
        let scene = Scene::new().await;
        for death in DEATHS {
            scene.whole().await;
            let run = RunId::from(format!("approved.{death:?}"));
            let (_session, _, verdict) = scene.propose(Kind::Approved, &run).await.unwrap();
            let approval = pending(verdict);
            let (waiter, of, id) = (scene.process.tree().approval.clone(), run.clone(), approval.id.clone());
            let held = tokio::spawn(async move { approval::wait(&waiter, &of, &id, SOON).await });
            while scene.process.tree().observe().await.approval.is_none_or(|seen| seen.waiters == 0) {}
            strike(scene.process.tree().clone(), victim, death).await;
            scene.bench.approve(&approval);
            assert!(held.await.unwrap(), "{victim:?} {death:?}: it was not told");
            assert_eq!(scene.make_when_back(Kind::Approved, &run).await, Ending::Answered);
            assert_eq!(scene.effects(&run), 1);
        }
        scene.bench.verify();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_the_tree_is_seen_and_every_call_in_flight_is_answered_as_the_table_says() {
    for step in STEPS {
        for (death, kind) in DEATHS.into_iter().flat_map(|death| KINDS.map(|kind| (death, kind))) {
            end_of_the_tree(death, step, kind).await;
        }
    }
}

async fn end_of_the_tree(death: Death, step: Step, kind: Kind) {
    let scene = Scene::new().await;
    let name = format!("{}.{death:?}.{step:?}", format!("{kind:?}").to_lowercase());
    let run = RunId::from(name.as_str());
    scene.ready(kind, &run).await;
    scene.arm(Victim::Supervisor, death, step, &run);
    let answer = tokio::time::timeout(SOON, scene.execute(kind, &run)).await;
    let answer = answer.unwrap_or_else(|_| panic!("{name}: nobody answered"));
    let (session, came) = match answer {
        Ok((session, Ending::Answered)) => (Some(session), Came::Answered),
        Ok((session, Ending::NotSent)) => (Some(session), Came::NotSent),
        Ok((session, Ending::NoAnswer)) => (Some(session), Came::NoAnswer),
        Err(SessionError::Unavailable(_)) => (None, Came::Unavailable),
        other => panic!("{name}: an answer that the table does not have: {other:?}"),
    };
    assert_eq!([came], expected(Victim::Supervisor, step), "{name}");
    if let Some(session) = session {
        if step != Step::Recorded {
            // The executor may be the first to go.
            gone(scene.process.tree()).await;
        }
        let last = session.step().await.unwrap().unwrap();
        let recorded = tokio::time::timeout(SOON, last.propose(Proposal::complete(""))).await;
        let recorded = recorded.unwrap_or_else(|_| panic!("{name}: nobody said whether it is recorded"));
        if step == Step::Recorded {
            ended(recorded.unwrap());
            strike(scene.process.tree().clone(), Victim::Supervisor, death).await;
        } else {
            // Nobody is left to record it, which is said; the next process finds the call executing.
            assert!(matches!(recorded, Err(SessionError::Unavailable(_))), "{name}: {recorded:?}");
        }
    }
    assert_eq!(scene.effects(&run), usize::from(matches!(came, Came::Answered | Came::NoAnswer)), "{name}");
    let Scene { bench, process, .. } = scene;
    let Running { tree: _, ended } = process.running;
    tokio::time::timeout(SOON, ended).await.expect("the tree has ended").unwrap();
    let recorded = bench.operator().read(|reader| reader.run(&run)).unwrap();
    let recorded = recorded.map(|run| (run.status, bench.steps(&run.id)[0].status));
    let expected = match (came, kind) {
        (Came::Unavailable, Kind::Read | Kind::Local | Kind::Remote) => None,
        (Came::Unavailable, Kind::Approved | Kind::ReRun) => {
            Some((RunStatus::WaitingForApproval, StepStatus::AwaitingApproval))
        }
        (Came::Answered, _) if step == Step::Recorded => Some((RunStatus::Completed, StepStatus::Done)),
        (Came::Answered | Came::NotSent | Came::NoAnswer, _) => {
            Some((RunStatus::Running, StepStatus::Executing))
        }
    };
    assert_eq!(recorded, expected, "{name}");
    bench.verify();
    counted(Victim::Supervisor, death, step, kind);
}

fn step_of(point: Point) -> Step {
    match point {
        Point::Judging => Step::Judging,
        Point::Starting => Step::Starting,
        Point::Started => Step::Started,
        Point::Answered => Step::Answered,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_dies_leaves_its_run_to_recovery_as_the_table_says() {
    for point in [Point::Judging, Point::Starting, Point::Started, Point::Answered] {
        let scene = Scene::new().await;
        for kind in KINDS {
            let name = format!("{}.{point:?}", format!("{kind:?}").to_lowercase());
            let run = RunId::from(name.as_str());
            scene.ready(kind, &run).await;
            scene.process.tree().hooks.once(point, run.clone(), || async { panic!("the session dies") });
            let answer = scene.make(kind, &run).await;
            assert!(matches!(answer, Err(SessionError::Internal { .. })), "{name}: {answer:?}");

            let sent = point == Point::Answered;
            if matches!(point, Point::Judging | Point::Starting) {
                // Nothing of it is recorded, and the next call is as the first.
                assert_eq!(scene.make_when_back(kind, &run).await, Ending::Answered, "{name}");
            } else if kind == Kind::Read {
                scene.until(&run, |run, held| run.status == RunStatus::Running && !held).await;
                assert_eq!(scene.bench.steps(&run)[0].status, StepStatus::Interrupted, "{name}");
            } else {
                scene.until(&run, |run, held| run.status == RunStatus::WaitingForApproval && !held).await;
                let asked = scene.bench.approvals(&run).pop().unwrap();
                assert!(asked.is_interruption(), "{name}");
            }
            let before = matches!(point, Point::Judging | Point::Starting);
            assert_eq!(scene.effects(&run), usize::from(before || sent), "{name}");
            counted("Session", Death::Panic, step_of(point), kind);
        }
        scene.bench.verify();
    }
}
