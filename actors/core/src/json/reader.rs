//! Reads JSON text as a flat row of events, without recursion and without building values.
//!
//! The check and the sorted forms stand on this one reader, so that they can't disagree about what a document says.
//! It accepts exactly RFC 8259 on text that is already UTF-8, and one thing more: what an escape means is left to
//! [`Text::unescape`], so unpaired surrogates pass.

use std::borrow::Cow;

/// The text is not JSON from this byte on.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Malformed {
    pub(crate) at: usize,
}

/// One piece of a document.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Event<'a> {
    ObjectStart,
    /// A member's key; its value's events follow.
    Key(Text<'a>),
    ObjectEnd,
    ArrayStart,
    ArrayEnd,
    String(Text<'a>),
    /// A number, as it is written.
    Number(&'a str),
    /// `true`, `false` or `null`.
    Literal(&'static str),
}

/// A string as it is written, without its quotes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Text<'a> {
    pub(crate) raw: &'a str,
    /// Whether a backslash stands in it.
    pub(crate) escaped: bool,
}

#[derive(Copy, Clone, PartialEq, Eq)]
enum Container {
    Object,
    Array,
}

#[derive(Copy, Clone)]
enum Expect {
    Value,
    FirstKeyOrEnd,
    FirstElementOrEnd,
    CommaOrEnd,
    Nothing,
}

/// Reads the first value of a text.
pub(crate) struct Reader<'a> {
    text: &'a str,
    at: usize,
    open: Vec<Container>,
    expect: Expect,
    event_at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Self { text, at: 0, open: Vec::new(), expect: Expect::Value, event_at: 0 }
    }

    /// Says how many arrays and objects are open.
    pub(crate) fn depth(&self) -> usize {
        self.open.len()
    }

    /// Says at which byte the last event began.
    pub(crate) fn event_at(&self) -> usize {
        self.event_at
    }

    /// Says at which byte the last event ended.
    pub(crate) fn offset(&self) -> usize {
        self.at
    }

    /// Gives the next event, or nothing after the first value's end.
    pub(crate) fn next(&mut self) -> Result<Option<Event<'a>>, Malformed> {
        if matches!(self.expect, Expect::Nothing) {
            return Ok(None);
        }
        self.skip_space();
        self.event_at = self.at;
        let event = match self.expect {
            Expect::Value => self.value()?,
            Expect::FirstKeyOrEnd if self.peek() == Some(b'}') => self.close(Event::ObjectEnd),
            Expect::FirstKeyOrEnd => self.key()?,
            Expect::FirstElementOrEnd if self.peek() == Some(b']') => self.close(Event::ArrayEnd),
            Expect::FirstElementOrEnd => self.value()?,
            Expect::CommaOrEnd => self.comma_or_end()?,
            Expect::Nothing => return Ok(None),
        };
        Ok(Some(event))
    }

    /// Makes sure that nothing but white space follows the first value.
    pub(crate) fn end(mut self) -> Result<(), Malformed> {
        self.skip_space();
        if self.at == self.text.len() { Ok(()) } else { Err(self.malformed()) }
    }

    fn malformed(&self) -> Malformed {
        Malformed { at: self.at }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn open(&mut self, container: Container, expect: Expect, event: Event<'a>) -> Event<'a> {
        self.at += 1;
        self.open.push(container);
        self.expect = expect;
        event
    }

    fn close(&mut self, event: Event<'a>) -> Event<'a> {
        self.at += 1;
        self.open.pop();
        self.after_value();
        event
    }

    fn after_value(&mut self) {
        self.expect = if self.open.is_empty() { Expect::Nothing } else { Expect::CommaOrEnd };
    }

    fn comma_or_end(&mut self) -> Result<Event<'a>, Malformed> {
        match (self.peek(), self.open.last()) {
            (Some(b','), Some(container)) => {
                let container = *container;
                self.at += 1;
                self.skip_space();
                self.event_at = self.at;
                match container {
                    Container::Object => self.key(),
                    Container::Array => self.value(),
                }
            }
            (Some(b'}'), Some(Container::Object)) => Ok(self.close(Event::ObjectEnd)),
            (Some(b']'), Some(Container::Array)) => Ok(self.close(Event::ArrayEnd)),
            (_, _) => Err(self.malformed()),
        }
    }

    fn key(&mut self) -> Result<Event<'a>, Malformed> {
        let text = self.string()?;
        self.skip_space();
        if self.peek() != Some(b':') {
            return Err(self.malformed());
        }
        self.at += 1;
        self.expect = Expect::Value;
        Ok(Event::Key(text))
    }

    fn value(&mut self) -> Result<Event<'a>, Malformed> {
        let event = match self.peek() {
            Some(b'{') => return Ok(self.open(Container::Object, Expect::FirstKeyOrEnd, Event::ObjectStart)),
            Some(b'[') => {
                return Ok(self.open(Container::Array, Expect::FirstElementOrEnd, Event::ArrayStart));
            }
            Some(b'"') => Event::String(self.string()?),
            Some(b'-' | b'0'..=b'9') => Event::Number(self.number()?),
            Some(b't') => self.literal("true")?,
            Some(b'f') => self.literal("false")?,
            Some(b'n') => self.literal("null")?,
            Some(_) | None => return Err(self.malformed()),
        };
        self.after_value();
        Ok(event)
    }

    fn literal(&mut self, word: &'static str) -> Result<Event<'a>, Malformed> {
        if !self.text.as_bytes()[self.at..].starts_with(word.as_bytes()) {
            return Err(self.malformed());
        }
        self.at += word.len();
        Ok(Event::Literal(word))
    }

    fn string(&mut self) -> Result<Text<'a>, Malformed> {
        if self.peek() != Some(b'"') {
            return Err(self.malformed());
        }
        self.at += 1;
        let start = self.at;
        let mut escaped = false;
        loop {
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => {
                    escaped = true;
                    self.escape()?;
                }
                Some(0..0x20) | None => return Err(self.malformed()),
                Some(_) => self.at += 1,
            }
        }
        let raw = &self.text[start..self.at];
        self.at += 1;
        Ok(Text { raw, escaped })
    }

    fn escape(&mut self) -> Result<(), Malformed> {
        self.at += 1;
        match self.peek() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 1,
            Some(b'u') => {
                self.at += 1;
                for _ in 0..4 {
                    if !self.peek().is_some_and(|byte| byte.is_ascii_hexdigit()) {
                        return Err(self.malformed());
                    }
                    self.at += 1;
                }
            }
            Some(_) | None => return Err(self.malformed()),
        }
        Ok(())
    }

    fn number(&mut self) -> Result<&'a str, Malformed> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(&self.text[start..self.at])
    }

    /// Passes one digit or more.
    fn digits(&mut self) -> Result<(), Malformed> {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at == start { Err(self.malformed()) } else { Ok(()) }
    }
}

impl<'a> Text<'a> {
    /// Gives the string's contents. An escaped surrogate outside a pair becomes U+FFFD, each by itself.
    pub(crate) fn unescape(self) -> Cow<'a, str> {
        if !self.escaped {
            return Cow::Borrowed(self.raw);
        }
        let mut out = String::with_capacity(self.raw.len());
        let mut rest = self.raw;
        while let Some(at) = rest.find('\\') {
            out.push_str(&rest[..at]);
            let (decoded, length) = match unit(&rest[at..]) {
                Some(unit) => wide(unit, &rest[at + UNIT_LENGTH..]),
                None => (short(rest.as_bytes().get(at + 1).copied()), 2),
            };
            out.push(decoded);
            rest = rest.get(at + length..).unwrap_or_default();
        }
        out.push_str(rest);
        Cow::Owned(out)
    }

    /// Gives the first `\u` escape that is a surrogate outside a pair, as it is written.
    pub(crate) fn unpaired_surrogate(self) -> Option<&'a str> {
        if !self.escaped {
            return None;
        }
        let mut rest = self.raw;
        while let Some(at) = rest.find('\\') {
            let length = match unit(&rest[at..]) {
                Some(first) => {
                    let (_, length) = wide(first, &rest[at + UNIT_LENGTH..]);
                    if length == UNIT_LENGTH && matches!(first, 0xD800..=0xDFFF) {
                        return rest.get(at..at + UNIT_LENGTH);
                    }
                    length
                }
                None => 2,
            };
            rest = rest.get(at + length..).unwrap_or_default();
        }
        None
    }
}

/// The bytes of `\uXXXX`.
const UNIT_LENGTH: usize = 6;

/// Reads `\uXXXX` at the start of `text`, as a unit of UTF-16.
fn unit(text: &str) -> Option<u16> {
    let digits = text.strip_prefix(r"\u")?.get(..4)?;
    u16::from_str_radix(digits, 16).ok()
}

/// Decodes `first`, with the escape that follows if the two are a pair; gives how many bytes they take.
fn wide(first: u16, after: &str) -> (char, usize) {
    if let Some(alone) = char::from_u32(first.into()) {
        return (alone, UNIT_LENGTH);
    }
    let second = if first < 0xDC00 { unit(after) } else { None };
    match second {
        Some(low @ 0xDC00..=0xDFFF) => {
            let code = 0x1_0000 + ((u32::from(first) & 0x3FF) << 10) + (u32::from(low) & 0x3FF);
            (char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER), 2 * UNIT_LENGTH)
        }
        Some(_) | None => (char::REPLACEMENT_CHARACTER, UNIT_LENGTH),
    }
}

/// Decodes the character after a backslash.
fn short(byte: Option<u8>) -> char {
    match byte {
        Some(b'b') => '\u{8}',
        Some(b'f') => '\u{c}',
        Some(b'n') => '\n',
        Some(b'r') => '\r',
        Some(b't') => '\t',
        // `"`, `\` and `/` stand for themselves; the reader let nothing else through.
        Some(other) => char::from(other),
        None => '\\',
    }
}
