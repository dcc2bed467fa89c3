//! A session's hold on its run: who else may have it, when it is lost, and who looks after the run of a session that is
//! gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use holdpoint_actors::clock::Clock;
use holdpoint_actors::executor::{Tool, ToolFailure};
use holdpoint_actors::faults::{Failure, Point};
use holdpoint_actors::lease;
use holdpoint_actors::session::{
    Beginning, Gate, GateSpec, Observer, Pace, Reconcile, Reconciliation, Session, SessionError,
};
use holdpoint_actors::store::Options;
use holdpoint_core::approval::INTERRUPTED_SIDE_EFFECT;
use holdpoint_core::attempt::Ending;
use holdpoint_core::decision::Proposal;
use holdpoint_core::event::Event;
use holdpoint_core::policy::PolicyView;
use holdpoint_core::run::{Reason, RunStatus};
use holdpoint_core::step::{ObservationKind, StepStatus};
use holdpoint_core::tool::SideEffect;

use crate::bench::*;

const SECOND: Duration = Duration::from_secs(1);

/// Waits until what the keeper tells is so.
async fn until(process: &Process, so: impl Fn(&lease::Observation) -> bool) -> lease::Observation {
    loop {
        match process.tree().observe().await.lease {
            Some(seen) if so(&seen) => return seen,
            Some(_) | None => tokio::task::yield_now().await,
        }
    }
}

/// Attaches once the recovery of the run has let go of it.
async fn attached(process: &Process) -> Session {
    loop {
        match process.gate.attach(r()).await {
            Err(SessionError::RunState { .. }) => tokio::task::yield_now().await,
            attached => return open(attached),
        }
    }
}

/// Waits until the run stands there.
async fn until_run(bench: &Bench, so: impl Fn(RunStatus, bool) -> bool) {
    while !so(bench.run(&r()).status, bench.lease(&r()).is_some()) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn an_attach_to_a_run_that_is_held_names_the_holder_and_changes_nothing() {
    let bench = Bench::new();
    let (work, latch) = Scripted::latched("work", SideEffect::LocalMutation);
    let one = bench.process(std::slice::from_ref(&work), by_class()).await;
    let two = bench.process(std::slice::from_ref(&work), by_class()).await;
    let session = one.begin().await;
    let (step, _) = propose(&session, call("work", "{}")).await;
    let executing = tokio::spawn(async move { step.execute().await });
    latch.entered().await;
    let (before, readings) = (bench.rows(&r()), bench.clock.count());
    let held = bench.lease(&r()).unwrap();
    let Err(SessionError::Leased { run, owner, expires_at }) = two.gate.attach(r()).await else {
        panic!("held")
    };
    assert_eq!((run, owner, expires_at), (r(), held.owner, start().plus(30 * SECOND)));
    assert_eq!((bench.rows(&r()), bench.clock.count()), (before, readings), "nor is the clock read");
    latch.release();
    executing.await.unwrap().unwrap();
    ended(propose(&session, Proposal::complete("")).await.1);
    assert_eq!((bench.lease(&r()), work.calls()), (None, 1));
    bench.verify();
}

/// Goes on after an interruption, and counts how often it was asked.
#[derive(Default)]
struct Counting(AtomicUsize, std::sync::Mutex<Option<PolicyView>>);

#[async_trait]
impl Reconcile for Counting {
    async fn reconcile(&self, view: &PolicyView) -> Result<Reconciliation, String> {
        self.0.fetch_add(1, Ordering::AcqRel);
        *self.1.lock().unwrap() = Some(view.clone());
        Ok(Reconciliation::Continue)
    }
}

#[tokio::test]
async fn a_lease_that_ran_out_is_taken_over_and_the_dead_owners_outcome_is_dropped() {
    let bench = Bench::new();
    let (work, latch) = Scripted::latched("work", SideEffect::LocalMutation);
    let one = bench.process(std::slice::from_ref(&work), by_class()).await;
    let reconcile = Arc::new(Counting::default());
    let given = Arc::clone(&reconcile);
    let two = bench
        .process_with(std::slice::from_ref(&work), by_class(), Options::default(), |spec| {
            spec.reconcile = Some(given);
        })
        .await;
    let session = one.begin().await;
    let (step, _) = propose(&session, call("work", "{}")).await;
    let executing = tokio::spawn(async move { step.execute().await });
    latch.entered().await;
    let first = bench.lease(&r()).unwrap();

    bench.wall.advance(29 * SECOND);
    assert!(matches!(two.gate.attach(r()).await, Err(SessionError::Leased { .. })));
    bench.wall.advance(SECOND);
    let next = open(two.gate.attach(r()).await);
    assert_eq!(reconcile.0.load(Ordering::Acquire), 1);
    let view = reconcile.1.lock().unwrap().take().unwrap();
    assert_eq!((view.steps.len(), view.steps[0].status), (1, StepStatus::Interrupted));
    ended(drive(&next, &[call("", ""), Proposal::complete("{\"ok\":true}")]).await.unwrap());
    assert_eq!(
        bench.kinds(&r()),
        "run.created run.started step.started step.decided step.policy step.tool_started lease.taken_over \
         step.interrupted run.resumed step.started step.decided run.finished"
    );
    let taken = bench.events(&r()).into_iter().find(|event| event.kind == "lease.taken_over").unwrap();
    assert!(taken.payload.contains(first.owner.as_str()), "{}", taken.payload);

    latch.release();
    is_lease_lost(executing.await.unwrap());
    let step = &bench.steps(&r())[0];
    assert_eq!(
        (step.status, step.observation.as_ref().unwrap().kind),
        (StepStatus::Interrupted, ObservationKind::Interrupted)
    );
    assert_eq!(work.calls(), 1);
    is_lease_lost(session.step().await);
    bench.verify();
}

#[tokio::test]
async fn a_session_whose_lease_was_taken_is_refused_everything_and_starts_nothing() {
    let bench = Bench::new();
    let tools = tools();
    let one = bench.process(&tools, by_class()).await;
    let two = bench.process(&tools, by_class()).await;
    let session = one.begin().await;
    let step = session.step().await.unwrap().unwrap();
    bench.wall.advance(31 * SECOND);
    let next = open(two.gate.attach(r()).await);
    let before = bench.rows(&r());
    is_lease_lost(step.propose(call("read", "{\"n\":1}")).await);
    is_lease_lost(session.step().await);
    is_lease_lost(step.execute().await);
    session.close().await;
    assert_eq!((bench.rows(&r()), tools[0].calls()), (before, 0), "nor does it release what is not its own");
    assert!(bench.lease(&r()).is_some());
    ended(propose(&next, Proposal::complete("")).await.1);
    bench.verify();
}

#[tokio::test]
async fn a_lease_that_lapsed_unnoticed_starts_no_effect_and_is_given_up() {
    let bench = Bench::new();
    let tools = tools();
    let process = bench.process(&tools, by_class()).await;
    let session = process.begin().await;
    let (step, verdict) = propose(&session, call("write", "{\"n\":1}")).await;
    allowed(&verdict);
    bench.wall.advance(31 * SECOND);
    is_lease_lost(step.execute().await);
    is_lease_lost(session.step().await);
    assert_eq!(tools[1].calls(), 0);
    assert_eq!(bench.lease(&r()), None);
    let next = open(process.gate.attach(r()).await);
    assert!(!bench.kinds(&r()).contains("lease.taken_over"));
    act(&next, call("write", "{\"n\":1}")).await;
    assert_eq!(tools[1].calls(), 1);
    bench.verify();
}

#[tokio::test]
async fn a_tool_that_outlives_an_unclaimed_lease_is_recorded_and_no_further_one_starts() {
    let bench = Bench::new();
    let (work, latch) = Scripted::latched("work", SideEffect::LocalMutation);
    let process = bench.process(std::slice::from_ref(&work), by_class()).await;
    let session = process.begin().await;
    let (step, _) = propose(&session, call("work", "{}")).await;
    let executing = tokio::spawn(async move { step.execute().await });
    latch.entered().await;
    bench.wall.advance(31 * SECOND);
    latch.release();
    assert_eq!(executing.await.unwrap().unwrap().observation.kind, ObservationKind::ToolResult);
    assert_eq!(
        bench.steps(&r())[0].status,
        StepStatus::Done,
        "nobody else has it, so the outcome is its own to tell"
    );
    let (step, _) = propose(&session, call("work", "{\"n\":2}")).await;
    is_lease_lost(step.execute().await);
    assert_eq!(work.calls(), 1);
    bench.verify();
}

#[tokio::test]
async fn a_session_that_finds_another_owner_leaves_its_step_to_them() {
    let bench = Bench::new();
    let (work, latch) = Scripted::latched("work", SideEffect::LocalMutation);
    let process = bench.process(std::slice::from_ref(&work), by_class()).await;
    let session = process.begin().await;
    let (step, _) = propose(&session, call("work", "{}")).await;
    let executing = tokio::spawn(async move { step.execute().await });
    latch.entered().await;
    bench.sql("UPDATE runs SET lease_owner = 'other', lease_expires_at = '2099-01-01T00:00:00Z'");
    latch.release();
    is_lease_lost(executing.await.unwrap());
    let step = bench.steps(&r()).pop().unwrap();
    assert_eq!((step.status, step.observation), (StepStatus::Executing, None));
    assert_eq!(bench.lease(&r()).unwrap().owner.as_str(), "other");
}

#[tokio::test]
async fn a_long_call_keeps_its_lease() {
    let bench = Bench::new();
    let (work, latch) = Scripted::latched("work", SideEffect::LocalMutation);
    let short = |spec: &mut GateSpec| spec.lease_ttl = lease::TTL_MIN;
    let one = bench.process_with(std::slice::from_ref(&work), by_class(), Options::default(), short).await;
    let two = bench.process(std::slice::from_ref(&work), by_class()).await;
    let session = one.begin().await;
    let (step, _) = propose(&session, call("work", "{}")).await;
    let executing = tokio::spawn(async move { step.execute().await });
    latch.entered().await;
    bench.wall.advance(2 * SECOND);
    let seen = until(&one, |seen| seen.renewed >= 1).await;
    assert_eq!(seen.held, 1);
    while bench.lease(&r()).unwrap().expires_at != start().plus(5 * SECOND) {
        tokio::task::yield_now().await;
    }
    bench.wall.advance(2 * SECOND);
    assert!(matches!(two.gate.attach(r()).await, Err(SessionError::Leased { .. })));
    // A keeper that died is restarted, asks who is there, and goes on renewing.
    one.tree().lease.tell(lease::Msg::Fail(Failure::Panic));
    until(&one, |seen| seen.renewed >= 1 && seen.held == 1).await;
    latch.release();
    executing.await.unwrap().unwrap();
    ended(propose(&session, Proposal::complete("")).await.1);
    bench.verify();
}

#[tokio::test]
async fn a_renewal_that_is_refused_stops_the_session_before_its_next_effect() {
    let bench = Bench::new();
    let tools = tools();
    let short = |spec: &mut GateSpec| spec.lease_ttl = lease::TTL_MIN;
    let process = bench.process_with(&tools, by_class(), Options::default(), short).await;
    let session = process.begin().await;
    let (step, _) = propose(&session, call("write", "{}")).await;
    bench.sql("UPDATE runs SET lease_owner = 'other', lease_expires_at = '2099-01-01T00:00:00Z'");
    until(&process, |seen| seen.renewed >= 1).await;
    is_lease_lost(step.execute().await);
    assert_eq!(tools[1].calls(), 0);
}

#[tokio::test]
async fn an_outcome_is_late_and_not_lost_when_the_session_misses_its_lease_first() {
    let bench = Bench::new();
    let failed = ToolFailure::TimedOut("fails: no answer".to_owned());
    let tool = Scripted::giving("fails", SideEffect::LocalMutation, Err(failed));
    let short = |spec: &mut GateSpec| spec.lease_ttl = lease::TTL_MIN;
    let process = bench.process_with(&[tool], by_class(), Options::default(), short).await;
    let beginning = Beginning { pace: Pace::Effects, ..Beginning::default() };
    let session = process.gate.begin_with(r(), "g", limits(), beginning).await.unwrap();
    act(&session, call("fails", "{}")).await;
    bench.cancel(&r());
    until(&process, |seen| seen.renewed >= 2).await;
    assert!(session.step().await.unwrap().is_none());
    let late = bench.events(&r()).pop().unwrap();
    assert!(late.late_observation().is_some(), "{late:?}");
    let step = bench.steps(&r()).pop().unwrap().id;
    let ending = bench.operator().read(|reader| reader.ending(&step)).unwrap();
    assert_eq!(ending, Some(Ending::TimedOut));
}

#[tokio::test]
async fn equal_labels_are_different_owners() {
    let bench = Bench::new();
    let one = bench.process(&tools(), by_class()).await;
    let two = bench.process(&tools(), by_class()).await;
    let mut owners = Vec::new();
    for (process, id) in [(&one, "a"), (&one, "b"), (&two, "c")] {
        let session = process.gate.begin(id.into(), "g", limits()).await.unwrap();
        owners.push(bench.lease(&id.into()).unwrap().owner.to_string());
        session.close().await;
        let session = open(process.gate.attach(id.into()).await);
        owners.push(bench.lease(&id.into()).unwrap().owner.to_string());
        session.close().await;
    }
    let distinct: std::collections::HashSet<_> = owners.iter().collect();
    assert_eq!(distinct.len(), owners.len(), "{owners:?}");
    for owner in &owners {
        let (prefix, hex) = owner.rsplit_once('/').unwrap();
        assert!(
            prefix.starts_with("holdpoint:") && hex.len() == 12 && hex.bytes().all(|b| b.is_ascii_hexdigit())
        );
    }
}

#[tokio::test]
async fn taking_over_ones_own_lapsed_lease_is_recorded() {
    let bench = Bench::new();
    let tools = tools();
    let process = bench.process(&tools, by_class()).await;
    let session = process.begin().await;
    let owner = bench.lease(&r()).unwrap().owner;
    let step = session.step().await.unwrap().unwrap();
    bench.wall.advance(31 * SECOND);
    is_run_state(process.gate.attach(r()).await);
    drop((session, step));
    until_run(&bench, |_, held| !held).await;
    let taken = bench.events(&r()).into_iter().find(|event| event.kind == "lease.taken_over").unwrap();
    assert!(taken.payload.contains(owner.as_str()));
    bench.verify();
}

#[tokio::test]
async fn the_run_of_a_session_dropped_before_its_tool_started_goes_on() {
    let bench = Bench::new();
    let tools = tools();
    let process = bench.process(&tools, by_class()).await;
    let session = process.begin().await;
    let (step, _) = propose(&session, call("write", "{}")).await;
    drop((session, step));
    until_run(&bench, |_, held| !held).await;
    assert_eq!(bench.run(&r()).status, RunStatus::Running, "free for whoever comes next, at once");
    assert!(bench.kinds(&r()).ends_with("lease.taken_over step.interrupted run.resumed"));
    assert_eq!(tools[1].calls(), 0);
    ended(propose(&attached(&process).await, Proposal::complete("")).await.1);
    bench.verify();
}

#[tokio::test]
async fn the_run_of_a_session_dropped_after_its_outcome_is_closed_without_a_question() {
    let bench = Bench::new();
    let process = bench.process(&tools(), by_class()).await;
    let session = process.begin().await;
    act(&session, call("write", "{}")).await;
    drop(session);
    until_run(&bench, |_, held| !held).await;
    assert!(bench.approvals(&r()).is_empty());
    assert_eq!(bench.steps(&r())[0].status, StepStatus::Done);
    bench.verify();
}

#[tokio::test]
async fn a_session_lost_while_the_keeper_is_down_is_recovered_when_it_is_back() {
    let bench = Bench::new();
    let process = bench.process(&tools(), by_class()).await;
    let session = process.begin().await;
    let keeper = process.tree().lease.find(SECOND).await.unwrap();
    keeper.kill();
    keeper.wait(None).await.unwrap();
    drop(session);
    until_run(&bench, |_, held| !held).await;
    assert!(bench.kinds(&r()).ends_with("lease.taken_over run.resumed"));
}

#[tokio::test]
async fn a_session_that_dies_in_the_middle_of_a_call_is_over_and_its_run_is_recovered() {
    for (point, status, kind) in [
        (Point::Judging, RunStatus::Running, None),
        (Point::Starting, RunStatus::Running, None),
        (Point::Started, RunStatus::WaitingForApproval, Some(INTERRUPTED_SIDE_EFFECT)),
        (Point::Answered, RunStatus::WaitingForApproval, Some(INTERRUPTED_SIDE_EFFECT)),
    ] {
        let bench = Bench::new();
        let process = bench.process(&tools(), by_class()).await;
        let session = process.begin().await;
        process.tree().hooks.once(point, r(), || async { panic!("a bug in the session") });
        let step = session.step().await.unwrap().unwrap();
        let died = match step.propose(call("write", "{}")).await {
            Ok(_) => step.execute().await.map(|_| ()),
            Err(error) => Err(error),
        };
        assert!(matches!(died, Err(SessionError::Internal { .. })), "{point:?}: {died:?}");
        is_closed(session.step().await);
        until_run(&bench, |now, held| now == status && !held).await;
        assert_eq!(bench.approvals(&r()).pop().map(|approval| approval.kind).as_deref(), kind, "{point:?}");
        bench.verify();
    }
}

#[tokio::test]
async fn a_session_that_dies_after_its_caller_went_away_is_recovered_all_the_same() {
    let bench = Bench::new();
    let process = bench.process(&tools(), by_class()).await;
    let session = process.begin().await;
    let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
    process.tree().hooks.once(Point::Starting, r(), || async {
        receiver.await.unwrap();
        panic!("a bug in the session")
    });
    let (step, _) = propose(&session, call("write", "{}")).await;
    let caller = tokio::spawn(async move { step.execute().await });
    tokio::task::yield_now().await;
    caller.abort();
    sender.send(()).unwrap();
    until_run(&bench, |_, held| !held).await;
    is_closed(session.step().await);
    bench.verify();
}

struct Panicking;

impl Observer for Panicking {
    fn committed(&self, event: &Event) {
        panic!("an observer's bug at {}", event.kind);
    }
}

#[tokio::test]
async fn an_observer_that_panics_changes_nothing() {
    let bench = Bench::new();
    let process = bench
        .process_with(&tools(), by_class(), Options::default(), |spec| {
            spec.observer = Some(Arc::new(Panicking))
        })
        .await;
    let session = process.begin().await;
    act(&session, call("write", "{}")).await;
    is(
        &ended(propose(&session, Proposal::complete("")).await.1),
        RunStatus::Completed,
        Reason::GoalCompleted,
    );
    bench.verify();
}

#[tokio::test]
async fn a_lost_sessions_run_is_recovered_by_the_gate_that_knows_its_tools() {
    let bench = Bench::new();
    let process = bench.process(&[], by_class()).await;
    let (work, latch) = Scripted::latched("work", SideEffect::ReadOnly);
    let mut spec = GateSpec::new(by_class(), vec![work as Arc<dyn Tool>]);
    spec.clock = Arc::clone(&bench.clock) as Arc<dyn Clock>;
    let second = Gate::new(process.tree().clone(), spec).unwrap();
    let session = second.begin(r(), "g", limits()).await.unwrap();
    process.tree().hooks.once(Point::Answered, r(), || async { panic!("a bug in the session") });
    let (step, _) = propose(&session, call("work", "{}")).await;
    latch.release();
    assert!(step.execute().await.is_err());
    until_run(&bench, |status, held| status == RunStatus::Running && !held).await;
    assert!(bench.kinds(&r()).ends_with("step.interrupted run.resumed"), "{}", bench.kinds(&r()));
    bench.verify();
}
