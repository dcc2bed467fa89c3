//! Tests of keys, recordings and what is served from them. The recorded files and the key are the reference's.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use holdpoint_actors::model::{Model, ModelError};
use holdpoint_core::json::Json;
use holdpoint_core::model::{Block, Message, ModelRequest, ModelResponse, Role, ToolUse, Usage};
use holdpoint_core::tool::{SideEffect, ToolSpec};

use super::*;

fn json(text: &str) -> Json {
    Json::checked(text.as_bytes()).unwrap()
}

/// A request that carries `input`, so that two of them can differ in one number.
fn carrying(input: &str) -> ModelRequest {
    let content = vec![Block::tool_use("t1", "get", json(input))];
    ModelRequest { messages: vec![Message { role: Role::Assistant, content }], ..ModelRequest::default() }
}

fn saying(text: &str) -> ModelResponse {
    ModelResponse { text: text.to_owned(), stop_reason: "end_turn".to_owned(), ..ModelResponse::default() }
}

fn names(folder: &Path) -> Vec<String> {
    let entries =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = entries.collect();
    names.sort();
    names
}

#[test]
fn a_key_is_the_one_that_the_reference_computes() {
    let schema = r#"{"type":"object","properties":{"n":{"type":"integer","maximum":100}}}"#;
    let read = ToolSpec {
        name: "read".to_owned(),
        description: "d".to_owned(),
        input_schema: json(schema),
        side_effect: SideEffect::ReadOnly,
        timeout: Duration::ZERO,
        terminal: false,
    };
    let input = json(r#"{"n":42,"f":0.5}"#);
    let request = ModelRequest {
        system: "sys <b> & co".to_owned(),
        messages: vec![
            Message { role: Role::User, content: vec![Block::text("hello é 🙂")] },
            Message { role: Role::Assistant, content: vec![Block::tool_use("t1", "read", input)] },
        ],
        tools: vec![read],
        max_output_tokens: 4096,
    };
    let expected = "8b7c5f45e2045e72856cd3d8b8a6a559cce84ca6ee2967fbebe279c80609078e";
    assert_eq!(key("claude-opus-5", &request), expected);
}

#[test]
fn numbers_that_a_float_cannot_tell_apart_are_two_requests() {
    let keys = ["9007199254740993", "9007199254740992", "9007199254740992.0"]
        .map(|n| key("m", &carrying(&format!(r#"{{"id":{n}}}"#))));
    assert!(keys[0] != keys[1] && keys[1] != keys[2]);
    // Neither white space nor the order of keys makes another request; another model does.
    assert_eq!(key("m", &carrying(r#"{"a":1,"b":2}"#)), key("m", &carrying(r#"{ "b": 2, "a": 1 }"#)));
    assert_ne!(key("m", &carrying("{}")), key("n", &carrying("{}")));
}

#[tokio::test]
async fn a_script_answers_in_order_and_keeps_what_it_was_asked() {
    let failure = ModelError::NoAnswer { why: "cut off".to_owned() };
    let model =
        Scripted::new([saying("one"), saying("skipped"), saying("three")]).failing(1, failure.clone());
    assert_eq!(model.name(), "scripted");
    let requests = [carrying("{}"), carrying(r#"{"n":1}"#), carrying(r#"{"n":2}"#), carrying(r#"{"n":3}"#)];
    let mut answers = Vec::new();
    for request in &requests {
        answers.push(model.generate(request).await.map(|response| response.text));
    }
    let ran_out = "scripted: the script has no answer for request 4 of this run".to_owned();
    let expected = vec![
        Ok("one".to_owned()),
        Err(failure),
        Ok("three".to_owned()),
        Err(ModelError::Permanent { why: ran_out }),
    ];
    assert_eq!(answers, expected);
    assert_eq!(model.requests(), requests);
    assert_eq!(Scripted::new([]).named("mine").name(), "mine");
}

#[tokio::test]
async fn a_recording_is_written_as_the_reference_writes_it() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("recordings");
    let request = ModelRequest {
        system: "a < b & c\u{2028}".to_owned(),
        messages: vec![Message {
            role: Role::User,
            content: vec![Block::text("hi"), Block::tool_result("t0", "<done>", true)],
        }],
        ..ModelRequest::default()
    };
    let response = ModelResponse {
        text: "<ok>".to_owned(),
        tool_uses: vec![ToolUse {
            id: "t1".to_owned(),
            name: "get".to_owned(),
            args: json(r#"{ "b": 1.50, "a": "\u003c", "e": {} }"#),
        }],
        stop_reason: "tool_use".to_owned(),
        usage: Usage { input_tokens: 7, output_tokens: 3, cached_input_tokens: 0 },
        raw: Some(json(r#"{"a": 1, "b": "<"}"#)),
    };
    let model = Arc::new(Scripted::new([response.clone()]).named("m"));
    let recorder = Recorder::new(model, &folder);
    assert_eq!(recorder.name(), "m");
    assert_eq!(recorder.generate(&request).await.unwrap(), response);
    let expected = r#"{
  "model": "m",
  "request": {
    "system": "a < b & c\u2028",
    "messages": [
      {
        "role": "user",
        "content": [
          {
            "type": "text",
            "text": "hi"
          },
          {
            "type": "tool_result",
            "tool_use_id": "t0",
            "content": "<done>",
            "is_error": true
          }
        ]
      }
    ]
  },
  "response": {
    "text": "<ok>",
    "tool_uses": [
      {
        "id": "t1",
        "name": "get",
        "args": {
          "b": 1.50,
          "a": "\u003c",
          "e": {}
        }
      }
    ],
    "stop_reason": "tool_use",
    "usage": {
      "input_tokens": 7,
      "output_tokens": 3
    }
  },
  "raw_bytes": "{\"a\": 1, \"b\": \"<\"}"
}
"#;
    let file = folder.join(format!("{}.json", key("m", &request)));
    assert_eq!(fs::read_to_string(file).unwrap(), expected);
}

#[tokio::test]
async fn the_providers_bytes_come_back_as_they_were() {
    let place = tempfile::tempdir().unwrap();
    let raw = "{ \"n\": 1.0, \"big\": 123456789012345678901234567890,\t\"s\": \"<\\u003c>\" }\n";
    let answer = ModelResponse { raw: Some(Json::trusted(raw)), ..saying("so") };
    let request = carrying("{}");
    let model = Arc::new(Scripted::new([answer.clone()]).named("m"));
    Recorder::new(model, place.path()).generate(&request).await.unwrap();
    let replayed = Replayer::new("m", place.path()).generate(&request).await.unwrap();
    assert_eq!(replayed, answer);
}

#[tokio::test]
async fn identical_requests_are_served_in_their_order_and_no_more_than_were_recorded() {
    let place = tempfile::tempdir().unwrap();
    let (request, other) = (carrying("{}"), carrying(r#"{"n":1}"#));
    let model = Arc::new(Scripted::new([saying("one"), saying("two"), saying("other")]).named("m"));
    let recorder = Recorder::new(model, place.path());
    for asked in [&request, &request, &other] {
        recorder.generate(asked).await.unwrap();
    }
    let (first, second) = (key("m", &request), key("m", &other));
    let mut expected = [format!("{first}.json"), format!("{first}.2.json"), format!("{second}.json")];
    expected.sort();
    assert_eq!(names(place.path()), expected);

    let replayer = Replayer::new("m", place.path());
    assert_eq!(replayer.serve(&request).unwrap().text, "one");
    assert_eq!(replayer.serve(&other).unwrap().text, "other");
    assert_eq!(replayer.serve(&request).unwrap().text, "two");
    let shown = first[..12].to_owned();
    let over = ReplayError::NotRecorded { key: shown.clone(), recorded: 2, requested: 3 };
    assert_eq!(replayer.serve(&request).unwrap_err(), over);
    assert_eq!(
        over.to_string(),
        format!("replay: nothing is recorded for this request (key {shown}): recorded 2 times, requested 3")
    );
    // Asking in vain is no request that was served.
    assert_eq!(replayer.serve(&request).unwrap_err(), over);
}

#[tokio::test]
async fn what_was_not_recorded_has_no_answer() {
    let place = tempfile::tempdir().unwrap();
    let request = carrying("{}");
    let shown = &key("m", &request)[..12];
    let why = format!("replay: nothing is recorded for this request (key {shown})");
    let answer = Replayer::new("m", place.path().join("missing")).generate(&request).await;
    assert_eq!(answer, Err(ModelError::Permanent { why }));
}

#[tokio::test]
async fn recording_again_replaces_the_whole_sequence() {
    let place = tempfile::tempdir().unwrap();
    let request = carrying("{}");
    for session in [vec!["a", "b", "c"], vec!["d"]] {
        let model = Arc::new(Scripted::new(session.iter().map(|text| saying(text))).named("m"));
        let recorder = Recorder::new(model, place.path());
        for _ in session {
            recorder.generate(&request).await.unwrap();
        }
    }
    let key = key("m", &request);
    assert_eq!(names(place.path()), [format!("{key}.json")]);
    assert_eq!(Replayer::new("m", place.path()).serve(&request).unwrap().text, "d");
}

#[tokio::test]
async fn a_session_that_died_as_it_replaced_a_sequence_leaves_too_few_answers_and_never_a_mixture() {
    let place = tempfile::tempdir().unwrap();
    let request = carrying("{}");
    let recorder = |texts: &[&str]| {
        let script = Scripted::new(texts.iter().map(|text| saying(text)).collect::<Vec<_>>()).named("m");
        Recorder::new(Arc::new(script), place.path())
    };
    let old = recorder(&["old one", "old two"]);
    for _ in 0..2 {
        old.generate(&request).await.unwrap();
    }
    // It ends after the old ones were removed and before its own first is in place, and leaves half a file of its own.
    let first = place.path().join(format!("{}.json", key("m", &request)));
    let half = place.path().join(format!("{}.json.{}.new", key("m", &request), std::process::id()));
    fs::create_dir(&half).unwrap();
    let unrecorded = recorder(&["new one"]).generate(&request).await.unwrap_err();
    assert!(matches!(unrecorded, ModelError::Served { .. }), "{unrecorded}");
    let replayer = Replayer::new("m", place.path());
    assert_eq!(replayer.serve(&request).unwrap().text, "old one");
    assert!(matches!(replayer.serve(&request), Err(ReplayError::NotRecorded { recorded: 1, .. })));

    // What it left is neither served nor in the way of the next session.
    fs::remove_dir(&half).unwrap();
    for name in [&half, &first.with_extension("json.1.new")] {
        fs::write(name, "{\"model\":").unwrap();
    }
    recorder(&["newer one"]).generate(&request).await.unwrap();
    let replayer = Replayer::new("m", place.path());
    assert_eq!(replayer.serve(&request).unwrap().text, "newer one");
    assert!(matches!(replayer.serve(&request), Err(ReplayError::NotRecorded { recorded: 1, .. })));
}

#[tokio::test]
async fn a_failure_is_not_recorded() {
    let place = tempfile::tempdir().unwrap();
    let failure = ModelError::Transient { why: "busy".to_owned(), retry_after: None };
    let script = Scripted::new([saying("skipped"), saying("one")]).failing(0, failure.clone()).named("m");
    let recorder = Recorder::new(Arc::new(script), place.path());
    let request = carrying("{}");
    assert_eq!(recorder.generate(&request).await, Err(failure));
    assert!(names(place.path()).is_empty());
    recorder.generate(&request).await.unwrap();
    assert_eq!(Replayer::new("m", place.path()).serve(&request).unwrap().text, "one");
}

#[tokio::test]
async fn a_recording_is_its_owners_alone_and_goes_through_no_prepared_name() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("deep/recordings");
    let request = carrying("{}");
    let model = Arc::new(Scripted::new([saying("one"), saying("two")]).named("m"));
    let recorder = Recorder::new(model, &folder);
    recorder.generate(&request).await.unwrap();
    let key = key("m", &request);
    assert_eq!(names(&folder), [format!("{key}.json")], "nothing is left beside the recording");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&folder), 0o700);
    assert_eq!(mode(&folder.join(format!("{key}.json"))), 0o600);

    // Somebody else prepares the place of the next recording as a link to a file of the operator's.
    let victim = place.path().join("victim");
    fs::write(&victim, "keep").unwrap();
    symlink(&victim, folder.join(format!("{key}.2.json"))).unwrap();
    recorder.generate(&request).await.unwrap();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "keep");
    assert!(!fs::symlink_metadata(folder.join(format!("{key}.2.json"))).unwrap().is_symlink());
}

#[tokio::test]
async fn an_answer_that_cannot_be_recorded_is_charged() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("file");
    fs::write(&folder, "in the way").unwrap();
    let usage = Usage { input_tokens: 5, output_tokens: 6, cached_input_tokens: 0 };
    let answer = ModelResponse { usage, ..saying("so") };
    let recorder = Recorder::new(Arc::new(Scripted::new([answer])), &folder);
    let error = recorder.generate(&carrying("{}")).await.unwrap_err();
    assert!(matches!(&error, ModelError::Served { usage: charged, .. } if *charged == usage), "{error:?}");
    assert!(error.to_string().contains("can't be recorded in"), "{error}");
}

#[test]
fn recordings_from_before_raw_bytes_were_a_string_still_serve() {
    let place = tempfile::tempdir().unwrap();
    let request = carrying("{}");
    let file = place.path().join(format!("{}.json", key("m", &request)));
    let old = r#"{"model":"m","request":{"messages":null},"response":{"text":"old","usage":{"input_tokens":1,"output_tokens":2},"raw":{"a":1}}}"#;
    fs::write(&file, old).unwrap();
    let served = Replayer::new("m", place.path()).serve(&request).unwrap();
    assert_eq!((served.text.as_str(), served.raw), ("old", Some(json(r#"{"a":1}"#))));
    assert_eq!(served.usage, Usage { input_tokens: 1, output_tokens: 2, cached_input_tokens: 0 });
}

#[test]
fn a_file_that_is_no_recording_is_named() {
    let place = tempfile::tempdir().unwrap();
    let request = carrying("{}");
    let file = place.path().join(format!("{}.json", key("m", &request)));
    fs::write(&file, "{\"response\": ").unwrap();
    let error = Replayer::new("m", place.path()).serve(&request).unwrap_err();
    assert!(matches!(&error, ReplayError::Unreadable { path, .. } if *path == file), "{error:?}");
    assert!(error.to_string().contains("can't be read as a recording"), "{error}");
}
