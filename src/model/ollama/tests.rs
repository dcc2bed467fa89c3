//! Tests of the Ollama adapter against a fake server that speaks its format.

use holdpoint_core::json::Json;
use holdpoint_core::model::Block;

use super::*;
use crate::model::fake::{Act, Fake};
use crate::model::fixtures::{json, saying, tool};
use crate::model::free;

const ANSWER: &str = r#"{"model":"qwen3","message":{"role":"assistant","content":"looking","tool_calls":[{"function":{"name":"read","arguments":{"n": 1.50, "big": 123456789012345678901234567890}}}]},"done":true,"done_reason":"stop","prompt_eval_count":31,"eval_count":7}"#;

fn adapter(fake: &Fake) -> Ollama {
    Ollama::new(Config { model: "qwen3".to_owned(), host: fake.address.clone(), ..Config::default() })
        .unwrap()
}

async fn answered(body: &str) -> Result<ModelResponse, ModelError> {
    let fake = Fake::start([Act::ok(body)]).await;
    adapter(&fake).generate(&saying("hi")).await
}

fn usage(input: i64, output: i64) -> Usage {
    Usage { input_tokens: input, output_tokens: output, cached_input_tokens: 0 }
}

#[tokio::test]
async fn a_request_is_sent_in_ollamas_format() {
    let fake = Fake::start([Act::ok(ANSWER)]).await;
    let call = Block::tool_use("t1", "read", json(r#"{"n": 12345678901234567890.10}"#));
    let named = Block { name: "other".to_owned(), ..Block::tool_result("t2", "by name", true) };
    let request = ModelRequest {
        system: "Be <brief>.".to_owned(),
        messages: vec![
            Message { role: Role::User, content: vec![Block::text("go "), Block::text("on")] },
            Message { role: Role::Assistant, content: vec![Block::text("reading"), call] },
            Message {
                role: Role::User,
                content: vec![Block::tool_result("t1", "done", false), Block::text("and?"), named],
            },
            Message { role: Role::Assistant, content: vec![Block::tool_use("", "read", Json::trusted(" "))] },
        ],
        tools: vec![tool(r#"{"type":"object","properties":{"n":{"type":"number","maximum":1e300}}}"#)],
        max_output_tokens: 256,
    };
    adapter(&fake).generate(&request).await.unwrap();
    let asked = &fake.asked()[0];
    assert_eq!(asked.line, "POST /api/chat HTTP/1.1");
    assert!(!asked.headers.contains_key("authorization"));
    let expected = concat!(
        r#"{"model":"qwen3","messages":["#,
        r#"{"role":"system","content":"Be <brief>."},"#,
        r#"{"role":"user","content":"go on"},"#,
        r#"{"role":"assistant","content":"reading","tool_calls":[{"id":"t1","function":{"name":"read","arguments":{"n":12345678901234567890.10}}}]},"#,
        r#"{"role":"user","content":"and?"},"#,
        r#"{"role":"tool","content":"done","tool_name":"read"},"#,
        r#"{"role":"tool","content":"by name","tool_name":"other"},"#,
        r#"{"role":"assistant","content":"","tool_calls":[{"function":{"name":"read","arguments":{}}}]}],"#,
        r#""tools":[{"type":"function","function":{"name":"read","description":"Reads.","parameters":{"type":"object","properties":{"n":{"type":"number","maximum":1e300}}}}}],"#,
        r#""stream":false,"think":false,"options":{"temperature":0,"num_ctx":32768,"num_predict":256}}"#,
    );
    assert_eq!(asked.body, expected);
}

#[tokio::test]
async fn what_is_configured_is_sent_and_what_is_not_is_left_out() {
    let fake = Fake::start([Act::ok(ANSWER)]).await;
    let config = Config {
        model: "qwen3".to_owned(),
        host: format!("{}/", fake.url()),
        think: true,
        context_tokens: 8_192,
        ..Config::default()
    };
    Ollama::new(config).unwrap().generate(&saying("hi")).await.unwrap();
    let expected = concat!(
        r#"{"model":"qwen3","messages":[{"role":"user","content":"hi"}],"stream":false,"think":true,"#,
        r#""options":{"temperature":0,"num_ctx":8192}}"#,
    );
    assert_eq!(fake.asked()[0].body, expected);
}

#[tokio::test]
async fn an_answer_keeps_its_calls_byte_for_byte() {
    let response = answered(ANSWER).await.unwrap();
    assert_eq!((response.text.as_str(), response.stop_reason.as_str()), ("looking", "tool_use"));
    assert_eq!(response.usage, usage(31, 7));
    assert_eq!(response.raw, Some(Json::trusted(ANSWER)));
    let call = &response.tool_uses[0];
    assert_eq!((response.tool_uses.len(), call.name.as_str()), (1, "read"));
    assert_eq!(call.args.as_str(), r#"{"n": 1.50, "big": 123456789012345678901234567890}"#);
    assert!(call.id.starts_with("call_") && call.id.ends_with("_0"), "{}", call.id);
}

#[tokio::test]
async fn every_call_is_given_and_missing_arguments_are_none() {
    let body = r#"{"message":{"tool_calls":[{"id":"a","function":{"name":"x"}},{"function":{"name":"y","arguments":null}},{"function":{"name":"z","arguments":{}}}]}}"#;
    let response = answered(body).await.unwrap();
    let calls: Vec<(&str, &str)> =
        response.tool_uses.iter().map(|call| (call.name.as_str(), call.args.as_str())).collect();
    assert_eq!(calls, [("x", "{}"), ("y", "{}"), ("z", "{}")]);
    assert_eq!(response.tool_uses[0].id, "a");
    for (index, call) in response.tool_uses.iter().enumerate().skip(1) {
        assert!(call.id.starts_with("call_") && call.id.ends_with(&format!("_{index}")), "{}", call.id);
    }
    assert_eq!((response.stop_reason.as_str(), response.usage), ("tool_use", usage(0, 0)));
}

#[tokio::test]
async fn reasons_to_stop_are_told_in_one_vocabulary() {
    let call = r#","tool_calls":[{"function":{"name":"x","arguments":{}}}]"#;
    let half = r#","tool_calls":[{"function":{"name":"x","arguments":"{\"n\":"}}]"#;
    for (done, calls, expected, kept) in [
        (r#""stop""#, "", "end_turn", 0),
        (r#""""#, "", "end_turn", 0),
        ("null", "", "end_turn", 0),
        (r#""stop""#, call, "tool_use", 1),
        (r#""length""#, "", "max_tokens", 0),
        (r#""length""#, call, "max_tokens", 0),
        // Half a call may stand in a reply that was cut off.
        (r#""length""#, half, "max_tokens", 0),
        (r#""load""#, "", "load", 0),
    ] {
        let body = format!(
            r#"{{"message":{{"content":"t"{calls}}},"done_reason":{done},"prompt_eval_count":3,"eval_count":4}}"#
        );
        let response = answered(&body).await.unwrap();
        assert_eq!((response.stop_reason.as_str(), response.tool_uses.len()), (expected, kept), "{body}");
        assert_eq!(
            (response.usage, response.text.as_str()),
            (usage(3, 4), "t"),
            "it is charged all the same"
        );
    }
}

#[tokio::test]
async fn an_answer_that_cannot_be_used_is_charged_what_it_reports() {
    let counts = r#""prompt_eval_count":3,"eval_count":4"#;
    for (body, expected, told) in [
        (format!(r#"{{"error":"context too long",{counts}}}"#), usage(3, 4), "ollama: context too long"),
        (format!(r#"{{"message":"text",{counts}}}"#), usage(3, 4), "ollama: the answer can't be read: "),
        ("<html>busy</html>".to_owned(), usage(0, 0), "ollama: the answer can't be read: "),
        (format!(r#"{{{counts},"message":{{"content":"#), usage(0, 0), "ollama: the answer can't be read: "),
        (
            format!(
                r#"{{"message":{{"tool_calls":[{{"function":{{"name":"x","arguments":[1]}}}}]}},{counts}}}"#
            ),
            usage(3, 4),
            "ollama: the arguments of the call of x are no JSON object: [1]",
        ),
    ] {
        let error = answered(&body).await.unwrap_err();
        assert!(
            matches!(&error, ModelError::Served { usage, .. } if *usage == expected),
            "{body}: {error:?}"
        );
        assert!(error.to_string().starts_with(told), "{error}");
    }
    let long = format!(r#"{{"error":"{}"}}"#, "x".repeat(600));
    assert_eq!(answered(&long).await.unwrap_err().to_string(), format!("ollama: {}…", "x".repeat(512)));
}

#[tokio::test]
async fn a_usage_that_cannot_be_believed_is_named() {
    for (counts, told) in [
        (r#""eval_count":-1"#, "ollama: unusable usage: eval_count is -1, not a count"),
        (r#""prompt_eval_count":1.5"#, "ollama: unusable usage: prompt_eval_count is 1.5, not a count"),
        (r#""prompt_eval_count":"3""#, "ollama: unusable usage: prompt_eval_count is \"3\", not a count"),
        (r#""eval_count":1e99"#, "ollama: unusable usage: eval_count is 1e99, not a count"),
    ] {
        let error = answered(&format!(r#"{{"message":{{"content":"t"}},{counts}}}"#)).await.unwrap_err();
        assert_eq!(error, ModelError::UnusableUsage { why: told.to_owned() });
    }
    let twice = answered(r#"{"message":{},"eval_count":9,"eval_count":0}"#).await.unwrap_err();
    assert!(matches!(twice, ModelError::UnusableUsage { .. }), "{twice:?}");
}

#[tokio::test]
async fn failures_have_their_class() {
    let fake = Fake::start([
        Act::status(503, "loading"),
        Act::status(404, "model not found"),
        Act::cut_off(r#"{"message":"#),
    ])
    .await;
    let model = adapter(&fake);
    let loading = ModelError::Transient { why: "ollama: 503: loading".to_owned(), retry_after: None };
    assert_eq!(model.generate(&saying("hi")).await, Err(loading));
    let missing = ModelError::Permanent { why: "ollama: 404: model not found".to_owned() };
    assert_eq!(model.generate(&saying("hi")).await, Err(missing));
    assert!(matches!(model.generate(&saying("hi")).await, Err(ModelError::NoAnswer { .. })));
}

#[tokio::test]
async fn a_block_that_has_no_place_is_refused_and_nothing_is_sent() {
    let fake = Fake::start([]).await;
    let mut request = saying("hi");
    request.messages[0]
        .content
        .push(Block { kind: "anthropic.raw_assistant".to_owned(), ..Block::default() });
    let error = adapter(&fake).generate(&request).await.unwrap_err();
    assert!(
        matches!(&error, ModelError::Permanent { why } if why.contains("anthropic.raw_assistant")),
        "{error:?}"
    );
    assert!(fake.asked().is_empty());
}

#[test]
fn a_host_is_configured_or_the_environments_or_this_machine() {
    let resolve = |configured: &str, environment: Option<&str>| {
        resolve(configured, environment.map(str::to_owned)).map(|endpoint| endpoint.base().to_owned())
    };
    for (configured, environment, expected) in [
        ("", None, "http://127.0.0.1:11434"),
        ("", Some(""), "http://127.0.0.1:11434"),
        ("", Some("10.0.0.5:11434"), "http://10.0.0.5:11434"),
        ("https://ollama.example/", Some("10.0.0.5"), "https://ollama.example"),
        ("gpu:1234", None, "http://gpu:1234"),
        ("http://gpu/behind/a/proxy/", None, "http://gpu/behind/a/proxy"),
    ] {
        assert_eq!(resolve(configured, environment), Ok(expected.to_owned()));
    }
    for refused in ["ftp://gpu", "http://", "http://user:pass@gpu", "http://gpu?x=1", "gpu#x", "http://gpu/#"]
    {
        assert!(resolve(refused, None).is_err(), "{refused}");
    }
    assert_eq!(host("gpu"), Ok("http://gpu".to_owned()));
}

/// Tells the test below, as a process of its own, where it should find itself sent.
const EXPECTED: &str = "HOLDPOINT_TEST_EXPECTED_HOST";

// A test may not change the environment under its neighbours: another process is asked.
#[test]
fn the_environments_host_is_the_one_in_ollama_host() {
    if let Ok(expected) = std::env::var(EXPECTED) {
        let model = Ollama::new(Config { model: "qwen3".to_owned(), ..Config::default() }).unwrap();
        assert_eq!(model.connection.base(), expected);
        assert_eq!(host(""), Ok(expected));
        return;
    }
    for (set, expected) in [("10.0.0.5:1234", "http://10.0.0.5:1234"), ("", "http://127.0.0.1:11434")] {
        let asked = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "model::ollama::tests::the_environments_host_is_the_one_in_ollama_host"])
            .env(EXPECTED, expected)
            .env("OLLAMA_HOST", set)
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&asked.stdout);
        assert!(told.contains("running 1 test") && asked.status.success(), "{told}");
    }
}

#[test]
fn an_adapter_needs_a_model_and_names_itself() {
    assert_eq!(Ollama::new(Config::default()).unwrap_err(), ConfigError::NoModel { provider: "ollama" });
    let config = Config { model: "qwen3".to_owned(), host: "gpu".to_owned(), ..Config::default() };
    let plain = Ollama::new(config.clone()).unwrap();
    let named = Ollama::new(Config { name: "mine".to_owned(), ..config.clone() }).unwrap();
    assert_eq!((plain.name(), named.name()), ("ollama:qwen3", "mine"));
    let prices = free([plain.name(), named.name()]);
    assert!(
        prices.get("mine").is_some() && prices.get("ollama:qwen3").is_some() && prices.get("x").is_none()
    );
    assert!(Ollama::new(Config { host: "ftp://gpu".to_owned(), ..config.clone() }).is_err());

    let written = serde_json::to_string(&config).unwrap();
    assert_eq!(written, r#"{"Model":"qwen3","Name":"","Host":"gpu","Think":false,"NumCtx":0}"#);
    let client = Some(provider::clear_builder().unwrap().build().unwrap());
    let written = serde_json::to_string(&Config { client, ..config }).unwrap();
    assert!(written.ends_with(r#""HTTPClient":true}"#), "{written}");
    assert!(format!("{plain:?}").contains("ollama:qwen3"));
}
