//! Re-checking: each answer of a policy that a run recorded, rebuilt so that a policy can be asked again.
//!
//! Owns what an evaluation is, what of it the record holds, when two answers are the same, and the report. Never reads
//! the store and never asks anybody: [`Record`] is filled from pages that somebody else read, gives one [`Rebuilt`] for
//! each evaluation, and [`Question::settle`] takes the answer. Read in the order below.

mod compare;
mod rebuild;
mod record;
mod report;

mod changes;
#[cfg(test)]
mod tests;

pub use changes::{Change, Changes, EXAMPLES_MAX, Shift, Totals};
pub use rebuild::{Question, Rebuilt};
pub use record::{APPROVALS_MAX, Record};
pub use report::{Answer, Evaluation, Finding, Identity, Report, SpecSource};
