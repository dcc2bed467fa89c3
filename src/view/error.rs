//! Why nothing could be shown or decided: one kind for each thing that a surface does next.
//!
//! Owns the translation of what the store refuses. Matched by kind and never by text; ids are fields. The commands give
//! each kind its code, the approver its own meaning.

use holdpoint_actors::store::{DecideError, Fault, OpenError, ReadError};
use holdpoint_core::approval::ApprovalStatus;
use holdpoint_core::event::Event;
use holdpoint_core::ids::{ApprovalId, RunId};
use holdpoint_core::time::UnixNanos;

/// How many waiting approvals [`Error::Ambiguous`] names.
pub const CANDIDATES_MAX: usize = 20;

/// Why a record could not be read, or a decision not be recorded.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database can't be opened.
    #[error(transparent)]
    Open(OpenError),
    /// Another process keeps the database locked; nothing was recorded, and trying again may help.
    #[error("{0}")]
    Locked(String),
    /// There is no such run.
    #[error("find run {0}: there is none with this id")]
    NoRun(RunId),
    /// The run has no such approval.
    #[error("find approval {approval}: run {run} has none with this id")]
    NoApproval {
        /// The run.
        run: RunId,
        /// The approval.
        approval: ApprovalId,
    },
    /// The run does not wait for an approval, or not any more.
    #[error("decide on run {run}: it is {status} and waits for no approval")]
    RunNotWaiting {
        /// The run.
        run: RunId,
        /// Where it stands, as stored.
        status: String,
    },
    /// The run to be cancelled is over.
    #[error("cancel run {run}: it is {status} already")]
    RunFinished {
        /// The run.
        run: RunId,
        /// How it ended.
        status: String,
    },
    /// The run waits, and for nothing that anybody could decide.
    #[error("find what run {0} waits for: none of its approvals is pending")]
    NoPending(RunId),
    /// Several approvals wait, and none was named.
    #[error("choose an approval of run {run}: {} wait; name one of {}{}", total(candidates, *more), names(candidates), others(*more))]
    Ambiguous {
        /// The run.
        run: RunId,
        /// The oldest of them, [`CANDIDATES_MAX`] at most.
        candidates: Vec<ApprovalId>,
        /// How many more there are.
        more: u64,
    },
    /// Somebody decided before.
    #[error("decide approval {approval}: it is {status} already")]
    NotPending {
        /// The approval.
        approval: ApprovalId,
        /// What became of it.
        status: ApprovalStatus,
    },
    /// Its time has run out. A decision that found this expired it and cancelled its run.
    #[error("decide approval {approval}: it expired{}", at.map(|at| format!(" at {at}")).unwrap_or_default())]
    Expired {
        /// The approval.
        approval: ApprovalId,
        /// When, if this decision found it.
        at: Option<UnixNanos>,
        /// What was recorded, if this decision found it.
        events: Vec<Event>,
    },
    /// The stored request is not the one that was shown: look again.
    #[error("decide approval {0}: it changed after it was shown")]
    Changed(ApprovalId),
    /// What the approval holds does not give its hash, or can't be read. Nobody can decide it; cancel the run.
    #[error("decide approval {0}: what it holds does not match its hash")]
    Hash(ApprovalId),
    /// The record can't be read.
    #[error(transparent)]
    Read(ReadError),
    /// The database was opened for reading only.
    #[error("decide: the database was opened for reading only")]
    ReadOnly,
    /// Nothing was recorded.
    #[error("record the decision: {detail}; nothing was recorded")]
    NotRecorded {
        /// What SQLite's error means; none when it was not SQLite's.
        fault: Option<Fault>,
        /// Why, in words.
        detail: String,
    },
    /// It is not known whether the decision was recorded: look at the run.
    #[error("record the decision: {0}; it is not known whether it was recorded")]
    InDoubt(String),
}

impl Error {
    /// Whether the approval can't be decided any more: decided by somebody else, or expired.
    pub fn is_not_pending(&self) -> bool {
        matches!(self, Error::NotPending { .. } | Error::Expired { .. })
    }

    /// What a refused cancellation means.
    pub(super) fn of_cancellation(error: DecideError) -> Error {
        if let DecideError::RunIs { run, status } = error {
            return Error::RunFinished { run, status: status.to_string() };
        }
        Error::of_decision(error)
    }

    /// What a refused decision means.
    pub(super) fn of_decision(error: DecideError) -> Error {
        match error {
            DecideError::NoRun(run) => Error::NoRun(run),
            DecideError::NoApproval { run, approval } => Error::NoApproval { run, approval },
            DecideError::RunIs { run, status } => Error::RunNotWaiting { run, status: status.to_string() },
            DecideError::NotPending { approval, status } => Error::NotPending { approval, status },
            DecideError::Expired { approval, at, events } => Error::Expired { approval, at, events },
            DecideError::Changed(approval) => Error::Changed(approval),
            DecideError::Hash(approval) => Error::Hash(approval),
            DecideError::Read(error) => error.into(),
            DecideError::ReadOnly => Error::ReadOnly,
            DecideError::NotRecorded { fault: Some(Fault::Locked), detail } => {
                Error::Locked(format!("nothing was recorded: {detail}"))
            }
            DecideError::NotRecorded { fault, detail } => Error::NotRecorded { fault, detail },
            DecideError::InDoubt(why) => Error::InDoubt(why),
        }
    }
}

impl From<ReadError> for Error {
    fn from(error: ReadError) -> Error {
        if error.fault() == Some(Fault::Locked) {
            Error::Locked(error.to_string())
        } else {
            Error::Read(error)
        }
    }
}

impl From<OpenError> for Error {
    fn from(error: OpenError) -> Error {
        if matches!(error, OpenError::Locked { .. }) {
            Error::Locked(error.to_string())
        } else {
            Error::Open(error)
        }
    }
}

fn total(candidates: &[ApprovalId], more: u64) -> u64 {
    more.saturating_add(u64::try_from(candidates.len()).unwrap_or(u64::MAX))
}

fn names(candidates: &[ApprovalId]) -> String {
    candidates.iter().map(ApprovalId::as_str).collect::<Vec<_>>().join(", ")
}

fn others(more: u64) -> String {
    if more > 0 { format!(" and {more} more") } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_locked_database_is_told_from_every_other_trouble() {
        let refused = |fault| {
            Error::of_decision(DecideError::NotRecorded { fault, detail: "database is locked".to_owned() })
        };
        let locked = refused(Some(Fault::Locked));
        assert!(matches!(locked, Error::Locked(_)), "{locked}");
        assert_eq!(locked.to_string(), "nothing was recorded: database is locked");
        assert!(matches!(refused(Some(Fault::Full)), Error::NotRecorded { .. }));
        assert!(matches!(refused(None), Error::NotRecorded { .. }));
        let open = OpenError::Locked { path: "a.db".into() };
        assert!(matches!(Error::from(open), Error::Locked(_)));
    }
}
