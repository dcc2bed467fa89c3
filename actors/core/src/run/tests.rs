//! The run's machine against the table of the specification, written out, and its stored form.

use super::RunStatus::{Cancelled, Completed, Failed, Interrupted, Running, WaitingForApproval as Waiting};
use super::*;

/// What may happen to a run, and where it then is; `None` where the specification has no such row.
///
/// The columns are the statuses in the order of [`RunStatus::ALL`]: running, waiting, interrupted, then the three ends.
const TABLE: &[(RunEvent, [Option<RunStatus>; 6])] = &[
    (RunEvent::Paused, [Some(Waiting), Some(Waiting), None, None, None, None]),
    (RunEvent::Resumed, [None, Some(Running), None, None, None, None]),
    (RunEvent::TakenOver, [Some(Running), None, Some(Running), None, None, None]),
    (RunEvent::Ended(Reason::GoalCompleted), [Some(Completed), None, None, None, None, None]),
    (RunEvent::Ended(Reason::GoalFailed), [Some(Failed), None, None, None, None, None]),
    (RunEvent::Ended(Reason::LimitSteps), [Some(Failed), None, None, None, None, None]),
    (RunEvent::Ended(Reason::LimitModelCalls), [Some(Failed), None, None, None, None, None]),
    (RunEvent::Ended(Reason::LimitTokens), [Some(Failed), None, None, None, None, None]),
    (RunEvent::Ended(Reason::LimitCost), [Some(Failed), None, None, None, None, None]),
    (RunEvent::Ended(Reason::LimitActiveTime), [Some(Failed), None, None, None, None, None]),
    (RunEvent::Ended(Reason::LimitElapsedTime), [Some(Failed), None, None, None, None, None]),
    (RunEvent::Ended(Reason::RepeatedToolFailures), [Some(Failed), None, None, None, None, None]),
    (RunEvent::Ended(Reason::LoopDetected), [Some(Failed), None, None, None, None, None]),
    (RunEvent::Ended(Reason::ModelUnavailable), [Some(Failed), None, None, None, None, None]),
    (RunEvent::Ended(Reason::PolicyAbort), [Some(Failed), Some(Failed), None, None, None, None]),
    (RunEvent::Ended(Reason::ToolAbort), [Some(Failed), None, None, None, None, None]),
    (RunEvent::Ended(Reason::ReconcileConflict), [Some(Failed), None, None, None, None, None]),
    (RunEvent::Ended(Reason::AgentError), [Some(Failed), None, None, None, None, None]),
    (RunEvent::Ended(Reason::InternalError), [Some(Failed), Some(Failed), None, None, None, None]),
    (RunEvent::Ended(Reason::ApprovalRejected), [None, Some(Cancelled), None, None, None, None]),
    (RunEvent::Ended(Reason::ApprovalExpired), [None, Some(Cancelled), None, None, None, None]),
    (
        RunEvent::Ended(Reason::OperatorCancelled),
        [Some(Cancelled), Some(Cancelled), Some(Cancelled), None, None, None],
    ),
];

#[test]
fn every_move_of_a_run_is_the_one_in_the_table_or_refused() {
    assert_eq!(TABLE.len(), 3 + Reason::ALL.len(), "every event has its row");
    for (event, row) in TABLE {
        for (from, to) in RunStatus::ALL.into_iter().zip(row) {
            let expected = to.ok_or(IllegalRunMove { from, event: *event });
            assert_eq!(from.after(*event), expected, "{from} by {event:?}");
        }
    }
}

#[test]
fn the_names_of_statuses_and_reasons_are_those_of_the_record() {
    let names = ["RUNNING", "WAITING_FOR_APPROVAL", "INTERRUPTED", "COMPLETED", "FAILED", "CANCELLED"];
    for (status, name) in RunStatus::ALL.into_iter().zip(names) {
        assert_eq!(status.to_string(), name);
        assert_eq!(RunStatus::parse(name), Some(status));
    }
    assert_eq!(RunStatus::parse("running"), None);
    assert!(RunStatus::NOT_TERMINAL.into_iter().all(|status| !status.is_terminal()));
    assert_eq!(RunStatus::ALL.into_iter().filter(|status| status.is_terminal()).count(), 3);

    let reasons = [
        ("goal_completed", Completed),
        ("goal_failed", Failed),
        ("limit_steps", Failed),
        ("limit_model_calls", Failed),
        ("limit_tokens", Failed),
        ("limit_cost", Failed),
        ("limit_active_time", Failed),
        ("limit_elapsed_time", Failed),
        ("repeated_tool_failures", Failed),
        ("loop_detected", Failed),
        ("model_unavailable", Failed),
        ("policy_abort", Failed),
        ("tool_abort", Failed),
        ("reconcile_conflict", Failed),
        ("agent_error", Failed),
        ("internal_error", Failed),
        ("approval_rejected", Cancelled),
        ("approval_expired", Cancelled),
        ("operator_cancelled", Cancelled),
    ];
    assert_eq!(Reason::ALL.len(), reasons.len());
    for (reason, (name, status)) in Reason::ALL.iter().zip(reasons) {
        assert_eq!((reason.to_string().as_str(), reason.status()), (name, status));
        assert_eq!(Reason::parse(name), Some(*reason));
        assert!(status.is_terminal());
    }
    assert_eq!(Reason::parse(""), None);
    assert_eq!(Interrupted.as_str(), "INTERRUPTED");
}

#[test]
fn the_default_limits_are_fifty_steps_three_failures_and_three_repeats() {
    let limits = Limits::default();
    assert_eq!(limits.to_json(), r#"{"max_steps":50,"max_consecutive_tool_failures":3,"loop_threshold":3}"#);
    limits.check().unwrap();
}

#[test]
fn limits_are_stored_in_the_order_of_their_fields_and_zero_caps_are_left_out() {
    let limits = Limits {
        max_steps: 1,
        max_consecutive_tool_failures: 2,
        loop_threshold: 3,
        max_model_calls: 4,
        max_output_tokens_per_call: 5,
        max_total_tokens: 6,
        max_estimated_cost_micros: 7,
        max_active_time: 8,
        max_elapsed_time: 9,
        ..Limits::default()
    }
    .approval_ttl(Duration::from_secs(600))
    .grant_ttl(Duration::from_millis(1));
    let stored = concat!(
        r#"{"max_steps":1,"max_consecutive_tool_failures":2,"loop_threshold":3,"max_model_calls":4,"#,
        r#""max_output_tokens_per_call":5,"max_total_tokens":6,"max_estimated_cost_micros":7,"max_active_time":8,"#,
        r#""max_elapsed_time":9,"approval_ttl":600000000000,"grant_ttl":1000000}"#
    );
    assert_eq!(limits.to_json(), stored);
    assert_eq!(Limits::parse(stored).unwrap(), limits);
}

#[test]
fn limits_of_an_older_version_have_no_grant_expiry() {
    let old =
        Limits::parse(r#"{"max_steps":10,"max_consecutive_tool_failures":3,"loop_threshold":5,"new":1}"#)
            .unwrap();
    assert_eq!((old.grant_ttl, old.approval_ttl, old.max_steps), (0, 0, 10));
    assert!(Limits::parse("{").is_err());
    assert!(Limits::parse(r#"{"max_steps":"ten"}"#).is_err());
}

#[test]
fn limits_that_would_end_a_run_before_it_began_are_refused() {
    for field in ["max_steps", "max_consecutive_tool_failures", "loop_threshold"] {
        for value in [0, -1, i64::MIN] {
            let mut limits = Limits::default();
            match field {
                "max_steps" => limits.max_steps = value,
                "loop_threshold" => limits.loop_threshold = value,
                _ => limits.max_consecutive_tool_failures = value,
            }
            assert_eq!(limits.check(), Err(format!("{field} is {value}; it must be positive")));
        }
    }
}

#[test]
fn a_lease_is_live_until_its_expiry_and_not_at_it() {
    let lease = Lease { owner: LeaseOwner::from("a"), expires_at: UnixNanos::from_nanos(10) };
    assert!(lease.is_live(UnixNanos::from_nanos(9)));
    assert!(!lease.is_live(UnixNanos::from_nanos(10)));
}
