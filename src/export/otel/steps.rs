//! Spans out of events, within a run: steps, and the model attempts, approvals and tools within a step.

use std::time::SystemTime;

use opentelemetry::KeyValue;
use opentelemetry::trace::{SpanKind, Status};
use opentelemetry_sdk::trace::SpanData;

use super::ids::{SpanOf, span_id};
use super::make::{note, run_id, set, step_id};
use super::payload::Attributes;
use super::spans::{Mapper, OpenRun, OpenStep, Seen, Start};

impl Mapper {
    pub(super) fn step_started(&mut self, run: &mut OpenRun, seen: Seen<'_>) {
        if let Some(before) = run.current.clone().filter(|before| before != seen.step()) {
            self.end_step(run, &before, seen, None);
        }
        run.current = Some(seen.step().to_owned());
        if !run.steps.contains_key(seen.step()) {
            let made = self
                .of(seen)
                .also(run_id(seen))
                .also(step_id(seen))
                .int("agentrt.step.index", "index")
                .made();
            run.steps.insert(seen.step().to_owned(), self.step_span(seen, Start::Known(seen.at), made));
        }
    }

    fn step_span(&self, seen: Seen<'_>, start: Start, made: Vec<KeyValue>) -> OpenStep {
        let (run, step) = (seen.run(), seen.step());
        let span =
            self.span("agentrt.step", (run, SpanOf::Step, step), span_id(SpanOf::Run, run), start, made);
        OpenStep { span, interrupted: false, tool: None, asked_for: None }
    }

    /// The step's span, opened where it was not seen to open: at `implied`, if the event says as much.
    fn open_step<'r>(
        &self,
        run: &'r mut OpenRun,
        seen: Seen<'_>,
        implied: Option<SystemTime>,
    ) -> &'r mut OpenStep {
        run.current.get_or_insert_with(|| seen.step().to_owned());
        run.steps.entry(seen.step().to_owned()).or_insert_with(|| {
            let start = implied.map_or(Start::Unknown(seen.at), Start::Known);
            self.step_span(seen, start, vec![run_id(seen), step_id(seen)])
        })
    }

    pub(super) fn step_decided(&self, run: &mut OpenRun, seen: Seen<'_>) {
        let made = self
            .of(seen)
            .string("agentrt.decision.kind", "kind")
            .text("agentrt.decision.tool", "tool")
            .text("agentrt.decision.args", "args")
            .text("agentrt.decision.reason", "reason")
            .text("agentrt.decision.result", "result")
            .text("agentrt.decision.message", "message")
            .text("agentrt.decision.invalid_args", "invalid_args")
            .text("agentrt.decision.invalid_result", "invalid_result")
            .flag("agentrt.decision.invalid_base64", "invalid_base64")
            .string("agentrt.decision.origin", "origin")
            .made();
        let step = self.open_step(run, seen, None);
        step.asked_for = seen.payload.string("tool");
        set(&mut step.span, made);
        note(&mut step.span, seen.event.kind.clone(), seen.at, Vec::new());
    }

    pub(super) fn step_policy(&self, run: &mut OpenRun, seen: Seen<'_>) {
        let made = self
            .of(seen)
            .string("agentrt.policy.outcome", "outcome")
            .text("agentrt.policy.reason", "reason")
            .string("agentrt.policy.kind", "kind")
            .string("agentrt.policy.id", "policy_id")
            .string("agentrt.policy.spec_hash", "spec_hash")
            .made();
        let step = self.open_step(run, seen, None);
        step.tool = step.asked_for.clone();
        set(&mut step.span, made);
        note(&mut step.span, seen.event.kind.clone(), seen.at, Vec::new());
    }

    pub(super) fn tool_started(&self, run: &mut OpenRun, seen: Seen<'_>) {
        let made = self.of(seen).string("agentrt.tool.name", "tool").made();
        let grant = self.beside(seen).string("agentrt.approval.id", "approval_id").made();
        let step = self.open_step(run, seen, None);
        step.tool = seen.payload.string("tool");
        set(&mut step.span, made);
        note(&mut step.span, seen.event.kind.clone(), seen.at, grant);
    }

    pub(super) fn tool_finished(&mut self, run: &mut OpenRun, seen: Seen<'_>) {
        let made = self
            .of(seen)
            .string("agentrt.tool.name", "tool")
            .int("agentrt.tool.duration_ms", "duration_ms")
            .text("agentrt.tool.summary", "summary")
            .string("agentrt.tool.content_hash", "content_hash");
        let began = seen.before("duration_ms");
        if seen.payload.is_true("late") {
            let made = made
                .also(run_id(seen))
                .also(step_id(seen))
                .text("agentrt.tool.observation", "observation")
                .made();
            let id = (seen.run(), SpanOf::Late, seen.step());
            let start = Start::Known(began.unwrap_or(seen.at));
            let span = self.span("agentrt.tool.late", id, span_id(SpanOf::Step, seen.step()), start, made);
            return self.end(span, seen.at);
        }
        let mut made = made.made();
        let failed = seen.payload.has("error");
        if failed {
            made.extend(self.beside(seen).text("agentrt.tool.error", "error").made());
        }
        set(&mut self.open_step(run, seen, began).span, made);
        // What follows a failure in the same commit ends the step.
        if !failed {
            self.end_step(run, seen.step(), seen, Some("done"));
        }
    }

    pub(super) fn step_failed(&mut self, run: &mut OpenRun, seen: Seen<'_>) {
        let made = self
            .of(seen)
            .text("agentrt.step.detail", "detail")
            .string("agentrt.step.observation", "observation")
            .string("agentrt.step.content_hash", "content_hash")
            .made();
        let step = self.open_step(run, seen, None);
        set(&mut step.span, made);
        step.span.status = Status::error(seen.payload.string("observation").unwrap_or_default());
        self.end_step(run, seen.step(), seen, Some("failed"));
    }

    pub(super) fn step_interrupted(&self, run: &mut OpenRun, seen: Seen<'_>) {
        // The member is the observation's content: an object that holds the status.
        let inner = seen.payload.object("previous_status").string("previous_status");
        let previous = inner.or_else(|| seen.payload.string("previous_status")).unwrap_or_default();
        let made = self.of(seen).also(KeyValue::new("agentrt.step.previous_status", previous)).made();
        let step = self.open_step(run, seen, None);
        step.interrupted = true;
        note(&mut step.span, seen.event.kind.clone(), seen.at, made);
    }

    /// Ends a step, if it is open. Without a status of its own, one that was interrupted ends as that.
    pub(super) fn end_step(
        &mut self,
        run: &mut OpenRun,
        id: &str,
        seen: Seen<'_>,
        status: Option<&'static str>,
    ) {
        let Some(mut step) = run.steps.remove(id) else { return };
        set(&mut step.span, [KeyValue::new("agentrt.step.end", seen.event.kind.clone())]);
        let status = status.or(step.interrupted.then_some("interrupted"));
        set(&mut step.span, status.map(|status| KeyValue::new("agentrt.step.status", status)));
        self.end(step.span, seen.at);
        run.current.take_if(|current| current == id);
    }

    // What happens within a step.

    pub(super) fn approval_requested(&self, run: &mut OpenRun, seen: Seen<'_>) {
        let id = seen.payload.string("approval_id").unwrap_or_default();
        let short = self
            .beside(seen)
            .also(KeyValue::new("agentrt.approval.id", id.clone()))
            .string("agentrt.approval.kind", "kind")
            .made();
        note(&mut self.open_step(run, seen, None).span, seen.event.kind.clone(), seen.at, short);
        if run.approvals.contains_key(&id) {
            return;
        }
        let made = self
            .of(seen)
            .string("agentrt.approval.kind", "kind")
            .text("agentrt.approval.reason", "reason")
            .string("agentrt.approval.hash", "hash")
            .text("agentrt.approval.capability", "capability")
            .text("agentrt.approval.presentation", "presentation")
            .made();
        let span = self.approval_span(seen, &id, Start::Known(seen.at), made);
        run.approvals.insert(id, span);
    }

    fn approval_span(&self, seen: Seen<'_>, id: &str, start: Start, made: Vec<KeyValue>) -> SpanData {
        let mut all = vec![run_id(seen), step_id(seen), KeyValue::new("agentrt.approval.id", id.to_owned())];
        all.extend(made);
        let parent = span_id(SpanOf::Step, seen.step());
        self.span("agentrt.approval", (seen.run(), SpanOf::Approval, id), parent, start, all)
    }

    pub(super) fn approval_decided(&mut self, run: &mut OpenRun, seen: Seen<'_>) {
        let id = seen.payload.string("approval_id").unwrap_or_default();
        let known = run.approvals.remove(&id);
        let mut span =
            known.unwrap_or_else(|| self.approval_span(seen, &id, Start::Unknown(seen.at), Vec::new()));
        let made = self
            .of(seen)
            .string("agentrt.approval.status", "status")
            .string("agentrt.approval.by", "by")
            .text("agentrt.approval.note", "note")
            .made();
        set(&mut span, made);
        self.end(span, seen.at);
    }

    pub(super) fn model_dispatched(&self, run: &mut OpenRun, seen: Seen<'_>) {
        let id = seen.payload.string("call_id").unwrap_or_default();
        run.calls.entry(id.clone()).or_insert_with(|| self.model_span(seen, &id, seen.at));
    }

    fn model_span(&self, seen: Seen<'_>, id: &str, start: SystemTime) -> SpanData {
        let made = self
            .of(seen)
            .also(run_id(seen))
            .also(step_id(seen))
            .also(KeyValue::new("agentrt.model.call_id", id.to_owned()))
            .int("agentrt.model.attempt", "attempt")
            .string("agentrt.model.name", "model")
            .made();
        let parent = span_id(SpanOf::Step, seen.step());
        let mut span =
            self.span("agentrt.model", (seen.run(), SpanOf::Model, id), parent, Start::Known(start), made);
        span.span_kind = SpanKind::Client;
        span
    }

    pub(super) fn model_ended(&mut self, run: &mut OpenRun, seen: Seen<'_>, failed: bool) {
        let id = seen.payload.string("call_id").unwrap_or_default();
        let known = run.calls.remove(&id);
        let mut span =
            known.unwrap_or_else(|| self.model_span(seen, &id, seen.before("latency_ms").unwrap_or(seen.at)));
        let made = self
            .of(seen)
            .string("agentrt.model.status", "status")
            .int("agentrt.model.cost_micros", "cost_micros")
            .int("agentrt.model.latency_ms", "latency_ms")
            .made();
        set(&mut span, made);
        let usage = seen.payload.object("usage");
        let tokens = Attributes::beside(&usage, self.text_bytes_max)
            .any_int("agentrt.model.input_tokens", "input_tokens")
            .any_int("agentrt.model.output_tokens", "output_tokens")
            .any_int("agentrt.model.cached_input_tokens", "cached_input_tokens")
            .made();
        set(&mut span, tokens);
        if failed {
            set(&mut span, self.beside(seen).text("agentrt.model.error", "error").made());
            span.status = Status::error(seen.payload.string("status").unwrap_or_default());
        }
        self.end(span, seen.at);
    }
}
