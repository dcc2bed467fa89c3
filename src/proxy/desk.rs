//! The desk: where a host's calls come in once the tools are known.
//!
//! Owns what is offered and what every call shares: the gate, the operator's times, the end. It answers the status
//! tool itself, hands every other call to its story (`call`), and recovers what an earlier process left behind.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use holdpoint_actors::clock::{Mint, wall};
use holdpoint_actors::executor::Tool;
use holdpoint_actors::faults::process::{self, Broken};
use holdpoint_actors::session::{Attached, Gate, GateError, GateSpec, Observer, Pace, SessionError};
use holdpoint_actors::store::{Depth, Lane, ReadError, Reader, Seen};
use holdpoint_actors::tree::Tree;
use holdpoint_core::across_calls::{Asked, IndexWrite, Upstreams};
use holdpoint_core::attempt::Upstream;
use holdpoint_core::event::{Event, EventKind};
use holdpoint_core::ids::{RequestKey, RunId, SessionName};
use holdpoint_core::policy::Outcome;
use holdpoint_core::run::Limits;
use holdpoint_core::time::UnixNanos;
use holdpoint_core::transition::{Durability, Transition};
use serde::Deserialize;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::answer::{Answer, Unavailable};
use super::call::{Call, Told, finish_recovered};
use super::front::{CallAnswer, Calls, HostCall, ListError};
use super::gated::{Executing, GatePolicy, GateReconcile, Reruns};
use super::hold::Waiter;
use super::journal::{self, Journal};
use super::met::Met;
use super::policy::ProxyPolicy;
use super::status;

/// How long after a lease's end it is looked at again: the clocks of two processes need not agree to the microsecond.
const LEASE_MARGIN: Duration = Duration::from_millis(50);

/// Runs that are recovered in one transaction: each is some fifteen kibibytes until then, and there are two at a time.
const TOGETHER_MAX: usize = 1_024;

/// Recovered runs that are ended at one time. They share the door with calls, which find places left.
const RECOVERING_MAX: usize = 128;

/// What a desk is made of.
pub(super) struct DeskSpec {
    pub(super) session: SessionName,
    pub(super) database: PathBuf,
    pub(super) policy: ProxyPolicy,
    /// The tools, in the order in which they are offered.
    pub(super) tools: Vec<Arc<dyn Tool>>,
    /// How long a finished request of a tool speaks for an identical one, by the tool's registered name.
    pub(super) windows: HashMap<String, Duration>,
    pub(super) limits: Limits,
    pub(super) hold: Duration,
    pub(super) waiter: Arc<dyn Waiter>,
    pub(super) max_pending: usize,
    pub(super) status_tool: String,
    pub(super) lease_ttl: Option<Duration>,
    pub(super) clock: Arc<dyn holdpoint_actors::clock::Clock>,
    pub(super) mint: Arc<dyn Mint>,
    pub(super) journal: Arc<dyn Journal>,
}

/// A tool that is offered.
#[derive(Debug)]
pub(super) struct Offered {
    pub(super) upstream: Upstream,
    pub(super) window: Duration,
    pub(super) timeout: Duration,
    outcome: Outcome,
    listed: String,
}

/// Everything that calls share.
pub(super) struct Desk {
    pub(super) gate: Gate,
    pub(super) tree: Tree,
    pub(super) reruns: Reruns,
    pub(super) executing: Executing,
    pub(super) limits: Limits,
    pub(super) hold: Duration,
    pub(super) waiter: Arc<dyn Waiter>,
    pub(super) journal: Arc<dyn Journal>,
    session: SessionName,
    max_pending: usize,
    status_tool: String,
    mint: Arc<dyn Mint>,
    order: Vec<Arc<Offered>>,
    offered: HashMap<String, Arc<Offered>>,
    upstreams: Arc<Upstreams>,
    stopping: watch::Sender<bool>,
    met: Mutex<Met>,
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desk")
            .field("session", &self.session)
            .field("tools", &self.order.len())
            .finish_non_exhaustive()
    }
}

impl Desk {
    /// Opens the desk over a tree whose policy is `policy`.
    ///
    /// # Errors
    /// A tool that the gate refuses.
    pub(super) fn open(tree: Tree, policy: &GatePolicy, spec: DeskSpec) -> Result<Arc<Desk>, GateError> {
        let proxy_policy = Arc::new(spec.policy);
        policy.load(Arc::clone(&proxy_policy), tree.store.clone());
        let specs = spec.tools.iter().map(|tool| tool.spec());
        let reconcile = GateReconcile {
            policy: Arc::clone(&proxy_policy),
            specs: specs.map(|spec| (spec.name.clone(), spec)).collect(),
        };
        let hints = Hints { journal: Arc::clone(&spec.journal), database: spec.database };
        let mut gate = GateSpec::new(Arc::new(policy.clone()), spec.tools.clone());
        gate.reconcile = Some(Arc::new(reconcile));
        gate.observer = Some(Arc::new(hints));
        gate.clock = spec.clock;
        gate.mint = Arc::clone(&spec.mint);
        gate.lease_label = format!("holdpoint-proxy:{}", spec.session);
        if let Some(ttl) = spec.lease_ttl {
            gate.lease_ttl = ttl;
        }
        let gate = Gate::new(tree.clone(), gate)?;
        let mut order = Vec::with_capacity(spec.tools.len());
        for tool in &spec.tools {
            order.extend(offer(&**tool, &proxy_policy, &spec.windows));
        }
        let upstreams =
            order.iter().map(|tool| (tool.upstream.name.clone(), tool.upstream.clone())).collect();
        Ok(Arc::new(Desk {
            gate,
            tree,
            reruns: policy.reruns(),
            executing: Executing::default(),
            limits: spec.limits,
            hold: spec.hold,
            waiter: spec.waiter,
            journal: spec.journal,
            session: spec.session,
            max_pending: spec.max_pending,
            status_tool: spec.status_tool,
            mint: spec.mint,
            offered: order.iter().map(|tool| (tool.upstream.name.clone(), Arc::clone(tool))).collect(),
            order,
            upstreams: Arc::new(upstreams),
            stopping: watch::channel(false).0,
            met: Mutex::default(),
        }))
    }

    /// A call of a tool, as it is asked now.
    pub(super) fn asked(&self, tool: &Offered, key: Option<RequestKey>) -> Asked {
        Asked {
            session: self.session.clone(),
            key,
            tool: tool.upstream.name.clone(),
            class: tool.upstream.class,
            window: if process::is(Broken::WindowIgnored) { Duration::ZERO } else { tool.window },
            outcome: tool.outcome,
            max_pending: self.max_pending,
            tools: Arc::clone(&self.upstreams),
            now: self.gate.now(),
            wall: wall(),
        }
    }

    /// Whether this process meets the request for the first time, as far as it remembers.
    pub(super) fn is_first(&self, key: &RequestKey) -> bool {
        self.met.lock().unwrap_or_else(PoisonError::into_inner).is_first(key)
    }

    /// What the rules are shown of a call.
    pub(super) async fn view(&self, asked: &Asked, depth: Depth) -> Result<Seen, Unavailable> {
        if asked.key.is_none() {
            return Ok(Seen::default());
        }
        let asked = asked.clone();
        self.read(move |reader| reader.call_view(&asked, depth)).await
    }

    /// Reads the record.
    pub(super) async fn read<T, F>(&self, read: F) -> Result<T, Unavailable>
    where
        T: Send + 'static,
        F: FnOnce(&Reader<'_>) -> Result<T, ReadError> + Send + 'static,
    {
        self.tree.store.read(read).await.map_err(|error| {
            self.journal.line(&format!("error: {error}"));
            Unavailable::Records
        })
    }

    /// Lets the index cache facts that were noticed. Nothing waits for it, and nothing is lost when it fails.
    pub(super) fn settle(&self, settles: Vec<IndexWrite>) {
        let Some(run) = settles.iter().find_map(run_of) else { return };
        let mut transition = Transition::of(run, Durability::Written);
        transition.index = settles;
        let store = self.tree.store.clone();
        tokio::spawn(async move {
            if let Err(error) = store.apply(Lane::Outcome, transition).await {
                tracing::debug!(%error, "the index was not brought up to date; it is read again");
            }
        });
    }

    /// A new run id: the session and sixteen hex digits. One that is taken after all is refused, and the call decided again.
    pub(super) fn new_run_id(&self) -> RunId {
        RunId::from(format!("{}.{}", self.session, self.mint.short_id()))
    }

    /// Whether the end has begun.
    pub(super) fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    /// Resolves when the end has begun.
    pub(super) async fn stopping(&self) {
        let mut stopping = self.stopping.subscribe();
        if stopping.wait_for(|stopping| *stopping).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Takes over a run that was left behind: it pauses for a person, or it holds nothing to execute and is ended.
    ///
    /// # Errors
    /// Why it could not be taken over; somebody else may hold it.
    pub(super) async fn recover(&self, run: &RunId) -> Result<(), SessionError> {
        process::reach("recover.before");
        let attached = self.gate.attach_with(run.clone(), Pace::Effects).await?;
        self.settle_recovered(run, attached).await
    }

    /// Ends what is left of a run that was taken over.
    async fn settle_recovered(&self, run: &RunId, attached: Attached) -> Result<(), SessionError> {
        match attached {
            Attached::Pending(_, _) => {
                self.journal.line(&format!(
                    "run {run}: a call was cut off while it executed; its outcome is unknown"
                ));
            }
            Attached::Open(session) => finish_recovered(&session).await?,
            Attached::Allowed(session, _) | Attached::Denied(session, _) => session.close().await,
            Attached::Ended(_) => {}
        }
        Ok(())
    }

    /// Recovers the runs of this session that an earlier process left running: those whose lease has run out at once,
    /// the others when it does. A run whose tool is not offered is left alone.
    pub(super) async fn recover_left_behind(self: Arc<Self>) {
        let mut waited_for: Option<HashSet<RunId>> = None;
        loop {
            let left = match self.running().await {
                Ok(left) if !process::is(Broken::NothingRecovered) => left,
                Ok(_) | Err(_) => return,
            };
            let still: Vec<_> = match &waited_for {
                None => left,
                Some(runs) => left.into_iter().filter(|(run, _)| runs.contains(run)).collect(),
            };
            let now = wall();
            let (mut abandoned, held): (Vec<_>, Vec<_>) =
                still.into_iter().partition(|(_, until)| *until <= now);
            if process::is(Broken::FirstRecovered) {
                abandoned.truncate(1);
            }
            self.recover_together(&abandoned.into_iter().map(|(run, _)| run).collect::<Vec<_>>()).await;
            let Some(next) = held.iter().map(|(_, until)| *until).min() else { return };
            waited_for = Some(held.into_iter().map(|(run, _)| run).collect());
            let millis = u64::try_from(next.millis_since(now)).unwrap_or(0);
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(millis) + LEASE_MARGIN) => {}
                () = self.stopping() => return,
            }
        }
    }

    /// Recovers many runs, so many in one transaction. While some are written, the next are read and judged.
    async fn recover_together(self: &Arc<Self>, runs: &[RunId]) {
        let mut recovering = JoinSet::new();
        for some in runs.chunks(TOGETHER_MAX) {
            process::reach("recover.before");
            if recovering.len() >= 2 {
                recovering.join_next().await;
            }
            recovering.spawn(Arc::clone(self).recover_some(some.to_vec()));
        }
        while recovering.join_next().await.is_some() {}
    }

    /// Recovers runs in one transaction. Those that hold nothing to execute are then ended, side by side.
    async fn recover_some(self: Arc<Self>, runs: Vec<RunId>) {
        let mut ending = JoinSet::new();
        for (run, attached) in self.gate.recover(runs).await {
            if ending.len() >= RECOVERING_MAX {
                ending.join_next().await;
            }
            let desk = Arc::clone(&self);
            ending.spawn(async move {
                let recovered = match attached {
                    Ok(attached) => desk.settle_recovered(&run, attached).await,
                    Err(error) => Err(error),
                };
                if let Err(error) = recovered {
                    tracing::warn!(%run, %error, "a run that was left behind was not recovered; its next call does it");
                }
            });
        }
        while ending.join_next().await.is_some() {}
    }

    /// The session's running calls of tools that are offered, and until when each is held.
    async fn running(&self) -> Result<Vec<(RunId, UnixNanos)>, Unavailable> {
        let (session, tools, now) = (self.session.clone(), Arc::clone(&self.upstreams), self.gate.now());
        let (calls, settles) = self.read(move |reader| reader.running_calls(&session, &tools, now)).await?;
        self.settle(settles);
        let offered = calls.into_iter().filter(|call| self.offered.contains_key(&call.tool));
        Ok(offered.map(|call| (call.run, call.until.unwrap_or(UnixNanos::from_nanos(i64::MIN)))).collect())
    }

    async fn status(&self, arguments: Option<&[u8]>) -> Answer {
        let Ok(about) = status::asked_about(arguments) else {
            return Answer::Invalid { reason: status::ARGUMENTS.to_owned() };
        };
        let now = self.gate.now();
        let (session, since) = (self.session.clone(), now.minus(status::LOOK_BACK));
        let read = self.read(move |reader| reader.recent_calls(&session, since, status::CALLS_MAX)).await;
        let Ok(calls) = read else { return Answer::Unavailable(Unavailable::Status) };
        let session = status::Session { calls: &calls, tools: &self.upstreams, now };
        Answer::GateStatus(about.map_or_else(|| session.overview(), |id| session.about(&id)))
    }

    /// What a host is told of the tools, in the order in which they are offered, the status tool last.
    pub(super) fn listing(&self) -> Vec<String> {
        let status = listed(&self.status_tool, status::DESCRIPTION, status::INPUT_SCHEMA);
        self.order.iter().map(|tool| tool.listed.clone()).chain([status]).collect()
    }

    /// Answers a call.
    pub(super) async fn take(self: &Arc<Self>, call: HostCall) -> CallAnswer {
        if self.is_stopping() {
            return CallAnswer::ShuttingDown;
        }
        if call.name == self.status_tool {
            return CallAnswer::Result(self.status(call.arguments.as_deref()).await.to_result());
        }
        let Some(tool) = self.offered.get(&call.name) else { return CallAnswer::NoSuchTool };
        let told = Call::new(Arc::clone(self), Arc::clone(tool), call).answer().await;
        CallAnswer::Result(match told {
            Told::Answer(answer) => answer.to_result(),
            Told::Result(result) => result,
        })
    }

    /// Begins the end.
    pub(super) fn begin_end(&self) {
        self.stopping.send_replace(true);
    }
}

/// The desk itself answers a host, where its tools are known from the start.
#[async_trait]
impl Calls for Arc<Desk> {
    async fn list(&self) -> Result<Vec<String>, ListError> {
        Ok(self.listing())
    }

    async fn call(&self, call: HostCall) -> CallAnswer {
        self.take(call).await
    }

    fn stop(&self) {
        self.begin_end();
    }
}

fn run_of(write: &IndexWrite) -> Option<RunId> {
    match write {
        IndexWrite::Settle { run_id, .. } | IndexWrite::SettleEmpty { run_id, .. } => Some(run_id.clone()),
        IndexWrite::Open { .. } | IndexWrite::Unsettle { .. } => None,
    }
}

/// A tool as it is offered; `None` for one of which nobody says what server it is of, which is never offered.
fn offer(tool: &dyn Tool, policy: &ProxyPolicy, windows: &HashMap<String, Duration>) -> Option<Arc<Offered>> {
    let (spec, upstream) = (tool.spec(), tool.upstream()?);
    let (outcome, _) = policy.configured(policy.tool(&spec.name)?);
    let window = windows.get(&spec.name).copied().unwrap_or_default();
    let listed = listed(&spec.name, &spec.description, spec.input_schema.as_str());
    Some(Arc::new(Offered { upstream, window, timeout: spec.timeout, outcome, listed }))
}

fn listed(name: &str, description: &str, input_schema: &str) -> String {
    let (name, description) = (serde_json::Value::from(name), serde_json::Value::from(description));
    format!(r#"{{"name":{name},"description":{description},"inputSchema":{input_schema}}}"#)
}

/// Tells the operator of every approval that is asked for, whoever asks.
struct Hints {
    journal: Arc<dyn Journal>,
    database: PathBuf,
}

impl Observer for Hints {
    fn committed(&self, event: &Event) {
        if event.kind != EventKind::ApprovalRequested.as_str() {
            return;
        }
        #[derive(Deserialize)]
        struct Payload {
            approval_id: String,
            kind: String,
            #[serde(default)]
            capability: Capability,
        }
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Capability {
            name: String,
        }
        match serde_json::from_str::<Payload>(&event.payload) {
            Ok(asked) => journal::hint(
                &*self.journal,
                &self.database,
                &journal::Asked {
                    approval: &asked.approval_id,
                    kind: &asked.kind,
                    tool: &asked.capability.name,
                    run: event.run_id.as_str(),
                },
            ),
            Err(error) => {
                tracing::warn!(%error, "an approval waits, and the event that says so can't be read")
            }
        }
    }
}

#[cfg(test)]
mod tests;
