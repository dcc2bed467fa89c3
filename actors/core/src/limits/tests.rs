//! The order of the limits, and the two streaks against a plain count of the same thing.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::decision::Proposal;
use crate::hash::content_hash_of;
use crate::ids::{RunId, StepId};
use crate::json::Json;
use crate::run::Limits;
use crate::step::{Observation, StepStatus};

/// What a step may look like to the streaks.
#[derive(Debug, Clone, PartialEq)]
enum Shape {
    Unfinished,
    NoDecision,
    Completed,
    Call { tool: &'static str, args: &'static str, content: &'static str, kind: ObservationKind },
}

fn step(shape: &Shape) -> Arc<Step> {
    let mut step = Step::begun(StepId::from("s"), RunId::from("r"), 0, UnixNanos::from_nanos(0));
    match shape {
        Shape::Unfinished => step.decision = Some(Proposal::tool_call("a", "{}").recorded()),
        Shape::NoDecision => {
            step.observation = Some(Observation::new(ObservationKind::Interrupted, Json::empty_object(), ""));
        }
        Shape::Completed => step.decision = Some(Proposal::complete("").recorded()),
        Shape::Call { tool, args, content, kind } => {
            step.status = StepStatus::Done;
            step.decision = Some(Proposal::tool_call(*tool, *args).recorded());
            step.observation = Some(Observation::new(*kind, Json::trusted(*content), ""));
        }
    }
    Arc::new(step)
}

fn call(content: &'static str, kind: ObservationKind) -> Shape {
    Shape::Call { tool: "a", args: "{}", content, kind }
}

fn steps(shapes: &[Shape]) -> Vec<Arc<Step>> {
    shapes.iter().map(step).collect()
}

fn run(limits: Limits) -> Run {
    Run::begun(RunId::from("r"), "", limits, UnixNanos::from_nanos(1_000))
}

fn never() -> UnixNanos {
    panic!("the clock is read only for an elapsed-time limit")
}

#[test]
fn the_limits_are_judged_in_their_order() {
    let failing = call(r#"{"same":1}"#, ObservationKind::ToolError);
    let steps = steps(&[failing.clone(), failing]);
    let mut run = run(Limits {
        max_steps: 2,
        max_consecutive_tool_failures: 2,
        loop_threshold: 2,
        max_active_time: 5_000_000,
        max_elapsed_time: 10,
        ..Limits::default()
    });
    run.step_count = 2;
    run.active_ms = 5;
    let late = || UnixNanos::from_nanos(1_010);
    // Each limit that fires is lifted, so that the next one shows.
    type Lift = fn(&mut Limits);
    let order: [(Reason, Lift); 5] = [
        (Reason::LimitSteps, |l| l.max_steps = 3),
        (Reason::RepeatedToolFailures, |l| l.max_consecutive_tool_failures = 3),
        (Reason::LimitActiveTime, |l| l.max_active_time = 5_000_001),
        (Reason::LimitElapsedTime, |l| l.max_elapsed_time = 11),
        (Reason::LoopDetected, |l| l.loop_threshold = 3),
    ];
    for (reason, lift) in order {
        assert_eq!(exceeded(&run, &steps, late).map(|exceeded| exceeded.reason), Some(reason));
        lift(&mut run.limits);
    }
    assert_eq!(exceeded(&run, &steps, late), None);
}

#[test]
fn a_limit_of_zero_is_none_and_the_clock_is_not_read_for_it() {
    let mut run = run(Limits::default());
    run.active_ms = i64::MAX;
    assert_eq!(exceeded::<Arc<Step>>(&run, &[], never), None);
    run.limits.max_active_time = i64::MAX;
    let active = exceeded::<Arc<Step>>(&run, &[], never).unwrap();
    assert_eq!(active.reason, Reason::LimitActiveTime, "milliseconds saturate when counted in nanoseconds");
}

#[test]
fn a_loop_names_what_repeats() {
    let same =
        Shape::Call { tool: "read", args: "{\"n\":1}", content: "[2]", kind: ObservationKind::ToolResult };
    let steps = steps(&[same.clone(), same.clone(), same]);
    let exceeded = exceeded(&run(Limits::default()), &steps, never).unwrap();
    assert_eq!(
        exceeded.repeated,
        Some(Repeated {
            times: 3,
            tool: "read".to_owned(),
            args_hash: content_hash_of("{\"n\":1}"),
            observation_hash: content_hash_of("[2]"),
        })
    );
}

#[test]
fn arguments_are_compared_in_canonical_form_and_absent_ones_are_an_empty_object() {
    let with = |args| Shape::Call { tool: "a", args, content: "1", kind: ObservationKind::ToolResult };
    let times = |shapes: &[Shape]| repeated_outcome(&steps(shapes)).map(|repeated| repeated.times);
    assert_eq!(times(&[with(""), with("{}"), with(" { } ")]), Some(3));
    assert_eq!(times(&[with("{\"a\":1,\"b\":2}"), with("{\"b\":2, \"a\":1}")]), Some(2));
    assert_eq!(times(&[with("{\"a\":1}"), with("{\"a\":1.0}")]), Some(1));
}

#[test]
fn errors_and_denials_repeat_and_invalid_decisions_do_not() {
    let times = |kind| {
        let shapes = [call("1", kind), call("1", kind)];
        repeated_outcome(&steps(&shapes)).map(|repeated| repeated.times)
    };
    assert_eq!(times(ObservationKind::ToolError), Some(2));
    assert_eq!(times(ObservationKind::PolicyDenied), Some(2));
    assert_eq!(times(ObservationKind::Interrupted), Some(2));
    assert_eq!(times(ObservationKind::InvalidDecision), None);
}

#[test]
fn a_changed_result_is_progress_and_a_success_ends_a_run_of_failures() {
    let changing = [call("1", ObservationKind::ToolResult), call("2", ObservationKind::ToolResult)];
    assert_eq!(repeated_outcome(&steps(&changing)).unwrap().times, 1);
    let error = || call("{}", ObservationKind::ToolError);
    assert_eq!(consecutive_failures(&steps(&[error(), call("1", ObservationKind::ToolResult), error()])), 1);
    assert_eq!(consecutive_failures(&steps(&[error(), Shape::Completed, error(), error()])), 2);
    assert_eq!(consecutive_failures(&steps(&[error(), Shape::Unfinished])), 0);
}

fn shape() -> impl Strategy<Value = Shape> {
    let kinds = [
        ObservationKind::ToolResult,
        ObservationKind::ToolError,
        ObservationKind::PolicyDenied,
        ObservationKind::InvalidDecision,
        ObservationKind::Interrupted,
    ];
    let call = (
        proptest::sample::select(&["a", "b"][..]),
        proptest::sample::select(&["", "{}", "{\"n\":1}"][..]),
        proptest::sample::select(&["1", "2"][..]),
        proptest::sample::select(kinds.to_vec()),
    )
        .prop_map(|(tool, args, content, kind)| Shape::Call { tool, args, content, kind });
    prop_oneof![
        1 => Just(Shape::Unfinished),
        1 => Just(Shape::NoDecision),
        1 => Just(Shape::Completed),
        12 => call,
    ]
}

/// Counts by hand: from the end, step by step, on the shapes alone.
fn failures_by_hand(shapes: &[Shape]) -> i64 {
    let mut count = 0;
    for shape in shapes.iter().rev() {
        match shape {
            Shape::NoDecision => count += 1,
            Shape::Call { kind, .. } if *kind != ObservationKind::ToolResult => count += 1,
            Shape::Call { .. } | Shape::Unfinished | Shape::Completed => break,
        }
    }
    count
}

fn repeats_by_hand(shapes: &[Shape]) -> i64 {
    let mut count = 0;
    let mut first = None;
    for shape in shapes.iter().rev() {
        let Shape::Call { tool, args, content, kind } = shape else { break };
        if *kind == ObservationKind::InvalidDecision {
            break;
        }
        let this = (*tool, if args.is_empty() { "{}" } else { args }, *content);
        if *first.get_or_insert(this) != this {
            break;
        }
        count += 1;
    }
    count
}

proptest! {
    #[test]
    fn the_streaks_are_what_counting_from_the_end_gives(shapes in proptest::collection::vec(shape(), 0..12)) {
        let steps = steps(&shapes);
        prop_assert_eq!(consecutive_failures(&steps), failures_by_hand(&shapes));
        let repeated = repeated_outcome(&steps).map_or(0, |repeated| repeated.times);
        prop_assert_eq!(repeated, repeats_by_hand(&shapes));
    }

    #[test]
    fn a_run_ends_by_a_streak_exactly_when_its_count_reaches_the_limit(
        shapes in proptest::collection::vec(shape(), 0..8),
        failures in 1..5_i64,
        repeats in 1..5_i64,
    ) {
        let limits = Limits { max_consecutive_tool_failures: failures, loop_threshold: repeats, ..Limits::default() };
        let reason = exceeded(&run(limits), &steps(&shapes), never).map(|exceeded| exceeded.reason);
        let expected = if failures_by_hand(&shapes) >= failures {
            Some(Reason::RepeatedToolFailures)
        } else {
            (repeats_by_hand(&shapes) >= repeats).then_some(Reason::LoopDetected)
        };
        prop_assert_eq!(reason, expected);
    }
}
