//! The accounting caller: the only handle to a model that whoever decides a step has.
//!
//! Owns the loop of attempts, and the book of what is in flight; `attempt.rs` makes one attempt, `config.rs` says which
//! model and under which rules, `error.rs` what whoever decides may fail with. What an outcome means and what a limit
//! refuses is core's (`accounting`). Every attempt is recorded before it is sent and again when its end is known, also
//! when nobody waits for it any more.

mod attempt;
mod config;
mod error;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdpoint_core::accounting::{Reserved, RetryRules, Room, retry_wait};
use holdpoint_core::ids::{LeaseOwner, StepId};
use holdpoint_core::model::{ModelRequest, ModelResponse};
use holdpoint_core::run::{Run, RunStatus};
use holdpoint_core::time::UnixNanos;
use tokio::sync::Mutex;

use super::Shared;
use super::story::Core;
use crate::clock::monotonic;
use crate::lease::Fence;
use attempt::Attempted;

pub use config::ModelConfig;
pub use error::{AgentError, CallError};

/// What is in flight in one session. Whoever holds the lock alone checks, dispatches and records, so that several
/// requests at once can't pass a limit together, and observers hear of them in the order of the record.
pub(super) type Book = Mutex<Reserved>;

/// Asks the model on behalf of one step. Cheap to clone; several requests may be out at once.
///
/// Each attempt is checked against the run's limits, recorded as dispatched, sent, and recorded again with what it cost.
/// It belongs to its session: once that has lost its lease or ended, nothing is sent.
#[derive(Clone)]
pub struct ModelCaller {
    asker: Reach,
    /// Until when whoever asks has time.
    deadline: Option<Instant>,
}

/// What a caller reaches.
#[derive(Clone)]
enum Reach {
    /// No model.
    Nothing,
    /// The gate's model, on the run's books.
    Booked(Arc<Asker>),
    /// A model that keeps what it is asked, outside any run.
    #[cfg(feature = "testkit")]
    OffTheBooks(Arc<dyn crate::model::Model>),
}

/// Who asks: a step under its session's hold.
pub(super) struct Asker {
    shared: Arc<Shared>,
    config: Arc<ModelConfig>,
    /// The run as the step started.
    run: Run,
    step: StepId,
    step_started_at: UnixNanos,
    owner: LeaseOwner,
    /// None while the run waits for its grant to be collected: nobody holds it then.
    fence: Option<Fence>,
    book: Arc<Book>,
}

impl fmt::Debug for ModelCaller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelCaller").field("model", &self.model()).finish_non_exhaustive()
    }
}

impl ModelCaller {
    /// A caller of no model.
    pub(super) fn none() -> ModelCaller {
        ModelCaller { asker: Reach::Nothing, deadline: None }
    }

    /// A caller of `model` that belongs to no run and counts nothing, for tests of what an agent asks.
    #[cfg(feature = "testkit")]
    pub fn off_the_books(model: Arc<dyn crate::model::Model>) -> ModelCaller {
        ModelCaller { asker: Reach::OffTheBooks(model), deadline: None }
    }

    /// The name under which the model is accounted for, when there is one.
    pub fn model(&self) -> Option<&str> {
        match &self.asker {
            Reach::Nothing => None,
            Reach::Booked(asker) => Some(asker.config.model.name()),
            #[cfg(feature = "testkit")]
            Reach::OffTheBooks(model) => Some(model.name()),
        }
    }

    /// The same caller for somebody who has time until `deadline`: an attempt is given no longer, and a retry that
    /// would have to wait past it is not made.
    #[must_use]
    pub fn until(&self, deadline: Instant) -> ModelCaller {
        ModelCaller { deadline: Some(deadline), ..self.clone() }
    }

    /// Asks the model, and again as the configuration allows.
    ///
    /// The output cap is lowered to the run's, which also stands in for a missing one. Dropped, it stops waiting: an
    /// attempt that is out is given up and charged its estimate, because the provider may bill it.
    ///
    /// # Errors
    /// A limit of the run, before anything is sent; a model that gave no usable answer; a lease that is lost; a record
    /// that can't be reached. Whoever decides hands it on: the run then ends with the reason that belongs to it.
    pub async fn generate(&self, request: &ModelRequest) -> Result<ModelResponse, CallError> {
        let asker = match &self.asker {
            Reach::Nothing => return Err(CallError::NoModel),
            Reach::Booked(asker) => asker,
            #[cfg(feature = "testkit")]
            Reach::OffTheBooks(model) => {
                let unavailable = |error: crate::model::ModelError| error.to_string();
                let answered = model.generate(request).await.map_err(unavailable);
                return answered.map_err(|last| CallError::Unavailable { attempts: 1, last });
            }
        };
        let request = Arc::new(asker.capped(request));
        let mut number = 1;
        loop {
            let left = self.deadline.map(|at| at.saturating_duration_since(monotonic()));
            match attempt::make(asker, &request, number, left).await? {
                Attempted::Answered(response) => return Ok(response),
                Attempted::Failed { why, retry_after, at } => {
                    let unavailable = |last| CallError::Unavailable { attempts: number, last };
                    if number > asker.config.max_retries {
                        return Err(unavailable(why));
                    }
                    let wait = self.wait_after(asker, number, retry_after, at);
                    let wait = wait.map_err(|late| unavailable(format!("{late}: {why}")))?;
                    tokio::time::sleep(wait).await;
                    number += 1;
                }
            }
        }
    }

    fn wait_after(
        &self,
        asker: &Asker,
        number: u32,
        retry_after: Option<Duration>,
        now: UnixNanos,
    ) -> Result<Duration, String> {
        let config = &asker.config;
        let rules = RetryRules { backoff: config.backoff, max_retry_after: config.max_retry_after };
        let left = self.deadline.map(|at| at.saturating_duration_since(monotonic()));
        let room = Room { run: &asker.run, step_started_at: asker.step_started_at, now, left };
        retry_wait(&rules, number, retry_after, &room)
    }
}

impl Asker {
    /// The request under the run's own cap.
    fn capped(&self, request: &ModelRequest) -> ModelRequest {
        let mut request = request.clone();
        let cap = self.run.limits.max_output_tokens_per_call;
        if cap > 0 && !(1..=cap).contains(&request.max_output_tokens) {
            request.max_output_tokens = cap;
        }
        request
    }
}

impl Core {
    /// Gives the open step its caller.
    pub(super) fn open_model(&mut self) {
        let (Some(config), Some(step)) = (&self.shared.model, self.ledger.open_step()) else {
            self.model = ModelCaller::none();
            return;
        };
        let asker = Asker {
            shared: Arc::clone(&self.shared),
            config: Arc::clone(config),
            run: self.ledger.run().clone(),
            step: step.id.clone(),
            step_started_at: step.started_at,
            owner: self.ledger.terms().owner.clone(),
            fence: self.guard.as_ref().map(|guard| guard.fence().clone()),
            book: Arc::clone(&self.book),
        };
        self.model = ModelCaller { asker: Reach::Booked(Arc::new(asker)), deadline: None };
    }

    /// Reads the run again that has just stopped, for what its model attempts came to: the session's own copy is of the
    /// start of the step.
    pub(super) async fn read_totals(&mut self) {
        if self.shared.model.is_none() || self.ledger.run().status == RunStatus::Running {
            return;
        }
        match self.reread().await {
            Ok(run) => self.ledger.set_run(run),
            Err(stop) => tracing::debug!(run = %self.run_id(), ?stop, "a stopped run was not read again"),
        }
    }
}
