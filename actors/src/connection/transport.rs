//! The wire to one server: one writer, one reader, and the table of requests that wait for an answer.
//!
//! Owns the order of what leaves and what each request came to. A frame is queued in the call that asks for it, so a
//! cancellation can never overtake its request, and one task writes the queue front to back. A request knows whether it
//! began to leave: one that was still queued when it was given up, fenced off or cut off was *not sent*, and that is
//! known. Everything after its first byte is in doubt until its answer comes.
//!
//! Never decides what an answer means, never starts or ends a process. `client` asks; nobody else does.
//!
//! The queue is bounded, because a server may stop reading: a request beyond the bound is refused unsent, and a server
//! that makes us answer its own requests without reading the answers loses its connection.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::frame::{self, Answer, Incoming, Lines, MAX_FRAME_BYTES};
use super::text::excerpt;

/// Frames that may wait for a server that is not reading: each call in flight has two at most, its request and its
/// cancellation, so this is room for the answers to the server's own requests too.
const MAX_QUEUED_FRAMES: usize = 512;
/// Bytes that may wait for a server that is not reading: four arguments of the largest size.
const MAX_QUEUED_BYTES: usize = 4 * MAX_FRAME_BYTES;
/// How long a server that stopped reading may still be heard: an answer may be in the pipe already.
const LAST_WORDS: Duration = Duration::from_secs(1);
const READ_BYTES: usize = 64 * 1024;

/// What a request came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Answered(Answer),
    /// Known not to have left; says why.
    NotSent(String),
    /// Sent, and its time ran out. The cancellation is queued behind it.
    TimedOut,
    /// Sent, and the connection ended first; says why.
    Lost(String),
}

/// A handle on the wire; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct RawTransport {
    shared: Arc<Shared>,
}

/// Keeps the two tasks of a wire running; dropping it ends the wire at once.
#[derive(Debug)]
pub(crate) struct WireTasks {
    transport: RawTransport,
    writer: JoinHandle<()>,
    reader: JoinHandle<()>,
}

impl Drop for WireTasks {
    fn drop(&mut self) {
        self.transport.end("the connection was closed");
        self.writer.abort();
        self.reader.abort();
    }
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    wake_writer: Notify,
    /// The reason, once the wire has ended.
    ended: watch::Sender<Option<Arc<str>>>,
    tally: watch::Sender<Tally>,
}

/// What a server did that no request of ours accounts for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Answers that no request waited for: an unknown id, a second answer, or one after its request had ended.
    pub(crate) stray_answers: u64,
    /// `notifications/tools/list_changed`.
    pub(crate) list_changes: u64,
}

#[derive(Debug, Default)]
struct State {
    last_id: u64,
    queue: VecDeque<Outgoing>,
    queued_bytes: usize,
    waiting: HashMap<u64, Waiting>,
    /// Why nothing more can leave, while answers may still arrive.
    mute: Option<Arc<str>>,
    /// Close the server's input once the queue is empty.
    finishing: bool,
}

#[derive(Debug)]
struct Outgoing {
    bytes: Vec<u8>,
    request: Option<u64>,
    fence: Option<Instant>,
}

#[derive(Debug)]
struct Waiting {
    reply: oneshot::Sender<Outcome>,
    /// The writer took the frame: from here on it may have reached the server.
    left: bool,
}

enum Next {
    Write(Vec<u8>),
    Wait,
    CloseInput,
}

impl RawTransport {
    /// Starts the reader and the writer. Must be called within a runtime.
    pub(crate) fn start<R, W>(server: &str, input: W, output: R) -> (Self, WireTasks)
    where
        R: AsyncRead + Unpin + Send + 'static,
        W: AsyncWrite + Unpin + Send + 'static,
    {
        let shared = Arc::new(Shared {
            state: Mutex::new(State::default()),
            wake_writer: Notify::new(),
            ended: watch::Sender::new(None),
            tally: watch::Sender::new(Tally::default()),
        });
        let transport = Self { shared };
        let writer = tokio::spawn(write(transport.clone(), input));
        let reader = tokio::spawn(read(transport.clone(), output, server.to_owned()));
        (transport.clone(), WireTasks { transport, writer, reader })
    }

    /// Queues a request, in this call. With a fence, the request leaves only before that moment.
    ///
    /// # Errors
    /// Why nothing was queued: the wire has ended, or the server is not reading.
    pub(crate) fn request(
        &self,
        method: &'static str,
        params: &str,
        fence: Option<Instant>,
    ) -> Result<Request, String> {
        let mut state = self.lock();
        if let Some(why) = self.ended().or_else(|| state.mute.clone()) {
            return Err(why.to_string());
        }
        if state.finishing {
            return Err("the connection is closing".to_owned());
        }
        let id = state.last_id + 1;
        let bytes = frame::request(id, method, params);
        if !state.has_room(bytes.len()) {
            return Err("the server is not reading its input".to_owned());
        }
        state.last_id = id;
        let (reply, outcome) = oneshot::channel();
        state.waiting.insert(id, Waiting { reply, left: false });
        state.push(Outgoing { bytes, request: Some(id), fence });
        drop(state);
        self.shared.wake_writer.notify_one();
        Ok(Request {
            id,
            outcome,
            transport: self.clone(),
            cancellable: method != "initialize",
            settled: false,
        })
    }

    /// Queues a notification; silently nothing when the wire has ended.
    pub(crate) fn notify(&self, method: &str, params: &str) {
        self.queue(frame::notification(method, params));
    }

    /// Closes the server's input once everything queued has left.
    pub(crate) fn finish(&self) {
        self.lock().finishing = true;
        self.shared.wake_writer.notify_one();
    }

    /// Ends the wire: what never left is *not sent*, what left is *lost*. The first reason stays.
    pub(crate) fn end(&self, why: &str) {
        let why: Arc<str> = why.into();
        let mut state = self.lock();
        let first = self.shared.ended.send_if_modified(|ended| {
            let first = ended.is_none();
            ended.get_or_insert_with(|| why.clone());
            first
        });
        if !first {
            return;
        }
        state.drop_queue(&why);
        for (_, waiting) in state.waiting.drain() {
            waiting.reply.send(Outcome::Lost(why.to_string())).ok();
        }
        drop(state);
        self.shared.wake_writer.notify_one();
    }

    /// Waits for the end of the wire and returns its reason.
    pub(crate) async fn closed(&self) -> Arc<str> {
        let mut ended = self.shared.ended.subscribe();
        // The sender lives in `shared`, which outlives this call.
        let why = ended.wait_for(Option::is_some).await.ok().and_then(|ended| ended.clone());
        why.unwrap_or_else(|| "the connection was closed".into())
    }

    /// The reason, once the wire has ended.
    pub(crate) fn ended(&self) -> Option<Arc<str>> {
        self.shared.ended.borrow().clone()
    }

    pub(crate) fn tally(&self) -> Tally {
        *self.shared.tally.borrow()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that can panic runs under the lock, and the state is whole between any two statements.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a frame that nobody waits for; false when the server is not reading.
    fn queue(&self, bytes: Vec<u8>) -> bool {
        let mut state = self.lock();
        if self.ended().is_some() || state.mute.is_some() {
            return true;
        }
        let room = state.has_room(bytes.len());
        if room {
            state.push(Outgoing { bytes, request: None, fence: None });
        }
        drop(state);
        self.shared.wake_writer.notify_one();
        room
    }

    /// Takes the next frame, marking its request as having left; requests past their fence are refused here, at the
    /// last moment before their first byte.
    fn next_frame(&self, now: Instant) -> Next {
        let mut state = self.lock();
        while let Some(next) = state.pop() {
            let Some(id) = next.request else { return Next::Write(next.bytes) };
            if next.fence.is_some_and(|fence| now >= fence) {
                state.settle(id, Outcome::NotSent("its lease ran out before it could be sent".to_owned()));
                continue;
            }
            if let Some(waiting) = state.waiting.get_mut(&id) {
                waiting.left = true;
                return Next::Write(next.bytes);
            }
        }
        if state.finishing { Next::CloseInput } else { Next::Wait }
    }

    /// Nothing more can leave: what is still queued was never sent.
    fn mute(&self, why: &str) {
        let why: Arc<str> = why.into();
        let mut state = self.lock();
        state.drop_queue(&why);
        state.mute.get_or_insert(why);
    }

    /// Stops waiting for a request. One that is still queued never leaves, and the reason comes back; one that left is
    /// cancelled behind itself; one that has its outcome already keeps it.
    fn give_up(&self, id: u64, reason: &str, cancellable: bool) -> Option<String> {
        let mut state = self.lock();
        let waiting = state.waiting.remove(&id)?;
        if !waiting.left {
            state.withdraw(id);
            return Some("the server did not read its input in time".to_owned());
        }
        drop(state);
        if cancellable {
            let reason = frame::json_string(reason);
            // Without room for it the server is not reading, and would not have seen the cancellation either.
            self.notify("notifications/cancelled", &format!(r#"{{"requestId":{id},"reason":{reason}}}"#));
        }
        None
    }

    /// Acts on one message. An error ends the wire.
    fn deliver(&self, message: Incoming, server: &str) -> Result<(), String> {
        match message {
            Incoming::Answer { id, answer } => {
                if !self.lock().answer(id, answer) {
                    self.stray(server);
                }
            }
            Incoming::Unmatched => self.stray(server),
            Incoming::Request { id, method } => {
                let answer =
                    if method == "ping" { frame::empty_result(&id) } else { frame::method_not_found(&id) };
                if !self.queue(answer) {
                    return Err("the server sends requests and does not read the answers".to_owned());
                }
            }
            Incoming::Notification { method } if method == "notifications/tools/list_changed" => {
                self.shared.tally.send_modify(|tally| tally.list_changes += 1);
                tracing::info!(
                    server,
                    "the server says that its tools changed; its pins stay as they were checked"
                );
            }
            Incoming::Notification { .. } => {}
        }
        Ok(())
    }

    fn stray(&self, server: &str) {
        let mut first = false;
        self.shared.tally.send_modify(|tally| {
            tally.stray_answers += 1;
            first = tally.stray_answers == 1;
        });
        if first {
            tracing::warn!(server, "an answer that no request waits for; further ones are only counted");
        }
    }
}

impl State {
    fn has_room(&self, bytes: usize) -> bool {
        // One frame is always let in, however large: the door above bounds it.
        self.queue.is_empty()
            || (self.queue.len() < MAX_QUEUED_FRAMES && self.queued_bytes + bytes <= MAX_QUEUED_BYTES)
    }

    fn push(&mut self, outgoing: Outgoing) {
        self.queued_bytes += outgoing.bytes.len();
        self.queue.push_back(outgoing);
    }

    fn pop(&mut self) -> Option<Outgoing> {
        let next = self.queue.pop_front()?;
        self.queued_bytes -= next.bytes.len();
        Some(next)
    }

    fn settle(&mut self, id: u64, outcome: Outcome) {
        if let Some(waiting) = self.waiting.remove(&id) {
            waiting.reply.send(outcome).ok();
        }
    }

    /// Settles the request that an answer is for. An answer to a request that has not left yet is a guess at its id.
    fn answer(&mut self, id: u64, answer: Answer) -> bool {
        let expected = self.waiting.get(&id).is_some_and(|waiting| waiting.left);
        if expected {
            self.settle(id, Outcome::Answered(answer));
        }
        expected
    }

    fn withdraw(&mut self, id: u64) {
        if let Some(at) = self.queue.iter().position(|queued| queued.request == Some(id))
            && let Some(gone) = self.queue.remove(at)
        {
            self.queued_bytes -= gone.bytes.len();
        }
    }

    fn drop_queue(&mut self, why: &str) {
        while let Some(queued) = self.pop() {
            if let Some(id) = queued.request {
                self.settle(id, Outcome::NotSent(why.to_owned()));
            }
        }
    }
}

/// A request that waits. Dropping it gives it up, as running out of time does.
#[derive(Debug)]
pub(crate) struct Request {
    id: u64,
    outcome: oneshot::Receiver<Outcome>,
    transport: RawTransport,
    cancellable: bool,
    settled: bool,
}

impl Request {
    /// Waits until the answer, the end of the wire, or the deadline, whichever comes first.
    pub(crate) async fn until(mut self, deadline: Instant) -> Outcome {
        let waited = tokio::time::timeout_at(deadline, &mut self.outcome).await;
        self.settled = true;
        match waited {
            Ok(Ok(outcome)) => outcome,
            // The sender lives in the table and is used before it is dropped.
            Ok(Err(_)) => Outcome::Lost("the connection was closed".to_owned()),
            Err(_) => match self.transport.give_up(self.id, "timed out", self.cancellable) {
                Some(why) => Outcome::NotSent(why),
                // The answer may have won the race against the clock.
                None => self.outcome.try_recv().unwrap_or(Outcome::TimedOut),
            },
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if !self.settled {
            self.transport.give_up(self.id, "the caller is gone", self.cancellable);
        }
    }
}

async fn write<W: AsyncWrite + Unpin>(transport: RawTransport, mut input: W) {
    while transport.ended().is_none() {
        match transport.next_frame(Instant::now()) {
            Next::Write(bytes) => {
                let written = async {
                    input.write_all(&bytes).await?;
                    input.flush().await
                };
                if let Err(error) = written.await {
                    let why = format!("the server closed its input: {error}");
                    transport.mute(&why);
                    tokio::time::sleep(LAST_WORDS).await;
                    transport.end(&why);
                }
            }
            Next::Wait => transport.shared.wake_writer.notified().await,
            Next::CloseInput => return,
        }
    }
}

async fn read<R: AsyncRead + Unpin>(transport: RawTransport, mut output: R, server: String) {
    let mut lines = Lines::new(MAX_FRAME_BYTES);
    let mut chunk = vec![0; READ_BYTES];
    let why = loop {
        match output.read(&mut chunk).await {
            Ok(0) => {
                // A server may end without its last newline.
                let last = lines.rest().to_vec();
                read_line(&transport, &server, &last).ok();
                break "the server closed its output".to_owned();
            }
            Ok(count) => lines.push(&chunk[..count]),
            Err(error) => break format!("the server's output cannot be read: {error}"),
        }
        let read = loop {
            match lines.next_line() {
                Ok(Some(line)) => {
                    if let Err(why) = read_line(&transport, &server, line) {
                        break Err(why);
                    }
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error.to_string()),
            }
        };
        if let Err(why) = read {
            break why;
        }
    };
    transport.end(&why);
}

fn read_line(transport: &RawTransport, server: &str, line: &[u8]) -> Result<(), String> {
    let messages = frame::parse(line)
        .map_err(|error| format!("{error}; it begins {}", excerpt(&String::from_utf8_lossy(line), 100)))?;
    messages.into_iter().try_for_each(|message| transport.deliver(message, server))
}

#[cfg(test)]
#[path = "transport_tests.rs"]
mod tests;
