//! JSON as the gate handles it: text whose numbers, key order and bytes stay what they were.
//!
//! [`Json`] carries the text. Nothing here turns a document into a tree of values; who needs one asks for it with
//! [`Json::decode`]. Everything that enters from outside passes [`check()`] first, once, at the boundary; [`canonical`]
//! and [`policy_form`] are the forms that are hashed and shown to a policy; [`ObjectWriter`] writes what is stored.

mod canonical;
mod check;
mod escape;
pub(crate) mod reader;
#[cfg(test)]
mod tests;
mod write;

use std::fmt;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

pub use canonical::{canonical, canonical_trusted, policy_form, policy_form_trusted, sorted_form};
pub use check::{CheckError, DEPTH_MAX, EXPONENT_MAX, NUMBER_BYTES_MAX, check, check_text, is_deeper_than};
pub use escape::{Escapes, push_quoted};
pub use write::{ArrayWriter, ObjectWriter, compact, compact_escaped};

/// The text of one JSON value, kept byte for byte.
///
/// It is either checked (it came from outside and passed [`check()`]) or trusted (this program wrote it, or the
/// store holds it). Two are equal when their texts are.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Json(Arc<str>);

impl Json {
    /// Takes bytes from outside, if they pass the boundary check. They are kept as they are.
    pub fn checked(bytes: &[u8]) -> Result<Self, CheckError> {
        check_text(bytes).map(Self::trusted)
    }

    /// Takes text that this program wrote, or that the store holds. Nothing is checked.
    pub fn trusted(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// Encodes a value of this program's own, for whatever the boundary would let pass.
    ///
    /// # Errors
    /// When it has no JSON form, as a map whose keys are no text, or one that could not be stored and hashed faithfully.
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<Self, EncodeError> {
        let text = serde_json::to_vec(value).map_err(|error| EncodeError::Form(error.to_string()))?;
        Ok(Self::checked(&text)?)
    }

    /// Gives `{}`.
    pub fn empty_object() -> Self {
        Self::trusted("{}")
    }

    /// Gives the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Says whether there is no value here: nothing but JSON's white space, which is how absence is stored.
    pub fn is_blank(&self) -> bool {
        is_blank(&self.0)
    }

    /// The same value in the form in which the store embeds it, see [`compact_escaped`].
    pub fn stored(&self) -> Self {
        let text = compact_escaped(&self.0);
        if text == *self.0 { self.clone() } else { Self::trusted(text) }
    }

    /// Decodes the value. Nesting is not limited here: the boundary check did that, on the bytes.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        let mut decoder = serde_json::Deserializer::from_str(&self.0);
        decoder.disable_recursion_limit();
        let value = T::deserialize(&mut decoder)?;
        decoder.end()?;
        Ok(value)
    }
}

/// Why a value has no JSON that can be kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// It has no JSON form.
    #[error("encode a value as JSON: {0}")]
    Form(String),
    /// Its form could not be stored and hashed faithfully.
    #[error("encode a value as JSON: {0}")]
    Refused(#[from] CheckError),
}

/// Says whether `text` holds nothing but JSON's white space.
pub fn is_blank(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r'))
}

/// Says whether bytes from outside hold no value: nothing, or nothing but white space of any kind.
pub fn is_absent(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok_and(|text| text.chars().all(char::is_whitespace))
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Embeds the text as it is, without the white space around it; a blank one is written `null`.
///
/// Only `serde_json` understands this.
impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = if self.is_blank() { "null" } else { &self.0 };
        serde_json::from_str::<&RawValue>(text).map_err(serde::ser::Error::custom)?.serialize(serializer)
    }
}

/// Keeps the text of the value that stands here, whatever it is. It is well-formed, and otherwise unchecked.
///
/// Only `serde_json` gives it, and not inside `flatten` or an untagged enum.
impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(String::from(Box::<str>::from(Box::<RawValue>::deserialize(deserializer)?)).into()))
    }
}
