//! The contract of an interrupted run: what must hold of its record and of its tools, whatever died when.

use std::collections::{HashMap, HashSet};

use holdpoint_core::approval::ApprovalStatus;
use holdpoint_core::event::Event;
use holdpoint_core::run::RunStatus;
use holdpoint_core::step::StepStatus;
use serde::Deserialize;

use super::scenario::{Disruption, Outcome};
use super::stage;

/// Reads the run back into `outcome` and adds whatever is wrong with it.
pub(super) fn judge(outcome: &mut Outcome, disruptions: &[Disruption]) {
    if let Some(missed) = disruptions.get(outcome.disrupted.len()) {
        outcome.failures.add(format!("{missed} never came about"));
    }
    if outcome.run_id.as_str().is_empty() {
        outcome.failures.add("no run was begun");
        return;
    }
    match stage::read(&outcome.place, &outcome.run_id) {
        Ok(record) => {
            if let Some(owner) = record.held_by {
                outcome.failures.add(format!("the run is left held by {owner}"));
            }
            if let Some(broken) = record.broken {
                outcome.failures.add(format!("the chain of events is broken: {broken}"));
            }
            outcome.run = Some(record.run);
            outcome.steps = record.steps;
            outcome.approvals = record.approvals;
            outcome.events = record.events;
        }
        Err(why) => {
            outcome.failures.add(format!("the run can't be read back: {why}"));
            return;
        }
    }
    at_rest(outcome);
    tools(outcome);
}

/// Nothing is left in flight.
fn at_rest(outcome: &mut Outcome) {
    let Some(status) = outcome.run.as_ref().map(|run| run.status) else { return };
    if matches!(status, RunStatus::Running | RunStatus::Interrupted) {
        outcome.failures.add(format!("the run is left {status}"));
    }
    for step in &outcome.steps {
        match step.status {
            StepStatus::Deciding | StepStatus::Executing => {
                outcome.failures.add(format!("step {} is left {}", step.index, step.status));
            }
            StepStatus::AwaitingApproval if status != RunStatus::WaitingForApproval => {
                outcome
                    .failures
                    .add(format!("step {} waits for an approval in a run that is {status}", step.index));
            }
            StepStatus::AwaitingApproval
            | StepStatus::Done
            | StepStatus::Failed
            | StepStatus::Interrupted => {}
        }
    }
}

/// What the events say of tools.
#[derive(Default)]
struct Starts<'a> {
    of_step: HashMap<&'a str, usize>,
    by_approval: HashMap<String, usize>,
    /// Steps whose last start is not closed.
    open: HashSet<&'a str>,
    /// Starts that came before the last one was closed.
    overlapping: Vec<(&'a str, i64)>,
}

#[derive(Deserialize)]
struct Started {
    #[serde(default)]
    approval_id: String,
}

impl<'a> Starts<'a> {
    fn of(events: &'a [Event]) -> Starts<'a> {
        let mut starts = Starts::default();
        for event in events {
            let step = event.step_id.as_str();
            match event.kind.as_str() {
                "step.tool_started" => {
                    *starts.of_step.entry(step).or_default() += 1;
                    let started = serde_json::from_str::<Started>(&event.payload);
                    if let Some(started) = started.ok().filter(|started| !started.approval_id.is_empty()) {
                        *starts.by_approval.entry(started.approval_id).or_default() += 1;
                    }
                    if !starts.open.insert(step) {
                        starts.overlapping.push((step, event.seq));
                    }
                }
                "step.tool_finished" | "step.interrupted" => {
                    starts.open.remove(step);
                }
                _ => {}
            }
        }
        starts
    }
}

/// Nothing ran that was not started on the record, nor more often than once and once an approval.
fn tools(outcome: &mut Outcome) {
    let index: HashMap<&str, i64> = outcome.steps.iter().map(|step| (step.id.as_str(), step.index)).collect();
    let index = |step: &str| index.get(step).copied().unwrap_or(-1);
    let starts = Starts::of(&outcome.events);
    let mut found = Vec::new();
    for (step, seq) in &starts.overlapping {
        let at = index(step);
        found
            .push(format!("step {at} started its tool again (event {seq}) before its last start was closed"));
    }
    for step in &starts.open {
        found.push(format!("step {} started a tool, and neither finished nor was interrupted", index(step)));
    }
    for (step, times) in &starts.of_step {
        let approved = outcome.approvals.iter().filter(|approval| {
            approval.step_id.as_str() == *step && approval.status == ApprovalStatus::Approved
        });
        let approved = approved.count();
        if *times > 1 + approved {
            found.push(format!("step {} ran {times} times with {approved} approval(s)", index(step)));
        }
    }
    for (approval, times) in starts.by_approval.iter().filter(|(_, times)| **times > 1) {
        found.push(format!("approval {approval} was used {times} times"));
    }
    let recorded: HashMap<i64, usize> = starts.of_step.iter().map(|(step, n)| (index(step), *n)).collect();
    for (step, times) in outcome.calls_by_step() {
        let recorded = recorded.get(&step).copied().unwrap_or(0);
        if times > recorded {
            found.push(format!(
                "step {step} called its tool {times} times, with {recorded} start(s) on the record"
            ));
        }
    }
    found.sort();
    found.into_iter().for_each(|failure| outcome.failures.add(failure));
}
