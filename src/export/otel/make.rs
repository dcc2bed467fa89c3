//! The parts of a span: what is added to it, and the times and limits that it is made of.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use holdpoint_core::time::UnixNanos;
use opentelemetry::KeyValue;
use opentelemetry::trace::Event as SpanEvent;
use opentelemetry_sdk::trace::SpanData;

use super::payload::{Attributes, Payload};
use super::spans::Seen;

/// Span events that one span keeps; more are counted.
const EVENTS_MAX: usize = 128;

/// Adds attributes; of two with one key the later stays.
pub(super) fn set(span: &mut SpanData, attributes: impl IntoIterator<Item = KeyValue>) {
    for attribute in attributes {
        match span.attributes.iter_mut().find(|known| known.key == attribute.key) {
            Some(known) => *known = attribute,
            None => span.attributes.push(attribute),
        }
    }
}

/// Adds an event to a span, or counts it where there are too many.
pub(super) fn note(span: &mut SpanData, name: String, at: SystemTime, attributes: Vec<KeyValue>) {
    if span.events.events.len() < EVENTS_MAX {
        span.events.events.push(SpanEvent::new(name, at, attributes, 0));
    } else {
        span.events.dropped_count = span.events.dropped_count.saturating_add(1);
    }
}

pub(super) fn run_id(seen: Seen<'_>) -> KeyValue {
    KeyValue::new("agentrt.run.id", seen.run().to_owned())
}

pub(super) fn step_id(seen: Seen<'_>) -> KeyValue {
    KeyValue::new("agentrt.step.id", seen.step().to_owned())
}

pub(super) fn limits(limits: &Payload<'_>) -> Vec<KeyValue> {
    Attributes::beside(limits, 0)
        .any_int("agentrt.limits.max_steps", "max_steps")
        .any_int("agentrt.limits.max_consecutive_tool_failures", "max_consecutive_tool_failures")
        .any_int("agentrt.limits.loop_threshold", "loop_threshold")
        .set_int("agentrt.limits.max_model_calls", "max_model_calls")
        .set_int("agentrt.limits.max_output_tokens_per_call", "max_output_tokens_per_call")
        .set_int("agentrt.limits.max_total_tokens", "max_total_tokens")
        .set_int("agentrt.limits.max_estimated_cost_micros", "max_estimated_cost_micros")
        .set_millis("agentrt.limits.max_active_time_ms", "max_active_time")
        .set_millis("agentrt.limits.max_elapsed_time_ms", "max_elapsed_time")
        .set_millis("agentrt.limits.approval_ttl_ms", "approval_ttl")
        .set_millis("agentrt.limits.grant_ttl_ms", "grant_ttl")
        .made()
}

pub(super) fn system_time(at: UnixNanos) -> SystemTime {
    let nanos = at.as_nanos();
    let distance = Duration::from_nanos(nanos.unsigned_abs());
    if nanos < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance }
}
