//! The table of tool specs: each distinct one once, under the hash of its canonical form.

use holdpoint_core::hash::sha256_hex;
use holdpoint_core::ids::SpecHash;
use holdpoint_core::json::Json;
use holdpoint_core::tool::RecordedSpec;
use rusqlite::{Connection, OptionalExtension as _};

pub(super) fn keep(conn: &Connection, spec: &RecordedSpec) -> rusqlite::Result<()> {
    conn.prepare_cached("INSERT OR IGNORE INTO tool_specs (hash, spec_json) VALUES (?, ?)")?
        .execute((spec.hash.as_str(), spec.canonical.as_str()))
        .map(|_| ())
}

/// A spec as it was kept, or `Err` when it no longer has the hash that it is kept under.
pub(super) fn get(conn: &Connection, hash: &SpecHash) -> rusqlite::Result<Option<Result<RecordedSpec, ()>>> {
    let text: Option<String> = conn
        .prepare_cached("SELECT spec_json FROM tool_specs WHERE hash = ?")?
        .query_row([hash.as_str()], |row| row.get(0))
        .optional()?;
    Ok(text.map(|text| {
        if sha256_hex(text.as_bytes()) == hash.as_str() {
            Ok(RecordedSpec { hash: hash.clone(), canonical: Json::trusted(text) })
        } else {
            Err(())
        }
    }))
}
