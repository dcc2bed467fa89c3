//! Several moves in one commit, and the same moves in several: the same events in the same order.

use super::*;

#[test]
fn the_life_of_one_call_may_be_two_commits_with_the_same_events() {
    let run = Run::begun(RunId::from("r"), "g", limits(), AT);
    let mut ledger = Ledger::begin(terms("me"), run, &[spec().recorded()]);
    ledger.start_step(StepId::from("s0"), at(1));
    ledger
        .decide(Proposal::tool_call("push", "{\"n\":1}").recorded(), Some(&spec().recorded()), at(2))
        .unwrap();
    ledger.record_policy(PolicyDecision::allow(""), None, None, at(3)).unwrap();
    ledger.start_tool(&request(), None, at(3)).unwrap();
    is(
        &ledger.take(Durability::Synced),
        "if there is no such run
         insert RUNNING after 1 steps held by me
         keep the spec
         keep the spec
         insert s0 executing, nothing
         run.created
         run.started
         step.started
         step.decided
         step.policy
         step.tool_started
         synced",
    );
    ledger.end_step(Some(result()), "", at(4)).unwrap();
    ledger.start_step(StepId::from("s1"), at(5));
    ledger.decide(Proposal::complete("").recorded(), None, at(6)).unwrap();
    ledger.end_step(None, "", at(7)).unwrap();
    ledger.end_run(RunEnd::new(Reason::GoalCompleted, ""), at(8)).unwrap();
    is(
        &ledger.take(Durability::Synced),
        r#"if me holds it
           if s0 is executing
           if it has started 1 steps
           run +1 step +5000 ms COMPLETED goal_completed "" held by nobody
           update s0 done, tool_result
           insert s1 done, nothing
           step.tool_finished
           step.started
           step.decided
           run.finished
           synced"#,
    );
}

#[test]
fn a_run_of_one_refused_call_may_be_one_commit() {
    let run = Run::begun(RunId::from("r"), "g", limits(), AT);
    let mut ledger = Ledger::begin(terms("me"), run, &[]);
    ledger.start_step(StepId::from("s0"), at(1));
    ledger.decide(Proposal::tool_call("push", "").recorded(), None, at(2)).unwrap();
    ledger.record_policy(question(), None, None, at(3)).unwrap();
    ledger.pause(ApprovalId::from("a0"), request(), at(4)).unwrap();
    is(
        &ledger.take(Durability::Written),
        "if there is no such run
         insert WAITING_FOR_APPROVAL after 1 steps
         insert s0 awaiting_approval, nothing
         insert a0 pending
         run.created
         run.started
         step.started
         step.decided
         step.policy
         approval.requested
         synced",
    );
}

#[test]
fn a_draft_in_one_commit_and_in_several_have_the_same_events() {
    let kinds = |transitions: &[Transition]| -> Vec<(String, String)> {
        let events = transitions.iter().flat_map(|t| &t.events);
        events.map(|event| (event.kind.to_string(), event.payload.clone())).collect()
    };
    let story = |every: bool| {
        let mut taken = Vec::new();
        let run = Run::begun(RunId::from("r"), "g", limits(), AT);
        let mut ledger = Ledger::begin(terms("me"), run, &[spec().recorded()]);
        let mut pass = |ledger: &mut Ledger, force: bool| {
            if every || force {
                taken.push(ledger.take(Durability::Written));
            }
        };
        pass(&mut ledger, false);
        ledger.start_step(StepId::from("s0"), at(1));
        pass(&mut ledger, false);
        ledger.decide(Proposal::tool_call("push", "").recorded(), None, at(2)).unwrap();
        pass(&mut ledger, false);
        let view = ledger.view().seen();
        ledger.record_policy(PolicyDecision::allow("ok"), None, Some(&view), at(3)).unwrap();
        ledger.start_tool(&request(), None, at(3)).unwrap();
        pass(&mut ledger, false);
        ledger.end_step(Some(result()), "", at(4)).unwrap();
        pass(&mut ledger, false);
        ledger.end_run(RunEnd::new(Reason::LimitSteps, "x").by_limit(), at(5)).unwrap();
        pass(&mut ledger, true);
        taken
    };
    let (one, several) = (story(false), story(true));
    assert_eq!((one.len(), several.len()), (1, 6));
    assert_eq!(kinds(&one), kinds(&several));
}
