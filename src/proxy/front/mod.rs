//! The MCP server that a host sees, over one pair of streams.
//!
//! Owns the conversation: `initialize` is answered at once, every request ends in exactly one answer (also when its
//! handler panics), a cancelled one in none, and when the input ends no new call begins and those under way finish
//! before [`serve`] returns. Never decides anything about a call: a [`Calls`] does, and it alone looks at arguments.
//! Nothing but protocol is written to the output.
//!
//! Why no library serves here: `docs/decisions/servers-are-spoken-to-by-our-own-loop.md`.

mod frame;
mod rpc;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use holdpoint_actors::faults::process;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinSet;

use super::answer::{Answer, Unavailable};
use frame::{Line, Lines};
use rpc::Message;

/// What hosts are told that this server is. It names no command: a host may show it to a model.
pub const SERVER_NAME: &str = "gated-tools";
/// Its version, which says nothing about the program's.
pub const SERVER_VERSION: &str = "0.1.0";

/// The protocol revisions that are spoken, the newest first.
const VERSIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

/// What the calls under way may hold in memory, in units of [`UNIT_BYTES`]: 64 MiB of arguments, or 256 small calls.
/// More of either is answered at once rather than kept waiting, so that the host's other messages are still read.
const UNITS: usize = 1024;
const UNIT_BYTES: usize = 64 * 1024;
const UNITS_PER_CALL_MIN: usize = 4;

/// Answers without a call that may wait to be written. Past it the input is not read on, as a pipe would do it.
const SMALL_ANSWERS: usize = 64;

/// How long a host may take to read the last answers.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

/// One call of a host.
#[derive(Debug)]
pub struct HostCall {
    /// The tool.
    pub name: String,
    /// Its arguments as the host wrote them; `None` when there are none.
    pub arguments: Option<Vec<u8>>,
    /// Where progress is told, when the host asked for it.
    pub progress: Option<ProgressSink>,
    /// Whether the host has lost interest.
    pub cancelled: Cancelled,
}

/// How a call is answered.
#[derive(Debug)]
pub enum CallAnswer {
    /// With this result, an object as JSON.
    Result(String),
    /// There is no such tool.
    NoSuchTool,
    /// No call begins any more.
    ShuttingDown,
}

/// Why the tools can't be listed. It names no path: a host may show it to a model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ListError(pub String);

/// Answers a host's requests.
#[async_trait]
pub trait Calls: Send + Sync + 'static {
    /// The tools, each an object as JSON, in the order in which they are offered. It may wait for the servers.
    async fn list(&self) -> Result<Vec<String>, ListError>;

    /// Answers one call.
    async fn call(&self, call: HostCall) -> CallAnswer;

    /// Begins the end: no new call, and nothing waits for a person any longer.
    fn stop(&self);
}

/// Whether a host has cancelled its call.
#[derive(Debug, Clone)]
pub struct Cancelled(watch::Receiver<bool>);

impl Cancelled {
    /// A call that nobody cancels.
    pub fn never() -> Cancelled {
        Cancelled(watch::channel(false).1)
    }

    /// A call that was cancelled before it began.
    pub fn already() -> Cancelled {
        Cancelled(watch::channel(true).1)
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until it is cancelled.
    pub async fn cancelled(&self) {
        let mut receiver = self.0.clone();
        if receiver.wait_for(|cancelled| *cancelled).await.is_err() {
            // Nobody is left who could cancel it.
            std::future::pending::<()>().await;
        }
    }
}

/// Tells a host how far its call has come.
#[derive(Debug, Clone)]
pub struct ProgressSink {
    token: String,
    out: Out,
}

impl ProgressSink {
    /// Says that `progress` of `total` has passed, both in seconds. Dropped when the host does not read.
    pub fn tell(&self, progress: f64, total: f64, message: &str) {
        let Ok(permit) = Arc::clone(&self.out.small).try_acquire_owned() else {
            return tracing::debug!("a progress notification was dropped: the host does not read");
        };
        let message = serde_json::Value::from(message);
        let params = format!(
            r#"{{"progressToken":{},"progress":{progress},"total":{total},"message":{message}}}"#,
            self.token
        );
        self.out.send(rpc::notification("notifications/progress", &params), permit);
    }
}

/// The way to the writer. It is unbounded because every line carries a permit, which is bounded and kept until the
/// line is written.
#[derive(Debug, Clone)]
struct Out {
    lines: mpsc::UnboundedSender<(Vec<u8>, OwnedSemaphorePermit)>,
    small: Arc<Semaphore>,
}

impl Out {
    fn send(&self, line: Vec<u8>, permit: OwnedSemaphorePermit) {
        if self.lines.send((line, permit)).is_err() {
            tracing::debug!("an answer came after the host had gone");
        }
    }
}

/// Serves one host until its input ends, its output is closed, or `stop` becomes true; then waits for the calls under
/// way, each of which is bounded by its tool's timeout.
///
/// # Errors
/// The host's streams can't be read or written; the calls under way have finished then too.
pub async fn serve<R, W>(
    input: R,
    output: W,
    calls: Arc<dyn Calls>,
    mut stop: watch::Receiver<bool>,
) -> std::io::Result<()>
where
    R: AsyncRead + Unpin + Send,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let (lines, queue) = mpsc::unbounded_channel();
    let mut writer = tokio::spawn(write(output, queue));
    let small = Arc::new(Semaphore::new(SMALL_ANSWERS));
    let mut host = Host::new(Arc::clone(&calls), Out { lines, small: Arc::clone(&small) });
    let mut input = Lines::new(input);
    let mut writer_ended = None;
    let ended = loop {
        // A permit first: whatever comes can be answered.
        let next = async {
            let permit = Arc::clone(&small).acquire_owned().await;
            (permit, input.next().await)
        };
        let line = tokio::select! {
            (Ok(permit), line) = next => line.map(|line| line.map(|line| (line, permit))),
            // A sender that is gone can't ask for the end any more.
            Ok(_) = async { stop.wait_for(|stop| *stop).await.map(drop) } => Ok(None),
            written = &mut writer => {
                writer_ended = Some(written);
                Ok(None)
            }
        };
        match line {
            Ok(Some((line, permit))) => {
                if let Some(answer) = host.take(line) {
                    host.out.send(answer, permit);
                }
            }
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    calls.stop();
    host.finish().await;
    drop(host);
    let written = match writer_ended {
        Some(written) => written,
        None => match tokio::time::timeout(LAST_ANSWERS, &mut writer).await {
            Ok(written) => written,
            Err(_elapsed) => {
                writer.abort();
                tracing::warn!("the host did not read its last answers");
                return ended;
            }
        },
    };
    ended.and(written.unwrap_or_else(|died| Err(std::io::Error::other(died))))
}

async fn write<W: AsyncWrite + Unpin>(
    mut output: W,
    mut lines: mpsc::UnboundedReceiver<(Vec<u8>, OwnedSemaphorePermit)>,
) -> std::io::Result<()> {
    while let Some((line, _permit)) = lines.recv().await {
        output.write_all(&line).await?;
        output.flush().await?;
    }
    output.shutdown().await
}

/// Whether the answer of a request under way is still to come.
struct Awaited(bool);

struct Host {
    calls: Arc<dyn Calls>,
    out: Out,
    running: JoinSet<()>,
    /// The requests under way, by [`rpc::same_id`].
    cancels: Arc<Mutex<HashMap<String, watch::Sender<bool>>>>,
    units: Arc<Semaphore>,
    greeted: bool,
}

impl Host {
    fn new(calls: Arc<dyn Calls>, out: Out) -> Host {
        Host {
            calls,
            out,
            running: JoinSet::new(),
            cancels: Arc::default(),
            units: Arc::new(Semaphore::new(UNITS)),
            greeted: false,
        }
    }

    /// Acts on a line; gives the answer that is known at once.
    fn take(&mut self, line: Line) -> Option<Vec<u8>> {
        // Reaps what is over, so that the set stays as small as what runs.
        while self.running.try_join_next().is_some() {}
        let message = match line {
            Line::Whole(line) => rpc::read(&line),
            Line::TooLong(skeleton) => Message::Refused {
                id: rpc::id_of_skeleton(&skeleton),
                code: rpc::INVALID_REQUEST,
                why: "the message is longer than 16 MiB",
            },
        };
        match message {
            Message::Request { id, method, params } => self.request(id, &method, &params),
            Message::Notification { method, params } => {
                self.notice(&method, &params);
                None
            }
            Message::Answer => None,
            Message::Refused { id, code, why } => {
                let free = id.filter(|id| !matches!(self.under_way(id), Some(Awaited(true))));
                Some(rpc::error(free.as_deref(), code, why))
            }
        }
    }

    /// Whether a request with this id runs, and whether its answer is still to come: a cancelled one gets none. Nothing
    /// else is ever said under the id of one whose answer is to come, or a host would take that for the answer.
    fn under_way(&self, id: &str) -> Option<Awaited> {
        let cancels = lock(&self.cancels);
        cancels.get(&rpc::same_id(id)).map(|cancel| Awaited(!*cancel.borrow()))
    }

    fn request(&mut self, id: String, method: &str, params: &[u8]) -> Option<Vec<u8>> {
        if let Some(Awaited(awaited)) = self.under_way(&id) {
            let why =
                format!("a request with the id {id} is under way; this one with the same id was not begun");
            return Some(rpc::error((!awaited).then_some(&id), rpc::INVALID_REQUEST, &why));
        }
        let refuse = |code, why| Some(rpc::error(Some(&id), code, why));
        match method {
            "initialize" if self.greeted => {
                refuse(rpc::INVALID_REQUEST, "the session is initialized already")
            }
            "initialize" => match rpc::asked_version(params) {
                None => refuse(rpc::INVALID_PARAMS, "initialize names a protocolVersion"),
                Some(version) => {
                    self.greeted = true;
                    Some(rpc::result(&id, &greeting(&version)))
                }
            },
            "ping" => Some(rpc::result(&id, "{}")),
            "tools/list" | "tools/call" if !self.greeted => {
                refuse(rpc::INVALID_REQUEST, "initialize the session first")
            }
            "tools/list" => {
                let Ok(permit) = Arc::clone(&self.units).try_acquire_many_owned(units(0)) else {
                    return refuse(rpc::INTERNAL_ERROR, "too many requests are under way");
                };
                let calls = Arc::clone(&self.calls);
                self.run(id, permit, async move |_| list(&*calls).await);
                None
            }
            "tools/call" => self.call(id, params),
            _ => refuse(rpc::METHOD_NOT_FOUND, "this method is not served"),
        }
    }

    fn notice(&self, method: &str, params: &[u8]) {
        if method == "notifications/cancelled"
            && let Some(id) = rpc::cancelled_id(params)
            && let Some(cancel) = lock(&self.cancels).get(&rpc::same_id(&id))
        {
            cancel.send_replace(true);
        }
    }

    fn call(&mut self, id: String, params: &[u8]) -> Option<Vec<u8>> {
        let Some(read) = rpc::call_params(params) else {
            let why = "tools/call takes a name and, if there are any, arguments";
            return Some(rpc::error(Some(&id), rpc::INVALID_PARAMS, why));
        };
        let Ok(permit) = Arc::clone(&self.units).try_acquire_many_owned(units(params.len())) else {
            let busy = Answer::Unavailable(Unavailable::Busy).to_result();
            return Some(rpc::result(&id, &busy));
        };
        let calls = Arc::clone(&self.calls);
        let progress = read.progress_token.map(|token| ProgressSink { token, out: self.out.clone() });
        self.run(id, permit, async move |cancelled| {
            let call = HostCall { name: read.name, arguments: read.arguments, progress, cancelled };
            match calls.call(call).await {
                CallAnswer::Result(result) => Ok(result),
                CallAnswer::NoSuchTool => Err((rpc::INVALID_PARAMS, "there is no such tool".to_owned())),
                CallAnswer::ShuttingDown => Err((rpc::INTERNAL_ERROR, "the session is ending".to_owned())),
            }
        });
        None
    }

    /// Runs a handler in a task of its own and answers with what it gives, whatever happens to it.
    fn run<F, R>(&mut self, id: String, permit: OwnedSemaphorePermit, handler: F)
    where
        F: FnOnce(Cancelled) -> R + Send + 'static,
        R: Future<Output = Result<String, (i64, String)>> + Send + 'static,
    {
        let (cancel, cancelled) = watch::channel(false);
        let same = rpc::same_id(&id);
        lock(&self.cancels).insert(same.clone(), cancel);
        let (out, cancels) = (self.out.clone(), Arc::clone(&self.cancels));
        let cancelled = Cancelled(cancelled);
        self.running.spawn(async move {
            // A task of its own catches its panic.
            let answer = tokio::spawn(handler(cancelled.clone())).await;
            let line = match answer {
                Ok(Ok(result)) => rpc::result(&id, &result),
                Ok(Err((code, why))) => rpc::error(Some(&id), code, &why),
                Err(died) => {
                    tracing::error!(%died, "a request's handler died");
                    rpc::error(Some(&id), rpc::INTERNAL_ERROR, "something broke while this was answered")
                }
            };
            process::reach("front.answering");
            // Under the lock: the id is free again only once its answer is on its way, so that nothing overtakes it.
            let mut cancels = lock(&cancels);
            cancels.remove(&same);
            // Whoever cancels a request does not wait for its answer.
            if !cancelled.is_cancelled() {
                out.send(line, permit);
            }
        });
    }

    async fn finish(&mut self) {
        while self.running.join_next().await.is_some() {}
    }
}

fn units(bytes: usize) -> u32 {
    let units = bytes.div_ceil(UNIT_BYTES).clamp(UNITS_PER_CALL_MIN, UNITS);
    u32::try_from(units).unwrap_or(u32::MAX)
}

async fn list(calls: &dyn Calls) -> Result<String, (i64, String)> {
    match calls.list().await {
        Ok(tools) => Ok(format!(r#"{{"tools":[{}]}}"#, tools.join(","))),
        Err(ListError(why)) => Err((rpc::INTERNAL_ERROR, why)),
    }
}

fn greeting(asked: &str) -> String {
    let version = VERSIONS.iter().find(|version| **version == asked).unwrap_or(&VERSIONS[0]);
    format!(
        r#"{{"protocolVersion":"{version}","capabilities":{{"tools":{{}}}},"serverInfo":{{"name":"{SERVER_NAME}","version":"{SERVER_VERSION}"}}}}"#
    )
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
