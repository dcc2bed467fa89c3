//! A model behind an OpenAI-compatible chat-completions endpoint: a hosted one, or a server of your own that speaks so.
//!
//! Owns that format. A round trip and its failures are [`provider`]'s. It neither streams nor retries.
//! `OPENAI_API_KEY` is read for OpenAI's own address alone: the environment's key is OpenAI's, and no other server's.
//!
//! ```no_run
//! use holdpoint::model::{Model, ModelRequest, openai};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let model = openai::OpenAi::new(openai::Config {
//!     model: "qwen3".into(),
//!     base_url: "http://127.0.0.1:11434/v1".into(),
//!     ..Default::default()
//! })?;
//! let answer = model.generate(&ModelRequest { system: "Say hello.".into(), ..Default::default() }).await?;
//! println!("{}: {}", model.name(), answer.text);
//! # Ok(()) }
//! ```
//!
//! Calls in parallel are switched off in the request. A server may ignore that: every call is given then, the run executes
//! the first, and its reason names the others.

#[cfg(test)]
mod tests;

use async_trait::async_trait;
use holdpoint_core::json::{ArrayWriter, ObjectWriter};
use holdpoint_core::model::{Message, ModelRequest, ModelResponse, Role, Usage};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::provider::{
    self, ApiKey, ConfigError, Connection, Counts, Endpoint, UnusableUsage, usage_count, usage_of,
};
use super::{Answered, Called, Model, ModelError, whether_set};
use crate::render::stop;

const PROVIDER: &str = "openai";

const KEY_VARIABLE: &str = "OPENAI_API_KEY";

/// OpenAI's own address.
pub const DEFAULT_BASE_URL: &str = "https://api.openai.com/v1";

/// What an adapter is made from. Debug-printed, serialised or logged it shows no key.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Config {
    /// The model, as the server names it. Required.
    pub model: String,
    /// The name under which it is accounted for; empty for `openai:` and the model.
    pub name: String,
    /// What `/chat/completions` is appended to; empty for [`DEFAULT_BASE_URL`].
    #[serde(rename = "BaseURL")]
    pub base_url: String,
    /// The key. Empty for `OPENAI_API_KEY` at OpenAI's own address, and for none elsewhere. Over plain http it is sent to
    /// this machine alone.
    #[serde(rename = "APIKey")]
    pub api_key: ApiKey,
    /// A client of your own, see [`Connection::new`].
    #[serde(rename = "HTTPClient", serialize_with = "whether_set", skip_serializing_if = "Option::is_none")]
    pub client: Option<provider::reqwest::Client>,
}

/// One model on one endpoint. Debug-printed it shows no key.
#[derive(Debug)]
pub struct OpenAi {
    name: String,
    model: String,
    connection: Connection,
}

impl OpenAi {
    /// Makes an adapter. Nothing is sent yet.
    ///
    /// # Errors
    /// When no model is named, the address is none, or a key would leave this machine over plain http.
    pub fn new(config: Config) -> Result<OpenAi, ConfigError> {
        let name = super::named(PROVIDER, config.name, &config.model)?;
        let (base, key) = base_and_key(&config.base_url, config.api_key, KEY_VARIABLE);
        let endpoint = Endpoint::check(PROVIDER, &base, !key.is_empty())?;
        let bearer = key.header(PROVIDER, "Bearer ")?;
        let keyless = key.is_empty();
        let connection = Connection::new(PROVIDER, endpoint, key, config.client)?;
        let connection = if keyless { connection } else { connection.with_header("authorization", bearer) };
        Ok(OpenAi { name, model: config.model, connection })
    }

    fn body(&self, request: &ModelRequest) -> Result<String, ModelError> {
        let mut unsupported = None;
        let mut w = ObjectWriter::plain();
        w.str("model", &self.model);
        w.array("messages", |messages| unsupported = write_messages(messages, request).err());
        if let Some(kind) = unsupported {
            return Err(super::unsupported_block(PROVIDER, &kind));
        }
        super::write_functions(&mut w, request);
        if !request.tools.is_empty() {
            // A step runs one call: others are better not asked for than left out afterwards.
            w.str("tool_choice", "auto").bool("parallel_tool_calls", false);
        }
        w.int("temperature", 0);
        if request.max_output_tokens > 0 {
            w.int("max_tokens", request.max_output_tokens);
        }
        Ok(w.finish())
    }
}

/// The address, and the key that goes there: one that is given, or, where the address is OpenAI's, the one in `variable`.
fn base_and_key(configured: &str, key: ApiKey, variable: &str) -> (String, ApiKey) {
    let base = configured.trim_end_matches('/');
    let base = if base.is_empty() { DEFAULT_BASE_URL } else { base };
    let key = if base == DEFAULT_BASE_URL { key.or_from(variable) } else { key };
    (base.to_owned(), key)
}

fn write_messages(messages: &mut ArrayWriter, request: &ModelRequest) -> Result<(), String> {
    if !request.system.is_empty() {
        messages.object(|w| {
            w.str("role", "system").str("content", &request.system);
        });
    }
    request.messages.iter().try_for_each(|message| write_message(messages, message))
}

/// A message of the model's is one, with its calls; of a user's, the text comes first and each result of a tool is a
/// message of its own behind it. The content is written also when it is empty: a message without it is refused.
fn write_message(messages: &mut ArrayWriter, message: &Message) -> Result<(), String> {
    let parts = super::Parts::of(message)?;
    if message.role == Role::Assistant || !parts.text.is_empty() {
        messages.object(|w| {
            w.str("role", message.role.as_str()).str("content", &parts.text);
            if message.role == Role::Assistant && !parts.calls.is_empty() {
                w.array("tool_calls", |calls| {
                    for call in &parts.calls {
                        calls.object(|w| {
                            w.str("id", &call.tool_use_id).str("type", "function");
                            w.object("function", |w| {
                                // JSON inside a string, in both directions.
                                w.str("name", &call.name).str("arguments", super::input(call));
                            });
                        });
                    }
                });
            }
        });
    }
    for result in parts.results {
        messages.object(|w| {
            w.str("role", "tool").str("content", &result.content).str("tool_call_id", &result.tool_use_id);
        });
    }
    Ok(())
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Reported<'a> {
    #[serde(borrow)]
    usage: Option<Tokens<'a>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Tokens<'a> {
    #[serde(borrow)]
    prompt_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    completion_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    prompt_tokens_details: Option<Details<'a>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Details<'a> {
    #[serde(borrow)]
    cached_tokens: Option<&'a RawValue>,
}

impl<'a> Counts<'a> for Reported<'a> {
    fn usage(&self) -> Result<Usage, UnusableUsage> {
        let Some(tokens) = &self.usage else { return Ok(Usage::default()) };
        let cached = tokens.prompt_tokens_details.as_ref().and_then(|details| details.cached_tokens);
        usage_of(
            usage_count("usage.prompt_tokens", tokens.prompt_tokens.map(RawValue::get))?,
            usage_count("usage.completion_tokens", tokens.completion_tokens.map(RawValue::get))?,
            usage_count("usage.prompt_tokens_details.cached_tokens", cached.map(RawValue::get))?,
        )
    }
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    choices: Option<Vec<Choice>>,
    #[serde(default)]
    error: Option<Refusal>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Refusal {
    r#type: Option<String>,
    message: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Choice {
    message: Option<Said>,
    finish_reason: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Said {
    content: Option<String>,
    tool_calls: Option<Vec<Call>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Call {
    id: Option<String>,
    function: Function,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Function {
    name: Option<String>,
    arguments: Option<String>,
}

/// A reason of the server's own is passed on: who reads the record should see what it said.
fn stop_reason(finish: String, calls: bool) -> String {
    match finish.as_str() {
        "tool_calls" => stop::TOOL_USE.to_owned(),
        "stop" => stop::END_TURN.to_owned(),
        "length" => stop::MAX_TOKENS.to_owned(),
        "content_filter" => stop::REFUSAL.to_owned(),
        // Some servers give a call and no reason, or one of their own.
        _ if calls => stop::TOOL_USE.to_owned(),
        "" => stop::END_TURN.to_owned(),
        _ => finish,
    }
}

#[async_trait]
impl Model for OpenAi {
    fn name(&self) -> &str {
        &self.name
    }

    async fn generate(&self, request: &ModelRequest) -> Result<ModelResponse, ModelError> {
        let text = self.connection.post("/chat/completions", self.body(request)?).await?;
        let usage = provider::usage_in::<Reported<'_>>(PROVIDER, &text)?;
        let answer: Answer = provider::decoded(PROVIDER, usage, &text)?;
        if let Some(error) = answer.error {
            let shown = |text: Option<String>| {
                let text = self.connection.redact(&text.unwrap_or_default());
                provider::excerpt(&text, provider::ECHO_BYTES_MAX)
            };
            let why = format!("{}: {}", shown(error.r#type), shown(error.message));
            return Err(provider::served(PROVIDER, usage, why));
        }
        let choice = answer.choices.unwrap_or_default().into_iter().next();
        let choice = choice.ok_or_else(|| provider::served(PROVIDER, usage, "the answer holds no choice"))?;
        let said = choice.message.unwrap_or_default();
        let called = |call: Call| Called {
            id: call.id,
            name: call.function.name,
            args: call.function.arguments.unwrap_or_default(),
        };
        let calls: Vec<Called> = said.tool_calls.unwrap_or_default().into_iter().map(called).collect();
        let stop_reason = stop_reason(choice.finish_reason.unwrap_or_default(), !calls.is_empty());
        let said = said.content.unwrap_or_default();
        super::response(Answered { provider: PROVIDER, text: said, calls, stop_reason, usage, raw: text })
    }
}
