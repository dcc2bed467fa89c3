//! A run from its first step to its end: the order of things, the readings of the clock, a person's cancellation.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use holdpoint_actors::executor::{ToolFailure, ToolOutput};
use holdpoint_actors::session::{AgentError, GateError, GateSpec, Observer, Verdict};
use holdpoint_actors::store;
use holdpoint_core::approval::ApprovalStatus;
use holdpoint_core::decision::Proposal;
use holdpoint_core::event::Event;
use holdpoint_core::hash::content_hash_of;
use holdpoint_core::json::Json;
use holdpoint_core::policy::{Outcome, PolicyDecision};
use holdpoint_core::run::{Limits, Reason, RunStatus};
use holdpoint_core::step::{ObservationKind, StepStatus};
use holdpoint_core::tool::{SideEffect, ToolSpec};

use crate::bench::*;

#[tokio::test]
async fn a_run_completes_with_every_event_recorded_and_told_once() {
    let bench = Bench::new();
    let tools = tools();
    let process = bench.process(&tools, by_class()).await;
    let session = process.begin().await;
    let decisions =
        [call("read", "{\"n\":1}"), call("read", "{\"n\":2}"), Proposal::complete("{\"answer\":42}")];
    ended(drive(&session, &decisions).await.unwrap());

    let run = bench.run(&r());
    is(&run, RunStatus::Completed, Reason::GoalCompleted);
    assert_eq!((run.result, run.step_count), (Some(Json::trusted("{\"answer\":42}")), 3));
    let one = "step.started step.decided step.policy step.tool_started step.tool_finished";
    assert_eq!(
        bench.kinds(&r()),
        format!("run.created run.started {one} {one} step.started step.decided run.finished")
    );
    assert_eq!(process.seen.events(), bench.events(&r()), "told after the commit, in order");

    let steps = bench.steps(&r());
    assert_eq!(
        tools[0].call_ids(),
        [0, 1].map(|at: usize| ("r".to_owned(), steps[at].id.to_string())),
        "a tool is told whose step it serves"
    );
    for step in &steps[..2] {
        let observation = step.observation.as_ref().unwrap();
        assert_eq!((step.status, observation.kind), (StepStatus::Done, ObservationKind::ToolResult));
        assert_eq!(step.policy.as_ref().unwrap().outcome, Outcome::Allow);
        assert_eq!(observation.content_hash, content_hash_of(observation.content.as_str()));
    }
    assert_eq!(bench.lease(&r()), None);
    bench.verify();
}

/// Looks into the record, as another program would, whenever it is told of an event.
struct Looking {
    database: PathBuf,
    found: Mutex<Vec<String>>,
}

impl Observer for Looking {
    fn committed(&self, event: &Event) {
        let look = |reader: &store::Reader<'_>| {
            let recorded = reader.events(&r())?.contains(event);
            Ok((recorded, reader.run(&r())?.unwrap(), reader.steps(&r())?.pop()))
        };
        let (recorded, run, step) =
            store::OperatorStore::open(&self.database, true).unwrap().read(look).unwrap();
        let step = step.map_or("none".to_owned(), |step| {
            let (decision, policy) = (step.decision.is_some(), step.policy.is_some());
            format!("{} {decision} {policy} {}", step.status.as_str(), step.observation.is_some())
        });
        let line = format!("{} {recorded}: {} / {step}", event.kind, run.status.as_str());
        self.found.lock().unwrap().push(line);
    }
}

#[tokio::test]
async fn whoever_is_told_of_an_event_finds_it_recorded_with_its_change_and_nothing_that_follows() {
    let bench = Bench::new();
    let looking = Arc::new(Looking { database: bench.path(), found: Mutex::default() });
    let observer = Arc::<Looking>::clone(&looking);
    let more = |spec: &mut GateSpec| spec.observer = Some(observer);
    let process = bench.process_with(&tools(), by_class(), store::Options::default(), more).await;
    let session = process.begin().await;
    let decisions = [call("write", "{}"), call("write", "{\"x\":1}"), Proposal::complete("{}")];
    ended(drive(&session, &decisions).await.unwrap());
    // Whether the event is there; the run; the latest step, and whether its decision, its policy and its outcome are.
    let expected = [
        "run.created true: RUNNING / none",
        "run.started true: RUNNING / none",
        "step.started true: RUNNING / deciding false false false",
        "step.decided true: RUNNING / deciding true false false",
        "step.policy true: RUNNING / executing true true false",
        "step.tool_started true: RUNNING / executing true true false",
        "step.tool_finished true: RUNNING / done true true true",
        "step.started true: RUNNING / deciding false false false",
        "step.decided true: RUNNING / deciding true false false",
        "step.failed true: RUNNING / failed true false true",
        "step.started true: RUNNING / deciding false false false",
        "step.decided true: RUNNING / deciding true false false",
        "run.finished true: COMPLETED / done true false false",
    ];
    assert_eq!(*looking.found.lock().unwrap(), expected);
    bench.verify();
}

#[tokio::test]
async fn arguments_that_do_not_fit_are_observed_and_reach_neither_policy_nor_tool() {
    let bench = Bench::new();
    let tools = tools();
    let rules = always(PolicyDecision::allow(""));
    let process = bench.process(&tools, rules.clone()).await;
    let session = process.begin().await;
    for proposal in [
        call("read", "{\"n\":\"not a number\"}"),
        call("read", "{\"n\":1,\"extra\":true}"),
        call("nope", "{}"),
        call("", "{}"),
    ] {
        let observation = denied(propose(&session, proposal.clone()).await.1);
        assert_eq!(observation.kind, ObservationKind::InvalidDecision);
        let step = bench.steps(&r()).pop().unwrap();
        assert_eq!(step.status, StepStatus::Failed);
        assert_eq!(step.decision, Some(proposal.recorded()), "recorded as it came");
        assert!(step.policy.is_none());
    }
    assert!(rules.asked().is_empty());
    act(&session, call("read", "{\"n\":1}")).await;
    assert_eq!(tools[0].calls(), 1);
    bench.verify();
}

#[tokio::test]
async fn unusable_json_is_recorded_out_of_band_and_refused() {
    let bench = Bench::new();
    let tools = tools();
    let process = bench.process(&tools, by_class()).await;
    let session = process.begin().await;
    let mut deep = vec![b'['; 257];
    deep.extend(vec![b']'; 257]);
    let cases = [
        (call("read", "{\"n\":"), "{\"n\":"),
        (call("read", "{\"n\":1,\"n\":2}"), "{\"n\":1,\"n\":2}"),
        (call("read", "{\"n\":1e999999}"), "{\"n\":1e999999}"),
        (call("read", "\"\\ud800\""), "\"\\ud800\""),
    ];
    for (proposal, kept) in cases {
        denied(propose(&session, proposal).await.1);
        let decision = bench.steps(&r()).pop().unwrap().decision.unwrap();
        assert_eq!((decision.invalid_args.as_str(), decision.args), (kept, None));
    }
    let result =
        Proposal { kind: "complete".to_owned(), result: b"\"\xff\"".to_vec(), ..Proposal::default() };
    denied(propose(&session, result).await.1);
    let decision = bench.steps(&r()).pop().unwrap().decision.unwrap();
    assert_eq!((decision.invalid_result.as_str(), decision.invalid_base64), ("Iv8i", true));
    assert_eq!(tools[0].calls(), 0);
    drop(session);

    let deeper = process.gate.begin("deep".into(), "g", limits()).await.unwrap();
    let observation = denied(propose(&deeper, Proposal::tool_call("read", deep.clone())).await.1);
    assert!(observation.summary.contains("256"), "{}", observation.summary);
    denied(propose(&deeper, Proposal::complete(deep)).await.1);
    bench.verify();
}

#[tokio::test]
async fn decisions_that_name_no_action_are_invalid() {
    let bench = Bench::new();
    let tools = tools();
    let process = bench.process(&tools, by_class()).await;
    let session = process.begin().await;
    for kind in ["truncated", "no_tool_call", "", "wander"] {
        let whole = Proposal { kind: kind.to_owned(), ..call("read", "{\"n\":1}") };
        assert_eq!(denied(propose(&session, whole).await.1).kind, ObservationKind::InvalidDecision);
    }
    assert_eq!(bench.steps(&r()).len(), 4);
    assert_eq!(tools[0].calls(), 0, "also when a whole call stands in it");
}

#[tokio::test]
async fn a_terminal_tools_success_completes_the_run_in_the_same_commit() {
    let bench = Bench::new();
    let tools = tools();
    let process = bench.process(&tools, by_class()).await;
    let session = process.begin().await;
    let (step, _) = propose(&session, call("finish", "{\"n\":1}")).await;
    let before = process.counts().await;
    let executed = step.execute().await.unwrap();
    assert!(executed.run_over && session.done().await);
    let run = bench.run(&r());
    is(&run, RunStatus::Completed, Reason::GoalCompleted);
    assert_eq!(run.result, Some(Json::trusted("{\"n\":1}")));
    assert!(run.reason_detail.contains("finish"), "{}", run.reason_detail);
    let after = process.counts().await;
    assert_eq!(after.synced_commits - before.synced_commits, 2, "its start, and its end with the run's");
    assert_eq!(after.written_commits, before.written_commits);
    is_run_state(process.gate.attach(r()).await);
    assert_eq!(tools[4].calls(), 1);
}

#[tokio::test]
async fn a_failure_of_a_terminal_tool_completes_nothing() {
    let bench = Bench::new();
    let spec = ToolSpec { terminal: true, ..spec("finish", SideEffect::ReadOnly) };
    let finish = Scripted::with(spec, |_| Box::pin(async { Err(ToolFailure::Failed("no".to_owned())) }));
    let process = bench.process(&[finish], by_class()).await;
    let session = process.begin().await;
    let observation = act(&session, call("finish", "{}")).await;
    assert_eq!((observation.kind, session.done().await), (ObservationKind::ToolError, false));
    assert_eq!(bench.run(&r()).status, RunStatus::Running);
}

#[tokio::test]
async fn a_failure_to_decide_and_a_decision_to_fail_end_the_run() {
    let bench = Bench::new();
    let process = bench.process(&tools(), by_class()).await;
    let session = process.begin().await;
    let step = session.step().await.unwrap().unwrap();
    is(
        &ended(step.fail(AgentError::msg("the model is down")).await.unwrap()),
        RunStatus::Failed,
        Reason::AgentError,
    );
    let failed = bench.steps(&r()).pop().unwrap();
    assert_eq!((failed.status, failed.observation), (StepStatus::Failed, None));
    assert!(bench.kinds(&r()).ends_with("step.started step.failed run.finished"));

    let session = process.gate.begin("other".into(), "g", limits()).await.unwrap();
    let run = ended(propose(&session, Proposal::fail("cannot do it")).await.1);
    is(&run, RunStatus::Failed, Reason::GoalFailed);
    assert_eq!(run.reason_detail, "cannot do it");
    assert_eq!(bench.steps(&"other".into())[0].status, StepStatus::Done);
    bench.verify();
}

#[tokio::test]
async fn the_clock_is_read_once_for_each_change_of_state() {
    let abort =
        Scripted::giving("abort", SideEffect::LocalMutation, Err(ToolFailure::Abort("no".to_owned())));
    let read = || call("read", "{\"n\":1}");
    let cases: [(&str, Vec<Proposal>, usize); 5] = [
        ("fail", vec![Proposal::fail("gave up")], 5),
        ("terminal tool", vec![call("finish", "{}")], 6),
        ("tool abort", vec![call("abort", "{}")], 6),
        ("loop", vec![read(), read()], 11),
        (
            "read, deny, invalid, complete",
            vec![read(), call("wipe", "{}"), call("nope", "{}"), Proposal::complete("{}")],
            16,
        ),
    ];
    for (name, decisions, readings) in cases {
        let bench = Bench::new();
        let mut tools = tools();
        tools.push(Arc::clone(&abort));
        let process = bench.process(&tools, by_class()).await;
        let session = process.gate.begin(r(), "g", Limits { loop_threshold: 2, ..limits() }).await.unwrap();
        drive(&session, &decisions).await;
        assert_eq!(bench.clock.count(), readings, "{name}");
    }

    let bench = Bench::new();
    let process = bench.process(&tools(), by_class()).await;
    let session = process.begin().await;
    session.step().await.unwrap().unwrap().fail(AgentError::msg("no")).await.unwrap();
    assert_eq!(bench.clock.count(), 4, "a failure to decide");

    let bench = Bench::new();
    let process = bench.process(&tools(), by_class()).await;
    let approval = process.waiting("push", "{\"n\":1}").await;
    assert_eq!(bench.clock.count(), 5, "a pause");
    is_run_state(process.gate.attach(r()).await);
    assert_eq!(bench.clock.count(), 5, "an attach that finds nothing decided");
    bench.approve(&approval);
    let (session, step) = granted(process.gate.attach(r()).await);
    step.execute().await.unwrap();
    drive(&session, &[call("", ""), call("read", "{\"n\":2}"), Proposal::complete("{}")]).await;
    assert_eq!(bench.clock.count(), 16, "its collection, a read and the end");
}

#[tokio::test]
async fn an_elapsed_time_limit_costs_one_reading_a_step() {
    let bench = Bench::new();
    let process = bench.process(&tools(), by_class()).await;
    let limits = Limits { max_elapsed_time: i64::MAX, ..limits() };
    let session = process.gate.begin(r(), "g", limits).await.unwrap();
    propose(&session, Proposal::fail("")).await;
    assert_eq!(bench.clock.count(), 6);
}

#[tokio::test]
async fn a_cancelled_run_is_not_overwritten_by_its_session_and_keeps_the_late_outcome() {
    let bench = Bench::new();
    let (work, latch) = Scripted::latched("work", SideEffect::LocalMutation);
    let process = bench.process(&[work], by_class()).await;
    let session = process.begin().await;
    let (step, _) = propose(&session, call("work", "{}")).await;
    let executing = tokio::spawn(async move { step.execute().await });
    latch.entered().await;
    bench.cancel(&r());
    assert_eq!(bench.lease(&r()), None, "a cancelled run is held by nobody");
    latch.release();
    let executed = executing.await.unwrap().unwrap();
    assert!(executed.run_over && executed.observation.kind == ObservationKind::ToolResult);
    is(&session.run().await, RunStatus::Cancelled, Reason::OperatorCancelled);
    is(&bench.run(&r()), RunStatus::Cancelled, Reason::OperatorCancelled);

    let steps = bench.steps(&r());
    assert_eq!(steps[0].status, StepStatus::Failed);
    assert_eq!(steps[0].observation.as_ref().unwrap().kind, ObservationKind::Interrupted);
    let late = bench.events(&r()).pop().unwrap();
    assert_eq!(late.kind, "step.tool_finished");
    assert!(
        late.payload.contains("\"late\":true,\"observation\":{\"kind\":\"tool_result\""),
        "{}",
        late.payload
    );
    is_run_state(session.step().await);
}

#[tokio::test]
async fn a_cancellation_found_between_steps_ends_the_session_without_an_error() {
    let bench = Bench::new();
    let process = bench.process(&tools(), by_class()).await;
    let session = process.begin().await;
    act(&session, call("read", "{}")).await;
    bench.cancel(&r());
    assert!(session.step().await.unwrap().is_none());
    is(&session.run().await, RunStatus::Cancelled, Reason::OperatorCancelled);
    is_run_state(session.step().await);

    // Found by a proposal it is the run's end, too.
    let session = process.gate.begin("other".into(), "g", limits()).await.unwrap();
    let step = session.step().await.unwrap().unwrap();
    bench.cancel(&"other".into());
    is(
        &ended(step.propose(call("read", "{}")).await.unwrap()),
        RunStatus::Cancelled,
        Reason::OperatorCancelled,
    );
    bench.verify();
}

#[tokio::test]
async fn a_run_that_is_approved_and_not_collected_can_still_be_cancelled() {
    let bench = Bench::new();
    let tools = tools();
    let process = bench.process(&tools, by_class()).await;
    let approval = process.waiting("push", "{\"n\":7}").await;
    bench.approve(&approval);
    let refused = bench.decide(&r(), &approval.id, store::Verdict::Reject).unwrap_err();
    assert!(matches!(refused, store::DecideError::NotPending { .. }), "{refused}");
    bench.cancel(&r());
    is(&bench.run(&r()), RunStatus::Cancelled, Reason::OperatorCancelled);
    let step = bench.steps(&r()).pop().unwrap();
    assert_eq!(
        (step.status, step.observation.unwrap().kind),
        (StepStatus::Failed, ObservationKind::Interrupted)
    );
    assert_eq!(bench.approvals(&r())[0].status, ApprovalStatus::Approved, "a decision stays");
    is_run_state(process.gate.attach(r()).await);
    let again = bench.operator().cancel(&r(), "ana", "again", start()).unwrap_err();
    assert!(matches!(again, store::DecideError::RunIs { .. }));
    assert_eq!(tools[2].calls(), 0);
    bench.verify();
}

#[tokio::test]
async fn an_unusable_tool_or_policy_or_lease_makes_no_gate() {
    let bench = Bench::new();
    let process = bench.process(&[], by_class()).await;
    let good = || spec("a", SideEffect::ReadOnly);
    let bad = [
        ToolSpec { name: String::new(), ..good() },
        ToolSpec { timeout: Duration::ZERO, ..good() },
        ToolSpec { input_schema: Json::trusted(""), ..good() },
        ToolSpec { input_schema: Json::trusted("{"), ..good() },
        ToolSpec { input_schema: Json::trusted(r#"{"type":"nonsense"}"#), ..good() },
        ToolSpec { input_schema: Json::trusted(r#"{"$ref":"https://example.com/s.json"}"#), ..good() },
        ToolSpec { input_schema: Json::trusted(r#"{"$ref":"file:///etc/passwd"}"#), ..good() },
    ];
    let gate = |specs: Vec<ToolSpec>, policy| {
        let tools = specs.into_iter().map(|spec| {
            Scripted::with(spec, |_| Box::pin(async { Ok(ToolOutput::default()) }))
                as Arc<dyn holdpoint_actors::executor::Tool>
        });
        holdpoint_actors::session::Gate::new(process.tree().clone(), GateSpec::new(policy, tools.collect()))
    };
    for spec in bad {
        let refused = gate(vec![spec.clone()], by_class());
        assert!(matches!(refused, Err(GateError::Tool { .. })), "{spec:?}: {refused:?}");
    }
    assert!(
        matches!(gate(vec![good(), good()], by_class()), Err(GateError::Tool { .. })),
        "a name that is taken"
    );
    for id in ["x".repeat(257), "two\nlines".to_owned()] {
        let policy = Rules::named(Some(&id), |_, _| Ok(PolicyDecision::allow("")));
        assert!(matches!(gate(vec![good()], policy), Err(GateError::Policy(_))));
    }
    let mut short = GateSpec::new(by_class(), Vec::new());
    short.lease_ttl = Duration::from_millis(2999);
    assert!(matches!(
        holdpoint_actors::session::Gate::new(process.tree().clone(), short),
        Err(GateError::Lease(_))
    ));
    assert!(gate(vec![good()], by_class()).is_ok());
}

#[tokio::test]
async fn a_run_needs_an_id_of_its_own_and_usable_limits() {
    let bench = Bench::new();
    let process = bench.process(&tools(), by_class()).await;
    let session = process.begin().await;
    session.close().await;
    let taken = process.gate.begin(r(), "g", limits()).await;
    assert!(matches!(taken, Err(holdpoint_actors::session::SessionError::Exists(_))), "{taken:?}");
    for (id, limits) in [("", limits()), ("x", Limits { max_steps: 0, ..limits() })] {
        let refused = process.gate.begin(id.into(), "g", limits).await;
        assert!(matches!(refused, Err(holdpoint_actors::session::SessionError::Invalid(_))));
    }
    assert_eq!(bench.operator().read(|reader| reader.runs_page(10, 0)).unwrap().total, 1);
}

#[tokio::test]
async fn tools_are_listed_by_name() {
    let bench = Bench::new();
    let process = bench.process(&tools(), by_class()).await;
    let names: Vec<_> = process.gate.tools().into_iter().map(|spec| spec.name).collect();
    assert_eq!(names, ["finish", "push", "read", "wipe", "write"]);
    let created = {
        let _session = process.begin().await;
        bench.events(&r())[0].payload.clone()
    };
    let hashes: Vec<_> =
        process.gate.tools().iter().map(|spec| format!("\"{}\"", spec.recorded().hash)).collect();
    assert!(created.ends_with(&format!("\"tools\":[{}]}}", hashes.join(","))), "{created}");
}

#[tokio::test]
async fn a_denial_is_observed_and_an_abort_ends_the_run() {
    let bench = Bench::new();
    let tools = tools();
    let rules = Rules::new(|request, _| {
        Ok(match request.spec.name.as_str() {
            "wipe" => PolicyDecision::deny("never"),
            "push" => PolicyDecision::abort("stop everything"),
            _ => PolicyDecision::allow(""),
        })
    });
    let process = bench.process(&tools, rules).await;
    let session = process.begin().await;
    let observation = denied(propose(&session, call("wipe", "{}")).await.1);
    assert_eq!(
        (observation.kind, observation.summary.as_str()),
        (ObservationKind::PolicyDenied, "denied: never")
    );
    assert_eq!(observation.content.as_str(), r#"{"reason":"never","tool":"wipe"}"#);
    assert!(!session.done().await);
    let (step, verdict) = propose(&session, call("push", "{\"n\":1}")).await;
    assert_eq!(step.index(), 1);
    let run = ended(verdict);
    is(&run, RunStatus::Failed, Reason::PolicyAbort);
    assert_eq!(run.reason_detail, "stop everything");
    assert!(session.done().await);
    is_run_state(session.step().await);
    is_run_state(step.execute().await);
    assert_eq!(tools.iter().map(|tool| tool.calls()).sum::<usize>(), 0);
    bench.verify();
}

#[tokio::test]
async fn a_call_that_needs_a_person_parks_the_run_on_a_hashed_request() {
    let bench = Bench::new();
    let tools = tools();
    let process = bench.process(&tools, by_class()).await;
    let session = process.begin().await;
    let (_, verdict) = propose(&session, call("push", "{ \"n\": 7 }")).await;
    let Verdict::Pending { approval, run } = verdict else { panic!("it waits") };
    assert_eq!((run.status, run.reason), (RunStatus::WaitingForApproval, None));
    let stored = bench.approvals(&r()).pop().unwrap();
    assert_eq!((stored.status, stored.kind.as_str()), (ApprovalStatus::Pending, "remote_mutation"));
    assert_eq!((&stored.hash, stored.is_intact()), (&approval.hash, true));
    let request = stored.request.unwrap();
    assert_eq!((request.spec.name.as_str(), request.args.as_str()), ("push", "{\"n\":7}"));
    assert_eq!(bench.steps(&r())[0].status, StepStatus::AwaitingApproval);
    assert_eq!(bench.lease(&r()), None, "a run that waits is held by nobody");
    let last = bench.events(&r()).pop().unwrap();
    assert_eq!(last.kind, "approval.requested");
    assert!(last.payload.contains("\"kind\":\"remote_mutation\"") && last.payload.contains("\"n\":7"));
    assert_eq!(tools[2].calls(), 0);
    bench.verify();
}
