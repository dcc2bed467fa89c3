//! Recovery: what a run that was cut off leaves unknown.
//!
//! Owns the one question that process start, an actor's restart and a lost session all ask. Never answers it for a
//! tool that changes something: a person, or somebody who can look outside, does.

use crate::step::{Step, StepStatus};

/// A step whose tool may have had its effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CutOff {
    /// Its place among the run's steps.
    pub index: usize,
}

/// Finds the step that was executing when its run was cut off.
///
/// A step that an earlier recovery marked interrupted, and that recovery stopped before acting on, is still the one.
/// Everything before the tool's start is known not to have run.
pub fn cut_off<S: AsRef<Step>>(steps: &[S]) -> Option<CutOff> {
    let executing = steps.iter().rposition(|step| step.as_ref().status == StepStatus::Executing);
    let index = executing.or_else(|| {
        let last = steps.last()?.as_ref();
        (last.cut_off_while() == Some(StepStatus::Executing)).then(|| steps.len() - 1)
    })?;
    Some(CutOff { index })
}

#[cfg(test)]
mod tests;
