//! One MCP server behind one actor: its process, its wire, its pins.
//!
//! `McpConnection` owns the life of a server: it connects, lists and checks, offers what was checked, and when the
//! server is lost it waits, longer each time, and does all of it again. It never escalates: a server that cannot be had
//! stays down and says so. It decides and spawns, and never waits inside a handler. The executor sends it calls through
//! a [`Door`]; the proxy asks it for its listing and its [`Observation`]; nobody else talks to it.
//!
//! It never decides whether a call may run, never reads what a result means, never repeats a call.
//!
//! Reading order: `server` (what an operator says), `contain`, `guard`, `process` and `reap` (the child), `frame` and
//! `transport` (the wire), `client` (the conversation), `session` (one life of all that), then this file.
//!
//! However this actor ends, dropping its state kills the server and all that it started, and every call that it took
//! is answered with what is known of it.
//!
//! Longer than the others by the messages that an actor's file has to hold.

use std::sync::Arc;
use std::time::Duration;

use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

mod backoff;
mod client;
mod contain;
mod door;
mod ending;
mod frame;
#[cfg_attr(not(target_os = "linux"), path = "guard_elsewhere.rs")]
mod guard;
mod observation;
mod offspring;
mod process;
mod reap;
mod server;
mod session;
mod text;
mod tool;
mod transport;
mod upstream;

/// Counts the messages in one line of a server's. Only for the campaign, which feeds it foreign bytes.
///
/// # Errors
/// Why the line holds none.
#[cfg(feature = "faults")]
pub fn messages_in(line: &[u8]) -> Result<usize, String> {
    frame::parse(line).map(|messages| messages.len()).map_err(|error| error.to_string())
}

pub use client::{ACCEPTED_VERSIONS, ASKED_VERSION, CLIENT_NAME};
pub use contain::{Containment, Held, expected as containment};
pub use door::{CallRequest, Door, MAX_CALLS_IN_FLIGHT};
pub use ending::CallEnding;
pub use frame::MAX_FRAME_BYTES;
pub use observation::{ConnectionState, Observation};
pub use process::STDERR_TAIL_BYTES;
pub use reap::{Finding, GroupLedger, GroupRecord, MemoryLedger, Reaped, reap};
pub use server::{DEFAULT_CONNECT_TIMEOUT, DEFAULT_MAX_CONTENT_BYTES, ServerSpec, SpecError};
pub use session::{Check, Loaded};
pub use tool::McpTool;
pub use upstream::{LoadError, Upstream, UpstreamSpec};

use ending::Reply;
use session::{Opening, Session};

/// The actor. Everything it knows is in its [`Arguments`] and in the server.
#[derive(Debug, Clone, Copy)]
pub struct McpConnection;

/// What a connection is started with, and again after it died.
#[derive(Clone)]
pub struct Arguments {
    /// The server, as the operator describes it.
    pub spec: ServerSpec,
    /// Names this process in the group's record: the proxy session.
    pub session: String,
    /// Where started process groups are written down.
    pub ledger: Arc<dyn GroupLedger>,
    /// Decides what of a listing is offered.
    pub check: Check,
}

impl std::fmt::Debug for Arguments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The specification holds variables, which may be secrets.
        f.debug_struct("Arguments").field("server", &self.spec.name).finish_non_exhaustive()
    }
}

/// What the mailbox takes.
#[derive(Debug)]
pub enum Msg {
    /// Call a tool. Made by [`Door::call`].
    Call(Box<QueuedCall>),
    /// Answer with what the server listed, or why it is not connected. While connecting, the answer waits for the end
    /// of that, which the connect timeout bounds.
    Tools(RpcReplyPort<Result<Arc<Loaded>, String>>),
    /// Answer with the state of things.
    Observe(RpcReplyPort<Observation>),
    /// Close the server politely, answer, and stop. Calls in flight may still be answered until it has ended.
    Close(RpcReplyPort<()>),
    /// News from the actor's own tasks.
    News(News),
    /// A call has waited for its server as long as it may.
    Impatient,
    /// Die, as a chaos test asks.
    #[cfg(feature = "faults")]
    Fault(Fault),
}

/// A way to end the actor from within. `kill` is the third, and needs no message.
#[cfg(feature = "faults")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The handler panics.
    Panic,
    /// The handler returns an error.
    Error,
}

/// A call in the mailbox, with the permit that bounds it and the promise to answer it.
#[derive(Debug)]
pub struct QueuedCall {
    request: CallRequest,
    reply: Reply,
    permit: OwnedSemaphorePermit,
}

/// How long a call waits for a server that is being connected again: a restart after a crash takes less, and a host
/// that waits longer for *nothing was executed* is not served better.
const RECONNECT_WAIT: Duration = Duration::from_secs(5);

/// A call that came while its server was being connected again.
#[derive(Debug)]
struct Waiting {
    call: QueuedCall,
    until: Instant,
    _alarm: Task,
}

/// What the actor's tasks tell it. Each names the attempt that it belongs to; news of an earlier one is dropped.
#[derive(Debug)]
pub struct News {
    attempt: u64,
    event: Event,
}

#[derive(Debug)]
enum Event {
    Opened(Box<Result<Session, String>>),
    Lost(String),
    RetryDue,
    Closed,
}

/// What the actor holds. Dropping it ends every task and kills the server's group.
#[derive(Debug)]
pub struct State {
    phase: Phase,
    /// Counts the attempts to connect; also tells late news from current.
    attempt: u64,
    /// Failures in a row, for the backoff.
    failures: u32,
    opening: Arc<OpeningDebug>,
    calls: JoinSet<()>,
    waiting_for_tools: Vec<RpcReplyPort<Result<Arc<Loaded>, String>>>,
    /// In the order in which they came; bounded by the door.
    waiting_calls: Vec<Waiting>,
    closing: Vec<RpcReplyPort<()>>,
    last_error: Option<String>,
    /// What earlier sessions counted.
    earlier: transport::Tally,
}

/// Gives the arguments of a session a `Debug` that shows no variable.
struct OpeningDebug(Opening);

impl std::fmt::Debug for OpeningDebug {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opening").field("server", &self.0.spec.name).finish_non_exhaustive()
    }
}

#[derive(Debug)]
enum Phase {
    Opening { _task: Task },
    Ready { session: Box<Session>, since: Instant, _watch: Task },
    Down { retry: Instant, _task: Task },
    Closing { _task: Task },
}

/// A task that ends with its owner.
#[derive(Debug)]
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Actor for McpConnection {
    type Msg = Msg;
    type State = State;
    type Arguments = Arguments;

    async fn pre_start(
        &self,
        myself: ActorRef<Msg>,
        arguments: Arguments,
    ) -> Result<State, ActorProcessingErr> {
        let Arguments { spec, session, ledger, check } = arguments;
        spec.validate()?;
        let opening = Arc::new(OpeningDebug(Opening { spec, label: session, ledger, check }));
        let phase = Phase::Opening { _task: open(&myself, 1, opening.clone()) };
        Ok(State {
            phase,
            attempt: 1,
            failures: 0,
            opening,
            calls: JoinSet::new(),
            waiting_for_tools: Vec::new(),
            waiting_calls: Vec::new(),
            closing: Vec::new(),
            last_error: None,
            earlier: transport::Tally::default(),
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<Msg>,
        message: Msg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        while state.calls.try_join_next().is_some() {}
        match message {
            Msg::Call(call) => state.call(&myself, *call),
            Msg::Impatient => state.refuse_waiting(Instant::now()),
            Msg::Tools(reply) => state.tools(reply),
            Msg::Observe(reply) => {
                // Whoever asked may have stopped waiting.
                reply.send(state.observe()).ok();
            }
            Msg::Close(reply) => state.close(&myself, reply),
            Msg::News(News { attempt, event }) if attempt == state.attempt => state.hear(&myself, event),
            // A session that comes too late is dropped here, and its process with it.
            Msg::News(_) => {}
            #[cfg(feature = "faults")]
            Msg::Fault(Fault::Panic) => std::panic::panic_any("a chaos test asked for a panic"),
            #[cfg(feature = "faults")]
            Msg::Fault(Fault::Error) => return Err("a chaos test asked for an error".into()),
        }
        Ok(())
    }
}

impl State {
    fn server(&self) -> &str {
        &self.opening.0.spec.name
    }

    fn call(&mut self, myself: &ActorRef<Msg>, call: QueuedCall) {
        if call.reply.caller_gone() {
            return;
        }
        let session = match &self.phase {
            // The news of a wire that has ended is on its way.
            Phase::Ready { session, .. } if session.has_lost_its_wire() => return self.wait(myself, call),
            Phase::Ready { session, .. } => session,
            Phase::Opening { .. } | Phase::Down { .. } => return self.wait(myself, call),
            Phase::Closing { .. } => {
                let ending = call.reply.name().not_sent("the connection is closing");
                return call.reply.answer(ending);
            }
        };
        let QueuedCall { request, mut reply, permit } = call;
        if !session.loaded.offered.contains(&request.tool) {
            let ending = reply.name().not_sent("no longer offered: it does not match its pin, or is gone");
            return reply.answer(ending);
        }
        let name = reply.name().clone();
        // Queued here and now, so that calls leave in the order in which they came.
        match session.client.call(name, &request.arguments, request.timeout, request.fence) {
            Err(ending) => reply.answer(ending),
            Ok(call) => {
                reply.handed_over();
                self.calls.spawn(async move {
                    reply.answer(call.ending().await);
                    drop(permit);
                });
            }
        }
    }

    /// Keeps a call for a server that may soon be back. Nothing of it has left.
    fn wait(&mut self, myself: &ActorRef<Msg>, call: QueuedCall) {
        let until = Instant::now() + RECONNECT_WAIT.min(call.request.timeout);
        let myself = myself.clone();
        let alarm = Task(tokio::spawn(async move {
            tokio::time::sleep_until(until).await;
            // An actor that has ended has answered already.
            myself.send_message(Msg::Impatient).ok();
        }));
        self.waiting_calls.push(Waiting { call, until, _alarm: alarm });
        if let Phase::Down { retry, .. } = &self.phase {
            let retry = *retry;
            self.refuse_waiting(retry);
        }
    }

    /// Refuses the calls that would have to wait past `moment`: the next that can be hoped for.
    fn refuse_waiting(&mut self, moment: Instant) {
        let why = match &self.last_error {
            Some(error) => format!("the server is not connected: {error}"),
            None => "the server is not connected yet".to_owned(),
        };
        for Waiting { call, .. } in self.waiting_calls.extract_if(.., |waiting| waiting.until <= moment) {
            let ending = call.reply.name().not_sent(&why);
            call.reply.answer(ending);
        }
    }

    fn tools(&mut self, reply: RpcReplyPort<Result<Arc<Loaded>, String>>) {
        let answer = match &self.phase {
            Phase::Opening { .. } => return self.waiting_for_tools.push(reply),
            Phase::Ready { session, .. } => Ok(session.loaded.clone()),
            Phase::Down { .. } => Err(self.last_error.clone().unwrap_or_default()),
            Phase::Closing { .. } => {
                Err(format!("mcp: server {:?}: the connection is closing", self.server()))
            }
        };
        reply.send(answer).ok();
    }

    fn hear(&mut self, myself: &ActorRef<Msg>, event: Event) {
        match event {
            Event::Opened(opened) => match *opened {
                Ok(session) => self.opened(myself, session),
                Err(error) => self.down(myself, error),
            },
            Event::Lost(why) => self.lost(myself, &why),
            Event::RetryDue => {
                self.attempt += 1;
                self.phase = Phase::Opening { _task: open(myself, self.attempt, self.opening.clone()) };
            }
            Event::Closed => {
                self.closing.drain(..).for_each(|reply| {
                    reply.send(()).ok();
                });
                myself.stop(Some(crate::supervisor::CLOSED.to_owned()));
            }
        }
    }

    fn opened(&mut self, myself: &ActorRef<Msg>, session: Session) {
        let loaded = session.loaded.clone();
        let (server, pid) = (session.client.server(), session.pid());
        tracing::info!(
            server,
            pid,
            held_by = session.held().by.describe(),
            version = loaded.protocol_version,
            tools = loaded.offered.len(),
            "connected"
        );
        let lost = session.lost();
        let watch = tell(myself, self.attempt, async move { Event::Lost(lost.await) });
        self.phase = Phase::Ready { session: Box::new(session), since: Instant::now(), _watch: watch };
        self.answer_waiting(&Ok(loaded));
        for Waiting { call, .. } in std::mem::take(&mut self.waiting_calls) {
            self.call(myself, call);
        }
    }

    fn lost(&mut self, myself: &ActorRef<Msg>, why: &str) {
        let (server, mut tail) = (self.server().to_owned(), String::new());
        if let Phase::Ready { session, since, .. } = &self.phase {
            tail = session.stderr_tail();
            let tally = session.client.transport().tally();
            self.earlier.stray_answers += tally.stray_answers;
            self.earlier.list_changes += tally.list_changes;
            if since.elapsed() >= backoff::STABLE {
                self.failures = 0;
            }
        }
        self.down(myself, format!("mcp: server {server:?}: {}{tail}", text::visible(why, 1000)));
    }

    /// Notes why, and tries again later. Replacing the phase drops the session, which kills what is left of the server.
    fn down(&mut self, myself: &ActorRef<Msg>, error: String) {
        self.failures = self.failures.saturating_add(1);
        let wait = backoff::wait(self.failures, dice());
        let (server, failures) = (self.server(), self.failures);
        tracing::warn!(server, failures, wait_ms = wait.as_millis(), error, "the server is down");
        let task = tell(myself, self.attempt, async move {
            tokio::time::sleep(wait).await;
            Event::RetryDue
        });
        self.phase = Phase::Down { retry: Instant::now() + wait, _task: task };
        self.answer_waiting(&Err(error.clone()));
        self.last_error = Some(error);
        self.refuse_waiting(Instant::now() + wait);
    }

    fn close(&mut self, myself: &ActorRef<Msg>, reply: RpcReplyPort<()>) {
        self.closing.push(reply);
        if matches!(self.phase, Phase::Closing { .. }) {
            return;
        }
        self.attempt += 1;
        // Anything else than a session is dropped: an attempt to connect is aborted and its process killed.
        let (start, started) = tokio::sync::oneshot::channel::<Session>();
        let task = tell(myself, self.attempt, async move {
            if let Ok(session) = started.await {
                session.close().await;
            }
            Event::Closed
        });
        let before = std::mem::replace(&mut self.phase, Phase::Closing { _task: task });
        if let Phase::Ready { session, .. } = before {
            start.send(*session).ok();
        }
        let error = format!("mcp: server {:?}: the connection is closing", self.server());
        self.answer_waiting(&Err(error));
        for Waiting { call, .. } in self.waiting_calls.drain(..) {
            let ending = call.reply.name().not_sent("the connection is closing");
            call.reply.answer(ending);
        }
    }

    fn answer_waiting(&mut self, answer: &Result<Arc<Loaded>, String>) {
        for reply in self.waiting_for_tools.drain(..) {
            reply.send(answer.clone()).ok();
        }
    }

    fn observe(&self) -> Observation {
        let mut seen = Observation {
            server: self.server().to_owned(),
            state: ConnectionState::Opening,
            pid: None,
            held_by: None,
            held_because: None,
            restarts: 0,
            failures: self.failures,
            next_try_ms: None,
            in_flight: self.calls.len(),
            protocol_version: None,
            offered: 0,
            last_error: self.last_error.clone(),
            stray_answers: self.earlier.stray_answers,
            list_changes: self.earlier.list_changes,
        };
        seen.restarts = self.attempt - 1;
        match &self.phase {
            Phase::Opening { .. } => {}
            Phase::Closing { .. } => seen.state = ConnectionState::Closing,
            Phase::Down { retry, .. } => {
                seen.state = ConnectionState::Down;
                let wait = retry.saturating_duration_since(Instant::now());
                seen.next_try_ms = u64::try_from(wait.as_millis()).ok();
            }
            Phase::Ready { session, .. } => {
                let tally = session.client.transport().tally();
                seen.state = ConnectionState::Ready;
                seen.pid = Some(session.pid());
                seen.held_by = Some(session.held().by);
                seen.held_because.clone_from(&session.held().instead_of);
                seen.protocol_version = Some(session.loaded.protocol_version.clone());
                seen.offered = session.loaded.offered.len();
                seen.stray_answers += tally.stray_answers;
                seen.list_changes += tally.list_changes;
            }
        }
        seen
    }
}

fn open(myself: &ActorRef<Msg>, attempt: u64, opening: Arc<OpeningDebug>) -> Task {
    tell(myself, attempt, async move { Event::Opened(Box::new(opening.0.open().await)) })
}

/// Spawns a task whose result comes back as news of this attempt.
fn tell(myself: &ActorRef<Msg>, attempt: u64, work: impl Future<Output = Event> + Send + 'static) -> Task {
    let myself = myself.clone();
    Task(tokio::spawn(async move {
        let event = work.await;
        // An actor that has ended wants no news; what the news holds is dropped with it.
        myself.send_message(Msg::News(News { attempt, event })).ok();
    }))
}

/// A random number for the jitter. Without randomness every wait is the longest.
fn dice() -> u32 {
    getrandom::u32().unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
