//! What happened of a run before an exporter saw it.
//!
//! An exporter that is started in the middle of a run, or that let go of one that was silent for long, reads the events of
//! it that come before, and its spans are the same as if it had seen all.

use std::fmt;
use std::path::{Path, PathBuf};

use holdpoint_actors::store::OperatorStore;
use holdpoint_core::event::Event;

/// Events of a run that are read back: its first, and as many of those that are nearest.
const EVENTS_MAX: i64 = 1_000;

/// Gives the events of a run that come before one of them.
pub(super) trait History: Send + fmt::Debug {
    /// The events before `event` of its run, in order. Where there are too many, the first and the nearest; where they can't
    /// be read, none.
    fn before(&mut self, event: &Event) -> Vec<Event>;
}

/// The record itself, over a connection of its own. A read is two look-ups of an index, and waits for another's lock for five
/// seconds at most.
#[derive(Debug)]
pub(super) struct Stored {
    path: PathBuf,
    store: Option<OperatorStore>,
}

impl Stored {
    pub(super) fn of(path: &Path) -> Stored {
        Stored { path: path.to_owned(), store: None }
    }

    fn read(&mut self, event: &Event) -> Result<Vec<Event>, Box<dyn std::error::Error>> {
        let store = match &mut self.store {
            Some(store) => store,
            none @ None => none.insert(OperatorStore::open(&self.path, true)?),
        };
        let run = &event.run_id;
        let events = store.read(|reader| {
            let mut near = reader.events_before(run, event.seq, EVENTS_MAX)?;
            if i64::try_from(near.len()).is_ok_and(|read| read >= EVENTS_MAX) {
                let mut first = reader.events_after(Some(run), 0, 1)?;
                first.append(&mut near);
                near = first;
            }
            Ok(near)
        })?;
        Ok(events)
    }
}

impl History for Stored {
    fn before(&mut self, event: &Event) -> Vec<Event> {
        self.read(event).unwrap_or_else(|error| {
            tracing::warn!(run = event.run_id.as_str(), %error, "what happened of a run before is not known to its spans");
            self.store = None;
            Vec::new()
        })
    }
}
