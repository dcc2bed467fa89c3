//! The small world of the demonstration: a private folder with the gate's files and the ledgers, the programs that are
//! started in it, and the operator.
//!
//! Owns the layout and its removal. The ledgers have a folder each, apart from the gate's files: the gate refuses to start
//! a server whose arguments reach what policy and approvals stand on.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use holdpoint::doctor_socket::observe_all;
use holdpoint_actors::clock::monotonic;
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::sleep;

use super::error::Error;
use super::host::Host;
use super::process::run;

/// How long something is waited for that is about to happen.
const PATIENCE: Duration = Duration::from_secs(15);
/// How often it is looked for.
const GLANCE: Duration = Duration::from_millis(20);
/// How long the proxy holds a call before it tells the host to come back.
pub(super) const HOLD: Duration = Duration::from_secs(1);
/// How long the lease of a process stands that no longer renews it.
pub(super) const LEASE_TTL: Duration = Duration::from_secs(3);
/// Names that are tried for the folder.
const FOLDER_NAMES_MAX: u32 = 1_000;
/// The most bytes of the gate's log that an error repeats.
const LOG_BYTES_MAX: usize = 600;

/// The folder and the programs.
#[derive(Debug)]
pub(super) struct World {
    folder: Folder,
    exe: PathBuf,
    /// How many proxies were started: each has a log of its own.
    proxies: u32,
}

/// A folder that goes with its owner.
#[derive(Debug)]
struct Folder {
    path: PathBuf,
    keep: bool,
}

/// A payment server's ledger.
#[derive(Debug)]
pub(super) struct Ledger {
    path: PathBuf,
}

/// What the doctor's socket says of one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ServerSeen {
    /// The id of its process, while it is connected.
    pub(super) process: Option<u32>,
    /// How often it was started again.
    pub(super) restarts: u64,
    /// Whether calls are taken.
    pub(super) is_ready: bool,
}

impl World {
    /// Makes the folder and writes the configuration.
    pub(super) fn make(keep: bool) -> Result<World, Error> {
        let exe = std::env::current_exe();
        let exe = exe.map_err(|source| Error::Process { who: "this program".to_owned(), source })?;
        let world = World { folder: Folder::make(keep)?, exe, proxies: 0 };
        for name in ["gate", "bank", "petty", "straight", "embedded"] {
            let path = world.path(name);
            private_folder().create(&path).map_err(|source| Error::File { path, source })?;
        }
        let config = format!("{:#}\n", world.configuration());
        write_private(&world.config(), config.as_bytes())?;
        Ok(world)
    }

    fn configuration(&self) -> Value {
        let server = |name: &str, pay: &str| {
            json!({
                "name": name,
                "command": [self.exe, "payment-server", "--ledger", self.ledger(name).path],
                "default_timeout": "30s",
                "manifest": format!("{name}.manifest.json"),
                "rules": {
                    "balance": {"side_effect": "read_only"},
                    "pay": {"side_effect": "remote_mutation", "outcome": pay},
                },
            })
        };
        json!({
            "database": "gate.db",
            "session": "demo",
            "hold": format!("{}s", HOLD.as_secs()),
            "lease_ttl": format!("{}s", LEASE_TTL.as_secs()),
            "servers": [server("bank", "require_approval"), server("petty", "allow")],
        })
    }

    /// A file of the story.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path.join(name)
    }

    /// Where everything is.
    pub(super) fn folder(&self) -> &Path {
        &self.folder.path
    }

    /// The configuration.
    pub(super) fn config(&self) -> PathBuf {
        self.path("gate/config.json")
    }

    /// The database.
    pub(super) fn database(&self) -> PathBuf {
        self.path("gate/gate.db")
    }

    /// The ledger of a server.
    pub(super) fn ledger(&self, server: &str) -> Ledger {
        Ledger { path: self.path(server).join("ledger") }
    }

    /// The ledger's file.
    pub(super) fn ledger_file(&self, server: &str) -> PathBuf {
        self.ledger(server).path
    }

    fn log(&self, proxy: u32) -> PathBuf {
        self.path(&format!("gate/proxy-{proxy}.log"))
    }

    /// The end of what the newest proxy wrote to its log.
    pub(super) fn last_words(&self) -> String {
        let text = fs::read_to_string(self.log(self.proxies)).unwrap_or_default();
        let text = text.trim();
        text[text.ceil_char_boundary(text.len().saturating_sub(LOG_BYTES_MAX))..].to_owned()
    }

    /// Starts a proxy with a host in front of it.
    pub(super) async fn host_of_proxy(&mut self) -> Result<Host, Error> {
        self.proxies += 1;
        let path = self.log(self.proxies);
        let log = OpenOptions::new().create_new(true).append(true).mode(0o600).open(&path);
        let log = log.map_err(|source| Error::File { path, source })?;
        let mut command = Command::new(&self.exe);
        command.arg("proxy").arg("--config").arg(self.config()).stderr(log);
        Host::greet(command, "the proxy").await
    }

    /// Starts a payment server with a host straight in front of it.
    pub(super) async fn host_of_server(&self, server: &str) -> Result<Host, Error> {
        let mut command = Command::new(&self.exe);
        command.arg("payment-server").arg("--ledger").arg(self.ledger(server).path);
        Host::greet(command, "the payment server").await
    }

    /// Pins the servers' tools with the operator's command.
    pub(super) async fn pin(&self) -> Result<String, Error> {
        let mut command = Command::new(&self.exe);
        command.arg("pin").arg("--config").arg(self.config());
        run(command, "holdpoint pin").await
    }

    /// Runs an operator's command in a process of its own, and reads its JSON.
    pub(super) async fn operate(&self, words: &[&str]) -> Result<Value, Error> {
        let mut command = Command::new(&self.exe);
        command.arg("--db").arg(self.database()).arg("--json").args(words);
        let typed = format!("holdpoint {}", words.join(" "));
        let printed = run(command, &typed).await?;
        serde_json::from_str(&printed)
            .map_err(|problem| Error::NotAsTold(format!("{typed} printed no JSON: {problem}")))
    }

    /// The run that waits for an approval, as the operator finds it: a model is told the approval and never the run.
    pub(super) async fn run_that_waits_for(&self, approval: &str) -> Result<String, Error> {
        let listing = self.operate(&["runs", "--limit", "0"]).await?;
        let runs = listing["runs"].as_array().map(Vec::as_slice).unwrap_or_default();
        let waits = runs.iter().find(|run| run["pending_approval_id"] == approval);
        let id = waits.and_then(|run| run["id"].as_str());
        id.map(str::to_owned)
            .ok_or_else(|| Error::NotAsTold(format!("no run waits for the approval {approval}")))
    }

    /// Asks the running proxy about one of its servers, on the socket that `holdpoint doctor` reads.
    pub(super) async fn server_seen(&self, server: &str) -> Result<ServerSeen, Error> {
        let observed = observe_all(&self.database()).await;
        let answers = observed.iter().filter_map(|observed| observed.answer.as_ref().ok());
        let found = answers.filter_map(|answer| seen_in(answer, server)).next();
        found.ok_or_else(|| Error::NotAsTold(format!("the doctor's socket does not tell of {server}")))
    }
}

/// Finds the observation of a server's connection, wherever it stands in the answer.
fn seen_in(value: &Value, server: &str) -> Option<ServerSeen> {
    if value["server"] == server && value.get("restarts").is_some() {
        let process = value["pid"].as_u64().and_then(|id| u32::try_from(id).ok());
        return Some(ServerSeen {
            process,
            restarts: value["restarts"].as_u64().unwrap_or_default(),
            is_ready: value["state"] == "ready",
        });
    }
    let members = value.as_object().into_iter().flat_map(|members| members.values());
    let items = value.as_array().into_iter().flatten();
    members.chain(items).find_map(|inner| seen_in(inner, server))
}

impl Ledger {
    /// What was paid, in order, as `<amount> to <whom>`.
    pub(super) fn payments(&self) -> Result<Vec<String>, Error> {
        let text = match fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(problem) if problem.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(source) => return Err(Error::File { path: self.path.clone(), source }),
        };
        text.lines().map(|line| self.payment(line)).collect()
    }

    fn payment(&self, line: &str) -> Result<String, Error> {
        let no_payment = || Error::NotAsTold(format!("{} has the line {line:?}", self.path.display()));
        let line: Value = serde_json::from_str(line).map_err(|_| no_payment())?;
        let to = line["arguments"]["to"].as_str().ok_or_else(no_payment)?;
        Ok(format!("{} to {to}", line["arguments"]["amount"]))
    }

    /// Lets the server answer the payments that it holds back, until [`hold`](Ledger::hold).
    pub(super) fn release(&self) -> Result<(), Error> {
        write_private(&self.release_file(), b"")
    }

    /// Has the server hold payments back again.
    pub(super) fn hold(&self) -> Result<(), Error> {
        let path = self.release_file();
        fs::remove_file(&path).map_err(|source| Error::File { path, source })
    }

    fn release_file(&self) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(".release");
        name.into()
    }

    /// Waits until so many payments were made.
    pub(super) async fn reaches(&self, count: usize) -> Result<(), Error> {
        until(&format!("payment {count} of {}", self.path.display()), async || {
            Ok((self.payments()?.len() >= count).then_some(()))
        })
        .await
    }
}

/// Looks until there is something to see.
pub(super) async fn until<T>(
    what: &str,
    mut look: impl AsyncFnMut() -> Result<Option<T>, Error>,
) -> Result<T, Error> {
    let began = monotonic();
    loop {
        if let Some(seen) = look().await? {
            return Ok(seen);
        }
        if began.elapsed() > PATIENCE {
            return Err(Error::Silent { who: what.to_owned(), within: PATIENCE });
        }
        sleep(GLANCE).await;
    }
}

impl Folder {
    /// Makes a folder that nobody else can read, under a name that nobody had.
    fn make(keep: bool) -> Result<Folder, Error> {
        let parent = std::env::temp_dir();
        let parent = parent.canonicalize().map_err(|source| Error::File { path: parent, source })?;
        for number in 0..FOLDER_NAMES_MAX {
            let path = parent.join(format!("holdpoint-demo-{}-{number}", std::process::id()));
            match private_folder().create(&path) {
                Ok(()) => return Ok(Folder { path, keep }),
                Err(problem) if problem.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(source) => return Err(Error::File { path, source }),
            }
        }
        Err(Error::NotAsTold(format!("{} has no room for a folder", parent.display())))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.keep {
            // What can't be removed is in the system's folder for such things.
            drop(fs::remove_dir_all(&self.path));
        }
    }
}

fn private_folder() -> DirBuilder {
    let mut builder = DirBuilder::new();
    builder.mode(0o700);
    builder
}

fn write_private(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(path);
    let written = file.and_then(|mut file| file.write_all(bytes));
    written.map_err(|source| Error::File { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use holdpoint::proxy::config::Config;

    use super::*;

    #[test]
    fn the_folder_is_private_and_goes_with_its_owner_unless_it_is_kept() {
        let world = World::make(false).unwrap();
        let folder = world.folder().to_owned();
        assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(fs::metadata(world.config()).unwrap().permissions().mode() & 0o777, 0o600);
        let kept = Folder::make(true).unwrap().path.clone();
        assert_ne!(kept, folder, "a second one has another name");
        assert!(kept.exists());
        fs::remove_dir(&kept).unwrap();
        drop(world);
        assert!(!folder.exists());
    }

    #[test]
    fn the_configuration_is_one_that_the_proxy_accepts() {
        let world = World::make(false).unwrap();
        let config = Config::load(&world.config()).unwrap();
        assert_eq!(config.servers.len(), 2);
    }

    #[test]
    fn a_ledger_is_read_as_payments_and_a_strange_line_is_an_error() {
        let world = World::make(false).unwrap();
        let ledger = world.ledger("bank");
        assert!(ledger.payments().unwrap().is_empty());
        fs::write(&ledger.path, "{\"tool\":\"pay\",\"arguments\":{\"to\":\"bob\",\"amount\":2.50}}\n")
            .unwrap();
        assert_eq!(ledger.payments().unwrap(), ["2.50 to bob"]);
        fs::write(&ledger.path, "torn").unwrap();
        assert!(ledger.payments().is_err());
    }

    #[test]
    fn a_server_is_found_wherever_the_observations_have_it() {
        let answer = json!({"servers": [{"server": "bank", "restarts": 0, "pid": 3, "state": "ready"},
                                        {"server": "petty", "restarts": 2, "pid": null, "state": "down"}]});
        assert_eq!(
            seen_in(&answer, "bank"),
            Some(ServerSeen { process: Some(3), restarts: 0, is_ready: true })
        );
        assert_eq!(
            seen_in(&answer, "petty"),
            Some(ServerSeen { process: None, restarts: 2, is_ready: false })
        );
        assert_eq!(seen_in(&answer, "other"), None);
    }
}
