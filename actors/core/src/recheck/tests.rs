//! Rebuilding and comparing, event by event, and the sums over many runs.

use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::approval::{Approval, ApprovalStatus};
use crate::decision::Proposal;
use crate::event::{Event, EventKind};
use crate::ids::{ApprovalHash, RunId};
use crate::json::Json;
use crate::policy::PolicyDecision;
use crate::step::Step;
use crate::time::UnixNanos;
use crate::tool::{SideEffect, ToolSpec};

fn at(seq: i64) -> UnixNanos {
    UnixNanos::from_nanos(seq * 1_000_000_000)
}

fn event(seq: i64, kind: EventKind, step: &str, payload: Value) -> Event {
    Event {
        seq,
        run_id: "r".into(),
        step_id: step.to_owned(),
        at: Some(at(seq)),
        kind: kind.as_str().to_owned(),
        payload: payload.to_string(),
    }
}

fn spec() -> ToolSpec {
    ToolSpec {
        name: "push".to_owned(),
        description: String::new(),
        input_schema: Json::empty_object(),
        side_effect: SideEffect::RemoteMutation,
        timeout: Duration::from_secs(1),
        terminal: false,
    }
}

fn policy_event(seq: i64, step: &str, outcome: &str, approvals: usize) -> Event {
    let view = json!({"status": "RUNNING", "step_count": 1, "steps": 0, "approvals": approvals});
    let payload = json!({"outcome": outcome, "kind": "k", "policy_id": "v1", "view": view,
        "spec_hash": spec().recorded().hash.as_str()});
    event(seq, EventKind::StepPolicy, step, payload)
}

/// A record of one step whose call the policy judged as the events say.
fn record(events: &[Event]) -> Record {
    let mut record = Record::new("r".into(), "COMPLETED");
    let created = event(1, EventKind::RunCreated, "", json!({"goal": "g", "limits": {}, "tools": []}));
    for event in [&created].into_iter().chain(events) {
        record.read_event(event);
    }
    let mut step = Step::begun("s".into(), "r".into(), 0, at(2));
    step.decision = Some(Proposal::tool_call("push", "{}").recorded());
    record.read_step(step);
    let spec = spec().recorded();
    record.read_spec(spec.hash.clone(), Ok(Some(spec)));
    record
}

fn approval(id: &str, status: ApprovalStatus) -> Approval {
    Approval {
        id: id.into(),
        run_id: "r".into(),
        step_id: "s".into(),
        kind: "k".to_owned(),
        capability: Json::empty_object(),
        presentation: Json::empty_object(),
        request: None,
        hash: ApprovalHash::from("h"),
        status,
        created_at: at(3),
        expires_at: None,
        decided_at: Some(at(9)),
        decided_by: "ana".to_owned(),
        note: "fine".to_owned(),
        decode_error: None,
    }
}

fn questions(record: &Record) -> Vec<Question> {
    record
        .rebuild()
        .map(|rebuilt| match rebuilt {
            Rebuilt::Question(question) => *question,
            Rebuilt::Settled(evaluation) => panic!("it can't be asked: {evaluation:?}"),
        })
        .collect()
}

fn report(run: &str, policy_id: &str, answers: &[(&str, &str, Option<PolicyDecision>)]) -> Report {
    let evaluations = answers.iter().enumerate().map(|(place, (tool, recorded, now))| {
        let mut record = record(&[policy_event(i64::try_from(place).unwrap() + 5, "s", recorded, 0)]);
        record.steps.clear();
        let mut step = Step::begun("s".into(), "r".into(), 0, at(2));
        step.decision = Some(Proposal::tool_call(*tool, "{}").recorded());
        record.read_step(step);
        let question = questions(&record).remove(0);
        question.settle(now.clone().ok_or_else(|| "it broke".to_owned()))
    });
    let record = Record::new(run.into(), "COMPLETED");
    record.report(evaluations.collect(), policy_id, SpecSource::Recorded)
}

fn ask() -> PolicyDecision {
    PolicyDecision::need_approval("k", "a person decides", Json::empty_object(), Json::empty_object())
}

#[test]
fn an_approval_has_the_status_that_it_had_when_the_policy_was_asked() {
    use ApprovalStatus::{Approved, Expired, Pending};
    let decided = |seq, status: &str| {
        event(seq, EventKind::ApprovalDecided, "s", json!({"approval_id": "a", "status": status}))
    };
    let events = [
        policy_event(4, "s", "allow", 1),
        decided(5, "approved"),
        policy_event(6, "s", "allow", 1),
        decided(7, "expired"),
        policy_event(8, "s", "allow", 1),
    ];
    let mut record = record(&events);
    assert_eq!(record.approvals_wanted(), 1);
    record.read_approvals(vec![approval("a", Expired)], 1);
    let shown: Vec<Approval> =
        questions(&record).iter().map(|question| (*question.view().approvals[0]).clone()).collect();
    assert_eq!(shown.iter().map(|shown| shown.status).collect::<Vec<_>>(), [Pending, Approved, Expired]);
    assert_eq!((shown[0].decided_at, shown[0].decided_by.as_str(), shown[0].note.as_str()), (None, "", ""));
    assert_eq!((shown[1].decided_at, shown[1].decided_by.as_str()), (Some(at(9)), "ana"));
}

#[test]
fn a_policy_that_failed_is_told_from_an_answer_that_could_not_be_used() {
    let failed = |seq, why: &str| event(seq, EventKind::StepFailed, "s", json!({"detail": why}));
    let of = |events: &[Event]| {
        let record = record(events);
        record.report(
            record
                .rebuild()
                .map(|rebuilt| match rebuilt {
                    Rebuilt::Settled(evaluation) => *evaluation,
                    Rebuilt::Question(question) => question.settle(Ok(PolicyDecision::allow(""))),
                })
                .collect(),
            "",
            SpecSource::Recorded,
        )
    };
    let results = |report: &Report| {
        report.evaluations.iter().map(|e| (e.seq, e.on_resume, e.result)).collect::<Vec<_>>()
    };
    use Finding::{Different, NotRecheckable, Same};
    let alone = of(&[failed(5, "policy error: gone")]);
    assert_eq!(results(&alone), [(5, false, NotRecheckable)]);
    let after_an_answer = of(&[policy_event(4, "s", "allow", 0), failed(5, "policy error: no JSON")]);
    assert_eq!(results(&after_an_answer), [(4, false, Different)]);
    let between = event(5, EventKind::RunResumed, "s", json!({}));
    let on_resume = of(&[policy_event(4, "s", "allow", 0), between, failed(6, "policy error: gone")]);
    assert_eq!(results(&on_resume), [(4, false, Same), (6, true, NotRecheckable)]);
    let of_another_step = event(5, EventKind::StepFailed, "t", json!({"detail": "policy error: gone"}));
    let other = of(&[policy_event(4, "s", "allow", 0), of_another_step]);
    assert_eq!(results(&other), [(4, false, Same), (5, false, NotRecheckable)]);
    assert_eq!(other.evaluations[1].step_index, None);
    let denied = of(&[policy_event(4, "s", "allow", 0), failed(5, "denied: by policy error: x")]);
    assert_eq!(results(&denied), [(4, false, Same)]);
}

#[test]
fn an_answer_is_compared_by_its_outcome_and_by_the_approval_that_it_asks_for() {
    let one = |recorded, now| report("r", "v1", &[("push", recorded, Some(now))]).evaluations.remove(0);
    let with = |capability: &str| {
        PolicyDecision::need_approval("k", "", Json::trusted(capability), Json::empty_object())
    };
    use Finding::{Different, Same};
    for (recorded, now, finding) in [
        ("allow", PolicyDecision::allow("other words"), Same),
        ("deny", PolicyDecision::deny(""), Same),
        ("allow", PolicyDecision::deny(""), Different),
        ("abort", PolicyDecision::deny(""), Different),
        ("require_approval", ask(), Same),
        ("require_approval", with("{ }"), Same),
        ("require_approval", PolicyDecision { capability: None, presentation: None, ..ask() }, Same),
        ("require_approval", with("{\"n\":1}"), Different),
        ("require_approval", PolicyDecision { kind: "other".to_owned(), ..ask() }, Different),
        ("deny", PolicyDecision { kind: "other".to_owned(), ..PolicyDecision::deny("") }, Same),
    ] {
        let evaluation = one(recorded, now.clone());
        assert_eq!(evaluation.result, finding, "{recorded} and {now:?}");
        assert_eq!(evaluation.recorded_hash.is_some(), recorded == "require_approval");
    }
    let asked = one("require_approval", with("{\"n\":1}"));
    assert_eq!(asked.detail, "it asks for another approval: another capability");
}

#[test]
fn the_identity_is_known_only_when_both_sides_have_one() {
    let of =
        |given: &str, answers: &[(&str, &str, Option<PolicyDecision>)]| report("r", given, answers).identity;
    let same = [("push", "allow", Some(PolicyDecision::allow("")))];
    assert_eq!(of("v1", &same), Identity::Unchanged);
    assert_eq!(of("v2", &same), Identity::Changed);
    assert_eq!(of("", &same), Identity::Unknown);
    assert_eq!(of("v1", &[]), Identity::Unknown);
}

#[test]
fn the_report_in_json_has_the_counts_beside_its_fields() {
    let report = report(
        "r-1",
        "v2",
        &[("push", "require_approval", Some(PolicyDecision::deny("no"))), ("read", "allow", None)],
    );
    let hash = report.evaluations[0].recorded_hash.clone().unwrap();
    assert_eq!(
        serde_json::to_value(&report).unwrap(),
        json!({
            "run_id": "r-1", "run_status": "COMPLETED", "policy_id": "v2", "identity": "changed",
            "spec_source": "recorded",
            "evaluations": [
                {"step_index": 0, "step_id": "s", "seq": 5, "tool": "push", "result": "different",
                    "recorded": {"outcome": "require_approval", "kind": "k"},
                    "rechecked": {"outcome": "deny", "reason": "no"}, "recorded_hash": hash.as_str(),
                    "spec_source": "recorded", "policy_id": "v1"},
                {"step_index": 0, "step_id": "s", "seq": 6, "tool": "read", "result": "different",
                    "recorded": {"outcome": "allow", "kind": "k"}, "detail": "the policy failed: it broke",
                    "spec_source": "recorded", "policy_id": "v1"},
            ],
            "same": false, "differences": 2, "rechecked": 2, "not_recheckable": 0, "complete": true,
        })
    );
    let lost = record(&[event(5, EventKind::StepFailed, "gone", json!({"detail": "policy error: x"}))]);
    let Some(Rebuilt::Settled(lost)) = lost.rebuild().next() else { panic!("nothing to ask") };
    let lost = serde_json::to_value(&lost).unwrap();
    assert_eq!((&lost["step_index"], &lost["recorded"]), (&json!(-1), &json!({"outcome": ""})));
}

#[test]
fn a_step_begins_when_it_is_started_and_again_when_its_grant_is_collected() {
    let asks = |seq, id: &str| event(seq, EventKind::ApprovalRequested, "s", json!({"approval_id": id}));
    let begins = |seq, kind, step| event(seq, kind, step, json!({}));
    let record = record(&[
        begins(2, EventKind::StepStarted, "s"),
        asks(3, "a"),
        begins(5, EventKind::RunResumed, "s"),
        begins(6, EventKind::StepStarted, "t"),
        asks(7, "b"),
    ]);
    let of = |id: &str| record.begun_before(&approval(id, ApprovalStatus::Pending));
    assert_eq!([of("a"), of("b"), of("c")], [Some(at(2)), Some(at(5)), None]);
}

#[test]
fn differences_of_many_runs_add_up_to_a_row_for_each_tool_and_pair_of_outcomes() {
    let (allow, deny) =
        (|| Some(PolicyDecision::allow("by rule")), || Some(PolicyDecision::deny("by class")));
    let mut changes = Changes::default();
    for run in ["r1", "r2", "r3", "r4"] {
        let report = report(
            run,
            "v2",
            &[
                ("push", "require_approval", allow()),
                ("push", "require_approval", allow()),
                ("read", "allow", allow()),
                ("wipe", "deny", deny()),
            ],
        );
        changes.add(&report, None);
    }
    let last = report(
        "r5",
        "v2",
        &[("read", "allow", deny()), ("wipe", "deny", Some(ask())), ("pull", "allow", None)],
    );
    changes.add(&last, Some(&last));
    changes.add(&report("r6", "v2", &[("read", "allow", allow())]), None);

    let rows: Vec<_> = changes
        .rows()
        .iter()
        .map(|row| {
            let ways = (row.tool.as_str(), row.recorded.as_str(), row.now.as_str(), row.shift);
            (ways, (row.decisions, row.runs, row.already), row.why.as_str())
        })
        .collect();
    use Shift::{Looser, Stricter};
    assert_eq!(
        rows,
        [
            (("push", "require_approval", "allow", Looser), (8, 4, 0), "by rule"),
            (("wipe", "deny", "require_approval", Looser), (1, 1, 1), "a person decides"),
            (("pull", "allow", "none", Stricter), (1, 1, 0), "the policy failed: it broke"),
            (("read", "allow", "deny", Stricter), (1, 1, 1), "by class"),
        ]
    );
    let examples: Vec<RunId> = changes.rows()[0].examples.clone();
    assert_eq!(examples, ["r1", "r2", "r3"].map(RunId::from), "no more than {EXAMPLES_MAX}");
    let totals = changes.totals();
    assert_eq!((totals.runs, totals.differing_runs), (6, 5));
    assert_eq!((totals.rechecked, totals.same, totals.different), (20, 9, 11));
    assert_eq!((totals.looser, totals.stricter, totals.otherwise, totals.already), (9, 2, 0, 2));
}

#[test]
fn an_approval_that_would_be_asked_for_otherwise_is_neither_looser_nor_stricter() {
    let mut changes = Changes::default();
    let other = PolicyDecision { kind: "other".to_owned(), ..ask() };
    changes.add(
        &report(
            "r1",
            "v2",
            &[("push", "require_approval", Some(other)), ("push", "defer", Some(PolicyDecision::deny("")))],
        ),
        None,
    );
    assert_eq!(changes.totals().otherwise, 2, "an outcome that nobody knows runs nothing, as a denial");
    assert!(
        changes.rows().iter().any(|row| row.why == "it asks for an approval of kind \"other\", not \"k\"")
    );
}

/// Payloads as programs write them, and as somebody with an SQLite shell might.
fn payload() -> impl Strategy<Value = String> {
    let hash = spec().recorded().hash;
    let written = vec![
        json!({"goal": "g", "limits": {"max_steps": 5}, "tools": ["x"]}).to_string(),
        json!({"outcome": "allow", "spec_hash": hash.as_str(), "view": {"status": "RUNNING", "steps": 0, "approvals": 0}})
            .to_string(),
        json!({"outcome": "require_approval", "kind": "k", "capability": {"n": 1.50}, "spec_hash": hash.as_str(),
            "view": {"status": "WAITING_FOR_APPROVAL", "steps": 1, "approvals": 1}})
        .to_string(),
        json!({"outcome": "require_approval", "kind": "interrupted_side_effect", "spec_hash": "x"}).to_string(),
        json!({"detail": "policy error: gone"}).to_string(),
        json!({"approval_id": "a", "status": "approved"}).to_string(),
        json!({"truncated": true, "length": 70_000, "head": "{"}).to_string(),
    ];
    const PIECES: [&str; 9] = ["null", "-1", "9223372036854775807", "1e99", "\"\"", "{", "]", "\\ud800", ""];
    (
        proptest::sample::select(written),
        any::<proptest::sample::Index>(),
        0..12_usize,
        proptest::sample::select(PIECES.to_vec()),
    )
        .prop_map(|(text, at, cut, piece)| {
            // One in twelve stays as it is written.
            if cut == 0 {
                return text;
            }
            let from = at.index(text.len());
            let to = (from + cut).min(text.len());
            format!("{}{piece}{}", &text[..from], &text[to..])
        })
}

proptest! {
    #[test]
    fn whatever_the_record_holds_each_evaluation_comes_to_something(
        events in proptest::collection::vec(
            (proptest::sample::select(EventKind::ALL), proptest::sample::select(&["s", "t", ""][..]), payload()),
            0..12,
        ),
        known in any::<bool>(),
    ) {
        let mut record = Record::new("r".into(), if known { "COMPLETED" } else { "?" });
        for (seq, (kind, step, payload)) in (1..).zip(events) {
            record.read_event(&Event { payload, ..event(seq, kind, step, Value::Null) });
        }
        let mut step = Step::begun("s".into(), "r".into(), 0, at(2));
        step.decision = Some(Proposal::tool_call("push", "{}").recorded());
        record.read_step(step);
        prop_assert!(record.approvals_wanted() <= APPROVALS_MAX);
        record.read_approvals(vec![approval("a", ApprovalStatus::Approved)], 1);
        for hash in record.specs_wanted() {
            let known = spec().recorded();
            record.read_spec(hash.clone(), Ok(Some(known).filter(|known| known.hash == hash)));
        }
        let evaluations: Vec<Evaluation> = record
            .rebuild()
            .map(|rebuilt| match rebuilt {
                Rebuilt::Settled(evaluation) => *evaluation,
                Rebuilt::Question(question) => {
                    let handed = question.handed().is_ok();
                    assert!(handed, "what is rebuilt can be handed");
                    question.settle(Ok(ask()))
                }
            })
            .collect();
        prop_assert_eq!(evaluations.len(), record.written.len());
        let report = record.report(evaluations, "v1", SpecSource::Recorded);
        prop_assert!(report.evaluations.iter().all(|e| e.was_rechecked() || !e.detail.is_empty()));
        prop_assert!(serde_json::to_string(&report).is_ok(), "{:?}", report);
        Changes::default().add(&report, Some(&report));
    }
}
