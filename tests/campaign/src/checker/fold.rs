//! Tables against events: what the rows must say, told again from the events alone.
//!
//! Follows sections 1.5, 2 and 3.1 of the specification. Also holds the other direction: no row without an event, no event
//! without its row.

use std::collections::HashMap;

use serde_json::Value;

use super::record::{Event, Record};
use super::{Property, Violation};

#[derive(Debug, Default)]
struct Told {
    runs: HashMap<String, Run>,
    steps: HashMap<String, Step>,
    approvals: HashMap<String, (String, String)>,
    odd: Vec<String>,
}

#[derive(Debug, Default)]
struct Run {
    status: String,
    reason: String,
    steps: i64,
}

#[derive(Debug, Default)]
struct Step {
    run: String,
    idx: i64,
    status: String,
    decision: Value,
}

/// Compares the rows with what the events tell.
pub(super) fn compare(record: &Record) -> Vec<Violation> {
    let mut told = Told::default();
    record.events.iter().for_each(|event| told.hear(event));
    let mut wrong = std::mem::take(&mut told.odd);
    for run in &record.runs {
        match told.runs.remove(&run.id) {
            Some(t) if (&*t.status, &*t.reason, t.steps) == (&*run.status, &*run.reason, run.steps) => {}
            other => wrong.push(format!("{run:?} is told as {other:?}")),
        }
    }
    for step in &record.steps {
        let decided = told.steps.get(&step.id).map(|t| t.decision.clone()).unwrap_or_default();
        match told.steps.remove(&step.id) {
            Some(t) if (&*t.run, t.idx, &*t.status) == (&*step.run, step.idx, &*step.status) => {}
            other => wrong.push(format!("step {} is {} and told as {other:?}", step.id, step.status)),
        }
        if decided != step.decision {
            wrong.push(format!("step {} has the decision {} and is told {decided}", step.id, step.decision));
        }
    }
    for approval in &record.approvals {
        match told.approvals.remove(&approval.id) {
            Some((status, hash)) if status == approval.status && hash == approval.hash => {}
            other => {
                wrong.push(format!("approval {} is {} and told as {other:?}", approval.id, approval.status))
            }
        }
    }
    wrong.extend(told.runs.keys().map(|id| format!("run {id} is told and not there")));
    wrong.extend(told.steps.keys().map(|id| format!("step {id} is told and not there")));
    wrong.extend(told.approvals.keys().map(|id| format!("approval {id} is told and not there")));
    wrong.into_iter().map(|detail| Violation { property: Property::Tables, detail }).collect()
}

impl Told {
    fn hear(&mut self, event: &Event) {
        if event.kind == "run.created" {
            let begun = Run { status: "RUNNING".to_owned(), ..Run::default() };
            self.runs.insert(event.run.clone(), begun);
            return;
        }
        if event.kind == "step.started" {
            let idx = event.payload["index"].as_i64().unwrap_or(-1);
            let step =
                Step { run: event.run.clone(), idx, status: "deciding".to_owned(), decision: Value::Null };
            self.steps.insert(event.step.clone(), step);
        }
        let Some(run) = self.runs.get_mut(&event.run) else {
            return self.odd.push(format!("event {} is of a run that was never created", event.seq));
        };
        let step = self.steps.get_mut(&event.step);
        let text = |key: &str| event.payload[key].as_str().unwrap_or_default().to_owned();
        match (&*event.kind, step) {
            ("step.started", _) => run.steps += 1,
            ("run.started" | "run.resumed", _) => run.status = "RUNNING".to_owned(),
            ("run.finished", _) => {
                (run.status, run.reason) = (text("status"), text("reason"));
                let reason = run.reason.clone();
                self.end_steps(&event.run, &reason);
            }
            ("step.decided", Some(step)) => step.decision = event.payload.clone(),
            ("step.tool_started", Some(step)) => step.status = "executing".to_owned(),
            // Its step ended with its run, which a person had cancelled.
            ("step.tool_finished", Some(_)) if event.payload["late"] == true => {}
            ("step.tool_finished", Some(step)) => {
                let failed = event.payload.get("error").is_some();
                step.status = if failed { "failed" } else { "done" }.to_owned();
            }
            ("step.failed", Some(step)) => step.status = "failed".to_owned(),
            ("step.interrupted", Some(step)) => step.status = "interrupted".to_owned(),
            ("approval.requested", Some(step)) => {
                step.status = "awaiting_approval".to_owned();
                run.status = "WAITING_FOR_APPROVAL".to_owned();
                self.approvals.insert(text("approval_id"), ("pending".to_owned(), text("hash")));
            }
            ("approval.decided", _) => match self.approvals.get_mut(&text("approval_id")) {
                Some((status, _)) => *status = text("status"),
                None => self.odd.push(format!("event {} decides what was never asked", event.seq)),
            },
            ("step.policy" | "lease.taken_over" | "limit.exceeded" | "loop.detected", _) => {}
            (kind, _) => self.odd.push(format!("event {} is a {kind} that does not fit", event.seq)),
        }
    }

    /// What the end of a run does to its open steps without an event of their own.
    fn end_steps(&mut self, run: &str, reason: &str) {
        for step in self.steps.values_mut().filter(|step| step.run == run) {
            let closes = matches!(step.decision["kind"].as_str(), Some("complete" | "fail"));
            match &*step.status {
                "deciding" if closes => step.status = "done".to_owned(),
                "awaiting_approval" if reason == "approval_expired" => {}
                "deciding" | "executing" | "awaiting_approval"
                    if matches!(reason, "approval_rejected" | "operator_cancelled" | "internal_error") =>
                {
                    step.status = "failed".to_owned();
                }
                _ => {}
            }
        }
    }
}
