//! Text that a server chose, made safe to stand in an error, a log line or a record.
//!
//! Every sentence of this module's siblings that quotes a server goes through here.

use holdpoint_core::sanitize::{sanitize, truncate};

/// Makes server text fit to stand in a sentence, at most `max_bytes` of it.
pub(crate) fn visible(text: &str, max_bytes: usize) -> String {
    sanitize(&truncate(text, max_bytes)).into_owned()
}

/// Quotes a piece of server text, at most `max_bytes` of it: line breaks and quotes are spelt out.
pub(crate) fn excerpt(text: &str, max_bytes: usize) -> String {
    let text = truncate(text, max_bytes);
    let mut spelt = String::with_capacity(text.len() + 2);
    for char in text.chars() {
        match char {
            '"' => spelt.push_str("\\\""),
            '\\' => spelt.push_str("\\\\"),
            '\n' => spelt.push_str("\\n"),
            '\r' => spelt.push_str("\\r"),
            '\t' => spelt.push_str("\\t"),
            other => spelt.push(other),
        }
    }
    format!("\"{}\"", sanitize(&spelt))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_and_direction_characters_are_spelt_out() {
        assert_eq!(visible("a\u{1b}[2J\nb\u{202e}c\"é", 100), "a\\x1b[2J b\\u{202e}c\"é");
        assert_eq!(excerpt("say \"hi\"\r\n\u{1b}", 100), "\"say \\\"hi\\\"\\r\\n\\x1b\"");
    }

    #[test]
    fn a_cut_falls_between_characters_and_shows() {
        assert_eq!(visible("aéééb", 6), "aé…");
        assert_eq!(excerpt("aéééb", 6), "\"aé…\"");
    }
}
