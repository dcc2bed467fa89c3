//! The answers: everything that a model can be told except a tool's own result.
//!
//! Owns the thirteen prefixes, what each answer conveys, and its form as a `tools/call` result. No answer names a
//! command, a path or a run: a model must not be handed the way to approve its own request. Text that somebody else
//! chose (a server, an operator, the model itself) is made printable and cut before it stands in a sentence; a result
//! is data and goes back as it was recorded.

use std::time::Duration;

use holdpoint_core::attempt::Ended;
use holdpoint_core::duration::format_go_duration;
use holdpoint_core::ids::ApprovalId;
use holdpoint_core::json::Json;
use holdpoint_core::sanitize::{sanitize, truncate};
use holdpoint_core::step::{Observation, ObservationKind};
use holdpoint_core::time::UnixNanos;

/// The most bytes of a reason, an error or a note in a sentence.
pub const REASON_BYTES_MAX: usize = 500;
/// The most bytes of why arguments are invalid: a model needs them to do better.
pub const INVALID_BYTES_MAX: usize = 1000;
/// The most bytes of a server's text in a sentence: the cap on a recorded result.
pub const QUOTED_BYTES_MAX: usize = 64 * 1024;

/// The sentence part of an answer that says what became of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// A person must decide first.
    PendingApproval {
        /// The approval.
        approval: ApprovalId,
    },
    /// The same request is being executed, or nothing can be said yet.
    InProgress,
    /// An earlier attempt was cut off, and a person decides.
    Interrupted {
        /// The approval.
        approval: ApprovalId,
    },
    /// An attempt may have taken effect.
    UnknownOutcome {
        /// How it ended.
        ended: Ended,
        /// What was recorded, when it is this call that ended so.
        error: Option<String>,
        /// The approval that asks about it, when one could be opened.
        approval: Option<ApprovalId>,
    },
    /// The server answered, and the answer can't be recorded.
    Unrecorded {
        /// Why.
        reason: String,
        /// How long identical calls are refused.
        window: Duration,
    },
    /// The policy refuses it.
    Denied {
        /// Why.
        reason: String,
    },
    /// Its arguments are unusable.
    Invalid {
        /// Why.
        reason: String,
    },
    /// A person rejected it.
    Rejected {
        /// The approval.
        approval: ApprovalId,
        /// Their note.
        note: String,
        /// Until when identical requests are refused.
        until: UnixNanos,
        /// What had come of it by then.
        came_to: Executed,
    },
    /// A person cancelled it.
    Cancelled {
        /// Their note.
        note: String,
        /// Until when identical requests are refused.
        until: UnixNanos,
        /// What had come of it by then, or did later.
        came_to: Executed,
    },
    /// Its approval ran out.
    Expired {
        /// The approval, when it is known.
        approval: Option<ApprovalId>,
        /// Until when identical requests are refused.
        until: UnixNanos,
    },
    /// It has been executed.
    Duplicate {
        /// When.
        at: UnixNanos,
        /// How long identical calls are refused.
        window: Duration,
        /// What came of it.
        outcome: String,
    },
    /// Another call's outcome is unknown.
    BlockedByUnknown {
        /// The tool.
        tool: String,
        /// The approval that asks about it.
        approval: ApprovalId,
    },
    /// As many approvals wait as the session allows.
    BlockedByCap {
        /// How many.
        max: usize,
    },
    /// The gate could not do its work.
    Unavailable(Unavailable),
    /// The status tool's report.
    GateStatus(String),
}

/// Whether a request that a person refused had been executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Executed {
    /// It was not.
    No,
    /// Nobody can say.
    Perhaps,
    /// It was, and this came of it.
    Yes(String),
}

/// What the gate could not do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unavailable {
    /// Read its records.
    Records,
    /// Write a request down.
    Record,
    /// Start a request.
    Start,
    /// Collect an approved request.
    Collect,
    /// Recover an earlier attempt.
    Recover,
    /// Ask a person about an unknown outcome.
    Ask,
    /// Offer any tool: a server could not be loaded.
    NoTools,
    /// Take on one more call.
    Busy,
    /// Send the call: it is known not to have left.
    NotSent,
    /// Find out what was recorded. The only one after which something may have been executed.
    Outcome,
    /// Read its records for a report.
    Status,
}

impl Unavailable {
    const fn sentence(self) -> &'static str {
        match self {
            Unavailable::Records => "the gate can't read its records, so nothing was executed",
            Unavailable::Record => "the gate can't write this request down, so nothing was executed",
            Unavailable::Start => "the gate can't start this request, so nothing was executed",
            Unavailable::Collect => "the gate can't collect the approved request, so nothing was executed",
            Unavailable::Recover => {
                "the gate can't clear up an earlier attempt of this tool, so nothing new was executed"
            }
            Unavailable::Ask => {
                "an earlier call of this tool may have taken effect and the gate can't ask an operator about it, so \
                 nothing was executed"
            }
            Unavailable::NoTools => {
                "no tools can be offered, because a server could not be loaded; the operator has been told why, and \
                 nothing was executed"
            }
            Unavailable::Busy => "the gate has more calls than it can handle, so nothing was executed",
            Unavailable::NotSent => "the server could not be given this call, so nothing was executed",
            Unavailable::Outcome => {
                "the gate can't tell what came of this call; it may have been executed. Ask for it again with \
                 exactly the same arguments to find out"
            }
            Unavailable::Status => {
                "the gate can't read its records, so it can't report; nothing was executed"
            }
        }
    }
}

const WAIT: &str = "Leave this tool alone until you are told of the operator's decision, and don't reach for another \
                    tool to get the same thing done. Tell the user. Once you are told that it was approved, call this \
                    tool again with exactly the same arguments.";

impl Answer {
    /// The prefix, by which hosts and tests tell answers apart.
    pub const fn prefix(&self) -> &'static str {
        match self {
            Answer::PendingApproval { .. } => "PENDING_APPROVAL",
            Answer::InProgress => "IN_PROGRESS",
            Answer::Interrupted { .. } => "INTERRUPTED",
            Answer::UnknownOutcome { .. } => "UNKNOWN_OUTCOME",
            Answer::Unrecorded { .. } => "UNRECORDED",
            Answer::Denied { .. } => "DENIED",
            Answer::Invalid { .. } => "INVALID",
            Answer::Rejected { .. } | Answer::Cancelled { .. } => "REJECTED",
            Answer::Expired { .. } => "EXPIRED",
            Answer::Duplicate { .. } => "DUPLICATE",
            Answer::BlockedByUnknown { .. } | Answer::BlockedByCap { .. } => "BLOCKED",
            Answer::Unavailable(_) => "UNAVAILABLE",
            Answer::GateStatus(_) => "GATE_STATUS",
        }
    }

    /// Whether a host is told that the call failed.
    pub const fn is_error(&self) -> bool {
        match self {
            Answer::PendingApproval { .. }
            | Answer::InProgress
            | Answer::Interrupted { .. }
            | Answer::UnknownOutcome { .. }
            | Answer::Unrecorded { .. }
            | Answer::GateStatus(_) => false,
            Answer::Denied { .. }
            | Answer::Invalid { .. }
            | Answer::Rejected { .. }
            | Answer::Cancelled { .. }
            | Answer::Expired { .. }
            | Answer::Duplicate { .. }
            | Answer::BlockedByUnknown { .. }
            | Answer::BlockedByCap { .. }
            | Answer::Unavailable(_) => true,
        }
    }

    /// The whole text, the prefix first.
    pub fn text(&self) -> String {
        format!("{}: {}", self.prefix(), self.sentences())
    }

    /// Longer than other functions: the words of all answers are read beside each other.
    fn sentences(&self) -> String {
        match self {
            Answer::PendingApproval { approval } => format!(
                "an operator has to approve this request first (approval {approval}). Nothing has been executed. Don't \
                 call this tool again before you are told that the request was approved, don't try to get the same \
                 thing done with another tool, and don't ask the user for the approval: it is given elsewhere, by the \
                 operator. Tell the user that the request is waiting. When it has been approved, call this tool again \
                 with exactly the same arguments; that runs it and gives you the result."
            ),
            Answer::InProgress => "the same request is being executed right now, or what came of an attempt at it \
                is not known yet. Nothing new was started. Give it a moment, then call this tool again with exactly \
                the same arguments to learn the outcome."
                .to_owned(),
            Answer::Interrupted { approval } => format!(
                "an earlier attempt at exactly this request was cut off, and its outcome is unknown: it may have taken \
                 effect. An operator has to decide whether it runs once more (approval {approval}). Nothing further \
                 has been executed. {WAIT}"
            ),
            Answer::UnknownOutcome { ended, error, approval } => unknown(*ended, error.as_deref(), approval.as_ref()),
            Answer::Unrecorded { reason, window } => {
                let refused = if window.is_zero() {
                    String::new()
                } else {
                    format!(" The same call within {} is refused as a duplicate.", duration(*window))
                };
                format!(
                    "the server answered this request, so it was executed, but the answer could not be recorded \
                     ({}). What it did is not known here; it may have taken effect. Don't call this tool again to \
                     retry it.{refused} Tell the user.",
                    clean(reason, REASON_BYTES_MAX)
                )
            }
            Answer::Denied { reason } => format!(
                "the operator's policy refuses this request: {}. Nothing was executed.",
                clean(reason, REASON_BYTES_MAX)
            ),
            Answer::Invalid { reason } => format!(
                "these arguments don't fit the tool's input schema: {}. Nothing was executed. Correct them and call \
                 the tool again.",
                clean(reason, INVALID_BYTES_MAX)
            ),
            Answer::Rejected { approval, note, until, came_to } => format!(
                "an operator said no to exactly this request (approval {approval}).{}{}",
                noted(note),
                refused(*until, came_to)
            ),
            Answer::Cancelled { note, until, came_to } => format!(
                "an operator cancelled exactly this request.{}{}",
                noted(note),
                refused(*until, came_to)
            ),
            Answer::Expired { approval, until } => {
                let which = approval.as_ref().map_or(String::new(), |id| format!(" (approval {id})"));
                format!(
                    "the approval for exactly this request{which} ran out before it was used. The request was not \
                     executed. {}",
                    refused_until(*until, "; tell the user")
                )
            }
            Answer::Duplicate { at, window, outcome } => format!(
                "exactly this request was executed at {} and is not executed again. Identical calls of this tool \
                 within {} are refused, whether they are retries or meant anew. What came of it: {outcome}",
                at.to_rfc3339_seconds(),
                duration(*window)
            ),
            Answer::BlockedByUnknown { tool, approval } => format!(
                "an earlier call of {tool} may have taken effect and its outcome is unknown (approval {approval}). \
                 Until an operator has decided about it, no other call of {tool} that changes anything runs. Nothing \
                 was executed. Tell the user."
            ),
            Answer::BlockedByCap { max } => format!(
                "{max} requests wait for an operator's approval already, as many as this session may have. Nothing was \
                 executed, and no approval was asked for. Tell the user, and wait until the waiting requests have been \
                 decided."
            ),
            Answer::Unavailable(what) => format!("{}. Tell the user.", what.sentence()),
            Answer::GateStatus(report) => report.clone(),
        }
    }

    /// The answer as the result of `tools/call`.
    pub fn to_result(&self) -> String {
        text_result(&self.text(), self.is_error())
    }
}

fn unknown(ended: Ended, error: Option<&str>, approval: Option<&ApprovalId>) -> String {
    let error = error.filter(|text| !text.is_empty());
    let quoted = error.map_or(String::new(), |text| format!(" ({})", clean(text, REASON_BYTES_MAX)));
    let next = match approval {
        Some(id) => format!("An operator has to decide whether it runs once more (approval {id})."),
        None => {
            "The same call, made again, does not run before an operator has agreed that it runs once more."
                .to_owned()
        }
    };
    format!(
        "an attempt at exactly this request {}{quoted}, so nobody can say whether it took effect: it may have. {next} \
         Nothing further has been executed. {WAIT}",
        ended.clause()
    )
}

fn refused(until: UnixNanos, came_to: &Executed) -> String {
    let until = refused_until(until, "; don't ask for it again, and tell the user");
    match came_to {
        Executed::No => format!(" It was not executed. {until}"),
        Executed::Perhaps => format!(
            " Nobody can say whether an attempt at it was executed: it may have been. Nothing further was executed. \
             {until}"
        ),
        Executed::Yes(outcome) => format!(
            " It was executed all the same, and is not executed again. {until} What came of it: {outcome}"
        ),
    }
}

fn refused_until(until: UnixNanos, then: &str) -> String {
    format!("The same request is refused until {}{then}.", until.to_rfc3339_seconds())
}

fn noted(note: &str) -> String {
    if note.trim().is_empty() {
        return String::new();
    }
    format!(" The operator noted: {}.", quoted(note, REASON_BYTES_MAX))
}

/// Text that somebody else chose, fit to stand in a sentence.
pub fn clean(text: &str, max_bytes: usize) -> String {
    truncate(&sanitize(text), max_bytes).into_owned()
}

/// As [`clean`], in quotes that the text can't leave.
pub fn quoted(text: &str, max_bytes: usize) -> String {
    format!("\"{}\"", clean(text, max_bytes).replace('\\', "\\\\").replace('"', "\\\""))
}

/// A duration as the configuration writes it.
pub fn duration(span: Duration) -> String {
    format_go_duration(span.into())
}

/// The result of `tools/call` that a recorded observation stands for, given back as data; `None` when the observation
/// is none of a call's.
pub fn of_observation(observation: &Observation) -> Option<String> {
    match observation.kind {
        ObservationKind::ToolResult => Some(success(&observation.content)),
        ObservationKind::ToolError => {
            Some(text_result(&clean(&error_text(observation), QUOTED_BYTES_MAX), true))
        }
        ObservationKind::PolicyDenied | ObservationKind::InvalidDecision | ObservationKind::Interrupted => {
            None
        }
    }
}

/// What came of a call that executed, for an answer that repeats it.
pub fn recorded_outcome(observation: &Observation) -> String {
    if observation.kind == ObservationKind::ToolResult {
        return format!(
            "it succeeded and gave this result: {}",
            clean(&result_text(&observation.content), QUOTED_BYTES_MAX)
        );
    }
    let error = error_text(observation);
    if observation.field("failure").as_deref() == Some("invalid_content") {
        return format!(
            "the server answered, but the answer could not be recorded: {}",
            clean(&error, REASON_BYTES_MAX)
        );
    }
    format!("it failed with this error: {}", clean(&error, QUOTED_BYTES_MAX))
}

/// The error that a failed observation records, or its whole content.
pub fn error_text(observation: &Observation) -> String {
    observation
        .field("error")
        .filter(|text| !text.is_empty())
        .unwrap_or_else(|| observation.content.as_str().to_owned())
}

/// A recorded result as text: a string's contents, anything else as its JSON.
fn result_text(content: &Json) -> String {
    content.decode::<String>().unwrap_or_else(|_| content.as_str().to_owned())
}

fn success(content: &Json) -> String {
    let text = text_content(&result_text(content));
    if content.as_str().trim_ascii_start().starts_with('{') {
        format!(r#"{{"content":[{text}],"structuredContent":{content}}}"#)
    } else {
        format!(r#"{{"content":[{text}]}}"#)
    }
}

fn text_result(text: &str, is_error: bool) -> String {
    let content = text_content(text);
    if is_error {
        format!(r#"{{"content":[{content}],"isError":true}}"#)
    } else {
        format!(r#"{{"content":[{content}]}}"#)
    }
}

fn text_content(text: &str) -> String {
    format!(r#"{{"type":"text","text":{}}}"#, serde_json::Value::from(text))
}

#[cfg(test)]
mod tests;
