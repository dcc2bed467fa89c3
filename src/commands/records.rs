//! The database as the commands use it: opened, read a page at a time, and decided upon.
//!
//! Owns the translation of what the store refuses into codes. Never runs SQL: the store does.

use std::path::Path;

use holdpoint::codes::Code;
use holdpoint::view::{RunSummary, StepSummary};
use holdpoint_core::approval::Approval;
use holdpoint_core::chain::VerifyReport;
use holdpoint_core::event::Event;
use holdpoint_core::ids::{ApprovalId, RunId};

use crate::error::CommandError;

/// What a person decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Grant it.
    Approve,
    /// Refuse it.
    Reject,
}

impl Verdict {
    /// The command's name.
    pub(super) const fn verb(self) -> &'static str {
        match self {
            Verdict::Approve => "approve",
            Verdict::Reject => "reject",
        }
    }

    /// What was done.
    pub(super) const fn past(self) -> &'static str {
        match self {
            Verdict::Approve => "approved",
            Verdict::Reject => "rejected",
        }
    }
}

/// An approval that waits, and why the policy asks for it.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) approval: Approval,
    pub(super) reason: Option<String>,
}

/// A decision that was made.
#[derive(Debug)]
pub(super) struct Decided {
    pub(super) approval: Approval,
    pub(super) events: Vec<Event>,
}

/// An open database.
#[derive(Debug)]
pub(super) struct Records {}

impl Records {
    pub(super) fn open_to_read(_path: &Path) -> Result<Records, CommandError> {
        Err(CommandError::new(Code::Internal, "not wired"))
    }

    pub(super) fn open_to_decide(_path: &Path) -> Result<Records, CommandError> {
        Err(CommandError::new(Code::Internal, "not wired"))
    }

    pub(super) fn runs(&self, _limit: u32, _offset: u32) -> Result<(Vec<RunSummary>, u64), CommandError> {
        Ok((Vec::new(), 0))
    }

    pub(super) fn summary(&self, _id: &RunId) -> Result<RunSummary, CommandError> {
        Err(CommandError::new(Code::Internal, "not wired"))
    }

    pub(super) fn steps(
        &self,
        _id: &RunId,
        _l: u32,
        _o: u32,
    ) -> Result<(Vec<StepSummary>, u64), CommandError> {
        Ok((Vec::new(), 0))
    }

    pub(super) fn pending(&self, _id: &RunId, _l: u32, _o: u32) -> Result<(Vec<Waiting>, u64), CommandError> {
        Ok((Vec::new(), 0))
    }

    pub(super) fn approvals(
        &self,
        _id: &RunId,
        _l: u32,
        _o: u32,
    ) -> Result<(Vec<Approval>, u64), CommandError> {
        Ok((Vec::new(), 0))
    }

    pub(super) fn events(&self, _id: &RunId, _l: u32, _o: u32) -> Result<(Vec<Event>, u64), CommandError> {
        Ok((Vec::new(), 0))
    }

    pub(super) fn waiting(&self, _run: &RunId, _id: Option<&ApprovalId>) -> Result<Waiting, CommandError> {
        Err(CommandError::new(Code::Internal, "not wired"))
    }

    pub(super) fn decide(
        &mut self,
        _verdict: Verdict,
        _shown: &Approval,
        _by: &str,
        _note: &str,
    ) -> Result<Decided, CommandError> {
        Err(CommandError::new(Code::Internal, "not wired"))
    }

    pub(super) fn cancel(
        &mut self,
        _run: &RunId,
        _by: &str,
        _note: &str,
    ) -> Result<Vec<Event>, CommandError> {
        Err(CommandError::new(Code::Internal, "not wired"))
    }

    pub(super) fn head(&self) -> Result<(i64, String), CommandError> {
        Ok((0, String::new()))
    }

    pub(super) fn verify(&self, _from: i64, _to: i64) -> Result<VerifyReport, CommandError> {
        Ok(VerifyReport::default())
    }

    pub(super) fn event_hash(&self, _seq: i64) -> Result<Option<String>, CommandError> {
        Ok(None)
    }
}
