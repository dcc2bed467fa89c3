//! The proxy: an MCP server over stdio that puts the gate in front of other MCP servers.
//!
//! Read in this order: `config` (what the operator wrote), [`serve`] (a life of the proxy, from the first check to the
//! last connection), [`front`] (the host's side), `desk` and `call` (the story of one call), `policy` and `gated` (what
//! is decided), [`answer`] and `status` (what a model is told).

pub mod answer;
mod call;
pub mod config;
mod desk;
pub mod front;
mod gated;
mod hold;
mod house;
pub mod journal;
mod met;
pub mod owned;
pub mod policy;
pub mod reach;
pub mod recheck;
pub mod serve;
mod status;
pub mod streams;
