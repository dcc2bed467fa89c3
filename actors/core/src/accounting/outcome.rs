//! The outcome table: what an attempt's end means for its row, for its charge and for another attempt.

use std::time::Duration;

use super::{CallStatus, Charge};
use crate::model::Usage;

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// With an answer, which reported this.
    Answered(Usage),
    /// The provider served and billed it, and the answer can't be used.
    Served {
        /// What it reported.
        usage: Usage,
        /// What is wrong with the answer.
        why: String,
    },
    /// The provider served it and reported a usage that is none.
    UnusableUsage(String),
    /// Whoever asked went away while it was out.
    Abandoned,
    /// It was out for as long as it may be, or its connection was lost.
    NoAnswer(String),
    /// The adapter died, and whether it had sent anything is not known.
    Died(String),
    /// The provider did not serve it and may later.
    Transient {
        /// What happened.
        why: String,
        /// How long the provider asks to be left alone.
        retry_after: Option<Duration>,
    },
    /// It was refused, or could not be sent.
    Permanent(String),
    /// It is known not to have been sent.
    NotSent(String),
}

/// What follows from an attempt's end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// How it stands from now on.
    pub status: CallStatus,
    /// What is charged.
    pub charge: Charge,
    /// What went wrong; empty when its answer can be used.
    pub error: String,
    /// Whether another attempt may fare better.
    pub retry: bool,
    /// How long the provider asks to be left alone before it.
    pub retry_after: Option<Duration>,
}

/// Judges how an attempt ended. `projected` is what is charged where nobody says what it cost, and `cost` prices what
/// somebody does say.
pub fn judge(ended: Ended, projected: Charge, cost: impl Fn(&Usage) -> i64) -> Verdict {
    let verdict = |status, charge, error| Verdict { status, charge, error, retry: false, retry_after: None };
    let reported = |usage: Usage| Charge { usage, cost_micros: cost(&usage) };
    let nothing = Charge::default();
    match ended {
        Ended::Answered(usage) if usage.is_usable() => {
            verdict(CallStatus::Ok, reported(usage), String::new())
        }
        Ended::Answered(usage) => {
            verdict(CallStatus::Error, projected, format!("the usage that it reports is none: {usage:?}"))
        }
        Ended::Served { usage, why } if usage.is_usable() => verdict(CallStatus::Error, reported(usage), why),
        Ended::Served { usage: _, why } | Ended::UnusableUsage(why) => {
            verdict(CallStatus::Error, projected, why)
        }
        Ended::Abandoned => {
            verdict(CallStatus::Ambiguous, projected, "whoever asked went away before the answer".to_owned())
        }
        Ended::Died(why) => verdict(CallStatus::Ambiguous, projected, why),
        Ended::NoAnswer(why) => Verdict { retry: true, ..verdict(CallStatus::Ambiguous, projected, why) },
        Ended::Transient { why, retry_after } => {
            Verdict { retry: true, retry_after, ..verdict(CallStatus::Error, nothing, why) }
        }
        Ended::Permanent(why) | Ended::NotSent(why) => verdict(CallStatus::Error, nothing, why),
    }
}
