//! What goes out and what comes back in one call of a server's tool.
//!
//! Owns the arguments as they are sent ([`prepare_arguments`]) and the mapping of a result to what is recorded
//! ([`map_result`], [`capped`]). The texts that errors are recorded as are the reference's to the byte where it
//! reads them back: it tells by them whether an attempt's outcome is known. Holdpoint itself never does; it keeps
//! the variant. Nothing here is sent, timed or sanitised, except where a text says so.

mod cap;
#[cfg(test)]
mod tests;

use thiserror::Error;

use super::canonical::canonical;
use super::load::LoadedTool;
use super::scan;
use crate::json::Json;
use crate::sanitize::sanitize;

pub use cap::{Capped, LEAST_CAP, TRUNCATION_MARKER, capped};

/// The bound of one result's recorded content, in bytes, unless a server has its own.
pub const DEFAULT_MAX_CONTENT_BYTES: usize = 65_536;

/// Stands for structured content that was too large, when the server sent no text beside it.
pub const STRUCTURED_DROPPED: &str = "[structured content dropped: too large]";

/// Why a call is not sent. The text is what is recorded.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refused {
    /// The arguments are something else than an object.
    #[error("{tool}: arguments are not a JSON object")]
    NotAnObject {
        /// The tool, as it is offered.
        tool: String,
    },
    /// The call carries a parameter that the operator denies.
    #[error("{tool}: parameter {parameter:?} is denied by the operator")]
    Denied {
        /// The tool, as it is offered.
        tool: String,
        /// The parameter.
        parameter: String,
    },
    /// The call carries a parameter that the operator sets. It isn't overridden: the approval would show one value
    /// and the server get another.
    #[error("{tool}: parameter {parameter:?} is fixed by the operator")]
    Fixed {
        /// The tool, as it is offered.
        tool: String,
        /// The parameter.
        parameter: String,
    },
}

/// Gives the arguments as they are sent: the caller's members as they were written, then the operator's by name.
///
/// A blank text and `null` count as `{}`. White space between tokens is left out, so that the result is one line.
///
/// # Errors
/// [`Refused`], and nothing was sent.
pub fn prepare_arguments(tool: &LoadedTool, args: &str) -> Result<String, Refused> {
    let name = || tool.spec.name.clone();
    let args = if crate::json::is_blank(args) || args.trim_ascii() == "null" { "{}" } else { args };
    let members = scan::members(args).map_err(|_| Refused::NotAnObject { tool: name() })?;
    let carries = |parameter: &&String| members.iter().any(|member| member.key == parameter.as_str());
    if let Some(parameter) = tool.deny.iter().find(carries) {
        return Err(Refused::Denied { tool: name(), parameter: parameter.clone() });
    }
    if let Some(parameter) = tool.fixed.keys().find(carries) {
        return Err(Refused::Fixed { tool: name(), parameter: parameter.clone() });
    }
    let mut sent = String::with_capacity(args.len());
    scan::push_compact(&mut sent, args).map_err(|_| Refused::NotAnObject { tool: name() })?;
    for (parameter, value) in &tool.fixed {
        // Before the closing brace, which compact text ends with.
        sent.pop();
        if sent.len() > 1 {
            sent.push(',');
        }
        sent.push_str(&super::canonical::json_string(parameter));
        sent.push(':');
        scan::push_compact(&mut sent, value.as_str()).map_err(|_| Refused::NotAnObject { tool: name() })?;
        sent.push('}');
    }
    Ok(sent)
}

/// What a server's result means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mapped {
    /// The tool answered.
    Answered {
        /// What is recorded. The boundary check may still refuse it: the call is then *answered but unrecordable*.
        content: Json,
        /// One line about it.
        summary: String,
    },
    /// The tool says that it failed. The outcome is known.
    ToolError {
        /// What is recorded; it holds the server's text as it came.
        text: String,
    },
    /// The server asks for more input, which is never given. Nothing was done, so it says.
    InputRequired {
        /// What is recorded.
        text: String,
    },
    /// The result isn't one: whether the tool succeeded can't be told from it. The outcome is not known.
    Malformed {
        /// What is recorded.
        text: String,
    },
}

/// Gives the text that is recorded when a call got no usable answer: a transport or protocol failure.
///
/// The cause may quote the server and is escaped here.
pub fn failure_text(server: &str, remote: &str, cause: &str) -> String {
    format!("mcp: server {server:?}: tool {remote:?}: {}", sanitize(cause))
}

/// Maps the result of a `tools/call`, from its bytes as text, to what is recorded of it.
///
/// `cap` bounds the recorded content in bytes, quotes, escapes and marker included; one below [`LEAST_CAP`] is raised
/// to it. Structured content is recorded if it fits, else the text blocks are, with a mark where they were cut.
pub fn map_result(tool: &LoadedTool, result: &str, cap: usize) -> Mapped {
    let malformed = |what: &str| Mapped::Malformed {
        text: failure_text(&tool.server, &tool.remote_name, &format!("the result is unusable: {what}")),
    };
    let Ok(members) = scan::members(result) else { return malformed("it is not an object") };
    if asks_for_input(&members) {
        let text = format!("{}: the server asked for more input, and none is given here", tool.spec.name);
        return Mapped::InputRequired { text };
    }
    let is_error = match scan::last(&members, "isError") {
        None | Some("null" | "false") => false,
        Some("true") => true,
        Some(_) => return malformed("isError is neither true nor false"),
    };
    let blocks = match scan::last(&members, "content") {
        None | Some("null") => Ok(Vec::new()),
        Some(content) => scan::items(content),
    };
    let Ok(blocks) = blocks else { return malformed("content is not a list") };
    let content = Content::of(scan::last(&members, "structuredContent"), &blocks, cap);
    let summary = content.summary(&tool.server, &tool.remote_name);
    if is_error {
        return Mapped::ToolError { text: format!("{summary}, error: {}", content.text) };
    }
    Mapped::Answered { content: Json::trusted(content.recorded), summary }
}

fn asks_for_input(members: &[scan::Member<'_>]) -> bool {
    let says_so =
        scan::last(members, "resultType").and_then(scan::text).is_some_and(|kind| kind == "input_required");
    let requests = scan::last(members, "inputRequests").and_then(|value| scan::members(value).ok());
    says_so || requests.is_some_and(|requests| !requests.is_empty())
}

/// A result's content, ready to be recorded.
struct Content {
    recorded: String,
    /// What an error says: the recorded content, not as JSON.
    text: String,
    truncated: bool,
    /// The length of structured content that was left out.
    dropped: Option<usize>,
}

impl Content {
    fn of(structured: Option<&str>, blocks: &[&str], cap: usize) -> Self {
        let structured = structured.filter(|value| *value != "null").map(structured_text);
        let dropped = match structured {
            Some(text) if text.len() <= cap => {
                return Self { recorded: text.clone(), text, truncated: false, dropped: None };
            }
            Some(text) => Some(text.len()),
            None => None,
        };
        let mut text = joined(blocks);
        if dropped.is_some() && text.is_empty() {
            STRUCTURED_DROPPED.clone_into(&mut text);
        }
        let Capped { json, text, truncated } = capped(text, cap);
        Self { recorded: json, text, truncated: truncated || dropped.is_some(), dropped }
    }

    fn summary(&self, server: &str, remote: &str) -> String {
        let truncated = if self.truncated { ", truncated" } else { "" };
        let dropped = self.dropped.map_or_else(String::new, |bytes| {
            format!(", structured content of {bytes} bytes dropped for the text")
        });
        format!("{server}/{remote}: {} bytes{truncated}{dropped}", self.recorded.len())
    }
}

/// Structured content as it is recorded: canonical, numbers exact.
///
/// What has no canonical form is recorded as it was sent, so that the boundary check refuses it by name: the server
/// did answer, and its text blocks must not pass for the answer.
fn structured_text(value: &str) -> String {
    canonical(value).unwrap_or_else(|_| {
        let mut sent = String::with_capacity(value.len());
        match scan::push_compact(&mut sent, value) {
            Ok(()) => sent,
            Err(_) => value.to_owned(),
        }
    })
}

/// Joins the text blocks by newlines; what is not text leaves a mark of its kind.
fn joined(blocks: &[&str]) -> String {
    let parts: Vec<String> = blocks.iter().map(|block| block_text(block)).collect();
    parts.join("\n")
}

fn block_text(block: &str) -> String {
    let members = scan::members(block).unwrap_or_default();
    let kind = scan::last(&members, "type").and_then(scan::text).unwrap_or_default();
    match kind.as_str() {
        "text" => scan::last(&members, "text").and_then(scan::text).unwrap_or_default(),
        "image" => "[image omitted]".to_owned(),
        "audio" => "[audio omitted]".to_owned(),
        "resource_link" => "[resource link omitted]".to_owned(),
        "resource" => "[embedded resource omitted]".to_owned(),
        _ => "[content omitted]".to_owned(),
    }
}
