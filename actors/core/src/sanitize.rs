//! Makes foreign text fit to be printed on a terminal, one line a field.
//!
//! Text of a model or a server can clear a screen, move the cursor, turn the reading direction around or hide
//! characters, and so show a person something else than what will run. [`sanitize`] makes all that visible. Output in
//! JSON is read by programs, to which it must say the same, and may end on a terminal too: [`escape_json`] uses the
//! escapes that JSON has.
//!
//! A deviation from the reference, on purpose: it leaves some more invisible characters as they are, which stand in
//! `is_invisible_beyond_reference`. We escape them too, since what can't be seen can mislead whatever its name. Text
//! that is stored or hashed does not pass through here, so the two programs' records stay the same.

use std::borrow::Cow;
use std::fmt::Write as _;

use unicode_general_category::{GeneralCategory, get_general_category};

/// The most combining marks in a row that are printed; living scripts need fewer.
const MARKS_MAX: usize = 4;

/// Makes text fit to be printed.
///
/// - Of a run of combining marks the first four stay, and `[+N combining marks dropped]` follows.
/// - A line feed and a carriage return each become a space.
/// - Other control characters become `\xHH`.
/// - Characters that are invisible or change the reading direction become `\u{hhhh}`.
///
/// Everything else stays, so scripts and emoji of all kinds can be read (a joined emoji shows its joiners).
pub fn sanitize(text: &str) -> Cow<'_, str> {
    // Most text is plain ASCII, and needs a look at its bytes only.
    if text.bytes().all(|byte| matches!(byte, 0x20..0x7F)) {
        return Cow::Borrowed(text);
    }
    if text.chars().all(|c| !is_mark(c) && kind(c) == Kind::Plain) {
        return Cow::Borrowed(text);
    }
    let mut out = Sanitized { text: String::with_capacity(text.len() + 16), marks: 0 };
    text.chars().for_each(|c| out.push(c));
    Cow::Owned(out.finish())
}

/// Makes JSON fit to be printed without changing what it says: the characters that [`sanitize`] escapes are written as
/// `\uXXXX`, by two of them where one is not enough. Below U+0080, JSON holds none but white space between tokens, and
/// DEL.
pub fn escape_json(json: &str) -> Cow<'_, str> {
    let escaped = |c: char| c >= '\u{7f}' && kind(c) != Kind::Plain;
    if !json.contains(escaped) {
        return Cow::Borrowed(json);
    }
    let mut out = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        if escaped(c) {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// Makes bytes fit to be printed: as [`sanitize`] does, after each run of bytes that are not UTF-8 became one U+FFFD.
pub fn sanitize_bytes(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return sanitize(text);
    }
    let mut text = String::with_capacity(bytes.len());
    let mut in_bad_run = false;
    for chunk in bytes.utf8_chunks() {
        in_bad_run &= chunk.valid().is_empty();
        text.push_str(chunk.valid());
        if !chunk.invalid().is_empty() && !in_bad_run {
            text.push(char::REPLACEMENT_CHARACTER);
            in_bad_run = true;
        }
    }
    Cow::Owned(sanitize(&text).into_owned())
}

/// Cuts text to at most `max_bytes` bytes, never inside a character.
///
/// A cut is marked by an ellipsis, which counts as three bytes; where there is no room for it the cut is unmarked.
pub fn truncate(text: &str, max_bytes: usize) -> Cow<'_, str> {
    const ELLIPSIS: &str = "…";
    if text.len() <= max_bytes {
        return Cow::Borrowed(text);
    }
    match max_bytes.checked_sub(ELLIPSIS.len()) {
        Some(room) => Cow::Owned(format!("{}{ELLIPSIS}", &text[..text.floor_char_boundary(room)])),
        None => Cow::Borrowed(&text[..text.floor_char_boundary(max_bytes)]),
    }
}

struct Sanitized {
    text: String,
    /// Combining marks in a row, so far.
    marks: usize,
}

impl Sanitized {
    fn push(&mut self, c: char) {
        // Marks come first: none of them is ever escaped.
        if is_mark(c) {
            self.marks += 1;
            if self.marks <= MARKS_MAX {
                self.text.push(c);
            }
            return;
        }
        self.end_marks();
        match kind(c) {
            Kind::Plain => self.text.push(c),
            Kind::LineEnd => self.text.push(' '),
            Kind::Control => self.push_formatted(format_args!("\\x{:02x}", u32::from(c))),
            Kind::Invisible => self.push_formatted(format_args!("\\u{{{:04x}}}", u32::from(c))),
        }
    }

    fn end_marks(&mut self) {
        let dropped = std::mem::take(&mut self.marks).saturating_sub(MARKS_MAX);
        if dropped > 0 {
            self.push_formatted(format_args!("[+{dropped} combining marks dropped]"));
        }
    }

    fn push_formatted(&mut self, what: std::fmt::Arguments<'_>) {
        let written = self.text.write_fmt(what);
        debug_assert!(written.is_ok(), "writing into a String can't fail");
    }

    fn finish(mut self) -> String {
        self.end_marks();
        self.text
    }
}

#[derive(Copy, Clone, PartialEq, Eq)]
enum Kind {
    Plain,
    LineEnd,
    Control,
    Invisible,
}

fn kind(c: char) -> Kind {
    match c {
        '\n' | '\r' => Kind::LineEnd,
        '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' => Kind::Control,
        '\u{20}'..='\u{7e}' => Kind::Plain,
        _ if is_invisible(c) || is_invisible_beyond_reference(c) => Kind::Invisible,
        _ => Kind::Plain,
    }
}

/// The invisible characters that the reference escapes: soft hyphen, marks and overrides of direction, zero-width
/// characters, line and paragraph separators, the Mongolian vowel separator, the byte order mark, and tags.
fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{ad}'
        | '\u{61c}'
        | '\u{180e}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{2064}'
        | '\u{2066}'..='\u{2069}'
        | '\u{feff}'
        | '\u{e0000}'..='\u{e007f}')
}

/// The invisible characters that we escape and the reference does not: retired format characters (U+206A to U+206F),
/// interlinear annotation, Hangul fillers, the empty braille pattern, musical format controls, and noncharacters.
fn is_invisible_beyond_reference(c: char) -> bool {
    let named = matches!(c,
        '\u{206a}'..='\u{206f}'
        | '\u{fff9}'..='\u{fffb}'
        | '\u{115f}' | '\u{1160}' | '\u{3164}' | '\u{ffa0}'
        | '\u{2800}'
        | '\u{1d173}'..='\u{1d17a}'
        | '\u{fdd0}'..='\u{fdef}');
    // The last two of each plane are noncharacters.
    named || u32::from(c) & 0xFFFE == 0xFFFE
}

/// Says whether a character is of category M (Mn, Mc or Me).
fn is_mark(c: char) -> bool {
    // No mark stands below U+0300.
    c >= '\u{300}'
        && matches!(
            get_general_category(c),
            GeneralCategory::NonspacingMark | GeneralCategory::SpacingMark | GeneralCategory::EnclosingMark
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn json_is_escaped_by_its_own_means_and_says_the_same() {
        let json = "{\n  \"a\u{9b}\": \"\\u001b\u{202e}\u{7f}\u{2028}\u{e0041} é日本語\"\n}";
        let shown = escape_json(json);
        assert_eq!(shown, "{\n  \"a\\u009b\": \"\\u001b\\u202e\\u007f\\u2028\\udb40\\udc41 é日本語\"\n}");
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(value(&shown), value(json));
        assert!(matches!(escape_json("{\"é\": 1}\n"), Cow::Borrowed(_)));
    }

    #[test]
    fn plain_text_of_any_script_stays_as_it_is() {
        for text in [
            "",
            "hello, world~",
            "naïve",
            "日本語",
            "שלום",
            "مرحبا",
            "हिन्दी",
            "ไทย",
            "한국어",
            "🇩🇪",
            "❤️",
            "e\u{301}",
            "a/b\\c",
        ] {
            assert_eq!(sanitize(text), text);
        }
        assert!(matches!(sanitize("naïve 日本語"), Cow::Borrowed(_)));
    }

    #[test]
    fn control_characters_are_shown_and_line_ends_are_spaces() {
        assert_eq!(sanitize("a\r\nb"), "a  b");
        assert_eq!(sanitize("\u{1b}[2J\t\u{7f}\u{9b}\0"), r"\x1b[2J\x09\x7f\x9b\x00");
        assert_eq!(sanitize("\u{80}\u{a0}"), "\\x80\u{a0}");
    }

    #[test]
    fn invisible_characters_are_shown() {
        assert_eq!(sanitize("\u{202e}gpj.exe\u{2066}"), r"\u{202e}gpj.exe\u{2066}");
        assert_eq!(sanitize("\u{ad}\u{61c}\u{180e}"), r"\u{00ad}\u{061c}\u{180e}");
        assert_eq!(
            sanitize("\u{200b}\u{200d}\u{200e}\u{2028}\u{2029}"),
            r"\u{200b}\u{200d}\u{200e}\u{2028}\u{2029}"
        );
        assert_eq!(
            sanitize("\u{2060}\u{2064}\u{feff}\u{e0000}\u{e007f}"),
            r"\u{2060}\u{2064}\u{feff}\u{e0000}\u{e007f}"
        );
    }

    #[test]
    fn every_character_is_shown_as_the_specification_lists_it() {
        let (mut shown, mut marks) = (0, 0);
        for c in '\0'..=char::MAX {
            let code = u32::from(c);
            let expected = match code {
                0x0A | 0x0D => " ".to_owned(),
                0x00..=0x1F | 0x7F..=0x9F => format!("\\x{code:02x}"),
                0xAD
                | 0x61C
                | 0x180E
                | 0x200B..=0x200F
                | 0x2028..=0x202E
                | 0x2060..=0x2064
                | 0x2066..=0x2069
                | 0xFEFF
                | 0xE0000..=0xE007F => format!("\\u{{{code:04x}}}"),
                _ if is_invisible_beyond_reference(c) => format!("\\u{{{code:04x}}}"),
                _ => c.to_string(),
            };
            if is_mark(c) {
                marks += 1;
                assert_eq!(
                    sanitize(&c.to_string()),
                    c.to_string(),
                    "{code:04x} is a mark, and never escaped"
                );
            } else {
                shown += usize::from(expected != c.to_string());
                assert_eq!(sanitize(&c.to_string()), expected, "{code:04x}");
            }
        }
        assert!(shown > 200 && marks > 2_000, "{shown} {marks}");
    }

    #[test]
    fn the_neighbours_of_the_escaped_ranges_stay() {
        for c in [
            '\u{200a}',
            '\u{2010}',
            '\u{2027}',
            '\u{202f}',
            '\u{2065}',
            '\u{2070}',
            '\u{e0080}',
            '\u{fffc}',
            '\u{fffd}',
        ] {
            assert_eq!(sanitize(&c.to_string()), c.to_string(), "{:04x}", u32::from(c));
        }
    }

    #[test]
    fn invisible_characters_that_the_reference_leaves_are_shown_too() {
        for c in [
            '\u{206a}',
            '\u{206f}',
            '\u{fff9}',
            '\u{115f}',
            '\u{1160}',
            '\u{3164}',
            '\u{ffa0}',
            '\u{2800}',
            '\u{1d173}',
            '\u{1d17a}',
            '\u{fdd0}',
            '\u{fdef}',
            '\u{fffe}',
            '\u{ffff}',
            '\u{1fffe}',
            '\u{10ffff}',
        ] {
            assert_eq!(sanitize(&c.to_string()), format!("\\u{{{:04x}}}", u32::from(c)));
        }
    }

    #[test]
    fn the_fifth_combining_mark_in_a_row_and_all_after_it_are_dropped_and_counted() {
        let four = "e\u{301}\u{302}\u{303}\u{304}";
        assert_eq!(sanitize(four), four);
        assert_eq!(
            sanitize(&format!("{four}\u{305}\u{306}x")),
            format!("{four}[+2 combining marks dropped]x")
        );
        assert_eq!(sanitize(&format!("{four}\u{20dd}")), format!("{four}[+1 combining marks dropped]"));
        assert_eq!(sanitize(&format!("{four}\u{200d}{four}")), format!("{four}\\u{{200d}}{four}"));
    }

    #[test]
    fn a_run_of_bad_bytes_is_one_replacement() {
        assert_eq!(sanitize_bytes(b"ok"), "ok");
        assert_eq!(sanitize_bytes(b"a\xff\xfe\xc3b\xe2\x82"), "a\u{fffd}b\u{fffd}");
        assert_eq!(sanitize_bytes(b"\xff\n\xff"), "\u{fffd} \u{fffd}");
    }

    #[test]
    fn a_cut_is_marked_where_there_is_room() {
        assert_eq!(truncate("abcdef", 6), "abcdef");
        assert_eq!(truncate("abcdef", 5), "ab…");
        assert_eq!(truncate("abcdef", 3), "…");
        assert_eq!(truncate("abcdef", 2), "ab");
        assert_eq!(truncate("ééé", 5), "é…");
        assert_eq!(truncate("ééé", 1), "");
        assert_eq!(truncate("a", 0), "");
    }

    proptest! {
        #[test]
        fn a_cut_text_is_never_longer_than_asked(text: String, max in 0_usize..64) {
            let cut = truncate(&text, max);
            prop_assert!(cut.len() <= max || cut == text.as_str() && text.len() <= max);
            prop_assert_eq!(cut == text.as_str(), text.len() <= max);
        }

        #[test]
        fn sanitised_text_holds_nothing_that_needs_it_and_stays(text: String) {
            let once = sanitize(&text);
            prop_assert!(once.chars().all(|c| kind(c) == Kind::Plain));
            prop_assert_eq!(sanitize(&once), once.clone());
        }

        #[test]
        fn bytes_that_are_text_are_treated_alike(text: String) {
            prop_assert_eq!(sanitize_bytes(text.as_bytes()), sanitize(&text));
        }
    }
}
