//! An object of the operator's JSON, read key by key.
//!
//! Owns the kinds of values that a configuration has, and the words for a value of another kind. A derived decoder would
//! not do: its errors know a line and a Rust type instead of the server and the key, and it takes a list for an object.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::ContentError;

/// The longest value that an error repeats.
const SHOWN_BYTES_MAX: usize = 40;

/// An object's members, by key and as they are written. `null` counts as absent in it.
pub(super) struct Object<'a> {
    place: String,
    members: BTreeMap<String, &'a str>,
}

impl<'a> Object<'a> {
    /// Reads an object. `place` says what it is, and stands in front of its keys in errors.
    pub(super) fn read(place: impl Into<String>, value: &'a str) -> Result<Self, ContentError> {
        let place = place.into();
        match serde_json::from_str::<BTreeMap<String, &RawValue>>(value) {
            Ok(members) => Ok(Self::of(place, members.into_iter().map(|(key, raw)| (key, raw.get())))),
            Err(_) => Err(ContentError::NotObject { what: place, found: kind_of(value) }),
        }
    }

    /// Takes members that somebody else has read.
    pub(super) fn of(place: String, members: impl IntoIterator<Item = (String, &'a str)>) -> Self {
        Self { place, members: members.into_iter().collect() }
    }

    /// The same object, called otherwise.
    pub(super) fn at(self, place: impl Into<String>) -> Self {
        Self { place: place.into(), ..self }
    }

    /// A key with what it is a key of.
    pub(super) fn field(&self, key: &str) -> String {
        if self.place.is_empty() { key.to_owned() } else { format!("{}: {key}", self.place) }
    }

    /// Refuses a key that is not one of these.
    pub(super) fn only(&self, keys: &[&str]) -> Result<(), ContentError> {
        match self.members.keys().find(|key| !keys.contains(&key.as_str())) {
            None => Ok(()),
            Some(key) => {
                let unknown = self.field(&format!("unknown field {key:?}"));
                Err(ContentError::Value(format!("{unknown}: expected one of {}", keys.join(", "))))
            }
        }
    }

    /// A text. The example is of one that fits.
    pub(super) fn text(&self, key: &str, example: &str) -> Result<Option<String>, ContentError> {
        let read = |value| text_of(&self.field(key), example, value);
        self.value(key).map(read).transpose()
    }

    /// A list of texts. Variables are one, so what stands there is not repeated: it may be a secret.
    pub(super) fn texts(&self, key: &str, example: &str) -> Result<Vec<String>, ContentError> {
        let read = |(at, item): (usize, &str)| {
            let field = || self.field(&format!("{key}[{at}]"));
            serde_json::from_str(item).map_err(|_| wrong(field(), text_like(example), kind_of(item)))
        };
        self.list(key)?.into_iter().enumerate().map(read).collect()
    }

    /// The values of a list.
    pub(super) fn list(&self, key: &str) -> Result<Vec<&'a str>, ContentError> {
        let Some(value) = self.value(key) else { return Ok(Vec::new()) };
        match serde_json::from_str::<Vec<&RawValue>>(value) {
            Ok(items) => Ok(items.into_iter().map(RawValue::get).collect()),
            Err(_) => Err(wrong(self.field(key), "a list".to_owned(), kind_of(value))),
        }
    }

    /// The members of an object, none when it is absent.
    pub(super) fn object(&self, key: &str) -> Result<BTreeMap<String, &'a str>, ContentError> {
        let read = |value| Object::read(self.field(key), value);
        Ok(self.value(key).map(read).transpose()?.map(|object| object.members).unwrap_or_default())
    }

    /// `true` or `false`.
    pub(super) fn truth(&self, key: &str) -> Result<Option<bool>, ContentError> {
        match self.value(key) {
            None => Ok(None),
            Some("true") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(value) => Err(wrong(self.field(key), "true or false".to_owned(), shown(value))),
        }
    }

    /// A whole number.
    pub(super) fn whole(&self, key: &str) -> Result<Option<i64>, ContentError> {
        let read = |value: &str| {
            let expected = || "a whole number such as 5".to_owned();
            value.parse().map_err(|_| wrong(self.field(key), expected(), shown(value)))
        };
        self.value(key).map(read).transpose()
    }

    fn value(&self, key: &str) -> Option<&'a str> {
        self.members.get(key).copied().filter(|value| *value != "null")
    }
}

/// Reads a text that belongs at `field`.
pub(super) fn text_of(field: &str, example: &str, value: &str) -> Result<String, ContentError> {
    serde_json::from_str(value).map_err(|_| wrong(field.to_owned(), text_like(example), shown(value)))
}

fn text_like(example: &str) -> String {
    format!("a text such as {example:?}")
}

fn wrong(field: String, expected: String, found: String) -> ContentError {
    ContentError::Kind { field, expected, found }
}

/// A short value as it is written; of another one, what it is.
fn shown(value: &str) -> String {
    let nested = value.starts_with(['{', '[']);
    if nested || value.len() > SHOWN_BYTES_MAX { kind_of(value) } else { value.to_owned() }
}

/// What a value is, without repeating it.
fn kind_of(value: &str) -> String {
    let kind = match value.as_bytes().first() {
        Some(b'{') => "an object",
        Some(b'[') => "a list",
        Some(b'"') => "a text",
        Some(b't' | b'f' | b'n') => value,
        _ => "a number",
    };
    kind.to_owned()
}
