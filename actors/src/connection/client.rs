//! What is said over a wire, in order: `initialize`, the listing, the calls.
//!
//! Our own client loop rather than a library's typed one. Results must reach the record as the bytes they were,
//! whatever their depth, and a request must know whether it left; and the typed loop waits, at a timeout, for the
//! cancellation to be *written*, so that a server that stops reading makes the call wait for ever.
//!
//! Knows no process and no actor; `session` owns one of these. What a result means is decided elsewhere.

use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use thiserror::Error;
use tokio::time::Instant;

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

/// The most pages of one listing.
pub const MAX_TOOL_PAGES: usize = 100;
/// The most tools of one listing, over all pages.
pub const MAX_TOOLS: usize = 1000;
/// The most bytes of one listing, over all pages: a hundred pages of the largest frame would be 1.6 GiB.
const MAX_LISTING_BYTES: usize = 64 * 1024 * 1024;
/// The most bytes of a cursor, which is kept to see whether it comes again.
const MAX_CURSOR_BYTES: usize = 64 * 1024;

/// Levels of nesting that a recorded value may have. A result holds such a value one level down.
const MAX_RECORDED_DEPTH: usize = 256;
/// How much of a server's text an error quotes.
const QUOTED_BYTES: usize = 1000;

/// A whole listing: the raw text of each page's result, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    /// Each a JSON object with a `tools` array, exactly as the server sent it.
    pub pages: Vec<String>,
}

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

    /// Lists the tools, page by page, within the bounds at the top of this file.
    pub(crate) async fn list(&self, deadline: Instant) -> Result<Listing, Error> {
        let mut listing = Listing::default();
        let mut cursors = HashSet::new();
        let (mut tools, mut bytes) = (0, 0);
        let mut params = "{}".to_owned();
        loop {
            let page = self.ask("tools/list", &params, deadline).await?;
            let read: Page<'_> = serde_json::from_str(&page)
                .map_err(|error| failed(format_args!("a page of tools is not usable: {error}")))?;
            tools += read.tools.len();
            bytes += page.len();
            let next = read.next_cursor.filter(|cursor| !cursor.is_empty());
            listing.pages.push(page);
            if tools > MAX_TOOLS {
                return Err(failed(format_args!("the server lists more than {MAX_TOOLS} tools")));
            }
            if bytes > MAX_LISTING_BYTES {
                return Err(failed(format_args!("the listing is longer than {MAX_LISTING_BYTES} bytes")));
            }
            let Some(cursor) = next else { return Ok(listing) };
            if listing.pages.len() == MAX_TOOL_PAGES {
                return Err(failed(format_args!("the listing has more than {MAX_TOOL_PAGES} pages")));
            }
            if cursor.len() > MAX_CURSOR_BYTES {
                return Err(failed(format_args!("a cursor is longer than {MAX_CURSOR_BYTES} bytes")));
            }
            params = format!(r#"{{"cursor":{}}}"#, json_string(&cursor));
            if let Some(again) = cursors.replace(cursor) {
                return Err(failed(format_args!("the cursor {:?} came twice", visible(&again, 100))));
            }
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
            Outcome::Answered(Answer::Result(result)) => Ok(result),
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
        Answer::Result(raw) if frame::nests_deeper_than(&raw, MAX_RECORDED_DEPTH + 1) => {
            CallEnding::Unrecordable {
                reason: format!("the answer nests deeper than {MAX_RECORDED_DEPTH} levels"),
                raw,
            }
        }
        Answer::Result(raw_result) => CallEnding::Answered { raw_result },
        Answer::Error { code, message } => name.no_answer(server_error(&code, &message)),
        Answer::Malformed(why) => name.no_answer(visible(&why, QUOTED_BYTES)),
    }
}

fn server_error(code: &str, message: &str) -> String {
    format!("the server answered with error {}: {}", visible(code, 20), visible(message, QUOTED_BYTES))
}

/// What of a page tells whether there is another. Keys are exact; the rest is for the listing's reader.
#[derive(Debug, Deserialize)]
struct Page<'a> {
    #[serde(borrow)]
    tools: Vec<&'a RawValue>,
    #[serde(rename = "nextCursor", default)]
    next_cursor: Option<String>,
}
