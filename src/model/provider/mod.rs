//! What every provider's adapter shares, and what an adapter of your own can use too.
//!
//! Owns one round trip ([`Connection`]), what its failures mean for the books, where a key may go, and which reported
//! usage is believed. Knows no provider's format, never retries, and never prints a key. The adapters call it.
//!
//! # What a failure means
//!
//! | what happened | [`ModelError`] |
//! |---|---|
//! | a timeout; the connection was lost after the request went out, before or inside the answer | `NoAnswer`: it may have been served and billed |
//! | no connection came about; status 408, 409, 425, 429, 500 and above; an answer that is no HTTP | `Transient`, with what `Retry-After` asks for |
//! | the host does not exist; its certificate does not hold; a redirect; an answer over 16 MiB; any other status | `Permanent` |
//! | an answer that was served and can't be used | `Served`, with the usage that it reports |
//! | a usage that can't be believed | `UnusableUsage` |
//!
//! Redirects are not followed: a key rides in a header, and whoever is pointed to would get it with the whole prompt.
//!
//! # An adapter of your own
//!
//! It writes its provider's request and reads its answer; what is between is here.
//!
//! ```
//! use holdpoint::gate::async_trait;
//! use holdpoint::model::provider::{
//!     self, ApiKey, ConfigError, Connection, Counts, Endpoint, UnusableUsage, usage_count, usage_of,
//! };
//! use holdpoint::model::{Model, ModelError, ModelRequest, ModelResponse, Usage};
//! use serde::Deserialize;
//! use serde_json::value::RawValue;
//!
//! struct House {
//!     connection: Connection,
//! }
//!
//! impl House {
//!     fn new(base: &str, key: ApiKey) -> Result<House, ConfigError> {
//!         // Refuses to send the key anywhere but over TLS or to this machine.
//!         let endpoint = Endpoint::check("house", base, !key.is_empty())?;
//!         let bearer = key.header("house", "Bearer ")?;
//!         let connection = Connection::new("house", endpoint, key, None)?.with_header("authorization", bearer);
//!         Ok(House { connection })
//!     }
//! }
//!
//! #[derive(Deserialize, Default)]
//! #[serde(default)]
//! struct Reported<'a> {
//!     #[serde(borrow)]
//!     read: Option<&'a RawValue>,
//!     #[serde(borrow)]
//!     written: Option<&'a RawValue>,
//! }
//!
//! impl<'a> Counts<'a> for Reported<'a> {
//!     fn usage(&self) -> Result<Usage, UnusableUsage> {
//!         let read = usage_count("read", self.read.map(RawValue::get))?;
//!         usage_of(read, usage_count("written", self.written.map(RawValue::get))?, 0)
//!     }
//! }
//!
//! #[derive(Deserialize)]
//! struct Answer {
//!     said: String,
//! }
//!
//! #[async_trait]
//! impl Model for House {
//!     fn name(&self) -> &str {
//!         "house:talker"
//!     }
//!
//!     async fn generate(&self, request: &ModelRequest) -> Result<ModelResponse, ModelError> {
//!         let text = self.connection.post("/talk", request.to_json()).await?;
//!         // The usage first: an answer that can't be read was billed all the same.
//!         let usage = provider::usage_in::<Reported<'_>>("house", &text)?;
//!         let answer: Answer = provider::decoded("house", usage, &text)?;
//!         let stop_reason = "end_turn".to_owned();
//!         Ok(ModelResponse { text: answer.said, stop_reason, usage, ..ModelResponse::default() })
//!     }
//! }
//!
//! let house = House::new("http://127.0.0.1:8080", "a key".into())?;
//! assert!(!format!("{:?}", house.connection).contains("a key"));
//! assert!(House::new("http://talker.example", "a key".into()).is_err());
//! # Ok::<(), ConfigError>(())
//! ```

mod classify;
mod connection;
mod endpoint;
mod key;
mod reply;
#[cfg(test)]
mod tests;

pub use reqwest;

use holdpoint_actors::model::ModelError;

use super::NoPrice;

pub use classify::{RETRY_AFTER_MAX, StatusError, is_transient, retry_after};
#[cfg(test)]
pub(super) use connection::clear_builder;
pub use connection::{BODY_BYTES_MAX, Connection, TIMEOUT, client_builder};
pub use endpoint::{Endpoint, is_loopback};
pub use key::ApiKey;
pub use reply::{
    Counts, UnusableUsage, arguments, decoded, excerpt, served, synthesize_tool_use_id, usage_count,
    usage_in, usage_of,
};

/// How much of a provider's or a model's text an error repeats, in bytes.
pub const ECHO_BYTES_MAX: usize = 512;

/// Why an adapter was not made. No message holds a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// No model is named.
    #[error("{provider}: name the model")]
    NoModel {
        /// The provider.
        provider: &'static str,
    },
    /// The address can't be used.
    #[error("{provider}: {base:?} is not the address of a server: {why}")]
    Address {
        /// The provider.
        provider: &'static str,
        /// The address.
        base: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The address holds a user name or a password.
    #[error("{provider}: the address of {host} holds user information: take it out, and set the key instead")]
    UserInformation {
        /// The provider.
        provider: &'static str,
        /// The host, without what stands before it.
        host: String,
    },
    /// A key would leave this machine unencrypted.
    #[error("{provider}: a key is not sent to {host} over plain http: use https, or localhost")]
    KeyInTheClear {
        /// The provider.
        provider: &'static str,
        /// The host.
        host: String,
    },
    /// There is no key, and the provider wants one.
    #[error("{provider}: no key: set it in the configuration or in {variable}")]
    NoKey {
        /// The provider.
        provider: &'static str,
        /// The environment variable that is read.
        variable: &'static str,
    },
    /// The key can't be sent in a header.
    #[error("{provider}: the key holds characters that can't stand in a header, such as a line break")]
    UnusableKey {
        /// The provider.
        provider: &'static str,
    },
    /// Nobody gave the model's price.
    #[error("{0}; or give the model a name of your own, and price that")]
    NoPrice(#[from] NoPrice),
    /// The cap on output is too large for an answer that is not streamed.
    #[error(
        "{provider}: a cap of {tokens} tokens is too large for {model} without streaming: {tokens_max} at most"
    )]
    CapTooLarge {
        /// The provider.
        provider: &'static str,
        /// The model.
        model: String,
        /// What was asked for.
        tokens: i64,
        /// The largest cap.
        tokens_max: i64,
    },
    /// The system's roots of trust can't be read, or a client can't be made.
    #[error("{provider}: no client can be made: {why}")]
    Client {
        /// The provider.
        provider: &'static str,
        /// Why.
        why: String,
    },
}
