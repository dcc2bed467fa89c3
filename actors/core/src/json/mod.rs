//! JSON as the gate handles it: text whose numbers, key order and bytes stay what they were.
//!
//! [`Json`] carries the text. Nothing here turns a document into a tree of values; who needs one asks for it with
//! [`Json::decode`]. Everything that enters from outside passes [`check()`] first, once, at the boundary.

mod check;

use std::fmt;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

pub use check::{CheckError, check};

/// The text of one JSON value, kept byte for byte.
///
/// It is either checked (it came from outside and passed [`check()`]) or trusted (this program wrote it, or the
/// store holds it). Two are equal when their texts are.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Json(Arc<str>);

impl Json {
    /// Takes bytes from outside, if they pass the boundary check. They are kept as they are.
    pub fn checked(bytes: &[u8]) -> Result<Self, CheckError> {
        check(bytes)?;
        std::str::from_utf8(bytes).map(Self::trusted).map_err(|_| CheckError::NotUtf8)
    }

    /// Takes text that this program wrote, or that the store holds. Nothing is checked.
    pub fn trusted(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
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

    /// Decodes the value. Nesting is not limited here: the boundary check did that, on the bytes.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        let mut decoder = serde_json::Deserializer::from_str(&self.0);
        decoder.disable_recursion_limit();
        let value = T::deserialize(&mut decoder)?;
        decoder.end()?;
        Ok(value)
    }
}

/// Says whether `text` holds nothing but JSON's white space.
pub fn is_blank(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r'))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize, Deserialize, PartialEq, Debug)]
    struct Holder {
        name: String,
        args: Json,
    }

    #[test]
    fn a_field_keeps_its_text_byte_for_byte() {
        let text = r#"{"name":"n","args":{"b": 1.50, "a": [1e400, -0.0], "a": "\u003c"}}"#;
        let holder: Holder = serde_json::from_str(text).unwrap();
        assert_eq!(holder.args.as_str(), r#"{"b": 1.50, "a": [1e400, -0.0], "a": "\u003c"}"#);
        assert_eq!(serde_json::to_string(&holder).unwrap(), text);
    }

    #[test]
    fn a_blank_text_is_written_null() {
        let holder = Holder { name: String::new(), args: Json::trusted(" \n") };
        assert!(holder.args.is_blank());
        assert_eq!(serde_json::to_string(&holder).unwrap(), r#"{"name":"","args":null}"#);
        assert!(!Json::empty_object().is_blank());
    }

    #[test]
    fn deep_nesting_can_be_decoded() {
        let text = format!("{}1{}", "[".repeat(256), "]".repeat(256));
        let json = Json::checked(text.as_bytes()).unwrap();
        assert!(json.decode::<serde_json::Value>().unwrap().is_array());
    }

    #[test]
    fn a_text_that_is_no_json_can_t_be_embedded() {
        let holder = Holder { name: String::new(), args: Json::trusted("{") };
        assert!(serde_json::to_string(&holder).is_err());
    }
}
