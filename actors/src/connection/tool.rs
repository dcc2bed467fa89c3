//! A server's tool as the gate knows one: arguments prepared, the call sent, the result mapped.
//!
//! Owns the translation between an ending on the wire and what is known of the effect. Never decides whether a call may
//! run, and never lets a hidden parameter through.

use async_trait::async_trait;
use holdpoint_core::attempt::Upstream;
use holdpoint_core::pin::call::{Mapped, map_result, prepare_arguments};
use holdpoint_core::pin::load::LoadedTool;
use holdpoint_core::tool::ToolSpec;
use tokio::time::Instant;

use super::door::{CallRequest, Door};
use super::ending::CallEnding;
use crate::address::{Address, REACH};
use crate::executor::{Tool, ToolCall, ToolFailure, ToolOutput};

/// A tool of a connected server.
#[derive(Debug)]
pub struct McpTool {
    loaded: LoadedTool,
    max_content_bytes: usize,
    door: Door,
    connection: Address<super::Msg>,
}

impl McpTool {
    /// The tool that was loaded, called through `door` at whatever actor `connection` names.
    pub fn new(
        loaded: LoadedTool,
        max_content_bytes: usize,
        door: Door,
        connection: Address<super::Msg>,
    ) -> McpTool {
        McpTool { loaded, max_content_bytes, door, connection }
    }

    /// What was loaded.
    pub fn loaded(&self) -> &LoadedTool {
        &self.loaded
    }

    /// What a result means, by its own words alone.
    fn read(&self, raw_result: &str) -> Result<ToolOutput, ToolFailure> {
        match map_result(&self.loaded, raw_result, self.max_content_bytes) {
            Mapped::Answered { content, summary } => Ok(ToolOutput::new(content.as_str(), summary)),
            Mapped::ToolError { text } | Mapped::InputRequired { text } => Err(ToolFailure::Failed(text)),
            Mapped::Malformed { text } => Err(ToolFailure::NoAnswer(text)),
        }
    }
}

#[async_trait]
impl Tool for McpTool {
    fn spec(&self) -> ToolSpec {
        self.loaded.spec.clone()
    }

    fn upstream(&self) -> Option<Upstream> {
        Some(Upstream {
            name: self.loaded.spec.name.clone(),
            server: self.loaded.server.clone(),
            remote: self.loaded.remote_name.clone(),
            class: self.loaded.spec.side_effect,
        })
    }

    async fn call(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let arguments = prepare_arguments(&self.loaded, call.args.as_str())
            .map_err(|refused| ToolFailure::Failed(refused.to_string()))?;
        let Some(connection) = self.connection.find(REACH.min(call.timeout)).await else {
            let (server, tool) = (&self.loaded.server, &self.loaded.remote_name);
            return Err(ToolFailure::NotSent(format!(
                "mcp: server {server:?}: tool {tool:?}: the connection is down"
            )));
        };
        let request = CallRequest {
            tool: self.loaded.remote_name.clone(),
            arguments,
            timeout: call.timeout,
            fence: Some(Instant::from_std(call.fence.send_before())),
        };
        match self.door.call(connection, request).await {
            CallEnding::Answered { raw_result } => self.read(&raw_result),
            CallEnding::KnownFailure { text } => Err(ToolFailure::Failed(text)),
            CallEnding::TimedOut { text } => Err(ToolFailure::TimedOut(text)),
            CallEnding::NoAnswer { text } => Err(ToolFailure::NoAnswer(text)),
            CallEnding::NotSent { text } => Err(ToolFailure::NotSent(text)),
            CallEnding::Unrecordable { reason, raw } => {
                Err(ToolFailure::Unrecordable { reason, raw: raw.into_bytes() })
            }
        }
    }
}
