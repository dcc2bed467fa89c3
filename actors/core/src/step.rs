//! Steps: one decision and what it caused.
//!
//! Owns the status machine of a step, the observation, and their stored forms.

use std::fmt;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::decision::Decision;
use crate::hash;
use crate::ids::{PolicyId, RunId, SpecHash, StepId};
use crate::json::{Json, ObjectWriter};
use crate::policy::PolicyDecision;
use crate::time::UnixNanos;

/// Where a step stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StepStatus {
    /// Started; nothing has run.
    Deciding,
    /// It waits for a person.
    AwaitingApproval,
    /// Its tool may have had its effect.
    Executing,
    /// Over, well.
    Done,
    /// Over, with a failure.
    Failed,
    /// Found cut off.
    Interrupted,
}

impl StepStatus {
    /// Every status.
    pub const ALL: [StepStatus; 6] = [
        StepStatus::Deciding,
        StepStatus::AwaitingApproval,
        StepStatus::Executing,
        StepStatus::Done,
        StepStatus::Failed,
        StepStatus::Interrupted,
    ];

    /// The stored name.
    pub const fn as_str(self) -> &'static str {
        match self {
            StepStatus::Deciding => "deciding",
            StepStatus::AwaitingApproval => "awaiting_approval",
            StepStatus::Executing => "executing",
            StepStatus::Done => "done",
            StepStatus::Failed => "failed",
            StepStatus::Interrupted => "interrupted",
        }
    }

    /// Reads a stored name.
    pub fn parse(text: &str) -> Option<StepStatus> {
        StepStatus::ALL.into_iter().find(|status| status.as_str() == text)
    }

    /// Whether nothing more can happen to it.
    pub const fn is_final(self) -> bool {
        matches!(self, StepStatus::Done | StepStatus::Failed)
    }

    /// The status after `event`, or an error when the pair is illegal.
    pub const fn after(self, event: StepEvent) -> Result<StepStatus, IllegalStepMove> {
        use StepEvent as E;
        use StepStatus as S;
        match (self, event) {
            (S::Deciding | S::AwaitingApproval, E::ToolStarted) => Ok(S::Executing),
            (S::Deciding | S::AwaitingApproval | S::Interrupted, E::Paused) => Ok(S::AwaitingApproval),
            (S::Deciding | S::Executing, E::Succeeded) => Ok(S::Done),
            (S::Deciding | S::AwaitingApproval | S::Executing | S::Interrupted, E::Failed) => Ok(S::Failed),
            (S::Deciding | S::Executing, E::CutOff) => Ok(S::Interrupted),
            (S::Executing | S::Interrupted | S::Done | S::Failed, E::ToolStarted)
            | (S::Executing | S::Done | S::Failed, E::Paused)
            | (S::AwaitingApproval | S::Interrupted | S::Done | S::Failed, E::Succeeded)
            | (S::Done | S::Failed, E::Failed)
            | (S::AwaitingApproval | S::Interrupted | S::Done | S::Failed, E::CutOff) => {
                Err(IllegalStepMove { from: self, event })
            }
        }
    }
}

impl fmt::Display for StepStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What may happen to a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepEvent {
    /// Its tool is about to be called.
    ToolStarted,
    /// It waits for an approval.
    Paused,
    /// It is over, well.
    Succeeded,
    /// It is over, with a failure.
    Failed,
    /// It was found in flight with nobody holding its run.
    CutOff,
}

/// A move that the machine does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("move a {from} step by {event:?}: no such transition")]
pub struct IllegalStepMove {
    /// Where the step stood.
    pub from: StepStatus,
    /// What was to happen.
    pub event: StepEvent,
}

/// What came of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ObservationKind {
    /// The tool answered.
    ToolResult,
    /// The tool failed, or nothing can be learnt of it.
    ToolError,
    /// The policy refused.
    PolicyDenied,
    /// The decision could not be acted on.
    InvalidDecision,
    /// It was cut off.
    Interrupted,
}

impl ObservationKind {
    /// The stored name.
    pub const fn as_str(self) -> &'static str {
        match self {
            ObservationKind::ToolResult => "tool_result",
            ObservationKind::ToolError => "tool_error",
            ObservationKind::PolicyDenied => "policy_denied",
            ObservationKind::InvalidDecision => "invalid_decision",
            ObservationKind::Interrupted => "interrupted",
        }
    }

    fn parse(text: &str) -> Option<ObservationKind> {
        use ObservationKind as K;
        [K::ToolResult, K::ToolError, K::PolicyDenied, K::InvalidDecision, K::Interrupted]
            .into_iter()
            .find(|kind| kind.as_str() == text)
    }
}

/// What a step produced for whoever decides next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observation {
    /// Its kind.
    pub kind: ObservationKind,
    /// What it says.
    pub content: Json,
    /// One line about it.
    pub summary: String,
    /// Hex SHA-256 of the canonical content.
    pub content_hash: String,
}

impl Observation {
    /// An observation with `content`, which has been checked or is ours.
    pub fn new(kind: ObservationKind, content: Json, summary: impl Into<String>) -> Observation {
        let content_hash = hash::content_hash_of(content.as_str());
        Observation { kind, content, summary: summary.into(), content_hash }
    }

    /// An observation of the runtime's own: an object of string fields, keys sorted.
    pub fn of_fields(
        kind: ObservationKind,
        fields: &[(&str, &str)],
        summary: impl Into<String>,
    ) -> Observation {
        let mut fields = fields.to_vec();
        fields.sort_unstable();
        let mut w = ObjectWriter::new();
        for (name, value) in fields {
            w.str(name, value);
        }
        Observation::new(kind, Json::trusted(w.finish()), summary)
    }

    /// The observation as reading it back from the store gives it.
    #[must_use]
    pub fn stored(self) -> Observation {
        let content = if self.content.is_blank() { Json::trusted("null") } else { self.content.stored() };
        Observation { content, ..self }
    }

    /// Whether it counts towards the limit of failures in a row.
    pub fn is_failure(&self) -> bool {
        self.kind != ObservationKind::ToolResult
    }

    /// A string field of the content, when it is an object that has it.
    pub fn field(&self, name: &str) -> Option<String> {
        let value: serde_json::Value = serde_json::from_str(self.content.as_str()).ok()?;
        value.get(name)?.as_str().map(str::to_owned)
    }

    /// The stored form.
    pub fn to_json(&self) -> String {
        let mut w = ObjectWriter::new();
        self.write(&mut w);
        w.finish()
    }

    pub(crate) fn write(&self, w: &mut ObjectWriter) {
        w.str("kind", self.kind.as_str());
        w.raw("content", self.content.as_str());
        w.omit_empty_str("summary", &self.summary);
        w.omit_empty_str("content_hash", &self.content_hash);
    }

    /// Reads a stored observation.
    pub fn parse(text: &str) -> Result<Observation, String> {
        #[derive(Deserialize)]
        struct Text<'a> {
            kind: String,
            #[serde(borrow, default)]
            content: Option<&'a RawValue>,
            #[serde(default)]
            summary: String,
            #[serde(default)]
            content_hash: String,
        }
        let raw: Text<'_> = serde_json::from_str(text).map_err(|e| e.to_string())?;
        let kind = ObservationKind::parse(&raw.kind)
            .ok_or_else(|| format!("unknown observation kind {:?}", raw.kind))?;
        let content = raw.content.map_or_else(|| Json::trusted("null"), |raw| Json::trusted(raw.get()));
        Ok(Observation { kind, content, summary: raw.summary, content_hash: raw.content_hash })
    }
}

/// A step as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Its id.
    pub id: StepId,
    /// Its run.
    pub run_id: RunId,
    /// Its position in the run, from zero.
    pub index: i64,
    /// Where it stands.
    pub status: StepStatus,
    /// What was asked for.
    pub decision: Option<Decision>,
    /// What the policy said.
    pub policy: Option<PolicyDecision>,
    /// What came of it.
    pub observation: Option<Observation>,
    /// When it began; begun again when a grant is executed.
    pub started_at: UnixNanos,
    /// When it ended.
    pub finished_at: Option<UnixNanos>,
    /// The spec of the tool that it named, when that was registered.
    pub spec_hash: Option<SpecHash>,
    /// The policy that was asked, when it has an identity.
    pub policy_id: Option<PolicyId>,
    /// Why a stored column could not be read. Such a step is never continued from.
    pub decode_error: Option<String>,
}

impl Step {
    /// A step that begins now.
    pub fn begun(id: StepId, run_id: RunId, index: i64, now: UnixNanos) -> Step {
        Step {
            id,
            run_id,
            index,
            status: StepStatus::Deciding,
            decision: None,
            policy: None,
            observation: None,
            started_at: now,
            finished_at: None,
            spec_hash: None,
            policy_id: None,
            decode_error: None,
        }
    }

    /// The tool that it calls, if it calls one.
    pub fn tool(&self) -> Option<&str> {
        self.decision.as_ref().filter(|d| d.is_tool_call()).map(|d| d.tool.as_str())
    }

    /// The status that the step had when it was found cut off.
    pub fn cut_off_while(&self) -> Option<StepStatus> {
        let observation = self.observation.as_ref()?;
        if self.status != StepStatus::Interrupted || observation.kind != ObservationKind::Interrupted {
            return None;
        }
        observation.field("previous_status").and_then(|text| StepStatus::parse(&text))
    }
}

#[cfg(test)]
mod tests;
