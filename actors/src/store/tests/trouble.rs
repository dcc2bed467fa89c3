//! A full disk, a locked file, a damaged one: what is refused, what is tried again, and what is lost (nothing).

use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::time::Duration;

use holdpoint_core::transition::Durability;
use ractor::Actor;
use rusqlite::Connection;

use super::support::*;
use crate::store::faults::{Act, Faults, Point};
use crate::store::files::beside;
use crate::store::{Arguments, Lane, NotApplied, OpenError, OperatorStore, Options, StoreWriter};

async fn with(busy_ms: u64, faults: &Faults) -> Bench {
    let options = Options { busy: Duration::from_millis(busy_ms), faults: faults.clone(), ..plain() };
    Bench::start_with(options).await
}

#[tokio::test]
async fn a_full_disk_refuses_intents_and_keeps_outcomes_until_there_is_room() {
    let faults = Faults::default();
    let bench = with(5_000, &faults).await;
    let mut call = executing("r1", "me");
    bench.intent(call.take(Durability::Synced)).await;
    // Each try of a batch commits twice at most: as a whole and member by member.
    for _ in 0..6 {
        faults.add(Point::Commit, Act::DiskFull);
    }
    let full = bench.client.apply(Lane::Intent, begun("r2", Durability::Synced)).await.unwrap_err();
    assert_eq!(full, NotApplied::DiskFull.into());
    finish(&mut call, at(3));
    bench.outcome(call.take(Durability::Synced)).await;
    assert_eq!(faults.left(), 0);
    let counts = bench.counts().await;
    assert_eq!((counts.generation, counts.applied, counts.trouble), (1, 2, None));
    bench.intent(begun("r2", Durability::Synced)).await;
}

#[tokio::test]
async fn while_outcomes_are_tried_again_intents_are_refused_at_once() {
    let faults = Faults::default();
    let bench = with(5_000, &faults).await;
    let mut call = executing("r1", "me");
    bench.intent(call.take(Durability::Synced)).await;
    finish(&mut call, at(3));
    faults.add(Point::Commit, Act::DiskFull);
    faults.add(Point::Commit, Act::DiskFull);
    bench.hold(true).await;
    let (client, outcome) = (bench.client.clone(), call.take(Durability::Synced));
    let sent = tokio::spawn(async move { client.apply(Lane::Outcome, outcome).await });
    bench.until(|counts| counts.waiting_outcomes == 1).await;
    let client = bench.client.clone();
    let intent =
        tokio::spawn(async move { client.apply(Lane::Intent, begun("r2", Durability::Synced)).await });
    bench.until(|counts| counts.waiting_intents == 1).await;
    bench.hold(false).await;
    assert_eq!(intent.await.unwrap().unwrap_err(), NotApplied::DiskFull.into());
    sent.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_database_that_may_not_grow_is_a_full_disk() {
    let faults = Faults::default();
    let bench = with(5_000, &faults).await;
    bench.intent(begun("r1", Durability::Synced)).await;
    let pages = number(&bench.other(), "PRAGMA page_count");
    faults.limit_pages(pages);
    let mut refused = 0;
    for i in 0..50 {
        let mut t = begun(&format!("big{i}"), Durability::Synced);
        t.events[0].payload = format!(r#"{{"filler":"{}"}}"#, "x".repeat(20_000));
        match bench.client.apply(Lane::Intent, t).await {
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error, NotApplied::DiskFull.into());
                refused += 1;
            }
        }
    }
    assert!(refused > 0);
    faults.limit_pages(1_000_000);
    bench.intent(begun("after", Durability::Synced)).await;
    let report = bench.client.read(|r| r.verify(0, 0)).await.unwrap();
    assert_eq!(report.broken, None);
    assert_eq!(bench.counts().await.generation, 1);
}

#[tokio::test]
async fn too_little_free_space_refuses_intents_and_not_outcomes() {
    let bench = Bench::start_with(Options { free_min: u64::MAX, ..plain() }).await;
    let low = bench.client.apply(Lane::Intent, begun("r1", Durability::Synced)).await.unwrap_err();
    assert_eq!(low, NotApplied::LowSpace.into());
    bench.outcome(begun("r1", Durability::Synced)).await;
}

#[tokio::test]
async fn nothing_begins_in_a_database_that_was_moved_deleted_or_replaced() {
    let bench = Bench::start_with(plain()).await;
    let mut call = executing("r1", "me");
    bench.intent(call.take(Durability::Synced)).await;
    let aside = bench.path.with_extension("aside");
    std::fs::rename(&bench.path, &aside).unwrap();
    let refused = |run| bench.client.apply(Lane::Intent, begun(run, Durability::Synced));
    assert_eq!(refused("r2").await.unwrap_err(), NotApplied::Moved.into());
    std::fs::copy(&aside, &bench.path).unwrap();
    assert_eq!(refused("r2").await.unwrap_err(), NotApplied::Moved.into(), "a copy is another file");
    // What had begun is still recorded where it began.
    finish(&mut call, at(3));
    bench.outcome(call.take(Durability::Synced)).await;
    std::fs::rename(&aside, &bench.path).unwrap();
    bench.intent(begun("r2", Durability::Synced)).await;
}

#[tokio::test]
async fn nothing_begins_where_a_file_beside_the_database_was_deleted() {
    for suffix in ["-wal", "-shm"] {
        let bench = Bench::start_with(plain()).await;
        bench.intent(begun("r1", Durability::Synced)).await;
        std::fs::remove_file(beside(&bench.path, suffix)).unwrap();
        let refused = bench.client.apply(Lane::Intent, begun("r2", Durability::Synced)).await.unwrap_err();
        assert_eq!(refused, NotApplied::Moved.into(), "{suffix}: who opens the database does not see r1");
    }
}

#[tokio::test]
async fn a_database_that_is_replaced_before_its_writer_starts_ends_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.db");
    let opened = Arguments::open(&path, plain()).unwrap();
    std::fs::rename(&path, path.with_extension("aside")).unwrap();
    std::fs::write(&path, "").unwrap();
    let started = Actor::spawn(None, StoreWriter, opened).await;
    let refused = started.map(drop).unwrap_err().to_string();
    assert!(refused.contains("moved, deleted or replaced"), "{refused}");
    assert_eq!(std::fs::read(&path).unwrap(), b"");
}

#[tokio::test]
async fn a_lock_that_another_connection_lets_go_of_is_waited_for() {
    let bench = Bench::start().await;
    let other = bench.other();
    other.execute_batch("BEGIN IMMEDIATE; INSERT INTO tool_specs VALUES ('h', 's')").unwrap();
    bench.hold(true).await;
    let client = bench.client.clone();
    let sent = tokio::spawn(async move { client.apply(Lane::Intent, begun("r1", Durability::Synced)).await });
    bench.until(|counts| counts.waiting_intents == 1).await;
    bench.hold(false).await;
    // The writer has it, and meets the lock.
    bench.until(|counts| counts.waiting_intents == 0).await;
    other.execute_batch("COMMIT").unwrap();
    sent.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_lock_that_stays_refuses_intents_and_keeps_outcomes() {
    let bench = with(20, &Faults::default()).await;
    let mut call = executing("r1", "me");
    bench.intent(call.take(Durability::Synced)).await;
    let other = bench.other();
    other.execute_batch("BEGIN IMMEDIATE; INSERT INTO tool_specs VALUES ('h', 's')").unwrap();
    let locked = bench.client.apply(Lane::Intent, begun("r2", Durability::Synced)).await.unwrap_err();
    assert_eq!(locked, NotApplied::Locked.into());
    finish(&mut call, at(3));
    let (client, outcome) = (bench.client.clone(), call.take(Durability::Synced));
    let sent = tokio::spawn(async move { client.apply(Lane::Outcome, outcome).await });
    bench.until(|counts| counts.trouble.is_some() && counts.waiting_outcomes == 1).await;
    other.execute_batch("COMMIT").unwrap();
    sent.await.unwrap().unwrap();
    assert_eq!(bench.until(|counts| counts.trouble.is_none()).await.replays, 0);
}

#[tokio::test]
async fn another_process_gets_its_turn_under_unbroken_load() {
    let bench = Bench::start().await;
    let done = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut load = tokio::task::JoinSet::new();
    for caller in 0..16 {
        let (client, done) = (bench.client.clone(), std::sync::Arc::clone(&done));
        load.spawn(async move {
            for i in 0.. {
                if done.load(std::sync::atomic::Ordering::Acquire) {
                    break;
                }
                let t = begun(&format!("r{caller}-{i}"), Durability::Synced);
                client.apply(Lane::Intent, t).await.unwrap();
            }
        });
    }
    bench.until(|counts| counts.pauses > 0).await;
    let (mut call, approval) = waiting("held");
    bench.outcome(call.take(Durability::Synced)).await;
    let mut operator = bench.operator();
    let decided = tokio::task::spawn_blocking(move || {
        let run = holdpoint_core::ids::RunId::from("held");
        operator.decide(&super::decisions::approve(&run, &approval), at(5)).map(|_| ())
    });
    decided.await.unwrap().unwrap();
    done.store(true, std::sync::atomic::Ordering::Release);
    load.join_all().await;
    let report = bench.client.read(|r| r.verify(0, 0)).await.unwrap();
    assert_eq!(report.broken, None);
}

#[test]
fn a_file_that_was_cut_short_is_refused_with_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut.db");
    make(&path);
    let length = std::fs::metadata(&path).unwrap().len();
    for keep in [length / 2, 4_096, 1_000] {
        let cut = folder.path().join(format!("cut-{keep}.db"));
        std::fs::copy(&path, &cut).unwrap();
        std::fs::OpenOptions::new().write(true).open(&cut).unwrap().set_len(keep).unwrap();
        for refused in [
            Arguments::open(&cut, plain()).unwrap_err(),
            OperatorStore::open(&cut, true).unwrap_err(),
            OperatorStore::open(&cut, false).unwrap_err(),
        ] {
            assert!(matches!(refused, OpenError::Damaged { .. }), "{keep}: {refused}");
            assert!(refused.to_string().contains("restore it from a copy"), "{refused}");
        }
    }
}

#[test]
fn a_file_of_something_else_is_refused_with_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("letter.txt");
    std::fs::write(&path, "Dear Ann, ".repeat(1_000)).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let before = std::fs::read(&path).unwrap();
    for refused in
        [Arguments::open(&path, plain()).unwrap_err(), OperatorStore::open(&path, true).unwrap_err()]
    {
        assert!(matches!(refused, OpenError::Damaged { .. }), "{refused}");
    }
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[test]
fn a_damaged_page_fails_the_read_and_not_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.db");
    super::schema::as_the_reference_makes_it(&path);
    super::schema::write_with_their_tables(&path, &begun("r1", Durability::Synced));
    let root =
        number(&Connection::open(&path).unwrap(), "SELECT rootpage FROM sqlite_schema WHERE name = 'events'");
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[0xff; 4_096], u64::try_from(root - 1).unwrap() * 4_096).unwrap();
    let mut store = OperatorStore::open(&path, true).unwrap();
    assert!(store.read(|r| r.verify(0, 0)).is_err());
    assert!(store.read(|r| r.run(&"r1".into())).unwrap().is_some());
}

#[test]
fn a_database_that_another_process_keeps_locked_is_refused_with_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.db");
    make(&path);
    let other = Connection::open(&path).unwrap();
    other
        .execute_batch(
            "PRAGMA locking_mode = EXCLUSIVE; BEGIN IMMEDIATE; INSERT INTO tool_specs VALUES ('h', 's')",
        )
        .unwrap();
    let options = Options { busy: Duration::from_millis(20), ..plain() };
    let refused = Arguments::open(&path, options).unwrap_err();
    assert!(matches!(refused, OpenError::Locked { .. }), "{refused}");
}
