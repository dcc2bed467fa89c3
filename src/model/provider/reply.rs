//! What of an answer is believed: its usage, and the arguments of its calls.
//!
//! Owns the rules for both. Never decides what to do with an answer.

use std::fmt::Display;

use holdpoint_actors::clock::wall;
use holdpoint_core::json::Json;
use holdpoint_core::model::Usage;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{ECHO_BYTES_MAX, ModelError};

/// How much of a count that is none an error repeats, in bytes.
const COUNT_BYTES_MAX: usize = 64;

/// A usage that can't be charged. Whoever reports nonsense about the bill is not believed, and is charged an estimate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unusable usage: {0}")]
pub struct UnusableUsage(pub String);

/// Reads one count of tokens as it stands in an answer; absent and `null` are zero.
///
/// # Errors
/// When it is anything but a whole number, not below zero, that fits: no fraction, no exponent, no text.
pub fn usage_count(field: &str, text: Option<&str>) -> Result<i64, UnusableUsage> {
    let text = text.map_or("", str::trim);
    if text.is_empty() || text == "null" {
        return Ok(0);
    }
    let count = text.parse::<i64>().ok().filter(|count| *count >= 0 && !text.starts_with('+'));
    count.ok_or_else(|| UnusableUsage(format!("{field} is {}, not a count", excerpt(text, COUNT_BYTES_MAX))))
}

/// Gives the usage of three counts.
///
/// # Errors
/// When one is below zero, or the cache gave more than was read.
pub fn usage_of(input: i64, output: i64, cached_input: i64) -> Result<Usage, UnusableUsage> {
    let usage = Usage { input_tokens: input, output_tokens: output, cached_input_tokens: cached_input };
    match usage {
        Usage { input_tokens: ..0, .. } => Err(UnusableUsage(format!("input tokens {input}"))),
        Usage { output_tokens: ..0, .. } => Err(UnusableUsage(format!("output tokens {output}"))),
        Usage { cached_input_tokens: ..0, .. } => {
            Err(UnusableUsage(format!("cached input tokens {cached_input}")))
        }
        _ if cached_input > input => {
            Err(UnusableUsage(format!("cached input tokens {cached_input} exceed input tokens {input}")))
        }
        _ => Ok(usage),
    }
}

/// The members of an answer that hold its usage, with each count as it was written.
pub trait Counts<'a>: Deserialize<'a> + Default {
    /// The usage that they add up to.
    ///
    /// # Errors
    /// When it can't be believed.
    fn usage(&self) -> Result<Usage, UnusableUsage>;
}

/// An answer that was served and can't be used.
pub fn served(provider: &str, usage: Usage, why: impl Display) -> ModelError {
    ModelError::Served { usage, why: format!("{provider}: {why}") }
}

/// Reads the usage of an answer, first and on its own, so that it is charged also when the rest can't be used. An answer
/// that is no JSON reports none.
///
/// # Errors
/// [`ModelError::UnusableUsage`] when it can't be believed.
pub fn usage_in<'a, C: Counts<'a>>(provider: &str, answer: &'a str) -> Result<Usage, ModelError> {
    let unusable = |why: UnusableUsage| ModelError::UnusableUsage { why: format!("{provider}: {why}") };
    let counts = match serde_json::from_str::<C>(answer) {
        Ok(counts) => counts,
        // It is JSON, and says its usage twice or as something that holds no counts.
        Err(error) if error.is_data() && answer.trim_start().starts_with('{') => {
            return Err(unusable(UnusableUsage(excerpt(&error.to_string(), ECHO_BYTES_MAX))));
        }
        Err(_) => C::default(),
    };
    counts.usage().map_err(unusable)
}

/// Reads an answer whose usage is known.
///
/// # Errors
/// [`ModelError::Served`] with that usage.
pub fn decoded<'a, T: Deserialize<'a>>(
    provider: &str,
    usage: Usage,
    answer: &'a str,
) -> Result<T, ModelError> {
    serde_json::from_str(answer).map_err(|error| {
        let why = excerpt(&error.to_string(), ECHO_BYTES_MAX);
        served(provider, usage, format_args!("the answer can't be read: {why}"))
    })
}

/// The arguments of a call of `tool`, byte for byte: an object, and `{}` when there are none.
///
/// # Errors
/// [`ModelError::Served`] when they are anything else.
pub fn arguments(provider: &str, usage: Usage, tool: &str, text: &str) -> Result<Json, ModelError> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(Json::empty_object());
    }
    if text.starts_with('{') && serde_json::from_str::<&RawValue>(text).is_ok() {
        return Ok(Json::trusted(text));
    }
    let (tool, text) = (excerpt(tool, ECHO_BYTES_MAX), excerpt(text, ECHO_BYTES_MAX));
    Err(served(
        provider,
        usage,
        format_args!("the arguments of the call of {tool} are no JSON object: {text}"),
    ))
}

/// Names the `index`th call of an answer whose provider gives no id.
pub fn synthesize_tool_use_id(index: usize) -> String {
    format!("call_{}_{index}", wall().as_nanos())
}

/// The first `bytes_max` bytes of `text` at most, without splitting a character, and the mark of a cut behind them.
pub fn excerpt(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(bytes_max)])
}
