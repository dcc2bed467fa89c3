//! Tests of the OpenAI-compatible adapter against a fake server that speaks its format.

use std::sync::Arc;
use std::time::Duration;

use holdpoint_core::json::Json;
use holdpoint_core::model::Block;
use holdpoint_core::run::Limits;

use super::*;
use crate::gate::{ModelConfig, Runtime};
use crate::model::fake::{Act, Fake, KEY};
use crate::model::fixtures::{json, saying, tool};
use crate::model::free;

const ANSWER: &str = r#"{"id":"c1","choices":[{"index":0,"message":{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"read","arguments":" {\"n\": 1.50, \"big\": 123456789012345678901234567890} "}}]},"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":31,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":5}}}"#;

fn config(fake: &Fake) -> Config {
    Config { model: "gpt".to_owned(), base_url: format!("{}/v1/", fake.url()), ..Config::default() }
}

async fn answered(body: &str) -> Result<ModelResponse, ModelError> {
    let fake = Fake::start([Act::ok(body)]).await;
    OpenAi::new(config(&fake)).unwrap().generate(&saying("hi")).await
}

fn usage(input: i64, output: i64, cached: i64) -> Usage {
    Usage { input_tokens: input, output_tokens: output, cached_input_tokens: cached }
}

#[tokio::test]
async fn a_request_is_sent_in_the_chat_completions_format() {
    let fake = Fake::start([Act::ok(ANSWER)]).await;
    let call = Block::tool_use("t1", "read", json(r#"{"n": 12345678901234567890.10}"#));
    let request = ModelRequest {
        system: "Be <brief>.".to_owned(),
        messages: vec![
            Message { role: Role::User, content: vec![Block::text("go "), Block::text("on")] },
            Message { role: Role::Assistant, content: vec![call] },
            Message {
                role: Role::User,
                content: vec![Block::tool_result("t1", "", false), Block::text("and?")],
            },
        ],
        tools: vec![tool(r#"{"type":"object","properties":{"n":{"maximum":1e300}}}"#)],
        max_output_tokens: 256,
    };
    let model = OpenAi::new(Config { api_key: KEY.into(), ..config(&fake) }).unwrap();
    model.generate(&request).await.unwrap();
    let asked = &fake.asked()[0];
    assert_eq!(asked.line, "POST /v1/chat/completions HTTP/1.1");
    assert_eq!(asked.headers["authorization"], format!("Bearer {KEY}"));
    let expected = concat!(
        r#"{"model":"gpt","messages":["#,
        r#"{"role":"system","content":"Be <brief>."},"#,
        r#"{"role":"user","content":"go on"},"#,
        r#"{"role":"assistant","content":"","tool_calls":[{"id":"t1","type":"function","function":{"name":"read","arguments":"{\"n\": 12345678901234567890.10}"}}]},"#,
        r#"{"role":"user","content":"and?"},"#,
        r#"{"role":"tool","content":"","tool_call_id":"t1"}],"#,
        r#""tools":[{"type":"function","function":{"name":"read","description":"Reads.","parameters":{"type":"object","properties":{"n":{"maximum":1e300}}}}}],"#,
        r#""tool_choice":"auto","parallel_tool_calls":false,"temperature":0,"max_tokens":256}"#,
    );
    assert_eq!(asked.body, expected);
}

#[tokio::test]
async fn without_tools_a_cap_or_a_key_none_is_sent() {
    let fake = Fake::start([Act::ok(ANSWER)]).await;
    OpenAi::new(config(&fake)).unwrap().generate(&saying("hi")).await.unwrap();
    let asked = &fake.asked()[0];
    assert_eq!(asked.body, r#"{"model":"gpt","messages":[{"role":"user","content":"hi"}],"temperature":0}"#);
    assert!(!asked.headers.contains_key("authorization"));
}

#[tokio::test]
async fn an_answer_keeps_its_calls_byte_for_byte() {
    let response = answered(ANSWER).await.unwrap();
    assert_eq!((response.text.as_str(), response.stop_reason.as_str()), ("", "tool_use"));
    assert_eq!(response.usage, usage(31, 7, 5));
    assert_eq!(response.raw, Some(Json::trusted(ANSWER)));
    let call = &response.tool_uses[0];
    assert_eq!((call.id.as_str(), call.name.as_str()), ("call_1", "read"));
    assert_eq!(call.args.as_str(), r#"{"n": 1.50, "big": 123456789012345678901234567890}"#);
}

#[tokio::test]
async fn every_call_is_given_and_missing_arguments_are_none() {
    let body = r#"{"choices":[{"message":{"content":"t","tool_calls":[{"function":{"name":"x"}},{"id":"b","function":{"name":"y","arguments":" "}},{"id":"c","function":{"name":"z","arguments":null}}]}},{"message":{"content":"second"}}]}"#;
    let response = answered(body).await.unwrap();
    let calls: Vec<(&str, &str)> =
        response.tool_uses.iter().map(|call| (call.name.as_str(), call.args.as_str())).collect();
    assert_eq!(calls, [("x", "{}"), ("y", "{}"), ("z", "{}")]);
    assert!(response.tool_uses[0].id.starts_with("call_") && response.tool_uses[1].id == "b");
    assert_eq!((response.text.as_str(), response.usage), ("t", usage(0, 0, 0)));
}

#[tokio::test]
async fn arguments_must_be_an_object_in_a_string() {
    for arguments in [r#""[1]""#, r#""null""#, r#""{\"n\":""#, r#""{} {}""#, r#""12""#, r#"{"n":1}"#] {
        let body = format!(
            r#"{{"choices":[{{"message":{{"tool_calls":[{{"id":"a","function":{{"name":"x","arguments":{arguments}}}}}]}}}}],"usage":{{"prompt_tokens":3,"completion_tokens":4}}}}"#
        );
        let error = answered(&body).await.unwrap_err();
        assert!(
            matches!(&error, ModelError::Served { usage: charged, .. } if *charged == usage(3, 4, 0)),
            "{error:?}"
        );
    }
    let long = format!(
        r#"{{"choices":[{{"message":{{"tool_calls":[{{"function":{{"name":"x","arguments":"{}"}}}}]}}}}]}}"#,
        "y".repeat(600)
    );
    let told = answered(&long).await.unwrap_err().to_string();
    assert_eq!(
        told,
        format!("openai: the arguments of the call of x are no JSON object: {}…", "y".repeat(512))
    );
}

#[tokio::test]
async fn reasons_to_stop_are_told_in_one_vocabulary() {
    let call = r#","tool_calls":[{"id":"a","function":{"name":"x","arguments":"{}"}}]"#;
    // What stands in a reply that was cut off inside a call.
    let half = r#","tool_calls":[{"id":"a","function":{"name":"x","arguments":"{\"to\": \"al"}}]"#;
    for (finish, calls, expected, kept) in [
        (r#""stop""#, "", "end_turn", 0),
        (r#""tool_calls""#, call, "tool_use", 1),
        (r#""stop""#, call, "end_turn", 1),
        ("null", call, "tool_use", 1),
        (r#""eos""#, call, "tool_use", 1),
        ("null", "", "end_turn", 0),
        (r#""length""#, "", "max_tokens", 0),
        (r#""length""#, call, "max_tokens", 0),
        (r#""length""#, half, "max_tokens", 0),
        (r#""content_filter""#, call, "refusal", 0),
        (r#""content_filter""#, half, "refusal", 0),
        (r#""eos""#, "", "eos", 0),
    ] {
        let body = format!(
            r#"{{"choices":[{{"message":{{"content":"t"{calls}}},"finish_reason":{finish}}}],"usage":{{"prompt_tokens":3,"completion_tokens":4}}}}"#
        );
        let response = answered(&body).await.unwrap();
        assert_eq!((response.stop_reason.as_str(), response.tool_uses.len()), (expected, kept), "{body}");
        assert_eq!(response.usage, usage(3, 4, 0), "it is charged all the same");
    }
}

#[tokio::test]
async fn an_answer_that_cannot_be_used_is_charged_what_it_reports() {
    let counts = r#""usage":{"prompt_tokens":3,"completion_tokens":4}"#;
    for (body, expected, told) in [
        (
            format!(r#"{{"error":{{"type":"invalid","message":"too long"}},{counts}}}"#),
            usage(3, 4, 0),
            "openai: invalid: too long",
        ),
        (format!(r#"{{"choices":[],{counts}}}"#), usage(3, 4, 0), "openai: the answer holds no choice"),
        (format!(r#"{{{counts}}}"#), usage(3, 4, 0), "openai: the answer holds no choice"),
        (format!(r#"{{"choices":"none",{counts}}}"#), usage(3, 4, 0), "openai: the answer can't be read: "),
        ("<html>ok</html>".to_owned(), usage(0, 0, 0), "openai: the answer can't be read: "),
    ] {
        let error = answered(&body).await.unwrap_err();
        assert!(
            matches!(&error, ModelError::Served { usage, .. } if *usage == expected),
            "{body}: {error:?}"
        );
        assert!(error.to_string().starts_with(told), "{error}");
    }
}

#[tokio::test]
async fn a_usage_that_cannot_be_believed_is_named() {
    for (counts, told) in [
        (r#"{"prompt_tokens":-1}"#, "usage.prompt_tokens is -1, not a count"),
        (r#"{"completion_tokens":1e3}"#, "usage.completion_tokens is 1e3, not a count"),
        (
            r#"{"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":"1"}}"#,
            "usage.prompt_tokens_details.cached_tokens is \"1\", not a count",
        ),
        (
            r#"{"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}"#,
            "cached input tokens 4 exceed input tokens 3",
        ),
    ] {
        let body = format!(r#"{{"choices":[{{"message":{{"content":"t"}}}}],"usage":{counts}}}"#);
        let why = format!("openai: unusable usage: {told}");
        assert_eq!(answered(&body).await, Err(ModelError::UnusableUsage { why }));
    }
    for counts in [r#""plenty""#, r#"{"prompt_tokens":9,"prompt_tokens":0}"#] {
        let error =
            answered(&format!(r#"{{"choices":[{{"message":{{}}}}],"usage":{counts}}}"#)).await.unwrap_err();
        assert!(matches!(error, ModelError::UnusableUsage { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn failures_have_their_class_and_hold_no_key() {
    let busy =
        Act::Answer(429, vec![("Retry-After", "2".to_owned())], format!("slow down, {KEY}").into_bytes());
    let fake = Fake::start([
        busy,
        Act::status(400, "bad request"),
        Act::cut_off(r#"{"choices":"#),
        Act::ok(format!(r#"{{"error":{{"type":"auth","message":"bad key {KEY}"}}}}"#)),
    ])
    .await;
    let model = OpenAi::new(Config { api_key: KEY.into(), ..config(&fake) }).unwrap();
    let slow_down = "openai: 429: slow down, [redacted]".to_owned();
    let pause = Some(Duration::from_secs(2));
    assert_eq!(
        model.generate(&saying("hi")).await,
        Err(ModelError::Transient { why: slow_down, retry_after: pause })
    );
    let refused = ModelError::Permanent { why: "openai: 400: bad request".to_owned() };
    assert_eq!(model.generate(&saying("hi")).await, Err(refused));
    assert!(matches!(model.generate(&saying("hi")).await, Err(ModelError::NoAnswer { .. })));
    let told = model.generate(&saying("hi")).await.unwrap_err().to_string();
    assert_eq!(told, "openai: auth: bad key [redacted]");
}

/// Awaits `what` while tokio's paused clock stands: it moves on by itself only when nothing is left to run.
async fn standing<T>(what: impl Future<Output = T>) -> T {
    let mut what = std::pin::pin!(what);
    std::future::poll_fn(|context| {
        let polled = what.as_mut().poll(context);
        if polled.is_pending() {
            context.waker().wake_by_ref();
        }
        polled
    })
    .await
}

#[tokio::test]
async fn the_seconds_of_a_retry_after_pass_before_the_request_is_sent_again() {
    let busy = Act::Answer(429, vec![("Retry-After", "7".to_owned())], b"slow down".to_vec());
    let fake = Fake::start(std::iter::once(busy).chain((0..8).map(|_| Act::ok(ANSWER)))).await;
    let model = ModelConfig::new(Arc::new(OpenAi::new(config(&fake)).unwrap())).retries(1);
    let folder = tempfile::tempdir().unwrap();
    let runtime = Runtime::builder(folder.path().join("runs.db")).model(model).start().await.unwrap();
    let session = runtime.gate().begin("r1".into(), "g", Limits::default()).await.unwrap();
    let caller = session.step().await.unwrap().unwrap().model();
    tokio::time::pause();
    let asker = caller.clone();
    let wanted = tokio::spawn(async move { asker.generate(&saying("wanted")).await });
    standing(async {
        while fake.asked().is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // Whoever is ready to send has its turn before the second of two other requests has.
    let sent = async || {
        for _ in 0..2 {
            standing(caller.generate(&saying("something else"))).await.unwrap();
        }
        fake.asked().iter().filter(|asked| asked.body.contains("wanted")).count()
    };
    assert_eq!(sent().await, 1, "at once");
    tokio::time::advance(Duration::from_millis(6_999)).await;
    assert_eq!(sent().await, 1, "before seven seconds have passed");
    tokio::time::advance(Duration::from_millis(2)).await;
    assert_eq!(sent().await, 2, "and as soon as they have");
    standing(wanted).await.unwrap().unwrap();
    tokio::time::resume();
    session.close().await;
    runtime.stop().await;
}

#[tokio::test]
async fn a_block_that_has_no_place_is_refused_and_nothing_is_sent() {
    let fake = Fake::start([]).await;
    let mut request = saying("hi");
    request.messages[0].content.push(Block { kind: "picture".to_owned(), ..Block::default() });
    let error = OpenAi::new(config(&fake)).unwrap().generate(&request).await.unwrap_err();
    assert!(matches!(&error, ModelError::Permanent { why } if why.contains("\"picture\"")), "{error:?}");
    assert!(fake.asked().is_empty());
}

#[test]
fn an_adapter_needs_a_model_and_names_itself() {
    assert_eq!(OpenAi::new(Config::default()).unwrap_err(), ConfigError::NoModel { provider: "openai" });
    let base_url = "http://127.0.0.1:1/v1".to_owned();
    let config = Config { model: "gpt".to_owned(), base_url, ..Config::default() };
    let plain = OpenAi::new(config.clone()).unwrap();
    let named = OpenAi::new(Config { name: "mine".to_owned(), ..config }).unwrap();
    assert_eq!((plain.name(), named.name()), ("openai:gpt", "mine"));
    let prices = free([plain.name(), named.name()]);
    assert!(
        prices.get("mine").is_some() && prices.get("openai:gpt").is_some() && prices.get("gpt").is_none()
    );
}

#[test]
fn a_key_is_refused_over_plain_http_to_another_machine() {
    let with = |base_url: &str| {
        let base_url = base_url.to_owned();
        OpenAi::new(Config { model: "gpt".to_owned(), base_url, api_key: KEY.into(), ..Config::default() })
    };
    for base in ["http://gateway.example/v1", "http://LOCALHOST/v1", "http://127.1/v1"] {
        let error = with(base).unwrap_err();
        assert!(matches!(error, ConfigError::KeyInTheClear { .. }), "{base}: {error}");
        assert!(!error.to_string().contains(KEY));
    }
    assert!(with("http://localhost:8080/v1").is_ok());
    assert!(with("ftp://localhost/v1").is_err());
    let unusable = Config { api_key: "two\nlines".into(), model: "gpt".to_owned(), ..Config::default() };
    assert_eq!(OpenAi::new(unusable).unwrap_err(), ConfigError::UnusableKey { provider: "openai" });
}

#[test]
fn the_environments_key_goes_to_openai_alone() {
    // `PATH` stands for a variable that is set everywhere.
    let of = |base: &str, key: &str| base_and_key(base, key.into(), "PATH");
    for base in ["", DEFAULT_BASE_URL, "https://api.openai.com/v1/"] {
        assert_eq!(of(base, "").0, DEFAULT_BASE_URL);
        assert!(!of(base, "").1.is_empty(), "{base}");
    }
    for base in ["https://gateway.example/v1", "https://api.openai.com/v2", "http://127.0.0.1:8080/v1"] {
        let (address, key) = of(base, "");
        assert!(key.is_empty() && address == base, "{base}");
    }
    assert!(base_and_key("", ApiKey::default(), "HOLDPOINT_NO_SUCH_VARIABLE").1.is_empty());
    // A key that is given comes before the environment's, wherever it goes.
    for base in ["", "https://gateway.example/v1"] {
        assert_eq!(of(base, KEY).1.header("p", "").unwrap(), KEY);
    }
}

#[test]
fn a_configuration_and_an_adapter_are_shown_without_the_key() {
    let base_url = "http://127.0.0.1:1/v1".to_owned();
    let config = Config { model: "gpt".to_owned(), base_url, api_key: KEY.into(), ..Config::default() };
    let model = OpenAi::new(config.clone()).unwrap();
    let written = serde_json::to_string(&config).unwrap();
    for text in [&format!("{config:?}"), &format!("{config:#?}"), &format!("{model:?}"), &written] {
        assert!(text.contains("[redacted]") && !text.contains(KEY), "{text}");
    }
    let expected = r#"{"Model":"gpt","Name":"","BaseURL":"http://127.0.0.1:1/v1","APIKey":"[redacted]"}"#;
    assert_eq!(written, expected);
    let client = Some(provider::clear_builder().unwrap().build().unwrap());
    let written = serde_json::to_string(&Config { client, api_key: ApiKey::default(), ..config }).unwrap();
    assert!(written.ends_with(r#""APIKey":"","HTTPClient":true}"#), "{written}");
}
