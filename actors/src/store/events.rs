//! The table of events: appending in the chain's order, and reading.

use std::ops::Range;
use std::sync::LazyLock;

use holdpoint_core::chain::{ChainedEvent, link};
use holdpoint_core::event::{Event, NewEvent};
use holdpoint_core::ids::{RunId, StepId};
use holdpoint_core::time::UnixNanos;
use holdpoint_core::transition::Probe;
use rusqlite::{Connection, Row};

use super::column::Columns;
use super::head::Head;
use crate::faults::process::{self, Broken};

/// Rows of one statement. A call's intent has six events, its outcome two or three; a statement is prepared for each number.
const ROWS_MAX: usize = 8;

/// The statements that insert one row, two, and so on.
static INSERTS: LazyLock<[String; ROWS_MAX]> = LazyLock::new(|| {
    std::array::from_fn(|more| {
        let rows = vec!["(?, ?, ?, ?, ?, ?, ?)"; more + 1].join(", ");
        format!("INSERT INTO events (seq, run_id, step_id, at, type, payload_json, hash) VALUES {rows}")
    })
});

/// Appends events after `head`, in order, and moves the head on to the last; gives their numbers.
///
/// Several go into one statement: each statement looks up and writes the table's highest number, and costs as much again
/// to begin and to end as a row does.
pub(super) fn append<'e>(
    conn: &Connection,
    head: &mut Head,
    events: impl Iterator<Item = &'e NewEvent>,
) -> rusqlite::Result<Range<i64>> {
    let events: Vec<&NewEvent> = events.collect();
    // Events of one transition mostly have one time, or two.
    let mut written_at = (UnixNanos::from_nanos(0), String::new());
    let first = head.seq + 1;
    for some in events.chunks(ROWS_MAX) {
        let mut insert = conn.prepare_cached(&INSERTS[some.len() - 1])?;
        let mut column = 0;
        for event in some {
            if written_at.0 != event.at || written_at.1.is_empty() {
                written_at = (event.at, event.at.to_rfc3339());
            }
            let step_id = event.step_id.as_ref().map_or("", StepId::as_str);
            let chained = ChainedEvent {
                seq: head.seq + 1,
                run_id: event.run_id.as_str(),
                step_id,
                at: &written_at.1,
                kind: event.kind.as_str(),
                payload_json: &event.payload,
            };
            let previous = if process::is(Broken::Unchained) { "" } else { &head.hash };
            let hash = link(previous, &chained);
            let texts = [chained.run_id, step_id, chained.at, chained.kind, chained.payload_json, &hash];
            insert.raw_bind_parameter(column + 1, chained.seq)?;
            for (text, nth) in texts.into_iter().zip(column + 2..) {
                insert.raw_bind_parameter(nth, text)?;
            }
            column += 1 + texts.len();
            *head = Head { seq: chained.seq, hash };
        }
        insert.raw_execute()?;
    }
    Ok(first..head.seq + 1)
}

/// The events of a run, in order.
pub(super) fn of_run(conn: &Connection, run: &RunId) -> rusqlite::Result<Vec<Event>> {
    conn.prepare_cached(
        "SELECT seq, run_id, step_id, at, type, payload_json FROM events WHERE run_id = ? ORDER BY seq",
    )?
    .query_map([run.as_str()], |row| Ok(decode(row)))?
    .collect()
}

/// The events of a step, in order.
pub(super) fn of_step(conn: &Connection, run: &RunId, step: &StepId) -> rusqlite::Result<Vec<Event>> {
    conn.prepare_cached(
        "SELECT seq, run_id, step_id, at, type, payload_json FROM events
         WHERE run_id = ? AND step_id = ? ORDER BY seq",
    )?
    .query_map((run.as_str(), step.as_str()), |row| Ok(decode(row)))?
    .collect()
}

/// Whether the event is in the record.
pub(super) fn holds(conn: &Connection, probe: &Probe) -> rusqlite::Result<bool> {
    conn.prepare_cached(
        "SELECT EXISTS (SELECT 1 FROM events
             WHERE run_id = ? AND step_id = ? AND type = ? AND at = ? AND payload_json = ?)",
    )?
    .query_row(
        (
            probe.run_id.as_str(),
            probe.step_id.as_ref().map_or("", StepId::as_str),
            probe.kind,
            probe.at.to_rfc3339(),
            &probe.payload,
        ),
        |row| row.get(0),
    )
}

/// Reads the six columns that [`of_run`] selects. A time that can't be read is none.
pub(super) fn decode(row: &Row<'_>) -> Event {
    let mut c = Columns::of(row);
    Event {
        seq: c.int(0, "seq"),
        run_id: RunId::from(c.text(1, "run_id")),
        step_id: c.text(2, "step_id"),
        at: UnixNanos::parse(&c.text(3, "at")).ok(),
        kind: c.text(4, "type"),
        payload: c.text(5, "payload_json"),
    }
}
