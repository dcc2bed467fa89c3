//! What calls cost in commits, counted: the same on every machine.

use std::sync::Arc;

use holdpoint_actors::policy::DefaultPolicy;
use holdpoint_actors::session::{Beginning, Gate, Pace};
use holdpoint_actors::store::Observation;
use holdpoint_core::ids::RunId;
use holdpoint_core::tool::SideEffect;
use tokio::task::JoinSet;

use crate::bench::*;

/// Callers at a time: fewer than one transaction takes.
const CALLERS: usize = 64;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn intents_that_wait_commit_together_and_so_do_outcomes() {
    let bench = Bench::new();
    let (tool, latch) = Scripted::latched("finish", SideEffect::LocalMutation);
    let process = bench.process(&[tool], Arc::new(DefaultPolicy)).await;
    let before = process.counts().await;
    assert!(process.tree().store.hold(true).await);
    let mut calls = JoinSet::new();
    for number in 0..CALLERS {
        calls.spawn(one_call(process.gate.clone(), number));
    }
    until(&process, |counts| counts.waiting_intents == CALLERS).await;
    assert!(process.tree().store.hold(false).await);
    for _ in 0..CALLERS {
        latch.entered().await;
    }
    let begun = process.counts().await;
    assert_eq!(begun.synced_commits - before.synced_commits, 1, "all intents in one transaction");
    assert_eq!(begun.applied - before.applied, CALLERS as u64);
    assert!(process.tree().store.hold(true).await);
    for _ in 0..CALLERS {
        latch.release();
    }
    until(&process, |counts| counts.waiting_outcomes == CALLERS).await;
    assert!(process.tree().store.hold(false).await);
    while let Some(called) = calls.join_next().await {
        called.unwrap();
    }
    let over = process.counts().await;
    assert_eq!(over.synced_commits - begun.synced_commits, 1, "all outcomes in one transaction");
    assert_eq!(over.applied - begun.applied, CALLERS as u64);
    assert_eq!((over.written_commits, over.flushes), (before.written_commits, before.flushes));
    process.tree().stop().await;
    bench.verify();
}

/// A run of one call, at the proxy's pace.
async fn one_call(gate: Gate, number: usize) {
    let beginning = Beginning { pace: Pace::Effects, ..Beginning::default() };
    let id = RunId::from(format!("r{number}"));
    let session = gate.begin_with(id, "g", limits(), beginning).await.unwrap();
    let (step, verdict) = propose(&session, call("finish", &format!(r#"{{"n":{number}}}"#))).await;
    allowed(&verdict);
    step.execute().await.unwrap();
    session.close().await;
}

async fn until(process: &Process, so: impl Fn(&Observation) -> bool) {
    while !so(&process.counts().await) {
        tokio::task::yield_now().await;
    }
}
