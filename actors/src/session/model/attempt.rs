//! One attempt to ask a model: dispatched in the record, sent, recorded with its end.
//!
//! Runs in a task of its own, so that its end is recorded and charged also when nobody waits for it any more. Never
//! sends what the record may not hold: a dispatch whose reply was lost is settled, and not followed by its request.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use holdpoint_core::accounting::{self, Ask, CallStatus, Charge, Ended, ModelCall};
use holdpoint_core::ids::ModelCallId;
use holdpoint_core::ledger;
use holdpoint_core::model::{ModelRequest, ModelResponse, Usage};
use holdpoint_core::run::Run;
use holdpoint_core::time::UnixNanos;
use holdpoint_core::transition::{Refusal, Transition};
use tokio::sync::oneshot;

use super::{Asker, CallError};
use crate::model::ModelError;
use crate::session::SessionError;
use crate::session::commit::Committed;
use crate::store::{ApplyError, Lane};

/// How often an outcome that is known not to be in the record is recorded again.
const OUTCOME_TRIES: usize = 5;

/// What came of an attempt that was recorded.
#[derive(Debug)]
pub(super) enum Attempted {
    Answered(ModelResponse),
    /// It failed in a way that another attempt may not.
    Failed {
        why: String,
        retry_after: Option<Duration>,
        /// When its end was known.
        at: UnixNanos,
    },
}

type Told = Result<Attempted, CallError>;

/// Makes attempt `number` of `request`. Dropped, it gives the attempt up, and the task records that.
pub(super) async fn make(
    asker: &Arc<Asker>,
    request: &Arc<ModelRequest>,
    number: u32,
    left: Option<Duration>,
) -> Told {
    let within = left.map_or(asker.config.call_timeout, |left| left.min(asker.config.call_timeout));
    let attempt = Attempt {
        asker: Arc::clone(asker),
        request: Arc::clone(request),
        projected: asker.projected(request),
        number,
        within,
    };
    let (mut tell, told) = oneshot::channel();
    tokio::spawn(async move {
        let attempted = attempt.run(&mut tell).await;
        if let Err(Err(error)) = tell.send(attempted) {
            tracing::debug!(%error, "nobody waited for the end of a model call");
        }
    });
    let died =
        || SessionError::Internal { run: asker.run.id.clone(), why: "a model call's task died".to_owned() };
    told.await.unwrap_or_else(|_| Err(died().into()))
}

struct Attempt {
    asker: Arc<Asker>,
    request: Arc<ModelRequest>,
    projected: Charge,
    number: u32,
    within: Duration,
}

impl Asker {
    fn projected(&self, request: &ModelRequest) -> Charge {
        let usage = accounting::project(request);
        Charge { usage, cost_micros: self.cost(&usage) }
    }

    fn cost(&self, usage: &Usage) -> i64 {
        self.config.prices.cost(self.config.model.name(), usage)
    }

    fn lease_lost(&self) -> CallError {
        SessionError::LeaseLost(self.run.id.clone()).into()
    }
}

impl Attempt {
    async fn run(&self, tell: &mut oneshot::Sender<Told>) -> Told {
        let (call, committed) = self.dispatch(tell).await?;
        let may_send = self.asker.fence.as_ref().is_some_and(|fence| fence.may_send());
        let (ended, response) = match committed {
            Committed::Told if !may_send => (Ended::NotSent("not sent: the lease ran out".to_owned()), None),
            Committed::Told if tell.is_closed() => {
                (Ended::NotSent("not sent: whoever asked went away".to_owned()), None)
            }
            Committed::Told => self.ask(tell).await,
            Committed::FoundLater => {
                (Ended::NotSent("not sent: the record was restarted before it could leave".to_owned()), None)
            }
        };
        let unsent = matches!(ended, Ended::NotSent(_));
        let at = self.asker.shared.clock.now();
        let verdict = accounting::judge(ended, self.projected, |usage| self.asker.cost(usage));
        self.record(call.ended(&verdict, at)).await?;
        match response {
            Some(response) if verdict.status == CallStatus::Ok => Ok(Attempted::Answered(response)),
            Some(_) | None if verdict.retry => {
                Ok(Attempted::Failed { why: verdict.error, retry_after: verdict.retry_after, at })
            }
            Some(_) | None if unsent && !may_send => Err(self.asker.lease_lost()),
            Some(_) | None if unsent => Err(SessionError::Unavailable(verdict.error).into()),
            Some(_) | None => Err(CallError::Unavailable { attempts: self.number, last: verdict.error }),
        }
    }

    /// Checks the limits and records that the model is about to be asked (T10), alone in the book.
    async fn dispatch(&self, tell: &oneshot::Sender<Told>) -> Result<(ModelCall, Committed), CallError> {
        let asker = &*self.asker;
        let mut reserved = asker.book.lock().await;
        if tell.is_closed() {
            return Err(SessionError::Unavailable("whoever asked went away".to_owned()).into());
        }
        let Some(fence) = &asker.fence else {
            let why = "nobody holds it until its approved step is executed".to_owned();
            return Err(SessionError::RunState { run: asker.run.id.clone(), why }.into());
        };
        if !fence.is_held() {
            return Err(asker.lease_lost());
        }
        let totals = self.stored_run().await?.totals;
        let model = asker.config.model.name();
        let ask = Ask {
            model,
            priced: asker.config.prices.get(model).is_some(),
            refuse_unpriced: asker.config.refuse_unpriced,
            capped: self.request.max_output_tokens > 0,
            projected: self.projected,
        };
        accounting::check(&asker.run.limits, &totals, &reserved, &ask)
            .map_err(|refused| CallError::Limit { reason: refused.reason, detail: refused.detail })?;
        let call = ModelCall {
            id: ModelCallId::from(asker.shared.mint.id()),
            run_id: asker.run.id.clone(),
            step_id: asker.step.clone(),
            attempt: i64::from(self.number),
            status: CallStatus::Dispatched,
            model: model.to_owned(),
            usage: Usage::default(),
            cost_micros: 0,
            latency_ms: 0,
            error: String::new(),
            dispatched_at: asker.shared.clock.now(),
            completed_at: None,
        };
        // For the commit alone: a model may think for minutes, and the places are for those who write.
        let place = asker.shared.tree.store.admit().await;
        let _place = place.map_err(|error| SessionError::Unavailable(error.to_string()))?;
        let dispatch = ledger::model::dispatch(Arc::new(call.clone()), asker.owner.clone());
        let committed = self.commit(Lane::Intent, dispatch).await?;
        reserved.hold(&self.projected);
        Ok((call, committed))
    }

    async fn stored_run(&self) -> Result<Run, SessionError> {
        let id = self.asker.run.id.clone();
        let wanted = id.clone();
        let read = self.asker.shared.tree.store.read(move |reader| reader.run(&wanted)).await;
        read.map_err(|error| SessionError::Unavailable(error.to_string()))?.ok_or(SessionError::NotFound(id))
    }

    /// Sends the request, and waits for its answer as long as it may and somebody wants it.
    async fn ask(&self, tell: &mut oneshot::Sender<Told>) -> (Ended, Option<ModelResponse>) {
        let model = &self.asker.config.model;
        let asking = AssertUnwindSafe(async { model.generate(&self.request).await }).catch_unwind();
        let answered = tokio::select! {
            biased;
            answered = tokio::time::timeout(self.within, asking) => answered,
            () = tell.closed() => return (Ended::Abandoned, None),
        };
        let ended = match answered {
            Ok(Ok(Ok(response))) => return (Ended::Answered(response.usage), Some(response)),
            Ok(Ok(Err(error))) => match error {
                ModelError::Transient { why, retry_after } => {
                    Ended::Transient { why: format!("transient: {why}"), retry_after }
                }
                ModelError::NoAnswer { why } => Ended::NoAnswer(why),
                ModelError::Served { usage, why } => Ended::Served { usage, why },
                ModelError::UnusableUsage { why } => Ended::UnusableUsage(why),
                ModelError::Permanent { why } => Ended::Permanent(why),
            },
            Ok(Err(panic)) => {
                Ended::Died(format!("the model's adapter panicked: {}", crate::panic_text(&*panic)))
            }
            Err(_elapsed) => Ended::NoAnswer(format!("no answer within {:?}", self.within)),
        };
        (ended, None)
    }

    /// Records the attempt's end and charges the run (T11). Unrecorded, what it was projected to cost stays in the book.
    async fn record(&self, call: ModelCall) -> Result<(), CallError> {
        let mut reserved = self.asker.book.lock().await;
        match self.commit(Lane::Outcome, ledger::model::end(Arc::new(call))).await {
            Ok(_) => {
                reserved.release(&self.projected);
                Ok(())
            }
            Err(error) => {
                tracing::error!(run = %self.asker.run.id, %error, "what came of a model call could not be recorded");
                Err(error)
            }
        }
    }

    async fn commit(&self, lane: Lane, transition: Transition) -> Result<Committed, CallError> {
        let shared = &self.asker.shared;
        let probe = transition.probe();
        let lost = || CallError::from(SessionError::Unavailable("the reply of a write was lost".to_owned()));
        for _ in 0..OUTCOME_TRIES {
            match shared.tree.store.apply(lane, transition.clone()).await {
                Ok(applied) => {
                    shared.tell(applied.events());
                    return Ok(Committed::Told);
                }
                Err(ApplyError::Refused(refusal)) => return Err(self.refused(&refusal)),
                Err(ApplyError::NotApplied(why)) => {
                    return Err(SessionError::Unavailable(why.to_string()).into());
                }
                Err(ApplyError::InDoubt) => {}
            }
            let found = shared.tree.store.settle(probe.as_ref().ok_or_else(lost)?).await;
            match (found, lane) {
                (Ok(true), _) => {
                    shared.tell_later(&transition).await;
                    return Ok(Committed::FoundLater);
                }
                (Ok(false), Lane::Intent) => return Err(lost()),
                (Ok(false), Lane::Outcome) => {}
                (Err(error), _) => return Err(SessionError::Unavailable(error.to_string()).into()),
            }
        }
        Err(lost())
    }

    fn refused(&self, refusal: &Refusal) -> CallError {
        let run = self.asker.run.id.clone();
        match refusal {
            Refusal::RunMissing => SessionError::NotFound(run).into(),
            Refusal::RunIs(_) | Refusal::Leased { .. } | Refusal::LeaseExpired => self.asker.lease_lost(),
            Refusal::RunExists
            | Refusal::StepCount(_)
            | Refusal::StepIs(_)
            | Refusal::ApprovalIs(_)
            | Refusal::ApprovalChanged
            | Refusal::ModelCallOver
            | Refusal::Stale => SessionError::Internal { run, why: refusal.to_string() }.into(),
        }
    }
}
