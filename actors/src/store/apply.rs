//! Applying a transition: its guards, its rows, its events, inside a transaction that somebody else opened.
//!
//! Owns the order of writes and what is remembered between transactions: the chain's head, while SQLite says that
//! nobody else wrote, and the specs known to be there. Never begins or commits. The writer's thread and the operator's
//! commands apply through it, so that both write the same bytes.

use std::collections::HashSet;
use std::ops::Range;
use std::time::Instant;

use holdpoint_core::event::{EventKind, NewEvent};
use holdpoint_core::ids::{LeaseOwner, SpecHash};
use holdpoint_core::step::{Step, StepStatus};
use holdpoint_core::time::UnixNanos;
use holdpoint_core::transition::{ApprovalWrite, LeaseTerms, LeaseWrite, RunWrite, StepWrite, Transition};
use rusqlite::Connection;

use super::guards::{self, Halt};
use super::head::{self, Head};
use super::index::IndexCache;
use super::{approvals, endings, events, index, model_calls, runs, specs, steps};
use crate::faults::process::{self, Broken};

/// Spec hashes that are remembered. Each saves a look-up; a process has as many as tools.
const SPECS_KNOWN_MAX: usize = 4_096;

/// The moment of a transaction's BEGIN, by the wall and by the clock that only moves forward.
///
/// The second is read first: who counts a lease's time from it stops too early rather than too late.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stamp {
    pub(super) monotonic: Instant,
    pub(super) wall: UnixNanos,
}

/// What one transition came to.
#[derive(Debug)]
pub(super) struct Written {
    /// The numbers of its events.
    pub(super) seqs: Range<i64>,
    pub(super) lease_expires_at: Option<UnixNanos>,
}

/// Applies transitions on one connection.
#[derive(Debug, Default)]
pub(super) struct Applier {
    /// Changes when another connection committed; its value means nothing otherwise.
    data_version: Option<i64>,
    committed: Memory,
    pending: Memory,
    calls: IndexCache,
}

/// What is known of the file without reading it.
#[derive(Debug, Clone, Default)]
struct Memory {
    head: Option<Head>,
    specs: HashSet<SpecHash>,
}

/// Where a savepoint can go back to.
#[derive(Debug)]
pub(super) struct Mark(Option<Head>);

impl Applier {
    /// To be called right after each BEGIN.
    pub(super) fn begun(&mut self, conn: &Connection) -> rusqlite::Result<()> {
        let version: i64 = conn.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))?;
        if self.data_version != Some(version) {
            self.committed.head = None;
            self.calls.others_wrote();
            self.data_version = Some(version);
        }
        self.pending.head.clone_from(&self.committed.head);
        Ok(())
    }

    /// To be called after each COMMIT that succeeded.
    pub(super) fn committed(&mut self) {
        self.calls.committed();
        self.committed.head = self.pending.head.take();
        self.committed.specs.extend(self.pending.specs.drain());
        if self.committed.specs.len() > SPECS_KNOWN_MAX {
            self.committed.specs.clear();
        }
    }

    /// To be called after each ROLLBACK, and when it is not known whether a COMMIT succeeded.
    pub(super) fn rolled_back(&mut self) {
        self.calls.undone();
        self.pending = Memory::default();
    }

    /// Remembers where the transaction stands, for [`Applier::back_to`].
    pub(super) fn mark(&self) -> Mark {
        Mark(self.pending.head.clone())
    }

    /// To be called after each ROLLBACK TO a savepoint.
    pub(super) fn back_to(&mut self, mark: Mark) {
        self.calls.undone();
        self.pending.head = mark.0;
        // Which of them came after the savepoint is not known; writing one twice does no harm.
        self.pending.specs.clear();
    }

    /// The newest event, inside the transaction.
    pub(super) fn head(&mut self, conn: &Connection) -> rusqlite::Result<Head> {
        self.head_mut(conn).cloned()
    }

    fn head_mut(&mut self, conn: &Connection) -> rusqlite::Result<&mut Head> {
        match &mut self.pending.head {
            Some(head) => Ok(head),
            empty => Ok(empty.insert(head::for_append(conn)?)),
        }
    }

    /// Applies one transition, or refuses it before it has written anything.
    pub(super) fn apply(&mut self, conn: &Connection, t: &Transition, stamp: Stamp) -> Result<Written, Halt> {
        guards::judge(conn, t, stamp.wall, &mut self.calls)?;
        // Rows in the order of their references: the run first.
        let lease_expires_at = write_run(conn, t, stamp.wall)?;
        for spec in &t.specs {
            if !self.committed.specs.contains(&spec.hash) && self.pending.specs.insert(spec.hash.clone()) {
                specs::keep(conn, spec)?;
            }
        }
        for write in t.steps.iter().filter(|write| !is_left_out(write)) {
            write_step(conn, t, write)?;
        }
        for write in &t.approvals {
            match write {
                ApprovalWrite::Insert(approval) => approvals::insert(conn, approval)?,
                ApprovalWrite::Decide(approval) => approvals::decide(conn, approval)?,
            }
        }
        for ending in &t.endings {
            endings::keep(conn, ending)?;
        }
        if let Some(write) = &t.model_call {
            model_calls::write(conn, write)?;
        }
        for write in t.index.iter().filter(|_| !process::is(Broken::IndexDropped)) {
            index::write(conn, write)?;
        }
        process::reach_each("rows", t.events.iter().map(|event| event.kind.as_str()));
        if process::is(Broken::StateApart) {
            conn.execute_batch("COMMIT; BEGIN IMMEDIATE")?;
            process::reach_each("apart", t.events.iter().map(|event| event.kind.as_str()));
        }
        let kept = |event: &&NewEvent| {
            !(process::is(Broken::EventDropped) && event.kind == EventKind::StepToolFinished)
        };
        let times = if process::is(Broken::BatchTwice) { 2 } else { 1 };
        let seqs = if t.events.is_empty() {
            Range::default()
        } else {
            let events = t.events.iter().filter(kept).flat_map(|event| std::iter::repeat_n(event, times));
            events::append(conn, self.head_mut(conn)?, events)?
        };
        self.calls.wrote(&t.run_id);
        Ok(Written { seqs, lease_expires_at })
    }
}

fn expiry(terms: &LeaseTerms, now: UnixNanos) -> UnixNanos {
    now.plus(terms.ttl)
}

/// Writes the run's row; gives the expiry of the lease that it took.
fn write_run(conn: &Connection, t: &Transition, now: UnixNanos) -> rusqlite::Result<Option<UnixNanos>> {
    match &t.run {
        None => Ok(None),
        Some(RunWrite::Insert { run, lease }) => {
            let until = lease.as_ref().map(|terms| expiry(terms, now));
            let owner = lease.as_ref().map(|terms| &terms.owner);
            let mistaken = owner.and_then(mistaken);
            runs::insert(conn, run, mistaken.as_ref().or(owner).zip(until))?;
            Ok(until)
        }
        Some(RunWrite::Update(update)) => {
            let (change, until) = match &update.lease {
                LeaseWrite::Keep => (None, None),
                LeaseWrite::Clear if process::is(Broken::LeaseKept) => (None, None),
                LeaseWrite::Clear => (Some(("", None)), None),
                LeaseWrite::Take(terms) => {
                    let until = Some(expiry(terms, now));
                    (Some((terms.owner.as_str(), until)), until)
                }
            };
            runs::update(conn, &t.run_id, update, change)?;
            Ok(until)
        }
    }
}

fn write_step(conn: &Connection, t: &Transition, write: &StepWrite) -> rusqlite::Result<()> {
    match write {
        StepWrite::Insert(step) => steps::insert(conn, step),
        StepWrite::Update(step) if is_marked_done(t, step) => {
            steps::update(conn, &Step { status: StepStatus::Done, ..Step::clone(step) })
        }
        StepWrite::Update(step) => steps::update(conn, step),
        StepWrite::Outcome { step, status, observation, observation_hash, finished_at } => {
            let observation = (observation.as_str(), observation_hash.as_str());
            let outcome = steps::Outcome { status: *status, observation, finished_at: *finished_at };
            steps::end(conn, &t.run_id, step, &outcome)
        }
        StepWrite::OutcomeOfInFlight { observation, observation_hash, finished_at } => {
            let observation = (observation.as_str(), observation_hash.as_str());
            let outcome =
                steps::Outcome { status: StepStatus::Failed, observation, finished_at: *finished_at };
            steps::end_in_flight(conn, &t.run_id, &outcome)
        }
    }
}

/// Somebody else, when this build is deliberately broken in a way that takes them for who begins a run.
fn mistaken(owner: &LeaseOwner) -> Option<LeaseOwner> {
    if !process::is(Broken::OwnerMistaken) {
        return None;
    }
    let (but_its_last, last) = owner.as_str().split_at_checked(owner.as_str().len() - 1)?;
    Some(LeaseOwner::from(format!("{but_its_last}{}", if last == "0" { "1" } else { "0" })))
}

/// Whether this build is deliberately broken in a way that leaves this row as it was.
fn is_left_out(write: &StepWrite) -> bool {
    process::is(Broken::RowDropped)
        && matches!(write, StepWrite::Update(step) if step.status == StepStatus::Done)
}

/// Whether this build is deliberately broken in a way that takes what recovery found cut off for done.
fn is_marked_done(t: &Transition, step: &Step) -> bool {
    process::is(Broken::RecoveryMarksDone)
        && step.status == StepStatus::AwaitingApproval
        && t.events.iter().any(|event| event.kind == EventKind::LeaseTakenOver)
}
