//! Taking over many runs at once: those that an earlier process left behind.
//!
//! Owns the grouping. Each run is read, judged and drafted as [`Gate::attach_with`] does it for one; what is drafted is
//! then recorded in one transaction, in which each run's guards are judged for themselves. A run for which there is
//! nothing to draft (it is over, waits, or is damaged) is attached to alone.

use std::collections::VecDeque;
use std::sync::Arc;

use holdpoint_core::ids::RunId;
use holdpoint_core::recovery;
use holdpoint_core::run::RunStatus;
use holdpoint_core::transition::{Durability, Transition};
use tokio::task::JoinHandle;

use super::attach::{Drafted, Found, Rows};
use super::commit::Stop;
use super::handle::Session;
use super::story::{Core, busy};
use super::{Attached, Gate, Pace, SessionError, Shared};
use crate::clock::monotonic;
use crate::store::{Lane, ReadError};

/// Runs that one read brings.
const CHUNK: usize = 256;
/// Reads at one time. Calls find another free.
const READING: usize = 2;

/// What came of one run.
type Recovered = (RunId, Result<Attached, SessionError>);

impl Gate {
    /// Takes over runs that were left behind, at the pace of effects; gives what was found of each.
    ///
    /// What follows for them is recorded in one transaction. It is what [`Gate::attach_with`] finds for each.
    pub async fn recover(&self, runs: Vec<RunId>) -> Vec<Recovered> {
        let (mut reading, mut drafts) = (VecDeque::new(), Vec::with_capacity(runs.len()));
        for chunk in runs.chunks(CHUNK) {
            if reading.len() >= READING
                && let Some(oldest) = reading.pop_front()
            {
                drafts.extend(drafted(oldest).await);
            }
            let chunk = chunk.to_vec();
            reading.push_back((chunk.clone(), tokio::spawn(draft_all(Arc::clone(&self.0), chunk))));
        }
        for rest in reading {
            drafts.extend(drafted(rest).await);
        }
        // Recorded whether anybody waits for it or not.
        let runs: Vec<RunId> = drafts.iter().map(|(run, _)| run.clone()).collect();
        let recorded = tokio::spawn(record(Arc::clone(&self.0), drafts)).await;
        recorded
            .unwrap_or_else(|died| runs.into_iter().map(|run| (run.clone(), Err(lost(run, &died)))).collect())
    }
}

/// How far a run came before the transaction.
enum Draft {
    /// It is recorded with the others.
    Together(Box<Core>, Drafted, Arc<Transition>),
    /// Nothing is to be recorded yet.
    Open(Box<Core>),
    /// It is attached to alone.
    Alone,
    /// It can't be taken over.
    Failed(SessionError),
}

async fn drafted((runs, reading): (Vec<RunId>, JoinHandle<Vec<(RunId, Draft)>>)) -> Vec<(RunId, Draft)> {
    let died = |died| runs.into_iter().map(|run| (run.clone(), Draft::Failed(lost(run, &died)))).collect();
    reading.await.unwrap_or_else(died)
}

fn lost(run: RunId, died: &tokio::task::JoinError) -> SessionError {
    SessionError::Internal { run, why: format!("its recovery died: {died}") }
}

async fn draft_all(shared: Arc<Shared>, runs: Vec<RunId>) -> Vec<(RunId, Draft)> {
    let wanted = runs.clone();
    let read = shared.tree.store.read(move |reader| {
        // A row that can't be read is its own run's trouble.
        Ok(wanted.iter().map(|run| Rows::read(reader, run)).collect::<Vec<_>>())
    });
    let rows = match read.await {
        Ok(rows) => rows,
        Err(error) => {
            let failed = |run| (run, Draft::Failed(SessionError::Unavailable(error.to_string())));
            return runs.into_iter().map(failed).collect();
        }
    };
    let mut drafts = Vec::with_capacity(runs.len());
    for (run, rows) in runs.into_iter().zip(rows) {
        let draft = draft(&shared, &run, rows).await.unwrap_or_else(Draft::Failed);
        drafts.push((run, draft));
    }
    drafts
}

async fn draft(
    shared: &Arc<Shared>,
    run: &RunId,
    rows: Result<Option<Rows>, ReadError>,
) -> Result<Draft, SessionError> {
    let rows = rows.map_err(|error| SessionError::Unavailable(error.to_string()))?;
    let rows = rows.ok_or_else(|| SessionError::NotFound(run.clone()))?;
    match rows.run.status {
        RunStatus::Running | RunStatus::Interrupted => {}
        RunStatus::WaitingForApproval | RunStatus::Completed | RunStatus::Failed | RunStatus::Cancelled => {
            return Ok(Draft::Alone);
        }
    }
    let claim = shared.claim(run).ok_or_else(|| busy(run))?;
    let lease = rows.lease.clone();
    let mut core = Box::new(Core::over(Arc::clone(shared), rows, Pace::Effects, claim));
    if core.ledger.damage().is_some() {
        return Ok(Draft::Alone);
    }
    let cut_off = recovery::cut_off(core.ledger.steps());
    let drafted = match core.draft_take_over(lease, None) {
        Ok(now) => core.draft_what_follows(cut_off, now).await,
        Err(error) => Err(error),
    };
    match drafted {
        Ok(Drafted::Open) => Ok(Draft::Open(core)),
        Ok(drafted @ (Drafted::Pending(_) | Drafted::Ended)) => {
            let transition = core.ledger.take(Durability::Synced);
            let transition = core.completed(transition);
            Ok(Draft::Together(core, drafted, transition))
        }
        Err(error) => Err(core.stop(Stop::Failed(error.clone())).unwrap_or(error)),
    }
}

/// Records what is drafted, and says what was found.
async fn record(shared: Arc<Shared>, drafts: Vec<(RunId, Draft)>) -> Vec<Recovered> {
    let together: Vec<Arc<Transition>> = drafts
        .iter()
        .filter_map(|(_, draft)| match draft {
            Draft::Together(_, _, transition) => Some(Arc::clone(transition)),
            Draft::Open(_) | Draft::Alone | Draft::Failed(_) => None,
        })
        .collect();
    let sent = monotonic();
    let mut outcomes = shared.tree.store.apply_together(&together).await.into_iter();
    drop(together);
    let mut recovered = Vec::with_capacity(drafts.len());
    for (run, draft) in drafts {
        let attached = match draft {
            Draft::Failed(error) => Err(error),
            Draft::Open(core) => Ok(Found::Open.with(*core, Session::around)),
            Draft::Alone => Session::attach(Arc::clone(&shared), run.clone(), Pace::Effects, None).await,
            Draft::Together(mut core, drafted, transition) => {
                let came_of = match outcomes.next() {
                    Some(outcome) => core.came_of(Lane::Outcome, &transition, outcome, sent).await,
                    None => Ok(None),
                };
                let committed = match came_of {
                    Ok(None) => core.commit_completed(Lane::Outcome, &transition).await.map(drop),
                    Ok(Some(_)) => Ok(()),
                    Err(stop) => Err(stop),
                };
                let found = committed.map(|()| core.found(drafted));
                attached(*core, found)
            }
        };
        recovered.push((run, attached));
    }
    recovered
}

/// What was found, as the caller gets it.
fn attached(mut core: Core, found: Result<Found, Stop>) -> Result<Attached, SessionError> {
    let found = match found {
        Ok(found) => found,
        Err(stop) => {
            core.stopped(stop)?;
            Found::Ended(core.run())
        }
    };
    Ok(found.with(core, Session::around))
}
