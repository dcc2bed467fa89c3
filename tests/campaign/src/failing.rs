//! The Nth write, sync or truncation fails, for one N after another until a whole run succeeds.
//!
//! Owns the kinds of failure and the sweep over N. A case counts only if the library in front of the C library's
//! functions says that it struck.

use crate::cases::{self, Outcome, Story};
use crate::world::Programs;

/// What can fail, and how.
pub(crate) const KINDS: [&str; 5] = ["sync:eio", "truncate:eio", "write:eio", "write:enospc", "write:short"];
/// Of the writes, one of so many fails in the short form.
pub(crate) const WRITES_APART: u64 = 7;
/// No workload has as many operations of a kind.
const N_MAX: u64 = 2_000;

/// Which operations of a kind fail.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sweep {
    first: u64,
    stride: u64,
    /// Whether it is an embedding service whose operations fail, and not a proxy.
    embedded: bool,
}

impl Sweep {
    /// Every one.
    pub(crate) fn whole(embedded: bool) -> Sweep {
        Sweep { first: 1, stride: 1, embedded }
    }

    /// Every one of the few, and of the many writes some, which the seed shifts.
    pub(crate) fn short(kind: &str, seed: u64) -> Sweep {
        let stride = if kind.starts_with("write") { WRITES_APART } else { 1 };
        Sweep { first: 1 + seed % stride, stride, embedded: false }
    }
}

/// Runs the cases of a kind until one's failure does not come any more.
pub(crate) fn sweep(programs: &Programs, world: &str, kind: &str, sweep: Sweep, seed: u64) -> Outcome {
    let mut sum = Outcome::default();
    let mut n = sweep.first;
    loop {
        let which = format!("{kind}:{n}");
        let label = format!("{world}-{n}");
        let story = Story::Failing { which: which.clone(), embedded: sweep.embedded };
        let outcome = cases::run(programs, &label, &story, None, seed.wrapping_add(n << 20));
        let (is_over, is_good) = (outcome.failed == 0, outcome.is_good());
        sum.add(outcome, &which);
        // The run in which nothing failed any more is the end, and no case.
        sum.cases -= usize::from(is_over);
        if is_over || !is_good {
            return sum;
        }
        n += sweep.stride;
        if n > N_MAX {
            sum.trouble =
                Some(format!("{kind}: operation {N_MAX} still failed, so the workload does not end"));
            return sum;
        }
    }
}
