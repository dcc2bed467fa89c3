//! Where events go: the trait, and the sink that writes JSON Lines.

use std::io::{self, Write};

use holdpoint_core::event::Event;

use crate::trace;

/// Why a sink took nothing more.
pub type SinkError = Box<dyn std::error::Error + Send + Sync>;

/// Takes events, in the order of their commit.
///
/// A sink may be given an event twice: after a process that was killed, at most a page of them. One that must not act
/// twice goes by [`Event::seq`].
pub trait Sink {
    /// Takes one event.
    ///
    /// # Errors
    /// When it was not taken. The follower stops, and this event is the first that it delivers the next time.
    fn deliver(&mut self, event: &Event) -> Result<(), SinkError>;

    /// Lets go of everything that was taken and is kept back. The cursor moves on only after it.
    ///
    /// # Errors
    /// When some of it could not be let go of. The follower stops where its cursor stood before.
    fn flush(&mut self) -> Result<(), SinkError> {
        Ok(())
    }
}

/// Writes each event as a line of JSON, the same bytes as [`trace::json_line`].
#[derive(Debug)]
pub struct Jsonl<W: Write> {
    out: io::BufWriter<W>,
}

impl<W: Write> Jsonl<W> {
    /// Writes to `out`, which is buffered here.
    pub fn new(out: W) -> Jsonl<W> {
        Jsonl { out: io::BufWriter::new(out) }
    }
}

impl<W: Write> Sink for Jsonl<W> {
    fn deliver(&mut self, event: &Event) -> Result<(), SinkError> {
        Ok(self.out.write_all(trace::json_line(event).as_bytes())?)
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        Ok(self.out.flush()?)
    }
}
