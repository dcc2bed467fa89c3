//! An answer of the Messages API.
//!
//! Owns what its usage folds into. Its text and calls are read, its thinking is not: that stays in the raw answer.

use holdpoint_core::model::Usage;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{ModelError, ModelResponse, PROVIDER};
use crate::model::provider::{self, Counts, UnusableUsage, usage_count, usage_of};
use crate::model::{Answered, Called};

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
    input_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    output_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    cache_read_input_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    cache_creation_input_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    cache_creation: Option<Written<'a>>,
}

/// How long what was written stays in the cache.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Written<'a> {
    #[serde(borrow)]
    ephemeral_5m_input_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    ephemeral_1h_input_tokens: Option<&'a RawValue>,
}

impl<'a> Counts<'a> for Reported<'a> {
    fn usage(&self) -> Result<Usage, UnusableUsage> {
        let Some(tokens) = &self.usage else { return Ok(Usage::default()) };
        let count = |field: &str, raw: Option<&RawValue>| usage_count(field, raw.map(RawValue::get));
        let input = count("usage.input_tokens", tokens.input_tokens)?;
        let output = count("usage.output_tokens", tokens.output_tokens)?;
        let read = count("usage.cache_read_input_tokens", tokens.cache_read_input_tokens)?;
        let written = count("usage.cache_creation_input_tokens", tokens.cache_creation_input_tokens)?;
        let by_time = tokens.cache_creation.as_ref();
        let short = by_time.and_then(|it| it.ephemeral_5m_input_tokens);
        let short = count("usage.cache_creation.ephemeral_5m_input_tokens", short)?;
        let hour = by_time.and_then(|it| it.ephemeral_1h_input_tokens);
        let hour = count("usage.cache_creation.ephemeral_1h_input_tokens", hour)?;
        // What is not told apart was written for five minutes.
        let short = short.max(written.saturating_sub(hour));
        let folded = folded(input, read, short, hour)
            .ok_or_else(|| UnusableUsage("its counts add up to more than can be counted".to_owned()))?;
        usage_of(folded, output, read)
    }
}

/// All that was read and written, as input at the multiples that it is billed at. None when it can't be counted.
fn folded(input: i64, read: i64, short: i64, hour: i64) -> Option<i64> {
    let short = short.checked_mul(5)?.checked_add(3)? / 4;
    input.checked_add(read)?.checked_add(short)?.checked_add(hour.checked_mul(2)?)
}

#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow, default)]
    content: Option<Vec<Part<'a>>>,
    #[serde(default)]
    stop_reason: Option<String>,
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
struct Part<'a> {
    r#type: Option<String>,
    text: Option<String>,
    id: Option<String>,
    name: Option<String>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
}

/// Reads an answer. `redact` takes the key out of what an error repeats.
pub(super) fn response(text: String, redact: impl Fn(&str) -> String) -> Result<ModelResponse, ModelError> {
    let usage = provider::usage_in::<Reported<'_>>(PROVIDER, &text)?;
    let answer: Answer<'_> = provider::decoded(PROVIDER, usage, &text)?;
    if let Some(error) = answer.error {
        let shown = |text: Option<String>| {
            provider::excerpt(&redact(&text.unwrap_or_default()), provider::ECHO_BYTES_MAX)
        };
        let why = format!("{}: {}", shown(error.r#type), shown(error.message));
        return Err(provider::served(PROVIDER, usage, why));
    }
    let (mut said, mut calls) = (Vec::new(), Vec::new());
    for part in answer.content.unwrap_or_default() {
        match part.r#type.as_deref() {
            Some("text") => said.extend(part.text.filter(|text| !text.is_empty())),
            Some("tool_use") => {
                let args = part.input.map_or("", RawValue::get).to_owned();
                calls.push(Called { id: part.id, name: part.name, args });
            }
            Some(_) | None => {}
        }
    }
    let stop_reason = answer.stop_reason.unwrap_or_default();
    let said = said.join("\n");
    crate::model::response(Answered { provider: PROVIDER, text: said, calls, stop_reason, usage, raw: text })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(text: &str) -> Result<(i64, i64, i64), ModelError> {
        let usage = provider::usage_in::<Reported<'_>>(PROVIDER, &format!(r#"{{"usage":{text}}}"#))?;
        Ok((usage.input_tokens, usage.output_tokens, usage.cached_input_tokens))
    }

    #[test]
    fn what_was_written_into_a_cache_is_input_at_its_multiple() {
        let undivided = r#"{"input_tokens":100,"output_tokens":10,"cache_creation_input_tokens":401,"cache_read_input_tokens":2000}"#;
        assert_eq!(usage(undivided).unwrap(), (100 + 2_000 + 502, 10, 2_000));
        let divided = r#"{"input_tokens":100,"output_tokens":10,"cache_creation_input_tokens":501,"cache_read_input_tokens":0,"cache_creation":{"ephemeral_5m_input_tokens":401,"ephemeral_1h_input_tokens":100}}"#;
        assert_eq!(usage(divided).unwrap(), (100 + 502 + 200, 10, 0));
        // The larger of what the sum and the parts say.
        let parts = r#"{"cache_creation":{"ephemeral_5m_input_tokens":4,"ephemeral_1h_input_tokens":1}}"#;
        assert_eq!(usage(parts).unwrap(), (5 + 2, 0, 0));
        let hour = r#"{"cache_creation_input_tokens":3,"cache_creation":{"ephemeral_1h_input_tokens":10}}"#;
        assert_eq!(usage(hour).unwrap(), (20, 0, 0));
        for (written, folded) in [(0, 0), (1, 2), (2, 3), (3, 4), (4, 5), (5, 7)] {
            let text = format!(r#"{{"cache_creation_input_tokens":{written}}}"#);
            assert_eq!(usage(&text).unwrap().0, folded, "{written}");
        }
        assert_eq!(usage("null").unwrap(), (0, 0, 0));
    }

    #[test]
    fn counts_beyond_what_can_be_counted_are_not_believed() {
        let huge = i64::MAX;
        for text in [
            format!(r#"{{"input_tokens":{huge},"cache_read_input_tokens":1}}"#),
            format!(r#"{{"cache_creation_input_tokens":{huge}}}"#),
            format!(r#"{{"cache_creation":{{"ephemeral_1h_input_tokens":{huge}}}}}"#),
            r#"{"cache_read_input_tokens":-1}"#.to_owned(),
            r#"{"output_tokens":1.0}"#.to_owned(),
            r#""plenty""#.to_owned(),
        ] {
            assert!(matches!(usage(&text), Err(ModelError::UnusableUsage { .. })), "{text}");
        }
        assert_eq!(usage(&format!(r#"{{"input_tokens":{huge}}}"#)).unwrap().0, huge);
    }
}
