//! The order of the writer's work, step by step and without its thread: what it does when somebody waits and when
//! nobody does can't be told from outside, where somebody else may come to wait at any moment.

use holdpoint_core::transition::Durability;
use tempfile::TempDir;

use super::*;
use crate::store::job::Pending;
use crate::store::tests::support::{begun, plain};

/// A writer that a test has do one thing after the other.
struct Bench {
    _folder: TempDir,
    writer: Writer,
    begun: usize,
}

impl Bench {
    fn new() -> Bench {
        let folder = tempfile::tempdir().unwrap();
        let writer = Writer::open(Plan {
            path: folder.path().join("runs.db"),
            opened: None,
            options: plain(),
            start: Start { number: 1, empty_log: false },
            queue: Arc::default(),
            counts: Arc::new(Counts::of_generation(1)),
            generation: WriterGeneration::default(),
            runtime: Handle::current(),
        });
        Bench { _folder: folder, writer: writer.unwrap(), begun: 0 }
    }

    /// Serves so many that came at one time.
    async fn serve(&mut self, many: usize) {
        let new = |nth| {
            let transition = begun(&format!("r{nth}"), Durability::Written);
            Job::new(Arc::new(transition), Lane::Intent, clock::monotonic() + Duration::from_secs(600))
        };
        let (jobs, pending): (Vec<Job>, Vec<Pending>) = (self.begun..self.begun + many).map(new).unzip();
        self.begun += many;
        self.writer.serve_items(&mut jobs.into_iter().map(Item::Apply).collect()).unwrap();
        for mut pending in pending {
            (&mut pending.reply).await.unwrap().unwrap();
        }
    }

    async fn grow_the_log_to(&mut self, pages: i64) {
        while self.pages() < pages {
            self.serve(5).await;
        }
    }

    fn pages(&self) -> i64 {
        self.writer.db.log_pages().unwrap()
    }

    fn copied(&self) -> u64 {
        self.writer.counts.observe(&self.writer.queue).checkpoints
    }
}

#[tokio::test]
async fn a_long_log_is_copied_when_nobody_waits_and_begins_anew() {
    let mut bench = Bench::new();
    bench.grow_the_log_to(log::PAGES - 100).await;
    bench.writer.copy_long_log().unwrap();
    assert_eq!(bench.copied(), 0, "it is not long yet");
    bench.grow_the_log_to(log::PAGES).await;
    bench.writer.copy_long_log().unwrap();
    assert_eq!(bench.copied(), 1);
    bench.serve(1).await;
    assert!(bench.pages() < 100, "{} pages", bench.pages());
}

#[tokio::test]
async fn whoever_waits_is_served_before_a_long_log_is_copied_until_it_is_very_long() {
    let mut bench = Bench::new();
    let (reply, _waiting) = oneshot::channel();
    bench.writer.queue.push(Item::Barrier(Barrier { synced: false, reply }));
    bench.grow_the_log_to(log::PAGES_MAX - 100).await;
    bench.writer.copy_long_log().unwrap();
    assert_eq!(bench.copied(), 0);
    bench.grow_the_log_to(log::PAGES_MAX).await;
    assert_eq!(bench.copied(), 0, "no commit copies it");
    bench.writer.copy_long_log().unwrap();
    assert_eq!(bench.copied(), 1);
    bench.serve(1).await;
    assert!(bench.pages() < 100, "{} pages", bench.pages());
}
