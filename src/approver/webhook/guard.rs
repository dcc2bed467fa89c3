//! What a request must pass before its route is looked for: the rate, the size, the signature, and not having been here.
//!
//! Owns that order, and what every answer carries. What passed goes on with its body and its signer beside it, so that no
//! route can read anything that was not signed.

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use holdpoint_core::json::ObjectWriter;
use holdpoint_core::sanitize::sanitize;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};

use super::routes::fail;
use super::signature::{self, Signer, Signing};
use super::{Channel, EVENT_REFUSED, SignedRequest, Taken};

/// How long a body may take to arrive.
const BODY: Duration = Duration::from_secs(10);
/// What is read and thrown away of a body that is too long, so that its sender gets to read the answer.
const DISCARDED_BYTES_MAX: usize = 256 << 10;

/// A request that passed.
#[derive(Debug, Clone)]
pub(super) struct Passed {
    pub(super) signer: Signer,
    pub(super) body: Bytes,
    /// Who sent it, as far as the connection tells; empty when it does not.
    pub(super) remote: String,
}

/// Puts the checks around routes.
pub(super) fn around(routes: Router<Arc<Channel>>, channel: Arc<Channel>) -> Router {
    routes.layer(middleware::from_fn_with_state(Arc::clone(&channel), pass)).with_state(channel)
}

async fn pass(State(channel): State<Arc<Channel>>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let mut answer = match check(&channel, &parts, body).await {
        Ok(passed) => {
            parts.extensions.insert(passed);
            next.run(Request::from_parts(parts, Body::empty())).await
        }
        Err(refusal) => {
            let Refusal { status, code, reason } = refusal;
            if status != StatusCode::BAD_REQUEST && status != StatusCode::INTERNAL_SERVER_ERROR {
                tell(&channel, &parts, status, &reason);
            }
            fail(status, code, &reason)
        }
    };
    let headers = answer.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}

/// Why a request did not pass.
struct Refusal {
    status: StatusCode,
    code: &'static str,
    reason: String,
}

impl Refusal {
    fn new(status: StatusCode, code: &'static str, reason: impl Into<String>) -> Refusal {
        Refusal { status, code, reason: reason.into() }
    }

    fn unauthorized(reason: &'static str) -> Refusal {
        Refusal::new(StatusCode::UNAUTHORIZED, "unauthorized", reason)
    }
}

async fn check(channel: &Arc<Channel>, parts: &Parts, body: Body) -> Result<Passed, Refusal> {
    let now = channel.hook.clock.now();
    if !channel.bucket.lock().unwrap_or_else(PoisonError::into_inner).take(now) {
        return Err(Refusal::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", "too many requests"));
    }
    let body = read(body, channel.hook.options.body_bytes_max).await?;
    let seconds = now.as_nanos().div_euclid(1_000_000_000);
    let (signer, signature, at) = signed(channel, parts, &body, seconds).map_err(Refusal::unauthorized)?;
    take(channel, signature, at, seconds).await?;
    let remote = parts.extensions.get::<ConnectInfo<SocketAddr>>();
    let remote = remote.map(|ConnectInfo(address)| address.to_string()).unwrap_or_default();
    Ok(Passed { signer, body, remote })
}

/// Reads a body whole, if it is short enough and comes in time.
async fn read(mut body: Body, most: usize) -> Result<Bytes, Refusal> {
    let unreadable =
        || Refusal::new(StatusCode::BAD_REQUEST, "bad_request", "the body could not be read, or not in time");
    let limited = tokio::time::timeout(BODY, Limited::new(&mut body, most).collect());
    match limited.await.map_err(|_elapsed| unreadable())? {
        Ok(read) => Ok(read.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            let discarded = Limited::new(body, DISCARDED_BYTES_MAX);
            // Whatever comes of it, the answer is the same.
            drop(tokio::time::timeout(BODY, discard(discarded)).await);
            let reason = format!("the body is longer than {most} bytes");
            Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", reason))
        }
        Err(_broken) => Err(unreadable()),
    }
}

async fn discard(mut body: Limited<Body>) {
    while let Some(Ok(_frame)) = body.frame().await {}
}

/// Checks time, nonce and signature. Gives who signed, the signature's bytes and the request's time.
fn signed(
    channel: &Channel,
    parts: &Parts,
    body: &Bytes,
    now: i64,
) -> Result<(Signer, [u8; 32], i64), &'static str> {
    let timestamp =
        only(&parts.headers, signature::TIMESTAMP).and_then(|text| std::str::from_utf8(text).ok());
    let timestamp: i64 = timestamp
        .and_then(|text| text.parse().ok())
        .ok_or("missing, repeated or malformed X-Approval-Timestamp")?;
    let skew = channel.hook.options.skew.as_secs();
    if timestamp.abs_diff(now) > skew {
        return Err("timestamp outside the accepted window");
    }
    let nonce = only(&parts.headers, signature::NONCE)
        .filter(|nonce| (1..=signature::NONCE_BYTES_MAX).contains(&nonce.len()))
        .ok_or("missing, repeated or oversized X-Approval-Nonce")?;
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
    let method = parts.method.as_str();
    let request = Signing { timestamp, nonce, method, target, body };
    let given =
        only(&parts.headers, signature::SIGNATURE).ok_or("missing or repeated X-Approval-Signature")?;
    let operator = only(&parts.headers, signature::OPERATOR);
    let (signer, bytes) = signature::verify(&channel.hook.secrets, given, operator, &request)?;
    Ok((signer, bytes, timestamp))
}

/// A header that is there once.
fn only<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a [u8]> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?;
    values.next().is_none().then(|| first.as_bytes())
}

/// Remembers the signature, and refuses one that was seen. What can't be remembered does not pass.
async fn take(channel: &Arc<Channel>, signature: [u8; 32], at: i64, now: i64) -> Result<(), Refusal> {
    let remembering = Arc::clone(channel);
    let taken = tokio::task::spawn_blocking(move || {
        let options = &remembering.hook.options;
        let skew = i64::try_from(options.skew.as_secs()).unwrap_or(i64::MAX);
        remembering.hook.replay.take(&SignedRequest {
            signature: &signature,
            at,
            oldest: now.saturating_sub(skew),
            most: options.remembered_max(),
        })
    });
    match taken.await.unwrap_or_else(|panic| Err(Box::new(panic))) {
        Ok(Taken::First) => Ok(()),
        Ok(Taken::Again) => Err(Refusal::unauthorized("signature already used")),
        Ok(Taken::Forgotten) => {
            Err(Refusal::unauthorized("a signature of this time may have been used already"))
        }
        Ok(Taken::Full) => Err(Refusal::unauthorized("too many signatures in the window")),
        Err(error) => {
            tracing::error!(error = %sanitize(&error.to_string()), "a signature could not be remembered");
            Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "internal error"))
        }
    }
}

fn tell(channel: &Channel, parts: &Parts, status: StatusCode, reason: &str) {
    let remote = parts.extensions.get::<ConnectInfo<SocketAddr>>();
    let mut payload = ObjectWriter::new();
    payload.str("method", parts.method.as_str());
    payload.str("path", parts.uri.path());
    payload.str("reason", reason);
    payload.str("remote", &remote.map(|ConnectInfo(address)| address.to_string()).unwrap_or_default());
    payload.raw("status", status.as_str());
    channel.tell("", EVENT_REFUSED, payload);
}
