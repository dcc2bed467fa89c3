//! A folder with a configuration and a pinned server, and the programs that are started in it.

use std::fs::{DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use holdpoint::doctor_socket::observe_all;
use rusqlite::{Connection, OpenFlags};
use serde_json::{Value, json};

use crate::Outcome;
use crate::host::Host;
use crate::syncs::Syncs;

const HOLDPOINT: &str = env!("CARGO_BIN_EXE_holdpoint");

/// Where one proxy keeps its files. It goes with its owner.
#[derive(Debug)]
pub(crate) struct Place(tempfile::TempDir);

impl Place {
    /// A place on the disk that the build is on.
    pub(crate) fn new() -> Outcome<Place> {
        let place = Place(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?);
        DirBuilder::new().mode(0o700).create(place.gate())?;
        let rule = |class: &str, outcome: &str| json!({"side_effect": class, "outcome": outcome});
        let config = json!({
            "database": "runs.db", "session": "bench", "hold": "20s", "lease_ttl": "3s",
            "repeat_window": "0s",
            "servers": [{
                "name": "echo", "manifest": "echo.json", "default_timeout": "30s",
                "command": [std::env::current_exe()?, "--serve-echo"],
                "rules": {
                    "look": rule("read_only", "allow"),
                    "put": rule("remote_mutation", "allow"),
                    "wire": rule("remote_mutation", "require_approval"),
                    "stall": rule("local_mutation", "allow"),
                },
            }],
        });
        let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(place.config())?;
        file.write_all(config.to_string().as_bytes())?;
        let pinned = place.holdpoint(&["pin", "--yes", "--config"]).arg(place.config()).output()?;
        if !pinned.status.success() {
            return Err(String::from_utf8_lossy(&pinned.stderr).into());
        }
        Ok(place)
    }

    fn gate(&self) -> PathBuf {
        self.0.path().join("gate")
    }

    fn config(&self) -> PathBuf {
        self.gate().join("gate.json")
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.gate().join("runs.db")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn holdpoint(&self, words: &[&str]) -> Command {
        let mut command = Command::new(HOLDPOINT);
        command.args(words);
        command
    }

    /// An operator's command over this database.
    pub(crate) fn operate(&self, words: &[&str]) -> Outcome<String> {
        let done = self.holdpoint(words).arg("--db").arg(self.database()).output()?;
        if done.status.success() {
            Ok(String::from_utf8(done.stdout)?)
        } else {
            Err(format!("{words:?}: {}", String::from_utf8_lossy(&done.stderr)).into())
        }
    }

    /// Starts a proxy with a host in front of it.
    pub(crate) fn proxy(&self) -> Outcome<Host> {
        let mut command = self.holdpoint(&["proxy", "--config"]);
        command.arg(self.config());
        Host::start(command)
    }

    /// The same with its syncs made or left out, to be compared with each other.
    pub(crate) fn proxy_with(&self, syncs: Syncs) -> Outcome<Host> {
        let mut command = syncs.command(Path::new(HOLDPOINT))?;
        command.args(["proxy", "--config"]).arg(self.config());
        Host::start(command)
    }

    /// Another connection, which only reads.
    pub(crate) fn reading(&self) -> Outcome<Connection> {
        Ok(Connection::open_with_flags(self.database(), OpenFlags::SQLITE_OPEN_READ_ONLY)?)
    }

    /// One number from one query.
    pub(crate) fn number(&self, sql: &str) -> Outcome<i64> {
        Ok(self.reading()?.query_row(sql, [], |row| row.get(0))?)
    }

    /// Commits that the running proxy has synced.
    pub(crate) fn synced_commits(&self) -> Outcome<u64> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let observed = runtime.block_on(observe_all(&self.database()));
        let told: &Value = observed
            .first()
            .and_then(|observed| observed.answer.as_ref().ok())
            .ok_or("no proxy tells what it did")?;
        Ok(told["actors"]["store"]["synced_commits"].as_u64().ok_or("the proxy does not count")?)
    }
}

/// The server itself, without anything in front.
pub(crate) fn direct() -> Outcome<Host> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--serve-echo");
    Host::start(command)
}
