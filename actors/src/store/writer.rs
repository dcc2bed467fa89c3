//! The thread that owns the write connection.
//!
//! Owns the order of its work: what waits, the row that makes written commits durable, the idle checkpoint, the pause
//! that lets other processes in. Never talks to an actor: it takes from a queue and answers each sender itself. It
//! ends when its queue is closed, or when the disk fails; then nobody knows what reached it, and everything that was
//! begun is dropped unanswered.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use holdpoint_core::transition::Durability;
use rusqlite::Connection;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

use super::batch::{Connected, Done};
use super::fault::Fault;
use super::faults::Point;
use super::generation::{Start, WriterGeneration};
use super::job::{Applied, Job, Lane, NotApplied};
use super::observe::Counts;
use super::place::Place;
use super::queue::{Barrier, Item, Passed, Queue, Taken};
use super::room::Room;
use super::{Options, StartError, files, log, open};
use crate::clock;
use crate::faults::process::{self, Broken};

/// How long a written commit may stay unsynced.
const UNSYNCED_MAX: Duration = Duration::from_millis(100);
/// How long nothing must come before the log is copied into the database.
const IDLE: Duration = Duration::from_secs(1);
/// After so much unbroken work the writer pauses, so that another process gets the lock.
const UNBROKEN_MAX: Duration = Duration::from_millis(100);
/// The pause: two tries of another's busy handler.
const PAUSE: Duration = Duration::from_millis(2);
/// From so many on, answers are given by a task.
const MANY: usize = 8;
/// Between two tries of outcomes that found the disk full.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// What a thread is started with.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) path: PathBuf,
    /// The open connection, for the first writer.
    pub(super) opened: Option<(Connection, Place)>,
    pub(super) options: Options,
    pub(super) start: Start,
    pub(super) queue: Arc<Queue>,
    pub(super) counts: Arc<Counts>,
    pub(super) generation: WriterGeneration,
    /// Where many answers are given.
    pub(super) runtime: Handle,
}

/// What the actor hears from its thread.
#[derive(Debug)]
pub(super) struct Signals {
    /// Whether the file was opened.
    pub(super) opened: oneshot::Receiver<Result<(), StartError>>,
    /// Resolves when the thread serves no more, with why.
    pub(super) dead: oneshot::Receiver<String>,
}

/// Starts the thread. It opens the file itself: opening waits for locks and disks.
pub(super) fn start(plan: Plan) -> std::io::Result<Signals> {
    let (opened_send, opened) = oneshot::channel();
    let (dead_send, dead) = oneshot::channel();
    let (ended_send, ended) = watch::channel(());
    let (queue, generation) = (Arc::clone(&plan.queue), plan.generation.clone());
    let thread: JoinHandle<()> =
        thread::Builder::new().name("holdpoint-writer".to_owned()).spawn(move || {
            let _ended = ended_send;
            let (queue, generation) = (Arc::clone(&plan.queue), plan.generation.clone());
            let lived = catch_unwind(AssertUnwindSafe(|| live(plan, opened_send)));
            let why = match lived {
                Ok(Ok(())) => "its queue was closed".to_owned(),
                Ok(Err(error)) => {
                    generation.disk_failed(true);
                    tracing::error!(%error, "the writer's disk failed");
                    error.to_string()
                }
                Err(_) => "it panicked".to_owned(),
            };
            queue.close();
            drop(dead_send.send(why));
        })?;
    generation.started(queue, thread, ended);
    Ok(Signals { opened, dead })
}

/// Opens and serves; an error is one that ends the writer.
fn live(plan: Plan, opened: oneshot::Sender<Result<(), StartError>>) -> rusqlite::Result<()> {
    match Writer::open(plan) {
        Ok(writer) => {
            // Nobody listens any more: then the queue is closed, too.
            drop(opened.send(Ok(())));
            writer.serve()
        }
        Err(error) => {
            drop(opened.send(Err(error)));
            Ok(())
        }
    }
}

struct Writer {
    db: Connected,
    queue: Arc<Queue>,
    counts: Arc<Counts>,
    options: Options,
    room: Room,
    place: Place,
    /// The files beside it that are open with it. They hold the newest commits.
    beside: Vec<Place>,
    /// When the oldest commit that is not synced was made.
    unsynced_since: Option<Instant>,
    /// When the last item was served, if the log has grown since it was last copied.
    busy_at: Option<Instant>,
    /// When unbroken work began.
    unbroken_since: Instant,
    /// Why outcomes are being tried again, while they are.
    trouble: Option<NotApplied>,
    runtime: Handle,
}

impl Writer {
    fn open(plan: Plan) -> Result<Writer, StartError> {
        let Plan { path, opened, options, start, queue, counts, generation, runtime } = plan;
        let before = generation.place();
        if before.as_ref().is_some_and(|place| !place.is_still_there()) {
            return Err(StartError::Moved);
        }
        let (conn, place) = match opened {
            Some(opened) => opened,
            None => open::writer(&path, &options)?,
        };
        if !place.is_still_there() || before.is_some_and(|before| before != place) {
            return Err(StartError::Moved);
        }
        generation.opened(place.clone());
        let mut db = Connected::new(conn, options.faults.clone());
        if start.number > 1 {
            // Whoever asks what became of a write is answered only after this: it overwrites what an older thread left
            // in the log without its commit, or syncs what it left with it.
            db.flush().map_err(StartError::Unsettled)?;
        }
        if start.empty_log {
            let emptied = db.checkpoint_truncate().map_err(StartError::Unsettled)?;
            if !emptied {
                return Err(StartError::LogInUse);
            }
            generation.disk_failed(false);
        }
        db.lengthen_log(&path, options.log_bytes);
        let beside = ["-wal", "-shm"].iter().flat_map(|suffix| Place::of(&files::beside(&path, suffix)));
        let beside = beside.collect();
        let now = clock::monotonic();
        Ok(Writer {
            db,
            queue,
            counts,
            room: Room::beside(path, options.free_min),
            place,
            beside,
            options,
            unsynced_since: None,
            busy_at: Some(now),
            unbroken_since: now,
            trouble: None,
            runtime,
        })
    }

    fn serve(mut self) -> rusqlite::Result<()> {
        let served = self.serve_until_closed();
        if served.is_err() {
            // Closing would copy the log and sync again, and a sync that failed once may claim success.
            self.db.leave_log_alone();
        }
        served
    }

    fn serve_until_closed(&mut self) -> rusqlite::Result<()> {
        let batch_max = self.options.batch_max.max(1);
        let mut items = Vec::with_capacity(batch_max);
        loop {
            let before = clock::monotonic();
            let taken = self.queue.take(&mut items, batch_max, self.next_timer(before));
            let now = clock::monotonic();
            if now.duration_since(before) >= PAUSE {
                self.unbroken_since = now;
            }
            match taken {
                Taken::Closed => return Ok(()),
                Taken::Nothing => {}
                Taken::Items => {
                    self.serve_items(&mut items)?;
                    self.copy_long_log()?;
                }
            }
            self.run_timers()?;
            self.let_others_in();
        }
    }

    fn serve_items(&mut self, items: &mut Vec<Item>) -> rusqlite::Result<()> {
        self.options.faults.at(Point::Taken)?;
        // While outcomes are tried again nothing new begins.
        let is_outcome = |item: &Item| match item {
            Item::Apply(job) => job.lane() == Lane::Outcome,
            Item::Together(_) => true,
            Item::Barrier(_) => false,
        };
        let trouble = self.trouble.clone().filter(|_| items.iter().any(is_outcome));
        // Nor where nobody would find it. Outcomes still belong to the file in which their calls began.
        let is_intent = |item: &Item| matches!(item, Item::Apply(job) if job.lane() == Lane::Intent);
        let begins = items.iter().any(is_intent);
        let trouble =
            trouble.or_else(|| (begins && !self.is_where_it_is_looked_for()).then_some(NotApplied::Moved));
        let (mut jobs, mut barriers) = (Vec::with_capacity(items.len()), Vec::new());
        for item in items.drain(..) {
            match item {
                Item::Apply(job) => jobs.extend(self.admit(job, trouble.as_ref())),
                Item::Together(together) => {
                    jobs.extend(together.into_iter().filter_map(|job| self.admit(job, trouble.as_ref())));
                }
                Item::Barrier(barrier) => barriers.push(barrier),
            }
        }
        if !jobs.is_empty() {
            self.busy_at = Some(clock::monotonic());
            self.run(jobs)?;
        }
        barriers.into_iter().try_for_each(|barrier| self.pass(barrier))
    }

    fn is_where_it_is_looked_for(&self) -> bool {
        self.place.is_still_there() && self.beside.iter().all(Place::is_still_there)
    }

    /// Marks a job as begun, or answers it.
    fn admit(&mut self, job: Job, trouble: Option<&NotApplied>) -> Option<Job> {
        let now = clock::monotonic();
        let refused = match job.lane() {
            _ if !job.in_time(now) => Some(self.trouble.clone().unwrap_or(NotApplied::Deadline)),
            Lane::Intent if trouble.is_some() => trouble.cloned(),
            Lane::Intent if !self.room.is_enough(now) => Some(NotApplied::LowSpace),
            Lane::Intent | Lane::Outcome => None,
        };
        match refused {
            Some(why) => {
                job.answer(Err(why.into()));
                None
            }
            None => job.start().then_some(job),
        }
    }

    fn run(&mut self, jobs: Vec<Job>) -> rusqlite::Result<()> {
        let clock = Arc::clone(&self.options.clock);
        if process::is(Broken::AnswerBeforeCommit) {
            return self.answer_too_early(jobs);
        }
        let mut done = self.db.run(&jobs, &*clock);
        if process::is(Broken::RetryAfterFailedSync) && is_io(&done) {
            done = self.db.replay(&jobs, &*clock);
        }
        if process::is(Broken::FailedSyncTaken) && is_io(&done) {
            let taken = Done::as_if_committed(&jobs, &*clock);
            return self.answer(jobs, taken);
        }
        // A lock that another process holds is no fault of any member.
        if done.as_ref().is_err_and(|e| !matches!(Fault::of(e), Fault::Locked | Fault::Io | Fault::Damaged)) {
            self.counts.note(|counts| counts.replays += 1);
            done = self.db.replay(&jobs, &*clock);
        }
        match done {
            Ok(done) => self.answer(jobs, done),
            Err(error) => self.put_off(jobs, error),
        }
    }

    /// What a deliberately broken build does: everybody is told, and then it is committed.
    fn answer_too_early(&mut self, jobs: Vec<Job>) -> rusqlite::Result<()> {
        let clock = Arc::clone(&self.options.clock);
        let done = self.db.run_uncommitted(&jobs, &*clock)?;
        let events = jobs.iter().flat_map(|job| &job.transition().events);
        let kinds: Vec<_> = events.map(|event| event.kind.as_str()).collect();
        self.answer(jobs, done)?;
        self.db.commit_withheld(&kinds)
    }

    fn answer(&mut self, jobs: Vec<Job>, done: Done) -> rusqlite::Result<()> {
        self.options.faults.at(Point::Answer)?;
        let applied = done.results.iter().filter(|result| result.is_ok()).count() as u64;
        let refused = done.results.len() as u64 - applied;
        let synced = done.committed == Some(Durability::Synced);
        match done.committed {
            Some(Durability::Synced) => self.unsynced_since = None,
            Some(Durability::Written) => {
                self.unsynced_since.get_or_insert_with(clock::monotonic);
            }
            None => {}
        }
        if process::is(Broken::ReadsUnsynced) {
            self.unsynced_since = None;
        }
        let had_trouble = self.trouble.take().is_some();
        self.counts.note(|counts| {
            counts.applied += applied;
            counts.refused += refused;
            counts.synced_commits += u64::from(synced);
            counts.written_commits += u64::from(done.committed == Some(Durability::Written));
            if let Some(seq) = done.newest_seq.filter(|_| synced) {
                counts.synced_seq = seq;
            }
            if had_trouble {
                counts.trouble = None;
            }
        });
        let durability = done.committed.unwrap_or(Durability::Written);
        let stamped_at = done.stamp.monotonic;
        let many = jobs.len() >= MANY;
        let answer_all = move || {
            for (job, result) in jobs.into_iter().zip(done.results) {
                let transition = job.shared();
                job.answer(result.map(|written| Applied {
                    transition,
                    seqs: written.seqs,
                    lease_expires_at: written.lease_expires_at,
                    stamped_at,
                    durability,
                }));
            }
        };
        if many {
            // Waking each from here would cost this thread, for which everybody waits, more than one task.
            self.runtime.spawn(async move { answer_all() });
        } else {
            answer_all();
        }
        Ok(())
    }

    /// Refuses intents and keeps outcomes for another try, or ends the writer.
    fn put_off(&mut self, jobs: Vec<Job>, error: rusqlite::Error) -> rusqlite::Result<()> {
        let why = match Fault::of(&error) {
            Fault::Io | Fault::Damaged => return Err(error),
            Fault::Locked => NotApplied::Locked,
            Fault::Full => NotApplied::DiskFull,
            Fault::ReadOnly => NotApplied::ReadOnly,
            Fault::Statement => NotApplied::Rows(error.to_string()),
        };
        tracing::warn!(%error, jobs = jobs.len(), "a batch was rolled back");
        let (outcomes, intents): (Vec<Job>, Vec<Job>) =
            jobs.into_iter().partition(|job| job.lane() == Lane::Outcome);
        for item in intents.into_iter().map(Item::Apply).chain(self.queue.take_intents()) {
            item.refuse(why.clone());
        }
        outcomes.iter().for_each(Job::put_back);
        self.queue.put_back(outcomes);
        self.counts.note(|counts| counts.trouble = Some(why.to_string()));
        if why != NotApplied::Locked {
            // A locked file was waited for already.
            thread::sleep(RETRY_PAUSE);
        }
        self.trouble = Some(why);
        Ok(())
    }

    fn pass(&mut self, barrier: Barrier) -> rusqlite::Result<()> {
        let passed = if barrier.synced { self.flush() } else { self.db.newest() };
        let answer = match passed {
            Ok(head) => Ok(Passed { head, synced_seq: self.synced_seq() }),
            Err(error) => match Fault::of(&error) {
                Fault::Io | Fault::Damaged => return Err(error),
                Fault::Locked => Err(NotApplied::Locked),
                Fault::Full => Err(NotApplied::DiskFull),
                Fault::ReadOnly => Err(NotApplied::ReadOnly),
                Fault::Statement => Err(NotApplied::Rows(error.to_string())),
            },
        };
        drop(barrier.reply.send(answer));
        Ok(())
    }

    fn synced_seq(&self) -> i64 {
        self.counts.observe(&self.queue).synced_seq
    }

    fn flush(&mut self) -> rusqlite::Result<super::Head> {
        let head = self.db.flush()?;
        self.unsynced_since = None;
        self.counts.note(|counts| {
            counts.flushes += 1;
            counts.synced_seq = head.seq;
        });
        Ok(head)
    }

    /// How long nothing need be done, if nothing comes.
    fn next_timer(&self, now: Instant) -> Option<Duration> {
        let flush = self.unsynced_since.map(|since| since + UNSYNCED_MAX);
        let checkpoint = self.busy_at.map(|at| at + IDLE);
        let next = flush.into_iter().chain(checkpoint).min()?;
        Some(next.saturating_duration_since(now))
    }

    fn run_timers(&mut self) -> rusqlite::Result<()> {
        let now = clock::monotonic();
        let due = |at: Option<Instant>, after| at.is_some_and(|at| now >= at + after);
        if due(self.unsynced_since, UNSYNCED_MAX)
            && let Err(error) = self.flush()
        {
            if Fault::of(&error).ends_the_writer() {
                return Err(error);
            }
            tracing::warn!(%error, "what was written could not be synced yet");
            self.unsynced_since = Some(now);
        }
        if due(self.busy_at, IDLE) {
            self.busy_at = None;
            self.copy_log()?;
        }
        Ok(())
    }

    /// Copies a log that has become long: sooner when nobody waits, and never before who was served is answered.
    fn copy_long_log(&mut self) -> rusqlite::Result<()> {
        let somebody_waits = self.queue.lengths() != (0, 0);
        let long = if somebody_waits { log::PAGES_MAX } else { log::PAGES };
        let pages = unless_it_ends_the_writer(self.db.log_pages(), "the log does not say how long it is")?;
        if pages.is_some_and(|pages| pages >= long) { self.copy_log() } else { Ok(()) }
    }

    fn copy_log(&mut self) -> rusqlite::Result<()> {
        if unless_it_ends_the_writer(self.db.checkpoint_passive(), "the log was not copied")?.is_some() {
            self.counts.note(|counts| counts.checkpoints += 1);
        }
        Ok(())
    }

    fn let_others_in(&mut self) {
        let now = clock::monotonic();
        if now.duration_since(self.unbroken_since) >= UNBROKEN_MAX {
            thread::sleep(PAUSE);
            self.unbroken_since = clock::monotonic();
            self.counts.note(|counts| counts.pauses += 1);
        }
    }
}

/// What housekeeping came to. It may fail; what ends the writer does so here, too.
fn unless_it_ends_the_writer<T>(done: rusqlite::Result<T>, what: &str) -> rusqlite::Result<Option<T>> {
    match done {
        Ok(done) => Ok(Some(done)),
        Err(error) if Fault::of(&error).ends_the_writer() => Err(error),
        Err(error) => {
            tracing::debug!(%error, "{what}");
            Ok(None)
        }
    }
}

/// Whether a batch failed because the disk did.
fn is_io(done: &rusqlite::Result<Done>) -> bool {
    done.as_ref().is_err_and(|error| Fault::of(error) == Fault::Io)
}

#[cfg(test)]
mod tests;
