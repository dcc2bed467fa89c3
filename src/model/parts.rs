//! What all adapters do alike with a call, an answer and a configuration. Knows no provider's format; the adapters call it.

use holdpoint_core::json::Json;
use holdpoint_core::model::{Block, ModelResponse, ToolUse, Usage};

use serde::Serializer;

use super::ModelError;
use super::provider::reqwest;
use super::provider::{ConfigError, arguments, excerpt, synthesize_tool_use_id};
use crate::render::stop;

/// The name under which `model` is accounted for: the configuration's, else the provider's and the model's.
pub(super) fn named(provider: &'static str, name: String, model: &str) -> Result<String, ConfigError> {
    match model {
        "" => Err(ConfigError::NoModel { provider }),
        _ if name.is_empty() => Ok(format!("{provider}:{model}")),
        _ => Ok(name),
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

/// An answer as it stands in a provider's format.
pub(super) struct Answered {
    pub(super) provider: &'static str,
    pub(super) text: String,
    pub(super) calls: Vec<Called>,
    pub(super) stop_reason: String,
    pub(super) usage: Usage,
    pub(super) raw: String,
}

/// A call as it stands there, its arguments as yet unread.
pub(super) struct Called {
    pub(super) id: Option<String>,
    pub(super) name: Option<String>,
    pub(super) args: String,
}

/// The answer that this is. One that was cut off or refused may hold half a call, so its calls are dropped unread: it was
/// served and is charged, and nothing of it runs.
pub(super) fn response(said: Answered) -> Result<ModelResponse, ModelError> {
    let Answered { provider, text, calls, stop_reason, usage, raw } = said;
    let mut tool_uses = Vec::new();
    if !matches!(stop_reason.as_str(), stop::MAX_TOKENS | stop::REFUSAL | stop::CONTEXT_WINDOW_EXCEEDED) {
        for (index, call) in calls.into_iter().enumerate() {
            let name = call.name.unwrap_or_default();
            let args = arguments(provider, usage, &name, &call.args)?;
            let id = call.id.filter(|id| !id.is_empty()).unwrap_or_else(|| synthesize_tool_use_id(index));
            tool_uses.push(ToolUse { id, name, args });
        }
    }
    Ok(ModelResponse { text, tool_uses, stop_reason, usage, raw: Some(Json::trusted(raw)) })
}
