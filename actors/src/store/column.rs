//! Stored columns, read so that a damaged one is named and never fails its row.
//!
//! Owns the reading of text, numbers, times and decoded JSON out of a row whose author may be anybody. Every table's
//! file reads through it.

use holdpoint_core::time::UnixNanos;
use rusqlite::Row;
use rusqlite::types::ValueRef;

/// Reads the columns of one row and collects what could not be read.
pub(super) struct Columns<'a, 'stmt> {
    row: &'a Row<'stmt>,
    bad: Vec<String>,
}

impl<'a, 'stmt> Columns<'a, 'stmt> {
    pub(super) fn of(row: &'a Row<'stmt>) -> Columns<'a, 'stmt> {
        Columns { row, bad: Vec::new() }
    }

    /// Notes a column as damaged.
    pub(super) fn blame(&mut self, name: &str, why: impl std::fmt::Display) {
        self.bad.push(format!("{name}: {why}"));
    }

    /// A text; one that is no UTF-8 is damaged, and read as far as it can be.
    pub(super) fn text(&mut self, index: usize, name: &str) -> String {
        match self.row.get_ref(index) {
            Ok(ValueRef::Text(bytes) | ValueRef::Blob(bytes)) => match std::str::from_utf8(bytes) {
                Ok(text) => text.to_owned(),
                Err(e) => {
                    self.blame(name, e);
                    String::from_utf8_lossy(bytes).into_owned()
                }
            },
            Ok(ValueRef::Null) => String::new(),
            Ok(ValueRef::Integer(n)) => n.to_string(),
            Ok(ValueRef::Real(n)) => n.to_string(),
            Err(e) => {
                self.blame(name, e);
                String::new()
            }
        }
    }

    /// A whole number; anything else is damaged and zero.
    pub(super) fn int(&mut self, index: usize, name: &str) -> i64 {
        self.row.get(index).unwrap_or_else(|e| {
            self.blame(name, e);
            0
        })
    }

    /// A time; empty is none, and one that can't be read is damaged and none.
    pub(super) fn time(&mut self, index: usize, name: &str) -> Option<UnixNanos> {
        let text = self.text(index, name);
        self.parsed(&text, name, UnixNanos::parse)
    }

    /// A decoded column; empty is none, and one that can't be decoded is damaged and none.
    pub(super) fn decoded<T, E: std::fmt::Display>(
        &mut self,
        index: usize,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let text = self.text(index, name);
        self.parsed(&text, name, parse)
    }

    /// What was damaged, in words.
    pub(super) fn finish(self) -> Option<String> {
        (!self.bad.is_empty()).then(|| self.bad.join("; "))
    }

    fn parsed<T, E: std::fmt::Display>(
        &mut self,
        text: &str,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        if text.is_empty() {
            return None;
        }
        parse(text).map_err(|e| self.blame(name, e)).ok()
    }
}

/// The stored form of a time that may be missing.
pub(super) fn time_text(time: Option<UnixNanos>) -> String {
    time.map(UnixNanos::to_rfc3339).unwrap_or_default()
}
