//! A model on an Ollama server, through its own chat interface.
//!
//! Owns Ollama's format. A round trip and its failures are [`provider`]'s. It neither streams nor
//! retries, and reads nothing of the environment but `OLLAMA_HOST`, and that only when no host is configured.
//!
//! ```no_run
//! use holdpoint::model::{Model, ModelRequest, ollama};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let model = ollama::Ollama::new(ollama::Config { model: "qwen3:30b-a3b".into(), ..Default::default() })?;
//! let answer = model.generate(&ModelRequest { system: "Say hello.".into(), ..Default::default() }).await?;
//! println!("{}: {}", model.name(), answer.text);
//! # Ok(()) }
//! ```
//!
//! What a local model costs is nothing; [`free`](super::free) lists its name so, which keeps free and unpriced apart.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

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

const PROVIDER: &str = "ollama";

/// Where a server listens when nothing else is said.
pub const DEFAULT_HOST: &str = "127.0.0.1:11434";

/// The context window that is asked for, in tokens. Ollama's own default is far below the conversation of an agent with
/// tools, and a server that silently drops the beginning of a prompt is worse than one that refuses it.
pub const DEFAULT_CONTEXT_TOKENS: i64 = 32_768;

/// What an adapter is made from.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Config {
    /// The model, as the server names it. Required.
    pub model: String,
    /// The name under which it is accounted for; empty for `ollama:` and the model.
    pub name: String,
    /// The server, with or without `http://`; empty for `OLLAMA_HOST`, and then [`DEFAULT_HOST`].
    pub host: String,
    /// Leaves the model's thinking on. Off unless said: models that call tools are steadier without.
    pub think: bool,
    /// The context window in tokens; zero for [`DEFAULT_CONTEXT_TOKENS`].
    #[serde(rename = "NumCtx")]
    pub context_tokens: i64,
    /// A client of your own, see [`Connection::new`].
    #[serde(rename = "HTTPClient", serialize_with = "whether_set", skip_serializing_if = "Option::is_none")]
    pub client: Option<provider::reqwest::Client>,
}

/// One model on one Ollama server.
#[derive(Debug)]
pub struct Ollama {
    name: String,
    model: String,
    think: bool,
    context_tokens: i64,
    connection: Connection,
}

/// The address of the server that a configured host stands for: the host, else `OLLAMA_HOST`, else [`DEFAULT_HOST`], with
/// `http://` where no scheme is given. What probes a server before a run asks here.
///
/// # Errors
/// When that is not the address of a server.
pub fn host(configured: &str) -> Result<String, ConfigError> {
    resolve(configured, std::env::var("OLLAMA_HOST").ok()).map(|endpoint| endpoint.base().to_owned())
}

fn resolve(configured: &str, environment: Option<String>) -> Result<Endpoint, ConfigError> {
    let from_environment = environment.unwrap_or_default();
    let given = [configured, &from_environment, DEFAULT_HOST].into_iter().find(|host| !host.is_empty());
    let host = given.unwrap_or(DEFAULT_HOST);
    let base = if host.contains("://") { host.to_owned() } else { format!("http://{host}") };
    Endpoint::check(PROVIDER, &base, false)
}

impl Ollama {
    /// Makes an adapter. Nothing is sent yet.
    ///
    /// # Errors
    /// When no model is named, or the host is not the address of a server.
    pub fn new(config: Config) -> Result<Ollama, ConfigError> {
        let name = super::named(PROVIDER, config.name, &config.model)?;
        let endpoint = resolve(&config.host, std::env::var("OLLAMA_HOST").ok())?;
        let connection = Connection::new(PROVIDER, endpoint, ApiKey::default(), config.client)?;
        let context_tokens =
            if config.context_tokens > 0 { config.context_tokens } else { DEFAULT_CONTEXT_TOKENS };
        Ok(Ollama { name, model: config.model, think: config.think, context_tokens, connection })
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
        w.bool("stream", false).bool("think", self.think);
        w.object("options", |options| {
            options.int("temperature", 0).int("num_ctx", self.context_tokens);
            if request.max_output_tokens > 0 {
                options.int("num_predict", request.max_output_tokens);
            }
        });
        Ok(w.finish())
    }
}

/// Writes the conversation. A message of the model's is one; of a user's, the text comes first and each result of a tool
/// is a message of its own behind it.
fn write_messages(messages: &mut ArrayWriter, request: &ModelRequest) -> Result<(), String> {
    if !request.system.is_empty() {
        messages.object(|w| {
            w.str("role", "system").str("content", &request.system);
        });
    }
    // A result names its tool here, and only the call that it answers says which that was.
    let mut tools: BTreeMap<&str, &str> = BTreeMap::new();
    for message in &request.messages {
        let calls = message.content.iter().filter(|block| block.kind == "tool_use");
        tools.extend(calls.map(|block| (block.tool_use_id.as_str(), block.name.as_str())));
        write_message(messages, message, &tools)?;
    }
    Ok(())
}

fn write_message(
    messages: &mut ArrayWriter,
    message: &Message,
    tools: &BTreeMap<&str, &str>,
) -> Result<(), String> {
    let parts = super::Parts::of(message)?;
    if message.role == Role::Assistant || !parts.text.is_empty() {
        messages.object(|w| {
            w.str("role", message.role.as_str()).str("content", &parts.text);
            if message.role == Role::Assistant && !parts.calls.is_empty() {
                w.array("tool_calls", |calls| {
                    for call in &parts.calls {
                        calls.object(|w| {
                            w.omit_empty_str("id", &call.tool_use_id);
                            w.object("function", |w| {
                                w.str("name", &call.name).raw("arguments", super::input(call));
                            });
                        });
                    }
                });
            }
        });
    }
    for result in parts.results {
        let known = tools.get(result.tool_use_id.as_str()).copied().unwrap_or_default();
        let tool = if result.name.is_empty() { known } else { &result.name };
        messages.object(|w| {
            w.str("role", "tool").str("content", &result.content).omit_empty_str("tool_name", tool);
        });
    }
    Ok(())
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Reported<'a> {
    #[serde(borrow)]
    prompt_eval_count: Option<&'a RawValue>,
    #[serde(borrow)]
    eval_count: Option<&'a RawValue>,
}

impl<'a> Counts<'a> for Reported<'a> {
    fn usage(&self) -> Result<Usage, UnusableUsage> {
        let input = usage_count("prompt_eval_count", self.prompt_eval_count.map(RawValue::get))?;
        let output = usage_count("eval_count", self.eval_count.map(RawValue::get))?;
        usage_of(input, output, 0)
    }
}

#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow, default)]
    message: Option<Said<'a>>,
    #[serde(default)]
    done_reason: Option<String>,
    #[serde(default)]
    error: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Said<'a> {
    content: Option<String>,
    #[serde(borrow)]
    tool_calls: Option<Vec<Call<'a>>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Call<'a> {
    id: Option<String>,
    #[serde(borrow)]
    function: Function<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Function<'a> {
    name: Option<String>,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
}

#[async_trait]
impl Model for Ollama {
    fn name(&self) -> &str {
        &self.name
    }

    async fn generate(&self, request: &ModelRequest) -> Result<ModelResponse, ModelError> {
        let text = self.connection.post("/api/chat", self.body(request)?).await?;
        let usage = provider::usage_in::<Reported<'_>>(PROVIDER, &text)?;
        let answer: Answer<'_> = provider::decoded(PROVIDER, usage, &text)?;
        if let Some(error) = answer.error.filter(|error| !error.is_empty()) {
            // The server took the request and refuses it, because of a context that it can't serve for one.
            let why = provider::excerpt(&error, provider::ECHO_BYTES_MAX);
            return Err(provider::served(PROVIDER, usage, why));
        }
        let said = answer.message.unwrap_or_default();
        let called = |call: Call<'_>| Called {
            id: call.id,
            name: call.function.name,
            args: call.function.arguments.map_or("", RawValue::get).to_owned(),
        };
        let calls: Vec<Called> = said.tool_calls.unwrap_or_default().into_iter().map(called).collect();
        let done = answer.done_reason.unwrap_or_default();
        let stop_reason = match done.as_str() {
            "length" => stop::MAX_TOKENS.to_owned(),
            _ if !calls.is_empty() => stop::TOOL_USE.to_owned(),
            "stop" | "" => stop::END_TURN.to_owned(),
            _ => done,
        };
        let said = said.content.unwrap_or_default();
        super::response(Answered { provider: PROVIDER, text: said, calls, stop_reason, usage, raw: text })
    }
}
