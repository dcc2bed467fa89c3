//! Model requests and responses, usage and prices: what an adapter maps, what a recording keeps, what an attempt costs.
//!
//! Owns the JSON forms, which are the reference's, so that its recordings serve here. Never sends anything: adapters and
//! the accounting caller do.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::json::{Json, ObjectWriter};
use crate::tool::ToolSpec;

/// One part of a message. The three usual kinds have constructors; an adapter may have kinds of its own, which is why
/// the kind is text.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Block {
    /// `text`, `tool_use`, `tool_result`, or an adapter's own.
    #[serde(rename = "type")]
    pub kind: String,
    /// The text of a `text` block.
    pub text: String,
    /// The id of a `tool_use`, or of the one that a `tool_result` answers.
    pub tool_use_id: String,
    /// The tool of a `tool_use`.
    pub name: String,
    /// The arguments of a `tool_use`, or what an adapter's own block carries.
    pub input: Option<Json>,
    /// The content of a `tool_result`.
    pub content: String,
    /// Whether a `tool_result` tells of a failure.
    pub is_error: bool,
}

impl Block {
    /// A block of text.
    pub fn text(text: impl Into<String>) -> Block {
        Block { kind: "text".to_owned(), text: text.into(), ..Block::default() }
    }

    /// A call that the model asked for.
    pub fn tool_use(id: impl Into<String>, name: impl Into<String>, input: Json) -> Block {
        let (tool_use_id, name) = (id.into(), name.into());
        Block { kind: "tool_use".to_owned(), tool_use_id, name, input: Some(input), ..Block::default() }
    }

    /// What came of the call `id`.
    pub fn tool_result(id: impl Into<String>, content: impl Into<String>, is_error: bool) -> Block {
        let (tool_use_id, content) = (id.into(), content.into());
        Block { kind: "tool_result".to_owned(), tool_use_id, content, is_error, ..Block::default() }
    }

    fn write(&self, w: &mut ObjectWriter) {
        w.str("type", &self.kind);
        w.omit_empty_str("text", &self.text);
        w.omit_empty_str("tool_use_id", &self.tool_use_id);
        w.omit_empty_str("name", &self.name);
        if let Some(input) = &self.input {
            w.omit_empty_raw("input", input.as_str());
        }
        w.omit_empty_str("content", &self.content);
        w.omit_empty_bool("is_error", self.is_error);
    }
}

/// Whose turn a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Whoever asks, and what the tools gave.
    User,
    /// The model.
    Assistant,
}

impl Role {
    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Role::User => "user",
            Role::Assistant => "assistant",
        }
    }
}

/// One turn of the conversation.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Message {
    /// Whose turn it is.
    pub role: Role,
    /// Its parts.
    pub content: Vec<Block>,
}

/// One request for a generation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelRequest {
    /// The system prompt; empty for none.
    pub system: String,
    /// The conversation.
    pub messages: Vec<Message>,
    /// The tools that the model may ask for.
    pub tools: Vec<ToolSpec>,
    /// The most tokens that it may write; zero for no cap.
    pub max_output_tokens: i64,
}

impl ModelRequest {
    /// The JSON form: field order of the reference, compact, HTML-escaped.
    pub fn to_json(&self) -> String {
        let mut w = ObjectWriter::new();
        self.write(&mut w);
        w.finish()
    }

    /// Writes the members of the JSON form.
    pub fn write(&self, w: &mut ObjectWriter) {
        w.omit_empty_str("system", &self.system);
        w.array("messages", |messages| {
            for message in &self.messages {
                messages.object(|w| {
                    w.str("role", message.role.as_str());
                    w.array("content", |blocks| {
                        for block in &message.content {
                            blocks.object(|w| block.write(w));
                        }
                    });
                });
            }
        });
        if !self.tools.is_empty() {
            w.array("tools", |tools| {
                for tool in &self.tools {
                    tools.object(|w| tool.write(w));
                }
            });
        }
        w.omit_empty_int("max_output_tokens", self.max_output_tokens);
    }
}

/// A call that a model asked for.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ToolUse {
    /// The provider's id of it.
    pub id: String,
    /// The tool.
    pub name: String,
    /// The arguments.
    pub args: Json,
}

/// The tokens of one attempt, as the provider reports them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Tokens read, those from a cache included.
    pub input_tokens: i64,
    /// Tokens written.
    pub output_tokens: i64,
    /// Tokens read from a cache, a part of `input_tokens`.
    pub cached_input_tokens: i64,
}

impl Usage {
    /// The JSON form.
    pub fn to_json(&self) -> String {
        let mut w = ObjectWriter::new();
        self.write(&mut w);
        w.finish()
    }

    fn write(&self, w: &mut ObjectWriter) {
        w.int("input_tokens", self.input_tokens);
        w.int("output_tokens", self.output_tokens);
        w.omit_empty_int("cached_input_tokens", self.cached_input_tokens);
    }

    /// Whether it can be charged: no count is negative, and the cache gave no more than was read.
    pub const fn is_usable(&self) -> bool {
        self.input_tokens >= 0
            && self.output_tokens >= 0
            && self.cached_input_tokens >= 0
            && self.cached_input_tokens <= self.input_tokens
    }
}

/// What a model answered.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ModelResponse {
    /// What it said.
    pub text: String,
    /// The calls that it asked for, in its order.
    pub tool_uses: Vec<ToolUse>,
    /// Why it stopped: `end_turn`, `tool_use`, `max_tokens`, `refusal`, `model_context_window_exceeded`, or a
    /// provider's own word.
    pub stop_reason: String,
    /// What it cost.
    pub usage: Usage,
    /// The provider's answer, where an adapter keeps it.
    pub raw: Option<Json>,
}

impl ModelResponse {
    /// The JSON form.
    pub fn to_json(&self) -> String {
        let mut w = ObjectWriter::new();
        self.write(&mut w);
        w.finish()
    }

    /// Writes the members of the JSON form.
    pub fn write(&self, w: &mut ObjectWriter) {
        w.omit_empty_str("text", &self.text);
        if !self.tool_uses.is_empty() {
            w.array("tool_uses", |uses| {
                for tool_use in &self.tool_uses {
                    uses.object(|w| {
                        w.str("id", &tool_use.id).str("name", &tool_use.name);
                        w.raw("args", tool_use.args.as_str());
                    });
                }
            });
        }
        w.omit_empty_str("stop_reason", &self.stop_reason);
        w.object("usage", |w| self.usage.write(w));
        if let Some(raw) = &self.raw {
            w.omit_empty_raw("raw", raw.as_str());
        }
    }
}

/// A price per million tokens, in millionths of a dollar.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Price {
    /// Of tokens read.
    #[serde(rename = "input_per_mtok")]
    pub input: i64,
    /// Of tokens written.
    #[serde(rename = "output_per_mtok")]
    pub output: i64,
    /// Of tokens read from a cache.
    #[serde(rename = "cached_input_per_mtok")]
    pub cached_input: i64,
}

impl Price {
    /// What `usage` costs, in millionths of a dollar: each part rounded down, a negative price or count taken as zero,
    /// the sum saturating.
    pub fn of(&self, usage: &Usage) -> i64 {
        let part = |tokens: i64, price: i64| i128::from(tokens.max(0)) * i128::from(price.max(0)) / 1_000_000;
        let cached = usage.cached_input_tokens.max(0);
        let fresh = usage.input_tokens.max(0).saturating_sub(cached);
        let sum = part(fresh, self.input)
            + part(cached, self.cached_input)
            + part(usage.output_tokens, self.output);
        i64::try_from(sum).unwrap_or(i64::MAX)
    }
}

/// Prices by model name. A model that is missing costs nothing on the books; it is unpriced, which is not free.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct PriceTable(BTreeMap<String, Price>);

impl PriceTable {
    /// The table with `model` at `price`.
    #[must_use]
    pub fn with(mut self, model: impl Into<String>, price: Price) -> PriceTable {
        self.0.insert(model.into(), price);
        self
    }

    /// The price of `model`, if it has one.
    pub fn get(&self, model: &str) -> Option<&Price> {
        self.0.get(model)
    }

    /// What `usage` of `model` costs; nothing for a model without a price.
    pub fn cost(&self, model: &str, usage: &Usage) -> i64 {
        self.get(model).map_or(0, |price| price.of(usage))
    }

    /// Both tables, a price of `later` before one of this.
    #[must_use]
    pub fn merged(mut self, later: PriceTable) -> PriceTable {
        self.0.extend(later.0);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_the_references_field_order_and_leaves_out_what_is_empty() {
        let empty = ModelRequest::default();
        assert_eq!(empty.to_json(), r#"{"messages":[]}"#);
        let input = Json::checked(br#"{"b":1.50,"a":"<"}"#).unwrap();
        let request = ModelRequest {
            system: "be brief".to_owned(),
            messages: vec![
                Message { role: Role::User, content: vec![Block::text("hello")] },
                Message { role: Role::Assistant, content: vec![Block::tool_use("call_1", "pay", input)] },
                Message { role: Role::User, content: vec![Block::tool_result("call_1", "no", true)] },
            ],
            tools: Vec::new(),
            max_output_tokens: 64,
        };
        assert_eq!(
            request.to_json(),
            concat!(
                r#"{"system":"be brief","messages":[{"role":"user","content":[{"type":"text","text":"hello"}]},"#,
                r#"{"role":"assistant","content":[{"type":"tool_use","tool_use_id":"call_1","name":"pay","#,
                r#""input":{"b":1.50,"a":"\u003c"}}]},"#,
                r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"call_1","content":"no","is_error":true}]}],"#,
                r#""max_output_tokens":64}"#
            )
        );
    }

    #[test]
    fn a_response_reads_back_as_it_was_written() {
        let response = ModelResponse {
            text: "so be it".to_owned(),
            tool_uses: vec![ToolUse {
                id: "1".to_owned(),
                name: "pay".to_owned(),
                args: Json::empty_object(),
            }],
            stop_reason: "tool_use".to_owned(),
            usage: Usage { input_tokens: 3, output_tokens: 2, cached_input_tokens: 1 },
            raw: None,
        };
        assert_eq!(serde_json::from_str::<ModelResponse>(&response.to_json()).unwrap(), response);
    }

    #[test]
    fn each_part_of_a_cost_is_rounded_down_and_the_sum_saturates() {
        let price = Price { input: 3_000_000, output: 15_000_000, cached_input: 300_000 };
        let usage = Usage { input_tokens: 1_001, output_tokens: 7, cached_input_tokens: 1 };
        assert_eq!(price.of(&usage), 3_000 + 105);
        let huge = Usage { input_tokens: i64::MAX, output_tokens: i64::MAX, cached_input_tokens: 0 };
        assert_eq!(Price { input: i64::MAX, ..price }.of(&huge), i64::MAX);
        let negative = Usage { input_tokens: -1, output_tokens: -1, cached_input_tokens: -1 };
        assert_eq!(price.of(&negative), 0);
        assert_eq!(PriceTable::default().cost("unknown", &usage), 0);
    }
}
