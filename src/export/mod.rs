//! Following the record from any process: every event, in the order of its commit, to a sink.
//!
//! Events are written in the transaction that makes them true, so the table of events is all that a follower needs, and an
//! event's number is its cursor: it only grows, over all runs of a database, and is never used again. A [`Follower`] only
//! reads. It hands on nothing that a power failure could still take back: what it has read is synced first.
//!
//! ```no_run
//! use holdpoint::export::{FileCursor, Follower, Jsonl, Stop};
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let mut follower = Follower::open("agent.db")?.cursor(FileCursor::new("agent.cursor")).once();
//! let followed = follower.follow(&mut Jsonl::new(std::io::stdout()), &Stop::default())?;
//! if let Some(head) = follower.head()? {
//!     eprintln!("{} events; holdpoint verify --head {}:{}", followed.events, head.seq, head.hash);
//! }
//! # Ok(()) }
//! ```
//!
//! The calls block. On a runtime, give a follower a thread of its own (`spawn_blocking`), and end it with [`Stop`].

mod cursor;
mod follow;
#[cfg(feature = "otlp")]
pub mod otel;
mod sink;
mod stop;

#[cfg(test)]
mod tests;

pub use cursor::{Cursor, CursorError, FileCursor, MemCursor};
pub use follow::{End, Error, Followed, Follower, INTERVAL, INTERVAL_MAX, PAGE_EVENTS, PAGE_EVENTS_MAX};
pub use holdpoint_actors::store::Head;
pub use sink::{Jsonl, Sink, SinkError};
pub use stop::Stop;
