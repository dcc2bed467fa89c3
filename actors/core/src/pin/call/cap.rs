//! Text as a JSON string of a bounded length.
//!
//! The bound counts what is recorded: quotes, escapes and the marker are in it, so a control character costs six.

use crate::pin::canonical::json_string;

/// Ends text that was cut.
pub const TRUNCATION_MARKER: &str = "\n[truncated]";

/// The smallest bound there is: the marker as a JSON string.
pub const LEAST_CAP: usize = 15;

/// Text as it is recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capped {
    /// As a JSON string.
    pub json: String,
    /// What the string says.
    pub text: String,
    /// Whether it was cut.
    pub truncated: bool,
}

/// Writes `text` as a JSON string of at most `cap` bytes, cut between characters and marked if it doesn't fit.
///
/// The longest prefix that leaves room for the marker is kept. A `cap` below [`LEAST_CAP`] is raised to it.
pub fn capped(text: String, cap: usize) -> Capped {
    let json = json_string(&text);
    if json.len() <= cap {
        return Capped { json, text, truncated: false };
    }
    let mut room = cap.saturating_sub(LEAST_CAP);
    let mut end = 0;
    for character in text.chars() {
        let length = encoded_len(character);
        if length > room {
            break;
        }
        room -= length;
        end += character.len_utf8();
    }
    let text = format!("{}{TRUNCATION_MARKER}", &text[..end]);
    Capped { json: json_string(&text), text, truncated: true }
}

/// How many bytes a character takes inside a JSON string.
fn encoded_len(character: char) -> usize {
    match character {
        '"' | '\\' | '\u{8}' | '\u{c}' | '\n' | '\r' | '\t' => 2,
        '\0'..='\u{1f}' | '\u{2028}' | '\u{2029}' => 6,
        other => other.len_utf8(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_character_is_counted_as_it_is_written() {
        for character in '\0'..='\u{3000}' {
            assert_eq!(
                json_string(&character.to_string()).len(),
                encoded_len(character) + 2,
                "{character:?}"
            );
        }
        assert_eq!(json_string(TRUNCATION_MARKER).len(), LEAST_CAP);
    }

    #[test]
    fn five_hundred_letters_under_a_cap_of_sixty_four_keep_forty_nine() {
        let cut = capped("x".repeat(500), 64);
        assert_eq!(cut.json.len(), 64);
        assert_eq!(cut.text, format!("{}{TRUNCATION_MARKER}", "x".repeat(49)));
        assert!(cut.truncated);
    }

    #[test]
    fn text_that_fits_to_the_byte_stays_whole() {
        // 16 control characters are 96 bytes, and two quotes.
        let fits = capped("\u{1}".repeat(16), 98);
        assert_eq!((fits.json.len(), fits.truncated), (98, false));
        let cut = capped("\u{1}".repeat(17), 100);
        assert!(cut.truncated && cut.json.len() <= 100);
    }

    fn check(text: &str, cap: usize) {
        let cut = capped(text.to_owned(), cap);
        assert!(cut.json.len() <= cap.max(LEAST_CAP), "{text:?} {cap}: {} bytes", cut.json.len());
        assert_eq!(serde_json::from_str::<String>(&cut.json).unwrap(), cut.text);
        if !cut.truncated {
            assert_eq!(cut.text, text);
            return;
        }
        assert!(json_string(text).len() > cap, "what fits is not cut");
        let kept = cut.text.strip_suffix(TRUNCATION_MARKER).unwrap();
        let rest = text.strip_prefix(kept).unwrap();
        if let Some(next) = rest.chars().next() {
            let longer = json_string(&format!("{kept}{next}{TRUNCATION_MARKER}"));
            assert!(longer.len() > cap.max(LEAST_CAP), "{text:?} {cap}: {next:?} would fit as well");
        }
    }

    #[test]
    fn no_text_passes_any_cap_and_the_longest_prefix_is_kept() {
        for unit in ["a", "\u{1}", "é", "\"\\\n", "\u{2028}", "\u{fffd}", "😀a\0", "世", "\n[truncated]"]
        {
            let text = unit.repeat(300);
            for cap in 0..200 {
                check(&text, cap);
            }
        }
    }

    proptest! {
        #[test]
        fn a_random_text_never_passes_its_cap(text in any::<String>(), cap in 0_usize..120) {
            check(&text, cap);
        }
    }
}
