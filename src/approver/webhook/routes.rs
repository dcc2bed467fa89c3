//! The routes: what each shows or decides, and how a refusal is answered.
//!
//! Owns the mapping of the approver's errors to statuses, and the form of every answer. Reads only the body that
//! was signed.

use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use holdpoint_core::approval::ApprovalStatus;
use holdpoint_core::ids::RunId;
use holdpoint_core::json::{self, ObjectWriter};
use holdpoint_core::sanitize::{escape_json, sanitize};
use serde::Serialize;

use super::guard::Passed;
use super::signature::Signer;
use super::{Channel, EVENT_DECISION};
use crate::approver::{Decision, Error, Pending};
use crate::view::Verdict;

type Shared = State<Arc<Channel>>;
type Named<T> = Result<Path<T>, PathRejection>;

pub(super) fn routes() -> Router<Arc<Channel>> {
    Router::new()
        .route("/runs/{run}/approvals", get(list))
        .route("/runs/{run}/approvals/{approval}", get(show))
        .route("/runs/{run}/approvals/{approval}/approve", post(approve))
        .route("/runs/{run}/approvals/{approval}/reject", post(reject))
        .route("/runs/{run}/cancel", post(cancel))
        .fallback(nothing)
        .method_not_allowed_fallback(nothing)
}

async fn nothing() -> Response {
    fail(StatusCode::NOT_FOUND, "not_found", "there is no such route")
}

#[derive(Serialize)]
struct Listing {
    run_id: RunId,
    pending: Vec<Pending>,
}

async fn list(State(channel): Shared, run: Named<String>) -> Response {
    let Ok(Path(run)) = run else { return nothing().await };
    let run_id = RunId::from(run);
    match channel.hook.approver.pending(&run_id, channel.hook.options.list_max).await {
        Ok(pending) => reply(StatusCode::OK, &Listing { run_id, pending }),
        Err(error) => refuse(&error).response(),
    }
}

async fn show(
    State(channel): Shared,
    named: Named<(String, String)>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let Ok(Path((run, approval))) = named else { return nothing().await };
    let shown = match channel.hook.approver.show(&run.into(), &approval.into()).await {
        Ok(shown) => shown,
        Err(error) => return refuse(&error).response(),
    };
    if shown.expired || shown.approval.status == ApprovalStatus::Expired {
        let at = shown.approval.expires_at.map(|at| format!(" at {at}")).unwrap_or_default();
        let text = format!("approval {} expired{at}", shown.approval.id);
        return fail(StatusCode::GONE, "expired", &text);
    }
    let query = query.unwrap_or_default();
    let format = query.split('&').find_map(|pair| pair.strip_prefix("format="));
    let accept = headers.get(header::ACCEPT).map_or(&b""[..], HeaderValue::as_bytes);
    if format == Some("text") || accept.starts_with(b"text/plain") {
        return answer(StatusCode::OK, "text/plain; charset=utf-8", shown.to_text());
    }
    reply(StatusCode::OK, &shown)
}

async fn approve(channel: Shared, named: Named<(String, String)>, passed: Extension<Passed>) -> Response {
    decide(Verdict::Approve, channel, named, passed).await
}

async fn reject(channel: Shared, named: Named<(String, String)>, passed: Extension<Passed>) -> Response {
    decide(Verdict::Reject, channel, named, passed).await
}

/// A decision that was recorded.
#[derive(Serialize)]
struct Decided<'a> {
    status: &'static str,
    run_id: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    approval_id: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    hash: &'a str,
    by: &'a str,
}

async fn decide(
    verdict: Verdict,
    State(channel): Shared,
    named: Named<(String, String)>,
    Extension(passed): Extension<Passed>,
) -> Response {
    let Ok(Path((run, approval))) = named else { return nothing().await };
    let mut decision = match body(&passed) {
        Ok(decision) => decision,
        Err(refusal) => return refusal.response(),
    };
    if decision.run.as_str() != run || decision.approval.as_str() != approval {
        return bad_request("the body must name the run and the approval of the path").response();
    }
    if decision.hash.as_str().is_empty() {
        return bad_request("the body must have the hash of what was shown").response();
    }
    let (status, action, done) = match verdict {
        Verdict::Approve => (StatusCode::ACCEPTED, "approve", "approved"),
        Verdict::Reject => (StatusCode::OK, "reject", "rejected"),
    };
    if let Some(refusal) = name(&mut decision, &channel, action, &passed) {
        return refusal.response();
    }
    // Once begun it is done and told to the end, also when whoever asked goes away.
    let deciding = tokio::spawn(async move {
        let result = match verdict {
            Verdict::Approve => channel.hook.approver.approve(&decision).await,
            Verdict::Reject => channel.hook.approver.reject(&decision).await,
        };
        let (status, refusal) = outcome(status, result);
        tell(&channel, action, &decision, &passed.remote, (status, refusal.as_ref()));
        match refusal {
            Some(refusal) => refusal.response(),
            None => reply(
                status,
                &Decided {
                    status: done,
                    run_id: decision.run.as_str(),
                    approval_id: decision.approval.as_str(),
                    hash: decision.hash.as_str(),
                    by: &decision.by,
                },
            ),
        }
    });
    deciding.await.unwrap_or_else(|_panic| internal().response())
}

async fn cancel(
    State(channel): Shared,
    run: Named<String>,
    Extension(passed): Extension<Passed>,
) -> Response {
    let Ok(Path(run)) = run else { return nothing().await };
    let mut decision = match body(&passed) {
        Ok(decision) => decision,
        Err(refusal) => return refusal.response(),
    };
    if decision.run.as_str() != run {
        return bad_request("the body must name the run of the path").response();
    }
    decision.approval = "".into();
    if let Some(refusal) = name(&mut decision, &channel, "cancel", &passed) {
        return refusal.response();
    }
    let cancelling = tokio::spawn(async move {
        let result = channel.hook.approver.cancel(&decision.run, &decision.by, &decision.note).await;
        let (status, refusal) = outcome(StatusCode::OK, result);
        tell(&channel, "cancel", &decision, &passed.remote, (status, refusal.as_ref()));
        match refusal {
            Some(refusal) => refusal.response(),
            None => reply(
                status,
                &Decided {
                    status: "cancelled",
                    run_id: decision.run.as_str(),
                    approval_id: "",
                    hash: "",
                    by: &decision.by,
                },
            ),
        }
    });
    cancelling.await.unwrap_or_else(|_panic| internal().response())
}

/// Reads a decision.
fn body(passed: &Passed) -> Result<Decision, Refusal> {
    let not_one = || bad_request("the body is no decision in JSON");
    json::check(&passed.body).map_err(|_| not_one())?;
    serde_json::from_slice(&passed.body).map_err(|_| not_one())
}

/// Names who decides: the operator who signed, or whoever the body names where nobody has a secret of their own. An
/// operator who calls themselves something else is refused, and that is told.
fn name(decision: &mut Decision, channel: &Channel, action: &str, passed: &Passed) -> Option<Refusal> {
    let Signer::Operator(name) = &passed.signer else {
        return decision.by.is_empty().then(|| bad_request("the body must say by whom"));
    };
    let as_signed = decision.by.is_empty() || decision.by == name.as_str();
    decision.by = name.to_string();
    if as_signed {
        return None;
    }
    let text = format!("the body is by somebody else than {name}, who signed it");
    let refusal = Refusal { status: StatusCode::FORBIDDEN, code: "wrong_operator", text };
    tell(channel, action, decision, &passed.remote, (refusal.status, Some(&refusal)));
    Some(refusal)
}

/// How a refusal of the approver's is answered.
struct Refusal {
    status: StatusCode,
    code: &'static str,
    text: String,
}

impl Refusal {
    fn response(&self) -> Response {
        fail(self.status, self.code, &self.text)
    }
}

fn outcome(done: StatusCode, result: Result<(), Error>) -> (StatusCode, Option<Refusal>) {
    let refusal = result.err().map(|error| refuse(&error));
    (refusal.as_ref().map_or(done, |refusal| refusal.status), refusal)
}

fn refuse(error: &Error) -> Refusal {
    let (status, code) = match error {
        Error::Incomplete(_) => (StatusCode::BAD_REQUEST, "bad_request"),
        Error::NotFound(_) => (StatusCode::NOT_FOUND, "not_found"),
        Error::Expired { .. } => (StatusCode::GONE, "expired"),
        Error::Changed(_) => (StatusCode::CONFLICT, "approval_changed"),
        Error::NotPending { .. } => (StatusCode::CONFLICT, "not_pending"),
        Error::RunNotWaiting { .. } => (StatusCode::CONFLICT, "run_not_waiting"),
        Error::RunFinished { .. } => (StatusCode::CONFLICT, "run_finished"),
        Error::Hash(_) => (StatusCode::CONFLICT, "approval_hash"),
        Error::InDoubt(why) => {
            tracing::error!(error = %sanitize(&why.to_string()), "a decision is in doubt");
            let text = "it is not known whether the decision was recorded; look at the approval".to_owned();
            return Refusal { text, ..internal() };
        }
        Error::Failed(why) => {
            tracing::error!(error = %sanitize(&why.to_string()), "the approver failed");
            return internal();
        }
    };
    Refusal { status, code, text: error.to_string() }
}

fn internal() -> Refusal {
    Refusal { status: StatusCode::INTERNAL_SERVER_ERROR, code: "internal", text: "internal error".to_owned() }
}

fn bad_request(text: &str) -> Refusal {
    Refusal { status: StatusCode::BAD_REQUEST, code: "bad_request", text: text.to_owned() }
}

/// Answers that something was not done.
pub(super) fn fail(status: StatusCode, code: &'static str, text: &str) -> Response {
    #[derive(Serialize)]
    struct Failed<'a> {
        error: &'a str,
        code: &'static str,
    }
    reply(status, &Failed { error: text, code })
}

/// Answers in JSON. What a terminal acts on and what a page might take for markup is in JSON's own escapes.
fn reply(status: StatusCode, value: &impl Serialize) -> Response {
    // What is written here are strings, numbers and values that were decoded.
    let text = serde_json::to_string(value).unwrap_or_default();
    let text = escape_json(&text).replace('<', r"\u003c").replace('>', r"\u003e").replace('&', r"\u0026");
    answer(status, "application/json", text + "\n")
}

fn answer(status: StatusCode, kind: &'static str, text: String) -> Response {
    (status, [(header::CONTENT_TYPE, kind)], text).into_response()
}

/// Tells the observer of a decision that was asked for.
fn tell(
    channel: &Channel,
    action: &str,
    decision: &Decision,
    remote: &str,
    (status, refusal): (StatusCode, Option<&Refusal>),
) {
    let mut payload = ObjectWriter::new();
    payload.str("action", action);
    payload.str("approval_id", decision.approval.as_str());
    payload.str("by", &decision.by);
    if let Some(refusal) = refusal {
        payload.str("error", &refusal.text);
    }
    payload.str("remote", remote);
    payload.raw("status", status.as_str());
    channel.tell(decision.run.as_str(), EVENT_DECISION, payload);
}
