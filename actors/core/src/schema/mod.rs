//! A tool's input schema, judged as text: what may be offered, hidden and compiled at all.
//!
//! Owns four questions. Is it an object schema of a size that can be handled ([`object`])? Does it reach outside
//! itself ([`self_contained`])? Can the operator hide these parameters without the rest of it noticing
//! ([`hidden`])? What does checking one value against it cost at most ([`cost`])? It never compiles a schema and
//! never validates a value: that belongs to whoever runs the calls, and it happens after these answers are in.
//! The pin checks ask in this order.

pub mod cost;
pub mod hidden;
pub mod object;
pub mod self_contained;

mod place;
