//! The proxy's rules across calls, as one pure function over a view of its index.
//!
//! Owns the order of the rules ([`decide`]), what they are shown ([`View`]) and what is written to the index
//! ([`IndexWrite`]). Never reads the index: the store builds the view, once outside and, to confirm, once more inside
//! the transaction that begins a call. Whoever acts on a ruling reads a new view and decides again.

mod open_calls;
mod rules;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

pub use open_calls::{OpenCall, OpenCalls, OpenState};
pub use rules::{Scan, ask_again, decide, holds, judge_finished};

use crate::approval::ApprovalStatus;
use crate::attempt::{Attempt, AttemptOutcome, Upstream};
use crate::ids::{ApprovalId, RequestKey, RunId, SessionName, StepId};
use crate::policy::Outcome;
use crate::run::{Lease, Reason};
use crate::time::UnixNanos;
use crate::tool::SideEffect;

/// The tools that a proxy offers, by their registered names.
pub type Upstreams = HashMap<String, Upstream>;

/// One call, and what the operator configured for its tool.
#[derive(Debug, Clone, PartialEq)]
pub struct Asked {
    /// The proxy's session.
    pub session: SessionName,
    /// Which request it is; `None` for arguments that no rule can compare.
    pub key: Option<RequestKey>,
    /// The registered name of its tool.
    pub tool: String,
    /// What the tool may do.
    pub class: SideEffect,
    /// How long a finished request speaks for an identical one; zero turns rules 4 and 5 off.
    pub window: Duration,
    /// What the operator's configuration says about the tool.
    pub outcome: Outcome,
    /// How many approvals the session may have waiting.
    pub max_pending: usize,
    /// Every tool that is offered, to read records with.
    pub tools: Arc<Upstreams>,
    /// The moment that everything but leases is judged at.
    pub now: UnixNanos,
    /// The same moment by the wall clock, which leases are stamped and judged by.
    pub wall: UnixNanos,
}

impl Asked {
    /// Whether a person must be asked: the policy says so, or the call would repeat one whose outcome is unknown.
    pub fn needs_approval(&self, rerun: bool) -> bool {
        match self.outcome {
            Outcome::RequireApproval => true,
            Outcome::Allow => rerun,
            Outcome::Deny | Outcome::Abort => false,
        }
    }

    /// Whether the rules over the session's other requests apply. Knowing this saves reading them.
    pub fn meets_session_rules(&self, rerun: bool) -> bool {
        self.key.is_some() && (!self.class.is_read() || self.needs_approval(rerun))
    }

    /// The earliest moment at which a run may have finished and still be in the window.
    pub fn window_start(&self) -> UnixNanos {
        self.now.minus(self.window)
    }

    /// The same call as it would be asked now, about another request of the same tool.
    #[must_use]
    pub fn about(&self, key: RequestKey) -> Asked {
        Asked { key: Some(key), ..self.clone() }
    }
}

/// What the rules are shown.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct View {
    /// The request's own rows.
    pub own: Own,
    /// The session's other requests. `None` was not read, which is taken for nothing in the way: only a decision
    /// that a transaction confirms may be made so.
    pub elsewhere: Option<Elsewhere>,
}

/// The rows of one request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Own {
    /// Its open row, the newest.
    pub open: Option<OpenRow>,
    /// Its finished runs, newest first, as far as [`judge_finished`] wants to look on.
    pub recent: Vec<Finished>,
    /// What the newest of its finished runs that made an attempt came to, whatever its age.
    pub last: LastAttempt,
}

/// The open row of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenRow {
    /// Its id.
    pub id: i64,
    /// Its run.
    pub run: RunId,
    /// Where the run stands.
    pub state: RunState,
}

/// Where the run of an open row stands.
#[derive(Debug, Clone, PartialEq)]
pub enum RunState {
    /// It was never begun.
    Absent,
    /// It waits for a person.
    Waiting {
        /// Its latest approval.
        approval: Option<Asking>,
    },
    /// It is held, or was when its holder went away.
    Running {
        /// By this lease.
        lease: Option<Lease>,
    },
    /// It is over.
    Finished,
}

/// An approval, as far as the rules look at it.
#[derive(Debug, Clone, PartialEq)]
pub struct Asking {
    /// Its id.
    pub id: ApprovalId,
    /// Whether it asks about a call whose outcome is unknown.
    pub interruption: bool,
    /// Where it stands.
    pub status: ApprovalStatus,
    /// Until when it may be decided.
    pub expires_at: Option<UnixNanos>,
    /// Until when its grant may be collected; only an approved one has a bound, and not every one.
    pub grant_until: Option<UnixNanos>,
}

impl Asking {
    /// Whether it waits for a person.
    pub fn is_pending(&self, now: UnixNanos) -> bool {
        self.status == ApprovalStatus::Pending && !self.expires_at.is_some_and(|end| now.is_after(end))
    }

    /// Whether a person may still decide it, or a call still collect it.
    pub fn is_live(&self, now: UnixNanos) -> bool {
        match self.status {
            ApprovalStatus::Pending => self.is_pending(now),
            ApprovalStatus::Approved => !self.grant_until.is_some_and(|end| now.is_after(end)),
            ApprovalStatus::Rejected | ApprovalStatus::Expired => false,
        }
    }
}

/// A finished run of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Finished {
    /// The run.
    pub run: RunId,
    /// When it ended.
    pub finished_at: Option<UnixNanos>,
    /// Why.
    pub reason: Option<Reason>,
    /// The reason in words: the note of a cancellation.
    pub detail: String,
    /// What its last attempt came to.
    pub outcome: AttemptOutcome,
    /// Its last step that executed.
    pub executed: Option<StepId>,
    /// Its latest approval and what a person noted on it.
    pub approval: Option<(ApprovalId, String)>,
}

/// What the newest attempt at a request came to.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum LastAttempt {
    /// No finished run made one.
    #[default]
    None,
    /// It is known.
    Known,
    /// It is not.
    Unknown(Attempt),
}

/// The session's other requests, as far as they stand in the way of a call.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Elsewhere {
    /// The oldest unfinished request to the same tool that must be dealt with first.
    pub obstacle: Option<Obstacle>,
    /// The oldest request to the same tool whose last attempt is unknown, with nothing waiting for a person and no
    /// person's rejection or cancellation since.
    pub unresolved: Option<Unresolved>,
    /// How many approvals wait for a person.
    pub pending: usize,
}

/// An unfinished request that stands in the way of every other call of its tool.
#[derive(Debug, Clone, PartialEq)]
pub enum Obstacle {
    /// A person is asked whether it runs again.
    Asked {
        /// With this approval.
        approval: ApprovalId,
    },
    /// A person was asked, and the time ran out.
    Expired {
        /// Its run.
        run: RunId,
        /// The approval.
        approval: ApprovalId,
    },
    /// Whoever ran it is gone.
    Abandoned {
        /// Its run.
        run: RunId,
    },
}

/// A request whose last attempt is unknown, with nothing about it waiting.
#[derive(Debug, Clone, PartialEq)]
pub struct Unresolved {
    /// The finished run that says so.
    pub run: RunId,
    /// Which request.
    pub key: RequestKey,
    /// The attempt.
    pub attempt: Attempt,
}

/// What becomes of a call.
#[derive(Debug, Clone, PartialEq)]
pub enum Ruling {
    /// It waits for a person.
    Hold {
        /// The run that waits.
        run: RunId,
        /// The approval.
        approval: ApprovalId,
    },
    /// A person said yes: attach, and execute what was recorded.
    Collect {
        /// The run that waits.
        run: RunId,
    },
    /// An approval's time ran out: attach, so that it is expired, and decide again.
    Expire {
        /// The run that waits.
        run: RunId,
        /// The approval.
        approval: ApprovalId,
    },
    /// It is being executed, or nothing can be said yet.
    InProgress,
    /// Whoever ran it is gone: attach, so that it pauses or ends, and decide again.
    Recover {
        /// The run that was left behind.
        run: RunId,
    },
    /// A finished run of the same request speaks for it.
    Refuse(Refused),
    /// Another request stands in its way.
    Blocked(Blocked),
    /// Another request's outcome is unknown and nobody is asked about it: ask, in a fresh run of that request, and
    /// block the call on that question.
    Reask(Unresolved),
    /// It begins.
    Begin(Begin),
}

/// Why a finished run refuses an identical call.
#[derive(Debug, Clone, PartialEq)]
pub enum Refused {
    /// A person rejected it.
    Rejected {
        /// The approval.
        approval: ApprovalId,
        /// What they noted.
        note: String,
        /// Until when identical requests are refused.
        until: UnixNanos,
        /// What had come of it by then.
        attempted: Attempted,
    },
    /// A person cancelled it.
    Cancelled {
        /// What they noted.
        note: String,
        /// Until when identical requests are refused.
        until: UnixNanos,
        /// What had come of it by then, or did later.
        attempted: Attempted,
    },
    /// Its approval ran out.
    Expired {
        /// The approval.
        approval: ApprovalId,
        /// Until when identical requests are refused.
        until: UnixNanos,
    },
    /// It executed.
    Duplicate {
        /// The run.
        run: RunId,
        /// The step that executed.
        step: StepId,
        /// When it was over.
        finished_at: UnixNanos,
    },
}

/// What a run that a person ended had attempted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempted {
    /// The run.
    pub run: RunId,
    /// What its last attempt came to.
    pub outcome: AttemptOutcome,
    /// Its last step that executed.
    pub executed: Option<StepId>,
}

/// What stands in the way of a call.
#[derive(Debug, Clone, PartialEq)]
pub enum Blocked {
    /// Another call of the tool, whose outcome is unknown.
    Unknown {
        /// The approval that asks about it.
        approval: ApprovalId,
    },
    /// As many approvals wait as the session allows.
    Cap {
        /// How many.
        max: usize,
    },
}

/// How a call begins.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Begin {
    /// The run of an open row that nobody began: it is begun under its id.
    pub reuse: Option<RunId>,
    /// The open row of a finished run, closed as the new row opens.
    pub closes: Option<i64>,
    /// The attempt that this run repeats, if a person agrees.
    pub rerun: Option<Attempt>,
}

/// A decision that must still hold inside the transaction that acts on it.
#[derive(Debug, Clone, PartialEq)]
pub struct Admission {
    /// The call.
    pub asked: Asked,
    /// How it begins.
    pub begin: Begin,
    /// Whether it is a question of the proxy's own about an unknown outcome, which only its request's rows decide.
    pub question: bool,
}

/// A write to the proxy's index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IndexWrite {
    /// A row for a new run of the key, closing the key's open row.
    Open {
        /// The proxy's session.
        session: SessionName,
        /// The request's key, or `invalid:<run id>`.
        key: RequestKey,
        /// The registered tool.
        tool: String,
        /// Its class.
        side_effect: SideEffect,
        /// The run.
        run_id: RunId,
        /// When.
        at: UnixNanos,
        /// The row to close.
        closes: Option<i64>,
    },
    /// What is cached of a row no longer holds: its run begins after all, or what its call came to is known only now.
    Unsettle {
        /// The run.
        run_id: RunId,
    },
    /// A run was seen finished.
    Settle {
        /// The run.
        run_id: RunId,
        /// What its last attempt came to.
        outcome: AttemptOutcome,
        /// When it was seen.
        at: UnixNanos,
    },
    /// A row whose run has not begun is settled with no attempt, unless it begins meanwhile.
    SettleEmpty {
        /// The run.
        run_id: RunId,
        /// When it was seen.
        at: UnixNanos,
    },
}

impl Begin {
    /// The write that gives the beginning run its row. A call without a key gets one that no other call matches.
    pub fn index_write(&self, asked: &Asked, run_id: &RunId) -> IndexWrite {
        if self.reuse.is_some() {
            return IndexWrite::Unsettle { run_id: run_id.clone() };
        }
        let key = asked.key.clone();
        IndexWrite::Open {
            session: asked.session.clone(),
            key: key.unwrap_or_else(|| RequestKey::from(format!("invalid:{run_id}"))),
            tool: asked.tool.clone(),
            side_effect: asked.class,
            run_id: run_id.clone(),
            at: asked.now,
            closes: self.closes,
        }
    }
}

#[cfg(test)]
mod tests;
