//! Spans out of events: what is open of each run, and what ends it.
//!
//! Owns the mapping, name by name; `docs/export.md` lists it. One mapper sees a run's events in their order. It keeps no
//! clock, reads nothing, and never fails: a payload that can't be read still ends what its event ends. Nothing that a model
//! chose names a span.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use holdpoint_core::event::{Event, EventKind};
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::SpanData;

use super::ids::{SpanOf, span_id, trace_id};
use super::make::{limits, note, run_id, set, step_id, system_time};
use super::payload::{Attributes, Payload};

/// Bytes of text that a model, a tool or a person chose, in one attribute.
pub const TEXT_BYTES: usize = 1_024;
/// Runs that are open at one time. Past it the one that was silent longest is let go of, and read again when it goes on.
pub(super) const RUNS_MAX: usize = 1_024;

/// Makes spans of events.
#[derive(Debug)]
pub(super) struct Mapper {
    scope: InstrumentationScope,
    pub(super) text_bytes_max: usize,
    runs: HashMap<String, OpenRun>,
    ended: Vec<SpanData>,
    ticks: u64,
}

/// What is open of a run.
#[derive(Debug, Default)]
pub(super) struct OpenRun {
    pub(super) run: Option<SpanData>,
    pub(super) steps: BTreeMap<String, OpenStep>,
    /// The step that the next one ends.
    pub(super) current: Option<String>,
    pub(super) calls: BTreeMap<String, SpanData>,
    pub(super) approvals: BTreeMap<String, SpanData>,
    touched: u64,
}

/// A step that is open.
#[derive(Debug)]
pub(super) struct OpenStep {
    pub(super) span: SpanData,
    pub(super) interrupted: bool,
    /// The tool that was asked for, once the policy was asked about it: then it is one that is registered.
    pub(super) tool: Option<String>,
    pub(super) asked_for: Option<String>,
}

impl OpenRun {
    fn is_empty(&self) -> bool {
        self.run.is_none() && self.steps.is_empty() && self.calls.is_empty() && self.approvals.is_empty()
    }

    pub(super) fn step(&self, id: &str) -> Option<&OpenStep> {
        self.steps.get(id)
    }

    /// When an approval was asked for, if that is known.
    pub(super) fn asked_at(&self, approval: &str) -> Option<SystemTime> {
        self.approvals.get(approval).map(|span| span.start_time)
    }
}

/// Where a span begins.
pub(super) enum Start {
    Known(SystemTime),
    /// At the first event of it that was seen.
    Unknown(SystemTime),
}

/// One event with what was read of it.
#[derive(Clone, Copy)]
pub(super) struct Seen<'e> {
    pub(super) event: &'e Event,
    pub(super) payload: &'e Payload<'e>,
    pub(super) at: SystemTime,
}

impl Seen<'_> {
    pub(super) fn run(&self) -> &str {
        self.event.run_id.as_str()
    }

    pub(super) fn step(&self) -> &str {
        &self.event.step_id
    }

    /// So many milliseconds before it, as a member says.
    pub(super) fn before(&self, member: &str) -> Option<SystemTime> {
        let millis = u64::try_from(self.payload.int(member)?).ok()?;
        self.at.checked_sub(Duration::from_millis(millis))
    }
}

impl Mapper {
    pub(super) fn new(scope: InstrumentationScope, text_bytes_max: usize) -> Mapper {
        Mapper { scope, text_bytes_max, runs: HashMap::new(), ended: Vec::new(), ticks: 0 }
    }

    /// What is open of a run.
    pub(super) fn run(&self, id: &str) -> Option<&OpenRun> {
        self.runs.get(id)
    }

    /// Takes the spans that have ended since.
    pub(super) fn take_ended(&mut self) -> Vec<SpanData> {
        std::mem::take(&mut self.ended)
    }

    /// Forgets the spans that have ended since, and has these in their place.
    pub(super) fn replace_ended(&mut self, ended: Vec<SpanData>) {
        self.ended = ended;
    }

    /// Applies one event.
    pub(super) fn apply(&mut self, event: &Event, payload: &Payload<'_>) {
        let mut run = self.runs.remove(event.run_id.as_str()).unwrap_or_default();
        self.ticks += 1;
        run.touched = self.ticks;
        let seen = Seen { event, payload, at: self.time_of(event, &run) };
        match EventKind::ALL.iter().copied().find(|kind| kind.as_str() == event.kind) {
            Some(kind) => self.known(kind, &mut run, seen),
            None => self.unknown(&mut run, seen),
        }
        if !run.is_empty() {
            self.make_room();
            self.runs.insert(event.run_id.as_str().to_owned(), run);
        }
    }

    /// When it happened. One whose time can't be read happened when its run began, as far as is known.
    fn time_of(&self, event: &Event, run: &OpenRun) -> SystemTime {
        let began = || run.run.as_ref().map_or(UNIX_EPOCH, |span| span.start_time);
        event.at.map_or_else(began, system_time)
    }

    fn make_room(&mut self) {
        if self.runs.len() < RUNS_MAX {
            return;
        }
        let silent = self.runs.iter().min_by_key(|(_, run)| run.touched).map(|(id, _)| id.clone());
        if let Some(id) = silent {
            self.runs.remove(&id);
        }
    }

    fn known(&mut self, kind: EventKind, run: &mut OpenRun, seen: Seen<'_>) {
        match kind {
            EventKind::RunCreated => self.run_created(run, seen),
            EventKind::RunStarted => self.on_run(run, seen, Vec::new()),
            EventKind::RunFinished => self.run_finished(run, seen),
            EventKind::RunResumed => {
                let made = self
                    .of(seen)
                    .string("agentrt.approval.id", "approval_id")
                    .string("agentrt.resumed.after", "after")
                    .made();
                self.on_run(run, seen, made);
            }
            EventKind::StepStarted => self.step_started(run, seen),
            EventKind::StepDecided => self.step_decided(run, seen),
            EventKind::StepPolicy => self.step_policy(run, seen),
            EventKind::StepToolStarted => self.tool_started(run, seen),
            EventKind::StepToolFinished => self.tool_finished(run, seen),
            EventKind::StepFailed => self.step_failed(run, seen),
            EventKind::StepInterrupted => self.step_interrupted(run, seen),
            EventKind::ApprovalRequested => self.approval_requested(run, seen),
            EventKind::ApprovalDecided => self.approval_decided(run, seen),
            EventKind::LimitExceeded => {
                let made = self
                    .of(seen)
                    .string("agentrt.limit.reason", "reason")
                    .text("agentrt.limit.detail", "detail")
                    .made();
                self.on_run(run, seen, made);
            }
            EventKind::LoopDetected => {
                let made = self
                    .of(seen)
                    .int("agentrt.loop.repeats", "repeats")
                    .string("agentrt.loop.tool", "tool")
                    .string("agentrt.loop.args_hash", "args_hash")
                    .string("agentrt.loop.observation_hash", "observation_hash")
                    .made();
                self.on_run(run, seen, made);
            }
            EventKind::LeaseTakenOver => {
                let made = self
                    .of(seen)
                    .string("agentrt.lease.previous_owner", "previous_owner")
                    .string("agentrt.lease.previous_expires_at", "previous_expires_at")
                    .string("agentrt.lease.owner", "owner")
                    .made();
                self.on_run(run, seen, made);
            }
            EventKind::ModelDispatched => self.model_dispatched(run, seen),
            EventKind::ModelCompleted => self.model_ended(run, seen, false),
            EventKind::ModelFailed => self.model_ended(run, seen, true),
        }
    }

    pub(super) fn of<'p>(&self, seen: Seen<'p>) -> Attributes<'p> {
        Attributes::of(seen.payload, self.text_bytes_max)
    }

    pub(super) fn beside<'p>(&self, seen: Seen<'p>) -> Attributes<'p> {
        Attributes::beside(seen.payload, self.text_bytes_max)
    }

    // Runs.

    fn run_created(&self, run: &mut OpenRun, seen: Seen<'_>) {
        if run.run.is_some() {
            return;
        }
        let mut made = self.of(seen).also(run_id(seen)).text("agentrt.run.goal", "goal").made();
        if seen.payload.has("limits") {
            made.extend(limits(&seen.payload.object("limits")));
        }
        run.run = Some(self.run_span(seen.run(), Start::Known(seen.at), made));
    }

    fn run_span(&self, id: &str, start: Start, made: Vec<KeyValue>) -> SpanData {
        self.span("agentrt.run", (id, SpanOf::Run, id), SpanId::INVALID, start, made)
    }

    /// The run's span, opened where it was not seen to open.
    fn open_run<'r>(&self, run: &'r mut OpenRun, seen: Seen<'_>) -> &'r mut SpanData {
        run.run.get_or_insert_with(|| self.run_span(seen.run(), Start::Unknown(seen.at), vec![run_id(seen)]))
    }

    fn on_run(&self, run: &mut OpenRun, seen: Seen<'_>, made: Vec<KeyValue>) {
        note(self.open_run(run, seen), seen.event.kind.clone(), seen.at, made);
    }

    fn run_finished(&mut self, run: &mut OpenRun, seen: Seen<'_>) {
        self.open_run(run, seen);
        for (_, mut approval) in std::mem::take(&mut run.approvals) {
            set(&mut approval, [KeyValue::new("agentrt.approval.status", "pending")]);
            self.end(approval, seen.at);
        }
        for (_, mut call) in std::mem::take(&mut run.calls) {
            set(&mut call, [KeyValue::new("agentrt.model.status", "unknown")]);
            self.end(call, seen.at);
        }
        for id in run.steps.keys().cloned().collect::<Vec<_>>() {
            self.end_step(run, &id, seen, None);
        }
        let status = seen.payload.string("status").unwrap_or_default();
        let made = self
            .of(seen)
            .also(KeyValue::new("agentrt.run.status", status.clone()))
            .string("agentrt.run.reason", "reason")
            .text("agentrt.run.detail", "detail")
            .int("agentrt.run.steps", "steps")
            .string("agentrt.run.by", "by")
            .made();
        let Some(mut span) = run.run.take() else { return };
        set(&mut span, made);
        match status.as_str() {
            "COMPLETED" => span.status = Status::Ok,
            "FAILED" => span.status = Status::error(seen.payload.string("reason").unwrap_or_default()),
            "CANCELLED" => {
                let made = self
                    .beside(seen)
                    .string("agentrt.run.reason", "reason")
                    .string("agentrt.run.by", "by")
                    .text("agentrt.run.detail", "detail")
                    .made();
                note(&mut span, "run.cancelled".to_owned(), seen.at, made);
            }
            // A newer version's status is told as it is, and judged by nobody here.
            _ => {}
        }
        self.end(span, seen.at);
        run.current = None;
    }

    /// An event of a kind that is not known here: on the run where that is open, else a span of its own under it, so that
    /// a run that is over is not opened again and left open.
    fn unknown(&mut self, run: &mut OpenRun, seen: Seen<'_>) {
        let made = self.of(seen);
        if let Some(span) = &mut run.run {
            note(span, seen.event.kind.clone(), seen.at, made.made());
            return;
        }
        let (kind, seq) = (seen.event.kind.clone(), seen.event.seq);
        let mut made = made
            .also(run_id(seen))
            .also(KeyValue::new("agentrt.event.type", kind))
            .also(KeyValue::new("agentrt.event.seq", seq))
            .made();
        made.extend((!seen.step().is_empty()).then(|| step_id(seen)));
        let (id, parent) = (seq.to_string(), span_id(SpanOf::Run, seen.run()));
        let span =
            self.span("agentrt.event", (seen.run(), SpanOf::Event, &id), parent, Start::Known(seen.at), made);
        self.end(span, seen.at);
    }

    // Spans.

    pub(super) fn span(
        &self,
        name: &'static str,
        (run, of, id): (&str, SpanOf, &str),
        parent: SpanId,
        start: Start,
        mut attributes: Vec<KeyValue>,
    ) -> SpanData {
        let start_time = match start {
            Start::Known(at) => at,
            Start::Unknown(at) => {
                attributes.push(KeyValue::new("agentrt.span.start_unknown", true));
                at
            }
        };
        let state = TraceState::default();
        SpanData {
            span_context: SpanContext::new(trace_id(run), span_id(of, id), TraceFlags::SAMPLED, false, state),
            parent_span_id: parent,
            parent_span_is_remote: parent != SpanId::INVALID,
            span_kind: SpanKind::Internal,
            name: name.into(),
            start_time,
            end_time: start_time,
            attributes,
            dropped_attributes_count: 0,
            events: Default::default(),
            links: Default::default(),
            status: Status::Unset,
            instrumentation_scope: self.scope.clone(),
        }
    }

    pub(super) fn end(&mut self, mut span: SpanData, at: SystemTime) {
        // A clock that was set back between two events makes no span that ends before it begins.
        span.end_time = at.max(span.start_time);
        self.ended.push(span);
    }
}
