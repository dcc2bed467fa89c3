//! What may happen in Holdpoint: pure functions and types.
//!
//! No clock, no I/O, no async, no randomness: times and ids come in as arguments, decisions go out as values.
//! The reading order is the order below.

pub mod ids;
pub mod time;

pub mod hash;
pub mod json;

pub mod accounting;
pub mod approval;
pub mod decision;
pub mod limits;
pub mod model;
pub mod policy;
pub mod run;
pub mod step;
pub mod tool;

pub mod chain;
pub mod event;
pub mod ledger;
pub mod recovery;
pub mod transition;

pub mod recheck;

pub mod across_calls;
pub mod attempt;

pub mod pin;
pub mod schema;

pub mod duration;
pub mod sanitize;
