//! The table of events: appending in the chain's order, and reading.

use holdpoint_core::chain::{ChainedEvent, link};
use holdpoint_core::event::{Event, NewEvent};
use holdpoint_core::ids::{RunId, StepId};
use holdpoint_core::time::UnixNanos;
use holdpoint_core::transition::Probe;
use rusqlite::{Connection, Row, params};

use super::column::Columns;
use super::head::Head;
use crate::faults::process::{self, Broken};

/// Appends events after `head`, in order, and moves the head on to the last.
pub(super) fn append<'e>(
    conn: &Connection,
    head: &mut Head,
    events: impl Iterator<Item = &'e NewEvent>,
) -> rusqlite::Result<Vec<Event>> {
    let mut insert = conn.prepare_cached(
        "INSERT INTO events (seq, run_id, step_id, at, type, payload_json, hash) VALUES (?, ?, ?, ?, ?, ?, ?)",
    )?;
    // Events of one transition mostly have one time, or two.
    let mut written_at = (UnixNanos::from_nanos(0), String::new());
    let mut appended = Vec::with_capacity(events.size_hint().0);
    for event in events {
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
        insert.execute(params![
            chained.seq,
            chained.run_id,
            chained.step_id,
            chained.at,
            chained.kind,
            chained.payload_json,
            hash
        ])?;
        *head = Head { seq: chained.seq, hash };
        appended.push(Event {
            seq: head.seq,
            run_id: event.run_id.clone(),
            step_id: step_id.to_owned(),
            at: Some(event.at),
            kind: event.kind.as_str().to_owned(),
            payload: event.payload.clone(),
        });
    }
    Ok(appended)
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
