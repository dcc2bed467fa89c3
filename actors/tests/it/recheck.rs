//! Recorded runs, put to a policy again: by real sessions recorded, by raw SQL damaged.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use holdpoint_actors::model::{Model, ModelError};
use holdpoint_actors::policy::{Policy, PolicyError};
use holdpoint_actors::recheck::{self, CurrentTools, RecheckError, Rechecker};
use holdpoint_actors::session::{ModelConfig, Reconcile, Reconciliation, Session};
use holdpoint_actors::store::{OperatorStore, Options, TEXT_CHARS_MAX};
use holdpoint_core::decision::Proposal;
use holdpoint_core::ids::RunId;
use holdpoint_core::json::Json;
use holdpoint_core::model::{ModelRequest, ModelResponse, Price, PriceTable, Usage};
use holdpoint_core::policy::{Outcome, PolicyDecision, PolicyView, default_decision};
use holdpoint_core::recheck::{APPROVALS_MAX, Evaluation, Finding, Identity, Record, Report, SpecSource};
use holdpoint_core::tool::{SideEffect, ToolRequest, ToolSpec};
use rusqlite::Connection;

use crate::bench::*;

fn read(bench: &Bench, run: &RunId) -> Option<Record> {
    let mut store = OperatorStore::open(&bench.path(), true).unwrap();
    store.read(|reader| recheck::read(reader, run)).unwrap()
}

async fn under(bench: &Bench, policy: Arc<dyn Policy>) -> Report {
    Rechecker::new(policy).unwrap().recheck(&read(bench, &r()).unwrap()).await
}

async fn under_now(
    bench: &Bench,
    policy: Arc<dyn Policy>,
    tools: impl IntoIterator<Item = ToolSpec>,
) -> Report {
    let tools = Arc::new(CurrentTools::of(tools).unwrap());
    Rechecker::new(policy).unwrap().with_current_tools(tools).recheck(&read(bench, &r()).unwrap()).await
}

/// Step, tool, whether on resume, and the finding of each evaluation.
fn findings(report: &Report) -> Vec<(i64, &str, bool, Finding)> {
    let line = |e: &Evaluation| (e.step_index.unwrap(), e.result);
    report.evaluations.iter().map(|e| (line(e).0, e.tool.as_str(), e.on_resume, line(e).1)).collect()
}

/// Records a read, a push that is approved and collected, a denied wipe, a write, and the end.
async fn story(bench: &Bench, policy: Arc<dyn Policy>) {
    let process = bench.process(&tools(), policy).await;
    let session = process.begin().await;
    act(&session, call("read", "{\"n\":1}")).await;
    let approval = pending(propose(&session, call("push", "{\"n\":2}")).await.1);
    bench.approve(&approval);
    let (session, step) = granted(process.gate.attach(r()).await);
    step.execute().await.unwrap();
    denied(propose(&session, call("wipe", "{}")).await.1);
    act(&session, call("write", "{\"n\":3}")).await;
    ended(propose(&session, Proposal::complete("")).await.1);
}

fn stricter() -> Arc<Rules> {
    Rules::named(Some("rules-v2"), |request, _| {
        Ok(match request.spec.side_effect {
            SideEffect::ReadOnly => PolicyDecision::allow("reads run"),
            SideEffect::LocalMutation | SideEffect::RemoteMutation | SideEffect::Destructive => {
                PolicyDecision::deny("nothing is changed")
            }
        })
    })
}

#[tokio::test]
async fn the_policy_that_decided_decides_the_same_again() {
    use Finding::Same;
    let bench = Bench::new();
    story(&bench, by_class()).await;
    let (rows, readings) = (bench.rows(&r()), bench.clock.count());
    let report = under(&bench, by_class()).await;
    assert_eq!(
        findings(&report),
        [
            (0, "read", false, Same),
            (1, "push", false, Same),
            (1, "push", true, Same),
            (2, "wipe", false, Same),
            (3, "write", false, Same)
        ]
    );
    assert!(report.proves_same() && report.notes.is_empty(), "{report:?}");
    assert_eq!((report.identity, report.spec_source), (Identity::Unknown, SpecSource::Recorded));
    assert_eq!((report.run_id.clone(), report.run_status.as_str()), (r(), "COMPLETED"));
    let asked = &report.evaluations[1];
    assert_eq!(asked.recorded_hash, asked.rechecked_hash);
    assert_eq!(
        asked.recorded_hash.as_ref(),
        Some(&bench.approvals(&r())[0].hash),
        "the hash that was approved"
    );
    assert_eq!(
        (bench.rows(&r()), bench.clock.count()),
        (rows, readings),
        "nothing is written and no clock is read"
    );
}

#[tokio::test]
async fn a_stricter_policy_names_the_steps_that_it_would_have_stopped() {
    use Finding::{Different, Same};
    let bench = Bench::new();
    story(&bench, Rules::named(Some("rules-v1"), |request, _| Ok(default_decision(request)))).await;
    let report = under(&bench, stricter()).await;
    assert_eq!(
        findings(&report),
        [
            (0, "read", false, Same),
            (1, "push", false, Different),
            (1, "push", true, Different),
            (2, "wipe", false, Same),
            (3, "write", false, Different)
        ]
    );
    assert_eq!(
        (report.differences(), report.rechecked(), report.same(), report.complete()),
        (3, 5, false, true)
    );
    assert_eq!((report.identity, report.policy_id.as_str()), (Identity::Changed, "rules-v2"));
    let pushed = &report.evaluations[1];
    assert_eq!(
        (pushed.recorded.outcome.as_str(), pushed.policy_id.as_str()),
        ("require_approval", "rules-v1")
    );
    let now = pushed.rechecked.as_ref().unwrap();
    assert_eq!((now.outcome.as_str(), now.reason.as_str()), ("deny", "nothing is changed"));
    assert!(pushed.detail.is_empty(), "the reason says it: {}", pushed.detail);
    let unchanged =
        under(&bench, Rules::named(Some("rules-v1"), |request, _| Ok(default_decision(request)))).await;
    assert_eq!(unchanged.identity, Identity::Unchanged);
}

#[tokio::test]
async fn another_presentation_differs_by_its_hash_and_another_reason_never() {
    let bench = Bench::new();
    story(&bench, by_class()).await;
    let reworded = Rules::new(|request, _| {
        Ok(PolicyDecision { reason: "in other words".to_owned(), ..default_decision(request) })
    });
    assert!(under(&bench, reworded).await.proves_same());
    let shown = Rules::new(|request, _| {
        let presentation = Json::trusted("{\"shown\":\"more\"}");
        Ok(PolicyDecision { presentation: Some(presentation), ..default_decision(request) })
    });
    let report = under(&bench, shown).await;
    assert_eq!(report.differences(), 2);
    let asked = &report.evaluations[1];
    assert_eq!(asked.detail, "it asks for another approval: another presentation");
    assert_ne!(asked.recorded_hash, asked.rechecked_hash);
    let of_another_kind = Rules::new(|request, _| {
        Ok(PolicyDecision { kind: "release".to_owned(), ..default_decision(request) })
    });
    let report = under(&bench, of_another_kind).await;
    assert!(report.evaluations[1].detail.contains("\"release\", not \"remote_mutation\""), "{report:?}");
}

#[tokio::test]
async fn todays_specs_take_the_place_of_the_recorded_ones_when_they_are_given() {
    let bench = Bench::new();
    story(&bench, by_class()).await;
    let now = |change: fn(&mut ToolSpec)| {
        tools().into_iter().map(|tool| tool.spec.clone()).map(move |mut spec| {
            if spec.name == "push" {
                change(&mut spec);
            }
            spec
        })
    };
    let report = under_now(&bench, by_class(), now(|_| {})).await;
    assert!(report.proves_same());
    assert_eq!(
        (report.spec_source, report.evaluations[0].spec_source),
        (SpecSource::Current, Some(SpecSource::Current))
    );

    let reworded = now(|spec| spec.description = "pushes, in other words".to_owned());
    let report = under_now(&bench, by_class(), reworded).await;
    assert_eq!(report.differences(), 2);
    assert_eq!(report.evaluations[1].detail, "it asks for another approval: another tool spec");
    assert!(under(&bench, by_class()).await.proves_same(), "against the recorded specs nothing differs");

    let narrower = now(|spec| spec.input_schema = Json::trusted(r#"{"properties":{"n":{"maximum":1}}}"#));
    let refused = &under_now(&bench, by_class(), narrower).await.evaluations[1];
    assert_eq!((refused.result, &refused.rechecked), (Finding::Different, &None));
    assert!(
        refused.detail.starts_with("the arguments do not fit the current tool's schema: "),
        "{}",
        refused.detail
    );

    let gone = now(|spec| spec.name = "publish".to_owned());
    let report = under_now(&bench, by_class(), gone).await;
    assert!(report.evaluations[1].detail.starts_with("\"push\" is none of the current tools"), "{report:?}");

    let otherwise_classed = now(|spec| spec.side_effect = SideEffect::LocalMutation);
    let report = under_now(&bench, by_class(), otherwise_classed).await;
    assert_eq!(report.evaluations[1].rechecked.as_ref().unwrap().outcome, "allow");
}

#[tokio::test]
async fn unusable_current_tools_and_identities_are_refused() {
    let named = Rules::named(Some("two\nlines"), |request, _| Ok(default_decision(request)));
    assert!(matches!(Rechecker::new(named).unwrap_err(), RecheckError::Policy(_)));
    let twice = [spec("read", SideEffect::ReadOnly), spec("read", SideEffect::ReadOnly)];
    assert!(
        matches!(CurrentTools::of(twice).unwrap_err(), RecheckError::Tool { tool, .. } if tool == "read")
    );
    let outside = ToolSpec {
        input_schema: Json::trusted(r#"{"$ref":"http://x/"}"#),
        ..spec("r", SideEffect::ReadOnly)
    };
    assert!(matches!(CurrentTools::of([outside]).unwrap_err(), RecheckError::Tool { .. }));
}

#[tokio::test]
async fn a_policy_that_fails_now_differs_and_a_run_that_goes_on_is_noted() {
    type Rule = fn(&ToolRequest) -> Result<PolicyDecision, PolicyError>;
    let bench = Bench::new();
    let process = bench.process(&tools(), by_class()).await;
    let session = process.begin().await;
    act(&session, call("read", "{\"n\":1}")).await;
    assert!(read(&bench, &"nowhere".into()).is_none());
    let cases: [(Rule, &str); 3] = [
        (|_| Err(PolicyError("its file is gone".to_owned())), "the policy failed: its file is gone"),
        (|_| panic!("a bug"), "the policy failed: panic: a bug"),
        (
            |_| Ok(PolicyDecision::need_approval("k", "", Json::trusted("{"), Json::empty_object())),
            "the policy's answer can't be used: capability is not usable JSON",
        ),
    ];
    for (rule, detail) in cases {
        let report = under(&bench, Rules::new(move |request, _| rule(request))).await;
        let evaluation = &report.evaluations[0];
        assert_eq!(evaluation.result, Finding::Different);
        assert!(evaluation.detail.starts_with(detail), "{}", evaluation.detail);
        assert_eq!(report.notes, ["the run is RUNNING and was re-checked as far as it has come"]);
        assert!(serde_json::to_string(&report).is_ok(), "also with an answer that is no JSON");
    }
}

#[tokio::test]
async fn a_policy_that_hangs_costs_an_evaluation_and_no_more() {
    let bench = Bench::new();
    let process = bench.process(&tools(), by_class()).await;
    act(&process.begin().await, call("read", "{\"n\":1}")).await;
    let (release, wait) = std::sync::mpsc::channel::<()>();
    let rules = Rules::new(move |_, _| {
        wait.recv().unwrap_or_default();
        Ok(PolicyDecision::allow("late"))
    });
    let rechecker = Rechecker::new(rules).unwrap().with_timeout(Duration::from_millis(1));
    let report = rechecker.recheck(&read(&bench, &r()).unwrap()).await;
    assert_eq!(report.evaluations[0].detail, "the policy failed: the evaluation overran its deadline");
    drop(release);
}

#[tokio::test]
async fn a_policy_that_failed_then_is_listed_and_leaves_the_report_incomplete() {
    let bench = Bench::new();
    let rules = Rules::named(Some("rules-v1"), |request, _| match request.spec.name.as_str() {
        "write" => Err(PolicyError("its file is gone".to_owned())),
        _ => Ok(default_decision(request)),
    });
    let process = bench.process(&tools(), rules).await;
    let session = process.begin().await;
    act(&session, call("read", "{\"n\":1}")).await;
    ended(propose(&session, call("write", "{\"n\":1}")).await.1);
    let report = under(&bench, by_class()).await;
    let failed = &report.evaluations[1];
    assert_eq!(
        (failed.result, failed.tool.as_str(), failed.policy_id.as_str()),
        (Finding::NotRecheckable, "write", "rules-v1")
    );
    assert_eq!(failed.detail, "the policy failed, and no evaluation is recorded: its file is gone");
    let told = bench.events(&r()).into_iter().find(|event| event.kind == "step.failed").unwrap();
    assert_eq!(failed.seq, told.seq);
    assert!(report.same() && !report.complete() && !report.proves_same(), "{report:?}");
    assert_eq!((report.rechecked(), report.not_recheckable()), (1, 1));
}

#[tokio::test]
async fn a_report_that_proves_nothing_is_no_proof() {
    let bench = Bench::new();
    let process = bench.process(&tools(), by_class()).await;
    let session = process.begin().await;
    ended(propose(&session, Proposal::complete("")).await.1);
    let report = under(&bench, by_class()).await;
    assert!(report.same() && report.complete(), "nothing differs and nothing is left out");
    assert!(!report.proves_same() && report.identity == Identity::Unknown);
    assert_eq!(report.notes, ["no evaluation of a policy is recorded"]);
}

#[tokio::test]
async fn an_unusable_answer_is_the_same_only_as_one_that_is_unusable_for_the_same_reason() {
    let unusable = |kind: &'static str, capability: &'static str| {
        Rules::new(move |_, _| {
            Ok(PolicyDecision::need_approval(kind, "", Json::trusted(capability), Json::empty_object()))
        })
    };
    let bench = Bench::new();
    let process = bench.process(&tools(), unusable("k", "{\"tool\":")).await;
    let session = process.begin().await;
    ended(propose(&session, call("push", "{\"n\":1}")).await.1);
    let again = under(&bench, unusable("k", "{\"tool\":")).await;
    assert!(again.proves_same(), "{again:?}");
    assert!(again.evaluations[0].detail.starts_with("an answer that can't be used, as it could not then: "));
    for (other, detail) in [
        (unusable("other", "{\"tool\":"), "the policy's answer can't be used: "),
        (unusable("k", "[1e99999]"), "the policy's answer can't be used: "),
        (unusable("k", "{}"), "the recorded answer could not be used (capability is not usable JSON"),
    ] {
        let report = under(&bench, other).await;
        assert_eq!(report.differences(), 1);
        assert!(report.evaluations[0].detail.starts_with(detail), "{}", report.evaluations[0].detail);
    }
}

/// Asks, and compares what the policy is handed with what it was handed.
async fn assert_handed_alike(bench: &Bench, live: &Rules) {
    let again = Rules::new(|request, _| Ok(default_decision(request)));
    let report = under(bench, again.clone()).await;
    let (then, now) = (live.asked(), again.asked());
    assert_eq!((then.len(), report.rechecked()), (now.len(), now.len()));
    for ((request_then, view_then), (request_now, view_now)) in then.iter().zip(&now) {
        assert_eq!(request_then, request_now);
        assert_eq!(view_then.run, view_now.run);
        assert_eq!(view_then.steps, view_now.steps);
        assert_eq!(view_then.approvals, view_now.approvals);
    }
}

#[tokio::test]
async fn the_policy_is_handed_what_it_was_handed() {
    let bench = Bench::new();
    let live = Rules::new(|request, _| Ok(default_decision(request)));
    let loose = Json::trusted("{\n  \"type\": \"object\", \"description\": \"<&>\"\n}");
    let of = |name: &str, class| {
        Scripted::with(ToolSpec { input_schema: loose.clone(), ..spec(name, class) }, |call| {
            Box::pin(async move {
                let pretty = format!("{{ \"got\" : {}, \"more\": \"<&>\" }}", call.args);
                Ok(holdpoint_actors::executor::ToolOutput::new(pretty, "done & <dusted>"))
            })
        })
    };
    let tools = [
        of("read", SideEffect::ReadOnly),
        of("push", SideEffect::RemoteMutation),
        of("wipe", SideEffect::Destructive),
    ];
    let process = bench.process(&tools, live.clone()).await;
    let session = process.begin().await;
    act(&session, call("read", "{ \"z\": \"a && b\", \"a\": [10, 1e1, -0], \"u\": \"\\u003c\\u2028\" }"))
        .await;
    denied(propose(&session, call("wipe", "{ \"x\" : \"<\" }")).await.1);
    denied(propose(&session, call("read", "{ \"x\" : ")).await.1);
    bench.approve(&pending(propose(&session, call("push", "{ \"n\" : \"<1>\" }")).await.1));
    let (session, step) = granted(process.gate.attach(r()).await);
    step.execute().await.unwrap();
    bench.approve(&pending(propose(&session, call("push", "{ \"n\" : 2 }")).await.1));
    let (session, step) = granted(process.gate.attach(r()).await);
    step.execute().await.unwrap();
    act(&session, call("read", "{}")).await;
    assert_eq!(live.asked().len(), 7);
    let (_, fifth) = &live.asked()[4];
    assert_eq!((fifth.steps.len(), fifth.approvals.len()), (4, 1), "there is something to be compared");
    assert_handed_alike(&bench, &live).await;
}

/// A model that costs something.
struct Costly;

#[async_trait]
impl Model for Costly {
    fn name(&self) -> &str {
        "costly"
    }

    async fn generate(&self, _request: &ModelRequest) -> Result<ModelResponse, ModelError> {
        let usage = Usage { input_tokens: 300, output_tokens: 40, cached_input_tokens: 100 };
        Ok(ModelResponse { usage, ..ModelResponse::default() })
    }
}

#[tokio::test]
async fn a_policy_is_handed_what_the_models_calls_had_come_to_as_its_step_began() {
    let bench = Bench::new();
    let live = Rules::new(|request, _| Ok(default_decision(request)));
    let price = Price { input: 1_000_000, output: 5_000_000, cached_input: 100_000 };
    let model = ModelConfig::new(Arc::new(Costly)).prices(PriceTable::default().with("costly", price));
    let options = Options::default();
    let process = bench.process_with(&tools(), live.clone(), options, |spec| spec.model = Some(model)).await;
    let session = process.begin().await;
    let asked = async |session: &Session, proposal: Proposal| {
        let step = session.step().await.unwrap().unwrap();
        let request = ModelRequest { max_output_tokens: 50, ..ModelRequest::default() };
        step.model().generate(&request).await.unwrap();
        (step.propose(proposal).await.unwrap(), step)
    };
    for n in 1..=3 {
        let (verdict, step) = asked(&session, call("read", &format!("{{\"n\":{n}}}"))).await;
        allowed(&verdict);
        step.execute().await.unwrap();
    }
    bench.approve(&pending(asked(&session, call("push", "{}")).await.0));
    granted(process.gate.attach(r()).await).1.execute().await.unwrap();
    let calls: Vec<i64> = live.asked().iter().map(|(_, view)| view.run.totals.model_calls).collect();
    assert_eq!(calls, [0, 1, 2, 3, 4], "a step's own call is not among them before it is resumed");
    assert!(live.asked()[3].1.run.totals.estimated_cost_micros > 0 && live.asked()[3].1.run.active_ms > 0);
    assert_handed_alike(&bench, &live).await;
}

#[tokio::test]
async fn a_first_step_that_is_resumed_shows_no_steps() {
    let bench = Bench::new();
    let live = Rules::new(|request, _| Ok(default_decision(request)));
    let process = bench.process(&tools(), live.clone()).await;
    bench.approve(&*process.waiting("push", "{\"n\":1}").await);
    granted(process.gate.attach(r()).await).1.execute().await.unwrap();
    let (_, on_resume) = live.asked().pop().unwrap();
    assert!(on_resume.steps.is_empty() && on_resume.approvals.len() == 1);
    assert_handed_alike(&bench, &live).await;
}

#[tokio::test]
async fn a_policy_that_reads_bytes_and_statuses_decides_alike() {
    fn rule(request: &ToolRequest, view: &PolicyView) -> Result<PolicyDecision, PolicyError> {
        let bytes =
            request.args.as_str().contains("a && b") && request.spec.input_schema.as_str().contains("<&>");
        let approved =
            view.approvals.iter().filter(|a| a.status == holdpoint_core::approval::ApprovalStatus::Approved);
        Ok(match (bytes, approved.count()) {
            (true, 0) => ask_for("first"),
            (true, _) => PolicyDecision::allow("once approved"),
            (false, _) => PolicyDecision::deny("not these bytes"),
        })
    }
    let bench = Bench::new();
    let pretty = Json::trusted("{\n  \"type\": \"object\",\n  \"description\": \"<&>\"\n}");
    let push =
        Scripted::with(ToolSpec { input_schema: pretty, ..spec("push", SideEffect::RemoteMutation) }, |_| {
            Box::pin(async { Ok(Default::default()) })
        });
    let process = bench.process(std::slice::from_ref(&push), Rules::new(rule)).await;
    let approval = process.waiting("push", "{ \"x\": \"a && b\" }").await;
    bench.approve(&approval);
    granted(process.gate.attach(r()).await).1.execute().await.unwrap();
    let report = under(&bench, Rules::new(rule)).await;
    assert!(report.proves_same() && report.rechecked() == 2, "{report:?}");
    assert_eq!(report.evaluations[0].recorded.outcome, "require_approval", "although it is approved by now");
    let now = under_now(&bench, Rules::new(rule), [push.spec.clone()]).await;
    assert!(now.proves_same(), "a pretty schema is handed in the same form: {now:?}");
}

#[tokio::test]
async fn an_approval_longer_than_a_page_is_read_whole() {
    fn rule(request: &ToolRequest, view: &PolicyView) -> Result<PolicyDecision, PolicyError> {
        let shown = view.approvals.iter().map(|approval| approval.presentation.as_str().len()).max();
        Ok(match request.spec.name.as_str() {
            "read" if shown.unwrap_or(0) < 70_000 => PolicyDecision::deny("it was not shown whole"),
            "read" => PolicyDecision::allow("it was shown whole"),
            _ => default_decision(request),
        })
    }
    let bench = Bench::new();
    let process = bench.process(&tools(), Rules::new(rule)).await;
    bench.approve(&*process.waiting("push", "{\"n\":1}").await);
    let (session, step) = granted(process.gate.attach(r()).await);
    step.execute().await.unwrap();
    // As if the policy had shown as much: the row only, whose text no page brings whole.
    let long = "x".repeat(70_000);
    bench.sql(&format!("UPDATE approvals SET presentation_json = '{{\"shown\":\"{long}\"}}'"));
    let fresh = bench.process(&tools(), Rules::new(rule)).await;
    session.close().await;
    let session = open(fresh.gate.attach(r()).await);
    act(&session, call("read", "{\"n\":1}")).await;
    let report = under(&bench, Rules::new(rule)).await;
    let read = report.evaluations.last().unwrap();
    assert_eq!((read.tool.as_str(), read.result), ("read", Finding::Same), "{read:?}");
}

#[tokio::test]
async fn an_evaluation_that_a_page_cuts_can_t_be_re_checked() {
    let bench = Bench::new();
    let long = usize::try_from(TEXT_CHARS_MAX).unwrap();
    let shows = move |length: usize| {
        let shown = Json::trusted(format!("{{\"shown\":\"{}\"}}", "x".repeat(length)));
        Rules::new(move |_, _| {
            Ok(PolicyDecision::need_approval("release", "", Json::empty_object(), shown.clone()))
        })
    };
    let process = bench.process(&tools(), shows(long)).await;
    process.waiting("push", "{\"n\":1}").await;
    let report = under(&bench, shows(long)).await;
    assert_eq!(report.evaluations[0].result, Finding::NotRecheckable);
    assert_eq!(report.evaluations[0].detail, "not re-checkable: its event is too long to be read whole");

    // A long result is no part of its own evaluation, and of the next one it is.
    let bench = Bench::new();
    let long = format!("{{\"text\":\"{}\"}}", "x".repeat(long));
    let answer = Ok(holdpoint_actors::executor::ToolOutput::new(long, "long"));
    let read = Scripted::giving("read", SideEffect::ReadOnly, answer);
    let process = bench.process(std::slice::from_ref(&read), by_class()).await;
    let session = process.begin().await;
    act(&session, call("read", "{\"n\":1}")).await;
    act(&session, call("read", "{\"n\":2}")).await;
    let report = under(&bench, by_class()).await;
    let details: BTreeSet<&str> = report.evaluations.iter().map(|e| e.detail.as_str()).collect();
    assert_eq!(report.not_recheckable(), 2);
    assert!(
        details.iter().all(|detail| detail.contains("observation: over 65536 characters")),
        "{details:?}"
    );
}

#[tokio::test]
async fn what_the_record_lost_is_said_of_each_evaluation() {
    let damaged = async |statement: &str| {
        let bench = Bench::new();
        story(&bench, by_class()).await;
        bench.sql(statement);
        let report = under(&bench, by_class()).await;
        assert!(!report.complete(), "{statement}");
        let lost = report.evaluations.into_iter().find(|e| e.result == Finding::NotRecheckable).unwrap();
        lost.detail.strip_prefix("not re-checkable: ").unwrap().to_owned()
    };
    for (statement, detail) in [
        ("DELETE FROM tool_specs WHERE spec_json LIKE '%\"push\"%'", "is not in the record"),
        ("UPDATE tool_specs SET spec_json = replace(spec_json, 'push', 'pull')", "has another hash"),
        ("UPDATE steps SET decision_json = '{oops' WHERE idx = 1", "step 1: decision: "),
        (
            "UPDATE steps SET decision_json = '{\"kind\":\"complete\"}' WHERE idx = 1",
            "step 1 recorded no call of a tool",
        ),
        ("UPDATE steps SET status = 'gone' WHERE idx = 0", "step 0: status: "),
        ("DELETE FROM steps WHERE idx = 3", "its step is not in the record"),
        ("UPDATE approvals SET request_json = '{oops'", "approval "),
        ("UPDATE events SET payload_json = '[]' WHERE type = 'step.policy'", "its event can't be read: "),
        (
            "UPDATE events SET payload_json = '{oops' WHERE type = 'run.created'",
            "its run's first event can't be read",
        ),
        ("UPDATE events SET at = 'today' WHERE type = 'run.created'", "its run's first event can't be read"),
        ("DELETE FROM events WHERE type = 'run.created'", "its run's first event is not in the record"),
        (
            "UPDATE events SET payload_json = replace(payload_json, '\"steps\":1', '\"steps\":99') WHERE type = 'step.policy'",
            "the policy was shown 99 steps and ",
        ),
        (
            "UPDATE events SET payload_json = replace(payload_json, '\"steps\":1,', '') WHERE type = 'step.policy'",
            "the policy was shown -1 steps and ",
        ),
        (
            "UPDATE events SET payload_json = replace(payload_json, 'RUNNING', 'JOGGING') WHERE type = 'step.policy'",
            "the status that the run had then",
        ),
        (
            "UPDATE events SET payload_json = replace(payload_json, '\"approved\"', '\"nodded\"') WHERE type = 'approval.decided'",
            "its decision can't be read",
        ),
    ] {
        let found = damaged(statement).await;
        assert!(found.contains(detail), "{statement}: {found}");
    }
}

#[tokio::test]
async fn a_run_of_an_older_version_is_not_re_checked_and_what_it_did_since_is() {
    use Finding::{NotRecheckable, Same};
    let bench = Bench::new();
    let one = bench.process(&tools(), by_class()).await;
    let session = one.begin().await;
    act(&session, call("read", "{\"n\":1}")).await;
    // What version 5 wrote: no specs, no identity, no view.
    bench.sql(
        "UPDATE events SET payload_json = json_remove(payload_json, '$.tools', '$.view', '$.spec_hash')
         WHERE type IN ('run.created', 'step.policy')",
    );
    act(&session, call("write", "{\"n\":2}")).await;
    ended(propose(&session, Proposal::complete("")).await.1);
    let report = under(&bench, by_class()).await;
    assert_eq!(findings(&report), [(0, "read", false, NotRecheckable), (1, "write", false, Same)]);
    assert_eq!(
        report.evaluations[0].detail,
        "not re-checkable: it was recorded before evaluations were recorded whole"
    );
    assert_eq!(
        report.notes,
        ["the run began before evaluations were recorded whole; those of then can't be re-checked"]
    );
    assert!(report.same() && !report.complete());
}

#[tokio::test]
async fn an_approval_whose_decision_left_no_event_is_judged_by_its_time() {
    fn rule(request: &ToolRequest, view: &PolicyView) -> Result<PolicyDecision, PolicyError> {
        Ok(
            match view
                .approvals
                .first()
                .map(|approval| (approval.status.as_str(), approval.decided_by.as_str()))
            {
                Some(("approved", "ana")) if request.spec.name == "push" => {
                    PolicyDecision::allow("it was approved")
                }
                _ => default_decision(request),
            },
        )
    }
    let bench = Bench::new();
    story(&bench, Rules::new(rule)).await;
    assert!(under(&bench, Rules::new(rule)).await.proves_same());
    bench.sql("DELETE FROM events WHERE type = 'approval.decided'");
    assert!(under(&bench, Rules::new(rule)).await.proves_same(), "it was decided before it was collected");
    bench.sql("UPDATE approvals SET decided_at = '2099-01-01T00:00:00Z'");
    let report = under(&bench, Rules::new(rule)).await;
    assert_eq!(report.different().map(|e| e.step_index.unwrap()).collect::<Vec<_>>(), [1], "{report:?}");
}

#[tokio::test]
async fn more_approvals_than_are_read_can_t_be_re_checked() {
    let bench = Bench::new();
    let process = bench.process(&tools(), by_class()).await;
    bench.approve(&*process.waiting("push", "{\"n\":1}").await);
    let (session, step) = granted(process.gate.attach(r()).await);
    step.execute().await.unwrap();
    act(&session, call("read", "{\"n\":1}")).await;
    let mut conn = Connection::open(bench.path()).unwrap();
    let copy = conn.transaction().unwrap();
    for id in 1..=APPROVALS_MAX {
        copy.execute(
            "INSERT INTO approvals (id, run_id, step_id, kind, capability_json, presentation_json, request_json, hash,
                 status, created_at)
             SELECT ?, run_id, step_id, kind, capability_json, presentation_json, request_json, hash, status, created_at
             FROM approvals WHERE rowid = 1",
            [format!("copy-{id}")],
        )
        .unwrap();
    }
    copy.commit().unwrap();
    let shown = |approvals: usize| {
        bench.sql(&format!(
            "UPDATE events SET payload_json = json_set(payload_json, '$.view.approvals', {approvals})
             WHERE seq = (SELECT MAX(seq) FROM events WHERE type = 'step.policy')"
        ));
    };
    shown(APPROVALS_MAX);
    assert!(under(&bench, by_class()).await.proves_same());
    shown(APPROVALS_MAX + 1);
    let report = under(&bench, by_class()).await;
    assert_eq!((report.rechecked(), report.not_recheckable()), (2, 1));
    assert_eq!(
        report.evaluations[2].detail,
        "not re-checkable: the policy was shown 1025 approvals, more than the 1024 that are read"
    );
    shown(APPROVALS_MAX + 2);
    let report = under(&bench, by_class()).await;
    assert!(report.evaluations[2].detail.contains("and the run has 2 and 1025"), "{report:?}");
}

struct AskAPerson;

#[async_trait]
impl Reconcile for AskAPerson {
    async fn reconcile(&self, _view: &PolicyView) -> Result<Reconciliation, String> {
        Ok(Reconciliation::Waiting { pause: ask_for("half of it is there"), detail: String::new() })
    }
}

#[tokio::test]
async fn a_pause_after_an_interruption_is_no_evaluation() {
    for (reconciling, by) in [(false, "a person was asked"), (true, "a reconciliation put the call")] {
        let bench = Bench::new();
        let allow = || always(PolicyDecision::allow(""));
        let (work, latch) = Scripted::latched("work", SideEffect::LocalMutation);
        let one = bench.process(std::slice::from_ref(&work), allow()).await;
        let session = one.begin().await;
        let (step, _) = propose(&session, call("work", "{\"n\":1}")).await;
        let executing = tokio::spawn(async move { step.execute().await });
        latch.entered().await;
        bench.wall.advance(Duration::from_secs(31));
        let again = Scripted::new("work", SideEffect::LocalMutation);
        let two = bench
            .process_with(std::slice::from_ref(&again), allow(), Options::default(), |spec| {
                if reconciling {
                    spec.reconcile = Some(Arc::new(AskAPerson));
                }
            })
            .await;
        bench.approve(&asks(two.gate.attach(r()).await));
        granted(two.gate.attach(r()).await).1.execute().await.unwrap();
        latch.release();
        is_lease_lost(executing.await.unwrap());
        let report = under(&bench, allow()).await;
        let found: Vec<Finding> = report.evaluations.iter().map(|e| e.result).collect();
        assert_eq!(found, [Finding::Same, Finding::NotAnEvaluation, Finding::Same]);
        let pause = &report.evaluations[1];
        assert!(
            pause.detail.starts_with("no evaluation of a policy: ") && pause.detail.contains(by),
            "{}",
            pause.detail
        );
        assert!(report.evaluations[2].on_resume && report.proves_same(), "it leaves nothing out");
    }
}

#[tokio::test]
async fn the_outcome_of_another_program_is_kept_as_it_is_recorded() {
    let bench = Bench::new();
    story(&bench, by_class()).await;
    bench.sql(
        "UPDATE events SET payload_json = replace(payload_json, '\"deny\"', '\"defer\"') WHERE type = 'step.policy'",
    );
    let report = under(&bench, by_class()).await;
    let wiped = &report.evaluations[3];
    assert_eq!((wiped.result, wiped.recorded.outcome.as_str()), (Finding::Different, "defer"));
    assert_eq!(wiped.recorded.known_outcome(), None);
    assert_eq!(wiped.rechecked.as_ref().unwrap().known_outcome(), Some(Outcome::Deny));
}
