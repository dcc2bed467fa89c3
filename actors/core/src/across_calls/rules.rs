//! The rules, in their order.
//!
//! 1 to 3 look at the request's own unfinished run, 4 and 5 at its finished runs within the window, 6 at its newest
//! attempt of any age, and the session's rules at the other requests to the tool and at the approvals that wait.

use super::{
    Admission, Asked, Attempted, Begin, Blocked, Elsewhere, Finished, LastAttempt, Obstacle, OpenRow, Own,
    Refused, Ruling, RunState, View,
};
use crate::approval::ApprovalStatus;
use crate::attempt::AttemptOutcome;
use crate::policy::Outcome;
use crate::run::{Lease, Reason};
use crate::time::UnixNanos;

/// Decides a call.
pub fn decide(asked: &Asked, view: &View) -> Ruling {
    if asked.key.is_none() {
        // Nothing can be compared with it; the gate will find it invalid.
        return Ruling::Begin(Begin::default());
    }
    if let Some(ruling) = view.own.open.as_ref().and_then(|open| unfinished(open, asked)) {
        return ruling;
    }
    if let Some(refused) = refusal(asked, &view.own.recent) {
        return Ruling::Refuse(refused);
    }
    let begin = beginning(asked, &view.own);
    match view.elsewhere.as_ref().and_then(|elsewhere| session_rules(asked, &begin, elsewhere)) {
        Some(ruling) => ruling,
        None => Ruling::Begin(begin),
    }
}

/// How the proxy's own question about a request's unknown outcome begins; `None` when there is nothing to ask, or
/// when something about the request is unfinished.
pub fn ask_again(asked: &Asked, own: &Own) -> Option<Begin> {
    let finished = own.open.as_ref().is_none_or(|open| match open.state {
        RunState::Absent | RunState::Finished => true,
        RunState::Waiting { .. } | RunState::Running { .. } => false,
    });
    let begin = beginning(asked, own);
    (finished && begin.rerun.is_some()).then_some(begin)
}

/// Whether a decision still holds, judged by a view that was read inside the transaction that acts on it.
pub fn holds(admission: &Admission, view: &View) -> bool {
    if admission.question {
        return ask_again(&admission.asked, &view.own).as_ref() == Some(&admission.begin);
    }
    match decide(&admission.asked, view) {
        Ruling::Begin(begin) => begin == admission.begin,
        Ruling::Hold { .. }
        | Ruling::Collect { .. }
        | Ruling::Expire { .. }
        | Ruling::InProgress
        | Ruling::Recover { .. }
        | Ruling::Refuse(_)
        | Ruling::Blocked(_)
        | Ruling::Reask(_) => false,
    }
}

/// Rules 1 to 3: the request's own run, unless it is over or was never begun.
fn unfinished(open: &OpenRow, asked: &Asked) -> Option<Ruling> {
    let now = asked.now;
    let run = || open.run.clone();
    match &open.state {
        RunState::Absent | RunState::Finished => None,
        RunState::Running { lease } => Some(if is_live(lease.as_ref(), asked.wall) {
            Ruling::InProgress
        } else {
            Ruling::Recover { run: run() }
        }),
        RunState::Waiting { approval: None } => Some(Ruling::InProgress),
        RunState::Waiting { approval: Some(asking) } => Some(match asking.status {
            ApprovalStatus::Pending if asking.is_pending(now) => {
                Ruling::Hold { run: run(), approval: asking.id.clone() }
            }
            ApprovalStatus::Pending => Ruling::Expire { run: run(), approval: asking.id.clone() },
            ApprovalStatus::Approved => Ruling::Collect { run: run() },
            // Its run ends in the same transaction, so this is a record that nobody here wrote.
            ApprovalStatus::Rejected | ApprovalStatus::Expired => Ruling::InProgress,
        }),
    }
}

fn is_live(lease: Option<&Lease>, now: UnixNanos) -> bool {
    lease.is_some_and(|lease| lease.is_live(now))
}

/// What one finished run says about an identical call.
#[derive(Debug, Clone, PartialEq)]
pub enum Scan {
    /// It is refused.
    Refuse(Refused),
    /// Neither this run nor an older one refuses it.
    Stop,
    /// The next older run is looked at.
    Older,
}

/// Rules 4 and 5: the newest finished run that decides anything decides.
fn refusal(asked: &Asked, recent: &[Finished]) -> Option<Refused> {
    for run in recent {
        match judge_finished(asked, run) {
            Scan::Refuse(refused) => return Some(refused),
            Scan::Stop => return None,
            Scan::Older => {}
        }
    }
    None
}

/// What one finished run of the request says about the call.
pub fn judge_finished(asked: &Asked, run: &Finished) -> Scan {
    if asked.window.is_zero() {
        return Scan::Stop;
    }
    let Some(finished_at) = run.finished_at.filter(|end| *end >= asked.window_start()) else {
        return Scan::Older;
    };
    let until = finished_at.plus(asked.window);
    let attempted = Attempted { run: run.run.clone(), outcome: run.outcome, executed: run.executed.clone() };
    match (run.reason, &run.approval) {
        (Some(Reason::ApprovalRejected), Some((approval, note))) => {
            let (approval, note) = (approval.clone(), note.clone());
            return Scan::Refuse(Refused::Rejected { approval, note, until, attempted });
        }
        // An expiry resolves no unknown outcome: rule 6 asks again.
        (Some(Reason::ApprovalExpired), _) if run.outcome == AttemptOutcome::Unknown => return Scan::Stop,
        (Some(Reason::ApprovalExpired), Some((approval, _))) => {
            return Scan::Refuse(Refused::Expired { approval: approval.clone(), until });
        }
        (Some(Reason::OperatorCancelled), _) => {
            return Scan::Refuse(Refused::Cancelled { note: run.detail.clone(), until, attempted });
        }
        (_, _) => {}
    }
    if asked.class.is_read() {
        return Scan::Older;
    }
    match (run.outcome, &run.executed) {
        (AttemptOutcome::Known, Some(step)) => {
            Scan::Refuse(Refused::Duplicate { run: run.run.clone(), step: step.clone(), finished_at })
        }
        (AttemptOutcome::Unknown, _) => Scan::Stop,
        (AttemptOutcome::Known, None) | (AttemptOutcome::None | AttemptOutcome::Unseen, _) => Scan::Older,
    }
}

/// Rule 6 and the row: how the request begins once nothing refuses it.
fn beginning(asked: &Asked, own: &Own) -> Begin {
    let mut begin = Begin::default();
    if let Some(open) = &own.open {
        match open.state {
            RunState::Absent => begin.reuse = Some(open.run.clone()),
            RunState::Finished | RunState::Waiting { .. } | RunState::Running { .. } => {
                begin.closes = Some(open.id);
            }
        }
    }
    match &own.last {
        LastAttempt::Unknown(attempt) if !asked.class.is_read() => begin.rerun = Some(attempt.clone()),
        LastAttempt::Unknown(_) | LastAttempt::Known | LastAttempt::None => {}
    }
    begin
}

/// The session's rules: what of other requests stands in the way.
fn session_rules(asked: &Asked, begin: &Begin, elsewhere: &Elsewhere) -> Option<Ruling> {
    let rerun = begin.rerun.is_some();
    if !asked.meets_session_rules(rerun) {
        return None;
    }
    if !asked.class.is_read() {
        match &elsewhere.obstacle {
            Some(Obstacle::Asked { approval }) => {
                return Some(Ruling::Blocked(Blocked::Unknown { approval: approval.clone() }));
            }
            Some(Obstacle::Expired { run, approval }) => {
                return Some(Ruling::Expire { run: run.clone(), approval: approval.clone() });
            }
            Some(Obstacle::Abandoned { run }) => return Some(Ruling::Recover { run: run.clone() }),
            None => {}
        }
        // A tool that the policy denies is not blocked: the call is denied anyway.
        let denied = matches!(asked.outcome, Outcome::Deny | Outcome::Abort);
        if let Some(unresolved) = elsewhere.unresolved.as_ref().filter(|_| !denied) {
            return Some(Ruling::Reask(unresolved.clone()));
        }
    }
    (asked.needs_approval(rerun) && elsewhere.pending >= asked.max_pending)
        .then_some(Ruling::Blocked(Blocked::Cap { max: asked.max_pending }))
}
