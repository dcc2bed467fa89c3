//! Runs that were cut off: what each crash point leaves, and what follows from it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use holdpoint_actors::session::{Attached, Reconcile, Reconciliation, SessionError};
use holdpoint_actors::store::{Lane, Options};
use holdpoint_core::approval::{Approval, INTERRUPTED_REASON, INTERRUPTED_SIDE_EFFECT};
use holdpoint_core::decision::Proposal;
use holdpoint_core::ids::{LeaseOwner, RunId};
use holdpoint_core::json::Json;
use holdpoint_core::ledger::Ledger;
use holdpoint_core::policy::{Outcome, PolicyDecision, PolicyView};
use holdpoint_core::run::{Reason, RunStatus};
use holdpoint_core::step::{ObservationKind, StepStatus};
use holdpoint_core::tool::{SideEffect, ToolSpec};
use holdpoint_core::transition::{Durability, LeaseTerms};

use crate::bench::*;

const LATER: Duration = Duration::from_secs(31);

/// Leaves a run whose tool of `class` was started and whose process is gone. The tool's calls never end.
async fn cut_off(bench: &Bench, class: SideEffect) -> Process {
    let never =
        Scripted::with(ToolSpec { timeout: Duration::from_secs(3600), ..spec("work", class) }, |_| {
            Box::pin(std::future::pending())
        });
    let process = bench.process(std::slice::from_ref(&never), always(PolicyDecision::allow(""))).await;
    let session = process.begin().await;
    let (step, _) = propose(&session, call("work", "{\"n\":1}")).await;
    tokio::spawn(async move { step.execute().await });
    while never.calls() == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(bench.steps(&r())[0].status, StepStatus::Executing);
    bench.wall.advance(LATER);
    // The session is kept, so that nothing but its silence tells of it.
    std::mem::forget(session);
    process
}

#[tokio::test]
async fn runs_that_were_left_behind_are_recovered_in_one_commit() {
    let bench = Bench::new();
    let endless = |name, class| {
        Scripted::with(ToolSpec { timeout: Duration::from_secs(3600), ..spec(name, class) }, |_| {
            Box::pin(std::future::pending())
        })
    };
    let tools = [endless("work", SideEffect::LocalMutation), endless("look", SideEffect::ReadOnly)];
    let process = bench.process(&tools, always(PolicyDecision::allow(""))).await;
    let runs: Vec<RunId> = (0..30).map(|n| RunId::from(format!("r{n}"))).collect();
    for (n, run) in runs.iter().enumerate() {
        let session = process.gate.begin(run.clone(), "g", limits()).await.unwrap();
        let (step, _) = propose(&session, call(if n == 7 { "look" } else { "work" }, "{}")).await;
        tokio::spawn(async move { step.execute().await });
        std::mem::forget(session);
    }
    while tools[0].calls() + tools[1].calls() < runs.len() {
        tokio::task::yield_now().await;
    }
    bench.wall.advance(LATER);
    bench.sql("UPDATE runs SET lease_expires_at = '2030-01-01T00:00:00Z' WHERE id = 'r1'");
    bench.sql("UPDATE steps SET decision_json = '{' WHERE run_id = 'r2'");

    let after = bench.process(&tools, always(PolicyDecision::allow(""))).await;
    let before = after.counts().await.synced_commits;
    let mut found = after.gate.recover(runs[3..].to_vec()).await;
    assert_eq!(after.counts().await.synced_commits, before + 1);
    let rest = [&runs[..3], &[RunId::from("none")]].concat();
    found.extend(after.gate.recover(rest).await);
    for (run, attached) in found {
        match (run.as_str(), attached) {
            ("r7", Ok(Attached::Open(session))) => session.close().await,
            ("r1", Err(SessionError::Leased { .. })) => {}
            ("r2", Ok(Attached::Ended(run))) => is(&run, RunStatus::Failed, Reason::InternalError),
            ("none", Err(SessionError::NotFound(_))) => {}
            (_, Ok(Attached::Pending(approval, run))) => {
                assert!(approval.is_interruption());
                assert_eq!(run.status, RunStatus::WaitingForApproval);
                assert!(
                    after
                        .seen
                        .events()
                        .iter()
                        .any(|event| { event.run_id == run.id && event.kind == "approval.requested" })
                );
            }
            (run, other) => panic!("{run}: {other:?}"),
        }
    }
    let pending = bench.operator().read(|reader| reader.pending_approvals()).unwrap();
    assert_eq!(pending.len(), runs.len() - 3);
}

struct Fixed(fn() -> Result<Reconciliation, String>);

#[async_trait]
impl Reconcile for Fixed {
    async fn reconcile(&self, _view: &PolicyView) -> Result<Reconciliation, String> {
        (self.0)()
    }
}

async fn reconciling(
    bench: &Bench,
    tool: &Arc<Scripted>,
    found: fn() -> Result<Reconciliation, String>,
) -> Process {
    bench
        .process_with(std::slice::from_ref(tool), by_class(), Options::default(), |spec| {
            spec.reconcile = Some(Arc::new(Fixed(found)));
        })
        .await
}

#[tokio::test]
async fn whoever_knows_the_outside_says_what_becomes_of_a_run() {
    type Case = (fn() -> Result<Reconciliation, String>, RunStatus, Reason, &'static str);
    let cases: [Case; 8] = [
        (
            || {
                Ok(Reconciliation::Completed {
                    result: Some(Json::trusted("{\"pr\":1}")),
                    detail: "published".to_owned(),
                })
            },
            RunStatus::Completed,
            Reason::GoalCompleted,
            "published",
        ),
        (
            || Ok(Reconciliation::Completed { result: None, detail: "x".to_owned() }),
            RunStatus::Completed,
            Reason::GoalCompleted,
            "x",
        ),
        (
            || Ok(Reconciliation::Completed { result: Some(Json::trusted("{")), detail: String::new() }),
            RunStatus::Failed,
            Reason::InternalError,
            "not usable JSON",
        ),
        (
            || Ok(Reconciliation::Conflict { detail: "it differs".to_owned() }),
            RunStatus::Failed,
            Reason::ReconcileConflict,
            "it differs",
        ),
        (|| Err("the other side is down".to_owned()), RunStatus::Failed, Reason::InternalError, "is down"),
        (|| panic!("a bug"), RunStatus::Failed, Reason::InternalError, "panic: a bug"),
        (
            || Ok(Reconciliation::Waiting { pause: PolicyDecision::allow(""), detail: String::new() }),
            RunStatus::Failed,
            Reason::InternalError,
            "require_approval",
        ),
        (
            || {
                let pause = PolicyDecision::need_approval("k", "", Json::trusted("{"), Json::empty_object());
                Ok(Reconciliation::Waiting { pause, detail: String::new() })
            },
            RunStatus::Failed,
            Reason::InternalError,
            "capability",
        ),
    ];
    for (found, status, reason, detail) in cases {
        let bench = Bench::new();
        let dead = cut_off(&bench, SideEffect::RemoteMutation).await;
        let work = Scripted::new("work", SideEffect::RemoteMutation);
        let process = reconciling(&bench, &work, found).await;
        let run = over(process.gate.attach(r()).await);
        is(&run, status, reason);
        assert!(run.reason_detail.contains(detail), "{}", run.reason_detail);
        assert_eq!(bench.run(&r()), run, "as stored");
        let published = (detail == "published").then(|| Json::trusted("{\"pr\":1}"));
        assert_eq!(run.result, published, "{detail}");
        assert_eq!(work.calls(), 0, "the call was not made again");
        assert_eq!(bench.steps(&r())[0].status, StepStatus::Interrupted);
        bench.verify();
        drop(dead);
    }
}

#[tokio::test]
async fn whoever_knows_the_outside_may_ask_a_person_with_words_of_their_own() {
    let bench = Bench::new();
    let _dead = cut_off(&bench, SideEffect::RemoteMutation).await;
    let work = Scripted::new("work", SideEffect::RemoteMutation);
    let process = reconciling(&bench, &work, || {
        Ok(Reconciliation::Waiting { pause: ask_for("half of it is there"), detail: String::new() })
    })
    .await;
    let approval = asks(process.gate.attach(r()).await);
    assert_eq!(
        (approval.kind.as_str(), approval.presentation.as_str()),
        ("release", r#"{"shown":"half of it is there"}"#)
    );
    let step = bench.steps(&r()).pop().unwrap();
    assert_eq!(
        (step.status, step.observation, step.finished_at, step.policy_id),
        (StepStatus::AwaitingApproval, None, None, None)
    );
    assert!(bench.kinds(&r()).ends_with("lease.taken_over step.interrupted step.policy approval.requested"));
    let asked = bench.events(&r()).into_iter().rfind(|event| event.kind == "step.policy").unwrap();
    assert!(!asked.payload.contains("\"view\""), "no policy was asked");

    // The policy is asked when the answer is collected, and wants its own kind.
    bench.approve(&approval);
    let second = asks(process.gate.attach(r()).await);
    assert_eq!(second.kind, "remote_mutation");
    is_run_state(process.gate.attach(r()).await);
    bench.approve(&second);
    granted(process.gate.attach(r()).await).1.execute().await.unwrap();
    assert_eq!(work.calls(), 1);
    bench.verify();
}

#[tokio::test]
async fn a_cut_off_effect_waits_for_a_person_and_runs_again_only_when_they_say_so() {
    let bench = Bench::new();
    let _dead = cut_off(&bench, SideEffect::LocalMutation).await;
    let work = Scripted::new("work", SideEffect::LocalMutation);
    let process = bench.process(std::slice::from_ref(&work), by_class()).await;
    let approval = asks(process.gate.attach(r()).await);
    assert_eq!(approval.kind, INTERRUPTED_SIDE_EFFECT);
    assert_eq!(approval.capability.as_str(), r#"{"args":{"n":1},"tool":"work"}"#);
    let shown: serde_json::Value = approval.presentation.decode().unwrap();
    assert_eq!((&shown["tool"], &shown["side_effect"]), (&"work".into(), &"local_mutation".into()));
    assert!(shown["notice"].as_str().unwrap().contains("unknown"));
    let requested = bench.events(&r()).pop().unwrap();
    assert!(requested.payload.contains(INTERRUPTED_REASON), "{}", requested.payload);
    is_run_state(process.gate.attach(r()).await);
    assert_eq!(work.calls(), 0);

    bench.approve(&approval);
    let (session, step) = granted(process.gate.attach(r()).await);
    assert_eq!(step.id(), &approval.step_id, "the same step again, with the same key");
    step.execute().await.unwrap();
    assert_eq!(work.call_ids(), [("r".to_owned(), approval.step_id.to_string())]);
    let kinds = bench.kinds(&r());
    assert_eq!(kinds.matches("step.tool_started").count(), 2);
    ended(propose(&session, Proposal::complete("")).await.1);
    bench.verify();
}

#[tokio::test]
async fn a_person_who_rejects_a_cut_off_effect_ends_the_run() {
    let bench = Bench::new();
    let _dead = cut_off(&bench, SideEffect::LocalMutation).await;
    let work = Scripted::new("work", SideEffect::LocalMutation);
    let process = bench.process(std::slice::from_ref(&work), by_class()).await;
    bench.reject(&asks(process.gate.attach(r()).await));
    is(&bench.run(&r()), RunStatus::Cancelled, Reason::ApprovalRejected);
    assert_eq!(work.calls(), 0);
    bench.verify();
}

#[tokio::test]
async fn the_policy_is_asked_about_a_re_run_as_about_any_call() {
    for (class, expected) in
        [(SideEffect::RemoteMutation, Outcome::RequireApproval), (SideEffect::Destructive, Outcome::Deny)]
    {
        let bench = Bench::new();
        let _dead = cut_off(&bench, class).await;
        let work = Scripted::new("work", class);
        let process = bench.process(std::slice::from_ref(&work), by_class()).await;
        bench.approve(&asks(process.gate.attach(r()).await));
        let attached = process.gate.attach(r()).await;
        match expected {
            Outcome::RequireApproval => assert_eq!(asks(attached).kind, "remote_mutation", "of its own kind"),
            Outcome::Deny | Outcome::Allow | Outcome::Abort => {
                assert!(
                    matches!(attached, Ok(holdpoint_actors::session::Attached::Denied(..))),
                    "{attached:?}"
                );
            }
        }
        assert_eq!(work.calls(), 0);
    }
}

#[tokio::test]
async fn a_cut_off_read_is_taken_for_not_having_happened() {
    let bench = Bench::new();
    let _dead = cut_off(&bench, SideEffect::ReadOnly).await;
    let work = Scripted::new("work", SideEffect::ReadOnly);
    let process = bench.process(std::slice::from_ref(&work), by_class()).await;
    let session = open(process.gate.attach(r()).await);
    assert!(bench.kinds(&r()).ends_with("lease.taken_over step.interrupted run.resumed"));
    assert_eq!(bench.steps(&r())[0].observation.as_ref().unwrap().kind, ObservationKind::Interrupted);
    act(&session, call("work", "{\"n\":1}")).await;
    assert_eq!(bench.steps(&r())[1].status, StepStatus::Done, "in a new step");
    bench.verify();
}

#[tokio::test]
async fn a_cut_off_call_that_nobody_can_be_asked_about_is_a_conflict() {
    let narrow = Json::trusted(r#"{"type":"object","properties":{"n":{"type":"integer","minimum":5}}}"#);
    let gone = Scripted::new("other", SideEffect::ReadOnly);
    let narrowed = Scripted::with(
        ToolSpec { input_schema: narrow, ..spec("work", SideEffect::LocalMutation) },
        |_| unreachable!(),
    );
    let waits: fn() -> Result<Reconciliation, String> =
        || Ok(Reconciliation::Waiting { pause: ask_for("x"), detail: "found half".to_owned() });
    for (tool, reconciled, step) in [
        (&gone, false, StepStatus::Interrupted),
        (&narrowed, false, StepStatus::Interrupted),
        (&gone, true, StepStatus::Interrupted),
        (&narrowed, true, StepStatus::Failed),
    ] {
        let bench = Bench::new();
        let _dead = cut_off(&bench, SideEffect::LocalMutation).await;
        let process = if reconciled {
            reconciling(&bench, tool, waits).await
        } else {
            bench.process(std::slice::from_ref(tool), by_class()).await
        };
        let run = over(process.gate.attach(r()).await);
        is(&run, RunStatus::Failed, Reason::ReconcileConflict);
        assert_eq!(run.reason_detail.contains("found half"), reconciled, "{}", run.reason_detail);
        assert_eq!(bench.steps(&r())[0].status, step);
        assert!(bench.approvals(&r()).is_empty());
        bench.verify();
    }
}

#[tokio::test]
async fn a_reconciliation_that_waits_for_nothing_that_ran_is_a_conflict() {
    let bench = Bench::new();
    let one = bench.process(&tools(), by_class()).await;
    let session = one.begin().await;
    let _step = session.step().await.unwrap();
    bench.wall.advance(LATER);
    let work = Scripted::new("work", SideEffect::LocalMutation);
    let two = reconciling(&bench, &work, || {
        Ok(Reconciliation::Waiting { pause: ask_for("x"), detail: String::new() })
    })
    .await;
    is(&over(two.gate.attach(r()).await), RunStatus::Failed, Reason::ReconcileConflict);
}

#[tokio::test]
async fn each_point_before_a_tools_start_is_recovered_without_running_anything() {
    for reached in 0..3 {
        let bench = Bench::new();
        let tools = tools();
        let one = bench.process(&tools, by_class()).await;
        let session = one.begin().await;
        if reached > 0 {
            let step = session.step().await.unwrap().unwrap();
            if reached > 1 {
                allowed(&step.propose(call("write", "{}")).await.unwrap());
            }
        }
        bench.wall.advance(LATER);
        let two = bench.process(&tools, by_class()).await;
        let next = open(two.gate.attach(r()).await);
        let interrupted = if reached > 0 { "lease.taken_over step.interrupted" } else { "lease.taken_over" };
        assert!(bench.kinds(&r()).ends_with(&format!("{interrupted} run.resumed")), "{}", bench.kinds(&r()));
        assert_eq!(next.input().await.unwrap().steps.len(), usize::from(reached > 0));
        ended(propose(&next, Proposal::complete("")).await.1);
        assert_eq!(tools[1].calls(), 0);
        bench.verify();
    }
}

#[tokio::test]
async fn a_finished_step_is_not_repeated_by_a_takeover() {
    let bench = Bench::new();
    let tools = tools();
    let one = bench.process(&tools, by_class()).await;
    let session = one.begin().await;
    act(&session, call("write", "{}")).await;
    bench.wall.advance(LATER);
    let two = bench.process(&tools, by_class()).await;
    let next = open(two.gate.attach(r()).await);
    ended(propose(&next, Proposal::complete("")).await.1);
    assert_eq!((tools[1].calls(), bench.steps(&r())[0].status), (1, StepStatus::Done));
    bench.verify();
}

#[tokio::test]
async fn a_recovery_that_was_cut_off_itself_still_asks() {
    let bench = Bench::new();
    let dead = cut_off(&bench, SideEffect::LocalMutation).await;
    // What a recovery leaves that took the run over and died before it asked.
    let (run, lease) = (bench.run(&r()), bench.lease(&r()));
    let steps = bench.steps(&r()).into_iter().map(Arc::new).collect();
    let terms = LeaseTerms { owner: LeaseOwner::from("recovery"), ttl: Duration::from_secs(3) };
    let mut ledger = Ledger::of(terms, run, steps, Vec::new());
    ledger.take_over(lease, None, start()).unwrap();
    dead.tree().store.apply(Lane::Outcome, ledger.take(Durability::Synced)).await.unwrap();
    assert_eq!(bench.steps(&r())[0].status, StepStatus::Interrupted);
    bench.wall.advance(LATER);

    let work = Scripted::new("work", SideEffect::LocalMutation);
    let process = bench.process(std::slice::from_ref(&work), by_class()).await;
    assert_eq!(asks(process.gate.attach(r()).await).kind, INTERRUPTED_SIDE_EFFECT);
    assert_eq!(work.calls(), 0);
    bench.verify();
}

#[tokio::test]
async fn a_grant_that_was_being_used_when_its_process_died_is_spent() {
    let bench = Bench::new();
    let (push, latch) = Scripted::latched("push", SideEffect::RemoteMutation);
    let one = bench.process(std::slice::from_ref(&push), by_class()).await;
    let first = one.waiting("push", "{}").await;
    bench.approve(&first);
    let (session, step) = granted(one.gate.attach(r()).await);
    let executing = tokio::spawn(async move { step.execute().await });
    latch.entered().await;
    bench.wall.advance(LATER);
    let two = bench.process(&[Scripted::new("push", SideEffect::RemoteMutation)], by_class()).await;
    let second = asks(two.gate.attach(r()).await);
    assert_eq!((second.kind.as_str(), &second.step_id), (INTERRUPTED_SIDE_EFFECT, &first.step_id));
    is_run_state(two.gate.attach(r()).await);
    latch.release();
    is_lease_lost(executing.await.unwrap());
    drop(session);
    assert_eq!(push.calls(), 1);
    bench.verify();
}

#[tokio::test]
async fn a_row_that_cannot_be_read_fails_a_run_that_is_taken_over() {
    for damage in [
        "UPDATE steps SET decision_json = 'no json'",
        "UPDATE steps SET status = 'daydreaming'",
        "UPDATE steps SET policy_json = '['",
    ] {
        let bench = Bench::new();
        let _dead = cut_off(&bench, SideEffect::ReadOnly).await;
        bench.sql(damage);
        let process = bench.process(&[Scripted::new("work", SideEffect::ReadOnly)], by_class()).await;
        let run = over(process.gate.attach(r()).await);
        is(&run, RunStatus::Failed, Reason::InternalError);
        assert!(run.reason_detail.contains("could not be decoded"), "{}", run.reason_detail);
        assert!(bench.kinds(&r()).ends_with("lease.taken_over run.finished"), "{}", bench.kinds(&r()));
        assert!(bench.steps(&r())[0].decode_error.is_some() || damage.contains("daydreaming"));
        assert_eq!(bench.lease(&r()), None);
    }
}

#[tokio::test]
async fn a_run_that_another_program_marked_interrupted_is_gone_on_with() {
    let bench = Bench::new();
    let process = bench.process(&tools(), by_class()).await;
    let session = process.begin().await;
    session.close().await;
    bench.sql("UPDATE runs SET status = 'INTERRUPTED'");
    let session = open(process.gate.attach(r()).await);
    assert_eq!(bench.run(&r()).status, RunStatus::Running);
    ended(propose(&session, Proposal::complete("")).await.1);
    bench.verify();

    let session = process.gate.begin("other".into(), "g", limits()).await.unwrap();
    session.close().await;
    bench.sql("UPDATE runs SET status = 'INTERRUPTED' WHERE id = 'other'");
    bench.cancel(&"other".into());
    is(&bench.run(&"other".into()), RunStatus::Cancelled, Reason::OperatorCancelled);
}

#[tokio::test]
async fn of_two_programs_that_take_a_run_over_one_gets_it() {
    let bench = Bench::new();
    let _dead = cut_off(&bench, SideEffect::ReadOnly).await;
    let tool = [Scripted::new("work", SideEffect::ReadOnly)];
    let (one, two) = (bench.process(&tool, by_class()).await, bench.process(&tool, by_class()).await);
    let (first, second) = tokio::join!(one.gate.attach(r()), two.gate.attach(r()));
    let lost = match (first, second) {
        (Ok(_session), lost) | (lost, Ok(_session)) => lost,
        both => panic!("nobody got it: {both:?}"),
    };
    assert!(matches!(lost, Err(SessionError::Leased { .. } | SessionError::RunState { .. })), "{lost:?}");
    assert_eq!(bench.kinds(&r()).matches("step.interrupted").count(), 1);
    bench.verify();
}

/// Asks again for as long as it takes to come to the same question: what one recovery asks the next one must not ask
/// twice.
#[tokio::test]
async fn a_run_that_asks_is_found_asking() {
    let bench = Bench::new();
    let _dead = cut_off(&bench, SideEffect::LocalMutation).await;
    let process = bench.process(&[Scripted::new("work", SideEffect::LocalMutation)], by_class()).await;
    let asked: Arc<Approval> = asks(process.gate.attach(r()).await);
    for _ in 0..3 {
        is_run_state(process.gate.attach(r()).await);
    }
    assert_eq!(bench.approvals(&r()), [Approval::clone(&asked)]);
}

#[tokio::test]
async fn a_grant_that_was_used_by_who_died_is_not_used_again_by_who_had_collected_it_before() {
    let bench = Bench::new();
    let (push, latch) = Scripted::latched("push", SideEffect::RemoteMutation);
    let tools = std::slice::from_ref(&push);
    let (one, two, three) = (
        bench.process(tools, by_class()).await,
        bench.process(tools, by_class()).await,
        bench.process(tools, by_class()).await,
    );
    bench.approve(&*one.waiting("push", "{}").await);
    let (_early, late) = granted(two.gate.attach(r()).await);
    let (_dies, used) = granted(one.gate.attach(r()).await);
    let executing = tokio::spawn(async move { used.execute().await });
    latch.entered().await;
    bench.wall.advance(Duration::from_secs(31));
    let asked = asks(three.gate.attach(r()).await);
    assert!(asked.is_interruption());

    // The run waits again, its step waits again, and the first approval still says that it was granted.
    assert!(late.execute().await.is_err(), "nobody has allowed a second time");
    assert_eq!(push.calls(), 1);
    assert_eq!(bench.run(&r()).status, RunStatus::WaitingForApproval);
    latch.release();
    is_lease_lost(executing.await.unwrap());
    bench.verify();
}
