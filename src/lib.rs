//! Holdpoint: a gate between an AI agent and its tools.

pub mod approver;
pub mod codes;
pub mod doctor_socket;
pub mod driver;
pub mod export;
pub mod gate;
pub mod model;
pub mod proxy;
pub mod recheck;
pub mod render;
pub mod replace;
pub mod replay;
pub mod stderr;
#[cfg(feature = "testkit")]
pub mod testkit;
pub mod trace;
pub mod view;
