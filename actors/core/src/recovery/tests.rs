//! Which step an interruption leaves unknown.

use std::sync::Arc;

use super::*;
use crate::ids::{RunId, StepId};
use crate::step::{Observation, ObservationKind};
use crate::time::UnixNanos;

fn step(status: StepStatus, cut_off_while: Option<&str>) -> Arc<Step> {
    let mut step = Step::begun(StepId::from("s"), RunId::from("r"), 0, UnixNanos::from_nanos(0));
    step.status = status;
    step.observation = cut_off_while
        .map(|was| Observation::of_fields(ObservationKind::Interrupted, &[("previous_status", was)], ""));
    Arc::new(step)
}

fn found(steps: &[Arc<Step>]) -> Option<usize> {
    cut_off(steps).map(|cut_off| cut_off.index)
}

#[test]
fn only_a_step_whose_tool_was_started_leaves_anything_unknown() {
    assert_eq!(found(&[]), None);
    let harmless = [
        StepStatus::Deciding,
        StepStatus::AwaitingApproval,
        StepStatus::Done,
        StepStatus::Failed,
        StepStatus::Interrupted,
    ];
    for status in harmless {
        assert_eq!(found(&[step(status, None)]), None, "{status}");
    }
    assert_eq!(found(&[step(StepStatus::Executing, None)]), Some(0));
    assert_eq!(found(&[step(StepStatus::Done, None), step(StepStatus::Executing, None)]), Some(1));
}

#[test]
fn a_step_that_an_unfinished_recovery_marked_is_still_the_unknown_one() {
    let executing = step(StepStatus::Interrupted, Some("executing"));
    let deciding = step(StepStatus::Interrupted, Some("deciding"));
    assert_eq!(found(&[step(StepStatus::Done, None), Arc::clone(&executing)]), Some(1));
    assert_eq!(found(&[deciding]), None);
    assert_eq!(found(&[executing, step(StepStatus::Deciding, None)]), None, "the run went on after it");
}
