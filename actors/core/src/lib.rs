//! What may happen in Holdpoint: pure functions and types.
//!
//! No clock, no I/O, no async, no randomness: times and ids come in as arguments, decisions go out as values.
//! The reading order is the order below.

pub mod ids;
pub mod time;

pub mod json;
pub mod hash;

pub mod tool;
pub mod policy;
pub mod run;
pub mod step;
pub mod approval;
pub mod limits;

pub mod event;
pub mod chain;
pub mod transition;
pub mod recovery;

pub mod attempt;
pub mod across_calls;

pub mod schema;
pub mod pin;

pub mod duration;
pub mod sanitize;
