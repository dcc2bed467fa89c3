//! Serving the channel on a port: one request a connection, few connections, and a time for everything.
//!
//! Owns the limits that keep somebody without a secret from holding the port: how many connections there are, and how
//! long each may take. Stops in order: nothing new is accepted, what was begun is answered, and a decision whose asker hung
//! up is waited for too.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, Extension};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::Webhook;

/// Connections at one time. More wait to be accepted.
const CONNECTIONS_MAX: usize = 64;
/// How long a request's head may take to arrive.
const HEAD: Duration = Duration::from_secs(10);
/// How long a connection may take, from its first byte to the last of its answer.
const CONNECTION: Duration = Duration::from_secs(60);
/// How long what was begun may take when the server stops.
const STOPPING: Duration = Duration::from_secs(10);
/// Between two tries to accept when the system has no descriptors left.
const PAUSE: Duration = Duration::from_millis(100);

impl Webhook {
    /// Serves on a listener until `stop` resolves, then finishes what was begun, also for those who hung up meanwhile, for
    /// ten seconds at most.
    ///
    /// # Errors
    /// None that a single connection meets.
    pub async fn serve(self, listener: TcpListener, stop: impl Future<Output = ()>) -> io::Result<()> {
        let (begun, mut all_ended) = mpsc::channel(1);
        let (router, graceful) = (self.router_until(Some(begun)), GracefulShutdown::new());
        let turns = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let mut stop = std::pin::pin!(stop);
        loop {
            let accepted = tokio::select! {
                () = &mut stop => break,
                accepted = accept(&listener, &turns) => accepted,
            };
            match accepted {
                Ok((stream, address, turn)) => {
                    tokio::spawn(connection(router.clone(), stream, address, turn, graceful.watcher()));
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        drop((listener, router));
        let ended = async {
            graceful.shutdown().await;
            // Nothing is ever sent: it ends with the last that works on a request.
            all_ended.recv().await;
        };
        if tokio::time::timeout(STOPPING, ended).await.is_err() {
            tracing::warn!("what was begun did not end in time and is left alone");
        }
        Ok(())
    }
}

async fn accept(
    listener: &TcpListener,
    turns: &Arc<Semaphore>,
) -> io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let turn = Arc::clone(turns).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, address) = listener.accept().await?;
    Ok((stream, address, turn))
}

async fn connection(
    router: Router,
    stream: TcpStream,
    address: SocketAddr,
    _turn: OwnedSemaphorePermit,
    watcher: Watcher,
) {
    let service = TowerToHyperService::new(router.layer(Extension(ConnectInfo(address))));
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(CONNECTION, watcher.watch(serving)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a connection ended early"),
        Err(_elapsed) => tracing::debug!("a connection took too long"),
    }
}
