//! Models that need no provider: a script for tests, and recordings of a real model served again.
//!
//! Owns the replay key and the files of recordings, which are the reference's (agentrt's) byte for byte: either program
//! serves what the other recorded. Never reaches a provider itself; a [`Recorder`] wraps the model that does. Agents and
//! tests use these wherever they would use a provider's adapter.
//!
//! ```
//! use std::sync::Arc;
//! use holdpoint::model::{Model, ModelRequest, ModelResponse};
//! use holdpoint::replay::{Recorder, Replayer, Scripted};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let folder = folder.path().join("recordings");
//! let answer = ModelResponse { text: "42".into(), stop_reason: "end_turn".into(), ..Default::default() };
//! let request = ModelRequest { system: "Be brief.".into(), ..Default::default() };
//!
//! // Once, with the real model; here a script stands in for it.
//! let model = Arc::new(Scripted::new([answer.clone()]).named("ollama:qwen3"));
//! Recorder::new(model, &folder).generate(&request).await?;
//!
//! // From then on, without it.
//! let replayed = Replayer::new("ollama:qwen3", &folder).generate(&request).await?;
//! assert_eq!(replayed, answer);
//! # Ok(()) }
//! ```
//!
//! A recording holds the whole conversation, which may be confidential: the folder is made for its owner alone, and so
//! are the files.

mod files;
mod recorder;
mod replayer;
mod scripted;
#[cfg(test)]
mod tests;

use holdpoint_core::hash::content_hash_of;
use holdpoint_core::json::ObjectWriter;
use holdpoint_core::model::ModelRequest;

pub use recorder::Recorder;
pub use replayer::{ReplayError, Replayer};
pub use scripted::Scripted;

/// Gives the key under which an exchange with `model` is recorded: the lowercase hex SHA-256 of the canonical JSON of
/// `{"model": ..., "request": ...}`.
///
/// Numbers count by their text, so `1` and `1.0` are two requests, and so are two integers that a float can't tell apart.
pub fn key(model: &str, request: &ModelRequest) -> String {
    let mut w = ObjectWriter::new();
    w.str("model", model).object("request", |w| request.write(w));
    content_hash_of(&w.finish())
}
