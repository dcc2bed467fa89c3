//! What the adapters' formats have in common.
//!
//! Owns the pieces of a message as chat interfaces take them. Knows no provider.

use holdpoint_core::json::{Json, ObjectWriter};
use holdpoint_core::model::{Block, Message, ModelRequest, ModelResponse, ToolUse, Usage};

use serde::Serializer;

use super::ModelError;
use super::provider::reqwest;
use super::provider::{excerpt, synthesize_tool_use_id};
use crate::render::stop;

/// A message by the kinds of its blocks.
pub(super) struct Parts<'a> {
    pub(super) text: String,
    pub(super) calls: Vec<&'a Block>,
    pub(super) results: Vec<&'a Block>,
}

impl<'a> Parts<'a> {
    /// Sorts the blocks of a message; the error is the kind of one that chat interfaces have no place for.
    pub(super) fn of(message: &'a Message) -> Result<Parts<'a>, String> {
        let mut parts = Parts { text: String::new(), calls: Vec::new(), results: Vec::new() };
        for block in &message.content {
            match block.kind.as_str() {
                "text" => parts.text.push_str(&block.text),
                "tool_use" => parts.calls.push(block),
                "tool_result" => parts.results.push(block),
                other => return Err(other.to_owned()),
            }
        }
        Ok(parts)
    }
}

/// What a block of another kind fails with: dropped, it would change what the model is told.
pub(super) fn unsupported_block(provider: &str, kind: &str) -> ModelError {
    let kind = excerpt(kind, 64);
    ModelError::Permanent {
        why: format!("{provider}: a message holds a block of the kind {kind:?}, which can't be sent"),
    }
}

/// A client can't be written down, so a configuration says whether there is one.
pub(super) fn whether_set<S: Serializer>(
    client: &Option<reqwest::Client>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_bool(client.is_some())
}

/// The arguments of a call as they are sent, `{}` when it has none.
pub(super) fn input(call: &Block) -> &str {
    call.input.as_ref().filter(|input| !input.is_blank()).map_or("{}", Json::as_str)
}

/// Writes the tools as functions, unless there are none.
#[cfg(any(feature = "ollama", feature = "openai"))]
pub(super) fn write_functions(w: &mut ObjectWriter, request: &ModelRequest) {
    if request.tools.is_empty() {
        return;
    }
    w.array("tools", |tools| {
        for tool in &request.tools {
            tools.object(|w| {
                w.str("type", "function").object("function", |w| {
                    w.str("name", &tool.name).str("description", &tool.description);
                    w.raw("parameters", tool.input_schema.as_str());
                });
            });
        }
    });
}

/// The id of the `index`th call, made up when the provider gave none.
pub(super) fn id_or_made_up(id: Option<String>, index: usize) -> String {
    id.filter(|id| !id.is_empty()).unwrap_or_else(|| synthesize_tool_use_id(index))
}

/// An answer. One that was cut off or refused may hold half a call, so its calls are dropped: it was served and is
/// charged, and nothing of it runs.
pub(super) fn response(
    text: String,
    tool_uses: Vec<ToolUse>,
    stop_reason: String,
    usage: Usage,
    raw: String,
) -> ModelResponse {
    let unfinished =
        matches!(stop_reason.as_str(), stop::MAX_TOKENS | stop::REFUSAL | stop::CONTEXT_WINDOW_EXCEEDED);
    let tool_uses = if unfinished { Vec::new() } else { tool_uses };
    ModelResponse { text, tool_uses, stop_reason, usage, raw: Some(Json::trusted(raw)) }
}
