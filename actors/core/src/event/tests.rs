//! The payload of each kind of event, byte for byte.

use std::time::Duration;

use super::*;
use crate::decision::Proposal;
use crate::ids::ApprovalHash;
use crate::json::Json;
use crate::policy::PolicyView;
use crate::step::ObservationKind;
use crate::tool::{SideEffect, ToolSpec};

const AT: UnixNanos = UnixNanos::from_nanos(1_700_000_000_500_000_000);

fn run() -> Run {
    Run::begun(RunId::from("r"), "tidy <up>", Limits::default(), AT)
}

fn step() -> Step {
    let mut step = Step::begun(StepId::from("s"), RunId::from("r"), 4, AT);
    step.decision = Some(Proposal::tool_call("push", "{\"n\":1}").recorded());
    step
}

fn spec() -> ToolSpec {
    ToolSpec {
        name: "push".to_owned(),
        description: String::new(),
        input_schema: Json::empty_object(),
        side_effect: SideEffect::RemoteMutation,
        timeout: Duration::from_secs(1),
        terminal: false,
    }
}

fn request() -> ToolRequest {
    let (run_id, step_id) = (RunId::from("r"), StepId::from("s"));
    ToolRequest { run_id, step_id, spec: spec(), args: Json::trusted("{ \"b\": 2, \"a\": \"&\" }") }
}

fn approval(status: ApprovalStatus) -> Approval {
    Approval {
        id: ApprovalId::from("a"),
        run_id: RunId::from("r"),
        step_id: StepId::from("s"),
        kind: "remote_mutation".to_owned(),
        capability: Json::trusted("{\"z\":1,\"a\":2}"),
        presentation: Json::empty_object(),
        request: Some(request()),
        hash: ApprovalHash::from("h"),
        status,
        created_at: AT,
        expires_at: None,
        decided_at: Some(AT),
        decided_by: "ana".to_owned(),
        note: "looks <good>".to_owned(),
        decode_error: None,
    }
}

/// Checks kind, step and payload of an event that happened at `AT`.
fn is(event: &NewEvent, kind: &str, of_step: bool, payload: &str) {
    assert_eq!(event.kind.to_string(), kind);
    assert_eq!(event.run_id.as_str(), "r");
    assert_eq!(event.step_id.as_ref().map(StepId::as_str), of_step.then_some("s"), "{kind}");
    assert_eq!(event.payload, payload, "{kind}");
}

#[test]
fn there_are_nineteen_kinds() {
    let names = [
        "run.created",
        "run.started",
        "run.finished",
        "run.resumed",
        "step.started",
        "step.decided",
        "step.policy",
        "step.tool_started",
        "step.tool_finished",
        "step.failed",
        "step.interrupted",
        "approval.requested",
        "approval.decided",
        "limit.exceeded",
        "loop.detected",
        "lease.taken_over",
        "model.dispatched",
        "model.completed",
        "model.failed",
    ];
    assert_eq!(EventKind::ALL.iter().map(|kind| kind.as_str()).collect::<Vec<_>>(), names);
}

#[test]
fn a_runs_beginning_names_its_goal_its_limits_and_its_tools() {
    let specs = [spec().recorded(), ToolSpec { name: "read".to_owned(), ..spec() }.recorded()];
    let created = format!(
        r#"{{"goal":"tidy \u003cup\u003e","limits":{{"max_steps":50,"max_consecutive_tool_failures":3,"loop_threshold":3}},"tools":["{}","{}"]}}"#,
        specs[0].hash, specs[1].hash
    );
    is(&NewEvent::run_created(&run(), &specs), "run.created", false, &created);
    assert!(NewEvent::run_created(&run(), &[]).payload.ends_with(r#","tools":[]}"#));
    is(&NewEvent::run_started(&run()), "run.started", false, "{}");
}

#[test]
fn a_runs_end_says_why_and_by_whom_when_a_person_ended_it() {
    let mut run = run();
    run.step_count = 7;
    run.status = crate::run::RunStatus::Cancelled;
    run.reason = Some(Reason::OperatorCancelled);
    run.reason_detail = "enough".to_owned();
    let plain = r#"{"detail":"enough","reason":"operator_cancelled","status":"CANCELLED","steps":7}"#;
    is(&NewEvent::run_finished(&run, AT, None), "run.finished", false, plain);
    let by = r#"{"by":"ana","detail":"enough","reason":"operator_cancelled","status":"CANCELLED","steps":7}"#;
    is(&NewEvent::run_finished(&run, AT, Some("ana")), "run.finished", false, by);
    let limit = r#"{"detail":"enough","reason":"operator_cancelled"}"#;
    is(&NewEvent::limit_exceeded(&run, AT), "limit.exceeded", false, limit);
}

#[test]
fn a_run_that_goes_on_says_after_what() {
    let by = NewEvent::run_resumed_by(&approval(ApprovalStatus::Approved), AT);
    is(&by, "run.resumed", true, r#"{"approval_id":"a"}"#);
    let after = NewEvent::run_resumed_after_interruption(&run(), AT);
    is(&after, "run.resumed", false, r#"{"after":"interruption"}"#);
}

#[test]
fn a_steps_beginning_and_decision_are_its_index_and_what_was_recorded() {
    is(&NewEvent::step_started(&step()), "step.started", true, r#"{"index":4}"#);
    let decided = r#"{"kind":"tool_call","tool":"push","args":{"n":1}}"#;
    is(&NewEvent::step_decided(&step(), AT), "step.decided", true, decided);
}

#[test]
fn a_policys_answer_names_who_answered_about_which_spec_and_what_it_saw() {
    let mut run = run();
    run.step_count = 3;
    run.totals.model_calls = 1;
    run.totals.input_tokens = 2;
    run.totals.output_tokens = 3;
    run.totals.cached_input_tokens = 4;
    run.totals.estimated_cost_micros = 5;
    run.active_ms = 6;
    let steps = [step(), step()].map(std::sync::Arc::new).to_vec();
    let seen = PolicyView { run, steps, approvals: Vec::new() }.seen();
    let mut step = step();
    step.policy_id = Some(PolicyId::from("rules-v1"));
    let hash = SpecHash::from("abc");
    let decision =
        PolicyDecision::need_approval("k", "why", Json::trusted("{\"c\":1}"), Json::empty_object());
    let payload = concat!(
        r#"{"outcome":"require_approval","reason":"why","kind":"k","capability":{"c":1},"presentation":{},"#,
        r#""policy_id":"rules-v1","spec_hash":"abc","view":{"status":"RUNNING","step_count":3,"model_calls":1,"#,
        r#""input_tokens":2,"output_tokens":3,"cached_input_tokens":4,"estimated_cost_micros":5,"active_ms":6,"#,
        r#""steps":2,"approvals":0}}"#
    );
    is(&NewEvent::step_policy(&step, &decision, Some(&hash), Some(&seen), AT), "step.policy", true, payload);
    step.policy_id = None;
    let bare = NewEvent::step_policy(&step, &PolicyDecision::allow(""), None, None, AT);
    is(&bare, "step.policy", true, r#"{"outcome":"allow"}"#);
}

#[test]
fn a_tools_start_names_its_request_and_the_grant_that_let_it_run() {
    let plain = NewEvent::tool_started(&step(), &request(), None, AT);
    is(&plain, "step.tool_started", true, r#"{"args":{"b":2,"a":"\u0026"},"tool":"push"}"#);
    let granted = NewEvent::tool_started(&step(), &request(), Some(&ApprovalId::from("a")), AT);
    let payload = r#"{"approval_id":"a","args":{"b":2,"a":"\u0026"},"tool":"push"}"#;
    is(&granted, "step.tool_started", true, payload);
}

#[test]
fn a_tools_end_counts_from_the_steps_start_and_a_late_one_carries_everything() {
    let later = AT.plus(Duration::from_micros(2_999));
    let result = Observation::new(ObservationKind::ToolResult, Json::trusted("[1]"), "one");
    let hash = &result.content_hash;
    let ok = format!(r#"{{"content_hash":"{hash}","duration_ms":2,"summary":"one","tool":"push"}}"#);
    is(&NewEvent::tool_finished(&step(), &result, false, later), "step.tool_finished", true, &ok);
    let late = format!(
        r#"{{"content_hash":"{hash}","duration_ms":2,"late":true,"observation":{{"kind":"tool_result","content":[1],"summary":"one","content_hash":"{hash}"}},"summary":"one","tool":"push"}}"#
    );
    is(&NewEvent::tool_finished(&step(), &result, true, later), "step.tool_finished", true, &late);

    let error = Observation::of_fields(ObservationKind::ToolError, &[("error", "no")], "push error: no");
    let failed = r#"{"duration_ms":2,"error":"push error: no","tool":"push"}"#;
    is(&NewEvent::tool_finished(&step(), &error, false, later), "step.tool_finished", true, failed);
    let late = format!(r#"{{"duration_ms":2,"late":true,"observation":{},"tool":"push"}}"#, error.to_json());
    is(&NewEvent::tool_finished(&step(), &error, true, later), "step.tool_finished", true, &late);
}

#[test]
fn a_steps_failure_names_its_observation_when_there_is_one() {
    let mut step = step();
    is(
        &NewEvent::step_failed(&step, "agent error: x", AT),
        "step.failed",
        true,
        r#"{"detail":"agent error: x"}"#,
    );
    let denied = Observation::of_fields(ObservationKind::PolicyDenied, &[("reason", "no")], "denied: no");
    let payload = format!(
        r#"{{"content_hash":"{}","detail":"denied: no","observation":"policy_denied"}}"#,
        denied.content_hash
    );
    step.observation = Some(denied);
    is(&NewEvent::step_failed(&step, "denied: no", AT), "step.failed", true, &payload);
}

#[test]
fn an_interruption_carries_the_observed_object_and_not_a_bare_word() {
    let mut step = step();
    let fields = [("previous_status", "executing")];
    step.observation = Some(Observation::of_fields(ObservationKind::Interrupted, &fields, ""));
    let payload = r#"{"previous_status":{"previous_status":"executing"}}"#;
    is(&NewEvent::step_interrupted(&step, AT), "step.interrupted", true, payload);
}

#[test]
fn a_question_carries_what_is_granted_and_shown_and_its_hash() {
    let event = NewEvent::approval_requested(&step(), &approval(ApprovalStatus::Pending), "because");
    let payload = concat!(
        r#"{"approval_id":"a","capability":{"z":1,"a":2},"hash":"h","kind":"remote_mutation","presentation":{},"#,
        r#""reason":"because"}"#
    );
    is(&event, "approval.requested", true, payload);
}

#[test]
fn a_persons_answer_names_them_and_an_expiry_names_nobody() {
    let approved = NewEvent::approval_decided(&approval(ApprovalStatus::Approved), AT);
    let payload = r#"{"approval_id":"a","by":"ana","note":"looks \u003cgood\u003e","status":"approved"}"#;
    is(&approved, "approval.decided", true, payload);
    let expired = NewEvent::approval_decided(&approval(ApprovalStatus::Expired), AT);
    is(&expired, "approval.decided", true, r#"{"approval_id":"a","status":"expired"}"#);
}

#[test]
fn a_loop_and_a_takeover_name_what_repeats_and_who_held_before() {
    let repeated = Repeated {
        times: 3,
        tool: "read".to_owned(),
        args_hash: "x".to_owned(),
        observation_hash: "y".to_owned(),
    };
    let payload = r#"{"args_hash":"x","observation_hash":"y","repeats":3,"tool":"read"}"#;
    is(&NewEvent::loop_detected(&run(), &repeated, AT), "loop.detected", false, payload);
    let lease = Lease { owner: LeaseOwner::from("old"), expires_at: AT };
    let taken = NewEvent::lease_taken_over(&run(), &lease, &LeaseOwner::from("new"), AT);
    let payload = r#"{"owner":"new","previous_expires_at":"2023-11-14T22:13:20.5Z","previous_owner":"old"}"#;
    is(&taken, "lease.taken_over", false, payload);
}
