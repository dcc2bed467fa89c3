//! Transitions: what commits together, as a value without SQL.
//!
//! Owns the vocabulary of guards and writes. Never applies them: the store does, and any store can.

use std::sync::Arc;
use std::time::Duration;

use crate::accounting::ModelCall;
use crate::across_calls::{Admission, IndexWrite};
use crate::approval::{Approval, ApprovalStatus};
use crate::attempt::Ending;
use crate::event::NewEvent;
use crate::ids::{ApprovalHash, ApprovalId, LeaseOwner, RunId, StepId};
use crate::json::Json;
use crate::run::{Lease, Reason, Run, RunStatus};
use crate::step::{Step, StepStatus};
use crate::time::UnixNanos;
use crate::tool::RecordedSpec;

/// How durable a commit must be before anybody may notice it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Durability {
    /// In the log: a killed process loses none of it; power loss may.
    Written,
    /// Synced to the disk.
    Synced,
}

/// Guards, rows and events that become true together or not at all.
///
/// Guards are judged, in order, before the first write; the first that fails refuses the whole.
#[derive(Debug, Clone)]
pub struct Transition {
    /// The run that it concerns.
    pub run_id: RunId,
    /// What must hold.
    pub guards: Vec<Guard>,
    /// What becomes of the run's row.
    pub run: Option<RunWrite>,
    /// Specs to keep, once each.
    pub specs: Vec<RecordedSpec>,
    /// Steps to insert or rewrite.
    pub steps: Vec<StepWrite>,
    /// Approvals to insert or decide.
    pub approvals: Vec<ApprovalWrite>,
    /// How calls ended, beside the steps that recorded their text.
    pub endings: Vec<EndingWrite>,
    /// What becomes of an attempt to ask a model.
    pub model_call: Option<ModelCallWrite>,
    /// What becomes of the proxy's index.
    pub index: Vec<IndexWrite>,
    /// What happened, in order.
    pub events: Vec<NewEvent>,
    /// How durable it must be.
    pub durability: Durability,
}

impl Transition {
    /// A transition of `run` that does nothing yet.
    pub fn of(run_id: RunId, durability: Durability) -> Transition {
        Transition {
            run_id,
            guards: Vec::new(),
            run: None,
            specs: Vec::new(),
            steps: Vec::new(),
            approvals: Vec::new(),
            endings: Vec::new(),
            model_call: None,
            index: Vec::new(),
            events: Vec::new(),
            durability,
        }
    }

    /// What shows, after a lost reply, whether this was committed: its last event, which no other transition writes.
    pub fn probe(&self) -> Option<Probe> {
        let last = self.events.last()?;
        Some(Probe {
            run_id: last.run_id.clone(),
            step_id: last.step_id.clone(),
            kind: last.kind.as_str(),
            at: last.at,
            payload: last.payload.clone(),
        })
    }
}

/// An event to look for when the reply of an `Apply` was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// Its run.
    pub run_id: RunId,
    /// Its step.
    pub step_id: Option<StepId>,
    /// Its kind.
    pub kind: &'static str,
    /// When it happened.
    pub at: UnixNanos,
    /// Its payload.
    pub payload: String,
}

/// Who writes, and how long a lease it takes lasts from the writer's own clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseTerms {
    /// The owner, drawn anew for each session and takeover.
    pub owner: LeaseOwner,
    /// The time to live.
    pub ttl: Duration,
}

/// What must hold for a transition to apply.
#[derive(Debug, Clone)]
pub enum Guard {
    /// No run has this id.
    RunAbsent,
    /// The run is RUNNING under this owner's lease; when `live`, a lease that has not run out.
    Held {
        /// The owner.
        owner: LeaseOwner,
        /// Whether an expired lease is refused: only such a write starts an effect.
        live: bool,
    },
    /// The run has one of these statuses, whoever holds it.
    RunIs {
        /// The statuses.
        any_of: Vec<RunStatus>,
    },
    /// The run may be taken over: RUNNING or INTERRUPTED, and its lease is the one that was read and has run out by
    /// the writer's clock, or is this owner's own.
    Abandoned {
        /// The lease as it was read; `None` when it had none.
        seen: Option<Lease>,
        /// An owner of this process whose session is known to be gone, whose lease need not run out.
        gone: Option<LeaseOwner>,
    },
    /// The run has started exactly this many steps.
    StepCount {
        /// How many.
        count: i64,
    },
    /// The step has this status.
    StepIs {
        /// The step.
        step: StepId,
        /// The status.
        status: StepStatus,
    },
    /// The approval has this status and still carries this hash.
    ApprovalIs {
        /// The approval.
        approval: ApprovalId,
        /// The status.
        status: ApprovalStatus,
        /// The hash.
        hash: ApprovalHash,
    },
    /// The rules across calls, judged again inside, still say what was decided outside.
    Admission(Arc<Admission>),
}

/// Why a transition was refused. Nothing of it was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is no such run.
    #[error("find the run: there is none with this id")]
    RunMissing,
    /// There is one already.
    #[error("begin the run: its id is taken")]
    RunExists,
    /// The run stands elsewhere.
    #[error("move the run: it is {0}")]
    RunIs(RunStatus),
    /// Somebody else holds it.
    #[error("take the run: {owner} holds it until {expires_at:?}")]
    Leased {
        /// Who.
        owner: LeaseOwner,
        /// Until when.
        expires_at: UnixNanos,
    },
    /// Nobody else holds it, and this owner's lease has run out.
    #[error("start an effect: the lease ran out")]
    LeaseExpired,
    /// Another step was started.
    #[error("start the step: the run has started {0} already")]
    StepCount(i64),
    /// The step stands elsewhere, or there is none.
    #[error("move the step: it is {0:?}")]
    StepIs(Option<StepStatus>),
    /// The approval stands elsewhere, or there is none.
    #[error("decide the approval: it is {0:?}")]
    ApprovalIs(Option<ApprovalStatus>),
    /// The approval is not the one that was read.
    #[error("decide the approval: it changed since it was read")]
    ApprovalChanged,
    /// The attempt's outcome is recorded already, or it was never dispatched.
    #[error("record what came of a model call: it has an outcome, or was never dispatched")]
    ModelCallOver,
    /// The rules across calls say something else by now.
    #[error("admit the call: something changed since it was decided")]
    Stale,
}

/// What becomes of a run's row.
#[derive(Debug, Clone)]
pub enum RunWrite {
    /// It is new, as it stands at the end of the transition.
    Insert {
        /// The run.
        run: Run,
        /// Its lease, while it is RUNNING.
        lease: Option<LeaseTerms>,
    },
    /// It changes. Counters only ever grow, in the store's own arithmetic.
    Update(RunUpdate),
}

/// A change of a run's row.
#[derive(Debug, Clone, Default)]
pub struct RunUpdate {
    /// Steps started.
    pub steps_started: i64,
    /// Milliseconds of finished steps.
    pub add_active_ms: i64,
    /// Its new standing.
    pub standing: Option<Standing>,
    /// What becomes of its lease.
    pub lease: LeaseWrite,
}

/// Where a run stands and why.
#[derive(Debug, Clone)]
pub struct Standing {
    /// The status.
    pub status: RunStatus,
    /// Why it ended.
    pub reason: Option<Reason>,
    /// In words.
    pub reason_detail: String,
    /// When it ended.
    pub finished_at: Option<UnixNanos>,
    /// What it produced.
    pub result: Option<Json>,
}

/// What becomes of a run's lease.
#[derive(Debug, Clone, Default)]
pub enum LeaseWrite {
    /// It stays.
    #[default]
    Keep,
    /// It is taken, stamped by the writer.
    Take(LeaseTerms),
    /// It is given up.
    Clear,
}

/// What becomes of a step's row.
#[derive(Debug, Clone)]
pub enum StepWrite {
    /// It is new, as it stands at the end of the transition.
    Insert(Arc<Step>),
    /// It is rewritten whole.
    Update(Arc<Step>),
    /// Only its outcome columns are written; its decision and policy stay exactly as stored.
    Outcome {
        /// The step.
        step: StepId,
        /// Its new status.
        status: StepStatus,
        /// The observation's stored form.
        observation: Json,
        /// The hash of its content.
        observation_hash: String,
        /// When it ended.
        finished_at: UnixNanos,
    },
    /// As `Outcome`, for every step of the run that is deciding, awaiting approval or executing.
    OutcomeOfInFlight {
        /// The observation's stored form.
        observation: Json,
        /// The hash of its content.
        observation_hash: String,
        /// When they ended.
        finished_at: UnixNanos,
    },
}

/// What becomes of an approval's row.
#[derive(Debug, Clone)]
pub enum ApprovalWrite {
    /// It is new.
    Insert(Arc<Approval>),
    /// It is decided: status, decider, time and note are written.
    Decide(Arc<Approval>),
}

/// What becomes of an attempt to ask a model.
#[derive(Debug, Clone)]
pub enum ModelCallWrite {
    /// It is about to be sent.
    Dispatch(Arc<ModelCall>),
    /// Its outcome is known: its row is completed, and the run's totals grow by what it is charged and by one call, in
    /// the store's own arithmetic. Only one that is still dispatched takes an outcome.
    Complete(Arc<ModelCall>),
}

/// How a call ended, typed, beside the step whose observation holds the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndingWrite {
    /// The step.
    pub step_id: StepId,
    /// How its call ended.
    pub ending: Ending,
}
