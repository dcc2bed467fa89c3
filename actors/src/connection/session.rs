//! One life of a connection: a process, the wire to it, and what it listed and may be called for.
//!
//! Opening is one phase under one deadline: start, greet, list, check. A session that could not be opened leaves no
//! process behind, and neither does one that is dropped. The actor in `mod` opens, watches and closes these.

use std::collections::BTreeSet;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use holdpoint_core::pin::listing::Listing;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use super::client::{Client, Error, after};
use super::contain::Held;
use super::process::Process;
use super::reap::GroupLedger;
use super::server::ServerSpec;
use super::text::{excerpt, visible};
use super::transport::{RawTransport, WireTasks};

/// How long the news of a closed pipe may wait for the exit status that explains it, and the other way round.
const SECOND_NEWS: Duration = Duration::from_millis(500);

/// Compares a listing with the pins and returns the tools, by the server's own names, that may be called.
///
/// Runs on a blocking thread at every connect, the first and each one after a restart, before a tool is offered. An
/// error fails the connect.
pub type Check = Arc<dyn Fn(&Listing) -> Result<BTreeSet<String>, String> + Send + Sync>;

/// What a connected server listed, and which of it is offered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// The protocol revision that the server chose.
    pub protocol_version: String,
    /// The listing, read from the bytes that the server sent.
    pub listing: Listing,
    /// The tools that may be called, by the server's own names.
    pub offered: BTreeSet<String>,
}

/// What it takes to open a session.
pub(crate) struct Opening {
    pub(crate) spec: ServerSpec,
    pub(crate) label: String,
    pub(crate) ledger: Arc<dyn GroupLedger>,
    pub(crate) check: Check,
}

/// A connected server.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) loaded: Arc<Loaded>,
    live: Live,
}

/// A process and the wire to it.
///
/// The process is dropped, and so killed, before the wire: a server that sees the end of its input may end by itself,
/// and what it started could then not be found through it.
#[derive(Debug)]
struct Live {
    process: Process,
    wire: WireTasks,
}

impl Opening {
    /// Opens a session within the connect timeout.
    ///
    /// # Errors
    /// A sentence that names the server and the step, with what the server last wrote to stderr.
    pub(crate) async fn open(&self) -> Result<Session, String> {
        let deadline = after(self.spec.connect_timeout());
        let start = Process::start(&self.spec, &self.label, self.ledger.clone());
        let mut process = match timeout_at(deadline, start).await {
            Ok(Ok(process)) => process,
            Ok(Err(error)) => return Err(self.error("connect", &Error::Failed(error.to_string()))),
            Err(_) => return Err(self.error("connect", &Error::OutOfTime)),
        };
        let (Some(input), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(self.error("connect", &Error::Failed("the server has no pipes".to_owned())));
        };
        let (transport, wire) = RawTransport::start(&self.spec.name, input, output);
        let live = Live { process, wire };
        let client = Client::new(&self.spec.name, transport);
        let protocol_version = match client.initialize(deadline).await {
            Ok(version) => version,
            Err(error) => return Err(self.last_words("connect", &error, &client, &live.process).await),
        };
        let listing = match client.list(deadline).await {
            Ok(listing) => listing,
            Err(error) => return Err(self.last_words("list tools", &error, &client, &live.process).await),
        };
        let (listing, offered) =
            self.check(listing, deadline).await.map_err(|error| self.error("load", &error))?;
        let loaded = Arc::new(Loaded { protocol_version, listing, offered });
        Ok(Session { client, loaded, live })
    }

    /// Checks cannot be interrupted: past the deadline they finish unheard.
    async fn check(&self, listing: Listing, deadline: Instant) -> Result<(Listing, BTreeSet<String>), Error> {
        let check = self.check.clone();
        let checked = tokio::task::spawn_blocking(move || check(&listing).map(|offered| (listing, offered)));
        match timeout_at(deadline, checked).await {
            Ok(Ok(Ok(checked))) => Ok(checked),
            Ok(Ok(Err(why))) => Err(Error::Failed(why)),
            Ok(Err(_)) => Err(Error::Failed("the check of the listing panicked".to_owned())),
            Err(_) => Err(Error::OutOfTime),
        }
    }

    fn error(&self, step: &str, error: &Error) -> String {
        let server = &self.spec.name;
        match error {
            Error::OutOfTime => {
                format!("mcp: server {server:?}: {step} timed out after {:?}", self.spec.connect_timeout())
            }
            Error::Failed(why) => format!("mcp: server {server:?}: {step}: {}", visible(why, 4000)),
        }
    }

    /// Words an error with the end of stderr, and ends the server: one that failed by itself may still be saying why.
    async fn last_words(&self, step: &str, error: &Error, client: &Client, process: &Process) -> String {
        process.look().await;
        match error {
            Error::OutOfTime => process.group().kill(),
            Error::Failed(_) => client.transport().finish(),
        }
        process.stderr.wait().await;
        process.group().kill();
        self.error(step, error) + &tail(process)
    }
}

fn tail(process: &Process) -> String {
    let said = process.stderr.text();
    if said.is_empty() { String::new() } else { format!("; stderr: {}", excerpt(&said, usize::MAX)) }
}

impl Session {
    pub(crate) fn pid(&self) -> u32 {
        self.live.process.pid()
    }

    /// Whether nothing can be sent any more. The reason, with the server's own end, comes by [`Session::lost`].
    pub(crate) fn has_lost_its_wire(&self) -> bool {
        self.client.transport().ended().is_some()
    }

    /// What holds the server's processes together.
    pub(crate) fn held(&self) -> &Held {
        self.live.process.held()
    }

    /// Resolves when the connection is lost, with the reason; by then every call in flight has its ending.
    pub(crate) fn lost(&self) -> impl Future<Output = String> + Send + 'static {
        lost(self.client.transport().clone(), self.live.process.exit())
    }

    /// What the server last wrote to stderr, as an addition to a sentence.
    pub(crate) fn stderr_tail(&self) -> String {
        tail(&self.live.process)
    }

    /// Ends the server politely, step by step, and whatever is left of its group at the end.
    pub(crate) async fn close(self) {
        let Self { client, loaded: _, live: Live { process, wire } } = self;
        process.look().await;
        client.transport().finish();
        process.close().await;
        drop(wire);
    }
}

async fn lost(transport: RawTransport, exit: watch::Receiver<Option<ExitStatus>>) -> String {
    let exited = |exit| async move { exit_status(exit).await.to_string() };
    tokio::select! {
        why = transport.closed() => match timeout(SECOND_NEWS, exited(exit.clone())).await {
            Ok(status) => format!("{why} ({status})"),
            Err(_) => why.to_string(),
        },
        status = exited(exit.clone()) => {
            // What it wrote before it ended is still in the pipe.
            timeout(SECOND_NEWS, transport.closed()).await.ok();
            let why = format!("the server exited ({status})");
            transport.end(&why);
            why
        }
    }
}

async fn exit_status(mut exit: watch::Receiver<Option<ExitStatus>>) -> ExitStatus {
    // The keeper sends the status before it ends.
    exit.wait_for(Option::is_some).await.ok().and_then(|status| *status).unwrap_or_default()
}
