//! Text that a server chose, made safe to stand in an error, a log line or a record.
//!
//! Every sentence of this module's siblings that quotes a server goes through here.

/// Escapes what a terminal or a reader could take for something else, and cuts at `max` bytes of the original.
pub(crate) fn visible(text: &str, max: usize) -> String {
    let cut = cut(text, max);
    let mut shown = String::with_capacity(cut.len());
    for char in cut.chars() {
        // `escape_debug` escapes what is not printable, and the two quotes and the backslash, which are.
        match char {
            '"' | '\'' | '\\' => shown.push(char),
            other => shown.extend(other.escape_debug()),
        }
    }
    if cut.len() < text.len() {
        shown.push_str("...");
    }
    shown
}

/// Quotes a piece of server text: escaped, in double quotes, cut at `max` bytes.
pub(crate) fn excerpt(text: &str, max: usize) -> String {
    let cut = cut(text, max);
    let more = if cut.len() < text.len() { "..." } else { "" };
    format!("\"{}\"{more}", cut.escape_debug())
}

fn cut(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_and_direction_characters_are_spelt_out() {
        assert_eq!(visible("a\u{1b}[2J\nb\u{202e}c\"é", 100), "a\\u{1b}[2J\\nb\\u{202e}c\"é");
        assert_eq!(excerpt("say \"hi\"\r", 100), "\"say \\\"hi\\\"\\r\"");
    }

    #[test]
    fn a_cut_falls_between_characters_and_shows() {
        assert_eq!(visible("aéb", 2), "a...");
        assert_eq!(excerpt("aéb", 3), "\"aé\"...");
    }
}
