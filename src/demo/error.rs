//! Why the demonstration stopped before its end.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error as ThisError;

/// Why the demonstration stopped before its end.
#[derive(Debug, ThisError)]
pub(super) enum Error {
    /// A file or folder of the demonstration can't be used.
    #[error("failed to use {path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A process could not be started or talked to.
    #[error("failed to run {who}: {source}")]
    Process {
        /// Which.
        who: String,
        /// Why.
        source: io::Error,
    },
    /// A command ended badly.
    #[error("{command} ended with {status}: {said}")]
    Command {
        /// As it would be typed.
        command: String,
        /// How it ended.
        status: String,
        /// What it said.
        said: String,
    },
    /// A process did not answer.
    #[error("{who} did not answer within {within:?}")]
    Silent {
        /// Which.
        who: String,
        /// How long it was waited for.
        within: Duration,
    },
    /// A process ended while it was talked to.
    #[error("{who} ended while it was talked to")]
    Gone {
        /// Which.
        who: String,
    },
    /// Something was not as the story has it.
    #[error("{0}")]
    NotAsTold(String),
    /// The story can't be printed.
    #[error("failed to write the output: {0}")]
    Output(#[from] io::Error),
}

/// Lets the story go on only if something is as it has it.
pub(super) fn ensure(is_so: bool, otherwise: impl FnOnce() -> String) -> Result<(), Error> {
    if is_so { Ok(()) } else { Err(Error::NotAsTold(otherwise())) }
}
