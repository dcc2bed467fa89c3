//! What the operator reads while the proxy serves: one line an entry.
//!
//! Owns the prefix and the hint that says how to decide an approval. Nothing of it reaches a host.

use std::fmt;
use std::io::Write as _;
use std::path::Path;
use std::sync::Mutex;

use holdpoint_core::sanitize::sanitize;

use crate::stderr::Stderr;

/// What every line begins with.
pub const PREFIX: &str = "holdpoint: ";

/// Where lines for the operator go.
pub trait Journal: Send + Sync + fmt::Debug + 'static {
    /// Writes one line. What is foreign in it has not been escaped yet.
    fn line(&self, text: &str);
}

/// The standard error stream, which a host keeps in its log.
#[derive(Debug, Clone, Copy, Default)]
pub struct StderrJournal;

impl Journal for StderrJournal {
    fn line(&self, text: &str) {
        let line = format!("{PREFIX}{}\n", sanitize(text));
        // It takes everything, and at once: a host that does not read its log must not stop its own calls.
        drop(Stderr.write_all(line.as_bytes()));
    }
}

/// Lines that are kept, for tests.
#[derive(Debug, Default)]
pub struct KeptJournal(Mutex<Vec<String>>);

impl KeptJournal {
    /// The lines so far.
    pub fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }
}

impl Journal for KeptJournal {
    fn line(&self, text: &str) {
        let mut lines = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        lines.push(sanitize(text).into_owned());
    }
}

/// An approval that waits, as the operator is told of it.
#[derive(Debug)]
pub(super) struct Asked<'a> {
    pub(super) approval: &'a str,
    pub(super) kind: &'a str,
    pub(super) tool: &'a str,
    pub(super) run: &'a str,
}

/// Tells the operator that an approval waits, and how to decide it.
pub(super) fn hint(journal: &dyn Journal, database: &Path, asked: &Asked<'_>) {
    let Asked { approval, kind, tool, run } = asked;
    journal.line(&format!("approval {approval} ({kind}) for {tool} waits for an operator: run {run}"));
    let database = quoted(database);
    journal.line(&format!(
        "  decide with: holdpoint --db {database} approve {run} --approval {approval}   (or reject)"
    ));
}

/// A path as a shell reads it.
fn quoted(path: &Path) -> String {
    let text = path.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%,".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.into_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_quoted_when_a_shell_would_read_it_otherwise() {
        assert_eq!(quoted(Path::new("/a/b-1.db")), "/a/b-1.db");
        assert_eq!(quoted(Path::new("/a b/$x")), "'/a b/$x'");
        assert_eq!(quoted(Path::new("it's")), r"'it'\''s'");
    }

    #[test]
    fn kept_lines_are_escaped() {
        let journal = KeptJournal::default();
        journal.line("a\u{1b}[2Jb");
        assert_eq!(journal.lines(), ["a\\x1b[2Jb"]);
    }
}
