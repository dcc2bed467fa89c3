//! Stored rows, bent: whatever stands in a column, reading the run ends in an answer, and the chain does not hold when an
//! event was changed.
//!
//! Owns one record with a run of two steps, which is made once; each case bends one column of one row and puts it back.

use std::cell::RefCell;

use holdpoint_actors::session::Verdict;
use holdpoint_actors::store::OperatorStore;
use holdpoint_core::decision::Proposal;
use holdpoint_core::ids::RunId;
use rusqlite::Connection;
use rusqlite::types::Value;

use crate::bench::{Bench, limits};

const RUN: &str = "bent";
const BENT: [(&str, &[&str]); 4] = [
    (
        "runs",
        &[
            "goal",
            "status",
            "reason",
            "limits_json",
            "step_count",
            "created_at",
            "started_at",
            "finished_at",
            "result_json",
            "active_ms",
            "lease_owner",
            "lease_expires_at",
        ],
    ),
    (
        "steps",
        &[
            "idx",
            "status",
            "decision_json",
            "policy_json",
            "observation_json",
            "observation_hash",
            "started_at",
            "finished_at",
            "spec_hash",
            "policy_id",
        ],
    ),
    (
        "approvals",
        &[
            "kind",
            "capability_json",
            "presentation_json",
            "request_json",
            "hash",
            "status",
            "created_at",
            "decided_at",
            "decided_by",
            "expires_at",
        ],
    ),
    ("events", &["run_id", "step_id", "at", "type", "payload_json", "hash"]),
];

struct Record {
    conn: Connection,
    operator: OperatorStore,
    _bench: Bench,
}

thread_local! {
    static RECORD: RefCell<Option<Record>> = const { RefCell::new(None) };
}

/// Bends a column, which the input's length chooses, to the input.
pub(super) fn stored_rows(input: &[u8]) -> Result<(), String> {
    RECORD.with_borrow_mut(|record| {
        if record.is_none() {
            *record = Some(Record::make()?);
        }
        record.as_mut().map_or(Ok(()), |record| record.bend(input))
    })
}

impl Record {
    fn make() -> Result<Record, String> {
        let bench = Bench::new(false)?;
        crate::one_thread()?.block_on(async {
            let running = bench.tree().await?;
            let made = async {
                let session = bench.gate(&running)?.begin(RunId::from(RUN), "g", limits()).await;
                let session = session.map_err(|error| error.to_string())?;
                for args in [r#"{"amount":40}"#, r#"{"amount":"ask"}"#] {
                    let step = session.step().await.map_err(|error| error.to_string())?;
                    let step = step.ok_or("no step was started")?;
                    let verdict = step.propose(Proposal::tool_call("pay", args)).await;
                    if let Verdict::Allowed { .. } = verdict.map_err(|error| error.to_string())? {
                        step.execute().await.map_err(|error| error.to_string())?;
                    }
                }
                Ok::<_, String>(())
            };
            let made = made.await;
            running.tree.stop().await;
            made
        })?;
        let conn = Connection::open(bench.path()).map_err(|error| error.to_string())?;
        conn.pragma_update(None, "foreign_keys", false).map_err(|error| error.to_string())?;
        Ok(Record { conn, operator: bench.operator()?, _bench: bench })
    }

    fn bend(&mut self, input: &[u8]) -> Result<(), String> {
        let sum =
            input.iter().fold(input.len(), |sum, byte| sum.wrapping_mul(31).wrapping_add(usize::from(*byte)));
        let (table, columns) = BENT[sum % BENT.len()];
        let column = columns[sum / BENT.len() % columns.len()];
        let text = String::from_utf8_lossy(input).into_owned();
        let value = match sum % 7 {
            0 => Value::Blob(input.to_vec()),
            1 => Value::Integer(i64::try_from(sum).unwrap_or(i64::MIN)),
            _ => Value::Text(text),
        };
        let first = format!("rowid = (SELECT MIN(rowid) FROM {table})");
        let select = format!("SELECT {column} FROM {table} WHERE {first}");
        let update = format!("UPDATE {table} SET {column} = ? WHERE {first}");
        let read = |conn: &Connection| conn.query_row(&select, [], |row| row.get::<_, Value>(0));
        let before = read(&self.conn).map_err(|error| error.to_string())?;
        if self.conn.execute(&update, [&value]).is_err() {
            // SQLite itself keeps such a value out.
            return Ok(());
        }
        let changed = bytes(&before) != bytes(&value);
        let intact = self.read();
        self.conn.execute(&update, [&before]).map_err(|error| error.to_string())?;
        if intact? && changed && table == "events" {
            return Err(format!("the chain holds although {column} of an event was {before:?}"));
        }
        Ok(())
    }

    /// Reads everything of the run, in any of which an error is an answer; says whether the chain holds.
    fn read(&mut self) -> Result<bool, String> {
        let run = RunId::from(RUN);
        let read = self.operator.read(|reader| {
            drop((reader.run(&run), reader.lease(&run), reader.steps(&run), reader.events(&run)));
            drop((reader.approvals(&run), reader.pending_approvals(), reader.head()));
            reader.verify(0, 0)
        });
        read.map(|verified| verified.broken.is_none()).map_err(|error| error.to_string())
    }
}

/// As the chain sees a value.
fn bytes(value: &Value) -> Vec<u8> {
    match value {
        Value::Null => Vec::new(),
        Value::Integer(number) => number.to_string().into_bytes(),
        Value::Real(number) => number.to_string().into_bytes(),
        Value::Text(text) => text.clone().into_bytes(),
        Value::Blob(bytes) => bytes.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bent_event_is_read_and_breaks_the_chain_until_it_is_put_back() {
        let mut record = Record::make().unwrap();
        assert_eq!(record.read(), Ok(true));
        record.conn.execute("UPDATE events SET type = 'x' WHERE seq = 1", []).unwrap();
        assert_eq!(record.read(), Ok(false));
        record.conn.execute("UPDATE events SET type = 'run.created' WHERE seq = 1", []).unwrap();
        assert_eq!(record.read(), Ok(true));
    }
}
