//! The canonical form of a pinned schema, and the two hashes a pin is made of.
//!
//! Reads the bytes that the server sent, never a decoded value, so nothing that a decoder would round or drop is
//! out of the hash's sight. The form: keys sorted by their bytes, no white space between tokens, no HTML escapes,
//! numbers as [`super::number`] writes them, the last of a repeated key. The same form records a result's
//! structured content. It is not the canonical JSON that approvals are hashed in, which keeps number literals and
//! escapes `<`, `>` and `&`.

use thiserror::Error;

use super::number::{self, canonical_number};
use super::scan;
use crate::hash::sha256_hex;
use crate::json::{CheckError, Escapes, is_blank, push_quoted, sorted_form};

/// Why a document has no canonical form.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Error {
    /// The bytes are not one JSON value that can be read.
    #[error(transparent)]
    Json(#[from] scan::Error),
    /// A number is out of range.
    #[error(transparent)]
    Number(#[from] number::Error),
}

/// Writes a schema in its canonical form; blank input is `null`.
///
/// # Errors
/// A text that is not one JSON value, nesting past 256 levels, a number that overflows a double.
pub fn canonical(text: &str) -> Result<String, Error> {
    if is_blank(text) {
        return Ok("null".to_owned());
    }
    scan::whole(text)?;
    let mut refused = None;
    let form = sorted_form(text, Escapes::Separators, |literal, out| match canonical_number(literal) {
        Ok(number) => {
            out.push_str(&number);
            Ok(())
        }
        Err(error) => {
            refused = Some(error);
            Err(CheckError::NumberRange { number: literal.to_owned() })
        }
    });
    match (form, refused) {
        (_, Some(error)) => Err(error.into()),
        (Ok(form), None) => Ok(form),
        // The text was read to its end before, so this place is never reached; it says the true thing all the same.
        (Err(_), None) => Err(scan::Error::Malformed(0).into()),
    }
}

/// Hashes a schema that [`canonical`] wrote: lowercase hex SHA-256 of its bytes.
pub fn schema_hash(canonical: &str) -> String {
    sha256_hex(canonical.as_bytes())
}

/// Hashes a description: lowercase hex SHA-256 of its JSON string, quotes included.
pub fn description_hash(description: &str) -> String {
    sha256_hex(json_string(description).as_bytes())
}

/// Writes a JSON string as a pin and a recorded result hold it: `<`, `>` and `&` stay as they are.
pub fn json_string(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    push_quoted(&mut out, text, Escapes::Separators);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(text: &str) -> String {
        canonical(text).unwrap()
    }

    /// Schemas whose numbers a double holds, each with the form that pins taken by a decoder of doubles have.
    const FLOAT_SAFE: &[(&str, &str)] = &[
        (
            r#"{"type":"object","properties":{"path":{"type":"string"}},"required":["path"]}"#,
            r#"{"properties":{"path":{"type":"string"}},"required":["path"],"type":"object"}"#,
        ),
        (
            r#"{"x":{"maximum":1e21,"default":-0,"exclusiveMinimum":-0.0,"minimum":0.1}}"#,
            r#"{"x":{"default":-0,"exclusiveMinimum":-0,"maximum":1e+21,"minimum":0.1}}"#,
        ),
        (
            r#"{"enum":[1.0,1e2,1E+2,100.00,12e0,2.50,0.000001,1e-7,1e20,1e-6,5e-324,1.7976931348623157e308,123456789012345680000,9007199254740992,-2.5e-3,3.14159,-1]}"#,
            r#"{"enum":[1,100,100,100,12,2.5,0.000001,1e-7,100000000000000000000,0.000001,5e-324,1.7976931348623157e+308,123456789012345680000,9007199254740992,-0.0025,3.14159,-1]}"#,
        ),
        (
            r#"{"héllo 世界":{"description":"😀 \u00e9 \u2028 \u2029 <b>&amp;</b> \"quoted\" back\\slash \u0001\t\n","default":"<script>"}}"#,
            "{\"héllo 世界\":{\"default\":\"<script>\",\"description\":\"😀 é \\u2028 \\u2029 <b>&amp;</b> \\\"quoted\\\" back\\\\slash \\u0001\\t\\n\"}}",
        ),
        (
            r#"{  "type" : "object" , "required":[] ,"properties":{"z":{},"a":{"const":0.30000000000000004},"m":[[1,null,true,false,{}]]} }"#,
            r#"{"properties":{"a":{"const":0.30000000000000004},"m":[[1,null,true,false,{}]],"z":{}},"required":[],"type":"object"}"#,
        ),
        (r#"{"d":{"const":1},"d":{"const":2}}"#, r#"{"d":{"const":2}}"#),
        (r#"{"é":1,"e":2,"B":3,"😀":4,"日":5,"_":6}"#, r#"{"B":3,"_":6,"e":2,"é":1,"日":5,"😀":4}"#),
    ];

    #[test]
    fn a_schema_that_doubles_can_hold_is_pinned_as_a_decoder_of_doubles_pinned_it() {
        for (schema, want) in FLOAT_SAFE {
            assert_eq!(form(schema), *want);
            assert_eq!(form(want), *want, "the form is its own form");
        }
    }

    #[test]
    fn bytes_that_are_not_utf_8_and_lone_surrogates_become_the_replacement_character() {
        let schema: &[u8] = b"{\"s\":\"lone \\ud800 pair \\ud83d\\ude00 bytes \xff\xfe nul \\u0000\",\"k\\udc00\":\"\\u003c\"}";
        let want = "{\"k\u{fffd}\":\"<\",\"s\":\"lone \u{fffd} pair 😀 bytes \u{fffd}\u{fffd} nul \\u0000\"}";
        assert_eq!(canonical(&scan::lossy(schema)).unwrap(), want);
    }

    #[test]
    fn numbers_that_a_double_would_round_are_pinned_digit_by_digit() {
        let one = form(r#"{"maximum":9007199254740993}"#);
        let other = form(r#"{"maximum":9007199254740992}"#);
        assert_eq!(one, r#"{"maximum":9007199254740993}"#);
        assert_ne!(schema_hash(&one), schema_hash(&other));
        assert_eq!(
            form(r#"{"n":{"maximum":123456789012345678901234567890}}"#),
            r#"{"n":{"maximum":1.2345678901234567890123456789e+29}}"#
        );
    }

    #[test]
    fn an_absent_schema_is_null_and_what_is_no_schema_is_refused() {
        assert_eq!(form(""), "null");
        assert_eq!(form(" \n\t"), "null");
        assert!(matches!(canonical("{} {}"), Err(Error::Json(scan::Error::Malformed(3)))));
        assert!(matches!(canonical("{"), Err(Error::Json(scan::Error::Malformed(_)))));
        assert!(matches!(canonical(r#"{"maximum":1e400}"#), Err(Error::Number(number::Error::Overflow(_)))));
    }

    #[test]
    fn a_document_of_two_hundred_and_fifty_six_levels_is_written_and_a_deeper_one_refused() {
        let nested =
            |levels: usize| format!("{}1.0{}", "[{\"a\":".repeat(levels / 2), "}]".repeat(levels / 2));
        assert_eq!(form(&nested(256)), nested(256).replace("1.0", "1"));
        assert_eq!(canonical(&nested(258)), Err(Error::Json(scan::Error::TooDeep)));
    }

    #[test]
    fn the_hashes_are_those_of_the_written_bytes() {
        // SHA-256 of `{"type":"object"}` and of `"Read a file."`, quotes included.
        assert_eq!(
            schema_hash(r#"{"type":"object"}"#),
            "a2c799262a3ce3c19ef5cdd983bf3d12b43ab3c426227091b909dcb7054738c0"
        );
        assert_eq!(
            description_hash("Read a file."),
            "f83d56c834a0029f639f3db5e497620fcad6f2a8367d31e34238a3a9ae0c2020"
        );
        assert_ne!(description_hash("a"), description_hash("a "));
        assert_eq!(json_string("a<\u{2028}\"\u{7f}é"), "\"a<\\u2028\\\"\u{7f}é\"");
    }
}
