//! How long a connection waits before it starts its server again. Pure: the caller has the clock and the dice.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);
/// The longest wait. A connection never gives up and never escalates: it stays down, tries this seldom, and says so.
pub(crate) const LONGEST: Duration = Duration::from_secs(30);
/// A connection that was up this long is taken to work: its next failure counts as the first again.
pub(crate) const STABLE: Duration = Duration::from_secs(30);

/// The wait after this many failures in a row (1 or more), with `dice` spreading it over its upper half.
pub(crate) fn wait(failures: u32, dice: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    let whole = FIRST.saturating_mul(1 << doublings).min(LONGEST);
    let half = whole / 2;
    half + half.mul_f64(f64::from(dice) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_from_a_tenth_of_a_second_to_half_a_minute() {
        let longest = |failures| wait(failures, u32::MAX);
        assert_eq!(longest(1), Duration::from_millis(100));
        assert_eq!(longest(2), Duration::from_millis(200));
        assert_eq!(longest(9), Duration::from_millis(25_600));
        assert_eq!(longest(10), LONGEST);
        assert_eq!(longest(u32::MAX), LONGEST);
    }

    #[test]
    fn the_dice_spread_a_wait_over_its_upper_half() {
        assert_eq!(wait(1, 0), Duration::from_millis(50));
        assert!(wait(1, u32::MAX / 2) < Duration::from_millis(100));
        assert_eq!(wait(0, 0), Duration::from_millis(50));
    }
}
