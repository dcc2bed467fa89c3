//! The decoders, each with what it starts from and what must hold of it.
//!
//! Owns the list. The canonical form is compared with the checker's own, which was written from the specification and
//! shares nothing with the product's.

use std::sync::Arc;

use async_trait::async_trait;
use holdpoint::proxy::config::Config;
use holdpoint::proxy::front::{self, CallAnswer, Calls, HostCall, ListError};
use holdpoint_core::decision::Decision;
use holdpoint_core::duration::{format_go_duration, parse_go_duration};
use holdpoint_core::json;
use holdpoint_core::pin::{manifest, rules};
use holdpoint_core::policy::PolicyDecision;
use holdpoint_core::run::Limits;
use holdpoint_core::sanitize::{escape_json, sanitize, sanitize_bytes, truncate};
use holdpoint_core::schema::{cost, object::ObjectSchema, self_contained};
use holdpoint_core::step::Observation;
use holdpoint_core::time::UnixNanos;
use serde_json::Value;

use super::{Target, rows};
use crate::canon;

const JSON: &[&str] = &[
    r#"{}"#,
    r#"{"b":2,"a":[1,2.50,-0.0,1e5,2E-5,{"z":null,"y":true}]}"#,
    r#"{"text":"<script>&amp;\u2028\u00e9\ud83d\ude00\\\"\/\b\f\n\r\t"}"#,
    r#"{"a":1,"a":2}"#,
    r#"{"a":1,"\u0061":2}"#,
    r#"["\ud800"]"#,
    r#"{"n":123456789012345678901234567890,"m":1e308,"k":1e309}"#,
    r#" [ "" , [ [ ] ] , { "" : { } } ] "#,
    r#"{"amount":40,"ref":"p1","nested":{"deep":[[[[[[1]]]]]]}}"#,
    "nul",
    "\u{feff}{}",
];

const FRAMES: &[&str] = &[
    r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"paid"}],"isError":false}}"#,
    r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}"#,
    r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"a","progress":0.5}}"#,
    r#"{"jsonrpc":"2.0","id":"x","method":"ping"}"#,
    r#"[{"jsonrpc":"2.0","id":2,"result":{}},{"jsonrpc":"2.0","method":"x"}]"#,
    r#"{"id":1,"id":2,"result":{},"result":[]}"#,
    r#"{"jsonrpc":"2.0","id":18446744073709551616,"result":{}}"#,
    "",
    "]",
];

const HOST: &[&str] = &[
    r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"h","version":"1"}}}"#,
    r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
    r#"{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{}}"#,
    r#"{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"pay","arguments":{"a":1,"a":2},"_meta":{"progressToken":7}}}"#,
    r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":3}}"#,
    r#"[{"jsonrpc":"2.0","id":4,"method":"ping"}]"#,
    r#"{"id":null,"method":5}"#,
];

const MANIFESTS: &[&str] = &[
    r#"{"server":"bank","pinned_at":"2026-10-01T09:00:00Z","tools":{"pay":{"name":"pay","description":"Pay somebody.","input_schema":{"type":"object","properties":{"amount":{"type":"number"}}},"hash":"00"}}}"#,
    r#"{"server":"bank","pinned_at":"0001-01-01T00:00:00Z","tools":null}"#,
    r#"{"tools":{"a":{"name":"b"}}}"#,
];

const RULES: &[&str] = &[
    r#"{"pay":{"side_effect":"remote_mutation","outcome":"require_approval"},"read":{"side_effect":"read_only"}}"#,
    r#"{"pay":{"side_effect":"destructive","fixed":{"account":"main"},"timeout":"30s","repeat_window":"1h"}}"#,
    r#"{"pay":null,"x":{"side_effect":"nothing"}}"#,
];

const CONFIGS: &[&str] = &[
    r#"{"database":"gate.db","session":"s","hold":"0s","lease_ttl":"3s","servers":[{"name":"bank","command":["bank","--serve"],"env":["A=b"],"default_timeout":"20s","manifest":"bank.manifest.json","rules":{"pay":{"side_effect":"remote_mutation","outcome":"allow"}}}]}"#,
    r#"{"database":"","servers":[]}"#,
    r#"{"servers":[{"name":"../x","command":[]}]}"#,
];

const SCHEMAS: &[&str] = &[
    r##"{"type":"object","properties":{"a":{"$ref":"#/$defs/d"}},"$defs":{"d":{"anyOf":[{"$ref":"#/$defs/e"},{"$ref":"#/$defs/e"}]},"e":{"type":"string","pattern":"^(a+)+$"}}}"##,
    r#"{"type":"object","properties":{"to":{"type":"string","enum":["x","y"]},"n":{"type":"integer","maximum":9223372036854775808}},"required":["to"],"additionalProperties":false}"#,
    r##"{"type":"object","$ref":"https://elsewhere.example/schema","allOf":[{"$ref":"#"}]}"##,
];

const ROWS: &[&str] = &[
    r#"{"kind":"tool_call","tool":"pay","args":{"amount":40},"origin":{"kind":"model"}}"#,
    r#"{"kind":"complete","result":{"ok":true}}"#,
    r#"{"kind":"tool_result","content":{"paid":true},"summary":"paid"}"#,
    r#"{"outcome":"require_approval","kind":"release","reason":"r","capability":{},"presentation":{}}"#,
    r#"{"max_steps":10,"approval_ttl":1800000000000,"grant_ttl":0}"#,
    r#"2026-10-01T09:00:00.123456789Z"#,
    r#"1h30m0.5s"#,
    r#"-9223372036854775808ns"#,
];

const TEXTS: &[&str] = &[
    "plain text",
    "\u{1b}[2J\u{1b}]0;title\u{7} then \u{202e}desrever\u{202c} and \u{200b}nothing",
    "e\u{301}\u{301}\u{301}\u{301} z\u{335}\u{336}",
    "\r\nline\ttab \u{85} \u{2028}",
    "\u{feff}\u{fff9}\u{e0001}\u{fdd0}",
];

/// All of them.
pub(crate) fn all() -> Vec<Target> {
    let target = |name, corpus, decode| Target { name, corpus, decode };
    vec![
        target("json_boundary", JSON, boundary),
        target("canonical_form", JSON, canonical_form),
        target("server_frames", FRAMES, server_frames),
        target("host_frames", HOST, host_frames),
        target("manifests", MANIFESTS, manifests),
        target("rules", RULES, rules_of_tools),
        target("configuration", CONFIGS, configuration),
        target("schemas", SCHEMAS, schemas),
        target("stored_values", ROWS, stored_values),
        target("stored_rows", ROWS, rows::stored_rows),
        target("sanitize", TEXTS, sanitized),
    ]
}

fn boundary(input: &[u8]) -> Result<(), String> {
    let Ok(text) = json::check_text(input) else { return Ok(()) };
    // Whoever comes after the boundary must be able to read it.
    if !json::is_deeper_than(input, 100) {
        serde_json::from_str::<Value>(text).map_err(|error| format!("passed, and is no JSON: {error}"))?;
    }
    let compact = json::compact(text);
    json::check(compact.as_bytes()).map_err(|error| format!("its compact form does not pass: {error}"))?;
    json::policy_form(text).map_err(|error| format!("it has no policy form: {error}")).map(drop)
}

fn canonical_form(input: &[u8]) -> Result<(), String> {
    let Ok(text) = std::str::from_utf8(input) else { return Ok(()) };
    let Ok(ours) = json::canonical(text) else { return Ok(()) };
    let theirs = canon::canonical_text(text);
    if theirs.as_deref() != Some(&*ours) {
        return Err(format!("it is {ours:?} here and {theirs:?} to the checker"));
    }
    match json::canonical(&ours) {
        Ok(again) if again == ours => Ok(()),
        other => Err(format!("its canonical form {ours:?} has the canonical form {other:?}")),
    }
}

fn server_frames(input: &[u8]) -> Result<(), String> {
    // How many messages a line holds, or why none: each is an answer.
    drop(holdpoint_actors::connection::messages_in(input));
    Ok(())
}

/// A host's side with nothing behind it.
#[derive(Debug)]
struct Nothing;

#[async_trait]
impl Calls for Nothing {
    async fn list(&self) -> Result<Vec<String>, ListError> {
        Ok(vec![r#"{"name":"pay","inputSchema":{"type":"object"}}"#.to_owned()])
    }

    async fn call(&self, call: HostCall) -> CallAnswer {
        if call.name == "pay" { CallAnswer::Result("{}".to_owned()) } else { CallAnswer::NoSuchTool }
    }

    fn stop(&self) {}
}

/// Every line that comes out is protocol, whatever went in, and the session ends when its input does.
fn host_frames(input: &[u8]) -> Result<(), String> {
    let output = Kept::default();
    let runtime = crate::one_thread()?;
    let (_stop, stopped) = tokio::sync::watch::channel(false);
    let whole = [HOST[0].as_bytes(), b"\n", input, b"\n"].concat();
    let served = runtime.block_on(front::serve(&*whole, output.clone(), Arc::new(Nothing), stopped));
    served.map_err(|error| error.to_string())?;
    let written = output.bytes();
    for line in written.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let message: Value =
            serde_json::from_slice(line).map_err(|error| format!("it wrote no JSON: {error}"))?;
        let messages = message.as_array().cloned().unwrap_or_else(|| vec![message]);
        if messages.iter().any(|message| message["jsonrpc"] != "2.0") {
            return Err(format!("it wrote {:?}", String::from_utf8_lossy(line)));
        }
    }
    Ok(())
}

/// What was written, kept.
#[derive(Debug, Clone, Default)]
struct Kept(Arc<std::sync::Mutex<Vec<u8>>>);

impl Kept {
    fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }
}

impl tokio::io::AsyncWrite for Kept {
    fn poll_write(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        bytes: &[u8],
    ) -> std::task::Poll<std::io::Result<usize>> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).extend_from_slice(bytes);
        std::task::Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn poll_shutdown(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::task::Poll::Ready(Ok(()))
    }
}

fn manifests(input: &[u8]) -> Result<(), String> {
    let Ok(read) = manifest::Manifest::parse(input) else { return Ok(()) };
    let text = read.to_text();
    let again = manifest::Manifest::parse(text.as_bytes())
        .map_err(|error| format!("what it writes can't be read: {error}: {text}"))?;
    if again.to_text() != text {
        return Err(format!("it is written as {text:?}, and that as {:?}", again.to_text()));
    }
    let changes = manifest::diff(&read, &again);
    if changes.is_empty() { Ok(()) } else { Err(format!("read again, it has changed: {changes:?}")) }
}

fn rules_of_tools(input: &[u8]) -> Result<(), String> {
    drop(rules::parse(input));
    Ok(())
}

fn configuration(input: &[u8]) -> Result<(), String> {
    drop(Config::parse(input));
    Ok(())
}

fn schemas(input: &[u8]) -> Result<(), String> {
    let Ok(text) = std::str::from_utf8(input) else { return Ok(()) };
    let Ok(canonical) = json::canonical(text) else { return Ok(()) };
    let Ok(schema) = ObjectSchema::read(&canonical) else { return Ok(()) };
    drop(self_contained::check(&schema));
    drop(cost::bound(&schema));
    Ok(())
}

fn stored_values(input: &[u8]) -> Result<(), String> {
    let text = String::from_utf8_lossy(input);
    drop(PolicyDecision::parse(&text));
    drop(Limits::parse(&text));
    if let Ok(decision) = Decision::parse(&text) {
        let stored = decision.to_json();
        Decision::parse(&stored).map_err(|error| format!("a decision is stored as {stored:?}: {error}"))?;
    }
    if let Ok(observation) = Observation::parse(&text) {
        let stored = observation.to_json();
        Observation::parse(&stored)
            .map_err(|error| format!("an observation is stored as {stored:?}: {error}"))?;
    }
    if let Ok(time) = UnixNanos::parse(&text)
        && UnixNanos::parse(&time.to_rfc3339()) != Ok(time)
    {
        return Err(format!("it is {time:?}, written as {}", time.to_rfc3339()));
    }
    if let Ok(duration) = parse_go_duration(&text)
        && parse_go_duration(&format_go_duration(duration)) != Ok(duration)
    {
        return Err(format!("it is {duration:?}, written as {}", format_go_duration(duration)));
    }
    Ok(())
}

fn sanitized(input: &[u8]) -> Result<(), String> {
    let text = String::from_utf8_lossy(input);
    for clean in [sanitize(&text), sanitize_bytes(input)] {
        // What moves a cursor, colours, reverses or hides.
        let acts = |c: char| {
            c.is_control()
                || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
        };
        if let Some(c) = clean.chars().find(|c| acts(*c)) {
            return Err(format!("{c:?} is left"));
        }
    }
    for bytes in [0, 1, 7, 40] {
        let short = truncate(&text, bytes);
        if short.len() > bytes.max(ELLIPSIS) && short.len() >= text.len() {
            return Err(format!("cut to {bytes} bytes, it has {}", short.len()));
        }
    }
    let Ok(value) = serde_json::from_str::<Value>(&text) else { return Ok(()) };
    match serde_json::from_str::<Value>(&escape_json(&text)) {
        Ok(escaped) if escaped == value => Ok(()),
        other => Err(format!("escaped, it reads as {other:?}")),
    }
}

/// What a cut leaves behind to say that it was one.
const ELLIPSIS: usize = 3;
