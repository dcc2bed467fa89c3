//! Group commit: everything that waits, in one transaction, answered after its commit.
//!
//! Owns the transaction of a batch and its durability class, which is chosen before BEGIN because SQLite can't change it
//! inside. Guards read before the first write of their member, so a refused one costs its neighbours nothing. An SQL
//! error rolls the batch back, and it is tried once more with a savepoint for each member. Never waits for work and
//! never looks at a queue: the thread does.

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use holdpoint_core::transition::Durability;
use rusqlite::Connection;
use rusqlite::config::DbConfig;

use super::apply::{Applier, Stamp, Written};
use super::fault::Fault;
use super::faults::{Faults, Point};
use super::guards::Halt;
use super::head::Head;
use super::job::{ApplyError, Job, NotApplied};
use super::log;
use crate::clock::{self, Clock};
use crate::faults::process::{self, Broken};

/// What a deliberately broken build says of a lease that was not written.
const LEASE_TOLD: Duration = Duration::from_secs(3);

/// The write connection and what is remembered of it.
#[derive(Debug)]
pub(super) struct Connected {
    conn: Connection,
    applier: Applier,
    /// What `PRAGMA synchronous` says now.
    class: Durability,
    faults: Faults,
    /// Whether a batch is left uncommitted, which only a deliberately broken build does.
    withholds: bool,
}

/// A batch that is over: committed, or nothing but refusals.
#[derive(Debug)]
pub(super) struct Done {
    /// For each member, in order.
    pub(super) results: Vec<Result<Written, ApplyError>>,
    pub(super) stamp: Stamp,
    /// The class of its commit; `None` when there was nothing to commit.
    pub(super) committed: Option<Durability>,
    /// The number of its newest event, when that is known.
    pub(super) newest_seq: Option<i64>,
}

impl Done {
    /// What a deliberately broken build makes of a batch that was not committed.
    pub(super) fn as_if_committed(jobs: &[Job], clock: &dyn Clock) -> Done {
        let stamp = Stamp { monotonic: clock::monotonic(), wall: clock.now() };
        let written =
            || Written { seqs: Range::default(), lease_expires_at: Some(stamp.wall.plus(LEASE_TOLD)) };
        let results = jobs.iter().map(|_| Ok(written())).collect();
        Done { results, stamp, committed: Some(Durability::Synced), newest_seq: None }
    }
}

impl Connected {
    /// Takes a connection that commits with a sync.
    pub(super) fn new(conn: Connection, faults: Faults) -> Connected {
        Connected { conn, applier: Applier::default(), class: Durability::Synced, faults, withholds: false }
    }

    /// Runs a batch. After an error nothing of it is committed, unless the error ends the writer.
    pub(super) fn run(&mut self, jobs: &[Job], clock: &dyn Clock) -> rusqlite::Result<Done> {
        self.attempt(jobs, clock, false)
    }

    /// Runs a batch again that failed with an SQL error: whoever is at fault fails alone.
    pub(super) fn replay(&mut self, jobs: &[Job], clock: &dyn Clock) -> rusqlite::Result<Done> {
        self.attempt(jobs, clock, true)
    }

    /// Commits one row with a sync, and so everything before it; gives the newest event.
    pub(super) fn flush(&mut self) -> rusqlite::Result<Head> {
        self.set_class(Durability::Synced)?;
        self.say("BEGIN IMMEDIATE")?;
        let committed = self.touch_and_commit();
        self.settle(committed)
    }

    /// The newest event, read outside any transaction of ours.
    pub(super) fn newest(&self) -> rusqlite::Result<Head> {
        super::head::newest(&self.conn)
    }

    /// Copies the log into the database where no reader is in the way.
    pub(super) fn checkpoint_passive(&mut self) -> rusqlite::Result<()> {
        process::reach("checkpoint.before");
        if process::is(Broken::CheckpointUnsynced) {
            self.conn.execute_batch("PRAGMA synchronous = OFF")?;
        }
        self.conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?;
        if process::is(Broken::CheckpointUnsynced) {
            self.class = Durability::Written;
            self.conn.execute_batch("PRAGMA synchronous = NORMAL")?;
        }
        process::reach("checkpoint.after");
        Ok(())
    }

    /// The pages of the log, those that are copied already included.
    pub(super) fn log_pages(&self) -> rusqlite::Result<i64> {
        // It does nothing, and says how things are; while somebody else copies, it says -1.
        self.conn.prepare_cached("PRAGMA wal_checkpoint(NOOP)")?.query_row([], |row| row.get(1))
    }

    /// Copies the whole log into the database, syncs it and empties the log. False when a reader was in the way.
    pub(super) fn checkpoint_truncate(&self) -> rusqlite::Result<bool> {
        self.conn
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0))
            .map(|busy| busy == 0)
    }

    /// Gives the log of the database at `path` a length.
    pub(super) fn lengthen_log(&self, path: &Path, bytes: u64) {
        log::lengthen(&self.conn, path, bytes);
    }

    /// Makes closing the connection leave the log as it is.
    pub(super) fn leave_log_alone(&self) {
        if let Err(error) = self.conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true) {
            tracing::warn!(%error, "the log may be copied as the connection closes");
        }
    }

    fn touch_and_commit(&mut self) -> rusqlite::Result<Head> {
        self.applier.begun(&self.conn)?;
        let head = self.applier.head(&self.conn)?;
        self.conn.prepare_cached("UPDATE holdpoint_sync SET times = times + 1 WHERE id = 1")?.execute([])?;
        self.faults.at(Point::Flush)?;
        process::reach("flush.written");
        self.conn.execute_batch("COMMIT")?;
        process::reach("flush.committed");
        self.applier.committed();
        Ok(head)
    }

    fn attempt(&mut self, jobs: &[Job], clock: &dyn Clock, savepoints: bool) -> rusqlite::Result<Done> {
        let class = jobs.iter().map(|job| job.transition().durability).max().unwrap_or(Durability::Written);
        self.faults.limit(&self.conn)?;
        self.set_class(class)?;
        self.say("BEGIN IMMEDIATE")?;
        let stamp = Stamp { monotonic: clock::monotonic(), wall: clock.now() };
        let done = self.write_and_commit(jobs, stamp, savepoints);
        self.settle(done)
    }

    /// Executes a statement that is prepared once.
    fn say(&self, sql: &'static str) -> rusqlite::Result<()> {
        self.conn.prepare_cached(sql)?.execute([]).map(drop)
    }

    /// Rolls back what an error left open.
    fn settle<T>(&mut self, result: rusqlite::Result<T>) -> rusqlite::Result<T> {
        if result.is_err() {
            if !self.conn.is_autocommit() {
                // SQLite rolls back by itself where this fails.
                drop(self.conn.execute_batch("ROLLBACK"));
            }
            self.applier.rolled_back();
        }
        result
    }

    fn write_and_commit(&mut self, jobs: &[Job], stamp: Stamp, savepoints: bool) -> rusqlite::Result<Done> {
        self.applier.begun(&self.conn)?;
        process::reach_each("begun", kinds(jobs));
        let mut results = Vec::with_capacity(jobs.len());
        for job in jobs {
            results.push(if savepoints { self.member_alone(job, stamp)? } else { self.member(job, stamp)? });
        }
        if !results.iter().any(Result::is_ok) {
            self.say("ROLLBACK")?;
            self.applier.rolled_back();
            return Ok(Done { results, stamp, committed: None, newest_seq: None });
        }
        self.faults.at(Point::Commit)?;
        process::reach_each("written", kinds(jobs));
        if !self.withholds {
            self.say("COMMIT")?;
            process::reach_each("committed", kinds(jobs));
        }
        self.applier.committed();
        let newest_seq = results.iter().rev().flatten().find_map(|written| written.seqs.clone().next_back());
        Ok(Done { results, stamp, committed: Some(self.class), newest_seq })
    }

    /// Runs a batch and does not commit it. Only a deliberately broken build does this.
    pub(super) fn run_uncommitted(&mut self, jobs: &[Job], clock: &dyn Clock) -> rusqlite::Result<Done> {
        self.withholds = true;
        let done = self.run(jobs, clock);
        self.withholds = false;
        done
    }

    /// Commits what [`Connected::run_uncommitted`] left.
    pub(super) fn commit_withheld(&mut self, kinds: &[&'static str]) -> rusqlite::Result<()> {
        process::reach_each("withheld", kinds.iter().copied());
        if self.conn.is_autocommit() { Ok(()) } else { self.conn.execute_batch("COMMIT") }
    }

    fn member(&mut self, job: &Job, stamp: Stamp) -> rusqlite::Result<Result<Written, ApplyError>> {
        match self.applier.apply(&self.conn, job.transition(), stamp) {
            Ok(written) => Ok(Ok(written)),
            Err(Halt::Refused(refusal)) => Ok(Err(refusal.into())),
            Err(Halt::Sql(error)) => Err(error),
        }
    }

    fn member_alone(&mut self, job: &Job, stamp: Stamp) -> rusqlite::Result<Result<Written, ApplyError>> {
        self.conn.execute_batch("SAVEPOINT member")?;
        let mark = self.applier.mark();
        let result = match self.member(job, stamp) {
            Ok(result) => result,
            // Only what is wrong with the member's own rows is its own: anything else concerns them all, and some of
            // it has ended the whole transaction.
            Err(error) if Fault::of(&error) == Fault::Statement && !self.conn.is_autocommit() => {
                self.conn.execute_batch("ROLLBACK TO member")?;
                self.applier.back_to(mark);
                Err(NotApplied::Rows(error.to_string()).into())
            }
            Err(error) => return Err(error),
        };
        self.conn.execute_batch("RELEASE member")?;
        Ok(result)
    }

    fn set_class(&mut self, class: Durability) -> rusqlite::Result<()> {
        if self.class != class {
            let synchronous = match class {
                // In WAL mode this syncs no commit, only the log before a checkpoint.
                Durability::Written => "NORMAL",
                Durability::Synced if process::is(Broken::SyncOff) => "NORMAL",
                Durability::Synced => "FULL",
            };
            self.conn.execute_batch(&format!("PRAGMA synchronous = {synchronous}"))?;
            self.class = class;
        }
        Ok(())
    }
}

/// The kinds of the events of a batch, in order.
fn kinds(jobs: &[Job]) -> impl Iterator<Item = &'static str> {
    jobs.iter().flat_map(|job| &job.transition().events).map(|event| event.kind.as_str())
}
