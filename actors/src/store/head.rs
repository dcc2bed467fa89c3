//! The chain of events as it is stored: its head, and the hashes of a page of events.
//!
//! Owns how events are read for hashing: a page at a time, the first bytes of each field inline and the rest in
//! chunks, so that no event, however large, is held whole. What a link is, core says. Fields are taken as bytes,
//! whatever type somebody gave them.

use holdpoint_core::chain::{HASH_CHARS_MAX, LinkHasher, Verifier, VerifyReport};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension as _};

/// Events that one query brings.
const PAGE: usize = 128;
/// Bytes of each field that a page brings.
const INLINE: usize = 4_096;
/// Bytes of all fields of a usual event.
const USUAL: usize = 512;
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
    let (mut previous, mut from) = (String::new(), 1);
    loop {
        let page = page(conn, from, i64::MAX)?;
        for link in &page {
            previous = link.hash_after(conn, &previous)?;
            conn.prepare_cached("UPDATE events SET hash = ? WHERE seq = ?")?
                .execute((&previous, link.seq))?;
        }
        match page.last() {
            Some(last) if page.len() == PAGE => from = last.seq.saturating_add(1),
            Some(_) | None => return Ok(()),
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
    let mut next = from;
    loop {
        let page = page(conn, next, to)?;
        for link in &page {
            let expected = link.hash_after(conn, verifier.previous_hash())?;
            if verifier.next_link(link.seq, expected, &link.stored_hash).is_err() {
                return Ok(verifier.finish());
            }
        }
        match page.last() {
            Some(last) if page.len() == PAGE && last.seq < to => next = last.seq + 1,
            Some(_) | None => return Ok(verifier.finish()),
        }
    }
}

/// One event as the chain reads it.
struct Link {
    seq: i64,
    stored_hash: String,
    /// What is at hand of the fields, one after the other: one allocation an event, of which a record has millions.
    inline: Vec<u8>,
    fields: [Field; FIELDS.len()],
}

#[derive(Default)]
struct Field {
    length: i64,
    /// Where its part of the bytes at hand ends.
    inline_end: usize,
}

fn page(conn: &Connection, from: i64, to: i64) -> rusqlite::Result<Vec<Link>> {
    let mut sql = format!("SELECT seq, CAST(substr(hash, 1, {HASH_CHARS_MAX}) AS BLOB)");
    for field in FIELDS {
        // A text of usual length is handed over as it lies there; a cast would copy it, twice.
        sql.push_str(&format!(
            ", octet_length({field}), CASE WHEN octet_length({field}) <= {INLINE} THEN {field} \
             ELSE substr(CAST({field} AS BLOB), 1, {INLINE}) END"
        ));
    }
    sql.push_str(" FROM events WHERE seq >= ? AND seq <= ? ORDER BY seq LIMIT ?");
    let mut statement = conn.prepare_cached(&sql)?;
    let mut rows = statement.query((from, to, i64::try_from(PAGE).unwrap_or(i64::MAX)))?;
    let mut links = Vec::new();
    while let Some(row) = rows.next()? {
        let mut link = Link {
            seq: row.get(0)?,
            stored_hash: String::from_utf8_lossy(bytes(row.get_ref(1)?)).into_owned(),
            inline: Vec::with_capacity(USUAL),
            fields: Default::default(),
        };
        for (i, field) in link.fields.iter_mut().enumerate() {
            field.length = row.get(2 + 2 * i)?;
            link.inline.extend_from_slice(bytes(row.get_ref(3 + 2 * i)?));
            field.inline_end = link.inline.len();
        }
        links.push(link);
    }
    Ok(links)
}

fn bytes(value: ValueRef<'_>) -> &[u8] {
    match value {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => bytes,
        ValueRef::Null | ValueRef::Integer(_) | ValueRef::Real(_) => &[],
    }
}

impl Link {
    fn hash_after(&self, conn: &Connection, previous: &str) -> rusqlite::Result<String> {
        let mut hasher = LinkHasher::new(previous, self.seq);
        let mut begin = 0;
        for (name, field) in FIELDS.iter().zip(&self.fields) {
            hasher.begin_field(u64::try_from(field.length).unwrap_or(0));
            hasher.chunk(&self.inline[begin..field.inline_end]);
            let mut read = i64::try_from(field.inline_end - begin).unwrap_or(i64::MAX);
            begin = field.inline_end;
            while read < field.length {
                let chunk = chunk(conn, name, self.seq, read)?;
                hasher.chunk(&chunk);
                read = read.saturating_add(i64::try_from(chunk.len()).unwrap_or(i64::MAX));
            }
            hasher.end_field();
        }
        Ok(hasher.finish())
    }
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
