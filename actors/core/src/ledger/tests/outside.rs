//! What is decided about a run from outside its session: T6, T12, T14, T15, and the lease.

use super::*;

fn waits() -> Waiting {
    let (ledger, approval) = waiting();
    Waiting { run: ledger.run().clone(), approval: Approval::clone(&approval) }
}

const ANA: Decider<'_> = Decider { by: "ana", note: "not <now>" };

#[test]
fn t6_approves_and_leaves_the_run_waiting() {
    let t = approve(&waits(), ANA, at(50)).unwrap();
    is(
        &t,
        r#"if it is WAITING_FOR_APPROVAL
           if a0 is pending and unchanged
           decide a0 approved by "ana"
           approval.decided
           synced"#,
    );
    let ApprovalWrite::Decide(approval) = &t.approvals[0] else { panic!("the approval is decided") };
    assert_eq!((approval.decided_at, approval.note.as_str()), (Some(at(50)), "not <now>"));
}

#[test]
fn t6_rejects_and_cancels_the_run_with_its_step() {
    let t = reject(&waits(), ANA, at(50)).unwrap();
    is(
        &t,
        r#"if it is WAITING_FOR_APPROVAL
           if a0 is pending and unchanged
           run CANCELLED approval_rejected "not <now>" held by nobody
           end s0 failed, policy_denied
           decide a0 rejected by "ana"
           approval.decided
           run.finished
           synced"#,
    );
    let StepWrite::Outcome { observation, .. } = &t.steps[0] else { panic!("only its outcome is written") };
    let observation = Observation::parse(observation.as_str()).unwrap();
    assert_eq!(observation.content.as_str(), r#"{"approval_id":"a0","note":"not \u003cnow\u003e"}"#);
    assert_eq!(observation.summary, "approval rejected: not <now>");
}

#[test]
fn t6_of_an_approval_that_is_decided_is_no_move() {
    for status in [ApprovalStatus::Approved, ApprovalStatus::Rejected, ApprovalStatus::Expired] {
        let mut waits = waits();
        waits.approval.status = status;
        assert!(matches!(approve(&waits, ANA, at(50)), Err(Illegal::Approval(_))), "{status}");
        assert!(matches!(reject(&waits, ANA, at(50)), Err(Illegal::Approval(_))), "{status}");
    }
}

#[test]
fn t12_cancels_whatever_is_not_over_without_a_lease() {
    for ledger in [begun(), executing(), waiting().0] {
        let t = cancel(ledger.run(), ANA, at(50)).unwrap();
        is(
            &t,
            r#"if it is RUNNING or WAITING_FOR_APPROVAL or INTERRUPTED
               run CANCELLED operator_cancelled "not <now>" held by nobody
               end what is in flight, interrupted
               run.finished
               synced"#,
        );
        assert!(t.events[0].payload.starts_with(r#"{"by":"ana","#));
        let StepWrite::OutcomeOfInFlight { observation: text, observation_hash: hash, .. } = &t.steps[0]
        else {
            panic!("only the outcomes are written")
        };
        let observation = Observation::parse(text.as_str()).unwrap();
        assert_eq!(observation.content.as_str(), r#"{"by":"ana","note":"not \u003cnow\u003e"}"#);
        assert_eq!(observation.summary, "cancelled by operator: not <now>");
        assert_eq!(&observation.content_hash, hash);
    }
    let mut over = begun();
    over.end_run(RunEnd::new(Reason::GoalFailed, ""), at(1)).unwrap();
    assert!(matches!(cancel(over.run(), ANA, at(50)), Err(Illegal::Run(_))));
}

#[test]
fn t14_appends_an_outcome_to_a_cancelled_run_and_changes_no_row() {
    let ledger = executing();
    let t = late_outcome(&ledger.steps()[0], &result(), Ending::Answered, at(60));
    is(&t, "if it is CANCELLED\nstep.tool_finished\nsynced");
    assert!(t.events[0].payload.contains(r#""late":true,"observation":{"#));
    assert_eq!(t.events[0].step_id, Some(StepId::from("s0")));
    assert_eq!(t.endings, [], "an answer's observation says it");
    let t = late_outcome(&ledger.steps()[0], &result(), Ending::TimedOut, at(60));
    assert_eq!(t.endings, [EndingWrite { step_id: StepId::from("s0"), ending: Ending::TimedOut }]);
}

#[test]
fn t15_fails_a_run_that_cannot_be_gone_on_with() {
    let ledger = executing();
    let guard = Guard::Held { owner: LeaseOwner::from("me"), live: false };
    let t = fail_internal(ledger.run(), guard, "step 0 could not be decoded", at(60)).unwrap();
    is(
        &t,
        r#"if me holds it
           run FAILED internal_error "internal: step 0 could not be decoded" held by nobody
           end what is in flight, invalid_decision
           run.finished
           synced"#,
    );
}

#[test]
fn a_lease_is_renewed_and_given_up_only_by_its_owner() {
    let renewed = renew(RunId::from("r"), terms("me"));
    is(&renewed, "if me holds it\nrun held by me\nwritten");
    let released = release(RunId::from("r"), LeaseOwner::from("me"));
    is(&released, "if me holds it\nrun held by nobody\nwritten");
    assert_eq!(released.probe(), None, "it leaves no event to look for");
}

#[test]
fn a_probe_is_the_last_event() {
    let t = approve(&waits(), ANA, at(50)).unwrap();
    let probe = t.probe().unwrap();
    assert_eq!((probe.kind, probe.at, probe.step_id), ("approval.decided", at(50), Some(StepId::from("s0"))));
    assert_eq!(probe.payload, t.events[0].payload);
}

#[test]
fn a_run_needs_an_id_and_usable_limits() {
    assert_eq!(check_begin(&RunId::from("r"), &Limits::default()), Ok(()));
    assert!(check_begin(&RunId::from(""), &Limits::default()).is_err());
    assert!(check_begin(&RunId::from("r"), &Limits { max_steps: 0, ..Limits::default() }).is_err());
}
