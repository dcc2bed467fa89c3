//! The tools of MCP servers inside an embedded gate or driver.
//!
//! Owns asking a server for what it offers, and starting the servers of a [`Runtime`](crate::gate::Runtime). What a tool must
//! pass before it is offered is told in `holdpoint_core::pin`; what keeps a server at arm's length, in
//! `holdpoint_actors::connection`. The proxy and its commands do the same for a host that nobody embeds.
//!
//! Two things come before a server's tool runs, and both are a person's: what it offers is *pinned*, and each tool that may
//! be used gets a *rule*. A tool without either is not offered, nor is one whose description or schema is another one by
//! now.
//!
//! ```no_run
//! use std::time::Duration;
//! use holdpoint::gate::Runtime;
//! use holdpoint::mcp::{ServerSpec, UpstreamSpec, parse_rules, pin};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let command = ["node", "notes-server.js"].map(str::to_owned).to_vec();
//! let default_timeout = Some(Duration::from_secs(10));
//! let server = ServerSpec { name: "notes".into(), command, default_timeout, ..ServerSpec::default() };
//!
//! // Once. Somebody reads it before it counts, and it is kept: `Manifest::parse_strict` reads it again.
//! let manifest = pin(&server).await?;
//! std::fs::write("notes.json", manifest.to_text())?;
//!
//! // From then on. The tools are named after their server: `notes_add`.
//! let rules = parse_rules(br#"{"add":{"side_effect":"local_mutation"},"list":{"side_effect":"read_only"}}"#)?;
//! let upstream = UpstreamSpec { server, manifest, rules, terminal: false };
//! let runtime = Runtime::builder("agent.db").server(upstream).start().await?;
//! for line in runtime.reports().iter().flat_map(|report| report.lines()) {
//!     println!("{line}");
//! }
//! # runtime.stop().await;
//! # Ok(()) }
//! ```

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub use holdpoint_actors::connection::{LoadError, ServerSpec, UpstreamSpec};
pub use holdpoint_core::pin::listing::Listing;
pub use holdpoint_core::pin::manifest::Manifest;
pub use holdpoint_core::pin::report::Report;
pub use holdpoint_core::pin::rules::{Rule, Rules, parse as parse_rules};

use holdpoint_actors::address::{self, AskError};
use holdpoint_actors::clock::wall;
use holdpoint_actors::connection::{Arguments, Loaded, McpConnection, MemoryLedger, Msg, Upstream, reap};
use holdpoint_actors::executor::Tool;
use holdpoint_actors::store::GroupStore;
use holdpoint_actors::tree::Tree;
use ractor::{Actor, ActorRef, RpcReplyPort};

/// How long past its connect timeout a server's answer may be before its actor is taken to be stuck.
const GRACE: Duration = Duration::from_secs(10);
/// How long a server may take to end when its input is closed, with the signals that follow.
const CLOSING: Duration = Duration::from_secs(15);

/// A server could not be asked for its tools.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct ListError {
    /// In words, the server's own escaped.
    pub why: String,
}

/// Starts a server, asks it for its tools, and ends it. Nothing is registered and nothing is called.
///
/// # Errors
/// When the description is unusable, or the server can't be listed within its connect timeout.
pub async fn listing(spec: &ServerSpec) -> Result<Listing, ListError> {
    listed(spec.clone()).await.map_err(|why| ListError { why })
}

/// Pins what a server offers now. The manifest counts from the moment that somebody keeps it: read it first.
///
/// # Errors
/// As [`listing`].
pub async fn pin(spec: &ServerSpec) -> Result<Manifest, ListError> {
    Ok(Manifest::pin(&spec.name, wall(), &listing(spec).await?))
}

async fn listed(spec: ServerSpec) -> Result<Listing, String> {
    spec.validate().map_err(|error| error.to_string())?;
    let (name, within) = (spec.name.clone(), spec.connect_timeout().saturating_add(GRACE));
    // Nothing is offered: the listing is all that is wanted.
    let check = Arc::new(|_: &Listing| Ok(BTreeSet::new()));
    let ledger = Arc::new(MemoryLedger::default());
    let arguments = Arguments { spec, session: "holdpoint".to_owned(), ledger, check };
    let started = Actor::spawn(None, McpConnection, arguments).await;
    let (connection, ended) = started.map_err(|error| format!("mcp: server {name:?}: {error}"))?;
    let listed: Result<Result<Arc<Loaded>, String>, String> = ask(&connection, within, Msg::Tools).await;
    // Dropping the actor's state kills what a polite end leaves.
    drop(ask(&connection, CLOSING, Msg::Close).await);
    connection.stop(None);
    drop(tokio::time::timeout(CLOSING, ended).await);
    match listed {
        Ok(Ok(loaded)) => Ok(loaded.listing.clone()),
        Ok(Err(why)) => Err(why),
        Err(why) => Err(format!("mcp: server {name:?}: {why}")),
    }
}

async fn ask<T: Send + 'static>(
    connection: &ActorRef<Msg>,
    within: Duration,
    message: impl FnOnce(RpcReplyPort<T>) -> Msg,
) -> Result<T, String> {
    let answer = address::ask(connection, within, message).await;
    answer.map_err(|error| match error {
        AskError::Late => "its connection did not answer".to_owned(),
        AskError::Down | AskError::Lost => "its connection ended".to_owned(),
    })
}

/// The servers of a runtime: connected, and connected again when one is lost.
#[derive(Default)]
pub(crate) struct Servers {
    upstreams: Vec<Upstream>,
    /// What became of their tools, a server each.
    pub(crate) reports: Vec<Report>,
}

impl fmt::Debug for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.upstreams.iter().map(Upstream::name)).finish()
    }
}

impl Servers {
    /// Starts each server under the tree and gives the tools that may be offered. What an earlier process left running of
    /// them is ended first.
    pub(crate) async fn start(
        tree: &Tree,
        specs: Vec<UpstreamSpec>,
        database: &Path,
    ) -> Result<(Servers, Vec<Arc<dyn Tool>>), LoadError> {
        let (mut servers, mut tools) = (Servers::default(), Vec::<Arc<dyn Tool>>::new());
        if specs.is_empty() {
            return Ok((servers, tools));
        }
        reap_left_behind(database).await;
        for spec in specs {
            match servers.add(tree, spec, database).await {
                Ok(added) => tools.extend(added),
                Err(error) => {
                    servers.close().await;
                    return Err(error);
                }
            }
        }
        Ok((servers, tools))
    }

    async fn add(
        &mut self,
        tree: &Tree,
        spec: UpstreamSpec,
        database: &Path,
    ) -> Result<Vec<Arc<dyn Tool>>, LoadError> {
        let ledger = Arc::new(GroupStore::new(database));
        let started = Upstream::start(tree, spec, "embedded", ledger).await;
        let upstream = started.map_err(|why| LoadError { why, report: Report::default() })?;
        let loaded = upstream.load().await;
        self.upstreams.push(upstream);
        let (tools, report) = loaded?;
        self.reports.push(report);
        Ok(tools.into_iter().map(|tool| Arc::new(tool) as Arc<dyn Tool>).collect())
    }

    /// Lets the connections to the servers die that `of` names, and their servers with them; gives whether there was one.
    /// A supervisor that lives starts them again.
    #[cfg(feature = "testkit")]
    pub(crate) fn kill(&self, of: impl Fn(&str) -> bool) -> bool {
        let mut named = self.upstreams.iter().filter(|upstream| of(upstream.name())).peekable();
        let any = named.peek().is_some();
        named.for_each(|upstream| holdpoint_actors::tree::kill(upstream.connection()));
        any
    }

    /// Closes each server politely, all at a time.
    pub(crate) async fn close(&self) {
        let closing = self.upstreams.iter().map(|upstream| upstream.close(CLOSING));
        futures_util::future::join_all(closing).await;
    }
}

async fn reap_left_behind(database: &Path) {
    let groups = GroupStore::new(database);
    let reaped = tokio::task::spawn_blocking(move || {
        let records = groups.list_groups().map_err(|error| error.to_string())?;
        reap(&records, &groups).map_err(|error| error.to_string())
    });
    match reaped.await {
        Ok(Ok(reaped)) => {
            for group in reaped.iter().filter(|group| group.ended) {
                let (server, members) = (&group.group.server, group.members);
                tracing::info!(%server, members, "ended processes that a server had left");
            }
        }
        Ok(Err(error)) => tracing::warn!(%error, "servers of an earlier process were not looked for"),
        Err(error) => tracing::warn!(%error, "looking for servers of an earlier process broke off"),
    }
}
