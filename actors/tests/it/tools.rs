//! How a call can end: what is observed, and how the ending is kept beside it.

use std::time::Duration;

use holdpoint_actors::executor::{ToolFailure, ToolOutput};
use holdpoint_core::attempt::Ending;
use holdpoint_core::decision::Proposal;
use holdpoint_core::run::{Reason, RunStatus};
use holdpoint_core::step::{ObservationKind, StepStatus};
use holdpoint_core::tool::{SideEffect, ToolSpec};

use crate::bench::*;

type Answer = Result<ToolOutput, ToolFailure>;

fn ending(bench: &Bench) -> Option<Ending> {
    let step = bench.steps(&r())[0].id.clone();
    bench.operator().read(|reader| reader.ending(&step)).unwrap()
}

#[tokio::test]
async fn each_ending_is_observed_in_its_own_words_and_kept_as_a_type() {
    let text = |what: &str| what.to_owned();
    let cases: Vec<(Answer, Option<Ending>, &str, &str)> = vec![
        (Ok(ToolOutput::new("[1]", "one")), None, "[1]", "one"),
        (
            Err(ToolFailure::Failed(text("no"))),
            Some(Ending::KnownFailure),
            r#"{"error":"no","failure":"error","tool":"work"}"#,
            "work error: no",
        ),
        (
            Err(ToolFailure::NoAnswer(text("gone"))),
            Some(Ending::NoAnswer),
            r#"{"error":"gone","failure":"error","tool":"work"}"#,
            "work error: gone",
        ),
        (
            Err(ToolFailure::NotSent(text("down"))),
            Some(Ending::NotSent),
            r#"{"error":"down","failure":"error","tool":"work"}"#,
            "work error: down",
        ),
        (
            Err(ToolFailure::TimedOut(text("slow"))),
            Some(Ending::TimedOut),
            r#"{"error":"slow","failure":"timeout","tool":"work"}"#,
            "work timeout: slow",
        ),
        (
            Err(ToolFailure::Unrecordable { reason: text("too deep"), raw: b"[[[".to_vec() }),
            Some(Ending::Unrecordable),
            r#"{"content":"[[[","error":"content is not usable JSON: too deep","failure":"invalid_content","tool":"work"}"#,
            "work returned content is not usable JSON: too deep",
        ),
    ];
    for (answer, kept, content, summary) in cases {
        let bench = Bench::new();
        let failed = answer.is_err();
        let work = Scripted::giving("work", SideEffect::LocalMutation, answer);
        let process = bench.process(&[work], by_class()).await;
        let session = process.begin().await;
        let (step, _) = propose(&session, call("work", "{}")).await;
        let executed = step.execute().await.unwrap();
        assert_eq!(executed.ending, kept.unwrap_or(Ending::Answered));
        assert!(!executed.run_over);
        let step = bench.steps(&r()).pop().unwrap();
        let observation = step.observation.unwrap();
        assert_eq!((observation.content.as_str(), observation.summary.as_str()), (content, summary));
        assert_eq!(step.status, if failed { StepStatus::Failed } else { StepStatus::Done });
        assert_eq!(ending(&bench), kept);
        let tail = if failed { "step.tool_finished step.failed" } else { "step.tool_finished" };
        assert!(bench.kinds(&r()).ends_with(tail));
        bench.verify();
    }
}

#[tokio::test]
async fn a_tool_that_overruns_its_time_is_observed_as_a_timeout() {
    let bench = Bench::new();
    let spec = ToolSpec { timeout: Duration::from_millis(30), ..spec("slow", SideEffect::ReadOnly) };
    let slow = Scripted::with(spec, |_| Box::pin(std::future::pending()));
    let process = bench.process(&[slow], by_class()).await;
    let session = process.begin().await;
    let observation = act(&session, call("slow", "{}")).await;
    assert_eq!(observation.kind, ObservationKind::ToolError);
    assert_eq!(observation.field("failure").as_deref(), Some("timeout"));
    assert_eq!(observation.summary, "slow timeout: slow: no answer within 30ms");
    assert_eq!(ending(&bench), Some(Ending::TimedOut));
    ended(propose(&session, Proposal::complete("")).await.1);
}

#[tokio::test]
async fn a_tool_that_panics_is_observed_and_what_it_did_is_not_known() {
    let bench = Bench::new();
    let now = Scripted::with(spec("now", SideEffect::LocalMutation), |_| panic!("oops"));
    let later = Scripted::with(spec("later", SideEffect::LocalMutation), |_| {
        Box::pin(async { panic!("oops, later") })
    });
    let process = bench.process(&[now, later], by_class()).await;
    let session = process.begin().await;
    let observation = act(&session, call("now", "{}")).await;
    assert_eq!(
        (observation.kind, observation.summary.as_str()),
        (ObservationKind::ToolError, "now panicked")
    );
    assert_eq!(observation.content.as_str(), r#"{"error":"panic: oops","tool":"now"}"#);
    assert_eq!(ending(&bench), Some(Ending::NoAnswer));
    let observation = act(&session, call("later", "{}")).await;
    assert_eq!(observation.content.as_str(), r#"{"error":"panic: oops, later","tool":"later"}"#);
    ended(propose(&session, Proposal::complete("")).await.1);
    bench.verify();
}

#[tokio::test]
async fn a_tool_may_end_the_run() {
    let bench = Bench::new();
    let abort = ToolFailure::Abort("the proposal is void".to_owned());
    let process =
        bench.process(&[Scripted::giving("work", SideEffect::LocalMutation, Err(abort))], by_class()).await;
    let session = process.begin().await;
    let (step, _) = propose(&session, call("work", "{}")).await;
    let executed = step.execute().await.unwrap();
    assert!(executed.run_over && session.done().await);
    assert_eq!(executed.observation.summary, "work aborted the run: the proposal is void");
    let run = bench.run(&r());
    is(&run, RunStatus::Failed, Reason::ToolAbort);
    assert_eq!(run.reason_detail, "the proposal is void");
    assert!(bench.kinds(&r()).ends_with("step.tool_finished step.failed run.finished"));
    bench.verify();
}

#[tokio::test]
async fn an_answer_that_cannot_be_recorded_is_kept_as_text_because_the_effect_happened() {
    let mut deep = vec![b'['; 257];
    deep.extend(vec![b']'; 257]);
    let cases: [(Vec<u8>, &str, &str); 5] = [
        (b"not json".to_vec(), "content", "not json"),
        (b"{\"a\":1,\"a\":2}".to_vec(), "content", "{\"a\":1,\"a\":2}"),
        (b"[1e99999]".to_vec(), "content", "[1e99999]"),
        (b"\"\xff\"".to_vec(), "content_base64", "Iv8i"),
        (deep.clone(), "content", std::str::from_utf8(&deep).unwrap()),
    ];
    for (content, field, kept) in &cases {
        let bench = Bench::new();
        let output = ToolOutput::new(content.clone(), "wrote");
        let work = Scripted::giving("work", SideEffect::LocalMutation, Ok(output));
        let process = bench.process(std::slice::from_ref(&work), by_class()).await;
        let session = process.begin().await;
        let observation = act(&session, call("work", "{}")).await;
        assert_eq!(observation.kind, ObservationKind::ToolError);
        assert_eq!(observation.field("failure").as_deref(), Some("invalid_content"));
        assert_eq!(observation.field(field).as_deref(), Some(*kept));
        assert_eq!(ending(&bench), Some(Ending::Unrecordable));
        ended(propose(&session, Proposal::complete("")).await.1);
        assert_eq!(work.calls(), 1);
        bench.verify();
    }
}

#[tokio::test]
async fn an_empty_answer_is_an_empty_object() {
    for empty in ["", " \n", "\u{a0}"] {
        let bench = Bench::new();
        let output = ToolOutput::new(empty, "");
        let process =
            bench.process(&[Scripted::giving("work", SideEffect::ReadOnly, Ok(output))], by_class()).await;
        let observation = act(&process.begin().await, call("work", "{}")).await;
        assert_eq!((observation.kind, observation.content.as_str()), (ObservationKind::ToolResult, "{}"));
    }
}

#[tokio::test]
async fn a_tool_is_given_its_arguments_as_they_were_written() {
    let bench = Bench::new();
    let any = ToolSpec {
        input_schema: holdpoint_core::json::Json::trusted("{\"type\":\"object\"}"),
        ..spec("any", SideEffect::ReadOnly)
    };
    let any = Scripted::with(any, |_| Box::pin(async { Ok(ToolOutput::default()) }));
    let process = bench.process(std::slice::from_ref(&any), by_class()).await;
    let session = process.begin().await;
    let written = "{ \"z\": 1.50, \"a\": \"\\u003c\" }";
    act(&session, call("any", written)).await;
    act(&session, call("any", "")).await;
    assert_eq!(any.args(), [written, "{}"]);
}
