//! The signals that ask this process to end.

use std::io;

use tokio::signal::unix::{SignalKind, signal};

/// Resolves to the name of a signal that asks this process to end. From here on none of them ends it by itself.
pub(crate) fn stop_signal() -> io::Result<impl Future<Output = &'static str>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut quit = signal(SignalKind::quit())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => "SIGINT",
            _ = terminate.recv() => "SIGTERM",
            _ = hangup.recv() => "SIGHUP",
            _ = quit.recv() => "SIGQUIT",
        }
    })
}
