//! The course of a run: which event may follow which, told from the specification's state machines (sections 1.5, 2 and
//! 3.1), and what the proxy's index may say of it (its sections 2.6 and 2.7).
//!
//! Where `fold` holds rows to events, this holds events to each other: a record can agree with itself in every row and still
//! tell of a call that began twice, without its answer, or after its end.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::canon::{canonical, canonical_text, sha256};
use super::record::{Event, Record};
use super::{EMBEDDED, Property, Violation};

/// What a run may end as, and why.
const ENDS: [(&str, &[&str]); 3] = [
    ("COMPLETED", &["goal_completed"]),
    (
        "FAILED",
        &[
            "goal_failed",
            "limit_steps",
            "limit_model_calls",
            "limit_tokens",
            "limit_cost",
            "limit_active_time",
            "limit_elapsed_time",
            "repeated_tool_failures",
            "loop_detected",
            "model_unavailable",
            "policy_abort",
            "tool_abort",
            "reconcile_conflict",
            "agent_error",
            "internal_error",
        ],
    ),
    ("CANCELLED", &["approval_rejected", "approval_expired", "operator_cancelled"]),
];
/// What asks about a call that was cut off, or whose answer nobody knows.
const INTERRUPTION: &str = "interrupted_side_effect";

#[derive(Debug, Default)]
struct Run {
    status: String,
    steps: i64,
    /// Its newest step, and its newest question.
    step: String,
    asked: String,
    questions: u64,
    /// Whether its call has failed, which is told next.
    owes: bool,
    /// Who took it over last, while nobody else can have it.
    owner: Option<String>,
    /// Why it is over.
    reason: String,
}

#[derive(Debug, Default)]
struct Step {
    run: String,
    status: String,
    decision: Value,
    /// What the policy said last, since the step was begun or gone on with.
    policy: Option<Value>,
    /// Whether its call was cut off, so that nobody knows what came of it.
    cut_off: bool,
    /// The newest question about it.
    asked: String,
    started: u64,
}

#[derive(Debug, Default)]
struct Asked {
    status: String,
    kind: String,
    capability: Value,
    used: bool,
}

#[derive(Debug, Default)]
struct Course {
    runs: HashMap<String, Run>,
    steps: HashMap<String, Step>,
    asked: HashMap<String, Asked>,
    /// Who has taken a run over, or was taken over from.
    owners: HashSet<String>,
    wrong: Vec<Violation>,
}

/// Looks for what the specification does not have. `whole` says that no column was ever missing.
pub(super) fn look(record: &Record, whole: bool) -> Vec<Violation> {
    let mut course = Course::default();
    for event in &record.events {
        if let Err(why) = course.hear(event) {
            let detail = format!("{} at {} of run {}: {why}", event.kind, event.seq, event.run);
            course.wrong.push(Violation { property: Property::Course, detail });
        }
    }
    course.holders(record);
    course.index(record);
    // An older version's file had not all of the columns.
    if whole {
        course.owners(record);
        course.settled(record);
        course.specs(record);
        course.results(record);
    }
    course.wrong
}

/// Whether a run may be given up while it runs, and be somebody else's then: no event tells of either (section 9 of the
/// specification). An embedder closes a session when they like; a proxy, when its run is over or waits.
fn may_be_given_up(run: &str) -> bool {
    run.starts_with(EMBEDDED)
}

/// Whether somebody who holds a run may be called so: section 9 of the specification.
fn is_owner(owner: &str) -> bool {
    let drawn = |text: &str, digits: usize| {
        text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    drawn(owner, 32) || owner.rsplit_once('/').is_some_and(|(label, hex)| !label.is_empty() && drawn(hex, 12))
}

/// Fails with these words unless it holds.
fn must(holds: bool, why: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(why.to_owned()) }
}

impl Course {
    fn hear(&mut self, event: &Event) -> Result<(), String> {
        let payload = &event.payload;
        if event.kind == "run.created" {
            let begun = Run { status: "CREATED".to_owned(), ..Run::default() };
            return must(self.runs.insert(event.run.clone(), begun).is_none(), "it began before");
        }
        let run = self.runs.get_mut(&event.run).ok_or("it never began")?;
        let is_late = event.kind == "step.tool_finished" && payload["late"] == true;
        if is_late {
            return must(run.status == "CANCELLED", "only a cancelled run hears of it late");
        }
        must(!matches!(&*run.status, "COMPLETED" | "FAILED" | "CANCELLED"), "its run was over")?;
        let owed = std::mem::take(&mut run.owes);
        must(!owed || event.kind == "step.failed", "the step before it has failed, and nothing says so")?;
        let running = run.status == "RUNNING";
        match &*event.kind {
            "run.started" => {
                must(run.status == "CREATED", "it was started before")?;
                run.status = "RUNNING".to_owned();
                return Ok(());
            }
            "step.started" => {
                must(running && payload["index"] == run.steps, "it is not this step's turn")?;
                let last = self.steps.get(&run.step).map_or("done", |step| &*step.status);
                must(matches!(last, "done" | "failed" | "interrupted"), "the step before it is not over")?;
                run.steps += 1;
                run.step.clone_from(&event.step);
                let begun = Step { run: event.run.clone(), status: "deciding".to_owned(), ..Step::default() };
                return must(self.steps.insert(event.step.clone(), begun).is_none(), "the step began before");
            }
            "run.resumed" => {
                match payload["approval_id"].as_str() {
                    Some(id) => {
                        must(
                            run.status == "WAITING_FOR_APPROVAL" && id == run.asked,
                            "it waited for another",
                        )?;
                        let asked = self.asked.get(id).ok_or("nobody was asked")?;
                        must(asked.status == "approved" && !asked.used, "nothing is granted")?;
                        let step = self.steps.get_mut(&run.step).ok_or("it has no step")?;
                        step.policy = None;
                        run.owner = None;
                    }
                    None => must(running, "nobody held it")?,
                }
                run.status = "RUNNING".to_owned();
                return Ok(());
            }
            "lease.taken_over" => return self.take_over(event),
            "run.finished" => return self.finish(event),
            "limit.exceeded" | "loop.detected" | "model.dispatched" | "model.completed" | "model.failed" => {
                return Ok(());
            }
            _ => {}
        }
        self.of_step(event)
    }

    fn take_over(&mut self, event: &Event) -> Result<(), String> {
        let text = |key: &str| event.payload[key].as_str().unwrap_or_default().to_owned();
        let run = self.runs.get_mut(&event.run).ok_or("it never began")?;
        must(run.status == "RUNNING", "nobody held it")?;
        must(text("previous_owner") != text("owner"), "it is taken over from who takes it over")?;
        let known = run.owner.replace(text("owner")).filter(|_| !may_be_given_up(&event.run));
        let from = known.is_none_or(|known| known == text("previous_owner"));
        must(from, "it is taken over from who did not hold it")?;
        self.owners.insert(text("previous_owner"));
        must(self.owners.insert(text("owner")), "it is taken over by who held one before")
    }

    fn finish(&mut self, event: &Event) -> Result<(), String> {
        let text = |key: &str| event.payload[key].as_str().unwrap_or_default();
        let (status, reason) = (text("status"), text("reason"));
        let run = self.runs.get_mut(&event.run).ok_or("it never began")?;
        let fits = ENDS.iter().any(|(of, reasons)| *of == status && reasons.contains(&reason));
        must(fits, "no run ends so")?;
        must(event.payload["steps"] == run.steps, "it had another number of steps")?;
        let step = self.steps.get(&run.step);
        let is_open = step.is_some_and(|step| matches!(&*step.status, "executing" | "awaiting_approval"));
        must(status != "COMPLETED" || !is_open, "its call is not over")?;
        let asked = self.asked.get(&run.asked).map_or("", |asked| &*asked.status);
        must(reason != "approval_rejected" || asked == "rejected", "nobody rejected it")?;
        must(reason != "approval_expired" || asked == "expired", "nothing expired")?;
        must(
            (reason == "operator_cancelled") != text("by").is_empty(),
            "who cancelled it is not told, or nobody did",
        )?;
        (run.status, run.reason) = (status.to_owned(), reason.to_owned());
        Ok(())
    }

    /// Whether a step's event may follow those before it. Longer than other functions, because the kinds of events are read
    /// against each other.
    fn of_step(&mut self, event: &Event) -> Result<(), String> {
        let payload = &event.payload;
        let text = |key: &str| payload[key].as_str().unwrap_or_default().to_owned();
        let run = self.runs.get_mut(&event.run).ok_or("it never began")?;
        let step = self.steps.get_mut(&event.step).ok_or("the step never began")?;
        must(step.run == event.run && run.step == event.step, "it is of another step than the run's newest")?;
        let running = run.status == "RUNNING";
        let status = step.status.clone();
        match &*event.kind {
            "step.decided" => {
                must(running && status == "deciding" && step.decision.is_null(), "it was decided before")?;
                step.decision = payload.clone();
            }
            "step.policy" => {
                must(
                    matches!(&*status, "deciding" | "awaiting_approval" | "interrupted")
                        && !step.decision.is_null(),
                    "there is nothing to judge",
                )?;
                let view = &payload["view"];
                let seen = view["step_count"] == run.steps && view["approvals"] == run.questions;
                // What was cut off is asked about without asking the policy.
                must(seen || status == "interrupted", "the policy was shown another run")?;
                step.policy = Some(payload.clone());
            }
            "step.tool_started" => {
                must(running, "its run does not run")?;
                let same = payload["tool"] == step.decision["tool"]
                    && canonical(&payload["args"]) == canonical(&step.decision["args"]);
                must(same, "it is another call than was decided")?;
                let policy = step.policy.take().ok_or("the policy was not asked")?;
                let allowed = policy["outcome"] == "allow";
                match payload["approval_id"].as_str() {
                    None => must(status == "deciding" && allowed && !step.cut_off, "nobody allowed it")?,
                    Some(id) => {
                        must(
                            status == "awaiting_approval" && id == step.asked,
                            "it waited for another answer",
                        )?;
                        let asked = self.asked.get_mut(id).ok_or("nobody was asked")?;
                        must(asked.status == "approved", "it was not granted")?;
                        must(!asked.used, "its grant was used before")?;
                        must(
                            !step.cut_off || asked.kind == INTERRUPTION,
                            "nobody allowed its repetition since it was cut off",
                        )?;
                        asked.used = true;
                        let same = canonical(&policy["capability"]) == canonical(&asked.capability);
                        must(allowed || same, "the policy asks about something else by now")?;
                    }
                }
                step.started += 1;
                step.status = "executing".to_owned();
            }
            "step.tool_finished" => {
                must(status == "executing", "nothing was executing")?;
                must(payload["tool"] == step.decision["tool"], "it is of another tool")?;
                run.owes = payload.get("error").is_some();
                step.status = if run.owes { "failed" } else { "done" }.to_owned();
            }
            "step.failed" => {
                must(status != "done" && status != "executing", "it was over, or has not ended")?;
                step.status = "failed".to_owned();
            }
            "step.interrupted" => {
                must(matches!(&*status, "deciding" | "executing"), "there was nothing to interrupt")?;
                let before = &payload["previous_status"];
                let before = before.as_str().or_else(|| before["previous_status"].as_str());
                must(before == Some(&*status), "it was not in that state")?;
                step.cut_off |= status == "executing";
                step.status = "interrupted".to_owned();
            }
            "approval.requested" => {
                must(
                    matches!(&*status, "deciding" | "awaiting_approval" | "interrupted"),
                    "its step can't wait for an answer",
                )?;
                let policy = step.policy.as_ref().ok_or("the policy was not asked")?;
                must(
                    canonical(&policy["capability"]) == canonical(&payload["capability"]),
                    "it asks about something else than the policy",
                )?;
                must(
                    !step.cut_off || text("kind") == INTERRUPTION,
                    "it does not say that its call was cut off",
                )?;
                let asked = Asked {
                    status: "pending".to_owned(),
                    kind: text("kind"),
                    capability: payload["capability"].clone(),
                    used: false,
                };
                (step.asked, run.asked) = (text("approval_id"), text("approval_id"));
                (step.status, run.status) =
                    ("awaiting_approval".to_owned(), "WAITING_FOR_APPROVAL".to_owned());
                run.owner = None;
                run.questions += 1;
                return must(self.asked.insert(text("approval_id"), asked).is_none(), "it was asked before");
            }
            "approval.decided" => {
                let waits = run.status == "WAITING_FOR_APPROVAL" && text("approval_id") == run.asked;
                must(waits, "its run waits for something else")?;
                let asked = self.asked.get_mut(&text("approval_id")).ok_or("nobody was asked")?;
                let may = match (&*asked.status, &*text("status")) {
                    ("pending", "approved" | "rejected") => !text("by").is_empty(),
                    ("pending" | "approved", "expired") => true,
                    _ => false,
                };
                must(may, &format!("it was {} before", asked.status))?;
                asked.status = text("status");
            }
            _ => return Err("no such event is known".to_owned()),
        }
        Ok(())
    }

    /// Whoever took a run over last has it for as long as it runs, and a run that does not is nobody's.
    fn holders(&mut self, record: &Record) {
        for row in &record.runs {
            let running = row.status == "RUNNING";
            if running && may_be_given_up(&row.id) {
                continue;
            }
            let taken = self.runs.get(&row.id).and_then(|run| run.owner.clone()).filter(|_| running);
            let detail = match taken {
                _ if running == row.owner.is_empty() => {
                    format!("run {} is {} and held by {:?}", row.id, row.status, row.owner)
                }
                Some(owner) if owner != row.owner => {
                    format!("run {} was taken over by {owner} and is held by {}", row.id, row.owner)
                }
                Some(_) | None => continue,
            };
            self.wrong.push(Violation { property: Property::Course, detail });
        }
    }

    /// Who holds a run is drawn anew each time, so nobody holds two, and a proxy's says of which session it is.
    fn owners(&mut self, record: &Record) {
        let mut holders: HashSet<&str> = HashSet::new();
        for row in record.runs.iter().filter(|row| !row.owner.is_empty()) {
            let session = row.id.split_once('.').map_or("", |(session, _)| session);
            let why = if !is_owner(&row.owner) {
                "which nobody is called"
            } else if !row.id.starts_with(EMBEDDED)
                && !row.owner.split([':', '/']).any(|part| part == session)
            {
                "which is of another session"
            } else if !holders.insert(&row.owner) {
                "who holds another run too"
            } else {
                continue;
            };
            let detail = format!("run {} is held by {:?}, {why}", row.id, row.owner);
            self.wrong.push(Violation { property: Property::Course, detail });
        }
    }

    /// Who ends a run that they hold settles its row of the index in the same transaction. Who cancels a run, lets its
    /// question expire or gives up on what can't be read leaves that to whoever looks next, and nobody has to.
    fn settled(&mut self, record: &Record) {
        for call in &record.calls {
            let Some(run) = self.runs.get(&call.run) else { continue };
            let by_its_holder =
                matches!(&*run.status, "COMPLETED" | "FAILED") && run.reason != "internal_error";
            let why = if by_its_holder && !call.settled {
                "is not settled, and its run is over"
            } else if call.settled != (call.outcome != 0) {
                "is settled without an outcome, or has one unsettled"
            } else {
                continue;
            };
            let detail = format!("the index's row of run {} {why}: {call:?}", call.run);
            self.wrong.push(Violation { property: Property::Tables, detail });
        }
    }

    /// What the index says of a request, against the run that it names.
    fn index(&mut self, record: &Record) {
        for call in &record.calls {
            let Some(run) = self.runs.get(&call.run) else { continue };
            let over = matches!(&*run.status, "COMPLETED" | "FAILED" | "CANCELLED");
            let mut steps = record.steps.iter().filter(|step| step.run == call.run);
            let first = steps.clone().find(|step| step.decision["kind"] == "tool_call");
            let key = first.map(|step| {
                let args = canonical(&step.decision["args"]);
                sha256(format!("{}\0{args}", step.decision["tool"].as_str().unwrap_or_default()).as_bytes())
            });
            // What came of the last call that was ever started.
            let last = steps.rfind(|step| self.steps.get(&step.id).is_some_and(|told| told.started > 0));
            let unknown = last.is_some_and(|step| {
                step.status == "interrupted" || matches!(&*step.ending, "timed_out" | "no_answer")
            });
            let spec = first.and_then(|step| record.specs.iter().find(|(hash, _)| *hash == step.spec));
            let class = spec.and_then(|(_, text)| serde_json::from_str::<Value>(text).ok());
            let mutates = call.class != "read_only";
            let why = if key.is_some_and(|key| key != call.key && !call.key.starts_with("invalid:")) {
                "has the key of another request"
            } else if first.is_some_and(|step| step.decision["tool"] != call.tool) {
                "names another tool"
            } else if !call.run.starts_with(&format!("{}.", call.session)) {
                "names another session"
            } else if class.is_some_and(|spec| spec["side_effect"] != call.class) {
                "names another class"
            } else if !call.open && !over {
                "was closed while its run was not over"
            } else if call.settled && !over {
                "was settled while its run was not over"
            } else if call.outcome == 1 && last.is_some_and(|step| step.ending != "not_sent") {
                "says that nothing was started"
            } else if call.outcome == 2 && mutates && (unknown || last.is_none()) {
                "says that its outcome is known"
            } else if call.outcome == 3 && last.is_some_and(|step| step.status == "done") {
                "says that its outcome is unknown"
            } else {
                continue;
            };
            let detail = format!("the index's row of run {} {why}: {call:?}", call.run);
            self.wrong.push(Violation { property: Property::Tables, detail });
        }
    }

    /// A call that ends its run is the run's result.
    fn results(&mut self, record: &Record) {
        let mut wrong: Vec<String> = Vec::new();
        for run in record.runs.iter().filter(|run| run.status == "COMPLETED") {
            let last = record.steps.iter().rfind(|step| step.run == run.id);
            let content = last.filter(|step| step.decision["kind"] == "tool_call");
            let content = content.and_then(|step| step.observation.get("content"));
            if let Some(content) = content
                && canonical_text(&run.result).as_deref() != Some(&canonical(content))
            {
                wrong.push(format!(
                    "run {} has the result {:?}, and its call's is {content}",
                    run.id, run.result
                ));
            }
        }
        self.wrong.extend(wrong.into_iter().map(|detail| Violation { property: Property::Tables, detail }));
    }

    /// A specification hashes to its hash, and each that a step names is there.
    fn specs(&mut self, record: &Record) {
        let mut wrong: Vec<String> = Vec::new();
        for (hash, text) in &record.specs {
            if canonical_text(text).is_none_or(|text| sha256(text.as_bytes()) != *hash) {
                wrong.push(format!("the specification {hash} does not hash to that"));
            }
        }
        for step in record.steps.iter().filter(|step| !step.spec.is_empty()) {
            if !record.specs.iter().any(|(hash, _)| *hash == step.spec) {
                wrong.push(format!("step {} is of the specification {}, which is gone", step.id, step.spec));
            }
        }
        self.wrong.extend(wrong.into_iter().map(|detail| Violation { property: Property::Tables, detail }));
    }
}

#[cfg(test)]
mod tests;
