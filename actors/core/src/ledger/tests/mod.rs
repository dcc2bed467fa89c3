//! The transitions T1 to T15 of the specification as values: guards, rows and events, written out.
//!
//! A transition is shown as lines of text, so that a test reads like the table that it holds the ledger to.

mod composed;
mod drafts;
mod outside;
mod resumed;

use std::time::Duration;

use super::*;
use crate::decision::Proposal;
use crate::ids::RunId;
use crate::run::Limits;
use crate::tool::{SideEffect, ToolSpec};

const AT: UnixNanos = UnixNanos::from_nanos(1_700_000_000_000_000_000);

/// The moment `seconds` after the run was made.
fn at(seconds: u64) -> UnixNanos {
    AT.plus(Duration::from_secs(seconds))
}

fn terms(owner: &str) -> LeaseTerms {
    LeaseTerms { owner: LeaseOwner::from(owner), ttl: Duration::from_secs(30) }
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

fn request() -> ToolRequest {
    let (run_id, step_id) = (RunId::from("r"), StepId::from("s0"));
    ToolRequest { run_id, step_id, spec: spec(), args: Json::trusted("{\"n\":1}") }
}

fn question() -> PolicyDecision {
    PolicyDecision::need_approval("k", "because", Json::empty_object(), Json::empty_object())
}

fn result() -> Observation {
    Observation::new(ObservationKind::ToolResult, Json::trusted("[]"), "done")
}

fn error() -> Observation {
    Observation::of_fields(ObservationKind::ToolError, &[("error", "no")], "push error: no")
}

fn limits() -> Limits {
    Limits { approval_ttl: 60_000_000_000, grant_ttl: 60_000_000_000, ..Limits::default() }
}

/// A run that `me` has just begun in the record.
fn begun() -> Ledger {
    let mut ledger =
        Ledger::begin(terms("me"), Run::begun(RunId::from("r"), "g", limits(), AT), &[spec().recorded()]);
    ledger.take(Durability::Synced);
    ledger
}

/// A run whose first step `s0` is started and decided in the record.
fn decided() -> Ledger {
    let mut ledger = begun();
    ledger.start_step(StepId::from("s0"), at(1));
    ledger
        .decide(Proposal::tool_call("push", "{\"n\":1}").recorded(), Some(&spec().recorded()), at(2))
        .unwrap();
    ledger.take(Durability::Written);
    ledger
}

/// A run whose tool was started in the record.
fn executing() -> Ledger {
    let mut ledger = decided();
    ledger.record_policy(PolicyDecision::allow(""), None, None, at(3)).unwrap();
    ledger.start_tool(&request(), None, at(3)).unwrap();
    ledger.take(Durability::Synced);
    ledger
}

/// A run that waits in the record, and the approval that it waits for.
fn waiting() -> (Ledger, Arc<Approval>) {
    let mut ledger = decided();
    ledger.record_policy(question(), None, None, at(3)).unwrap();
    let approval = ledger.pause(ApprovalId::from("a0"), request(), at(4)).unwrap();
    ledger.take(Durability::Written);
    (ledger, approval)
}

/// A run that waits in the record for a grant to be collected by `other`.
fn granted() -> (Ledger, Approval) {
    let (ledger, approval) = waiting();
    let mut grant = Approval::clone(&approval);
    grant.status = ApprovalStatus::Approved;
    grant.decided_at = Some(at(5));
    grant.decided_by = "ana".to_owned();
    let approvals = vec![Arc::new(grant.clone())];
    let mut other = Ledger::of(terms("other"), ledger.run().clone(), ledger.steps().to_vec(), approvals);
    other.reopen_step(0);
    (other, grant)
}

/// Shows a transition, one line for each part that it has.
fn shown(t: &Transition) -> String {
    let mut lines = Vec::new();
    lines.extend(t.guards.iter().map(|guard| format!("if {}", guard_text(guard))));
    lines.extend(t.run.iter().map(run_text));
    lines.extend(t.specs.iter().map(|_| "keep the spec".to_owned()));
    lines.extend(t.steps.iter().map(step_text));
    lines.extend(t.approvals.iter().map(|write| match write {
        ApprovalWrite::Insert(a) => format!("insert {} {}", a.id, a.status),
        ApprovalWrite::Decide(a) => format!("decide {} {} by {:?}", a.id, a.status, a.decided_by),
    }));
    lines.extend(t.endings.iter().map(|write| format!("{} ended {}", write.step_id, write.ending)));
    lines.extend(t.events.iter().map(|event| event.kind.to_string()));
    lines.push(format!("{:?}", t.durability).to_lowercase());
    lines.join("\n")
}

fn guard_text(guard: &Guard) -> String {
    match guard {
        Guard::RunAbsent => "there is no such run".to_owned(),
        Guard::Held { owner, live } => format!("{owner} holds it{}", if *live { " unexpired" } else { "" }),
        Guard::RunIs { any_of } => {
            format!("it is {}", any_of.iter().map(|status| status.as_str()).collect::<Vec<_>>().join(" or "))
        }
        Guard::Abandoned { seen, gone } => format!(
            "nobody holds it but {:?} then, and {:?} is gone",
            seen.as_ref().map(|lease| lease.owner.as_str()),
            gone.as_ref().map(LeaseOwner::as_str)
        ),
        Guard::StepCount { count } => format!("it has started {count} steps"),
        Guard::StepIs { step, status } => format!("{step} is {status}"),
        Guard::ApprovalIs { approval, status, .. } => format!("{approval} is {status} and unchanged"),
        Guard::Admission(_) => "the rules still say so".to_owned(),
    }
}

fn run_text(write: &RunWrite) -> String {
    match write {
        RunWrite::Insert { run, lease } => {
            format!("insert {} after {} steps{}", run.status, run.step_count, lease_text(lease.as_ref()))
        }
        RunWrite::Update(update) => {
            let mut text = "run".to_owned();
            if update.steps_started != 0 {
                text += &format!(" +{} step", update.steps_started);
            }
            if update.add_active_ms != 0 {
                text += &format!(" +{} ms", update.add_active_ms);
            }
            if let Some(standing) = &update.standing {
                text += &format!(" {}", standing.status);
                if let Some(reason) = standing.reason {
                    text += &format!(" {reason} {:?}", standing.reason_detail);
                }
            }
            text + &match &update.lease {
                LeaseWrite::Keep => String::new(),
                LeaseWrite::Take(terms) => lease_text(Some(terms)),
                LeaseWrite::Clear => " held by nobody".to_owned(),
            }
        }
    }
}

fn lease_text(terms: Option<&LeaseTerms>) -> String {
    terms.map_or_else(String::new, |terms| format!(" held by {}", terms.owner))
}

fn step_text(write: &StepWrite) -> String {
    let observed = |step: &Step| step.observation.as_ref().map_or("nothing", |o| o.kind.as_str());
    match write {
        StepWrite::Insert(step) => format!("insert {} {}, {}", step.id, step.status, observed(step)),
        StepWrite::Update(step) => format!("update {} {}, {}", step.id, step.status, observed(step)),
        StepWrite::Outcome { step, status, observation, .. } => {
            format!(
                "end {step} {status}, {}",
                Observation::parse(observation.as_str()).unwrap().kind.as_str()
            )
        }
        StepWrite::OutcomeOfInFlight { observation, .. } => {
            let observation = Observation::parse(observation.as_str()).unwrap();
            format!("end what is in flight, {}", observation.kind.as_str())
        }
    }
}

/// Checks a transition against the lines of `expected`, whose indentation does not matter.
#[track_caller]
fn is(t: &Transition, expected: &str) {
    let expected: Vec<&str> = expected.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    assert_eq!(shown(t), expected.join("\n"));
}
