//! One line of the wire: cutting the stream into lines, reading an envelope, writing a frame.
//!
//! Pure functions over bytes. Nothing here reads, writes, waits or logs; `transport` does, and nobody else calls this.
//! A result is never built as a value: it stays the text that the server sent, so numbers beyond f64, the order of
//! keys and any depth survive, and a hostile depth reaches no recursive code.

use std::fmt;

use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use thiserror::Error;

/// The longest line that a server may send, its newline not counted: 16 MiB, as the specification bounds a body.
pub const MAX_FRAME_BYTES: usize = 16 * 1024 * 1024;

/// The most messages that one batch may hold. Only revision 2025-03-26 has batches, and nothing asks for one here.
const MAX_BATCH: usize = 1000;

/// What makes a line unreadable, so that the connection must close: no call can be told by it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum Error {
    #[error("a line is longer than {MAX_FRAME_BYTES} bytes")]
    TooLong,
    #[error("a line is not a JSON-RPC message: {0}")]
    NotAMessage(String),
    #[error("a message has two `{0}` members")]
    Ambiguous(&'static str),
    #[error("a batch holds more than {MAX_BATCH} messages")]
    BatchTooLong,
}

/// Cuts a byte stream into lines of a bounded length.
#[derive(Debug)]
pub(crate) struct Lines {
    buffer: Vec<u8>,
    start: usize,
    scanned: usize,
    limit: usize,
}

impl Lines {
    pub(crate) fn new(limit: usize) -> Self {
        Self { buffer: Vec::new(), start: 0, scanned: 0, limit }
    }

    /// Adds what was just read.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.scanned -= self.start;
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next whole line without its newline, `None` when more must be read first.
    ///
    /// # Errors
    /// `TooLong` as soon as the limit is passed, whether or not the newline has come.
    pub(crate) fn next_line(&mut self) -> Result<Option<&[u8]>, Error> {
        let newline = self.buffer[self.scanned..].iter().position(|byte| *byte == b'\n');
        let end = newline.map_or(self.buffer.len(), |offset| self.scanned + offset);
        if end - self.start > self.limit {
            return Err(Error::TooLong);
        }
        if newline.is_none() {
            self.scanned = end;
            return Ok(None);
        }
        let line = self.start..end;
        self.start = end + 1;
        self.scanned = end + 1;
        Ok(Some(&self.buffer[line]))
    }

    /// Returns what follows the last newline: at the end of the stream, a last line that nobody terminated.
    pub(crate) fn rest(&self) -> &[u8] {
        &self.buffer[self.start..]
    }
}

/// One message from the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Incoming {
    /// An answer to the request with this id, if there is one.
    Answer {
        id: u64,
        answer: Answer,
    },
    /// A request by the server; `id` is its JSON text, to be echoed as it came.
    Request {
        id: String,
        method: String,
    },
    Notification {
        method: String,
    },
    /// An answer whose id cannot be one of ours.
    Unmatched,
}

/// What an answer says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The result's text, a JSON object without a repeated key at its top. In one that was not UTF-8, each wrong byte
    /// stands as U+FFFD.
    Result { text: String, utf8: bool },
    /// A JSON-RPC error. `code` is the text that stood there; both are the server's words.
    Error { code: String, message: String },
    /// An answer that cannot be read as either; says why.
    Malformed(String),
}

/// Reads one line. A blank line holds no message.
///
/// # Errors
/// When not even the envelope can be read. An answer with a readable id is never an error here: it is
/// [`Answer::Malformed`], so that its call, and only its call, fails at once.
pub(crate) fn parse(line: &[u8]) -> Result<Vec<Incoming>, Error> {
    let line = line.trim_ascii();
    if line.is_empty() {
        return Ok(Vec::new());
    }
    // With the invalid bytes replaced, an id that we issued (decimal digits) still reads as itself.
    let (text, utf8) = match std::str::from_utf8(line) {
        Ok(text) => (std::borrow::Cow::Borrowed(text), true),
        Err(_) => (std::borrow::Cow::Owned(lossy(line)), false),
    };
    let unreadable = |error: serde_json::Error| Error::NotAMessage(error.to_string());
    if !text.starts_with('[') {
        let envelope: Envelope<'_> = serde_json::from_str(&text).map_err(unreadable)?;
        return Ok(vec![envelope.read(utf8)?]);
    }
    let batch: Vec<&RawValue> = serde_json::from_str(&text).map_err(unreadable)?;
    if batch.len() > MAX_BATCH {
        return Err(Error::BatchTooLong);
    }
    let read = |message: &RawValue| {
        let envelope: Envelope<'_> = serde_json::from_str(message.get()).map_err(unreadable)?;
        envelope.read(utf8)
    };
    batch.into_iter().map(read).collect()
}

/// One U+FFFD for each byte that is not UTF-8, as in the pins that others computed.
fn lossy(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
    text
}

/// A member of the envelope: how often it came, and its text.
#[derive(Debug, Clone, Copy, Default)]
enum Member<'a> {
    #[default]
    Absent,
    Once(&'a RawValue),
    Repeated,
}

impl<'a> Member<'a> {
    fn add(&mut self, value: &'a RawValue) {
        *self = match self {
            Self::Absent => Self::Once(value),
            Self::Once(_) | Self::Repeated => Self::Repeated,
        };
    }

    /// The member's text; an explicit null counts as absent, since servers send `"error": null` beside a result.
    fn value(self) -> Option<&'a str> {
        match self {
            Self::Once(raw) if raw.get() != "null" => Some(raw.get()),
            Self::Absent | Self::Once(_) | Self::Repeated => None,
        }
    }

    fn repeated(self) -> bool {
        matches!(self, Self::Repeated)
    }
}

/// The members of a message that matter, each still as text.
#[derive(Debug, Default)]
struct Envelope<'a> {
    id: Member<'a>,
    method: Member<'a>,
    result: Member<'a>,
    error: Member<'a>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Envelope<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Envelope<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            // Keys are compared decoded, so that "i\u0064" is an id too.
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut envelope = Envelope::default();
                while let Some(key) = map.next_key::<String>()? {
                    match key.as_str() {
                        "id" => envelope.id.add(map.next_value()?),
                        "method" => envelope.method.add(map.next_value()?),
                        "result" => envelope.result.add(map.next_value()?),
                        "error" => envelope.error.add(map.next_value()?),
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                        }
                    }
                }
                Ok(envelope)
            }
        }
        deserializer.deserialize_map(Members)
    }
}

impl Envelope<'_> {
    fn read(&self, utf8: bool) -> Result<Incoming, Error> {
        if self.id.repeated() {
            return Err(Error::Ambiguous("id"));
        }
        if self.method.repeated() {
            return Err(Error::Ambiguous("method"));
        }
        let answers = !matches!((self.result, self.error), (Member::Absent, Member::Absent));
        if let (Some(method), false) = (self.method.value(), answers) {
            let method: String = serde_json::from_str(method)
                .map_err(|_| Error::NotAMessage("the method is not a string".to_owned()))?;
            return Ok(match self.id.value() {
                Some(id) => Incoming::Request { id: id.to_owned(), method },
                None => Incoming::Notification { method },
            });
        }
        // Ours are decimal integers; any other spelling is an answer to somebody else.
        let Some(id) = self.id.value().and_then(|id| id.parse::<u64>().ok()) else {
            return Ok(Incoming::Unmatched);
        };
        Ok(Incoming::Answer { id, answer: self.answer(utf8) })
    }

    fn answer(&self, utf8: bool) -> Answer {
        let malformed = |why: &str| Answer::Malformed(why.to_owned());
        if self.method.value().is_some() {
            return malformed("the message is both a request and an answer");
        }
        if self.result.repeated() || self.error.repeated() {
            return malformed("the answer has two results or two errors");
        }
        match (self.result.value(), self.error.value()) {
            (Some(_), Some(_)) => malformed("the answer has both a result and an error"),
            (None, None) => malformed("the answer has neither a result nor an error"),
            (None, Some(error)) => read_error(error),
            (Some(result), None) => match repeated_key(result) {
                Ok(None) => Answer::Result { text: result.to_owned(), utf8 },
                Ok(Some(key)) => Answer::Malformed(format!("the result has two {key:?} members")),
                Err(_) => malformed("the result is not a JSON object"),
            },
        }
    }
}

fn read_error(error: &str) -> Answer {
    #[derive(Deserialize)]
    struct Members<'a> {
        #[serde(borrow, default)]
        code: Option<&'a RawValue>,
        message: String,
    }
    match serde_json::from_str::<Members<'_>>(error) {
        Ok(Members { code, message }) => {
            Answer::Error { code: code.map_or("null", RawValue::get).to_owned(), message }
        }
        Err(_) => Answer::Error { code: "null".to_owned(), message: error.to_owned() },
    }
}

/// Finds a key that the object names twice at its top level, keys compared decoded.
///
/// # Errors
/// When the text is not a JSON object, or one of its keys is not a string of Unicode.
pub(crate) fn repeated_key(object: &str) -> Result<Option<String>, serde_json::Error> {
    struct Repeated(Option<String>);
    impl<'de> Deserialize<'de> for Repeated {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct Keys;
            impl<'de> Visitor<'de> for Keys {
                type Value = Repeated;

                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str("a JSON object")
                }

                fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                    let mut seen = std::collections::HashSet::new();
                    let mut repeated = None;
                    while let Some((key, IgnoredAny)) = map.next_entry::<String, IgnoredAny>()? {
                        if let Some(key) = seen.replace(key) {
                            repeated.get_or_insert(key);
                        }
                    }
                    Ok(Repeated(repeated))
                }
            }
            deserializer.deserialize_map(Keys)
        }
    }
    serde_json::from_str::<Repeated>(object).map(|Repeated(key)| key)
}

/// Writes a request; `params` is JSON text and is sent as it is, with line breaks between tokens made spaces.
pub(crate) fn request(id: u64, method: &str, params: &str) -> Vec<u8> {
    frame(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#))
}

/// Writes a notification.
pub(crate) fn notification(method: &str, params: &str) -> Vec<u8> {
    frame(&format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#))
}

/// Writes an empty result for a request by the server; `id` is the JSON text of its id.
pub(crate) fn empty_result(id: &str) -> Vec<u8> {
    frame(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#))
}

/// Writes the answer to a request that this client does not serve.
pub(crate) fn method_not_found(id: &str) -> Vec<u8> {
    frame(&format!(
        r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32601,"message":"this client serves no such method"}}}}"#
    ))
}

/// Writes the parameters of a `tools/call`: the arguments are spliced in as the text they are.
pub(crate) fn call_params(tool: &str, arguments: &str) -> String {
    format!(r#"{{"name":{},"arguments":{arguments}}}"#, json_string(tool))
}

/// Writes a string as JSON.
pub(crate) fn json_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Ends a message. In valid JSON a raw line break can only stand between tokens, where a space means the same, and
/// the framing forbids it.
fn frame(message: &str) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        message.bytes().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { byte }).collect();
    bytes.push(b'\n');
    bytes
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
