//! A payload as spans read it: its members as they were recorded, one by one, whatever the rest of it is.
//!
//! Never fails: a payload that can't be read has no members.

use std::collections::HashMap;

use opentelemetry::KeyValue;
use serde_json::value::RawValue;

/// Begins what is put behind a text that was cut.
const CUT: &str = "…[truncated: ";

/// An event's payload.
#[derive(Debug, Default)]
pub(super) struct Payload<'a> {
    members: HashMap<String, &'a RawValue>,
}

impl<'a> Payload<'a> {
    pub(super) fn of(text: &'a str) -> Payload<'a> {
        Payload { members: serde_json::from_str(text).unwrap_or_default() }
    }

    fn raw(&self, member: &str) -> Option<&'a str> {
        self.members.get(member).map(|raw| raw.get()).filter(|raw| *raw != "null")
    }

    /// Whether there is such a member.
    pub(super) fn has(&self, member: &str) -> bool {
        self.members.contains_key(member)
    }

    /// A member as text: a string's content, anything else's JSON; none when it is empty.
    pub(super) fn string(&self, member: &str) -> Option<String> {
        let raw = self.raw(member)?;
        let text = serde_json::from_str(raw).unwrap_or_else(|_| raw.to_owned());
        (!text.is_empty()).then_some(text)
    }

    /// A member that is a whole number.
    pub(super) fn int(&self, member: &str) -> Option<i64> {
        self.raw(member)?.parse().ok()
    }

    /// Whether a member is true.
    pub(super) fn is_true(&self, member: &str) -> bool {
        self.raw(member) == Some("true")
    }

    /// The members of a member that is an object.
    pub(super) fn object(&self, member: &str) -> Payload<'a> {
        self.raw(member).map_or_else(Payload::default, Payload::of)
    }

    /// How long the payload was before it was cut to what a page brings.
    pub(super) fn cut_from(&self) -> Option<i64> {
        if self.is_true("truncated") { self.int("length") } else { None }
    }
}

/// Attributes that are made from members: those that are not there make none.
pub(super) struct Attributes<'p> {
    payload: &'p Payload<'p>,
    text_bytes_max: usize,
    made: Vec<KeyValue>,
}

impl<'p> Attributes<'p> {
    /// Attributes of one payload, beginning with how much of it was cut.
    pub(super) fn of(payload: &'p Payload<'p>, text_bytes_max: usize) -> Attributes<'p> {
        let cut = payload.cut_from().map(|length| KeyValue::new("agentrt.payload.truncated", length));
        Attributes { payload, text_bytes_max, made: cut.into_iter().collect() }
    }

    /// The same without what says that it was cut, for a second place that the same payload goes to.
    pub(super) fn beside(payload: &'p Payload<'p>, text_bytes_max: usize) -> Attributes<'p> {
        Attributes { payload, text_bytes_max, made: Vec::new() }
    }

    /// A name or an id, whole.
    pub(super) fn string(mut self, key: &'static str, member: &str) -> Self {
        self.made.extend(self.payload.string(member).map(|text| KeyValue::new(key, text)));
        self
    }

    /// Text that a model, a tool or a person chose, cut.
    pub(super) fn text(mut self, key: &'static str, member: &str) -> Self {
        let text = self.payload.string(member);
        self.made.extend(text.map(|text| KeyValue::new(key, truncate(&text, self.text_bytes_max))));
        self
    }

    pub(super) fn int(mut self, key: &'static str, member: &str) -> Self {
        self.made.extend(self.payload.int(member).map(|number| KeyValue::new(key, number)));
        self
    }

    /// A number that is zero when it is absent.
    pub(super) fn any_int(mut self, key: &'static str, member: &str) -> Self {
        self.made.push(KeyValue::new(key, self.payload.int(member).unwrap_or(0)));
        self
    }

    /// A number that is absent when it is zero.
    pub(super) fn set_int(mut self, key: &'static str, member: &str) -> Self {
        let number = self.payload.int(member).filter(|number| *number != 0);
        self.made.extend(number.map(|number| KeyValue::new(key, number)));
        self
    }

    /// Nanoseconds, told in milliseconds, absent when zero.
    pub(super) fn set_millis(mut self, key: &'static str, member: &str) -> Self {
        let nanos = self.payload.int(member).filter(|nanos| *nanos != 0);
        self.made.extend(nanos.map(|nanos| KeyValue::new(key, nanos / 1_000_000)));
        self
    }

    pub(super) fn flag(mut self, key: &'static str, member: &str) -> Self {
        self.made.extend(self.payload.is_true(member).then(|| KeyValue::new(key, true)));
        self
    }

    pub(super) fn also(mut self, attribute: KeyValue) -> Self {
        self.made.push(attribute);
        self
    }

    pub(super) fn made(self) -> Vec<KeyValue> {
        self.made
    }
}

/// Cuts a text to at most `bytes_max` bytes, between characters, and says how long it was. A shorter one stays as it is.
pub(super) fn truncate(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(bytes_max);
    format!("{}{CUT}{} bytes]", &text[..end], text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters_and_says_how_long_it_was() {
        assert_eq!(truncate(&"é".repeat(10), 5), "éé…[truncated: 20 bytes]");
        assert_eq!(truncate("abc", 3), "abc");
        assert_eq!(truncate("", 0), "");
    }

    #[test]
    fn members_keep_their_json_and_what_can_not_be_read_is_not_there() {
        let payload = Payload::of(
            r#"{"args":{"b":1.50, "a":"x"},"s":"a\nb","empty":"","none":null,"n":7,"f":1.5,"yes":true}"#,
        );
        assert_eq!(payload.string("args").as_deref(), Some(r#"{"b":1.50, "a":"x"}"#));
        assert_eq!(payload.string("s").as_deref(), Some("a\nb"));
        assert_eq!(
            (payload.string("empty"), payload.string("none"), payload.string("gone")),
            (None, None, None)
        );
        assert_eq!((payload.int("n"), payload.int("f"), payload.int("s")), (Some(7), None, None));
        assert!(payload.is_true("yes") && !payload.is_true("n") && payload.has("none"));
        assert!(!Payload::of("not json").has("n") && !Payload::of("[1]").has("0"));
        let deep = format!(r#"{{"args":{}{},"n":1}}"#, "[".repeat(250), "]".repeat(250));
        assert_eq!(Payload::of(&deep).int("n"), Some(1));
    }
}
