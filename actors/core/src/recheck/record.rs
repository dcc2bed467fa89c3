//! The part of a run's record from which its evaluations are rebuilt, collected as its pages are read.
//!
//! Owns which event means what to a re-check. Nothing is judged here; what can't be read is kept as the reason why.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::report::{Answer, Evaluation, Identity, Report, SpecSource};
use crate::approval::{Approval, ApprovalStatus};
use crate::event::{Event, EventKind};
use crate::ids::{RunId, SpecHash, StepId};
use crate::json::Json;
use crate::run::{Limits, ModelTotals, RunStatus};
use crate::step::Step;
use crate::time::UnixNanos;
use crate::tool::{RecordedSpec, ToolSpec};

/// The most approvals of a run that are read whole. An evaluation that was shown more can't be re-checked.
pub const APPROVALS_MAX: usize = 1_024;

/// What the failure of a policy is recorded as, in the detail of the step that it failed.
const POLICY_ERROR: &str = "policy error: ";

/// A run's record, as far as re-checking needs it.
///
/// It is filled in this order: every event, every step, as many approvals as [`Record::approvals_wanted`] says (one more
/// shows what a person was asked next), and each spec of [`Record::specs_wanted`].
#[derive(Debug)]
pub struct Record {
    pub(super) run_id: RunId,
    status: String,
    pub(super) created: Option<Result<Created, &'static str>>,
    has_specs: bool,
    pub(super) steps: Vec<Arc<Step>>,
    by_id: HashMap<String, usize>,
    pub(super) approvals: Vec<Arc<Approval>>,
    pub(super) approvals_total: usize,
    /// The decisions on each approval, in the order of their events; `None` for one that can't be read.
    pub(super) decided: HashMap<String, Vec<(i64, Option<ApprovalStatus>)>>,
    /// When each step began, and began again, by the numbers of the events.
    starts: Vec<(i64, StepId, UnixNanos)>,
    /// The events that asked for each approval.
    asked: HashMap<String, i64>,
    pub(super) written: Vec<Written>,
    pub(super) specs: HashMap<SpecHash, Result<ToolSpec, String>>,
    /// The step of the last event, if that recorded an answer of the policy.
    answered_just_now: Option<String>,
}

/// What the run's first event says of it.
#[derive(Debug)]
pub(super) struct Created {
    pub(super) at: UnixNanos,
    pub(super) goal: String,
    pub(super) limits: Limits,
}

/// An event that tells of the policy.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) seq: i64,
    pub(super) step_id: String,
    pub(super) at: Option<UnixNanos>,
    pub(super) what: What,
}

#[derive(Debug)]
pub(super) enum What {
    /// The policy failed, and no answer of it is recorded. `again` when the step had been judged before.
    Failed { why: String, again: bool },
    /// The event can't be read.
    Unreadable(String),
    /// The policy answered, or something in its place.
    Answered(Box<Recorded>),
}

/// An answer as it is recorded.
#[derive(Debug)]
pub(super) struct Recorded {
    pub(super) answer: Answer,
    pub(super) policy_id: String,
    pub(super) spec_hash: Option<SpecHash>,
    pub(super) view: Option<SeenThen>,
    /// Why the runtime could not use it.
    pub(super) refused: Option<String>,
}

/// What the policy was shown, as far as it is recorded beside its answer.
#[derive(Debug, Deserialize)]
#[serde(default)]
pub(super) struct SeenThen {
    status: String,
    pub(super) step_count: i64,
    model_calls: i64,
    input_tokens: i64,
    output_tokens: i64,
    cached_input_tokens: i64,
    estimated_cost_micros: i64,
    pub(super) active_ms: i64,
    pub(super) steps: i64,
    pub(super) approvals: i64,
}

impl Default for SeenThen {
    fn default() -> SeenThen {
        SeenThen {
            status: String::new(),
            step_count: 0,
            model_calls: 0,
            input_tokens: 0,
            output_tokens: 0,
            cached_input_tokens: 0,
            estimated_cost_micros: 0,
            active_ms: 0,
            // Below zero, so that counts which are missing are not taken for none.
            steps: -1,
            approvals: -1,
        }
    }
}

impl SeenThen {
    pub(super) fn status(&self) -> Option<RunStatus> {
        RunStatus::parse(&self.status)
    }

    pub(super) fn totals(&self) -> ModelTotals {
        ModelTotals {
            model_calls: self.model_calls,
            input_tokens: self.input_tokens,
            output_tokens: self.output_tokens,
            cached_input_tokens: self.cached_input_tokens,
            estimated_cost_micros: self.estimated_cost_micros,
        }
    }
}

impl Record {
    /// The record of a run that stands at `status`, before anything of it was read.
    pub fn new(run_id: RunId, status: impl Into<String>) -> Record {
        Record {
            run_id,
            status: status.into(),
            created: None,
            has_specs: false,
            steps: Vec::new(),
            by_id: HashMap::new(),
            approvals: Vec::new(),
            approvals_total: 0,
            decided: HashMap::new(),
            starts: Vec::new(),
            asked: HashMap::new(),
            written: Vec::new(),
            specs: HashMap::new(),
            answered_just_now: None,
        }
    }

    /// Takes the run's next event.
    pub fn read_event(&mut self, event: &Event) {
        let judged_before = self.answered_just_now.take();
        let is = |kind: EventKind| event.kind == kind.as_str();
        if is(EventKind::RunCreated) {
            self.read_created(event);
        } else if is(EventKind::StepStarted) || is(EventKind::RunResumed) {
            let step = StepId::from(event.step_id.as_str());
            self.starts.extend(event.at.map(|at| (event.seq, step, at)));
        } else if is(EventKind::ApprovalRequested) {
            self.read_question(event);
        } else if is(EventKind::ApprovalDecided) {
            self.read_decision(event);
        } else if is(EventKind::StepPolicy) {
            let what = match read_answer(&event.payload) {
                Ok(recorded) => What::Answered(Box::new(recorded)),
                Err(why) => What::Unreadable(why),
            };
            self.write(event, what);
            self.answered_just_now = Some(event.step_id.clone());
        } else if is(EventKind::StepFailed) {
            self.read_failure(event, judged_before.as_deref());
        }
    }

    fn read_created(&mut self, event: &Event) {
        #[derive(Deserialize)]
        struct Text {
            #[serde(default)]
            goal: String,
            #[serde(default)]
            limits: Limits,
            tools: Option<IgnoredAny>,
            #[serde(default)]
            truncated: bool,
        }
        let read = serde_json::from_str::<Text>(&event.payload);
        self.has_specs = read.as_ref().is_ok_and(|text| text.tools.is_some() || text.truncated);
        self.created = Some(match (read, event.at) {
            (Ok(Text { truncated: true, .. }), _) => {
                Err("its run's first event is too long to be read whole")
            }
            (Ok(Text { goal, limits, .. }), Some(at)) => Ok(Created { at, goal, limits }),
            (Ok(_), None) | (Err(_), _) => Err("its run's first event can't be read"),
        });
    }

    fn read_question(&mut self, event: &Event) {
        #[derive(Deserialize)]
        struct Text {
            approval_id: String,
        }
        let Ok(text) = serde_json::from_str::<Text>(&event.payload) else { return };
        self.asked.insert(text.approval_id, event.seq);
    }

    fn read_decision(&mut self, event: &Event) {
        #[derive(Deserialize)]
        struct Text {
            approval_id: String,
            #[serde(default)]
            status: String,
        }
        // Without an approval's name it decides none.
        let Ok(text) = serde_json::from_str::<Text>(&event.payload) else { return };
        let status = ApprovalStatus::parse(&text.status);
        self.decided.entry(text.approval_id).or_default().push((event.seq, status));
    }

    /// A policy that failed ends its step with a detail of its own. An answer that could not be used is recorded just
    /// before, and the detail says why it could not.
    fn read_failure(&mut self, event: &Event, judged_before: Option<&str>) {
        #[derive(Deserialize)]
        struct Text {
            #[serde(default)]
            detail: String,
        }
        let Ok(Text { detail }) = serde_json::from_str(&event.payload) else { return };
        let Some(why) = detail.strip_prefix(POLICY_ERROR) else { return };
        if judged_before == Some(event.step_id.as_str())
            && let Some(Written { what: What::Answered(recorded), .. }) = self.written.last_mut()
        {
            recorded.refused = Some(why.to_owned());
            return;
        }
        let again = self
            .written
            .iter()
            .any(|written| written.step_id == event.step_id && !matches!(written.what, What::Failed { .. }));
        self.write(event, What::Failed { why: why.to_owned(), again });
    }

    fn write(&mut self, event: &Event, what: What) {
        let (seq, step_id, at) = (event.seq, event.step_id.clone(), event.at);
        self.written.push(Written { seq, step_id, at, what });
    }

    /// Takes the run's next step.
    pub fn read_step(&mut self, step: Step) {
        self.by_id.insert(step.id.as_str().to_owned(), self.steps.len());
        self.steps.push(Arc::new(step));
    }

    /// How many of the run's first approvals the evaluations were shown, as far as they are read.
    pub fn approvals_wanted(&self) -> usize {
        let shown = self.written.iter().filter_map(|written| match &written.what {
            What::Answered(recorded) => recorded.view.as_ref().map(|view| view.approvals),
            What::Failed { .. } | What::Unreadable(_) => None,
        });
        let most = shown.max().unwrap_or(0);
        usize::try_from(most).unwrap_or(0).min(APPROVALS_MAX)
    }

    /// Takes the run's first approvals, whole and in the order in which they were asked for, and how many it has.
    pub fn read_approvals(&mut self, first: Vec<Approval>, total: usize) {
        self.approvals = first.into_iter().map(Arc::new).collect();
        self.approvals_total = total;
    }

    /// The specs that the evaluations name.
    pub fn specs_wanted(&self) -> BTreeSet<SpecHash> {
        let named = self.written.iter().filter_map(|written| match &written.what {
            What::Answered(recorded) => recorded.spec_hash.clone(),
            What::Failed { .. } | What::Unreadable(_) => None,
        });
        named.collect()
    }

    /// Takes a spec: `None` when the record has none of this hash, an error when what it has is not what was recorded.
    pub fn read_spec(&mut self, hash: SpecHash, found: Result<Option<RecordedSpec>, String>) {
        let spec = match found {
            Ok(Some(recorded)) => ToolSpec::parse(recorded.canonical.as_str())
                .map_err(|error| format!("the tool's spec {hash} can't be read: {error}")),
            Ok(None) => Err(format!("the tool's spec {hash} is not in the record")),
            Err(why) => Err(why),
        };
        self.specs.insert(hash, spec);
    }

    /// The run.
    pub fn run_id(&self) -> &RunId {
        &self.run_id
    }

    /// The approvals that were read.
    pub fn approvals(&self) -> &[Arc<Approval>] {
        &self.approvals
    }

    /// When the step of an approval had last begun as that was asked for: as it was started, or as a grant was collected.
    pub fn begun_before(&self, approval: &Approval) -> Option<UnixNanos> {
        let asked = self.asked.get(approval.id.as_str())?;
        let before = |(seq, step, _): &&(i64, StepId, UnixNanos)| seq < asked && *step == approval.step_id;
        self.starts.iter().rfind(before).map(|(_, _, at)| *at)
    }

    pub(super) fn step(&self, id: &str) -> Option<&Arc<Step>> {
        self.by_id.get(id).map(|at| &self.steps[*at])
    }

    /// The report over these evaluations of the run, asked of the policy named `policy_id`.
    pub fn report(&self, evaluations: Vec<Evaluation>, policy_id: &str, spec_source: SpecSource) -> Report {
        let mut notes = Vec::new();
        if RunStatus::parse(&self.status).is_none_or(|status| !status.is_terminal()) {
            notes.push(format!("the run is {} and was re-checked as far as it has come", self.status));
        }
        if matches!(self.created, Some(Ok(_))) && !self.has_specs {
            notes.push(
                "the run began before evaluations were recorded whole; those of then can't be re-checked"
                    .to_owned(),
            );
        }
        if evaluations.is_empty() {
            notes.push("no evaluation of a policy is recorded".to_owned());
        }
        Report {
            run_id: self.run_id.clone(),
            run_status: self.status.clone(),
            policy_id: policy_id.to_owned(),
            identity: identity(policy_id, &evaluations),
            spec_source,
            notes,
            evaluations,
        }
    }
}

fn identity(given: &str, evaluations: &[Evaluation]) -> Identity {
    let mut recorded =
        evaluations.iter().filter(|e| e.was_rechecked()).map(|e| e.policy_id.as_str()).peekable();
    if given.is_empty() || recorded.peek().is_none() {
        return Identity::Unknown;
    }
    let mut identity = Identity::Unchanged;
    for id in recorded {
        if id.is_empty() {
            return Identity::Unknown;
        }
        if id != given {
            identity = Identity::Changed;
        }
    }
    identity
}

/// Reads what `step.policy` recorded.
fn read_answer(payload: &str) -> Result<Recorded, String> {
    #[derive(Deserialize)]
    struct Text<'a> {
        #[serde(default)]
        outcome: String,
        #[serde(default)]
        reason: String,
        #[serde(default)]
        kind: String,
        #[serde(borrow)]
        capability: Option<&'a RawValue>,
        #[serde(borrow)]
        presentation: Option<&'a RawValue>,
        #[serde(default)]
        policy_id: String,
        #[serde(default)]
        spec_hash: String,
        view: Option<SeenThen>,
        #[serde(default)]
        truncated: bool,
    }
    let text: Text<'_> =
        serde_json::from_str(payload).map_err(|error| format!("its event can't be read: {error}"))?;
    if text.truncated {
        return Err("its event is too long to be read whole".to_owned());
    }
    let json = |raw: Option<&RawValue>| raw.map(|raw| Json::trusted(raw.get()));
    Ok(Recorded {
        answer: Answer {
            outcome: text.outcome,
            reason: text.reason,
            kind: text.kind,
            capability: json(text.capability),
            presentation: json(text.presentation),
        },
        policy_id: text.policy_id,
        spec_hash: Some(text.spec_hash).filter(|hash| !hash.is_empty()).map(SpecHash::from),
        view: text.view,
        refused: None,
    })
}
