//! The limits of a run, as they end it: before a step, and never in the middle of one.

use std::sync::Arc;
use std::time::Duration;

use holdpoint_actors::executor::{ToolFailure, ToolOutput};
use holdpoint_core::decision::Proposal;
use holdpoint_core::run::{Limits, Reason, RunStatus};
use holdpoint_core::tool::SideEffect;

use crate::bench::*;

fn failing(name: &str) -> Arc<Scripted> {
    Scripted::giving(name, SideEffect::ReadOnly, Err(ToolFailure::Failed("kaboom".to_owned())))
}

#[tokio::test]
async fn a_run_ends_before_a_step_beyond_its_limit() {
    let bench = Bench::new();
    let tools = tools();
    let process = bench.process(&tools, by_class()).await;
    let session = process.gate.begin(r(), "g", Limits { max_steps: 2, ..limits() }).await.unwrap();
    drive(&session, &[call("read", "{\"n\":1}"), call("read", "{\"n\":2}")]).await;
    let run = session.run().await;
    is(&run, RunStatus::Failed, Reason::LimitSteps);
    assert_eq!(
        (run.step_count, tools[0].calls(), run.reason_detail.as_str()),
        (2, 2, "step limit 2 reached")
    );
    assert!(bench.kinds(&r()).ends_with("limit.exceeded run.finished"));
    bench.verify();
}

#[tokio::test]
async fn failures_in_a_row_end_a_run_whatever_their_kinds() {
    let bench = Bench::new();
    let tools = [
        Scripted::new("read", SideEffect::ReadOnly),
        failing("boom"),
        Scripted::new("wipe", SideEffect::Destructive),
    ];
    let process = bench.process(&tools, by_class()).await;
    let limits = Limits { max_consecutive_tool_failures: 3, ..limits() };
    let session = process.gate.begin(r(), "g", limits).await.unwrap();
    let decisions =
        [call("read", "{}"), call("boom", "{}"), call("read", "{\"n\":\"bad\"}"), call("wipe", "{}")];
    drive(&session, &decisions).await;
    let run = session.run().await;
    is(&run, RunStatus::Failed, Reason::RepeatedToolFailures);
    assert_eq!((run.step_count, run.reason_detail.as_str()), (4, "3 consecutive failed steps"));
    assert!(bench.kinds(&r()).ends_with("limit.exceeded run.finished"));
}

#[tokio::test]
async fn a_success_ends_a_row_of_failures() {
    let bench = Bench::new();
    let tools = [Scripted::new("read", SideEffect::ReadOnly), failing("boom")];
    let process = bench.process(&tools, by_class()).await;
    let limits = Limits { max_consecutive_tool_failures: 3, ..limits() };
    let session = process.gate.begin(r(), "g", limits).await.unwrap();
    let boom = || call("boom", "{}");
    let decisions = [boom(), boom(), call("read", "{}"), boom(), boom(), Proposal::complete("")];
    drive(&session, &decisions).await;
    is(&session.run().await, RunStatus::Completed, Reason::GoalCompleted);
}

#[tokio::test]
async fn the_same_call_with_the_same_result_ends_a_run_and_a_changing_result_does_not() {
    let bench = Bench::new();
    let count = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let poll = Scripted::with(spec("poll", SideEffect::ReadOnly), move |_| {
        let n = count.fetch_add(1, std::sync::atomic::Ordering::AcqRel);
        Box::pin(async move { Ok(ToolOutput::new(n.to_string(), "")) })
    });
    let tools = [Scripted::new("read", SideEffect::ReadOnly), poll];
    let process = bench.process(&tools, by_class()).await;
    let limits = Limits { loop_threshold: 3, ..limits() };
    let session = process.gate.begin(r(), "g", limits.clone()).await.unwrap();
    let read = || call("read", "{\"n\":1}");
    let poll = || call("poll", "{}");
    let decisions = [poll(), poll(), poll(), read(), read(), poll(), read(), read(), read()];
    drive(&session, &decisions).await;
    let run = session.run().await;
    is(&run, RunStatus::Failed, Reason::LoopDetected);
    assert_eq!(run.step_count, 9);
    assert!(bench.kinds(&r()).ends_with("loop.detected run.finished"));
    let events = bench.events(&r());
    let payload = &events[events.len() - 2].payload;
    assert!(payload.contains("\"repeats\":3,\"tool\":\"read\""), "{payload}");
}

#[tokio::test]
async fn active_time_is_the_steps_time_without_the_wait_for_a_person() {
    let bench = Bench::new();
    let clock = Arc::clone(&bench.clock);
    let work = Scripted::with(spec("work", SideEffect::ReadOnly), move |_| {
        clock.advance(Duration::from_secs(10));
        Box::pin(async { Ok(ToolOutput::default()) })
    });
    let tools = [work, Scripted::new("push", SideEffect::RemoteMutation)];
    let process = bench.process(&tools, by_class()).await;
    let limits = Limits { max_active_time: 60_000_000_000, ..limits() };
    let session = process.gate.begin(r(), "g", limits).await.unwrap();
    drive(&session, &[call("work", "{}"), call("work", "{}"), call("push", "{}")]).await;
    // Three readings from a step's start to its end, and ten seconds of work.
    assert_eq!(bench.run(&r()).active_ms, 26_000);
    let approval = bench.approvals(&r()).pop().unwrap();
    bench.clock.advance(Duration::from_secs(3 * 3600));
    bench.approve(&approval);
    let (session, step) = granted(process.gate.attach(r()).await);
    step.execute().await.unwrap();
    assert_eq!(bench.run(&r()).active_ms, 27_000, "the step's clock began again");
    act(&session, call("work", "{}")).await;
    act(&session, call("work", "{}")).await;
    act(&session, call("work", "{}")).await;
    assert!(session.step().await.unwrap().is_none());
    is(&session.run().await, RunStatus::Failed, Reason::LimitActiveTime);
    let sum: i64 = bench.steps(&r()).iter().map(|s| s.finished_at.unwrap().millis_since(s.started_at)).sum();
    assert_eq!((bench.run(&r()).active_ms, session.run().await.active_ms), (sum, sum));
}

#[tokio::test]
async fn the_steps_own_time_survives_the_end_of_the_run() {
    let bench = Bench::new();
    let process = bench.process(&tools(), by_class()).await;
    let session = process.begin().await;
    let last = drive(&session, &[call("read", "{}"), Proposal::complete("")]).await.unwrap();
    let sum: i64 = bench.steps(&r()).iter().map(|s| s.finished_at.unwrap().millis_since(s.started_at)).sum();
    assert!(sum > 0);
    assert_eq!((bench.run(&r()).active_ms, ended(last).active_ms), (sum, sum));
}

#[tokio::test]
async fn elapsed_time_counts_the_wait_and_a_granted_step_still_executes() {
    let bench = Bench::new();
    let tools = tools();
    let process = bench.process(&tools, by_class()).await;
    let limits = Limits { max_elapsed_time: 3_600_000_000_000, ..limits() };
    let session = process.gate.begin(r(), "g", limits).await.unwrap();
    let approval = pending(propose(&session, call("push", "{}")).await.1);
    bench.clock.advance(Duration::from_secs(2 * 3600));
    bench.approve(&approval);
    let (session, step) = granted(process.gate.attach(r()).await);
    step.execute().await.unwrap();
    assert!(session.step().await.unwrap().is_none());
    is(&session.run().await, RunStatus::Failed, Reason::LimitElapsedTime);
    assert_eq!(tools[2].calls(), 1);
}
