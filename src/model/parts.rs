//! What all adapters do alike with a call, an answer and a configuration. Knows no provider's format; the adapters call it.

use holdpoint_core::json::Json;
use holdpoint_core::model::{Block, ModelResponse, ToolUse, Usage};

use serde::Serializer;

use super::ModelError;
use super::provider::reqwest;
use super::provider::{excerpt, synthesize_tool_use_id};
use crate::render::stop;

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
