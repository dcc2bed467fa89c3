//! Tests of the status tool's arguments; its reports are tested with the calls that they tell of.

use super::*;

#[test]
fn the_one_argument_is_read_and_others_are_refused() {
    assert_eq!(asked_about(None), Ok(None));
    assert_eq!(asked_about(Some(b"{}")), Ok(None));
    assert_eq!(asked_about(Some(br#"{"approval_id":null}"#)), Ok(None));
    assert_eq!(asked_about(Some(br#"{"approval_id":" a "}"#)), Ok(Some("a".to_owned())));
    for bad in [&b"[]"[..], b"1", b"{", br#"{"approval_id":1}"#, br#"{"x":1}"#, b"[\"a\"]"] {
        assert_eq!(asked_about(Some(bad)), Err(()), "{}", String::from_utf8_lossy(bad));
    }
}
