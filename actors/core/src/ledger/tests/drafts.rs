//! What a session composes for a fresh request: T1 to T5, and the moves that no machine has.

use super::*;

#[test]
fn t1_begins_a_run_under_a_lease_with_every_spec() {
    let run = Run::begun(RunId::from("r"), "g", limits(), AT);
    let mut ledger = Ledger::begin(terms("me"), run, &[spec().recorded(), spec().recorded()]);
    assert!(ledger.is_new() && !ledger.is_clean());
    is(
        &ledger.take(Durability::Synced),
        "if there is no such run
         insert RUNNING after 0 steps held by me
         keep the spec
         keep the spec
         run.created
         run.started
         synced",
    );
    assert!(ledger.is_clean() && !ledger.is_new());
}

#[test]
fn t2_starts_the_next_step_only_if_no_other_was() {
    let mut ledger = begun();
    ledger.start_step(StepId::from("s0"), at(1));
    is(
        &ledger.take(Durability::Written),
        "if me holds it
         if it has started 0 steps
         run +1 step
         insert s0 deciding, nothing
         step.started
         written",
    );
    assert_eq!(ledger.run().step_count, 1);
    assert_eq!(ledger.open_step().map(|step| step.index), Some(0));
}

#[test]
fn t3_records_the_decision_only_on_a_step_that_is_still_deciding() {
    let mut ledger = begun();
    ledger.start_step(StepId::from("s0"), at(1));
    ledger.take(Durability::Written);
    ledger.decide(Proposal::tool_call("push", "{").recorded(), Some(&spec().recorded()), at(2)).unwrap();
    let t = ledger.take(Durability::Written);
    is(
        &t,
        "if me holds it
         if s0 is deciding
         keep the spec
         update s0 deciding, nothing
         step.decided
         written",
    );
    let StepWrite::Update(step) = &t.steps[0] else { panic!("the step is rewritten") };
    assert_eq!(step.spec_hash, Some(spec().recorded().hash));
    assert_eq!(step.decision.as_ref().unwrap().invalid_args, "{");
}

#[test]
fn t4a_starts_the_tool_only_under_a_lease_that_has_not_run_out() {
    let mut ledger = decided();
    ledger.record_policy(PolicyDecision::allow(""), Some(PolicyId::from("p1")), None, at(3)).unwrap();
    ledger.start_tool(&request(), None, at(3)).unwrap();
    let t = ledger.take(Durability::Synced);
    is(
        &t,
        "if me holds it unexpired
         if s0 is deciding
         update s0 executing, nothing
         step.policy
         step.tool_started
         synced",
    );
    let StepWrite::Update(step) = &t.steps[0] else { panic!("the step is rewritten") };
    assert_eq!(step.policy_id, Some(PolicyId::from("p1")));
    assert_eq!(step.started_at, at(1), "the time of deciding counts");
}

#[test]
fn t4b_ends_a_denied_step_and_counts_its_time() {
    let mut ledger = decided();
    ledger.record_policy(PolicyDecision::deny("no"), None, None, at(3)).unwrap();
    let denied = Observation::of_fields(ObservationKind::PolicyDenied, &[("reason", "no")], "denied: no");
    ledger.end_step(Some(denied), "denied: no", at(4)).unwrap();
    is(
        &ledger.take(Durability::Written),
        "if me holds it
         if s0 is deciding
         run +3000 ms
         update s0 failed, policy_denied
         step.policy
         step.failed
         written",
    );
    assert_eq!((ledger.run().active_ms, ledger.open_step().is_none()), (3_000, true));
}

#[test]
fn t4c_fails_the_run_with_the_step() {
    let mut ledger = decided();
    ledger.record_policy(PolicyDecision::abort("stop"), None, None, at(3)).unwrap();
    let aborted =
        Observation::of_fields(ObservationKind::PolicyDenied, &[("reason", "stop")], "aborted: stop");
    ledger.end_step(Some(aborted), "aborted: stop", at(4)).unwrap();
    ledger.end_run(RunEnd::new(Reason::PolicyAbort, "stop"), at(5)).unwrap();
    is(
        &ledger.take(Durability::Written),
        r#"if me holds it
           if s0 is deciding
           run +3000 ms FAILED policy_abort "stop" held by nobody
           update s0 failed, policy_denied
           step.policy
           step.failed
           run.finished
           written"#,
    );
}

#[test]
fn t4c_names_the_policy_that_failed_to_answer_without_an_answer() {
    let mut ledger = decided();
    ledger.ask_policy(Some(PolicyId::from("p1"))).unwrap();
    ledger.fail_step("policy error: x", at(3)).unwrap();
    ledger.end_run(RunEnd::new(Reason::InternalError, "policy: x"), at(4)).unwrap();
    let t = ledger.take(Durability::Written);
    is(
        &t,
        r#"if me holds it
           if s0 is deciding
           run +2000 ms FAILED internal_error "policy: x" held by nobody
           update s0 failed, nothing
           step.failed
           run.finished
           written"#,
    );
    let StepWrite::Update(step) = &t.steps[0] else { panic!("the step is rewritten") };
    assert_eq!((step.policy_id.as_ref().map(PolicyId::as_str), step.policy.is_none()), (Some("p1"), true));
}

#[test]
fn t4d_parks_the_run_on_an_approval_only_while_it_is_held() {
    let mut ledger = decided();
    ledger.record_policy(question(), None, None, at(3)).unwrap();
    let approval = ledger.pause(ApprovalId::from("a0"), request(), at(4)).unwrap();
    is(
        &ledger.take(Durability::Written),
        "if me holds it
         if s0 is deciding
         run WAITING_FOR_APPROVAL held by nobody
         update s0 awaiting_approval, nothing
         insert a0 pending
         step.policy
         approval.requested
         synced",
    );
    assert!(approval.is_intact());
    assert_eq!(approval.expires_at, Some(at(64)));
    assert_eq!(ledger.approvals().len(), 1);
}

#[test]
fn an_approval_of_a_run_without_a_limit_never_expires() {
    let run = Run::begun(RunId::from("r"), "g", Limits::default(), AT);
    let mut ledger = Ledger::begin(terms("me"), run, &[]);
    ledger.start_step(StepId::from("s0"), at(1));
    ledger.decide(Proposal::tool_call("push", "").recorded(), None, at(1)).unwrap();
    ledger.record_policy(question(), None, None, at(1)).unwrap();
    assert_eq!(ledger.pause(ApprovalId::from("a"), request(), at(2)).unwrap().expires_at, None);
}

#[test]
fn t5_records_a_result() {
    let mut ledger = executing();
    ledger.end_step(Some(result()), "", at(9)).unwrap();
    is(
        &ledger.take(Durability::Synced),
        "if me holds it
         if s0 is executing
         run +8000 ms
         update s0 done, tool_result
         step.tool_finished
         synced",
    );
}

#[test]
fn t5_records_a_failure_and_how_the_call_ended() {
    let mut ledger = executing();
    ledger.end_step(Some(error()), "push error: no", at(9)).unwrap();
    ledger.keep_ending(StepId::from("s0"), Ending::NoAnswer);
    is(
        &ledger.take(Durability::Synced),
        "if me holds it
         if s0 is executing
         run +8000 ms
         update s0 failed, tool_error
         s0 ended no_answer
         step.tool_finished
         step.failed
         synced",
    );
}

#[test]
fn t5_of_a_terminal_tool_ends_the_run_in_the_same_commit() {
    let mut ledger = executing();
    ledger.end_step(Some(result()), "", at(9)).unwrap();
    let end = RunEnd::new(Reason::GoalCompleted, "terminal tool push").with_result(Some(Json::trusted("[]")));
    ledger.end_run(end, at(10)).unwrap();
    let t = ledger.take(Durability::Synced);
    is(
        &t,
        r#"if me holds it
           if s0 is executing
           run +8000 ms COMPLETED goal_completed "terminal tool push" held by nobody
           update s0 done, tool_result
           step.tool_finished
           run.finished
           synced"#,
    );
    let Some(RunWrite::Update(RunUpdate { standing: Some(standing), .. })) = t.run else { panic!("it ends") };
    assert_eq!((standing.result, standing.finished_at), (Some(Json::trusted("[]")), Some(at(10))));
}

#[test]
fn events_of_one_ending_come_in_their_order() {
    let mut ledger = executing();
    ledger.end_step(Some(error()), "push aborted the run: x", at(9)).unwrap();
    ledger.end_run(RunEnd::new(Reason::ToolAbort, "x"), at(10)).unwrap();
    let kinds: Vec<_> = ledger.take(Durability::Synced).events.iter().map(|e| e.kind.as_str()).collect();
    assert_eq!(kinds, ["step.tool_finished", "step.failed", "run.finished"]);
}

#[test]
fn a_limit_is_an_event_of_its_own_and_a_loop_is_another() {
    let mut ledger = begun();
    ledger.end_run(RunEnd::new(Reason::LimitSteps, "step limit 1 reached").by_limit(), at(1)).unwrap();
    is(
        &ledger.take(Durability::Written),
        r#"if me holds it
           run FAILED limit_steps "step limit 1 reached" held by nobody
           limit.exceeded
           run.finished
           written"#,
    );
    let mut ledger = begun();
    let repeated = Repeated {
        times: 3,
        tool: "t".to_owned(),
        args_hash: String::new(),
        observation_hash: String::new(),
    };
    ledger.detect_loop(&repeated, at(1));
    ledger.end_run(RunEnd::new(Reason::LoopDetected, "x"), at(2)).unwrap();
    is(
        &ledger.take(Durability::Written),
        r#"if me holds it
           run FAILED loop_detected "x" held by nobody
           loop.detected
           run.finished
           written"#,
    );
}

#[test]
fn a_view_holds_the_run_as_it_stands_the_steps_before_and_every_approval() {
    let (ledger, _) = granted();
    let view = ledger.view();
    assert_eq!(
        (view.run.status, view.steps.len(), view.approvals.len()),
        (RunStatus::WaitingForApproval, 0, 1)
    );
    let mut later = executing();
    later.end_step(Some(result()), "", at(4)).unwrap();
    assert_eq!(later.view().steps.len(), 1, "with no step open, all of them");
    later.start_step(StepId::from("s1"), at(5));
    assert_eq!((later.view().steps.len(), later.view().run.step_count), (1, 2));
}

#[test]
fn a_move_that_no_machine_has_is_refused() {
    let mut idle = begun();
    assert_eq!(idle.end_step(None, "", at(1)), Err(Illegal::NoOpenStep));
    assert_eq!(idle.decide(Decision::default(), None, at(1)), Err(Illegal::NoOpenStep));
    assert!(matches!(idle.pause(ApprovalId::from("a"), request(), at(1)), Err(Illegal::NoOpenStep)));

    let (mut waits, approval) = waiting();
    let end = RunEnd::new(Reason::GoalCompleted, "");
    assert!(matches!(waits.end_run(end, at(9)), Err(Illegal::Run(_))), "one that waits reaches no goal");
    assert!(matches!(waits.take_over(None, None, at(9)), Err(Illegal::Run(_))));
    let mut rejected = Approval::clone(&approval);
    rejected.status = ApprovalStatus::Rejected;
    assert!(matches!(waits.expire(&rejected, at(9)), Err(Illegal::Approval(_))));

    let mut runs = executing();
    assert!(matches!(runs.start_tool(&request(), None, at(9)), Err(Illegal::Step(_))), "it has started");
}
