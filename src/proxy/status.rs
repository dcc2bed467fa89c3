//! The status tool: what waits for a person, and what became of an approval.
//!
//! Owns the tool's own description and its report. It reads, never executes, never decides, and leaves no run behind: a
//! model that wants to know how things stand would otherwise look for another way to find out.

use std::time::Duration;

use holdpoint_actors::store::RecentCall;
use holdpoint_core::across_calls::Upstreams;
use holdpoint_core::approval::{Approval, ApprovalStatus};
use holdpoint_core::attempt::{CameTo, Ended, Ending, came_to};
use holdpoint_core::ids::StepId;
use holdpoint_core::json::check_text;
use holdpoint_core::run::{Reason, RunStatus};
use holdpoint_core::step::{Observation, ObservationKind, Step, StepStatus};
use holdpoint_core::time::UnixNanos;
use serde::Deserialize;

use super::answer::{REASON_BYTES_MAX, clean, duration, error_text, quoted};
use crate::view::fields::one_line;

/// What a model is told that the tool does.
pub(super) const DESCRIPTION: &str = "Tells which requests of this session wait for an operator's approval or, when it is \
    given an approval_id, what became of that one: pending, approved, executed, rejected or expired. It only reports; \
    it never runs and never approves anything.";

/// The schema of its arguments.
pub(super) const INPUT_SCHEMA: &str = r#"{"type":"object","properties":{"approval_id":{"type":"string","description":"The approval id that an earlier answer named."}},"additionalProperties":false}"#;

/// Why other arguments are refused.
pub(super) const ARGUMENTS: &str = "the only argument is approval_id, a string";

/// How far back an approval is looked for.
pub(super) const LOOK_BACK: Duration = Duration::from_secs(60 * 60);
/// How many calls one report reads.
pub(super) const CALLS_MAX: u32 = 200;

const TOOL_BYTES_MAX: usize = 64;
const ARGS_BYTES_MAX: usize = 200;
const ID_BYTES_MAX: usize = 100;

/// The approval that is asked about, if one is; an error for arguments that are not the tool's.
pub(super) fn asked_about(arguments: Option<&[u8]>) -> Result<Option<String>, ()> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Arguments {
        approval_id: Option<String>,
    }
    let text = check_text(arguments.unwrap_or(b"{}")).map_err(drop)?;
    let text = if text.trim() == "null" { "{}" } else { text };
    // A struct can be read from an array too.
    if !text.trim_start().starts_with('{') {
        return Err(());
    }
    let read: Arguments = serde_json::from_str(text).map_err(drop)?;
    Ok(read.approval_id.map(|id| id.trim().to_owned()).filter(|id| !id.is_empty()))
}

/// What the report is made of.
#[derive(Debug)]
pub(super) struct Session<'a> {
    /// The session's calls of the last hour and those that are open, newest first.
    pub(super) calls: &'a [RecentCall],
    /// The tools that are offered.
    pub(super) tools: &'a Upstreams,
    /// The moment of the report.
    pub(super) now: UnixNanos,
}

impl Session<'_> {
    /// Says what waits.
    pub(super) fn overview(&self) -> String {
        let waiting: Vec<String> = self
            .approvals()
            .filter(|(call, approval)| self.waits(call, approval))
            .map(|(call, approval)| format!("\n- {}", self.describe(call, approval)))
            .collect();
        match waiting.len() {
            0 => "no request of this session waits for an operator's approval.".to_owned(),
            1 => format!("1 request of this session waits for an operator's approval.{}", waiting[0]),
            n => format!("{n} requests of this session wait for an operator's approval.{}", waiting.concat()),
        }
    }

    /// Says what became of one approval.
    pub(super) fn about(&self, id: &str) -> String {
        match self.approvals().find(|(_, approval)| approval.id.as_str() == id) {
            Some((call, approval)) => self.describe(call, approval),
            None => {
                format!("no approval {} of the last hour is known in this session.", clean(id, ID_BYTES_MAX))
            }
        }
    }

    fn approvals(&self) -> impl Iterator<Item = (&RecentCall, &Approval)> {
        self.calls.iter().flat_map(|call| call.approvals.iter().map(move |approval| (call, approval)))
    }

    /// Whether an operator can still decide it: one whose run was cancelled stays undecided for ever.
    fn waits(&self, call: &RecentCall, approval: &Approval) -> bool {
        approval.is_open(self.now) && !call.run.status.is_terminal()
    }

    fn describe(&self, call: &RecentCall, approval: &Approval) -> String {
        let args = approval.request.as_ref().map_or(String::new(), |request| one_line(&request.args));
        let tool = clean(&call.tool, TOOL_BYTES_MAX);
        let what = format!("approval {} for {tool} {}", approval.id, clean(&args, ARGS_BYTES_MAX));
        format!("{what}: {}", self.fate(call, approval, &tool))
    }

    fn fate(&self, call: &RecentCall, approval: &Approval, tool: &str) -> String {
        let is_open = approval.is_open(self.now);
        // What a person is asked about as an interruption may have been executed before.
        let again = if approval.is_interruption() { " again" } else { "" };
        match approval.status {
            ApprovalStatus::Pending if is_open && call.run.status.is_terminal() => {
                let further = if approval.is_interruption() { "Nothing further" } else { "Nothing" };
                format!(
                    "CLOSED without a decision: {}. {further} has been executed; don't ask for it again.",
                    not_executed(None, call.run.reason)
                )
            }
            ApprovalStatus::Pending if is_open && approval.is_interruption() => format!(
                "OUTCOME UNKNOWN. For {} it has waited for an operator to decide whether it runs once more; an earlier \
                 attempt may have taken effect. Nothing further has been executed.",
                self.age(approval)
            ),
            ApprovalStatus::Pending if is_open => format!(
                "PENDING for {}. Nothing has been executed; an operator decides elsewhere. Don't call the tool again \
                 before it is approved.",
                self.age(approval)
            ),
            ApprovalStatus::Pending => {
                format!("EXPIRED, nobody decided in time. It was not executed{again}.")
            }
            ApprovalStatus::Expired => format!("EXPIRED. It was not executed{again}."),
            ApprovalStatus::Rejected => {
                let note = if approval.note.trim().is_empty() {
                    String::new()
                } else {
                    format!(" The operator noted: {}.", quoted(&approval.note, REASON_BYTES_MAX))
                };
                format!("REJECTED by an operator.{note} It was not executed{again}; don't ask for it again.")
            }
            ApprovalStatus::Approved => self.approved(call, approval, tool),
        }
    }

    fn approved(&self, call: &RecentCall, approval: &Approval, tool: &str) -> String {
        let step = call.steps.iter().find(|step| step.id == approval.step_id);
        if let Some(ran) = step.and_then(|step| self.ran(call, approval, step)) {
            return format!("APPROVED and executed, {ran}");
        }
        let latest = call.approvals.last().filter(|latest| latest.id != approval.id);
        match (latest, call.run.status) {
            (Some(latest), _) => {
                format!(
                    "APPROVED, but then another approval was asked for the same call (approval {}).",
                    latest.id
                )
            }
            (None, RunStatus::WaitingForApproval) => format!(
                "APPROVED, awaiting collection. Call {tool} again with exactly the same arguments; that runs it and \
                 gives you the result."
            ),
            (None, RunStatus::Running | RunStatus::Interrupted) => "APPROVED and executing now.".to_owned(),
            (None, RunStatus::Completed | RunStatus::Failed | RunStatus::Cancelled) => {
                let observed = step.and_then(|step| step.observation.as_ref());
                format!("APPROVED but not executed: {}.", not_executed(observed, call.run.reason))
            }
        }
    }

    /// What came of an approved step; `None` when it did not execute.
    fn ran(&self, call: &RecentCall, approval: &Approval, step: &Step) -> Option<String> {
        let ended = if step.cut_off_while() == Some(StepStatus::Executing) {
            Ended::CutOff
        } else {
            let observation = step.observation.as_ref()?;
            let ending = ending_of(call, &step.id);
            match came_to(observation, ending, self.tools.get(&call.tool)) {
                CameTo::Nothing => return None,
                CameTo::Known if observation.kind == ObservationKind::ToolResult => {
                    return Some("and it succeeded.".to_owned());
                }
                CameTo::Known => return Some(known_failure(observation, ending)),
                CameTo::Unknown(ended) => ended,
            }
        };
        let next = self
            .approvals()
            .find(|(other, asked)| {
                other.key == call.key
                    && asked.id != approval.id
                    && asked.is_interruption()
                    && self.waits(other, asked)
            })
            .map_or_else(
                || "No approval waits that would run it once more.".to_owned(),
                |(_, asked)| {
                    format!(
                        "Approval {} waits now for an operator to decide whether it runs once more.",
                        asked.id
                    )
                },
            );
        Some(format!(
            "but it {}, so nobody can say whether it took effect: it may have. {next}",
            ended.clause()
        ))
    }

    /// Rounded to whole seconds; a half is rounded away from zero.
    fn age(&self, approval: &Approval) -> String {
        let millis = self.now.millis_since(approval.created_at).max(0);
        let seconds = u64::try_from(millis.saturating_add(500) / 1000).unwrap_or(0);
        duration(Duration::from_secs(seconds))
    }
}

fn known_failure(observation: &Observation, ending: Option<Ending>) -> String {
    let error = clean(&error_text(observation), REASON_BYTES_MAX);
    let unrecordable = match ending {
        Some(ending) => ending == Ending::Unrecordable,
        None => observation.field("failure").as_deref() == Some("invalid_content"),
    };
    if unrecordable {
        format!(
            "and the server answered, but the answer could not be recorded ({error}); it may have taken effect."
        )
    } else {
        format!("and the server reported a failure: {error}.")
    }
}

fn not_executed(observation: Option<&Observation>, reason: Option<Reason>) -> String {
    match observation.map(|observation| observation.kind) {
        Some(ObservationKind::PolicyDenied) => {
            return "the policy denied it when it was collected".to_owned();
        }
        Some(ObservationKind::InvalidDecision) => {
            return "its arguments no longer fitted the tool's schema when it was collected".to_owned();
        }
        Some(ObservationKind::ToolError) => return "the server could not be given the call".to_owned(),
        Some(ObservationKind::ToolResult | ObservationKind::Interrupted) | None => {}
    }
    match reason {
        Some(Reason::OperatorCancelled) => "an operator cancelled it".to_owned(),
        Some(Reason::ApprovalExpired) => "the approval ran out before it was collected".to_owned(),
        Some(other) => format!("its run ended ({other})"),
        None => "its run ended".to_owned(),
    }
}

fn ending_of(call: &RecentCall, step: &StepId) -> Option<Ending> {
    call.endings.iter().find(|(id, _)| id == step).map(|(_, ending)| *ending)
}

#[cfg(test)]
mod tests;
