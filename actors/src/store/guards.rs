//! Guards: what must hold for a transition, read inside the transaction that would make it true.
//!
//! Never writes. A transition whose guards fail has touched nothing, so its neighbours in a batch go on. The run's row
//! is read once for all of its guards.

use holdpoint_core::across_calls::IndexWrite;
use holdpoint_core::approval::ApprovalStatus;
use holdpoint_core::ids::LeaseOwner;
use holdpoint_core::run::{Lease, RunStatus};
use holdpoint_core::step::StepStatus;
use holdpoint_core::time::UnixNanos;
use holdpoint_core::transition::{Guard, Refusal, RunWrite, Transition};
use rusqlite::Connection;

use super::index::{self, IndexCache};
use super::{approvals, model_calls, runs, steps};
use crate::faults::process::{self, Broken};

/// Why a transition was not applied.
#[derive(Debug)]
pub(super) enum Halt {
    /// A guard failed. Nothing was written.
    Refused(Refusal),
    /// SQLite failed. Something may have been written in this transaction.
    Sql(rusqlite::Error),
}

impl From<rusqlite::Error> for Halt {
    fn from(error: rusqlite::Error) -> Halt {
        Halt::Sql(error)
    }
}

impl From<Refusal> for Halt {
    fn from(refusal: Refusal) -> Halt {
        Halt::Refused(refusal)
    }
}

/// Judges every guard in order, and then what the writes themselves need.
pub(super) fn judge(
    conn: &Connection,
    t: &Transition,
    now: UnixNanos,
    calls: &mut IndexCache,
) -> Result<(), Halt> {
    let mut guarded = Guarded { conn, t, now, calls, run: None };
    for guard in &t.guards {
        guarded.judge(guard)?;
    }
    if matches!(t.run, Some(RunWrite::Update(_))) {
        guarded.run()?;
    }
    if let Some(write) = &t.model_call
        && !model_calls::can_write(conn, write)?
    {
        return Err(Refusal::ModelCallOver.into());
    }
    for write in &t.index {
        if !is_admitted(t, write) && !index::can_write(conn, write)? {
            return Err(Refusal::Stale.into());
        }
    }
    Ok(())
}

/// Whether the row that a write opens was looked at as its admission was judged.
fn is_admitted(t: &Transition, write: &IndexWrite) -> bool {
    let IndexWrite::Open { key, closes, .. } = write else { return false };
    t.guards.iter().any(|guard| {
        matches!(guard, Guard::Admission(admission)
            if admission.asked.key.as_ref() == Some(key) && admission.begin.closes == *closes)
    })
}

struct Guarded<'a> {
    conn: &'a Connection,
    t: &'a Transition,
    now: UnixNanos,
    calls: &'a mut IndexCache,
    run: Option<runs::Standing>,
}

impl Guarded<'_> {
    fn judge(&mut self, guard: &Guard) -> Result<(), Halt> {
        match guard {
            Guard::RunAbsent => match runs::standing(self.conn, &self.t.run_id)? {
                None => Ok(()),
                Some(_) => Err(Refusal::RunExists.into()),
            },
            Guard::Held { owner, live } => self.held(owner, *live),
            Guard::RunIs { any_of } => self.run_is(any_of),
            Guard::Abandoned { seen, gone } => self.abandoned(seen.as_ref(), gone.as_ref()),
            Guard::StepCount { count } => match self.run()?.step_count {
                started if started == *count => Ok(()),
                started => Err(Refusal::StepCount(started).into()),
            },
            Guard::StepIs { step, status } => {
                let stored = steps::status(self.conn, &self.t.run_id, step)?;
                match stored.as_deref() {
                    Some(text) if text == status.as_str() => Ok(()),
                    Some(text) => Err(Refusal::StepIs(StepStatus::parse(text)).into()),
                    None => Err(Refusal::StepIs(None).into()),
                }
            }
            Guard::ApprovalIs { approval, status, hash } => {
                match approvals::standing(self.conn, &self.t.run_id, approval)? {
                    Some(found) if found.status != status.as_str() && !process::is(Broken::DecidedAgain) => {
                        Err(Refusal::ApprovalIs(ApprovalStatus::parse(&found.status)).into())
                    }
                    Some(found) if found.hash != hash.as_str() || found.is_superseded => {
                        Err(Refusal::ApprovalChanged.into())
                    }
                    Some(_) => Ok(()),
                    None => Err(Refusal::ApprovalIs(None).into()),
                }
            }
            Guard::Admission(admission) => {
                if self.calls.admission_holds(self.conn, admission)? {
                    Ok(())
                } else {
                    Err(Refusal::Stale.into())
                }
            }
        }
    }

    fn run(&mut self) -> Result<&runs::Standing, Halt> {
        match &mut self.run {
            Some(run) => Ok(run),
            empty => {
                let run = runs::standing(self.conn, &self.t.run_id)?.ok_or(Refusal::RunMissing)?;
                Ok(empty.insert(run))
            }
        }
    }

    fn run_is(&mut self, any_of: &[RunStatus]) -> Result<(), Halt> {
        let text = &self.run()?.status;
        if any_of.iter().any(|status| status.as_str() == text) {
            return Ok(());
        }
        // A status that nobody knows is none that a transition moves from, and there is no name for it here.
        Err(Refusal::RunIs(RunStatus::parse(text).unwrap_or(RunStatus::Interrupted)).into())
    }

    fn held(&mut self, owner: &LeaseOwner, live: bool) -> Result<(), Halt> {
        self.run_is(&[RunStatus::Running])?;
        let now = self.now;
        match self.run()?.lease() {
            Some(lease) if lease.owner != *owner && !process::is(Broken::EpochIgnored) => Err(leased(lease)),
            Some(lease) if live && !lease.is_live(now) && !process::is(Broken::LeaseUnchecked) => {
                Err(Refusal::LeaseExpired.into())
            }
            Some(_) => Ok(()),
            None => Err(Refusal::LeaseExpired.into()),
        }
    }

    fn abandoned(&mut self, seen: Option<&Lease>, gone: Option<&LeaseOwner>) -> Result<(), Halt> {
        self.run_is(&[RunStatus::Running, RunStatus::Interrupted])?;
        let now = self.now;
        let stored = self.run()?.lease();
        match stored {
            Some(lease)
                if lease.is_live(now)
                    && gone != Some(&lease.owner)
                    && !process::is(Broken::LiveTakenOver) =>
            {
                Err(leased(lease))
            }
            // Nobody holds it, and somebody did meanwhile: what was read no longer says what was interrupted.
            other if other.as_ref() != seen && !process::is(Broken::SeenIgnored) => {
                Err(Refusal::Stale.into())
            }
            Some(_) | None => Ok(()),
        }
    }
}

fn leased(lease: Lease) -> Halt {
    Refusal::Leased { owner: lease.owner, expires_at: lease.expires_at }.into()
}
