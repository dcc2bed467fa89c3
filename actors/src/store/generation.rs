//! What outlives one writer: the thread that it left behind, and why that ended.
//!
//! Given again to every writer of the same file in one process. The restart rule stands here: a new thread opens the
//! file only after the old one is gone, else two would write, and what an old one began could still be committed after
//! somebody read that it was not.

use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::watch;

use super::place::Place;
use super::queue::Queue;
use crate::clock::lock;

/// How long an old thread may take to end. Longer than any wait of its own: for a lock, and for a sync.
const OLD_THREAD: Duration = Duration::from_secs(10);

/// The record that all writers of one file share.
#[derive(Debug, Clone, Default)]
pub(super) struct WriterGeneration(Arc<Mutex<Record>>);

#[derive(Debug, Default)]
struct Record {
    number: u64,
    running: Option<Running>,
    /// Whether the last thread saw reading, writing or syncing fail.
    disk_failed: bool,
    /// The file that the first writer opened.
    place: Option<Place>,
}

#[derive(Debug)]
struct Running {
    queue: Arc<Queue>,
    thread: JoinHandle<()>,
    /// Closed when the thread has let go of its connection.
    ended: watch::Receiver<()>,
}

/// What a writer must do before it serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Start {
    /// One for the first writer of the process.
    pub(super) number: u64,
    /// Whether recovery from the disk may disagree with what live connections saw, so that the log must be emptied.
    pub(super) empty_log: bool,
}

/// The old thread has not ended in time.
#[derive(Debug)]
pub(super) struct Stuck;

impl WriterGeneration {
    /// Waits for the old thread, if there is one, and begins a new generation.
    pub(super) async fn next(&self) -> Result<Start, Stuck> {
        self.over().await?;
        let mut record = lock(&self.0);
        record.number += 1;
        Ok(Start { number: record.number, empty_log: record.disk_failed })
    }

    /// Has the thread end, if there is one, and waits until it has let go of its connection. Whoever gives up waiting
    /// takes nothing from the next who does.
    pub(super) async fn over(&self) -> Result<(), Stuck> {
        let Some(mut ended) = self.close() else { return Ok(()) };
        let gone = async { while ended.changed().await.is_ok() {} };
        tokio::time::timeout(OLD_THREAD, gone).await.map_err(|_elapsed| Stuck)?;
        let over = lock(&self.0).running.take_if(|running| running.ended.same_channel(&ended));
        if let Some(running) = over {
            // It has nothing left to do but return; what it panicked with was caught inside.
            drop(running.thread.join());
        }
        Ok(())
    }

    /// Closes the queue of the thread that runs, and gives what its end is seen by.
    fn close(&self) -> Option<watch::Receiver<()>> {
        let record = lock(&self.0);
        let running = record.running.as_ref()?;
        running.queue.close();
        Some(running.ended.clone())
    }

    /// Notes the thread that was started.
    pub(super) fn started(&self, queue: Arc<Queue>, thread: JoinHandle<()>, ended: watch::Receiver<()>) {
        lock(&self.0).running = Some(Running { queue, thread, ended });
    }

    /// The file that all writers open, once the first has opened it.
    pub(super) fn place(&self) -> Option<Place> {
        lock(&self.0).place.clone()
    }

    /// Notes which file the first writer opened.
    pub(super) fn opened(&self, place: Place) {
        lock(&self.0).place.get_or_insert(place);
    }

    /// Notes how the thread ended. A failure of the disk stands until a writer has emptied the log.
    pub(super) fn disk_failed(&self, failed: bool) {
        lock(&self.0).disk_failed = failed;
    }
}
