//! Schedules: calls side by side on one thread under a clock that stands still, in an order that a seed decides.
//!
//! Owns the places where a call waits for its turn: before its policy is asked, before and after its start is committed,
//! inside its tool, and before its outcome is. The seed decides who goes on next, when an actor dies and how, and when
//! time passes. Every call must come to an end, no effect may happen that nobody allowed, and the record must verify.
//! The writer's own thread is the system's to schedule, so a seed repeats the decisions and not every instant.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use holdpoint_actors::address::Address;
use holdpoint_actors::faults::{Failure, Point};
use holdpoint_actors::session::{Attached, Gate, Session, SessionError, Verdict};
use holdpoint_actors::store::{self, Answer, OperatorStore, Verdict as Said};
use holdpoint_actors::tree::{Running, Tree};
use holdpoint_actors::{approval, executor, lease, policy};
use holdpoint_core::decision::Proposal;
use holdpoint_core::ids::RunId;
use holdpoint_core::run::RunStatus;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;

use crate::bench::{Bench, LEASE, limits};
use crate::clock::{Rng, until};

/// Calls side by side.
const CALLS: u64 = 3;
/// Schedules after which the actors are started anew.
const SCHEDULES_OF_A_BENCH: u64 = 100;
/// Deaths of one actor in that time: more within a minute end the whole tree, as they should.
const DEATHS_OF_AN_ACTOR: u64 = 5;
/// How often a call is gone on with before it counts as never ending.
const TRIES_MAX: usize = 4_000;
/// How long the system may take to give every thread its turn.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often the driver looks before a schedule counts as stuck.
const LOOKS_MAX: usize = 200_000;

/// What the schedules counted.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    pub(crate) schedules: u64,
    pub(crate) turns: u64,
    pub(crate) deaths: u64,
    pub(crate) effects: u64,
    pub(crate) failed: Vec<String>,
}

/// Who waits for a turn.
type Turn = Arc<Semaphore>;

/// Where a call waits for its turn.
#[derive(Debug, Clone)]
struct Turns(mpsc::UnboundedSender<Turn>);

impl Turns {
    async fn wait(self) {
        let turn = Arc::new(Semaphore::new(0));
        // When the driver has gone, everybody goes on.
        if self.0.send(Arc::clone(&turn)).is_ok() {
            drop(turn.acquire().await);
        }
    }
}

/// Keeps so many schedules from this seed on.
pub(crate) fn keep(seed: u64, count: u64) -> Result<Kept, String> {
    let mut kept = Kept::default();
    // The dead say so on the way.
    std::panic::set_hook(Box::new(|_| {}));
    while kept.schedules < count && kept.failed.is_empty() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .map_err(|error| error.to_string())?;
        let many = SCHEDULES_OF_A_BENCH.min(count - kept.schedules);
        runtime.block_on(of_one_bench(seed, many, &mut kept))?;
    }
    Ok(kept)
}

async fn of_one_bench(seed: u64, many: u64, kept: &mut Kept) -> Result<(), String> {
    // A clock that stands still jumps when everybody waits, and the writer's thread is nobody that it knows of. While
    // something blocks, it stands.
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let stands = tokio::task::spawn_blocking(move || stopped.recv().is_ok());
    let bench = Arc::new(Bench::new(false)?);
    let running = bench.tree().await?;
    let mut died = [0; 5];
    for _ in 0..many {
        let of_this = seed.wrapping_add(kept.schedules);
        match one(&bench, &running, of_this, &mut died, kept).await {
            Ok(()) => {}
            Err(why) => {
                kept.failed.push(format!("schedule of seed {of_this}: {why}"));
                break;
            }
        }
        kept.schedules += 1;
    }
    let verified = bench.operator()?.read(|reader| reader.verify(0, 0)).map_err(|error| error.to_string())?;
    if let Some(broken) = verified.broken {
        kept.failed.push(format!("schedules up to seed {}: {broken:?}", seed.wrapping_add(kept.schedules)));
    }
    drop(stop);
    stands.await.map_err(|error| error.to_string())?;
    // With the clock free again, whatever is left ends by its deadline.
    running.tree.stop().await;
    Ok(())
}

async fn one(
    bench: &Arc<Bench>,
    running: &Running,
    seed: u64,
    died: &mut [u64; 5],
    kept: &mut Kept,
) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let gate = bench.gate(running)?;
    let (sender, mut waiting) = mpsc::unbounded_channel();
    let mut calls: Vec<(RunId, JoinHandle<Result<(), String>>)> = Vec::new();
    for at in 0..CALLS {
        let asks = rng.below(3) == 0;
        let id = RunId::from(format!("schedule-{seed}-{at}-{}", if asks { "ask" } else { "do" }));
        for point in [Point::Judging, Point::Starting, Point::Started, Point::Answered] {
            let turns = Turns(sender.clone());
            running.tree.hooks.once(point, id.clone(), move || turns.wait());
        }
        let read = rng.below(4) == 0;
        let caller = Caller { gate: gate.clone(), bench: Arc::clone(bench), id: id.clone(), read };
        calls.push((id, tokio::spawn(caller.come_to_an_end())));
    }
    drop(sender);
    drive(bench, running, &mut waiting, &calls, (&mut rng, died), kept).await?;
    for (id, call) in calls {
        call.await.map_err(|error| format!("{id}: {error}"))?.map_err(|why| format!("{id}: {why}"))?;
        judge(bench, &id, kept)?;
    }
    Ok(())
}

/// Decides who goes on, who dies and when time passes, until every call has come to an end.
async fn drive(
    bench: &Bench,
    running: &Running,
    waiting: &mut mpsc::UnboundedReceiver<Turn>,
    calls: &[(RunId, JoinHandle<Result<(), String>>)],
    (rng, died): (&mut Rng, &mut [u64; 5]),
    kept: &mut Kept,
) -> Result<(), String> {
    let mut turns: Vec<Turn> = Vec::new();
    let mut deaths = rng.below(3);
    for _ in 0..LOOKS_MAX {
        if calls.iter().all(|(_, call)| call.is_finished()) {
            return Ok(());
        }
        while let Ok(turn) = waiting.try_recv() {
            turns.push(turn);
        }
        // Now and then somebody waits although they could go on.
        if !turns.is_empty() && rng.below(4) != 0 {
            let at = usize::try_from(rng.below(turns.len() as u64)).unwrap_or(0);
            turns.swap_remove(at).add_permits(1);
            kept.turns += 1;
        }
        if deaths > 0 && rng.below(12) == 0 {
            deaths -= 1;
            let victim = usize::try_from(rng.below(5)).unwrap_or(0);
            if died[victim] < DEATHS_OF_AN_ACTOR {
                died[victim] += 1;
                kept.deaths += 1;
                strike(&running.tree, victim, rng);
            }
        }
        if rng.below(60) == 0 {
            bench.wall.advance(LEASE + Duration::from_secs(1));
        }
        // Faster when nobody could go on: whoever waits then waits for an actor to come back, which may be the writer's
        // thread. It knows nothing of this clock, and a deadline must not come before it had its turn.
        let step = if turns.is_empty() {
            threads_come_to_rest();
            40
        } else {
            4
        };
        tokio::time::advance(Duration::from_millis(rng.below(step))).await;
        tokio::task::yield_now().await;
    }
    let left: Vec<&RunId> = calls.iter().filter(|(_, call)| !call.is_finished()).map(|(id, _)| id).collect();
    Err(format!("{left:?} never ended"))
}

/// Waits until no other thread of this process has anything to do. One that never rests is met by the calls' own limits.
fn threads_come_to_rest() {
    let own = std::fs::read_link("/proc/thread-self").ok();
    let own = own.as_deref().and_then(Path::file_name);
    let works = |task: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        // After the name, which may hold anything; a thread that has gone has none.
        let state = stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
        Some(&*task.file_name()) != own && state.is_some_and(|state| state != 'S')
    };
    let rest = || !std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten().any(works);
    let _rested = until(PATIENCE, || rest().then_some(()));
}

/// Has an actor die, as soon as there is one: it may be being started again, and the clock is the driver's.
fn strike(tree: &Tree, victim: usize, rng: &mut Rng) {
    let failure = match rng.below(3) {
        0 => Some(Failure::Panic),
        1 => Some(Failure::Error),
        _ => None,
    };
    match victim {
        0 => die(tree.store.address(), failure, store::Msg::Fail),
        1 => die(&tree.lease, failure, lease::Msg::Fail),
        2 => die(&tree.policy, failure, policy::Msg::Fail),
        3 => die(&tree.executor, failure, executor::Msg::Fail),
        _ => die(&tree.approval, failure, approval::Msg::Fail),
    }
}

fn die<M: ractor::Message>(address: &Address<M>, failure: Option<Failure>, fail: fn(Failure) -> M) {
    let address = address.clone();
    tokio::spawn(async move {
        // One that is not back within that time dies some other time.
        let Some(actor) = address.find(Duration::from_secs(5)).await else { return };
        match failure {
            // It may be dying of something else already.
            Some(failure) => drop(actor.cast(fail(failure))),
            None => actor.kill(),
        }
    });
}

/// Somebody who makes one call and goes on until its run is over, whatever happens.
struct Caller {
    gate: Gate,
    bench: Arc<Bench>,
    id: RunId,
    read: bool,
}

impl Caller {
    async fn come_to_an_end(self) -> Result<(), String> {
        let mut last = String::new();
        let mut again = tokio::time::interval(Duration::from_millis(3));
        for _ in 0..TRIES_MAX {
            let tried = self.once().await;
            match tried {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => {
                    last = error.to_string();
                    if let SessionError::Leased { .. } = error {
                        self.bench.wall.advance(LEASE + Duration::from_secs(1));
                    }
                }
            }
            self.answer_questions()?;
            again.tick().await;
        }
        Err(format!("it did not end in {TRIES_MAX} tries: {last}"))
    }

    /// Goes on once; true when the run is over.
    async fn once(&self) -> Result<bool, SessionError> {
        let session = match self.gate.begin(self.id.clone(), "g", limits()).await {
            Ok(session) => session,
            Err(SessionError::Exists(_)) => match self.gate.attach(self.id.clone()).await {
                Ok(Attached::Open(session) | Attached::Denied(session, _)) => {
                    return complete(&session).await;
                }
                Ok(Attached::Allowed(session, step)) => {
                    step.execute().await?;
                    return complete(&session).await;
                }
                Ok(Attached::Pending(..)) => return Ok(false),
                Ok(Attached::Ended(_)) => return Ok(true),
                Err(error) => {
                    let over = self.standing().is_some_and(RunStatus::is_terminal);
                    return if over { Ok(true) } else { Err(error) };
                }
            },
            Err(error) => return Err(error),
        };
        let Some(step) = session.step().await? else { return Ok(true) };
        let (tool, args) = if self.read { ("read", "{}") } else { ("pay", r#"{"amount":40}"#) };
        match step.propose(Proposal::tool_call(tool, args)).await? {
            Verdict::Allowed { .. } => {
                step.execute().await?;
                complete(&session).await
            }
            Verdict::Denied { .. } => complete(&session).await,
            Verdict::Pending { .. } => Ok(false),
            Verdict::Ended { .. } => Ok(true),
        }
    }

    fn operator(&self) -> Result<OperatorStore, String> {
        self.bench.operator()
    }

    fn standing(&self) -> Option<RunStatus> {
        let run = self.operator().ok()?.read(|reader| reader.run(&self.id)).ok()??;
        Some(run.status)
    }

    /// Says yes to what waits: a call that was cut off runs once more.
    fn answer_questions(&self) -> Result<(), String> {
        let now = holdpoint_actors::clock::Clock::now(&*self.bench.clock);
        let mut operator = self.operator()?;
        let approvals =
            operator.read(|reader| reader.approvals(&self.id)).map_err(|error| error.to_string())?;
        if let Some(open) = approvals.iter().rfind(|approval| approval.is_open(now)) {
            let (run, approval) = (&self.id, &open.id);
            let answer = Answer { run, approval, shown: None, verdict: Said::Approve, by: "ana", note: "" };
            // Somebody else may be writing; then it is answered next time.
            drop(operator.decide(&answer, now));
        }
        Ok(())
    }
}

async fn complete(session: &Session) -> Result<bool, SessionError> {
    let Some(step) = session.step().await? else { return Ok(true) };
    step.propose(Proposal::complete("")).await?;
    Ok(true)
}

/// Holds a run that is over to what was allowed.
fn judge(bench: &Bench, id: &RunId, kept: &mut Kept) -> Result<(), String> {
    let read =
        bench.operator()?.read(|reader| Ok((reader.run(id)?, reader.events(id)?, reader.approvals(id)?)));
    let (run, events, approvals) = read.map_err(|error| error.to_string())?;
    let run = run.ok_or_else(|| format!("{id} is not in the record"))?;
    if !run.status.is_terminal() {
        return Err(format!("{id} is {}", run.status));
    }
    let of = |kind: &str| events.iter().filter(|event| event.kind == kind).count();
    let effects = bench.world.effects(id);
    let by_policy = usize::from(!id.as_str().ends_with("ask"));
    let granted = approvals.iter().filter(|approval| approval.decided_by == "ana").count();
    let (starts, finished) = (of("step.tool_started"), of("run.finished"));
    if effects > starts || effects > by_policy + granted || finished != 1 {
        return Err(format!("{id}: {effects} effects, {starts} starts, {granted} grants, {finished} ends"));
    }
    kept.effects += effects as u64;
    bench.world.forget(id);
    Ok(())
}
