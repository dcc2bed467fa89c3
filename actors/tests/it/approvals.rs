//! A call that waits for a person: what is recorded, what is checked again when the answer is collected, and what ends
//! the wait.

use std::sync::Arc;
use std::time::Duration;

use holdpoint_actors::approval;
use holdpoint_actors::policy::PolicyError;
use holdpoint_actors::session::{Attached, SessionError};
use holdpoint_actors::store::{DecideError, Verdict as Said};
use holdpoint_core::approval::{Approval, ApprovalStatus};
use holdpoint_core::decision::Proposal;
use holdpoint_core::json::Json;
use holdpoint_core::policy::{Outcome, PolicyDecision};
use holdpoint_core::run::{Limits, Reason, RunStatus};
use holdpoint_core::step::{ObservationKind, StepStatus};
use holdpoint_core::tool::{SideEffect, ToolSpec};

use crate::bench::*;

const MINUTE: Duration = Duration::from_secs(60);

/// Parks a run on `push` under limits of the test's own.
async fn parked(process: &Process, limits: Limits) -> Arc<Approval> {
    let session = process.gate.begin(r(), "g", limits).await.unwrap();
    pending(propose(&session, call("push", "{\"n\":7}")).await.1)
}

#[tokio::test]
async fn a_grant_executes_exactly_the_recorded_request_and_the_run_goes_on() {
    let bench = Bench::new();
    let tools = tools();
    let process = bench.process(&tools, by_class()).await;
    let approval = process.waiting("push", "{\"n\":7}").await;
    bench.approve(&approval);
    assert_eq!(bench.run(&r()).status, RunStatus::WaitingForApproval, "an answer alone resumes nothing");

    let (session, step) = granted(process.gate.attach(r()).await);
    assert_eq!(bench.run(&r()).status, RunStatus::WaitingForApproval, "nor does finding it");
    assert_eq!(bench.lease(&r()), None);
    step.execute().await.unwrap();
    drive(&session, &[call("", ""), call("read", "{\"n\":1}"), Proposal::complete("{\"done\":true}")]).await;

    is(&bench.run(&r()), RunStatus::Completed, Reason::GoalCompleted);
    assert_eq!(tools[2].args(), ["{\"n\":7}"]);
    assert_eq!(tools[2].call_ids()[0].1, approval.step_id.as_str());
    assert_eq!(tools[0].calls(), 1);
    let spent = bench.approvals(&r()).pop().unwrap();
    assert_eq!(
        (spent.status, spent.decided_by.as_str()),
        (ApprovalStatus::Approved, "ana"),
        "a spent grant stays"
    );
    assert!(bench.kinds(&r()).contains(
        "approval.requested approval.decided run.resumed step.policy step.tool_started step.tool_finished"
    ));
    is_run_state(process.gate.attach(r()).await);
    bench.verify();
}

#[tokio::test]
async fn a_rejection_cancels_the_run_and_nothing_can_be_decided_after_it() {
    let bench = Bench::new();
    let tools = tools();
    let process = bench.process(&tools, by_class()).await;
    let approval = process.waiting("push", "{\"n\":7}").await;
    bench.reject(&approval);
    is(&bench.run(&r()), RunStatus::Cancelled, Reason::ApprovalRejected);
    let step = bench.steps(&r()).pop().unwrap();
    assert_eq!(
        (step.status, step.observation.unwrap().kind),
        (StepStatus::Failed, ObservationKind::PolicyDenied)
    );
    assert!(step.decision.is_some() && step.policy.is_some(), "what was asked stays");
    let again = bench.decide(&r(), &approval.id, Said::Approve).unwrap_err();
    assert!(matches!(again, DecideError::RunIs { .. }), "{again}");
    is_run_state(process.gate.attach(r()).await);
    assert_eq!(tools[2].calls(), 0);
    bench.verify();
}

#[tokio::test]
async fn a_request_that_was_changed_behind_the_runtimes_back_is_never_run() {
    let bench = Bench::new();
    let tools = tools();
    let process = bench.process(&tools, by_class()).await;
    let approval = process.waiting("push", "{\"n\":7}").await;
    let tamper = |from: &str, to: &str| {
        bench.sql(&format!("UPDATE approvals SET request_json = replace(request_json, '{from}', '{to}')"));
    };
    tamper("\"n\":7", "\"n\":99");
    let refused = bench.decide(&r(), &approval.id, Said::Approve).unwrap_err();
    assert!(matches!(refused, DecideError::Hash(_)), "{refused}");
    tamper("\"n\":99", "\"n\":7");
    bench.approve(&approval);
    tamper("\"n\":7", "\"n\":99");
    let before = bench.rows(&r());
    let refused = process.gate.attach(r()).await;
    assert!(matches!(refused, Err(SessionError::ApprovalHash(_))), "{refused:?}");
    assert_eq!(bench.rows(&r()), before, "nothing was changed");
    assert_eq!(tools[2].calls(), 0);
    tamper("\"n\":99", "\"n\":7");
    granted(process.gate.attach(r()).await).1.execute().await.unwrap();
    assert_eq!(tools[2].args(), ["{\"n\":7}"]);
}

#[tokio::test]
async fn a_policy_that_wants_another_approval_asks_again_and_only_the_latest_counts() {
    let bench = Bench::new();
    let tools = tools();
    let rules = always(ask_for("first"));
    let process = bench.process(&tools, rules.clone()).await;
    let first = process.waiting("push", "{\"n\":1}").await;
    bench.approve(&first);
    rules.change(|_, _| Ok(ask_for("second")));
    let second = asks(process.gate.attach(r()).await);
    assert_ne!(first.id, second.id);
    assert_eq!(first.step_id, second.step_id, "the same step waits again");
    assert_eq!(bench.approvals(&r()).len(), 2);

    // The old grant is worth nothing, even when the policy comes back to it.
    rules.change(|_, _| Ok(ask_for("first")));
    let before = bench.rows(&r());
    is_run_state(process.gate.attach(r()).await);
    assert_eq!(bench.rows(&r()), before);
    bench.approve(&second);
    let third = asks(process.gate.attach(r()).await);
    bench.approve(&third);
    granted(process.gate.attach(r()).await).1.execute().await.unwrap();
    assert_eq!(tools[2].calls(), 1);
    let started = bench.events(&r()).into_iter().find(|event| event.kind == "step.tool_started").unwrap();
    assert!(started.payload.contains(third.id.as_str()), "{}", started.payload);
    bench.verify();
}

#[tokio::test]
async fn an_attach_while_nobody_has_answered_changes_nothing_and_asks_no_second_time() {
    let bench = Bench::new();
    let process = bench.process(&tools(), by_class()).await;
    process.waiting("push", "{\"n\":1}").await;
    let before = bench.rows(&r());
    for _ in 0..3 {
        is_run_state(process.gate.attach(r()).await);
    }
    assert_eq!(bench.rows(&r()), before);
}

#[tokio::test]
async fn the_latest_approval_is_the_one_inserted_last_whatever_its_time() {
    let bench = Bench::new();
    let rules = always(ask_for("first"));
    let process = bench.process(&tools(), rules.clone()).await;
    let first = process.waiting("push", "{\"n\":1}").await;
    bench.approve(&first);
    rules.change(|_, _| Ok(ask_for("second")));
    let second = asks(process.gate.attach(r()).await);
    bench
        .sql(&format!("UPDATE approvals SET created_at = '2001-01-01T00:00:00Z' WHERE id = '{}'", second.id));
    rules.change(|_, _| Ok(ask_for("first")));
    is_run_state(process.gate.attach(r()).await);
}

#[tokio::test]
async fn a_policy_that_refuses_a_granted_request_lets_the_run_go_on_without_it() {
    let bench = Bench::new();
    let tools = tools();
    let rules = always(ask_for("x"));
    let process = bench.process(&tools, rules.clone()).await;
    bench.approve(&*process.waiting("push", "{\"n\":1}").await);
    rules.change(|_, _| Ok(PolicyDecision::deny("not any more")));
    let Attached::Denied(session, observation) = process.gate.attach(r()).await.unwrap() else {
        panic!("denied")
    };
    assert_eq!(observation.summary, "denied on resume: not any more");
    assert_eq!(bench.run(&r()).status, RunStatus::Running);
    assert_eq!(bench.steps(&r())[0].status, StepStatus::Failed);
    assert!(bench.lease(&r()).is_some(), "and the session holds it");
    assert!(bench.kinds(&r()).ends_with("run.resumed step.policy step.failed"));
    ended(propose(&session, Proposal::complete("")).await.1);
    assert_eq!(tools[2].calls(), 0);
    bench.verify();
}

#[tokio::test]
async fn a_policy_that_aborts_fails_or_panics_on_a_granted_request_ends_the_run() {
    type Case = (fn() -> Result<PolicyDecision, PolicyError>, Reason, &'static str);
    let cases: [Case; 4] = [
        (|| Ok(PolicyDecision::abort("no")), Reason::PolicyAbort, "step.policy step.failed run.finished"),
        (
            || Err(PolicyError("down".to_owned())),
            Reason::InternalError,
            "approval.decided step.failed run.finished",
        ),
        (|| panic!("a bug"), Reason::InternalError, "approval.decided step.failed run.finished"),
        (
            || {
                let bad = Json::trusted("{");
                Ok(PolicyDecision::need_approval("k", "", bad.clone(), bad))
            },
            Reason::InternalError,
            "step.policy step.failed run.finished",
        ),
    ];
    for (answer, reason, kinds) in cases {
        let bench = Bench::new();
        let tools = tools();
        let rules = always(ask_for("x"));
        let process = bench.process(&tools, rules.clone()).await;
        bench.approve(&*process.waiting("push", "{\"n\":1}").await);
        rules.change(move |_, _| answer());
        is(&over(process.gate.attach(r()).await), RunStatus::Failed, reason);
        is(&bench.run(&r()), RunStatus::Failed, reason);
        assert!(bench.kinds(&r()).ends_with(kinds), "{}", bench.kinds(&r()));
        assert!(!bench.kinds(&r()).contains("run.resumed"));
        assert_eq!(tools[2].calls(), 0);
        bench.verify();
    }
}

#[tokio::test]
async fn an_approval_that_nobody_decides_in_time_expires_when_it_is_touched() {
    for touched_by in [Some(Said::Approve), Some(Said::Reject), None] {
        let bench = Bench::new();
        let tools = tools();
        let process = bench.process(&tools, by_class()).await;
        let approval = parked(&process, limits().approval_ttl(10 * MINUTE)).await;
        assert_eq!(approval.expires_at, Some(approval.created_at.plus(10 * MINUTE)));
        bench.clock.advance(11 * MINUTE);
        bench.wall.advance(11 * MINUTE);
        match touched_by {
            Some(verdict) => {
                let refused = bench.decide(&r(), &approval.id, verdict).unwrap_err();
                assert!(matches!(refused, DecideError::Expired { .. }), "{refused}");
            }
            None => is(&over(process.gate.attach(r()).await), RunStatus::Cancelled, Reason::ApprovalExpired),
        }
        is(&bench.run(&r()), RunStatus::Cancelled, Reason::ApprovalExpired);
        assert_eq!(bench.approvals(&r())[0].status, ApprovalStatus::Expired);
        assert_eq!(bench.steps(&r())[0].status, StepStatus::AwaitingApproval, "its step is left as it was");
        assert!(bench.kinds(&r()).ends_with("approval.decided run.finished"));
        assert_eq!(tools[2].calls(), 0);
        bench.verify();
    }
}

#[tokio::test]
async fn the_gates_clock_decides_on_expiry_and_not_the_wall() {
    let bench = Bench::new();
    let process = bench.process(&tools(), by_class()).await;
    let approval = parked(&process, limits().approval_ttl(10 * MINUTE)).await;
    bench.wall.advance(100 * MINUTE);
    is_run_state(process.gate.attach(r()).await);
    assert_eq!(bench.approvals(&r())[0].status, ApprovalStatus::Pending);
    bench.clock.advance(10 * MINUTE);
    over(process.gate.attach(r()).await);
    assert_eq!(bench.approvals(&r())[0].id, approval.id);
}

#[tokio::test]
async fn a_grant_that_is_not_collected_in_time_expires_and_keeps_who_gave_it() {
    let bench = Bench::new();
    let tools = tools();
    let process = bench.process(&tools, by_class()).await;
    let approval = parked(&process, limits().grant_ttl(10 * MINUTE)).await;
    bench.approve(&approval);
    bench.clock.advance(11 * MINUTE);
    is(&over(process.gate.attach(r()).await), RunStatus::Cancelled, Reason::ApprovalExpired);
    let stale = bench.approvals(&r()).pop().unwrap();
    assert_eq!((stale.status, stale.decided_by.as_str()), (ApprovalStatus::Expired, "ana"));
    assert_eq!(stale.decided_at, Some(start()));
    assert_eq!(tools[2].calls(), 0);
    bench.verify();
}

#[tokio::test]
async fn the_limit_on_answering_never_expires_a_grant() {
    let bench = Bench::new();
    let process = bench.process(&tools(), by_class()).await;
    bench.approve(&*parked(&process, limits().approval_ttl(MINUTE)).await);
    bench.clock.advance(Duration::from_secs(30 * 24 * 3600));
    granted(process.gate.attach(r()).await).1.execute().await.unwrap();
}

#[tokio::test]
async fn a_grants_age_is_judged_again_at_the_moment_of_execution() {
    let bench = Bench::new();
    let tools = tools();
    let process = bench.process(&tools, by_class()).await;
    let approval = parked(&process, limits().grant_ttl(10 * MINUTE)).await;
    bench.approve(&approval);
    let (session, step) = granted(process.gate.attach(r()).await);
    bench.clock.advance(11 * MINUTE);
    let refused = step.execute().await;
    assert!(matches!(&refused, Err(SessionError::ApprovalExpired(id)) if *id == approval.id), "{refused:?}");
    is(&session.run().await, RunStatus::Cancelled, Reason::ApprovalExpired);
    is(&bench.run(&r()), RunStatus::Cancelled, Reason::ApprovalExpired);
    assert!(session.done().await);
    is_closed(session.step().await);
    assert_eq!(tools[2].calls(), 0);
    bench.verify();
}

#[tokio::test]
async fn granted_arguments_that_do_not_fit_todays_schema_are_refused_like_fresh_ones() {
    let bench = Bench::new();
    let yesterday = bench.process(&tools(), by_class()).await;
    bench.approve(&*yesterday.waiting("push", "{\"n\":7}").await);
    let strict = Json::trusted(r#"{"type":"object","properties":{"n":{"type":"integer","maximum":5}}}"#);
    let push =
        Scripted::with(ToolSpec { input_schema: strict, ..spec("push", SideEffect::RemoteMutation) }, |_| {
            panic!("it must not run")
        });
    let rules = always(PolicyDecision::allow(""));
    let today = bench.process(&[push], rules.clone()).await;
    let Attached::Denied(session, observation) = today.gate.attach(r()).await.unwrap() else {
        panic!("denied")
    };
    assert_eq!(observation.kind, ObservationKind::InvalidDecision);
    assert!(observation.summary.starts_with("invalid decision on resume: "));
    assert!(rules.asked().is_empty(), "the policy does not see it");
    assert_eq!(
        (bench.run(&r()).status, bench.steps(&r())[0].status),
        (RunStatus::Running, StepStatus::Failed)
    );
    assert!(bench.kinds(&r()).ends_with("approval.decided run.resumed step.failed"));
    ended(propose(&session, Proposal::complete("")).await.1);
    bench.verify();
}

#[tokio::test]
async fn a_changed_description_voids_a_grant_unless_the_policy_allows_without_one() {
    let bench = Bench::new();
    let yesterday = bench.process(&tools(), by_class()).await;
    let first = yesterday.waiting("push", "{\"n\":7}").await;
    bench.approve(&first);
    let reworded =
        ToolSpec { description: "now it means more".to_owned(), ..spec("push", SideEffect::RemoteMutation) };
    let push = Scripted::with(reworded.clone(), |_| Box::pin(async { Ok(Default::default()) }));
    let rules = Rules::new(|request, _| Ok(holdpoint_core::policy::default_decision(request)));
    let today = bench.process(std::slice::from_ref(&push), rules.clone()).await;
    let second = asks(today.gate.attach(r()).await);
    assert_eq!(second.request.as_ref().unwrap().spec.description, "now it means more");
    assert_ne!(second.hash, first.hash);
    // The step keeps the spec that it was decided on; the policy's answer names the one that it was about.
    let step = bench.steps(&r()).pop().unwrap();
    assert_eq!(step.spec_hash, Some(spec("push", SideEffect::RemoteMutation).recorded().hash));
    let asked = bench.events(&r()).into_iter().rfind(|event| event.kind == "step.policy").unwrap();
    assert!(asked.payload.contains(reworded.recorded().hash.as_str()), "{}", asked.payload);

    bench.approve(&second);
    rules.change(|_, _| Ok(PolicyDecision::allow("whatever it means")));
    granted(today.gate.attach(r()).await).1.execute().await.unwrap();
    assert_eq!(push.calls(), 1);
    bench.verify();
}

#[tokio::test]
async fn a_grant_for_a_tool_that_is_gone_changes_nothing() {
    let bench = Bench::new();
    let with = bench.process(&tools(), by_class()).await;
    bench.approve(&*with.waiting("push", "{\"n\":7}").await);
    let without = bench.process(&[Scripted::new("read", SideEffect::ReadOnly)], by_class()).await;
    let before = bench.rows(&r());
    let refused = without.gate.attach(r()).await;
    assert!(matches!(&refused, Err(SessionError::NotRegistered(tool)) if tool == "push"), "{refused:?}");
    assert_eq!(bench.rows(&r()), before);
    granted(with.gate.attach(r()).await);
}

#[tokio::test]
async fn of_two_programs_that_collect_a_grant_one_executes_it() {
    let bench = Bench::new();
    let tools = tools();
    let one = bench.process(&tools, by_class()).await;
    let two = bench.process(&tools, by_class()).await;
    bench.approve(&*one.waiting("push", "{\"n\":7}").await);
    let (_first, step) = granted(one.gate.attach(r()).await);
    let (_second, other) = granted(two.gate.attach(r()).await);
    let (one, two) = tokio::join!(step.execute(), other.execute());
    assert_eq!(tools[2].calls(), 1);
    let lost = match (one, two) {
        (Ok(_), lost) | (lost, Ok(_)) => lost,
        both => panic!("neither executed: {both:?}"),
    };
    is_run_state(lost);
    bench.verify();
}

#[tokio::test]
async fn a_row_that_cannot_be_read_fails_the_run_that_waits_and_is_not_rewritten() {
    for damage in [
        "UPDATE approvals SET request_json = '{'",
        "UPDATE steps SET policy_json = '{\"outcome\":\"perhaps\"}'",
        "UPDATE steps SET decision_json = 'no json'",
    ] {
        let bench = Bench::new();
        let tools = tools();
        let process = bench.process(&tools, by_class()).await;
        let approval = process.waiting("push", "{\"n\":7}").await;
        bench.approve(&approval);
        bench.sql(damage);
        let run = over(process.gate.attach(r()).await);
        is(&run, RunStatus::Failed, Reason::InternalError);
        assert!(run.reason_detail.starts_with("internal: "), "{}", run.reason_detail);
        assert!(bench.kinds(&r()).ends_with("approval.decided run.finished"));
        let (step, approval) = (bench.steps(&r()).pop().unwrap(), bench.approvals(&r()).pop().unwrap());
        assert_eq!(step.status, StepStatus::Failed);
        assert!(step.decode_error.is_some() || approval.decode_error.is_some(), "it stays for whoever looks");
        assert_eq!(tools[2].calls(), 0);
    }
}

#[tokio::test]
async fn an_approval_that_cannot_be_read_cannot_be_decided_and_its_run_can_be_cancelled() {
    let bench = Bench::new();
    let process = bench.process(&tools(), by_class()).await;
    let approval = process.waiting("push", "{\"n\":7}").await;
    bench.sql("UPDATE approvals SET request_json = '{'");
    let refused = bench.decide(&r(), &approval.id, Said::Approve).unwrap_err();
    assert!(matches!(refused, DecideError::Hash(_)), "{refused}");
    bench.cancel(&r());
    is(&bench.run(&r()), RunStatus::Cancelled, Reason::OperatorCancelled);
}

#[tokio::test]
async fn what_a_grant_lets_run_and_the_runs_return_are_one_commit() {
    let bench = Bench::new();
    let process = bench.process(&tools(), by_class()).await;
    bench.approve(&*process.waiting("push", "{\"n\":7}").await);
    let before = process.counts().await;
    let (_session, step) = granted(process.gate.attach(r()).await);
    let found = process.counts().await;
    assert_eq!(
        (found.synced_commits, found.written_commits),
        (before.synced_commits, before.written_commits)
    );
    step.execute().await.unwrap();
    let after = process.counts().await;
    assert_eq!(
        after.synced_commits - before.synced_commits,
        2,
        "the grant with the tool's start, and the outcome"
    );
    let step = bench.steps(&r()).pop().unwrap();
    assert_eq!(step.policy.unwrap().outcome, Outcome::RequireApproval);
}

#[tokio::test]
async fn whoever_waits_hears_of_a_decision_made_in_another_process() {
    let bench = Bench::new();
    let process = bench.process(&tools(), by_class()).await;
    let approval = process.waiting("push", "{\"n\":7}").await;
    let waiter = process.tree().approval.clone();
    let id = approval.id.clone();
    let waiting =
        tokio::spawn(async move { approval::wait(&waiter, &r(), &id, Duration::from_secs(30)).await });
    while process.tree().observe().await.approval.is_none_or(|seen| seen.waiters == 0) {
        tokio::task::yield_now().await;
    }
    bench.approve(&approval);
    assert!(waiting.await.unwrap());
    while process.tree().observe().await.approval.is_none_or(|seen| seen.waiters > 0) {
        tokio::task::yield_now().await;
    }
    assert!(
        approval::wait(&process.tree().approval, &r(), &approval.id, MINUTE).await,
        "one that is decided at once"
    );
}

#[tokio::test]
async fn whoever_waits_hears_that_an_approval_has_expired() {
    let bench = Bench::new();
    let process = bench.process(&tools(), by_class()).await;
    let approval = parked(&process, limits().approval_ttl(MINUTE)).await;
    bench.wall.advance(2 * MINUTE);
    assert!(approval::wait(&process.tree().approval, &r(), &approval.id, MINUTE).await);
    assert!(!approval::wait(&process.tree().approval, &r(), &approval.id, Duration::ZERO).await);
}
