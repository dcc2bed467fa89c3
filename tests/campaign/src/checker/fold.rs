//! Tables against events: what the rows must say, told again from the events alone.
//!
//! Follows sections 1.5, 2 and 3.1 of the specification. Also holds the other direction: no row without an event, no event
//! without its row.

use std::collections::HashMap;

use serde_json::Value;

use super::canon::{canonical, canonical_text, sha256};
use super::record::{self, Approval, Event, Record};
use super::{Property, Violation};

#[derive(Debug, Default)]
struct Told {
    runs: HashMap<String, Run>,
    steps: HashMap<String, Step>,
    approvals: HashMap<String, Asked>,
    odd: Vec<String>,
}

#[derive(Debug, Default)]
struct Run {
    status: String,
    reason: String,
    detail: String,
    goal: String,
    limits: Value,
    steps: i64,
    /// When it was created, started and finished.
    at: [String; 3],
    /// How long its calls took.
    active_ms: i64,
}

#[derive(Debug, Default)]
struct Step {
    run: String,
    idx: i64,
    status: String,
    decision: Value,
    policy: Value,
    policy_id: Value,
    spec: Value,
    /// The hash of what came of it, and its summary.
    content: Option<String>,
    summary: Value,
    /// When it began or went on, and when its call ended.
    began: String,
    ended: Option<String>,
    /// Whether its call failed.
    failed: bool,
}

/// What the events tell of a question.
#[derive(Debug, Default)]
struct Asked {
    status: String,
    hash: String,
    kind: String,
    step: String,
    capability: Value,
    presentation: Value,
    /// Who decided it last, and in which words.
    by: String,
    note: String,
    created_at: String,
    decided_at: String,
}

/// Compares the rows with what the events tell.
/// `whole` says that no column was ever missing.
pub(super) fn compare(record: &Record, whole: bool) -> Vec<Violation> {
    let mut told = Told::default();
    record.events.iter().for_each(|event| told.hear(event));
    let mut wrong = std::mem::take(&mut told.odd);
    for run in &record.runs {
        match told.runs.remove(&run.id) {
            Some(t)
                if (&*t.status, &*t.reason, t.steps) == (&*run.status, &*run.reason, run.steps)
                    && (&*t.detail, &*t.goal, &t.limits) == (&*run.detail, &*run.goal, &run.limits)
                    && t.at.each_ref().map(|at| &**at)
                        == [&*run.created_at, &*run.started_at, &*run.finished_at]
                    && (t.active_ms <= run.active_ms || !whole) => {}
            other => wrong.push(format!("{run:?} is told as {other:?}")),
        }
    }
    for step in &record.steps {
        let decided = told.steps.get(&step.id).map(|t| t.decision.clone()).unwrap_or_default();
        wrong.extend(told.steps.get(&step.id).and_then(|told| content(told, step, whole)));
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
            Some(told) if is_told(&told, approval) => {}
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

/// Whether an approval's row says what its events tell.
fn is_told(told: &Asked, row: &Approval) -> bool {
    let same = |text: &str, value: &Value| {
        let text = if text.is_empty() { "null" } else { text };
        canonical_text(text).unwrap_or_default() == canonical(value)
    };
    // An expiry is no decision: it leaves whose the grant was, and says what it is where nobody had said anything.
    let is_over = row.status == "expired";
    (&*told.status, &*told.hash, &*told.kind, &*told.step)
        == (&*row.status, &*row.hash, &*row.kind, &*row.step)
        && told.by == row.by
        && told.created_at == row.created_at
        && ((&told.note, &told.decided_at) == (&row.note, &row.decided_at) || is_over)
        && same(&row.capability, &told.capability)
        && same(&row.presentation, &told.presentation)
}

/// What came of a call, as its row has it, against its event and its own hash; and what the policy said.
fn content(told: &Step, row: &record::Step, whole: bool) -> Option<String> {
    let stored = row.observation["content_hash"].as_str().unwrap_or_default();
    if let Some(hash) = &told.content
        && (hash != stored || *hash != row.observation_hash)
    {
        return Some(format!("step {} has an observation {stored:?} and is told {hash:?}", row.id));
    }
    let content = row.observation.get("content").filter(|_| row.status == "done");
    if let Some(content) = content
        && sha256(canonical(content).as_bytes()) != stored
    {
        return Some(format!("step {} has an observation that does not hash to its hash", row.id));
    }
    if !told.policy.is_null() && row.policy["outcome"] != told.policy {
        return Some(format!("step {} has the policy {} and is told {}", row.id, row.policy, told.policy));
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    if whole
        && !told.policy.is_null()
        && [text(&told.policy_id), text(&told.spec)] != [&*row.policy_id, &*row.spec]
    {
        return Some(format!(
            "step {} was judged by another policy than is told, or of another tool",
            row.id
        ));
    }
    if told.content.is_some() && row.observation["summary"] != told.summary {
        return Some(format!("step {} has the summary {}", row.id, row.observation["summary"]));
    }
    if told.began != row.started_at {
        return Some(format!("step {} began at {} and is told to at {}", row.id, row.started_at, told.began));
    }
    if told.ended.as_ref().is_some_and(|at| *at != row.finished_at) {
        return Some(format!(
            "step {} ended at {:?} and is told to at {:?}",
            row.id, row.finished_at, told.ended
        ));
    }
    if whole && told.failed && row.ending.is_empty() {
        return Some(format!("step {} failed, and nothing says how its call ended", row.id));
    }
    None
}

impl Told {
    /// Takes an event's word for what the tables hold. Longer than other functions by one arm for each kind of event.
    fn hear(&mut self, event: &Event) {
        if event.kind == "run.created" {
            let begun = Run {
                status: "RUNNING".to_owned(),
                goal: event.payload["goal"].as_str().unwrap_or_default().to_owned(),
                limits: event.payload["limits"].clone(),
                at: [event.at.clone(), String::new(), String::new()],
                ..Run::default()
            };
            self.runs.insert(event.run.clone(), begun);
            return;
        }
        if event.kind == "step.started" {
            let idx = event.payload["index"].as_i64().unwrap_or(-1);
            let step = Step {
                run: event.run.clone(),
                idx,
                status: "deciding".to_owned(),
                began: event.at.clone(),
                ..Step::default()
            };
            self.steps.insert(event.step.clone(), step);
        }
        let Some(run) = self.runs.get_mut(&event.run) else {
            return self.odd.push(format!("event {} is of a run that was never created", event.seq));
        };
        let step = self.steps.get_mut(&event.step);
        let text = |key: &str| event.payload[key].as_str().unwrap_or_default().to_owned();
        match (&*event.kind, step) {
            ("step.started", _) => run.steps += 1,
            ("run.started", _) => {
                run.status = "RUNNING".to_owned();
                run.at[1].clone_from(&event.at);
            }
            ("run.resumed", _) => run.status = "RUNNING".to_owned(),
            ("run.finished", _) => {
                (run.status, run.reason) = (text("status"), text("reason"));
                run.detail = text("detail");
                run.at[2].clone_from(&event.at);
                let reason = run.reason.clone();
                self.end_steps(&event.run, &reason);
            }
            ("step.decided", Some(step)) => step.decision = event.payload.clone(),
            ("step.tool_started", Some(step)) => {
                step.status = "executing".to_owned();
                // What waited for an answer goes on from here.
                if event.payload.get("approval_id").is_some() {
                    step.began.clone_from(&event.at);
                }
            }
            // Its step ended with its run, which a person had cancelled.
            ("step.tool_finished", Some(_)) if event.payload["late"] == true => {}
            ("step.tool_finished", Some(step)) => {
                let failed = event.payload.get("error").is_some();
                step.status = if failed { "failed" } else { "done" }.to_owned();
                step.content = event.payload["content_hash"].as_str().map(str::to_owned);
                step.summary = event.payload["summary"].clone();
                (step.ended, step.failed) = (Some(event.at.clone()), failed);
                run.active_ms += event.payload["duration_ms"].as_i64().unwrap_or(0);
            }
            ("step.failed", Some(step)) => step.status = "failed".to_owned(),
            ("step.interrupted", Some(step)) => step.status = "interrupted".to_owned(),
            ("approval.requested", Some(step)) => {
                step.status = "awaiting_approval".to_owned();
                run.status = "WAITING_FOR_APPROVAL".to_owned();
                let asked = Asked {
                    status: "pending".to_owned(),
                    hash: text("hash"),
                    kind: text("kind"),
                    step: event.step.clone(),
                    capability: event.payload["capability"].clone(),
                    presentation: event.payload["presentation"].clone(),
                    created_at: event.at.clone(),
                    ..Asked::default()
                };
                self.approvals.insert(text("approval_id"), asked);
            }
            ("approval.decided", _) => match self.approvals.get_mut(&text("approval_id")) {
                Some(asked) => {
                    asked.status = text("status");
                    // An expiry is nobody's, and leaves whose decision it was.
                    if asked.status != "expired" {
                        (asked.by, asked.note) = (text("by"), text("note"));
                        asked.decided_at.clone_from(&event.at);
                    }
                }
                None => self.odd.push(format!("event {} decides what was never asked", event.seq)),
            },
            ("step.policy", Some(step)) => {
                step.policy = event.payload["outcome"].clone();
                step.policy_id = event.payload["policy_id"].clone();
                step.spec = event.payload["spec_hash"].clone();
            }
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
