//! Runs: one governed piece of work, its limits, its lease, and the moves that are legal.
//!
//! Owns the status machine of a run and its stored form. Never decides when to move: the ledger does.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;

use crate::ids::{LeaseOwner, RunId};
use crate::json::{Json, ObjectWriter};
use crate::time::UnixNanos;
use crate::tool::nanos;

/// Where a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RunStatus {
    /// A session holds it, or held it when it was cut off.
    Running,
    /// It waits for a person; nobody holds it.
    WaitingForApproval,
    /// Accepted when read; never written.
    Interrupted,
    /// It reached its goal.
    Completed,
    /// It ended without reaching its goal.
    Failed,
    /// A person or an expiry ended it.
    Cancelled,
}

impl RunStatus {
    /// Every status.
    pub const ALL: [RunStatus; 6] = [
        RunStatus::Running,
        RunStatus::WaitingForApproval,
        RunStatus::Interrupted,
        RunStatus::Completed,
        RunStatus::Failed,
        RunStatus::Cancelled,
    ];
    /// The statuses from which a run can still move.
    pub const NOT_TERMINAL: [RunStatus; 3] =
        [RunStatus::Running, RunStatus::WaitingForApproval, RunStatus::Interrupted];

    /// The stored name.
    pub const fn as_str(self) -> &'static str {
        match self {
            RunStatus::Running => "RUNNING",
            RunStatus::WaitingForApproval => "WAITING_FOR_APPROVAL",
            RunStatus::Interrupted => "INTERRUPTED",
            RunStatus::Completed => "COMPLETED",
            RunStatus::Failed => "FAILED",
            RunStatus::Cancelled => "CANCELLED",
        }
    }

    /// Reads a stored name.
    pub fn parse(text: &str) -> Option<RunStatus> {
        RunStatus::ALL.into_iter().find(|status| status.as_str() == text)
    }

    /// Whether no further step can happen.
    pub const fn is_terminal(self) -> bool {
        match self {
            RunStatus::Completed | RunStatus::Failed | RunStatus::Cancelled => true,
            RunStatus::Running | RunStatus::WaitingForApproval | RunStatus::Interrupted => false,
        }
    }

    /// The status after `event`, or an error when the pair is illegal.
    pub const fn after(self, event: RunEvent) -> Result<RunStatus, IllegalRunMove> {
        use RunEvent as E;
        use RunStatus as S;
        match (self, event) {
            (S::Running | S::WaitingForApproval, E::Paused) => Ok(S::WaitingForApproval),
            (S::WaitingForApproval, E::Resumed) => Ok(S::Running),
            (S::Running | S::Interrupted, E::TakenOver) => Ok(S::Running),
            (S::Running | S::WaitingForApproval | S::Interrupted, E::Ended(end)) if end.can_end(self) => {
                Ok(end.status())
            }
            (S::Interrupted, E::Paused)
            | (S::Running | S::Interrupted, E::Resumed)
            | (S::WaitingForApproval, E::TakenOver)
            | (S::Running | S::WaitingForApproval | S::Interrupted, E::Ended(_))
            | (
                S::Completed | S::Failed | S::Cancelled,
                E::Paused | E::Resumed | E::TakenOver | E::Ended(_),
            ) => Err(IllegalRunMove { from: self, event }),
        }
    }
}

impl fmt::Display for RunStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What may happen to a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunEvent {
    /// It waits for an approval.
    Paused,
    /// A grant is executed, refused by today's policy, or fits today's schema no more: the run goes on.
    Resumed,
    /// Another session takes it after its lease ran out.
    TakenOver,
    /// It is over.
    Ended(Reason),
}

/// A move that the machine does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("move a {from} run by {event:?}: no such transition")]
pub struct IllegalRunMove {
    /// Where the run stood.
    pub from: RunStatus,
    /// What was to happen.
    pub event: RunEvent,
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident => $text:literal, $status:ident;)*) => {
        /// Why a run ended.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Reason { $($(#[$doc])* $name,)* }

        impl Reason {
            /// Every reason.
            pub const ALL: &[Reason] = &[$(Reason::$name,)*];

            /// The stored name.
            pub const fn as_str(self) -> &'static str {
                match self { $(Reason::$name => $text,)* }
            }

            /// The status that a run ended for this reason has.
            pub const fn status(self) -> RunStatus {
                match self { $(Reason::$name => RunStatus::$status,)* }
            }
        }
    };
}

reasons! {
    /// A complete decision, or a terminal tool's success.
    GoalCompleted => "goal_completed", Completed;
    /// A fail decision.
    GoalFailed => "goal_failed", Failed;
    /// The step limit.
    LimitSteps => "limit_steps", Failed;
    /// The model call limit.
    LimitModelCalls => "limit_model_calls", Failed;
    /// The token limit.
    LimitTokens => "limit_tokens", Failed;
    /// The cost limit.
    LimitCost => "limit_cost", Failed;
    /// The active time limit.
    LimitActiveTime => "limit_active_time", Failed;
    /// The elapsed time limit.
    LimitElapsedTime => "limit_elapsed_time", Failed;
    /// Too many failures in a row.
    RepeatedToolFailures => "repeated_tool_failures", Failed;
    /// The same call with the same outcome, again and again.
    LoopDetected => "loop_detected", Failed;
    /// No model could be reached.
    ModelUnavailable => "model_unavailable", Failed;
    /// The policy aborted the run.
    PolicyAbort => "policy_abort", Failed;
    /// A tool aborted the run.
    ToolAbort => "tool_abort", Failed;
    /// What was found outside contradicts the record.
    ReconcileConflict => "reconcile_conflict", Failed;
    /// Whoever decides could not.
    AgentError => "agent_error", Failed;
    /// The runtime refused to go on.
    InternalError => "internal_error", Failed;
    /// A person said no.
    ApprovalRejected => "approval_rejected", Cancelled;
    /// Nobody answered, or nobody collected, in time.
    ApprovalExpired => "approval_expired", Cancelled;
    /// A person ended it.
    OperatorCancelled => "operator_cancelled", Cancelled;
}

impl Reason {
    /// Whether a run that is `from` can end for this reason. One that waits runs nothing, so nothing that it does can
    /// end it; only a question that was asked can be refused or run out.
    pub const fn can_end(self, from: RunStatus) -> bool {
        let by_answer = matches!(self, Reason::ApprovalRejected | Reason::ApprovalExpired);
        let by_refusal = matches!(self, Reason::PolicyAbort | Reason::InternalError);
        let by_hand = matches!(self, Reason::OperatorCancelled);
        match from {
            RunStatus::Running => !by_answer,
            RunStatus::WaitingForApproval => by_answer || by_refusal || by_hand,
            RunStatus::Interrupted => by_hand,
            RunStatus::Completed | RunStatus::Failed | RunStatus::Cancelled => false,
        }
    }

    /// Reads a stored name.
    pub fn parse(text: &str) -> Option<Reason> {
        Reason::ALL.iter().copied().find(|reason| reason.as_str() == text)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The caps of a run. Zero in an optional cap means no cap.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// Steps that the run may start. Positive.
    pub max_steps: i64,
    /// Failures in a row that end the run. Positive.
    pub max_consecutive_tool_failures: i64,
    /// Identical calls with identical outcomes that end the run. Positive.
    pub loop_threshold: i64,
    /// Model attempts, retries included.
    pub max_model_calls: i64,
    /// The output cap of each model request.
    pub max_output_tokens_per_call: i64,
    /// Input and output tokens in all.
    pub max_total_tokens: i64,
    /// Estimated cost in millionths of a dollar.
    pub max_estimated_cost_micros: i64,
    /// Nanoseconds of steps' durations, waits excluded.
    pub max_active_time: i64,
    /// Nanoseconds since the run was made, waits included.
    pub max_elapsed_time: i64,
    /// Nanoseconds that an approval may stay undecided.
    pub approval_ttl: i64,
    /// Nanoseconds that a grant may stay uncollected.
    pub grant_ttl: i64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            max_steps: 50,
            max_consecutive_tool_failures: 3,
            loop_threshold: 3,
            max_model_calls: 0,
            max_output_tokens_per_call: 0,
            max_total_tokens: 0,
            max_estimated_cost_micros: 0,
            max_active_time: 0,
            max_elapsed_time: 0,
            approval_ttl: 0,
            grant_ttl: 0,
        }
    }
}

impl Limits {
    /// The same limits with an expiry for undecided approvals.
    #[must_use]
    pub fn approval_ttl(mut self, ttl: Duration) -> Limits {
        self.approval_ttl = nanos(ttl);
        self
    }

    /// The same limits with an expiry for uncollected grants.
    #[must_use]
    pub fn grant_ttl(mut self, ttl: Duration) -> Limits {
        self.grant_ttl = nanos(ttl);
        self
    }

    /// Refuses limits that would end a run before it began.
    pub fn check(&self) -> Result<(), String> {
        for (name, value) in [
            ("max_steps", self.max_steps),
            ("max_consecutive_tool_failures", self.max_consecutive_tool_failures),
            ("loop_threshold", self.loop_threshold),
        ] {
            if value <= 0 {
                return Err(format!("{name} is {value}; it must be positive"));
            }
        }
        Ok(())
    }

    /// The stored form.
    pub fn to_json(&self) -> String {
        let mut w = ObjectWriter::new();
        self.write(&mut w);
        w.finish()
    }

    pub(crate) fn write(&self, w: &mut ObjectWriter) {
        w.int("max_steps", self.max_steps);
        w.int("max_consecutive_tool_failures", self.max_consecutive_tool_failures);
        w.int("loop_threshold", self.loop_threshold);
        for (name, value) in [
            ("max_model_calls", self.max_model_calls),
            ("max_output_tokens_per_call", self.max_output_tokens_per_call),
            ("max_total_tokens", self.max_total_tokens),
            ("max_estimated_cost_micros", self.max_estimated_cost_micros),
            ("max_active_time", self.max_active_time),
            ("max_elapsed_time", self.max_elapsed_time),
            ("approval_ttl", self.approval_ttl),
            ("grant_ttl", self.grant_ttl),
        ] {
            w.omit_empty_int(name, value);
        }
    }

    /// Reads stored limits; a field that an older version did not write is zero.
    pub fn parse(text: &str) -> Result<Limits, String> {
        serde_json::from_str(text).map_err(|e| e.to_string())
    }
}

/// What the run's model attempts came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ModelTotals {
    /// Attempts whose outcome is recorded.
    pub model_calls: i64,
    /// Tokens read.
    pub input_tokens: i64,
    /// Tokens written.
    pub output_tokens: i64,
    /// Tokens read from a cache, a part of `input_tokens`.
    pub cached_input_tokens: i64,
    /// Estimated cost in millionths of a dollar.
    pub estimated_cost_micros: i64,
}

/// A run as stored, without its lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Its id.
    pub id: RunId,
    /// What it is for, in its owner's words.
    pub goal: String,
    /// Where it stands.
    pub status: RunStatus,
    /// Why it ended.
    pub reason: Option<Reason>,
    /// The reason in words.
    pub reason_detail: String,
    /// Its caps.
    pub limits: Limits,
    /// Steps started, the current one included.
    pub step_count: i64,
    /// When it was made.
    pub created_at: UnixNanos,
    /// When it began.
    pub started_at: Option<UnixNanos>,
    /// When it ended.
    pub finished_at: Option<UnixNanos>,
    /// What it produced.
    pub result: Option<Json>,
    /// What its model attempts came to.
    pub totals: ModelTotals,
    /// Milliseconds of finished steps, waits excluded.
    pub active_ms: i64,
}

impl Run {
    /// A run that begins now.
    pub fn begun(id: RunId, goal: impl Into<String>, limits: Limits, now: UnixNanos) -> Run {
        Run {
            id,
            goal: goal.into(),
            status: RunStatus::Running,
            reason: None,
            reason_detail: String::new(),
            limits,
            step_count: 0,
            created_at: now,
            started_at: Some(now),
            finished_at: None,
            result: None,
            totals: ModelTotals::default(),
            active_ms: 0,
        }
    }
}

/// A session's hold on a running run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Who holds it.
    pub owner: LeaseOwner,
    /// Until when, by the wall clock.
    pub expires_at: UnixNanos,
}

impl Lease {
    /// Whether the lease still holds at `now`.
    pub fn is_live(&self, now: UnixNanos) -> bool {
        self.expires_at > now
    }
}

/// The lease of a session that names no other, in seconds.
pub const LEASE_TTL_SECONDS: u64 = 30;

#[cfg(test)]
mod tests;
