//! The integration tests: one binary, so that the tree links once. Each module is a ring of its own.

mod approver;
#[cfg(feature = "otlp")]
mod collector;
mod commands;
mod counts;
mod demo;
mod mcp;
mod proxy;
mod readme;
mod tidy;
