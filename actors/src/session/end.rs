//! The end of a session: closed, lost, or over because its run is.
//!
//! Owns what is still owed to the record then, and what every later call is told. Whatever else ends a session unclosed
//! leaves its hold to be recovered.

use holdpoint_core::ledger;
use holdpoint_core::run::Run;
use holdpoint_core::transition::Durability;

use super::SessionError;
use super::commit::{Committed, Stop};
use super::story::Core;
use crate::store::Lane;

impl Core {
    /// Ends the session. What is drafted is an outcome that somebody waits for, or nothing.
    pub(super) async fn close(&mut self) -> Result<(), SessionError> {
        if self.over.is_some() {
            return Ok(());
        }
        let run = self.run_id();
        // An allowed request that was never executed leaves nothing; anything else drafted is a fact.
        let owes = self.deferred.is_some() || self.allowed.is_none() && !self.ledger.is_clean();
        let stopped =
            match if owes { self.commit_next(Durability::Written).await } else { Ok(Committed::Told) } {
                Ok(_) => Ok(()),
                Err(stop) => self.stopped(stop),
            };
        if let Some(mut guard) = self.guard.take() {
            guard.release();
            self.give_up().await;
        }
        self.over.get_or_insert(SessionError::Closed { run, why: String::new() });
        self.claim = None;
        self.permit = None;
        stopped
    }

    /// Gives the lease up, if it is still this session's, so that nobody need wait for it to run out.
    pub(super) async fn give_up(&self) {
        let release = ledger::release(self.run_id(), self.ledger.terms().owner.clone());
        match self.shared.tree.store.apply(Lane::Outcome, release).await {
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(run = %self.run_id(), %error, "a lease was not given up; it runs out")
            }
        }
    }

    /// Refuses to go on once somebody else may hold the run.
    pub(super) async fn held(&mut self) -> Result<(), Stop> {
        match &self.guard {
            Some(guard) if !guard.fence().is_held() => {
                let stop = self.lost(&"the lease ran out").await;
                if matches!(stop, Stop::Cancelled(_))
                    && let Some(deferred) = self.deferred.take()
                {
                    self.record_late(deferred).await;
                }
                Err(stop)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Ends the session with the run as it now stands.
    pub(super) fn finish(&mut self, run: Run) {
        if let Some(error) = self.stop(Stop::Ended(run)) {
            tracing::debug!(%error, "a session ended");
        }
    }

    /// Ends the session for `stop`; an error only when it is one.
    pub(super) fn stopped(&mut self, stop: Stop) -> Result<(), SessionError> {
        match self.stop(stop) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    pub(super) fn stop(&mut self, stop: Stop) -> Option<SessionError> {
        let run = self.run_id();
        self.claim = None;
        self.permit = None;
        if let (Stop::Ended(_) | Stop::Cancelled(_), Some(guard)) = (&stop, &mut self.guard) {
            guard.release();
        }
        // A hold that is neither given up nor void is one to recover from.
        self.guard = None;
        let (over, error) = match stop {
            Stop::Ended(now) | Stop::Cancelled(now) => {
                let why = format!("it is {}", now.status);
                self.ledger.set_run(now);
                (SessionError::RunState { run, why }, None)
            }
            Stop::Failed(error @ SessionError::LeaseLost(_)) => (error.clone(), Some(error)),
            Stop::Failed(error) => {
                let why = format!(", because it failed to {error}");
                (SessionError::Closed { run, why }, Some(error))
            }
        };
        self.over.get_or_insert(over);
        error
    }
}
