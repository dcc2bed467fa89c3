//! `holdpoint serve-approvals`: the approval channel over HTTP, from the command line.
//!
//! Owns the process's side of it: where it listens, who may decide, what is told on stderr, and the end. What is
//! accepted and answered is told in `holdpoint::approver::webhook`; a build without the feature says how to get one.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::Database;
use crate::error::CommandError;
use crate::text::Ui;

/// Take decisions over HTTP, from operators who sign their requests
///
/// Shows what a named run waits for, and grants, refuses or cancels it; nothing lists runs. Speaks plain HTTP, so it listens
/// on this machine only, unless a proxy that speaks TLS stands in front. Ends on SIGINT, SIGTERM, SIGHUP or SIGQUIT, after
/// what was begun has been answered.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The operators' secrets, a file that only you may read: {"operators": {"NAME": "SECRET"}}
    #[arg(long, value_name = "FILE")]
    secrets: PathBuf,
    /// Where to listen; port 0 is any that is free
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8471")]
    listen: SocketAddr,
    /// Listen where others can reach it, because a proxy that speaks TLS stands in front
    #[arg(long)]
    behind_tls_proxy: bool,
}

pub(super) fn run(args: &Args, database: &Database, ui: &mut Ui) -> Result<(), CommandError> {
    if !args.listen.ip().is_loopback() && !args.behind_tls_proxy {
        let message = format!("{} can be reached from elsewhere, and this speaks plain HTTP", args.listen);
        return Err(CommandError::usage(message).hint(
            "listen on 127.0.0.1, or pass --behind-tls-proxy when a proxy that speaks TLS stands in front",
        ));
    }
    serve(args, &database.path()?, ui)
}

#[cfg(not(feature = "webhook"))]
fn serve(_args: &Args, _database: &Path, _ui: &mut Ui) -> Result<(), CommandError> {
    Err(CommandError::usage("this build can't serve approvals")
        .hint("install one that can: cargo install --path . --locked --features webhook"))
}

#[cfg(feature = "webhook")]
use serving::serve;

#[cfg(feature = "webhook")]
mod serving {
    use std::sync::Arc;

    use holdpoint::approver::Local;
    use holdpoint::approver::webhook::{Secrets, SecretsError, SignatureStore, Webhook};
    use holdpoint::codes::Code;
    use holdpoint::gate::Observer;
    use holdpoint::stderr::Stderr;
    use holdpoint::trace::Trace;
    use holdpoint_actors::clock;
    use serde::Serialize;
    use tokio::net::TcpListener;

    use super::super::{records, runtime, servers};
    use super::{Args, CommandError, Path, SocketAddr, Ui};
    use crate::signals::stop_signal;

    /// What is printed in JSON, once it listens.
    #[derive(Debug, Serialize)]
    struct Listening {
        listening: SocketAddr,
        operators: Vec<String>,
        v1: bool,
    }

    pub(super) fn serve(args: &Args, database: &Path, ui: &mut Ui) -> Result<(), CommandError> {
        let secrets = Secrets::read(&args.secrets).map_err(|error| match error {
            SecretsError::File(error) => servers::of_owned(&error),
            error @ (SecretsError::Shape(_)
            | SecretsError::Name(_)
            | SecretsError::Short(_)
            | SecretsError::Same(..)
            | SecretsError::Nobody) => CommandError::new(Code::ConfigInvalid, error.to_string()),
        })?;
        // Each event is a line, and a stream that nobody reads keeps nobody waiting.
        let observer: Arc<dyn Observer> =
            if ui.json() { Arc::new(Trace::json_lines(Stderr)) } else { Arc::new(Trace::text(Stderr)) };
        let local = Local::open(database)?.observer(Arc::clone(&observer));
        let memory = SignatureStore::open(database, clock::wall()).map_err(records::of_open)?;
        let names = secrets.operators().map(ToString::to_string).collect();
        let v1 = secrets.takes_v1();
        let hook = Webhook::new(Arc::new(local), Arc::new(memory), secrets).observer(observer);
        runtime()?.block_on(async {
            let asked = stop_signal()?;
            let listener = TcpListener::bind(args.listen).await.map_err(|error| {
                CommandError::new(Code::ServeListen, format!("failed to listen on {}: {error}", args.listen))
            })?;
            tell(&Listening { listening: listener.local_addr()?, operators: names, v1 }, ui)?;
            let stop = async {
                // Not inside the log's macro, which looks at nothing of an entry that is not wanted.
                let signal = asked.await;
                tracing::info!(signal, "asked to end");
            };
            Ok(hook.serve(listener, stop).await?)
        })
    }

    fn tell(listening: &Listening, ui: &mut Ui) -> Result<(), CommandError> {
        if ui.json() {
            ui.write_json(listening)?;
            return Ok(ui.flush()?);
        }
        writeln!(ui.out(), "listening on http://{}", listening.listening)?;
        if !listening.operators.is_empty() {
            writeln!(ui.out(), "operators: {}", listening.operators.join(", "))?;
        }
        if listening.v1 {
            let warning = "signatures of version 1 are taken too: they name nobody and leave out the query";
            writeln!(ui.out(), "{warning}")?;
        }
        Ok(ui.flush()?)
    }
}
