//! What re-checking came to: one line for each evaluation, the counts, and the form in JSON.
//!
//! The names in JSON are the reference's. Never counts anything but what stands in the report.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::ids::{ApprovalHash, RunId};
use crate::json::Json;
use crate::policy::{Outcome, PolicyDecision};

macro_rules! names {
    ($(#[$doc:meta])* $type:ident { $($(#[$each:meta])* $name:ident => $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $type { $($(#[$each])* $name,)+ }

        impl $type {
            /// The name in reports.
            pub const fn as_str(self) -> &'static str {
                match self { $($type::$name => $text,)+ }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }
    };
}

names! {
    /// Which spec a request carried that was put to the policy again.
    SpecSource {
        /// The one that was recorded with the evaluation.
        Recorded => "recorded",
        /// The one that its tool has now.
        Current => "current",
    }
}

names! {
    /// What one evaluation came to.
    Finding {
        /// The policy answers as it is recorded: the same outcome and, where a person is asked, the same approval.
        Same => "same",
        /// It answers otherwise, or fails to.
        Different => "different",
        /// No policy made it: a call that was cut off was put to a person.
        NotAnEvaluation => "not_a_policy_evaluation",
        /// The record does not hold enough to ask again.
        NotRecheckable => "not_recheckable",
    }
}

names! {
    /// How the policy that is asked now compares with the one that was asked then, by their identities.
    Identity {
        /// One of them has none, so the record can't tell.
        Unknown => "unknown",
        /// Both have one, and they differ.
        Changed => "changed",
        /// Every evaluation that was re-checked recorded the identity that the policy has now.
        Unchanged => "unchanged",
    }
}

/// What a policy answered: then, as it is recorded, or now.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Answer {
    /// The outcome's name as it is recorded, which another program may have coined. Empty when none is recorded.
    pub outcome: String,
    /// Why. Never compared.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// What kind of approval is asked for.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// What would be granted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capability: Option<Json>,
    /// What a person would be shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub presentation: Option<Json>,
}

impl Answer {
    /// The answer that a policy gave.
    pub fn of(decision: &PolicyDecision) -> Answer {
        let given = |json: &Option<Json>| json.clone().filter(|json| !json.is_blank());
        Answer {
            outcome: decision.outcome.as_str().to_owned(),
            reason: decision.reason.clone(),
            kind: decision.kind.clone(),
            capability: given(&decision.capability),
            presentation: given(&decision.presentation),
        }
    }

    /// The outcome, when it is one that this program knows.
    pub fn known_outcome(&self) -> Option<Outcome> {
        Outcome::parse(&self.outcome)
    }

    /// Whether a person is asked.
    pub fn asks(&self) -> bool {
        self.known_outcome() == Some(Outcome::RequireApproval)
    }
}

/// One recorded answer of the policy, and what asking again came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Evaluation {
    /// The step's position; none when the step is not in the record (in JSON then -1).
    #[serde(serialize_with = "or_minus_one")]
    pub step_index: Option<i64>,
    /// The step.
    pub step_id: String,
    /// The number of the event that recorded it.
    pub seq: i64,
    /// The tool that the step's decision names.
    pub tool: String,
    /// Whether it was made as an approved call was collected. Such a call has another, made as it was proposed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub on_resume: bool,
    /// What it came to.
    pub result: Finding,
    /// What is recorded.
    pub recorded: Answer,
    /// What the policy answers now; none when it was not asked or failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rechecked: Option<Answer>,
    /// The hash of the approval that the recorded answer asks for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded_hash: Option<ApprovalHash>,
    /// The hash of the approval that today's answer asks for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rechecked_hash: Option<ApprovalHash>,
    /// What differs, or why it was not re-checked.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// The spec that the request carried; none when the policy was not asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spec_source: Option<SpecSource>,
    /// The identity that was recorded; empty for none.
    pub policy_id: String,
}

impl Evaluation {
    /// Whether the policy was asked again.
    pub fn was_rechecked(&self) -> bool {
        matches!(self.result, Finding::Same | Finding::Different)
    }
}

fn or_minus_one<S: Serializer>(index: &Option<i64>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_i64(index.unwrap_or(-1))
}

/// What re-checking one run came to.
///
/// A run is the same when nothing in it differs, and so is one in which nothing could be re-checked: to take a report
/// for a proof, ask [`Report::proves_same`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The run.
    pub run_id: RunId,
    /// Where it stands, as it is stored.
    pub run_status: String,
    /// The identity of the policy that was asked now; empty for none.
    pub policy_id: String,
    /// How that compares with what was recorded.
    pub identity: Identity,
    /// Which specs the requests carried.
    pub spec_source: SpecSource,
    /// What holds for the whole run.
    pub notes: Vec<String>,
    /// The evaluations, in the order in which they were recorded.
    pub evaluations: Vec<Evaluation>,
}

impl Report {
    /// Whether nothing differs. True too when nothing was re-checked.
    pub fn same(&self) -> bool {
        self.differences() == 0
    }

    /// How many evaluations differ.
    pub fn differences(&self) -> usize {
        self.count(Finding::Different)
    }

    /// How many evaluations were re-checked.
    pub fn rechecked(&self) -> usize {
        self.evaluations.iter().filter(|evaluation| evaluation.was_rechecked()).count()
    }

    /// How many evaluations the record could not rebuild.
    pub fn not_recheckable(&self) -> usize {
        self.count(Finding::NotRecheckable)
    }

    /// Whether every evaluation was re-checked. True too for a run without any.
    pub fn complete(&self) -> bool {
        self.not_recheckable() == 0
    }

    /// Whether the report shows that the policy decides as it did: something was re-checked, nothing was left out, and
    /// nothing differs.
    pub fn proves_same(&self) -> bool {
        self.same() && self.complete() && self.rechecked() > 0
    }

    /// The evaluations that differ.
    pub fn different(&self) -> impl Iterator<Item = &Evaluation> {
        self.evaluations.iter().filter(|evaluation| evaluation.result == Finding::Different)
    }

    fn count(&self, finding: Finding) -> usize {
        self.evaluations.iter().filter(|evaluation| evaluation.result == finding).count()
    }
}

/// With the counts beside the fields, so that a reader of the JSON need not count.
impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Text<'a> {
            run_id: &'a RunId,
            run_status: &'a str,
            policy_id: &'a str,
            identity: Identity,
            spec_source: SpecSource,
            #[serde(skip_serializing_if = "<[String]>::is_empty")]
            notes: &'a [String],
            evaluations: &'a [Evaluation],
            same: bool,
            differences: usize,
            rechecked: usize,
            not_recheckable: usize,
            complete: bool,
        }
        let text = Text {
            run_id: &self.run_id,
            run_status: &self.run_status,
            policy_id: &self.policy_id,
            identity: self.identity,
            spec_source: self.spec_source,
            notes: &self.notes,
            evaluations: &self.evaluations,
            same: self.same(),
            differences: self.differences(),
            rechecked: self.rechecked(),
            not_recheckable: self.not_recheckable(),
            complete: self.complete(),
        };
        text.serialize(serializer)
    }
}
