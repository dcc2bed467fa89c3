//! What sessions hold of the store: a handle that outlives writers.
//!
//! Owns the deadlines of every ask, the door for new calls, and the difference between an error after which nothing was
//! written and one after which only the record can tell. Never holds a writer's address longer than one message: the
//! supervisor fills a cell with the current one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use holdpoint_core::transition::{Probe, Transition};
use ractor::ActorRef;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::time::timeout;

use super::generation::WriterGeneration;
use super::job::{ApplyError, Job, Lane, NotApplied, Outcome, Pending};
use super::queue::{Barrier, Passed};
use super::reader::{ReadError, Reader, ReaderPool};
use super::{Applied, Arguments, Msg, Observation};
use crate::address::{Address, post};
use crate::clock;

/// Calls that may be between their two commits at one time. More would only wait at the disk, in memory.
const CALLS_MAX: usize = 512;
/// How long a call waits at the door.
const DOOR: Duration = Duration::from_secs(5);
/// How long an intent may wait for its turn.
const INTENT: Duration = Duration::from_secs(10);
/// How long an outcome is tried.
const OUTCOME: Duration = Duration::from_secs(10);
/// How long a begun transaction may take before its sender counts it as in doubt: a lock, a slow sync, with room.
const BEGUN: Duration = Duration::from_secs(20);
/// How long a doubt waits for a writer that can settle it.
const SETTLE: Duration = Duration::from_secs(20);

/// No place became free at the door in time. Nothing was executed and nothing recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("admit the call: {CALLS_MAX} calls were being recorded for {} s; try again", DOOR.as_secs())]
pub struct Unavailable;

/// The place of one call, which covers both of its commits.
#[derive(Debug)]
pub struct CallPermit {
    _place: OwnedSemaphorePermit,
}

/// The store as sessions see it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct StoreClient {
    address: Address<Msg>,
    reader: ReaderPool,
    /// The door: shared by every clone.
    calls: Arc<Semaphore>,
    generation: WriterGeneration,
}

impl StoreClient {
    /// A client of whatever writer `address` names.
    pub fn new(address: Address<Msg>, writer: &Arguments) -> StoreClient {
        StoreClient {
            address,
            reader: writer.reader(),
            calls: Arc::new(Semaphore::new(CALLS_MAX)),
            generation: writer.generation.clone(),
        }
    }

    /// Where its writer is, for faults.
    pub fn address(&self) -> &Address<Msg> {
        &self.address
    }

    /// Lets one call in, waiting at most five seconds.
    pub async fn admit(&self) -> Result<CallPermit, Unavailable> {
        match timeout(DOOR, Arc::clone(&self.calls).acquire_owned()).await {
            Ok(Ok(place)) => Ok(CallPermit { _place: place }),
            // Nobody closes the semaphore.
            Ok(Err(_)) | Err(_) => Err(Unavailable),
        }
    }

    /// Commits a transition. It returns when that is as durable as it asks.
    ///
    /// An intent that finds no writer is not applied. An outcome is tried for ten seconds, across a restart of the
    /// writer too, as long as it is known that nothing was written. Dropping the future abandons what has not begun.
    pub async fn apply(
        &self,
        lane: Lane,
        transition: impl Into<Arc<Transition>>,
    ) -> Result<Applied, ApplyError> {
        let transition = transition.into();
        let mut address = self.address.cell();
        let start_by = clock::monotonic()
            + match lane {
                Lane::Intent => INTENT,
                Lane::Outcome => OUTCOME,
            };
        loop {
            let (job, pending) = Job::new(Arc::clone(&transition), lane, start_by);
            let outcome = if post(&mut address, Msg::Apply(job)) {
                reply(pending, start_by).await
            } else {
                Err(NotApplied::Down.into())
            };
            match (outcome, lane) {
                (Err(ApplyError::NotApplied(NotApplied::Down)), Lane::Outcome) => {
                    if !another(&mut address, start_by).await {
                        return Err(NotApplied::Down.into());
                    }
                }
                (outcome, Lane::Intent | Lane::Outcome) => return outcome,
            }
        }
    }

    /// Commits outcomes in one transaction, however many they are; gives what came of each, in their order.
    ///
    /// Each is refused or applied for itself. Where nothing of them was begun, because no writer was there or it was
    /// busy for ten seconds, none is tried again.
    pub async fn apply_together(&self, transitions: &[Arc<Transition>]) -> Vec<Result<Applied, ApplyError>> {
        if transitions.is_empty() {
            return Vec::new();
        }
        let start_by = clock::monotonic() + OUTCOME;
        let new = |transition: &Arc<Transition>| Job::new(Arc::clone(transition), Lane::Outcome, start_by);
        let (jobs, pending): (Vec<_>, Vec<_>) = transitions.iter().map(new).unzip();
        // Dropped with the message where nobody takes it, the jobs say themselves that nothing was done.
        self.address.tell(Msg::ApplyTogether(jobs));
        let mut outcomes = Vec::with_capacity(pending.len());
        for pending in pending {
            outcomes.push(reply(pending, start_by).await);
        }
        outcomes
    }

    /// Says what became of a write whose reply was lost: whether its event is in the record.
    ///
    /// It waits, at most twenty seconds, for a writer behind which nothing that was begun earlier is still open.
    pub async fn settle(&self, probe: &Probe) -> Result<bool, ReadError> {
        self.pass(false, SETTLE).await.map_err(|_| ReadError::Unsettled)?;
        let probe = probe.clone();
        self.read(move |reader| reader.holds(&probe)).await
    }

    /// Makes everything durable that is committed, and says up to where. What leaves the machine as evidence must be
    /// at or below that.
    pub async fn sync(&self) -> Result<Passed, NotApplied> {
        self.pass(true, SETTLE).await
    }

    /// Reads one snapshot on a blocking thread.
    pub async fn read<T, F>(&self, read: F) -> Result<T, ReadError>
    where
        T: Send + 'static,
        F: FnOnce(&Reader<'_>) -> Result<T, ReadError> + Send + 'static,
    {
        self.reader.read(read).await
    }

    /// Keeps no connection for reading any more, so that who closes the database last is its writer, which folds the log
    /// into it.
    pub(crate) fn keep_no_reader(&self) {
        self.reader.keep_none();
    }

    /// Waits, once no writer will be started any more, until the last one's thread has let go of the file. Says whether
    /// it has in ten seconds.
    pub(crate) async fn let_go(&self) -> bool {
        self.generation.over().await.is_ok()
    }

    /// What the writer has done; none when it does not say so in time.
    pub async fn observe(&self, within: Duration) -> Option<Observation> {
        self.address.ask(within, Msg::Observe).await.ok()
    }

    /// Holds the writer back before its next batch, or lets it go on. False when there is none.
    #[cfg(any(test, feature = "faults"))]
    pub async fn hold(&self, held: bool) -> bool {
        self.address.ask(BEGUN, |reply| Msg::Hold(held, reply)).await.is_ok()
    }

    /// Passes a barrier, trying writer after writer.
    async fn pass(&self, synced: bool, within: Duration) -> Result<Passed, NotApplied> {
        let mut address = self.address.cell();
        let until = clock::monotonic() + within;
        loop {
            let (send, receive) = oneshot::channel();
            if post(&mut address, Msg::Pass(Barrier { synced, reply: send })) {
                match timeout(left(until), receive).await {
                    Ok(Ok(Ok(passed))) => return Ok(passed),
                    Ok(Ok(Err(NotApplied::Down)) | Err(_)) => {}
                    Ok(Ok(Err(why))) => return Err(why),
                    Err(_elapsed) => return Err(NotApplied::Deadline),
                }
            }
            if !another(&mut address, until).await {
                return Err(NotApplied::Down);
            }
        }
    }
}

/// Waits for the answer to a job that was sent.
async fn reply(mut pending: Pending, start_by: Instant) -> Outcome {
    let answered = |answer: Result<Outcome, oneshot::error::RecvError>| match answer {
        Ok(outcome) => outcome,
        Err(_dropped) => Err(ApplyError::InDoubt),
    };
    if let Ok(answer) = timeout(left(start_by), &mut pending.reply).await {
        return answered(answer);
    }
    if pending.ticket.abandon() {
        return Err(NotApplied::Deadline.into());
    }
    match timeout(BEGUN, &mut pending.reply).await {
        Ok(answer) => answered(answer),
        Err(_elapsed) => Err(ApplyError::InDoubt),
    }
}

/// Waits for another writer than the last one seen. False when none came in time.
async fn another(address: &mut watch::Receiver<Option<ActorRef<Msg>>>, until: Instant) -> bool {
    matches!(timeout(left(until), address.changed()).await, Ok(Ok(())))
}

fn left(until: Instant) -> Duration {
    until.saturating_duration_since(clock::monotonic())
}
