//! What an operator says about one server, and the checks that come before anything starts.
//!
//! A plain value: no process, no clock. `process` reads it, the proxy's configuration fills it in.

use std::ffi::OsString;
use std::time::Duration;

use thiserror::Error;

/// The bound on connecting, listing and checking together, when the operator names none.
pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// The most bytes of one result that are recorded, when the operator names no bound: 64 KiB.
pub const DEFAULT_MAX_CONTENT_BYTES: usize = 65_536;

/// One MCP server as the operator describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerSpec {
    /// The operator's name for the server, used in tool names, errors and records.
    pub name: String,
    /// Program and arguments of a stdio server.
    pub command: Vec<String>,
    /// The address of an HTTP server. Not served yet: see [`SpecError::EndpointNotServed`].
    pub endpoint: Option<String>,
    /// Variables to set, each `NAME=value`.
    pub env: Vec<String>,
    /// Names of variables to pass on from this process, where they are set.
    pub inherit_env: Vec<String>,
    /// Bounds connecting, listing and checking together; `None` is [`DEFAULT_CONNECT_TIMEOUT`].
    pub connect_timeout: Option<Duration>,
    /// The time of a call whose rule names none.
    pub default_timeout: Option<Duration>,
    /// The most bytes of one result that are recorded; `None` is [`DEFAULT_MAX_CONTENT_BYTES`].
    pub max_content_bytes: Option<usize>,
    /// Whether a stdio server is held in a process-id namespace. `None`: where this process may make one without more
    /// ado. `true`: always, through a user namespace if need be, or it is not started. `false`: never.
    pub pid_namespace: Option<bool>,
}

/// Why a server cannot be started as described. Nothing has run when this is returned.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SpecError {
    /// The name is empty.
    #[error("mcp: a server needs a name")]
    NoName,
    /// An `inherit_env` entry that names no variable.
    #[error("mcp: server {server:?}: inherit_env entry {entry:?} is not a variable's name")]
    InheritEnv {
        /// The server's name.
        server: String,
        /// The entry as written.
        entry: String,
    },
    /// An `env` entry without a name or without `=`. The entry itself may hold a secret: only what stands before
    /// its `=` is kept.
    #[error("mcp: server {server:?}: env entry number {number} is not NAME=value")]
    Env {
        /// The server's name.
        server: String,
        /// Which entry, counted from 1.
        number: usize,
    },
    /// Both a command and an endpoint.
    #[error("mcp: server {server:?}: name a command or an endpoint, not both")]
    CommandAndEndpoint {
        /// The server's name.
        server: String,
    },
    /// Neither a command nor an endpoint.
    #[error("mcp: server {server:?}: name the command that starts it")]
    NeitherCommandNorEndpoint {
        /// The server's name.
        server: String,
    },
    /// An endpoint, which this version does not serve.
    #[error(
        "mcp: server {server:?}: servers over HTTP are not supported yet; name a command that speaks stdio"
    )]
    EndpointNotServed {
        /// The server's name.
        server: String,
    },
}

impl ServerSpec {
    /// Checks the description, in the order in which the errors are listed.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn validate(&self) -> Result<(), SpecError> {
        let server = || self.name.clone();
        if self.name.is_empty() {
            return Err(SpecError::NoName);
        }
        if let Some(entry) = self.inherit_env.iter().find(|entry| entry.is_empty() || entry.contains('=')) {
            return Err(SpecError::InheritEnv { server: server(), entry: entry.clone() });
        }
        let named = |entry: &String| entry.split_once('=').is_some_and(|(name, _)| !name.is_empty());
        if let Some(at) = self.env.iter().position(|entry| !named(entry)) {
            return Err(SpecError::Env { server: server(), number: at + 1 });
        }
        match (self.command.is_empty(), &self.endpoint) {
            (false, None) => Ok(()),
            (false, Some(_)) => Err(SpecError::CommandAndEndpoint { server: server() }),
            (true, None) => Err(SpecError::NeitherCommandNorEndpoint { server: server() }),
            (true, Some(_)) => Err(SpecError::EndpointNotServed { server: server() }),
        }
    }

    /// The bound on connecting, listing and checking together. Zero stands for the default, as in the reference.
    #[must_use]
    pub fn connect_timeout(&self) -> Duration {
        self.connect_timeout.filter(|timeout| !timeout.is_zero()).unwrap_or(DEFAULT_CONNECT_TIMEOUT)
    }

    /// The most bytes of one result that are recorded.
    #[must_use]
    pub fn max_content_bytes(&self) -> usize {
        self.max_content_bytes.filter(|bytes| *bytes > 0).unwrap_or(DEFAULT_MAX_CONTENT_BYTES)
    }
}

/// What a program needs to find its interpreter and a place to write, and nothing that carries a credential.
const BASE_ENV: [&str; 3] = ["PATH", "HOME", "TMPDIR"];

/// Builds the environment of a stdio server: the base variables that are set here, the inherited ones that are set
/// here, then `env` as written. A later entry replaces an earlier one of the same name where that stands.
pub(crate) fn child_env(
    inherit_env: &[String],
    env: &[String],
    lookup: impl Fn(&str) -> Option<OsString>,
) -> Vec<(OsString, OsString)> {
    let mut built: Vec<(OsString, OsString)> = Vec::new();
    let mut set = |name: &str, value: OsString| match built.iter_mut().find(|(known, _)| known == name) {
        Some((_, known)) => *known = value,
        None => built.push((name.into(), value)),
    };
    for name in BASE_ENV.into_iter().chain(inherit_env.iter().map(String::as_str)) {
        if let Some(value) = lookup(name) {
            set(name, value);
        }
    }
    for (name, value) in env.iter().filter_map(|entry| entry.split_once('=')) {
        set(name, value.into());
    }
    built
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stdio() -> ServerSpec {
        ServerSpec { name: "pay".to_owned(), command: vec!["server".to_owned()], ..ServerSpec::default() }
    }

    fn strings(list: &[&str]) -> Vec<String> {
        list.iter().map(|entry| (*entry).to_owned()).collect()
    }

    #[test]
    fn a_server_is_refused_for_the_first_thing_that_is_wrong() {
        let mut spec =
            ServerSpec { inherit_env: strings(&["A=b"]), env: strings(&["novalue"]), ..Default::default() };
        assert_eq!(spec.validate(), Err(SpecError::NoName));
        spec.name = "pay".to_owned();
        assert!(matches!(spec.validate(), Err(SpecError::InheritEnv { entry, .. }) if entry == "A=b"));
        spec.inherit_env = strings(&[""]);
        assert!(matches!(spec.validate(), Err(SpecError::InheritEnv { .. })));
        spec.inherit_env = Vec::new();
        assert!(matches!(spec.validate(), Err(SpecError::Env { number: 1, .. })));
        spec.env = strings(&["A=", "=secret"]);
        assert!(matches!(spec.validate(), Err(SpecError::Env { number: 2, .. })));
        spec.env = Vec::new();
        assert!(matches!(spec.validate(), Err(SpecError::NeitherCommandNorEndpoint { .. })));
        spec.endpoint = Some("http://127.0.0.1/mcp".to_owned());
        assert!(matches!(spec.validate(), Err(SpecError::EndpointNotServed { .. })));
        spec.command = strings(&["server"]);
        assert!(matches!(spec.validate(), Err(SpecError::CommandAndEndpoint { .. })));
        assert_eq!(stdio().validate(), Ok(()));
    }

    #[test]
    fn an_error_about_env_does_not_repeat_a_value() {
        let spec = ServerSpec { env: strings(&["=hunter2"]), ..stdio() };
        assert!(!spec.validate().unwrap_err().to_string().contains("hunter2"));
    }

    #[test]
    fn zero_stands_for_the_default() {
        let spec =
            ServerSpec { connect_timeout: Some(Duration::ZERO), max_content_bytes: Some(0), ..stdio() };
        assert_eq!(spec.connect_timeout(), Duration::from_secs(30));
        assert_eq!(spec.max_content_bytes(), 65_536);
    }

    #[test]
    fn the_environment_is_what_is_named_and_nothing_else() {
        let here = |name: &str| match name {
            "PATH" => Some("/bin".into()),
            "HOME" => Some("/home/me".into()),
            "TOKEN" => Some("t".into()),
            "SECRET" => Some("s".into()),
            _ => None,
        };
        let pairs = |list: &[(&str, &str)]| -> Vec<(OsString, OsString)> {
            list.iter().map(|(name, value)| (name.into(), value.into())).collect()
        };
        assert_eq!(child_env(&[], &[], here), pairs(&[("PATH", "/bin"), ("HOME", "/home/me")]));
        assert_eq!(
            child_env(&strings(&["TOKEN", "UNSET"]), &strings(&["HOME=", "X=a=b", "TOKEN=mine"]), here),
            pairs(&[("PATH", "/bin"), ("HOME", ""), ("TOKEN", "mine"), ("X", "a=b")])
        );
        assert_eq!(child_env(&[], &[], |_| None), []);
    }
}
