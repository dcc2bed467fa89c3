//! Time and chance: the only file that reads a clock or draws random bits.
//!
//! Recorded times come from a [`Clock`] that tests can move by hand. Lease times and deadlines are the wall's and the
//! monotonic clock's and never a `Clock`'s: other processes judge them too.

use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use holdpoint_core::ids::{hex, hex_id};
use holdpoint_core::time::UnixNanos;

use crate::faults::process;

/// The source of recorded times.
pub trait Clock: Send + Sync + fmt::Debug {
    /// Reads it. One reading for each recorded change of state, in a fixed order.
    fn now(&self) -> UnixNanos;
}

/// The wall clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct WallClock;

impl Clock for WallClock {
    fn now(&self) -> UnixNanos {
        wall()
    }
}

/// A clock that moves only when it is told to, or by a fixed step at each reading.
#[derive(Debug)]
pub struct HandClock {
    now: Mutex<UnixNanos>,
    step: Duration,
}

impl HandClock {
    /// A clock that stands at `now` and moves on by `step` after each reading.
    pub fn new(now: UnixNanos, step: Duration) -> HandClock {
        HandClock { now: Mutex::new(now), step }
    }

    /// Moves it on.
    pub fn advance(&self, by: Duration) {
        let mut now = lock(&self.now);
        *now = now.plus(by);
    }
}

impl Clock for HandClock {
    fn now(&self) -> UnixNanos {
        let mut now = lock(&self.now);
        let read = *now;
        *now = read.plus(self.step);
        read
    }
}

/// Reads the wall clock.
#[expect(clippy::disallowed_methods, reason = "the one place where time enters")]
pub fn wall() -> UnixNanos {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let since = since + process::ahead();
    UnixNanos::from_nanos(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
}

/// Reads the monotonic clock.
#[expect(clippy::disallowed_methods, reason = "the one place where time enters")]
pub fn monotonic() -> Instant {
    Instant::now()
}

/// The source of ids.
pub trait Mint: Send + Sync + fmt::Debug {
    /// Draws 128 bits, as 32 lower-case hex digits. The last 12 differ from those of any other, as far as chance goes.
    fn id(&self) -> String;

    /// Draws 64 bits, as 16 lower-case hex digits. Who needs one that nobody has must be ready to draw again.
    fn short_id(&self) -> String;
}

/// Ids from the operating system's random bits, behind the millisecond in which they were drawn: rows of one moment
/// then lie side by side in every index of the database.
#[derive(Debug, Clone, Copy, Default)]
pub struct RandomMint;

/// The bytes of an id that tell the time: milliseconds, which begin anew after 34 years. Nothing reads them.
const TIME_BYTES: usize = 5;

impl RandomMint {
    fn draw<const N: usize>() -> [u8; N] {
        let mut bytes = random();
        let millis = (wall().as_nanos() / 1_000_000).to_be_bytes();
        bytes[..TIME_BYTES].copy_from_slice(&millis[millis.len() - TIME_BYTES..]);
        bytes
    }
}

impl Mint for RandomMint {
    fn id(&self) -> String {
        hex_id(Self::draw())
    }

    fn short_id(&self) -> String {
        hex(&Self::draw::<8>())
    }
}

/// Ids that count, for tests that compare records.
#[derive(Debug, Default)]
pub struct CountingMint(Mutex<u128>);

impl Mint for CountingMint {
    fn id(&self) -> String {
        let mut count = lock(&self.0);
        *count += 1;
        hex_id(count.to_be_bytes())
    }

    fn short_id(&self) -> String {
        let id = self.id();
        // An id that counts does so at its end.
        id[id.len() / 2..].to_owned()
    }
}

/// Draws random bytes. A system that has none cannot name anything safely, so there is no error to handle.
///
/// # Panics
/// When the operating system has no random bits to give.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the operating system gives random bits");
    bytes
}

/// Locks a mutex whose holders only ever assign: a panic in one leaves nothing half-done.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_later_moments_come_later_and_no_two_are_the_same() {
        let ids: Vec<String> = (0..1_000).map(|_| RandomMint.id()).collect();
        assert!(ids.iter().all(|id| id.len() == 32 && id.bytes().all(|b| b"0123456789abcdef".contains(&b))));
        let times: Vec<&str> = ids.iter().map(|id| &id[..2 * TIME_BYTES]).collect();
        assert!(times.is_sorted(), "{times:?}");
        let ends: std::collections::HashSet<&str> = ids.iter().map(|id| &id[20..]).collect();
        assert_eq!(ends.len(), ids.len());
    }

    #[test]
    fn a_short_id_is_sixteen_digits_and_begins_with_the_time_too() {
        let (before, short, after) = (RandomMint.id(), RandomMint.short_id(), RandomMint.id());
        let time = |id: &str| id[..2 * TIME_BYTES].to_owned();
        assert_eq!(short.len(), 16);
        assert!(time(&before) <= time(&short) && time(&short) <= time(&after));
        assert_eq!(CountingMint::default().short_id(), "0000000000000001");
    }
}
