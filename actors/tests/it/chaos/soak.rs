//! A run that goes on while its actors die at any moment, at the pace that commits every state.
//!
//! Nothing is timed here: what must hold holds wherever the deaths fall.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use holdpoint_actors::faults::Point;
use holdpoint_actors::session::{Attached, Session, SessionError, Verdict};
use holdpoint_core::decision::Proposal;
use holdpoint_core::ids::RunId;
use holdpoint_core::run::Limits;

use super::scene::{Scene, strike};
use super::table::{DEATHS, Victim};
use crate::bench::*;

/// Deaths of one tree: fewer than end it.
const DEATHS_MAX: usize = 8;

/// Numbers that look random and are the same for the same seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % sides as u64).unwrap()
    }
}

/// Goes on with the run until it is over: after each error from what the record says.
async fn go_on(scene: &Scene, run: &RunId, dice: &mut Dice) {
    let gate = &scene.process.gate;
    let limits = Limits { max_steps: 12, max_consecutive_tool_failures: 12, loop_threshold: 12, ..limits() };
    let mut session = loop {
        match gate.begin(run.clone(), "g", limits.clone()).await {
            Ok(session) => break Some(session),
            Err(SessionError::Exists(_)) => break None,
            Err(_) => tokio::task::yield_now().await,
        }
    };
    loop {
        let held = match session.take() {
            Some(session) => session,
            None => match attach(scene, run).await {
                Some(session) => session,
                None => return,
            },
        };
        if steps(scene, &held, dice).await {
            return;
        }
    }
}

/// Opens a session on the run, answering what it asks. None when it is over.
async fn attach(scene: &Scene, run: &RunId) -> Option<Session> {
    loop {
        let found = scene.bench.operator().read(|reader| reader.run(run)).unwrap();
        if found.is_some_and(|run| run.status.is_terminal()) {
            return None;
        }
        match scene.process.gate.attach(run.clone()).await {
            Ok(Attached::Open(session) | Attached::Denied(session, _)) => return Some(session),
            Ok(Attached::Allowed(session, step)) => {
                if step.execute().await.is_ok() {
                    return Some(session);
                }
            }
            Ok(Attached::Pending(approval, _)) => scene.bench.approve(&approval),
            Ok(Attached::Ended(_)) => return None,
            Err(SessionError::Leased { .. }) => scene.bench.wall.advance(Duration::from_secs(31)),
            Err(_) => {
                // It may wait for an answer that a session died before it told of.
                let open = scene.bench.approvals(run).into_iter().rfind(|a| a.is_open(start()));
                if let Some(open) = open.filter(|_| !scene.bench.run(run).status.is_terminal()) {
                    drop(scene.bench.decide(run, &open.id, holdpoint_actors::store::Verdict::Approve));
                }
                tokio::task::yield_now().await;
            }
        }
    }
}

/// Takes steps until the run is over, which is true, or the session is, which is false.
async fn steps(scene: &Scene, session: &Session, dice: &mut Dice) -> bool {
    loop {
        // The session itself may die, too.
        let points = [Point::Judging, Point::Starting, Point::Started, Point::Answered];
        if let Some(point) = points.get(dice.roll(20)) {
            let hooks = &scene.process.tree().hooks;
            hooks.once(*point, session.run_id().clone(), || async { panic!("the session dies") });
        }
        let step = match session.step().await {
            Ok(Some(step)) => step,
            Ok(None) => return true,
            Err(_) => return false,
        };
        let proposal = match dice.roll(8) {
            0..=2 => call("read", "{}"),
            3..=5 => call("local", "{}"),
            6 => call("remote", "{}"),
            _ => call("nope", "{}"),
        };
        let proposal = if step.index() < 8 { proposal } else { Proposal::complete("") };
        match step.propose(proposal).await {
            Ok(Verdict::Allowed { .. }) if step.execute().await.is_ok() => {}
            Ok(Verdict::Denied { .. }) => {}
            Ok(Verdict::Ended { .. }) => return true,
            Ok(Verdict::Allowed { .. } | Verdict::Pending { .. }) | Err(_) => return false,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_comes_to_its_end_whoever_dies_and_nothing_happens_twice_unasked() {
    for seed in 1..=6 {
        let scene = Arc::new(Scene::new().await);
        scene.slow.store(20, Ordering::Release);
        let over = Arc::new(AtomicBool::new(false));
        let deaths = tokio::spawn({
            let (scene, over) = (Arc::clone(&scene), Arc::clone(&over));
            async move {
                let mut dice = Dice(0x9e37_79b9_7f4a_7c15 ^ seed);
                for _ in 0..DEATHS_MAX {
                    for _ in 0..dice.roll(400) {
                        tokio::task::yield_now().await;
                    }
                    if over.load(Ordering::Acquire) {
                        return;
                    }
                    let victims = [
                        Victim::StoreWriter,
                        Victim::ToolExecutor,
                        Victim::LeaseKeeper,
                        Victim::ApprovalWaiter,
                        Victim::PolicyEvaluator,
                    ];
                    let (victim, death) = (victims[dice.roll(5)], DEATHS[dice.roll(3)]);
                    strike(scene.process.tree().clone(), victim, death).await;
                }
            }
        });
        let mut dice = Dice(0x2545_f491_4f6c_dd1d ^ seed);
        for at in 0..3 {
            let run = RunId::from(format!("run.{at}"));
            tokio::time::timeout(Duration::from_secs(120), go_on(&scene, &run, &mut dice))
                .await
                .expect("an end");
            assert!(scene.bench.run(&run).status.is_terminal());
            let events = scene.bench.events(&run);
            for step in scene.bench.steps(&run) {
                let of = |kind: &str| {
                    events.iter().filter(|e| e.kind == kind && e.step_id == step.id.as_str()).count()
                };
                let effects = scene.effects_of(&step.id);
                let asked = scene.bench.approvals(&run).iter().filter(|a| a.step_id == step.id).count();
                assert!(effects <= of("step.tool_started"), "an effect without its start: {seed} {run}");
                assert!(effects <= 1 + asked, "an effect twice, and nobody was asked: {seed} {run}");
            }
        }
        over.store(true, Ordering::Release);
        deaths.await.unwrap();
        scene.bench.verify();
    }
}
