//! `holdpoint proxy`: serve an MCP host over stdio, behind the gate.
//!
//! Owns the process's side of it: the two streams, the signals that end it, and the exit status. Nothing but protocol
//! is written to stdout; what an operator should read goes to stderr.

use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::Arc;

use holdpoint::codes::Code;
use holdpoint::proxy::journal::StderrJournal;
use holdpoint::proxy::serve::{Opened, Prepared, Served};
use holdpoint::proxy::streams;
use tokio::sync::watch;

use super::{runtime_of_one_thread, servers};
use crate::error::CommandError;
use crate::signals::stop_signal;

/// Serve over stdio as an MCP server, in front of the configured servers
///
/// A host starts this command and speaks MCP with it. It ends with status 0 when the host closes its input, or on
/// SIGINT, SIGTERM, SIGHUP or SIGQUIT, after the calls under way have been recorded.
///
/// Only the calls that go through it are governed. A host or a model with a shell, or with another way to the same
/// service, can go around it, and can approve its own requests.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The configuration of the proxy
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

pub(super) fn run(args: &Args) -> Result<(), CommandError> {
    let config = servers::load(&args.config)?;
    let prepared = Prepared::check(config).map_err(servers::of_serve)?;
    // One thread: a second is woken for every message and finds nothing to do. What takes long, or may block, has
    // threads of its own. The main thread only waits, so that what a message wakes is where it was read.
    let runtime = runtime_of_one_thread()?;
    let served = runtime.block_on(runtime.spawn(serve(prepared)));
    let served = served.unwrap_or_else(|died| resume_unwind(died.into_panic()));
    // A read from a stdin that is no pipe can't be called back: its thread ends with the process.
    runtime.shutdown_background();
    ended(served?)
}

/// What the end of serving means for the process.
fn ended(served: Served) -> Result<(), CommandError> {
    match served {
        Served::Ended => Ok(()),
        Served::NothingOffered(_) => {
            let message = "no tools could be offered, for the reason given above";
            Err(CommandError::new(Code::ServerNothingRegistered, message))
        }
        Served::ActorsLost => {
            let message =
                "a part of the program could not be kept alive; what was sent and not answered is on record";
            Err(CommandError::new(Code::Exit70, message).hint("start the proxy again: it recovers its runs"))
        }
    }
}

async fn serve(prepared: Prepared) -> Result<Served, CommandError> {
    // Listened for from the start, so that a signal during the opening ends it in order too.
    let signalled = stop_signal()?;
    let (ask, stop) = watch::channel(false);
    let signals = tokio::spawn(async move {
        let signal = signalled.await;
        tracing::info!(signal, "asked to end");
        ask.send_replace(true);
        // The receiver must not take a dropped sender for an answer.
        ask.closed().await;
    });
    let opened = Opened::open(prepared, Arc::new(StderrJournal)).await.map_err(servers::of_serve)?;
    let served = opened.serve(streams::input(), streams::output(), stop).await;
    signals.abort();
    Ok(served)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    #[test]
    fn each_end_of_serving_has_its_status() {
        let status = |served| ended(served).map_or_else(|error| Exit::of(error.code).status(), |()| 0);
        let ends = [Served::Ended, Served::NothingOffered("why".to_owned()), Served::ActorsLost];
        assert_eq!(ends.map(status), [0, 1, 70]);
    }
}
