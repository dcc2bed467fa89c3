//! The campaign's own clock and chance: monotonic time, patience, and a generator that a seed repeats.
//!
//! Owns every wait: nothing here hopes that something has happened, it looks until it has.

use std::thread;
use std::time::{Duration, Instant};

/// How often something is looked for.
const GLANCE: Duration = Duration::from_millis(1);

/// Reads the monotonic clock.
#[expect(clippy::disallowed_methods, reason = "the one place where the campaign reads a clock")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Looks until there is something to see, or `patience` has run out.
pub(crate) fn until<T>(patience: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let began = now();
    loop {
        if let Some(seen) = look() {
            return Some(seen);
        }
        if began.elapsed() >= patience {
            return None;
        }
        thread::sleep(GLANCE);
    }
}

/// Lets time pass: the moment of a kill is drawn, not waited for.
pub(crate) fn pass(time: Duration) {
    let began = now();
    while let Some(left) = time.checked_sub(began.elapsed()).filter(|left| !left.is_zero()) {
        thread::sleep(left);
    }
}

/// SplitMix64: small, and the same everywhere.
#[derive(Debug, Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, which is not zero.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// Yes or no.
    pub(crate) fn flip(&mut self) -> bool {
        self.next() & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_numbers() {
        let draw = |seed| (0..4).map(|_| Rng::new(seed).below(1_000)).collect::<Vec<_>>();
        assert_eq!(draw(7), draw(7));
        assert_ne!(Rng::new(1).next(), Rng::new(2).next());
    }
}
