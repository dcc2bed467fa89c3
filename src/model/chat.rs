//! What the two chat formats have in common: a message is a role and a text, and tools are functions.
//!
//! Owns the sorting of a message's blocks. Knows no provider; the adapters of chat interfaces call it.

use holdpoint_core::json::ObjectWriter;
use holdpoint_core::model::{Block, Message, ModelRequest};

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

/// Writes the tools as functions, unless there are none.
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
