//! Group commit: what shares a commit, what is synced, and how one bad member leaves the rest alone.

use std::sync::Arc;
use std::time::Duration;

use holdpoint_core::ids::{LeaseOwner, RunId};
use holdpoint_core::ledger::{release, renew};
use holdpoint_core::transition::{Durability, Refusal, Transition};
use tokio::task::JoinSet;

use super::support::*;
use crate::store::faults::{Act, Faults, Point};
use crate::store::{Applied, ApplyError, LOG_BYTES, Lane, NotApplied, Options};

/// Sends them all while the writer is held back, then lets it go on; gives what became of each, in their order.
async fn together(bench: &Bench, transitions: Vec<(Lane, Transition)>) -> Vec<Result<Applied, ApplyError>> {
    bench.hold(true).await;
    let wanted = transitions.len();
    let mut sent = JoinSet::new();
    for (i, (lane, transition)) in transitions.into_iter().enumerate() {
        let client = bench.client.clone();
        sent.spawn(async move { (i, client.apply(lane, transition).await) });
        bench.until(|counts| counts.waiting_intents + counts.waiting_outcomes == i + 1).await;
    }
    bench.until(|counts| counts.waiting_intents + counts.waiting_outcomes == wanted).await;
    bench.hold(false).await;
    let mut results = sent.join_all().await;
    results.sort_by_key(|(i, _)| *i);
    results.into_iter().map(|(_, result)| result).collect()
}

fn intents(transitions: impl IntoIterator<Item = Transition>) -> Vec<(Lane, Transition)> {
    transitions.into_iter().map(|t| (Lane::Intent, t)).collect()
}

#[tokio::test]
async fn everything_that_waits_shares_one_commit() {
    let bench = Bench::start().await;
    let all = (0..100).map(|i| begun(&format!("r{i}"), Durability::Synced));
    let results = together(&bench, intents(all)).await;
    let seqs: Vec<i64> = results.into_iter().flat_map(|r| r.unwrap().seqs).collect();
    assert_eq!(seqs, (1..=200).collect::<Vec<i64>>());
    let counts = bench.counts().await;
    assert_eq!((counts.applied, counts.synced_commits, counts.written_commits), (100, 1, 0));
    assert_eq!(counts.synced_seq, 200);
}

#[tokio::test]
async fn outcomes_that_come_together_share_one_commit_however_many_they_are() {
    let bench = Bench::start().await;
    bench.intent(begun("r7", Durability::Synced)).await;
    let before = bench.counts().await.synced_commits;
    let all: Vec<_> = (0..600).map(|i| Arc::new(begun(&format!("r{i}"), Durability::Synced))).collect();
    let results = bench.client.apply_together(&all).await;
    assert_eq!(bench.counts().await.synced_commits, before + 1);
    for (i, result) in results.iter().enumerate() {
        assert_eq!(
            *result.as_ref().err().unwrap_or(&ApplyError::InDoubt) == Refusal::RunExists.into(),
            i == 7
        );
    }
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 599);
    assert!(bench.client.apply_together(&[]).await.is_empty());
}

#[tokio::test]
async fn a_call_that_changes_something_costs_two_synced_commits_and_a_read_none() {
    let bench = Bench::start().await;
    let mut call = executing("r1", "me");
    bench.intent(call.take(Durability::Synced)).await;
    finish(&mut call, at(3));
    bench.outcome(call.take(Durability::Synced)).await;
    let counts = bench.counts().await;
    assert_eq!((counts.synced_commits, counts.written_commits, counts.flushes), (2, 0, 0));

    let mut read = executing("r2", "me");
    let applied = bench.intent(read.take(Durability::Written)).await;
    assert_eq!(applied.durability, Durability::Written);
    finish(&mut read, at(3));
    bench.outcome(read.take(Durability::Written)).await;
    let counts = bench.counts().await;
    assert_eq!((counts.synced_commits, counts.written_commits), (2, 2));
}

#[tokio::test]
async fn one_member_that_must_be_synced_makes_its_batch_so() {
    let bench = Bench::start().await;
    let results = together(
        &bench,
        intents([
            begun("r1", Durability::Written),
            begun("r2", Durability::Synced),
            begun("r3", Durability::Written),
        ]),
    )
    .await;
    assert!(results.iter().all(|r| r.as_ref().unwrap().durability == Durability::Synced));
    let counts = bench.counts().await;
    assert_eq!((counts.synced_commits, counts.written_commits), (1, 0));
}

#[tokio::test]
async fn what_was_only_written_is_synced_soon_by_a_commit_of_one_row() {
    let bench = Bench::start().await;
    bench.intent(begun("r1", Durability::Written)).await;
    let counts = bench.until(|counts| counts.flushes > 0).await;
    assert_eq!((counts.flushes, counts.synced_seq, counts.synced_commits), (1, 2, 0));
    assert_eq!(number(&bench.other(), "SELECT times FROM holdpoint_sync"), 1);
}

#[tokio::test]
async fn a_synced_commit_leaves_nothing_to_sync() {
    let bench = Bench::start().await;
    let results = together(&bench, intents([begun("r1", Durability::Written)])).await;
    assert!(results[0].is_ok());
    bench.intent(begun("r2", Durability::Synced)).await;
    let passed = bench.client.sync().await.unwrap();
    assert_eq!((passed.head.seq, passed.synced_seq), (4, 4));
}

#[tokio::test]
async fn a_refused_member_writes_nothing_and_its_neighbours_go_on() {
    let bench = Bench::start().await;
    let results = together(
        &bench,
        intents([
            begun("r1", Durability::Synced),
            begun("r1", Durability::Synced),
            begun("r2", Durability::Synced),
            release(RunId::from("r3"), LeaseOwner::from("me")),
        ]),
    )
    .await;
    assert!(results[0].is_ok() && results[2].is_ok());
    assert_eq!(results[1].as_ref().unwrap_err(), &Refusal::RunExists.into());
    assert_eq!(results[3].as_ref().unwrap_err(), &Refusal::RunMissing.into());
    let counts = bench.counts().await;
    assert_eq!((counts.applied, counts.refused, counts.replays), (2, 2, 0));
    assert_eq!((counts.synced_commits, number(&bench.other(), "SELECT COUNT(*) FROM events")), (1, 4));
}

#[tokio::test]
async fn a_batch_of_nothing_but_refusals_commits_nothing() {
    let bench = Bench::start().await;
    bench.intent(begun("r1", Durability::Synced)).await;
    let refused = bench.client.apply(Lane::Intent, begun("r1", Durability::Synced)).await.unwrap_err();
    assert_eq!(refused, Refusal::RunExists.into());
    let counts = bench.counts().await;
    assert_eq!((counts.synced_commits, counts.written_commits, counts.refused), (1, 0, 1));
}

#[tokio::test]
async fn a_member_that_sql_refuses_fails_alone_when_its_batch_is_tried_again() {
    let bench = Bench::start().await;
    // Two runs whose steps have the same id: no guard sees it, the table does.
    let mut twin = ledger("r2", "me");
    propose(&mut twin, "r1-s0", at(1));
    let results = together(
        &bench,
        intents([
            executing("r1", "me").take(Durability::Synced),
            twin.take(Durability::Synced),
            executing("r3", "me").take(Durability::Synced),
        ]),
    )
    .await;
    assert!(results[0].is_ok() && results[2].is_ok());
    let Err(ApplyError::NotApplied(NotApplied::Rows(why))) = &results[1] else { panic!("{results:?}") };
    assert!(why.contains("steps.id"), "{why}");
    let counts = bench.counts().await;
    assert_eq!((counts.replays, counts.applied, counts.synced_commits), (1, 2, 1));
    let db = bench.other();
    assert_eq!(rows(&db, "SELECT id FROM runs ORDER BY id"), ["r1", "r3"]);
    let report = bench.client.read(|r| r.verify(0, 0)).await.unwrap();
    assert_eq!((report.checked, report.broken), (12, None));
}

#[tokio::test]
async fn a_batch_that_fails_at_its_commit_is_tried_again_whole() {
    let faults = Faults::default();
    let bench = Bench::start_with(Options { faults: faults.clone(), ..plain() }).await;
    faults.add(Point::Commit, Act::StatementFails);
    let results =
        together(&bench, intents([begun("r1", Durability::Synced), begun("r2", Durability::Synced)])).await;
    assert!(results.iter().all(Result::is_ok));
    let report = bench.client.read(|r| r.verify(0, 0)).await.unwrap();
    assert_eq!((report.checked, report.broken), (4, None));
}

#[tokio::test]
async fn outcomes_are_taken_before_intents() {
    let bench = Bench::start().await;
    let mut call = executing("r1", "me");
    bench.intent(call.take(Durability::Synced)).await;
    finish(&mut call, at(3));
    let results = together(
        &bench,
        vec![(Lane::Intent, begun("r2", Durability::Synced)), (Lane::Outcome, call.take(Durability::Synced))],
    )
    .await;
    let first = |i: usize| results[i].as_ref().unwrap().seqs.start;
    assert_eq!((first(1), first(0)), (7, 9));
}

#[tokio::test]
async fn a_sender_that_is_gone_has_nothing_begun_for_it() {
    let bench = Bench::start().await;
    bench.hold(true).await;
    let client = bench.client.clone();
    let sent = tokio::spawn(async move { client.apply(Lane::Intent, begun("r1", Durability::Synced)).await });
    bench.until(|counts| counts.waiting_intents == 1).await;
    sent.abort();
    assert!(sent.await.unwrap_err().is_cancelled());
    bench.hold(false).await;
    bench.intent(begun("r2", Durability::Synced)).await;
    assert_eq!(rows(&bench.other(), "SELECT id FROM runs"), ["r2"]);
}

#[tokio::test(start_paused = true)]
async fn a_sender_whose_turn_does_not_come_knows_that_nothing_was_written() {
    let bench = Bench::start().await;
    bench.hold(true).await;
    let late = bench.client.apply(Lane::Intent, begun("r1", Durability::Synced)).await.unwrap_err();
    assert_eq!(late, NotApplied::Deadline.into());
    bench.hold(false).await;
    tokio::time::resume();
    bench.client.sync().await.unwrap();
    assert_eq!(number(&bench.other(), "SELECT COUNT(*) FROM runs"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_finds_no_place_at_the_door_is_told_so() {
    let bench = Bench::start().await;
    let mut inside = Vec::new();
    while let Ok(permit) = bench.client.admit().await {
        inside.push(permit);
    }
    assert_eq!(inside.len(), 512);
    inside.pop();
    assert!(bench.client.admit().await.is_ok());
}

#[tokio::test]
async fn a_lease_is_stamped_by_the_writer_s_clock() {
    let bench = Bench::start().await;
    let applied = bench.intent(begun("r1", Durability::Synced)).await;
    assert_eq!(applied.lease_expires_at, Some(at(30)));
    bench.clock.advance(Duration::from_secs(10));
    let renewed = bench.outcome(renew(RunId::from("r1"), terms("me"))).await;
    assert_eq!(renewed.lease_expires_at, Some(at(40)));
    assert!(renewed.stamped_at >= applied.stamped_at);
    let lease = bench.client.read(|r| r.lease(&RunId::from("r1"))).await.unwrap().unwrap();
    assert_eq!((lease.owner.as_str(), lease.expires_at), ("me", at(40)));
    let released = bench.outcome(release(RunId::from("r1"), LeaseOwner::from("me"))).await;
    assert_eq!((released.lease_expires_at, released.seqs.count()), (None, 0));
    assert_eq!(bench.client.read(|r| r.lease(&RunId::from("r1"))).await.unwrap(), None);
}

#[tokio::test]
async fn the_log_has_its_length_before_the_first_commit_and_holds_only_what_was_committed() {
    let bench = Bench::start_with(Options { log_bytes: LOG_BYTES, ..Options::default() }).await;
    bench.intent(begun("r1", Durability::Synced)).await;
    let log = bench.folder.path().join("runs.db-wal");
    assert_eq!(std::fs::metadata(&log).unwrap().len(), LOG_BYTES);
    // As a crash would leave it: the database and its log, with nothing in memory.
    let crashed = bench.folder.path().join("crashed.db");
    std::fs::copy(&bench.path, &crashed).unwrap();
    std::fs::copy(&log, bench.folder.path().join("crashed.db-wal")).unwrap();
    let recovered = rusqlite::Connection::open(&crashed).unwrap();
    assert_eq!(rows(&recovered, "SELECT id FROM runs"), ["r1"]);
    assert_eq!(rows(&recovered, "PRAGMA integrity_check"), ["ok"]);
    for i in 0..50 {
        bench.intent(begun(&format!("more{i}"), Durability::Written)).await;
    }
    let report = bench.client.read(|r| r.verify(0, 0)).await.unwrap();
    assert_eq!((report.checked, report.broken), (102, None));
}
