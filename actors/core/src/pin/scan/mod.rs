//! Cuts JSON text from a server into pieces, without building it.
//!
//! Owns one pass over the bytes, with a stack of its own instead of the thread's: a document nested a thousand
//! levels deep is data here, not a crash. It is as lenient as a pin must be for its hash to be the one that other
//! programs computed: bytes that are not UTF-8 and surrogates without a partner become U+FFFD, and a repeated key
//! is left to the caller. The grammar itself is strict. It never decides what may be recorded or sent; that is the
//! boundary check's work.

use thiserror::Error;

/// The deepest nesting that is read at all; what is nested deeper has no canonical form.
pub const MAX_DEPTH: usize = 10_000;

/// Why a text can't be cut.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Error {
    /// The bytes break JSON's grammar at this offset.
    #[error("not well-formed JSON at byte {0}")]
    Malformed(usize),
    /// Something follows the value, from this offset on.
    #[error("trailing data at byte {0}")]
    Trailing(usize),
    /// More than [`MAX_DEPTH`] arrays and objects stand inside one another.
    #[error("nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
    /// The value is whole, and not of the kind that was asked for.
    #[error("not {0}")]
    Kind(&'static str),
}

/// One piece of a document. Strings, keys and numbers come as they were written, quotes included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Token<'a> {
    ObjectStart,
    ObjectEnd,
    ArrayStart,
    ArrayEnd,
    Key(&'a [u8]),
    Text(&'a [u8]),
    Number(&'a str),
    /// `true`, `false` or `null`.
    Word(&'static str),
}

/// What may come next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    Value,
    /// A value or the end of the array that was just opened.
    FirstItem,
    /// A key or the end of the object that was just opened.
    FirstKey,
    /// A comma or the end of what is open; at the top, the end of the text.
    Rest,
    Nothing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Object,
    Array,
}

/// Walks one JSON value, token by token, and checks its grammar on the way.
#[derive(Debug)]
pub(crate) struct Tokens<'a> {
    bytes: &'a [u8],
    at: usize,
    open: Vec<Open>,
    expect: Expect,
}

impl<'a> Tokens<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, open: Vec::new(), expect: Expect::Value }
    }

    /// How many arrays and objects are open after the last token.
    pub(crate) fn depth(&self) -> usize {
        self.open.len()
    }

    /// Where the last token ended.
    pub(crate) fn offset(&self) -> usize {
        self.at
    }

    /// Gives the next token; `None` once the value and everything after it was read.
    pub(crate) fn next(&mut self) -> Result<Option<Token<'a>>, Error> {
        self.skip_space();
        let Some(&byte) = self.bytes.get(self.at) else {
            return match (self.expect, self.open.is_empty()) {
                (Expect::Rest | Expect::Nothing, true) => Ok(None),
                _ => Err(self.malformed()),
            };
        };
        match self.expect {
            Expect::Value => self.value(byte).map(Some),
            Expect::FirstItem if byte == b']' => Ok(Some(self.close(Token::ArrayEnd))),
            Expect::FirstItem => self.value(byte).map(Some),
            Expect::FirstKey if byte == b'}' => Ok(Some(self.close(Token::ObjectEnd))),
            Expect::FirstKey => self.key(byte).map(Some),
            Expect::Rest => self.rest(byte).map(Some),
            Expect::Nothing => Err(Error::Trailing(self.at)),
        }
    }

    fn rest(&mut self, byte: u8) -> Result<Token<'a>, Error> {
        match (self.open.last(), byte) {
            (None, _) => Err(Error::Trailing(self.at)),
            (Some(Open::Object), b'}') => Ok(self.close(Token::ObjectEnd)),
            (Some(Open::Array), b']') => Ok(self.close(Token::ArrayEnd)),
            (Some(open), b',') => {
                let open = *open;
                self.at += 1;
                self.skip_space();
                let next = *self.bytes.get(self.at).ok_or_else(|| self.malformed())?;
                match open {
                    Open::Object => self.key(next),
                    Open::Array => self.value(next),
                }
            }
            (Some(_), _) => Err(self.malformed()),
        }
    }

    fn key(&mut self, byte: u8) -> Result<Token<'a>, Error> {
        if byte != b'"' {
            return Err(self.malformed());
        }
        let key = self.string()?;
        self.skip_space();
        if self.bytes.get(self.at) != Some(&b':') {
            return Err(self.malformed());
        }
        self.at += 1;
        self.expect = Expect::Value;
        Ok(Token::Key(key))
    }

    fn value(&mut self, byte: u8) -> Result<Token<'a>, Error> {
        match byte {
            b'{' => self.enter(Open::Object, Expect::FirstKey).map(|()| Token::ObjectStart),
            b'[' => self.enter(Open::Array, Expect::FirstItem).map(|()| Token::ArrayStart),
            b'"' => {
                let text = self.string()?;
                self.expect = Expect::Rest;
                Ok(Token::Text(text))
            }
            b'-' | b'0'..=b'9' => {
                let number = self.number()?;
                self.expect = Expect::Rest;
                Ok(Token::Number(number))
            }
            b't' => self.word("true"),
            b'f' => self.word("false"),
            b'n' => self.word("null"),
            _ => Err(self.malformed()),
        }
    }

    fn enter(&mut self, open: Open, expect: Expect) -> Result<(), Error> {
        if self.open.len() == MAX_DEPTH {
            return Err(Error::TooDeep);
        }
        self.open.push(open);
        self.expect = expect;
        self.at += 1;
        Ok(())
    }

    fn close(&mut self, token: Token<'a>) -> Token<'a> {
        self.open.pop();
        self.at += 1;
        self.expect = if self.open.is_empty() { Expect::Nothing } else { Expect::Rest };
        token
    }

    fn word(&mut self, word: &'static str) -> Result<Token<'a>, Error> {
        if !self.bytes[self.at..].starts_with(word.as_bytes()) {
            return Err(self.malformed());
        }
        self.at += word.len();
        self.expect = Expect::Rest;
        Ok(Token::Word(word))
    }

    fn string(&mut self) -> Result<&'a [u8], Error> {
        let start = self.at;
        self.at += 1;
        loop {
            match self.bytes.get(self.at) {
                None | Some(0..=0x1f) => return Err(self.malformed()),
                Some(b'"') => {
                    self.at += 1;
                    return Ok(&self.bytes[start..self.at]);
                }
                Some(b'\\') => {
                    let digits = match self.bytes.get(self.at + 1) {
                        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => 0,
                        Some(b'u') => 4,
                        Some(_) | None => return Err(self.malformed()),
                    };
                    let hex = self.bytes.get(self.at + 2..self.at + 2 + digits);
                    if !hex.is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit)) {
                        return Err(self.malformed());
                    }
                    self.at += 2 + digits;
                }
                Some(_) => self.at += 1,
            }
        }
    }

    fn number(&mut self) -> Result<&'a str, Error> {
        let start = self.at;
        if self.bytes.get(self.at) == Some(&b'-') {
            self.at += 1;
        }
        match self.bytes.get(self.at) {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => self.digits()?,
            Some(_) | None => return Err(self.malformed()),
        }
        if self.bytes.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.bytes.get(self.at) {
            self.at += 1;
            if let Some(b'+' | b'-') = self.bytes.get(self.at) {
                self.at += 1;
            }
            self.digits()?;
        }
        std::str::from_utf8(&self.bytes[start..self.at]).map_err(|_| Error::Malformed(start))
    }

    fn digits(&mut self) -> Result<(), Error> {
        let count = self.bytes[self.at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += count;
        if count == 0 { Err(self.malformed()) } else { Ok(()) }
    }

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.bytes.get(self.at) {
            self.at += 1;
        }
    }

    fn malformed(&self) -> Error {
        Error::Malformed(self.at)
    }
}

/// A member of an object: its decoded key, and its key and value as they were written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member<'a> {
    pub(crate) key: String,
    pub(crate) written_key: &'a [u8],
    pub(crate) value: &'a [u8],
}

/// Cuts an object into its members, in the order they were written, repeated keys included.
pub(crate) fn members(object: &[u8]) -> Result<Vec<Member<'_>>, Error> {
    let mut tokens = Tokens::new(object);
    if tokens.next()? != Some(Token::ObjectStart) {
        return Err(not_that_kind(tokens, "an object"));
    }
    let mut members = Vec::new();
    let mut key = None;
    let mut start = 0;
    while let Some(token) = tokens.next()? {
        if let (Token::Key(written), 1) = (token, tokens.depth()) {
            key = Some(written);
            start = tokens.offset();
        } else if tokens.depth() == 1 {
            // The value that ends here is the last key's: only a key or such an end leaves depth 1.
            if let Some(written_key) = key.take() {
                let value = object[start..tokens.offset()].trim_ascii();
                members.push(Member { key: decode(written_key), written_key, value });
            }
        }
    }
    Ok(members)
}

/// Gives the last member called `key`, as a decoder that knows no better would.
pub(crate) fn last<'m, 'a>(members: &'m [Member<'a>], key: &str) -> Option<&'m Member<'a>> {
    members.iter().rfind(|member| member.key == key)
}

/// Cuts an array into its items.
pub(crate) fn items(array: &[u8]) -> Result<Vec<&[u8]>, Error> {
    let mut tokens = Tokens::new(array);
    if tokens.next()? != Some(Token::ArrayStart) {
        return Err(not_that_kind(tokens, "an array"));
    }
    let mut items = Vec::new();
    let mut start = tokens.offset();
    while let Some(token) = tokens.next()? {
        match (token, tokens.depth()) {
            (Token::ObjectStart | Token::ArrayStart | Token::Key(_), _) | (_, 2..) | (Token::ArrayEnd, 0) => {
            }
            (_, _) => {
                let cut = &array[start..tokens.offset()];
                items.push(cut.trim_ascii_start().strip_prefix(b",").unwrap_or(cut).trim_ascii());
                start = tokens.offset();
            }
        }
    }
    Ok(items)
}

/// Reads a string; `Ok(None)` for a value of another kind.
pub(crate) fn text(value: &[u8]) -> Option<String> {
    let mut tokens = Tokens::new(value);
    match (tokens.next(), tokens.next()) {
        (Ok(Some(Token::Text(written))), Ok(None)) => Some(decode(written)),
        _ => None,
    }
}

/// Writes a document without the white space between its tokens, everything else as it was.
pub(crate) fn compact(bytes: &[u8]) -> Result<String, Error> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut tokens = Tokens::new(bytes);
    let mut comma = false;
    while let Some(token) = tokens.next()? {
        if comma && !matches!(token, Token::ObjectEnd | Token::ArrayEnd) {
            out.push(b',');
        }
        comma = !matches!(token, Token::ObjectStart | Token::ArrayStart | Token::Key(_));
        match token {
            Token::ObjectStart => out.push(b'{'),
            Token::ObjectEnd => out.push(b'}'),
            Token::ArrayStart => out.push(b'['),
            Token::ArrayEnd => out.push(b']'),
            Token::Key(written) => {
                out.extend_from_slice(written);
                out.push(b':');
            }
            Token::Text(written) => out.extend_from_slice(written),
            Token::Number(written) => out.extend_from_slice(written.as_bytes()),
            Token::Word(word) => out.extend_from_slice(word.as_bytes()),
        }
    }
    Ok(String::from_utf8(out).unwrap_or_else(|not_utf8| decode_bytes(not_utf8.as_bytes())))
}

/// Reads the rest, so that what is malformed is called that, and then says that the kind is wrong.
fn not_that_kind(mut tokens: Tokens<'_>, wanted: &'static str) -> Error {
    loop {
        match tokens.next() {
            Ok(Some(_)) => {}
            Ok(None) => return Error::Kind(wanted),
            Err(error) => return error,
        }
    }
}

/// Decodes a written string, quotes included, whose grammar was checked.
pub(crate) fn decode(written: &[u8]) -> String {
    let inner = &written[1..written.len() - 1];
    if !inner.contains(&b'\\') {
        return decode_bytes(inner);
    }
    let mut out = String::with_capacity(inner.len());
    let mut rest = inner;
    while let Some(escape) = rest.iter().position(|byte| *byte == b'\\') {
        out.push_str(&decode_bytes(&rest[..escape]));
        let (character, used) = unescape(&rest[escape..]);
        out.push(character);
        rest = &rest[escape + used..];
    }
    out.push_str(&decode_bytes(rest));
    out
}

/// Reads one escape sequence: the character, and how many bytes it took.
fn unescape(escape: &[u8]) -> (char, usize) {
    let simple = match escape[1] {
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => return unescape_unicode(escape),
        other => char::from(other),
    };
    (simple, 2)
}

fn unescape_unicode(escape: &[u8]) -> (char, usize) {
    let unit = |at: usize| -> Option<u32> {
        let hex = escape.get(at..at + 6)?.strip_prefix(br"\u")?;
        u32::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok()
    };
    let first = unit(0).unwrap_or(0xFFFD);
    if let Some(character) = char::from_u32(first) {
        return (character, 6);
    }
    if let (0xD800..=0xDBFF, Some(second @ 0xDC00..=0xDFFF)) = (first, unit(6)) {
        let pair = 0x1_0000 + ((first - 0xD800) << 10) + (second - 0xDC00);
        return (char::from_u32(pair).unwrap_or(char::REPLACEMENT_CHARACTER), 12);
    }
    (char::REPLACEMENT_CHARACTER, 6)
}

/// Reads bytes as UTF-8; each byte that is none becomes one U+FFFD.
fn decode_bytes(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        out.push_str(chunk.valid());
        for _ in chunk.invalid() {
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }
    out
}

#[cfg(test)]
mod tests;
