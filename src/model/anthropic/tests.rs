//! Tests of the Anthropic adapter against a fake server that speaks the Messages API.

use std::time::Duration;

use holdpoint_core::json::Json;
use holdpoint_core::model::{Block, Message, Role, Usage};

use super::*;
use crate::model::fake::{Act, Fake, KEY};
use crate::model::fixtures::{json, saying, tool};
use crate::model::{NoPrice, Price};

const ANSWER: &str = r#"{"id":"msg_1","type":"message","role":"assistant","model":"claude-opus-5","content":[{"type":"thinking","thinking":"consider","signature":"sig_abc"},{"type":"text","text":"Reading."},{"type":"text","text":""},{"type":"text","text":"Now."},{"type":"tool_use","id":"toolu_1","name":"read","input":{"n": 1.50, "big": 123456789012345678901234567890}}],"stop_reason":"tool_use","stop_sequence":null,"usage":{"input_tokens":120,"output_tokens":30,"cache_creation_input_tokens":0,"cache_read_input_tokens":20}}"#;

fn config(fake: &Fake) -> Config {
    let model = "claude-opus-5".to_owned();
    Config { model, base_url: format!("{}/", fake.url()), api_key: KEY.into(), ..Config::default() }
}

async fn answered(body: &str) -> Result<ModelResponse, ModelError> {
    let fake = Fake::start([Act::ok(body)]).await;
    Anthropic::new(config(&fake)).unwrap().generate(&saying("hi")).await
}

/// What is sent for this request.
async fn sent(config: Config, fake: &Fake, request: &ModelRequest) -> String {
    Anthropic::new(config).unwrap().generate(request).await.unwrap();
    fake.asked().last().unwrap().body.clone()
}

#[tokio::test]
async fn a_request_is_sent_in_the_messages_format() {
    let fake = Fake::start([Act::ok(ANSWER)]).await;
    let call = Block::tool_use("toolu_0", "read", json(r#"{"n": 12345678901234567890.10}"#));
    let request = ModelRequest {
        system: "Be <brief>.".to_owned(),
        messages: vec![
            Message { role: Role::User, content: vec![Block::text("go")] },
            Message { role: Role::Assistant, content: vec![Block::text("reading"), call] },
            Message { role: Role::User, content: vec![Block::tool_result("toolu_0", "no", true)] },
            Message { role: Role::Assistant, content: vec![Block::text(" \n ")] },
            Message { role: Role::User, content: Vec::new() },
        ],
        tools: vec![tool(r#"{"properties":{"n":{"type":"number","minimum":1e300}},"type":"object"}"#)],
        max_output_tokens: 1_000,
    };
    let body = sent(Config { effort: "medium".to_owned(), ..config(&fake) }, &fake, &request).await;
    let expected = concat!(
        r#"{"model":"claude-opus-5","max_tokens":1000,"system":[{"type":"text","text":"Be <brief>."}],"#,
        r#""output_config":{"effort":"medium"},"tool_choice":{"type":"auto","disable_parallel_tool_use":true},"#,
        r#""tools":[{"name":"read","description":"Reads.","input_schema":{"type":"object","properties":{"n":{"type":"number","minimum":1e300}}}}],"#,
        r#""messages":[{"role":"user","content":[{"type":"text","text":"go"}]},"#,
        r#"{"role":"assistant","content":[{"type":"text","text":"reading"},{"type":"tool_use","id":"toolu_0","name":"read","input":{"n":12345678901234567890.10}}]},"#,
        r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_0","content":"no","is_error":true}]},"#,
        r#"{"role":"assistant","content":[{"type":"text","text":"(nothing was said)"}]},"#,
        r#"{"role":"user","content":[{"type":"text","text":"(nothing was said)"}]}]}"#,
    );
    assert_eq!(body, expected);
    let asked = &fake.asked()[0];
    assert_eq!(asked.line, "POST /v1/messages HTTP/1.1");
    assert_eq!(
        (asked.headers["x-api-key"].as_str(), asked.headers["anthropic-version"].as_str()),
        (KEY, "2023-06-01")
    );
    assert!(!asked.headers.contains_key("authorization"));
}

#[tokio::test]
async fn a_request_that_says_nothing_more_has_the_usual_cap() {
    let fake = Fake::start([Act::ok(ANSWER)]).await;
    let body = sent(config(&fake), &fake, &saying("hi")).await;
    let expected = r#"{"model":"claude-opus-5","max_tokens":4096,"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}]}"#;
    assert_eq!(body, expected);
}

#[tokio::test]
async fn a_call_without_arguments_is_sent_as_an_empty_object() {
    let fake = Fake::start([Act::ok(ANSWER)]).await;
    let mut request = saying("hi");
    let content = vec![Block { input: None, ..Block::tool_use("t", "read", Json::empty_object()) }];
    request.messages.push(Message { role: Role::Assistant, content });
    let body = sent(config(&fake), &fake, &request).await;
    assert!(body.contains(r#"{"type":"tool_use","id":"t","name":"read","input":{}}"#), "{body}");
}

#[tokio::test]
async fn an_answer_keeps_its_calls_byte_for_byte() {
    let response = answered(ANSWER).await.unwrap();
    assert_eq!((response.text.as_str(), response.stop_reason.as_str()), ("Reading.\nNow.", "tool_use"));
    let usage = Usage { input_tokens: 140, output_tokens: 30, cached_input_tokens: 20 };
    assert_eq!((response.usage, response.raw), (usage, Some(Json::trusted(ANSWER))));
    let call = &response.tool_uses[0];
    assert_eq!((call.id.as_str(), call.name.as_str()), ("toolu_1", "read"));
    assert_eq!(call.args.as_str(), r#"{"n": 1.50, "big": 123456789012345678901234567890}"#);
}

#[tokio::test]
async fn a_providers_own_turn_goes_back_byte_for_byte() {
    let fake = Fake::start([Act::ok(ANSWER), Act::ok(ANSWER)]).await;
    for kind in [RAW_ASSISTANT_BLOCK, "casework.raw_assistant"] {
        let configured = if kind == RAW_ASSISTANT_BLOCK { "" } else { kind };
        let config = Config { raw_assistant_block: configured.to_owned(), ..config(&fake) };
        assert_eq!(Anthropic::new(config.clone()).unwrap().raw_assistant_block(), kind);
        let raw = Block { kind: kind.to_owned(), text: ANSWER.to_owned(), ..Block::default() };
        let mut request = saying("go");
        request.messages.push(Message { role: Role::Assistant, content: vec![raw] });
        let body = sent(config, &fake, &request).await;
        let content = concat!(
            r#"{"role":"assistant","content":[{"type":"thinking","thinking":"consider","signature":"sig_abc"},"#,
            r#"{"type":"text","text":"Reading."},{"type":"text","text":""},{"type":"text","text":"Now."},"#,
            r#"{"type":"tool_use","id":"toolu_1","name":"read","input":{"n":1.50,"big":123456789012345678901234567890}}]}"#,
        );
        assert!(body.contains(content), "{body}");
    }
}

#[tokio::test]
async fn a_block_that_cannot_be_sent_is_refused_and_nothing_is() {
    let fake = Fake::start([]).await;
    let block =
        |kind: &str, text: &str| Block { kind: kind.to_owned(), text: text.to_owned(), ..Block::default() };
    let raw = |text: &str| vec![block(RAW_ASSISTANT_BLOCK, text)];
    for (role, content, told) in [
        (Role::Assistant, vec![block("casework.raw_assistant", ANSWER)], "\"casework.raw_assistant\""),
        (Role::User, raw(ANSWER), "\"anthropic.raw_assistant\""),
        (Role::Assistant, [raw(ANSWER), vec![Block::text("and")]].concat(), "\"anthropic.raw_assistant\""),
        (Role::Assistant, raw("{"), "a raw assistant turn is no message"),
        (Role::Assistant, raw("{}"), "a raw assistant turn is no message"),
        (Role::Assistant, raw(r#"{"content":"text"}"#), "a raw assistant turn is no message"),
        (Role::Assistant, raw(r#"{"content":[]}"#), "its content is empty"),
    ] {
        let request = ModelRequest { messages: vec![Message { role, content }], ..ModelRequest::default() };
        let error = Anthropic::new(config(&fake)).unwrap().generate(&request).await.unwrap_err();
        assert!(matches!(&error, ModelError::Permanent { why } if why.contains(told)), "{told}: {error:?}");
    }
    assert!(fake.asked().is_empty());
}

#[tokio::test]
async fn strict_mode_sends_the_reduced_schema_and_no_other() {
    let schema = r#"{"properties":{"n":{"type":"integer","minimum":1,"enum":[1,2.50]}},"required":["n"]}"#;
    let request = ModelRequest { tools: vec![tool(schema)], ..saying("go") };
    let fake = Fake::start([Act::ok(ANSWER), Act::ok(ANSWER)]).await;
    let body = sent(Config { strict: true, ..config(&fake) }, &fake, &request).await;
    let reduced = concat!(
        r#""input_schema":{"type":"object","properties":{"n":{"type":"integer","enum":[1,2.50]}},"#,
        r#""required":["n"],"additionalProperties":false},"strict":true}"#,
    );
    assert!(body.contains(reduced), "{body}");
    let body = sent(config(&fake), &fake, &request).await;
    let whole = r#""input_schema":{"type":"object","properties":{"n":{"type":"integer","minimum":1,"enum":[1,2.50]}},"required":["n"]}}]"#;
    assert!(body.contains(whole), "{body}");
}

#[tokio::test]
async fn a_schema_that_strict_mode_cannot_express_is_refused_and_nothing_is_sent() {
    let request = ModelRequest { tools: vec![tool(r#"{"oneOf":[]}"#)], ..saying("go") };
    let fake = Fake::start([Act::ok(ANSWER)]).await;
    let strict = Anthropic::new(Config { strict: true, ..config(&fake) }).unwrap();
    let error = strict.generate(&request).await.unwrap_err();
    let why = "anthropic: tool read: strict mode has no oneOf, and its schema has one at #".to_owned();
    assert_eq!(error, ModelError::Permanent { why });
    assert!(fake.asked().is_empty());
    // Without strict mode it goes as it is.
    assert!(sent(config(&fake), &fake, &request).await.contains(r#""oneOf":[]"#));
    let broken = ModelRequest { tools: vec![tool("true")], ..saying("go") };
    let error = Anthropic::new(config(&fake)).unwrap().generate(&broken).await.unwrap_err();
    assert!(matches!(error, ModelError::Permanent { .. }), "{error:?}");
}

#[tokio::test]
async fn a_reply_that_was_cut_off_or_refused_is_charged_and_calls_nothing() {
    for (reason, input, kept) in [
        ("end_turn", "{}", 1),
        ("tool_use", "{}", 1),
        ("pause_turn", "{}", 1),
        ("max_tokens", "{}", 0),
        ("max_tokens", r#""{\"n\":""#, 0),
        ("refusal", "{}", 0),
        ("model_context_window_exceeded", "{}", 0),
    ] {
        let body = format!(
            r#"{{"content":[{{"type":"tool_use","id":"t","name":"read","input":{input}}}],"stop_reason":"{reason}","usage":{{"input_tokens":70,"output_tokens":9}}}}"#
        );
        let response = answered(&body).await.unwrap();
        assert_eq!((response.stop_reason.as_str(), response.tool_uses.len()), (reason, kept));
        assert_eq!((response.usage.input_tokens, response.usage.output_tokens), (70, 9));
    }
}

#[tokio::test]
async fn an_answer_that_cannot_be_used_is_charged_what_it_reports() {
    let counts = r#""usage":{"input_tokens":3,"output_tokens":4}"#;
    let call =
        |input: &str| format!(r#"{{"content":[{{"type":"tool_use","name":"x","input":{input}}}],{counts}}}"#);
    for (body, input, told) in [
        (call("[1]"), 3, "anthropic: the arguments of the call of x are no JSON object: [1]"),
        (call("\"{}\""), 3, "anthropic: the arguments of the call of x are no JSON object: \"{}\""),
        (format!(r#"{{"content":"text",{counts}}}"#), 3, "anthropic: the answer can't be read: "),
        (
            format!(r#"{{"error":{{"type":"odd","message":"with {KEY}"}},{counts}}}"#),
            3,
            "anthropic: odd: with [redacted]",
        ),
        ("<html>ok</html>".to_owned(), 0, "anthropic: the answer can't be read: "),
        (r#"{"id":"m","usage":{"input_tokens":10"#.to_owned(), 0, "anthropic: the answer can't be read: "),
    ] {
        let error = answered(&body).await.unwrap_err();
        assert!(
            matches!(&error, ModelError::Served { usage, .. } if usage.input_tokens == input),
            "{body}: {error:?}"
        );
        assert!(error.to_string().starts_with(told), "{error}");
    }
    let missing = answered(&call("null")).await.unwrap();
    assert_eq!(missing.tool_uses[0].args.as_str(), "{}");
    assert!(missing.tool_uses[0].id.starts_with("call_"), "an id that is missing is made up");
    let nonsense = answered(r#"{"content":[],"usage":{"input_tokens":-3}}"#).await.unwrap_err();
    let why = "anthropic: unusable usage: usage.input_tokens is -3, not a count".to_owned();
    assert_eq!(nonsense, ModelError::UnusableUsage { why });
}

#[tokio::test]
async fn failures_have_their_class_and_are_asked_about_once() {
    let page = "<html>bad gateway</html>";
    let answer = |status| Act::Answer(status, vec![("Retry-After", "2".to_owned())], page.into());
    let fake =
        Fake::start([answer(429), answer(529), answer(409), answer(400), answer(401), Act::cut_off("{")])
            .await;
    let model = Anthropic::new(config(&fake)).unwrap();
    let pause = Some(Duration::from_secs(2));
    for status in [429, 529, 409] {
        let why = format!("anthropic: {status}: {page}");
        assert_eq!(
            model.generate(&saying("hi")).await,
            Err(ModelError::Transient { why, retry_after: pause })
        );
    }
    for status in [400, 401] {
        let why = format!("anthropic: {status}: {page}");
        assert_eq!(model.generate(&saying("hi")).await, Err(ModelError::Permanent { why }));
    }
    assert!(matches!(model.generate(&saying("hi")).await, Err(ModelError::NoAnswer { .. })));
    assert_eq!(fake.asked().len(), 6);
}

#[tokio::test]
async fn a_cap_that_needs_streaming_is_refused_and_nothing_is_sent() {
    let fake = Fake::start([Act::ok(ANSWER)]).await;
    let capped = |model: &str, max_tokens| {
        let (model, name) = (model.to_owned(), "mine".to_owned());
        Anthropic::new(Config { model, name, max_tokens, ..config(&fake) })
    };
    assert!(capped("claude-opus-5", 21_333).is_ok());
    let error = capped("claude-opus-5", 21_334).unwrap_err();
    assert!(matches!(error, ConfigError::CapTooLarge { tokens: 21_334, tokens_max: 21_333, .. }), "{error}");
    assert!(capped("claude-opus-4-1-20250805", 8_192).is_ok());
    assert!(capped("claude-opus-4-1-20250805", 8_193).is_err());
    let request = ModelRequest { max_output_tokens: 32_000, ..saying("hi") };
    let error = Anthropic::new(config(&fake)).unwrap().generate(&request).await.unwrap_err();
    assert!(matches!(&error, ModelError::Permanent { why } if why.contains("32000")), "{error:?}");
    assert!(fake.asked().is_empty());
}

#[test]
fn an_adapter_needs_a_priced_model_or_a_name() {
    let base_url = "http://127.0.0.1:1".to_owned();
    let config = Config { base_url, api_key: KEY.into(), ..Config::default() };
    assert_eq!(Anthropic::new(config.clone()).unwrap_err(), ConfigError::NoModel { provider: "anthropic" });
    let model = Anthropic::new(Config { model: "claude-opus-5".to_owned(), ..config.clone() }).unwrap();
    assert_eq!(model.name(), "anthropic:claude-opus-5");
    let price = Price { input: 5_000_000, output: 25_000_000, cached_input: 500_000 };
    assert_eq!(price_for(&prices(), model.name()), Ok(price));
    let unpriced = Config { model: "claude-unheard-of".to_owned(), ..config };
    let missing = NoPrice { model: "anthropic:claude-unheard-of".to_owned() };
    assert_eq!(Anthropic::new(unpriced.clone()).unwrap_err(), ConfigError::NoPrice(missing));
    let named = Anthropic::new(Config { name: "mine".to_owned(), ..unpriced }).unwrap();
    assert_eq!(named.name(), "mine");
}

#[test]
fn a_key_is_needed_and_never_shown() {
    let base_url = "http://127.0.0.1:1".to_owned();
    let config =
        Config { model: "claude-opus-5".to_owned(), base_url, api_key: KEY.into(), ..Config::default() };
    let model = Anthropic::new(config.clone()).unwrap();
    let written = serde_json::to_string(&config).unwrap();
    for text in [&format!("{config:?}"), &format!("{config:#?}"), &format!("{model:?}"), &written] {
        assert!(text.contains("[redacted]") && !text.contains(KEY), "{text}");
    }
    let expected = r#"{"Model":"claude-opus-5","Name":"","APIKey":"[redacted]","BaseURL":"http://127.0.0.1:1","Effort":"","MaxTokens":0,"Strict":false,"RawAssistantBlock":""}"#;
    assert_eq!(written, expected);
    let elsewhere = Config { base_url: "http://gateway.example".to_owned(), ..config.clone() };
    let error = Anthropic::new(elsewhere).unwrap_err();
    assert!(
        matches!(error, ConfigError::KeyInTheClear { .. }) && !error.to_string().contains(KEY),
        "{error}"
    );
    // The environment of a test may hold a key of somebody's, which then is one.
    let keyless = Anthropic::new(Config { api_key: ApiKey::default(), ..config });
    match std::env::var("ANTHROPIC_API_KEY").ok().filter(|key| !key.is_empty()) {
        Some(_) => assert!(keyless.is_ok()),
        None => {
            let expected = ConfigError::NoKey { provider: "anthropic", variable: "ANTHROPIC_API_KEY" };
            assert_eq!(keyless.unwrap_err(), expected);
        }
    }
}
