//! Names of things: runs, steps, approvals, owners, hashes.
//!
//! Each is text with a type of its own, so that a step's id can't be passed where a run's is meant. Nothing here
//! draws random bits or checks what a name looks like: ids come in as arguments, and a run's id may be chosen by
//! the caller. Everything else in the workspace talks to this file.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Defines one newtype over shared text, with everything that ids need.
macro_rules! text_ids {
    ($($(#[$doc:meta])+ $name:ident;)+) => {$(
        $(#[$doc])+
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Takes the text as it is.
            pub fn new(text: impl Into<Arc<str>>) -> Self {
                Self(text.into())
            }

            /// Gives the text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:?})"), &*self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text.into())
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer).map(Self::from)
            }
        }
    )+};
}

text_ids! {
    /// Names one run. 32 lowercase hex digits unless the caller chose another text; unique in a database.
    RunId;
    /// Names one step of one run.
    StepId;
    /// Names one approval.
    ApprovalId;
    /// Names one attempt to ask a model.
    ModelCallId;
    /// Names the process and session that hold a run's lease.
    LeaseOwner;
    /// Names a tool as it is registered.
    ToolName;
    /// The lowercase hex SHA-256 of a tool's specification, in its canonical form.
    SpecHash;
    /// The lowercase hex SHA-256 of what a person is asked to approve, in its canonical form.
    ApprovalHash;
    /// Names a policy and its version, as the policy itself says.
    PolicyId;
    /// The lowercase hex SHA-256 that says whether two calls of a session are the same request.
    RequestKey;
    /// Names a proxy's session, which several processes may share.
    SessionName;
}

/// Writes 128 bits as an id: 32 lowercase hex digits.
pub fn hex_id(bytes: [u8; 16]) -> String {
    hex(&bytes)
}

/// Writes bytes as lowercase hex, two digits each.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits =
        bytes.iter().flat_map(|byte| [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    let mut text = Vec::with_capacity(bytes.len() * 2);
    text.extend(digits);
    // Digits are text.
    String::from_utf8(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_thirty_two_lowercase_hex_digits() {
        let mut bytes = [0; 16];
        bytes[0] = 0xAB;
        bytes[15] = 0x0F;
        assert_eq!(hex_id(bytes), "ab00000000000000000000000000000f");
    }

    #[test]
    fn an_id_is_plain_text_in_json() {
        let id = RunId::from("r-1");
        let text = serde_json::to_string(&id).unwrap();
        assert_eq!(text, r#""r-1""#);
        assert_eq!(serde_json::from_str::<RunId>(&text).unwrap(), id);
    }

    #[test]
    fn an_id_shows_its_text_and_pads_like_text() {
        let id = StepId::new("s1");
        assert_eq!(format!("{id:<4}|"), "s1  |");
        assert_eq!(format!("{id:?}"), r#"StepId("s1")"#);
    }
}
