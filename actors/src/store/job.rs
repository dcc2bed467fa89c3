//! One transition on its way to the writer, and what its sender learns.
//!
//! Owns the difference between *not applied* and *in doubt*. A ticket goes from waiting to started or abandoned, once,
//! so that a sender who stops waiting knows whether the writer can still begin, and the writer knows whether anybody
//! waits. A job that is dropped before it was started was not applied, and says so; one that was started and is dropped
//! says nothing, and its sender is in doubt.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

use holdpoint_core::event::Event;
use holdpoint_core::time::UnixNanos;
use holdpoint_core::transition::{Durability, Refusal, Transition};
use tokio::sync::oneshot;

/// Which of the writer's two lanes a transition takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lane {
    /// It begins something: refused while the store has trouble, and taken after the other lane.
    Intent,
    /// It records what happened, renews a lease or carries a person's decision: intents cannot crowd it out, and it is
    /// tried again for ten seconds while the disk is full or the file locked.
    Outcome,
}

/// A committed transition.
#[derive(Debug, Clone)]
pub struct Applied {
    /// What was committed.
    pub(super) transition: Arc<Transition>,
    /// The numbers of its events.
    pub seqs: Range<i64>,
    /// When the lease that it took ends, by the wall clock.
    pub lease_expires_at: Option<UnixNanos>,
    /// The moment that the lease is counted from, by the monotonic clock.
    pub stamped_at: Instant,
    /// How durable it is by now: a neighbour in its batch may have made it more so than it asked.
    pub durability: Durability,
}

impl Applied {
    /// Its events, numbered. They are made here, for whoever wants them, and not by the writer, for whom everybody waits.
    pub fn events(&self) -> impl Iterator<Item = Event> {
        self.transition.events.iter().zip(self.seqs.clone()).map(|(event, seq)| event.numbered(seq))
    }
}

/// What became of a transition that was not applied, or may not have been.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// A guard failed. Nothing was written.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// It was not tried, or rolled back. Nothing was written.
    #[error(transparent)]
    NotApplied(#[from] NotApplied),
    /// It was started and its end is unknown. Only the record can tell.
    #[error(
        "learn what became of a write: the writer ended before it answered; the record shows whether it is there"
    )]
    InDoubt,
}

/// Why nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotApplied {
    /// Too much waits already.
    #[error("write to the database: too many writes wait; try again")]
    Door,
    /// Its turn did not come in time.
    #[error("write to the database: its turn did not come in time; try again")]
    Deadline,
    /// The writer is starting, ending, or gone.
    #[error("write to the database: the writer is not running; try again")]
    Down,
    /// The disk is full.
    #[error("write to the database: the disk is full; free some space")]
    DiskFull,
    /// So little space is left that outcomes might not fit.
    #[error("begin anything new: less than 16 MiB is free beside the database; free some space")]
    LowSpace,
    /// The path leads to another file than the one that is open, or to none.
    #[error(
        "begin anything new: the database, or its -wal or -shm file, was moved, deleted or replaced; put it back, or start again"
    )]
    Moved,
    /// Another process kept the file locked.
    #[error("write to the database: another process keeps it locked")]
    Locked,
    /// The file can't be written.
    #[error("write to the database: the file is read-only")]
    ReadOnly,
    /// SQLite refused its rows: a fault of ours, or a damaged row.
    #[error("write to the database: {0}")]
    Rows(String),
}

/// What a sender is told.
pub(super) type Outcome = Result<Applied, ApplyError>;

const WAITING: u8 = 0;
const STARTED: u8 = 1;
const ABANDONED: u8 = 2;

/// Says, to both sides, whether a job was started or abandoned.
#[derive(Debug, Clone)]
pub(super) struct Ticket(Arc<AtomicU8>);

impl Ticket {
    fn new() -> Ticket {
        Ticket(Arc::new(AtomicU8::new(WAITING)))
    }

    fn moved(&self, from: u8, to: u8) -> bool {
        self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// The writer begins. False when the sender stopped waiting: then it must not.
    fn start(&self) -> bool {
        self.moved(WAITING, STARTED)
    }

    /// The sender stops waiting. True when the writer can never begin any more.
    pub(super) fn abandon(&self) -> bool {
        self.moved(WAITING, ABANDONED)
    }
}

/// A transition with its sender's reply channel. It is answered once, whatever happens to it.
#[derive(Debug)]
pub struct Job {
    transition: Arc<Transition>,
    lane: Lane,
    start_by: Instant,
    ticket: Ticket,
    reply: Option<oneshot::Sender<Outcome>>,
}

/// What the sender of a job holds.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) ticket: Ticket,
    pub(super) reply: oneshot::Receiver<Outcome>,
}

impl Drop for Pending {
    fn drop(&mut self) {
        // Whoever sent it is gone: what has not begun need not begin.
        self.ticket.abandon();
    }
}

impl Job {
    /// A job that must have begun by `start_by`.
    pub(super) fn new(transition: Arc<Transition>, lane: Lane, start_by: Instant) -> (Job, Pending) {
        let (send, receive) = oneshot::channel();
        let ticket = Ticket::new();
        let job = Job { transition, lane, start_by, ticket: ticket.clone(), reply: Some(send) };
        (job, Pending { ticket, reply: receive })
    }

    pub(super) fn transition(&self) -> &Transition {
        &self.transition
    }

    /// The transition, for whoever outlives the job.
    pub(super) fn shared(&self) -> Arc<Transition> {
        Arc::clone(&self.transition)
    }

    pub(super) fn lane(&self) -> Lane {
        self.lane
    }

    /// Whether it may still begin at `now`.
    pub(super) fn in_time(&self, now: Instant) -> bool {
        now <= self.start_by
    }

    /// Marks it as begun. False when nobody waits for it any more.
    pub(super) fn start(&self) -> bool {
        self.ticket.start()
    }

    /// Marks a begun one, whose transaction is known to be rolled back, as waiting again.
    pub(super) fn put_back(&self) {
        self.ticket.moved(STARTED, WAITING);
    }

    /// Answers it.
    pub(super) fn answer(mut self, outcome: Outcome) {
        if let Some(reply) = self.reply.take() {
            // A sender that is gone needs no answer: the record holds it.
            drop(reply.send(outcome));
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let Some(reply) = self.reply.take() else { return };
        if self.ticket.abandon() {
            drop(reply.send(Err(NotApplied::Down.into())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdpoint_core::ids::RunId;

    fn job() -> (Job, Pending) {
        let transition = Transition::of(RunId::from("r"), Durability::Synced);
        Job::new(Arc::new(transition), Lane::Intent, crate::clock::monotonic())
    }

    #[test]
    fn a_job_dropped_before_it_began_was_not_applied() {
        let (job, mut pending) = job();
        drop(job);
        assert_eq!(pending.reply.try_recv().unwrap().unwrap_err(), NotApplied::Down.into());
    }

    #[test]
    fn a_job_dropped_after_it_began_leaves_its_sender_in_doubt() {
        let (job, mut pending) = job();
        assert!(job.start());
        drop(job);
        assert_eq!(pending.reply.try_recv().unwrap_err(), oneshot::error::TryRecvError::Closed);
    }

    #[test]
    fn a_job_whose_sender_is_gone_never_begins() {
        let (job, pending) = job();
        drop(pending);
        assert!(!job.start());
    }

    #[test]
    fn a_sender_learns_whether_the_writer_can_still_begin() {
        let (first, first_sender) = job();
        assert!(first_sender.ticket.abandon());
        assert!(!first.start());
        let (second, second_sender) = job();
        assert!(second.start());
        assert!(!second_sender.ticket.abandon());
        second.put_back();
        assert!(second_sender.ticket.abandon());
    }
}
