//! Why a channel's call did nothing: one kind for each answer that a channel gives.
//!
//! Owns the kinds. An approver over something else than a database of this machine gives the same ones, so that a channel
//! needs to know only these.

use holdpoint_core::approval::ApprovalStatus;
use holdpoint_core::ids::{ApprovalId, RunId};
use holdpoint_core::time::UnixNanos;

use crate::view;

/// Why nothing was shown or decided.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The decision names no run, no approval or nobody. A missing hash is [`Error::Changed`].
    #[error("decide: the decision names no {0}")]
    Incomplete(&'static str),
    /// There is no such run, or no such approval of it.
    #[error("find {0}")]
    NotFound(String),
    /// The stored request is not the one that was shown, or no hash was given: look again.
    #[error("decide approval {0}: it changed after it was shown")]
    Changed(ApprovalId),
    /// The approval's time has run out; a decision that found this cancelled the run.
    #[error("decide approval {approval}: it expired{}", at.map(|at| format!(" at {at}")).unwrap_or_default())]
    Expired {
        /// The approval.
        approval: ApprovalId,
        /// When, if it is known.
        at: Option<UnixNanos>,
    },
    /// Somebody decided before.
    #[error("decide approval {approval}: it is {status} already")]
    NotPending {
        /// The approval.
        approval: ApprovalId,
        /// What became of it.
        status: ApprovalStatus,
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
    /// What the approval holds does not give its hash, or can't be read. Only the run can be cancelled.
    #[error("decide approval {0}: what it holds does not match its hash")]
    Hash(ApprovalId),
    /// It is not known whether the decision was recorded: look at the run.
    #[error("record the decision: it is not known whether it was recorded")]
    InDoubt(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The channel behind this failed; nothing was recorded.
    #[error("reach the record: {0}")]
    Failed(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// Whether the approval can't be decided any more: decided by somebody else, or expired.
    pub fn is_not_pending(&self) -> bool {
        matches!(self, Error::NotPending { .. } | Error::Expired { .. })
    }
}

impl From<view::Error> for Error {
    fn from(error: view::Error) -> Error {
        match error {
            view::Error::NoRun(run) => Error::NotFound(format!("run {run}: there is none with this id")),
            view::Error::NoApproval { run, approval } => {
                Error::NotFound(format!("approval {approval}: run {run} has none with this id"))
            }
            view::Error::RunNotWaiting { run, status } => Error::RunNotWaiting { run, status },
            view::Error::RunFinished { run, status } => Error::RunFinished { run, status },
            view::Error::NotPending { approval, status } => Error::NotPending { approval, status },
            view::Error::Expired { approval, at, .. } => Error::Expired { approval, at },
            view::Error::Changed(approval) => Error::Changed(approval),
            view::Error::Hash(approval) => Error::Hash(approval),
            error @ view::Error::InDoubt(_) => Error::InDoubt(Box::new(error)),
            // The first two are about choosing an approval, and every call here names its own.
            error @ (view::Error::NoPending(_)
            | view::Error::Ambiguous { .. }
            | view::Error::Open(_)
            | view::Error::Locked(_)
            | view::Error::Read(_)
            | view::Error::ReadOnly
            | view::Error::NotRecorded { .. }) => Error::Failed(Box::new(error)),
        }
    }
}
