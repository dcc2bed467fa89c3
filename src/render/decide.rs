//! What a model's answer asks for.
//!
//! Owns the bounds of a recorded reason. Never runs anything: a reply that can't be acted on becomes a decision that the
//! gate finds invalid, which costs a step and tells the model.

use holdpoint_core::decision::Proposal;
use holdpoint_core::model::{ModelResponse, ToolUse};

/// The longest reason that is recorded of a model's text and of the note about what was not run, in bytes.
pub const REASON_BYTES_MAX: usize = 500;

/// The longest name of a tool in that note, in bytes: it is the model's, and nothing else bounds it.
pub const NAME_BYTES_MAX: usize = 64;

/// What marks a cut.
const MARK: &str = "…";

/// Why a model stopped, in the words that adapters map their provider's onto.
pub mod stop {
    /// It had said what it wanted to.
    pub const END_TURN: &str = "end_turn";
    /// It asks for a tool.
    pub const TOOL_USE: &str = "tool_use";
    /// It reached the cap on output.
    pub const MAX_TOKENS: &str = "max_tokens";
    /// It declined.
    pub const REFUSAL: &str = "refusal";
    /// The conversation no longer fits it.
    pub const CONTEXT_WINDOW_EXCEEDED: &str = "model_context_window_exceeded";
}

/// Maps an answer onto a decision.
///
/// - A refusal fails the run, because a model that declines will decline again, and so does a conversation that no longer
///   fits, because it only grows.
/// - A reply that was cut off is `truncated`, even one with a whole call in it, and a reply without a call is
///   `no_tool_call`. The gate finds both invalid, and [`Render`](super::Render) tells the model so.
/// - Otherwise the first call is the decision. The recorded reason names those that were not run.
pub fn decide(response: &ModelResponse) -> Proposal {
    match response.stop_reason.as_str() {
        stop::REFUSAL => return Proposal::fail("the model declined to go on (refusal)"),
        stop::CONTEXT_WINDOW_EXCEEDED => {
            let why = "the conversation no longer fits the model's context window";
            return Proposal::fail(format!("{why} ({})", stop::CONTEXT_WINDOW_EXCEEDED));
        }
        stop::MAX_TOKENS => {
            let reason = "the reply reached the cap on output, so its tool call was not run".to_owned();
            return Proposal { kind: "truncated".to_owned(), reason, ..Proposal::default() };
        }
        _ => {}
    }
    let text = response.text.trim();
    let Some((first, others)) = response.tool_uses.split_first() else {
        let reason = truncate(text, REASON_BYTES_MAX);
        return Proposal { kind: "no_tool_call".to_owned(), reason, ..Proposal::default() };
    };
    let args = if first.args.is_blank() { "{}" } else { first.args.as_str() };
    Proposal { reason: reason(text, others), ..Proposal::tool_call(&first.name, args) }
}

/// The note is bounded first and the text gets what is left, so that a long text never hides what was not run.
fn reason(text: &str, not_run: &[ToolUse]) -> String {
    if not_run.is_empty() {
        return truncate(text, REASON_BYTES_MAX);
    }
    let gap = if text.is_empty() { "" } else { " " };
    let note = format!("{gap}{}", note(not_run));
    truncate(text, REASON_BYTES_MAX.saturating_sub(note.len())) + &note
}

/// Names the calls that were not run, in half of a reason at most; those that don't fit are left out behind a mark.
fn note(not_run: &[ToolUse]) -> String {
    let mut note = format!("[{} further tool call(s) not executed: ", not_run.len());
    let names_end = REASON_BYTES_MAX / 2 - ", …]".len();
    for (at, tool_use) in not_run.iter().enumerate() {
        let separator = if at == 0 { "" } else { ", " };
        let name = truncate(&tool_use.name, NAME_BYTES_MAX);
        note.push_str(separator);
        if note.len() + name.len() > names_end {
            note.push_str(MARK);
            break;
        }
        note.push_str(&name);
    }
    note.push(']');
    note
}

/// Shortens `text` to `bytes_max` bytes at most, the mark of the cut among them, without splitting a character.
///
/// A bound too small for the three bytes of the mark cuts without one.
///
/// ```
/// assert_eq!(holdpoint::render::truncate("abcdef", 5), "ab…");
/// assert_eq!(holdpoint::render::truncate("abcdef", 2), "ab");
/// assert_eq!(holdpoint::render::truncate("abcdef", 6), "abcdef");
/// ```
pub fn truncate(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let (end, mark) = match bytes_max.checked_sub(MARK.len()) {
        Some(end) => (end, MARK),
        None => (bytes_max, ""),
    };
    format!("{}{mark}", &text[..text.floor_char_boundary(end)])
}
