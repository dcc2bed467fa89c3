//! The two paces: the same rows and the same events in the same order, in different numbers of commits.

use holdpoint_actors::executor::ToolFailure;
use holdpoint_actors::session::{Attached, Beginning, Pace, Session, SessionError, Verdict};
use holdpoint_core::decision::Proposal;
use holdpoint_core::policy::PolicyDecision;
use holdpoint_core::run::{Limits, Reason, RunStatus};
use holdpoint_core::step::StepStatus;
use holdpoint_core::tool::SideEffect;

use crate::bench::*;

async fn begin(process: &Process, pace: Pace, limits: Limits) -> Session {
    let beginning = Beginning { pace, ..Beginning::default() };
    process.gate.begin_with(r(), "g", limits, beginning).await.unwrap()
}

/// Plays a story at one pace, and gives everything that it left.
async fn left(pace: Pace, limits: Limits, decisions: &[Proposal]) -> (String, usize) {
    let bench = Bench::new();
    let mut tools = tools();
    let failing = |name: &str, failure| Scripted::giving(name, SideEffect::LocalMutation, Err(failure));
    tools.push(failing("fails", ToolFailure::Failed("no".to_owned())));
    tools.push(failing("aborts", ToolFailure::Abort("stop".to_owned())));
    let process = bench.process(&tools, by_class()).await;
    let session = begin(&process, pace, limits).await;
    let last = drive(&session, decisions).await;
    session.close().await;
    if let Some(Verdict::Pending { approval, .. }) = last {
        bench.approve(&approval);
        let attached = process.gate.attach_with(r(), pace).await;
        let (session, step) = granted(attached);
        step.execute().await.unwrap();
        drive(&session, decisions).await;
        session.close().await;
    }
    bench.verify();
    (bench.rows(&r()), bench.clock.count())
}

#[tokio::test]
async fn both_paces_leave_the_same_rows_and_events_and_read_the_clock_alike() {
    let read = || call("read", "{\"n\":1}");
    let done = || Proposal::complete("{\"ok\":true}");
    let base = limits();
    let stories: Vec<(&str, Limits, Vec<Proposal>)> = vec![
        ("a read", base.clone(), vec![read(), done()]),
        ("a write", base.clone(), vec![call("write", "{}"), done()]),
        ("a denial", base.clone(), vec![call("wipe", "{}"), done()]),
        ("an invalid call", base.clone(), vec![call("read", "{\"n\":\"x\"}"), call("nope", "{"), done()]),
        ("a held call", base.clone(), vec![call("push", "{\"n\":7}"), read(), done()]),
        ("a terminal tool", base.clone(), vec![call("finish", "{}")]),
        ("a failure", base.clone(), vec![call("fails", "{}"), Proposal::fail("gave up")]),
        ("an abort", base.clone(), vec![call("aborts", "{}")]),
        ("a run of one failed call", Limits { max_steps: 1, ..base.clone() }, vec![call("fails", "{}")]),
        (
            "a run of failures",
            Limits { max_consecutive_tool_failures: 2, ..base.clone() },
            vec![call("fails", "{}"); 2],
        ),
        ("a loop", Limits { loop_threshold: 2, ..base }, vec![read(), read()]),
    ];
    for (name, limits, decisions) in stories {
        let slow = left(Pace::EveryState, limits.clone(), &decisions).await;
        let fast = left(Pace::Effects, limits, &decisions).await;
        assert_eq!(fast.0, slow.0, "{name}");
        assert_eq!(fast.1, slow.1, "{name}: the clock's readings");
    }
}

#[tokio::test]
async fn a_call_that_changes_something_costs_two_synced_commits_and_a_read_none() {
    for (tool, synced, written) in [("write", 2, 0), ("read", 0, 2)] {
        let bench = Bench::new();
        let process = bench.process(&tools(), by_class()).await;
        let before = process.counts().await;
        let session = begin(&process, Pace::Effects, limits()).await;
        act(&session, call(tool, "{}")).await;
        ended(propose(&session, Proposal::complete("")).await.1);
        let after = process.counts().await;
        assert_eq!(
            (after.synced_commits - before.synced_commits, after.written_commits - before.written_commits),
            (synced, written),
            "{tool}"
        );
        is(&bench.run(&r()), RunStatus::Completed, Reason::GoalCompleted);
    }
}

#[tokio::test]
async fn a_call_that_is_refused_costs_one_written_commit_and_one_that_waits_a_synced_one() {
    for (tool, synced, written) in [("wipe", 0, 1), ("nope", 0, 1), ("push", 1, 0)] {
        let bench = Bench::new();
        let process = bench.process(&tools(), by_class()).await;
        let before = process.counts().await;
        let session = begin(&process, Pace::Effects, Limits { max_steps: 1, ..limits() }).await;
        propose(&session, call(tool, "{}")).await;
        if tool != "push" {
            assert!(session.step().await.unwrap().is_none());
        }
        let after = process.counts().await;
        assert_eq!(
            (after.synced_commits - before.synced_commits, after.written_commits - before.written_commits),
            (synced, written),
            "{tool}"
        );
    }
}

#[tokio::test]
async fn at_the_slower_pace_each_crash_point_is_a_commit() {
    let bench = Bench::new();
    let process = bench.process(&tools(), by_class()).await;
    let count = async || {
        let counts = process.counts().await;
        (counts.synced_commits, counts.written_commits)
    };
    let start = count().await;
    let session = process.begin().await;
    assert_eq!(count().await, (start.0 + 1, start.1), "an embedder's run begins synced");
    let step = session.step().await.unwrap().unwrap();
    assert_eq!(count().await, (start.0 + 1, start.1 + 1));
    allowed(&step.propose(call("write", "{}")).await.unwrap());
    assert_eq!(count().await, (start.0 + 1, start.1 + 2));
    step.execute().await.unwrap();
    assert_eq!(count().await, (start.0 + 3, start.1 + 2), "its start and its outcome are synced");
    let (step, _) = propose(&session, call("read", "{}")).await;
    step.execute().await.unwrap();
    assert_eq!(count().await, (start.0 + 3, start.1 + 6), "a read syncs nothing");
}

#[tokio::test]
async fn at_the_faster_pace_nothing_is_recorded_before_something_outside_could_notice() {
    let bench = Bench::new();
    let process = bench.process(&tools(), by_class()).await;
    let session = begin(&process, Pace::Effects, limits()).await;
    let (step, verdict) = propose(&session, call("write", "{}")).await;
    allowed(&verdict);
    let recorded = || bench.operator().read(|reader| reader.run(&r())).unwrap().is_some();
    assert!(!recorded());
    session.close().await;
    assert!(!recorded(), "a call that was allowed and not executed leaves nothing");
    is_closed(step.execute().await);
}

#[tokio::test]
async fn closing_at_the_faster_pace_records_the_outcome_that_is_owed() {
    for proposed in [false, true] {
        let bench = Bench::new();
        let tools = tools();
        let process = bench.process(&tools, by_class()).await;
        let session = begin(&process, Pace::Effects, limits()).await;
        act(&session, call("write", "{}")).await;
        assert_eq!(bench.steps(&r())[0].status, StepStatus::Executing, "it waits for what follows");
        if proposed {
            allowed(&propose(&session, call("write", "{\"n\":2}")).await.1);
        }
        session.close().await;
        assert_eq!(bench.steps(&r())[0].status, StepStatus::Done);
        assert_eq!((bench.lease(&r()), tools[1].calls()), (None, 1));
        bench.verify();
    }
}

#[tokio::test]
async fn an_id_that_is_taken_is_found_at_the_first_commit() {
    let bench = Bench::new();
    let process = bench.process(&tools(), by_class()).await;
    let session = process.begin().await;
    session.close().await;
    let second = begin(&process, Pace::Effects, limits()).await;
    let (step, _) = propose(&second, call("read", "{}")).await;
    assert!(matches!(step.execute().await, Err(SessionError::Exists(_))));
}

#[tokio::test]
async fn a_takeover_at_the_faster_pace_is_one_commit_with_what_follows() {
    let bench = Bench::new();
    let process = bench.process(&tools(), always(PolicyDecision::allow(""))).await;
    let session = process.begin().await;
    session.close().await;
    let before = process.counts().await;
    let Attached::Open(session) = process.gate.attach_with(r(), Pace::Effects).await.unwrap() else {
        panic!("it is open")
    };
    assert_eq!(process.counts().await.applied, before.applied, "nothing yet");
    act(&session, call("write", "{}")).await;
    ended(propose(&session, Proposal::complete("")).await.1);
    let after = process.counts().await;
    assert_eq!((after.applied - before.applied, after.synced_commits - before.synced_commits), (2, 2));
    bench.verify();
}

#[tokio::test]
async fn an_outcome_that_waited_for_its_commit_is_late_when_a_person_was_faster() {
    let bench = Bench::new();
    let process = bench.process(&tools(), by_class()).await;
    let session = begin(&process, Pace::Effects, limits()).await;
    act(&session, call("write", "{\"n\":1}")).await;
    bench.cancel(&r());
    is(
        &ended(propose(&session, Proposal::complete("")).await.1),
        RunStatus::Cancelled,
        Reason::OperatorCancelled,
    );
    let late = bench.events(&r()).pop().unwrap();
    assert_eq!(late.kind, "step.tool_finished");
    assert!(late.payload.contains("\"late\":true") && late.payload.contains("{\"n\":1}"), "{}", late.payload);
    assert_eq!(process.seen.events().last(), Some(&late));
    assert_eq!(bench.steps(&r()).len(), 1, "what came after it is not recorded");
    assert!(process.tree().sessions.is_empty());
    bench.verify();
}
