//! The follower: a page of events, synced, delivered one by one, the cursor saved, and again.
//!
//! Owns the order of these and what each failure means for the cursor. Never writes to the database, and never holds a
//! snapshot of it while a sink works.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use holdpoint_actors::approval::watch::{self, Watch};
use holdpoint_actors::store::{Head, OpenError, OperatorStore, ReadError};
use holdpoint_core::event::Event;
use holdpoint_core::ids::RunId;

use super::cursor::{Cursor, CursorError, MemCursor};
use super::sink::{Sink, SinkError};
use super::stop::Stop;

/// How long a follower that has delivered everything waits before it looks again, unless the log tells it sooner.
pub const INTERVAL: Duration = Duration::from_millis(250);
/// The longest wait: an event is never more than a minute from its sink.
pub const INTERVAL_MAX: Duration = Duration::from_secs(60);
/// Events that are read at a time.
pub const PAGE_EVENTS: u32 = 500;
/// The most events that are read at a time. Each is cut at 65,536 characters of payload.
pub const PAGE_EVENTS_MAX: u32 = 10_000;

/// Why a follower stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database was not opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// What was read could not be made to survive a power failure, so it was not handed on.
    #[error("sync the log of {}: {source}; what was read is not handed on", path.display())]
    Sync {
        /// The database.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The path leads to another file than the one that is read, or to none.
    #[error("follow {}: it was moved, deleted or replaced; follow it where it is now", path.display())]
    Moved {
        /// The database.
        path: PathBuf,
    },
    /// The cursor was not read or kept.
    #[error(transparent)]
    Cursor(#[from] CursorError),
    /// The cursor is past the end: it belongs to another database, or the end of this one was cut off.
    #[error(
        "follow from event {cursor}: the newest event is {newest}, so the cursor belongs to another database, or events were deleted"
    )]
    CursorAhead {
        /// Where the cursor stands.
        cursor: i64,
        /// The newest event.
        newest: i64,
    },
    /// The event that the cursor names is in the database no more.
    #[error("read the head at event {0}: there is no such event any more")]
    EventGone(i64),
    /// A sink failed.
    #[error("{0}")]
    Sink(#[source] SinkError),
}

/// Why a follower that did not fail returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Everything was delivered, and it was to follow no further.
    Drained,
    /// It was told to stop.
    Stopped,
}

/// What a follower did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Followed {
    /// Events delivered.
    pub events: u64,
    /// The number of the last event delivered, before this or now; zero for none.
    pub last: i64,
    /// Why it returned.
    pub end: End,
}

/// Delivers the events after a cursor, in the order of their commit.
///
/// The cursor is saved after each page and before [`Follower::follow`] returns. So every event is delivered exactly once
/// over stops that return, and at least once when the process is killed: at most one page comes again.
pub struct Follower {
    store: OperatorStore,
    run: Option<RunId>,
    cursor: Option<Box<dyn Cursor>>,
    pub(super) interval: Duration,
    pub(super) page_events: u32,
    once: bool,
    watches: bool,
}

impl fmt::Debug for Follower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follower").field("database", &self.store.path()).finish_non_exhaustive()
    }
}

impl Follower {
    /// Follows the database at `path`, of which nothing is changed. It must exist.
    ///
    /// # Errors
    /// When it is refused, as the operator's commands refuse it.
    pub fn open(path: impl AsRef<Path>) -> Result<Follower, Error> {
        Ok(Follower::of(OperatorStore::open(path.as_ref(), true)?))
    }

    /// Follows a database that is open.
    pub fn of(store: OperatorStore) -> Follower {
        Follower {
            store,
            run: None,
            cursor: None,
            interval: INTERVAL,
            page_events: PAGE_EVENTS,
            once: false,
            watches: true,
        }
    }

    /// Delivers the events of one run only; without this, of all.
    #[must_use]
    pub fn run(mut self, run: RunId) -> Follower {
        self.run = Some(run);
        self
    }

    /// Begins after the event that the cursor names, and keeps it there. Without this it begins at the first event and
    /// remembers nothing.
    #[must_use]
    pub fn cursor(mut self, cursor: impl Cursor + 'static) -> Follower {
        self.cursor = Some(Box::new(cursor));
        self
    }

    /// Says how long to wait when everything is delivered: [`INTERVAL`] for zero, never more than [`INTERVAL_MAX`].
    #[must_use]
    pub fn interval(mut self, interval: Duration) -> Follower {
        self.interval = if interval.is_zero() { INTERVAL } else { interval.min(INTERVAL_MAX) };
        self
    }

    /// Says how many events to read at a time: [`PAGE_EVENTS`] for zero, never more than [`PAGE_EVENTS_MAX`].
    #[must_use]
    pub fn page_events(mut self, events: u32) -> Follower {
        self.page_events = if events == 0 { PAGE_EVENTS } else { events.min(PAGE_EVENTS_MAX) };
        self
    }

    /// Returns as soon as everything that was committed is delivered.
    #[must_use]
    pub fn once(mut self) -> Follower {
        self.once = true;
        self
    }

    /// Looks again after the interval only, and not whenever the log is written to. For a sink that is better served
    /// with more at a time.
    #[must_use]
    pub fn poll_only(mut self) -> Follower {
        self.watches = false;
        self
    }

    /// Delivers events until everything is delivered (with [`Follower::once`]), `stop` is called, or something fails.
    ///
    /// # Errors
    /// When the database, the cursor or the sink fails. The cursor then names the last event that was delivered and let go
    /// of, so the event that failed comes first the next time.
    pub fn follow(&mut self, sink: &mut dyn Sink, stop: &Stop) -> Result<Followed, Error> {
        let mut forgotten = MemCursor::default();
        let mut cursor = self.cursor.take();
        let followed = self.follow_from(cursor.as_deref_mut().unwrap_or(&mut forgotten), sink, stop);
        self.cursor = cursor;
        followed
    }

    fn follow_from(
        &mut self,
        cursor: &mut dyn Cursor,
        sink: &mut dyn Sink,
        stop: &Stop,
    ) -> Result<Followed, Error> {
        let last = self.start(cursor)?;
        let mut followed = Followed { events: 0, last, end: End::Drained };
        let _watch = self.watch(stop);
        loop {
            let page = self.page(followed.last)?;
            let is_full = page.len() >= usize::try_from(self.page_events).unwrap_or(usize::MAX);
            deliver(&page, &mut followed, (cursor, sink), stop)?;
            if stop.is_stopped() {
                return Ok(Followed { end: End::Stopped, ..followed });
            }
            if is_full {
                continue;
            }
            if self.once {
                return Ok(followed);
            }
            stop.wait_for_more(self.interval);
        }
    }

    /// Where to begin.
    fn start(&mut self, cursor: &dyn Cursor) -> Result<i64, Error> {
        let seq = cursor.load()?;
        if seq < 0 {
            return Err(CursorError::Negative(seq).into());
        }
        let newest = self.store.read(|reader| reader.head())?.seq;
        if seq > newest {
            return Err(Error::CursorAhead { cursor: seq, newest });
        }
        cursor.check()?;
        Ok(seq)
    }

    /// Has `stop` told of every write to the log. Without a watch the interval alone tells.
    fn watch(&self, stop: &Stop) -> Option<Watch> {
        if self.once || !self.watches {
            return None;
        }
        let log = watch::log_of(self.store.path());
        let stop = stop.clone();
        let watch = Watch::start(log, self.interval, move || {
            stop.written();
            !stop.is_stopped()
        });
        watch
            .inspect_err(
                |error| tracing::warn!(%error, "the log can't be watched; it is looked at by the clock"),
            )
            .ok()
    }

    /// The next events, which a power failure can take back no more.
    fn page(&mut self, after: i64) -> Result<Vec<Event>, Error> {
        let (run, limit) = (self.run.clone(), i64::from(self.page_events));
        let page = self.store.read(|reader| reader.events_after(run.as_ref(), after, limit))?;
        let path = || self.store.path().to_owned();
        if !self.store.is_still_there() {
            return Err(Error::Moved { path: path() });
        }
        if !page.is_empty() {
            self.store.sync().map_err(|source| Error::Sync { path: self.store.path().to_owned(), source })?;
        }
        Ok(page)
    }

    /// Which events it delivers, and the number of the last that was.
    #[cfg(feature = "otlp")]
    pub(super) fn position(&self) -> Result<(Option<RunId>, i64), Error> {
        let seq = self.cursor.as_ref().map_or(Ok(0), |cursor| cursor.load())?;
        Ok((self.run.clone(), seq))
    }

    /// The number of the last event delivered, as the cursor keeps it, and the hash that is stored with it; none when
    /// nothing was delivered or there is no cursor.
    ///
    /// Kept where nobody who can write the database comes to, it shows later whether the record was altered up to there
    /// (`holdpoint verify --head SEQ:HASH`): the chain runs over all runs, also when only one is followed.
    ///
    /// # Errors
    /// When the cursor or the database can't be read, or that event is gone.
    pub fn head(&mut self) -> Result<Option<Head>, Error> {
        let seq = self.cursor.as_ref().map_or(Ok(0), |cursor| cursor.load())?;
        if seq == 0 {
            return Ok(None);
        }
        let hash = self.store.read(|reader| reader.event_hash(seq))?;
        hash.map(|hash| Some(Head { seq, hash })).ok_or(Error::EventGone(seq))
    }
}

/// Delivers a page up to its end, a stop, or a failure, and saves the cursor where that came to.
fn deliver(
    page: &[Event],
    followed: &mut Followed,
    (cursor, sink): (&mut dyn Cursor, &mut dyn Sink),
    stop: &Stop,
) -> Result<(), Error> {
    let before = followed.last;
    let mut failed = None;
    for event in page {
        if stop.is_stopped() {
            break;
        }
        if let Err(error) = sink.deliver(event) {
            failed = Some(error);
            break;
        }
        followed.events += 1;
        followed.last = event.seq;
    }
    if followed.last > before {
        // What can't be let go of was not delivered; the first failure is the one that is told.
        match sink.flush() {
            Ok(()) => cursor.save(followed.last)?,
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(()), |error| Err(Error::Sink(error)))
}
