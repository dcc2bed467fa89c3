//! The first question about a schema: does it describe an object, and is it of a size that can be handled.
//!
//! Owns [`ObjectSchema`], which the other checks take, so that none of them ever sees a document that is too deep
//! to walk. It never looks below the top level.

use serde_json::Value;
use thiserror::Error;

use crate::json::is_deeper_than;

/// The longest schema that is taken, in bytes of its canonical form.
pub const MAX_BYTES: usize = 256 * 1024;

/// The most arrays and objects that may stand inside one another in a schema.
///
/// Compilers recurse over a schema; honest ones stay below twenty.
pub const MAX_DEPTH: usize = 64;

/// Why a document is no schema for a tool's arguments.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refusal {
    /// It is longer than [`MAX_BYTES`].
    #[error("the input schema is {bytes} bytes long, more than the {MAX_BYTES} that are taken")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// It is nested deeper than [`MAX_DEPTH`].
    #[error("the input schema is nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
    /// It is not an object, or not JSON.
    #[error("the input schema is not a JSON object")]
    NotAnObject,
    /// Its top-level `type` is not the string `object`.
    #[error("the input schema doesn't describe an object: its top-level type must be \"object\"")]
    NotAnObjectSchema,
}

/// A schema whose top-level `type` is `object`, no longer than [`MAX_BYTES`] and no deeper than [`MAX_DEPTH`].
#[derive(Debug, Clone, PartialEq)]
pub struct ObjectSchema {
    /// Always an object.
    document: Value,
}

impl ObjectSchema {
    /// Reads a schema from its canonical text.
    ///
    /// # Errors
    /// One [`Refusal`] for each way not to be such a schema.
    pub fn read(canonical: &str) -> Result<Self, Refusal> {
        let schema = Self::read_untyped(canonical)?;
        if schema.get("type").and_then(Value::as_str) != Some("object") {
            return Err(Refusal::NotAnObjectSchema);
        }
        Ok(schema)
    }

    /// Reads a schema that need not say what it describes, as an embedder's own tool may have it.
    ///
    /// # Errors
    /// As [`ObjectSchema::read`], but for its type.
    pub fn read_untyped(canonical: &str) -> Result<Self, Refusal> {
        if canonical.len() > MAX_BYTES {
            return Err(Refusal::TooLong { bytes: canonical.len() });
        }
        if is_deeper_than(canonical.as_bytes(), MAX_DEPTH) {
            return Err(Refusal::TooDeep);
        }
        let Ok(document) = serde_json::from_str::<Value>(canonical) else {
            return Err(Refusal::NotAnObject);
        };
        if !document.is_object() {
            return Err(Refusal::NotAnObject);
        }
        Ok(Self { document })
    }

    /// Gives the whole document.
    pub fn document(&self) -> &Value {
        &self.document
    }

    /// Gives one top-level member.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.document.get(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_top_level_type_object_passes() {
        assert!(ObjectSchema::read(r#"{"type":"object"}"#).is_ok());
        for other in [r#"{"type":"string"}"#, "{}", r#"{"type":["object"]}"#, r#"{"type":"Object"}"#] {
            assert_eq!(ObjectSchema::read(other), Err(Refusal::NotAnObjectSchema), "{other}");
        }
        for other in ["[]", "null", "true", "\"object\"", "{"] {
            assert_eq!(ObjectSchema::read(other), Err(Refusal::NotAnObject), "{other}");
        }
    }

    #[test]
    fn a_schema_at_the_limits_passes_and_one_beyond_is_refused() {
        let nested = |levels: usize| {
            format!("{{\"type\":\"object\",\"x\":{}{}}}", "[".repeat(levels - 1), "]".repeat(levels - 1))
        };
        assert!(ObjectSchema::read(&nested(MAX_DEPTH)).is_ok());
        assert_eq!(ObjectSchema::read(&nested(MAX_DEPTH + 1)), Err(Refusal::TooDeep));
        let bracket_text = format!("{{\"type\":\"object\",\"x\":\"\\\"{}\"}}", "[".repeat(MAX_DEPTH + 1));
        assert!(ObjectSchema::read(&bracket_text).is_ok(), "brackets in a string are no nesting");

        let long = |bytes: usize| {
            let frame = r#"{"description":"","type":"object"}"#;
            frame.replace("\"\"", &format!("\"{}\"", "x".repeat(bytes - frame.len())))
        };
        assert!(ObjectSchema::read(&long(MAX_BYTES)).is_ok());
        assert_eq!(ObjectSchema::read(&long(MAX_BYTES + 1)), Err(Refusal::TooLong { bytes: MAX_BYTES + 1 }));
    }
}
