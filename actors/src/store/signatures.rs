//! The table of signatures that the approval channel has taken, so that none is taken twice, by whoever serves it and
//! however often it is started.
//!
//! Bounded and pruned: a signature is kept for as long as its request's time is acceptable, and no longer. What was pruned
//! leaves its newest time behind; nothing of that time or before is taken any more, so that a clock that is set back and
//! a server that accepts older requests bring no request back. Each call opens the file anew, writes synced and waits on
//! nobody but SQLite: call it from a thread that may block.

use std::path::{Path, PathBuf};

use holdpoint_core::time::UnixNanos;
use rusqlite::{Connection, TransactionBehavior};

use super::open::{self, OpenError};
use super::schema;

/// What is known of a signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// It was not seen before; it is now, and that is on disk.
    First,
    /// It was seen before.
    Again,
    /// Its time is one whose signatures may be forgotten already.
    Forgotten,
    /// As many as are allowed are remembered; it is not.
    Full,
}

/// A signed request, as far as this table is concerned.
#[derive(Debug, Clone, Copy)]
pub struct SignedRequest<'a> {
    /// The signature's bytes.
    pub signature: &'a [u8],
    /// The request's own time, in Unix seconds.
    pub at: i64,
    /// The oldest time that is acceptable now. What is older is pruned.
    pub oldest: i64,
    /// How many signatures may be remembered.
    pub most: usize,
}

/// Why a signature was not looked up. It must be taken for one that was seen.
#[derive(Debug, thiserror::Error)]
pub enum SignatureError {
    /// The database can't be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// SQLite refused.
    #[error("remember a signature: {0}")]
    Sql(#[from] rusqlite::Error),
}

/// The signatures that are remembered in one database.
#[derive(Debug, Clone)]
pub struct SignatureStore {
    path: PathBuf,
}

impl SignatureStore {
    /// Opens the table in a database that exists, in the version of this build, and makes it when it is missing: in a
    /// file of the reference's, or of an earlier version. Nothing else of the file is migrated.
    ///
    /// # Errors
    /// When the database is refused, with one sentence that says what to do.
    pub fn open(path: &Path, now: UnixNanos) -> Result<SignatureStore, OpenError> {
        let mut conn = open::existing_writer(path)?;
        schema::migrate_own(&mut conn, path, now).map_err(|error| OpenError::schema(path, error))?;
        Ok(SignatureStore { path: path.to_owned() })
    }

    /// Remembers a signature, unless it was seen before.
    ///
    /// # Errors
    /// When that can't be known or written.
    pub fn take(&self, request: &SignedRequest<'_>) -> Result<Taken, SignatureError> {
        let mut conn = open::existing_writer(&self.path)?;
        let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let horizon = prune(&tx, request.oldest)?;
        if request.at <= horizon {
            return Ok(Taken::Forgotten);
        }
        if is_known(&tx, request.signature)? {
            return Ok(Taken::Again);
        }
        let count: i64 = tx.query_row("SELECT COUNT(*) FROM holdpoint_signatures", [], |row| row.get(0))?;
        if usize::try_from(count).is_ok_and(|count| count >= request.most) {
            return Ok(Taken::Full);
        }
        tx.execute(
            "INSERT INTO holdpoint_signatures (signature, at) VALUES (?, ?)",
            (request.signature, request.at),
        )?;
        tx.commit()?;
        Ok(Taken::First)
    }
}

/// Deletes what is older than `oldest`; gives the newest time of all that was ever deleted.
fn prune(conn: &Connection, oldest: i64) -> rusqlite::Result<i64> {
    let gone: Option<i64> =
        conn.query_row("SELECT MAX(at) FROM holdpoint_signatures WHERE at < ?", [oldest], |row| row.get(0))?;
    if let Some(gone) = gone {
        conn.execute("DELETE FROM holdpoint_signatures WHERE at < ?", [oldest])?;
        conn.execute("UPDATE holdpoint_signature_horizon SET at = MAX(at, ?)", [gone])?;
    }
    conn.query_row("SELECT at FROM holdpoint_signature_horizon", [], |row| row.get(0))
}

fn is_known(conn: &Connection, signature: &[u8]) -> rusqlite::Result<bool> {
    conn.query_row(
        "SELECT EXISTS (SELECT 1 FROM holdpoint_signatures WHERE signature = ?)",
        [signature],
        |row| row.get(0),
    )
}
