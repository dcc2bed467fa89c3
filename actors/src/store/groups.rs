//! The table of process groups: what was started and not yet seen to be gone.
//!
//! Written from the threads that watch child processes, on a short-lived connection of its own: a group is recorded
//! while no call waits for it. Its commits are not synced, since power loss ends the groups too.

use std::path::PathBuf;

use rusqlite::{Connection, Row, TransactionBehavior, params};

use super::open;
use crate::connection::{GroupLedger, GroupRecord};
use crate::faults::process::{self, Broken};

/// Where started groups are written down, in the database.
#[derive(Debug, Clone)]
pub struct GroupStore {
    path: PathBuf,
}

impl GroupStore {
    /// The groups of the database at `path`, which a writer must have opened before.
    pub fn new(path: impl Into<PathBuf>) -> GroupStore {
        GroupStore { path: path.into() }
    }

    /// Writes a group down. One that is there already stays as it is.
    pub fn record_group(&self, group: &GroupRecord) -> rusqlite::Result<()> {
        self.write(|conn| {
            conn.execute(
                "INSERT OR IGNORE INTO holdpoint_groups (boot_id, pid_namespace, pgid, leader_start_time, forks_before,
                     owner_pid, owner_start_time, session, server)
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                params![
                    group.boot_id,
                    group.pid_namespace,
                    group.pgid,
                    stored(group.leader_start_time),
                    stored(group.forks_before),
                    group.owner_pid,
                    stored(group.owner_start_time),
                    group.session,
                    group.server,
                ],
            )
        })
    }

    /// Strikes a group out.
    pub fn forget_group(&self, group: &GroupRecord) -> rusqlite::Result<()> {
        if process::is(Broken::GroupKept) {
            return Ok(());
        }
        self.write(|conn| {
            conn.execute(
                "DELETE FROM holdpoint_groups
                 WHERE boot_id = ? AND pid_namespace = ? AND pgid = ? AND leader_start_time = ?",
                params![group.boot_id, group.pid_namespace, group.pgid, stored(group.leader_start_time)],
            )
        })
    }

    /// Every group that is written down.
    pub fn list_groups(&self) -> rusqlite::Result<Vec<GroupRecord>> {
        let conn = open::reader(&self.path)?;
        let mut statement = conn.prepare(
            "SELECT boot_id, pid_namespace, pgid, leader_start_time, forks_before, owner_pid, owner_start_time,
                 session, server
             FROM holdpoint_groups ORDER BY boot_id, pid_namespace, pgid, leader_start_time",
        )?;
        statement.query_map([], decode)?.collect()
    }

    fn write(&self, write: impl FnOnce(&Connection) -> rusqlite::Result<usize>) -> rusqlite::Result<()> {
        let mut conn = open::side_writer(&self.path)?;
        let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
        write(&tx)?;
        tx.commit()
    }
}

impl GroupLedger for GroupStore {
    fn record(&self, group: &GroupRecord) {
        if let Err(error) = self.record_group(group) {
            tracing::warn!(%error, pgid = group.pgid, "a started process group was not written down");
        }
    }

    fn forget(&self, group: &GroupRecord) {
        if let Err(error) = self.forget_group(group) {
            tracing::debug!(%error, pgid = group.pgid, "an ended process group was not struck out");
        }
    }
}

fn decode(row: &Row<'_>) -> rusqlite::Result<GroupRecord> {
    Ok(GroupRecord {
        boot_id: row.get(0)?,
        pid_namespace: row.get(1)?,
        pgid: row.get(2)?,
        leader_start_time: loaded(row.get(3)?),
        forks_before: loaded(row.get(4)?),
        owner_pid: row.get(5)?,
        owner_start_time: loaded(row.get(6)?),
        session: row.get(7)?,
        server: row.get(8)?,
    })
}

/// Counts of ticks and forks never come near the end of the range.
fn stored(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn loaded(count: i64) -> u64 {
    u64::try_from(count).unwrap_or(0)
}
