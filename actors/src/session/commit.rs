//! Committing what a session drafted, and settling what a lost reply leaves open.
//!
//! Owns the difference between *refused* (nothing was written), *unavailable* (nothing was written, and it may be tried
//! again) and *in doubt* (settled here by a read behind the writer's restart, before anybody is told anything).

use std::sync::Arc;
use std::time::Instant;

use holdpoint_core::event::EventKind;
use holdpoint_core::ids::{ApprovalId, LeaseOwner, RunId};
use holdpoint_core::ledger::{self, Illegal};
use holdpoint_core::run::{Reason, Run, RunStatus};
use holdpoint_core::step::StepStatus;
use holdpoint_core::time::UnixNanos;
use holdpoint_core::transition::{Durability, Guard, Refusal, Transition};

use super::story::Core;
use crate::clock::monotonic;
use crate::faults::process::{self, Broken};
use crate::lease::LeaseGuard;
use crate::store::{Applied, ApplyError, Lane};

/// How often an outcome that is known not to be in the record is recorded again.
const OUTCOME_TRIES: usize = 5;

/// Why a session could not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// There is no such run.
    #[error("find run {0}")]
    NotFound(RunId),
    /// A run has this id already.
    #[error("begin run {0}: the id is taken")]
    Exists(RunId),
    /// The run is not where this needs it, or somebody was faster; nothing was changed.
    #[error("use run {run}: {why}")]
    RunState {
        /// The run.
        run: RunId,
        /// How it stands.
        why: String,
    },
    /// Somebody else holds the run; nothing was changed.
    #[error("take run {run}: {owner} holds it until {expires_at}")]
    Leased {
        /// The run.
        run: RunId,
        /// Who holds it.
        owner: LeaseOwner,
        /// Until when.
        expires_at: UnixNanos,
    },
    /// The session's hold on the run is gone; whoever takes the run over goes on from the record.
    #[error("go on with run {0}: its lease is lost")]
    LeaseLost(RunId),
    /// The session was closed, or an earlier call ended it.
    #[error("use the session of run {run}: it is closed{why}")]
    Closed {
        /// The run.
        run: RunId,
        /// Because of what, if anything.
        why: String,
    },
    /// The stored approval does not hash to its hash: somebody changed it. Nothing was executed.
    #[error("trust approval {0}: its hash does not match its recorded request")]
    ApprovalHash(ApprovalId),
    /// The grant is too old. It was expired and its run cancelled; nothing was executed.
    #[error("use approval {0}: it has expired")]
    ApprovalExpired(ApprovalId),
    /// The approved tool is not registered; nothing was changed.
    #[error("run the approved tool {0:?}: it is not registered")]
    NotRegistered(String),
    /// The request is unusable; nothing was written.
    #[error("begin a run: {0}")]
    Invalid(String),
    /// Something changed since the call was admitted; nothing was written. Decide again.
    #[error("admit the call: something changed since it was decided")]
    Stale,
    /// The record can't be written or read now; nothing was executed.
    #[error("reach the record: {0}")]
    Unavailable(String),
    /// The tool was called, and what came of it could not be recorded; who takes the run over finds it executing.
    #[error("record what came of the call of run {run}: {why}")]
    OutcomeLost {
        /// The run.
        run: RunId,
        /// Why.
        why: String,
    },
    /// The runtime asked itself for something impossible. A bug; the run is left to recovery.
    #[error("go on with run {run}: {why}")]
    Internal {
        /// The run.
        run: RunId,
        /// What.
        why: String,
    },
}

/// Why the story stops here.
#[derive(Debug)]
pub(super) enum Stop {
    /// The run is over, as it should be.
    Ended(Run),
    /// A person cancelled the run meanwhile.
    Cancelled(Run),
    /// It could not go on.
    Failed(SessionError),
}

impl From<SessionError> for Stop {
    fn from(error: SessionError) -> Stop {
        Stop::Failed(error)
    }
}

/// A commit that happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Committed {
    /// And its reply came.
    Told,
    /// Its reply was lost, and the record shows it.
    FoundLater,
}

impl Core {
    /// Commits an intent: a change that something may follow.
    pub(super) async fn commit_intent(&mut self, durability: Durability) -> Result<Committed, Stop> {
        if self.permit.is_none() {
            let admitted = self.shared.tree.store.admit().await;
            self.permit = Some(admitted.map_err(|error| SessionError::Unavailable(error.to_string()))?);
        }
        let mut transition = self.ledger.take(durability);
        if let Some(admission) = self.admission.take() {
            transition.guards.push(Guard::Admission(admission));
        }
        self.commit(Lane::Intent, transition).await
    }

    /// Commits what is drafted: an intent while nothing of the run is recorded, an outcome after that. An outcome
    /// that was left for this commit makes it as durable as it needs.
    pub(super) async fn commit_next(&mut self, durability: Durability) -> Result<Committed, Stop> {
        let deferred = self.deferred.take();
        let durability = deferred.as_ref().map_or(durability, |deferred| deferred.durability.max(durability));
        let committed = if self.ledger.is_new() {
            self.commit_intent(durability).await
        } else {
            self.commit_outcome(durability).await
        };
        if let (Err(Stop::Cancelled(_)), Some(deferred)) = (&committed, deferred) {
            self.record_late(deferred).await;
        }
        committed
    }

    /// Commits an outcome: it must not be lost, so it is recorded again when it is known not to have been.
    pub(super) async fn commit_outcome(&mut self, durability: Durability) -> Result<Committed, Stop> {
        let transition = self.ledger.take(durability);
        self.commit(Lane::Outcome, transition).await
    }

    async fn commit(&mut self, lane: Lane, transition: Transition) -> Result<Committed, Stop> {
        let transition = self.completed(transition);
        self.commit_completed(lane, &transition).await
    }

    /// Gives a transition what it does to the proxy's index.
    pub(super) fn completed(&mut self, mut transition: Transition) -> Arc<Transition> {
        transition.index.append(&mut self.index);
        Arc::new(transition)
    }

    pub(super) async fn commit_completed(
        &mut self,
        lane: Lane,
        transition: &Arc<Transition>,
    ) -> Result<Committed, Stop> {
        if is_skipped(lane, transition) {
            self.committed(monotonic());
            return Ok(Committed::Told);
        }
        for _ in 0..OUTCOME_TRIES {
            let sent = monotonic();
            let outcome = self.shared.tree.store.apply(lane, Arc::clone(transition)).await;
            if let Some(committed) = self.came_of(lane, transition, outcome, sent).await? {
                return Ok(committed);
            }
        }
        Err(SessionError::Unavailable("an outcome could not be recorded".to_owned()).into())
    }

    /// Acts on what came of a transition that was sent at `sent`. `None` for an outcome that is known not to be in the
    /// record: it is to be tried again.
    pub(super) async fn came_of(
        &mut self,
        lane: Lane,
        transition: &Transition,
        outcome: Result<Applied, ApplyError>,
        sent: Instant,
    ) -> Result<Option<Committed>, Stop> {
        let admits = !transition.index.is_empty()
            || transition.guards.iter().any(|guard| matches!(guard, Guard::Admission(_)));
        match outcome {
            Ok(applied) => {
                self.committed(applied.stamped_at);
                self.shared.tell(applied.events());
                self.read_totals().await;
                return Ok(Some(Committed::Told));
            }
            Err(ApplyError::Refused(Refusal::Stale)) if admits => return Err(SessionError::Stale.into()),
            Err(ApplyError::Refused(refusal)) => return Err(self.refused(refusal).await),
            Err(ApplyError::NotApplied(why)) => return Err(unavailable(why)),
            Err(ApplyError::InDoubt) => {}
        }
        let Some(probe) = transition.probe() else {
            return Err(unavailable("the reply of a write was lost"));
        };
        match (self.shared.tree.store.settle(&probe).await, lane) {
            (Ok(true), _) => {
                self.committed(sent);
                self.shared.tell_later(transition).await;
                self.read_totals().await;
                Ok(Some(Committed::FoundLater))
            }
            (Ok(false), Lane::Intent) => Err(unavailable("the record was restarted")),
            (Ok(false), Lane::Outcome) => Ok(None),
            (Err(error), _) => Err(unavailable(error)),
        }
    }

    /// Keeps or gives up the hold, as the run now stands in the record, and the place at the door: that is for a call
    /// between its two commits, not for a caller that thinks between its steps.
    fn committed(&mut self, stamped_at: Instant) {
        let executing = self.ledger.open_step().is_some_and(|step| step.status == StepStatus::Executing);
        if !executing && self.deferred.is_none() {
            self.permit = None;
        }
        let running = self.ledger.run().status == RunStatus::Running;
        match &mut self.guard {
            None if running => {
                self.guard = Some(LeaseGuard::hold(
                    self.ledger.run().id.clone(),
                    self.ledger.terms(),
                    stamped_at,
                    Arc::clone(&self.shared.recover),
                    self.shared.tree.sessions.clone(),
                ));
            }
            Some(guard) if !running => {
                guard.release();
                self.guard = None;
            }
            None | Some(_) => {}
        }
    }

    /// What a refused write means for the session: only a person's cancellation ends it without an error.
    async fn refused(&mut self, refusal: Refusal) -> Stop {
        let run = self.ledger.run().id.clone();
        match refusal {
            Refusal::RunExists => SessionError::Exists(run).into(),
            Refusal::RunMissing => SessionError::NotFound(run).into(),
            Refusal::Leased { owner, expires_at } if self.guard.is_none() => {
                SessionError::Leased { run, owner, expires_at }.into()
            }
            Refusal::RunIs(_)
            | Refusal::Leased { .. }
            | Refusal::LeaseExpired
            | Refusal::StepCount(_)
            | Refusal::StepIs(_)
            | Refusal::ApprovalIs(_)
            | Refusal::ApprovalChanged
            | Refusal::ModelCallOver
            | Refusal::Stale => self.lost(&refusal).await,
        }
    }

    /// Another owner, or a person, moved the run.
    pub(super) async fn lost(&mut self, why: &(impl std::fmt::Display + Sync)) -> Stop {
        let id = self.ledger.run().id.clone();
        if let Some(guard) = &mut self.guard {
            guard.fence().lose();
            guard.release();
            self.give_up().await;
        }
        let read = {
            let id = id.clone();
            self.shared.tree.store.read(move |reader| reader.run(&id)).await
        };
        match read {
            Ok(Some(run)) if run.status.is_terminal() && run.reason == Some(Reason::OperatorCancelled) => {
                Stop::Cancelled(run)
            }
            Ok(_) | Err(_) if self.guard.is_some() => SessionError::LeaseLost(id).into(),
            Ok(_) | Err(_) => SessionError::RunState { run: id, why: why.to_string() }.into(),
        }
    }

    /// Fails the run because the runtime refuses to go on with it.
    pub(super) async fn fail_internal(&mut self, guard: Guard, detail: &str) -> Result<Run, Stop> {
        let run = self.ledger.run().clone();
        let now = self.shared.clock.now();
        let transition = ledger::fail_internal(&run, guard, detail, now).map_err(|e| self.illegal(e))?;
        match self.shared.tree.store.apply(Lane::Outcome, transition).await {
            Ok(applied) => self.shared.tell(applied.events()),
            Err(ApplyError::Refused(refusal)) => return Err(self.refused(refusal).await),
            Err(error @ (ApplyError::NotApplied(_) | ApplyError::InDoubt)) => {
                return Err(SessionError::Unavailable(error.to_string()).into());
            }
        }
        if let Some(guard) = &mut self.guard {
            guard.release();
        }
        self.reread().await
    }

    /// The run as it stands in the record.
    pub(super) async fn reread(&self) -> Result<Run, Stop> {
        let id = self.ledger.run().id.clone();
        let wanted = id.clone();
        let read = self.shared.tree.store.read(move |reader| reader.run(&wanted)).await;
        match read {
            Ok(Some(run)) => Ok(run),
            Ok(None) => Err(SessionError::NotFound(id).into()),
            Err(error) => Err(SessionError::Unavailable(error.to_string()).into()),
        }
    }

    pub(super) fn illegal(&self, illegal: Illegal) -> SessionError {
        SessionError::Internal { run: self.ledger.run().id.clone(), why: illegal.to_string() }
    }
}

fn unavailable(why: impl std::fmt::Display) -> Stop {
    SessionError::Unavailable(why.to_string()).into()
}

/// Whether this build is deliberately broken in a way that leaves this commit out.
fn is_skipped(lane: Lane, transition: &Transition) -> bool {
    let broken = match lane {
        Lane::Intent => Broken::IntentSkipped,
        Lane::Outcome => Broken::OutcomeSkipped,
    };
    let of_a_call = |kind| matches!(kind, EventKind::StepToolStarted | EventKind::StepToolFinished);
    let synced = transition.durability == Durability::Synced;
    process::is(broken) && synced && transition.events.iter().any(|event| of_a_call(event.kind))
}
