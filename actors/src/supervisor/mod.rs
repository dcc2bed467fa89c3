//! `Supervisor`: starts the children, restarts them, and gives up in the open.
//!
//! Owns one restart rule: exponential backoff with jitter, an intensity limit, then escalation. A child that never
//! escalates (a connection) stays at the longest backoff instead, so that one bad server can't end the others. It
//! asks nobody; the addresses that children publish are how the rest finds them.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ractor::{
    Actor, ActorCell, ActorProcessingErr, ActorRef, ActorStatus, RpcReplyPort, SpawnErr, SupervisionEvent,
};
use serde::Serialize;
use tokio::sync::watch;
use tokio::task::{self, AbortHandle};

use crate::address::{self, AskError};
use crate::clock::{monotonic, random};
use crate::faults::Failure;

/// Restarts within [`INTENSITY_WINDOW`] after which a child that escalates ends the tree.
pub const RESTARTS_MAX: usize = 10;

/// The window in which restarts are counted; a child that lived longer starts afresh.
pub const INTENSITY_WINDOW: Duration = Duration::from_secs(60);

/// The first wait before a restart.
pub const BACKOFF_MIN: Duration = Duration::from_millis(10);

/// The longest wait before a restart.
pub const BACKOFF_MAX: Duration = Duration::from_secs(30);

/// How long a child has to work off what waits when the tree stops, and one that is being started to come to something.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// How long one more child may take to start, which waits for nobody.
pub const ADD_TIMEOUT: Duration = Duration::from_secs(10);

/// Why nobody is started any more.
const STOPPING: &str = "the actors are being stopped";

/// The reason with which a child stops that was asked to end for good: it is not started again.
pub const CLOSED: &str = "closed";

type Starting = Pin<Box<dyn Future<Output = Result<ActorCell, NotStarted>> + Send>>;

/// What an actor's `pre_start` fails with when no restart can help: its process must end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Fatal(pub String);

/// Why a child did not start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct NotStarted {
    /// In words.
    pub why: String,
    /// Whether trying again can't help.
    pub fatal: bool,
}

/// A child and how it is started, again and again.
#[derive(Clone)]
pub struct ChildSpec {
    name: String,
    start: Arc<dyn Fn(ActorCell) -> Starting + Send + Sync>,
    escalates: bool,
}

impl fmt::Debug for ChildSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChildSpec").field("name", &self.name).finish_non_exhaustive()
    }
}

impl ChildSpec {
    /// A child that `make` describes anew at each start, published at `address`.
    pub fn new<A, F>(
        name: impl Into<String>,
        address: watch::Sender<Option<ActorRef<A::Msg>>>,
        make: F,
    ) -> ChildSpec
    where
        A: Actor,
        F: Fn() -> (A, A::Arguments) + Send + Sync + 'static,
    {
        let address = Arc::new(address);
        let start = move |supervisor: ActorCell| -> Starting {
            let (actor, arguments) = make();
            let address = Arc::clone(&address);
            Box::pin(async move {
                let spawned = Actor::spawn_linked(None, actor, arguments, supervisor).await;
                let (child, _running) = spawned.map_err(|error| not_started(&error))?;
                address.send_replace(Some(child.clone()));
                // Whoever finds a dead one learns so from the send; the cell empties here all the same, so that
                // finding waits for the next.
                let (cell, watched) = (child.get_cell(), Arc::clone(&address));
                tokio::spawn(async move {
                    if child.wait(None).await.is_ok() {
                        watched.send_if_modified(|now| {
                            let same = now.as_ref().is_some_and(|actor| actor.get_id() == child.get_id());
                            same && now.take().is_some()
                        });
                    }
                });
                Ok(cell)
            })
        };
        ChildSpec { name: name.into(), start: Arc::new(start), escalates: true }
    }

    /// The same child, which at the limit stays down at the longest backoff instead of ending the tree.
    #[must_use]
    pub fn never_escalates(mut self) -> ChildSpec {
        self.escalates = false;
        self
    }
}

fn not_started(error: &SpawnErr) -> NotStarted {
    match error {
        SpawnErr::StartupFailed(why) => {
            NotStarted { why: why.to_string(), fatal: why.downcast_ref::<Fatal>().is_some() }
        }
        SpawnErr::ActorAlreadyStarted | SpawnErr::ActorAlreadyRegistered(_) => {
            NotStarted { why: error.to_string(), fatal: false }
        }
    }
}

/// What the supervisor takes.
#[derive(Debug)]
pub enum Msg {
    /// A backoff has passed.
    Restart(usize),
    /// A start has come to something.
    Started(usize, Result<ActorCell, NotStarted>),
    /// Starts one more child; told why when it could not start.
    Add(Box<ChildSpec>, RpcReplyPort<Result<(), String>>),
    /// One more child has started in the task named, or not.
    Added(task::Id, Box<ChildSpec>, Result<ActorCell, String>, RpcReplyPort<Result<(), String>>),
    /// Works everything off and stops.
    Stop,
    /// A child has worked everything off.
    Drained(usize),
    /// Waits for no start any longer.
    GiveUp,
    /// Asks how the children fare.
    Observe(RpcReplyPort<Vec<ChildObservation>>),
    /// Ends it in the way named. Only in builds for tests.
    Fail(Failure),
}

/// Has `supervisor` start one more child.
///
/// # Errors
/// Why it did not start.
pub(crate) async fn add(supervisor: &ActorRef<Msg>, child: ChildSpec) -> Result<(), String> {
    let name = child.name.clone();
    let added = address::ask(supervisor, ADD_TIMEOUT, |reply| Msg::Add(Box::new(child), reply)).await;
    added.unwrap_or_else(|error| match error {
        AskError::Late => Err(format!("{name} did not start within {} s", ADD_TIMEOUT.as_secs())),
        AskError::Down | AskError::Lost => Err("the supervisor is gone".to_owned()),
    })
}

/// How a child fares.
#[derive(Debug, Clone, Serialize)]
pub struct ChildObservation {
    /// Its name.
    pub name: String,
    /// Whether it runs.
    pub running: bool,
    /// Restarts since the tree started.
    pub restarts: u64,
    /// Why it last ended.
    pub last_end: Option<String>,
}

/// The actor.
#[derive(Debug, Clone, Copy, Default)]
pub struct Supervisor;

/// What it knows.
#[derive(Debug)]
pub struct State {
    children: Vec<Child>,
    /// The starts of those that are being added.
    adding: Vec<AbortHandle>,
    stopping: bool,
}

#[derive(Debug)]
struct Child {
    spec: ChildSpec,
    life: Life,
    recent: VecDeque<Instant>,
    restarts: u64,
    last_end: Option<String>,
}

#[derive(Debug)]
enum Life {
    Starting(AbortHandle),
    Running(ActorCell),
    Draining,
    Down,
}

impl Actor for Supervisor {
    type Msg = Msg;
    type State = State;
    type Arguments = Vec<ChildSpec>;

    async fn pre_start(&self, me: ActorRef<Msg>, specs: Vec<ChildSpec>) -> Result<State, ActorProcessingErr> {
        let mut children = Vec::new();
        for spec in specs {
            let cell = (spec.start)(me.get_cell())
                .await
                .map_err(|e| StartError { child: spec.name.clone(), why: e.why })?;
            children.push(Child::started(spec, cell));
        }
        Ok(State { children, adding: Vec::new(), stopping: false })
    }

    async fn handle(
        &self,
        me: ActorRef<Msg>,
        message: Msg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Msg::Restart(index) => state.restart(&me, index),
            Msg::Started(index, started) => state.started(&me, index, started)?,
            Msg::Add(_, reply) if state.stopping => crate::answer(reply, Err(STOPPING.to_owned())),
            Msg::Add(spec, reply) => state.add(me, spec, reply),
            Msg::Added(task, spec, started, reply) => {
                state.adding.retain(|adding| adding.id() != task);
                let added = started.map(|cell| state.children.push(Child::started(*spec, cell)));
                crate::answer(reply, if state.stopping { Err(STOPPING.to_owned()) } else { added });
                state.go_on(&me)?;
            }
            Msg::Stop if state.stopping => {}
            Msg::Stop => {
                state.stopping = true;
                drop(me.send_after(DRAIN_TIMEOUT, || Msg::GiveUp));
                state.drain_next(&me);
            }
            Msg::Drained(index) => {
                state.children[index].life = Life::Down;
                state.drain_next(&me);
            }
            Msg::GiveUp => state.give_up(&me),
            Msg::Observe(reply) => crate::answer(reply, state.children.iter().map(Child::observe).collect()),
            Msg::Fail(failure) => failure.happen()?,
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        me: ActorRef<Msg>,
        event: SupervisionEvent,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        let mut for_good = false;
        let (cell, why) = match event {
            SupervisionEvent::ActorFailed(cell, error) => (cell, error.to_string()),
            SupervisionEvent::ActorTerminated(cell, _, reason) => {
                for_good = reason.as_deref() == Some(CLOSED);
                (cell, reason.unwrap_or_else(|| "stopped".to_owned()))
            }
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => return Ok(()),
        };
        let ended = state
            .children
            .iter()
            .position(|child| child.running().is_some_and(|running| running.get_id() == cell.get_id()));
        match ended {
            Some(index) if for_good || state.stopping => {
                let child = &mut state.children[index];
                (child.life, child.last_end) = (Life::Down, Some(why));
                Ok(())
            }
            Some(index) => state.ended(&me, index, why),
            None => Ok(()),
        }
    }
}

/// A child that could not be started when the tree was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("start {child}: {why}")]
pub struct StartError {
    /// Which.
    pub child: String,
    /// Why.
    pub why: String,
}

/// A child that could not be kept alive.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("keep {child} alive: it ended {} within a minute, last because of: {why}", counted(*times))]
pub struct Escalated {
    /// Which.
    pub child: String,
    /// How many times it ended.
    pub times: usize,
    /// Why it last ended.
    pub why: String,
}

impl State {
    fn ended(&mut self, me: &ActorRef<Msg>, index: usize, why: String) -> Result<(), ActorProcessingErr> {
        let child = &mut self.children[index];
        child.life = Life::Down;
        tracing::warn!(child = %child.spec.name, %why, "an actor ended; it is restarted");
        child.last_end = Some(why.clone());
        let now = monotonic();
        child.recent.retain(|at| now.saturating_duration_since(*at) < INTENSITY_WINDOW);
        child.recent.push_back(now);
        let times = child.recent.len();
        if times > RESTARTS_MAX && child.spec.escalates {
            return Err(child.escalated(why).into());
        }
        let wait = backoff(times);
        drop(me.send_after(wait, move || Msg::Restart(index)));
        Ok(())
    }

    /// Starts a child again, in a task: its start may take long, and the others end and start meanwhile.
    fn restart(&mut self, me: &ActorRef<Msg>, index: usize) {
        let child = &mut self.children[index];
        if self.stopping || !matches!(child.life, Life::Down) {
            return;
        }
        child.restarts += 1;
        let starting = (child.spec.start)(me.get_cell());
        let me = me.clone();
        let task = tokio::spawn(async move {
            if me.cast(Msg::Started(index, starting.await)).is_err() {
                tracing::debug!("a child was restarted as its supervisor ended");
            }
        });
        child.life = Life::Starting(task.abort_handle());
    }

    fn started(
        &mut self,
        me: &ActorRef<Msg>,
        index: usize,
        started: Result<ActorCell, NotStarted>,
    ) -> Result<(), ActorProcessingErr> {
        match started {
            Ok(cell) => {
                self.children[index].life = Life::Running(cell);
                self.go_on(me)
            }
            // Whoever is worked off is not killed for one that can't be started.
            Err(_) if self.stopping => {
                self.children[index].life = Life::Down;
                self.go_on(me)
            }
            Err(NotStarted { why, fatal: true }) => Err(self.children[index].escalated(why).into()),
            Err(NotStarted { why, fatal: false }) => self.ended(me, index, why),
        }
    }

    fn add(&mut self, me: ActorRef<Msg>, spec: Box<ChildSpec>, reply: RpcReplyPort<Result<(), String>>) {
        let starting = (spec.start)(me.get_cell());
        let task = tokio::spawn(async move {
            let added = starting.await.map_err(|error| error.why);
            if me.cast(Msg::Added(task::id(), spec, added, reply)).is_err() {
                tracing::debug!("a child started as its supervisor ended");
            }
        });
        self.adding.push(task.abort_handle());
    }

    /// Follows a start that is over. The child may have ended before its start was noted; its end was then not known for
    /// its.
    fn go_on(&mut self, me: &ActorRef<Msg>) -> Result<(), ActorProcessingErr> {
        if self.stopping {
            self.drain_next(me);
            return Ok(());
        }
        let dead = self
            .children
            .iter()
            .position(|child| child.running().is_some_and(|cell| cell.get_status() == ActorStatus::Stopped));
        match dead {
            Some(index) => self.ended(me, index, "it ended as it started".to_owned()),
            None => Ok(()),
        }
    }

    /// Works children off from the last to the first, each in its turn: whoever asks goes before whoever is asked. One
    /// that is being started is waited for, so that nothing of it outlives the tree, and because those before it in the
    /// turn may need it.
    fn drain_next(&mut self, me: &ActorRef<Msg>) {
        if !self.adding.is_empty() {
            return;
        }
        let Some(index) = self.children.iter().rposition(|child| !matches!(child.life, Life::Down)) else {
            return me.stop(None);
        };
        let child = &mut self.children[index];
        match std::mem::replace(&mut child.life, Life::Draining) {
            Life::Running(cell) => {
                let (me, name) = (me.clone(), child.spec.name.clone());
                tokio::spawn(async move {
                    drain(&name, cell).await;
                    // A supervisor that was ended meanwhile has ended the others too.
                    drop(me.cast(Msg::Drained(index)));
                });
            }
            waited_for @ (Life::Starting(_) | Life::Draining | Life::Down) => child.life = waited_for,
        }
    }

    /// Breaks off every start that is still under way.
    fn give_up(&mut self, me: &ActorRef<Msg>) {
        self.adding.drain(..).for_each(|start| start.abort());
        for child in &mut self.children {
            if let Life::Starting(start) = &child.life {
                tracing::warn!(child = %child.spec.name, "an actor did not start in time; its start is broken off");
                start.abort();
                child.life = Life::Down;
            }
        }
        self.drain_next(me);
    }
}

fn counted(times: usize) -> String {
    if times == 1 { "once".to_owned() } else { format!("{times} times") }
}

/// Has a child work off what waits for it and stop.
async fn drain(child: &str, cell: ActorCell) {
    if cell.drain_and_wait(Some(DRAIN_TIMEOUT)).await.is_err() {
        tracing::warn!(%child, "an actor did not finish in time; it is killed");
        cell.kill();
    }
}

impl Child {
    fn started(spec: ChildSpec, cell: ActorCell) -> Child {
        Child { spec, life: Life::Running(cell), recent: VecDeque::new(), restarts: 0, last_end: None }
    }

    fn running(&self) -> Option<&ActorCell> {
        match &self.life {
            Life::Running(cell) => Some(cell),
            Life::Starting(_) | Life::Draining | Life::Down => None,
        }
    }

    /// That the tree ends because of it, which is told here: whoever sees the tree end learns no reason.
    fn escalated(&self, why: String) -> Escalated {
        let escalated = Escalated { child: self.spec.name.clone(), times: self.recent.len(), why };
        tracing::error!(error = %escalated, "the actors end");
        escalated
    }

    fn observe(&self) -> ChildObservation {
        ChildObservation {
            name: self.spec.name.clone(),
            running: matches!(self.life, Life::Running(_) | Life::Draining),
            restarts: self.restarts,
            last_end: self.last_end.clone(),
        }
    }
}

/// Doubles from the shortest to the longest wait, give or take a half, so that children don't restart in step.
fn backoff(times: usize) -> Duration {
    let doublings = u32::try_from(times.saturating_sub(1)).unwrap_or(u32::MAX).min(16);
    let full = BACKOFF_MIN.saturating_mul(1 << doublings).min(BACKOFF_MAX);
    let jitter = f64::from(u16::from_be_bytes(random())) / f64::from(u16::MAX);
    full.mul_f64(0.5 + jitter / 2.0)
}

#[cfg(test)]
mod tests;
