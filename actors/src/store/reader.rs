//! Reading: a few read-only connections, and what can be asked of one.
//!
//! A read is one snapshot: everything asked of one [`Reader`] is of the same moment. It runs on a blocking thread and
//! never crosses an await, so that no reader keeps the log from being reused. Never goes through the writer.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use holdpoint_core::accounting::ModelCall;
use holdpoint_core::approval::Approval;
use holdpoint_core::attempt::Ending;
use holdpoint_core::chain::VerifyReport;
use holdpoint_core::event::Event;
use holdpoint_core::ids::{ApprovalId, RunId, SpecHash, StepId};
use holdpoint_core::run::{Lease, Run};
use holdpoint_core::step::Step;
use holdpoint_core::tool::RecordedSpec;
use holdpoint_core::transition::Probe;
use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::Semaphore;

use super::fault::Fault;
use super::{Head, Page, approvals, endings, events, head, model_calls, open, runs, specs, steps};
use crate::clock::lock;

/// Reads at one time. Each is a thread; more would only queue at the disk.
const READS_MAX: usize = 4;
/// How long a read may wait for its turn, and how long it may take.
const TURN: Duration = Duration::from_secs(5);
const READ: Duration = Duration::from_secs(20);

/// Why nothing was read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The row of a run can't be decoded.
    #[error("read run {run}: its row is damaged: {damage}")]
    DamagedRun {
        /// The run.
        run: RunId,
        /// What is wrong.
        damage: String,
    },
    /// A row of a model call can't be decoded.
    #[error("read the model calls of run {run}: a row is damaged: {damage}")]
    DamagedModelCall {
        /// The run.
        run: RunId,
        /// What is wrong.
        damage: String,
    },
    /// A spec does not have the hash that it is kept under.
    #[error("read the tool spec {hash}: what is kept there has another hash")]
    AlteredSpec {
        /// The hash.
        hash: SpecHash,
    },
    /// A page has no size, or begins before the first row.
    #[error("read a page of {limit} rows from row {offset}: ask for at least one, from 0 on")]
    NoPage {
        /// The size asked for.
        limit: i64,
        /// The offset asked for.
        offset: i64,
    },
    /// Too many reads were going on.
    #[error("read the database: too many reads are going on; try again")]
    Busy,
    /// It took too long.
    #[error("read the database: it took longer than {} s", READ.as_secs())]
    TooSlow,
    /// The reading code panicked.
    #[error("read the database: the reader panicked")]
    Panicked,
    /// The writer did not come back, so that nobody can say what became of a write.
    #[error("learn what became of a write: the writer did not come back in time")]
    Unsettled,
    /// SQLite refused.
    #[error("read the database: {0}")]
    Sql(#[from] rusqlite::Error),
}

impl ReadError {
    /// What it means, when it is SQLite's.
    pub fn fault(&self) -> Option<Fault> {
        match self {
            ReadError::Sql(error) => Some(Fault::of(error)),
            ReadError::DamagedRun { .. }
            | ReadError::DamagedModelCall { .. }
            | ReadError::AlteredSpec { .. }
            | ReadError::NoPage { .. }
            | ReadError::Busy
            | ReadError::TooSlow
            | ReadError::Panicked
            | ReadError::Unsettled => None,
        }
    }
}

/// Read-only connections to a database that this process has open for writing. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ReaderPool(Arc<Pool>);

#[derive(Debug)]
struct Pool {
    path: PathBuf,
    /// Those that wait for the next read; none from the moment in which none is kept any more.
    idle: Mutex<Option<Vec<Connection>>>,
    turns: Arc<Semaphore>,
}

impl ReaderPool {
    /// A pool for the database at `path`. Nothing is opened before the first read.
    pub fn new(path: impl Into<PathBuf>) -> ReaderPool {
        let turns = Arc::new(Semaphore::new(READS_MAX));
        ReaderPool(Arc::new(Pool { path: path.into(), idle: Mutex::new(Some(Vec::new())), turns }))
    }

    /// Closes the connections that wait, and from here on each after its read.
    pub(super) fn keep_none(&self) {
        drop(lock(&self.0.idle).take());
    }

    /// Reads on a blocking thread: at most five seconds of waiting and twenty of reading.
    pub async fn read<T, F>(&self, read: F) -> Result<T, ReadError>
    where
        T: Send + 'static,
        F: FnOnce(&Reader<'_>) -> Result<T, ReadError> + Send + 'static,
    {
        let turn = tokio::time::timeout(TURN, Arc::clone(&self.0.turns).acquire_owned());
        let turn = turn.await.map_err(|_elapsed| ReadError::Busy)?.map_err(|_closed| ReadError::Busy)?;
        let conn = lock(&self.0.idle).as_mut().and_then(Vec::pop);
        let pool = Arc::clone(&self.0);
        let (handle_send, handle) = tokio::sync::oneshot::channel();
        let mut reading = tokio::task::spawn_blocking(move || {
            // Until the reading is really over, also when nobody waits for it any more.
            let _turn = turn;
            let mut conn = match conn {
                Some(conn) => conn,
                None => open::reader(&pool.path)?,
            };
            drop(handle_send.send(conn.get_interrupt_handle()));
            let result = snapshot(&mut conn, read);
            // After an error of SQLite's the connection is closed, not kept.
            if !matches!(result, Err(ReadError::Sql(_)))
                && let Some(idle) = lock(&pool.idle).as_mut()
            {
                idle.push(conn);
            }
            result
        });
        match tokio::time::timeout(READ, &mut reading).await {
            Ok(done) => done.map_err(|_panic| ReadError::Panicked)?,
            Err(_elapsed) => {
                if let Ok(handle) = handle.await {
                    handle.interrupt();
                }
                Err(ReadError::TooSlow)
            }
        }
    }
}

fn snapshot<T>(
    conn: &mut Connection,
    read: impl FnOnce(&Reader<'_>) -> Result<T, ReadError>,
) -> Result<T, ReadError> {
    let tx = conn.transaction_with_behavior(TransactionBehavior::Deferred)?;
    // Dropping it rolls back, which for a read only ends the snapshot.
    read(&Reader { conn: &tx })
}

/// One snapshot of the database.
#[derive(Debug)]
pub struct Reader<'c> {
    pub(super) conn: &'c Connection,
}

impl<'c> Reader<'c> {
    /// Reads through a connection that somebody else holds a transaction on.
    pub(super) fn over(conn: &'c Connection) -> Reader<'c> {
        Reader { conn }
    }

    /// A run.
    pub fn run(&self, id: &RunId) -> Result<Option<Run>, ReadError> {
        runs::get(self.conn, id)?
            .transpose()
            .map_err(|damage| ReadError::DamagedRun { run: id.clone(), damage })
    }

    /// The lease that is stored on a run, live or not; none when nobody holds it.
    pub fn lease(&self, run: &RunId) -> Result<Option<Lease>, ReadError> {
        Ok(runs::lease(self.conn, run)?)
    }

    /// The steps of a run, in order. A damaged one says so.
    pub fn steps(&self, run: &RunId) -> Result<Vec<Step>, ReadError> {
        Ok(steps::of_run(self.conn, run)?)
    }

    /// As [`Reader::steps`], for whoever asks what became of a call: a step that a person's cancellation interrupted has
    /// what its tool returned later, and nothing when its tool had not started.
    pub fn steps_as_they_came_out(&self, run: &RunId) -> Result<Vec<Step>, ReadError> {
        Ok(steps::as_they_came_out(self.conn, run)?)
    }

    /// The approvals of a run, in the order in which they were asked for. A damaged one says so.
    pub fn approvals(&self, run: &RunId) -> Result<Vec<Approval>, ReadError> {
        Ok(approvals::of_run(self.conn, run)?)
    }

    /// The first approvals of a run, at most `limit`, each whole; and how many there are in all.
    pub fn first_approvals(&self, run: &RunId, limit: i64) -> Result<Page<Approval>, ReadError> {
        let rows = approvals::first_of_run(self.conn, run, limit.max(0))?;
        Ok(Page { rows, total: approvals::count(self.conn, run)? })
    }

    /// One approval of a run.
    pub fn approval(&self, run: &RunId, id: &ApprovalId) -> Result<Option<Approval>, ReadError> {
        Ok(approvals::get(self.conn, run, id)?)
    }

    /// The attempts to ask a model that a run has made, in the order in which they were dispatched.
    pub fn model_calls(&self, run: &RunId) -> Result<Vec<ModelCall>, ReadError> {
        let calls = model_calls::of_run(self.conn, run)?.into_iter().collect::<Result<_, _>>();
        calls.map_err(|damage| ReadError::DamagedModelCall { run: run.clone(), damage })
    }

    /// Every pending approval of a waiting run, oldest first.
    pub fn pending_approvals(&self) -> Result<Vec<(RunId, ApprovalId)>, ReadError> {
        Ok(approvals::pending(self.conn)?)
    }

    /// The events of a run, in order.
    pub fn events(&self, run: &RunId) -> Result<Vec<Event>, ReadError> {
        Ok(events::of_run(self.conn, run)?)
    }

    /// Whether an event is in the record.
    pub fn holds(&self, probe: &Probe) -> Result<bool, ReadError> {
        Ok(events::holds(self.conn, probe)?)
    }

    /// A tool spec by its hash, which is computed again.
    pub fn spec(&self, hash: &SpecHash) -> Result<Option<RecordedSpec>, ReadError> {
        specs::get(self.conn, hash)?.transpose().map_err(|()| ReadError::AlteredSpec { hash: hash.clone() })
    }

    /// How a step's last call ended, when a program that keeps endings made it.
    pub fn ending(&self, step: &StepId) -> Result<Option<Ending>, ReadError> {
        Ok(endings::get(self.conn, step)?)
    }

    /// Verifies the events from `from` (below 1: the first) to `to` (below 1: the newest), both included.
    pub fn verify(&self, from: i64, to: i64) -> Result<VerifyReport, ReadError> {
        Ok(head::verify(self.conn, from, to)?)
    }

    /// The newest event's number and hash; zero and nothing when there is none.
    pub fn head(&self) -> Result<Head, ReadError> {
        Ok(head::newest(self.conn)?)
    }

    /// The stored hash of an event.
    pub fn event_hash(&self, seq: i64) -> Result<Option<String>, ReadError> {
        Ok(head::hash_of(self.conn, seq)?)
    }
}
