//! Attempts: how a call ended, and what a finished run's last attempt came to.
//!
//! Owns the typed endings and the reading of a run's record. The text forms are written for the record and for the
//! model; nothing reads them back, except those of a record that another program wrote.

use std::fmt;

use serde::Deserialize;

use crate::approval::{self, Approval};
use crate::event::{Event, EventKind};
use crate::ids::{RunId, StepId};
use crate::json::{Json, ObjectWriter};
use crate::step::{Observation, ObservationKind, Step, StepStatus};
use crate::time::UnixNanos;
use crate::tool::SideEffect;

/// How a tool call that may have been sent ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ending {
    /// The tool answered with a result.
    Answered,
    /// The tool answered that it failed, or the call was refused before it was sent.
    KnownFailure,
    /// The time ran out before an answer.
    TimedOut,
    /// It was sent and no answer can be learnt.
    NoAnswer,
    /// The tool answered, and the answer can't be recorded.
    Unrecordable,
    /// It was recorded as started and is known never to have left.
    NotSent,
}

impl Ending {
    /// Every ending.
    pub const ALL: [Ending; 6] = [
        Ending::Answered,
        Ending::KnownFailure,
        Ending::TimedOut,
        Ending::NoAnswer,
        Ending::Unrecordable,
        Ending::NotSent,
    ];

    /// The stored name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Ending::Answered => "answered",
            Ending::KnownFailure => "known_failure",
            Ending::TimedOut => "timed_out",
            Ending::NoAnswer => "no_answer",
            Ending::Unrecordable => "unrecordable",
            Ending::NotSent => "not_sent",
        }
    }

    /// Reads a stored name.
    pub fn parse(text: &str) -> Option<Ending> {
        Ending::ALL.into_iter().find(|ending| ending.as_str() == text)
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a run's last attempt at its tool came to, as the proxy's index caches it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AttemptOutcome {
    /// Not looked at yet.
    Unseen,
    /// The tool never started.
    None,
    /// It is known.
    Known,
    /// It may or may not have happened.
    Unknown,
}

impl AttemptOutcome {
    /// The stored number.
    pub const fn code(self) -> i64 {
        match self {
            AttemptOutcome::Unseen => 0,
            AttemptOutcome::None => 1,
            AttemptOutcome::Known => 2,
            AttemptOutcome::Unknown => 3,
        }
    }

    /// Reads a stored number; one that nobody wrote is unseen, so that the run itself is read.
    pub const fn of_code(code: i64) -> AttemptOutcome {
        match code {
            1 => AttemptOutcome::None,
            2 => AttemptOutcome::Known,
            3 => AttemptOutcome::Unknown,
            _ => AttemptOutcome::Unseen,
        }
    }
}

/// How an attempt ended whose outcome is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ended {
    /// Its process went away before it was recorded.
    CutOff,
    /// Its time ran out.
    TimedOut,
    /// It failed without an answer from the server.
    NoAnswer,
}

impl Ended {
    /// The name in an approval's capability.
    pub const fn as_str(self) -> &'static str {
        match self {
            Ended::CutOff => "cut_off",
            Ended::TimedOut => "timed_out",
            Ended::NoAnswer => "no_answer",
        }
    }

    /// Reads a name.
    pub fn parse(text: &str) -> Option<Ended> {
        [Ended::CutOff, Ended::TimedOut, Ended::NoAnswer].into_iter().find(|ended| ended.as_str() == text)
    }

    /// The ending as a clause, for a person or a model.
    pub const fn clause(self) -> &'static str {
        match self {
            Ended::CutOff => "was cut off before anyone recorded its outcome",
            Ended::TimedOut => "timed out before the server answered",
            Ended::NoAnswer => "failed with no answer from the server",
        }
    }
}

/// An earlier attempt of a request whose outcome is unknown, as an interruption's approval names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// Its run.
    pub run_id: RunId,
    /// Its step.
    pub step_id: StepId,
    /// When its step started.
    pub started_at: UnixNanos,
    /// How it ended.
    pub ended: Ended,
}

impl Attempt {
    fn at(step: &Step, ended: Ended) -> Attempt {
        Attempt { run_id: step.run_id.clone(), step_id: step.id.clone(), started_at: step.started_at, ended }
    }

    /// Writes the members of the capability's `interrupted`.
    pub fn write(&self, w: &mut ObjectWriter) {
        w.str("run_id", self.run_id.as_str());
        w.str("step_id", self.step_id.as_str());
        w.str("started_at", &self.started_at.to_rfc3339());
        w.str("ended", self.ended.as_str());
    }

    /// The attempt that an interruption's capability names; `None` when it names none, or not as this program does.
    pub fn named_in(capability: &Json) -> Option<Attempt> {
        #[derive(Deserialize)]
        struct Capability {
            interrupted: Option<Text>,
        }
        #[derive(Deserialize)]
        struct Text {
            run_id: String,
            step_id: String,
            started_at: String,
            ended: String,
        }
        let text = capability.decode::<Capability>().ok()?.interrupted?;
        Some(Attempt {
            run_id: RunId::from(text.run_id),
            step_id: StepId::from(text.step_id),
            started_at: UnixNanos::parse(&text.started_at).ok()?,
            ended: Ended::parse(&text.ended)?,
        })
    }
}

/// A tool of an upstream server, as far as a record's texts name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upstream {
    /// The name that it is registered under.
    pub name: String,
    /// The server.
    pub server: String,
    /// The server's own name for it.
    pub remote: String,
    /// What it may do.
    pub class: SideEffect,
}

/// What a finished run's last attempt at its tool came to and, when that is unknown, the attempt to name.
///
/// `ending` looks up the typed ending of a step; `tool` a tool by its registered name, `None` when it is no longer
/// offered. A step that never executed (denied, invalid, never approved, cut off before its tool started, or known
/// never to have been sent) is passed over.
pub fn last_attempt<'t, S: AsRef<Step>, A: AsRef<Approval>>(
    steps: &[S],
    approvals: &[A],
    ending: impl Fn(&StepId) -> Option<Ending>,
    tool: impl Fn(&str) -> Option<&'t Upstream>,
) -> (AttemptOutcome, Option<Attempt>) {
    let unknown = |attempt| (AttemptOutcome::Unknown, Some(attempt));
    for step in steps.iter().rev().map(AsRef::as_ref) {
        if step.decode_error.is_some() {
            // Nothing tells what it did. One that never left `deciding` did nothing.
            match step.status {
                StepStatus::Deciding => continue,
                StepStatus::AwaitingApproval
                | StepStatus::Executing
                | StepStatus::Done
                | StepStatus::Failed
                | StepStatus::Interrupted => return unknown(Attempt::at(step, Ended::CutOff)),
            }
        }
        let Some(name) = step.tool() else { continue };
        match step.cut_off_while() {
            Some(StepStatus::Executing) => return unknown(Attempt::at(step, Ended::CutOff)),
            Some(
                StepStatus::Deciding
                | StepStatus::AwaitingApproval
                | StepStatus::Done
                | StepStatus::Failed
                | StepStatus::Interrupted,
            ) => continue,
            None => {}
        }
        match step.observation.as_ref().map(|o| came_to(o, ending(&step.id), tool(name))) {
            Some(CameTo::Known) => return (AttemptOutcome::Known, None),
            Some(CameTo::Unknown(ended)) => return unknown(Attempt::at(step, ended)),
            Some(CameTo::Nothing) | None => {}
        }
        if let Some(asked) = approval::latest_of(approvals, &step.id).filter(|a| a.is_interruption()) {
            let named = Attempt::named_in(&asked.capability);
            return unknown(named.unwrap_or_else(|| Attempt::at(step, Ended::CutOff)));
        }
    }
    (AttemptOutcome::None, None)
}

/// Whether a step is observed as interrupted, which by itself does not tell what became of its call: see
/// [`as_it_came_out`].
pub fn is_interrupted(step: &Step) -> bool {
    step.observation.as_ref().is_some_and(|o| o.kind == ObservationKind::Interrupted)
}

/// An interrupted step as its call came out, by the events of the step.
///
/// A person's cancellation says nothing about the call that it finds. What the tool returned later stands in its place,
/// and nothing does when the tool had not started. What nobody knows stays interrupted.
#[must_use]
pub fn as_it_came_out(mut step: Step, events: &[Event]) -> Step {
    let started = events.iter().any(|event| event.kind == EventKind::StepToolStarted.as_str());
    match events.iter().rev().find_map(Event::late_observation) {
        Some(late) => step.observation = Some(late),
        None if step.status == StepStatus::Failed && !started => step.observation = None,
        None => {}
    }
    step
}

/// The last step that executed, for an answer that quotes what came of it.
pub fn executed_step<S: AsRef<Step>>(steps: &[S]) -> Option<&Step> {
    steps.iter().rev().map(AsRef::as_ref).find(|step| {
        step.observation.as_ref().is_some_and(|o| match o.kind {
            ObservationKind::ToolResult | ObservationKind::ToolError => true,
            ObservationKind::PolicyDenied
            | ObservationKind::InvalidDecision
            | ObservationKind::Interrupted => false,
        })
    })
}

/// What one observed step came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CameTo {
    /// The tool did not run.
    Nothing,
    /// The outcome is known.
    Known,
    /// It is not.
    Unknown(Ended),
}

/// What an observed call of `tool` came to: by its typed ending, or by the text when another program recorded it.
pub fn came_to(observation: &Observation, ending: Option<Ending>, tool: Option<&Upstream>) -> CameTo {
    match observation.kind {
        ObservationKind::PolicyDenied | ObservationKind::InvalidDecision => CameTo::Nothing,
        ObservationKind::ToolResult => CameTo::Known,
        ObservationKind::Interrupted => CameTo::Unknown(Ended::CutOff),
        ObservationKind::ToolError => {
            let is_read = tool.is_some_and(|tool| tool.class.is_read());
            match ending {
                Some(Ending::NotSent) => CameTo::Nothing,
                Some(Ending::Answered | Ending::KnownFailure | Ending::Unrecordable) => CameTo::Known,
                // Nothing changed, so there is nothing to be in doubt about.
                Some(Ending::TimedOut | Ending::NoAnswer) if is_read => CameTo::Known,
                Some(Ending::TimedOut) => CameTo::Unknown(Ended::TimedOut),
                Some(Ending::NoAnswer) => CameTo::Unknown(Ended::NoAnswer),
                None => came_to_by_text(observation, tool),
            }
        }
    }
}

/// Judges a tool error that has no typed ending by the text forms that another program writes.
fn came_to_by_text(observation: &Observation, tool: Option<&Upstream>) -> CameTo {
    // No longer offered: nothing tells a server's answer from a lost one.
    let Some(tool) = tool else { return CameTo::Unknown(Ended::NoAnswer) };
    if tool.class.is_read() {
        return CameTo::Known;
    }
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Content {
        error: String,
        failure: String,
    }
    let Ok(content) = observation.content.decode::<Content>() else {
        return CameTo::Unknown(Ended::NoAnswer);
    };
    match content.failure.as_str() {
        "timeout" => CameTo::Unknown(Ended::TimedOut),
        "invalid_content" => CameTo::Known,
        _ if is_known_form(&content.error, tool) => CameTo::Known,
        _ => CameTo::Unknown(Ended::NoAnswer),
    }
}

/// Whether `error` is the record of a server's own failure, or of a refusal before anything was sent.
fn is_known_form(error: &str, tool: &Upstream) -> bool {
    let answered = || {
        let rest = error.strip_prefix(tool.server.as_str())?.strip_prefix('/')?;
        let rest = rest.strip_prefix(tool.remote.as_str())?.strip_prefix(": ")?;
        let rest = skip_digits(rest)?.strip_prefix(" bytes")?;
        let rest = rest.strip_prefix(", truncated").unwrap_or(rest);
        let dropped = rest
            .strip_prefix(", structured content of ")
            .and_then(skip_digits)
            .and_then(|rest| rest.strip_prefix(" bytes dropped for the text"));
        dropped.unwrap_or(rest).strip_prefix(", error: ")
    };
    let refused = || {
        let rest = error.strip_prefix(tool.name.as_str())?.strip_prefix(": ")?;
        let plain = ["arguments are not a JSON object", "the server asked for more input"]
            .iter()
            .any(|form| rest.starts_with(form));
        let hidden = rest.strip_prefix("parameter \"").is_some_and(|rest| {
            let line = rest.lines().next().unwrap_or_default();
            line.contains("\" is denied by the operator") || line.contains("\" is fixed by the operator")
        });
        (plain || hidden).then_some(())
    };
    answered().is_some() || refused().is_some()
}

fn skip_digits(text: &str) -> Option<&str> {
    let rest = text.trim_start_matches(|c: char| c.is_ascii_digit());
    (rest.len() < text.len()).then_some(rest)
}

#[cfg(test)]
mod tests;
