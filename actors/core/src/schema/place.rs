//! Where in a schema something stands, written only when somebody asks.
//!
//! A server chooses the keys, so a key may be a hundred kilobytes long and have ten thousand values below it:
//! a location is a chain back to the root, and becomes text only in a refusal.

use std::fmt;

use serde_json::Value;

/// One step on the way down from the root.
#[derive(Debug, Clone, Copy)]
pub(super) enum Step<'a> {
    Key(&'a str),
    Index(usize),
}

/// A location: how it was reached, or the root.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place<'a> {
    Root,
    Below(&'a Place<'a>, Step<'a>),
}

/// Writes `#/properties/x`, with the escapes of a JSON pointer.
impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => f.write_str("#"),
            Self::Below(above, Step::Index(index)) => write!(f, "{above}/{index}"),
            Self::Below(above, Step::Key(key)) => {
                write!(f, "{above}/{}", key.replace('~', "~0").replace('/', "~1"))
            }
        }
    }
}

/// Finds where in `document` the value stands that `wanted` is, by identity.
pub(super) fn locate(document: &Value, wanted: &Value) -> Option<String> {
    search(&Place::Root, document, wanted)
}

fn search(place: &Place<'_>, value: &Value, wanted: &Value) -> Option<String> {
    if std::ptr::eq(value, wanted) {
        return Some(place.to_string());
    }
    match value {
        Value::Object(object) => {
            object.iter().find_map(|(key, value)| search(&Place::Below(place, Step::Key(key)), value, wanted))
        }
        Value::Array(items) => items
            .iter()
            .enumerate()
            .find_map(|(index, item)| search(&Place::Below(place, Step::Index(index)), item, wanted)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}
