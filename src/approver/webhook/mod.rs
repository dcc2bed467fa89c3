//! The approval channel over HTTP: what a chat bot or a page of your own talks to.
//!
//! | request | answer |
//! |---|---|
//! | `GET /runs/{run}/approvals` | `{"run_id", "pending": [...]}` |
//! | `GET /runs/{run}/approvals/{id}` | one approval; as text with `?format=text` or `Accept: text/plain` |
//! | `POST /runs/{run}/approvals/{id}/approve` | 202; the body is a [`Decision`](super::Decision) |
//! | `POST /runs/{run}/approvals/{id}/reject` | 200; the same body |
//! | `POST /runs/{run}/cancel` | 200; `{"run_id", "by", "note"}` |
//!
//! Every request is signed, see [`signature`]; nothing lists runs. Answers are JSON, errors `{"error", "code"}`.
//! The order of the checks: too many requests (429 `rate_limited`), a body that is too long (413 `body_too_large`), time,
//! nonce, signature and replay (401 `unauthorized`), the route (404 `not_found`), and then the decision: 400 `bad_request`,
//! 403 `wrong_operator`, 404 `not_found`, 409 `approval_changed`, `not_pending`, `run_not_waiting`, `run_finished` or
//! `approval_hash`, 410 `expired`, 500 `internal`.
//!
//! Owns the order of the checks, and the time, rate and size that it accepts. It speaks plain HTTP: TLS is for whoever
//! stands in front. It resumes nothing: the run's owner collects a grant.

mod bucket;
mod guard;
mod routes;
pub mod secret;
mod serve;
pub mod signature;

use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use holdpoint_actors::clock::{Clock, WallClock};
use holdpoint_actors::session::Observer;
use holdpoint_core::event::Event;
use holdpoint_core::ids::RunId;
use holdpoint_core::json::ObjectWriter;
use tokio::sync::mpsc;

use super::Approver;
use bucket::Bucket;

pub use holdpoint_actors::store::{SignatureError, SignatureStore, SignedRequest, Taken};
pub use secret::{OperatorName, Secret, Secrets, SecretsError};
pub use signature::Signing;

/// The kind of the event that tells of a decision that was asked for, whatever became of it.
pub const EVENT_DECISION: &str = "webhook.decision";
/// The kind of the event that tells of a request that was refused before its route.
pub const EVENT_REFUSED: &str = "webhook.refused";

/// What the channel accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// How far a request's time may be from the clock's, either way. Five minutes; at least a second.
    pub skew: Duration,
    /// Requests a second, over everything that is served, before anything is read of them. Ten.
    pub rate: u32,
    /// Requests that may come at once after a pause. Twenty.
    pub burst: u32,
    /// The longest body, in bytes. 16 KiB.
    pub body_bytes_max: usize,
    /// The most approvals of a list. Twenty.
    pub list_max: u32,
    /// The most signatures that are remembered at a time, by all servers of one database together. Zero stands for as many
    /// as one server can take in the time that it accepts: the burst, and the rate for twice the skew, and one.
    pub remembered_max: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            skew: Duration::from_secs(300),
            rate: 10,
            burst: 20,
            body_bytes_max: 16 << 10,
            list_max: 20,
            remembered_max: 0,
        }
    }
}

impl Options {
    fn remembered_max(&self) -> usize {
        if self.remembered_max > 0 {
            return self.remembered_max;
        }
        let seconds = self.skew.as_secs().saturating_mul(2);
        let most = u64::from(self.rate).saturating_mul(seconds).saturating_add(u64::from(self.burst) + 1);
        usize::try_from(most).unwrap_or(usize::MAX)
    }
}

/// An option that would let nothing pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("set {0}: it must be at least one")]
pub struct OptionsError(&'static str);

/// Where signatures are remembered, so that none is taken twice.
///
/// [`SignatureStore`] keeps them in the database, so that neither a restart nor a second server forgets.
pub trait Replay: Send + Sync + 'static {
    /// Remembers a signature, unless it was seen before. Called on a thread that may block.
    ///
    /// # Errors
    /// When that can't be known or kept; the request is refused then.
    fn take(&self, request: &SignedRequest<'_>) -> Result<Taken, Box<dyn std::error::Error + Send + Sync>>;
}

impl Replay for SignatureStore {
    fn take(&self, request: &SignedRequest<'_>) -> Result<Taken, Box<dyn std::error::Error + Send + Sync>> {
        Ok(SignatureStore::take(self, request)?)
    }
}

/// The approval channel over HTTP.
pub struct Webhook {
    approver: Arc<dyn Approver>,
    replay: Arc<dyn Replay>,
    secrets: Secrets,
    options: Options,
    clock: Arc<dyn Clock>,
    observer: Option<Arc<dyn Observer>>,
}

impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhook")
            .field("secrets", &self.secrets)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Webhook {
    /// A channel to `approver`, for those who have one of `secrets`.
    pub fn new(approver: Arc<dyn Approver>, replay: Arc<dyn Replay>, secrets: Secrets) -> Webhook {
        let clock = Arc::new(WallClock);
        Webhook { approver, replay, secrets, options: Options::default(), clock, observer: None }
    }

    /// Accepts something else than the defaults.
    ///
    /// # Errors
    /// When one of them would let nothing pass.
    pub fn options(mut self, options: Options) -> Result<Webhook, OptionsError> {
        let least = [
            ("the skew in seconds", options.skew.as_secs()),
            ("the rate", options.rate.into()),
            ("the burst", options.burst.into()),
            ("the longest body", u64::try_from(options.body_bytes_max).unwrap_or(u64::MAX)),
            ("the longest list", options.list_max.into()),
        ];
        if let Some((what, _)) = least.iter().find(|(_, value)| *value == 0) {
            return Err(OptionsError(what));
        }
        self.options = options;
        Ok(self)
    }

    /// Names who is told of each decision that was asked for ([`EVENT_DECISION`]) and each request that was refused before
    /// its route ([`EVENT_REFUSED`]). Neither is in the record: their number is zero.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Webhook {
        self.observer = Some(observer);
        self
    }

    /// Judges times and rates by another clock than the wall's. For tests.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Webhook {
        self.clock = clock;
        self
    }

    /// The routes behind their checks, for a server of your own. Below a prefix that is stripped, requests are signed
    /// without it.
    ///
    /// A decision that was begun goes on when its asker hangs up. A server of your own that stops does well to let the
    /// runtime finish what is left, or to use [`serve`](Webhook::serve), which waits for it.
    pub fn router(self) -> Router {
        self.router_until(None)
    }

    /// The routes. `begun` is let go of when the last of what they began has ended.
    fn router_until(self, begun: Option<mpsc::Sender<Infallible>>) -> Router {
        let bucket = Mutex::new(Bucket::full(self.options.rate, self.options.burst, self.clock.now()));
        guard::around(routes::routes(), Arc::new(Channel { hook: self, bucket, _begun: begun }))
    }
}

/// What every request needs. Whatever works on a request holds it.
struct Channel {
    hook: Webhook,
    bucket: Mutex<Bucket>,
    _begun: Option<mpsc::Sender<Infallible>>,
}

impl Channel {
    /// Tells the observer of something that is not in the record.
    fn tell(&self, run: &str, kind: &str, payload: ObjectWriter) {
        let Some(observer) = &self.hook.observer else { return };
        observer.committed(&Event {
            seq: 0,
            run_id: RunId::from(run),
            step_id: String::new(),
            at: Some(self.hook.clock.now()),
            kind: kind.to_owned(),
            payload: payload.finish(),
        });
    }
}
