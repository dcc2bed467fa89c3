//! JSON-RPC as a host speaks it: reading one message, writing answers.
//!
//! Owns the envelope. Parameters stay the bytes that they were: whether a call's arguments are usable is the gate's to
//! say, so nothing here looks into them. An id goes back as it was written.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

/// The line is no JSON.
pub(super) const PARSE_ERROR: i64 = -32700;
/// It is JSON, and no request.
pub(super) const INVALID_REQUEST: i64 = -32600;
/// Nobody answers this method.
pub(super) const METHOD_NOT_FOUND: i64 = -32601;
/// The parameters are not those of the method.
pub(super) const INVALID_PARAMS: i64 = -32602;
/// It can't be answered now.
pub(super) const INTERNAL_ERROR: i64 = -32603;

/// The longest id: it is kept while its request runs, and given back.
const ID_BYTES_MAX: usize = 1024;

/// What one message of the host is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// It waits for an answer.
    Request {
        /// The id as it was written.
        id: String,
        /// The method.
        method: String,
        /// The parameters as they were written; empty when there are none.
        params: Vec<u8>,
    },
    /// It does not.
    Notification {
        /// The method.
        method: String,
        /// The parameters as they were written; empty when there are none.
        params: Vec<u8>,
    },
    /// An answer to something that nobody asked.
    Answer,
    /// It can't be acted on, and is answered so.
    Refused {
        /// The id, when there is a usable one.
        id: Option<String>,
        /// The code.
        code: i64,
        /// Why.
        why: &'static str,
    },
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, default)]
    jsonrpc: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

/// Reads an object. An array's elements, which serde would take for the members in their order, are none.
fn object<'a, T: Deserialize<'a>>(text: &'a str) -> Option<T> {
    if text.trim_start().starts_with('{') { serde_json::from_str(text).ok() } else { None }
}

/// Reads a member that is there also when it is `null`.
fn present<'de: 'a, 'a, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// A text of the same length in which each byte that is not UTF-8 is a question mark, so that what is found in it is
/// found at the same place of the bytes.
fn readable(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return Cow::Borrowed(text);
    }
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|_| '?'));
    }
    Cow::Owned(text)
}

/// The bytes of `whole` at which `part` stands in `text`, its readable form.
fn cut(whole: &[u8], text: &str, part: &RawValue) -> Vec<u8> {
    let start = part.get().as_ptr().addr() - text.as_ptr().addr();
    whole[start..start + part.get().len()].to_vec()
}

/// Reads one line.
pub(super) fn read(line: &[u8]) -> Message {
    let refused = |id, code, why| Message::Refused { id, code, why };
    let text = readable(line);
    let envelope: Envelope<'_> = match object(&text) {
        Some(envelope) => envelope,
        None if serde_json::from_str::<&RawValue>(&text).is_ok() => {
            let why = if text.trim_start().starts_with('[') {
                "batches are not supported: send one message a line"
            } else {
                "not a JSON-RPC message"
            };
            return refused(only_id(&text), INVALID_REQUEST, why);
        }
        None => return refused(None, PARSE_ERROR, "not one JSON value"),
    };
    let id = match envelope.id.map(|id| id.get()) {
        None => None,
        Some(id) if is_id(id) => Some(id.to_owned()),
        Some(_) => {
            return refused(None, INVALID_REQUEST, "an id is a string or a number of at most 1024 bytes");
        }
    };
    if envelope.jsonrpc.as_deref() != Some("2.0") {
        return refused(id, INVALID_REQUEST, "the jsonrpc member must be \"2.0\"");
    }
    let Some(method) = envelope.method.map(Cow::into_owned) else {
        return if envelope.result.is_some() || envelope.error.is_some() {
            Message::Answer
        } else {
            refused(id, INVALID_REQUEST, "a message names a method")
        };
    };
    let params = envelope.params.map(|params| cut(line, &text, params)).unwrap_or_default();
    match id {
        Some(id) => Message::Request { id, method, params },
        None => Message::Notification { method, params },
    }
}

/// The id of a message whose other members are unusable, so that whoever sent it is told.
fn only_id(text: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct OnlyId<'a> {
        #[serde(borrow)]
        id: &'a RawValue,
    }
    let id = object::<OnlyId<'_>>(text)?.id.get();
    is_id(id).then(|| id.to_owned())
}

/// The id of a line that was too long to keep, from its skeleton.
pub(super) fn id_of_skeleton(skeleton: &[u8]) -> Option<String> {
    match read(skeleton) {
        Message::Request { id, .. } => Some(id),
        Message::Refused { id, .. } => id,
        Message::Notification { .. } | Message::Answer => None,
    }
}

fn is_id(text: &str) -> bool {
    let kind = text.as_bytes().first();
    text.len() <= ID_BYTES_MAX && kind.is_some_and(|byte| matches!(byte, b'"' | b'-' | b'0'..=b'9'))
}

/// What two spellings of one id have in common. Numbers are compared as they are written.
pub(super) fn same_id(id: &str) -> String {
    // A quotation mark in front keeps the text "1" apart from the number.
    serde_json::from_str::<String>(id).map_or_else(|_| id.to_owned(), |text| format!("\"{text}"))
}

/// A `tools/call`, with its arguments as they were written.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CallParams {
    /// The tool's name.
    pub(super) name: String,
    /// The arguments; `None` when there are none, or `null`.
    pub(super) arguments: Option<Vec<u8>>,
    /// The host's progress token as it was written.
    pub(super) progress_token: Option<String>,
}

/// Reads the parameters of `tools/call`; `None` when they are not those.
pub(super) fn call_params(params: &[u8]) -> Option<CallParams> {
    #[derive(Deserialize)]
    struct Text<'a> {
        #[serde(borrow)]
        name: Cow<'a, str>,
        #[serde(borrow, default)]
        arguments: Option<&'a RawValue>,
        #[serde(borrow, default)]
        _meta: Option<&'a RawValue>,
    }
    #[derive(Deserialize)]
    struct Meta<'a> {
        #[serde(borrow, default, rename = "progressToken")]
        progress_token: Option<&'a RawValue>,
    }
    let text = readable(params);
    let read: Text<'_> = object(&text)?;
    let meta = read._meta.and_then(|meta| object::<Meta<'_>>(meta.get()));
    let token =
        meta.and_then(|meta| meta.progress_token).map(|token| token.get()).filter(|token| is_id(token));
    Some(CallParams {
        name: read.name.into_owned(),
        arguments: read.arguments.map(|arguments| cut(params, &text, arguments)),
        progress_token: token.map(str::to_owned),
    })
}

/// The id that a `notifications/cancelled` names.
pub(super) fn cancelled_id(params: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Text<'a> {
        #[serde(borrow, rename = "requestId")]
        request_id: &'a RawValue,
    }
    object::<Text<'_>>(std::str::from_utf8(params).ok()?).map(|text| text.request_id.get().to_owned())
}

/// The protocol version that an `initialize` asks for.
pub(super) fn asked_version(params: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Text {
        #[serde(rename = "protocolVersion")]
        protocol_version: String,
    }
    object::<Text>(std::str::from_utf8(params).ok()?).map(|text| text.protocol_version)
}

/// The line that answers `id` with `result`, which is JSON.
pub(super) fn result(id: &str, result: &str) -> Vec<u8> {
    one_line(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#))
}

/// The line that answers `id` with an error.
pub(super) fn error(id: Option<&str>, code: i64, message: &str) -> Vec<u8> {
    let (id, message) = (id.unwrap_or("null"), serde_json::Value::from(message));
    one_line(format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":{message}}}}}"#))
}

/// The line that notifies the host of `method`.
pub(super) fn notification(method: &str, params: &str) -> Vec<u8> {
    one_line(format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#))
}

/// A line feed outside a string is white space and one inside it is no JSON: none of them may end the line early.
fn one_line(text: String) -> Vec<u8> {
    let mut line = text.into_bytes();
    line.iter_mut().filter(|byte| matches!(byte, b'\n' | b'\r')).for_each(|byte| *byte = b' ');
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(line: &[u8]) -> (Option<String>, i64) {
        match read(line) {
            Message::Refused { id, code, .. } => (id, code),
            other @ (Message::Request { .. } | Message::Notification { .. } | Message::Answer) => {
                panic!("{other:?}")
            }
        }
    }

    #[test]
    fn a_request_keeps_its_id_and_parameters_as_they_were_written() {
        let line = br#" {"jsonrpc":"2.0","id":1.50,"method":"tools/call","params":{ "a": 1e400, "a": "\ud800" }, "x":1} "#;
        let expected = Message::Request {
            id: "1.50".into(),
            method: "tools/call".into(),
            params: br#"{ "a": 1e400, "a": "\ud800" }"#.to_vec(),
        };
        assert_eq!(read(line), expected);
        let line = br#"{"jsonrpc":"2.0","id":"\u00e9","method":"ping"}"#;
        let expected =
            Message::Request { id: r#""\u00e9""#.into(), method: "ping".into(), params: Vec::new() };
        assert_eq!(read(line), expected);
    }

    #[test]
    fn bytes_that_are_not_utf_8_reach_the_gate() {
        let line = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"t\",\"arguments\":{\"s\":\"\xff\xfe\"}}}";
        let Message::Request { params, .. } = read(line) else { panic!("not a request") };
        assert_eq!(call_params(&params).unwrap().arguments.unwrap(), b"{\"s\":\"\xff\xfe\"}");
    }

    #[test]
    fn deep_nesting_reaches_the_gate() {
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        let line = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"t","arguments":{deep}}}}}"#
        );
        let Message::Request { params, .. } = read(line.as_bytes()) else { panic!("not a request") };
        assert_eq!(call_params(&params).unwrap().arguments.unwrap(), deep.as_bytes());
    }

    #[test]
    fn what_is_no_request_is_refused_as_json_rpc_says() {
        assert_eq!(refused(b"hello"), (None, PARSE_ERROR));
        assert_eq!(refused(br#"{"jsonrpc":"2.0","id":1,"method":"ping"} x"#), (None, PARSE_ERROR));
        assert_eq!(refused(b"[]"), (None, INVALID_REQUEST));
        assert_eq!(refused(b"7"), (None, INVALID_REQUEST));
        assert_eq!(refused(br#"{"jsonrpc":"2.0","id":1}"#), (Some("1".into()), INVALID_REQUEST));
        assert_eq!(refused(br#"{"id":1,"method":"ping"}"#), (Some("1".into()), INVALID_REQUEST));
        assert_eq!(refused(br#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#), (None, INVALID_REQUEST));
        assert_eq!(refused(br#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#), (None, INVALID_REQUEST));
        assert_eq!(refused(br#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}"#), (None, INVALID_REQUEST));
        assert_eq!(
            refused(br#"{"jsonrpc":"2.0","id":1,"method":"\ud800"}"#),
            (Some("1".into()), INVALID_REQUEST)
        );
        assert_eq!(refused(br#"{"jsonrpc":"2.0","id":1,"method":"a","method":"b"}"#).0.as_deref(), Some("1"));
        assert_eq!(read(br#"{"jsonrpc":"2.0","id":1,"result":null}"#), Message::Answer);
    }

    #[test]
    fn an_array_is_never_taken_for_an_object_whose_members_come_in_that_order() {
        assert_eq!(refused(br#"["2.0",5,"tools/call",{"name":"t"}]"#), (None, INVALID_REQUEST));
        assert_eq!(only_id("[5]"), None);
        assert_eq!(call_params(br#"["t",{"a":1}]"#), None);
        assert_eq!(call_params(br#"{"name":"t","_meta":[7]}"#).unwrap().progress_token, None);
        assert_eq!(cancelled_id(b"[5]"), None);
        assert_eq!(asked_version(br#"["2025-06-18"]"#), None);
    }

    #[test]
    fn a_calls_parameters_are_read_and_its_arguments_left_alone() {
        let read =
            call_params(br#"{"name":"t","arguments":null,"_meta":{"progressToken":7,"x":1}}"#).unwrap();
        assert_eq!((read.arguments, read.progress_token.as_deref()), (None, Some("7")));
        let read = call_params(br#"{"name":"t","arguments": [1, 1.0] ,"_meta":[]}"#).unwrap();
        assert_eq!((read.arguments.as_deref(), read.progress_token), (Some(&b"[1, 1.0]"[..]), None));
        for bad in [
            &b""[..],
            b"{}",
            br#"{"name":1}"#,
            br#"{"name":"a","name":"b"}"#,
            br#"{"name":"a","arguments":1,"arguments":2}"#,
        ] {
            assert_eq!(call_params(bad), None, "{}", String::from_utf8_lossy(bad));
        }
    }

    #[test]
    fn an_answer_is_one_line() {
        let line = result("1", "{\n \"a\": \"b\\n\"\r\n}");
        assert_eq!(line, b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{  \"a\": \"b\\n\"  }}\n");
        let line = error(None, PARSE_ERROR, "a \"b\"\n");
        assert_eq!(
            line,
            b"{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32700,\"message\":\"a \\\"b\\\"\\n\"}}\n"
        );
    }

    #[test]
    fn the_id_of_a_line_that_was_too_long_is_read_from_its_skeleton() {
        assert_eq!(
            id_of_skeleton(br#"{"method":"tools/call","params":{},"jsonrpc":"2.0","id":9}"#).as_deref(),
            Some("9")
        );
        assert_eq!(id_of_skeleton(b"garbage"), None);
    }
}
