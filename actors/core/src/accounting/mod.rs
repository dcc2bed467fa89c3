//! The books of a run's model attempts: what one is projected to cost, whether it may be sent, what it is charged.
//!
//! Owns the limits on calls, tokens and cost, the outcome table of an attempt, and the wait before another one. Never
//! sends anything and never reads a clock: the session's accounting caller does.

mod limits;
mod outcome;
mod retry;
#[cfg(test)]
mod tests;

use crate::ids::{ModelCallId, RunId, StepId};
use crate::model::{ModelRequest, Usage};
use crate::time::UnixNanos;

pub use limits::{Ask, Refused, Reserved, check};
pub use outcome::{Ended, Verdict, judge};
pub use retry::{RetryRules, Room, retry_wait};

/// How an attempt stands in the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallStatus {
    /// It may have been sent, and nothing is known of an answer.
    Dispatched,
    /// It was answered, and what the provider reported is charged.
    Ok,
    /// It failed, and what came of it is known.
    Error,
    /// It was sent and no answer came, so the provider may have billed it: an estimate is charged.
    Ambiguous,
}

impl CallStatus {
    /// Every status.
    pub const ALL: [CallStatus; 4] =
        [CallStatus::Dispatched, CallStatus::Ok, CallStatus::Error, CallStatus::Ambiguous];

    /// The stored name.
    pub const fn as_str(self) -> &'static str {
        match self {
            CallStatus::Dispatched => "dispatched",
            CallStatus::Ok => "ok",
            CallStatus::Error => "error",
            CallStatus::Ambiguous => "ambiguous",
        }
    }

    /// Reads a stored name.
    pub fn parse(text: &str) -> Option<CallStatus> {
        CallStatus::ALL.into_iter().find(|status| status.as_str() == text)
    }
}

/// One attempt, as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelCall {
    /// Its id.
    pub id: ModelCallId,
    /// The run whose totals it counts in.
    pub run_id: RunId,
    /// The step that asked.
    pub step_id: StepId,
    /// Which attempt of one request it is, from 1.
    pub attempt: i64,
    /// How it stands.
    pub status: CallStatus,
    /// The name under which the model is accounted for.
    pub model: String,
    /// What is charged, in tokens.
    pub usage: Usage,
    /// What is charged, in millionths of a dollar.
    pub cost_micros: i64,
    /// From dispatch to outcome, in milliseconds.
    pub latency_ms: i64,
    /// What went wrong; empty when nothing did.
    pub error: String,
    /// When it was about to be sent.
    pub dispatched_at: UnixNanos,
    /// When its outcome was known.
    pub completed_at: Option<UnixNanos>,
}

impl ModelCall {
    /// The same attempt with its outcome.
    #[must_use]
    pub fn ended(mut self, verdict: &Verdict, at: UnixNanos) -> ModelCall {
        self.status = verdict.status;
        self.usage = verdict.charge.usage;
        self.cost_micros = verdict.charge.cost_micros;
        self.error.clone_from(&verdict.error);
        self.latency_ms = at.millis_since(self.dispatched_at);
        self.completed_at = Some(at);
        self
    }
}

/// What an attempt is taken to cost before its answer says so, or instead of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Charge {
    /// Tokens.
    pub usage: Usage,
    /// Millionths of a dollar.
    pub cost_micros: i64,
}

/// Estimates the tokens that reading `request` takes: one for every three bytes of its JSON form, and one more.
pub fn estimate_input_tokens(request: &ModelRequest) -> i64 {
    i64::try_from(request.to_json().len() / 3).unwrap_or(i64::MAX).saturating_add(1)
}

/// Projects the usage of `request`: its estimated input, and its output cap as the output.
pub fn project(request: &ModelRequest) -> Usage {
    Usage {
        input_tokens: estimate_input_tokens(request),
        output_tokens: request.max_output_tokens.max(0),
        cached_input_tokens: 0,
    }
}
