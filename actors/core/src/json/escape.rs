//! Strings as JSON text: one encoder, with three sets of what is escaped beyond what JSON asks for.
//!
//! Everything in this program that writes a JSON string whose bytes matter goes through [`push_quoted`]. The
//! short escapes are the reference's (Go's encoder since 1.22); other control characters are `\u00xx`, in lower
//! case. `/`, U+007F and all else stay as they are.

/// What a string's encoder escapes, besides `"`, `\` and control characters.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Escapes {
    /// `<`, `>`, `&`, U+2028 and U+2029: the form that is hashed and stored.
    Html,
    /// U+2028 and U+2029: the form of pinned schemas and of lines of JSON.
    Separators,
    /// Nothing more: the form that a policy reads.
    Minimal,
}

#[derive(Copy, Clone, PartialEq, Eq)]
enum Class {
    /// Stands for itself.
    Plain,
    /// Escaped everywhere.
    Always,
    /// Escaped for HTML.
    Html,
    /// The first byte of three, which may be a line or paragraph separator.
    Lead,
}

const CLASSES: [Class; 256] = {
    let mut classes = [Class::Plain; 256];
    let mut byte = 0;
    while byte < 0x20 {
        classes[byte] = Class::Always;
        byte += 1;
    }
    classes[b'"' as usize] = Class::Always;
    classes[b'\\' as usize] = Class::Always;
    classes[b'<' as usize] = Class::Html;
    classes[b'>' as usize] = Class::Html;
    classes[b'&' as usize] = Class::Html;
    classes[0xE2] = Class::Lead;
    classes
};

/// Appends `text` in quotes.
pub fn push_quoted(out: &mut String, text: &str, escapes: Escapes) {
    out.push('"');
    let bytes = text.as_bytes();
    let (mut copied, mut at) = (0, 0);
    while at < bytes.len() {
        let length = match CLASSES[usize::from(bytes[at])] {
            Class::Plain => 0,
            Class::Always => 1,
            Class::Html => usize::from(escapes == Escapes::Html),
            Class::Lead => separator_length(&bytes[at..], escapes),
        };
        if length == 0 {
            at += 1;
            continue;
        }
        out.push_str(&text[copied..at]);
        if length == 1 {
            push_escaped_byte(out, bytes[at]);
        } else {
            push_separator(out, bytes[at + 2]);
        }
        at += length;
        copied = at;
    }
    out.push_str(&text[copied..]);
    out.push('"');
}

/// Gives 3 where U+2028 or U+2029 begins and is to be escaped, else 0.
fn separator_length(bytes: &[u8], escapes: Escapes) -> usize {
    if escapes != Escapes::Minimal && is_separator(bytes) { 3 } else { 0 }
}

/// Says whether U+2028 or U+2029 begins here.
pub(super) fn is_separator(bytes: &[u8]) -> bool {
    matches!(bytes, [0xE2, 0x80, 0xA8 | 0xA9, ..])
}

/// Appends `\u2028` or `\u2029`, told apart by the last of the character's three bytes.
pub(super) fn push_separator(out: &mut String, last_byte: u8) {
    out.push_str(if last_byte == 0xA8 { r"\u2028" } else { r"\u2029" });
}

/// Appends the escape of one ASCII character.
pub(super) fn push_escaped_byte(out: &mut String, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    match byte {
        b'"' => out.push_str("\\\""),
        b'\\' => out.push_str(r"\\"),
        0x08 => out.push_str(r"\b"),
        0x0C => out.push_str(r"\f"),
        b'\n' => out.push_str(r"\n"),
        b'\r' => out.push_str(r"\r"),
        b'\t' => out.push_str(r"\t"),
        other => {
            out.push_str(r"\u00");
            out.push(DIGITS[usize::from(other >> 4)].into());
            out.push(DIGITS[usize::from(other & 15)].into());
        }
    }
}
