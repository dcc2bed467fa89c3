//! Events: what happened, in order, as the chain hashes it.
//!
//! Owns the nineteen kinds and the exact payload of each. Never numbers or hashes an event: the writer does, in the
//! transaction that makes it true.

use std::fmt;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::accounting::{CallStatus, ModelCall};
use crate::approval::{Approval, ApprovalStatus};
use crate::ids::{ApprovalId, LeaseOwner, PolicyId, RunId, SpecHash, StepId};
use crate::json::ObjectWriter;
use crate::limits::Repeated;
use crate::policy::{PolicyDecision, SeenView};
use crate::run::{Lease, Limits, Reason, Run};
use crate::step::{Observation, Step};
use crate::time::UnixNanos;
use crate::tool::{RecordedSpec, ToolRequest};

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident => $text:literal;)*) => {
        /// The kind of an event.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum EventKind { $($(#[$doc])* $name,)* }

        impl EventKind {
            /// Every kind.
            pub const ALL: &[EventKind] = &[$(EventKind::$name,)*];

            /// The stored name.
            pub const fn as_str(self) -> &'static str {
                match self { $(EventKind::$name => $text,)* }
            }
        }
    };
}

kinds! {
    /// A run was made.
    RunCreated => "run.created";
    /// It began.
    RunStarted => "run.started";
    /// It ended.
    RunFinished => "run.finished";
    /// It went on after a wait or an interruption.
    RunResumed => "run.resumed";
    /// A step began.
    StepStarted => "step.started";
    /// It was decided what to ask for.
    StepDecided => "step.decided";
    /// The policy answered.
    StepPolicy => "step.policy";
    /// The tool is about to be called.
    StepToolStarted => "step.tool_started";
    /// The tool's outcome is known, or known to be unknown.
    StepToolFinished => "step.tool_finished";
    /// A step failed.
    StepFailed => "step.failed";
    /// A step was found cut off.
    StepInterrupted => "step.interrupted";
    /// A person is asked.
    ApprovalRequested => "approval.requested";
    /// A person answered, or the time ran out.
    ApprovalDecided => "approval.decided";
    /// A limit ended the run.
    LimitExceeded => "limit.exceeded";
    /// A loop ended the run.
    LoopDetected => "loop.detected";
    /// A session took over a lease that had run out.
    LeaseTakenOver => "lease.taken_over";
    /// A model request is about to be sent.
    ModelDispatched => "model.dispatched";
    /// A model answered.
    ModelCompleted => "model.completed";
    /// A model attempt failed.
    ModelFailed => "model.failed";
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An event that has not been numbered yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEvent {
    /// Its run.
    pub run_id: RunId,
    /// Its step, when it has one.
    pub step_id: Option<StepId>,
    /// When it happened.
    pub at: UnixNanos,
    /// What happened.
    pub kind: EventKind,
    /// The payload as stored.
    pub payload: String,
}

/// An event as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Its place in the chain of the whole database.
    pub seq: i64,
    /// Its run.
    pub run_id: RunId,
    /// Its step; empty when it has none.
    pub step_id: String,
    /// When it happened; `None` when the stored text is no time.
    pub at: Option<UnixNanos>,
    /// The kind as stored, which a newer version may have coined.
    pub kind: String,
    /// The payload as stored.
    pub payload: String,
}

impl Event {
    /// What a tool returned after its run was cancelled, when this says so; see [`NewEvent::tool_finished`].
    pub fn late_observation(&self) -> Option<Observation> {
        #[derive(Deserialize)]
        struct Late<'a> {
            late: bool,
            #[serde(borrow)]
            observation: &'a RawValue,
        }
        if self.kind != EventKind::StepToolFinished.as_str() {
            return None;
        }
        let finished: Late<'_> = serde_json::from_str(&self.payload).ok()?;
        Observation::parse(finished.observation.get()).ok().filter(|_| finished.late)
    }
}

impl NewEvent {
    /// Whether a stored event is this one.
    pub fn is_stored_as(&self, event: &Event) -> bool {
        event.run_id == self.run_id
            && event.step_id == self.step_id.as_ref().map_or("", StepId::as_str)
            && event.at == Some(self.at)
            && event.kind == self.kind.as_str()
            && event.payload == self.payload
    }

    /// The event as it is stored under a number.
    pub fn numbered(&self, seq: i64) -> Event {
        Event {
            seq,
            run_id: self.run_id.clone(),
            step_id: self.step_id.as_ref().map_or("", StepId::as_str).to_owned(),
            at: Some(self.at),
            kind: self.kind.as_str().to_owned(),
            payload: self.payload.clone(),
        }
    }

    fn of_run(run: &Run, at: UnixNanos, kind: EventKind, payload: ObjectWriter) -> NewEvent {
        NewEvent { run_id: run.id.clone(), step_id: None, at, kind, payload: payload.finish() }
    }

    fn of_step(step: &Step, at: UnixNanos, kind: EventKind, payload: ObjectWriter) -> NewEvent {
        NewEvent {
            run_id: step.run_id.clone(),
            step_id: Some(step.id.clone()),
            at,
            kind,
            payload: payload.finish(),
        }
    }

    /// `run.created`, with the specs of every registered tool in the order of their names.
    pub fn run_created(run: &Run, specs: &[RecordedSpec]) -> NewEvent {
        let mut w = ObjectWriter::new();
        w.str("goal", &run.goal);
        w.object("limits", |limits| Limits::write(&run.limits, limits));
        w.array("tools", |tools| {
            for spec in specs {
                tools.str(spec.hash.as_str());
            }
        });
        NewEvent::of_run(run, run.created_at, EventKind::RunCreated, w)
    }

    /// `run.started`.
    pub fn run_started(run: &Run) -> NewEvent {
        NewEvent::of_run(run, run.created_at, EventKind::RunStarted, ObjectWriter::new())
    }

    /// `run.finished`; `by` only when a person cancelled it.
    pub fn run_finished(run: &Run, at: UnixNanos, by: Option<&str>) -> NewEvent {
        let mut w = ObjectWriter::new();
        if let Some(by) = by {
            w.str("by", by);
        }
        w.str("detail", &run.reason_detail);
        w.str("reason", run.reason.map_or("", Reason::as_str));
        w.str("status", run.status.as_str());
        w.int("steps", run.step_count);
        NewEvent::of_run(run, at, EventKind::RunFinished, w)
    }

    /// `run.resumed` by a grant.
    pub fn run_resumed_by(approval: &Approval, at: UnixNanos) -> NewEvent {
        let mut w = ObjectWriter::new();
        w.str("approval_id", approval.id.as_str());
        NewEvent {
            run_id: approval.run_id.clone(),
            step_id: Some(approval.step_id.clone()),
            at,
            kind: EventKind::RunResumed,
            payload: w.finish(),
        }
    }

    /// `run.resumed` after an interruption.
    pub fn run_resumed_after_interruption(run: &Run, at: UnixNanos) -> NewEvent {
        let mut w = ObjectWriter::new();
        w.str("after", "interruption");
        NewEvent::of_run(run, at, EventKind::RunResumed, w)
    }

    /// `step.started`.
    pub fn step_started(step: &Step) -> NewEvent {
        let mut w = ObjectWriter::new();
        w.int("index", step.index);
        NewEvent::of_step(step, step.started_at, EventKind::StepStarted, w)
    }

    /// `step.decided`: the recorded decision.
    pub fn step_decided(step: &Step, at: UnixNanos) -> NewEvent {
        let payload = step.decision.as_ref().map_or_else(|| "null".to_owned(), |d| d.to_json());
        NewEvent {
            run_id: step.run_id.clone(),
            step_id: Some(step.id.clone()),
            at,
            kind: EventKind::StepDecided,
            payload,
        }
    }

    /// `step.policy`: the decision, who made it, about which spec, and what it was shown.
    pub fn step_policy(
        step: &Step,
        decision: &PolicyDecision,
        spec: Option<&SpecHash>,
        view: Option<&SeenView>,
        at: UnixNanos,
    ) -> NewEvent {
        let mut w = ObjectWriter::new();
        decision.write(&mut w);
        w.omit_empty_str("policy_id", step.policy_id.as_ref().map_or("", PolicyId::as_str));
        w.omit_empty_str("spec_hash", spec.map_or("", SpecHash::as_str));
        if let Some(view) = view {
            w.object("view", |w| view.write(w));
        }
        NewEvent::of_step(step, at, EventKind::StepPolicy, w)
    }

    /// `step.tool_started`; `grant` when an approval let it run.
    pub fn tool_started(
        step: &Step,
        request: &ToolRequest,
        grant: Option<&ApprovalId>,
        at: UnixNanos,
    ) -> NewEvent {
        let mut w = ObjectWriter::new();
        if let Some(grant) = grant {
            w.str("approval_id", grant.as_str());
        }
        w.raw("args", request.args.as_str());
        w.str("tool", &request.spec.name);
        NewEvent::of_step(step, at, EventKind::StepToolStarted, w)
    }

    /// `step.tool_finished`. A `late` one carries the whole observation: the run was cancelled while the tool ran.
    pub fn tool_finished(step: &Step, observation: &Observation, late: bool, at: UnixNanos) -> NewEvent {
        let mut w = ObjectWriter::new();
        let failed = observation.is_failure();
        if !failed {
            w.str("content_hash", &observation.content_hash);
        }
        w.int("duration_ms", at.millis_since(step.started_at));
        if failed && !late {
            w.str("error", &observation.summary);
        }
        if late {
            w.bool("late", true);
            w.object("observation", |w| observation.write(w));
        }
        if !failed {
            w.str("summary", &observation.summary);
        }
        w.str("tool", step.tool().unwrap_or_default());
        NewEvent::of_step(step, at, EventKind::StepToolFinished, w)
    }

    /// `step.failed`.
    pub fn step_failed(step: &Step, detail: &str, at: UnixNanos) -> NewEvent {
        let mut w = ObjectWriter::new();
        if let Some(observation) = &step.observation {
            w.str("content_hash", &observation.content_hash);
            w.str("detail", detail);
            w.str("observation", observation.kind.as_str());
        } else {
            w.str("detail", detail);
        }
        NewEvent::of_step(step, at, EventKind::StepFailed, w)
    }

    /// `step.interrupted`: the value of `previous_status` is the observation's content, an object.
    pub fn step_interrupted(step: &Step, at: UnixNanos) -> NewEvent {
        let mut w = ObjectWriter::new();
        w.raw("previous_status", step.observation.as_ref().map_or("{}", |o| o.content.as_str()));
        NewEvent::of_step(step, at, EventKind::StepInterrupted, w)
    }

    /// `approval.requested`.
    pub fn approval_requested(step: &Step, approval: &Approval, reason: &str) -> NewEvent {
        let mut w = ObjectWriter::new();
        w.str("approval_id", approval.id.as_str());
        w.raw("capability", approval.capability.as_str());
        w.str("hash", approval.hash.as_str());
        w.str("kind", &approval.kind);
        w.raw("presentation", approval.presentation.as_str());
        w.str("reason", reason);
        NewEvent::of_step(step, approval.created_at, EventKind::ApprovalRequested, w)
    }

    /// `approval.decided`; an expiry names no decider.
    pub fn approval_decided(approval: &Approval, at: UnixNanos) -> NewEvent {
        let mut w = ObjectWriter::new();
        w.str("approval_id", approval.id.as_str());
        if approval.status != ApprovalStatus::Expired {
            w.str("by", &approval.decided_by);
            w.str("note", &approval.note);
        }
        w.str("status", approval.status.as_str());
        NewEvent {
            run_id: approval.run_id.clone(),
            step_id: Some(approval.step_id.clone()),
            at,
            kind: EventKind::ApprovalDecided,
            payload: w.finish(),
        }
    }

    /// `limit.exceeded`.
    pub fn limit_exceeded(run: &Run, at: UnixNanos) -> NewEvent {
        let mut w = ObjectWriter::new();
        w.str("detail", &run.reason_detail);
        w.str("reason", run.reason.map_or("", Reason::as_str));
        NewEvent::of_run(run, at, EventKind::LimitExceeded, w)
    }

    /// `loop.detected`.
    pub fn loop_detected(run: &Run, repeated: &Repeated, at: UnixNanos) -> NewEvent {
        let mut w = ObjectWriter::new();
        w.str("args_hash", &repeated.args_hash);
        w.str("observation_hash", &repeated.observation_hash);
        w.int("repeats", repeated.times);
        w.str("tool", &repeated.tool);
        NewEvent::of_run(run, at, EventKind::LoopDetected, w)
    }

    /// `lease.taken_over`.
    pub fn lease_taken_over(run: &Run, previous: &Lease, owner: &LeaseOwner, at: UnixNanos) -> NewEvent {
        let mut w = ObjectWriter::new();
        w.str("owner", owner.as_str());
        w.str("previous_expires_at", &previous.expires_at.to_rfc3339());
        w.str("previous_owner", previous.owner.as_str());
        NewEvent::of_run(run, at, EventKind::LeaseTakenOver, w)
    }

    /// `model.dispatched`.
    pub fn model_dispatched(call: &ModelCall) -> NewEvent {
        let mut w = ObjectWriter::new();
        w.int("attempt", call.attempt);
        w.str("call_id", call.id.as_str());
        w.str("model", &call.model);
        NewEvent::of_model_call(call, call.dispatched_at, EventKind::ModelDispatched, w)
    }

    /// `model.completed` when its answer can be used, else `model.failed`.
    pub fn model_ended(call: &ModelCall) -> NewEvent {
        let mut w = ObjectWriter::new();
        w.int("attempt", call.attempt);
        w.str("call_id", call.id.as_str());
        w.int("cost_micros", call.cost_micros);
        w.str("error", &call.error);
        w.int("latency_ms", call.latency_ms);
        w.str("model", &call.model);
        w.str("status", call.status.as_str());
        w.raw("usage", &call.usage.to_json());
        let kind = match call.status {
            CallStatus::Ok => EventKind::ModelCompleted,
            CallStatus::Dispatched | CallStatus::Error | CallStatus::Ambiguous => EventKind::ModelFailed,
        };
        NewEvent::of_model_call(call, call.completed_at.unwrap_or(call.dispatched_at), kind, w)
    }

    fn of_model_call(call: &ModelCall, at: UnixNanos, kind: EventKind, payload: ObjectWriter) -> NewEvent {
        NewEvent {
            run_id: call.run_id.clone(),
            step_id: Some(call.step_id.clone()),
            at,
            kind,
            payload: payload.finish(),
        }
    }
}

#[cfg(test)]
mod tests;
