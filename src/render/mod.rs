//! Between a run's record and a model's words: recorded steps become a conversation, and an answer becomes a decision.
//!
//! Owns the shape of the conversation. Never asks a model and never reads a record: an agent hands it what it was handed,
//! a [`StepInput`], and asks the model itself. What is said to the model about the task is the agent's, in the opening.
//!
//! A [`Render`] is an agent: it asks the step's model for the next call and takes it.
//!
//! ```
//! use std::sync::Arc;
//! use holdpoint::gate::{Json, Limits, ModelConfig, RunStatus, Runtime, SideEffect, ToolOutput, ToolSpec, tool_fn};
//! use holdpoint::model::{ModelResponse, ToolUse};
//! use holdpoint::render::Render;
//! use holdpoint::replay::Scripted;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let database = folder.path().join("agent.db");
//! // A script stands in for the provider's adapter.
//! let call = ToolUse { id: "call_1".into(), name: "report".into(), args: Json::empty_object() };
//! let model = Scripted::new([ModelResponse { tool_uses: vec![call], ..Default::default() }]);
//! let spec = ToolSpec::new("report", SideEffect::ReadOnly, r#"{"type":"object"}"#).terminal();
//! let report = tool_fn(spec, |_call| async { Ok(ToolOutput::new(r#"{"done":true}"#, "reported")) });
//!
//! let agent = Render::new(|input| format!("Your task: {}", input.run.goal))
//!     .system("You work with tools alone. Call one at a time.")
//!     .max_output_tokens(2_048);
//! let runtime = Runtime::builder(database).tool(report).model(ModelConfig::new(Arc::new(model))).start().await?;
//! let run = runtime.driver(Arc::new(agent)).start("report", Limits::default()).await?;
//! assert_eq!(run.status, RunStatus::Completed);
//! # runtime.stop().await;
//! # Ok(()) }
//! ```
//!
//! It never ends a run well by itself: a terminal tool does. An agent of your own that needs more uses [`Render::request`]
//! and [`decide()`].
//!
//! # The conversation
//!
//! First the opening, then two turns for each step that has a decision:
//!
//! - the model's: the reason that it gave, as text, and the call that it asked for;
//! - the answer: what came of the call. The latest [`RECENT_RESULTS`] results are given whole, unless one is longer than
//!   [`CONTENT_BYTES_MAX`]; of the others the summary is. Of a call that was cut off it says [`INTERRUPTED`], and a reply
//!   that could not be acted on is answered with what was wrong with it.
//!
//! The same steps give the same conversation, byte for byte: a run that goes on after a pause or a crash asks what it
//! would have asked, and a recording of it serves.
//!
//! # Your own turns
//!
//! [`Render::tool_use_id`], [`Render::assistant`] and [`Render::observation`] replace a part. Each is asked about every
//! step with a decision, those that called nothing among them, and gives `None` where the usual part will do; that is how
//! a model still learns what was wrong with its reply.

mod decide;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use holdpoint_actors::session::{AgentError, StepInput};
use holdpoint_core::decision::{Decision, Origin, Proposal};
use holdpoint_core::json::{Json, ObjectWriter};
use holdpoint_core::model::{Block, Message, ModelRequest, Role};
use holdpoint_core::step::{ObservationKind, Step};

use crate::driver::Agent;

pub use decide::{NAME_BYTES_MAX, REASON_BYTES_MAX, decide, stop, truncate};

/// How many of the latest results are given whole, when nothing else is said.
pub const RECENT_RESULTS: usize = 6;

/// The longest result that is given whole, in bytes, when nothing else is said.
pub const CONTENT_BYTES_MAX: usize = 24_000;

/// What a model reads of a call that was cut off. The runtime runs no effect again by itself, so the model has to ask;
/// an observation of your own that words results differently can still say this.
pub const INTERRUPTED: &str = "The process stopped while this tool was running, and what came of it is not known here. \
     Call the tool again to find out: a change that was made already is answered from its record.";

type Opening = Box<dyn Fn(&StepInput) -> String + Send + Sync>;
type ToolUseId = Box<dyn Fn(&Step) -> String + Send + Sync>;
type Assistant = Box<dyn Fn(&Step, &str) -> Option<Vec<Block>> + Send + Sync>;
type Answer = Box<dyn Fn(&Step, &str, bool) -> Option<Block> + Send + Sync>;

/// How a run is told to a model.
pub struct Render {
    opening: Opening,
    system: String,
    max_output_tokens: i64,
    recent_results: usize,
    content_bytes_max: usize,
    tool_use_id: Option<ToolUseId>,
    assistant: Option<Assistant>,
    observation: Option<Answer>,
}

impl fmt::Debug for Render {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Render")
            .field("recent_results", &self.recent_results)
            .field("content_bytes_max", &self.content_bytes_max)
            .field("max_output_tokens", &self.max_output_tokens)
            .finish_non_exhaustive()
    }
}

impl Render {
    /// Begins every conversation with `opening`. It should be the same for every step of a run: it is part of every
    /// request, and so of every recording's key.
    pub fn new(opening: impl Fn(&StepInput) -> String + Send + Sync + 'static) -> Render {
        Render {
            opening: Box::new(opening),
            system: String::new(),
            max_output_tokens: 0,
            recent_results: RECENT_RESULTS,
            content_bytes_max: CONTENT_BYTES_MAX,
            tool_use_id: None,
            assistant: None,
            observation: None,
        }
    }

    /// Sets the system prompt of [`Render::request`].
    #[must_use]
    pub fn system(mut self, system: impl Into<String>) -> Render {
        self.system = system.into();
        self
    }

    /// Caps what the model may write in answer to [`Render::request`], in tokens; zero for no cap. A run with a limit on
    /// tokens or cost needs one.
    #[must_use]
    pub fn max_output_tokens(mut self, tokens: i64) -> Render {
        self.max_output_tokens = tokens;
        self
    }

    /// Says how many of the latest results are given whole; zero for [`RECENT_RESULTS`].
    #[must_use]
    pub fn recent_results(mut self, results: usize) -> Render {
        self.recent_results = if results == 0 { RECENT_RESULTS } else { results };
        self
    }

    /// Says how long a result may be that is given whole, in bytes; zero for [`CONTENT_BYTES_MAX`]. An observation of
    /// your own has a bound of its own.
    #[must_use]
    pub fn content_bytes_max(mut self, bytes: usize) -> Render {
        self.content_bytes_max = if bytes == 0 { CONTENT_BYTES_MAX } else { bytes };
        self
    }

    /// Names the call of a step; `step_` and its index without this.
    #[must_use]
    pub fn tool_use_id(mut self, id: impl Fn(&Step) -> String + Send + Sync + 'static) -> Render {
        self.tool_use_id = Some(Box::new(id));
        self
    }

    /// Gives the model's turn of a step, from the step and the id of its call; `None` for the usual one. An adapter that
    /// replays a provider's own message gets it here.
    #[must_use]
    pub fn assistant(
        mut self,
        turn: impl Fn(&Step, &str) -> Option<Vec<Block>> + Send + Sync + 'static,
    ) -> Render {
        self.assistant = Some(Box::new(turn));
        self
    }

    /// Gives the answer to a step, from the step, the id of its call, and whether the result is among the latest; `None`,
    /// or a block without a kind, for the usual one.
    #[must_use]
    pub fn observation(
        mut self,
        answer: impl Fn(&Step, &str, bool) -> Option<Block> + Send + Sync + 'static,
    ) -> Render {
        self.observation = Some(Box::new(answer));
        self
    }

    /// The request for the next decision: the system prompt, the conversation, the tools and the cap.
    pub fn request(&self, input: &StepInput) -> ModelRequest {
        ModelRequest {
            system: self.system.clone(),
            messages: self.messages(input),
            tools: input.tools.clone(),
            max_output_tokens: self.max_output_tokens,
        }
    }

    /// The conversation so far. A step without a decision, one that was cut off before it had any, is left out, and does
    /// not count among the latest.
    pub fn messages(&self, input: &StepInput) -> Vec<Message> {
        let opening = Block::text((self.opening)(input));
        let mut messages = vec![Message { role: Role::User, content: vec![opening] }];
        let decided: Vec<(&Step, &Decision)> = decided(&input.steps).collect();
        let old = decided.len().saturating_sub(self.recent_results);
        for (at, (step, decision)) in decided.into_iter().enumerate() {
            let id = match &self.tool_use_id {
                Some(id) => id(step),
                None => format!("step_{}", step.index),
            };
            let turn = self.assistant.as_ref().and_then(|turn| turn(step, &id));
            let answer = self.observation.as_ref().and_then(|answer| answer(step, &id, at >= old));
            let answer = answer.filter(|block| !block.kind.is_empty());
            let content = turn.unwrap_or_else(|| assistant_turn(decision, &id));
            messages.push(Message { role: Role::Assistant, content });
            let answer = answer.unwrap_or_else(|| observation(step, &id, at >= old, self.content_bytes_max));
            messages.push(Message { role: Role::User, content: vec![answer] });
        }
        messages
    }
}

#[async_trait]
impl Agent for Render {
    /// Asks the step's model and takes the first call of its answer, as [`decide()`] does.
    async fn decide(&self, input: StepInput) -> Result<Proposal, AgentError> {
        let answer = input.model.generate(&self.request(&input)).await?;
        Ok(decide(&answer).from_origin(Origin::Model))
    }
}

fn decided(steps: &[Arc<Step>]) -> impl Iterator<Item = (&Step, &Decision)> {
    steps.iter().filter_map(|step| step.decision.as_ref().map(|decision| (&**step, decision)))
}

fn calls(decision: &Decision) -> bool {
    decision.is_tool_call() && !decision.tool.is_empty()
}

fn assistant_turn(decision: &Decision, id: &str) -> Vec<Block> {
    let said = Some(&decision.reason).filter(|reason| !reason.is_empty()).map(Block::text);
    if calls(decision) {
        let call = Block::tool_use(id, &decision.tool, args(decision));
        said.into_iter().chain([call]).collect()
    } else {
        vec![said.unwrap_or_else(|| Block::text("(no tool call)"))]
    }
}

/// The arguments of a recorded decision as a call carries them: `{}` when there were none, and an object around those that
/// were no usable JSON, `{"invalid_json": "..."}`, or `invalid_json_base64` when they were not even text.
pub fn args(decision: &Decision) -> Json {
    if decision.invalid_args.is_empty() {
        return decision.args.clone().filter(|args| !args.is_blank()).unwrap_or_else(Json::empty_object);
    }
    let key = if decision.invalid_base64 { "invalid_json_base64" } else { "invalid_json" };
    let mut w = ObjectWriter::new();
    w.str(key, &decision.invalid_args);
    w.finish_json()
}

/// The usual answer to a step: what came of its call, or what was wrong with its reply.
///
/// The content is given when `recent` is set and it is `bytes_max` long at most, else the summary.
pub fn observation(step: &Step, id: &str, recent: bool, bytes_max: usize) -> Block {
    let called = step.decision.as_ref().is_some_and(calls);
    let Some(observed) = step.observation.as_ref().filter(|_| called) else {
        return Block::text(what_was_wrong(step));
    };
    let content = if observed.kind == ObservationKind::Interrupted {
        INTERRUPTED.to_owned()
    } else if recent && observed.content.as_str().len() <= bytes_max {
        observed.content.as_str().to_owned()
    } else {
        format!("[summary] {}", observed.summary)
    };
    Block::tool_result(id, content, observed.is_failure())
}

fn what_was_wrong(step: &Step) -> String {
    match step.decision.as_ref().map_or("", |decision| decision.kind.as_str()) {
        "no_tool_call" => "That reply called no tool. Answer with exactly one tool call.".to_owned(),
        "truncated" => {
            "That reply reached the cap on output before its tool call was whole, so nothing was run. \
             Answer with exactly one tool call, and keep it short."
                .to_owned()
        }
        _ => {
            let why = step.observation.as_ref().map_or(String::new(), |it| format!(" ({})", it.summary));
            format!("That reply could not be acted on{why}. Answer with exactly one valid tool call.")
        }
    }
}
