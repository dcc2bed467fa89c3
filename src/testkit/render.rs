//! What an agent asks its model for: the first request that it makes of an input, and whether two runs of one scenario lead
//! to the same ones.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use holdpoint_actors::model::{Model, ModelError};
use holdpoint_core::model::{ModelRequest, ModelResponse};

use super::{Disruption, Failures, Scenario};
use crate::driver::{Agent, AgentError, ModelCaller, StepInput};

/// Why an agent rendered nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// It failed before it asked.
    #[error("render a request: the agent failed: {0}")]
    Failed(String),
    /// It decided without asking.
    #[error("render a request: the agent asked no model")]
    AskedNothing,
}

/// Keeps the first request and answers every one with nothing at all.
#[derive(Default)]
struct Keeping(Mutex<Option<ModelRequest>>);

#[async_trait]
impl Model for Keeping {
    fn name(&self) -> &str {
        "testkit"
    }

    async fn generate(&self, request: &ModelRequest) -> Result<ModelResponse, ModelError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| request.clone());
        Ok(ModelResponse { stop_reason: "end_turn".to_owned(), ..ModelResponse::default() })
    }
}

/// The first request that `agent` makes of its model when it is handed `input`: what a recording is found by.
///
/// # Errors
/// When it fails, or makes none.
pub async fn rendered(agent: &dyn Agent, input: StepInput) -> Result<ModelRequest, RenderError> {
    let model = Arc::new(Keeping::default());
    let asked = ModelCaller::off_the_books(Arc::clone(&model) as Arc<dyn Model>);
    let decided: Result<_, AgentError> = agent.decide(StepInput { model: asked, ..input }).await;
    let kept = model.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    match (kept, decided) {
        (Some(request), _) => Ok(request),
        (None, Ok(_)) => Err(RenderError::AskedNothing),
        (None, Err(error)) => Err(RenderError::Failed(error.to_string())),
    }
}

/// Runs the scenario that `fresh` makes twice, disrupted alike, and checks that the agent that `fresh` makes renders the same
/// bytes from what the two runs handed their agents, at every decision.
///
/// Recorded runs are served again only to an agent for which this holds. `fresh` is called once a run, so that tools with a
/// state of their own are not shared.
pub async fn same_renders(
    fresh: impl Fn() -> (Scenario, Arc<dyn Agent>),
    disruptions: &[Disruption],
) -> Failures {
    let (first, first_agent) = fresh();
    let (second, second_agent) = fresh();
    let (one, other) = (first.run(disruptions).await, second.run(disruptions).await);
    let mut failures = Failures::default();
    failures.extend(one.failures);
    failures.extend(other.failures);
    if one.inputs.len() != other.inputs.len() {
        let (once, again) = (one.inputs.len(), other.inputs.len());
        failures.add(format!("the agent was asked {once} times in one run and {again} in the other"));
        return failures;
    }
    for (at, (left, right)) in one.inputs.into_iter().zip(other.inputs).enumerate() {
        let left = rendered(&*first_agent, left).await;
        let right = rendered(&*second_agent, right).await;
        match (left, right) {
            (Ok(left), Ok(right)) => {
                if let Some(place) = difference(&left, &right) {
                    failures.add(format!("decision {at} renders differently in two runs: {place}"));
                }
            }
            (Err(error), _) | (_, Err(error)) => failures.add(format!("decision {at}: {error}")),
        }
    }
    failures
}

/// Where two requests differ first.
fn difference(left: &ModelRequest, right: &ModelRequest) -> Option<String> {
    if left.to_json() == right.to_json() {
        return None;
    }
    if left.messages.len() != right.messages.len() {
        return Some(format!("{} messages and {}", left.messages.len(), right.messages.len()));
    }
    let differs = left.messages.iter().zip(&right.messages).position(|(one, other)| one != other);
    Some(differs.map_or_else(
        || "outside its messages".to_owned(),
        |at| {
            let alone = |request: &ModelRequest| {
                let messages = vec![request.messages[at].clone()];
                let text = ModelRequest { messages, ..ModelRequest::default() }.to_json();
                holdpoint_core::sanitize::truncate(&text, 600).into_owned()
            };
            format!("message {at}:\n  {}\n  {}", alone(left), alone(right))
        },
    ))
}
