//! The story of one call: decided, held, collected or begun, executed, answered.
//!
//! Owns the order. What is decided is core's ([`decide`]); what is written is the session's; what is said is
//! [`Answer`]'s. A host that goes away ends the hold and nothing else: a call that was begun is finished and recorded.
//! Longer than its neighbours, because the story is meant to be read from its beginning to its end in one place.

use std::sync::Arc;
use std::time::Duration;

use holdpoint_actors::clock::monotonic;
use holdpoint_actors::session::{
    Attached, Beginning, Executed, OpenStep, Pace, Session, SessionError, Verdict,
};
use holdpoint_actors::store::{Depth, Reader, Seen};
use holdpoint_core::across_calls::{
    Admission, Asked, Attempted, Begin, Blocked, IndexWrite, Refused, Ruling, Unresolved, ask_again, decide,
};
use holdpoint_core::approval::Approval;
use holdpoint_core::attempt::{Attempt, AttemptOutcome, CameTo, Ended, Ending, came_to};
use holdpoint_core::decision::{Origin, Proposal};
use holdpoint_core::hash::request_key;
use holdpoint_core::ids::{ApprovalId, RunId, StepId};
use holdpoint_core::json::Json;
use holdpoint_core::run::{Reason, Run, RunStatus};
use holdpoint_core::step::{Observation, ObservationKind, Step};

use super::answer::{
    Answer, Executed as WasExecuted, Unavailable, error_text, of_observation, recorded_outcome,
};
use super::desk::{Desk, Offered};
use super::front::{Cancelled, HostCall, ProgressSink};
use super::gated::attempt_of;

/// Decisions that may be overtaken before a call is answered IN_PROGRESS.
const TRIES_MAX: usize = 5;

/// Things that may be put in order before one call: each is another request's expiry or recovery, and the next call
/// goes on with them.
const ROUNDS_MAX: usize = 64;

/// What a call may take beside its tool's time: the policy before it, the commits around it.
const AROUND_THE_TOOL: Duration = Duration::from_secs(30);

/// How often a host that asked for it is told that its call waits.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

// Why a run whose call is over is ended by the proxy: each run holds one call.
const CLOSE_ERROR: &str = "one call per run: the tool answered with an error";
const CLOSE_DENIED: &str = "one call per run: the request was denied";
const CLOSE_INVALID: &str = "one call per run: the request was invalid";
const CLOSE_RECOVERED: &str =
    "one call per run: taken over after an interruption, and nothing was left to execute";
const CLOSE_UNRECORDED: &str = "one call per run: the tool executed and its answer could not be recorded";

/// What a call ends in: an answer of ours, or a result as it was recorded.
#[derive(Debug)]
pub(super) enum Told {
    Answer(Answer),
    Result(String),
}

impl From<Answer> for Told {
    fn from(answer: Answer) -> Told {
        Told::Answer(answer)
    }
}

impl From<Unavailable> for Told {
    fn from(what: Unavailable) -> Told {
        Told::Answer(Answer::Unavailable(what))
    }
}

/// What follows from one decision.
enum Next {
    /// The host is told.
    Tell(Told),
    /// Something was put in order: decide again.
    Again,
    /// Somebody was faster: decide again, a few times.
    Overtaken,
}

impl<T: Into<Told>> From<T> for Next {
    fn from(told: T) -> Next {
        Next::Tell(told.into())
    }
}

/// One call under way.
pub(super) struct Call {
    desk: Arc<Desk>,
    tool: Arc<Offered>,
    /// The arguments as the host wrote them.
    args: Vec<u8>,
    progress: Option<ProgressSink>,
    cancelled: Cancelled,
    held: bool,
}

impl Call {
    pub(super) fn new(desk: Arc<Desk>, tool: Arc<Offered>, host: HostCall) -> Call {
        let args = host.arguments.unwrap_or_else(|| b"{}".to_vec());
        Call { desk, tool, args, progress: host.progress, cancelled: host.cancelled, held: false }
    }

    /// Answers it.
    pub(super) async fn answer(mut self) -> Told {
        let key = request_key(&self.tool.upstream.name, Some(&self.args));
        let mut overtaken = 0;
        let mut rounds = 0;
        // A request that is new here is taken for one that the record does not know either: the writer, which looks
        // again before it lets anything begin, says so when it does. A guess costs a look less, or a decision more.
        let mut guessing = key.as_ref().is_none_or(|key| self.desk.is_first(key));
        // The other requests are left to the writer, which knows them, until it has seen something in the way.
        let mut depth = Depth::Own;
        loop {
            let asked = self.desk.asked(&self.tool, key.clone());
            let seen = if guessing { Ok(Seen::default()) } else { self.desk.view(&asked, depth).await };
            let next = match seen {
                Ok(seen) => self.follow(asked, seen).await,
                Err(unavailable) => unavailable.into(),
            };
            let guessed = std::mem::take(&mut guessing);
            rounds += 1;
            match next {
                Next::Tell(told) => return told,
                Next::Again if rounds < ROUNDS_MAX => {}
                Next::Overtaken if guessed => {}
                Next::Overtaken if overtaken < TRIES_MAX => {
                    overtaken += 1;
                    depth = Depth::Session;
                }
                Next::Again | Next::Overtaken => return Answer::InProgress.into(),
            }
        }
    }

    async fn follow(&mut self, asked: Asked, seen: Seen) -> Next {
        let settles = seen.settles;
        let ruling = decide(&asked, &seen.view);
        if !matches!(ruling, Ruling::Begin(_)) {
            self.desk.settle(settles.clone());
        }
        match ruling {
            Ruling::Hold { run, approval } => self.hold(&run, &approval).await,
            Ruling::Collect { run } => self.collect(&run).await,
            Ruling::Expire { run, .. } => self.expire(&run).await,
            Ruling::InProgress => Answer::InProgress.into(),
            Ruling::Recover { run } => self.recover(&run).await,
            Ruling::Refuse(refused) => self.refuse(refused).await.map_or_else(Next::from, Next::from),
            Ruling::Blocked(Blocked::Unknown { approval }) => self.blocked(approval).into(),
            Ruling::Blocked(Blocked::Cap { max }) => Answer::BlockedByCap { max }.into(),
            Ruling::Reask(unresolved) => self.reask(&asked, unresolved).await,
            Ruling::Begin(begin) => {
                match self.may_be_answered(begin.rerun.as_ref()).await {
                    Ok(true) => return Answer::InProgress.into(),
                    Ok(false) => {}
                    Err(unavailable) => return unavailable.into(),
                }
                let proposal = self.proposal(self.args.clone(), Origin::Model);
                self.begin(asked, begin, settles, proposal).await
            }
        }
    }

    /// Whether somebody may still hear what came of an attempt that a person cancelled: nobody is asked about it before.
    /// Another process says no more of it than when it began, so there its time has to pass.
    async fn may_be_answered(&self, attempt: Option<&Attempt>) -> Result<bool, Unavailable> {
        let Some(attempt) = attempt.filter(|attempt| attempt.ended == Ended::CutOff) else {
            return Ok(false);
        };
        if self.desk.executing.get(&attempt.run_id).is_some() {
            return Ok(true);
        }
        let until = attempt.started_at.plus(self.tool.timeout).plus(AROUND_THE_TOOL);
        if self.desk.gate.now() >= until {
            return Ok(false);
        }
        let (run, step) = (attempt.run_id.clone(), attempt.step_id.clone());
        let heard = move |reader: &Reader<'_>| {
            let cancelled = Some(Reason::OperatorCancelled);
            if reader.run(&run)?.is_none_or(|run| run.reason != cancelled) {
                return Ok(false);
            }
            // One that was asked about before it was cancelled had been taken over: nobody hears of it any more.
            let asked = |approval: &Approval| approval.step_id == step && approval.is_interruption();
            Ok(!reader.approvals(&run)?.iter().any(asked))
        };
        self.desk.read(heard).await
    }

    fn blocked(&self, approval: ApprovalId) -> Answer {
        Answer::BlockedByUnknown { tool: self.tool.upstream.name.clone(), approval }
    }

    fn proposal(&self, args: Vec<u8>, origin: Origin) -> Proposal {
        Proposal::tool_call(self.tool.upstream.name.clone(), args).from_origin(origin)
    }

    /// Waits once for the decision, and then says that it waits.
    async fn hold(&mut self, run: &RunId, approval: &ApprovalId) -> Next {
        let worthwhile = !self.held && !self.desk.hold.is_zero() && !self.cancelled.is_cancelled();
        if worthwhile {
            self.held = true;
            if self.wait(run, approval).await && !self.is_left() {
                return Next::Again;
            }
        }
        let (wanted_run, wanted) = (run.clone(), approval.clone());
        let read = self.desk.read(move |reader| {
            Ok((reader.approval(&wanted_run, &wanted)?, reader.run(&wanted_run)?.map(|run| run.status)))
        });
        match read.await {
            Ok((Some(asked), status)) => {
                // It was decided or expired, or the run ended, at the last moment: nobody may be told that it waits.
                let waits =
                    asked.is_open(self.desk.gate.now()) && status == Some(RunStatus::WaitingForApproval);
                if waits || self.is_left() { pending(&asked).into() } else { Next::Again }
            }
            Ok((None, _)) => Next::Overtaken,
            Err(unavailable) => unavailable.into(),
        }
    }

    /// Whether nothing new may begin for it: its host is gone, or everything ends.
    fn is_left(&self) -> bool {
        self.cancelled.is_cancelled() || self.desk.is_stopping()
    }

    /// Waits for the decision, for the hold, for the host to lose interest or for the end. Says whether it is decided.
    async fn wait(&self, run: &RunId, approval: &ApprovalId) -> bool {
        let hold = self.desk.hold;
        let began = monotonic();
        let mut deciding = self.desk.waiter.wait(run, approval, hold);
        let mut tick = tokio::time::interval(PROGRESS_EVERY);
        tick.tick().await;
        loop {
            tokio::select! {
                decided = &mut deciding => return decided,
                () = self.cancelled.cancelled() => return false,
                () = self.desk.stopping() => return false,
                _ = tick.tick() => {
                    if let Some(progress) = &self.progress {
                        let waited = monotonic().saturating_duration_since(began);
                        let (waited, hold) = (waited.as_secs_f64(), hold.as_secs_f64());
                        progress.tell(waited, hold, "waiting for an operator's approval");
                    }
                }
            }
        }
    }

    /// Collects a grant: everything is checked again, and what executes is what was recorded.
    async fn collect(&self, run: &RunId) -> Next {
        match self.desk.gate.attach_with(run.clone(), Pace::Effects).await {
            Ok(Attached::Allowed(session, step)) => self.execute(session, step).await,
            Ok(Attached::Denied(session, observation)) => self.denied(&session, &observation).await,
            Ok(Attached::Pending(_, _) | Attached::Ended(_)) => Next::Again,
            Ok(Attached::Open(session)) => {
                session.close().await;
                Next::Overtaken
            }
            Err(error) => self.failed(&error, Unavailable::Collect),
        }
    }

    /// Attaches to a run whose approval's time ran out, which expires it and ends the run.
    async fn expire(&self, run: &RunId) -> Next {
        match self.desk.gate.attach_with(run.clone(), Pace::Effects).await {
            // Somebody has approved it meanwhile. Nothing is executed here: who asks for it collects it.
            Ok(Attached::Allowed(session, _) | Attached::Open(session)) => session.close().await,
            Ok(Attached::Denied(session, observation)) => {
                let _told = self.denied(&session, &observation).await;
            }
            Ok(Attached::Pending(_, _) | Attached::Ended(_)) => {}
            Err(error) => tracing::debug!(%run, %error, "an approval past its time was not expired"),
        }
        Next::Again
    }

    /// Takes over a run that was left behind: it pauses for a person, or there is nothing in it to execute.
    async fn recover(&self, run: &RunId) -> Next {
        match self.desk.recover(run).await {
            Ok(()) => Next::Again,
            Err(error) => self.failed(&error, Unavailable::Recover),
        }
    }

    /// What an error of the session means, nothing having been executed.
    fn failed(&self, error: &SessionError, what: Unavailable) -> Next {
        match error {
            SessionError::Stale | SessionError::Exists(_) | SessionError::RunState { .. } => Next::Overtaken,
            SessionError::Leased { .. } | SessionError::LeaseLost(_) => Answer::InProgress.into(),
            SessionError::NotFound(_)
            | SessionError::Closed { .. }
            | SessionError::ApprovalHash(_)
            | SessionError::ApprovalExpired(_)
            | SessionError::NotRegistered(_)
            | SessionError::Invalid(_)
            | SessionError::Unavailable(_)
            | SessionError::OutcomeLost { .. }
            | SessionError::Internal { .. } => {
                self.desk.journal.line(&format!("error: {error}"));
                what.into()
            }
        }
    }

    async fn refuse(&self, refused: Refused) -> Result<Answer, Unavailable> {
        Ok(match refused {
            Refused::Rejected { approval, note, until, attempted } => {
                Answer::Rejected { approval, note, until, came_to: self.came_of(attempted).await? }
            }
            Refused::Cancelled { note, until, attempted } => {
                Answer::Cancelled { note, until, came_to: self.came_of(attempted).await? }
            }
            Refused::Expired { approval, until } => Answer::Expired { approval: Some(approval), until },
            Refused::Duplicate { run, step, finished_at: at } => {
                Answer::Duplicate { at, window: self.tool.window, outcome: self.recorded(run, &step).await? }
            }
        })
    }

    /// Whether a request that a person refused had been executed, or was in the end.
    async fn came_of(&self, attempted: Attempted) -> Result<WasExecuted, Unavailable> {
        match (attempted.outcome, attempted.executed) {
            (AttemptOutcome::None | AttemptOutcome::Unseen, _) => Ok(WasExecuted::No),
            (AttemptOutcome::Unknown, _) | (AttemptOutcome::Known, None) => Ok(WasExecuted::Perhaps),
            (AttemptOutcome::Known, Some(step)) => {
                self.recorded(attempted.run, &step).await.map(WasExecuted::Yes)
            }
        }
    }

    /// What is on record of a step that executed.
    async fn recorded(&self, run: RunId, step: &StepId) -> Result<String, Unavailable> {
        let steps = self.desk.read(move |reader| reader.steps_as_they_came_out(&run)).await?;
        let executed = steps.iter().find(|other| &other.id == step);
        let observation = executed.and_then(|step| step.observation.as_ref());
        observation.map(recorded_outcome).ok_or(Unavailable::Records)
    }

    /// Asks about another request whose outcome is unknown, and is blocked on that question.
    async fn reask(&self, asked: &Asked, unresolved: Unresolved) -> Next {
        let about = asked.about(unresolved.key);
        let run = unresolved.run;
        let args = match self.desk.read(move |reader| reader.steps(&run)).await {
            Ok(steps) => last_args(&steps),
            Err(unavailable) => return unavailable.into(),
        };
        match self.question(about, args).await {
            Ok(Some(approval)) => self.blocked(approval.id.clone()).into(),
            Ok(None) => Next::Overtaken,
            Err(next) => next,
        }
    }

    /// Opens a question about a request's unknown outcome in a fresh run of it. `None` when somebody was faster.
    async fn question(&self, about: Asked, args: Json) -> Result<Option<Arc<Approval>>, Next> {
        let seen = self.desk.view(&about, Depth::Own).await.map_err(Next::from)?;
        let Some(begin) = ask_again(&about, &seen.view.own) else { return Ok(None) };
        let proposal = self.proposal(args.as_str().as_bytes().to_vec(), Origin::Operator);
        let admission = Admission { asked: about, begin, question: true };
        let opened = match self.open(admission, seen.settles, proposal).await {
            Ok(opened) => opened,
            Err(SessionError::Stale | SessionError::Exists(_)) => return Ok(None),
            Err(error) => {
                self.desk.journal.line(&format!("error: asking about an unknown outcome: {error}"));
                return Err(Unavailable::Ask.into());
            }
        };
        opened.session.close().await;
        match opened.verdict {
            Verdict::Pending { approval, .. } => Ok(Some(approval)),
            Verdict::Allowed { .. } | Verdict::Denied { .. } | Verdict::Ended { .. } => {
                self.desk.journal.line("error: asking about an unknown outcome: no approval was opened");
                Err(Unavailable::Ask.into())
            }
        }
    }

    async fn begin(&self, asked: Asked, begin: Begin, settles: Vec<IndexWrite>, proposal: Proposal) -> Next {
        let admission = Admission { asked, begin, question: false };
        let opened = match self.open(admission, settles, proposal).await {
            Ok(opened) => opened,
            Err(error) => return self.failed(&error, Unavailable::Record),
        };
        let Opened { session, step, verdict } = opened;
        match verdict {
            Verdict::Allowed { .. } => self.execute(session, step).await,
            Verdict::Denied { observation } => self.denied(&session, &observation).await,
            Verdict::Pending { .. } => Next::Again,
            Verdict::Ended { run } => {
                session.close().await;
                self.ended_badly(&run)
            }
        }
    }

    /// Answers for a run that ended while it was decided. Why a policy could not be asked is the operator's to read.
    fn ended_badly(&self, run: &Run) -> Next {
        if run.reason == Some(Reason::InternalError) {
            self.desk.journal.line(&format!("error: run {}: {}", run.id, run.reason_detail));
            return Unavailable::Start.into();
        }
        Answer::Denied { reason: run.reason_detail.clone() }.into()
    }

    /// Begins a run and puts its request to the policy. What is written is written when something follows from it.
    async fn open(
        &self,
        admission: Admission,
        settles: Vec<IndexWrite>,
        proposal: Proposal,
    ) -> Result<Opened, SessionError> {
        let desk = &self.desk;
        let run = admission.begin.reuse.clone().unwrap_or_else(|| desk.new_run_id());
        let mut index = settles;
        index.insert(0, admission.begin.index_write(&admission.asked, &run));
        let rerun = admission.begin.rerun.clone();
        let admission = admission.asked.key.is_some().then(|| Arc::new(admission));
        let beginning = Beginning { pace: Pace::Effects, index, admission };
        let goal = format!("call {}", self.tool.upstream.name);
        let session = desk.gate.begin_with(run.clone(), &goal, desk.limits.clone(), beginning).await?;
        let _named = rerun.map(|attempt| desk.reruns.note(&run, attempt));
        let opened = async {
            let step = session.step().await?.ok_or_else(|| SessionError::RunState {
                run: run.clone(),
                why: "it ended before its call".to_owned(),
            })?;
            let verdict = step.propose(proposal).await?;
            Ok((step, verdict))
        };
        match opened.await {
            Ok((step, verdict)) => Ok(Opened { session, step, verdict }),
            Err(error) => {
                session.close().await;
                Err(error)
            }
        }
    }

    /// Ends the run of a request that was denied or invalid, and says which.
    async fn denied(&self, session: &Session, observation: &Observation) -> Next {
        let invalid = observation.kind == ObservationKind::InvalidDecision;
        let (why, field) = if invalid { (CLOSE_INVALID, "error") } else { (CLOSE_DENIED, "reason") };
        if let Err(error) = finish(session, why).await {
            return self.failed(&error, Unavailable::Record);
        }
        let reason = observation.field(field).unwrap_or_default();
        if invalid { Answer::Invalid { reason }.into() } else { Answer::Denied { reason }.into() }
    }

    /// Executes what was allowed, and answers with what was recorded.
    async fn execute(&self, session: Session, step: OpenStep) -> Next {
        let called = self.desk.executing.note(session.run_id(), ());
        let executed = step.execute().await;
        drop(called);
        let Executed { observation, ending, run_over } = match executed {
            Ok(executed) => executed,
            Err(error) => {
                session.close().await;
                return self.not_executed(error);
            }
        };
        let tool = &self.tool.upstream;
        let unknown = match came_to(&observation, Some(ending), Some(tool)) {
            CameTo::Unknown(ended) if !tool.class.is_read() => Some(ended),
            CameTo::Unknown(_) | CameTo::Known | CameTo::Nothing => None,
        };
        if let Some(ended) = unknown {
            return self.rerun(session, &step, ended, &observation).await.into();
        }
        let unrecorded = ending == Ending::Unrecordable && !tool.class.is_read();
        if !run_over {
            let why = if unrecorded { CLOSE_UNRECORDED } else { CLOSE_ERROR };
            if let Err(error) = finish(&session, why).await {
                self.desk.journal.line(&format!("error: {error}"));
                return Unavailable::Outcome.into();
            }
        } else {
            session.close().await;
        }
        if unrecorded {
            let reason = error_text(&observation);
            return Answer::Unrecorded { reason, window: self.tool.window }.into();
        }
        if ending == Ending::NotSent {
            self.desk.journal.line(&format!("call to {}: {}", tool.name, error_text(&observation)));
            return Unavailable::NotSent.into();
        }
        match of_observation(&observation) {
            Some(result) => Next::Tell(Told::Result(result)),
            None => Unavailable::Outcome.into(),
        }
    }

    fn not_executed(&self, error: SessionError) -> Next {
        if let SessionError::ApprovalExpired(approval) = error {
            let until = self.desk.gate.now().plus(self.tool.window);
            return Answer::Expired { approval: Some(approval), until }.into();
        }
        if let SessionError::RunState { .. } = error {
            return Answer::InProgress.into();
        }
        // By these two alone nobody can tell how far the call had come.
        let unsure = matches!(error, SessionError::OutcomeLost { .. } | SessionError::Internal { .. });
        self.failed(&error, if unsure { Unavailable::Outcome } else { Unavailable::Start })
    }

    /// Follows an attempt whose outcome is unknown: the same request is proposed again in the same run, which the
    /// policy puts to a person; where the run's limit is in the way, in a fresh one.
    async fn rerun(
        &self,
        session: Session,
        step: &OpenStep,
        ended: Ended,
        observation: &Observation,
    ) -> Told {
        let error = Some(error_text(observation));
        let run = session.run_id().clone();
        let name = &self.tool.upstream.name;
        self.desk
            .journal
            .line(&format!("run {run}: a call to {name} {}; its outcome is unknown", ended.clause()));
        let approval = match self.ask_in_run(&session, step, ended).await {
            Ok(approval) => approval,
            Err(error) => {
                self.desk
                    .journal
                    .line(&format!("error: run {run}: asking about an unknown outcome: {error}"));
                None
            }
        };
        session.close().await;
        Answer::UnknownOutcome { ended, error, approval: approval.map(|approval| approval.id.clone()) }.into()
    }

    async fn ask_in_run(
        &self,
        session: &Session,
        step: &OpenStep,
        ended: Ended,
    ) -> Result<Option<Arc<Approval>>, SessionError> {
        let input = session.input().await?;
        let executed = input.steps.iter().find(|other| &other.id == step.id()).cloned();
        let Some(executed) = executed else { return Ok(None) };
        let args =
            executed.decision.as_ref().map_or_else(Json::empty_object, |decision| decision.args_or_empty());
        let attempt: Attempt = attempt_of(&executed, ended);
        let _named = self.desk.reruns.note(session.run_id(), attempt);
        let Some(next) = session.step().await? else {
            return Ok(self.ask_in_fresh_run(&session.run().await, args).await);
        };
        let proposal = self.proposal(args.as_str().as_bytes().to_vec(), Origin::Operator);
        match next.propose(proposal).await? {
            Verdict::Pending { approval, .. } => Ok(Some(approval)),
            // The policy denies it by now: nothing waits.
            Verdict::Denied { .. } => finish(session, CLOSE_DENIED).await.map(|()| None),
            Verdict::Ended { run } => Ok(self.ask_in_fresh_run(&run, args).await),
            Verdict::Allowed { .. } => Ok(None),
        }
    }

    /// Failing this too, the next call of the tool asks. Of a run that a person cancelled nobody is asked: they have
    /// decided about it, and it stands in no other call's way.
    async fn ask_in_fresh_run(&self, ended: &Run, args: Json) -> Option<Arc<Approval>> {
        if ended.reason == Some(Reason::OperatorCancelled) {
            return None;
        }
        let key = request_key(&self.tool.upstream.name, Some(args.as_str().as_bytes()))?;
        let about = self.desk.asked(&self.tool, Some(key));
        self.question(about, args).await.unwrap_or(None)
    }
}

/// A run that was begun, its step and what was made of its request.
struct Opened {
    session: Session,
    step: OpenStep,
    verdict: Verdict,
}

/// What a call that waits on an approval is told.
fn pending(approval: &Approval) -> Answer {
    let id = approval.id.clone();
    if !approval.is_interruption() {
        return Answer::PendingApproval { approval: id };
    }
    match Attempt::named_in(&approval.capability).map(|attempt| attempt.ended) {
        Some(ended @ (Ended::TimedOut | Ended::NoAnswer)) => {
            Answer::UnknownOutcome { ended, error: None, approval: Some(id) }
        }
        Some(Ended::CutOff) | None => Answer::Interrupted { approval: id },
    }
}

/// The arguments of a run's last tool call, as recorded.
fn last_args(steps: &[Step]) -> Json {
    let decision =
        steps.iter().rev().filter(|step| step.tool().is_some()).find_map(|step| step.decision.as_ref());
    decision.map_or_else(Json::empty_object, |decision| decision.args_or_empty())
}

/// Ends a run whose call is over, unless the call has ended it, and closes its session.
///
/// # Errors
/// When the end could not be recorded, nor what it ends.
pub(super) async fn finish(session: &Session, why: &str) -> Result<(), SessionError> {
    let ended = async {
        if session.done().await {
            return Ok(());
        }
        let Some(step) = session.step().await? else { return Ok(()) };
        step.propose(Proposal::fail(why).from_origin(Origin::Operator)).await.map(drop)
    };
    let ended = ended.await;
    session.close().await;
    ended
}

/// Ends a run that was taken over and holds nothing to execute.
pub(super) async fn finish_recovered(session: &Session) -> Result<(), SessionError> {
    finish(session, CLOSE_RECOVERED).await
}
