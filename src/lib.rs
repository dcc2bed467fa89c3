//! Holdpoint: a gate between an AI agent and its tools.
