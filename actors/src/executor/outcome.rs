//! What a call's end is in the record: an observation, and how it ended as a type beside it.
//!
//! Owns the runtime's text forms of failures. Nothing reads them back.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use holdpoint_core::attempt::Ending;
use holdpoint_core::json::{Json, is_absent};
use holdpoint_core::step::{Observation, ObservationKind};

use super::{ToolFailure, ToolOutput};

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallEnd {
    /// What is recorded.
    pub observation: Observation,
    /// How it ended.
    pub ending: Ending,
    /// Why the run is to end, when the tool asked for that.
    pub abort: Option<String>,
}

impl CallEnd {
    /// The end of a call of the tool `name`.
    pub fn of(name: &str, answer: Result<ToolOutput, ToolFailure>) -> CallEnd {
        match answer {
            Ok(output) => answered(name, output),
            Err(ToolFailure::Failed(text)) => failed(name, &text, "error", Ending::KnownFailure),
            Err(ToolFailure::NoAnswer(text)) => failed(name, &text, "error", Ending::NoAnswer),
            Err(ToolFailure::NotSent(text)) => failed(name, &text, "error", Ending::NotSent),
            Err(ToolFailure::TimedOut(text)) => failed(name, &text, "timeout", Ending::TimedOut),
            Err(ToolFailure::Unrecordable { reason, raw }) => unrecordable(name, &reason, &raw),
            Err(ToolFailure::Abort(detail)) => {
                let fields = [("tool", name), ("error", &detail), ("failure", "abort")];
                let summary = format!("{name} aborted the run: {detail}");
                CallEnd {
                    observation: Observation::of_fields(ObservationKind::ToolError, &fields, summary),
                    ending: Ending::KnownFailure,
                    abort: Some(detail),
                }
            }
        }
    }

    /// The end of a call whose tool panicked: what it had done by then nobody knows.
    pub fn of_panic(name: &str, text: &str) -> CallEnd {
        let error = format!("panic: {text}");
        let fields = [("tool", name), ("error", &error)];
        let observation =
            Observation::of_fields(ObservationKind::ToolError, &fields, format!("{name} panicked"));
        CallEnd { observation, ending: Ending::NoAnswer, abort: None }
    }
}

fn answered(name: &str, output: ToolOutput) -> CallEnd {
    let content =
        if is_absent(&output.content) { Ok(Json::empty_object()) } else { Json::checked(&output.content) };
    match content {
        Ok(content) => CallEnd {
            observation: Observation::new(ObservationKind::ToolResult, content, output.summary),
            ending: Ending::Answered,
            abort: None,
        },
        Err(reason) => unrecordable(name, &reason.to_string(), &output.content),
    }
}

fn failed(name: &str, text: &str, failure: &str, ending: Ending) -> CallEnd {
    let fields = [("tool", name), ("error", text), ("failure", failure)];
    let summary = format!("{name} {failure}: {text}");
    CallEnd {
        observation: Observation::of_fields(ObservationKind::ToolError, &fields, summary),
        ending,
        abort: None,
    }
}

/// The effect happened and its record must survive: the bytes are kept as text beside the reason.
fn unrecordable(name: &str, reason: &str, raw: &[u8]) -> CallEnd {
    let error = format!("content is not usable JSON: {reason}");
    let encoded;
    let (key, kept) = match std::str::from_utf8(raw) {
        Ok(text) => ("content", text),
        Err(_) => {
            encoded = STANDARD.encode(raw);
            ("content_base64", encoded.as_str())
        }
    };
    let fields = [("tool", name), ("error", &error), ("failure", "invalid_content"), (key, kept)];
    let summary = format!("{name} returned {error}");
    CallEnd {
        observation: Observation::of_fields(ObservationKind::ToolError, &fields, summary),
        ending: Ending::Unrecordable,
        abort: None,
    }
}
