//! The rate that is accepted: a bucket of tokens that fills with time.
//!
//! Owns the arithmetic. Never reads a clock.

use holdpoint_core::time::UnixNanos;

const NANOS: f64 = 1e9;

#[derive(Debug)]
pub(super) struct Bucket {
    rate: f64,
    burst: f64,
    tokens: f64,
    filled: UnixNanos,
}

impl Bucket {
    /// A bucket of `burst` tokens that gets `rate` more each second.
    pub(super) fn full(rate: u32, burst: u32, now: UnixNanos) -> Bucket {
        let burst = f64::from(burst);
        Bucket { rate: rate.into(), burst, tokens: burst, filled: now }
    }

    /// Takes a token, if there is one. A clock that was set back fills nothing until it goes on from there.
    pub(super) fn take(&mut self, now: UnixNanos) -> bool {
        let passed = now.as_nanos().saturating_sub(self.filled.as_nanos()).max(0);
        #[expect(clippy::cast_precision_loss, reason = "what is lost is less than a token")]
        let passed = passed as f64 / NANOS;
        self.filled = now;
        self.tokens = (self.tokens + passed * self.rate).min(self.burst);
        if self.tokens < 1.0 {
            return false;
        }
        self.tokens -= 1.0;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> UnixNanos {
        UnixNanos::from_nanos(1_790_000_000_000_000_000 + millis * 1_000_000)
    }

    #[test]
    fn a_burst_passes_and_then_as_many_as_the_time_allows() {
        let mut bucket = Bucket::full(10, 3, at(0));
        let mut taken = |millis| bucket.take(at(millis));
        assert_eq!([taken(0), taken(0), taken(0), taken(0)], [true, true, true, false]);
        assert_eq!([taken(99), taken(100), taken(100)], [false, true, false]);
        assert_eq!([taken(60_000), taken(60_000), taken(60_000), taken(60_000)], [true, true, true, false]);
    }

    #[test]
    fn a_clock_that_is_set_back_gives_nothing_and_takes_nothing() {
        let mut bucket = Bucket::full(10, 1, at(0));
        assert!(bucket.take(at(0)));
        assert!(!bucket.take(at(-60_000)));
        assert!(bucket.take(at(-59_900)), "it goes on from there");
    }
}
