//! `ApprovalWaiter`: who waits for which approval.
//!
//! Owns the list of those who wait, and one watcher for all of them. No decision is lost with it, because decisions
//! are rows: whoever waited asks again by id. While nobody waits, nothing runs.

pub mod watch;

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use holdpoint_core::approval::ApprovalStatus;
use holdpoint_core::ids::{ApprovalId, RunId};
use holdpoint_core::run::RunStatus;
use holdpoint_core::time::UnixNanos;
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort};
use serde::Serialize;

use self::watch::Watch;
use crate::address::{Address, AskError};
use crate::clock::{Clock, monotonic};
use crate::faults::Failure;
use crate::store::{ReadError, Reader, StoreClient};

/// How often decisions are looked for when nothing tells of them: a backstop, beside the watch of the log.
pub const POLL: Duration = Duration::from_millis(200);

/// Calls that may wait at one time, over all approvals.
pub const WAITERS_MAX: usize = 10_000;

/// What the waiter takes.
#[derive(Debug)]
pub enum Msg {
    /// Waits until the approval is decided or past its expiry, or its run waits no more.
    Watch {
        /// The run.
        run: RunId,
        /// The approval.
        approval: ApprovalId,
        /// Told when it is worth looking again.
        reply: RpcReplyPort<()>,
    },
    /// Something may have been decided.
    Look,
    /// These need no longer be waited for.
    Settled(Vec<ApprovalId>),
    /// Asks how it fares.
    Observe(RpcReplyPort<Observation>),
    /// Ends it in the way named. Only in builds for tests.
    Fail(Failure),
}

/// How the waiter fares.
#[derive(Debug, Clone, Serialize)]
pub struct Observation {
    /// Approvals waited for.
    pub approvals: usize,
    /// Calls that wait.
    pub waiters: usize,
}

/// The actor.
#[derive(Debug, Clone, Copy, Default)]
pub struct ApprovalWaiter;

/// What it needs, given again at each restart.
#[derive(Debug, Clone)]
pub struct Arguments {
    /// The store.
    pub store: StoreClient,
    /// The database file; its log is watched.
    pub database: PathBuf,
    /// The clock by which an undecided approval expires.
    pub wall: Arc<dyn Clock>,
}

/// What it knows.
pub struct State {
    arguments: Arguments,
    waiting: HashMap<ApprovalId, Waiting>,
    watcher: Option<Watch>,
    looking: bool,
    look_again: bool,
}

struct Waiting {
    run: RunId,
    ports: Vec<RpcReplyPort<()>>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("approvals", &self.waiting.len()).finish_non_exhaustive()
    }
}

impl Actor for ApprovalWaiter {
    type Msg = Msg;
    type State = State;
    type Arguments = Arguments;

    async fn pre_start(&self, _me: ActorRef<Msg>, arguments: Arguments) -> Result<State, ActorProcessingErr> {
        Ok(State { arguments, waiting: HashMap::new(), watcher: None, looking: false, look_again: false })
    }

    async fn handle(
        &self,
        me: ActorRef<Msg>,
        message: Msg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Msg::Watch { run, approval, reply } => state.watch(&me, run, approval, reply),
            Msg::Look => state.look(&me),
            Msg::Settled(approvals) => state.settled(&me, &approvals),
            Msg::Observe(reply) => {
                let waiters = state.waiting.values().map(|waiting| waiting.ports.len()).sum();
                crate::answer(reply, Observation { approvals: state.waiting.len(), waiters });
            }
            Msg::Fail(failure) => failure.happen()?,
        }
        Ok(())
    }
}

impl State {
    fn watch(&mut self, me: &ActorRef<Msg>, run: RunId, approval: ApprovalId, reply: RpcReplyPort<()>) {
        for waiting in self.waiting.values_mut() {
            waiting.ports.retain(|port| !port.is_closed());
        }
        self.waiting.retain(|_, waiting| !waiting.ports.is_empty());
        if self.waiting.values().map(|waiting| waiting.ports.len()).sum::<usize>() >= WAITERS_MAX {
            return crate::answer(reply, ());
        }
        self.waiting.entry(approval).or_insert_with(|| Waiting { run, ports: Vec::new() }).ports.push(reply);
        if self.watcher.is_none() {
            let wal = watch::log_of(&self.arguments.database);
            let me = me.clone();
            let watch = Watch::start(wal, POLL, move || me.cast(Msg::Look).is_ok());
            self.watcher =
                watch.inspect_err(|error| tracing::warn!(%error, "decisions can't be watched for")).ok();
        }
        // It may have been decided before anybody watched.
        self.look(me);
    }

    /// One look at a time: what changes during one is looked at after it.
    fn look(&mut self, me: &ActorRef<Msg>) {
        if self.looking {
            self.look_again = true;
            return;
        }
        self.waiting.retain(|_, waiting| waiting.ports.iter().any(|port| !port.is_closed()));
        if self.waiting.is_empty() {
            return self.stop_watching();
        }
        self.looking = true;
        let wanted: Vec<_> =
            self.waiting.iter().map(|(id, waiting)| (waiting.run.clone(), id.clone())).collect();
        let (store, me, now) = (self.arguments.store.clone(), me.clone(), self.arguments.wall.now());
        tokio::spawn(async move {
            let settled = decided(store, wanted, now).await;
            if me.cast(Msg::Settled(settled)).is_err() {
                tracing::debug!("the approval waiter ended during a look");
            }
        });
    }

    fn settled(&mut self, me: &ActorRef<Msg>, approvals: &[ApprovalId]) {
        self.looking = false;
        for approval in approvals {
            if let Some(waiting) = self.waiting.remove(approval) {
                waiting.ports.into_iter().for_each(|port| crate::answer(port, ()));
            }
        }
        if std::mem::take(&mut self.look_again) {
            self.look(me);
        } else if self.waiting.is_empty() {
            self.stop_watching();
        }
    }

    fn stop_watching(&mut self) {
        self.watcher = None;
    }
}

/// Whether a run still waits for its approval. A damaged one does not: whoever waits for it must look at it.
fn waits(reader: &Reader<'_>, run: &RunId) -> Result<bool, ReadError> {
    match reader.run(run) {
        Ok(run) => Ok(run.is_some_and(|run| run.status == RunStatus::WaitingForApproval)),
        Err(ReadError::DamagedRun { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Those of the wanted approvals that are no longer open. A failed read settles none: they are looked at again.
async fn decided(store: StoreClient, wanted: Vec<(RunId, ApprovalId)>, now: UnixNanos) -> Vec<ApprovalId> {
    let read = store
        .read(move |reader| {
            let mut settled = Vec::new();
            for (run, id) in wanted {
                let open = reader.approval(&run, &id)?.is_some_and(|approval| {
                    approval.status == ApprovalStatus::Pending && !approval.is_past_expiry(now)
                });
                // An operator's cancellation ends the run and leaves the approval as it is.
                if !(open && waits(reader, &run)?) {
                    settled.push(id);
                }
            }
            Ok(settled)
        })
        .await;
    read.unwrap_or_else(|error| {
        tracing::warn!(%error, "decisions could not be looked for; they are looked for again");
        Vec::new()
    })
}

/// Waits up to `within` for `approval` to be decided or to expire. Says whether it is worth looking again.
pub async fn wait(waiter: &Address<Msg>, run: &RunId, approval: &ApprovalId, within: Duration) -> bool {
    let until = monotonic() + within;
    loop {
        let left = until.saturating_duration_since(monotonic());
        if left.is_zero() {
            return false;
        }
        let (run, approval) = (run.clone(), approval.clone());
        match waiter.ask(left, move |reply| Msg::Watch { run, approval, reply }).await {
            Ok(()) => return true,
            Err(AskError::Late) => return false,
            // It died with the question, or is being restarted: nothing is lost, so ask again.
            Err(AskError::Lost | AskError::Down) => {
                tokio::time::sleep(Duration::from_millis(10).min(left)).await
            }
        }
    }
}
