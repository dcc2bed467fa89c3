//! The boundary check: what JSON from outside must be before anything else looks at it.
//!
//! Six rules, and the first one broken names the refusal, wherever in the document it is broken:
//!
//! 1. no more than [`DEPTH_MAX`] arrays and objects inside one another, counted as brackets outside strings, on
//!    bytes that may be anything, before anything looks closer;
//! 2. UTF-8 throughout;
//! 3. exactly one well-formed value;
//! 4. no escaped surrogate outside a pair;
//! 5. no key twice in one object, compared by what the keys say, and no number beyond a 64-bit float inside an
//!    array or object (one that stands alone passes: the reference decodes no number there);
//! 6. no number longer than [`NUMBER_BYTES_MAX`], and no exponent beyond [`EXPONENT_MAX`], as it is written.
//!
//! Rules 4 and 5 refuse what two readers would read differently, so that no two documents share a hash. Nothing here
//! is recursive, and the cost grows with the bytes (times their logarithm, for the keys of one object).

use std::borrow::Cow;

use thiserror::Error;

use super::reader::{Event, Malformed, Reader};
use crate::sanitize::truncate;

/// The most arrays and objects inside one another.
pub const DEPTH_MAX: usize = 256;
/// The most bytes of a number's text.
pub const NUMBER_BYTES_MAX: usize = 10_000;
/// The largest exponent that may be written, and the smallest, negated.
pub const EXPONENT_MAX: u32 = 10_000;

/// Why bytes from outside are refused. Foreign text in a message is cut short, and printed in its escaped form.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CheckError {
    /// More than [`DEPTH_MAX`] arrays and objects stand inside one another.
    #[error("nested deeper than {DEPTH_MAX} levels")]
    TooDeep,
    /// The bytes are not UTF-8 throughout.
    #[error("invalid UTF-8")]
    NotUtf8,
    /// The bytes are not one well-formed JSON value.
    #[error("not one well-formed JSON value (byte {at})")]
    Malformed {
        /// The byte at which it shows, counted from 0.
        at: usize,
    },
    /// A `\u` escape is a surrogate outside a pair.
    #[error("unpaired surrogate {escape}")]
    UnpairedSurrogate {
        /// The escape, as it is written.
        escape: String,
    },
    /// An object has the same key twice.
    #[error("duplicate key {key:?}")]
    DuplicateKey {
        /// What the key says.
        key: String,
    },
    /// A number inside an array or object is beyond a 64-bit float.
    #[error("number {number} is beyond the range of a 64-bit float")]
    NumberRange {
        /// The number, as it is written.
        number: String,
    },
    /// A number's text is too long.
    #[error("number {number} is longer than {NUMBER_BYTES_MAX} bytes")]
    NumberLength {
        /// The number, as it is written.
        number: String,
    },
    /// A number's exponent is too large.
    #[error("number {number} has an exponent beyond ±{EXPONENT_MAX}")]
    NumberExponent {
        /// The number, as it is written.
        number: String,
    },
}

impl From<Malformed> for CheckError {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed { at: malformed.at }
    }
}

/// Checks bytes from outside.
pub fn check(bytes: &[u8]) -> Result<(), CheckError> {
    check_text(bytes).map(|_| ())
}

/// Checks bytes from outside, and gives them as text.
pub fn check_text(bytes: &[u8]) -> Result<&str, CheckError> {
    if is_deeper_than(bytes, DEPTH_MAX) {
        return Err(CheckError::TooDeep);
    }
    let text = std::str::from_utf8(bytes).map_err(|_| CheckError::NotUtf8)?;
    let mut reader = Reader::new(text);
    let mut findings = Findings::default();
    while let Some(event) = reader.next()? {
        findings.look_at(event, reader.event_at(), reader.depth());
    }
    reader.end()?;
    findings.verdict().map(|()| text)
}

/// Says whether more than `max` brackets are open at once, outside strings. The bytes may be anything.
pub fn is_deeper_than(bytes: &[u8], max: usize) -> bool {
    let mut depth = 0_usize;
    let mut rest = bytes.iter();
    while let Some(byte) = rest.next() {
        match byte {
            b'[' | b'{' => {
                depth += 1;
                if depth > max {
                    return true;
                }
            }
            // Bytes that close more than was open are no JSON; the next rules say so.
            b']' | b'}' => depth = depth.saturating_sub(1),
            b'"' => skip_string(&mut rest),
            _ => {}
        }
    }
    false
}

fn skip_string(rest: &mut std::slice::Iter<'_, u8>) {
    while let Some(byte) = rest.next() {
        match byte {
            b'"' => return,
            b'\\' => {
                rest.next();
            }
            _ => {}
        }
    }
}

/// What rules 4 to 6 find in one reading. A later rule's finding must wait until the whole document has passed the
/// earlier rules, and each rule answers with the first place that breaks it.
#[derive(Default)]
struct Findings<'a> {
    surrogate: Option<CheckError>,
    lossy: Option<Lossy<'a>>,
    number: Option<CheckError>,
    /// The keys of all open objects, and where each stands.
    keys: Vec<(Cow<'a, str>, usize)>,
    /// For each open object, how many of the keys belong to those around it.
    objects: Vec<usize>,
}

/// What rule 5 refuses, and where it stands.
struct Lossy<'a> {
    at: usize,
    what: LossyKind<'a>,
}

enum LossyKind<'a> {
    Key(Cow<'a, str>),
    Number(&'a str),
}

impl<'a> Findings<'a> {
    fn look_at(&mut self, event: Event<'a>, at: usize, depth: usize) {
        match event {
            Event::ObjectStart => self.objects.push(self.keys.len()),
            Event::Key(text) => {
                self.look_at_escapes(text.unpaired_surrogate());
                self.keys.push((text.unescape(), at));
            }
            Event::ObjectEnd => self.look_at_keys(),
            Event::String(text) => self.look_at_escapes(text.unpaired_surrogate()),
            Event::Number(number) => {
                if depth > 0 && is_beyond_f64(number) {
                    self.note_lossy(at, LossyKind::Number(number));
                }
                if self.number.is_none() {
                    self.number = bound(number).err();
                }
            }
            Event::ArrayStart | Event::ArrayEnd | Event::Literal(_) => {}
        }
    }

    fn look_at_escapes(&mut self, unpaired: Option<&str>) {
        if let (None, Some(escape)) = (&self.surrogate, unpaired) {
            self.surrogate = Some(CheckError::UnpairedSurrogate { escape: escape.to_owned() });
        }
    }

    /// Looks for a repeated key in the object that ends here. Keys are sorted rather than put into a hash table: most
    /// objects have few keys, and no choice of keys makes this slow.
    fn look_at_keys(&mut self) {
        let first = self.objects.pop().unwrap_or_default();
        self.keys[first..].sort_unstable();
        let repeated = self.keys[first..]
            .windows(2)
            .filter(|pair| pair[0].0 == pair[1].0)
            .map(|pair| &pair[1])
            .min_by_key(|(_, at)| *at);
        if let Some((key, at)) = repeated.cloned() {
            self.note_lossy(at, LossyKind::Key(key));
        }
        self.keys.truncate(first);
    }

    fn note_lossy(&mut self, at: usize, what: LossyKind<'a>) {
        if self.lossy.as_ref().is_none_or(|earlier| at < earlier.at) {
            self.lossy = Some(Lossy { at, what });
        }
    }

    fn verdict(self) -> Result<(), CheckError> {
        if let Some(error) = self.surrogate {
            return Err(error);
        }
        match self.lossy.map(|lossy| lossy.what) {
            Some(LossyKind::Key(key)) => {
                return Err(CheckError::DuplicateKey { key: truncate(&key, KEY_SHOWN_MAX).into_owned() });
            }
            Some(LossyKind::Number(number)) => return Err(CheckError::NumberRange { number: shown(number) }),
            None => {}
        }
        self.number.map_or(Ok(()), Err)
    }
}

/// Bytes of a key that a message shows.
const KEY_SHOWN_MAX: usize = 128;
/// Bytes of a number that a message shows.
const NUMBER_SHOWN_MAX: usize = 32;

fn shown(number: &str) -> String {
    truncate(number, NUMBER_SHOWN_MAX).into_owned()
}

/// Says whether a number's magnitude is too large for a 64-bit float. One that is too small passes, as zero.
pub(super) fn is_beyond_f64(number: &str) -> bool {
    // Without an exponent it takes 309 digits to get there, so most numbers need no parsing.
    let may_be = number.len() > 300 || number.bytes().any(|byte| matches!(byte, b'e' | b'E'));
    may_be && number.parse::<f64>().is_ok_and(f64::is_infinite)
}

/// Holds a number to rule 6.
fn bound(number: &str) -> Result<(), CheckError> {
    if number.len() > NUMBER_BYTES_MAX {
        return Err(CheckError::NumberLength { number: shown(number) });
    }
    let Some((_, exponent)) = number.split_once(['e', 'E']) else { return Ok(()) };
    let digits = exponent.trim_start_matches(['+', '-']).trim_start_matches('0');
    // No digits left is a zero; too many for a u32 is too large in any case.
    let too_large = !digits.is_empty() && digits.parse::<u32>().map_or(true, |size| size > EXPONENT_MAX);
    if too_large { Err(CheckError::NumberExponent { number: shown(number) }) } else { Ok(()) }
}
