//! The writer's death, by thread, by actor and by disk: who is in doubt, who is not, and how a doubt is settled.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use holdpoint_core::ids::RunId;
use holdpoint_core::run::RunStatus;
use holdpoint_core::transition::Durability;
use ractor::{Actor, ActorProcessingErr, ActorRef};

use super::support::*;
use crate::address::Address;
use crate::policy::DefaultPolicy;
use crate::store::faults::{Act, Faults, Point};
use crate::store::files::beside;
use crate::store::generation::WriterGeneration;
use crate::store::queue::Passed;
use crate::store::queue::Queue;
use crate::store::{ApplyError, Arguments, Lane, NotApplied, Options};
use crate::store::{Head, Msg, StoreClient};
use crate::tree::{Child, Running, Tree, TreeSpec};

async fn with_faults() -> (Bench, Faults) {
    let faults = Faults::default();
    (Bench::start_with(Options { faults: faults.clone(), ..plain() }).await, faults)
}

#[tokio::test]
async fn a_write_that_was_committed_and_never_answered_is_in_doubt_and_then_found() {
    let (bench, faults) = with_faults().await;
    faults.add(Point::Answer, Act::Panic);
    let t = begun("r1", Durability::Synced);
    let probe = t.probe().unwrap();
    let doubt = bench.client.apply(Lane::Intent, t).await.unwrap_err();
    assert_eq!(doubt, ApplyError::InDoubt);
    assert!(bench.client.settle(&probe).await.unwrap());
    assert_eq!(bench.counts().await.generation, 2);
    let report = bench.client.read(|r| r.verify(0, 0)).await.unwrap();
    assert_eq!((report.checked, report.broken), (2, None));
}

#[tokio::test]
async fn a_write_that_was_begun_and_never_committed_is_in_doubt_and_then_not_found() {
    for act in [Act::Panic, Act::SyncFails] {
        let (bench, faults) = with_faults().await;
        faults.add(Point::Commit, act);
        let t = begun("r1", Durability::Synced);
        let probe = t.probe().unwrap();
        let doubt = bench.client.apply(Lane::Intent, t).await.unwrap_err();
        assert_eq!(doubt, ApplyError::InDoubt, "{act:?}");
        assert!(!bench.client.settle(&probe).await.unwrap(), "{act:?}");
        bench.intent(begun("r2", Durability::Synced)).await;
        // Neither a row without its events is left of it, nor an event without its row.
        let db = bench.other();
        assert_eq!(rows(&db, "SELECT id FROM runs"), ["r2"], "{act:?}");
        assert_eq!(rows(&db, "SELECT seq, run_id FROM events ORDER BY seq"), ["1|r2", "2|r2"], "{act:?}");
    }
}

#[tokio::test]
async fn a_write_that_was_not_begun_is_known_not_to_be_applied() {
    let (bench, faults) = with_faults().await;
    faults.add(Point::Taken, Act::Panic);
    let down = bench.client.apply(Lane::Intent, begun("r1", Durability::Synced)).await.unwrap_err();
    assert_eq!(down, NotApplied::Down.into());
}

#[tokio::test]
async fn an_outcome_that_was_not_begun_is_sent_again_to_the_next_writer() {
    let (bench, faults) = with_faults().await;
    let mut call = executing("r1", "me");
    bench.intent(call.take(Durability::Synced)).await;
    faults.add(Point::Taken, Act::Panic);
    finish(&mut call, at(3));
    bench.outcome(call.take(Durability::Synced)).await;
    let counts = bench.counts().await;
    assert_eq!((counts.generation, counts.applied), (2, 1));
}

#[tokio::test]
async fn everything_in_a_batch_that_the_thread_took_along_is_in_doubt_and_nothing_else_is() {
    let (bench, faults) = with_faults().await;
    bench.hold(true).await;
    let mut sent = tokio::task::JoinSet::new();
    for i in 0..300 {
        let client = bench.client.clone();
        sent.spawn(
            async move { client.apply(Lane::Intent, begun(&format!("r{i}"), Durability::Synced)).await },
        );
    }
    bench.until(|counts| counts.waiting_intents == 300).await;
    faults.add(Point::Commit, Act::Panic);
    bench.hold(false).await;
    let results = sent.join_all().await;
    let in_doubt = results.iter().filter(|r| matches!(r, Err(ApplyError::InDoubt))).count();
    let not_applied =
        results.iter().filter(|r| matches!(r, Err(ApplyError::NotApplied(NotApplied::Down)))).count();
    assert_eq!((in_doubt, not_applied), (256, 44));
}

#[tokio::test]
async fn a_killed_actor_s_thread_is_gone_before_the_next_one_opens_the_file() {
    let bench = Bench::start().await;
    let mut call = executing("r1", "me");
    bench.intent(call.take(Durability::Synced)).await;
    bench.address.find(Duration::from_secs(5)).await.unwrap().kill();
    finish(&mut call, at(3));
    bench.outcome(call.take(Durability::Synced)).await;
    let counts = bench.counts().await;
    assert_eq!((counts.generation, counts.applied), (2, 1));
    // The second generation began with a synced commit of its own.
    assert_eq!(number(&bench.other(), "SELECT times FROM holdpoint_sync"), 1);
}

#[tokio::test]
async fn a_writer_is_not_started_again_where_its_file_was_deleted_or_another_is_in_its_place() {
    for copied in [false, true] {
        let bench = Bench::start().await;
        bench.intent(begun("r1", Durability::Synced)).await;
        let aside = bench.path.with_extension("aside");
        std::fs::rename(&bench.path, &aside).unwrap();
        if copied {
            std::fs::copy(&aside, &bench.path).unwrap();
        }
        let before = std::fs::read(&bench.path).ok();
        bench.address.find(Duration::from_secs(5)).await.unwrap().kill();
        // No restart can help: the tree ends, and its process with it.
        bench.supervisor.wait(None).await.unwrap();
        assert!(bench.client.let_go().await);
        assert!(std::fs::read(&bench.path).ok() == before, "nothing is made in its place, nor written there");
    }
}

#[tokio::test]
async fn after_the_disk_failed_the_log_is_emptied_before_anything_is_served() {
    let (bench, faults) = with_faults().await;
    bench.intent(begun("r1", Durability::Synced)).await;
    let log = bench.folder.path().join("runs.db-wal");
    assert!(std::fs::metadata(&log).unwrap().len() > 0);
    faults.add(Point::Answer, Act::SyncFails);
    let t = begun("r2", Durability::Synced);
    let probe = t.probe().unwrap();
    assert_eq!(bench.client.apply(Lane::Intent, t).await.unwrap_err(), ApplyError::InDoubt);
    assert!(bench.client.settle(&probe).await.unwrap());
    assert_eq!(std::fs::metadata(&log).unwrap().len(), 0);
    assert_eq!(bench.counts().await.generation, 2);
}

#[tokio::test]
async fn a_failing_flush_ends_the_writer_too() {
    let (bench, faults) = with_faults().await;
    faults.add(Point::Flush, Act::SyncFails);
    bench.intent(begun("r1", Durability::Written)).await;
    bench.until(|counts| counts.generation == 2).await;
    assert_eq!(faults.left(), 0);
    assert_eq!(rows(&bench.other(), "SELECT id FROM runs"), ["r1"]);
}

#[tokio::test(start_paused = true)]
async fn without_a_writer_intents_fail_at_once_and_outcomes_after_ten_seconds() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.db");
    let writer = crate::store::Arguments::open(&path, plain()).unwrap();
    let (_cell, address) = crate::address::Address::vacant();
    let client = crate::store::StoreClient::new(address, &writer);
    for lane in [Lane::Intent, Lane::Outcome] {
        let down = client.apply(lane, begun("r1", Durability::Synced)).await.unwrap_err();
        assert_eq!(down, NotApplied::Down.into());
    }
    let probe = begun("r1", Durability::Synced).probe().unwrap();
    assert!(client.settle(&probe).await.is_err());
    // Reading needs no writer.
    assert_eq!(client.read(|r| r.head()).await.unwrap().seq, 0);
}

#[tokio::test]
async fn a_stopped_store_lets_go_of_its_file_and_the_next_one_finds_every_row() {
    let bench = Bench::start().await;
    bench.intent(waiting("r1").0.take(Durability::Written)).await;
    let record = |bench: &Bench| {
        let all = |table| rows(&bench.other(), &format!("SELECT * FROM {table}"));
        ["runs", "steps", "approvals", "tool_specs", "events"].map(all)
    };
    let (path, kept) = (bench.path.clone(), record(&bench));
    assert!(kept.iter().all(|rows| !rows.is_empty()));
    let folder = bench.stop().await;
    assert!(!beside(&path, "-wal").exists(), "who closes the file last takes its log along");
    let again = Bench::start_on(folder, path, plain()).await;
    let (run, report) = again
        .client
        .read(|reader| Ok((reader.run(&RunId::from("r1"))?, reader.verify(0, 0)?)))
        .await
        .unwrap();
    assert_eq!(run.unwrap().status, RunStatus::WaitingForApproval);
    assert_eq!((report.checked, report.broken), (6, None));
    assert_eq!(record(&again), kept);
}

#[tokio::test]
async fn a_tree_that_was_stopped_leaves_the_database_in_one_file_and_can_still_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("runs.db");
    let spec = TreeSpec { database: database.clone(), store: plain(), policy: Arc::new(DefaultPolicy) };
    let Running { tree, .. } = Tree::start(spec).await.unwrap();
    tree.store.apply(Lane::Intent, begun("r1", Durability::Written)).await.unwrap();
    assert_eq!(tree.store.read(|reader| reader.head()).await.unwrap().seq, 2);
    tree.stop().await;
    assert!(!beside(&database, "-wal").exists(), "who closes the file last takes its log along");
    assert_eq!(tree.store.read(|reader| reader.head()).await.unwrap().seq, 2);
}

#[tokio::test]
async fn a_writer_that_is_starting_as_its_tree_is_stopped_has_let_go_of_the_file_when_that_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("runs.db");
    let spec = TreeSpec { database: database.clone(), store: plain(), policy: Arc::new(DefaultPolicy) };
    let Running { tree, ended } = Tree::start(spec).await.unwrap();
    // The next writer begins with a commit, which this keeps it from.
    let other = rusqlite::Connection::open(&database).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    tree.kill(Child::StoreWriter);
    while tree.observe().await.children.iter().all(|child| child.restarts == 0) {
        tokio::task::yield_now().await;
    }
    let stopping = tokio::spawn({
        let tree = tree.clone();
        async move { tree.stop().await }
    });
    while tree.executor.find(Duration::ZERO).await.is_some() {
        tokio::task::yield_now().await;
    }
    assert!(!stopping.is_finished() && !ended.is_finished());
    other.execute_batch("ROLLBACK").unwrap();
    drop(other);
    stopping.await.unwrap();
    ended.await.unwrap();
    assert!(!beside(&database, "-wal").exists(), "who closes the file last takes its log along");
}

#[tokio::test]
async fn after_the_disk_failed_nothing_is_served_while_a_reader_keeps_the_log_from_being_emptied() {
    let faults = Faults::default();
    let options = Options { faults: faults.clone(), busy: std::time::Duration::from_millis(5), ..plain() };
    let bench = Bench::start_with(options).await;
    bench.intent(begun("r1", Durability::Synced)).await;
    let reader = bench.other();
    reader.execute_batch("BEGIN; SELECT COUNT(*) FROM runs").unwrap();
    faults.add(Point::Answer, Act::SyncFails);
    let t = begun("r2", Durability::Synced);
    let probe = t.probe().unwrap();
    assert_eq!(bench.client.apply(Lane::Intent, t).await.unwrap_err(), ApplyError::InDoubt);
    // No restart can help: what recovery would read may not be what live connections saw.
    bench.supervisor.wait(None).await.unwrap();
    let down = bench.client.apply(Lane::Intent, begun("r3", Durability::Synced)).await.unwrap_err();
    assert_eq!(down, NotApplied::Down.into());
    reader.execute_batch("COMMIT").unwrap();
    drop(reader);
    // The next process finds out what became of it.
    let Bench { folder, path, .. } = bench;
    let again = Bench::start_on(folder, path, plain()).await;
    assert!(again.client.settle(&probe).await.is_ok());
    assert_eq!(again.client.read(|r| r.verify(0, 0)).await.unwrap().broken, None);
}

#[tokio::test(start_paused = true)]
async fn a_thread_that_does_not_end_keeps_the_next_writer_from_opening_the_file() {
    let generation = WriterGeneration::default();
    assert_eq!(generation.next().await.unwrap().number, 1);
    let (ended_send, ended) = tokio::sync::watch::channel(());
    let queue = std::sync::Arc::new(Queue::default());
    generation.started(std::sync::Arc::clone(&queue), std::thread::spawn(|| ()), ended);
    assert!(generation.next().await.is_err());
    assert!(generation.next().await.is_err());
    drop(ended_send);
    assert_eq!(generation.next().await.unwrap().number, 2);
}

/// A writer that lets every barrier pass until it dies of anything else.
struct Stub;

impl Actor for Stub {
    type Msg = Msg;
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, _me: ActorRef<Msg>, (): ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn handle(&self, _me: ActorRef<Msg>, msg: Msg, (): &mut ()) -> Result<(), ActorProcessingErr> {
        let Msg::Pass(barrier) = msg else { return Err("it dies".into()) };
        drop(barrier.reply.send(Ok(Passed { head: Head::default(), synced_seq: 0 })));
        Ok(())
    }
}

/// Writers that die under those who ask: as long as whoever asks held the address, one death in some tens of thousands
/// left a question in the mailbox for as long as it was waited for.
const DEATHS: usize = 30_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_that_reaches_a_writer_as_it_dies_is_put_to_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = Arguments::open(&folder.path().join("runs.db"), plain()).unwrap();
    let (cell, address) = Address::vacant();
    let client = StoreClient::new(address, &arguments);
    let (mut writer, _) = Actor::spawn(None, Stub, ()).await.unwrap();
    cell.send_replace(Some(writer.clone()));
    let asking = Arc::new(AtomicBool::new(true));
    let askers = [(); 8].map(|()| {
        let (client, asking) = (client.clone(), Arc::clone(&asking));
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            while asking.load(Ordering::Acquire) {
                runtime.block_on(client.sync()).expect("the next writer's answer");
            }
        })
    });
    for _ in 0..DEATHS {
        let (next, _) = Actor::spawn(None, Stub, ()).await.unwrap();
        let dying = std::mem::replace(&mut writer, next);
        dying.cast(Msg::ThreadDied(String::new())).unwrap();
        dying.wait(None).await.unwrap();
        cell.send_replace(Some(writer.clone()));
    }
    asking.store(false, Ordering::Release);
    for asker in askers {
        asker.join().unwrap();
    }
}
