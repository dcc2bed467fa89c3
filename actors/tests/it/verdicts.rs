//! Driving a session, and what a test expects of its answers.

use std::sync::Arc;

use holdpoint_actors::session::{Attached, OpenStep, Session, SessionError, Verdict};
use holdpoint_core::approval::Approval;
use holdpoint_core::decision::Proposal;
use holdpoint_core::run::{Reason, Run, RunStatus};
use holdpoint_core::step::Observation;
use holdpoint_core::tool::ToolRequest;

/// Starts the next step and proposes.
pub(crate) async fn propose(session: &Session, proposal: Proposal) -> (OpenStep, Verdict) {
    let step = session.step().await.unwrap().expect("a step");
    let verdict = step.propose(proposal).await.unwrap();
    (step, verdict)
}

/// Starts the next step, proposes, and executes what is allowed.
pub(crate) async fn act(session: &Session, proposal: Proposal) -> Observation {
    let (step, verdict) = propose(session, proposal).await;
    allowed(&verdict);
    step.execute().await.unwrap().observation
}

/// A loop that the runtime does not own: it proposes the decision for each step's index and executes what is allowed,
/// until the session is over. It gives the last verdict.
pub(crate) async fn drive(session: &Session, decisions: &[Proposal]) -> Option<Verdict> {
    let mut last = None;
    while !session.done().await {
        let Some(step) = session.step().await.unwrap() else { break };
        let index = usize::try_from(step.index()).unwrap();
        let verdict = step.propose(decisions[index].clone()).await.unwrap();
        if let Verdict::Allowed { .. } = &verdict {
            step.execute().await.unwrap();
        }
        last = Some(verdict);
    }
    last
}

#[track_caller]
pub(crate) fn allowed(verdict: &Verdict) -> &ToolRequest {
    match verdict {
        Verdict::Allowed { request } => request,
        other @ (Verdict::Denied { .. } | Verdict::Pending { .. } | Verdict::Ended { .. }) => {
            panic!("it was not allowed: {other:?}")
        }
    }
}

#[track_caller]
pub(crate) fn denied(verdict: Verdict) -> Observation {
    match verdict {
        Verdict::Denied { observation } => observation,
        other @ (Verdict::Allowed { .. } | Verdict::Pending { .. } | Verdict::Ended { .. }) => {
            panic!("it was not denied: {other:?}")
        }
    }
}

#[track_caller]
pub(crate) fn pending(verdict: Verdict) -> Arc<Approval> {
    match verdict {
        Verdict::Pending { approval, .. } => approval,
        other @ (Verdict::Allowed { .. } | Verdict::Denied { .. } | Verdict::Ended { .. }) => {
            panic!("it does not wait: {other:?}")
        }
    }
}

#[track_caller]
pub(crate) fn ended(verdict: Verdict) -> Run {
    match verdict {
        Verdict::Ended { run } => run,
        other @ (Verdict::Allowed { .. } | Verdict::Denied { .. } | Verdict::Pending { .. }) => {
            panic!("it did not end: {other:?}")
        }
    }
}

#[track_caller]
pub(crate) fn granted(attached: Result<Attached, SessionError>) -> (Session, OpenStep) {
    match attached {
        Ok(Attached::Allowed(session, step)) => (session, step),
        other => panic!("nothing to collect: {other:?}"),
    }
}

#[track_caller]
pub(crate) fn open(attached: Result<Attached, SessionError>) -> Session {
    match attached {
        Ok(Attached::Open(session)) => session,
        other => panic!("it is not open: {other:?}"),
    }
}

#[track_caller]
pub(crate) fn asks(attached: Result<Attached, SessionError>) -> Arc<Approval> {
    match attached {
        Ok(Attached::Pending(approval, run)) => {
            assert_eq!(run.status, RunStatus::WaitingForApproval);
            approval
        }
        other => panic!("it does not ask: {other:?}"),
    }
}

#[track_caller]
pub(crate) fn over(attached: Result<Attached, SessionError>) -> Run {
    match attached {
        Ok(Attached::Ended(run)) => run,
        other => panic!("it is not over: {other:?}"),
    }
}

#[track_caller]
pub(crate) fn is_run_state<T: std::fmt::Debug>(result: Result<T, SessionError>) {
    assert!(matches!(result, Err(SessionError::RunState { .. })), "{result:?}");
}

#[track_caller]
pub(crate) fn is_lease_lost<T: std::fmt::Debug>(result: Result<T, SessionError>) {
    assert!(matches!(result, Err(SessionError::LeaseLost(_))), "{result:?}");
}

#[track_caller]
pub(crate) fn is_closed<T: std::fmt::Debug>(result: Result<T, SessionError>) {
    assert!(matches!(result, Err(SessionError::Closed { .. })), "{result:?}");
}

#[track_caller]
pub(crate) fn is(run: &Run, status: RunStatus, reason: Reason) {
    assert_eq!((run.status, run.reason), (status, Some(reason)), "{}", run.reason_detail);
}
