//! One life of the proxy: checked, opened, served, ended.
//!
//! Owns the order. What can be wrong with the operator's own files is found before a host is answered anything
//! ([`Prepared::check`], [`Opened::open`]); the servers are connected while the host is greeted already, and the first
//! list waits for them. However it ends, holds end first, calls under way finish, then servers and actors are stopped.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use holdpoint_actors::connection::UpstreamSpec;
use holdpoint_actors::store::Options;
use holdpoint_actors::tree::{Running, Tree, TreeError, TreeSpec};
use holdpoint_core::json::{CheckError, check};
use holdpoint_core::pin::manifest::Manifest;
use holdpoint_core::pin::report::Report;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, watch};

use super::answer::{Answer, Unavailable};
use super::config::{Config, Server};
use super::desk::Desk;
use super::front::{self, CallAnswer, Calls, HostCall, ListError};
use super::gated::GatePolicy;
use super::house::House;
use super::journal::Journal;
use super::owned::{OwnedError, check_database, check_opened_database, check_writable, read_owned};
use super::reach::Reached;

/// How long a host that has not asked for the list yet may still ask, once it is known that there is none.
const UNTOLD: Duration = Duration::from_secs(5);
/// How long calls under way may take once the actors are gone.
const LAST_CALLS: Duration = Duration::from_secs(2);

/// What a host is told when no list can be given. It names no path.
const NO_TOOLS: &str =
    "no tools can be offered: a server could not be loaded, and the operator has been told why";
const ENDING: &str = "the session is ending";

/// Why the proxy does not serve. Nothing has been answered to a host, and nothing started that is not stopped again.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The database is not the operator's own.
    #[error("database: {0}")]
    Database(OwnedError),
    /// A server could reach the gate's own files.
    #[error(transparent)]
    Reach(#[from] Reached),
    /// A manifest can't be used.
    #[error("server {server:?}: manifest: {error}")]
    Manifest {
        /// The server.
        server: String,
        /// Why.
        error: ManifestError,
    },
    /// The actors did not start: the store was refused, or the process has no room for them.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// A server could not be loaded. Only [`Opened::check_servers`] gives it; a host that is being served is told otherwise.
    #[error("{0}")]
    Load(String),
}

/// Why a manifest can't be used.
#[derive(Debug, Error)]
pub enum ManifestError {
    /// It can't be read, or others could have written it.
    #[error(transparent)]
    File(#[from] OwnedError),
    /// It could be read in two ways.
    #[error("{}: not usable JSON: {error}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: CheckError,
    },
    /// It is no manifest.
    #[error("{}: {error}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// Why.
        error: String,
    },
}

/// How serving ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Served {
    /// The host closed its end, or a signal came.
    Ended,
    /// A server could not be loaded, so nothing was offered.
    NothingOffered(String),
    /// The actors could not be kept alive.
    ActorsLost,
}

/// A configuration whose files have been checked.
#[derive(Debug)]
pub struct Prepared {
    config: Config,
    upstreams: Vec<UpstreamSpec>,
}

impl Prepared {
    /// Checks the database's file, what the servers reach, and reads the manifests. Starts nothing.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(config: Config) -> Result<Prepared, ServeError> {
        check_database(&config.database).map_err(ServeError::Database)?;
        match check_writable(&config.database) {
            // The store says it of a folder that is missing.
            Ok(()) | Err(OwnedError::Io { .. }) => {}
            Err(error) => return Err(ServeError::Database(error)),
        }
        let cwd = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
        let home = std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
        config.check_reach(&config.protected(cwd, home))?;
        let upstreams = config.servers.iter().map(upstream_spec).collect::<Result<_, _>>()?;
        Ok(Prepared { config, upstreams })
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }
}

fn upstream_spec(server: &Server) -> Result<UpstreamSpec, ServeError> {
    let manifest = read_manifest(&server.manifest)
        .map_err(|error| ServeError::Manifest { server: server.name.clone(), error })?;
    let rules = server.rules.iter().map(|(tool, rule)| (tool.clone(), rule.rule.clone())).collect();
    Ok(UpstreamSpec { server: server.spec(), manifest, rules, terminal: true })
}

fn read_manifest(path: &Path) -> Result<Manifest, ManifestError> {
    let bytes = read_owned(path)?;
    check(&bytes).map_err(|error| ManifestError::Unusable { path: path.to_owned(), error })?;
    Manifest::parse(&bytes)
        .map_err(|error| ManifestError::Content { path: path.to_owned(), error: error.to_string() })
}

/// A proxy whose database is open and whose actors run.
#[derive(Debug)]
pub struct Opened {
    house: Arc<House>,
    ended: tokio::task::JoinHandle<()>,
}

impl Opened {
    /// Opens the database, which is made or migrated, and starts the actors over it.
    ///
    /// # Errors
    /// Why the database was refused, or the actors did not start.
    pub async fn open(prepared: Prepared, journal: Arc<dyn Journal>) -> Result<Opened, ServeError> {
        let Prepared { config, upstreams } = prepared;
        let policy = GatePolicy::new(config.policy_id());
        let Running { tree, ended } = start(&config.database, &policy).await?;
        look_again(&config.database, &tree).await?;
        let house = Arc::new(House::new(config, upstreams, tree, policy, journal));
        house.reap_left_behind().await;
        Ok(Opened { house, ended })
    }

    /// The actors, for a test that has them die.
    #[cfg(feature = "testkit")]
    pub fn tree(&self) -> Tree {
        self.house.tree()
    }

    /// Loads the servers and says what would be offered, without a host; then stops everything.
    ///
    /// The reports are given in either case, as far as there are some.
    pub async fn check_servers(self) -> (Vec<Report>, Result<(), ServeError>) {
        let loaded = self.house.load().await;
        let desk = loaded.tools.and_then(|tools| self.house.open_desk(tools));
        self.house.close().await;
        (loaded.reports, desk.map(drop).map_err(ServeError::Load))
    }

    /// Serves one host until its input ends, its output is closed, or `stop` becomes true.
    pub async fn serve<R, W>(self, input: R, output: W, stop: watch::Receiver<bool>) -> Served
    where
        R: AsyncRead + Unpin + Send,
        W: AsyncWrite + Unpin + Send + 'static,
    {
        let Opened { house, mut ended } = self;
        let entrance = Arc::new(Entrance::new());
        let (end, ending) = watch::channel(false);
        let tasks = [
            tokio::spawn(forward(stop, end.clone())),
            tokio::spawn(open_up(Arc::clone(&house), Arc::clone(&entrance), end.clone())),
            tokio::spawn(Arc::clone(&house).tell_doctors()),
        ];
        let serving = front::serve(input, output, Arc::clone(&entrance) as Arc<dyn Calls>, ending);
        tokio::pin!(serving);
        let (is_lost, served) = tokio::select! {
            served = &mut serving => (false, Some(served)),
            _ = &mut ended => {
                end.send_replace(true);
                (true, tokio::time::timeout(LAST_CALLS, &mut serving).await.ok())
            }
        };
        for task in tasks {
            // Servers that are still being connected are given up.
            task.abort();
        }
        if let Some(Err(error)) = served {
            house.journal().line(&format!("the host's connection broke: {error}"));
        }
        if is_lost {
            // The servers ended with their supervisor, and nobody is left who could end them politely.
            return Served::ActorsLost;
        }
        house.close().await;
        match entrance.failure() {
            Some(why) => Served::NothingOffered(why),
            None => Served::Ended,
        }
    }
}

/// Starts the actors over a database that is this user's own file, and opened as no other.
async fn start(database: &Path, policy: &GatePolicy) -> Result<Running, TreeError> {
    let spec = TreeSpec {
        database: database.to_owned(),
        store: Options { proxy_index: true, own: true, ..Options::default() },
        policy: Arc::new(policy.clone()),
    };
    Tree::start(spec).await
}

/// Looks at the database again now that it is open, and stops the actors when it is refused: it may have been exchanged
/// since the store looked at it, and nothing may be begun where its operator would not find it.
async fn look_again(database: &Path, tree: &Tree) -> Result<(), ServeError> {
    if let Err(error) = check_opened_database(database) {
        tree.stop().await;
        return Err(ServeError::Database(error));
    }
    Ok(())
}

/// Passes the wish to end on.
async fn forward(mut stop: watch::Receiver<bool>, end: watch::Sender<bool>) {
    if stop.wait_for(|stop| *stop).await.is_ok() {
        end.send_replace(true);
    }
}

/// Loads the servers and opens the door, or says that it stays shut and ends the session.
async fn open_up(house: Arc<House>, entrance: Arc<Entrance>, end: watch::Sender<bool>) {
    let _shut = ShutByPanic(&entrance);
    let loaded = house.load().await;
    for line in loaded.reports.iter().flat_map(Report::lines) {
        house.journal().line(&line);
    }
    match loaded.tools.and_then(|tools| house.open_desk(tools)) {
        Ok(desk) => {
            house.say_that_it_serves();
            entrance.state.send_replace(State::Ready(Arc::clone(&desk)));
            desk.recover_left_behind().await;
        }
        Err(why) => {
            house.journal().line(&format!("error: {why}"));
            let told = entrance.told.notified();
            tokio::pin!(told);
            told.as_mut().enable();
            entrance.state.send_replace(State::Failed(why));
            drop(tokio::time::timeout(UNTOLD, told).await);
            end.send_replace(true);
        }
    }
}

/// Says that the door stays shut should the opening panic, or who waits for it would wait for ever.
struct ShutByPanic<'a>(&'a Entrance);

impl Drop for ShutByPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.state.send_if_modified(|state| {
                let opening = matches!(state, State::Loading);
                if opening {
                    *state = State::Failed("something broke while the servers were loaded".to_owned());
                }
                opening
            });
        }
    }
}

/// Where a host's requests wait until the servers have answered.
struct Entrance {
    state: watch::Sender<State>,
    stopping: watch::Sender<bool>,
    /// A host has been told that there is nothing to list.
    told: Notify,
}

enum State {
    Loading,
    Ready(Arc<Desk>),
    Failed(String),
}

impl Entrance {
    fn new() -> Entrance {
        Entrance {
            state: watch::channel(State::Loading).0,
            stopping: watch::channel(false).0,
            told: Notify::new(),
        }
    }

    fn failure(&self) -> Option<String> {
        match &*self.state.borrow() {
            State::Failed(why) => Some(why.clone()),
            State::Loading | State::Ready(_) => None,
        }
    }

    /// Waits for the desk; says what a host is told when there is none.
    async fn desk(&self) -> Result<Arc<Desk>, Shut> {
        let (mut state, mut stopping) = (self.state.subscribe(), self.stopping.subscribe());
        let known = state.wait_for(|state| !matches!(state, State::Loading));
        tokio::select! {
            Ok(state) = known => match &*state {
                State::Ready(desk) => Ok(Arc::clone(desk)),
                State::Failed(_) | State::Loading => Err(Shut::Failed),
            },
            Ok(_) = stopping.wait_for(|stopping| *stopping) => Err(Shut::Ending),
            else => Err(Shut::Ending),
        }
    }
}

/// Why there is no desk.
enum Shut {
    Failed,
    Ending,
}

#[async_trait]
impl Calls for Entrance {
    async fn list(&self) -> Result<Vec<String>, ListError> {
        match self.desk().await {
            Ok(desk) => Ok(desk.listing()),
            Err(Shut::Failed) => {
                self.told.notify_waiters();
                Err(ListError(NO_TOOLS.to_owned()))
            }
            Err(Shut::Ending) => Err(ListError(ENDING.to_owned())),
        }
    }

    async fn call(&self, call: HostCall) -> CallAnswer {
        match self.desk().await {
            Ok(desk) => desk.take(call).await,
            Err(Shut::Failed) => CallAnswer::Result(Answer::Unavailable(Unavailable::NoTools).to_result()),
            Err(Shut::Ending) => CallAnswer::ShuttingDown,
        }
    }

    fn stop(&self) {
        self.stopping.send_replace(true);
        if let State::Ready(desk) = &*self.state.borrow() {
            desk.begin_end();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    /// Has a database change right after it was opened, and gives why it is refused then, once its actors have ended.
    async fn refused(change: impl FnOnce(&Path, &Path)) -> OwnedError {
        let folder = tempfile::tempdir().unwrap();
        let (database, other) = (folder.path().join("runs.db"), folder.path().join("other"));
        fs::write(&other, "no record").unwrap();
        let Running { tree, ended } = start(&database, &GatePolicy::new("test/1".to_owned())).await.unwrap();
        look_again(&database, &tree).await.unwrap();
        change(&database, &other);
        let refused = look_again(&database, &tree).await.unwrap_err();
        ended.await.unwrap();
        assert_eq!(fs::read(&other).unwrap(), b"no record", "nothing is written where it leads now");
        let ServeError::Database(error) = refused else { panic!("{refused}") };
        error
    }

    #[tokio::test]
    async fn a_database_that_is_exchanged_once_it_is_open_is_refused_and_nothing_is_left_running() {
        let linked = refused(|database, other| {
            fs::remove_file(database).unwrap();
            symlink(other, database).unwrap();
        });
        assert!(matches!(linked.await, OwnedError::Symlink(_)));
        let written = refused(|database, _| {
            fs::set_permissions(database, Permissions::from_mode(0o606)).unwrap();
        });
        assert!(matches!(written.await, OwnedError::Writable { mode: 0o606, .. }));
        let gone = refused(|database, _| fs::remove_file(database).unwrap());
        assert!(matches!(gone.await, OwnedError::Io { .. }));
    }
}
