//! Time and chance: the only file that reads a clock or draws random bits.
//!
//! Recorded times come from a [`Clock`] that tests can move by hand. Lease times and deadlines are the wall's and the
//! monotonic clock's and never a `Clock`'s: other processes judge them too.

use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use holdpoint_core::ids::hex_id;
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
    /// Draws 128 bits, as 32 lower-case hex digits.
    fn id(&self) -> String;
}

/// Ids from the operating system's random bits.
#[derive(Debug, Clone, Copy, Default)]
pub struct RandomMint;

impl Mint for RandomMint {
    fn id(&self) -> String {
        hex_id(random())
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
