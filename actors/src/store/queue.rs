//! What waits for the writer: two lanes, bounded, taken whole.
//!
//! A channel would have to be one lane, or two that a thread without a runtime can't wait on together, and could not
//! wake it for a timer. So this is a mutex and a condition variable. Nothing is done while the mutex is held but moving
//! pointers, so a sender on the runtime never waits for the disk.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use super::head::Head;
use super::job::{Job, Lane, NotApplied};
use crate::clock::lock;

/// Intents that may wait. Calls hold a permit each, so this is met only by those that ask for none.
const INTENTS_MAX: usize = 4_096;
/// Outcomes, renewals and decisions that may wait: some for each call in flight and each lease, with room.
const OUTCOMES_MAX: usize = 65_536;

/// Something for the writer to do.
#[derive(Debug)]
pub(super) enum Item {
    /// Apply a transition.
    Apply(Job),
    /// Apply outcomes in one transaction.
    Together(Vec<Job>),
    /// Answer when everything that was begun before is over.
    Barrier(Barrier),
}

impl Item {
    /// Answers that nothing was done.
    pub(super) fn refuse(self, why: NotApplied) {
        match self {
            Item::Apply(job) => job.answer(Err(why.into())),
            Item::Together(jobs) => jobs.into_iter().for_each(|job| job.answer(Err(why.clone().into()))),
            // Whoever asked may be gone.
            Item::Barrier(barrier) => drop(barrier.reply.send(Err(why))),
        }
    }
}

/// A question whose answer says that nothing begun before it is still open.
#[derive(Debug)]
pub struct Barrier {
    /// Whether everything committed before it must be synced too.
    pub(super) synced: bool,
    pub(super) reply: oneshot::Sender<Result<Passed, NotApplied>>,
}

/// What stood in the record when a barrier was passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passed {
    /// The newest event.
    pub head: Head,
    /// The number of the newest event that is known to be synced.
    pub synced_seq: i64,
}

/// What [`Queue::take`] brought.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// Something to do.
    Items,
    /// Nothing, in the time given.
    Nothing,
    /// Nothing more will come.
    Closed,
}

/// The two lanes.
#[derive(Debug, Default)]
pub(super) struct Queue {
    lanes: Mutex<Lanes>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Lanes {
    outcomes: VecDeque<Item>,
    intents: VecDeque<Item>,
    closed: bool,
    /// For tests: nothing is taken while it is held.
    held: bool,
}

impl Queue {
    /// Adds an item at the end of its lane. One that does not fit, or comes too late, is answered here.
    pub(super) fn push(&self, item: Item) {
        let refused = {
            let mut lanes = lock(&self.lanes);
            let intent = matches!(&item, Item::Apply(job) if job.lane() == Lane::Intent);
            if lanes.closed {
                Some((item, NotApplied::Down))
            } else if intent && lanes.intents.len() < INTENTS_MAX {
                lanes.intents.push_back(item);
                None
            } else if !intent && lanes.outcomes.len() < OUTCOMES_MAX {
                lanes.outcomes.push_back(item);
                None
            } else {
                Some((item, NotApplied::Door))
            }
        };
        match refused {
            None => self.changed.notify_one(),
            Some((item, why)) => item.refuse(why),
        }
    }

    /// Puts jobs back at the front of the lane of outcomes, in their order.
    pub(super) fn put_back(&self, jobs: Vec<Job>) {
        let mut lanes = lock(&self.lanes);
        for job in jobs.into_iter().rev() {
            lanes.outcomes.push_front(Item::Apply(job));
        }
    }

    /// Takes what waits, at most `max` items, outcomes first; waits for something at most `wait`, or for ever.
    pub(super) fn take(&self, into: &mut Vec<Item>, max: usize, wait: Option<Duration>) -> Taken {
        let mut lanes = lock(&self.lanes);
        loop {
            if lanes.closed {
                return Taken::Closed;
            }
            let empty = lanes.outcomes.is_empty() && lanes.intents.is_empty();
            if !lanes.held && !empty {
                let outcomes = lanes.outcomes.len().min(max);
                into.extend(lanes.outcomes.drain(..outcomes));
                let intents = lanes.intents.len().min(max - outcomes);
                into.extend(lanes.intents.drain(..intents));
                return Taken::Items;
            }
            lanes = match wait {
                None => self.changed.wait(lanes).unwrap_or_else(PoisonError::into_inner),
                Some(wait) => {
                    let (lanes, timeout) =
                        self.changed.wait_timeout(lanes, wait).unwrap_or_else(PoisonError::into_inner);
                    if timeout.timed_out() {
                        return if lanes.closed { Taken::Closed } else { Taken::Nothing };
                    }
                    lanes
                }
            };
        }
    }

    /// Takes every intent that waits.
    pub(super) fn take_intents(&self) -> Vec<Item> {
        lock(&self.lanes).intents.drain(..).collect()
    }

    /// Ends it: what waits is answered as not applied, and nothing more is taken.
    pub(super) fn close(&self) {
        let (outcomes, intents) = {
            let mut lanes = lock(&self.lanes);
            lanes.closed = true;
            lanes.held = false;
            (std::mem::take(&mut lanes.outcomes), std::mem::take(&mut lanes.intents))
        };
        self.changed.notify_all();
        // Dropped without the mutex: each wakes its sender.
        drop((outcomes, intents));
    }

    /// How many items wait in the lanes of outcomes and intents.
    pub(super) fn lengths(&self) -> (usize, usize) {
        let lanes = lock(&self.lanes);
        (lanes.outcomes.len(), lanes.intents.len())
    }

    /// Holds the writer back before its next batch, or lets it go on.
    #[cfg(any(test, feature = "faults"))]
    pub(super) fn hold(&self, held: bool) {
        lock(&self.lanes).held = held;
        self.changed.notify_all();
    }
}

/// Closes the queue when it is dropped: with the actor's state, however the actor ends.
#[derive(Debug)]
pub(super) struct CloseOnDrop(pub(super) std::sync::Arc<Queue>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}
