//! The proxy: an MCP server over stdio that puts the gate in front of other MCP servers.

pub mod answer;
pub mod config;
pub mod front;
pub mod owned;
pub mod policy;
pub mod reach;
