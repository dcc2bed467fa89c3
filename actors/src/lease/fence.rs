//! The fence: what must hold at the moment an effect leaves.
//!
//! Owns monotonic time since the lease was stamped. A process stopped between the check and the write to the tool is
//! outside what any lease can do.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use crate::clock::monotonic;

static EPOCH: LazyLock<Instant> = LazyLock::new(monotonic);

/// A lease as its holder may trust it. Clones share it.
#[derive(Debug, Clone)]
pub struct Fence(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    stamped: AtomicU64,
    ttl: Duration,
    lost: AtomicBool,
}

impl Fence {
    /// A fence for a lease of `ttl` that was stamped at `at`.
    pub fn stamped(at: Instant, ttl: Duration) -> Fence {
        Fence(Arc::new(Inner { stamped: AtomicU64::new(since_epoch(at)), ttl, lost: AtomicBool::new(false) }))
    }

    /// Notes a renewal that was stamped at `at`.
    pub fn restamp(&self, at: Instant) {
        self.0.stamped.fetch_max(since_epoch(at), Ordering::AcqRel);
    }

    /// Notes that somebody else holds the run.
    pub fn lose(&self) {
        self.0.lost.store(true, Ordering::Release);
    }

    /// Whether nobody else can hold the run yet.
    pub fn is_held(&self) -> bool {
        !self.0.lost.load(Ordering::Acquire) && self.age() < self.0.ttl
    }

    /// Whether an effect may leave: within two thirds of the lease's time, so that it cannot be late by much.
    pub fn may_send(&self) -> bool {
        !self.0.lost.load(Ordering::Acquire) && self.age() < self.0.ttl * 2 / 3
    }

    /// Until when an effect may leave, as the lease now stands; a moment that has passed once the lease is lost.
    pub fn send_before(&self) -> Instant {
        if self.0.lost.load(Ordering::Acquire) {
            return *EPOCH;
        }
        *EPOCH + Duration::from_nanos(self.0.stamped.load(Ordering::Acquire)) + self.0.ttl * 2 / 3
    }

    /// The time since the last stamp.
    pub fn age(&self) -> Duration {
        let stamped = Duration::from_nanos(self.0.stamped.load(Ordering::Acquire));
        monotonic().saturating_duration_since(*EPOCH).saturating_sub(stamped)
    }
}

fn since_epoch(at: Instant) -> u64 {
    u64::try_from(at.saturating_duration_since(*EPOCH).as_nanos()).unwrap_or(u64::MAX)
}
