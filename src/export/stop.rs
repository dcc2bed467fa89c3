//! What a follower waits on: a write to the log, or being told to end.
//!
//! Owns one flag for each and the wait between two looks. Whoever holds a [`Stop`] ends the follower from another thread.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Ends a follower, from any thread. Clones end the same one.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<Signals>);

#[derive(Debug, Default)]
struct Signals {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    stopped: bool,
    written: bool,
}

impl Stop {
    /// Asks the follower to end: after the event that it is delivering, and with its cursor saved.
    pub fn stop(&self) {
        self.change(|state| state.stopped = true);
    }

    /// Whether it was asked to.
    pub fn is_stopped(&self) -> bool {
        self.state().stopped
    }

    /// Waits until it is asked to end, at most `within`. Says whether it was.
    pub fn wait(&self, within: Duration) -> bool {
        let waited = self.0.changed.wait_timeout_while(self.state(), within, |state| !state.stopped);
        waited.unwrap_or_else(PoisonError::into_inner).0.stopped
    }

    /// Says that there may be something to read.
    pub(super) fn written(&self) {
        self.change(|state| state.written = true);
    }

    /// Waits until there may be something to read or the end is asked for, at most `within`.
    pub(super) fn wait_for_more(&self, within: Duration) {
        let idle = |state: &mut State| !state.stopped && !state.written;
        let waited = self.0.changed.wait_timeout_while(self.state(), within, idle);
        waited.unwrap_or_else(PoisonError::into_inner).0.written = false;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.0.changed.notify_all();
    }
}
