//! Policy: what it is asked, what it may answer, and the default answers.
//!
//! Owns the decision and its stored form. Never evaluates anybody's policy: that happens in an actor, under a
//! deadline, where a panic is a refusal.

use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::approval::Approval;
use crate::json::{self, CheckError, Json, ObjectWriter};
use crate::run::Run;
use crate::step::Step;
use crate::tool::{SideEffect, ToolRequest};

/// What a policy may answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Run it.
    Allow,
    /// Hold it for a person.
    RequireApproval,
    /// Refuse it; the caller sees a failure and goes on.
    Deny,
    /// Refuse it and end the run.
    Abort,
}

impl Outcome {
    /// The name in records and configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Outcome::Allow => "allow",
            Outcome::RequireApproval => "require_approval",
            Outcome::Deny => "deny",
            Outcome::Abort => "abort",
        }
    }

    /// Reads an outcome by its name; anything else is `None`.
    pub fn parse(text: &str) -> Option<Outcome> {
        [Outcome::Allow, Outcome::RequireApproval, Outcome::Deny, Outcome::Abort]
            .into_iter()
            .find(|outcome| outcome.as_str() == text)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A policy's answer to one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyDecision {
    /// What to do.
    pub outcome: Outcome,
    /// Why, for the record and the caller.
    pub reason: String,
    /// What kind of approval is asked for. Only for [`Outcome::RequireApproval`].
    pub kind: String,
    /// What is granted. Only for [`Outcome::RequireApproval`]; absent is `{}`.
    pub capability: Option<Json>,
    /// What the person is shown. Only for [`Outcome::RequireApproval`]; absent is `{}`.
    pub presentation: Option<Json>,
}

impl PolicyDecision {
    fn plain(outcome: Outcome, reason: impl Into<String>) -> PolicyDecision {
        PolicyDecision {
            outcome,
            reason: reason.into(),
            kind: String::new(),
            capability: None,
            presentation: None,
        }
    }

    /// Lets the request run.
    pub fn allow(reason: impl Into<String>) -> PolicyDecision {
        PolicyDecision::plain(Outcome::Allow, reason)
    }

    /// Refuses the request.
    pub fn deny(reason: impl Into<String>) -> PolicyDecision {
        PolicyDecision::plain(Outcome::Deny, reason)
    }

    /// Refuses the request and ends the run.
    pub fn abort(reason: impl Into<String>) -> PolicyDecision {
        PolicyDecision::plain(Outcome::Abort, reason)
    }

    /// Asks for a person's approval of `kind`, granting `capability` and showing `presentation`.
    pub fn need_approval(
        kind: impl Into<String>,
        reason: impl Into<String>,
        capability: Json,
        presentation: Json,
    ) -> PolicyDecision {
        PolicyDecision {
            outcome: Outcome::RequireApproval,
            reason: reason.into(),
            kind: kind.into(),
            capability: Some(capability),
            presentation: Some(presentation),
        }
    }

    /// Refuses a capability or presentation that could be neither stored nor hashed faithfully.
    pub fn check(&self) -> Result<(), UnusableDecision> {
        let usable = |field: &'static str, text: &Option<Json>| match text {
            Some(text) if !text.is_blank() => {
                json::check(text.as_str().as_bytes()).map_err(|reason| UnusableDecision { field, reason })
            }
            Some(_) | None => Ok(()),
        };
        usable("capability", &self.capability)?;
        usable("presentation", &self.presentation)
    }

    /// The decision without the parts that [`PolicyDecision::check`] refused, for the record.
    pub fn without_json(&self) -> PolicyDecision {
        PolicyDecision { capability: None, presentation: None, ..self.clone() }
    }

    /// The decision as reading it back from the store gives it.
    #[must_use]
    pub fn stored(self) -> PolicyDecision {
        let stored = |json: Option<Json>| json.filter(|json| !json.is_blank()).map(|json| json.stored());
        PolicyDecision {
            capability: stored(self.capability),
            presentation: stored(self.presentation),
            ..self
        }
    }

    /// The stored form.
    pub fn to_json(&self) -> String {
        let mut w = ObjectWriter::new();
        self.write(&mut w);
        w.finish()
    }

    pub(crate) fn write(&self, w: &mut ObjectWriter) {
        w.str("outcome", self.outcome.as_str());
        w.omit_empty_str("reason", &self.reason);
        w.omit_empty_str("kind", &self.kind);
        w.omit_empty_raw("capability", self.capability.as_ref().map_or("", Json::as_str));
        w.omit_empty_raw("presentation", self.presentation.as_ref().map_or("", Json::as_str));
    }

    /// Reads a stored decision.
    pub fn parse(text: &str) -> Result<PolicyDecision, String> {
        #[derive(Deserialize)]
        struct Text<'a> {
            outcome: String,
            #[serde(default)]
            reason: String,
            #[serde(default)]
            kind: String,
            #[serde(borrow, default)]
            capability: Option<&'a RawValue>,
            #[serde(borrow, default)]
            presentation: Option<&'a RawValue>,
        }
        let raw: Text<'_> = serde_json::from_str(text).map_err(|e| e.to_string())?;
        let outcome =
            Outcome::parse(&raw.outcome).ok_or_else(|| format!("unknown outcome {:?}", raw.outcome))?;
        Ok(PolicyDecision {
            outcome,
            reason: raw.reason,
            kind: raw.kind,
            capability: raw.capability.map(|raw| Json::trusted(raw.get())),
            presentation: raw.presentation.map(|raw| Json::trusted(raw.get())),
        })
    }
}

/// A decision whose JSON cannot be recorded.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
#[error("{field} is not usable JSON: {reason}")]
pub struct UnusableDecision {
    /// `capability` or `presentation`.
    pub field: &'static str,
    /// Why.
    pub reason: CheckError,
}

/// What a policy may look at besides the request: the run as the step started, its earlier steps, all approvals.
#[derive(Debug, Clone)]
pub struct PolicyView {
    /// The run as the step started.
    pub run: Run,
    /// The steps before this one.
    pub steps: Vec<Arc<Step>>,
    /// Every approval of the run, in insertion order.
    pub approvals: Vec<Arc<Approval>>,
}

impl PolicyView {
    /// What of the view the record keeps beside the policy's answer.
    pub fn seen(&self) -> SeenView {
        SeenView { run: self.run.clone(), steps: self.steps.len(), approvals: self.approvals.len() }
    }
}

/// The part of a [`PolicyView`] that `step.policy` records, so that a decision can be checked again later.
#[derive(Debug, Clone)]
pub struct SeenView {
    run: Run,
    steps: usize,
    approvals: usize,
}

impl SeenView {
    pub(crate) fn write(&self, w: &mut ObjectWriter) {
        let run = &self.run;
        w.str("status", run.status.as_str());
        w.int("step_count", run.step_count);
        w.int("model_calls", run.totals.model_calls);
        w.int("input_tokens", run.totals.input_tokens);
        w.int("output_tokens", run.totals.output_tokens);
        w.int("cached_input_tokens", run.totals.cached_input_tokens);
        w.int("estimated_cost_micros", run.totals.estimated_cost_micros);
        w.int("active_ms", run.active_ms);
        w.int("steps", len(self.steps));
        w.int("approvals", len(self.approvals));
    }
}

fn len(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// The longest policy identity, in bytes.
pub const POLICY_ID_BYTES_MAX: usize = 256;

/// Refuses an identity that could not stand on one line of a report.
pub fn check_policy_id(id: &str) -> Result<(), String> {
    if id.len() > POLICY_ID_BYTES_MAX {
        return Err(format!(
            "policy identity is {} bytes; at most {POLICY_ID_BYTES_MAX} are allowed",
            id.len()
        ));
    }
    if id.chars().any(char::is_control) {
        return Err("policy identity holds a control character; name it with printable text".to_owned());
    }
    Ok(())
}

/// The outcome that the default policy gives a class: reads and local changes run, remote ones wait, the rest is refused.
pub const fn default_outcome(class: SideEffect) -> Outcome {
    match class {
        SideEffect::ReadOnly | SideEffect::LocalMutation => Outcome::Allow,
        SideEffect::RemoteMutation => Outcome::RequireApproval,
        SideEffect::Destructive => Outcome::Deny,
    }
}

/// The default policy's decision: kind is the class, capability and presentation are the tool and its arguments.
pub fn default_decision(request: &ToolRequest) -> PolicyDecision {
    let class = request.spec.side_effect;
    let outcome = default_outcome(class);
    let reason = format!("side effect {class} is {outcome} by policy");
    match outcome {
        Outcome::RequireApproval => {
            let mut w = ObjectWriter::sorted();
            w.str("tool", &request.spec.name);
            w.raw("args", request.args.as_str());
            let shown = Json::trusted(w.finish());
            PolicyDecision::need_approval(class.as_str(), reason, shown.clone(), shown)
        }
        Outcome::Allow | Outcome::Deny | Outcome::Abort => PolicyDecision::plain(outcome, reason),
    }
}

#[cfg(test)]
mod tests;
