//! The proxy's configuration: one JSON file of the operator's.
//!
//! Owns its fields, their defaults and what is refused. Reading it is strict, because a key that is misspelt or written
//! twice must be an error and never a default. Never starts a server and never opens the database.

mod apart;
mod object;
mod written;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use holdpoint_actors::connection::ServerSpec;
use holdpoint_core::duration::DurationError;
use holdpoint_core::hash::sha256_hex;
use holdpoint_core::ids::SessionName;
use holdpoint_core::json::{CheckError, ObjectWriter, canonical_trusted, check_text};
use holdpoint_core::pin::rules::{Rule, RuleError};
use holdpoint_core::policy::Outcome;
use holdpoint_core::run::Limits;
use thiserror::Error;

use super::owned::{OwnedError, read_owned};
use super::policy::ClassPolicy;
use super::reach::{Protected, Reached};

/// How long a call is held for its approval when the configuration does not say.
pub const HOLD_DEFAULT: Duration = Duration::from_secs(15);
/// How long a finished request speaks for an identical one when the configuration does not say.
pub const REPEAT_WINDOW_DEFAULT: Duration = Duration::from_secs(10 * 60);
/// How many approvals may wait when the configuration does not say.
pub const MAX_PENDING_DEFAULT: usize = 5;
/// How long an approval may wait, and how long a grant, when the configuration does not say.
pub const TTL_DEFAULT: Duration = Duration::from_secs(24 * 60 * 60);
/// The status tool's name when the configuration does not say.
pub const STATUS_TOOL_DEFAULT: &str = "gate_status";
/// The shortest lease: it is renewed at a third of it, and a renewal may have to wait for a busy database.
pub const LEASE_TTL_MIN: Duration = Duration::from_secs(3);
/// The longest session or tool name.
const NAME_BYTES_MAX: usize = 64;

/// Why a configuration is not used.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file can't be read, or others could have written it.
    #[error("config: {0}")]
    File(#[from] OwnedError),
    /// What it says is unusable.
    #[error("config {path}: {error}")]
    Content {
        /// The file.
        path: PathBuf,
        /// Why.
        error: ContentError,
    },
}

/// Why a configuration's content is unusable.
#[derive(Debug, Error)]
pub enum ContentError {
    /// It is not JSON: something is missing or too much at this place, a comma more often than not.
    #[error("not well-formed JSON at line {line}, column {column}")]
    Malformed {
        /// The line, from 1.
        line: usize,
        /// The byte of the line, from 1.
        column: usize,
    },
    /// It is JSON that could be read in two ways, or that is beyond a bound.
    #[error("not usable JSON: {0}")]
    Unusable(CheckError),
    /// A value is of another kind than its key's.
    #[error("{field}: expected {expected}, found {found}")]
    Kind {
        /// The key, with its server and its tool in front.
        field: String,
        /// What belongs there.
        expected: String,
        /// What stands there.
        found: String,
    },
    /// Something else stands where an object belongs.
    #[error("{what} must be an object, not {found}")]
    NotObject {
        /// What belongs there.
        what: String,
        /// What stands there.
        found: String,
    },
    /// A duration is none.
    #[error("{field}: {error}")]
    Duration {
        /// The field.
        field: String,
        /// Why.
        error: DurationError,
    },
    /// A duration is negative.
    #[error("{0}: a duration can't be negative")]
    Negative(String),
    /// A key is unknown, or a value is missing or out of its range.
    #[error("{0}")]
    Value(String),
    /// Two keys name one file.
    #[error("{key} and {other} are the same file, {path}: give each its own")]
    SameFile {
        /// A key, with its server in front.
        key: String,
        /// What else names the file.
        other: String,
        /// The file.
        path: PathBuf,
    },
    /// A rule can't be read.
    #[error("server {server:?}: tool {tool:?}: {error}")]
    Rule {
        /// The server.
        server: String,
        /// The server's own name for the tool.
        tool: String,
        /// Why.
        error: RuleError,
    },
}

/// The configuration, with every default filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The file that it was read from.
    pub path: Option<PathBuf>,
    /// The database.
    pub database: PathBuf,
    /// Names this proxy's calls; proxies that share it share the rules across calls.
    pub session: SessionName,
    /// The servers, in the order in which their tools are offered.
    pub servers: Vec<Server>,
    /// An outcome for each class.
    pub policy: ClassPolicy,
    /// How long a call is held for its approval.
    pub hold: Duration,
    /// How long a finished request speaks for an identical one.
    pub repeat_window: Duration,
    /// How many approvals may wait.
    pub max_pending: usize,
    /// How long an approval may wait; zero for ever.
    pub approval_ttl: Duration,
    /// How long a grant may wait; zero for ever.
    pub grant_ttl: Duration,
    /// The status tool's name.
    pub status_tool: String,
    /// How long a lease lasts; `None` is the runtime's own.
    pub lease_ttl: Option<Duration>,
}

/// One upstream server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// Its name, which its tools' names begin with.
    pub name: String,
    /// Program and arguments, when it speaks stdio.
    pub command: Vec<String>,
    /// Its address, when it speaks HTTP.
    pub endpoint: Option<String>,
    /// Variables to set, each `NAME=value`.
    pub env: Vec<String>,
    /// Names of variables to pass on.
    pub inherit_env: Vec<String>,
    /// Bounds connecting, listing and checking.
    pub connect_timeout: Option<Duration>,
    /// Bounds a call whose rule names no time.
    pub default_timeout: Option<Duration>,
    /// The file that pins its tools.
    pub manifest: PathBuf,
    /// What the operator says about its tools, by the server's own names.
    pub rules: BTreeMap<String, ToolRule>,
    /// Whether its arguments are not checked for what they reach.
    pub skip_path_check: bool,
    /// Whether it is held in a process-id namespace; `None` where one costs it nothing.
    pub pid_namespace: Option<bool>,
}

impl Server {
    /// The server as its connection takes it.
    pub fn spec(&self) -> ServerSpec {
        ServerSpec {
            name: self.name.clone(),
            command: self.command.clone(),
            endpoint: self.endpoint.clone(),
            env: self.env.clone(),
            inherit_env: self.inherit_env.clone(),
            connect_timeout: self.connect_timeout,
            default_timeout: self.default_timeout,
            max_content_bytes: None,
            pid_namespace: self.pid_namespace,
        }
    }
}

/// What the operator says about one tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolRule {
    /// What a rules file can say too.
    pub rule: Rule,
    /// What becomes of its calls, in place of its class's outcome.
    pub outcome: Option<Outcome>,
    /// Its repeat window, in place of the configuration's.
    pub repeat_window: Option<Duration>,
}

impl Config {
    /// Reads a configuration file; relative paths in it start at its own directory.
    ///
    /// # Errors
    /// What is wrong with the file or with what it says.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        let bytes = read_owned(path)?;
        let content = |error| ConfigError::Content { path: path.to_owned(), error };
        let mut config = Config::parse(&bytes).map_err(content)?;
        let absolute =
            std::path::absolute(path).map_err(|error| OwnedError::Io { path: path.to_owned(), error })?;
        let directory = absolute.parent().unwrap_or(Path::new("/")).to_owned();
        config.database = directory.join(&config.database);
        for server in &mut config.servers {
            server.manifest = directory.join(&server.manifest);
        }
        config.path = Some(absolute);
        apart::check(&config).map_err(content)?;
        Ok(config)
    }

    /// Reads a configuration's content; relative paths stay relative.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn parse(bytes: &[u8]) -> Result<Config, ContentError> {
        let text = check_text(bytes).map_err(|error| unusable(bytes, error))?;
        written::config(text)
    }

    /// What protects the gate's own files from the servers.
    pub fn protected(&self, cwd: PathBuf, home: Option<PathBuf>) -> Protected {
        let manifests = self.servers.iter().map(|server| server.manifest.clone());
        let files = self.path.iter().cloned().chain([self.database.clone()]).chain(manifests);
        Protected::new(files, cwd, home)
    }

    /// Refuses a server whose arguments reach the configuration, a manifest or the database.
    ///
    /// # Errors
    /// The first argument that does.
    pub fn check_reach(&self, protected: &Protected) -> Result<(), Reached> {
        for server in self.servers.iter().filter(|server| !server.skip_path_check) {
            protected.check(&server.name, &server.command)?;
        }
        Ok(())
    }

    /// The limits of every call's run: its step, a repeat of it and the proxy's closing decision.
    pub fn limits(&self) -> Limits {
        let fixed =
            Limits { max_steps: 3, max_consecutive_tool_failures: 3, loop_threshold: 3, ..Limits::default() };
        fixed.approval_ttl(self.approval_ttl).grant_ttl(self.grant_ttl)
    }

    /// The repeat window of a tool.
    pub fn window(&self, rule: Option<&ToolRule>) -> Duration {
        rule.and_then(|rule| rule.repeat_window).unwrap_or(self.repeat_window)
    }

    /// Names the policy that this configuration makes: a hash over what its decisions depend on, and nothing else.
    pub fn policy_id(&self) -> String {
        let mut w = ObjectWriter::new();
        w.object("policy", |w| {
            for (class, outcome) in self.policy.iter() {
                w.str(class.as_str(), outcome.as_str());
            }
        });
        let mut servers: Vec<&Server> = self.servers.iter().collect();
        servers.sort_by(|a, b| a.name.cmp(&b.name));
        w.array("servers", |w| {
            for server in servers {
                w.object(|w| {
                    w.str("name", &server.name);
                    w.object("rules", |w| {
                        for (tool, rule) in &server.rules {
                            w.object(tool, |w| write_rule(w, rule));
                        }
                    });
                });
            }
        });
        format!("agentrt-proxy/sha256:{}", sha256_hex(canonical_trusted(&w.finish()).as_bytes()))
    }
}

fn write_rule(w: &mut ObjectWriter, tool: &ToolRule) {
    w.str("side_effect", &tool.rule.side_effect);
    w.omit_empty_str("outcome", tool.outcome.map_or("", Outcome::as_str));
    if !tool.rule.fixed.is_empty() {
        w.object("fixed", |w| {
            for (parameter, value) in &tool.rule.fixed {
                w.raw(parameter, value.as_str());
            }
        });
    }
    w.omit_empty_str("rename", tool.rule.rename.as_deref().unwrap_or_default());
}

/// Says where JSON is malformed as an editor counts it.
fn unusable(bytes: &[u8], error: CheckError) -> ContentError {
    let CheckError::Malformed { at } = error else { return ContentError::Unusable(error) };
    let before = bytes.get(..at).unwrap_or(bytes);
    let line_start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |feed| feed + 1);
    ContentError::Malformed {
        line: before.iter().filter(|byte| **byte == b'\n').count() + 1,
        column: before.len() - line_start + 1,
    }
}

#[cfg(test)]
mod tests;
