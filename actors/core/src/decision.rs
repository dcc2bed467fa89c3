//! Decisions: what whoever decides asks for, as it came and as it is recorded.
//!
//! Owns the line between the two: a bad decision is kept verbatim and never looks like a good one. Never judges
//! arguments by a tool's schema: that needs the tool.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::json::{Json, ObjectWriter, is_absent};

/// Who proposed a step. Recorded; no behaviour hangs on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A model.
    Model,
    /// A promoted plan.
    Plan,
    /// A person, or the operator's configuration.
    Operator,
}

impl Origin {
    /// The stored name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Origin::Model => "model",
            Origin::Plan => "plan",
            Origin::Operator => "operator",
        }
    }

    fn parse(text: &str) -> Option<Origin> {
        [Origin::Model, Origin::Plan, Origin::Operator].into_iter().find(|origin| origin.as_str() == text)
    }
}

/// What whoever decides asks for, before anything is checked. Raw bytes: a bad decision is recorded as it came.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Proposal {
    /// `tool_call`, `complete`, `fail`, or anything else, which makes it invalid.
    pub kind: String,
    /// The tool of a tool call.
    pub tool: String,
    /// The arguments as they came.
    pub args: Vec<u8>,
    /// The stated rationale.
    pub reason: String,
    /// The result of a completion, as it came.
    pub result: Vec<u8>,
    /// The message of a failure.
    pub message: String,
    /// Who proposes it; a name outside [`Origin`] makes it invalid.
    pub origin: String,
}

impl Proposal {
    /// A call of `tool` with `args`.
    pub fn tool_call(tool: impl Into<String>, args: impl Into<Vec<u8>>) -> Proposal {
        Proposal { kind: "tool_call".to_owned(), tool: tool.into(), args: args.into(), ..Proposal::default() }
    }

    /// The goal is reached, with `result` or nothing.
    pub fn complete(result: impl Into<Vec<u8>>) -> Proposal {
        Proposal { kind: "complete".to_owned(), result: result.into(), ..Proposal::default() }
    }

    /// The goal cannot be reached.
    pub fn fail(message: impl Into<String>) -> Proposal {
        Proposal { kind: "fail".to_owned(), message: message.into(), ..Proposal::default() }
    }

    /// The same proposal, made by `origin`.
    #[must_use]
    pub fn from_origin(mut self, origin: Origin) -> Proposal {
        origin.as_str().clone_into(&mut self.origin);
        self
    }

    /// The decision as it is recorded: usable JSON in its place, anything else verbatim beside it.
    pub fn recorded(&self) -> Decision {
        let usable = |raw: &[u8]| -> Result<Option<Json>, ()> {
            if is_absent(raw) {
                return Ok(None);
            }
            Json::checked(raw).map(Some).map_err(|_| ())
        };
        let (args, result) = (usable(&self.args), usable(&self.result));
        let not_utf8 = |checked: &Result<Option<Json>, ()>, raw: &[u8]| {
            checked.is_err() && std::str::from_utf8(raw).is_err()
        };
        let base64 = not_utf8(&args, &self.args) || not_utf8(&result, &self.result);
        let keep = |raw: &[u8]| {
            if base64 { STANDARD.encode(raw) } else { String::from_utf8_lossy(raw).into_owned() }
        };
        Decision {
            kind: self.kind.clone(),
            tool: self.tool.clone(),
            reason: self.reason.clone(),
            message: self.message.clone(),
            origin: self.origin.clone(),
            invalid_args: if args.is_err() { keep(&self.args) } else { String::new() },
            invalid_result: if result.is_err() { keep(&self.result) } else { String::new() },
            invalid_base64: base64,
            args: args.unwrap_or(None),
            result: result.unwrap_or(None),
        }
    }

    /// What the proposal asks for, or why it is invalid. Arguments are checked against the tool's schema elsewhere.
    pub fn validate(&self) -> Result<Ask, String> {
        if !self.origin.is_empty() && Origin::parse(&self.origin).is_none() {
            return Err(format!("unknown decision origin {:?}", self.origin));
        }
        match self.kind.as_str() {
            "complete" if is_absent(&self.result) => Ok(Ask::Complete { result: None }),
            "complete" => Json::checked(&self.result)
                .map(|result| Ask::Complete { result: Some(result) })
                .map_err(|e| format!("result is not usable JSON: {e}")),
            "fail" => Ok(Ask::Fail { message: self.message.clone() }),
            "tool_call" if self.tool.is_empty() => Err("tool_call without a tool name".to_owned()),
            "tool_call" => Ok(Ask::ToolCall { tool: self.tool.clone() }),
            "" => Err("decision has no kind".to_owned()),
            "truncated" => Err("the reply was cut off by the output cap before a tool call".to_owned()),
            "no_tool_call" => Err("the reply contained no tool call".to_owned()),
            other => Err(format!("unknown decision kind {other:?}")),
        }
    }
}

/// A valid proposal, by what follows from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// Call a tool.
    ToolCall {
        /// Its name.
        tool: String,
    },
    /// End the run well.
    Complete {
        /// With this result.
        result: Option<Json>,
    },
    /// End the run badly.
    Fail {
        /// With this message.
        message: String,
    },
}

/// A decision as recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    /// What was asked for.
    pub kind: String,
    /// The tool of a tool call.
    pub tool: String,
    /// The arguments, when they were usable JSON.
    pub args: Option<Json>,
    /// The stated rationale.
    pub reason: String,
    /// The result, when it was usable JSON.
    pub result: Option<Json>,
    /// The message of a failure.
    pub message: String,
    /// Who proposed it.
    pub origin: String,
    /// Arguments that were not usable JSON, verbatim.
    pub invalid_args: String,
    /// A result that was not usable JSON, verbatim.
    pub invalid_result: String,
    /// Whether the two above are base64, because one of them was not UTF-8.
    pub invalid_base64: bool,
}

impl Decision {
    /// Whether it asks for a tool.
    pub fn is_tool_call(&self) -> bool {
        self.kind == "tool_call"
    }

    /// The decision as reading it back from the store gives it.
    #[must_use]
    pub fn stored(self) -> Decision {
        let stored = |json: Option<Json>| json.filter(|json| !json.is_blank()).map(|json| json.stored());
        Decision { args: stored(self.args), result: stored(self.result), ..self }
    }

    /// The arguments, `{}` when there were none.
    pub fn args_or_empty(&self) -> Json {
        self.args.clone().unwrap_or_else(Json::empty_object)
    }

    /// The stored form.
    pub fn to_json(&self) -> String {
        let mut w = ObjectWriter::new();
        w.str("kind", &self.kind);
        w.omit_empty_str("tool", &self.tool);
        w.omit_empty_raw("args", self.args.as_ref().map_or("", Json::as_str));
        w.omit_empty_str("reason", &self.reason);
        w.omit_empty_raw("result", self.result.as_ref().map_or("", Json::as_str));
        w.omit_empty_str("message", &self.message);
        w.omit_empty_str("origin", &self.origin);
        w.omit_empty_str("invalid_args", &self.invalid_args);
        w.omit_empty_str("invalid_result", &self.invalid_result);
        if self.invalid_base64 {
            w.bool("invalid_base64", true);
        }
        w.finish()
    }

    /// Reads a stored decision.
    pub fn parse(text: &str) -> Result<Decision, String> {
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Text<'a> {
            kind: String,
            tool: String,
            #[serde(borrow)]
            args: Option<&'a RawValue>,
            reason: String,
            #[serde(borrow)]
            result: Option<&'a RawValue>,
            message: String,
            origin: String,
            invalid_args: String,
            invalid_result: String,
            invalid_base64: bool,
        }
        let raw: Text<'_> = serde_json::from_str(text).map_err(|e| e.to_string())?;
        Ok(Decision {
            kind: raw.kind,
            tool: raw.tool,
            args: raw.args.map(|args| Json::trusted(args.get())),
            reason: raw.reason,
            result: raw.result.map(|result| Json::trusted(result.get())),
            message: raw.message,
            origin: raw.origin,
            invalid_args: raw.invalid_args,
            invalid_result: raw.invalid_result,
            invalid_base64: raw.invalid_base64,
        })
    }
}

#[cfg(test)]
mod tests;
