//! A loop that the runtime does not own: what a session allows, refuses and leaves behind.

use std::sync::Arc;

use holdpoint_actors::session::{AgentError, Attached, SessionError, Verdict};
use holdpoint_core::approval::INTERRUPTED_SIDE_EFFECT;
use holdpoint_core::decision::{Origin, Proposal};
use holdpoint_core::policy::PolicyDecision;
use holdpoint_core::run::{Limits, Reason, RunStatus};
use holdpoint_core::step::{ObservationKind, StepStatus};
use holdpoint_core::tool::SideEffect;

use crate::bench::*;

#[tokio::test]
async fn a_verdict_carries_a_copy_of_what_will_run() {
    let bench = Bench::new();
    let tools = tools();
    let process = bench.process(&tools, by_class()).await;
    let approval = process.waiting("push", "{\"n\":7}").await;
    bench.approve(&approval);
    let (session, step) = granted(process.gate.attach(r()).await);
    let current = session.current().await.unwrap();
    assert_eq!((current.id(), current.index()), (step.id(), 0));
    is_run_state(session.step().await);
    assert_eq!(step.execute().await.unwrap().observation.kind, ObservationKind::ToolResult);
    is_run_state(step.execute().await);
    is_run_state(current.execute().await);
    assert_eq!(tools[2].args(), ["{\"n\":7}"]);
    ended(drive(&session, &[call("", ""), Proposal::complete("{\"ok\":true}")]).await.unwrap());
}

#[tokio::test]
async fn a_paused_session_refuses_every_further_call() {
    let bench = Bench::new();
    let process = bench.process(&tools(), by_class()).await;
    let session = process.begin().await;
    let (step, verdict) = propose(&session, call("push", "{\"n\":7}")).await;
    pending(verdict);
    assert!(session.done().await && session.current().await.is_none());
    let before = bench.rows(&r());
    is_run_state(session.step().await);
    is_run_state(step.propose(call("read", "{}")).await);
    is_run_state(step.execute().await);
    is_run_state(step.fail(AgentError::msg("late")).await);
    session.close().await;
    is_run_state(session.step().await);
    assert_eq!(bench.rows(&r()), before);
}

#[tokio::test]
async fn limits_fire_when_a_step_is_asked_for() {
    let base = limits();
    let read = |n: u32| call("read", &format!("{{\"n\":{n}}}"));
    let cases = [
        (Limits { max_steps: 2, ..base.clone() }, vec![read(1), read(2)], Reason::LimitSteps),
        (
            Limits { max_consecutive_tool_failures: 2, ..base.clone() },
            vec![call("wipe", "{}"), call("nope", "{}")],
            Reason::RepeatedToolFailures,
        ),
        (Limits { loop_threshold: 2, ..base }, vec![read(1), read(1)], Reason::LoopDetected),
    ];
    for (limits, decisions, reason) in cases {
        let bench = Bench::new();
        let process = bench.process(&tools(), by_class()).await;
        let session = process.gate.begin(r(), "g", limits).await.unwrap();
        drive(&session, &decisions).await;
        let run = session.run().await;
        is(&run, RunStatus::Failed, reason);
        assert_eq!(run.step_count, 2);
        is_run_state(session.step().await);
        bench.verify();
    }
}

#[tokio::test]
async fn misuse_is_refused_and_changes_nothing() {
    let bench = Bench::new();
    let tools = tools();
    let process = bench.process(&tools, by_class()).await;
    let session = process.begin().await;
    let step = session.step().await.unwrap().unwrap();
    let before = bench.rows(&r());
    is_run_state(session.step().await);
    is_run_state(step.execute().await);
    assert_eq!(bench.rows(&r()), before);

    denied(step.propose(call("wipe", "{}")).await.unwrap());
    is_run_state(step.execute().await);
    let (step, verdict) = propose(&session, call("read", "{\"n\":1}")).await;
    allowed(&verdict);
    let before = bench.rows(&r());
    is_run_state(step.propose(call("read", "{\"n\":2}")).await);
    is_run_state(step.fail(AgentError::msg("late")).await);
    assert_eq!(bench.rows(&r()), before);
    step.execute().await.unwrap();
    is_run_state(step.execute().await);
    assert_eq!(tools[0].args(), ["{\"n\":1}"]);

    let step = session.step().await.unwrap().unwrap();
    session.close().await;
    session.close().await;
    assert_eq!(bench.lease(&r()), None, "closing gives the lease up");
    is_closed(session.step().await);
    is_closed(step.propose(call("read", "{\"n\":3}")).await);
    is_closed(step.execute().await);
    is_closed(step.fail(AgentError::msg("x")).await);
    assert!(session.done().await);
    bench.verify();
}

#[tokio::test]
async fn a_second_session_is_refused_and_the_run_is_free_once_the_first_is_closed() {
    let bench = Bench::new();
    let one = bench.process(&tools(), by_class()).await;
    let two = bench.process(&tools(), by_class()).await;
    let session = one.begin().await;
    let before = bench.rows(&r());
    let owner = bench.lease(&r()).unwrap().owner;
    is_run_state(one.gate.attach(r()).await);
    is_run_state(one.gate.begin(r(), "g", limits()).await);
    let refused = two.gate.attach(r()).await;
    assert!(matches!(&refused, Err(SessionError::Leased { owner: o, .. }) if *o == owner), "{refused:?}");
    assert!(matches!(two.gate.begin(r(), "g", limits()).await, Err(SessionError::Exists(_))));
    assert_eq!(bench.rows(&r()), before);
    session.close().await;
    let next = open(two.gate.attach(r()).await);
    assert!(!bench.kinds(&r()).contains("lease.taken_over"), "a lease that was given up is not taken over");
    next.close().await;
    open(one.gate.attach(r()).await).close().await;
    bench.verify();
}

#[tokio::test]
async fn a_session_abandoned_after_its_verdict_ran_nothing() {
    let bench = Bench::new();
    let write = Scripted::new("write", SideEffect::LocalMutation);
    let process = bench.process(std::slice::from_ref(&write), by_class()).await;
    let session = process.begin().await;
    let (step, verdict) = propose(&session, call("write", "{\"n\":1}")).await;
    allowed(&verdict);
    let stored = bench.steps(&r()).pop().unwrap();
    assert_eq!(
        (stored.status, stored.policy),
        (StepStatus::Deciding, None),
        "nothing is written for an allowed call"
    );
    session.close().await;
    let next = open(process.gate.attach(r()).await);
    is_closed(step.execute().await);
    ended(drive(&next, &[call("", ""), Proposal::complete("")]).await.unwrap());
    assert_eq!(bench.steps(&r())[0].status, StepStatus::Interrupted);
    assert_eq!(write.calls(), 0);
    let kinds = bench.kinds(&r());
    assert!(!kinds.contains("step.policy") && !kinds.contains("step.tool_started"), "{kinds}");
    bench.verify();
}

#[tokio::test]
async fn a_grant_abandoned_after_it_was_found_stays_and_runs_once() {
    let bench = Bench::new();
    let tools = tools();
    let process = bench.process(&tools, by_class()).await;
    bench.approve(&*process.waiting("push", "{\"n\":7}").await);
    let before = bench.rows(&r());
    let (session, _step) = granted(process.gate.attach(r()).await);
    session.close().await;
    assert_eq!(bench.rows(&r()), before);
    drop(granted(process.gate.attach(r()).await));
    assert_eq!((bench.rows(&r()), tools[2].calls()), (before, 0));
    let (_session, step) = granted(process.gate.attach(r()).await);
    step.execute().await.unwrap();
    assert_eq!((tools[2].calls(), bench.run(&r()).status), (1, RunStatus::Running));
    bench.verify();
}

#[tokio::test]
async fn a_closed_session_leaves_nothing_that_is_renewed() {
    let bench = Bench::new();
    let process = bench.process(&tools(), by_class()).await;
    for name in ["a", "b", "c"] {
        let session = process.gate.begin(name.into(), "g", limits()).await.unwrap();
        act(&session, call("read", "{}")).await;
        assert_eq!(process.tree().sessions.len(), 1);
        session.close().await;
        assert!(process.tree().sessions.is_empty());
    }
    let session = process.begin().await;
    pending(propose(&session, call("push", "{}")).await.1);
    assert!(process.tree().sessions.is_empty(), "a paused one holds nothing either");
    let session = process.gate.begin("d".into(), "g", limits()).await.unwrap();
    ended(propose(&session, Proposal::complete("")).await.1);
    assert!(process.tree().sessions.is_empty());
}

#[tokio::test]
async fn where_a_decision_comes_from_is_recorded_and_changes_nothing_else() {
    let bench = Bench::new();
    let rules = always(PolicyDecision::allow(""));
    let process = bench.process(&tools(), rules.clone()).await;
    let session = process.begin().await;
    for origin in [Origin::Model, Origin::Plan, Origin::Operator] {
        act(&session, call("read", "{\"n\":1}").from_origin(origin)).await;
        let decided = bench.events(&r()).into_iter().rfind(|event| event.kind == "step.decided").unwrap();
        assert!(
            decided.payload.ends_with(&format!(",\"origin\":\"{}\"}}", origin.as_str())),
            "{}",
            decided.payload
        );
    }
    let requests: Vec<_> = rules.asked().into_iter().map(|(request, _)| request.args).collect();
    assert!(requests.windows(2).all(|pair| pair[0] == pair[1]), "the policy does not see it");
    let unknown = Proposal { origin: "oracle".to_owned(), ..call("read", "{}") };
    let observation = denied(propose(&session, unknown).await.1);
    assert_eq!(observation.kind, ObservationKind::InvalidDecision);
    assert_eq!(bench.steps(&r())[3].decision.as_ref().unwrap().origin, "oracle");
}

#[tokio::test]
async fn what_whoever_decides_sees_is_the_record_after_every_kind_of_step() {
    let bench = Bench::new();
    let failing = Scripted::giving(
        "fails",
        SideEffect::ReadOnly,
        Err(holdpoint_actors::executor::ToolFailure::Failed("no".to_owned())),
    );
    let process = bench.process(&[tools(), vec![failing]].concat(), by_class()).await;
    let session = process.begin().await;
    let steps = [
        call("read", "{\"n\":1}"),
        call("wipe", "{}"),
        call("nope", "{"),
        call("fails", "{}"),
        call("write", "{ \"n\" : 2 }"),
    ];
    for (at, proposal) in steps.into_iter().enumerate() {
        let (step, verdict) = propose(&session, proposal).await;
        let during = session.input().await.unwrap();
        if matches!(verdict, Verdict::Allowed { .. }) {
            step.execute().await.unwrap();
        }
        let between = session.input().await.unwrap();
        let stored = bench.steps(&r());
        let seen = |steps: &[std::sync::Arc<holdpoint_core::step::Step>]| {
            steps.iter().map(|step| (**step).clone()).collect::<Vec<_>>()
        };
        assert_eq!((stored.len(), seen(&between.steps)), (at + 1, stored.clone()), "step {at}");
        assert!(stored.starts_with(&seen(&during.steps)), "step {at}");
        assert_eq!(between.run, bench.run(&r()), "step {at}");
    }
}

#[tokio::test]
async fn what_whoever_decides_sees_is_what_the_policy_sees_and_costs_no_reading() {
    let bench = Bench::new();
    let rules = Rules::new(|request, _| Ok(holdpoint_core::policy::default_decision(request)));
    let process = bench.process(&tools(), rules.clone()).await;
    let session = process.begin().await;
    let input = session.input().await.unwrap();
    assert_eq!((input.run.step_count, input.steps.len(), input.tools.len()), (0, 0, 5));
    act(&session, call("read", "{\"n\":1}")).await;

    let between = session.input().await.unwrap();
    assert_eq!((between.run.step_count, between.steps.len()), (1, 1));
    bench.sql("UPDATE steps SET status = 'failed'");
    assert_eq!(session.input().await.unwrap().steps, between.steps, "the session's own, and not read again");
    bench.sql("UPDATE steps SET status = 'done'");
    let step = session.step().await.unwrap().unwrap();
    let readings = bench.clock.count();
    let input = session.input().await.unwrap();
    assert_eq!(bench.clock.count(), readings);
    assert_eq!(
        (input.run.step_count, input.steps.len()),
        (2, 1),
        "the run as the step began, the steps before it"
    );
    pending(step.propose(call("push", "{\"n\":2}")).await.unwrap());
    let (_, view) = rules.asked().pop().unwrap();
    assert_eq!((view.run, view.steps), (input.run, input.steps));

    let approval = bench.approvals(&r()).pop().unwrap();
    bench.approve(&approval);
    let (session, step) = granted(process.gate.attach(r()).await);
    let input = session.input().await.unwrap();
    assert_eq!(input.run.status, RunStatus::WaitingForApproval);
    assert_eq!((input.steps.len(), input.approvals.len()), (1, 1));
    let (_, view) = rules.asked().pop().unwrap();
    assert_eq!((view.run, view.steps), (input.run, input.steps));
    step.execute().await.unwrap();
    let after = session.input().await.unwrap();
    assert_eq!((after.run.status, after.steps.len()), (RunStatus::Running, 2));
    assert_eq!(
        after.steps.iter().map(|step| (**step).clone()).collect::<Vec<_>>(),
        bench.steps(&r()),
        "as stored"
    );
}

#[tokio::test]
async fn what_is_handed_out_is_a_copy() {
    let bench = Bench::new();
    let process = bench.process(&tools(), by_class()).await;
    let session = process.begin().await;
    act(&session, call("read", "{\"n\":1}")).await;
    let mut input = session.input().await.unwrap();
    Arc::make_mut(&mut input.steps[0]).observation = None;
    input.run.goal = "another".to_owned();
    input.tools.clear();
    let again = session.input().await.unwrap();
    assert!(again.steps[0].observation.is_some());
    assert_eq!((again.run.goal.as_str(), again.tools.len()), ("g", 5));
}

#[tokio::test]
async fn a_caller_that_goes_away_stops_neither_the_tool_nor_its_record() {
    let bench = Bench::new();
    let (work, latch) = Scripted::latched("work", SideEffect::LocalMutation);
    let process = bench.process(std::slice::from_ref(&work), by_class()).await;
    let session = process.begin().await;
    let (step, _) = propose(&session, call("work", "{}")).await;
    let caller = tokio::spawn(async move { step.execute().await });
    latch.entered().await;
    caller.abort();
    assert!(caller.await.unwrap_err().is_cancelled());
    latch.release();
    // The next call of the session waits for the one that goes on.
    ended(propose(&session, Proposal::complete("")).await.1);
    let step = &bench.steps(&r())[0];
    assert_eq!((step.status, work.calls()), (StepStatus::Done, 1));
    assert_eq!(step.observation.as_ref().unwrap().content.as_str(), "{\"done\":true}");
    bench.verify();
}

#[tokio::test]
async fn a_caller_that_goes_away_while_the_policy_thinks_leaves_a_decided_step() {
    let bench = Bench::new();
    let process = bench.process(&tools(), by_class()).await;
    let session = process.begin().await;
    let step = session.step().await.unwrap().unwrap();
    {
        let proposing = step.propose(call("read", "{}"));
        drop(proposing);
    }
    allowed(&step.propose(call("read", "{}")).await.unwrap());
    step.execute().await.unwrap();
}

#[tokio::test]
async fn an_unknown_run_and_a_finished_one_cannot_be_attached_to() {
    let bench = Bench::new();
    let process = bench.process(&tools(), by_class()).await;
    assert!(matches!(process.gate.attach("nowhere".into()).await, Err(SessionError::NotFound(_))));
    let session = process.begin().await;
    ended(propose(&session, Proposal::complete("")).await.1);
    is_run_state(process.gate.attach(r()).await);
}

#[tokio::test]
async fn an_attach_that_finds_a_verdict_says_which() {
    let bench = Bench::new();
    let (work, latch) = Scripted::latched("work", SideEffect::LocalMutation);
    let process = bench.process(&[work], by_class()).await;
    let session = process.begin().await;
    let (step, verdict) = propose(&session, call("work", "{}")).await;
    assert!(matches!(verdict, Verdict::Allowed { .. }));
    let executing = tokio::spawn(async move { step.execute().await });
    latch.entered().await;
    let other = bench.process(&[Scripted::new("work", SideEffect::LocalMutation)], by_class()).await;
    bench.wall.advance(std::time::Duration::from_secs(31));
    let Ok(Attached::Pending(approval, _)) = other.gate.attach(r()).await else { panic!("it asks") };
    assert_eq!(approval.kind, INTERRUPTED_SIDE_EFFECT);
    latch.release();
    is_lease_lost(executing.await.unwrap());
    bench.verify();
}
