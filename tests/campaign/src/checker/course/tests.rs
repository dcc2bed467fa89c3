//! The courses that there are, and those that there are not.

use serde_json::json;

use super::*;
use crate::checker::record;

/// A call that a person approved, from its beginning to its end.
fn approved() -> Vec<Event> {
    let decision = json!({"kind": "tool_call", "tool": "pay", "args": {"n": 1}});
    let policy = |approvals: u64| json!({"outcome": "require_approval", "capability": {"n": 1}, "view": {"step_count": 1, "approvals": approvals}});
    let asked = json!({"approval_id": "a", "kind": "remote_mutation", "capability": {"n": 1}});
    let started = json!({"tool": "pay", "args": {"n": 1}, "approval_id": "a"});
    let told = [
        ("", "run.created", json!({})),
        ("", "run.started", json!({})),
        ("s", "step.started", json!({"index": 0})),
        ("s", "step.decided", decision),
        ("s", "step.policy", policy(0)),
        ("s", "approval.requested", asked),
        ("s", "approval.decided", json!({"approval_id": "a", "status": "approved", "by": "ana"})),
        ("s", "run.resumed", json!({"approval_id": "a"})),
        ("s", "step.policy", policy(1)),
        ("s", "step.tool_started", started),
        ("s", "step.tool_finished", json!({"tool": "pay"})),
        ("", "run.finished", json!({"status": "COMPLETED", "reason": "goal_completed", "steps": 1})),
    ];
    let event = |(seq, (step, kind, payload)): (i64, (&str, &str, Value))| Event {
        seq,
        run: "r".to_owned(),
        step: step.to_owned(),
        at: String::new(),
        kind: kind.to_owned(),
        payload_text: payload.to_string(),
        payload,
        hash: String::new(),
    };
    (1..).zip(told).map(event).collect()
}

fn found(events: Vec<Event>) -> Vec<Violation> {
    look(&Record { events, ..Record::default() }, true)
}

#[test]
fn a_call_that_a_person_approved_takes_a_course_that_there_is() {
    assert!(found(approved()).is_empty(), "{:?}", found(approved()));
}

#[test]
fn every_event_that_is_left_out_or_comes_twice_is_noticed() {
    let whole = approved();
    // That the last one is missing shows in the run's row.
    for at in 0..whole.len() - 1 {
        let mut events = whole.clone();
        let gone = events.remove(at);
        assert!(!found(events).is_empty(), "{} was left out", gone.kind);
    }
    for at in (0..whole.len()).filter(|at| whole[*at].kind != "step.policy") {
        let mut events = whole.clone();
        events.insert(at, events[at].clone());
        assert!(!found(events).is_empty(), "{} came twice", whole[at].kind);
    }
}

#[test]
fn a_start_that_nobody_allowed_is_noticed() {
    let changed: [(usize, &str, Value); 5] = [
        (3, "args", json!({"n": 2})),
        (6, "status", json!("rejected")),
        (8, "capability", json!({"n": 2})),
        (9, "approval_id", json!("b")),
        (11, "reason", json!("approval_rejected")),
    ];
    for (at, key, value) in changed {
        let mut events = approved();
        events[at].payload[key] = value.clone();
        assert!(!found(events).is_empty(), "{key} of event {} is {value}", at + 1);
    }
}

#[test]
fn a_run_that_nobody_or_somebody_unnamed_cancelled_is_noticed() {
    let ends = |status: &str, reason: &str, by: &str| {
        let mut events = approved();
        events[11].payload = json!({"status": status, "reason": reason, "by": by, "steps": 1});
        found(events).len()
    };
    assert_eq!(ends("CANCELLED", "operator_cancelled", "ana"), 0);
    assert_eq!(ends("CANCELLED", "operator_cancelled", ""), 1);
    assert_eq!(ends("COMPLETED", "goal_completed", "ana"), 1);
}

#[test]
fn a_takeover_from_who_did_not_hold_the_run_is_noticed() {
    let taken = |from: &str, by: &str| {
        let mut event = approved()[1].clone();
        event.kind = "lease.taken_over".to_owned();
        event.payload = json!({"previous_owner": from, "owner": by});
        event
    };
    let begun = approved()[..2].to_vec();
    let with = |events: [Event; 2]| [begun.clone(), events.to_vec()].concat();
    assert!(found(with([taken("a", "b"), taken("b", "c")])).is_empty());
    assert!(!found(with([taken("a", "b"), taken("a", "c")])).is_empty());
}

#[test]
fn a_run_that_was_taken_over_is_its_takers_unless_they_may_give_it_up() {
    let held = |id: &str, by: &str| {
        let mut events = approved()[..2].to_vec();
        let payloads = [json!({"previous_owner": "a", "owner": "b"}), json!({"after": "interruption"})];
        for (kind, payload) in ["lease.taken_over", "run.resumed"].into_iter().zip(payloads) {
            let last = events[1].clone();
            events.push(Event { kind: kind.to_owned(), payload, ..last });
        }
        events.iter_mut().for_each(|event| event.run = id.to_owned());
        let run = record::Run {
            id: id.to_owned(),
            status: "RUNNING".to_owned(),
            owner: by.to_owned(),
            ..record::Run::default()
        };
        look(&Record { events, runs: vec![run], ..Record::default() }, false).len()
    };
    assert_eq!(["b", "c", ""].map(|by| held("s.1", by)), [0, 1, 1]);
    // Given up, and begun again by somebody else, or by nobody.
    assert_eq!(["b", "c", ""].map(|by| held("embedded-1", by)), [0, 0, 0]);
}

fn held(runs: &[(&str, &str)]) -> Vec<Violation> {
    let run = |(id, owner): &(&str, &str)| record::Run {
        id: (*id).to_owned(),
        status: "RUNNING".to_owned(),
        owner: (*owner).to_owned(),
        ..record::Run::default()
    };
    look(&Record { runs: runs.iter().map(run).collect(), ..Record::default() }, true)
}

#[test]
fn a_holder_that_is_of_another_session_or_holds_two_or_has_no_such_name_is_noticed() {
    let (one, other) = ("proxy:s:1f/0123456789ab", "proxy:s:1f/0123456789ac");
    assert!(held(&[("s.1", one), ("s.2", other), ("embedded-1", "service:2/0123456789ab")]).is_empty());
    for wrong in [one, "proxy:s:1f/0123456789", "proxy:t:1f/0123456789ac", "s"] {
        let found = held(&[("s.1", one), ("s.2", wrong)]);
        assert!(matches!(&*found, [Violation { property: Property::Course, .. }]), "{wrong}: {found:?}");
    }
}

#[test]
fn a_holder_that_comes_back_is_noticed() {
    let taken = |from: &str, by: &str| {
        let mut event = approved()[1].clone();
        event.kind = "lease.taken_over".to_owned();
        event.payload = json!({"previous_owner": from, "owner": by});
        event
    };
    let mut events = approved()[..2].to_vec();
    events.extend([taken("a", "b"), taken("b", "a")]);
    assert_eq!(found(events).len(), 1);
}

#[test]
fn a_run_that_its_holder_ended_is_settled_in_the_index_and_one_that_goes_on_is_not() {
    let with = |settled: bool, outcome: i64, end: Option<(&str, &str)>| {
        let mut events = approved();
        match end {
            Some((status, reason)) => {
                let last = events.last_mut().unwrap();
                last.payload["status"] = json!(status);
                last.payload["reason"] = json!(reason);
                last.payload["by"] = json!(if status == "CANCELLED" { "ana" } else { "" });
            }
            None => drop(events.pop()),
        }
        let call = record::Call {
            run: "r".to_owned(),
            session: "s".to_owned(),
            open: true,
            settled,
            outcome,
            ..record::Call::default()
        };
        let found = look(&Record { events, calls: vec![call], ..Record::default() }, true);
        let told = found
            .iter()
            .filter(|violation| {
                violation.detail.contains("settled without") || violation.detail.contains("is not settled")
            })
            .count();
        assert!(found.iter().all(|violation| violation.property == Property::Tables), "{found:?}");
        told
    };
    let (done, cancelled) =
        (Some(("COMPLETED", "goal_completed")), Some(("CANCELLED", "operator_cancelled")));
    assert_eq!((with(true, 2, done), with(false, 0, None), with(false, 0, cancelled)), (0, 0, 0));
    assert_eq!((with(false, 0, done), with(true, 0, done), with(false, 2, cancelled)), (1, 1, 1));
}
