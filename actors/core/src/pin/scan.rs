//! Cuts a server's JSON into pieces that keep their bytes.
//!
//! A listing is pinned from the text that was received, so a page, a tool and a result are cut, not decoded: numbers,
//! key order and escapes of each piece stay as they were written. Keys are compared by what they say, exactly and
//! with case. Never judges what the pieces mean.

use std::borrow::Cow;

use thiserror::Error;

use crate::json::reader::{Event, Malformed, Reader};
use crate::json::{DEPTH_MAX, is_deeper_than};

/// Why a text can't be cut.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Error {
    /// The text is not one well-formed JSON value, from this byte on.
    #[error("not one well-formed JSON value (byte {0})")]
    Malformed(usize),
    /// More than [`DEPTH_MAX`] arrays and objects stand inside one another.
    #[error("nested deeper than {DEPTH_MAX} levels")]
    TooDeep,
    /// The value is not of the kind that belongs there.
    #[error("not {0}")]
    Kind(&'static str),
}

impl From<Malformed> for Error {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed.at)
    }
}

/// A member of an object: what its key says, and its value as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member<'a> {
    pub(crate) key: Cow<'a, str>,
    pub(crate) value: &'a str,
}

/// Reads bytes as text: each byte that is not UTF-8 becomes one U+FFFD, as in the pins that others computed.
pub(crate) fn lossy(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        out.push_str(chunk.valid());
        out.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
    Cow::Owned(out)
}

/// Makes sure that a text is one JSON value, nested no deeper than [`DEPTH_MAX`], with nothing behind it.
pub(crate) fn whole(text: &str) -> Result<(), Error> {
    if is_deeper_than(text.as_bytes(), DEPTH_MAX) {
        return Err(Error::TooDeep);
    }
    walk(text, |_, _| {})
}

/// Cuts an object into its members, in the order they are written, repeated keys included.
pub(crate) fn members(object: &str) -> Result<Vec<Member<'_>>, Error> {
    if !object.trim_ascii_start().starts_with('{') {
        walk(object, |_, _| {})?;
        return Err(Error::Kind("an object"));
    }
    let mut members = Vec::new();
    let mut last = None;
    let mut start = 0;
    walk(object, |event, reader| {
        if let (Event::Key(key), 1) = (event, reader.depth()) {
            last = Some(key.unescape());
            start = reader.offset();
        } else if reader.depth() == 1
            && let Some(key) = last.take()
        {
            // Between a key and the next thing at depth 1 lies that key's value, and nothing else.
            members.push(Member { key, value: object[start..reader.offset()].trim_ascii() });
        }
    })?;
    Ok(members)
}

/// Gives the value of the last member called `key`, which is the one that a decoder of maps keeps.
pub(crate) fn last<'a>(members: &[Member<'a>], key: &str) -> Option<&'a str> {
    members.iter().rfind(|member| member.key == key).map(|member| member.value)
}

/// Cuts an array into its items.
pub(crate) fn items(array: &str) -> Result<Vec<&str>, Error> {
    if !array.trim_ascii_start().starts_with('[') {
        walk(array, |_, _| {})?;
        return Err(Error::Kind("an array"));
    }
    let mut items = Vec::new();
    let mut start = None;
    walk(array, |event, reader| {
        // An item begins where something begins directly below the top, and ends when we are back there.
        let opens = matches!(event, Event::ObjectStart | Event::ArrayStart);
        let is_inner = reader.depth() > 1 || (reader.depth() == 1 && !opens);
        if start.is_none() && is_inner {
            start = Some(reader.event_at());
        }
        if reader.depth() == 1
            && !opens
            && let Some(start) = start.take()
        {
            items.push(&array[start..reader.offset()]);
        }
    })?;
    Ok(items)
}

/// Reads a string; nothing for a value of another kind.
pub(crate) fn text(value: &str) -> Option<String> {
    match Reader::new(value).next() {
        Ok(Some(Event::String(text))) => Some(text.unescape().into_owned()),
        Ok(Some(_) | None) | Err(_) => None,
    }
}

/// Reads `true` or `false`; nothing for a value of another kind.
pub(crate) fn truth(value: &str) -> Option<bool> {
    match value {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    }
}

/// Appends a document without the white space between its tokens; everything else stays as it is written.
pub(crate) fn push_compact(out: &mut String, json: &str) -> Result<(), Error> {
    let mut comma = false;
    walk(json, |event, reader| {
        if comma && !matches!(event, Event::ObjectEnd | Event::ArrayEnd) {
            out.push(',');
        }
        comma = !matches!(event, Event::ObjectStart | Event::ArrayStart | Event::Key(_));
        match event {
            Event::Key(key) => {
                out.push('"');
                out.push_str(key.raw);
                out.push_str("\":");
            }
            Event::ObjectStart
            | Event::ObjectEnd
            | Event::ArrayStart
            | Event::ArrayEnd
            | Event::String(_)
            | Event::Number(_)
            | Event::Literal(_) => out.push_str(&json[reader.event_at()..reader.offset()]),
        }
    })
}

/// Writes a document with every member and item on a line of its own, two spaces a level; tokens stay as they are.
pub(crate) fn indented(json: &str) -> Result<String, Error> {
    let mut out = String::with_capacity(json.len() * 2);
    let mut before = None;
    walk(json, |event, reader| {
        let closes = matches!(event, Event::ObjectEnd | Event::ArrayEnd);
        let opened = matches!(before, Some(Event::ObjectStart | Event::ArrayStart));
        let after_key = matches!(before, Some(Event::Key(_)));
        if before.is_some() && !after_key && !(opened && closes) {
            if !opened && !closes {
                out.push(',');
            }
            let opens = matches!(event, Event::ObjectStart | Event::ArrayStart);
            out.push('\n');
            out.push_str(&"  ".repeat(reader.depth() - usize::from(opens)));
        }
        match event {
            Event::Key(key) => {
                out.push('"');
                out.push_str(key.raw);
                out.push_str("\": ");
            }
            Event::ObjectStart
            | Event::ObjectEnd
            | Event::ArrayStart
            | Event::ArrayEnd
            | Event::String(_)
            | Event::Number(_)
            | Event::Literal(_) => out.push_str(&json[reader.event_at()..reader.offset()]),
        }
        before = Some(event);
    })?;
    Ok(out)
}

/// Shows each event of the one value in `text`, and refuses what follows it.
fn walk<'a>(text: &'a str, mut look: impl FnMut(Event<'a>, &Reader<'a>)) -> Result<(), Error> {
    let mut reader = Reader::new(text);
    while let Some(event) = reader.next()? {
        look(event, &reader);
    }
    Ok(reader.end()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_cut_into_members_as_they_are_written() {
        let cut = members(r#" { "a" : 1.50 , "\u0062":{"a":[1, 2]},"a":[ ] , "c":{}, "d":"x" } "#).unwrap();
        let seen: Vec<_> = cut.iter().map(|member| (&*member.key, member.value)).collect();
        let want = [("a", "1.50"), ("b", r#"{"a":[1, 2]}"#), ("a", "[ ]"), ("c", "{}"), ("d", "\"x\"")];
        assert_eq!(seen, want);
        assert_eq!(last(&cut, "a"), Some("[ ]"));
        assert_eq!(last(&cut, "A"), None);
        assert_eq!(members("{}").unwrap(), []);
        assert_eq!(members(" [1]"), Err(Error::Kind("an object")));
        assert_eq!(members("[1"), Err(Error::Malformed(2)));
        assert_eq!(members("{\"a\":1} x"), Err(Error::Malformed(8)));
    }

    #[test]
    fn an_array_is_cut_into_items_as_they_are_written() {
        let cut = items(r#"[ {"a": [1,2]} , 3,[4 , 5] ,"x,y", null,[],{} ]"#).unwrap();
        assert_eq!(cut, [r#"{"a": [1,2]}"#, "3", "[4 , 5]", r#""x,y""#, "null", "[]", "{}"]);
        assert_eq!(items("[ ]").unwrap(), Vec::<&str>::new());
        assert_eq!(items("{\"a\":[]}"), Err(Error::Kind("an array")));
    }

    #[test]
    fn each_byte_that_is_not_utf_8_becomes_one_replacement_character() {
        assert_eq!(lossy("é世".as_bytes()), "é世");
        assert_eq!(lossy(b"a\xff\xfe\xe4\xb8b"), "a\u{fffd}\u{fffd}\u{fffd}\u{fffd}b");
    }

    #[test]
    fn compact_text_keeps_everything_but_the_space_between() {
        let spaced = "\n{ \"b\" : [ 1.50 , -0 , \"a b\\u003c\" ] ,\t\"\\u0061\" : { } , \"b\": null}\n";
        let mut out = String::new();
        push_compact(&mut out, spaced).unwrap();
        assert_eq!(out, r#"{"b":[1.50,-0,"a b\u003c"],"\u0061":{},"b":null}"#);
    }

    #[test]
    fn a_text_is_whole_up_to_two_hundred_and_fifty_six_levels() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert_eq!(whole(&nested(DEPTH_MAX)), Ok(()));
        assert_eq!(whole(&nested(DEPTH_MAX + 1)), Err(Error::TooDeep));
        assert!(matches!(whole("1 2"), Err(Error::Malformed(_))));
    }

    #[test]
    fn indented_text_has_one_member_or_item_a_line() {
        let text = indented(r#"{"a":[1,[],{}],"b":{"c":"x","d":1.0},"e":null}"#).unwrap();
        let want = "{\n  \"a\": [\n    1,\n    [],\n    {}\n  ],\n  \"b\": {\n    \"c\": \"x\",\n    \"d\": 1.0\n  },\n  \"e\": null\n}";
        assert_eq!(text, want);
        assert_eq!(indented("[]").unwrap(), "[]");
        assert_eq!(indented(" 1 ").unwrap(), "1");
    }
}
