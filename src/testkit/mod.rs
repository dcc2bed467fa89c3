//! What an embedder tests their tools, policy and agent with, without a model: interrupted runs, policy tables, arguments
//! made from a schema, and the requests that an agent renders, and whether a policy decides alike when it is asked again.
//!
//! Owns the scenes and the checks. It stands on the public surface alone, and knows of nothing that an embedder could not
//! see. Nothing here is needed in production; the feature `testkit` brings it.
//!
//! A [`Scenario`] is one run: it is begun, cut off where a test says, gone on with as a restarted process would, approved
//! as its operator says, and then read back and held to the [contract](Outcome::failures) that the runtime makes across
//! interruptions.
//!
//! ```
//! use std::sync::Arc;
//! use holdpoint::driver::{AgentError, Proposal, StepInput};
//! use holdpoint::gate::{SideEffect, ToolOutput, ToolSpec, tool_fn};
//! use holdpoint::testkit::{Disruption, Point, Scenario};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let schema = r#"{"type":"object"}"#;
//! let send = tool_fn(ToolSpec::new("send", SideEffect::LocalMutation, schema), |_call| async {
//!     Ok(ToolOutput::new(r#"{"sent":true}"#, "sent"))
//! });
//! let agent = |input: StepInput| async move {
//!     let sent = input.steps.iter().any(|step| step.observation.is_some());
//!     Ok::<_, AgentError>(if sent { Proposal::complete("{}") } else { Proposal::tool_call("send", "{}") })
//! };
//! // The process dies after the tool has sent, before that is on the record: a person is asked before it sends again.
//! let scenario = Scenario::of(Arc::new(agent)).tool(send);
//! let outcome = scenario.run(&[Disruption::crash(0, Point::ToolEffect)]).await;
//! outcome.failures.assert_none();
//! assert_eq!((outcome.calls.len(), outcome.approvals.len()), (2, 1));
//! # }
//! ```

mod contract;
mod folder;
mod fuzz;
mod policy;
mod recheck;
mod render;
mod scenario;
mod stage;
#[cfg(test)]
mod tests;

use std::fmt;

pub use fuzz::{Fuzz, FuzzError};
pub use holdpoint_actors::tree::Child;
pub use policy::{Expected, PolicyCase, check_policy, never, stand_in};
pub use recheck::{recheck, recheck_differs, recheck_partial};
pub use render::{RenderError, rendered, same_renders};
pub use scenario::{Call, Disruption, Outcome, Point, Reply, Scenario};

/// What a check found, each in a sentence. Empty when all is well.
#[derive(Clone, Default, PartialEq, Eq)]
#[must_use = "a check that nobody looks at checks nothing"]
pub struct Failures(Vec<String>);

impl Failures {
    pub(crate) fn add(&mut self, failure: impl Into<String>) {
        self.0.push(failure.into());
    }

    pub(crate) fn extend(&mut self, more: Failures) {
        self.0.extend(more.0);
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What was found, in order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Fails the test that calls it with everything that was found.
    ///
    /// # Panics
    /// When anything was found.
    #[track_caller]
    pub fn assert_none(&self) {
        assert!(self.is_empty(), "{self}");
    }
}

impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} found:", self.0.len())?;
        self.0.iter().try_for_each(|failure| write!(f, "\n- {failure}"))
    }
}

impl fmt::Debug for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
