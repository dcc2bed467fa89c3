//! The socket on which a running proxy tells `holdpoint doctor` what its actors report.
//!
//! Owns the protocol and the path: beside the database, `<db>.holdpoint.sock`, or with a number before the suffix when
//! several proxies share the file. One request a connection, one line each way: `{"cmd":"observe"}` is answered by one
//! JSON object, anything else by `{"error": "…"}`. Only the owner may connect: the file's mode is 0600, and the peer's
//! user id is checked too. Nothing can be changed through it, and no argument of a call is ever sent over it.
//!
//! The proxy calls [`bind`] and [`serve`]; the doctor calls [`observe_all`].

use std::future::Future;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// The most proxies that serve one database and are still seen.
const SOCKETS_MAX: u32 = 16;
/// The most connections that are answered at a time. A doctor makes one.
const CONNECTIONS_MAX: usize = 4;
/// The most bytes of a request.
const REQUEST_BYTES_MAX: u64 = 1_024;
/// The most bytes of an answer: a proxy with a thousand tools says less.
const ANSWER_BYTES_MAX: u64 = 4 * 1_024 * 1_024;
/// How long either side waits for the other.
const PATIENCE: Duration = Duration::from_secs(5);

/// Gives the paths that the sockets of a database may have, in the order in which they are tried.
pub fn socket_paths(database: &Path) -> impl Iterator<Item = PathBuf> {
    let beside = |suffix: String| {
        let mut path = database.as_os_str().to_owned();
        path.push(suffix);
        PathBuf::from(path)
    };
    let first = beside(".holdpoint.sock".to_owned());
    let others: Vec<PathBuf> = (2..=SOCKETS_MAX).map(|n| beside(format!(".holdpoint.{n}.sock"))).collect();
    std::iter::once(first).chain(others)
}

/// A listening socket, whose file goes with it.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
}

impl Socket {
    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // A file that stays is taken away by the next proxy that finds nobody behind it.
        drop(std::fs::remove_file(&self.path));
    }
}

/// Begins to listen beside the database. Must be called on a tokio runtime.
///
/// A socket that nobody answers any more is taken away first, if it is the caller's own.
pub async fn bind(database: &Path) -> io::Result<Socket> {
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for path in socket_paths(database) {
        match std::fs::symlink_metadata(&path) {
            Ok(found) => {
                let mine =
                    found.file_type().is_socket() && found.uid() == rustix::process::geteuid().as_raw();
                if !mine || UnixStream::connect(&path).await.is_ok() {
                    continue;
                }
                std::fs::remove_file(&path)?;
            }
            Err(problem) if problem.kind() == io::ErrorKind::NotFound => {}
            Err(problem) => return Err(problem),
        }
        match UnixListener::bind(&path) {
            Ok(listener) => {
                let socket = Socket { listener, path };
                std::fs::set_permissions(&socket.path, std::fs::Permissions::from_mode(0o600))?;
                return Ok(socket);
            }
            Err(problem) if problem.kind() == io::ErrorKind::AddrInUse => last = problem,
            Err(problem) => return Err(problem),
        }
    }
    Err(last)
}

/// Answers doctors until it is dropped. `observe` gives what the actors report, as a JSON object; it must bound its
/// own time.
pub async fn serve<F, O>(socket: Socket, observe: F)
where
    F: Fn() -> O + Send + Sync + 'static,
    O: Future<Output = Value> + Send + 'static,
{
    let observe = Arc::new(observe);
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
        let Ok((stream, _)) = socket.listener.accept().await else {
            // Out of descriptors, most likely: a loop that spins would make it worse.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let observe = Arc::clone(&observe);
        tokio::spawn(async move {
            if let Err(problem) = answer(stream, &*observe).await {
                tracing::debug!(%problem, "a doctor was not answered");
            }
            drop(permit);
        });
    }
}

#[derive(Deserialize)]
struct Request {
    cmd: String,
}

async fn answer<F, O>(mut stream: UnixStream, observe: &F) -> io::Result<()>
where
    F: Fn() -> O,
    O: Future<Output = Value>,
{
    if stream.peer_cred()?.uid() != rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    let mut line = String::new();
    let (reading, mut writing) = stream.split();
    let mut reading = BufReader::new(reading.take(REQUEST_BYTES_MAX));
    timeout(PATIENCE, reading.read_line(&mut line)).await??;
    let answer = match serde_json::from_str::<Request>(&line) {
        Ok(request) if request.cmd == "observe" => observe().await,
        Ok(request) => json!({"error": format!("no command {:?}", request.cmd)}),
        Err(problem) => json!({"error": format!("not a request: {problem}")}),
    };
    timeout(PATIENCE, writing.write_all(format!("{answer}\n").as_bytes())).await??;
    writing.shutdown().await
}

/// What was learnt from one proxy.
#[derive(Debug)]
pub struct Observed {
    /// The socket that it listens on.
    pub path: PathBuf,
    /// What it said, or why it said nothing.
    pub answer: io::Result<Value>,
}

/// Asks every proxy that serves the database. A socket with nobody behind it is no proxy, and left out.
pub async fn observe_all(database: &Path) -> Vec<Observed> {
    let mut all = Vec::new();
    for path in socket_paths(database) {
        if let Ok(stream) = UnixStream::connect(&path).await {
            let answer = ask(stream).await;
            all.push(Observed { path, answer });
        }
    }
    all
}

async fn ask(mut stream: UnixStream) -> io::Result<Value> {
    if stream.peer_cred()?.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "another user listens there"));
    }
    timeout(PATIENCE, stream.write_all(b"{\"cmd\":\"observe\"}\n")).await??;
    let mut text = String::new();
    // The proxy may first wait for its actors, each of which has a deadline of its own.
    timeout(2 * PATIENCE, stream.take(ANSWER_BYTES_MAX).read_to_string(&mut text)).await??;
    serde_json::from_str(&text).map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn say(database: &Path, request: &str) -> Value {
        let path = socket_paths(database).next().unwrap();
        let mut stream = UnixStream::connect(path).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        serde_json::from_str(&text).unwrap()
    }

    #[tokio::test]
    async fn a_doctor_is_told_what_the_proxy_observes_and_only_the_owner_can_ask() {
        let dir = tempfile::tempdir().unwrap();
        let database = dir.path().join("gate.db");
        let socket = bind(&database).await.unwrap();
        assert_eq!(socket.path(), dir.path().join("gate.db.holdpoint.sock"));
        let mode = std::fs::metadata(socket.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let serving = tokio::spawn(serve(socket, || async { json!({"store": {"queue": 0}}) }));
        let all = observe_all(&database).await;
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].answer.as_ref().unwrap(), &json!({"store": {"queue": 0}}));
        assert_eq!(say(&database, "{\"cmd\":\"stop\"}\n").await, json!({"error": "no command \"stop\""}));
        assert!(say(&database, "nonsense\n").await["error"].as_str().unwrap().starts_with("not a request"));
        serving.abort();
        assert!(serving.await.unwrap_err().is_cancelled());
        assert!(!dir.path().join("gate.db.holdpoint.sock").exists(), "the file goes with the socket");
        assert!(observe_all(&database).await.is_empty());
    }

    #[tokio::test]
    async fn a_dead_proxy_s_socket_is_replaced_and_a_live_one_s_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let database = dir.path().join("gate.db");
        let first = socket_paths(&database).next().unwrap();
        // A listener of the standard library leaves its file behind, as a killed process does.
        drop(std::os::unix::net::UnixListener::bind(&first).unwrap());
        assert!(first.exists());
        let a = bind(&database).await.unwrap();
        assert_eq!(a.path(), first);
        let b = bind(&database).await.unwrap();
        assert_eq!(b.path(), dir.path().join("gate.db.holdpoint.2.sock"));
        std::fs::write(dir.path().join("gate.db.holdpoint.3.sock"), "not a socket").unwrap();
        let c = bind(&database).await.unwrap();
        assert_eq!(c.path(), dir.path().join("gate.db.holdpoint.4.sock"));
    }
}
