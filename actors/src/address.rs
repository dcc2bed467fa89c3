//! Addresses: how one part finds an actor that may have been restarted meanwhile, and asks it within a deadline.
//!
//! Owns the three ways in which asking can fail. Never restarts anything: the supervisor does, and publishes here.
//!
//! Whoever waits for an answer holds on to nobody. A message that is sent in the very moment in which its actor ends may
//! be left in the mailbox, sent and never taken; it is dropped, and its sender told, only when nobody holds the actor's
//! address any more. One who waited with the address in hand would wait out the whole deadline for itself.

use std::fmt;
use std::time::Duration;

use ractor::{ActorRef, Message, MessagingErr, RpcReplyPort};
use tokio::sync::watch;

use crate::clock::monotonic;

/// How long a restart may take before whoever asks gives up: the question is then known not to have been delivered.
pub const REACH: Duration = Duration::from_secs(5);

/// Where an actor of one kind lives now, if it lives.
pub struct Address<M: Message> {
    cell: watch::Receiver<Option<ActorRef<M>>>,
}

impl<M: Message> Clone for Address<M> {
    fn clone(&self) -> Self {
        Address { cell: self.cell.clone() }
    }
}

impl<M: Message> fmt::Debug for Address<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.cell.borrow().as_ref().map(|actor| actor.get_id());
        f.debug_tuple("Address").field(&id).finish()
    }
}

/// Why an actor gave no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// Nobody was there to ask: the question was not delivered.
    #[error("reach the actor: it is down")]
    Down,
    /// The question was delivered and the actor died: it may have acted.
    #[error("hear from the actor: it died with the question")]
    Lost,
    /// No answer within the deadline: it may act later.
    #[error("hear from the actor in time")]
    Late,
}

impl<M: Message> Address<M> {
    /// An address and the cell that the supervisor fills.
    pub fn vacant() -> (watch::Sender<Option<ActorRef<M>>>, Address<M>) {
        let (sender, cell) = watch::channel(None);
        (sender, Address { cell })
    }

    /// The cell behind it.
    pub fn cell(&self) -> watch::Receiver<Option<ActorRef<M>>> {
        self.cell.clone()
    }

    /// The actor, waiting up to `within` for a restart.
    pub async fn find(&self, within: Duration) -> Option<ActorRef<M>> {
        let mut cell = self.cell.clone();
        let found = tokio::time::timeout(within, cell.wait_for(Option::is_some)).await;
        found.ok()?.ok()?.clone()
    }

    /// Sends a message that expects no answer. Says whether somebody was there.
    pub fn tell(&self, message: M) -> bool {
        post(&mut self.cell(), message)
    }

    /// Asks, waiting up to `within` for the actor and for its answer. A question that finds a dead actor was not
    /// delivered, so it is put to the next one.
    pub async fn ask<R: Send + 'static>(
        &self,
        within: Duration,
        question: impl FnOnce(RpcReplyPort<R>) -> M,
    ) -> Result<R, AskError> {
        let until = monotonic() + within;
        let (reply, answer) = ractor::concurrency::oneshot();
        self.deliver(question(reply.into()), within.min(REACH)).await?;
        let left = until.saturating_duration_since(monotonic());
        match tokio::time::timeout(left, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err(AskError::Lost),
            Err(_) => Err(AskError::Late),
        }
    }

    async fn deliver(&self, mut message: M, within: Duration) -> Result<(), AskError> {
        let mut cell = self.cell.clone();
        let delivering = async {
            let mut dead = None;
            loop {
                let alive = |actor: &Option<ActorRef<M>>| {
                    actor.as_ref().is_some_and(|actor| Some(actor.get_id()) != dead)
                };
                let found = cell.wait_for(alive).await.ok().and_then(|actor| actor.clone());
                let actor = found.ok_or(AskError::Down)?;
                message = match actor.send_message(message) {
                    Ok(()) => return Ok(()),
                    Err(MessagingErr::SendErr(undelivered)) => undelivered,
                    Err(MessagingErr::ChannelClosed | MessagingErr::InvalidActorType) => {
                        return Err(AskError::Down);
                    }
                };
                dead = Some(actor.get_id());
            }
        };
        tokio::time::timeout(within, delivering).await.unwrap_or(Err(AskError::Down))
    }
}

/// Sends a message to whoever is in the cell, which counts as seen from here on, and lets go of them. Says whether
/// somebody was there; where nobody was, the message is dropped.
pub(crate) fn post<M: Message>(cell: &mut watch::Receiver<Option<ActorRef<M>>>, message: M) -> bool {
    let actor = cell.borrow_and_update().clone();
    actor.is_some_and(|actor| actor.cast(message).is_ok())
}

/// Asks one actor, whoever else holds its address: the wait ends with the actor, too.
pub async fn ask<M: Message, R: Send + 'static>(
    actor: &ActorRef<M>,
    within: Duration,
    question: impl FnOnce(RpcReplyPort<R>) -> M,
) -> Result<R, AskError> {
    let (reply, mut answer) = ractor::concurrency::oneshot();
    actor.cast(question(reply.into())).map_err(|_gone| AskError::Down)?;
    let answered = async {
        tokio::select! {
            biased;
            answer = &mut answer => answer.map_err(|_dropped| AskError::Lost),
            _ = actor.wait(None) => answer.try_recv().map_err(|_none| AskError::Lost),
        }
    };
    tokio::time::timeout(within, answered).await.unwrap_or(Err(AskError::Late))
}
