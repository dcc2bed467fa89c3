//! What a session composes for a run that waits or was cut off: T7 to T9 and T13.

use super::*;

#[test]
fn t7_collects_a_grant_in_one_commit_with_the_tools_start() {
    let (mut ledger, grant) = granted();
    ledger.judge_under(&spec().recorded());
    ledger.resume_by(&grant, at(100)).unwrap();
    ledger.record_policy(question(), None, None, at(100)).unwrap();
    ledger.start_tool(&request(), Some(&grant.id), at(101)).unwrap();
    let t = ledger.take(Durability::Synced);
    is(
        &t,
        "if it is WAITING_FOR_APPROVAL
         if a0 is approved and unchanged
         if s0 is awaiting_approval
         run RUNNING held by other
         keep the spec
         update s0 executing, nothing
         run.resumed
         step.policy
         step.tool_started
         synced",
    );
    let StepWrite::Update(step) = &t.steps[0] else { panic!("the step is rewritten") };
    assert_eq!(step.started_at, at(101), "the wait for a person is no active time");
}

#[test]
fn a_step_keeps_the_spec_that_it_was_decided_on_and_the_policys_answer_names_todays() {
    let (mut ledger, grant) = granted();
    let today = ToolSpec { description: "reworded".to_owned(), ..spec() }.recorded();
    ledger.judge_under(&today);
    ledger.resume_by(&grant, at(100)).unwrap();
    ledger.record_policy(PolicyDecision::allow(""), None, None, at(100)).unwrap();
    let t = ledger.take(Durability::Synced);
    let StepWrite::Update(step) = &t.steps[0] else { panic!("the step is rewritten") };
    assert_eq!(step.spec_hash, Some(spec().recorded().hash));
    assert_eq!(t.events[1].payload, format!(r#"{{"outcome":"allow","spec_hash":"{}"}}"#, today.hash));
    assert_eq!(t.specs[0].hash, today.hash, "and both can be read");
}

#[test]
fn a_grant_that_is_refused_lets_the_run_go_on() {
    let (mut ledger, grant) = granted();
    ledger.resume_by(&grant, at(100)).unwrap();
    ledger.record_policy(PolicyDecision::deny("no"), None, None, at(100)).unwrap();
    let denied = Observation::of_fields(ObservationKind::PolicyDenied, &[], "");
    ledger.end_step(Some(denied), "denied on resume: no", at(101)).unwrap();
    is(
        &ledger.take(Durability::Written),
        "if it is WAITING_FOR_APPROVAL
         if a0 is approved and unchanged
         if s0 is awaiting_approval
         run +100000 ms RUNNING held by other
         update s0 failed, policy_denied
         run.resumed
         step.policy
         step.failed
         written",
    );
}

#[test]
fn a_policy_that_wants_another_approval_parks_the_run_again_without_resuming_it() {
    let (mut ledger, _) = granted();
    ledger.require_waiting();
    ledger.record_policy(question(), None, None, at(100)).unwrap();
    ledger.pause(ApprovalId::from("a1"), request(), at(101)).unwrap();
    is(
        &ledger.take(Durability::Written),
        "if it is WAITING_FOR_APPROVAL
         if s0 is awaiting_approval
         run WAITING_FOR_APPROVAL held by nobody
         update s0 awaiting_approval, nothing
         insert a1 pending
         step.policy
         approval.requested
         synced",
    );
}

#[test]
fn a_policy_that_aborts_a_granted_request_fails_the_run_without_resuming_it() {
    let (mut ledger, _) = granted();
    ledger.require_waiting();
    ledger.record_policy(PolicyDecision::abort("no"), None, None, at(100)).unwrap();
    ledger
        .end_step(Some(Observation::of_fields(ObservationKind::PolicyDenied, &[], "")), "", at(101))
        .unwrap();
    ledger.end_run(RunEnd::new(Reason::PolicyAbort, "no"), at(102)).unwrap();
    is(
        &ledger.take(Durability::Written),
        r#"if it is WAITING_FOR_APPROVAL
           if s0 is awaiting_approval
           run +100000 ms FAILED policy_abort "no" held by nobody
           update s0 failed, policy_denied
           step.policy
           step.failed
           run.finished
           written"#,
    );
}

#[test]
fn t13_expires_what_nobody_decided_and_cancels_the_run() {
    let (mut ledger, approval) = waiting();
    ledger.expire(&approval, at(200)).unwrap();
    let t = ledger.take(Durability::Written);
    is(
        &t,
        r#"if it is WAITING_FOR_APPROVAL
           if a0 is pending and unchanged
           run CANCELLED approval_expired "approval a0 expired" held by nobody
           decide a0 expired by ""
           approval.decided
           run.finished
           synced"#,
    );
    let ApprovalWrite::Decide(expired) = &t.approvals[0] else { panic!("the approval is decided") };
    assert_eq!((expired.decided_at, expired.note.as_str()), (Some(at(200)), "expired"));
    assert_eq!(ledger.steps()[0].status, StepStatus::AwaitingApproval, "its step is left as it was");
}

#[test]
fn t13_of_a_grant_keeps_who_decided_and_when() {
    let (mut ledger, grant) = granted();
    ledger.expire(&grant, at(200)).unwrap();
    let t = ledger.take(Durability::Written);
    is(
        &t,
        r#"if it is WAITING_FOR_APPROVAL
           if a0 is approved and unchanged
           run CANCELLED approval_expired "approval a0 expired" held by nobody
           decide a0 expired by "ana"
           approval.decided
           run.finished
           synced"#,
    );
    let ApprovalWrite::Decide(expired) = &t.approvals[0] else { panic!("the approval is decided") };
    assert_eq!((expired.decided_at, expired.note.as_str()), (Some(at(5)), ""));
}

/// The run of `executing`, read by `other` after its session was cut off.
fn abandoned() -> Ledger {
    let dead = executing();
    Ledger::of(terms("other"), dead.run().clone(), dead.steps().to_vec(), Vec::new())
}

fn old_lease() -> Option<Lease> {
    Some(Lease { owner: LeaseOwner::from("me"), expires_at: at(33) })
}

#[test]
fn t8_takes_the_lease_and_marks_what_was_in_flight() {
    let mut ledger = abandoned();
    ledger.take_over(old_lease(), None, at(100)).unwrap();
    let t = ledger.take(Durability::Written);
    is(
        &t,
        r#"if nobody holds it but Some("me") then, and None is gone
           if s0 is executing
           run RUNNING held by other
           update s0 interrupted, interrupted
           lease.taken_over
           step.interrupted
           synced"#,
    );
    let StepWrite::Update(step) = &t.steps[0] else { panic!("the step is rewritten") };
    let observation = step.observation.as_ref().unwrap();
    assert_eq!(observation.content.as_str(), r#"{"previous_status":"executing"}"#);
    assert_eq!(observation.summary, "step interrupted while executing");
    assert_eq!(step.finished_at, Some(at(100)));
    assert!(ledger.open_step().is_none());
}

#[test]
fn t8_of_a_lease_that_was_given_up_records_no_takeover() {
    let mut ledger = abandoned();
    ledger.take_over(None, Some(LeaseOwner::from("me")), at(100)).unwrap();
    is(
        &ledger.take(Durability::Written),
        r#"if nobody holds it but None then, and Some("me") is gone
           if s0 is executing
           run RUNNING held by other
           update s0 interrupted, interrupted
           step.interrupted
           synced"#,
    );
}

#[test]
fn t8_leaves_finished_and_waiting_steps_alone() {
    let (waits, _) = waiting();
    let mut run = waits.run().clone();
    run.status = RunStatus::Interrupted;
    let mut ledger = Ledger::of(terms("other"), run, waits.steps().to_vec(), Vec::new());
    ledger.take_over(None, None, at(100)).unwrap();
    is(
        &ledger.take(Durability::Written),
        "if nobody holds it but None then, and None is gone
         run RUNNING held by other
         synced",
    );
}

#[test]
fn t8_of_a_run_with_a_row_that_cannot_be_read_takes_it_and_touches_no_step() {
    let dead = executing();
    let mut step = Step::clone(&dead.steps()[0]);
    step.decode_error = Some("bad json".to_owned());
    let mut ledger = Ledger::of(terms("other"), dead.run().clone(), vec![Arc::new(step)], Vec::new());
    assert_eq!(ledger.damage().as_deref(), Some("step 0 (s0) could not be decoded: bad json"));
    ledger.take_over(old_lease(), None, at(100)).unwrap();
    is(
        &ledger.take(Durability::Written),
        r#"if nobody holds it but Some("me") then, and None is gone
           run RUNNING held by other
           lease.taken_over
           synced"#,
    );
}

#[test]
fn t9_goes_on_or_asks_or_ends() {
    let taken = || {
        let mut ledger = abandoned();
        ledger.take_over(old_lease(), None, at(100)).unwrap();
        ledger.take(Durability::Written);
        ledger
    };
    let mut goes_on = taken();
    goes_on.resume_after_interruption(at(100));
    is(&goes_on.take(Durability::Synced), "if other holds it\nrun.resumed\nsynced");

    let mut asks = taken();
    asks.reopen_step(0);
    asks.judge_under(&spec().recorded());
    asks.record_policy(question(), None, None, at(100)).unwrap();
    asks.pause(ApprovalId::from("a0"), request(), at(101)).unwrap();
    let t = asks.take(Durability::Written);
    is(
        &t,
        "if other holds it
         if s0 is interrupted
         run WAITING_FOR_APPROVAL held by nobody
         keep the spec
         update s0 awaiting_approval, nothing
         insert a0 pending
         step.policy
         approval.requested
         synced",
    );
    let StepWrite::Update(step) = &t.steps[0] else { panic!("the step is rewritten") };
    assert_eq!((step.finished_at, step.policy_id.clone()), (None, None));

    let mut ends = taken();
    ends.end_run(RunEnd::new(Reason::ReconcileConflict, "x"), at(101)).unwrap();
    is(
        &ends.take(Durability::Synced),
        r#"if other holds it
           run FAILED reconcile_conflict "x" held by nobody
           run.finished
           synced"#,
    );
}

#[test]
fn t8_and_t9_may_be_one_commit_with_the_same_events() {
    let mut ledger = abandoned();
    ledger.take_over(old_lease(), None, at(100)).unwrap();
    ledger.reopen_step(0);
    ledger.record_policy(question(), None, None, at(100)).unwrap();
    ledger.pause(ApprovalId::from("a0"), request(), at(101)).unwrap();
    is(
        &ledger.take(Durability::Written),
        r#"if nobody holds it but Some("me") then, and None is gone
           if s0 is executing
           run WAITING_FOR_APPROVAL held by nobody
           update s0 awaiting_approval, nothing
           insert a0 pending
           lease.taken_over
           step.interrupted
           step.policy
           approval.requested
           synced"#,
    );
}
