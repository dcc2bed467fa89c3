//! A record as an operator's surface holds it: an existing database, read a snapshot at a time and decided upon.
//!
//! Owns the clock that decisions are judged by. It never makes or migrates a database, follows no symbolic link, and
//! runs no SQL: the store does. The commands and the approver are built on it, so that a decision means the same
//! wherever it comes from.

use std::path::Path;
use std::sync::Arc;

use holdpoint_actors::clock::{Clock, WallClock};
use holdpoint_actors::store::{Answer, OperatorStore, Page, ReadError, Reader, Verdict};
use holdpoint_core::approval::Approval;
use holdpoint_core::event::Event;
use holdpoint_core::ids::{ApprovalId, RunId};

use super::error::Error;
use super::read::{self, Detail, Waiting};
use super::shapes::{RunSummary, StepSummary};

/// An open database.
#[derive(Debug)]
pub struct Records {
    store: OperatorStore,
    clock: Arc<dyn Clock>,
}

impl Records {
    /// Opens a database that exists, in the version of this build, and changes nothing of it.
    ///
    /// # Errors
    /// [`Error::Open`] or [`Error::Locked`].
    pub fn open_to_read(path: impl AsRef<Path>) -> Result<Records, Error> {
        Records::open(path.as_ref(), true)
    }

    /// Opens a database that exists, in the version of this build, to record a person's decisions. Others' permission
    /// to read the file is taken away, as by every program that writes it.
    ///
    /// # Errors
    /// [`Error::Open`] or [`Error::Locked`].
    pub fn open_to_decide(path: impl AsRef<Path>) -> Result<Records, Error> {
        Records::open(path.as_ref(), false)
    }

    fn open(path: &Path, read_only: bool) -> Result<Records, Error> {
        Ok(Records { store: OperatorStore::open(path, read_only)?, clock: Arc::new(WallClock) })
    }

    /// Judges expiry by another clock than the wall's, and stamps decisions with it. For tests: a run that is stamped by
    /// the same clock would have its times moved by every decision.
    #[must_use]
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> Records {
        self.clock = clock;
        self
    }

    /// Reads one snapshot, with the functions of [`super::read`] or the reader's own.
    ///
    /// # Errors
    /// What `read` fails with, or that no snapshot could be taken.
    pub fn read<T>(&mut self, read: impl FnOnce(&Reader<'_>) -> Result<T, ReadError>) -> Result<T, Error> {
        Ok(self.store.read(read)?)
    }

    /// Makes what was read so far survive a power failure. For whoever hands it on as evidence, a head for one: another
    /// process's commits can be read before they are synced.
    ///
    /// # Errors
    /// When the log can't be synced; what was read must not be handed on then.
    pub fn sync(&mut self) -> std::io::Result<()> {
        self.store.sync()
    }

    /// Every run, newest first.
    ///
    /// # Errors
    /// When the record can't be read; so below, where nothing else is said.
    pub fn runs(&mut self) -> Result<Vec<RunSummary>, Error> {
        self.read(read::runs)
    }

    /// A page of runs, newest first.
    pub fn runs_page(&mut self, limit: i64, offset: i64) -> Result<Page<RunSummary>, Error> {
        self.read(|reader| read::runs_page(reader, limit, offset))
    }

    /// One run.
    ///
    /// # Errors
    /// [`Error::NoRun`].
    pub fn summary(&mut self, run: &RunId) -> Result<RunSummary, Error> {
        self.read(|reader| read::summary(reader, run))?.ok_or_else(|| Error::NoRun(run.clone()))
    }

    /// The steps of a run, in order.
    ///
    /// # Errors
    /// [`Error::NoRun`].
    pub fn steps(&mut self, run: &RunId) -> Result<Vec<StepSummary>, Error> {
        let steps = self.read(|reader| match reader.listed_run(run)? {
            Some(_) => read::steps(reader, run).map(Some),
            None => Ok(None),
        })?;
        steps.ok_or_else(|| Error::NoRun(run.clone()))
    }

    /// Everything about a run.
    ///
    /// # Errors
    /// [`Error::NoRun`].
    pub fn detail(&mut self, run: &RunId) -> Result<Detail, Error> {
        self.read(|reader| read::detail(reader, run))?.ok_or_else(|| Error::NoRun(run.clone()))
    }

    /// A page of everything about a run.
    ///
    /// # Errors
    /// [`Error::NoRun`].
    pub fn detail_page(&mut self, run: &RunId, limit: i64, offset: i64) -> Result<Detail, Error> {
        self.read(|reader| read::detail_page(reader, run, limit, offset))?
            .ok_or_else(|| Error::NoRun(run.clone()))
    }

    /// The approval that a person means, see [`read::pending_approval`].
    ///
    /// # Errors
    /// Why there is none to be decided.
    pub fn pending_approval(&mut self, run: &RunId, id: Option<&ApprovalId>) -> Result<Waiting, Error> {
        self.read(|reader| Ok(read::pending_approval(reader, run, id)))?
    }

    /// An approval of a run, whatever became of it. It is read whole.
    ///
    /// # Errors
    /// [`Error::NoApproval`].
    pub fn approval(&mut self, run: &RunId, id: &ApprovalId) -> Result<Approval, Error> {
        self.read(|reader| reader.approval(run, id))?
            .ok_or_else(|| Error::NoApproval { run: run.clone(), approval: id.clone() })
    }

    /// Grants what was shown; gives the events that it caused. Nothing runs: whoever owns the run collects the grant.
    ///
    /// # Errors
    /// As [`Records::decide`].
    pub fn approve_shown(&mut self, shown: &Approval, by: &str, note: &str) -> Result<Vec<Event>, Error> {
        self.decide_shown(Verdict::Approve, shown, by, note)
    }

    /// Refuses what was shown, which ends the run; gives the events that it caused.
    ///
    /// # Errors
    /// As [`Records::decide`].
    pub fn reject_shown(&mut self, shown: &Approval, by: &str, note: &str) -> Result<Vec<Event>, Error> {
        self.decide_shown(Verdict::Reject, shown, by, note)
    }

    /// Decides what was shown.
    ///
    /// # Errors
    /// As [`Records::decide`].
    pub fn decide_shown(
        &mut self,
        verdict: Verdict,
        shown: &Approval,
        by: &str,
        note: &str,
    ) -> Result<Vec<Event>, Error> {
        let (run, approval) = (&shown.run_id, &shown.id);
        self.decide(&Answer { run, approval, shown: Some(&shown.hash), verdict, by, note })
    }

    /// Records a person's answer, synced; gives the events that it caused. An answer without the hash of what was shown
    /// decides whatever is stored by then.
    ///
    /// # Errors
    /// The first of these that holds: there is no such run; it does not wait; there is no such approval; it was
    /// decided; it is not what was shown; its hash does not match; its time has run out, which cancels the run.
    pub fn decide(&mut self, answer: &Answer<'_>) -> Result<Vec<Event>, Error> {
        let now = self.clock.now();
        self.store.decide(answer, now).map_err(Error::of_decision)
    }

    /// Cancels a run that is not over, without deciding its approvals; gives the events that it caused.
    ///
    /// # Errors
    /// [`Error::NoRun`] or [`Error::RunFinished`].
    pub fn cancel(&mut self, run: &RunId, by: &str, note: &str) -> Result<Vec<Event>, Error> {
        let now = self.clock.now();
        self.store.cancel(run, by, note, now).map_err(Error::of_cancellation)
    }
}
