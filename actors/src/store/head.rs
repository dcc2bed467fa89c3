//! The chain of events as it is stored: its head, and the hashes of its events.
//!
//! Owns how events are read for hashing: one statement over all of them, each hashed where it lies, and one that is too
//! long to be held whole in pieces. What a link is, core says. Fields are taken as bytes, whatever type somebody gave
//! them.

use std::borrow::Cow;
use std::ops::ControlFlow;

use holdpoint_core::chain::{HASH_CHARS_MAX, LinkHasher, Verifier, VerifyReport};
use rusqlite::limits::Limit;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension as _, Row};

/// Events whose hashes are computed before they are written, where there were none.
const BACKFILL: usize = 1_024;
/// Bytes of a field that are held whole.
const WHOLE: i32 = 1 << 20;
/// Bytes of a longer field that one query brings.
const CHUNK: i64 = 65_536;
/// The columns that a hash covers, in its order.
const FIELDS: [&str; 5] = ["run_id", "step_id", "at", "type", "payload_json"];

/// The newest event of a database.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Head {
    /// Its number; zero when there is none.
    pub seq: i64,
    /// Its stored hash, cut to what a hash can be.
    pub hash: String,
}

/// The head that the next event follows. Its number is above every one that was ever given, also to an event since deleted.
pub(super) fn for_append(conn: &Connection) -> rusqlite::Result<Head> {
    conn.prepare_cached(
        "SELECT MAX(COALESCE((SELECT seq FROM sqlite_sequence WHERE name = 'events'), 0),
                    COALESCE((SELECT MAX(seq) FROM events), 0)),
                COALESCE((SELECT hash FROM events ORDER BY seq DESC LIMIT 1), '')",
    )?
    .query_row([], |row| Ok(Head { seq: row.get(0)?, hash: row.get(1)? }))
}

/// The newest event.
pub(super) fn newest(conn: &Connection) -> rusqlite::Result<Head> {
    conn.query_row(
        "SELECT seq, substr(hash, 1, ?) FROM events ORDER BY seq DESC LIMIT 1",
        [hash_chars()],
        |row| Ok(Head { seq: row.get(0)?, hash: row.get(1)? }),
    )
    .optional()
    .map(Option::unwrap_or_default)
}

/// The stored hash of one event.
pub(super) fn hash_of(conn: &Connection, seq: i64) -> rusqlite::Result<Option<String>> {
    conn.query_row("SELECT substr(hash, 1, ?) FROM events WHERE seq = ?", (hash_chars(), seq), |row| {
        row.get(0)
    })
    .optional()
}

/// Gives every event its hash, from an empty one on: the same events always get the same hashes.
pub(super) fn backfill(conn: &Connection) -> rusqlite::Result<()> {
    let (mut previous, mut next) = (String::new(), i64::MIN);
    loop {
        let mut hashes = Vec::new();
        walk(conn, next, i64::MAX, |event| {
            previous = event.hash_after(conn, &previous)?;
            hashes.push((event.seq, previous.clone()));
            let full = hashes.len() == BACKFILL;
            Ok(if full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        let Some((last, _)) = hashes.last() else { return Ok(()) };
        next = last.saturating_add(1);
        let mut statement = conn.prepare_cached("UPDATE events SET hash = ? WHERE seq = ?")?;
        for (seq, hash) in &hashes {
            statement.execute((hash, seq))?;
        }
    }
}

/// Verifies the events from `from` (below 1: the first) to `to` (below 1: the newest), both included.
pub(super) fn verify(conn: &Connection, from: i64, to: i64) -> rusqlite::Result<VerifyReport> {
    let from = from.max(1);
    let to = if to < 1 { newest(conn)?.seq } else { to };
    if to < from {
        return Ok(VerifyReport::default());
    }
    let before: Option<(i64, String)> = conn
        .query_row(
            "SELECT seq, substr(hash, 1, ?) FROM events WHERE seq < ? ORDER BY seq DESC LIMIT 1",
            (hash_chars(), from),
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .optional()?
        .filter(|_| from > 1);
    let mut verifier = Verifier::new(from, before.as_ref().map(|(seq, hash)| (*seq, hash.as_str())));
    walk(conn, from, to, |event| {
        let expected = event.hash_after(conn, verifier.previous_hash())?;
        let follows = verifier.next_link(event.seq, expected, &event.hash).is_ok();
        Ok(if follows { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })?;
    Ok(verifier.finish())
}

/// One event as the chain reads it.
struct Link<'r> {
    seq: i64,
    /// Its stored hash.
    hash: Cow<'r, str>,
    /// The fields that the hash covers; `None` where one of them is not held whole, or is no text.
    fields: Option<[&'r [u8]; FIELDS.len()]>,
}

/// Shows `take` the events from `from` to `to`, in order, until it breaks off.
fn walk(
    conn: &Connection,
    mut from: i64,
    to: i64,
    mut take: impl FnMut(&Link<'_>) -> rusqlite::Result<ControlFlow<()>>,
) -> rusqlite::Result<()> {
    loop {
        match walk_whole(conn, &mut from, to, &mut take) {
            Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::TooBig) => {}
            over => return over,
        }
        // The next event is longer than may be held. What is asked of it here does not touch what is long.
        let long = conn
            .prepare_cached(
                "SELECT seq, CAST(substr(hash, 1, ?) AS TEXT) FROM events WHERE seq >= ? AND seq <= ?
                 ORDER BY seq LIMIT 1",
            )?
            .query_row((hash_chars(), from, to), |row| {
                Ok((
                    row.get(0)?,
                    String::from_utf8_lossy(bytes(row.get_ref(1)?).unwrap_or_default()).into_owned(),
                ))
            })
            .optional()?;
        let Some((seq, hash)) = long else { return Ok(()) };
        if take(&Link { seq, hash: hash.into(), fields: None })?.is_break() || seq == to {
            return Ok(());
        }
        from = seq + 1;
    }
}

/// As [`walk`], up to the first event that is too long, which is an error; `from` is then that event, or before it.
fn walk_whole(
    conn: &Connection,
    from: &mut i64,
    to: i64,
    take: &mut impl FnMut(&Link<'_>) -> rusqlite::Result<ControlFlow<()>>,
) -> rusqlite::Result<()> {
    let mut statement = conn.prepare_cached(&format!(
        "SELECT seq, hash, {} FROM events WHERE seq >= ? AND seq <= ? ORDER BY seq",
        FIELDS.join(", ")
    ))?;
    // SQLite then refuses to bring a longer one, which costs nothing where there is none.
    let limit = Limited::to(conn, WHOLE)?;
    let mut rows = statement.query((*from, to))?;
    while let Some(row) = rows.next()? {
        let link = Link::of(row)?;
        let broke_off = match link.fields {
            Some(_) => take(&link)?,
            None => limit.lifted(|| take(&link))?,
        };
        if broke_off.is_break() || link.seq == i64::MAX {
            return Ok(());
        }
        *from = link.seq + 1;
    }
    Ok(())
}

/// Keeps a connection from bringing long values, until it is dropped.
struct Limited<'c> {
    conn: &'c Connection,
    limit: i32,
    before: i32,
}

impl<'c> Limited<'c> {
    fn to(conn: &'c Connection, limit: i32) -> rusqlite::Result<Limited<'c>> {
        Ok(Limited { conn, limit, before: conn.set_limit(Limit::SQLITE_LIMIT_LENGTH, limit)? })
    }

    fn lifted<T>(&self, act: impl FnOnce() -> rusqlite::Result<T>) -> rusqlite::Result<T> {
        self.conn.set_limit(Limit::SQLITE_LIMIT_LENGTH, self.before)?;
        let done = act();
        self.conn.set_limit(Limit::SQLITE_LIMIT_LENGTH, self.limit)?;
        done
    }
}

impl Drop for Limited<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.conn.set_limit(Limit::SQLITE_LIMIT_LENGTH, self.before) {
            tracing::warn!(%error, "a connection goes on refusing long values");
        }
    }
}

impl<'r> Link<'r> {
    fn of(row: &'r Row<'_>) -> rusqlite::Result<Link<'r>> {
        let mut fields = [&[][..]; FIELDS.len()];
        let mut whole = true;
        for (at, field) in fields.iter_mut().enumerate() {
            match bytes(row.get_ref(2 + at)?) {
                Some(bytes) => *field = bytes,
                None => whole = false,
            }
        }
        let hash = match row.get_ref(1)? {
            ValueRef::Integer(number) => number.to_string().into(),
            ValueRef::Real(number) => number.to_string().into(),
            other @ (ValueRef::Null | ValueRef::Text(_) | ValueRef::Blob(_)) => {
                String::from_utf8_lossy(bytes(other).unwrap_or_default())
            }
        };
        Ok(Link { seq: row.get(0)?, hash, fields: whole.then_some(fields) })
    }

    fn hash_after(&self, conn: &Connection, previous: &str) -> rusqlite::Result<String> {
        let mut hasher = LinkHasher::new(previous, self.seq);
        match self.fields {
            Some(fields) => fields.iter().for_each(|field| hasher.field(field)),
            None => FIELDS.iter().try_for_each(|field| in_pieces(conn, field, self.seq, &mut hasher))?,
        }
        Ok(hasher.finish())
    }
}

/// The bytes of a text or a blob; `None` of a number, whose bytes are those of its text.
fn bytes(value: ValueRef<'_>) -> Option<&[u8]> {
    match value {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Some(bytes),
        ValueRef::Null => Some(&[]),
        ValueRef::Integer(_) | ValueRef::Real(_) => None,
    }
}

/// Hashes a field piece by piece.
fn in_pieces(conn: &Connection, field: &str, seq: i64, hasher: &mut LinkHasher) -> rusqlite::Result<()> {
    let length: i64 = conn
        .prepare_cached(&format!("SELECT COALESCE(octet_length({field}), 0) FROM events WHERE seq = ?"))?
        .query_row([seq], |row| row.get(0))?;
    hasher.begin_field(u64::try_from(length).unwrap_or(0));
    let mut read = 0;
    while read < length {
        let chunk = chunk(conn, field, seq, read)?;
        hasher.chunk(&chunk);
        read = read.saturating_add(i64::try_from(chunk.len()).unwrap_or(i64::MAX));
    }
    hasher.end_field();
    Ok(())
}

/// Bytes of a field from `offset` on, at least one.
fn chunk(conn: &Connection, field: &str, seq: i64, offset: i64) -> rusqlite::Result<Vec<u8>> {
    let sql = format!("SELECT substr(CAST({field} AS BLOB), ?, ?) FROM events WHERE seq = ?");
    let chunk: Vec<u8> = conn.prepare_cached(&sql)?.query_row((offset + 1, CHUNK, seq), |row| row.get(0))?;
    // The length and the bytes are read in one transaction, so there is always a next byte.
    if chunk.is_empty() { Err(rusqlite::Error::QueryReturnedNoRows) } else { Ok(chunk) }
}

fn hash_chars() -> i64 {
    i64::try_from(HASH_CHARS_MAX).unwrap_or(i64::MAX)
}
