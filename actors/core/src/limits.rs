//! Limits that are judged before a step starts: steps, failures in a row, time, and loops.
//!
//! Owns the two streaks and their order. Never ends a run: it says why one must end.

use crate::hash;
use crate::run::{Reason, Run};
use crate::step::{ObservationKind, Step};
use crate::time::UnixNanos;

/// Why no further step may start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exceeded {
    /// The reason that the run ends with.
    pub reason: Reason,
    /// The reason in words.
    pub detail: String,
    /// What repeats, when it is a loop.
    pub repeated: Option<Repeated>,
}

/// A call that keeps coming to the same thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repeated {
    /// How many times in a row.
    pub times: i64,
    /// The tool.
    pub tool: String,
    /// The hash of its canonical arguments.
    pub args_hash: String,
    /// The hash of what was observed.
    pub observation_hash: String,
}

/// Judges the limits in their order: steps, failures in a row, active time, elapsed time, loop.
///
/// `now` is asked for only when the run has an elapsed-time limit, so that a counted clock stays counted.
pub fn exceeded<S: AsRef<Step>>(run: &Run, steps: &[S], now: impl FnOnce() -> UnixNanos) -> Option<Exceeded> {
    let limits = &run.limits;
    let plain = |reason, detail| Some(Exceeded { reason, detail, repeated: None });
    if run.step_count >= limits.max_steps {
        return plain(Reason::LimitSteps, format!("step limit {} reached", limits.max_steps));
    }
    let failures = consecutive_failures(steps);
    if failures >= limits.max_consecutive_tool_failures {
        return plain(Reason::RepeatedToolFailures, format!("{failures} consecutive failed steps"));
    }
    if limits.max_active_time > 0 && run.active_ms.saturating_mul(1_000_000) >= limits.max_active_time {
        let detail = format!("active time {} ms reached the limit", run.active_ms);
        return plain(Reason::LimitActiveTime, detail);
    }
    if limits.max_elapsed_time > 0
        && now().as_nanos().saturating_sub(run.created_at.as_nanos()) >= limits.max_elapsed_time
    {
        return plain(Reason::LimitElapsedTime, "elapsed time reached the limit".to_owned());
    }
    let repeated = repeated_outcome(steps)?;
    if repeated.times < limits.loop_threshold {
        return None;
    }
    let detail = format!("{} produced the same observation {} times in a row", repeated.tool, repeated.times);
    Some(Exceeded { reason: Reason::LoopDetected, detail, repeated: Some(repeated) })
}

/// Steps at the end that failed; one without an observation breaks the streak.
pub fn consecutive_failures<S: AsRef<Step>>(steps: &[S]) -> i64 {
    let failed = |step: &&S| step.as_ref().observation.as_ref().is_some_and(|o| o.is_failure());
    i64::try_from(steps.iter().rev().take_while(failed).count()).unwrap_or(i64::MAX)
}

/// Tool calls at the end that share tool, canonical arguments and observation. `None` when the last step takes no part.
pub fn repeated_outcome<S: AsRef<Step>>(steps: &[S]) -> Option<Repeated> {
    let mut signatures = steps.iter().rev().map_while(|step| signature(step.as_ref()));
    let first = signatures.next()?;
    let same = signatures.take_while(|other| *other == first).count();
    let (tool, args_hash, observation_hash) = first;
    let times = i64::try_from(same).unwrap_or(i64::MAX - 1) + 1;
    Some(Repeated { times, tool, args_hash, observation_hash })
}

fn signature(step: &Step) -> Option<(String, String, String)> {
    let tool = step.tool()?;
    let observation = step.observation.as_ref()?;
    if observation.kind == ObservationKind::InvalidDecision {
        return None;
    }
    let args = step.decision.as_ref()?.args_or_empty();
    Some((tool.to_owned(), hash::content_hash_of(args.as_str()), observation.content_hash.clone()))
}

#[cfg(test)]
mod tests;
