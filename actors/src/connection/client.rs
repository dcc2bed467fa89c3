//! What is said over a wire, in order: `initialize`, the listing, the calls.
//!
//! Our own client loop rather than a library's typed one. Results must reach the record as the bytes they were,
//! whatever their depth, and a request must know whether it left; and the typed loop waits, at a timeout, for the
//! cancellation to be *written*, so that a server that stops reading makes the call wait for ever.
//!
//! Knows no process and no actor; `session` owns one of these. What a result means is decided elsewhere.

use std::fmt;
use std::time::Duration;

use holdpoint_core::json::{DEPTH_MAX, is_deeper_than};
use holdpoint_core::pin::listing::{Listing, Next, Page};
use serde::Deserialize;
use serde_json::value::RawValue;
use thiserror::Error;
use tokio::time::{Instant, timeout_at};

use super::ending::{CallEnding, CallName};
use super::frame::{self, Answer, json_string};
use super::text::visible;
use super::transport::{Outcome, RawTransport, Request};

/// The revision asked for: the newest that has `initialize`.
pub const ASKED_VERSION: &str = "2025-11-25";
/// The revisions that are accepted as an answer.
pub const ACCEPTED_VERSIONS: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];
/// The name that servers see.
pub const CLIENT_NAME: &str = "holdpoint";

/// The most bytes of one listing, over all pages: a hundred pages of the largest frame would be 1.6 GiB.
const MAX_LISTING_BYTES: usize = 64 * 1024 * 1024;
/// The most bytes of a cursor, which is kept to see whether it comes again.
const MAX_CURSOR_BYTES: usize = 64 * 1024;

/// How much of a server's text an error quotes.
const QUOTED_BYTES: usize = 1000;

/// Why a step of connecting failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum Error {
    #[error("timed out")]
    OutOfTime,
    #[error("{0}")]
    Failed(String),
}

fn failed(what: impl fmt::Display) -> Error {
    Error::Failed(what.to_string())
}

/// One side of a conversation with a server.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    server: String,
    transport: RawTransport,
}

/// A call that was queued. Dropping it gives the call up.
#[derive(Debug)]
pub(crate) struct Call {
    name: CallName,
    request: Request,
    deadline: Instant,
    timeout: Duration,
}

impl Client {
    pub(crate) fn new(server: &str, transport: RawTransport) -> Self {
        Self { server: server.to_owned(), transport }
    }

    pub(crate) fn transport(&self) -> &RawTransport {
        &self.transport
    }

    /// Greets the server and returns the protocol revision that it chose.
    pub(crate) async fn initialize(&self, deadline: Instant) -> Result<String, Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Greeting {
            protocol_version: String,
        }
        let params = format!(
            r#"{{"protocolVersion":"{ASKED_VERSION}","capabilities":{{}},"clientInfo":{{"name":"{CLIENT_NAME}","version":"{}"}}}}"#,
            env!("CARGO_PKG_VERSION")
        );
        let result = self.ask("initialize", &params, deadline).await?;
        let greeting: Greeting = serde_json::from_str(&result)
            .map_err(|error| failed(format_args!("the answer to initialize is not usable: {error}")))?;
        let version = greeting.protocol_version;
        if !ACCEPTED_VERSIONS.contains(&version.as_str()) {
            let version = visible(&version, 40);
            return Err(failed(format_args!(
                "the server speaks protocol version {version}, which is not supported"
            )));
        }
        self.transport.notify("notifications/initialized", "{}");
        Ok(version)
    }

    /// Lists the tools, page by page, as `pin::listing` reads and bounds them.
    pub(crate) async fn list(&self, deadline: Instant) -> Result<Listing, Error> {
        let mut listing = Listing::new();
        let mut bytes = 0;
        let mut params = "{}".to_owned();
        loop {
            let page = self.ask("tools/list", &params, deadline).await?;
            bytes += page.len();
            if bytes > MAX_LISTING_BYTES {
                return Err(failed(format_args!("the listing is longer than {MAX_LISTING_BYTES} bytes")));
            }
            // A page of the largest size takes long enough to read to hold up a worker.
            let read = tokio::task::spawn_blocking(move || Page::read(page.as_bytes()));
            let page = match timeout_at(deadline, read).await {
                Ok(Ok(read)) => read.map_err(failed)?,
                Ok(Err(panic)) => return Err(failed(panic)),
                Err(_) => return Err(Error::OutOfTime),
            };
            let cursor = match listing.take(page).map_err(failed)? {
                Next::Done => return Ok(listing),
                Next::Page(cursor) => cursor,
            };
            if cursor.len() > MAX_CURSOR_BYTES {
                return Err(failed(format_args!("a cursor is longer than {MAX_CURSOR_BYTES} bytes")));
            }
            params = format!(r#"{{"cursor":{}}}"#, json_string(&cursor));
        }
    }

    /// Queues a call, in this call, its arguments exactly the text given.
    ///
    /// # Errors
    /// The ending, when the call is known not to leave.
    pub(crate) fn call(
        &self,
        name: CallName,
        arguments: &str,
        timeout: Duration,
        fence: Option<Instant>,
    ) -> Result<Call, CallEnding> {
        let arguments = match arguments.trim_ascii() {
            "" | "null" => "{}",
            given => given,
        };
        // Also what keeps the splice honest: exactly one JSON value goes in.
        let one_value: Result<&RawValue, _> = serde_json::from_str(arguments);
        if !arguments.starts_with('{') || one_value.is_err() {
            return Err(CallEnding::KnownFailure { text: name.text("the arguments are not a JSON object") });
        }
        let deadline = after(timeout);
        let params = frame::call_params(&name.tool, arguments);
        match self.transport.request("tools/call", &params, fence) {
            Ok(request) => Ok(Call { name, request, deadline, timeout }),
            Err(why) => Err(name.not_sent(visible(&why, QUOTED_BYTES))),
        }
    }

    async fn ask(&self, method: &'static str, params: &str, deadline: Instant) -> Result<String, Error> {
        let request = self.transport.request(method, params, None).map_err(failed)?;
        match request.until(deadline).await {
            // A listing that is not UTF-8 is pinned all the same, as others pinned it.
            Outcome::Answered(Answer::Result { text, utf8: _ }) => Ok(text),
            Outcome::Answered(Answer::Error { code, message }) => Err(failed(server_error(&code, &message))),
            Outcome::Answered(Answer::Malformed(why)) | Outcome::Lost(why) => Err(failed(why)),
            Outcome::NotSent(_) | Outcome::TimedOut if Instant::now() >= deadline => Err(Error::OutOfTime),
            Outcome::NotSent(why) => Err(failed(why)),
            Outcome::TimedOut => Err(Error::OutOfTime),
        }
    }

    /// The operator's name for the server.
    pub(crate) fn server(&self) -> &str {
        &self.server
    }
}

impl Call {
    /// Waits for the call's ending, which comes at its timeout at the latest.
    pub(crate) async fn ending(self) -> CallEnding {
        let Self { name, request, deadline, timeout } = self;
        match request.until(deadline).await {
            Outcome::Answered(answer) => read_answer(&name, answer),
            Outcome::NotSent(why) => name.not_sent(visible(&why, QUOTED_BYTES)),
            Outcome::TimedOut => {
                CallEnding::TimedOut { text: name.text(format_args!("timed out after {timeout:?}")) }
            }
            Outcome::Lost(why) => name.no_answer(visible(&why, QUOTED_BYTES)),
        }
    }
}

/// The moment that lies this far ahead; a span beyond counting stands for a year.
pub(crate) fn after(span: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);
    Instant::now() + span.min(YEAR)
}

fn read_answer(name: &CallName, answer: Answer) -> CallEnding {
    match answer {
        Answer::Result { utf8: false, .. } => name.no_answer("the answer is not valid UTF-8"),
        // A recorded value stands one level down in its result.
        Answer::Result { text, .. } if is_deeper_than(text.as_bytes(), DEPTH_MAX + 1) => {
            let reason = format!("the answer nests deeper than {DEPTH_MAX} levels");
            CallEnding::Unrecordable { reason, raw: text }
        }
        Answer::Result { text, .. } => CallEnding::Answered { raw_result: text },
        Answer::Error { code, message } => name.no_answer(server_error(&code, &message)),
        Answer::Malformed(why) => name.no_answer(visible(&why, QUOTED_BYTES)),
    }
}

fn server_error(code: &str, message: &str) -> String {
    format!("the server answered with error {}: {}", visible(code, 20), visible(message, QUOTED_BYTES))
}
