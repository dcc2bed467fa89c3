//! A model that answers from a list.
//!
//! Owns the list and what was asked. Never reaches anything.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use holdpoint_actors::model::{Model, ModelError};
use holdpoint_core::model::{ModelRequest, ModelResponse};

/// Answers in the order of its script, and keeps every request for a test to look at.
///
/// More requests than the script has answers fail with [`ModelError::Permanent`].
pub struct Scripted {
    name: String,
    failures: BTreeMap<usize, ModelError>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    left: VecDeque<ModelResponse>,
    requests: Vec<ModelRequest>,
}

impl Scripted {
    /// A model named `scripted` that gives these answers.
    pub fn new(responses: impl IntoIterator<Item = ModelResponse>) -> Scripted {
        let state = State { left: responses.into_iter().collect(), requests: Vec::new() };
        Scripted { name: "scripted".to_owned(), failures: BTreeMap::new(), state: Mutex::new(state) }
    }

    /// Gives it another name, under which it is accounted for and recorded.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Scripted {
        self.name = name.into();
        self
    }

    /// Has it fail at the request `index`, counted from zero. The answer that the script has in that place is skipped.
    #[must_use]
    pub fn failing(mut self, index: usize, error: ModelError) -> Scripted {
        self.failures.insert(index, error);
        self
    }

    /// Every request so far, in order, those that failed among them.
    pub fn requests(&self) -> Vec<ModelRequest> {
        self.state().requests.clone()
    }

    /// A holder only moves values, so a panic in one leaves nothing half-done.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("Scripted")
            .field("name", &self.name)
            .field("left", &state.left.len())
            .field("requests", &state.requests.len())
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Model for Scripted {
    fn name(&self) -> &str {
        &self.name
    }

    async fn generate(&self, request: &ModelRequest) -> Result<ModelResponse, ModelError> {
        let mut state = self.state();
        let index = state.requests.len();
        state.requests.push(request.clone());
        let response = state.left.pop_front();
        if let Some(error) = self.failures.get(&index) {
            return Err(error.clone());
        }
        response.ok_or_else(|| ModelError::Permanent {
            why: format!("{}: the script has no answer for request {} of this run", self.name, index + 1),
        })
    }
}
