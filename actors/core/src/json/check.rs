//! The boundary check: what JSON from outside must be before anything else looks at it.

use thiserror::Error;

/// Why bytes from outside are refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CheckError {
    /// More than 256 arrays and objects stand inside one another.
    #[error("nested deeper than 256 levels")]
    TooDeep,
    /// The bytes are not UTF-8 throughout.
    #[error("invalid UTF-8")]
    NotUtf8,
    /// The bytes are not one well-formed JSON value.
    #[error("not one well-formed JSON value")]
    Malformed,
}

/// Checks bytes from outside.
pub fn check(bytes: &[u8]) -> Result<(), CheckError> {
    let text = std::str::from_utf8(bytes).map_err(|_| CheckError::NotUtf8)?;
    serde_json::from_str::<&serde_json::value::RawValue>(text).map(|_| ()).map_err(|_| CheckError::Malformed)
}
