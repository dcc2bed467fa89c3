//! Foreign text made fit for one line: escaped, and cut where it is too long.
//!
//! Owns the two ways of cutting: with an ellipsis inside the bound, or with the count of what is missing after it.

use holdpoint_core::sanitize::{sanitize, truncate};

/// Makes one line of foreign text fit to be printed: escaped, and cut at `max_bytes` with an ellipsis.
pub fn line(text: &str, max_bytes: usize) -> String {
    truncate(&sanitize(text), max_bytes).into_owned()
}

/// Makes a longer field fit to be printed: escaped, and cut at `max_bytes` with the count of what is missing.
pub fn counted(text: &str, max_bytes: usize) -> String {
    let clean = sanitize(text);
    if clean.len() <= max_bytes {
        return clean.into_owned();
    }
    let cut = clean.floor_char_boundary(max_bytes);
    format!("{}… [{} more bytes]", &clean[..cut], clean.len() - cut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_field_says_how_much_is_missing() {
        assert_eq!(counted("abc", 3), "abc");
        assert_eq!(counted("abcdef", 4), "abcd… [2 more bytes]");
        assert_eq!(counted("äöü", 3), "ä… [4 more bytes]");
    }
}
