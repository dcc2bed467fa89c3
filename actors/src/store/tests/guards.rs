//! Guards: each holds, or refuses in its own words, and a refused transition leaves every table as it was.

use std::time::Duration;

use holdpoint_core::across_calls::IndexWrite;
use holdpoint_core::approval::ApprovalStatus;
use holdpoint_core::attempt::AttemptOutcome;
use holdpoint_core::ids::{ApprovalHash, ApprovalId, LeaseOwner, RequestKey, RunId, SessionName, StepId};
use holdpoint_core::run::{Lease, RunStatus};
use holdpoint_core::step::StepStatus;
use holdpoint_core::tool::SideEffect;
use holdpoint_core::transition::{Durability, Guard, LeaseWrite, Refusal, RunUpdate, RunWrite, Transition};

use super::support::*;
use crate::store::{ApplyError, Lane};

/// What a transition that would take the lease of `r1` is refused for, if it is.
async fn judged(bench: &Bench, guards: Vec<Guard>) -> Option<Refusal> {
    let mut t = Transition::of(RunId::from("r1"), Durability::Written);
    t.guards = guards;
    match bench.client.apply(Lane::Outcome, t).await {
        Ok(_) => None,
        Err(ApplyError::Refused(refusal)) => Some(refusal),
        Err(other) => panic!("{other}"),
    }
}

fn held(owner: &str, live: bool) -> Guard {
    Guard::Held { owner: LeaseOwner::from(owner), live }
}

fn lease(owner: &str, seconds: u64) -> Lease {
    Lease { owner: LeaseOwner::from(owner), expires_at: at(seconds) }
}

#[tokio::test]
async fn a_held_run_is_its_owner_s_alone_and_an_effect_needs_a_live_lease() {
    let bench = Bench::start().await;
    assert_eq!(judged(&bench, vec![held("me", false)]).await, Some(Refusal::RunMissing));
    bench.intent(begun("r1", Durability::Synced)).await;
    assert_eq!(judged(&bench, vec![held("me", true)]).await, None);
    let leased = Refusal::Leased { owner: LeaseOwner::from("me"), expires_at: at(30) };
    assert_eq!(judged(&bench, vec![held("you", false)]).await, Some(leased));
    bench.clock.advance(Duration::from_secs(30));
    assert_eq!(judged(&bench, vec![held("me", true)]).await, Some(Refusal::LeaseExpired));
    assert_eq!(judged(&bench, vec![held("me", false)]).await, None);
    bench.other().execute("UPDATE runs SET lease_owner = '', lease_expires_at = ''", []).unwrap();
    assert_eq!(judged(&bench, vec![held("me", false)]).await, Some(Refusal::LeaseExpired));
    bench.other().execute("UPDATE runs SET status = 'CANCELLED'", []).unwrap();
    assert_eq!(judged(&bench, vec![held("me", false)]).await, Some(Refusal::RunIs(RunStatus::Cancelled)));
}

#[tokio::test]
async fn a_run_is_taken_over_only_when_its_lease_is_the_one_that_was_read_and_has_run_out() {
    let bench = Bench::start().await;
    bench.intent(begun("r1", Durability::Synced)).await;
    let abandoned = |seen: Option<Lease>, gone: Option<&str>| {
        vec![Guard::Abandoned { seen, gone: gone.map(LeaseOwner::from) }]
    };
    let alive = Refusal::Leased { owner: LeaseOwner::from("me"), expires_at: at(30) };
    assert_eq!(judged(&bench, abandoned(Some(lease("me", 30)), None)).await, Some(alive));
    assert_eq!(judged(&bench, abandoned(Some(lease("me", 30)), Some("me"))).await, None);
    bench.clock.advance(Duration::from_secs(30));
    assert_eq!(judged(&bench, abandoned(Some(lease("me", 30)), None)).await, None);
    assert_eq!(judged(&bench, abandoned(Some(lease("me", 29)), None)).await, Some(Refusal::Stale));
    assert_eq!(judged(&bench, abandoned(None, None)).await, Some(Refusal::Stale));
    bench.other().execute("UPDATE runs SET lease_owner = ''", []).unwrap();
    assert_eq!(judged(&bench, abandoned(Some(lease("me", 30)), None)).await, Some(Refusal::Stale));
    assert_eq!(judged(&bench, abandoned(None, None)).await, None);
    bench.other().execute("UPDATE runs SET status = 'WAITING_FOR_APPROVAL'", []).unwrap();
    let waits = Refusal::RunIs(RunStatus::WaitingForApproval);
    assert_eq!(judged(&bench, abandoned(None, None)).await, Some(waits));
}

#[tokio::test]
async fn steps_and_approvals_are_moved_from_where_they_were_believed_to_stand() {
    let bench = Bench::start().await;
    let (mut call, approval) = waiting("r1");
    bench.intent(call.take(Durability::Synced)).await;
    let step = |id: &str, status| vec![Guard::StepIs { step: StepId::from(id), status }];
    assert_eq!(judged(&bench, step("r1-s0", StepStatus::AwaitingApproval)).await, None);
    let stands = Refusal::StepIs(Some(StepStatus::AwaitingApproval));
    assert_eq!(judged(&bench, step("r1-s0", StepStatus::Executing)).await, Some(stands));
    assert_eq!(judged(&bench, step("none", StepStatus::Executing)).await, Some(Refusal::StepIs(None)));
    let count = |count| vec![Guard::StepCount { count }];
    assert_eq!(judged(&bench, count(1)).await, None);
    assert_eq!(judged(&bench, count(0)).await, Some(Refusal::StepCount(1)));
    let asked = |id: &ApprovalId, status, hash: &ApprovalHash| {
        vec![Guard::ApprovalIs { approval: id.clone(), status, hash: hash.clone() }]
    };
    let (pending, other) = (ApprovalStatus::Pending, ApprovalHash::from("other"));
    assert_eq!(judged(&bench, asked(&approval.id, pending, &approval.hash)).await, None);
    assert_eq!(judged(&bench, asked(&approval.id, pending, &other)).await, Some(Refusal::ApprovalChanged));
    let stands = Refusal::ApprovalIs(Some(ApprovalStatus::Pending));
    assert_eq!(judged(&bench, asked(&approval.id, ApprovalStatus::Approved, &other)).await, Some(stands));
    let missing = asked(&ApprovalId::from("none"), pending, &other);
    assert_eq!(judged(&bench, missing).await, Some(Refusal::ApprovalIs(None)));
}

#[tokio::test]
async fn a_transition_with_a_late_guard_that_fails_has_written_nothing() {
    let bench = Bench::start().await;
    bench.intent(begun("r1", Durability::Synced)).await;
    let before = number(&bench.other(), "PRAGMA data_version");
    let dump = "SELECT * FROM runs UNION ALL SELECT seq, type, payload_json, hash, '', '', 0, '', '', '', '', 0, 0, 0, 0, 0, 0, '', '' FROM events";
    let stood = rows(&bench.other(), dump);
    let mut t = executing("r1", "me").take(Durability::Synced);
    t.guards = vec![held("me", true), Guard::StepCount { count: 0 }, Guard::RunAbsent];
    let refused = bench.client.apply(Lane::Intent, t).await.unwrap_err();
    assert_eq!(refused, Refusal::RunExists.into());
    assert_eq!(rows(&bench.other(), dump), stood);
    assert_eq!(number(&bench.other(), "PRAGMA data_version"), before);
}

#[tokio::test]
async fn an_update_needs_its_run_even_without_guards() {
    let bench = Bench::start().await;
    let mut t = Transition::of(RunId::from("r1"), Durability::Written);
    t.run = Some(RunWrite::Update(RunUpdate { lease: LeaseWrite::Clear, ..RunUpdate::default() }));
    let refused = bench.client.apply(Lane::Outcome, t).await.unwrap_err();
    assert_eq!(refused, Refusal::RunMissing.into());
}

fn opens(run: &str, closes: Option<i64>) -> Transition {
    let mut t = begun(run, Durability::Synced);
    t.index.push(IndexWrite::Open {
        session: SessionName::from("s"),
        key: RequestKey::from("k"),
        tool: "pay".to_owned(),
        side_effect: SideEffect::RemoteMutation,
        run_id: RunId::from(run),
        at: at(4),
        closes,
    });
    t
}

#[tokio::test]
async fn a_request_has_one_open_row_and_the_next_one_closes_it() {
    let bench = Bench::start().await;
    bench.intent(opens("r1", None)).await;
    for closes in [None, Some(7)] {
        let stale = bench.client.apply(Lane::Intent, opens("r2", closes)).await.unwrap_err();
        assert_eq!(stale, Refusal::Stale.into());
    }
    bench.intent(opens("r2", Some(1))).await;
    let nanos = at(4).as_nanos();
    assert_eq!(
        rows(&bench.other(), "SELECT * FROM proxy_calls"),
        [
            format!("1|s|k|pay|remote_mutation|r1|{nanos}|0|{nanos}|0|0"),
            format!("2|s|k|pay|remote_mutation|r2|{nanos}|1|0|0|0"),
        ]
    );
}

#[tokio::test]
async fn rows_are_settled_once_and_unsettled_when_their_run_begins_after_all() {
    let bench = Bench::start().await;
    let settle = |write: IndexWrite| {
        let mut t = Transition::of(RunId::from("r1"), Durability::Written);
        t.index.push(write);
        t
    };
    let run_id = RunId::from("r1");
    let settled = "SELECT settled_at, outcome FROM proxy_calls";
    // A row that another proxy wrote, whose run never began.
    let insert = "INSERT INTO proxy_calls (session, request_key, tool, side_effect, run_id, created_at) VALUES ('s', 'k', 'pay', 'read_only', 'r1', 1)";
    bench.other().execute(insert, []).unwrap();
    bench.outcome(settle(IndexWrite::SettleEmpty { run_id: run_id.clone(), at: at(5) })).await;
    assert_eq!(rows(&bench.other(), settled), [format!("{}|1", at(5).as_nanos())]);
    let mut begins = begun("r1", Durability::Synced);
    begins.index.push(IndexWrite::Unsettle { run_id: run_id.clone() });
    bench.intent(begins).await;
    assert_eq!(rows(&bench.other(), settled), ["0|0"]);
    bench.outcome(settle(IndexWrite::SettleEmpty { run_id: run_id.clone(), at: at(6) })).await;
    assert_eq!(rows(&bench.other(), settled), ["0|0"]);
    let seen = |outcome, at| IndexWrite::Settle { run_id: run_id.clone(), outcome, at };
    bench.outcome(settle(seen(AttemptOutcome::Unknown, at(7)))).await;
    bench.outcome(settle(seen(AttemptOutcome::Known, at(8)))).await;
    assert_eq!(rows(&bench.other(), settled), [format!("{}|3", at(7).as_nanos())]);
}
