//! `LeaseKeeper`: renews the leases of live sessions, and has the runs of lost ones recovered.
//!
//! Owns the deadlines of runs held by live sessions. A session registers in [`LiveSessions`], which outlives the actor:
//! a restarted keeper asks it who is there, and who has gone meanwhile. A renewal that is refused loses the fence, and
//! the session stops before its next effect; one that merely fails is tried again, and the fence closes by itself when
//! the time runs out.

mod fence;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use holdpoint_core::ids::{LeaseOwner, RunId};
use holdpoint_core::ledger;
use holdpoint_core::transition::LeaseTerms;
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort};
use serde::Serialize;

pub use fence::Fence;

use crate::address::Address;
use crate::clock::lock;
use crate::faults::Failure;
use crate::faults::process::{self, Broken};
use crate::store::{ApplyError, Lane, StoreClient};

/// The shortest lease that can be kept: a third of it must leave time for a commit.
pub const TTL_MIN: Duration = Duration::from_secs(3);

/// The sessions that live in this process, by their lease's owner.
#[derive(Debug, Clone)]
pub struct LiveSessions {
    sessions: Arc<Mutex<Sessions>>,
    keeper: Address<Msg>,
}

#[derive(Debug, Default)]
struct Sessions {
    live: HashMap<LeaseOwner, Live>,
    /// Gone without giving their lease up, and not taken notice of yet.
    lost: Vec<(LeaseOwner, Live)>,
}

#[derive(Debug, Clone)]
struct Live {
    run: RunId,
    ttl: Duration,
    fence: Fence,
    recover: Arc<dyn Recover>,
}

impl LiveSessions {
    /// None yet. Whoever is found at `keeper` is told of changes.
    pub fn new(keeper: Address<Msg>) -> LiveSessions {
        LiveSessions { sessions: Arc::default(), keeper }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        lock(&self.sessions).live.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn due(&self) -> Vec<(RunId, LeaseTerms, Fence)> {
        lock(&self.sessions)
            .live
            .iter()
            .filter(|(_, live)| live.fence.age() >= live.ttl / 3)
            .map(|(owner, live)| {
                (live.run.clone(), LeaseTerms { owner: owner.clone(), ttl: live.ttl }, live.fence.clone())
            })
            .collect()
    }
}

/// A session's hold on its run. Dropped unreleased, it has the run recovered.
#[derive(Debug)]
pub struct LeaseGuard {
    owner: LeaseOwner,
    fence: Fence,
    sessions: LiveSessions,
}

impl LeaseGuard {
    /// Registers a session that has just taken the lease of `run`, stamped at `stamped_at`. Should it be lost,
    /// `recover` looks after the run.
    pub fn hold(
        run: RunId,
        terms: &LeaseTerms,
        stamped_at: std::time::Instant,
        recover: Arc<dyn Recover>,
        sessions: LiveSessions,
    ) -> LeaseGuard {
        let (owner, fence) = (terms.owner.clone(), Fence::stamped(stamped_at, terms.ttl));
        let live = Live { run, ttl: terms.ttl, fence: fence.clone(), recover };
        lock(&sessions.sessions).live.insert(owner.clone(), live);
        sessions.keeper.tell(Msg::Wake);
        LeaseGuard { owner, fence, sessions }
    }

    /// What must hold before an effect leaves.
    pub fn fence(&self) -> &Fence {
        &self.fence
    }

    /// Forgets the hold: the run was paused, ended or given up in a commit.
    pub fn release(&mut self) {
        lock(&self.sessions.sessions).live.remove(&self.owner);
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        let mut sessions = lock(&self.sessions.sessions);
        // One that was released is not there any more.
        if let Some(live) = sessions.live.remove(&self.owner) {
            // Left where the next keeper finds it, should this one be down.
            sessions.lost.push((self.owner.clone(), live));
            drop(sessions);
            self.sessions.keeper.tell(Msg::Wake);
        }
    }
}

/// What the keeper takes.
#[derive(Debug)]
pub enum Msg {
    /// A session has taken a lease, or is gone and has not given it up.
    Wake,
    /// It is time to renew.
    Tick,
    /// Asks how it fares.
    Observe(RpcReplyPort<Observation>),
    /// Ends it in the way named. Only in builds for tests.
    Fail(Failure),
}

/// How the keeper fares.
#[derive(Debug, Clone, Serialize)]
pub struct Observation {
    /// Leases held by live sessions.
    pub held: usize,
    /// Renewals since it started.
    pub renewed: u64,
    /// Lost sessions since it started.
    pub lost: u64,
}

/// Recovers the run of a session that is gone, in a task of its own.
pub trait Recover: fmt::Debug + Send + Sync + 'static {
    /// Starts the recovery of `run`, whose lease `gone` holds in vain.
    fn recover(&self, run: RunId, gone: LeaseOwner);
}

/// The actor.
#[derive(Debug, Clone, Copy, Default)]
pub struct LeaseKeeper;

/// What it needs, given again at each restart.
#[derive(Clone)]
pub struct Arguments {
    /// The sessions of this process.
    pub sessions: LiveSessions,
    /// The store.
    pub store: StoreClient,
}

impl fmt::Debug for Arguments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arguments").field("sessions", &self.sessions.len()).finish_non_exhaustive()
    }
}

/// What it knows.
#[derive(Debug)]
pub struct State {
    arguments: Arguments,
    ticking: bool,
    renewed: u64,
    lost: u64,
}

impl Actor for LeaseKeeper {
    type Msg = Msg;
    type State = State;
    type Arguments = Arguments;

    async fn pre_start(&self, me: ActorRef<Msg>, arguments: Arguments) -> Result<State, ActorProcessingErr> {
        let mut state = State { arguments, ticking: false, renewed: 0, lost: 0 };
        state.recover_lost();
        state.arm(&me);
        Ok(state)
    }

    async fn handle(
        &self,
        me: ActorRef<Msg>,
        message: Msg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Msg::Wake => {
                state.recover_lost();
                state.arm(&me);
            }
            Msg::Tick => {
                state.ticking = false;
                state.renew_due();
                state.arm(&me);
            }
            Msg::Observe(reply) => {
                let held = state.arguments.sessions.len();
                crate::answer(reply, Observation { held, renewed: state.renewed, lost: state.lost });
            }
            Msg::Fail(failure) => failure.happen()?,
        }
        Ok(())
    }
}

impl State {
    fn recover_lost(&mut self) {
        let lost = std::mem::take(&mut lock(&self.arguments.sessions.sessions).lost);
        for (owner, Live { run, recover, .. }) in lost {
            self.lost += 1;
            tracing::warn!(%run, "a session was lost; its run is recovered");
            recover.recover(run, owner);
        }
    }

    /// Ticks only while something is held: nothing runs when nothing is held.
    fn arm(&mut self, me: &ActorRef<Msg>) {
        if self.ticking {
            return;
        }
        let shortest = lock(&self.arguments.sessions.sessions).live.values().map(|live| live.ttl).min();
        if let Some(ttl) = shortest {
            self.ticking = true;
            // Six looks in a lifetime: a lease older than a third of it is renewed at the next look, so before half.
            drop(me.send_after(ttl / 6, || Msg::Tick));
        }
    }

    fn renew_due(&mut self) {
        let due = self.arguments.sessions.due().into_iter();
        for (run, terms, fence) in due.filter(|_| !process::is(Broken::LeaseNotRenewed)) {
            self.renewed += 1;
            let store = self.arguments.store.clone();
            tokio::spawn(async move {
                let renewed = store.apply(Lane::Outcome, ledger::renew(run.clone(), terms)).await;
                match renewed {
                    Ok(applied) => fence.restamp(applied.stamped_at),
                    Err(ApplyError::Refused(refusal)) => {
                        tracing::warn!(%run, %refusal, "a lease is lost");
                        fence.lose();
                    }
                    Err(error @ (ApplyError::NotApplied(_) | ApplyError::InDoubt)) => {
                        tracing::warn!(%run, %error, "a lease could not be renewed; it is tried again");
                    }
                }
            });
        }
    }
}
