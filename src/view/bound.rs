//! How much of one value is shown: long strings keep their ends, and what is missing is counted.
//!
//! Owns the two numbers. Never changes what is stored or hashed, only what is shown of it.

use holdpoint_core::json::{self, Json};
use serde_json::{Map, Value};

/// The longest string inside a value that is shown whole, in bytes.
pub const STRING_BYTES_MAX: usize = 2_000;
/// How much of the beginning and of the end of a longer string is shown, in bytes.
pub const STRING_ENDS_BYTES: usize = 200;

/// Decodes stored JSON whose nesting is within bounds; a row that somebody damaged gives nothing.
pub(super) fn decoded(text: &Json) -> Option<Value> {
    if json::is_deeper_than(text.as_str().as_bytes(), json::DEPTH_MAX) {
        return None;
    }
    text.decode().ok()
}

/// Decodes stored JSON and bounds every string in it; what is no JSON is shown as a bounded string.
pub fn bounded(text: &Json) -> Value {
    if text.is_blank() {
        return Value::Null;
    }
    bound_value(decoded(text).unwrap_or_else(|| Value::String(text.as_str().to_owned())))
}

/// Bounds every string inside a value, see [`bound_string`].
pub fn bound_value(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(bound_string(text)),
        Value::Array(items) => Value::Array(items.into_iter().map(bound_value).collect()),
        Value::Object(members) => Value::Object(
            members.into_iter().map(|(key, value)| (key, bound_value(value))).collect::<Map<_, _>>(),
        ),
        Value::Null | Value::Bool(_) | Value::Number(_) => value,
    }
}

/// Gives a string of more than [`STRING_BYTES_MAX`] bytes as its beginning, a note of what is missing, and its end.
pub fn bound_string(text: String) -> String {
    if text.len() <= STRING_BYTES_MAX {
        return text;
    }
    let head = text.floor_char_boundary(STRING_ENDS_BYTES);
    let tail = text.ceil_char_boundary(text.len() - STRING_ENDS_BYTES);
    format!("{} … [{} bytes left out] … {}", &text[..head], tail - head, &text[tail..])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_long_string_keeps_its_ends_and_says_what_is_missing() {
        let text = format!("{}{}", "ä".repeat(1_500), "z".repeat(300));
        let shown = bound_string(text.clone());
        assert!(shown.starts_with(&"ä".repeat(100)) && shown.ends_with(&"z".repeat(200)), "{shown}");
        assert!(shown.contains(" … [2900 bytes left out] … "), "{shown}");
        assert_eq!(bound_string("z".repeat(STRING_BYTES_MAX)), "z".repeat(STRING_BYTES_MAX));
    }

    #[test]
    fn numbers_keep_their_text_and_keys_their_order() {
        let value = bounded(&Json::trusted(r#"{"b":1.50,"a":[12345678901234567890123,"x"]}"#));
        assert_eq!(value.to_string(), r#"{"b":1.50,"a":[12345678901234567890123,"x"]}"#);
    }

    #[test]
    fn damaged_or_deep_json_is_shown_as_text() {
        assert_eq!(bounded(&Json::trusted("{oops")), json!("{oops"));
        let deep = Json::trusted("[".repeat(100_000));
        assert!(bounded(&deep).as_str().unwrap().contains("bytes left out"));
        assert_eq!(bounded(&Json::trusted("")), Value::Null);
    }
}
