//! The proxy's policy and recovery as the gate asks for them.
//!
//! Owns which attempt a request repeats: the one that the waiting step's latest approval names, else the one that the
//! proxy named as it proposed the request. Everything else is [`ProxyPolicy`]'s.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use async_trait::async_trait;
use holdpoint_actors::policy::{Policy, PolicyError};
use holdpoint_actors::session::{Reconcile, Reconciliation};
use holdpoint_actors::store::StoreClient;
use holdpoint_core::approval::{INTERRUPTED_REASON, INTERRUPTED_SIDE_EFFECT};
use holdpoint_core::attempt::{Attempt, Ended};
use holdpoint_core::ids::{RunId, StepId};
use holdpoint_core::json::Json;
use holdpoint_core::policy::{PolicyDecision, PolicyView};
use holdpoint_core::recovery;
use holdpoint_core::step::Step;
use holdpoint_core::tool::{ToolRequest, ToolSpec};

use super::policy::{ProxyPolicy, rerun_in};

/// The attempts that requests under way repeat, by their runs.
pub(super) type Reruns = Noted<Attempt>;

/// The runs whose tools this process is calling.
pub(super) type Executing = Noted<()>;

/// What is noted of runs, each for as long as its guard lives.
#[derive(Debug, Clone)]
pub(super) struct Noted<T>(Arc<Mutex<HashMap<RunId, T>>>);

impl<T> Default for Noted<T> {
    fn default() -> Noted<T> {
        Noted(Arc::default())
    }
}

impl<T: Clone> Noted<T> {
    /// Notes `what` of `run` until the guard is dropped.
    pub(super) fn note(&self, run: &RunId, what: T) -> Note<T> {
        self.lock().insert(run.clone(), what);
        Note { of: self.clone(), run: run.clone() }
    }

    /// What is noted of `run`.
    pub(super) fn get(&self, run: &RunId) -> Option<T> {
        self.lock().get(run).cloned()
    }
}

impl<T> Noted<T> {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<RunId, T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps a note for as long as it lives.
#[derive(Debug)]
pub(super) struct Note<T> {
    of: Noted<T>,
    run: RunId,
}

impl<T> Drop for Note<T> {
    fn drop(&mut self) {
        self.of.lock().remove(&self.run);
    }
}

/// The policy, before and after the tools are known: the actors start before the servers have answered.
#[derive(Debug, Clone, Default)]
pub(super) struct GatePolicy {
    id: String,
    reruns: Reruns,
    loaded: Arc<OnceLock<Loaded>>,
}

#[derive(Debug)]
struct Loaded {
    policy: Arc<ProxyPolicy>,
    store: StoreClient,
}

impl GatePolicy {
    /// The policy of this identity, without any tools yet.
    pub(super) fn new(id: String) -> GatePolicy {
        GatePolicy { id, ..GatePolicy::default() }
    }

    /// Where the attempts are noted that requests repeat.
    pub(super) fn reruns(&self) -> Reruns {
        self.reruns.clone()
    }

    /// Gives it its tools, once.
    pub(super) fn load(&self, policy: Arc<ProxyPolicy>, store: StoreClient) {
        if self.loaded.set(Loaded { policy, store }).is_err() {
            tracing::error!("the policy was given its tools twice; the first are kept");
        }
    }
}

#[async_trait]
impl Policy for GatePolicy {
    async fn evaluate(
        &self,
        request: &ToolRequest,
        view: &PolicyView,
    ) -> Result<PolicyDecision, PolicyError> {
        let Some(Loaded { policy, store }) = self.loaded.get() else {
            return Ok(PolicyDecision::deny("no tool is offered yet"));
        };
        let rerun = match rerun_in(&view.approvals, request) {
            Some(Some(attempt)) => Some(attempt),
            // Another program asked, about the step itself.
            Some(None) => Some(this_step(store, request).await?),
            None => self.reruns.get(&request.run_id),
        };
        Ok(policy.decide(request, rerun.as_ref()))
    }

    fn id(&self) -> Option<String> {
        Some(self.id.clone())
    }

    /// A pure function of what it is shown, and at times a look at the record, which is awaited.
    fn never_blocks(&self) -> bool {
        true
    }
}

/// The step that is being decided, which a policy is not shown, as an attempt.
async fn this_step(store: &StoreClient, request: &ToolRequest) -> Result<Attempt, PolicyError> {
    let (run_id, step_id) = (request.run_id.clone(), request.step_id.clone());
    let wanted = run_id.clone();
    let steps =
        store.read(move |reader| reader.steps(&wanted)).await.map_err(|e| PolicyError(e.to_string()))?;
    let step = steps.iter().find(|step| step.id == step_id);
    let step = step.ok_or_else(|| PolicyError(format!("run {run_id} has no step {step_id}")))?;
    Ok(attempt_of(step, Ended::CutOff))
}

/// A step as an attempt that ended so.
pub(super) fn attempt_of(step: &Step, ended: Ended) -> Attempt {
    Attempt { run_id: step.run_id.clone(), step_id: step.id.clone(), started_at: step.started_at, ended }
}

/// Says what follows for a run that was found cut off: a read continues, anything else is put to a person.
#[derive(Debug)]
pub(super) struct GateReconcile {
    pub(super) policy: Arc<ProxyPolicy>,
    pub(super) specs: HashMap<String, ToolSpec>,
}

#[async_trait]
impl Reconcile for GateReconcile {
    async fn reconcile(&self, view: &PolicyView) -> Result<Reconciliation, String> {
        let Some(cut_off) = recovery::cut_off(&view.steps) else { return Ok(Reconciliation::Continue) };
        let step = &view.steps[cut_off.index];
        let Some(request) = self.request(view, step) else {
            // What can't be asked about ends as a conflict, and the reason for that is said here.
            let pause = PolicyDecision::need_approval(
                INTERRUPTED_SIDE_EFFECT,
                INTERRUPTED_REASON,
                Json::empty_object(),
                Json::empty_object(),
            );
            return Ok(Reconciliation::Waiting { pause, detail: "the tool is no longer offered".to_owned() });
        };
        let handed = request.policy_form().map_err(|error| error.to_string())?;
        Ok(match self.policy.interrupted(&handed, &attempt_of(step, Ended::CutOff)) {
            Some(pause) => Reconciliation::Waiting { pause, detail: String::new() },
            None => Reconciliation::Continue,
        })
    }
}

impl GateReconcile {
    fn request(&self, view: &PolicyView, step: &Step) -> Option<ToolRequest> {
        let spec = self.specs.get(step.tool()?)?.clone();
        let args = step.decision.as_ref()?.args_or_empty();
        Some(ToolRequest { run_id: view.run.id.clone(), step_id: StepId::clone(&step.id), spec, args })
    }
}
