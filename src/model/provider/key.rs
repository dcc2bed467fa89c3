//! A key, and that it is never shown.
//!
//! Owns the one place where its text can be had. Never prints it, in whatever way it is asked.

use std::fmt;

use reqwest::header::HeaderValue;
use serde::{Serialize, Serializer};

use super::ConfigError;

/// What stands in a key's place wherever it is shown.
const REDACTED: &str = "[redacted]";

/// The shortest key that is looked for in a provider's text. A shorter one is no secret, and could be any word.
const SOUGHT_BYTES_MIN: usize = 8;

/// A provider's key. Printed, debug-printed, serialised or logged it is `[redacted]`, and `""` when there is none.
#[derive(Clone, Default)]
pub struct ApiKey(String);

impl ApiKey {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// This key, or the one in the environment variable `variable` when this is empty.
    #[must_use]
    pub fn or_from(self, variable: &str) -> ApiKey {
        if self.is_empty() { ApiKey(std::env::var(variable).unwrap_or_default()) } else { self }
    }

    /// The value of a header with the key behind `prefix`, marked so that no log of headers shows it.
    ///
    /// # Errors
    /// When the key holds what no header may hold.
    pub fn header(&self, provider: &'static str, prefix: &str) -> Result<HeaderValue, ConfigError> {
        let value = HeaderValue::try_from(format!("{prefix}{}", self.0));
        let mut value = value.map_err(|_| ConfigError::UnusableKey { provider })?;
        value.set_sensitive(true);
        Ok(value)
    }

    /// `text` without the key, should a server have repeated it.
    pub(super) fn redact(&self, text: &str) -> String {
        if self.0.len() < SOUGHT_BYTES_MIN { text.to_owned() } else { text.replace(&self.0, REDACTED) }
    }
}

impl From<String> for ApiKey {
    fn from(text: String) -> ApiKey {
        ApiKey(text)
    }
}

impl From<&str> for ApiKey {
    fn from(text: &str) -> ApiKey {
        ApiKey(text.to_owned())
    }
}

impl fmt::Display for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_empty() { "\"\"" } else { REDACTED })
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for ApiKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(if self.is_empty() { "" } else { REDACTED })
    }
}
