//! A Claude model, through Anthropic's Messages API.
//!
//! Owns that format, what its caches cost, and its prices. A round trip and its failures are
//! [`provider`]'s. It neither streams nor retries, and reads nothing of the environment but
//! `ANTHROPIC_API_KEY`, and that only when no key is configured.
//!
//! ```no_run
//! use holdpoint::model::{Model, ModelRequest, anthropic};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let config = anthropic::Config { model: "claude-sonnet-5".into(), strict: true, ..Default::default() };
//! let model = anthropic::Anthropic::new(config)?;
//! let answer = model.generate(&ModelRequest { system: "Say hello.".into(), ..Default::default() }).await?;
//! println!("{}: {}, {} millionths of a dollar", model.name(), answer.text, anthropic::prices().cost(model.name(), &answer.usage));
//! # Ok(()) }
//! ```
//!
//! # Thinking that is signed
//!
//! The API wants a model's own thinking back as it was. An assistant's message that consists of one block of the kind
//! [`RAW_ASSISTANT_BLOCK`], with an answer's raw JSON as its text, is sent as the provider's own content, byte for byte.
//! [`Render::assistant`](crate::render::Render::assistant) is where an agent puts it.
//!
//! # What caches cost
//!
//! A [`Usage`](super::Usage) has no count of tokens that were written into a cache, so they are counted as input at the
//! multiple that they are billed at: 1.25 for five minutes, rounded up, and 2 for an hour. Cache reads are cached input.

mod answer;
mod prices;
mod request;
mod strict;
#[cfg(test)]
mod tests;

use async_trait::async_trait;
use serde::Serialize;

use super::provider::{self, ApiKey, ConfigError, Connection, Endpoint};
use super::{Model, ModelError, ModelRequest, ModelResponse, price_for, whether_set};

pub use prices::prices;
pub use strict::{StrictError, strict_schema};

const PROVIDER: &str = "anthropic";

/// Anthropic's own address.
pub const DEFAULT_BASE_URL: &str = "https://api.anthropic.com/";

/// The version of the API that requests name.
const API_VERSION: &str = "2023-06-01";

/// The cap on output, in tokens, when neither a request nor the configuration has one. The API wants a cap.
pub const DEFAULT_MAX_TOKENS: i64 = 4_096;

/// The kind of a block that carries a provider's message as it was.
pub const RAW_ASSISTANT_BLOCK: &str = "anthropic.raw_assistant";

/// The largest cap of an answer that is not streamed: at the 128,000 tokens an hour that are reckoned with, it takes the
/// ten minutes for which a connection without a sign of life can be relied on.
const UNSTREAMED_TOKENS_MAX: i64 = 128_000 / 6;

/// Models whose own limit without streaming is lower still, as Anthropic's libraries list them.
const UNSTREAMED_TOKENS: [(&str, i64); 4] = [
    ("claude-opus-4-0", 8_192),
    ("claude-opus-4-20250514", 8_192),
    ("claude-4-opus-20250514", 8_192),
    ("claude-opus-4-1-20250805", 8_192),
];

/// What an adapter is made from. Debug-printed, serialised or logged it shows no key.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Config {
    /// The model, by its id in the API. Required, and one of [`prices`] unless it has a name of yours.
    pub model: String,
    /// The name under which it is accounted for; empty for `anthropic:` and the model, which is how [`prices`] names it.
    /// A model with a name of yours is priced by you.
    pub name: String,
    /// The key; empty for `ANTHROPIC_API_KEY`. Over plain http it is sent to this machine alone.
    #[serde(rename = "APIKey")]
    pub api_key: ApiKey,
    /// The address that `/v1/messages` is appended to; empty for [`DEFAULT_BASE_URL`].
    #[serde(rename = "BaseURL")]
    pub base_url: String,
    /// How hard the model is to try, as the API names it; empty for its own choice.
    pub effort: String,
    /// The cap on output, in tokens, of requests that have none; zero for [`DEFAULT_MAX_TOKENS`].
    pub max_tokens: i64,
    /// Has the provider hold calls to their tools' schemas, reduced to what it can: see [`strict_schema`]. The runtime
    /// holds them to the whole schema in any case.
    pub strict: bool,
    /// The kind of a block that carries a provider's message as it was; empty for [`RAW_ASSISTANT_BLOCK`].
    pub raw_assistant_block: String,
    /// A client of your own, see [`Connection::new`].
    #[serde(rename = "HTTPClient", serialize_with = "whether_set", skip_serializing_if = "Option::is_none")]
    pub client: Option<provider::reqwest::Client>,
}

/// One Claude model. Debug-printed it shows no key.
#[derive(Debug)]
pub struct Anthropic {
    name: String,
    model: String,
    effort: String,
    max_tokens: i64,
    strict: bool,
    raw_assistant_block: String,
    connection: Connection,
}

impl Anthropic {
    /// Makes an adapter. Nothing is sent yet.
    ///
    /// # Errors
    /// When no model is named, or one without a price and without a name of yours; when there is no key, or it would leave
    /// this machine over plain http; when the cap on output is too large for an answer that is not streamed.
    pub fn new(config: Config) -> Result<Anthropic, ConfigError> {
        let name = super::named(PROVIDER, config.name.clone(), &config.model)?;
        if config.name.is_empty() {
            price_for(&prices(), &name)?;
        }
        let max_tokens = if config.max_tokens > 0 { config.max_tokens } else { DEFAULT_MAX_TOKENS };
        check_cap(&config.model, max_tokens)?;
        let connection = connect(&config)?;
        let raw_assistant_block = match config.raw_assistant_block {
            kind if kind.is_empty() => RAW_ASSISTANT_BLOCK.to_owned(),
            kind => kind,
        };
        let (model, effort, strict) = (config.model, config.effort, config.strict);
        Ok(Anthropic { name, model, effort, max_tokens, strict, raw_assistant_block, connection })
    }

    /// The kind of a block that carries a provider's message as it was. Who renders such a turn needs it.
    pub fn raw_assistant_block(&self) -> &str {
        &self.raw_assistant_block
    }
}

fn connect(config: &Config) -> Result<Connection, ConfigError> {
    const KEY: &str = "ANTHROPIC_API_KEY";
    let key = config.api_key.clone().or_from(KEY);
    if key.is_empty() {
        return Err(ConfigError::NoKey { provider: PROVIDER, variable: KEY });
    }
    let base = if config.base_url.is_empty() { DEFAULT_BASE_URL } else { &config.base_url };
    let endpoint = Endpoint::check(PROVIDER, base, true)?;
    let header = key.header(PROVIDER, "")?;
    let version = provider::reqwest::header::HeaderValue::from_static(API_VERSION);
    let connection = Connection::new(PROVIDER, endpoint, key, config.client.clone())?;
    Ok(connection.with_header("x-api-key", header).with_header("anthropic-version", version))
}

fn check_cap(model: &str, tokens: i64) -> Result<(), ConfigError> {
    let own = UNSTREAMED_TOKENS.into_iter().find(|(listed, _)| *listed == model);
    let tokens_max = own.map_or(UNSTREAMED_TOKENS_MAX, |(_, tokens_max)| tokens_max);
    if tokens > tokens_max {
        return Err(ConfigError::CapTooLarge {
            provider: PROVIDER,
            model: model.to_owned(),
            tokens,
            tokens_max,
        });
    }
    Ok(())
}

#[async_trait]
impl Model for Anthropic {
    fn name(&self) -> &str {
        &self.name
    }

    async fn generate(&self, request: &ModelRequest) -> Result<ModelResponse, ModelError> {
        let text = self.connection.post("/v1/messages", self.body(request)?).await?;
        answer::response(text, |told| self.connection.redact(told))
    }
}
