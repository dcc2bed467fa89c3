//! One upstream server, from what an operator wrote to the tools that may be offered.
//!
//! Owns the checks at every connect, the first and each after a restart: a tool whose pin no longer holds is not
//! offered. Never starts a server whose manifest and rules do not belong together.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex};

use holdpoint_core::json::Json;
use holdpoint_core::pin::listing::Listing;
use holdpoint_core::pin::load::{LoadOutcome, Loading, check_tools, misfits};
use holdpoint_core::pin::manifest::Manifest;
use holdpoint_core::pin::report::Report;
use holdpoint_core::pin::rules::Rules;

use super::door::Door;
use super::reap::GroupLedger;
use super::server::ServerSpec;
use super::session::{Check, Loaded};
use super::tool::McpTool;
use super::{Arguments, McpConnection, Msg, Observation};
use crate::address::Address;
use crate::clock::lock;
use crate::schema::ArgumentSchema;
use crate::supervisor::ChildSpec;
use crate::tree::Tree;

/// How long past its connect timeout a server's report may be, before its actor is taken to be stuck.
const GRACE: std::time::Duration = std::time::Duration::from_secs(10);

/// A server and what an operator says about its tools.
#[derive(Debug, Clone)]
pub struct UpstreamSpec {
    /// The server.
    pub server: ServerSpec,
    /// What was pinned of it.
    pub manifest: Manifest,
    /// What may be offered of that, and how.
    pub rules: Rules,
    /// Whether a tool's success completes its run, whatever its rule says.
    pub terminal: bool,
}

/// A connected upstream server.
pub struct Upstream {
    spec: Arc<UpstreamSpec>,
    door: Door,
    connection: Address<Msg>,
    outcome: Arc<Mutex<LoadOutcome>>,
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream").field("server", &self.spec.server.name).finish_non_exhaustive()
    }
}

impl Upstream {
    /// Starts the server's connection under the tree's supervisor. It connects by itself; [`Upstream::load`] waits.
    ///
    /// # Errors
    /// When the description is unusable, or manifest and rules do not belong together: nothing is started then.
    pub async fn start(
        tree: &Tree,
        spec: UpstreamSpec,
        session: &str,
        ledger: Arc<dyn GroupLedger>,
    ) -> Result<Upstream, String> {
        let name = spec.server.name.clone();
        spec.server.validate().map_err(|error| error.to_string())?;
        let unfit = misfits(&name, &spec.manifest, &spec.rules);
        if !unfit.is_empty() {
            let all: Vec<String> = unfit.iter().map(ToString::to_string).collect();
            return Err(format!("server {name:?}: {}", all.join("; ")));
        }
        let spec = Arc::new(spec);
        let outcome = Arc::new(Mutex::new(LoadOutcome::default()));
        let check = check(Arc::clone(&spec), Arc::clone(&outcome));
        let arguments = Arguments { spec: spec.server.clone(), session: session.to_owned(), ledger, check };
        let (cell, connection) = Address::vacant();
        let child = ChildSpec::new(format!("mcp-connection:{name}"), cell, move || {
            (McpConnection, arguments.clone())
        });
        tree.add(child.never_escalates()).await?;
        Ok(Upstream { door: Door::new(&name), spec, connection, outcome })
    }

    /// Waits for the first connect and gives the tools to offer, sorted by the server's names, and the report.
    ///
    /// # Errors
    /// Why the server could not be connected within its connect timeout, with the report as far as there is one.
    pub async fn load(&self) -> Result<(Vec<McpTool>, Report), LoadError> {
        let within = self.spec.server.connect_timeout().saturating_add(GRACE);
        let listed: Result<Result<Arc<Loaded>, String>, _> = self.connection.ask(within, Msg::Tools).await;
        let why = match listed {
            Ok(Ok(_)) => None,
            Ok(Err(why)) => Some(why),
            Err(error) => Some(format!("mcp: server {:?}: {error}", self.spec.server.name)),
        };
        let outcome = lock(&self.outcome).clone();
        match why {
            Some(why) => Err(LoadError { why, report: outcome.report }),
            None => Ok((outcome.tools.into_iter().map(|tool| self.offer(tool)).collect(), outcome.report)),
        }
    }

    fn offer(&self, mut loaded: holdpoint_core::pin::load::LoadedTool) -> McpTool {
        loaded.spec.terminal |= self.spec.terminal;
        let cap = self.spec.server.max_content_bytes();
        McpTool::new(loaded, cap, self.door.clone(), self.connection.clone())
    }

    /// The server's name.
    pub fn name(&self) -> &str {
        &self.spec.server.name
    }

    /// Where its connection is.
    pub fn connection(&self) -> &Address<Msg> {
        &self.connection
    }

    /// How the connection fares; `None` when it does not say so within `within`.
    pub async fn observe(&self, within: std::time::Duration) -> Option<Observation> {
        self.connection.ask(within, Msg::Observe).await.ok()
    }

    /// Closes the server politely, within `within`.
    pub async fn close(&self, within: std::time::Duration) {
        if self.connection.ask(within, Msg::Close).await.is_err() {
            tracing::debug!(server = %self.name(), "a server was gone before it was closed, or would not close");
        }
    }
}

/// Why a server could not be loaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct LoadError {
    /// In words, the server's own escaped.
    pub why: String,
    /// What became of its tools, if it was listed.
    pub report: Report,
}

/// The checks at a connect. No tool registered is an error: a server without tools is of no use.
fn check(spec: Arc<UpstreamSpec>, outcome: Arc<Mutex<LoadOutcome>>) -> Check {
    Arc::new(move |live: &Listing| {
        let loading = Loading {
            server: &spec.server.name,
            manifest: &spec.manifest,
            rules: &spec.rules,
            live,
            default_timeout: spec.server.default_timeout,
        };
        let accept = |tool: &holdpoint_core::pin::load::LoadedTool| {
            ArgumentSchema::compile(&Json::trusted(tool.spec.input_schema.as_str())).map(|_| ())
        };
        let found = check_tools(&loading, &accept);
        let offered: BTreeSet<String> = found.tools.iter().map(|tool| tool.remote_name.clone()).collect();
        *lock(&outcome) = found;
        if offered.is_empty() {
            return Err("none of its tools can be offered; the report says why".to_owned());
        }
        Ok(offered)
    })
}

#[cfg(test)]
mod tests {
    use holdpoint_core::pin::listing::Page;
    use holdpoint_core::pin::rules;
    use holdpoint_core::time::UnixNanos;

    use super::*;

    #[test]
    fn a_tool_whose_schema_does_not_compile_is_refused_and_the_others_are_offered() {
        let page = br#"{"tools":[{"name":"bad","inputSchema":{"type":"object","properties":{"n":{"minLength":"one"}}}},
            {"name":"good","inputSchema":{"type":"object"}}]}"#;
        let mut live = Listing::new();
        live.take(Page::read(page).unwrap()).unwrap();
        let rules = br#"{"bad":{"side_effect":"read_only"},"good":{"side_effect":"read_only"}}"#;
        let second = Some(std::time::Duration::from_secs(1));
        let spec = UpstreamSpec {
            server: ServerSpec { name: "fs".to_owned(), default_timeout: second, ..ServerSpec::default() },
            manifest: Manifest::pin("fs", UnixNanos::from_nanos(0), &live),
            rules: rules::parse(rules).unwrap(),
            terminal: false,
        };
        let outcome = Arc::default();
        let offered = check(Arc::new(spec), Arc::clone(&outcome))(&live).unwrap();
        assert_eq!(offered, BTreeSet::from(["good".to_owned()]));
        let refused = lock(&outcome).report.refused.remove(0);
        assert_eq!(refused.tool, "bad");
        assert!(
            refused.reason.starts_with("the runtime refuses it: the schema does not compile: "),
            "{refused:?}"
        );
    }
}
