//! What is hashed, and how: SHA-256 of canonical JSON, in lowercase hex.
//!
//! The event chain hashes by a rule of its own, see [`chain`](crate::chain).

use sha2::{Digest, Sha256};

use crate::ids::{RequestKey, hex};
use crate::json::{canonical_trusted, check_text};

/// Gives the SHA-256 of bytes, as 64 lowercase hex digits.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Gives the hash of a document whose canonical form is at hand.
pub fn content_hash(canonical: &str) -> String {
    sha256_hex(canonical.as_bytes())
}

/// Gives the hash of a document that has been checked: that of its canonical form. A blank text counts as `null`.
pub fn content_hash_of(text: &str) -> String {
    content_hash(&canonical_trusted(text))
}

/// Gives the key that two calls share when they are the same request: the same tool, by its registered name, and the
/// same arguments, by their canonical form.
///
/// Missing arguments and `null` count as `{}`. Arguments that the boundary check refuses have no key: they are the
/// same request as no other.
pub fn request_key(tool: &str, args: Option<&[u8]>) -> Option<RequestKey> {
    let arguments = match args {
        Some(bytes) => canonical_trusted(check_text(bytes).ok()?),
        None => "null".to_owned(),
    };
    let arguments = if arguments == "null" { "{}" } else { &arguments };
    let mut hasher = Sha256::new();
    hasher.update(tool);
    // A tool's name holds no NUL, so a name and arguments can't be shifted into one another.
    hasher.update([0]);
    hasher.update(arguments);
    Some(RequestKey::from(hex(&hasher.finalize())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(args: &str) -> Option<RequestKey> {
        request_key("files_write", Some(args.as_bytes()))
    }

    #[test]
    fn blank_content_hashes_as_null() {
        let null = "74234e98afe7498fb5daf1f36ac2d78acc339464f950703b8c019892f982b90b";
        assert_eq!(content_hash_of(""), null);
        assert_eq!(content_hash_of(" \n"), null);
        assert_eq!(content_hash_of("null"), null);
    }

    #[test]
    fn key_order_white_space_and_escapes_do_not_make_another_request() {
        assert_eq!(key(r#"{"a":"<é","b":[1]}"#), key(" { \"b\" : [ 1 ], \"a\" : \"\\u003c\\u00e9\" }\n"));
        assert!(key("{}").is_some());
    }

    #[test]
    fn numbers_by_their_text_arrays_by_their_order_and_the_tool_make_another_request() {
        let all = [r#"{"n":10}"#, r#"{"n":10.0}"#, r#"{"n":1e1}"#, r#"{"n":"10"}"#, "[1,2]", "[2,1]", "{}"];
        for (at, one) in all.iter().enumerate() {
            for other in &all[at + 1..] {
                assert_ne!(key(one), key(other), "{one} and {other}");
            }
        }
        assert_ne!(request_key("a", None), request_key("b", None));
    }

    #[test]
    fn missing_arguments_and_null_are_an_empty_object() {
        assert_eq!(request_key("files_write", None), key("{}"));
        assert_eq!(key(" null "), key("{}"));
        assert_eq!(
            key("{}").unwrap().as_str(),
            sha256_hex(b"files_write\0{}"),
            "the name, a NUL, the canonical arguments"
        );
    }

    #[test]
    fn refused_arguments_have_no_key() {
        for refused in ["", "{", r#"{"a":1,"a":1}"#, r#""\ud800""#, "[1e400]", "1e10001", "1 2"] {
            assert_eq!(key(refused), None, "{refused}");
        }
        assert_eq!(request_key("t", Some(b"\"\xff\"")), None);
    }
}
