//! What the tests of all three adapters send.

use std::time::Duration;

use holdpoint_core::json::Json;
use holdpoint_core::tool::{SideEffect, ToolSpec};

use super::{Block, Message, ModelRequest, Role};

pub(super) fn json(text: &str) -> Json {
    Json::checked(text.as_bytes()).expect("a test's own JSON")
}

/// A tool named `read` whose arguments this schema describes.
pub(super) fn tool(schema: &str) -> ToolSpec {
    ToolSpec {
        name: "read".to_owned(),
        description: "Reads.".to_owned(),
        input_schema: json(schema),
        side_effect: SideEffect::ReadOnly,
        timeout: Duration::from_secs(1),
        terminal: false,
    }
}

/// A request of one message.
pub(super) fn saying(text: &str) -> ModelRequest {
    let messages = vec![Message { role: Role::User, content: vec![Block::text(text)] }];
    ModelRequest { messages, ..ModelRequest::default() }
}
