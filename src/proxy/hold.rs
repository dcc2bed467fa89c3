//! Who waits for a decision while a call is held.
//!
//! Owns the one thing in a hold that a test stands in for, because nobody can hit it by hand: the moment in which its
//! time ends. How long a call is held, and what follows, stands in the call's story.

use std::time::Duration;

use async_trait::async_trait;
use holdpoint_actors::address::Address;
use holdpoint_actors::approval;
use holdpoint_core::ids::{ApprovalId, RunId};

/// Waits for decisions.
#[async_trait]
pub(super) trait Waiter: Send + Sync {
    /// Waits up to `within` for `approval` to be decided, to expire, or for its run to end. Says whether it is worth
    /// looking again.
    async fn wait(&self, run: &RunId, approval: &ApprovalId, within: Duration) -> bool;
}

/// The actor that waits for them all.
#[async_trait]
impl Waiter for Address<approval::Msg> {
    async fn wait(&self, run: &RunId, approval: &ApprovalId, within: Duration) -> bool {
        approval::wait(self, run, approval, within).await
    }
}
