//! The table of endings: how each step's last call ended, as a type. Ours; a file of another program has none.

use holdpoint_core::attempt::Ending;
use holdpoint_core::ids::StepId;
use holdpoint_core::transition::EndingWrite;
use rusqlite::{Connection, OptionalExtension as _};

use super::schema::has_table;

/// Keeps an ending. A step that is executed again has the ending of its last call.
pub(super) fn keep(conn: &Connection, ending: &EndingWrite) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "INSERT INTO holdpoint_endings (step_id, ending) VALUES (?, ?)
         ON CONFLICT (step_id) DO UPDATE SET ending = excluded.ending",
    )?
    .execute((ending.step_id.as_str(), ending.ending.as_str()))
    .map(|_| ())
}

/// How the step's last call ended, when one of ours made it. An ending that a newer build coined is none.
pub(super) fn get(conn: &Connection, step: &StepId) -> rusqlite::Result<Option<Ending>> {
    let query = || {
        conn.prepare_cached("SELECT ending FROM holdpoint_endings WHERE step_id = ?")?
            .query_row([step.as_str()], |row| row.get::<_, String>(0))
            .optional()
    };
    match query() {
        Ok(text) => Ok(text.and_then(|text| Ending::parse(&text))),
        // A file that only the reference ever wrote.
        Err(_) if !has_table(conn, "holdpoint_endings")? => Ok(None),
        Err(e) => Err(e),
    }
}
