//! Attempts: how a call ended, and what a finished run's last attempt came to.
//!
//! Owns the typed endings. The text forms are written for the record and for the model; nothing reads them back,
//! except those of a record that another program wrote.

use std::fmt;

/// How a tool call that may have been sent ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ending {
    /// The tool answered with a result.
    Answered,
    /// The tool answered that it failed, or the call was refused before it was sent.
    KnownFailure,
    /// The time ran out before an answer.
    TimedOut,
    /// It was sent and no answer can be learnt.
    NoAnswer,
    /// The tool answered, and the answer can't be recorded.
    Unrecordable,
    /// It was recorded as started and is known never to have left.
    NotSent,
}

impl Ending {
    /// Every ending.
    pub const ALL: [Ending; 6] = [
        Ending::Answered,
        Ending::KnownFailure,
        Ending::TimedOut,
        Ending::NoAnswer,
        Ending::Unrecordable,
        Ending::NotSent,
    ];

    /// The stored name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Ending::Answered => "answered",
            Ending::KnownFailure => "known_failure",
            Ending::TimedOut => "timed_out",
            Ending::NoAnswer => "no_answer",
            Ending::Unrecordable => "unrecordable",
            Ending::NotSent => "not_sent",
        }
    }

    /// Reads a stored name.
    pub fn parse(text: &str) -> Option<Ending> {
        Ending::ALL.into_iter().find(|ending| ending.as_str() == text)
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a run's last attempt at its tool came to, as the proxy's index caches it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AttemptOutcome {
    /// Not looked at yet.
    Unseen,
    /// The tool never started.
    None,
    /// It is known.
    Known,
    /// It may or may not have happened.
    Unknown,
}

impl AttemptOutcome {
    /// The stored number.
    pub const fn code(self) -> i64 {
        match self {
            AttemptOutcome::Unseen => 0,
            AttemptOutcome::None => 1,
            AttemptOutcome::Known => 2,
            AttemptOutcome::Unknown => 3,
        }
    }

    /// Reads a stored number; one that nobody wrote is unseen, so that the run itself is read.
    pub const fn of_code(code: i64) -> AttemptOutcome {
        match code {
            1 => AttemptOutcome::None,
            2 => AttemptOutcome::Known,
            3 => AttemptOutcome::Unknown,
            _ => AttemptOutcome::Unseen,
        }
    }
}
