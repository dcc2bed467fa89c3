//! What people are asked: whether it can be acted on, and whether what they are shown is what would run.
//!
//! Follows sections 5.1 and 5.5 of the specification, and 2.10 of the proxy's: a presentation is the capability's fields
//! beside words for a person, and an interruption names the attempt that it asks about. An embedder's policy words its
//! questions as it likes, so only what every question has is asked of them.

use std::collections::HashMap;

use serde_json::Value;

use super::record::{Approval, Record};
use super::{EMBEDDED, Property, Violation, canon, canonical};

/// What asks about a call that was cut off, or whose answer nobody knows.
const INTERRUPTION: &str = "interrupted_side_effect";

/// Looks for questions that nobody can answer, or that say something else than what they grant.
pub(super) fn look(record: &Record) -> Vec<Violation> {
    let mut wrong: Vec<String> =
        record.approvals.iter().flat_map(|approval| of_one(record, approval)).collect();
    wrong.extend(attempts(record));
    for run in record.runs.iter().filter(|run| run.status == "WAITING_FOR_APPROVAL") {
        let latest = record.approvals.iter().rfind(|approval| approval.run == run.id);
        let step = latest.and_then(|approval| record.steps.iter().find(|step| step.id == approval.step));
        let open = latest.is_some_and(|approval| matches!(&*approval.status, "pending" | "approved"));
        if !open || step.is_none_or(|step| step.status != "awaiting_approval") {
            wrong.push(format!("run {} waits for nothing that can be decided", run.id));
        }
    }
    wrong.into_iter().map(|detail| Violation { property: Property::Question, detail }).collect()
}

fn of_one(record: &Record, approval: &Approval) -> Vec<String> {
    let Approval { kind, capability, presentation, request, .. } = approval;
    let mut wrong = Vec::new();
    let mut must = |holds: bool, why: &str| {
        if !holds {
            wrong.push(format!("approval {} {why}: {approval:?}", approval.id));
        }
    };
    let hash = canon::approval_hash(kind, capability, presentation, request);
    must(hash.as_deref() == Some(&*approval.hash), "does not hash to its hash");
    let [capability, shown, request] = [capability, presentation, request]
        .map(|text| serde_json::from_str::<Value>(text).unwrap_or_default());
    let of = (&request["run_id"], &request["step_id"]);
    must(
        of == (&Value::from(&*approval.run), &Value::from(&*approval.step)),
        "is of another step than it asks about",
    );
    // A proxy names its tool there, beside the server's; an embedder has one name for it.
    let named = capability.get("name").unwrap_or(&capability["tool"]);
    let same =
        *named == request["spec"]["name"] && canonical(&capability["args"]) == canonical(&request["args"]);
    must(same, "grants another call than it asks for");
    let step = record.steps.iter().find(|step| step.id == approval.step);
    let decided = step.is_none_or(|step| {
        step.decision["tool"] == *named && canonical(&step.decision["args"]) == canonical(&request["args"])
    });
    must(decided, "asks for another call than was decided");
    if !approval.run.starts_with(EMBEDDED) {
        let fields = capability.as_object().into_iter().flatten();
        let is_shown = |(name, value): (&String, &Value)| canonical(value) == canonical(&shown[name]);
        must(fields.into_iter().all(is_shown), "is shown otherwise than it is granted");
    }
    wrong
}

/// An interruption asks about an attempt that there was, of the same call, and never about a read.
fn attempts(record: &Record) -> Vec<String> {
    let mut wrong = Vec::new();
    // What was started so far, by its step.
    let mut started: HashMap<&str, (&str, String)> = HashMap::new();
    for event in &record.events {
        let call = |value: &Value| format!("{} {}", value["tool"], canonical(&value["args"]));
        if event.kind == "step.tool_started" {
            started.insert(&event.step, (&event.run, call(&event.payload)));
        }
        if event.kind != "approval.requested" || event.payload["kind"] != INTERRUPTION {
            continue;
        }
        let mut granted = event.payload["capability"].clone();
        if let Some(name) = granted.get("name").cloned() {
            granted["tool"] = name;
        }
        let attempt = &granted["interrupted"];
        let (run, step) = match (attempt["run_id"].as_str(), attempt["step_id"].as_str()) {
            (Some(run), Some(step)) => (run, step),
            _ => (&*event.run, &*event.step),
        };
        let was = started.get(step).is_some_and(|(of, what)| *of == run && *what == call(&granted));
        if !was || granted["side_effect"] == "read_only" {
            wrong.push(format!(
                "the question at {} asks about what was never tried: {}",
                event.seq, event.payload
            ));
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::record::{Event, Step};
    use super::*;

    /// A question about a payment as a proxy asks it, with one change to what is stored.
    fn asked(change: impl Fn(&mut Value, &mut Value, &mut Value)) -> Vec<Violation> {
        let args = json!({"amount": 40});
        let mut capability = json!({"server": "bank", "tool": "pay", "name": "bank_pay", "args": args});
        let mut shown = capability.clone();
        shown["question"] = json!("May it?");
        let mut request =
            json!({"run_id": "s.1", "step_id": "t", "spec": {"name": "bank_pay"}, "args": args});
        change(&mut capability, &mut shown, &mut request);
        let [capability, presentation, request] = [capability, shown, request].map(|value| value.to_string());
        let hash = canon::approval_hash("k", &capability, &presentation, &request).unwrap();
        let [run, id, kind, step] = ["s.1", "a", "k", "t"].map(str::to_owned);
        let approval =
            Approval { id, run, step, kind, capability, presentation, request, hash, ..Approval::default() };
        let decision = json!({"tool": "bank_pay", "args": args});
        let steps = vec![Step { id: "t".to_owned(), decision, ..Step::default() }];
        look(&Record { approvals: vec![approval], steps, ..Record::default() })
    }

    #[test]
    fn a_question_that_is_shown_or_granted_otherwise_than_it_was_decided_is_noticed() {
        assert!(asked(|_, _, _| {}).is_empty());
        let other = json!({"amount": 4_000});
        let found = [
            asked(|_, shown, _| shown["args"] = json!({})),
            asked(|granted, shown, _| (granted["args"], shown["args"]) = (other.clone(), other.clone())),
            asked(|granted, shown, request| {
                (granted["args"], shown["args"], request["args"]) =
                    (other.clone(), other.clone(), other.clone());
            }),
            asked(|granted, _, _| granted["fixed"] = json!({"to": "ana"})),
            asked(|_, _, request| request["step_id"] = json!("u")),
        ];
        for found in found {
            assert!(matches!(&*found, [Violation { property: Property::Question, .. }]), "{found:?}");
        }
    }

    #[test]
    fn an_interruption_names_an_attempt_that_there_was() {
        let asks = |tried: &str, class: &str, with: &Value| {
            let attempt = json!({"run_id": "s.1", "step_id": "t"});
            let granted =
                json!({"name": "bank_pay", "args": with, "side_effect": class, "interrupted": attempt});
            let told = [
                ("s.1", tried, "step.tool_started", json!({"tool": "bank_pay", "args": {"amount": 40}})),
                ("s.2", "u", "approval.requested", json!({"kind": INTERRUPTION, "capability": granted})),
            ];
            let event = |(seq, (run, step, kind, payload)): (i64, (&str, &str, &str, Value))| Event {
                seq,
                run: run.to_owned(),
                step: step.to_owned(),
                at: String::new(),
                kind: kind.to_owned(),
                payload_text: payload.to_string(),
                payload,
                hash: String::new(),
            };
            look(&Record { events: (1..).zip(told).map(event).collect(), ..Record::default() }).len()
        };
        let args = json!({"amount": 40});
        assert_eq!(asks("t", "remote_mutation", &args), 0);
        assert_eq!(asks("v", "remote_mutation", &args), 1);
        assert_eq!(asks("t", "read_only", &args), 1);
        assert_eq!(asks("t", "remote_mutation", &json!({})), 1);
    }
}
