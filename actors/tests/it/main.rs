//! The session over a real tree: real actors, a real database, tools and policies that the test writes.
//!
//! One binary, a file a subject. Recorded times and the leases' times are moved by hand; nothing waits for time to pass
//! where something can be seen instead.

#![expect(clippy::unwrap_used, reason = "a test may unwrap, and so may what helps it")]

mod approvals;
mod asking;
mod bench;
mod chaos;
mod counts;
mod gate;
mod interruption;
mod lease;
mod limits;
mod loops;
mod models;
mod paces;
mod policy;
mod recheck;
mod record;
mod scripted;
mod tools;
mod verdicts;
mod waits;
