//! Telling the observer: after the commit, in the order of the events.

use std::panic::AssertUnwindSafe;

use holdpoint_core::event::Event;
use holdpoint_core::transition::Transition;

use super::Shared;

impl Shared {
    /// Tells the observer. What it makes of an event changes nothing here, not even by a panic.
    pub(super) fn tell(&self, events: impl IntoIterator<Item = Event>) {
        let Some(observer) = &self.observer else { return };
        for event in events {
            let told = std::panic::catch_unwind(AssertUnwindSafe(|| observer.committed(&event)));
            if let Err(panic) = told {
                let text = crate::panic_text(&*panic);
                tracing::error!(seq = event.seq, %text, "an observer panicked");
            }
        }
    }

    /// Tells the observer what a commit wrote whose reply was lost: it is read back from the record.
    pub(super) async fn tell_later(&self, transition: &Transition) {
        if self.observer.is_none() {
            return;
        }
        let (run, wanted) = (transition.run_id.clone(), transition.events.clone());
        let read = self.tree.store.read(move |reader| {
            let mut events = reader.events(&run)?;
            events.retain(|event| wanted.iter().any(|new| new.is_stored_as(event)));
            Ok(events)
        });
        match read.await {
            Ok(events) => self.tell(events),
            Err(error) => tracing::warn!(%error, "an observer was not told of events"),
        }
    }
}
