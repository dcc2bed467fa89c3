//! Counters and times out of events.
//!
//! Owns the instruments that are fed by events; `docs/export.md` lists them. What can only be asked for is in `depth.rs`.
//! An event that is delivered again after a kill is counted again, at most a page of them.

use std::time::{Duration, SystemTime};

use holdpoint_core::event::{Event, EventKind};
use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Histogram, Meter};

use super::make::system_time;
use super::payload::Payload;
use super::spans::OpenRun;

/// Seconds of waits for a person: from at once to a day.
const WAITS: [f64; 10] = [1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 43_200.0, 86_400.0];
/// Seconds of calls: from a millisecond to the longest that a tool may take.
const CALLS: [f64; 12] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0];

/// The kind of an approval that asks what became of a call that was cut off.
const INTERRUPTED: &str = "interrupted_side_effect";

/// The instruments.
#[derive(Debug)]
pub(super) struct Instruments {
    calls: Counter<u64>,
    holds: Counter<u64>,
    waits: Histogram<f64>,
    tools: Histogram<f64>,
    runs: Counter<u64>,
    attempts: Counter<u64>,
    latencies: Histogram<f64>,
    tokens: Counter<u64>,
    cost: Counter<f64>,
}

impl Instruments {
    pub(super) fn of(meter: &Meter) -> Instruments {
        let counter = |name: &'static str, unit: &'static str, what: &'static str| {
            meter.u64_counter(name).with_unit(unit).with_description(what).build()
        };
        let seconds = |name: &'static str, bounds: &[f64], what: &'static str| {
            let histogram = meter.f64_histogram(name).with_unit("s").with_description(what);
            histogram.with_boundaries(bounds.to_vec()).build()
        };
        Instruments {
            calls: counter(
                "holdpoint.calls",
                "{call}",
                "Calls by what they were answered, as the record shows it",
            ),
            holds: counter("holdpoint.holds", "{approval}", "Approvals that were asked for"),
            waits: seconds("holdpoint.hold.duration", &WAITS, "From asking for an approval to its decision"),
            tools: seconds("holdpoint.tool.duration", &CALLS, "From a step's start to its tool's outcome"),
            runs: counter("holdpoint.runs", "{run}", "Runs that ended"),
            attempts: counter("holdpoint.model.attempts", "{attempt}", "Model attempts that ended"),
            latencies: seconds(
                "holdpoint.model.duration",
                &CALLS,
                "From dispatching a model attempt to its end",
            ),
            tokens: counter("holdpoint.model.tokens", "{token}", "Tokens of model attempts"),
            cost: meter
                .f64_counter("holdpoint.model.cost")
                .with_unit("USD")
                .with_description("Estimated cost of model attempts")
                .build(),
        }
    }

    /// Counts one event. `open` is what is open of its run before it.
    pub(super) fn note(&self, event: &Event, payload: &Payload<'_>, open: Option<&OpenRun>) {
        let Some(kind) = EventKind::ALL.iter().copied().find(|kind| kind.as_str() == event.kind) else {
            return;
        };
        let tool = open.and_then(|run| run.step(&event.step_id)).and_then(|step| step.tool.clone());
        match kind {
            EventKind::StepToolFinished => self.tool_finished(payload),
            EventKind::StepFailed => {
                let answer = match payload.string("observation").as_deref() {
                    Some("policy_denied") => "DENIED",
                    Some("invalid_decision") => "INVALID",
                    Some("tool_error") => "FAILED",
                    // Cut off, cancelled, or over for a reason of the run's: nothing was answered.
                    Some(_) | None => return,
                };
                self.answered(answer, tool);
            }
            EventKind::ApprovalRequested => {
                let asked_for = payload.string("kind").unwrap_or_default();
                let answer = if asked_for == INTERRUPTED { "UNKNOWN_OUTCOME" } else { "PENDING_APPROVAL" };
                self.holds.add(1, &[KeyValue::new("holdpoint.approval.kind", asked_for)]);
                self.answered(answer, tool);
            }
            EventKind::ApprovalDecided => self.decided(event, payload, open, tool),
            EventKind::RunFinished => {
                let of = |key, member| KeyValue::new(key, payload.string(member).unwrap_or_default());
                self.runs
                    .add(1, &[of("holdpoint.run.status", "status"), of("holdpoint.run.reason", "reason")]);
            }
            EventKind::ModelCompleted | EventKind::ModelFailed => self.attempt_ended(payload),
            EventKind::RunCreated
            | EventKind::RunStarted
            | EventKind::RunResumed
            | EventKind::StepStarted
            | EventKind::StepDecided
            | EventKind::StepPolicy
            | EventKind::StepToolStarted
            | EventKind::StepInterrupted
            | EventKind::LimitExceeded
            | EventKind::LoopDetected
            | EventKind::LeaseTakenOver
            | EventKind::ModelDispatched => {}
        }
    }

    fn answered(&self, answer: &'static str, tool: Option<String>) {
        let mut attributes = vec![KeyValue::new("holdpoint.answer", answer)];
        attributes.extend(tool.map(|tool| KeyValue::new("holdpoint.tool.name", tool)));
        self.calls.add(1, &attributes);
    }

    fn tool_finished(&self, payload: &Payload<'_>) {
        let tool = payload.string("tool");
        let (late, failed) = (payload.is_true("late"), payload.has("error"));
        let outcome = match (late, failed) {
            (true, _) => "late",
            (false, true) => "failed",
            (false, false) => "done",
        };
        if let Some(duration) = payload.int("duration_ms") {
            let mut attributes = vec![KeyValue::new("holdpoint.tool.outcome", outcome)];
            attributes.extend(tool.clone().map(|tool| KeyValue::new("holdpoint.tool.name", tool)));
            self.tools.record(seconds(duration), &attributes);
        }
        // A failure is counted with what follows it, and a late outcome answered nobody.
        if outcome == "done" {
            self.answered("OK", tool);
        }
    }

    fn decided(&self, event: &Event, payload: &Payload<'_>, open: Option<&OpenRun>, tool: Option<String>) {
        let status = payload.string("status").unwrap_or_default();
        let id = payload.string("approval_id").unwrap_or_default();
        let asked: Option<SystemTime> = open.and_then(|run| run.asked_at(&id));
        if let (Some(asked), Some(decided)) = (asked, event.at.map(system_time)) {
            let waited = decided.duration_since(asked).unwrap_or(Duration::ZERO);
            self.waits
                .record(waited.as_secs_f64(), &[KeyValue::new("holdpoint.approval.status", status.clone())]);
        }
        match status.as_str() {
            "rejected" => self.answered("REJECTED", tool),
            "expired" => self.answered("EXPIRED", tool),
            // A grant answers nothing yet.
            _ => {}
        }
    }

    fn attempt_ended(&self, payload: &Payload<'_>) {
        let model = KeyValue::new("holdpoint.model.name", payload.string("model").unwrap_or_default());
        let status = payload.string("status").unwrap_or_default();
        self.attempts.add(1, &[model.clone(), KeyValue::new("holdpoint.model.status", status)]);
        if let Some(latency) = payload.int("latency_ms") {
            self.latencies.record(seconds(latency), std::slice::from_ref(&model));
        }
        let usage = payload.object("usage");
        for (kind, member) in
            [("input", "input_tokens"), ("output", "output_tokens"), ("cached_input", "cached_input_tokens")]
        {
            let count = usage.int(member).and_then(|count| u64::try_from(count).ok()).unwrap_or(0);
            self.tokens.add(count, &[model.clone(), KeyValue::new("holdpoint.model.token", kind)]);
        }
        let micros = payload.int("cost_micros").and_then(|micros| u32::try_from(micros).ok()).unwrap_or(0);
        self.cost.add(f64::from(micros) / 1e6, &[model]);
    }
}

fn seconds(millis: i64) -> f64 {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0)).as_secs_f64()
}
