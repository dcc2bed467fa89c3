//! Attaching to a run: collecting a grant, or taking over what was cut off.
//!
//! Owns the re-checks before a grant is used, in their order, and the recovery that process start, an actor's restart
//! and a lost session share.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt as _;
use holdpoint_core::approval::{
    Approval, ApprovalStatus, INTERRUPTED_REASON, INTERRUPTED_SIDE_EFFECT, latest_of,
};
use holdpoint_core::attempt::Ending;
use holdpoint_core::ids::{ApprovalId, LeaseOwner, RunId, StepId};
use holdpoint_core::json::{Json, ObjectWriter};
use holdpoint_core::ledger::{Ledger, RunEnd};
use holdpoint_core::policy::{Outcome, PolicyDecision, PolicyView};
use holdpoint_core::recovery::{self, CutOff};
use holdpoint_core::run::{Lease, Reason, Run, RunStatus};
use holdpoint_core::step::{Observation, ObservationKind, Step, StepStatus};
use holdpoint_core::time::UnixNanos;
use holdpoint_core::tool::ToolRequest;
use holdpoint_core::transition::{Durability, Guard};

use super::commit::Stop;
use super::handle::{OpenStep, Opened, Session};
use super::registry::Registered;
use super::story::{Core, busy};
use super::{Attached, Claim, Pace, Reconcile, Reconciliation, SessionError, Shared, Verdict};
use crate::faults::process::{self, Broken};
use crate::store::{ReadError, Reader};

/// What attaching found, before it is given to the caller with its session.
#[derive(Debug)]
pub(super) enum Found {
    Open,
    Allowed(Opened),
    Denied(Observation),
    Pending(Arc<Approval>, Run),
    Ended(Run),
}

impl Found {
    pub(super) fn with(self, core: Core, around: impl FnOnce(Core) -> Session) -> Attached {
        match self {
            Found::Open => Attached::Open(around(core)),
            Found::Allowed(opened) => {
                let session = around(core);
                let step = OpenStep::of(&session, opened);
                Attached::Allowed(session, step)
            }
            Found::Denied(observation) => Attached::Denied(around(core), observation),
            Found::Pending(approval, run) => Attached::Pending(approval, run),
            Found::Ended(run) => Attached::Ended(run),
        }
    }
}

/// What follows for a run that was taken over, as it is drafted.
#[derive(Debug)]
pub(super) enum Drafted {
    /// It goes on.
    Open,
    /// It waits for a person.
    Pending(Arc<Approval>),
    /// It is over.
    Ended,
}

/// The rows of a run, read in one go.
pub(super) struct Rows {
    pub(super) run: Run,
    pub(super) lease: Option<Lease>,
    steps: Vec<Arc<Step>>,
    approvals: Vec<Arc<Approval>>,
    endings: HashMap<StepId, Ending>,
}

impl Core {
    pub(super) async fn attach(
        shared: Arc<Shared>,
        id: RunId,
        pace: Pace,
        gone: Option<LeaseOwner>,
    ) -> Result<(Core, Found), SessionError> {
        let claim = shared.claim(&id).ok_or_else(|| busy(&id))?;
        let rows = read_rows(&shared, &id).await?;
        let (status, lease) = (rows.run.status, rows.lease.clone());
        let mut core = Core::over(shared, rows, pace, claim);
        let found = match status {
            RunStatus::WaitingForApproval => core.collect().await,
            RunStatus::Running | RunStatus::Interrupted => core.take_over(lease, gone).await,
            RunStatus::Completed | RunStatus::Failed | RunStatus::Cancelled => {
                Err(core.misused(&format!("it is {status} and over")).into())
            }
        };
        match found {
            Ok(found) => Ok((core, found)),
            Err(stop) => {
                core.stopped(stop)?;
                let run = core.run();
                Ok((core, Found::Ended(run)))
            }
        }
    }

    /// A session on a run that is in the record.
    pub(super) fn over(shared: Arc<Shared>, rows: Rows, pace: Pace, claim: Claim) -> Core {
        let ledger = Ledger::of(shared.terms(), rows.run, rows.steps, rows.approvals);
        let mut core = Core::new(shared, ledger, pace, claim);
        core.endings = rows.endings;
        core
    }

    /// Collects a grant: everything that could have changed since it was given is checked again.
    async fn collect(&mut self) -> Result<Found, Stop> {
        if let Some(damage) = self.ledger.damage() {
            let waiting = Guard::RunIs { any_of: vec![RunStatus::WaitingForApproval] };
            return Ok(Found::Ended(self.fail_internal(waiting, &damage).await?));
        }
        let awaiting =
            self.ledger.steps().iter().rposition(|step| step.status == StepStatus::AwaitingApproval);
        let Some(index) = awaiting else {
            return Err(self.misused("it waits, but none of its steps does").into());
        };
        let step = Arc::clone(&self.ledger.steps()[index]);
        let grant = match latest_of(self.ledger.approvals(), &step.id) {
            Some(approval) => Arc::new(approval.clone()),
            None => return Err(self.misused("its step waits for no approval").into()),
        };
        // The clock is read only for an approval that can expire: readings are counted.
        if grant.status == ApprovalStatus::Pending
            && grant.expires_at.is_some()
            && grant.is_past_expiry(self.shared.clock.now())
        {
            return self.expire(&grant).await;
        }
        if grant.status != ApprovalStatus::Approved {
            return Err(self.misused(&format!("its latest approval is {}", grant.status)).into());
        }
        let Some(mut request) =
            grant.request.clone().filter(|_| grant.is_intact() || process::is(Broken::BentTaken))
        else {
            return Err(SessionError::ApprovalHash(grant.id.clone()).into());
        };
        let Some(tool) = self.shared.registry.get(&request.spec.name).cloned() else {
            return Err(SessionError::NotRegistered(request.spec.name).into());
        };
        request.spec = tool.spec.clone();
        let resumed_at = self.shared.clock.now();
        if is_stale(&grant, self.ledger.run().limits.grant_ttl, resumed_at) {
            return self.expire_at(&grant, resumed_at).await;
        }
        self.ledger.reopen_step(index);
        if let Err(error) = tool.check(request.args.as_str().as_bytes()) {
            return self.refuse_outdated(&grant, &error, resumed_at).await;
        }
        self.ledger.judge_under(&tool.recorded);
        let judged = self.evaluate(&request, Some((grant, resumed_at))).await?;
        self.proposed = true;
        self.open_model();
        let opened = Opened { id: step.id.clone(), index: step.index, model: self.model.clone() };
        Ok(match self.act_on(request, judged).await? {
            Verdict::Allowed { .. } => Found::Allowed(opened),
            Verdict::Denied { observation } => Found::Denied(observation),
            Verdict::Pending { approval, run } => Found::Pending(approval, run),
            Verdict::Ended { run } => Found::Ended(run),
        })
    }

    /// The granted arguments no longer fit the tool's schema: the step fails as a fresh one would, and the run goes on.
    async fn refuse_outdated(
        &mut self,
        grant: &Approval,
        error: &str,
        resumed_at: UnixNanos,
    ) -> Result<Found, Stop> {
        let summary = format!("invalid decision on resume: {error}");
        let observation =
            Observation::of_fields(ObservationKind::InvalidDecision, &[("error", error)], &*summary);
        let now = self.shared.clock.now();
        self.ledger.resume_by(grant, resumed_at).map_err(|e| self.illegal(e))?;
        self.ledger.end_step(Some(observation.clone()), &summary, now).map_err(|e| self.illegal(e))?;
        if self.pace == Pace::EveryState {
            self.commit_next(Durability::Written).await?;
        }
        Ok(Found::Denied(observation))
    }

    async fn expire(&mut self, approval: &Approval) -> Result<Found, Stop> {
        let now = self.shared.clock.now();
        self.expire_at(approval, now).await
    }

    async fn expire_at(&mut self, approval: &Approval, now: UnixNanos) -> Result<Found, Stop> {
        self.ledger.expire(approval, now).map_err(|e| self.illegal(e))?;
        self.commit_outcome(Durability::Synced).await?;
        Err(Stop::Ended(self.run()))
    }

    /// Judges a grant's age once more, right before it is used.
    pub(super) async fn judge_age(&mut self, grant: &Approval) -> Result<(), Stop> {
        let ttl = self.ledger.run().limits.grant_ttl;
        if ttl == 0 {
            return Ok(());
        }
        let now = self.shared.clock.now();
        if !is_stale(grant, ttl, now) {
            return Ok(());
        }
        match self.expire_at(grant, now).await {
            Ok(_) | Err(Stop::Ended(_)) => Err(SessionError::ApprovalExpired(grant.id.clone()).into()),
            Err(stop) => Err(stop),
        }
    }

    /// Takes over a run that nobody holds any more (T8), and says what follows from what is known (T9).
    async fn take_over(&mut self, lease: Option<Lease>, gone: Option<LeaseOwner>) -> Result<Found, Stop> {
        let damage = self.ledger.damage();
        let cut_off = recovery::cut_off(self.ledger.steps());
        let now = self.draft_take_over(lease, gone)?;
        if self.pace == Pace::EveryState || damage.is_some() {
            self.commit_outcome(Durability::Synced).await?;
        }
        if let Some(damage) = damage {
            let owner = self.ledger.terms().owner.clone();
            let run = self.fail_internal(Guard::Held { owner, live: false }, &damage).await?;
            return Ok(Found::Ended(run));
        }
        let drafted = self.draft_what_follows(cut_off, now).await?;
        match drafted {
            Drafted::Open if self.pace == Pace::Effects => {}
            Drafted::Open | Drafted::Pending(_) | Drafted::Ended => {
                self.commit_outcome(Durability::Synced).await?;
            }
        }
        Ok(self.found(drafted))
    }

    /// Drafts that the run is taken over, and says when that was.
    pub(super) fn draft_take_over(
        &mut self,
        lease: Option<Lease>,
        gone: Option<LeaseOwner>,
    ) -> Result<UnixNanos, SessionError> {
        let held = |lease: &&Lease| {
            let is_live = lease.is_live(self.shared.tree.wall.now()) && !process::is(Broken::LiveTakenOver);
            Some(&lease.owner) != gone.as_ref() && is_live
        };
        if let Some(lease) = lease.as_ref().filter(held) {
            return Err(SessionError::Leased {
                run: self.run_id(),
                owner: lease.owner.clone(),
                expires_at: lease.expires_at,
            });
        }
        let now = self.shared.clock.now();
        process::reach("recover.read");
        self.ledger.take_over(lease, gone, now).map_err(|e| self.illegal(e))?;
        Ok(now)
    }

    /// Drafts what follows for a run whose taking over is drafted.
    pub(super) async fn draft_what_follows(
        &mut self,
        cut_off: Option<CutOff>,
        now: UnixNanos,
    ) -> Result<Drafted, SessionError> {
        let reconciled = match self.shared.reconcile.clone() {
            Some(reconcile) => match contained(&*reconcile, self.ledger.view()).await {
                Ok(found) => found,
                Err(error) => {
                    let end = RunEnd::new(Reason::InternalError, format!("reconcile: {error}"));
                    return self.draft_end(end);
                }
            },
            None => self.reconcile_by_class(cut_off.as_ref()),
        };
        self.follow(reconciled, cut_off, now)
    }

    /// What was found, once the draft is committed.
    pub(super) fn found(&mut self, drafted: Drafted) -> Found {
        if matches!(drafted, Drafted::Open) {
            return Found::Open;
        }
        let run = self.run();
        self.finish(run.clone());
        match drafted {
            Drafted::Pending(approval) => Found::Pending(approval, run),
            Drafted::Open | Drafted::Ended => Found::Ended(run),
        }
    }

    /// Without anybody who knows better, only a read may be taken for not having happened.
    fn reconcile_by_class(&self, cut_off: Option<&CutOff>) -> Reconciliation {
        let Some(cut_off) = cut_off else { return Reconciliation::Continue };
        let step = &self.ledger.steps()[cut_off.index];
        let tool = step.tool().and_then(|name| self.shared.registry.get(name));
        match tool {
            Some(tool) if tool.spec.side_effect.is_read() => Reconciliation::Continue,
            Some(tool) => Reconciliation::Waiting { pause: ask_again(step, tool), detail: String::new() },
            None => Reconciliation::Waiting {
                pause: PolicyDecision::need_approval(
                    INTERRUPTED_SIDE_EFFECT,
                    INTERRUPTED_REASON,
                    Json::empty_object(),
                    Json::empty_object(),
                ),
                detail: String::new(),
            },
        }
    }

    fn follow(
        &mut self,
        reconciled: Reconciliation,
        cut_off: Option<CutOff>,
        now: UnixNanos,
    ) -> Result<Drafted, SessionError> {
        match reconciled {
            Reconciliation::Continue => {
                self.ledger.resume_after_interruption(now);
                Ok(Drafted::Open)
            }
            Reconciliation::Completed { result, detail } => {
                let unusable = result
                    .as_ref()
                    .filter(|r| !r.is_blank())
                    .and_then(|result| holdpoint_core::json::check(result.as_str().as_bytes()).err());
                let end = match unusable {
                    None => {
                        RunEnd::new(Reason::GoalCompleted, format!("completed by reconciliation: {detail}"))
                            .with_result(result)
                    }
                    Some(error) => RunEnd::new(
                        Reason::InternalError,
                        format!("reconcile: result is not usable JSON: {error}"),
                    ),
                };
                self.draft_end(end)
            }
            Reconciliation::Conflict { detail } => {
                self.draft_end(RunEnd::new(Reason::ReconcileConflict, detail))
            }
            Reconciliation::Waiting { pause, detail } => self.draft_pause(pause, &detail, cut_off, now),
        }
    }

    fn draft_end(&mut self, end: RunEnd) -> Result<Drafted, SessionError> {
        self.end_run(end)?;
        Ok(Drafted::Ended)
    }

    /// Asks a person whether the request that was cut off runs again. One that can't be asked about is a conflict.
    fn draft_pause(
        &mut self,
        pause: PolicyDecision,
        detail: &str,
        cut_off: Option<CutOff>,
        now: UnixNanos,
    ) -> Result<Drafted, SessionError> {
        if pause.outcome != Outcome::RequireApproval {
            let detail =
                format!("reconcile: waiting needs a require_approval decision, got {}", pause.outcome);
            return self.draft_end(RunEnd::new(Reason::InternalError, detail));
        }
        if let Err(error) = pause.check() {
            let detail = format!("reconcile: {error}");
            return self.draft_end(RunEnd::new(Reason::InternalError, detail));
        }
        let (index, tool, request) = match self.pausable(cut_off.as_ref()) {
            Ok(pausable) => pausable,
            Err(why) => return self.conflict(cut_off, &why, detail),
        };
        self.ledger.reopen_step(index);
        self.ledger.judge_under(&tool.recorded);
        self.ledger.record_policy(pause, None, None, now).map_err(|e| self.illegal(e))?;
        let asked_at = self.shared.clock.now();
        let id = ApprovalId::from(self.shared.mint.id());
        Ok(Drafted::Pending(self.ledger.pause(id, request, asked_at).map_err(|e| self.illegal(e))?))
    }

    fn pausable(&self, cut_off: Option<&CutOff>) -> Result<(usize, Registered, ToolRequest), Unpausable> {
        let cut_off = cut_off.ok_or_else(|| Unpausable::plain("no tool call was executing"))?;
        let step = &self.ledger.steps()[cut_off.index];
        let tool = step
            .tool()
            .and_then(|name| self.shared.registry.get(name))
            .ok_or_else(|| Unpausable::plain("the interrupted step's tool is not registered"))?;
        let decision = step.decision.as_ref().ok_or_else(|| Unpausable::plain("it has no decision"))?;
        if !decision.invalid_args.is_empty() {
            return Err(Unpausable::plain("the interrupted step's arguments were not JSON"));
        }
        let args = decision.args_or_empty();
        tool.check(args.as_str().as_bytes()).map_err(|why| Unpausable { why, outdated: true })?;
        let request =
            ToolRequest { run_id: self.run_id(), step_id: step.id.clone(), spec: tool.spec.clone(), args };
        Ok((cut_off.index, tool.clone(), request))
    }

    fn conflict(
        &mut self,
        cut_off: Option<CutOff>,
        why: &Unpausable,
        detail: &str,
    ) -> Result<Drafted, SessionError> {
        // Only whoever looked outside says that the call did not happen; without them the step keeps its unknown end.
        let reconciled = self.shared.reconcile.is_some();
        if let Some(cut_off) = cut_off.filter(|_| why.outdated && reconciled) {
            let now = self.shared.clock.now();
            let summary = format!("invalid decision on resume: {}", why.why);
            let fields = [("error", why.why.as_str())];
            let observation = Observation::of_fields(ObservationKind::InvalidDecision, &fields, &*summary);
            self.ledger.reopen_step(cut_off.index);
            self.ledger.end_step(Some(observation), &summary, now).map_err(|e| self.illegal(e))?;
        }
        let mut words = format!("a call was cut off that nobody can be asked about ({})", why.why);
        if !detail.is_empty() {
            words = format!("{words}: {detail}");
        }
        self.draft_end(RunEnd::new(Reason::ReconcileConflict, words))
    }
}

/// Asks whoever knows the outside. A panic there is an error like any other.
async fn contained(reconcile: &dyn Reconcile, view: PolicyView) -> Result<Reconciliation, String> {
    let asked = AssertUnwindSafe(async { reconcile.reconcile(&view).await }).catch_unwind().await;
    asked.unwrap_or_else(|panic| Err(format!("panic: {}", crate::panic_text(&*panic))))
}

/// Why a cut-off call can't wait for a person.
struct Unpausable {
    why: String,
    /// Whether its arguments fit today's schema no more, which is recorded on the step.
    outdated: bool,
}

impl Unpausable {
    fn plain(why: &str) -> Unpausable {
        Unpausable { why: why.to_owned(), outdated: false }
    }
}

/// The approval that asks whether a cut-off call runs again, when no policy has one of its own.
fn ask_again(step: &Step, tool: &Registered) -> PolicyDecision {
    let args = step.decision.as_ref().map_or_else(Json::empty_object, |decision| decision.args_or_empty());
    let name = &tool.spec.name;
    let mut capability = ObjectWriter::sorted();
    capability.str("tool", name).raw("args", args.as_str());
    let notice = "The call began and its process stopped before the outcome was recorded, so whether it took effect \
                  is unknown. Approving runs it again. Rejecting ends the run.";
    let mut presentation = ObjectWriter::sorted();
    presentation
        .str("tool", name)
        .raw("args", args.as_str())
        .str("side_effect", tool.spec.side_effect.as_str())
        .str("notice", notice);
    PolicyDecision::need_approval(
        INTERRUPTED_SIDE_EFFECT,
        INTERRUPTED_REASON,
        capability.finish_json(),
        presentation.finish_json(),
    )
}

async fn read_rows(shared: &Shared, id: &RunId) -> Result<Rows, SessionError> {
    let wanted = id.clone();
    match shared.tree.store.read(move |reader| Rows::read(reader, &wanted)).await {
        Ok(Some(rows)) => Ok(rows),
        Ok(None) => Err(SessionError::NotFound(id.clone())),
        Err(error) => Err(SessionError::Unavailable(error.to_string())),
    }
}

impl Rows {
    pub(super) fn read(reader: &Reader<'_>, id: &RunId) -> Result<Option<Rows>, ReadError> {
        let Some(run) = reader.run(id)? else { return Ok(None) };
        let steps: Vec<_> = reader.steps(id)?.into_iter().map(Arc::new).collect();
        let mut endings = HashMap::new();
        for step in &steps {
            if step.observation.as_ref().is_some_and(|o| o.kind == ObservationKind::ToolError) {
                endings.extend(reader.ending(&step.id)?.map(|ending| (step.id.clone(), ending)));
            }
        }
        Ok(Some(Rows {
            run,
            lease: reader.lease(id)?,
            approvals: reader.approvals(id)?.into_iter().map(Arc::new).collect(),
            steps,
            endings,
        }))
    }
}

/// Whether a grant is too old to be used.
fn is_stale(grant: &Approval, ttl: i64, now: UnixNanos) -> bool {
    grant.is_stale_grant(ttl, now) && !process::is(Broken::ExpiryIgnored)
}
