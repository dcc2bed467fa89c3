//! A request as the Messages API takes it.
//!
//! Owns how messages and tools are written. Numbers stay as they were written, in a call's input, in a schema and in a
//! provider's own message.

use std::collections::BTreeMap;

use holdpoint_core::json::{ArrayWriter, Json, ObjectWriter};
use holdpoint_core::model::{Block, Message, Role};
use holdpoint_core::tool::ToolSpec;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::strict::strict_schema;
use super::{Anthropic, ModelError, ModelRequest, PROVIDER, check_cap};
use crate::model::{input, unsupported_block};

/// What stands in a message that says nothing: the API takes none without a block.
const NOTHING: &str = "(nothing was said)";

fn permanent(why: impl std::fmt::Display) -> ModelError {
    ModelError::Permanent { why: format!("{PROVIDER}: {why}") }
}

impl Anthropic {
    pub(super) fn body(&self, request: &ModelRequest) -> Result<String, ModelError> {
        let max_tokens =
            if request.max_output_tokens > 0 { request.max_output_tokens } else { self.max_tokens };
        check_cap(&self.model, max_tokens)
            .map_err(|error| ModelError::Permanent { why: error.to_string() })?;
        let mut failure = None;
        let mut w = ObjectWriter::plain();
        w.str("model", &self.model).int("max_tokens", max_tokens);
        if !request.system.is_empty() {
            w.array("system", |blocks| text(blocks, &request.system));
        }
        if !self.effort.is_empty() {
            w.object("output_config", |config| {
                config.str("effort", &self.effort);
            });
        }
        if !request.tools.is_empty() {
            // A step runs one call: others are better not asked for than left out afterwards.
            w.object("tool_choice", |choice| {
                choice.str("type", "auto").bool("disable_parallel_tool_use", true);
            });
            w.array("tools", |tools| {
                failure = request.tools.iter().try_for_each(|tool| self.write_tool(tools, tool)).err();
            });
        }
        w.array("messages", |messages| {
            let written =
                request.messages.iter().try_for_each(|message| self.write_message(messages, message));
            failure = failure.take().or(written.err());
        });
        failure.map_or_else(|| Ok(w.finish()), Err)
    }

    fn write_tool(&self, tools: &mut ArrayWriter, tool: &ToolSpec) -> Result<(), ModelError> {
        let schema = if self.strict {
            strict_schema(&tool.input_schema)
                .map_err(|error| permanent(format_args!("tool {}: {error}", tool.name)))?
        } else {
            tool.input_schema.clone()
        };
        // The order of the members is kept, and each as it was written.
        let members: BTreeMap<usize, (String, &RawValue)> = members(&schema).map_err(|error| {
            permanent(format_args!("tool {}: its schema is no JSON object: {error}", tool.name))
        })?;
        tools.object(|w| {
            w.str("name", &tool.name).omit_empty_str("description", &tool.description);
            w.object("input_schema", |w| {
                // The API takes no other type, and wants to read it.
                w.str("type", "object");
                for (name, value) in members.values().filter(|(name, _)| name != "type") {
                    w.raw(name, value.get());
                }
            });
            if self.strict {
                w.bool("strict", true);
            }
        });
        Ok(())
    }

    fn write_message(&self, messages: &mut ArrayWriter, message: &Message) -> Result<(), ModelError> {
        let content = match message.content.as_slice() {
            [block] if message.role == Role::Assistant && block.kind == self.raw_assistant_block => {
                Some(raw(block)?)
            }
            blocks => {
                const KINDS: [&str; 3] = ["text", "tool_use", "tool_result"];
                if let Some(other) = blocks.iter().find(|block| !KINDS.contains(&block.kind.as_str())) {
                    return Err(unsupported_block(PROVIDER, &other.kind));
                }
                None
            }
        };
        messages.object(|w| {
            w.str("role", message.role.as_str());
            match content {
                Some(content) => w.raw("content", content),
                None => w.array("content", |blocks| write_blocks(blocks, &message.content)),
            };
        });
        Ok(())
    }
}

/// The content of a provider's own message, as it was.
fn raw(block: &Block) -> Result<&str, ModelError> {
    #[derive(Deserialize)]
    struct Said<'a> {
        #[serde(borrow)]
        content: &'a RawValue,
    }
    let refused =
        |why: &dyn std::fmt::Display| permanent(format_args!("a raw assistant turn is no message: {why}"));
    let said: Said<'_> = serde_json::from_str(&block.text).map_err(|error| refused(&error))?;
    let blocks: Vec<&RawValue> = serde_json::from_str(said.content.get()).map_err(|error| refused(&error))?;
    if blocks.is_empty() {
        return Err(refused(&"its content is empty"));
    }
    Ok(said.content.get())
}

fn text(blocks: &mut ArrayWriter, text: &str) {
    blocks.object(|w| {
        w.str("type", "text").str("text", text);
    });
}

/// A text that is blank is left out: the API refuses it, and a model that said nothing has one.
fn write_blocks(blocks: &mut ArrayWriter, content: &[Block]) {
    let mut written = false;
    for block in content {
        match block.kind.as_str() {
            "tool_use" => {
                blocks.object(|w| {
                    w.str("type", "tool_use").str("id", &block.tool_use_id).str("name", &block.name);
                    w.raw("input", input(block));
                });
            }
            "tool_result" => {
                blocks.object(|w| {
                    w.str("type", "tool_result").str("tool_use_id", &block.tool_use_id);
                    w.str("content", &block.content).bool("is_error", block.is_error);
                });
            }
            _ if block.text.trim().is_empty() => continue,
            _ => text(blocks, &block.text),
        }
        written = true;
    }
    if !written {
        text(blocks, NOTHING);
    }
}

/// The members of an object in their order; of a repeated one the last.
fn members(object: &Json) -> Result<BTreeMap<usize, (String, &RawValue)>, serde_json::Error> {
    let members: Members<'_> = serde_json::from_str(object.as_str())?;
    Ok(members.0)
}

struct Members<'a>(BTreeMap<usize, (String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> serde::de::Visitor<'de> for InOrder {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members: BTreeMap<usize, (String, &'de RawValue)> = BTreeMap::new();
                while let Some((name, value)) = map.next_entry::<String, &'de RawValue>()? {
                    let earlier = members.iter().find(|(_, (known, _))| *known == name).map(|(at, _)| *at);
                    members.insert(earlier.unwrap_or(members.len()), (name, value));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}
