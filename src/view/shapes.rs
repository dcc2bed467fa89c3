//! A run, a step and an approval in JSON, as `holdpoint --json` prints them and the approval channel sends them.
//!
//! Owns the shapes, which are the reference's. Never reads the store: [`super::read`] and the commands build these from
//! what they read. Nothing is escaped for terminals here.

use holdpoint_actors::store::ListedRun;
use holdpoint_core::approval::Approval;
use holdpoint_core::decision::Decision;
use holdpoint_core::run::RunStatus;
use holdpoint_core::step::Step;
use holdpoint_core::time::UnixNanos;
use holdpoint_core::tool::ToolRequest;
use serde::{Serialize, Serializer};
use serde_json::Value;

use super::bound::{bounded, decoded};

/// A run as an operator sees it. Names are as stored, whatever a database that nobody may trust holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RunSummary {
    /// Its id.
    pub id: String,
    /// What it is for.
    pub goal: String,
    /// Where it stands.
    pub status: String,
    /// Why it ended.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The reason in words.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason_detail: String,
    /// Steps started.
    pub steps: i64,
    /// When it was made; none when that can't be read.
    #[serde(serialize_with = "rfc3339_or_zero")]
    pub created_at: Option<UnixNanos>,
    /// When it ended.
    #[serde(serialize_with = "rfc3339_or_zero", skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<UnixNanos>,
    /// The approval that it waits for, when it waits and there is exactly one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending_approval_id: Option<String>,
    /// Model attempts.
    #[serde(skip_serializing_if = "is_zero")]
    pub model_calls: i64,
    /// Their tokens.
    #[serde(skip_serializing_if = "Usage::is_zero")]
    pub usage: Usage,
    /// Their estimated cost in millionths of a dollar.
    #[serde(skip_serializing_if = "is_zero")]
    pub estimated_cost_micros: i64,
}

/// Tokens that a run's model attempts read and wrote.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Tokens read.
    pub input_tokens: i64,
    /// Tokens written.
    pub output_tokens: i64,
    /// Tokens read from a cache, a part of those read.
    #[serde(skip_serializing_if = "is_zero")]
    pub cached_input_tokens: i64,
}

impl Usage {
    fn is_zero(&self) -> bool {
        *self == Usage::default()
    }
}

impl RunSummary {
    /// Summarises a run. `pending` are the ids of its undecided approvals, or the first two of them.
    pub fn of<T: AsRef<str>>(run: ListedRun, pending: &[T]) -> RunSummary {
        let only = match pending {
            [only] if run.status == RunStatus::WaitingForApproval.as_str() => Some(only.as_ref().to_owned()),
            _ => None,
        };
        RunSummary {
            id: run.id,
            goal: run.goal,
            status: run.status,
            reason: run.reason,
            reason_detail: run.reason_detail,
            steps: run.step_count,
            created_at: run.created_at,
            finished_at: run.finished_at,
            pending_approval_id: only,
            model_calls: run.totals.model_calls,
            usage: Usage {
                input_tokens: run.totals.input_tokens,
                output_tokens: run.totals.output_tokens,
                cached_input_tokens: run.totals.cached_input_tokens,
            },
            estimated_cost_micros: run.totals.estimated_cost_micros,
        }
    }

    /// Where it stands, when that is a status that this program knows.
    pub fn known_status(&self) -> Option<RunStatus> {
        RunStatus::parse(&self.status)
    }
}

/// A step as an operator sees it: what was asked for, what the policy said, what came back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StepSummary {
    /// Its position, from zero.
    pub index: i64,
    /// Its id.
    pub id: String,
    /// The tool that the decision names.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tool: String,
    /// What was decided.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub decision: String,
    /// Where it stands.
    pub status: &'static str,
    /// What the policy answered.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub policy: &'static str,
    /// What kind of thing was observed.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub observation: &'static str,
    /// One line about it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub summary: String,
    /// What its tool returned after a person had cancelled the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub late: Option<LateOutcome>,
    /// What of it could not be read.
    #[serde(skip)]
    pub unread: Option<String>,
}

/// What came of a call whose run a person had cancelled meanwhile. The step itself stays interrupted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LateOutcome {
    /// What kind of thing was observed.
    pub observation: String,
    /// One line about it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub summary: String,
}

impl StepSummary {
    /// Summarises a step, and what came of its call after its run was cancelled.
    pub fn of(step: &Step, late: Option<LateOutcome>) -> StepSummary {
        let decided = |field: fn(&Decision) -> &String| step.decision.as_ref().map(field).cloned();
        StepSummary {
            index: step.index,
            id: step.id.as_str().to_owned(),
            tool: decided(|decision| &decision.tool).unwrap_or_default(),
            decision: decided(|decision| &decision.kind).unwrap_or_default(),
            status: step.status.as_str(),
            policy: step.policy.as_ref().map_or("", |policy| policy.outcome.as_str()),
            observation: step.observation.as_ref().map_or("", |observation| observation.kind.as_str()),
            summary: step.observation.as_ref().map(|o| o.summary.clone()).unwrap_or_default(),
            late,
            unread: step.decode_error.clone(),
        }
    }
}

/// An approval in JSON: its capability, presentation and arguments bounded, everything else, the hash included, as
/// stored.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ApprovalView {
    id: String,
    run_id: String,
    step_id: String,
    kind: String,
    capability: Value,
    presentation: Value,
    request: Option<RequestView>,
    hash: String,
    status: &'static str,
    #[serde(serialize_with = "rfc3339")]
    created_at: UnixNanos,
    #[serde(serialize_with = "rfc3339_or_zero", skip_serializing_if = "Option::is_none")]
    expires_at: Option<UnixNanos>,
    #[serde(serialize_with = "rfc3339_or_zero", skip_serializing_if = "Option::is_none")]
    decided_at: Option<UnixNanos>,
    #[serde(skip_serializing_if = "String::is_empty")]
    decided_by: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    note: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    decode_error: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct RequestView {
    run_id: String,
    step_id: String,
    spec: SpecView,
    args: Value,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct SpecView {
    name: String,
    description: String,
    input_schema: Value,
    side_effect: &'static str,
    /// Nanoseconds.
    timeout: u64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    terminal: bool,
}

impl ApprovalView {
    /// Bounds an approval.
    pub fn of(approval: &Approval) -> ApprovalView {
        ApprovalView {
            id: approval.id.as_str().to_owned(),
            run_id: approval.run_id.as_str().to_owned(),
            step_id: approval.step_id.as_str().to_owned(),
            kind: approval.kind.clone(),
            capability: bounded(&approval.capability),
            presentation: bounded(&approval.presentation),
            request: approval.request.as_ref().map(RequestView::of),
            hash: approval.hash.as_str().to_owned(),
            status: approval.status.as_str(),
            created_at: approval.created_at,
            expires_at: approval.expires_at,
            decided_at: approval.decided_at,
            decided_by: approval.decided_by.clone(),
            note: approval.note.clone(),
            decode_error: approval.decode_error.clone(),
        }
    }
}

impl RequestView {
    fn of(request: &ToolRequest) -> RequestView {
        let spec = &request.spec;
        RequestView {
            run_id: request.run_id.as_str().to_owned(),
            step_id: request.step_id.as_str().to_owned(),
            spec: SpecView {
                name: spec.name.clone(),
                description: spec.description.clone(),
                input_schema: decoded(&spec.input_schema).unwrap_or(Value::Null),
                side_effect: spec.side_effect.as_str(),
                timeout: u64::try_from(spec.timeout.as_nanos()).unwrap_or(u64::MAX),
                terminal: spec.terminal,
            },
            args: bounded(&request.args),
        }
    }
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// The reference's zero time, which stands for one that can't be read.
const NO_TIME: &str = "0001-01-01T00:00:00Z";

fn rfc3339<S: Serializer>(at: &UnixNanos, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&at.to_rfc3339())
}

fn rfc3339_or_zero<S: Serializer>(at: &Option<UnixNanos>, serializer: S) -> Result<S::Ok, S::Error> {
    match at {
        Some(at) => rfc3339(at, serializer),
        None => serializer.serialize_str(NO_TIME),
    }
}

#[cfg(test)]
mod tests {
    use holdpoint_core::approval::ApprovalStatus;
    use holdpoint_core::json::Json;
    use holdpoint_core::run::ModelTotals;
    use serde_json::json;

    use super::*;

    fn at() -> UnixNanos {
        UnixNanos::parse("2026-10-01T09:00:00.5Z").unwrap()
    }

    fn run() -> ListedRun {
        ListedRun {
            id: "r1".to_owned(),
            goal: "call pay".to_owned(),
            status: "RUNNING".to_owned(),
            reason: String::new(),
            reason_detail: String::new(),
            limits: None,
            step_count: 0,
            created_at: Some(at()),
            started_at: None,
            finished_at: None,
            result: None,
            totals: ModelTotals::default(),
            active_ms: 0,
        }
    }

    #[test]
    fn a_waiting_run_names_its_approval_only_when_there_is_one() {
        let waiting = || ListedRun { status: "WAITING_FOR_APPROVAL".to_owned(), ..run() };
        assert_eq!(RunSummary::of(run(), &["a"]).pending_approval_id, None, "it does not wait");
        assert_eq!(RunSummary::of(waiting(), &["a"]).pending_approval_id.as_deref(), Some("a"));
        assert_eq!(RunSummary::of(waiting(), &["a", "b"]).pending_approval_id, None);
        assert_eq!(RunSummary::of::<&str>(waiting(), &[]).pending_approval_id, None);
    }

    #[test]
    fn what_is_empty_is_left_out_of_a_run() {
        assert_eq!(
            serde_json::to_string(&RunSummary::of::<&str>(run(), &[])).unwrap(),
            r#"{"id":"r1","goal":"call pay","status":"RUNNING","steps":0,"created_at":"2026-10-01T09:00:00.5Z"}"#
        );
        let mut ended = run();
        ended.status = "CANCELLED".to_owned();
        ended.reason = "approval_rejected".to_owned();
        ended.reason_detail = "no".to_owned();
        ended.created_at = None;
        ended.finished_at = Some(at());
        ended.totals.model_calls = 2;
        ended.totals.input_tokens = 7;
        assert_eq!(
            serde_json::to_value(RunSummary::of::<&str>(ended, &[])).unwrap(),
            json!({"id": "r1", "goal": "call pay", "status": "CANCELLED", "reason": "approval_rejected",
                "reason_detail": "no", "steps": 0, "created_at": "0001-01-01T00:00:00Z",
                "finished_at": "2026-10-01T09:00:00.5Z", "model_calls": 2,
                "usage": {"input_tokens": 7, "output_tokens": 0}})
        );
    }

    #[test]
    fn an_approval_keeps_its_hash_and_bounds_what_others_wrote() {
        let approval = Approval {
            id: "a1".into(),
            run_id: "r1".into(),
            step_id: "s1".into(),
            kind: "remote_mutation".to_owned(),
            capability: Json::trusted(r#"{"tool":"pay"}"#),
            presentation: Json::trusted(serde_json::to_string(&json!({"text": "x".repeat(5_000)})).unwrap()),
            request: None,
            hash: "abc".into(),
            status: ApprovalStatus::Pending,
            created_at: at(),
            expires_at: None,
            decided_at: None,
            decided_by: String::new(),
            note: String::new(),
            decode_error: Some("no such class".to_owned()),
        };
        let value = serde_json::to_value(ApprovalView::of(&approval)).unwrap();
        let keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(
            keys,
            [
                "id",
                "run_id",
                "step_id",
                "kind",
                "capability",
                "presentation",
                "request",
                "hash",
                "status",
                "created_at",
                "decode_error"
            ]
        );
        assert_eq!(value["hash"], "abc");
        assert!(value["presentation"]["text"].as_str().unwrap().len() < 500);
    }
}
