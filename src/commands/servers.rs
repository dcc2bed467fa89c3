//! The servers of a configuration, asked for their tools without serving anything.
//!
//! Owns the translation of what is wrong with the operator's files into codes. `pin`, `doctor` and `recheck` use it; a server that
//! is started here is ended here, and nothing is registered.

use std::io::ErrorKind;
use std::path::Path;

use holdpoint::codes::Code;
use holdpoint::mcp;
use holdpoint::proxy::config::{Config, ConfigError, Server};
use holdpoint::proxy::owned::{OwnedError, read_owned};
use holdpoint::proxy::serve::{ManifestError, ServeError};
use holdpoint_actors::connection::ServerSpec;
use holdpoint_actors::tree::TreeError;
use holdpoint_core::pin::listing::Listing;
use holdpoint_core::pin::manifest::Manifest;

use super::records;
use crate::error::CommandError;

/// Reads a configuration.
pub(super) fn load(path: &Path) -> Result<Config, CommandError> {
    Config::load(path).map_err(|error| match error {
        ConfigError::File(error) => of_owned(&error),
        ConfigError::Content { .. } => CommandError::new(Code::ConfigInvalid, error.to_string()),
    })
}

/// What is wrong with a file of the operator's.
pub(super) fn of_owned(error: &OwnedError) -> CommandError {
    let code = match error {
        OwnedError::Io { .. }
        | OwnedError::Unwritable(_)
        | OwnedError::UnwritableFolder { .. }
        | OwnedError::TooLong(_) => Code::ConfigUnreadable,
        OwnedError::NotRegular(_)
        | OwnedError::Symlink(_)
        | OwnedError::Writable { .. }
        | OwnedError::Readable { .. }
        | OwnedError::Foreign { .. } => Code::ConfigInsecure,
    };
    CommandError::new(code, error.to_string())
}

/// Why a proxy does not start.
pub(super) fn of_serve(error: ServeError) -> CommandError {
    let text = error.to_string();
    match error {
        ServeError::Database(problem) => CommandError::new(of_database(&problem), text),
        ServeError::Reach(_) => CommandError::new(Code::ConfigReach, text),
        ServeError::Manifest { server, error: ManifestError::File(problem) } => {
            let code = of_owned(&problem).code;
            CommandError::new(code, text).hint(format!("holdpoint pin makes the manifest of {server}"))
        }
        ServeError::Manifest {
            error: ManifestError::Unusable { .. } | ManifestError::Content { .. },
            ..
        } => CommandError::new(Code::ConfigInvalid, text),
        ServeError::Tree(TreeError::Store(problem)) => records::of_open(problem),
        ServeError::Tree(TreeError::Start(_)) => CommandError::new(Code::Internal, text),
        ServeError::Load(_) => CommandError::new(Code::ServerNothingRegistered, text),
    }
}

/// What is wrong with the database's files.
pub(super) fn of_database(problem: &OwnedError) -> Code {
    match problem {
        OwnedError::Io { error, .. } if error.kind() == ErrorKind::NotFound => Code::StoreMissing,
        OwnedError::Io { .. }
        | OwnedError::Unwritable(_)
        | OwnedError::UnwritableFolder { .. }
        | OwnedError::TooLong(_) => Code::StoreIo,
        OwnedError::NotRegular(_) => Code::StoreNotRegular,
        OwnedError::Symlink(_) => Code::StoreSymlink,
        OwnedError::Writable { .. } | OwnedError::Readable { .. } | OwnedError::Foreign { .. } => {
            Code::StoreInsecureMode
        }
    }
}

/// Reads a server's manifest.
pub(super) fn manifest(server: &Server) -> Result<Manifest, CommandError> {
    let path = server.manifest.display();
    let bytes = read_owned(&server.manifest).map_err(|error| {
        of_owned(&error).hint(format!("holdpoint pin makes the manifest of {}", server.name))
    })?;
    Manifest::parse_strict(&bytes)
        .map_err(|error| CommandError::new(Code::ConfigInvalid, format!("{path}: {error}")))
}

/// Asks every server for its tools, all at a time. The answers stand in the order of the servers.
pub(super) async fn list_all(servers: &[Server]) -> Vec<Result<Listing, CommandError>> {
    let list = |spec: ServerSpec| async move { mcp::listing(&spec).await };
    let asked: Vec<_> = servers.iter().map(|server| tokio::spawn(list(server.spec()))).collect();
    let mut answers = Vec::new();
    for task in asked {
        let answer = match task.await {
            Ok(answer) => answer.map_err(|error| error.why),
            Err(problem) => Err(format!("asking a server for its tools broke off: {problem}")),
        };
        answers.push(answer.map_err(|why| CommandError::new(Code::ServerDown, why)));
    }
    answers
}
