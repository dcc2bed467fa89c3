//! The store: the record of every run in one SQLite file, with one writer and many readers.
//!
//! [`StoreWriter`] is the actor in front of the thread that owns the write connection. It only forwards: its handler
//! never waits and never touches SQL. Sessions talk to a [`StoreClient`], which outlives writers; operator commands open
//! an [`OperatorStore`] and need no actor. Everything that is SQL is below this folder, one table a file, and the
//! values that are applied ([`Transition`](holdpoint_core::transition::Transition)) know nothing of it.
//!
//! Reading order: `schema` (the tables), `apply` and `guards` (one transition), `batch` (one transaction), `writer` (the
//! thread), `generation` (restarts), `client` (what callers see).

mod apply;
mod approvals;
mod batch;
mod client;
mod column;
mod endings;
mod events;
mod fault;
pub mod faults;
mod files;
mod generation;
mod groups;
mod guards;
mod head;
mod health;
mod index;
mod job;
mod log;
mod model_calls;
mod observe;
mod open;
mod operator;
mod pages;
mod place;
mod queue;
mod reader;
mod room;
mod runs;
mod schema;
mod signatures;
mod specs;
mod steps;
mod writer;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort};
use rusqlite::Connection;

use crate::clock::{Clock, WallClock, lock};
use crate::faults::Failure;
use crate::supervisor::Fatal;
use faults::Faults;
use generation::WriterGeneration;
use observe::Counts;
use place::Place;
use queue::{CloseOnDrop, Item, Queue};
use writer::Plan;

pub use client::{CallPermit, StoreClient, Unavailable};
pub use fault::Fault;
pub use files::{Error as FileError, Insecurity};
pub use groups::GroupStore;
pub use head::Head;
pub use health::{Health, HeldRun, OpenRuns};
pub use index::{Depth, IndexedRun, RecentCall, RunningCall, Seen};
pub use job::{Applied, ApplyError, Job, Lane, NotApplied};
pub use log::LOG_BYTES;
pub use observe::Observation;
pub use open::{BUSY, OpenError};
pub use operator::{Answer, DecideError, OperatorStore, Verdict};
pub use pages::{ListedRun, Page, TEXT_CHARS_MAX};
pub use queue::{Barrier, Passed};
pub use reader::{ReadError, Reader, ReaderPool};
pub use schema::Error as SchemaError;
pub use signatures::{SignatureError, SignatureStore, SignedRequest, Taken};

/// New intents stop below this many free bytes, so that the outcomes of calls in flight still fit.
pub const FREE_MIN: u64 = 16 << 20;
/// Items of one transaction. More would make the first ones wait without saving syncs.
pub const BATCH_MAX: usize = 256;

/// How a database is opened for writing.
#[derive(Debug, Clone)]
pub struct Options {
    /// Whether the proxy's index of calls is made. An embedder needs none.
    pub proxy_index: bool,
    /// Whether the database must be this user's and named directly. Else a link to it is followed, and whose it is does
    /// not matter.
    pub own: bool,
    /// How long another connection's lock is waited for.
    pub busy: Duration,
    /// Free bytes below which new intents stop.
    pub free_min: u64,
    /// The length that the log is given before anything is served; zero leaves it to grow.
    pub log_bytes: u64,
    /// The most items of one transaction. One makes a commit of every change, which is what batching is measured against.
    pub batch_max: usize,
    /// The wall clock that leases are stamped with and judged by.
    pub clock: Arc<dyn Clock>,
    /// Faults that a test has put in.
    pub faults: Faults,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            proxy_index: true,
            own: false,
            busy: BUSY,
            free_min: FREE_MIN,
            log_bytes: LOG_BYTES,
            batch_max: BATCH_MAX,
            clock: Arc::new(WallClock),
            faults: Faults::default(),
        }
    }
}

/// The actor in front of the writer's thread.
#[derive(Debug, Clone, Copy, Default)]
pub struct StoreWriter;

/// What a writer is started with, the first time and every time after.
#[derive(Debug, Clone)]
pub struct Arguments {
    path: PathBuf,
    options: Options,
    generation: WriterGeneration,
    /// The connection that the first writer takes over.
    opened: Arc<Mutex<Option<(Connection, Place)>>>,
}

impl Arguments {
    /// Opens the database for writing: makes it when it is missing, checks and migrates it.
    ///
    /// # Errors
    /// When it is refused, with one sentence that says what to do.
    pub fn open(path: &Path, options: Options) -> Result<Arguments, OpenError> {
        let (conn, place) = open::writer(path, &options)?;
        let path = place.path().to_owned();
        let opened = Arc::new(Mutex::new(Some((conn, place))));
        Ok(Arguments { path, options, generation: WriterGeneration::default(), opened })
    }

    /// The database's real path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Connections for reading it.
    pub fn reader(&self) -> ReaderPool {
        ReaderPool::new(self.path.clone())
    }
}

/// Why a writer did not start. It is the error that `pre_start` gives, to be had back with `downcast_ref`.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The file was refused.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The old thread still has the file open. The process must end: two writers would not know of each other.
    #[error("start the writer: the one before it has not let go of the database; end this process")]
    Stuck,
    /// What an old writer left could not be made certain. The process must end if the disk had failed.
    #[error("start the writer: make certain what the one before it wrote: {0}")]
    Unsettled(#[source] rusqlite::Error),
    /// A reader kept the log from being emptied after the disk had failed. The process must end.
    #[error("start the writer: the log could not be emptied after the disk failed; end this process")]
    LogInUse,
    /// The path leads to another file than before, or to none. The process must end: its record is not there.
    #[error("start the writer: the database was moved, deleted or replaced; put it back and start again")]
    Moved,
    /// There is no thread to be had.
    #[error("start the writer's thread: {0}")]
    Thread(#[source] std::io::Error),
    /// The thread ended while it opened the file.
    #[error("start the writer: its thread ended while it opened the database")]
    Ended,
}

impl StartError {
    /// Whether trying again in this process can't help, or would be wrong.
    pub fn must_end_process(&self) -> bool {
        match self {
            StartError::Stuck | StartError::LogInUse | StartError::Unsettled(_) | StartError::Moved => true,
            StartError::Open(_) | StartError::Thread(_) | StartError::Ended => false,
        }
    }
}

/// What the writer takes.
#[derive(Debug)]
pub enum Msg {
    /// Apply a transition; the job answers its sender itself.
    Apply(Job),
    /// Apply transitions, all in one transaction; each job answers its sender itself.
    ApplyTogether(Vec<Job>),
    /// Answer when everything begun before is over.
    Pass(Barrier),
    /// Tell what was done.
    Observe(RpcReplyPort<Observation>),
    /// Hold the thread back before its next batch, or let it go on.
    #[cfg(any(test, feature = "faults"))]
    Hold(bool, RpcReplyPort<()>),
    /// The thread serves no more.
    ThreadDied(String),
    /// Ends it in the way named. Only in builds for tests.
    Fail(Failure),
}

/// The actor's side of its thread.
#[derive(Debug)]
pub struct State {
    queue: CloseOnDrop,
    counts: Arc<Counts>,
}

/// Waits for the thread before, and starts the next one.
async fn start(myself: ActorRef<Msg>, args: Arguments) -> Result<State, StartError> {
    let start = args.generation.next().await.map_err(|_stuck| StartError::Stuck)?;
    let queue = CloseOnDrop(Arc::new(Queue::default()));
    let counts = Arc::new(Counts::of_generation(start.number));
    let signals = writer::start(Plan {
        path: args.path,
        opened: lock(&args.opened).take(),
        options: args.options,
        start,
        queue: Arc::clone(&queue.0),
        counts: Arc::clone(&counts),
        generation: args.generation,
        runtime: tokio::runtime::Handle::current(),
    })
    .map_err(StartError::Thread)?;
    signals.opened.await.map_err(|_closed| StartError::Ended)??;
    tokio::spawn(async move {
        let why = signals.dead.await.unwrap_or_else(|_| "its thread is gone".to_owned());
        // An actor that is gone already needs no news.
        drop(myself.cast(Msg::ThreadDied(why)));
    });
    Ok(State { queue, counts })
}

impl Actor for StoreWriter {
    type Msg = Msg;
    type State = State;
    type Arguments = Arguments;

    async fn pre_start(&self, myself: ActorRef<Msg>, args: Arguments) -> Result<State, ActorProcessingErr> {
        start(myself, args).await.map_err(|error| {
            if error.must_end_process() { Fatal(error.to_string()).into() } else { error.into() }
        })
    }

    async fn handle(
        &self,
        _myself: ActorRef<Msg>,
        msg: Msg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match msg {
            Msg::Apply(job) => state.queue.0.push(Item::Apply(job)),
            Msg::ApplyTogether(jobs) => state.queue.0.push(Item::Together(jobs)),
            Msg::Pass(barrier) => state.queue.0.push(Item::Barrier(barrier)),
            Msg::Observe(reply) => crate::answer(reply, state.counts.observe(&state.queue.0)),
            #[cfg(any(test, feature = "faults"))]
            Msg::Hold(held, reply) => {
                state.queue.0.hold(held);
                crate::answer(reply, ());
            }
            Msg::ThreadDied(why) => return Err(format!("the writer's thread ended: {why}").into()),
            Msg::Fail(failure) => failure.happen()?,
        }
        Ok(())
    }
}
