//! What a proxy is built on: its servers, its actors, its files.
//!
//! Owns loading the servers, what is cleaned up at the start and at the end, and what a doctor is told. Knows nothing of
//! hosts or calls.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use holdpoint_actors::clock::{RandomMint, WallClock, monotonic};
use holdpoint_actors::connection::{Finding, LoadError, McpTool, Reaped, Upstream, UpstreamSpec, reap};
use holdpoint_actors::executor::Tool;
use holdpoint_actors::store::GroupStore;
use holdpoint_actors::tree::Tree;
use holdpoint_core::pin::report::Report;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::config::Config;
use super::desk::{Desk, DeskSpec};
use super::gated::GatePolicy;
use super::journal::Journal;
use super::policy::{PolicyTool, ProxyPolicy};
use crate::doctor_socket;

/// How long a server may take to end politely.
const CLOSE: Duration = Duration::from_secs(10);
/// How long ended servers may take to be struck out; what is left by then the next start looks at.
const STRUCK_OUT: Duration = Duration::from_secs(1);
/// How often that is looked at.
const GLANCE: Duration = Duration::from_millis(10);
/// How long an actor may take to say how it fares.
const OBSERVE: Duration = Duration::from_secs(1);

/// Servers, actors and files of one proxy.
pub(super) struct House {
    config: Config,
    specs: Vec<UpstreamSpec>,
    tree: Tree,
    policy: GatePolicy,
    journal: Arc<dyn Journal>,
    upstreams: Mutex<Vec<Arc<Upstream>>>,
}

impl fmt::Debug for House {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("House").field("session", &self.config.session).finish_non_exhaustive()
    }
}

/// What came of loading every server.
pub(super) struct Loaded {
    /// What became of their tools, in the order of the configuration.
    pub(super) reports: Vec<Report>,
    /// The tools in the order in which they are offered, or why nothing is.
    pub(super) tools: Result<Vec<Arc<McpTool>>, String>,
}

impl House {
    pub(super) fn new(
        config: Config,
        specs: Vec<UpstreamSpec>,
        tree: Tree,
        policy: GatePolicy,
        journal: Arc<dyn Journal>,
    ) -> House {
        House { config, specs, tree, policy, journal, upstreams: Mutex::default() }
    }

    pub(super) fn journal(&self) -> &dyn Journal {
        &*self.journal
    }

    #[cfg(feature = "testkit")]
    pub(super) fn tree(&self) -> Tree {
        self.tree.clone()
    }

    pub(super) fn say_that_it_serves(&self) {
        let Config { session, database, .. } = &self.config;
        self.journal.line(&format!("serving session {session} on database {}", database.display()));
    }

    /// Ends what servers of an earlier process left running, if it is still theirs.
    pub(super) async fn reap_left_behind(&self) {
        let groups = GroupStore::new(&self.config.database);
        let reaped = tokio::task::spawn_blocking(move || {
            let records = groups.list_groups().map_err(|error| error.to_string())?;
            reap(&records, &groups).map_err(|error| error.to_string())
        });
        match reaped.await {
            Ok(Ok(reaped)) => reaped.iter().for_each(|group| self.tell_of(group)),
            Ok(Err(error)) => tracing::warn!(%error, "servers of an earlier process were not looked for"),
            Err(error) => tracing::warn!(%error, "looking for servers of an earlier process broke off"),
        }
    }

    fn tell_of(&self, reaped: &Reaped) {
        let (group, server) = (reaped.group.pgid, &reaped.group.server);
        match reaped.finding {
            Finding::Orphaned if reaped.ended => {
                let line = format!("ended what server {server} had left running (group {group})");
                self.journal.line(&line);
            }
            Finding::Orphaned | Finding::Unproven => {
                let line = format!(
                    "server {server} left processes (group {group}) that were not ended: look at them"
                );
                self.journal.line(&line);
            }
            Finding::Gone | Finding::NumberReused | Finding::OwnerLives | Finding::Elsewhere => {}
        }
    }

    /// Connects every server, all at a time, and gives the tools that may be offered.
    pub(super) async fn load(&self) -> Loaded {
        let mut loading = JoinSet::new();
        for (at, spec) in self.specs.iter().cloned().enumerate() {
            let groups = Arc::new(GroupStore::new(&self.config.database));
            let started = Upstream::start(&self.tree, spec, self.config.session.as_str(), groups).await;
            match started {
                Ok(upstream) => {
                    let upstream = Arc::new(upstream);
                    lock(&self.upstreams).push(Arc::clone(&upstream));
                    loading.spawn(async move { (at, upstream.load().await) });
                }
                Err(why) => {
                    loading.spawn(async move { (at, Err(LoadError { why, report: Report::default() })) });
                }
            }
        }
        let mut loaded = loading.join_all().await;
        loaded.sort_by_key(|(at, _)| *at);
        let (mut reports, mut tools, mut failures) = (Vec::new(), Vec::new(), Vec::new());
        for (_, result) in loaded {
            match result {
                Ok((offered, report)) => {
                    tools.extend(offered.into_iter().map(Arc::new));
                    reports.push(report);
                }
                Err(LoadError { why, report }) => {
                    failures.push(why);
                    reports.push(report);
                }
            }
        }
        let tools = match failures.is_empty() {
            true => self.without_clashes(tools),
            false => Err(failures.join("; ")),
        };
        Loaded { reports, tools }
    }

    /// Refuses a name that stands for two things.
    fn without_clashes(&self, tools: Vec<Arc<McpTool>>) -> Result<Vec<Arc<McpTool>>, String> {
        let status_tool = &self.config.status_tool;
        let mut names = HashSet::new();
        for tool in &tools {
            let loaded = tool.loaded();
            let (server, name) = (&loaded.server, &loaded.spec.name);
            if name == status_tool {
                let remote = &loaded.remote_name;
                return Err(format!(
                    "server {server:?} offers tool {remote:?} as {name:?}, which is the status tool's name: rename one of \
                     them (status_tool, or the rule's rename)"
                ));
            }
            if !names.insert(name) {
                return Err(format!(
                    "server {server:?} offers {name:?}, and so does an earlier server: rename one"
                ));
            }
        }
        Ok(tools)
    }

    /// Opens the desk over the tools that were loaded.
    pub(super) fn open_desk(&self, tools: Vec<Arc<McpTool>>) -> Result<Arc<Desk>, String> {
        let config = &self.config;
        let rules: HashMap<(&str, &str), _> = config
            .servers
            .iter()
            .flat_map(|server| {
                server.rules.iter().map(|(tool, rule)| ((server.name.as_str(), tool.as_str()), rule))
            })
            .collect();
        let rule_of = |tool: &McpTool| {
            let loaded = tool.loaded();
            rules.get(&(loaded.server.as_str(), loaded.remote_name.as_str())).copied()
        };
        let policy_tools = tools.iter().filter_map(|tool| {
            let rule = rule_of(tool).and_then(|rule| rule.outcome);
            Some(PolicyTool { upstream: tool.upstream()?, fixed: tool.loaded().fixed.clone(), rule })
        });
        let windows =
            tools.iter().map(|tool| (tool.loaded().spec.name.clone(), config.window(rule_of(tool))));
        let spec = DeskSpec {
            session: config.session.clone(),
            database: config.database.clone(),
            policy: ProxyPolicy::new(config.policy.clone(), policy_tools),
            windows: windows.collect(),
            limits: config.limits(),
            hold: config.hold,
            waiter: Arc::new(self.tree.approval.clone()),
            max_pending: config.max_pending,
            status_tool: config.status_tool.clone(),
            lease_ttl: config.lease_ttl,
            clock: Arc::new(WallClock),
            mint: Arc::new(RandomMint),
            journal: Arc::clone(&self.journal),
            tools: tools.into_iter().map(|tool| tool as Arc<dyn Tool>).collect(),
        };
        Desk::open(self.tree.clone(), &self.policy, spec).map_err(|error| error.to_string())
    }

    /// Answers doctors for as long as it is polled.
    pub(super) async fn tell_doctors(self: Arc<Self>) {
        match doctor_socket::bind(&self.config.database).await {
            Ok(socket) => {
                doctor_socket::serve(socket, move || {
                    let house = Arc::clone(&self);
                    async move { house.observe().await }
                })
                .await;
            }
            Err(error) => tracing::warn!(%error, "no doctor can ask how the actors fare"),
        }
    }

    async fn observe(&self) -> Value {
        let upstreams = lock(&self.upstreams).clone();
        let asked: JoinSet<_> =
            upstreams.into_iter().map(|upstream| async move { upstream.observe(OBSERVE).await }).collect();
        let tree = self.tree.observe().await;
        let connections: Vec<_> = asked.join_all().await.into_iter().flatten().collect();
        json!({"session": self.config.session, "actors": tree, "connections": connections})
    }

    /// Closes the servers and stops the actors.
    pub(super) async fn close(&self) {
        let upstreams = std::mem::take(&mut *lock(&self.upstreams));
        let closing: JoinSet<_> =
            upstreams.into_iter().map(|upstream| async move { upstream.close(CLOSE).await }).collect();
        closing.join_all().await;
        self.are_struck_out().await;
        self.tree.stop().await;
    }

    /// Waits until no server of this process is written down as alive, also one that was lost or was just being
    /// started: its keeper strikes it out in its own time, and the process must not end before.
    async fn are_struck_out(&self) {
        let (database, me) = (self.config.database.clone(), std::process::id());
        let began = monotonic();
        while began.elapsed() < STRUCK_OUT {
            let groups = GroupStore::new(&database);
            let listed = tokio::task::spawn_blocking(move || groups.list_groups()).await;
            match listed {
                Ok(Ok(left)) if left.iter().any(|group| group.owner_pid == me) => {
                    tokio::time::sleep(GLANCE).await
                }
                Ok(Ok(_) | Err(_)) | Err(_) => return,
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
