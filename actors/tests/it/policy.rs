//! What a policy is asked, what it may answer, and what happens when it does not answer.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use holdpoint_actors::policy::{self, EVALUATIONS_MAX, Policy, PolicyError};
use holdpoint_actors::session::{Beginning, Pace, SessionError};
use holdpoint_actors::store::Options;
use holdpoint_core::json::Json;
use holdpoint_core::policy::{Outcome, PolicyDecision, default_decision};
use holdpoint_core::run::{Reason, RunStatus};
use holdpoint_core::step::StepStatus;
use holdpoint_core::tool::SideEffect;

use crate::bench::*;

/// A rule that does not answer before it is told to.
fn held() -> (Arc<Rules>, mpsc::Sender<()>) {
    let (release, wait) = mpsc::channel();
    let rules = Rules::new(move |_, _| {
        // When nobody is left to release it, the test is over.
        wait.recv().unwrap_or_default();
        Ok(PolicyDecision::allow("late"))
    });
    (rules, release)
}

async fn observed(process: &Process, so: impl Fn(&policy::Observation) -> bool) {
    while !process.tree().observe().await.policy.is_some_and(|seen| so(&seen)) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_policy_that_fails_ends_the_run_and_nothing_runs() {
    type Case = (fn() -> Result<PolicyDecision, PolicyError>, &'static str, bool);
    let cases: [Case; 4] = [
        (|| Err(PolicyError("its file is gone".to_owned())), "its file is gone", false),
        (|| panic!("a bug"), "panic: a bug", false),
        (
            || Ok(PolicyDecision::need_approval("k", "", Json::trusted("{\"tool\":"), Json::empty_object())),
            "capability is not usable JSON",
            true,
        ),
        (
            || Ok(PolicyDecision::need_approval("k", "", Json::empty_object(), Json::trusted("[1e99999]"))),
            "presentation is not usable JSON",
            true,
        ),
    ];
    // The same on a thread that may block and on the runtime.
    for ((answer, detail, answered), inline) in
        cases.into_iter().flat_map(|case| [(case, false), (case, true)])
    {
        let bench = Bench::new();
        let tools = tools();
        let rules = Rules::named(Some("rules-v1"), move |_, _| answer());
        rules.blocks_never(inline);
        let process = bench.process(&tools, rules).await;
        let session = process.begin().await;
        let run = ended(propose(&session, call("read", "{}")).await.1);
        is(&run, RunStatus::Failed, Reason::InternalError);
        assert!(
            run.reason_detail.starts_with("policy: ") && run.reason_detail.contains(detail),
            "{}",
            run.reason_detail
        );
        let step = bench.steps(&r()).pop().unwrap();
        assert_eq!((step.status, step.observation), (StepStatus::Failed, None));
        assert_eq!(step.policy_id.unwrap().as_str(), "rules-v1", "who was asked is known even so");
        assert_eq!(step.policy.is_some(), answered);
        let tail = if answered {
            "step.policy step.failed run.finished"
        } else {
            "step.decided step.failed run.finished"
        };
        assert!(bench.kinds(&r()).ends_with(tail), "{}", bench.kinds(&r()));
        assert!(bench.approvals(&r()).is_empty());
        assert_eq!(tools[0].calls(), 0);
        bench.verify();
    }
}

#[tokio::test]
async fn a_policy_that_overruns_its_deadline_is_a_policy_error_and_its_late_answer_is_nobodys() {
    let bench = Bench::new();
    let tools = tools();
    let (rules, release) = held();
    let process = bench
        .process_with(&tools, rules, Options::default(), |spec| {
            spec.policy_timeout = Duration::from_millis(50)
        })
        .await;
    let session = process.begin().await;
    let run = ended(propose(&session, call("read", "{}")).await.1);
    is(&run, RunStatus::Failed, Reason::InternalError);
    assert!(run.reason_detail.contains("deadline"), "{}", run.reason_detail);

    // The stray evaluation keeps its permit until it ends.
    observed(&process, |seen| seen.permits == EVALUATIONS_MAX - 1).await;
    release.send(()).unwrap();
    observed(&process, |seen| seen.permits == EVALUATIONS_MAX && seen.running == 0).await;
    is(&bench.run(&r()), RunStatus::Failed, Reason::InternalError);
    assert_eq!(tools[0].calls(), 0);
    bench.verify();
}

#[tokio::test]
async fn a_stray_evaluation_keeps_its_permit_across_a_restart_of_the_evaluator() {
    let bench = Bench::new();
    let (rules, release) = held();
    let process = bench.process(&tools(), rules).await;
    let session = process.begin().await;
    let step = session.step().await.unwrap().unwrap();
    let proposing = tokio::spawn(async move { step.propose(call("read", "{}")).await });
    observed(&process, |seen| seen.permits == EVALUATIONS_MAX - 1).await;
    let evaluator = process.tree().policy.find(Duration::from_secs(1)).await.unwrap();
    evaluator.kill();
    evaluator.wait(None).await.unwrap();
    let run = ended(proposing.await.unwrap().unwrap());
    is(&run, RunStatus::Failed, Reason::InternalError);
    observed(&process, |seen| seen.evaluated == 0 && seen.permits == EVALUATIONS_MAX - 1).await;
    release.send(()).unwrap();
    observed(&process, |seen| seen.permits == EVALUATIONS_MAX).await;
    bench.verify();
}

#[tokio::test]
async fn an_evaluator_that_dies_before_anything_is_recorded_leaves_nothing_recorded() {
    let bench = Bench::new();
    let (rules, _release) = held();
    let process = bench.process(&tools(), rules).await;
    let beginning = Beginning { pace: Pace::Effects, ..Beginning::default() };
    let session = process.gate.begin_with(r(), "g", limits(), beginning).await.unwrap();
    let step = session.step().await.unwrap().unwrap();
    let proposing = tokio::spawn(async move { step.propose(call("read", "{}")).await });
    observed(&process, |seen| seen.permits == EVALUATIONS_MAX - 1).await;
    process.tree().policy.find(Duration::from_secs(1)).await.unwrap().kill();
    let answer = proposing.await.unwrap();
    assert!(matches!(answer, Err(SessionError::Unavailable(_))), "{answer:?}");
    assert!(bench.operator().read(|reader| reader.run(&r())).unwrap().is_none());
    is_closed(session.step().await);
}

#[tokio::test]
async fn a_policy_is_handed_the_same_bytes_when_a_call_is_proposed_and_when_its_grant_is_collected() {
    let bench = Bench::new();
    let rules = always(ask_for("x"));
    let pretty = "{\n  \"type\": \"object\",\n  \"description\": \"<&>\"\n}";
    let spec = holdpoint_core::tool::ToolSpec {
        input_schema: Json::trusted(pretty),
        ..spec("push", SideEffect::RemoteMutation)
    };
    let push = Scripted::with(spec, |_| Box::pin(async { Ok(Default::default()) }));
    let process = bench.process(std::slice::from_ref(&push), rules.clone()).await;
    let approval = process
        .waiting("push", "{ \"z\": \"a && b\", \"a\": [10, 1e1, -0], \"u\": \"\\u003c\\u2028\" }")
        .await;
    bench.approve(&approval);
    granted(process.gate.attach(r()).await).1.execute().await.unwrap();
    let asked = rules.asked();
    assert_eq!(asked.len(), 2);
    assert_eq!(asked[0].0, asked[1].0);
    assert_eq!(asked[0].0.args.as_str(), "{\"a\":[10,1e1,-0],\"u\":\"<\u{2028}\",\"z\":\"a && b\"}");
    assert_eq!(asked[0].0.spec.input_schema.as_str(), "{\"description\":\"<&>\",\"type\":\"object\"}");
    // The tool is given the recorded form, whose keys are where the caller put them.
    assert!(push.args()[0].starts_with("{\"z\":"), "{:?}", push.args());
}

#[tokio::test]
async fn the_record_says_what_the_policy_saw() {
    let bench = Bench::new();
    let rules = Rules::new(|request, _| Ok(default_decision(request)));
    let process = bench.process(&tools(), rules.clone()).await;
    let session = process.begin().await;
    act(&session, call("read", "{\"n\":1}")).await;
    denied(propose(&session, call("wipe", "{}")).await.1);
    bench.approve(&pending(propose(&session, call("push", "{}")).await.1));
    granted(process.gate.attach(r()).await).1.execute().await.unwrap();
    let recorded: Vec<String> = bench
        .events(&r())
        .into_iter()
        .filter(|event| event.kind == "step.policy")
        .map(|event| event.payload[event.payload.find("\"view\"").unwrap()..].to_owned())
        .collect();
    let seen: Vec<String> = rules
        .asked()
        .into_iter()
        .map(|(_, view)| {
            format!(
                "\"view\":{{\"status\":\"{}\",\"step_count\":{},\"model_calls\":0,\"input_tokens\":0,\"output_tokens\":0,\
                 \"cached_input_tokens\":0,\"estimated_cost_micros\":0,\"active_ms\":{},\"steps\":{},\"approvals\":{}}}}}",
                view.run.status, view.run.step_count, view.run.active_ms, view.steps.len(), view.approvals.len()
            )
        })
        .collect();
    assert_eq!(recorded, seen);
    assert_eq!(seen.len(), 4);
    assert!(
        seen[3].contains("WAITING_FOR_APPROVAL") && seen[3].ends_with("\"steps\":2,\"approvals\":1}}"),
        "{}",
        seen[3]
    );
}

#[tokio::test]
async fn a_named_policy_is_recorded_on_each_step_that_it_judged_and_an_unnamed_one_is_not() {
    let bench = Bench::new();
    let process = bench
        .process(&tools(), Rules::named(Some("rules-v7"), |request, _| Ok(default_decision(request))))
        .await;
    let session = process.begin().await;
    act(&session, call("read", "{}")).await;
    denied(propose(&session, call("nope", "{}")).await.1);
    ended(propose(&session, holdpoint_core::decision::Proposal::complete("")).await.1);
    let named: Vec<_> =
        bench.steps(&r()).into_iter().map(|step| step.policy_id.map(|id| id.to_string())).collect();
    assert_eq!(named, [Some("rules-v7".to_owned()), None, None]);
    let judged = bench.events(&r()).into_iter().find(|event| event.kind == "step.policy").unwrap();
    assert!(judged.payload.contains("\"policy_id\":\"rules-v7\""));

    let nameless = Rules::named(Some(""), |request, _| Ok(default_decision(request)));
    for (id, policy) in [("plain", nameless as Arc<dyn Policy>), ("default", by_class())] {
        let process = bench.process(&tools(), policy).await;
        let session = process.gate.begin(id.into(), "g", limits()).await.unwrap();
        act(&session, call("read", "{}")).await;
        assert_eq!(bench.steps(&id.into())[0].policy_id, None, "{id}");
        assert!(!bench.events(&id.into()).iter().any(|event| event.payload.contains("policy_id")), "{id}");
    }
}

#[tokio::test]
async fn the_policy_sees_the_steps_and_approvals_before_it() {
    let bench = Bench::new();
    let rules = Rules::new(|request, view| {
        let failures = view.steps.iter().filter(|step| step.status == StepStatus::Failed).count();
        Ok(match failures {
            0 => PolicyDecision::deny("once"),
            _ => default_decision(request),
        })
    });
    let process = bench.process(&tools(), rules).await;
    let session = process.begin().await;
    denied(propose(&session, call("read", "{}")).await.1);
    act(&session, call("read", "{}")).await;
    assert_eq!(bench.steps(&r())[1].policy.as_ref().unwrap().outcome, Outcome::Allow);
}
