//! Tests of the envelope reader and the line cutter.

use super::*;

fn one(line: &str) -> Incoming {
    let mut all = parse(line.as_bytes()).unwrap();
    assert_eq!(all.len(), 1, "{line}");
    all.remove(0)
}

fn answer(line: &str) -> Answer {
    match one(line) {
        Incoming::Answer { id: 7, answer } => answer,
        other @ (Incoming::Answer { .. }
        | Incoming::Request { .. }
        | Incoming::Notification { .. }
        | Incoming::Unmatched) => panic!("not the answer to 7: {other:?}"),
    }
}

fn result(text: &str) -> Answer {
    Answer::Result { text: text.to_owned(), utf8: true }
}

fn malformed(line: &str) -> String {
    match answer(line) {
        Answer::Malformed(why) => why,
        other @ (Answer::Result { .. } | Answer::Error { .. }) => panic!("read as {other:?}"),
    }
}

#[test]
fn lines_are_cut_wherever_the_reads_fall() {
    let mut lines = Lines::new(100);
    let mut seen = Vec::new();
    for chunk in ["ab", "c\nde", "\n", "\nf"] {
        lines.push(chunk.as_bytes());
        while let Some(line) = lines.next_line().unwrap() {
            seen.push(String::from_utf8(line.to_vec()).unwrap());
        }
    }
    assert_eq!(seen, ["abc", "de", ""]);
    assert_eq!(lines.rest(), b"f");
}

#[test]
fn a_line_of_exactly_the_limit_passes_and_one_more_byte_fails_before_its_newline() {
    let mut lines = Lines::new(4);
    lines.push(b"abcd\n");
    assert_eq!(lines.next_line().unwrap().unwrap(), b"abcd");
    lines.push(b"abcd");
    assert_eq!(lines.next_line().unwrap(), None);
    lines.push(b"e");
    assert_eq!(lines.next_line(), Err(Error::TooLong));
}

#[test]
fn a_result_keeps_the_bytes_the_server_sent() {
    let result = r#"{"z":123456789012345678901234567890, "a":1.10,"e":-1e400,"u":"\u00e9"}"#;
    let line = format!(r#"{{"result":{result},"jsonrpc":"2.0","id":7}}"#);
    assert_eq!(answer(&line), self::result(result));
}

#[test]
fn a_result_of_a_hundred_thousand_levels_is_read_without_recursion() {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let result = format!(r#"{{"structuredContent":{deep}}}"#);
    let line = format!(r#"{{"id":7,"result":{result}}}"#);
    assert_eq!(answer(&line), self::result(&result));
}

#[test]
fn requests_and_notifications_are_told_from_answers() {
    assert_eq!(
        one(r#"{"jsonrpc":"2.0","id":"x\n","method":"roots/list"}"#),
        Incoming::Request { id: r#""x\n""#.to_owned(), method: "roots/list".to_owned() }
    );
    assert_eq!(
        one(r#"{"method":"notifications/tools/list_changed","id":null}"#),
        Incoming::Notification { method: "notifications/tools/list_changed".to_owned() }
    );
}

#[test]
fn an_error_answer_keeps_its_code_and_message() {
    assert_eq!(
        answer(r#"{"id":7,"error":{"code":-32602,"message":"no such tool","data":{"a":1}}}"#),
        Answer::Error { code: "-32602".to_owned(), message: "no such tool".to_owned() }
    );
    assert_eq!(
        answer(r#"{"id":7,"error":"broken"}"#),
        Answer::Error { code: "null".to_owned(), message: "\"broken\"".to_owned() }
    );
}

#[test]
fn a_null_error_beside_a_result_is_no_error() {
    assert_eq!(answer(r#"{"id":7,"result":{},"error":null}"#), result("{}"));
}

#[test]
fn a_malformed_answer_with_a_readable_id_names_its_call() {
    assert!(malformed(r#"{"id":7,"result":{},"error":{"code":1,"message":"m"}}"#).contains("both"));
    assert!(malformed(r#"{"id":7}"#).contains("neither"));
    assert!(malformed(r#"{"id":7,"result":null}"#).contains("neither"));
    assert!(malformed(r#"{"id":7,"result":{},"result":{}}"#).contains("two results"));
    assert!(malformed(r#"{"id":7,"result":"ok"}"#).contains("not a JSON object"));
    assert!(malformed(r#"{"id":7,"result":{},"method":"x"}"#).contains("both a request"));
    assert!(malformed(r#"{"id":7,"result":{"isError":true,"isError":false}}"#).contains("isError"));
    assert!(malformed(r#"{"id":7,"result":{"tools":[],"\u0074ools":[]}}"#).contains("tools"));
}

#[test]
fn a_repeated_key_below_the_top_of_a_result_is_left_to_its_reader() {
    let result = r#"{"structuredContent":{"a":1,"a":2}}"#;
    assert_eq!(answer(&format!(r#"{{"id":7,"result":{result}}}"#)), self::result(result));
}

#[test]
fn an_answer_that_is_not_utf8_is_marked_and_still_names_its_call() {
    let all = parse(b"{\"id\":7,\"result\":{\"t\":\"\xff\xfe\"}}").unwrap();
    let text = "{\"t\":\"\u{fffd}\u{fffd}\"}".to_owned();
    assert_eq!(all, [Incoming::Answer { id: 7, answer: Answer::Result { text, utf8: false } }]);
}

#[test]
fn an_answer_under_a_foreign_id_matches_nothing() {
    for id in ["\"7\"", "7.0", "-7", "null", "[7]", "99999999999999999999999"] {
        assert_eq!(one(&format!(r#"{{"id":{id},"result":{{}}}}"#)), Incoming::Unmatched, "{id}");
    }
    assert_eq!(one(r#"{"result":{}}"#), Incoming::Unmatched);
}

#[test]
fn a_bad_envelope_is_an_error() {
    for line in ["Server ready", "{", "7", r#"{"id":7,"result":{}} x"#, r#"{"method":7}"#, r#"{"\ud800":1}"#]
    {
        assert!(matches!(parse(line.as_bytes()), Err(Error::NotAMessage(_))), "{line}");
    }
    assert_eq!(parse(br#"{"id":7,"\u0069d":8,"result":{}}"#), Err(Error::Ambiguous("id")));
    assert_eq!(parse(br#"{"method":"a","method":"b"}"#), Err(Error::Ambiguous("method")));
}

#[test]
fn blank_lines_hold_nothing_and_a_batch_holds_each_of_its_messages() {
    assert_eq!(parse(b" \r").unwrap(), []);
    let batch = parse(br#"[{"id":7,"result":{}},{"method":"notifications/message"}]"#).unwrap();
    assert_eq!(batch.len(), 2);
}

#[test]
fn arguments_leave_with_the_bytes_they_came_with_on_one_line() {
    let arguments = "{\"z\":123456789012345678901234567890,\n\"a\":1.10,\"t\":\"x\\ny\"}";
    let bytes = request(3, "tools/call", &call_params("p\"ay", arguments));
    assert_eq!(
        String::from_utf8(bytes).unwrap(),
        "{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"tools/call\",\"params\":{\"name\":\"p\\\"ay\",\"arguments\":\
         {\"z\":123456789012345678901234567890, \"a\":1.10,\"t\":\"x\\ny\"}}}\n"
    );
}
