//! Writes JSON text as the database and the wire hold it: compact, HTML-escaped, in the order in which it is given.
//!
//! The bytes are those of Go's `encoding/json` for a struct ([`ObjectWriter::new`]: members in the order of the
//! fields) or a map ([`ObjectWriter::sorted`]: members in the byte order of their keys), because stored records are
//! shared with the reference and hashed in the event chain. Embedded JSON loses its white space and gets its HTML
//! characters escaped, while its key order, numbers and written escapes stay. [`ObjectWriter::plain`] is the same
//! without the escaping, for recordings and for the wire. Floats can't be written: no record holds one.

use std::ops::Range;

use super::escape::{Escapes, is_separator, push_escaped_byte, push_quoted, push_separator};
use super::{Json, is_blank};

/// Gives embedded JSON its stored form: no white space, HTML characters escaped, everything else as it is written.
///
/// The text is taken to be JSON; what is not comes out no more so.
pub fn compact_escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    push_compact(&mut out, text, Escapes::Html);
    out
}

/// Gives JSON without the white space between its parts, and otherwise as it is written.
pub fn compact(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    push_compact(&mut out, text, Escapes::Minimal);
    out
}

/// Embedded JSON keeps its written escapes, so only [`Escapes::Html`] changes more than its white space.
fn push_compact(out: &mut String, text: &str, escapes: Escapes) {
    let html = escapes == Escapes::Html;
    let bytes = text.as_bytes();
    let (mut copied, mut at, mut in_string) = (0, 0, false);
    while at < bytes.len() {
        let skipped = match bytes[at] {
            b'"' => {
                in_string = !in_string;
                0
            }
            b'\\' if in_string => {
                // Passes over what is escaped, which may be a quote. All of it is ASCII in valid JSON.
                at += usize::from(bytes.get(at + 1).is_some_and(u8::is_ascii));
                0
            }
            b' ' | b'\t' | b'\n' | b'\r' if !in_string => 1,
            b'<' | b'>' | b'&' if html => 1,
            0xE2 if html && is_separator(&bytes[at..]) => 3,
            _ => 0,
        };
        if skipped == 0 {
            at += 1;
            continue;
        }
        out.push_str(&text[copied..at]);
        match (skipped, bytes[at]) {
            (3, _) => push_separator(out, bytes[at + 2]),
            (_, byte @ (b'<' | b'>' | b'&')) => push_escaped_byte(out, byte),
            (_, _) => {}
        }
        at += skipped;
        copied = at;
    }
    out.push_str(&text[copied..]);
}

/// Writes one object, member by member.
///
/// The `omit_empty_*` methods leave a member out when its value is empty, as Go's `omitempty` does.
///
/// ```
/// use holdpoint_core::json::ObjectWriter;
///
/// let mut writer = ObjectWriter::new();
/// writer.str("run_id", "r1").int("steps", 2).omit_empty_str("reason", "").raw("args", r#"{ "a": "<" }"#);
/// assert_eq!(writer.finish(), r#"{"run_id":"r1","steps":2,"args":{"a":"\u003c"}}"#);
/// ```
#[derive(Debug)]
pub struct ObjectWriter {
    out: String,
    escapes: Escapes,
    /// Where this object's first member begins.
    start: usize,
    /// The members so far, if they must be put into order at the end.
    members: Option<Vec<(String, Range<usize>)>>,
}

impl Default for ObjectWriter {
    fn default() -> Self {
        Self::new()
    }
}

impl ObjectWriter {
    /// Starts an object whose members stay in the order in which they are written: a struct of the reference.
    pub fn new() -> Self {
        Self::inside(String::new(), Escapes::Html, false)
    }

    /// Starts an object in the order in which it is written whose text is not escaped for HTML: a file of the
    /// reference's, or a request on the wire. Embedded JSON loses its white space and nothing else.
    pub fn plain() -> Self {
        Self::inside(String::new(), Escapes::Separators, false)
    }

    /// Starts an object whose members are sorted by key when it ends: a map of the reference.
    pub fn sorted() -> Self {
        Self::inside(String::new(), Escapes::Html, true)
    }

    fn inside(mut out: String, escapes: Escapes, sorted: bool) -> Self {
        out.push('{');
        let start = out.len();
        Self { out, escapes, start, members: sorted.then(Vec::new) }
    }

    /// Ends the object and gives its text.
    pub fn finish(mut self) -> String {
        self.put_into_order();
        self.out.push('}');
        self.out
    }

    /// Ends the object and gives it as JSON.
    pub fn finish_json(self) -> Json {
        Json::trusted(self.finish())
    }

    /// Writes a string.
    pub fn str(&mut self, key: &str, value: &str) -> &mut Self {
        self.member(key, |out, escapes| push_quoted(out, value, escapes))
    }

    /// Writes a whole number.
    pub fn int(&mut self, key: &str, value: i64) -> &mut Self {
        self.member(key, |out, _| out.push_str(&value.to_string()))
    }

    /// Writes `true` or `false`.
    pub fn bool(&mut self, key: &str, value: bool) -> &mut Self {
        self.member(key, |out, _| out.push_str(if value { "true" } else { "false" }))
    }

    /// Writes `null`.
    pub fn null(&mut self, key: &str) -> &mut Self {
        self.member(key, |out, _| out.push_str("null"))
    }

    /// Embeds JSON in its stored form, see [`compact_escaped`]. A blank text is written `null`.
    pub fn raw(&mut self, key: &str, json: &str) -> &mut Self {
        self.member(key, |out, escapes| push_raw(out, json, escapes))
    }

    /// Writes an object whose members stay in order.
    pub fn object(&mut self, key: &str, fill: impl FnOnce(&mut Self)) -> &mut Self {
        self.member(key, |out, escapes| push_object(out, escapes, false, fill))
    }

    /// Writes an object whose members are sorted by key.
    pub fn sorted_object(&mut self, key: &str, fill: impl FnOnce(&mut Self)) -> &mut Self {
        self.member(key, |out, escapes| push_object(out, escapes, true, fill))
    }

    /// Writes an array.
    pub fn array(&mut self, key: &str, fill: impl FnOnce(&mut ArrayWriter)) -> &mut Self {
        self.member(key, |out, escapes| push_array(out, escapes, fill))
    }

    /// Writes a string, unless it is empty.
    pub fn omit_empty_str(&mut self, key: &str, value: &str) -> &mut Self {
        if value.is_empty() { self } else { self.str(key, value) }
    }

    /// Writes a whole number, unless it is 0.
    pub fn omit_empty_int(&mut self, key: &str, value: i64) -> &mut Self {
        if value == 0 { self } else { self.int(key, value) }
    }

    /// Writes `true`, or nothing.
    pub fn omit_empty_bool(&mut self, key: &str, value: bool) -> &mut Self {
        if value { self.bool(key, value) } else { self }
    }

    /// Embeds JSON, unless the text is empty.
    pub fn omit_empty_raw(&mut self, key: &str, json: &str) -> &mut Self {
        if json.is_empty() { self } else { self.raw(key, json) }
    }

    fn member(&mut self, key: &str, write: impl FnOnce(&mut String, Escapes)) -> &mut Self {
        if self.out.len() > self.start {
            self.out.push(',');
        }
        let start = self.out.len();
        push_quoted(&mut self.out, key, self.escapes);
        self.out.push(':');
        write(&mut self.out, self.escapes);
        let end = self.out.len();
        if let Some(members) = &mut self.members {
            debug_assert!(members.iter().all(|(other, _)| other != key), "key {key:?} is written twice");
            members.push((key.to_owned(), start..end));
        }
        self
    }

    fn put_into_order(&mut self) {
        let Some(mut members) = self.members.take() else { return };
        if members.is_sorted_by(|(one, _), (next, _)| one <= next) {
            return;
        }
        members.sort_by(|(one, _), (other, _)| one.cmp(other));
        let mut ordered = String::with_capacity(self.out.len() - self.start);
        for (_, range) in members {
            if !ordered.is_empty() {
                ordered.push(',');
            }
            ordered.push_str(&self.out[range]);
        }
        self.out.truncate(self.start);
        self.out.push_str(&ordered);
    }
}

/// Writes the elements of one array.
#[derive(Debug)]
pub struct ArrayWriter {
    out: String,
    escapes: Escapes,
    /// Where the first element begins.
    start: usize,
}

impl ArrayWriter {
    /// Writes a string.
    pub fn str(&mut self, value: &str) -> &mut Self {
        self.element(|out, escapes| push_quoted(out, value, escapes))
    }

    /// Writes a whole number.
    pub fn int(&mut self, value: i64) -> &mut Self {
        self.element(|out, _| out.push_str(&value.to_string()))
    }

    /// Embeds JSON in its stored form, see [`compact_escaped`]. A blank text is written `null`.
    pub fn raw(&mut self, json: &str) -> &mut Self {
        self.element(|out, escapes| push_raw(out, json, escapes))
    }

    /// Writes an object whose members stay in order.
    pub fn object(&mut self, fill: impl FnOnce(&mut ObjectWriter)) -> &mut Self {
        self.element(|out, escapes| push_object(out, escapes, false, fill))
    }

    /// Writes an object whose members are sorted by key.
    pub fn sorted_object(&mut self, fill: impl FnOnce(&mut ObjectWriter)) -> &mut Self {
        self.element(|out, escapes| push_object(out, escapes, true, fill))
    }

    /// Writes an array.
    pub fn array(&mut self, fill: impl FnOnce(&mut Self)) -> &mut Self {
        self.element(|out, escapes| push_array(out, escapes, fill))
    }

    fn element(&mut self, write: impl FnOnce(&mut String, Escapes)) -> &mut Self {
        if self.out.len() > self.start {
            self.out.push(',');
        }
        write(&mut self.out, self.escapes);
        self
    }
}

fn push_raw(out: &mut String, json: &str, escapes: Escapes) {
    if is_blank(json) {
        out.push_str("null");
    } else {
        push_compact(out, json, escapes);
    }
}

/// Lends the text to an inner writer, so that nested objects are written in place.
fn push_object(out: &mut String, escapes: Escapes, sorted: bool, fill: impl FnOnce(&mut ObjectWriter)) {
    let mut writer = ObjectWriter::inside(std::mem::take(out), escapes, sorted);
    fill(&mut writer);
    *out = writer.finish();
}

fn push_array(out: &mut String, escapes: Escapes, fill: impl FnOnce(&mut ArrayWriter)) {
    let mut text = std::mem::take(out);
    text.push('[');
    let start = text.len();
    let mut writer = ArrayWriter { out: text, escapes, start };
    fill(&mut writer);
    writer.out.push(']');
    *out = writer.out;
}
