//! Paths of the model, walked by the real store: what the model lets happen must happen, what it refuses must be refused,
//! and after each the rows must say what the model says.
//!
//! Owns the translation of an action into calls of the gate and of the operator. Tries refused actions as well as allowed
//! ones, so that a guard that is missing in the store shows. A death is a session that nobody ever hears of again.

use std::sync::Arc;
use std::time::Duration;

use holdpoint_actors::session::{Attached, Executed, Gate, OpenStep, Session, SessionError, Verdict};
use holdpoint_actors::store::{Answer, OperatorStore, Verdict as Said};
use holdpoint_actors::tree::Running;
use holdpoint_core::approval::ApprovalStatus;
use holdpoint_core::decision::Proposal;
use holdpoint_core::ids::RunId;
use holdpoint_core::run::{Reason, RunStatus};
use holdpoint_core::step::StepStatus;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::bench::{Bench, GOOD_FOR, LEASE, limits};
use crate::clock::Rng;
use crate::model::{
    Action, Call, Guards, PROCESSES, Question, Run, Session as Told, Standing, attempt, possible,
};

/// Actions of one path.
const STEPS_MAX: usize = 24;
/// One action of so many may be one that is refused.
const GOES_ON: u64 = 3;
/// Paths after which the actors are started anew, so that what the dead left does not pile up.
const PATHS_OF_A_BENCH: u64 = 250;

/// What a walk counted.
#[derive(Debug, Default)]
pub(crate) struct Walked {
    pub(crate) paths: u64,
    pub(crate) steps: u64,
    pub(crate) refused: u64,
    pub(crate) failed: Vec<String>,
}

/// Walks so many paths from this seed on.
pub(crate) async fn walk(seed: u64, paths: u64) -> Result<Walked, String> {
    let mut walked = Walked::default();
    while walked.paths < paths && walked.failed.is_empty() {
        let bench = Bench::new(true)?;
        let mut processes = Vec::new();
        for _ in 0..PROCESSES {
            processes.push(bench.tree().await?);
        }
        let mut operator = bench.operator()?;
        for _ in 0..PATHS_OF_A_BENCH.min(paths - walked.paths) {
            let of_path = seed.wrapping_add(walked.paths);
            let mut path = Path::begin(&bench, &processes, &mut operator, of_path)?;
            if let Err(why) = path.go(&mut walked).await {
                walked.failed.push(format!("path of seed {of_path}: {why}; {:?}", path.taken));
            }
            path.leave();
            walked.paths += 1;
        }
        for process in processes {
            process.tree.stop().await;
        }
    }
    Ok(walked)
}

/// What a process really holds.
enum Held {
    Nothing,
    Allowed(Session, OpenStep),
    Sent(Session, JoinHandle<Result<Executed, SessionError>>, Arc<Semaphore>),
    Open(Session),
}

struct Path<'a> {
    bench: &'a Bench,
    operator: &'a mut OperatorStore,
    /// One for each process; a process that died gets another over the same actors.
    gates: Vec<Gate>,
    running: &'a [Running],
    held: Vec<Held>,
    id: RunId,
    run: Run,
    rng: Rng,
    taken: Vec<Action>,
    /// What the dead held. Never dropped: a death runs no destructor.
    graves: Vec<Held>,
}

impl<'a> Path<'a> {
    fn begin(
        bench: &'a Bench,
        running: &'a [Running],
        operator: &'a mut OperatorStore,
        seed: u64,
    ) -> Result<Path<'a>, String> {
        let gates = running.iter().map(|process| bench.gate(process)).collect::<Result<_, _>>()?;
        let held = (0..PROCESSES).map(|_| Held::Nothing).collect();
        let id = RunId::from(format!("path-{seed}"));
        let (run, rng) = (Run::absent(), Rng::new(seed));
        Ok(Path {
            bench,
            operator,
            gates,
            running,
            held,
            id,
            run,
            rng,
            taken: Vec::new(),
            graves: Vec::new(),
        })
    }

    async fn go(&mut self, walked: &mut Walked) -> Result<(), String> {
        for _ in 0..STEPS_MAX {
            let Some(action) = self.draw() else { return Ok(()) };
            if let (Action::Begin { asks, .. }, Standing::Absent) = (action, self.run.standing) {
                self.id = RunId::from(format!("{}-{}", self.id, if asks { "ask" } else { "do" }));
            }
            self.taken.push(action);
            let expected = self.expected(action);
            let was_done = self.really(action, &expected.run).await?;
            walked.steps += 1;
            walked.refused += u64::from(expected.refused);
            if was_done == expected.refused {
                let said = if expected.refused { "refused" } else { "allowed" };
                return Err(format!("the model {said} {action:?}, and the store did not"));
            }
            self.run = expected.run;
            self.compare()?;
        }
        Ok(())
    }

    /// What is tried next: mostly something that goes on, so that a path gets anywhere.
    fn draw(&mut self) -> Option<Action> {
        let mut all = possible(&self.run);
        if self.rng.below(GOES_ON) != 0 {
            all.retain(|action| !self.expected(*action).refused);
        }
        let at = usize::try_from(self.rng.below(all.len() as u64)).unwrap_or(0);
        all.get(at).copied()
    }

    /// What the model says. An intent is followed by its effect here: no lease can run out between the two.
    fn expected(&self, action: Action) -> crate::model::Attempt {
        let mut expected = attempt(&self.run, action, Guards::ALL);
        if let (Action::Start { by }, false) = (action, expected.refused) {
            expected = attempt(&expected.run, Action::Send { by }, Guards::ALL);
        }
        expected
    }

    /// Does it, and says whether it was let happen.
    async fn really(&mut self, action: Action, after: &Run) -> Result<bool, String> {
        match action {
            Action::Begin { by, asks } => self.begins(by, asks).await,
            Action::Start { by } => Ok(self.starts(by).await),
            Action::Send { .. } => Err("an effect apart from its intent".to_owned()),
            Action::Record { by } => Ok(self.records(by).await),
            Action::Complete { by } => Ok(self.completes(by).await),
            Action::Die { by } => {
                let held = std::mem::replace(&mut self.held[by], Held::Nothing);
                self.graves.push(held);
                self.gates[by] = self.bench.gate(&self.running[by])?;
                Ok(true)
            }
            Action::Expire => {
                self.bench.wall.advance(LEASE + Duration::from_secs(1));
                Ok(true)
            }
            Action::Age => {
                self.bench.clock.advance(GOOD_FOR + Duration::from_secs(1));
                Ok(true)
            }
            Action::Attach { by } => self.attaches(by, after).await,
            Action::Decide { approve } => self.decides(approve),
        }
    }

    async fn begins(&mut self, by: usize, asks: bool) -> Result<bool, String> {
        let Ok(session) = self.gates[by].begin(self.id.clone(), "g", limits()).await else {
            return Ok(false);
        };
        let step = session.step().await.map_err(|error| error.to_string())?.ok_or("no step was started")?;
        match step.propose(Proposal::tool_call("pay", r#"{"amount":40}"#)).await {
            Ok(Verdict::Allowed { .. }) if !asks => self.held[by] = Held::Allowed(session, step),
            Ok(Verdict::Pending { .. }) if asks => {}
            other => return Err(format!("a proposal came to {other:?}")),
        }
        Ok(true)
    }

    async fn starts(&mut self, by: usize) -> bool {
        let Held::Allowed(session, step) = std::mem::replace(&mut self.held[by], Held::Nothing) else {
            return false;
        };
        let executing = tokio::spawn(async move { step.execute().await });
        loop {
            if let Some(inside) = self.bench.world.inside(&self.id) {
                self.held[by] = Held::Sent(session, executing, inside);
                return true;
            }
            if executing.is_finished() {
                return false;
            }
            tokio::task::yield_now().await;
        }
    }

    async fn records(&mut self, by: usize) -> bool {
        let Held::Sent(session, executing, inside) = std::mem::replace(&mut self.held[by], Held::Nothing)
        else {
            return false;
        };
        inside.add_permits(1);
        let recorded = matches!(executing.await, Ok(Ok(_)));
        if recorded {
            self.held[by] = Held::Open(session);
        }
        recorded
    }

    async fn completes(&mut self, by: usize) -> bool {
        let Held::Open(session) = std::mem::replace(&mut self.held[by], Held::Nothing) else { return false };
        match session.step().await {
            Ok(Some(step)) => matches!(step.propose(Proposal::complete("")).await, Ok(Verdict::Ended { .. })),
            Ok(None) | Err(_) => false,
        }
    }

    async fn attaches(&mut self, by: usize, after: &Run) -> Result<bool, String> {
        let attached = match self.gates[by].attach(self.id.clone()).await {
            Ok(attached) => attached,
            Err(SessionError::Internal { why, .. }) => return Err(why),
            Err(_) => return Ok(false),
        };
        let told = after.sessions[by];
        match attached {
            Attached::Open(session) if matches!(told, Told::Open(_)) => self.held[by] = Held::Open(session),
            Attached::Allowed(session, step) if matches!(told, Told::Granted(_)) => {
                self.held[by] = Held::Allowed(session, step);
            }
            Attached::Pending(..) if after.standing == Standing::Waiting && told == Told::None => {}
            Attached::Ended(_) if after.standing == Standing::Cancelled => {}
            other @ (Attached::Open(_)
            | Attached::Allowed(..)
            | Attached::Denied(..)
            | Attached::Pending(..)
            | Attached::Ended(_)) => {
                return Err(format!("attaching came to {other:?}, and the model has {told:?}"));
            }
        }
        Ok(true)
    }

    fn decides(&mut self, approve: bool) -> Result<bool, String> {
        let now = holdpoint_actors::clock::Clock::now(&*self.bench.clock);
        let run = self.id.clone();
        let approvals =
            self.operator.read(|reader| reader.approvals(&run)).map_err(|error| error.to_string())?;
        let latest = approvals.last().ok_or("there is no question")?;
        let verdict = if approve { Said::Approve } else { Said::Reject };
        let answer = Answer { run: &run, approval: &latest.id, shown: None, verdict, by: "ana", note: "" };
        Ok(self.operator.decide(&answer, now).is_ok())
    }

    /// Compares the rows with the model.
    fn compare(&mut self) -> Result<(), String> {
        let id = self.id.clone();
        let read = self.operator.read(|reader| {
            Ok((reader.run(&id)?, reader.lease(&id)?, reader.steps(&id)?, reader.approvals(&id)?))
        });
        let (run, lease, steps, approvals) = read.map_err(|error| error.to_string())?;
        let model = &self.run;
        let standing = match run.as_ref().map(|run| (run.status, run.reason)) {
            None => Standing::Absent,
            Some((RunStatus::Running, _)) => Standing::Running,
            Some((RunStatus::WaitingForApproval, _)) => Standing::Waiting,
            Some((RunStatus::Completed, Some(Reason::GoalCompleted))) => Standing::Completed,
            Some((RunStatus::Cancelled, _)) => Standing::Cancelled,
            Some(other) => return Err(format!("the run is {other:?}")),
        };
        let question = match approvals.last().map(|approval| approval.status) {
            None => Question::None,
            Some(ApprovalStatus::Pending) => Question::Pending,
            Some(ApprovalStatus::Approved) => Question::Approved,
            Some(ApprovalStatus::Rejected) => Question::Rejected,
            Some(ApprovalStatus::Expired) => Question::Expired,
        };
        let executes = steps.iter().any(|step| step.status == StepStatus::Executing);
        let is_done = steps.first().is_some_and(|step| step.status == StepStatus::Done);
        let effects = self.bench.world.effects(&self.id);
        let seen = (standing, question, lease.is_some(), executes, is_done, effects);
        let said = (
            model.standing,
            model.question,
            model.holder != 0,
            model.call == Call::Executing && model.standing == Standing::Running,
            model.call == Call::Done,
            usize::from(model.effects),
        );
        if seen == said { Ok(()) } else { Err(format!("the store has {seen:?}, and the model {said:?}")) }
    }

    /// Leaves everything as a death does.
    fn leave(mut self) {
        self.bench.world.forget(&self.id);
        let held = std::mem::take(&mut self.held);
        self.graves.extend(held);
        // A destructor would have the runs recovered, and nobody waits for that.
        self.graves.drain(..).for_each(std::mem::forget);
    }
}
