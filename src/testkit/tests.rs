//! The kit itself: scenes that keep the contract, and broken ones that it must notice.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use holdpoint_actors::policy::{DefaultPolicy, Policy, PolicyError};
use holdpoint_actors::session::{ModelConfig, Reconcile, Reconciliation, Session, Verdict};
use holdpoint_core::approval::INTERRUPTED_SIDE_EFFECT;
use holdpoint_core::json::Json;
use holdpoint_core::model::{Block, Message, ModelRequest, ModelResponse, Role, Usage};
use holdpoint_core::policy::{Outcome as PolicyOutcome, PolicyDecision, PolicyView};
use holdpoint_core::run::{Reason, RunStatus};
use holdpoint_core::step::StepStatus;
use holdpoint_core::tool::{SideEffect, ToolRequest, ToolSpec};
use rusqlite::Connection;

use super::scenario::Victim;
use super::*;
use crate::driver::{Agent, AgentError, Proposal, StepInput};
use crate::gate::{Tool, ToolCall, ToolFailure, ToolOutput, tool_fn};
use crate::replay::Scripted;

const SCHEMA: &str =
    r#"{"type":"object","properties":{"n":{"type":"integer"}},"additionalProperties":false}"#;

fn echo(name: &str, class: SideEffect) -> Arc<dyn Tool> {
    tool_fn(ToolSpec::new(name, class, SCHEMA), |call: ToolCall| async move {
        Ok(ToolOutput::new(call.args.as_str(), "echoed"))
    })
}

/// An agent that works off a list: each decision until its call has an observation that is not an interruption.
fn working_off(decisions: &'static [(&'static str, &'static str)]) -> Arc<dyn Agent> {
    Arc::new(move |input: StepInput| async move {
        let done = input.steps.iter().filter(|step| step.status == StepStatus::Done).count();
        Ok::<_, AgentError>(match decisions.get(done) {
            Some((tool, args)) => Proposal::tool_call(*tool, *args),
            None => Proposal::complete(r#"{"done":true}"#),
        })
    })
}

/// A run that reads, then changes something.
fn scene(change: SideEffect) -> Scenario {
    Scenario::of(working_off(&[("read", "{}"), ("change", r#"{"n":1}"#)]))
        .tool(echo("read", SideEffect::ReadOnly))
        .tool(echo("change", change))
}

/// The same, driven by a loop of one's own.
fn own_scene(change: SideEffect) -> Scenario {
    let own = |session: Arc<Session>| async move {
        if let Some(step) = session.current().await {
            step.execute().await?;
        }
        while !session.done().await {
            let Some(step) = session.step().await? else { break };
            let input = session.input().await?;
            let done = input.steps.iter().filter(|step| step.status == StepStatus::Done).count();
            let proposal = match done {
                0 => Proposal::tool_call("read", "{}"),
                1 => Proposal::tool_call("change", r#"{"n":1}"#),
                _ => Proposal::complete(r#"{"done":true}"#),
            };
            if let Verdict::Allowed { .. } = step.propose(proposal).await? {
                step.execute().await?;
            }
        }
        Ok(())
    };
    Scenario::of_loop(own).tool(echo("read", SideEffect::ReadOnly)).tool(echo("change", change))
}

fn changes(outcome: &Outcome) -> usize {
    outcome.calls.iter().filter(|call| call.tool == "change").count()
}

#[track_caller]
fn is_completed(outcome: &Outcome) {
    outcome.failures.assert_none();
    let run = outcome.run.as_ref().unwrap();
    assert_eq!((run.status, run.reason), (RunStatus::Completed, Some(Reason::GoalCompleted)));
}

#[tokio::test]
async fn a_scenario_that_nothing_cuts_off_runs_once_and_is_read_back() {
    let outcome = scene(SideEffect::LocalMutation).run(&[]).await;
    is_completed(&outcome);
    assert_eq!((outcome.resumes, outcome.calls.len(), outcome.inputs.len()), (0, 2, 3));
    assert!(outcome.calls.iter().all(|call| call.returned));
    assert_eq!(outcome.calls[1].args, Json::trusted(r#"{"n":1}"#));
    assert!(outcome.database().exists());
    let folder = outcome.database().parent().unwrap().to_owned();
    drop(outcome);
    assert!(!folder.exists(), "its folder goes with it");
}

#[tokio::test]
async fn an_effect_that_a_crash_left_unknown_runs_again_only_when_a_person_says_so() {
    let crash = [Disruption::crash(1, Point::ToolEffect)];
    let approved = scene(SideEffect::LocalMutation).run(&crash).await;
    is_completed(&approved);
    assert_eq!((changes(&approved), approved.resumes), (2, 2), "the first did its work unseen");
    assert_eq!(approved.approvals[0].kind, INTERRUPTED_SIDE_EFFECT);
    let returned: Vec<_> = approved.calls.iter().map(|call| call.returned).collect();
    assert_eq!(returned, [true, false, true]);

    let rejected = scene(SideEffect::LocalMutation).operator(|_| Reply::Reject).run(&crash).await;
    rejected.failures.assert_none();
    assert_eq!(rejected.run.as_ref().unwrap().reason, Some(Reason::ApprovalRejected));
    assert_eq!(changes(&rejected), 1);

    let left = scene(SideEffect::LocalMutation).operator(|_| Reply::Leave).run(&crash).await;
    left.failures.assert_none();
    assert_eq!(left.run.as_ref().unwrap().status, RunStatus::WaitingForApproval);
}

#[tokio::test]
async fn a_start_whose_tool_was_never_called_runs_once_when_it_is_approved() {
    let outcome = scene(SideEffect::LocalMutation).run(&[Disruption::crash(1, Point::ToolStarted)]).await;
    is_completed(&outcome);
    assert_eq!((changes(&outcome), outcome.approvals.len()), (1, 1));
}

#[tokio::test]
async fn a_grant_that_a_crash_spent_is_asked_for_again() {
    let outcome = scene(SideEffect::RemoteMutation).run(&[Disruption::crash(1, Point::Resumed)]).await;
    is_completed(&outcome);
    let kinds: Vec<_> = outcome.approvals.iter().map(|approval| approval.kind.as_str()).collect();
    assert_eq!(kinds, ["remote_mutation", INTERRUPTED_SIDE_EFFECT, "remote_mutation"]);
    assert_eq!(changes(&outcome), 1);
}

#[tokio::test]
async fn a_takeover_that_died_itself_still_asks_a_person() {
    let crashes = [Disruption::crash(1, Point::ToolEffect), Disruption::crash(1, Point::Interrupted)];
    let outcome = scene(SideEffect::LocalMutation).run(&crashes).await;
    is_completed(&outcome);
    assert_eq!((outcome.disrupted.len(), outcome.approvals.len(), changes(&outcome)), (2, 1, 2));
}

#[tokio::test]
async fn interruptions_that_left_nothing_unknown_need_nobody() {
    let before = [Point::StepStarted, Point::StepDecided, Point::PolicyAllowed, Point::ToolFinished];
    for at in before {
        for scenario in [scene(SideEffect::LocalMutation), own_scene(SideEffect::LocalMutation)] {
            let outcome = scenario.run(&[Disruption::crash(1, at)]).await;
            is_completed(&outcome);
            assert_eq!((changes(&outcome), outcome.approvals.len(), outcome.resumes), (1, 0, 1), "{at:?}");
        }
    }
    let read = scene(SideEffect::LocalMutation).run(&[Disruption::crash(0, Point::ToolEffect)]).await;
    is_completed(&read);
    assert_eq!((read.calls.len(), read.approvals.len()), (3, 0), "a read may be read again");
}

#[tokio::test]
async fn a_loop_of_ones_own_keeps_the_contract_wherever_it_dies() {
    let points =
        [Point::StepStarted, Point::StepDecided, Point::PolicyAllowed, Point::ToolStarted, Point::ToolEffect];
    for at in points {
        let outcome = own_scene(SideEffect::LocalMutation).run(&[Disruption::crash(1, at)]).await;
        is_completed(&outcome);
    }
    let crashes = [Disruption::crash(1, Point::ToolEffect), Disruption::crash(1, Point::Interrupted)];
    let twice = own_scene(SideEffect::LocalMutation).run(&crashes).await;
    is_completed(&twice);
    assert_eq!((twice.disrupted.len(), changes(&twice)), (2, 2));
    let spent = own_scene(SideEffect::RemoteMutation).run(&[Disruption::crash(1, Point::Resumed)]).await;
    is_completed(&spent);
    assert_eq!(
        (changes(&spent), spent.approvals.len()),
        (1, 3),
        "a grant that a crash spent is asked for again"
    );
    let attached =
        own_scene(SideEffect::RemoteMutation).run(&[Disruption::crash(1, Point::AttachAllowed)]).await;
    is_completed(&attached);
    assert_eq!((changes(&attached), attached.approvals.len()), (1, 1), "the grant stayed, and ran once");
    assert_eq!(attached.resumes, 2);
}

#[tokio::test]
async fn resumes_count_what_followed_an_approval_and_what_followed_a_crash() {
    let outcome = scene(SideEffect::RemoteMutation).run(&[Disruption::crash(2, Point::StepStarted)]).await;
    is_completed(&outcome);
    assert_eq!((outcome.resumes, outcome.disrupted.len()), (2, 1));
}

#[tokio::test]
async fn any_actor_may_die_at_any_point_without_breaking_the_contract() {
    let points = [
        Point::StepStarted,
        Point::StepDecided,
        Point::PolicyAllowed,
        Point::ToolStarted,
        Point::ToolEffect,
        Point::ToolFinished,
    ];
    for child in Child::ALL {
        for at in points {
            let killed = Disruption::kill(child, 1, at);
            let outcome = scene(SideEffect::LocalMutation).run(&[killed]).await;
            assert!(outcome.failures.is_empty(), "{killed}: {}", outcome.failures);
            assert_eq!(outcome.disrupted, [killed]);
            assert!(outcome.run.as_ref().unwrap().status.is_terminal());
        }
    }
}

struct Knows;

#[async_trait]
impl Reconcile for Knows {
    async fn reconcile(&self, _view: &PolicyView) -> Result<Reconciliation, String> {
        Ok(Reconciliation::Completed { result: None, detail: "it had been done".to_owned() })
    }
}

#[tokio::test]
async fn whoever_knows_the_outside_settles_what_a_crash_left() {
    let scenario = scene(SideEffect::LocalMutation).reconcile(Arc::new(Knows));
    let outcome = scenario.run(&[Disruption::crash(1, Point::ToolEffect)]).await;
    is_completed(&outcome);
    assert_eq!((changes(&outcome), outcome.approvals.len()), (1, 0));
}

#[tokio::test]
async fn what_breaks_the_contract_is_reported() {
    let never = scene(SideEffect::LocalMutation).run(&[Disruption::crash(9, Point::ToolEffect)]).await;
    let said = never.failures.to_string();
    assert!(said.contains("a crash at step 9 ToolEffect never came about"), "{said}");

    let gives_up = Scenario::of_loop(|session| async move { session.step().await.map(|_| ()) });
    let said = gives_up.run(&[]).await.failures.to_string();
    assert!(said.contains("the run is left RUNNING") && said.contains("step 0 is left deciding"), "{said}");

    let misuses = Scenario::of_loop(|session| async move {
        let step = session.step().await?;
        let again = session.step().await;
        drop(step);
        again.map(|_| ())
    });
    let said = misuses.run(&[]).await.failures.to_string();
    assert!(said.contains("the run was not driven to its end: use run"), "{said}");

    let panics = Scenario::of(Arc::new(|_: StepInput| async { panic!("no idea") }));
    let said = panics.run(&[]).await.failures.to_string();
    assert!(said.contains("the agent panicked: no idea"), "{said}");

    let twice = scene(SideEffect::LocalMutation).tool(echo("read", SideEffect::ReadOnly));
    assert!(twice.run(&[]).await.failures.to_string().contains("the name is taken"));
}

/// A run that an approval let run again, then what `change` does to its record, judged again.
async fn judged_after(change: &str) -> String {
    let mut outcome = scene(SideEffect::LocalMutation).run(&[Disruption::crash(1, Point::ToolEffect)]).await;
    is_completed(&outcome);
    let changed = Connection::open(outcome.database()).unwrap().execute(change, []).unwrap();
    assert!(changed > 0, "{change}");
    contract::judge(&mut outcome, &[]);
    outcome.failures.to_string()
}

#[tokio::test]
async fn every_broken_promise_of_a_record_is_found() {
    let copied = "INSERT INTO events (run_id, step_id, at, type, payload_json, hash)
         SELECT run_id, step_id, at, type, payload_json, hash FROM events WHERE type = 'step.tool_started'";
    for (change, found) in [
        ("UPDATE runs SET status = 'RUNNING'", "the run is left RUNNING"),
        ("UPDATE steps SET status = 'executing' WHERE idx = 1", "step 1 is left executing"),
        (
            "UPDATE steps SET status = 'awaiting_approval' WHERE idx = 1",
            "step 1 waits for an approval in a run that is",
        ),
        ("UPDATE runs SET lease_owner = 'somebody'", "left held by somebody"),
        ("UPDATE approvals SET status = 'rejected'", "step 1 ran 2 times with 0 approval(s)"),
        ("DELETE FROM events WHERE type = 'step.interrupted'", "before its last start was closed"),
        ("DELETE FROM events WHERE type = 'step.tool_finished'", "neither finished nor was interrupted"),
        (copied, "was used 2 times"),
        ("DELETE FROM events WHERE type = 'step.tool_started'", "with 0 start(s) on the record"),
        ("UPDATE events SET payload_json = '{}' WHERE seq = 1", "the chain of events is broken"),
    ] {
        let said = judged_after(change).await;
        assert!(said.contains(found), "{change}: {said}");
    }
}

#[tokio::test]
async fn a_scenario_may_run_in_a_database_of_somebody_elses() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shared.db");
    let scenario = scene(SideEffect::ReadOnly).database(&path).goal("shared");
    let outcome = scenario.run(&[]).await;
    is_completed(&outcome);
    assert_eq!(outcome.run.as_ref().unwrap().goal, "shared");
    drop(outcome);
    assert!(path.exists());
}

/// Lets small amounts pass, asks about others, and never wipes.
struct Careful;

#[async_trait]
impl Policy for Careful {
    async fn evaluate(
        &self,
        request: &ToolRequest,
        view: &PolicyView,
    ) -> Result<PolicyDecision, PolicyError> {
        let first = view.steps.is_empty();
        Ok(match request.spec.name.as_str() {
            "wipe" => PolicyDecision::deny("nothing is wiped"),
            "change" if request.args.as_str().contains("13") => {
                return Err(PolicyError("unlucky".to_owned()));
            }
            "change" if first => PolicyDecision::need_approval(
                "first_change",
                "the first change of a run is looked at",
                Json::trusted(r#"{"tool":"change"}"#),
                Json::trusted(r#"{"title":"A change"}"#),
            ),
            _ => PolicyDecision::allow("harmless"),
        })
    }
}

fn three_tools() -> Vec<Arc<dyn Tool>> {
    vec![
        echo("read", SideEffect::ReadOnly),
        echo("change", SideEffect::LocalMutation),
        echo("wipe", SideEffect::Destructive),
    ]
}

#[tokio::test]
async fn a_table_that_agrees_finds_nothing() {
    let later = scene(SideEffect::LocalMutation).run(&[]).await;
    let view = PolicyView {
        run: later.run.clone().unwrap(),
        steps: later.steps.iter().cloned().map(Arc::new).collect(),
        approvals: Vec::new(),
    };
    let first = PolicyCase {
        kind: "first_change".to_owned(),
        reason: "looked at".to_owned(),
        capability: "change".to_owned(),
        presentation: "A change".to_owned(),
        ..PolicyCase::new("first", "change", "", PolicyOutcome::RequireApproval)
    };
    let cases = [
        PolicyCase::new("reads", "read", "", PolicyOutcome::Allow),
        first,
        PolicyCase { view, ..PolicyCase::new("later", "change", r#"{"n":1}"#, PolicyOutcome::Allow) },
        PolicyCase::new("wipes", "wipe", "{}", PolicyOutcome::Deny),
        PolicyCase::refused("unknown", "nope", "{}"),
        PolicyCase::refused("schema", "read", r#"{"n":"one"}"#),
        PolicyCase::refused("boundary", "read", r#"{"n":1,"n":2}"#),
        PolicyCase::refused("number", "free", r#"{"n":1e10001}"#),
        PolicyCase::new("free", "free", r#"{"n":1e10}"#, PolicyOutcome::Allow),
    ];
    // What its schema would let pass, so that the boundary alone refuses it.
    let free = tool_fn(ToolSpec::new("free", SideEffect::ReadOnly, r#"{"type":"object"}"#), |_| async {
        Ok(ToolOutput::default())
    });
    check_policy(&Careful, [three_tools(), vec![free]].concat(), &cases).await.assert_none();
}

#[tokio::test]
async fn what_disagrees_is_told_in_one_table() {
    let case = |name, tool, args, outcome| PolicyCase::new(name, tool, args, outcome);
    let kind = PolicyCase {
        kind: "other".to_owned(),
        ..case("kind", "change", "{}", PolicyOutcome::RequireApproval)
    };
    let shown = PolicyCase {
        presentation: "B change".to_owned(),
        ..case("shown", "change", "{}", PolicyOutcome::RequireApproval)
    };
    let cases = [
        case("agrees", "read", "{}", PolicyOutcome::Allow),
        case("outcome", "wipe", "{}", PolicyOutcome::Allow),
        case("invalid", "read", r#"{"x":1}"#, PolicyOutcome::Allow),
        PolicyCase::refused("valid", "read", "{}"),
        case("fails", "change", r#"{"n":13}"#, PolicyOutcome::Allow),
        kind,
        shown,
    ];
    let found = check_policy(&Careful, three_tools(), &cases).await;
    insta::assert_snapshot!(found, @r#"
    1 found:
    - 6 of 7 cases disagree:
      case     request          expected                  came              why
      outcome  wipe {}          allow                     deny              nothing is wiped
      invalid  read {"x":1}     allow                     refused           at the arguments: Additional properties are not allowed ('x' was unexpected)
      valid    read {}          refused                   allow             harmless
      fails    change {"n":13}  allow                     error             unlucky
      kind     change {}        require_approval (other)  require_approval  the kind is "first_change", not "other"
      shown    change {}        require_approval          require_approval  the presentation lacks "B change": {"title":"A change"}
    "#);
}

#[tokio::test]
async fn what_must_never_be_answered_to_a_class_is_looked_for() {
    let fuzz = Fuzz { count: 8, ..Fuzz::default() };
    let wiped = (SideEffect::Destructive, PolicyOutcome::Allow);
    never(&Careful, three_tools(), wiped, fuzz, &[]).await.assert_none();
    let read = (SideEffect::ReadOnly, PolicyOutcome::Allow);
    assert_eq!(never(&Careful, three_tools(), read, fuzz, &[]).await.iter().count(), 8);

    let pushed = (SideEffect::RemoteMutation, PolicyOutcome::Allow);
    let nothing = never(&Careful, three_tools(), pushed, fuzz, &[]).await.to_string();
    assert!(nothing.contains("no tool is remote_mutation"), "{nothing}");
    let tools = || three_tools().into_iter().chain([stand_in("push", SideEffect::RemoteMutation)]).collect();
    let found = never(&Careful, tools(), pushed, fuzz, &[]).await.to_string();
    assert!(found.contains("push {") && found.contains("must never get: harmless"), "{found}");
    never(&DefaultPolicy, tools(), pushed, fuzz, &[]).await.assert_none();
}

#[tokio::test]
async fn a_stand_in_takes_any_object_and_answers_with_its_name() {
    let scenario = Scenario::of(working_off(&[("push", r#"{"any":[1]}"#)]))
        .tool(stand_in("push", SideEffect::RemoteMutation));
    let outcome = scenario.run(&[]).await;
    is_completed(&outcome);
    assert_eq!(outcome.approvals.len(), 1);
    assert_eq!(
        outcome.steps[0].observation.as_ref().unwrap().content,
        Json::trusted(r#"{"stand_in":"push"}"#)
    );
}

const RICH: &str = r##"{
    "type": "object",
    "required": ["to", "amount", "lines"],
    "properties": {
        "to": {"type": "string", "minLength": 1, "maxLength": 5},
        "amount": {"type": "integer", "minimum": 1, "exclusiveMaximum": 10},
        "rate": {"type": "number", "minimum": 0, "maximum": 1},
        "mode": {"enum": ["fast", "safe", null]},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}, "minItems": 1, "maxItems": 3, "uniqueItems": true},
        "either": {"anyOf": [{"type": "boolean"}, {"const": "both"}]},
        "tree": {"$ref": "#/$defs/tree"}
    },
    "additionalProperties": false,
    "$defs": {
        "line": {"type": ["string", "integer"]},
        "tree": {"type": "object", "properties": {"left": {"$ref": "#/$defs/tree"}, "right": {"$ref": "#/$defs/tree"}}, "maxProperties": 2}
    }
}"##;

#[test]
fn valid_arguments_are_the_same_for_a_seed_and_within_bounds() {
    let schema = Json::trusted(RICH);
    let fuzz = Fuzz { count: 64, ..Fuzz::default() };
    let made = fuzz.valid(&schema).unwrap();
    assert_eq!(made, fuzz.valid(&schema).unwrap());
    assert_ne!(made, Fuzz { seed: 2, ..fuzz }.valid(&schema).unwrap());
    assert_eq!(made.len(), 64);
    let judge = holdpoint_actors::schema::ArgumentSchema::compile(&schema).unwrap();
    for args in &made {
        judge.check(&Json::checked(args).unwrap()).unwrap();
        assert!(args.len() < 4_000, "a schema that has itself inside is not followed for ever");
    }
    let text: String = made.iter().map(|args| String::from_utf8_lossy(args).into_owned()).collect();
    for part in ["rate", "mode", "either", "tree", "both", "fast"] {
        assert!(text.contains(part), "{part} never came up");
    }
}

#[test]
fn invalid_arguments_begin_at_the_boundary_and_go_on_as_near_misses() {
    let schema = Json::trusted(RICH);
    let made = Fuzz { count: 200, ..Fuzz::default() }.invalid(&schema).unwrap();
    let judge = holdpoint_actors::schema::ArgumentSchema::compile(&schema).unwrap();
    for args in &made {
        let refused =
            Json::checked(args).map_err(|error| error.to_string()).and_then(|args| judge.check(&args));
        assert!(refused.is_err(), "{}", String::from_utf8_lossy(args));
    }
    let reasons: Vec<_> = made[..6].iter().map(|args| Json::checked(args).unwrap_err().to_string()).collect();
    for (at, word) in [(0, "256"), (1, "key"), (2, "UTF-8"), (3, "surrogate")] {
        assert!(reasons[at].contains(word), "{at}: {}", reasons[at]);
    }
    let near: Vec<Json> = made[6..].iter().map(|args| Json::checked(args).unwrap()).collect();
    let any = |so: &dyn Fn(&serde_json::Value) -> bool| near.iter().any(|args| so(&args.decode().unwrap()));
    assert!(any(&|v| v.as_object().is_some_and(|v| !v.contains_key("to"))), "a required property is missing");
    assert!(any(&|v| v.get("unexpected").is_some()), "an unexpected one is there");
    assert!(any(&|v| v.get("amount").is_some_and(|n| n == 0 || n == 10)), "just past a bound");
    assert!(any(&|v| v.get("to").and_then(|to| to.as_str()).is_some_and(|to| to == "aaaaaa")), "too long");
    assert!(any(&|v| v.get("mode").and_then(|m| m.as_str()).is_some_and(|m| m.starts_with("not-a-member"))));
    assert!(any(&|v| !v.is_object()), "another type at the root");
}

#[test]
fn a_schema_that_nothing_is_made_for_is_refused_by_name() {
    let refused = |schema: &str| Fuzz::default().valid(&Json::trusted(schema)).unwrap_err().to_string();
    let nested =
        r#"{"type":"object","required":["a"],"properties":{"a":{"type":"string","pattern":"x","not":{}}}}"#;
    assert!(refused(nested).contains("at /a uses pattern, not"), "{}", refused(nested));
    let impossible = r#"{"type":"object","required":["a"],"additionalProperties":false}"#;
    assert!(refused(impossible).contains("requires a property that it does not admit"));
    assert!(
        refused(r#"{"type":"object","properties":{"a":{"$ref":"other.json"}}}"#)
            .starts_with("make arguments: ")
    );
    assert!(refused("[]").starts_with("make arguments: "));
    let endless = r##"{"type":"object","required":["a"],"properties":{"a":{"$ref":"#"}}}"##;
    assert!(refused(endless).contains("without an end"), "{}", refused(endless));
}

#[tokio::test]
async fn tools_meet_what_is_made_and_a_panic_is_reported_where_an_error_is_not() {
    let spec = |name: &str| ToolSpec::new(name, SideEffect::ReadOnly, RICH);
    let fine = tool_fn(spec("fine"), |_| async { Ok(ToolOutput::new("{}", "")) });
    let refuses = tool_fn(spec("refuses"), |_| async { Err(ToolFailure::Failed("not today".to_owned())) });
    Fuzz::default().check(&[Arc::clone(&fine), refuses]).await.assert_none();

    let fragile = tool_fn(spec("fragile"), |call: ToolCall| async move {
        assert!(!call.args.as_str().contains("tree"), "no trees");
        Ok(ToolOutput::new("{}", ""))
    });
    let found = Fuzz::default().check(&[fine, fragile]).await;
    assert!(
        !found.is_empty()
            && found.iter().all(|f| f.starts_with("fragile panicked on {") && f.ends_with("no trees")),
        "{found}"
    );

    let patterned =
        ToolSpec::new("patterned", SideEffect::ReadOnly, r#"{"type":"object","patternProperties":{}}"#);
    let found = Fuzz::default().check(&[tool_fn(patterned, |_| async { Ok(ToolOutput::default()) })]).await;
    assert!(
        found.to_string().contains("patterned: make arguments: the schema at / uses patternProperties"),
        "{found}"
    );
}

/// Asks a model what to do, telling it what happened so far, and does as it says.
struct Asking {
    opening: Box<dyn Fn() -> String + Send + Sync>,
}

#[async_trait]
impl Agent for Asking {
    async fn decide(&self, input: StepInput) -> Result<Proposal, AgentError> {
        let happened = input.steps.iter().map(|step| {
            let seen = step.observation.as_ref().map_or("", |observation| observation.summary.as_str());
            Block::text(format!("step {} ({}): {seen}", step.index, step.id))
        });
        let opening = Block::text((self.opening)());
        let content = std::iter::once(opening).chain(happened).collect();
        let messages = vec![Message { role: Role::User, content }];
        let request = ModelRequest { messages, max_output_tokens: 20, ..ModelRequest::default() };
        let answer = input.model.generate(&request).await?;
        Ok(match answer.tool_uses.first() {
            Some(tool_use) => Proposal::tool_call(&tool_use.name, tool_use.args.as_str()),
            None => Proposal::complete("{}"),
        })
    }
}

fn asking(opening: impl Fn() -> String + Send + Sync + 'static) -> (Scenario, Arc<dyn Agent>) {
    let agent: Arc<dyn Agent> = Arc::new(Asking { opening: Box::new(opening) });
    let tool_use = |name: &str| holdpoint_core::model::ToolUse {
        id: "1".to_owned(),
        name: name.to_owned(),
        args: Json::empty_object(),
    };
    let answer = |uses: Vec<_>| ModelResponse {
        tool_uses: uses,
        usage: Usage { input_tokens: 3, output_tokens: 2, cached_input_tokens: 0 },
        ..ModelResponse::default()
    };
    let script = [
        answer(vec![tool_use("read")]),
        answer(vec![tool_use("read")]),
        answer(vec![tool_use("push")]),
        answer(vec![]),
    ];
    let scenario = Scenario::of(Arc::clone(&agent))
        .tool(echo("read", SideEffect::ReadOnly))
        .tool(echo("push", SideEffect::RemoteMutation))
        .model(ModelConfig::new(Arc::new(Scripted::new(script))));
    (scenario, agent)
}

#[tokio::test]
async fn an_agent_that_goes_by_the_record_renders_alike_across_a_pause_and_a_crash() {
    let crash = [Disruption::crash(0, Point::StepDecided)];
    same_renders(|| asking(|| "begin".to_owned()), &crash).await.assert_none();
}

#[tokio::test]
async fn an_agent_that_goes_by_something_else_is_found_out() {
    let count = Arc::new(AtomicUsize::new(0));
    let found = same_renders(
        || {
            let count = Arc::clone(&count);
            asking(move || format!("request {}", count.fetch_add(1, Ordering::AcqRel)))
        },
        &[],
    )
    .await;
    let said = found.to_string();
    assert!(said.contains("decision 0 renders differently in two runs: message 0:"), "{said}");
}

#[tokio::test]
async fn what_an_agent_renders_is_its_first_request_and_silence_is_an_error() {
    let (scenario, agent) = asking(|| "begin".to_owned());
    let outcome = scenario.run(&[]).await;
    outcome.failures.assert_none();
    let request = rendered(&*agent, outcome.inputs[1].clone()).await.unwrap();
    assert_eq!((request.messages[0].content.len(), request.max_output_tokens), (2, 20));
    let mute = |_: StepInput| async { Ok::<_, AgentError>(Proposal::complete("")) };
    assert_eq!(rendered(&mute, outcome.inputs[0].clone()).await, Err(RenderError::AskedNothing));
    let failing = |_: StepInput| async { Err(AgentError::msg("no idea")) };
    let failed = rendered(&failing, outcome.inputs[0].clone()).await;
    assert_eq!(failed, Err(RenderError::Failed("no idea".to_owned())));
}

/// Allows what a counter that nobody records says.
struct Moody(AtomicUsize);

#[async_trait]
impl Policy for Moody {
    async fn evaluate(&self, _: &ToolRequest, _: &PolicyView) -> Result<PolicyDecision, PolicyError> {
        let asked = self.0.fetch_add(1, Ordering::AcqRel);
        Ok(if asked < 2 { PolicyDecision::allow("") } else { PolicyDecision::deny("enough") })
    }
}

/// Denies what the runtime's own policy would let change something.
struct ReadsOnly;

#[async_trait]
impl Policy for ReadsOnly {
    async fn evaluate(&self, request: &ToolRequest, _: &PolicyView) -> Result<PolicyDecision, PolicyError> {
        let reads = request.spec.side_effect.is_read();
        Ok(if reads { PolicyDecision::allow("") } else { PolicyDecision::deny("reads only") })
    }
}

#[tokio::test]
async fn a_policy_that_goes_by_what_it_is_handed_decides_alike_when_it_is_asked_again() {
    let scenario = scene(SideEffect::RemoteMutation).recheck();
    let outcome = scenario.run(&[Disruption::crash(1, Point::Resumed)]).await;
    is_completed(&outcome);
    recheck(outcome.database(), &outcome.run_id, Arc::new(DefaultPolicy)).await.assert_none();
}

#[tokio::test]
async fn a_policy_that_reads_something_else_is_found_out() {
    let moody = scene(SideEffect::LocalMutation).policy(Arc::new(Moody(AtomicUsize::new(0)))).recheck();
    let said = moody.run(&[]).await.failures.to_string();
    assert!(said.contains("steps {0, 1} differ, expected {}"), "{said}");
}

#[tokio::test]
async fn what_a_second_policy_changes_is_named_by_its_steps() {
    let outcome = scene(SideEffect::LocalMutation).run(&[]).await;
    let (database, run) = (outcome.database(), &outcome.run_id);
    let stricter = || Arc::new(ReadsOnly) as Arc<dyn Policy>;
    recheck_differs(database, run, stricter(), &[1]).await.assert_none();
    recheck_partial(database, run, stricter(), &[1, 1]).await.assert_none();
    let said = recheck_differs(database, run, stricter(), &[0]).await.to_string();
    assert!(said.contains("steps {1} differ, expected {0}") && said.contains("DIFFERENT step 1"), "{said}");
    let nowhere = recheck(database, &"nowhere".into(), stricter()).await.to_string();
    assert!(nowhere.contains("there is none with this id"), "{nowhere}");
}

#[tokio::test]
async fn a_re_check_that_shows_nothing_is_found() {
    let nothing = Scenario::of(working_off(&[])).recheck().run(&[]).await;
    assert!(nothing.failures.to_string().contains("nothing was asked again"), "{}", nothing.failures);
    recheck_partial(nothing.database(), &nothing.run_id, Arc::new(DefaultPolicy), &[]).await.assert_none();

    let outcome = scene(SideEffect::LocalMutation).run(&[]).await;
    let cut = "UPDATE events SET payload_json = replace(payload_json, 'spec_hash', 'was') WHERE type = 'step.policy'";
    Connection::open(outcome.database()).unwrap().execute(cut, []).unwrap();
    let left_out = recheck(outcome.database(), &outcome.run_id, Arc::new(DefaultPolicy)).await.to_string();
    assert!(left_out.contains("2 evaluation(s) could not be asked again"), "{left_out}");
}

#[tokio::test]
async fn a_crash_around_a_model_request_asks_again_and_leaves_that_attempt_uncharged() {
    // Of the four answers of the script, the dead hear none or lose the first.
    for (at, answers) in [(Point::ModelDispatched, 4), (Point::ModelAnswered, 3)] {
        let (scenario, _) = asking(|| "begin".to_owned());
        let outcome = scenario.run(&[Disruption::crash(0, at)]).await;
        outcome.failures.assert_none();
        let count = |kind: &str| outcome.events.iter().filter(|event| event.kind == kind).count();
        assert_eq!((count("model.dispatched"), count("model.completed")), (answers + 1, answers), "{at:?}");
        let totals = outcome.run.as_ref().unwrap().totals;
        assert_eq!(totals.model_calls, i64::try_from(answers).unwrap(), "{at:?}: one is left as dispatched");
    }
}

#[tokio::test]
async fn what_happens_after_a_death_reaches_nothing_of_the_embedders() {
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let told = Arc::clone(&seen);
    let agent = move |input: StepInput| {
        told.lock().unwrap().push(format!("asked about step {}", input.run.step_count - 1));
        async move {
            let done = input.steps.iter().any(|step| step.status == StepStatus::Done);
            Ok::<_, AgentError>(if done { Proposal::complete("") } else { Proposal::tool_call("read", "{}") })
        }
    };
    let scenario = Scenario::of(Arc::new(agent)).tool(echo("read", SideEffect::ReadOnly));
    let outcome = scenario.run(&[Disruption::crash(0, Point::StepStarted)]).await;
    is_completed(&outcome);
    assert_eq!(*seen.lock().unwrap(), ["asked about step 1", "asked about step 2"], "the dead ask nobody");
    assert!(matches!(outcome.disrupted[0].victim, Victim::Process));
}
