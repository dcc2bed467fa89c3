//! Rows of finished, waiting or interrupted calls, as a real proxy wrote them, and copies of them under other ids: one
//! call's rows are what a commit costs, and many make a file as years of use would.

use std::path::Path;

use holdpoint_core::chain::{ChainedEvent, link};
use holdpoint_core::hash::sha256_hex;
use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};

use crate::Outcome;

/// The tables that a call has rows in, and the column that names its run.
const TABLES: &[(&str, &str)] = &[
    ("runs", "id"),
    ("steps", "run_id"),
    ("approvals", "run_id"),
    ("events", "run_id"),
    ("proxy_calls", "run_id"),
];

/// Copies that make a log longer than SQLite lets it grow before it begins again.
const WARM: u64 = 2_000;

/// Everything that one run has in the record.
#[derive(Debug, Clone)]
pub(crate) struct Template {
    rows: Vec<TableRow>,
}

#[derive(Debug, Clone)]
struct TableRow {
    table: &'static str,
    columns: Vec<String>,
    values: Vec<Value>,
}

/// A file that copies are put into.
#[derive(Debug)]
pub(crate) struct Copies {
    conn: Connection,
    copied: u64,
    /// The chain's head.
    seq: i64,
    hash: String,
}

impl Template {
    /// The newest run that `condition` (over `runs`) holds for.
    pub(crate) fn newest(conn: &Connection, condition: &str) -> Outcome<Template> {
        let newest = format!("SELECT id FROM runs WHERE {condition} ORDER BY rowid DESC LIMIT 1");
        let run: String = conn.query_row(&newest, [], |row| row.get(0))?;
        let mut rows = Vec::new();
        for (table, key) in TABLES {
            let mut statement =
                conn.prepare(&format!("SELECT * FROM {table} WHERE {key} = ? ORDER BY rowid"))?;
            let columns: Vec<String> = statement.column_names().map(str::to_owned).collect();
            let mut found = statement.query([&run])?;
            while let Some(row) = found.next()? {
                let values = (0..columns.len()).map(|at| row.get(at)).collect::<Result<_, _>>()?;
                rows.push(TableRow { table, columns: columns.clone(), values });
            }
        }
        Ok(Template { rows })
    }

    /// How many events it has.
    pub(crate) fn events(&self) -> u64 {
        self.rows.iter().filter(|row| row.table == "events").count() as u64
    }
}

impl TableRow {
    fn sql(&self) -> String {
        let marks = vec!["?"; self.columns.len()].join(", ");
        format!("INSERT INTO {} ({}) VALUES ({marks})", self.table, self.columns.join(", "))
    }

    fn text(&self, column: &str) -> &str {
        let at = self.columns.iter().position(|name| name == column);
        match at.map(|at| &self.values[at]) {
            Some(Value::Text(text)) => text,
            Some(Value::Null | Value::Integer(_) | Value::Real(_) | Value::Blob(_)) | None => "",
        }
    }

    fn set(&mut self, column: &str, value: Value) {
        if let Some(at) = self.columns.iter().position(|name| name == column) {
            self.values[at] = value;
        }
    }

    /// The same row of another run.
    fn numbered(&self, number: u64) -> TableRow {
        let mut row = self.clone();
        let ids: &[&str] = match self.table {
            "runs" | "steps" | "approvals" => &["id", "run_id", "step_id"],
            _ => &["run_id", "step_id"],
        };
        for column in ids {
            let id = row.text(column);
            if !id.is_empty() {
                let renamed = format!("{}{number:08}", &id[..id.len().saturating_sub(8)]);
                row.set(column, Value::Text(renamed));
            }
        }
        if self.table == "proxy_calls" {
            row.set("id", Value::Null);
            row.set("request_key", Value::Text(sha256_hex(&number.to_le_bytes())));
        }
        row
    }
}

impl Copies {
    /// A new file with the tables of `like`, committing as the store does.
    pub(crate) fn beside(like: &Connection, path: &Path) -> Outcome<Copies> {
        let conn = Connection::open(path)?;
        conn.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;")?;
        let mut schema = like.prepare(
            "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' ORDER BY rowid",
        )?;
        for sql in schema.query_map([], |row| row.get::<_, String>(0))? {
            conn.execute_batch(&sql?)?;
        }
        conn.set_prepared_statement_cache_capacity(32);
        Ok(Copies { conn, copied: 0, seq: 0, hash: String::new() })
    }

    /// A file that nobody has open, continued.
    pub(crate) fn continued(path: &Path) -> Outcome<Copies> {
        let conn = Connection::open(path)?;
        conn.set_prepared_statement_cache_capacity(32);
        let (seq, hash) =
            conn.query_row("SELECT seq, hash FROM events ORDER BY seq DESC LIMIT 1", [], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })?;
        Ok(Copies { conn, copied: 0, seq, hash })
    }

    /// Puts one copy in, as one commit.
    pub(crate) fn commit_one(&mut self, template: &Template) -> Outcome<()> {
        self.conn.execute_batch("BEGIN IMMEDIATE")?;
        self.put(template)?;
        Ok(self.conn.execute_batch("COMMIT")?)
    }

    /// Gives the log a length, so that commits after this reuse it as those of a proxy do.
    pub(crate) fn warm(&mut self, template: &Template) -> Outcome<()> {
        self.conn.execute_batch("PRAGMA synchronous = OFF; BEGIN IMMEDIATE")?;
        for _ in 0..WARM {
            self.put(template)?;
        }
        Ok(self.conn.execute_batch("COMMIT; PRAGMA wal_checkpoint(RESTART); PRAGMA synchronous = FULL")?)
    }

    /// Puts so many copies in, in one transaction that is not synced; `change` may alter the file before its commit.
    pub(crate) fn fill(&mut self, template: &Template, count: u64, change: &str) -> Outcome<()> {
        self.conn.execute_batch("PRAGMA synchronous = OFF; BEGIN IMMEDIATE")?;
        for _ in 0..count {
            self.put(template)?;
        }
        Ok(self.conn.execute_batch(&format!("{change}; COMMIT; PRAGMA wal_checkpoint(TRUNCATE)"))?)
    }

    fn put(&mut self, template: &Template) -> Outcome<()> {
        self.copied += 1;
        for row in &template.rows {
            let mut row = row.numbered(self.copied);
            if row.table == "events" {
                self.seq += 1;
                let event = ChainedEvent {
                    seq: self.seq,
                    run_id: row.text("run_id"),
                    step_id: row.text("step_id"),
                    at: row.text("at"),
                    kind: row.text("type"),
                    payload_json: row.text("payload_json"),
                };
                self.hash = link(&self.hash, &event);
                row.set("seq", Value::Integer(self.seq));
                row.set("hash", Value::Text(self.hash.clone()));
            }
            self.conn.prepare_cached(&row.sql())?.execute(params_from_iter(&row.values))?;
        }
        Ok(())
    }
}
