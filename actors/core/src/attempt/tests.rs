//! Tests of how an attempt ended, by what was recorded of it.

use std::sync::Arc;

use super::*;
use crate::approval::{ApprovalStatus, INTERRUPTED_SIDE_EFFECT};
use crate::decision::Proposal;
use crate::event::NewEvent;
use crate::hash;
use crate::ids::{ApprovalHash, ApprovalId};

const AT: UnixNanos = UnixNanos::from_nanos(1_700_000_000_500_000_000);

fn upstream(class: SideEffect) -> Upstream {
    Upstream { name: "bank_pay".into(), server: "bank".into(), remote: "pay".into(), class }
}

fn step(id: &str, status: StepStatus, observation: Option<Observation>) -> Arc<Step> {
    let mut step = Step::begun(StepId::from(id), RunId::from("s.1"), 0, AT);
    step.status = status;
    step.decision = Some(Proposal::tool_call("bank_pay", "{}").recorded());
    step.observation = observation;
    Arc::new(step)
}

fn error(failure: &str, text: &str) -> Observation {
    let fields = [("tool", "bank_pay"), ("error", text), ("failure", failure)];
    Observation::of_fields(ObservationKind::ToolError, &fields, "")
}

fn result() -> Observation {
    Observation::new(ObservationKind::ToolResult, Json::trusted("\"paid\""), "")
}

fn cut_off(while_: &str) -> Observation {
    Observation::of_fields(ObservationKind::Interrupted, &[("previous_status", while_)], "")
}

fn interruption(step: &str, capability: &str) -> Arc<Approval> {
    Arc::new(Approval {
        id: ApprovalId::from("a1"),
        run_id: RunId::from("s.1"),
        step_id: StepId::from(step),
        kind: INTERRUPTED_SIDE_EFFECT.to_owned(),
        capability: Json::trusted(capability),
        presentation: Json::empty_object(),
        request: None,
        hash: ApprovalHash::from(hash::sha256_hex(b"")),
        status: ApprovalStatus::Pending,
        created_at: AT,
        expires_at: None,
        decided_at: None,
        decided_by: String::new(),
        note: String::new(),
        decode_error: None,
    })
}

fn judge(steps: &[Arc<Step>], approvals: &[Arc<Approval>]) -> (AttemptOutcome, Option<Ended>) {
    let tool = upstream(SideEffect::RemoteMutation);
    let (outcome, attempt) = last_attempt(steps, approvals, |_| None, |_| Some(&tool));
    (outcome, attempt.map(|attempt| attempt.ended))
}

#[test]
fn a_run_whose_tool_never_started_made_no_attempt() {
    let denied = Observation::of_fields(ObservationKind::PolicyDenied, &[("reason", "no")], "");
    for steps in [
        vec![],
        vec![step("1", StepStatus::Failed, Some(denied))],
        vec![step("1", StepStatus::AwaitingApproval, None)],
        vec![step("1", StepStatus::Interrupted, Some(cut_off("deciding")))],
    ] {
        assert_eq!(judge(&steps, &[]), (AttemptOutcome::None, None));
    }
}

#[test]
fn a_step_cut_off_while_executing_is_unknown() {
    let steps = [step("1", StepStatus::Interrupted, Some(cut_off("executing")))];
    assert_eq!(judge(&steps, &[]), (AttemptOutcome::Unknown, Some(Ended::CutOff)));
}

/// A step that an operator's cancellation found in flight, with these events of its own.
fn cancelled(events: &[NewEvent]) -> Arc<Step> {
    let by = Observation::of_fields(ObservationKind::Interrupted, &[("by", "ana")], "");
    let step = Step::clone(&step("1", StepStatus::Failed, Some(by)));
    let stored = |(seq, event): (i64, &NewEvent)| Event {
        seq,
        run_id: event.run_id.clone(),
        step_id: "1".to_owned(),
        at: Some(event.at),
        kind: event.kind.as_str().to_owned(),
        payload: event.payload.clone(),
    };
    let events: Vec<Event> = (1..).zip(events).map(stored).collect();
    Arc::new(as_it_came_out(step, &events))
}

#[test]
fn a_cancelled_call_came_to_what_its_tool_returned_later() {
    let begun = step("1", StepStatus::Executing, None);
    let started = NewEvent {
        run_id: RunId::from("s.1"),
        step_id: Some(StepId::from("1")),
        at: AT,
        kind: EventKind::StepToolStarted,
        payload: r#"{"args":{},"tool":"bank_pay"}"#.to_owned(),
    };
    let finished = |observation: Observation, late| NewEvent::tool_finished(&begun, &observation, late, AT);
    let declined = error("error", "bank/pay: 3 bytes, error: no");
    let unknown = (AttemptOutcome::Unknown, Some(Ended::CutOff));
    for (events, came_to, executed) in [
        (vec![], (AttemptOutcome::None, None), false),
        (vec![started.clone()], unknown, false),
        (vec![started.clone(), finished(result(), false)], unknown, false),
        (vec![started.clone(), finished(result(), true)], (AttemptOutcome::Known, None), true),
        (vec![started.clone(), finished(declined, true)], (AttemptOutcome::Known, None), true),
        (
            vec![started, finished(error("timeout", "deadline"), true)],
            (AttemptOutcome::Unknown, Some(Ended::TimedOut)),
            true,
        ),
    ] {
        let step = cancelled(&events);
        assert_eq!(judge(std::slice::from_ref(&step), &[]), came_to, "{events:?}");
        assert_eq!(executed_step(&[step]).is_some(), executed, "{events:?}");
    }
    // The question about an earlier attempt, cancelled before anybody answered it, leaves that attempt as unknown as it was.
    assert_eq!(judge(&[cancelled(&[])], &[interruption("1", "{}")]), unknown);
}

#[test]
fn the_newest_step_that_made_an_attempt_decides() {
    let lost = step("1", StepStatus::Failed, Some(error("timeout", "deadline")));
    let paid = step("2", StepStatus::Done, Some(result()));
    assert_eq!(judge(&[lost.clone(), paid], &[]).0, AttemptOutcome::Known);
    let closing = {
        let mut step = Step::begun(StepId::from("2"), RunId::from("s.1"), 1, AT);
        step.decision = Some(Proposal::fail("over").recorded());
        Arc::new(step)
    };
    assert_eq!(judge(&[lost, closing], &[]), (AttemptOutcome::Unknown, Some(Ended::TimedOut)));
}

#[test]
fn a_rerun_that_never_executed_leaves_the_attempt_that_it_was_asked_about() {
    let waiting = step("2", StepStatus::AwaitingApproval, None);
    let named = r#"{"args":{},"interrupted":{"run_id":"s.0","step_id":"9","started_at":"2023-11-14T22:13:20.5Z","ended":"no_answer"}}"#;
    let tool = upstream(SideEffect::RemoteMutation);
    let (outcome, attempt) =
        last_attempt(std::slice::from_ref(&waiting), &[interruption("2", named)], |_| None, |_| Some(&tool));
    assert_eq!(outcome, AttemptOutcome::Unknown);
    let attempt = attempt.unwrap();
    assert_eq!(
        (attempt.run_id.as_str(), attempt.step_id.as_str(), attempt.ended),
        ("s.0", "9", Ended::NoAnswer)
    );
    assert_eq!(attempt.started_at, AT);
    // Asked by the runtime itself, whose capability names no attempt: the step is the attempt.
    assert_eq!(
        judge(&[waiting], &[interruption("2", r#"{"tool":"bank_pay","args":{}}"#)]),
        (AttemptOutcome::Unknown, Some(Ended::CutOff))
    );
}

#[test]
fn typed_endings_decide_and_text_does_not() {
    let tool = upstream(SideEffect::Destructive);
    let failed = error("error", "bank/pay: 3 bytes, error: no");
    let cases = [
        (Ending::Answered, CameTo::Known),
        (Ending::KnownFailure, CameTo::Known),
        (Ending::Unrecordable, CameTo::Known),
        (Ending::TimedOut, CameTo::Unknown(Ended::TimedOut)),
        (Ending::NoAnswer, CameTo::Unknown(Ended::NoAnswer)),
        (Ending::NotSent, CameTo::Nothing),
    ];
    for (ending, expected) in cases {
        assert_eq!(came_to(&failed, Some(ending), Some(&tool)), expected, "{ending}");
    }
}

#[test]
fn records_of_another_program_are_read_by_their_text_forms() {
    let pay = upstream(SideEffect::RemoteMutation);
    let known = [
        "bank/pay: 22 bytes, error: card declined for x",
        "bank/pay: 70000 bytes, truncated, error: long",
        "bank/pay: 5 bytes, structured content of 80000 bytes dropped for the text, error: x",
        "bank/pay: 5 bytes, truncated, structured content of 80000 bytes dropped for the text, error: x",
        "bank_pay: parameter \"currency\" is fixed by the operator",
        "bank_pay: parameter \"a \"b\" c\" is denied by the operator",
        "bank_pay: arguments are not a JSON object: x",
        "bank_pay: the server asked for more input",
    ];
    for text in known {
        assert_eq!(came_to(&error("error", text), None, Some(&pay)), CameTo::Known, "{text}");
    }
    let lost = [
        "mcp: server \"bank\": tool \"pay\": connection closed",
        "anything else",
        "bank/payx: 1 bytes, error: x",
        "bank/pay: bytes, error: x",
        " bank/pay: 1 bytes, error: x",
        "bank_pay: parameter \"a\nb\" is fixed by the operator",
        "",
    ];
    for text in lost {
        let expected = CameTo::Unknown(Ended::NoAnswer);
        assert_eq!(came_to(&error("error", text), None, Some(&pay)), expected, "{text}");
    }
    assert_eq!(came_to(&error("timeout", known[0]), None, Some(&pay)), CameTo::Unknown(Ended::TimedOut));
    assert_eq!(came_to(&error("invalid_content", "x"), None, Some(&pay)), CameTo::Known);
    let odd = Observation::new(ObservationKind::ToolError, Json::trusted("[1]"), "");
    assert_eq!(came_to(&odd, None, Some(&pay)), CameTo::Unknown(Ended::NoAnswer));
}

#[test]
fn a_read_is_never_in_doubt_and_a_tool_no_longer_offered_always() {
    let read = upstream(SideEffect::ReadOnly);
    for ending in [Some(Ending::TimedOut), Some(Ending::NoAnswer), None] {
        assert_eq!(came_to(&error("timeout", "x"), ending, Some(&read)), CameTo::Known);
    }
    let known = error("error", "bank/pay: 1 bytes, error: x");
    assert_eq!(came_to(&known, None, None), CameTo::Unknown(Ended::NoAnswer));
}

#[test]
fn an_attempt_that_was_never_sent_is_passed_over() {
    let tool = upstream(SideEffect::RemoteMutation);
    let unsent = step("1", StepStatus::Failed, Some(error("error", "not sent")));
    let ending = |_: &StepId| Some(Ending::NotSent);
    let none: [Arc<Approval>; 0] = [];
    assert_eq!(
        last_attempt(std::slice::from_ref(&unsent), &none, ending, |_| Some(&tool)).0,
        AttemptOutcome::None
    );
    // The re-run that was not sent leaves the earlier attempt in doubt.
    let asked = [interruption("1", "{}")];
    assert_eq!(last_attempt(&[unsent], &asked, ending, |_| Some(&tool)).0, AttemptOutcome::Unknown);
}

#[test]
fn an_attempt_survives_its_json_form() {
    let attempt =
        Attempt { run_id: "s.1".into(), step_id: "7".into(), started_at: AT, ended: Ended::TimedOut };
    let mut w = ObjectWriter::new();
    w.object("interrupted", |w| attempt.write(w));
    let text = w.finish();
    assert_eq!(
        text,
        r#"{"interrupted":{"run_id":"s.1","step_id":"7","started_at":"2023-11-14T22:13:20.5Z","ended":"timed_out"}}"#
    );
    assert_eq!(Attempt::named_in(&Json::trusted(text)), Some(attempt));
}

#[test]
fn a_damaged_step_that_may_have_run_is_in_doubt() {
    let mut damaged = Step::begun(StepId::from("1"), RunId::from("s.1"), 0, AT);
    damaged.decode_error = Some("cut".into());
    damaged.status = StepStatus::Executing;
    assert_eq!(judge(&[Arc::new(damaged.clone())], &[]).0, AttemptOutcome::Unknown);
    damaged.status = StepStatus::Deciding;
    assert_eq!(judge(&[Arc::new(damaged)], &[]).0, AttemptOutcome::None);
}
