//! The approval channel: one trait over what a surface must show a person and what it may decide.
//!
//! A chat bot, a web page or a command written over [`Approver`] shows an approval, decides it bound to the hash of what it
//! showed, or cancels the run, and never touches the database. Every call names a run: nothing lists runs, so whoever
//! knows one run's id learns nothing of another's. [`Local`] is the one over a database of this machine. Nothing here
//! resumes a run: that needs its tools and its policy, so it stays with whoever owns the run.
//!
//! Who decides is a label, recorded as it is given. A channel in front of this is where a person is told from another,
//! and whoever can write the database needs no channel at all.

mod error;
mod local;
mod text;
#[cfg(feature = "webhook")]
pub mod webhook;

use async_trait::async_trait;
use holdpoint_core::approval::Approval;
use holdpoint_core::ids::{ApprovalHash, ApprovalId, RunId};
use serde::{Deserialize, Serialize};

use crate::view::{ApprovalView, LateOutcome, ListedRun, bound_string};

pub use error::Error;
pub use local::Local;

/// An approval as a channel shows it.
///
/// Its JSON is the approval's, with every long string of its capability, presentation and arguments cut in the middle
/// (see [`crate::view::bound_string`]), and `reason`, `expired` and, if known, `attempt_came_to` beside them. The hash is that of the whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// The approval, whole or as a page cut it.
    pub approval: Approval,
    /// Why the policy asks; empty when the record does not say. It may hold text that a model chose.
    pub reason: String,
    /// Whether its time had run out when it was read. Nothing was written: a decision that comes now does that.
    pub expired: bool,
    /// What the attempt whose outcome it asks about came to after all, when that became known since.
    pub attempt_came_to: Option<LateOutcome>,
}

impl Serialize for Pending {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Shown {
            #[serde(flatten)]
            approval: ApprovalView,
            #[serde(skip_serializing_if = "String::is_empty")]
            reason: String,
            #[serde(skip_serializing_if = "std::ops::Not::not")]
            expired: bool,
            #[serde(skip_serializing_if = "Option::is_none")]
            attempt_came_to: Option<LateOutcome>,
        }
        let (approval, reason) = (ApprovalView::of(&self.approval), bound_string(self.reason.clone()));
        let attempt_came_to = self.attempt_came_to.clone();
        Shown { approval, reason, expired: self.expired, attempt_came_to }.serialize(serializer)
    }
}

/// A person's decision on one approval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// The run that waits.
    #[serde(rename = "run_id", default = "no_run")]
    pub run: RunId,
    /// The approval.
    #[serde(rename = "approval_id", default = "no_approval")]
    pub approval: ApprovalId,
    /// The hash of what the person was shown. Without it, nothing is decided.
    #[serde(default = "no_hash")]
    pub hash: ApprovalHash,
    /// Who decides: a label.
    #[serde(default)]
    pub by: String,
    /// What they note; a rejection's is told to the model.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// What a channel needs. Every method names a run; the errors are told apart by kind.
#[async_trait]
pub trait Approver: Send + Sync + 'static {
    /// At most `limit` of a run's undecided approvals, oldest first; none of a run that does not wait, since nothing of
    /// it can be decided. [`Error::NotFound`] when there is no such run.
    async fn pending(&self, run: &RunId, limit: u32) -> Result<Vec<Pending>, Error>;

    /// One approval of a run, whatever became of it. [`Error::NotFound`] when the run has none of this id.
    async fn show(&self, run: &RunId, approval: &ApprovalId) -> Result<Pending, Error>;

    /// Grants an approval. The run goes on waiting until its owner resumes it.
    async fn approve(&self, decision: &Decision) -> Result<(), Error>;

    /// Refuses an approval, which cancels the run.
    async fn reject(&self, decision: &Decision) -> Result<(), Error>;

    /// Ends a run that is not over, whether it waits or not, without deciding its approvals.
    async fn cancel(&self, run: &RunId, by: &str, note: &str) -> Result<(), Error>;
}

/// Reads the run that a channel is about to decide on. Apart from [`Approver`], because not every channel can.
#[async_trait]
pub trait RunReader: Send + Sync + 'static {
    /// The run, its long texts cut as an approval's are. [`Error::NotFound`] when there is no such run.
    async fn run(&self, run: &RunId) -> Result<ListedRun, Error>;
}

fn no_run() -> RunId {
    RunId::from("")
}

fn no_approval() -> ApprovalId {
    ApprovalId::from("")
}

fn no_hash() -> ApprovalHash {
    ApprovalHash::from("")
}
