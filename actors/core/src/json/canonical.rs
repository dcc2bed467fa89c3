//! The sorted forms of a document: the one that is hashed, and the one that a policy reads.
//!
//! Both have each object's keys in the byte order of what they say, no insignificant white space, and numbers as they
//! were written; they differ in what strings escape. Two documents with the same canonical form have the same policy
//! form. Nothing here decides what is allowed in: [`check`](super::check()) does, and the functions without `trusted`
//! in their name run it first.

use std::borrow::Cow;

use super::check::{CheckError, check_text};
use super::escape::{Escapes, push_quoted};
use super::is_blank;
use super::reader::{Event, Reader};

/// Gives the form that is hashed of JSON from outside, after the boundary check.
pub fn canonical(text: &str) -> Result<String, CheckError> {
    check_text(text.as_bytes()).map(canonical_trusted)
}

/// Gives the form that is hashed of JSON that has been checked, or that is tolerated unchecked.
///
/// A blank text is `null`. Only the first value counts. An unpaired surrogate is U+FFFD, and of a repeated key the
/// last value stays. A text that is no JSON at all is given back as it is: the reference hashes it so.
pub fn canonical_trusted(text: &str) -> String {
    trusted(text, Escapes::Html)
}

/// Gives the form that a policy reads of JSON from outside, after the boundary check. It is never hashed.
pub fn policy_form(text: &str) -> Result<String, CheckError> {
    check_text(text.as_bytes()).map(policy_form_trusted)
}

/// Gives the form that a policy reads, with the same tolerance as [`canonical_trusted`].
pub fn policy_form_trusted(text: &str) -> String {
    trusted(text, Escapes::Minimal)
}

fn trusted(text: &str, escapes: Escapes) -> String {
    let as_written = |number: &str, out: &mut String| {
        out.push_str(number);
        Ok(())
    };
    sorted_form(text, escapes, as_written).unwrap_or_else(|_| text.to_owned())
}

/// Writes the first value of `text` with sorted keys and no white space; a blank text is `null`.
///
/// `escapes` says what strings escape, and `number` appends a number's form, given its text. Of a repeated key the
/// last value stays. The errors are [`CheckError::Malformed`] and those of `number`.
pub fn sorted_form(
    text: &str,
    escapes: Escapes,
    mut number: impl FnMut(&str, &mut String) -> Result<(), CheckError>,
) -> Result<String, CheckError> {
    if is_blank(text) {
        return Ok("null".to_owned());
    }
    let mut reader = Reader::new(text);
    let mut form = SortedForm::new(text.len(), escapes);
    while let Some(event) = reader.next()? {
        match event {
            Event::ObjectStart => form.open(Container::Object { first_member: form.members.len() }, '{'),
            Event::Key(key) => form.key(key.unescape()),
            Event::ObjectEnd => form.close('}'),
            Event::ArrayStart => form.open(Container::Array, '['),
            Event::ArrayEnd => form.close(']'),
            Event::String(string) => {
                form.separate();
                push_quoted(&mut form.out, &string.unescape(), escapes);
            }
            Event::Number(digits) => {
                form.separate();
                number(digits, &mut form.out)?;
            }
            Event::Literal(word) => {
                form.separate();
                form.out.push_str(word);
            }
        }
    }
    Ok(form.out)
}

/// The text under way. Members are written where they are read, and an object is put into order when it closes, which
/// most are already: those that this program stored.
struct SortedForm<'a> {
    out: String,
    escapes: Escapes,
    /// The open arrays and objects, each with where its text begins.
    open: Vec<(Container, usize)>,
    /// The members of all open objects.
    members: Vec<Member<'a>>,
    /// Kept between uses.
    scratch: String,
}

#[derive(Copy, Clone)]
enum Container {
    Object {
        /// The place of its first member among all.
        first_member: usize,
    },
    Array,
}

struct Member<'a> {
    key: Cow<'a, str>,
    /// Where its text begins, the key included; it ends before the comma of the next.
    start: usize,
}

impl<'a> SortedForm<'a> {
    fn new(capacity: usize, escapes: Escapes) -> Self {
        let out = String::with_capacity(capacity);
        Self { out, escapes, open: Vec::new(), members: Vec::new(), scratch: String::new() }
    }

    /// Puts a comma before a value if it needs one: an array's element that is not the first.
    fn separate(&mut self) {
        if let Some((Container::Array, start)) = self.open.last()
            && self.out.len() > start + 1
        {
            self.out.push(',');
        }
    }

    fn open(&mut self, container: Container, bracket: char) {
        self.separate();
        self.open.push((container, self.out.len()));
        self.out.push(bracket);
    }

    fn key(&mut self, key: Cow<'a, str>) {
        if let Some((Container::Object { .. }, start)) = self.open.last()
            && self.out.len() > start + 1
        {
            self.out.push(',');
        }
        let start = self.out.len();
        push_quoted(&mut self.out, &key, self.escapes);
        self.out.push(':');
        self.members.push(Member { key, start });
    }

    fn close(&mut self, bracket: char) {
        if let Some((Container::Object { first_member }, start)) = self.open.pop() {
            let ordered = self.members[first_member..].windows(2).all(|pair| pair[0].key < pair[1].key);
            if !ordered {
                self.put_into_order(first_member, start + 1);
            }
            self.members.truncate(first_member);
        }
        self.out.push(bracket);
    }

    /// Writes the members from `first` on again, by key, the last of each key. Their text begins at `start`.
    fn put_into_order(&mut self, first: usize, start: usize) {
        let members = &self.members[first..];
        let text_of = |at: usize| {
            let end = members.get(at + 1).map_or(self.out.len(), |next| next.start - 1);
            &self.out[members[at].start..end]
        };
        let mut order: Vec<usize> = (0..members.len()).collect();
        order.sort_by(|a, b| members[*a].key.cmp(&members[*b].key));
        self.scratch.clear();
        for (place, at) in order.iter().enumerate() {
            // The order keeps equal keys as they came, so all but the last of them have an equal neighbour behind.
            if order.get(place + 1).is_some_and(|next| members[*next].key == members[*at].key) {
                continue;
            }
            if !self.scratch.is_empty() {
                self.scratch.push(',');
            }
            self.scratch.push_str(text_of(*at));
        }
        self.out.truncate(start);
        self.out.push_str(&self.scratch);
    }
}
