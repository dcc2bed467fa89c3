//! The fence: what must hold at the moment an effect leaves.
//!
//! Owns monotonic time since the lease was stamped. A process stopped between the check and the write to the tool is
//! outside what any lease can do.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::clock::{lock, monotonic};
use crate::faults::process::{self, Broken};

/// A lease as its holder may trust it. Clones share it.
#[derive(Debug, Clone)]
pub struct Fence(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    stamped: Mutex<Instant>,
    ttl: Duration,
    lost: AtomicBool,
}

impl Fence {
    /// A fence for a lease of `ttl` that was stamped at `at`.
    pub fn stamped(at: Instant, ttl: Duration) -> Fence {
        Fence(Arc::new(Inner { stamped: Mutex::new(at), ttl, lost: AtomicBool::new(false) }))
    }

    /// Notes a renewal that was stamped at `at`.
    pub fn restamp(&self, at: Instant) {
        let mut stamped = lock(&self.0.stamped);
        *stamped = at.max(*stamped);
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
        let stands = !self.0.lost.load(Ordering::Acquire) && self.age() < self.0.ttl * 2 / 3;
        stands || process::is(Broken::FenceIgnored)
    }

    /// Until when an effect may leave, as the lease now stands; a moment that has passed once the lease is lost.
    pub fn send_before(&self) -> Instant {
        if process::is(Broken::FenceIgnored) {
            return monotonic() + self.0.ttl;
        }
        let stamped = *lock(&self.0.stamped);
        if self.0.lost.load(Ordering::Acquire) { stamped } else { stamped + self.0.ttl * 2 / 3 }
    }

    /// The time since the last stamp.
    pub fn age(&self) -> Duration {
        let stamped = *lock(&self.0.stamped);
        monotonic().saturating_duration_since(stamped)
    }
}
