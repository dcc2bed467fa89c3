//! The Nth write, sync or truncation fails, for one N after another until a whole run succeeds.
//!
//! Owns the kinds of failure and the sweep over N. A case counts only if the library in front of the C library's
//! functions says that it struck.

use crate::cases::{Outcome, Story};

/// What can fail, and how.
pub(crate) const KINDS: [&str; 5] = ["sync:eio", "truncate:eio", "write:eio", "write:enospc", "write:short"];
/// No workload has as many operations of a kind.
const N_MAX: u64 = 2_000;

/// Which operations of a kind fail.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sweep {
    /// The first.
    pub(crate) first: u64,
    /// From one to the next.
    pub(crate) stride: u64,
}

impl Sweep {
    /// Every one of the few, and of the many writes some, which the seed shifts.
    pub(crate) fn short(kind: &str, seed: u64) -> Sweep {
        let stride = if kind.starts_with("write") { 19 } else { 1 };
        Sweep { first: 1 + seed % stride, stride }
    }
}

/// Runs the cases of a kind until one's failure does not come any more, `wide` at a time.
pub(crate) fn sweep(
    kind: &str,
    sweep: Sweep,
    wide: usize,
    run: impl Fn(&[Story]) -> Vec<Outcome>,
    mut note: impl FnMut(&str, &Outcome),
) -> Result<(), String> {
    let mut n = sweep.first;
    while n < N_MAX {
        let ns = (0..wide as u64).map(|turn| n + turn * sweep.stride);
        let names: Vec<String> = ns.map(|n| format!("{kind}:{n}")).collect();
        let stories: Vec<Story> = names.iter().cloned().map(Story::Failing).collect();
        let outcomes = run(&stories);
        let over = outcomes.iter().any(|outcome| outcome.failed == 0);
        for (name, outcome) in names.iter().zip(&outcomes) {
            note(name, outcome);
        }
        if over {
            return Ok(());
        }
        n += wide as u64 * sweep.stride;
    }
    Err(format!("{kind}: operation {N_MAX} still failed, so the workload does not end"))
}
