//! Tests of conversations and decisions. Each input is a real session's, with steps put in its place.

use std::sync::Arc;

use holdpoint_core::decision::{Decision, Proposal};
use holdpoint_core::json::Json;
use holdpoint_core::model::{Block, Message, ModelRequest, ModelResponse, Role, ToolUse, Usage};
use holdpoint_core::run::{Limits, Reason, Run, RunStatus};
use holdpoint_core::step::{Observation, ObservationKind, Step};
use holdpoint_core::time::UnixNanos;

use super::*;
use crate::gate::{ModelConfig, Runtime, SideEffect, ToolOutput, ToolSpec, tool_fn};
use crate::model::Model;
use crate::replay::{Recorder, Replayer, Scripted};

fn json(text: &str) -> Json {
    Json::checked(text.as_bytes()).unwrap()
}

/// What an agent is handed, with these steps before it.
async fn input(steps: Vec<Step>) -> StepInput {
    let folder = tempfile::tempdir().unwrap();
    let runtime = Runtime::builder(folder.path().join("agent.db")).start().await.unwrap();
    let session = runtime.gate().begin("r1".into(), "the goal", Limits::default()).await.unwrap();
    let mut input = session.input().await.unwrap();
    session.close().await;
    runtime.stop().await;
    input.steps = steps.into_iter().map(Arc::new).collect();
    input
}

fn step(index: i64, decision: Option<Decision>, observation: Option<Observation>) -> Step {
    let begun =
        Step::begun(format!("s{index}").as_str().into(), "r1".into(), index, UnixNanos::from_nanos(1));
    Step { decision, observation, ..begun }
}

fn call(index: i64, tool: &str, args: &str, reason: &str, observation: Observation) -> Step {
    let args = Some(json(args));
    let decision = Decision { tool: tool.to_owned(), args, ..said("tool_call", reason) };
    step(index, Some(decision), Some(observation))
}

fn said(kind: &str, reason: &str) -> Decision {
    Decision { kind: kind.to_owned(), reason: reason.to_owned(), ..Decision::default() }
}

fn observed(kind: ObservationKind, content: &str, summary: &str) -> Observation {
    Observation::new(kind, json(content), summary)
}

fn result(content: &str, summary: &str) -> Observation {
    observed(ObservationKind::ToolResult, content, summary)
}

fn render() -> Render {
    Render::new(|input| format!("Goal: {}", input.run.goal))
}

fn contents(messages: &[Message]) -> Vec<&str> {
    let blocks = messages.iter().flat_map(|message| &message.content);
    blocks.filter(|block| block.kind == "tool_result").map(|block| block.content.as_str()).collect()
}

#[tokio::test]
async fn steps_become_a_conversation() {
    let invalid = observed(ObservationKind::InvalidDecision, r#"{"error":"no"}"#, "invalid decision: no");
    let steps = vec![
        call(0, "read", r#"{"n":1.50}"#, "look first", result(r#"{"value":1}"#, "value=1")),
        call(1, "add", r#"{"n":"x"}"#, "", invalid.clone()),
        step(2, Some(said("no_tool_call", "Let me think.")), Some(invalid)),
    ];
    let request = render().system("Be brief.").max_output_tokens(64).request(&input(steps).await);
    let expected = concat!(
        r#"{"system":"Be brief.","messages":["#,
        r#"{"role":"user","content":[{"type":"text","text":"Goal: the goal"}]},"#,
        r#"{"role":"assistant","content":[{"type":"text","text":"look first"},"#,
        r#"{"type":"tool_use","tool_use_id":"step_0","name":"read","input":{"n":1.50}}]},"#,
        r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"step_0","content":"{\"value\":1}"}]},"#,
        r#"{"role":"assistant","content":[{"type":"tool_use","tool_use_id":"step_1","name":"add","input":{"n":"x"}}]},"#,
        r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"step_1","content":"{\"error\":\"no\"}","is_error":true}]},"#,
        r#"{"role":"assistant","content":[{"type":"text","text":"Let me think."}]},"#,
        r#"{"role":"user","content":[{"type":"text","text":"That reply called no tool. Answer with exactly one tool call."}]}"#,
        r#"],"max_output_tokens":64}"#,
    );
    assert_eq!(request.to_json(), expected);
}

#[tokio::test]
async fn the_tools_of_a_request_are_those_that_the_agent_is_handed() {
    let handed = input(Vec::new()).await;
    let expected = ModelRequest { messages: render().messages(&handed), ..ModelRequest::default() };
    assert_eq!(render().request(&handed), expected);
    assert_eq!(expected.messages.len(), 1);
}

#[tokio::test]
async fn old_and_long_results_are_told_by_their_summary() {
    let mut steps: Vec<Step> = (0..4)
        .map(|i| call(i, "read", "{}", "", result(&format!(r#"{{"i":{i}}}"#), &format!("read {i}"))))
        .collect();
    let (fits, long) = (format!("{:?}", "z".repeat(28)), format!("{:?}", "z".repeat(29)));
    steps.push(call(4, "read", "{}", "", result(&fits, "fits")));
    steps.push(call(5, "read", "{}", "", result(&long, "long")));
    let handed = input(steps).await;
    let messages = render().recent_results(3).content_bytes_max(30).messages(&handed);
    let expected =
        ["[summary] read 0", "[summary] read 1", "[summary] read 2", r#"{"i":3}"#, &fits, "[summary] long"];
    assert_eq!(contents(&messages), expected);
    // Zero stands for the usual numbers.
    let usual = render().recent_results(0).content_bytes_max(0).messages(&handed);
    assert_eq!(usual, render().messages(&handed));
    assert_eq!(contents(&usual)[0], r#"{"i":0}"#);
}

#[tokio::test]
async fn six_results_of_24_000_bytes_are_given_whole() {
    let content = |bytes: usize| format!("{:?}", "z".repeat(bytes - 2));
    let steps = (0..7).map(|i| call(i, "read", "{}", "", result(&content(24_000), "long"))).collect();
    let messages = render().messages(&input(steps).await);
    let whole = contents(&messages).iter().filter(|content| content.len() == 24_000).count();
    assert_eq!((whole, contents(&messages)[0]), (6, "[summary] long"));
    let longer = vec![call(0, "read", "{}", "", result(&content(24_001), "longer"))];
    assert_eq!(contents(&render().messages(&input(longer).await)), ["[summary] longer"]);
}

#[tokio::test]
async fn a_step_without_a_decision_is_left_out_and_is_not_among_the_latest() {
    let steps = vec![
        call(0, "read", "{}", "", result(r#"{"i":0}"#, "read 0")),
        call(1, "read", "{}", "", result(r#"{"i":1}"#, "read 1")),
        step(2, None, None),
        step(3, None, Some(observed(ObservationKind::Interrupted, "{}", "cut off"))),
    ];
    let messages = render().recent_results(2).messages(&input(steps).await);
    assert_eq!(messages.len(), 5);
    assert_eq!(contents(&messages), [r#"{"i":0}"#, r#"{"i":1}"#]);
}

#[tokio::test]
async fn a_call_that_was_cut_off_is_to_be_asked_for_again() {
    let cut_off = observed(ObservationKind::Interrupted, r#"{"previous_status":"executing"}"#, "interrupted");
    let mut steps = vec![call(0, "apply", "{}", "", cut_off)];
    steps.extend((1..9).map(|i| call(i, "read", "{}", "", result("{}", "ok"))));
    let messages = render().messages(&input(steps).await);
    // It is said of an old one too, which would otherwise be a summary.
    assert_eq!(messages[2].content, [Block::tool_result("step_0", INTERRUPTED, true)]);
}

#[tokio::test]
async fn a_reply_that_could_not_be_acted_on_is_told_what_was_wrong() {
    let denied = observed(ObservationKind::PolicyDenied, r#"{"reason":"no"}"#, "denied: no");
    let why = observed(ObservationKind::InvalidDecision, "{}", "invalid decision: unknown kind");
    let steps = vec![
        call(0, "wipe", "{}", "", denied),
        step(1, Some(said("truncated", "cut off")), Some(why.clone())),
        step(2, Some(said("dance", "")), Some(why)),
        step(3, Some(Decision { tool: "read".to_owned(), ..said("tool_call", "") }), None),
        step(4, Some(said("tool_call", "which?")), Some(result("{}", "ok"))),
    ];
    let messages = render().messages(&input(steps).await);
    let answers: Vec<&Block> =
        messages.iter().skip(2).step_by(2).map(|message| &message.content[0]).collect();
    assert_eq!(*answers[0], Block::tool_result("step_0", r#"{"reason":"no"}"#, true));
    let truncated = "That reply reached the cap on output before its tool call was whole, so nothing was run. Answer with \
                     exactly one tool call, and keep it short.";
    assert_eq!(*answers[1], Block::text(truncated));
    let unknown = "That reply could not be acted on (invalid decision: unknown kind). Answer with exactly one valid tool \
                   call.";
    assert_eq!(*answers[2], Block::text(unknown));
    // A call without a result is not left without an answer, and neither is one that names no tool.
    assert_eq!(
        *answers[3],
        Block::text("That reply could not be acted on. Answer with exactly one valid tool call.")
    );
    assert_eq!(messages[5].content, [Block::text("(no tool call)")]);
    assert_eq!(messages[9].content, [Block::text("which?")]);
    assert_eq!(answers[4].kind, "text");
}

#[test]
fn a_step_without_a_decision_is_answered_with_what_was_wrong() {
    let answer = observation(&step(0, None, None), "step_0", true, 100);
    assert_eq!(
        answer,
        Block::text("That reply could not be acted on. Answer with exactly one valid tool call.")
    );
}

#[test]
fn arguments_that_were_no_json_stay_readable() {
    assert_eq!(args(&said("tool_call", "")).as_str(), "{}");
    let blank = Decision { args: Some(Json::trusted(" \n")), ..said("tool_call", "") };
    assert_eq!(args(&blank).as_str(), "{}");
    let recorded = |bytes: &[u8]| args(&Proposal::tool_call("read", bytes).recorded());
    assert_eq!(recorded(br#"{"n": 1.0}"#).as_str(), r#"{"n": 1.0}"#);
    assert_eq!(recorded(b"{<n").as_str(), r#"{"invalid_json":"{\u003cn"}"#);
    assert_eq!(recorded(b"\xff").as_str(), r#"{"invalid_json_base64":"/w=="}"#);
}

#[tokio::test]
async fn hooks_replace_a_part_and_leave_the_rest() {
    let steps = vec![
        call(0, "read", "{}", "why", result(r#"{"a":1}"#, "ok")),
        call(1, "read", "{}", "why", result(r#"{"a":2}"#, "ok")),
        step(2, Some(said("no_tool_call", "hm")), None),
    ];
    let render = render()
        .recent_results(2)
        .tool_use_id(|step| format!("toolu_{}", step.index))
        .assistant(|step, id| {
            let raw = Block { kind: "raw".to_owned(), text: format!("verbatim {id}"), ..Block::default() };
            (step.index == 0).then(|| vec![raw])
        })
        .observation(|step, id, recent| match step.index {
            0 => Some(Block::tool_result(id, format!("mine, recent: {recent}"), false)),
            1 => Some(Block::default()),
            _ => None,
        });
    let messages = render.messages(&input(steps).await);
    assert_eq!((messages[1].content[0].kind.as_str(), messages[1].content.len()), ("raw", 1));
    assert_eq!(messages[1].content[0].text, "verbatim toolu_0");
    assert_eq!(messages[2].content, [Block::tool_result("toolu_0", "mine, recent: false", false)]);
    assert_eq!(messages[3].content[1], Block::tool_use("toolu_1", "read", json("{}")));
    assert_eq!(messages[4].content, [Block::tool_result("toolu_1", r#"{"a":2}"#, false)]);
    assert_eq!(messages[5].content, [Block::text("hm")]);
    assert_eq!(messages[6].content[0].kind, "text");
}

/// Every shape of a step that the rules tell apart.
fn every_shape() -> Vec<Step> {
    let mut steps = vec![step(0, None, None)];
    for kind in ["tool_call", "complete", "fail", "no_tool_call", "truncated", "", "weird"] {
        for tool in ["read", ""] {
            for reason in ["", "<b>look é"] {
                for observation in [
                    None,
                    Some(result(r#"{"n":1}"#, "short")),
                    Some(result(&format!("{:?}", "z".repeat(40)), "long")),
                    Some(observed(ObservationKind::ToolError, r#"{"e":1}"#, "error")),
                    Some(observed(ObservationKind::Interrupted, "{}", "cut off")),
                ] {
                    let decision = Decision { tool: tool.to_owned(), ..said(kind, reason) };
                    let index = i64::try_from(steps.len()).unwrap();
                    steps.push(step(index, Some(decision), observation));
                }
            }
        }
    }
    steps
}

/// The rules once more, step by step and without the renderer's code.
fn by_the_rules(steps: &[Arc<Step>], recent: usize, bytes_max: usize) -> Vec<(Role, Vec<(String, String)>)> {
    let shown: Vec<&Arc<Step>> = steps.iter().filter(|step| step.decision.is_some()).collect();
    let mut turns = Vec::new();
    for (at, step) in shown.iter().enumerate() {
        let decision = step.decision.as_ref().unwrap();
        let is_call = decision.kind == "tool_call" && !decision.tool.is_empty();
        let mut said = Vec::new();
        if !decision.reason.is_empty() {
            said.push(("text".to_owned(), decision.reason.clone()));
        } else if !is_call {
            said.push(("text".to_owned(), "(no tool call)".to_owned()));
        }
        if is_call {
            said.push(("tool_use".to_owned(), decision.tool.clone()));
        }
        turns.push((Role::Assistant, said));
        let answer = match &step.observation {
            Some(seen) if is_call && seen.kind == ObservationKind::Interrupted => INTERRUPTED.to_owned(),
            Some(seen)
                if is_call && at + recent >= shown.len() && seen.content.as_str().len() <= bytes_max =>
            {
                seen.content.as_str().to_owned()
            }
            Some(seen) if is_call => format!("[summary] {}", seen.summary),
            Some(_) | None => String::new(),
        };
        let kind = if answer.is_empty() { "text" } else { "tool_result" };
        turns.push((Role::User, vec![(kind.to_owned(), answer)]));
    }
    turns
}

#[tokio::test]
async fn every_shape_of_a_step_is_told_by_the_rules() {
    let handed = input(every_shape()).await;
    for (recent, bytes_max) in [(1, 7), (6, 24_000), (70, 6), (70, 41), (70, 42), (200, 42)] {
        let messages = render().recent_results(recent).content_bytes_max(bytes_max).messages(&handed);
        let told = messages[1..].iter().map(|message| {
            let part = |block: &Block| match block.kind.as_str() {
                "tool_use" => ("tool_use".to_owned(), block.name.clone()),
                "tool_result" => ("tool_result".to_owned(), block.content.clone()),
                _ if message.role == Role::Assistant => ("text".to_owned(), block.text.clone()),
                _ => ("text".to_owned(), String::new()),
            };
            (message.role, message.content.iter().map(part).collect::<Vec<_>>())
        });
        assert_eq!(told.collect::<Vec<_>>(), by_the_rules(&handed.steps, recent, bytes_max));
    }
}

fn asking_for(names: &[&str]) -> ModelResponse {
    let tool_use = |name: &&str| ToolUse { id: "t".to_owned(), name: (*name).to_owned(), args: json("{}") };
    let tool_uses = names.iter().map(tool_use).collect();
    ModelResponse { tool_uses, stop_reason: stop::TOOL_USE.to_owned(), ..ModelResponse::default() }
}

fn stopped(reason: &str) -> ModelResponse {
    ModelResponse { stop_reason: reason.to_owned(), ..asking_for(&["read"]) }
}

#[test]
fn an_answer_becomes_a_decision() {
    let refused = decide(&stopped(stop::REFUSAL));
    assert_eq!((refused.kind.as_str(), refused.message.contains("refusal")), ("fail", true));
    let full = decide(&stopped(stop::CONTEXT_WINDOW_EXCEEDED));
    assert_eq!((full.kind.as_str(), full.message.contains("context window")), ("fail", true));
    let cut = decide(&stopped(stop::MAX_TOKENS));
    assert_eq!((cut.kind.as_str(), cut.tool.as_str(), cut.args.len()), ("truncated", "", 0));
    let thinking = ModelResponse { text: "  thinking aloud \n".to_owned(), ..ModelResponse::default() };
    let nothing = Proposal {
        kind: "no_tool_call".to_owned(),
        reason: "thinking aloud".to_owned(),
        ..Proposal::default()
    };
    assert_eq!(decide(&thinking), nothing);
    // Any other reason to stop is not the renderer's business.
    for reason in [stop::TOOL_USE, stop::END_TURN, "", "a provider's own"] {
        assert_eq!(decide(&stopped(reason)), Proposal::tool_call("read", "{}"));
    }
    let mut blank = asking_for(&["read"]);
    blank.tool_uses[0].args = Json::trusted(" ");
    assert_eq!(decide(&blank).args, b"{}");
}

#[test]
fn a_decision_keeps_the_arguments_byte_for_byte() {
    let mut response = asking_for(&["pay"]);
    let args = "{ \"amount\": 12345678901234567890.10 }";
    response.tool_uses[0].args = Json::trusted(args);
    assert_eq!(decide(&response).args, args.as_bytes());
}

#[test]
fn a_reason_is_bounded_and_names_what_was_not_run() {
    let extra = decide(&asking_for(&["a", "b", "c"]));
    assert_eq!(
        (extra.tool.as_str(), extra.reason.as_str()),
        ("a", "[2 further tool call(s) not executed: b, c]")
    );

    let long = "a".repeat(600);
    let talkative = ModelResponse { text: long.clone(), ..asking_for(&["add", "wipe"]) };
    let reason = decide(&talkative).reason;
    let note = " [1 further tool call(s) not executed: wipe]";
    assert_eq!(reason, format!("{}…{note}", "a".repeat(500 - 3 - note.len())));
    assert_eq!(reason.len(), 500);

    let alone = ModelResponse { text: long.clone(), ..ModelResponse::default() };
    assert_eq!(decide(&alone).reason, format!("{}…", "a".repeat(497)));
    let called = ModelResponse { text: long, ..asking_for(&["add"]) };
    assert_eq!(decide(&called).reason.len(), 500);
}

#[test]
fn names_that_are_too_long_or_too_many_are_cut() {
    let long = "n".repeat(65);
    let reason = decide(&asking_for(&["a", &long])).reason;
    assert_eq!(reason, format!("[1 further tool call(s) not executed: {}…]", "n".repeat(61)));

    let many = vec!["0123456789"; 40];
    let response = ModelResponse { text: "t".repeat(600), ..asking_for(&many) };
    let reason = decide(&response).reason;
    let (text, note) = reason.split_at(reason.find('[').unwrap());
    assert_eq!((reason.len(), note.len() <= 250), (500, true), "{reason}");
    assert!(
        note.starts_with("[39 further tool call(s) not executed: 0123456789, ") && note.ends_with(", …]"),
        "{note}"
    );
    assert!(text.ends_with("… "), "{text}");
}

#[test]
fn a_cut_never_exceeds_its_bound_or_splits_a_character() {
    assert_eq!(truncate("abécdef", 6), "ab…");
    assert_eq!(truncate("abécdef", 7), "abé…");
    let text = format!("aé日🙂b{}", "x".repeat(10));
    for bytes_max in 0..=text.len() + 1 {
        let cut = truncate(&text, bytes_max);
        assert!(cut.len() <= bytes_max, "{cut:?} is longer than {bytes_max}");
        assert_eq!(cut == text, bytes_max >= text.len());
    }
}

/// An agent over `model` settles an invoice with a read and a report.
async fn settle(model: Arc<dyn Model>) -> Run {
    let tool = |name: &str, terminal: bool| {
        let spec = ToolSpec::new(name, SideEffect::ReadOnly, r#"{"type":"object"}"#);
        let spec = if terminal { spec.terminal() } else { spec };
        tool_fn(spec, |_call| async { Ok(ToolOutput::new(r#"{"amount":20}"#, "20")) })
    };
    let folder = tempfile::tempdir().unwrap();
    let builder = Runtime::builder(folder.path().join("agent.db")).model(ModelConfig::new(model));
    let runtime = builder.tool(tool("read", false)).tool(tool("report", true)).start().await.unwrap();
    let run = runtime.driver(Arc::new(render())).start("settle it", Limits::default()).await.unwrap();
    runtime.stop().await;
    run
}

#[tokio::test]
async fn an_agent_that_was_recorded_decides_the_same_without_its_model() {
    let folder = tempfile::tempdir().unwrap();
    let usage = Usage { input_tokens: 9, output_tokens: 2, cached_input_tokens: 0 };
    let answers = ["read", "report"].map(|name| ModelResponse { usage, ..asking_for(&[name]) });
    let model = Arc::new(Scripted::new(answers).named("m"));
    let asked: Arc<dyn Model> = Arc::<Scripted>::clone(&model);
    let live = settle(Arc::new(Recorder::new(asked, folder.path()))).await;
    assert_eq!((live.status, live.reason), (RunStatus::Completed, Some(Reason::GoalCompleted)));
    let lengths: Vec<usize> = model.requests().iter().map(|request| request.messages.len()).collect();
    assert_eq!(lengths, [1, 3]);
    assert_eq!(model.requests()[0].tools.len(), 2);

    let replayed = settle(Arc::new(Replayer::new("m", folder.path()))).await;
    let told = |run: &Run| (run.status, run.reason, run.result.clone(), run.totals, run.step_count);
    assert_eq!(told(&replayed), told(&live));
    let other = settle(Arc::new(Replayer::new("another", folder.path()))).await;
    assert_eq!((other.status, other.reason), (RunStatus::Failed, Some(Reason::ModelUnavailable)));
}
