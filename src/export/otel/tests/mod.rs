//! Spans of events: the mapping, name by name.

mod script;
mod sending;

use std::collections::BTreeMap;
use std::time::Duration;

use holdpoint_core::event::{Event, EventKind};
use opentelemetry::InstrumentationScope;
use opentelemetry::trace::{SpanKind, Status};
use serde_json::json;

use super::ids::{SpanOf, span_id, trace_id};
use super::*;
use script::{Script, approved, cancelled, completed, interrupted, with_models};

fn mapper() -> Mapper {
    Mapper::new(InstrumentationScope::builder("test").build(), TEXT_BYTES)
}

fn spans(events: &[Event]) -> Vec<SpanData> {
    let mut mapper = mapper();
    for event in events {
        mapper.apply(event, &Payload::of(&event.payload));
    }
    mapper.take_ended()
}

fn named<'s>(spans: &'s [SpanData], name: &str) -> Vec<&'s SpanData> {
    spans.iter().filter(|span| span.name == name).collect()
}

/// The attributes of a span or of one of its events, as text.
fn told<'k>(all: impl IntoIterator<Item = &'k opentelemetry::KeyValue>) -> BTreeMap<String, String> {
    all.into_iter().map(|one| (one.key.to_string(), one.value.to_string())).collect()
}

fn of_event(span: &SpanData, name: &str) -> BTreeMap<String, String> {
    let found = span.events.iter().find(|event| event.name == name);
    told(&found.unwrap_or_else(|| panic!("{} has no event {name}", span.name)).attributes)
}

/// Fails unless all of these are among the attributes.
fn assert_told(attributes: &BTreeMap<String, String>, expected: &[(&str, &str)]) {
    for (key, value) in expected {
        assert_eq!(attributes.get(*key).map(String::as_str), Some(*value), "{key} in {attributes:?}");
    }
}

/// Longer than others: one trace is looked at as a whole.
#[test]
fn a_run_is_a_span_with_a_span_for_each_step_in_a_derived_trace() {
    let script = completed();
    let spans = spans(&script.events);
    let (run, steps) = (named(&spans, "agentrt.run")[0], named(&spans, "agentrt.step"));
    assert_eq!((spans.len(), steps.len()), (4, 3));
    assert_eq!(run.span_context.span_id(), span_id(SpanOf::Run, "r-done"));
    assert_eq!((run.parent_span_id, &run.status), (opentelemetry::trace::SpanId::INVALID, &Status::Ok));
    assert_eq!((run.start_time, run.end_time), (script.at(0), script.at(script.events.len() - 1)));
    let of_run = told(&run.attributes);
    assert_told(
        &of_run,
        &[
            ("agentrt.run.id", "r-done"),
            ("agentrt.run.goal", "pay the invoice"),
            ("agentrt.run.status", "COMPLETED"),
            ("agentrt.run.reason", "goal_completed"),
            ("agentrt.run.detail", "d"),
            ("agentrt.run.steps", "2"),
            ("agentrt.limits.max_steps", "10"),
            ("agentrt.limits.max_consecutive_tool_failures", "3"),
            ("agentrt.limits.loop_threshold", "3"),
            ("agentrt.limits.max_model_calls", "4"),
            ("agentrt.limits.approval_ttl_ms", "60000"),
        ],
    );
    assert!(!of_run.contains_key("agentrt.limits.grant_ttl_ms") && !of_run.contains_key("agentrt.run.by"));
    assert!(of_event(run, "run.started").is_empty());
    for (i, step) in steps.iter().enumerate() {
        assert_eq!(step.span_context.trace_id(), trace_id("r-done"));
        assert_eq!(step.span_context.span_id(), span_id(SpanOf::Step, &format!("s{i}")));
        assert_eq!((step.parent_span_id, &step.span_kind), (run.span_context.span_id(), &SpanKind::Internal));
    }
    assert_told(
        &told(&steps[0].attributes),
        &[
            ("agentrt.step.id", "s0"),
            ("agentrt.step.index", "0"),
            ("agentrt.decision.kind", "tool_call"),
            ("agentrt.decision.tool", "read"),
            ("agentrt.decision.args", r#"{"n":1}"#),
            ("agentrt.decision.reason", "why"),
            ("agentrt.policy.outcome", "allow"),
            ("agentrt.policy.reason", "so"),
            ("agentrt.policy.id", "p1"),
            ("agentrt.policy.spec_hash", "5a"),
            ("agentrt.tool.name", "read"),
            ("agentrt.tool.duration_ms", "1500"),
            ("agentrt.tool.summary", "did it"),
            ("agentrt.tool.content_hash", "c0"),
            ("agentrt.step.status", "done"),
            ("agentrt.step.end", "step.tool_finished"),
        ],
    );
    assert_eq!(
        (&steps[0].status, steps[0].end_time),
        (&Status::Unset, script.at(script.place("step.tool_finished")))
    );
    let names: Vec<&str> = steps[0].events.iter().map(|event| &*event.name).collect();
    assert_eq!(names, ["step.decided", "step.policy", "step.tool_started"]);
    assert_told(
        &told(&steps[1].attributes),
        &[
            ("agentrt.policy.outcome", "deny"),
            ("agentrt.step.status", "failed"),
            ("agentrt.step.end", "step.failed"),
            ("agentrt.step.observation", "policy_denied"),
            ("agentrt.step.detail", "no"),
            ("agentrt.step.content_hash", "c1"),
        ],
    );
    assert_eq!(steps[1].status, Status::error("policy_denied"));
    // What completes a run has no end of its own.
    let last = told(&steps[2].attributes);
    assert_told(
        &last,
        &[("agentrt.step.end", "run.finished"), ("agentrt.decision.result", r#"{"done":true}"#)],
    );
    assert!(!last.contains_key("agentrt.step.status"));
    assert_eq!(steps[2].end_time, run.end_time);
}

#[test]
fn the_origin_of_a_decision_is_told_where_it_is_recorded() {
    let spans = spans(&completed().events);
    let steps = named(&spans, "agentrt.step");
    assert_told(&told(&steps[0].attributes), &[("agentrt.decision.origin", "model")]);
    assert_told(&told(&steps[2].attributes), &[("agentrt.decision.origin", "operator")]);
    let mut script = Script::begun("r");
    script.add("step.started", "s0", json!({"index": 0})).add(
        "step.decided",
        "s0",
        json!({"kind": "complete"}),
    );
    script.finished("COMPLETED", "goal_completed");
    assert!(
        !told(&super::tests::spans(&script.events)[0].attributes).contains_key("agentrt.decision.origin")
    );
}

#[test]
fn the_next_step_ends_the_one_before_and_an_unusable_decision_is_kept() {
    let mut script = Script::begun("r");
    script.add("step.started", "s0", json!({"index": 0}));
    let unusable = json!({"kind": "tool_call", "tool": "x", "invalid_args": "e30g", "invalid_base64": true, "invalid_result": "r", "message": "m"});
    script.add("step.decided", "s0", unusable);
    script.decided("s1", 1, "read").finished("COMPLETED", "goal_completed");
    let spans = spans(&script.events);
    let first = named(&spans, "agentrt.step")[0];
    assert_told(
        &told(&first.attributes),
        &[
            ("agentrt.step.end", "step.started"),
            ("agentrt.decision.invalid_args", "e30g"),
            ("agentrt.decision.invalid_result", "r"),
            ("agentrt.decision.invalid_base64", "true"),
            ("agentrt.decision.message", "m"),
        ],
    );
    assert_eq!(first.end_time, script.at(4));
}

#[test]
fn each_model_attempt_is_a_client_span_under_its_step() {
    let script = with_models();
    let spans = spans(&script.events);
    let models = named(&spans, "agentrt.model");
    assert_eq!(models.len(), 3);
    for (i, model) in models.iter().enumerate() {
        assert_eq!(model.span_context.span_id(), span_id(SpanOf::Model, &format!("m{}", i + 1)));
        assert_eq!(
            (model.parent_span_id, &model.span_kind),
            (span_id(SpanOf::Step, "s0"), &SpanKind::Client)
        );
    }
    assert_eq!((models[0].start_time, models[0].end_time), (script.at(3), script.at(4)));
    assert_eq!((&models[0].status, &models[1].status), (&Status::error("error"), &Status::Unset));
    assert_told(
        &told(&models[0].attributes),
        &[
            ("agentrt.model.attempt", "1"),
            ("agentrt.model.name", "small"),
            ("agentrt.model.status", "error"),
            ("agentrt.model.latency_ms", "250"),
            ("agentrt.model.error", "429 too many requests"),
            ("agentrt.model.input_tokens", "0"),
        ],
    );
    assert_told(
        &told(&models[1].attributes),
        &[
            ("agentrt.model.call_id", "m2"),
            ("agentrt.model.status", "ok"),
            ("agentrt.model.input_tokens", "100"),
            ("agentrt.model.output_tokens", "20"),
            ("agentrt.model.cached_input_tokens", "50"),
            ("agentrt.model.cost_micros", "200"),
        ],
    );
    let (lost, run) = (models[2], named(&spans, "agentrt.run")[0]);
    assert_told(&told(&lost.attributes), &[("agentrt.model.status", "unknown")]);
    assert_eq!(lost.end_time, run.end_time, "the run's end ends it");
}

#[test]
fn the_wait_for_an_approval_is_a_span_under_its_step() {
    let script = approved();
    let spans = spans(&script.events);
    let (run, step) = (named(&spans, "agentrt.run")[0], named(&spans, "agentrt.step")[0]);
    let approval = named(&spans, "agentrt.approval")[0];
    assert_eq!(spans.len(), 3);
    assert_eq!(approval.span_context.span_id(), span_id(SpanOf::Approval, "a1"));
    assert_eq!(approval.parent_span_id, step.span_context.span_id());
    let (asked, granted) = (script.place("approval.requested"), script.place("approval.decided"));
    assert_eq!((approval.start_time, approval.end_time), (script.at(asked), script.at(granted)));
    assert_told(
        &told(&approval.attributes),
        &[
            ("agentrt.approval.id", "a1"),
            ("agentrt.approval.kind", "remote_mutation"),
            ("agentrt.approval.reason", "money"),
            ("agentrt.approval.hash", "4a"),
            ("agentrt.approval.capability", r#"{"tool":"pay"}"#),
            ("agentrt.approval.presentation", r#"{"to":"alice"}"#),
            ("agentrt.approval.status", "approved"),
            ("agentrt.approval.by", "al"),
            ("agentrt.approval.note", "fine"),
        ],
    );
    for name in ["approval.requested", "step.tool_started"] {
        assert_told(&of_event(step, name), &[("agentrt.approval.id", "a1")]);
    }
    assert_told(&of_event(run, "run.resumed"), &[("agentrt.approval.id", "a1")]);
    assert_told(&told(&step.attributes), &[("agentrt.step.status", "done")]);
}

#[test]
fn an_approval_that_nobody_decided_ends_pending_with_its_run() {
    let mut script = approved();
    script.events.truncate(script.place("approval.decided"));
    script.finished("CANCELLED", "operator_cancelled");
    let spans = spans(&script.events);
    let approval = named(&spans, "agentrt.approval")[0];
    assert_told(&told(&approval.attributes), &[("agentrt.approval.status", "pending")]);
    assert_eq!(approval.end_time, named(&spans, "agentrt.run")[0].end_time);
}

#[test]
fn an_interrupted_run_continues_its_trace() {
    let spans = spans(&interrupted().events);
    let (run, steps) = (named(&spans, "agentrt.run")[0], named(&spans, "agentrt.step"));
    assert_told(
        &of_event(run, "lease.taken_over"),
        &[
            ("agentrt.lease.previous_owner", "a"),
            ("agentrt.lease.previous_expires_at", "2026-10-01T09:00:30Z"),
            ("agentrt.lease.owner", "b"),
        ],
    );
    assert_eq!(steps.len(), 2, "a step that ran twice is one step");
    assert_told(&of_event(steps[0], "step.interrupted"), &[("agentrt.step.previous_status", "executing")]);
    assert_told(
        &told(&steps[0].attributes),
        &[("agentrt.step.status", "done"), ("agentrt.tool.summary", "did it")],
    );
    let approval = named(&spans, "agentrt.approval")[0];
    assert_told(&told(&approval.attributes), &[("agentrt.approval.kind", "interrupted_side_effect")]);
    assert_eq!(run.status, Status::error("goal_failed"));
    // One that is never finished is told as interrupted.
    let mut script = interrupted();
    script.events.truncate(script.place("step.interrupted") + 1);
    script.finished("CANCELLED", "operator_cancelled");
    let spans = super::tests::spans(&script.events);
    assert_told(
        &told(&named(&spans, "agentrt.step")[0].attributes),
        &[("agentrt.step.status", "interrupted")],
    );
}

#[test]
fn a_limit_and_a_loop_are_told_on_the_run() {
    let spans = spans(&with_models().events);
    let run = named(&spans, "agentrt.run")[0];
    assert_told(
        &of_event(run, "limit.exceeded"),
        &[("agentrt.limit.reason", "limit_tokens"), ("agentrt.limit.detail", "spent")],
    );
    assert_told(
        &of_event(run, "loop.detected"),
        &[
            ("agentrt.loop.repeats", "3"),
            ("agentrt.loop.tool", "read"),
            ("agentrt.loop.args_hash", "aa"),
            ("agentrt.loop.observation_hash", "bb"),
        ],
    );
    assert_eq!(run.status, Status::error("limit_tokens"));
}

#[test]
fn a_cancelled_run_says_so_and_what_its_tool_returned_later_is_a_span_of_its_own() {
    let script = cancelled();
    let spans = spans(&script.events);
    let (run, step) = (named(&spans, "agentrt.run")[0], named(&spans, "agentrt.step")[0]);
    let expected = [
        ("agentrt.run.by", "al"),
        ("agentrt.run.reason", "operator_cancelled"),
        ("agentrt.run.detail", "changed my mind"),
    ];
    assert_told(&told(&run.attributes), &expected);
    assert_told(&of_event(run, "run.cancelled"), &expected);
    assert_eq!(run.status, Status::Unset);
    assert_told(&told(&step.attributes), &[("agentrt.step.end", "run.finished")]);
    let late = named(&spans, "agentrt.tool.late")[0];
    assert_eq!(late.span_context.span_id(), span_id(SpanOf::Late, "s0"));
    assert_eq!(late.parent_span_id, step.span_context.span_id());
    let ended = script.at(script.events.len() - 1);
    assert_eq!((late.start_time, late.end_time), (ended - Duration::from_secs(2), ended));
    assert_told(
        &told(&late.attributes),
        &[
            ("agentrt.run.id", "r-off"),
            ("agentrt.step.id", "s0"),
            ("agentrt.tool.name", "pay"),
            ("agentrt.tool.summary", "paid all the same"),
            ("agentrt.tool.observation", r#"{"kind":"tool_result","content":{"late":true}}"#),
        ],
    );
    assert_eq!(spans.len(), 3, "nothing is opened again by it");
}

#[test]
fn every_kind_of_event_has_its_place() {
    let all: Vec<Script> = vec![completed(), approved(), interrupted(), with_models(), cancelled()];
    let mut seen: Vec<&str> =
        all.iter().flat_map(|script| &script.events).map(|event| event.kind.as_str()).collect();
    seen.sort_unstable();
    seen.dedup();
    let mut kinds: Vec<&str> = EventKind::ALL.iter().map(|kind| kind.as_str()).collect();
    kinds.sort_unstable();
    assert_eq!(seen, kinds, "the scripts hold every kind");
    for script in all {
        for span in spans(&script.events) {
            assert_ne!(span.name, "agentrt.event", "{}: every kind is known", script.run);
            assert!(span.end_time >= span.start_time);
            assert!(!told(&span.attributes).contains_key("agentrt.span.start_unknown"), "{}", span.name);
        }
    }
}

#[test]
fn an_unknown_event_is_told_on_its_run_or_as_a_span_of_its_own() {
    let mut script = Script::begun("r");
    script.add("future.event", "", json!({"x": 1}));
    script.finished("COMPLETED", "goal_completed");
    script.add("future.event", "s7", json!({"x": 2}));
    let spans = spans(&script.events);
    assert_eq!(spans.len(), 2);
    assert!(of_event(&spans[0], "future.event").is_empty());
    let own = &spans[1];
    assert_eq!((&*own.name, own.parent_span_id), ("agentrt.event", span_id(SpanOf::Run, "r")));
    assert_eq!(own.span_context.span_id(), span_id(SpanOf::Event, "5"));
    assert_eq!(own.start_time, own.end_time);
    assert_told(
        &told(&own.attributes),
        &[
            ("agentrt.event.type", "future.event"),
            ("agentrt.event.seq", "5"),
            ("agentrt.run.id", "r"),
            ("agentrt.step.id", "s7"),
        ],
    );
}

#[test]
fn a_payload_that_was_cut_or_can_not_be_read_stops_nothing() {
    let mut script = Script::of("r");
    script.add("run.created", "", json!({"truncated": true, "length": 99_999, "head": "{\"goal\":\"…"}));
    script.add("step.started", "s0", json!({"index": 0}));
    script.add("step.failed", "s0", json!({}));
    script.add("run.finished", "", json!({"status": "COMPLETED"}));
    for place in [1, 2] {
        script.events[place].payload = "not json".to_owned();
    }
    script.events[2].at = None;
    let spans = spans(&script.events);
    let (step, run) = (named(&spans, "agentrt.step")[0], named(&spans, "agentrt.run")[0]);
    assert_told(&told(&step.attributes), &[("agentrt.step.status", "failed")]);
    let of_run = told(&run.attributes);
    assert_told(&of_run, &[("agentrt.payload.truncated", "99999"), ("agentrt.run.status", "COMPLETED")]);
    assert!(!of_run.contains_key("agentrt.run.goal"));
    assert!(spans.iter().all(|span| span.end_time >= span.start_time));
}

#[test]
fn text_that_somebody_chose_is_cut_and_names_no_span() {
    let long = "é".repeat(1_600);
    let mut script = Script::of("r");
    script.add("run.created", "", json!({"goal": long}));
    script.add("step.started", "s0", json!({"index": 0}));
    script.add(
        "step.decided",
        "s0",
        json!({"kind": "fail", "message": long, "reason": "short", "args": {"a": long}}),
    );
    script.finished("FAILED", "goal_failed");
    for max in [TEXT_BYTES, 101] {
        let mut mapper = Mapper::new(InstrumentationScope::builder("test").build(), max);
        script.events.iter().for_each(|event| mapper.apply(event, &Payload::of(&event.payload)));
        let spans = mapper.take_ended();
        let step = told(&named(&spans, "agentrt.step")[0].attributes);
        let goal = &told(&named(&spans, "agentrt.run")[0].attributes)["agentrt.run.goal"];
        for text in [goal, &step["agentrt.decision.message"]] {
            assert!(
                text.ends_with("…[truncated: 3200 bytes]") && text.len() <= max + 40,
                "{} bytes",
                text.len()
            );
            assert!(text.starts_with("éé"));
        }
        assert!(step["agentrt.decision.args"].starts_with("{\"a\":\"é"));
        assert_eq!(step["agentrt.decision.reason"], "short");
        assert!(spans.iter().all(|span| span.name.starts_with("agentrt.") && span.name.len() < 20));
    }
}

#[test]
fn a_start_that_nobody_saw_is_implied_or_says_that_it_is_unknown() {
    let unseen = ["run.created", "step.started", "approval.requested", "model.dispatched"];
    let mut unknown = 0;
    for script in [completed(), approved(), interrupted(), with_models(), cancelled()] {
        let rest: Vec<Event> =
            script.events.iter().filter(|event| !unseen.contains(&event.kind.as_str())).cloned().collect();
        for span in spans(&rest) {
            let says = told(&span.attributes).contains_key("agentrt.span.start_unknown");
            assert_eq!(says, !matches!(&*span.name, "agentrt.model" | "agentrt.tool.late"), "{}", span.name);
            assert!(span.end_time >= span.start_time);
            unknown += usize::from(says);
        }
    }
    assert!(unknown > 5);
    // A tool's outcome says how long it took, and a model's.
    let script = completed();
    let outcome = script.place("step.tool_finished");
    let step = &spans(&script.events[outcome..=outcome])[0];
    assert_eq!(step.start_time, script.at(outcome) - Duration::from_millis(1_500));
    let script = with_models();
    let failed = script.place("model.failed");
    let model = &spans(&script.events[failed..=failed])[0];
    assert_eq!(model.start_time, script.at(failed) - Duration::from_millis(250));
}
