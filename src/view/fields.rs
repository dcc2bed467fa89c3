//! JSON for a person: one field after the other, each with the size of its stored value, indented and bounded.
//!
//! Works on the stored text, so numbers keep their digits and a repeated key is seen twice. Never prints a foreign
//! character unescaped, and never lets one value push the others off the screen: long strings keep their ends, and
//! of many lines or fields the middle is left out and counted.

use std::fmt;
use std::io::{self, Write};

use holdpoint_core::json::{DEPTH_MAX, Json, is_deeper_than};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::bound::{bound_string, decoded};
use super::line::{counted, line};

/// The most bytes of a field's name that are printed.
const NAME_BYTES_MAX: usize = 200;
/// The most bytes of a line of a value; a string inside it has a lower bound of its own.
const LINE_BYTES_MAX: usize = 4_000;
/// How many lines of a value are printed from its beginning and its end.
const LINES: (usize, usize) = (160, 80);
/// How many fields of an object are printed from the beginning and the end of their order.
const FIELDS: (usize, usize) = (120, 80);

/// Writes an object's fields in the order of their names; any other value as one field called `value`.
pub fn write(out: &mut dyn Write, json: &Json) -> io::Result<()> {
    write_and_tell(out, json).map(drop)
}

/// Writes as [`write()`] does, and tells whether whole fields or lines were left out: there may be any number of them, and
/// whoever chose it chose what is not read.
pub fn write_and_tell(out: &mut dyn Write, json: &Json) -> io::Result<bool> {
    if json.is_blank() {
        writeln!(out, "  (none)")?;
        return Ok(false);
    }
    let text = json.as_str().trim();
    let Some(mut members) = members(text) else {
        return field(out, "value", text);
    };
    if members.is_empty() {
        writeln!(out, "  (no fields)")?;
        return Ok(false);
    }
    members.sort_by(|(a, _), (b, _)| a.cmp(b));
    let (head, left_out, tail) = ends(&members, FIELDS);
    let mut leaves_out = left_out > 0;
    for (name, value) in head {
        leaves_out |= field(out, name, value.get())?;
    }
    if left_out > 0 {
        writeln!(out, "  … {left_out} fields left out …")?;
    }
    for (name, value) in tail {
        leaves_out |= field(out, name, value.get())?;
    }
    Ok(leaves_out)
}

/// Gives JSON in one line, as it reads: without white space between its tokens, a character always alike, however it was
/// escaped when it was stored. Text that is no JSON, or nested absurdly, stays as it is. Nothing is escaped for terminals yet.
pub fn one_line(json: &Json) -> String {
    decoded(json).map_or_else(|| json.as_str().to_owned(), |value| value.to_string())
}

/// An object's members as they stand, repeated ones included; `None` for anything else.
fn members(text: &str) -> Option<Vec<(String, &RawValue)>> {
    struct Members;

    impl<'de> Visitor<'de> for Members {
        type Value = Vec<(String, &'de RawValue)>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut members = Vec::new();
            while let Some(member) = map.next_entry()? {
                members.push(member);
            }
            Ok(members)
        }
    }

    if is_deeper_than(text.as_bytes(), DEPTH_MAX) {
        return None;
    }
    let mut decoder = serde_json::Deserializer::from_str(text);
    let members = decoder.deserialize_map(Members).ok()?;
    decoder.end().ok().map(|()| members)
}

/// Writes a field, and tells whether lines of it were left out.
fn field(out: &mut dyn Write, name: &str, value: &str) -> io::Result<bool> {
    writeln!(out, "  {} ({} bytes)", line(name, NAME_BYTES_MAX), value.len())?;
    let lines = pretty(value).unwrap_or_else(|| vec![bound_string(value.to_owned())]);
    let (head, left_out, tail) = ends(&lines, LINES);
    for text in head {
        writeln!(out, "    {}", counted(text, LINE_BYTES_MAX))?;
    }
    if left_out > 0 {
        writeln!(out, "    … {left_out} lines left out …")?;
    }
    for text in tail {
        writeln!(out, "    {}", counted(text, LINE_BYTES_MAX))?;
    }
    Ok(left_out > 0)
}

/// Splits a list into what is shown of it: all, or its beginning and its end.
fn ends<T>(items: &[T], (head, tail): (usize, usize)) -> (&[T], usize, &[T]) {
    if items.len() <= head + tail {
        return (items, 0, &[]);
    }
    (&items[..head], items.len() - head - tail, &items[items.len() - tail..])
}

/// Lays a value out, two spaces a level, its strings bounded. `None` when the text is no JSON, or nested absurdly.
pub fn pretty(text: &str) -> Option<Vec<String>> {
    if is_deeper_than(text.as_bytes(), DEPTH_MAX) {
        return None;
    }
    let mut decoder = serde_json::Deserializer::from_str(text);
    decoder.disable_recursion_limit();
    <&RawValue>::deserialize(&mut decoder).ok()?;
    decoder.end().ok()?;
    let (mut lines, mut current, mut depth) = (Vec::new(), String::new(), 0_usize);
    let bytes = text.as_bytes();
    let mut at = 0;
    let mut next_line = |current: &mut String, depth: usize| {
        lines.push(std::mem::take(current));
        current.push_str(&"  ".repeat(depth));
    };
    while at < bytes.len() {
        let start = at;
        at += 1;
        match bytes[start] {
            b'"' => {
                at = end_of_string(bytes, at);
                current.push_str(&shown_string(&text[start..at]));
            }
            open @ (b'{' | b'[') => {
                let close = if open == b'{' { b'}' } else { b']' };
                current.push(open.into());
                let rest = text[at..].trim_start();
                if rest.as_bytes().first() == Some(&close) {
                    at = text.len() - rest.len() + 1;
                    current.push(close.into());
                } else {
                    depth += 1;
                    next_line(&mut current, depth);
                }
            }
            close @ (b'}' | b']') => {
                depth = depth.saturating_sub(1);
                next_line(&mut current, depth);
                current.push(close.into());
            }
            b',' => {
                current.push(',');
                next_line(&mut current, depth);
            }
            b':' => current.push_str(": "),
            b' ' | b'\t' | b'\n' | b'\r' => {}
            // A number or a word: ASCII, and up to the next byte that can't be a part of one.
            _ => {
                at += bytes[at..].iter().take_while(|byte| !b",]} \t\n\r".contains(byte)).count();
                current.push_str(&text[start..at]);
            }
        }
    }
    lines.push(current);
    Some(lines)
}

/// Where the string ends whose first character stands at `at`.
fn end_of_string(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

/// A string as it reads: its escapes undone, its middle left out when it is long, its quotes around it.
fn shown_string(written: &str) -> String {
    serde_json::from_str::<String>(written)
        .ok()
        .and_then(|text| serde_json::to_string(&bound_string(text)).ok())
        .unwrap_or_else(|| written.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(json: &str) -> String {
        let mut out = Vec::new();
        write(&mut out, &Json::trusted(json)).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn fields_are_sorted_and_carry_the_size_of_what_is_stored() {
        insta::assert_snapshot!(written(r#"{"to":"A \u0026 B","amount": 10.50,"tags":[],"more":{"x":[1,{"y":null}],"e":{ }}}"#), @r#"
          amount (5 bytes)
            10.50
          more (28 bytes)
            {
              "x": [
                1,
                {
                  "y": null
                }
              ],
              "e": {}
            }
          tags (2 bytes)
            []
          to (12 bytes)
            "A & B"
        "#);
    }

    #[test]
    fn a_repeated_key_is_seen_twice() {
        insta::assert_snapshot!(written(r#"{"amount":1,"amount":1000000}"#), @r"
          amount (1 bytes)
            1
          amount (7 bytes)
            1000000
        ");
    }

    #[test]
    fn what_is_not_an_object_is_one_field() {
        insta::assert_snapshot!(written("[1,2]"), @r"
          value (5 bytes)
            [
              1,
              2
            ]
        ");
        assert_eq!(written("{oops"), "  value (5 bytes)\n    {oops\n");
        assert_eq!(written("{}"), "  (no fields)\n");
        assert_eq!(written(" "), "  (none)\n");
    }

    #[test]
    fn hidden_characters_are_made_visible_in_names_and_values() {
        let text = written(
            "{\"to\u{202e}\":\"ecila\u{202c}\\u001b[2J\",\"m\":\"e\u{301}\u{301}\u{301}\u{301}\u{301}\u{301}\"}",
        );
        assert!(text.contains(r"to\u{202e} ("), "{text}");
        assert!(text.contains(r#""ecila\u{202c}\u001b[2J""#), "{text}");
        assert!(text.contains("[+2 combining marks dropped]"), "{text}");
    }

    #[test]
    fn a_line_shows_a_character_alike_however_it_was_stored() {
        for stored in ["{\"to\": \"bob\u{202e}\", \"n\":1.50}", r#"{"to":"bob\u202e","n":1.50}"#] {
            assert_eq!(one_line(&Json::trusted(stored)), "{\"to\":\"bob\u{202e}\",\"n\":1.50}");
        }
        assert_eq!(one_line(&Json::trusted("{oops")), "{oops");
    }

    #[test]
    fn a_value_can_t_push_the_others_off_the_screen() {
        let long = format!(r#"{{"a":"{}","b":[{}0],"c":1}}"#, "x".repeat(100_000), "0,".repeat(100_000));
        let text = written(&long);
        assert!(text.len() < 6_000, "{}", text.len());
        assert!(text.contains("[99600 bytes left out]") && text.contains("lines left out"), "{text}");
        assert!(text.ends_with("  c (1 bytes)\n    1\n"), "{text}");
        let many: Vec<String> = (0..10_000).map(|n| format!(r#""k{n}":{n}"#)).collect();
        let text = written(&format!("{{{}}}", many.join(",")));
        assert!(text.contains("… 9800 fields left out …") && text.len() < 10_000, "{}", text.len());
    }

    #[test]
    fn absurd_nesting_is_shown_as_text() {
        let text = written(&"[".repeat(100_000));
        assert!(text.starts_with("  value (100000 bytes)\n    [[[") && text.len() < 1_000, "{}", text.len());
    }
}
