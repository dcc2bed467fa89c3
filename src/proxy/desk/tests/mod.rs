//! Tests of the story of a call, over a real record and tools of this process.

mod approvals;
mod calls;
mod cancelled;
mod holding;
mod recheck;
mod support;
mod unknown;
