//! A person's decisions and reads on a database that another program writes: the store of the operator's commands.
//!
//! It never makes or migrates anything, needs none of our own tables, and works on a file that the reference wrote. A
//! decision is judged twice, outside and inside the transaction that records it, on the row as it stands there; then it
//! goes through the same transitions as everything else. Nothing here waits on an actor: the calls block.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use holdpoint_core::approval::ApprovalStatus;
use holdpoint_core::event::Event;
use holdpoint_core::ids::{ApprovalHash, ApprovalId, LeaseOwner, RunId};
use holdpoint_core::ledger::{self, Decider, Illegal, Ledger, Waiting};
use holdpoint_core::run::RunStatus;
use holdpoint_core::time::UnixNanos;
use holdpoint_core::transition::{Durability, LeaseTerms, Refusal, Transition};
use rusqlite::{Connection, TransactionBehavior};

use super::apply::{Applier, Stamp};
use super::fault::Fault;
use super::guards::Halt;
use super::log::Synced;
use super::open::{self, OpenError};
use super::place::Place;
use super::reader::{ReadError, Reader};
use crate::clock;
use crate::faults::process::{self, Broken};

/// What a person says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Yes: the run waits until somebody collects the grant.
    Approve,
    /// No: the run is cancelled.
    Reject,
}

/// A person's answer to one approval.
#[derive(Debug, Clone, Copy)]
pub struct Answer<'a> {
    /// The run that waits.
    pub run: &'a RunId,
    /// The approval.
    pub approval: &'a ApprovalId,
    /// The hash of what the person was shown; `None` when they were shown nothing and decide by id alone.
    pub shown: Option<&'a ApprovalHash>,
    /// What they say.
    pub verdict: Verdict,
    /// Who they are, in their own words.
    pub by: &'a str,
    /// What they note.
    pub note: &'a str,
}

/// Why a decision was not recorded.
#[derive(Debug, thiserror::Error)]
pub enum DecideError {
    /// There is no such run.
    #[error("find run {0}: there is none with this id")]
    NoRun(RunId),
    /// There is no such approval of that run.
    #[error("find approval {approval}: run {run} has none with this id")]
    NoApproval {
        /// The run.
        run: RunId,
        /// The approval.
        approval: ApprovalId,
    },
    /// The run stands elsewhere.
    #[error("decide on run {run}: it is {status}")]
    RunIs {
        /// The run.
        run: RunId,
        /// Where it stands.
        status: RunStatus,
    },
    /// Somebody decided before.
    #[error("decide approval {approval}: it is {status} already")]
    NotPending {
        /// The approval.
        approval: ApprovalId,
        /// Where it stands.
        status: ApprovalStatus,
    },
    /// Its time has run out; if this decision found that, the run was cancelled.
    #[error("decide approval {approval}: it expired{}", at.map(|at| format!(" at {at}")).unwrap_or_default())]
    Expired {
        /// The approval.
        approval: ApprovalId,
        /// When, if this decision found it.
        at: Option<UnixNanos>,
        /// What was recorded, if this decision found it.
        events: Vec<Event>,
    },
    /// It is not what the person was shown.
    #[error("decide approval {0}: it is not the one that was shown; look at it again")]
    Changed(ApprovalId),
    /// Its fields no longer give its hash, or can't be read.
    #[error("decide approval {0}: its hash does not match what it holds; cancel the run")]
    Hash(ApprovalId),
    /// The run can't be read.
    #[error(transparent)]
    Read(#[from] ReadError),
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
    /// It is not known whether the decision was recorded.
    #[error("record the decision: {0}; it is not known whether it was recorded: look at the run")]
    InDoubt(String),
}

/// A database opened for an operator's command.
#[derive(Debug)]
pub struct OperatorStore {
    conn: Connection,
    path: PathBuf,
    place: Option<Place>,
    synced: Synced,
    read_only: bool,
}

impl OperatorStore {
    /// Opens an existing database of this build's version; with `read_only`, nothing of it is changed.
    pub fn open(path: &Path, read_only: bool) -> Result<OperatorStore, OpenError> {
        let conn = if read_only { open::existing_reader(path) } else { open::existing_writer(path) }?;
        let place = Place::of(path).ok();
        Ok(OperatorStore { conn, path: path.to_owned(), place, synced: Synced::default(), read_only })
    }

    /// The path as it was named.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads one snapshot.
    pub fn read<T>(
        &mut self,
        read: impl FnOnce(&Reader<'_>) -> Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        let tx = self.conn.transaction_with_behavior(TransactionBehavior::Deferred)?;
        read(&Reader::over(&tx))
    }

    /// Makes everything that was read so far survive a power failure. Other processes' commits may be readable before they
    /// are synced; what is sent on as evidence must not be lost behind its receiver's back.
    ///
    /// # Errors
    /// When the log can't be synced. What was read must not be sent on then, and a second try proves nothing: open the
    /// database again.
    pub fn sync(&mut self) -> std::io::Result<()> {
        self.synced.make(&self.path)
    }

    /// Whether the path still leads to the file that was opened. What is read from one that was moved, deleted or replaced
    /// is nobody's record any more.
    pub fn is_still_there(&self) -> bool {
        self.place.as_ref().is_some_and(Place::is_still_there)
    }

    /// Records a person's answer, synced; gives the events that it caused.
    ///
    /// The first of these that holds refuses it: there is no such run; it does not wait; there is no such approval; it
    /// was decided; it is not what was shown; its hash does not match; its time has run out, which cancels the run.
    pub fn decide(&mut self, answer: &Answer<'_>, now: UnixNanos) -> Result<Vec<Event>, DecideError> {
        if answer.shown.is_some_and(|hash| hash.as_str().is_empty()) {
            return Err(DecideError::Changed(answer.approval.clone()));
        }
        self.read(|reader| Ok(judge(reader, answer)))??;
        self.write(now, |reader| {
            let waiting = judge(reader, answer)?;
            if waiting.approval.is_past_expiry(now) {
                return expire(reader, waiting, now);
            }
            let note = if process::is(Broken::NoteDropped) { "" } else { answer.note };
            let decider = Decider { by: answer.by, note };
            let transition = match answer.verdict {
                Verdict::Approve => ledger::approve(&waiting, decider, now),
                Verdict::Reject => ledger::reject(&waiting, decider, now),
            };
            Ok(Planned { transition: transition.map_err(illegal)?, expired: None })
        })
    }

    /// Cancels a run that is not over, synced; gives the events that it caused.
    pub fn cancel(
        &mut self,
        run: &RunId,
        by: &str,
        note: &str,
        now: UnixNanos,
    ) -> Result<Vec<Event>, DecideError> {
        let open_run = |reader: &Reader<'_>| {
            let found = reader.run(run)?.ok_or_else(|| DecideError::NoRun(run.clone()))?;
            match found.status.is_terminal() {
                true => Err(DecideError::RunIs { run: run.clone(), status: found.status }),
                false => Ok(found),
            }
        };
        self.read(|reader| Ok(open_run(reader)))??;
        self.write(now, |reader| {
            let transition =
                ledger::cancel(&open_run(reader)?, Decider { by, note }, now).map_err(illegal)?;
            Ok(Planned { transition, expired: None })
        })
    }

    /// Plans a transition inside a transaction, applies and commits it.
    fn write(
        &mut self,
        now: UnixNanos,
        plan: impl FnOnce(&Reader<'_>) -> Result<Planned, DecideError>,
    ) -> Result<Vec<Event>, DecideError> {
        if self.read_only {
            return Err(DecideError::ReadOnly);
        }
        let tx = self.conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(not_recorded)?;
        let Planned { transition, expired } = plan(&Reader::over(&tx))?;
        let mut applier = Applier::default();
        applier.begun(&tx).map_err(not_recorded)?;
        process::reach("decide.begun");
        let stamp = Stamp { monotonic: clock::monotonic(), wall: now };
        let written = applier.apply(&tx, &transition, stamp).map_err(|halt| match halt {
            Halt::Refused(refusal) => refused(&transition, refusal),
            Halt::Sql(error) => not_recorded(error),
        })?;
        process::reach("decide.written");
        tx.commit().map_err(|error| match Fault::of(&error) {
            Fault::Io | Fault::Damaged => DecideError::InDoubt(error.to_string()),
            Fault::Locked | Fault::Full | Fault::ReadOnly | Fault::Statement => not_recorded(error),
        })?;
        process::reach("decide.committed");
        let numbered = transition.events.iter().zip(written.seqs).map(|(event, seq)| event.numbered(seq));
        let events = numbered.collect();
        match expired {
            None => Ok(events),
            Some((approval, at)) => Err(DecideError::Expired { approval, at: Some(at), events }),
        }
    }
}

/// A transition, and the approval that it expires.
struct Planned {
    transition: Transition,
    expired: Option<(ApprovalId, UnixNanos)>,
}

/// Judges an answer against what is stored, in the order in which refusals are documented.
fn judge(reader: &Reader<'_>, answer: &Answer<'_>) -> Result<Waiting, DecideError> {
    let run = reader.run(answer.run)?.ok_or_else(|| DecideError::NoRun(answer.run.clone()))?;
    if run.status != RunStatus::WaitingForApproval {
        return Err(DecideError::RunIs { run: run.id, status: run.status });
    }
    let approval = reader.approval(answer.run, answer.approval)?.ok_or_else(|| DecideError::NoApproval {
        run: answer.run.clone(),
        approval: answer.approval.clone(),
    })?;
    let id = || approval.id.clone();
    match approval.status {
        ApprovalStatus::Pending => {}
        ApprovalStatus::Expired => {
            return Err(DecideError::Expired { approval: id(), at: None, events: Vec::new() });
        }
        status @ (ApprovalStatus::Approved | ApprovalStatus::Rejected) => {
            return Err(DecideError::NotPending { approval: id(), status });
        }
    }
    if answer.shown.is_some_and(|shown| *shown != approval.hash) {
        return Err(DecideError::Changed(id()));
    }
    if !approval.is_intact() {
        return Err(DecideError::Hash(id()));
    }
    Ok(Waiting { run, approval })
}

/// Plans the expiry of an approval that a decision found too late.
fn expire(reader: &Reader<'_>, waiting: Waiting, now: UnixNanos) -> Result<Planned, DecideError> {
    let Waiting { run, approval } = waiting;
    // The run ends here, so nobody ever holds it under these terms.
    let terms = LeaseTerms { owner: LeaseOwner::from("operator"), ttl: Duration::ZERO };
    let approvals = reader.approvals(&run.id)?.into_iter().map(Arc::new).collect();
    let mut ledger = Ledger::of(terms, run, Vec::new(), approvals);
    ledger.expire(&approval, now).map_err(illegal)?;
    let at = approval.expires_at.unwrap_or(now);
    Ok(Planned { transition: ledger.take(Durability::Synced), expired: Some((approval.id, at)) })
}

/// What was judged inside the transaction was refused in it all the same: only a fault of ours does that.
fn refused(transition: &Transition, refusal: Refusal) -> DecideError {
    DecideError::NotRecorded { fault: None, detail: format!("run {}: {refusal}", transition.run_id) }
}

fn illegal(error: Illegal) -> DecideError {
    DecideError::NotRecorded { fault: None, detail: error.to_string() }
}

fn not_recorded(error: rusqlite::Error) -> DecideError {
    DecideError::NotRecorded { fault: Some(Fault::of(&error)), detail: error.to_string() }
}
