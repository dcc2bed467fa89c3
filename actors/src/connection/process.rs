//! The child process of one stdio server: starting it, containing it, ending it and everything it started.
//!
//! Knows nothing of MCP; `session` starts a process and closes it. What runs in the child before the server does is
//! the matter of `guard`.
//!
//! Each child has a *keeper*, a thread that starts it, waits for it, and ends with it:
//! - the signal that the kernel sends to a child at its parent's death is bound to the parent *thread*, so the thread
//!   that forks must live as long as the child;
//! - a child is not reaped before it is sure that nobody signals it any more, so its number can name nobody else at
//!   such a moment.
//!
//! The child is the guard of the server, or the server itself where there can be no guard. [`ProcessGroup`] ends the
//! server, and with it whatever it started, when it is dropped, so a killed or panicking actor leaves nothing behind.
//! What is left behind when a guard is killed together with this very process is the matter of `reap`.
//!
//! Longer than the others: starting, watching and ending a server are one piece, whose order is what makes it right.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};
use tokio::io::AsyncReadExt;
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use super::contain::{self, Containment, Held};
use super::guard::{self, Plan, Report};
use super::offspring::{self, FIRST_WALK, Groups, WALK_EVERY};
use super::reap::{self, GroupLedger};
use super::server::{ServerSpec, child_env};

/// How much of the end of a server's stderr is kept.
pub const STDERR_TAIL_BYTES: usize = 4096;
/// How long a failed connect waits for the end of stderr: a server that says why it ends is heard in full.
const STDERR_WAIT: Duration = Duration::from_secs(2);
/// How long each step of a graceful close may take: end of input, then SIGTERM, then SIGKILL.
const CLOSE_STEP: Duration = Duration::from_secs(2);
/// How long the keeper watches each killed group disappear before it leaves its record to the next start.
const DYING: Duration = Duration::from_secs(2);

/// A running server: its pipes, what holds it, and the news of its end.
#[derive(Debug)]
pub(crate) struct Process {
    /// The pipe to the server; taken by the transport.
    pub(crate) stdin: Option<ChildStdin>,
    /// The pipe from the server; taken by the transport.
    pub(crate) stdout: Option<ChildStdout>,
    pub(crate) stderr: StderrTail,
    group: ProcessGroup,
    held: Held,
    exit: watch::Receiver<Option<ExitStatus>>,
    /// Nothing escapes from a namespace, so nothing is looked for there.
    walker: Option<JoinHandle<()>>,
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(walker) = &self.walker {
            walker.abort();
        }
        // Whoever else holds a handle on the group, it ends here.
        self.group.kill();
    }
}

/// What the keeper hands over once the child runs.
#[derive(Debug)]
struct Started {
    stdin: std::process::ChildStdin,
    stdout: std::process::ChildStdout,
    stderr: std::process::ChildStderr,
    group: ProcessGroup,
    held: Held,
    exit: watch::Receiver<Option<ExitStatus>>,
}

impl Process {
    /// Starts the server in a group of its own, with the environment it is given and no more, held the strictest way
    /// that its description and this machine allow.
    ///
    /// # Errors
    /// When the program cannot be found or started, or not be held as the operator asks.
    pub(crate) async fn start(
        spec: &ServerSpec,
        session: &str,
        ledger: Arc<dyn GroupLedger>,
    ) -> io::Result<Self> {
        Self::start_in(contain::ways(spec.pid_namespace), spec, session, ledger).await
    }

    /// Starts the server held in the first of these ways that can be gone.
    pub(super) async fn start_in(
        ways: &'static [Containment],
        spec: &ServerSpec,
        session: &str,
        ledger: Arc<dyn GroupLedger>,
    ) -> io::Result<Self> {
        let (spec, session) = (spec.clone(), session.to_owned());
        let (tell, told) = oneshot::channel();
        std::thread::Builder::new()
            .name("holdpoint-keeper".to_owned())
            .spawn(move || keep(ways, &spec, &session, ledger, tell))?;
        let gone = |_| io::Error::other("the thread that starts servers ended");
        let started = told.await.map_err(gone)??;
        let walks = !started.held.by.is_namespace();
        Ok(Self {
            stdin: Some(ChildStdin::from_std(started.stdin)?),
            stdout: Some(ChildStdout::from_std(started.stdout)?),
            stderr: StderrTail::follow(ChildStderr::from_std(started.stderr)?),
            walker: walks.then(|| tokio::spawn(walk(started.group.clone()))),
            group: started.group,
            held: started.held,
            exit: started.exit,
        })
    }

    /// The server's process, by its number here.
    pub(crate) fn pid(&self) -> u32 {
        self.group.0.server
    }

    /// What holds the server.
    pub(crate) fn held(&self) -> &Held {
        &self.held
    }

    /// The group, to be killed from elsewhere.
    pub(crate) fn group(&self) -> &ProcessGroup {
        &self.group
    }

    /// Looks for groups that the server's children made. Before the server may end by itself, since nothing below it
    /// can be found through it afterwards.
    pub(crate) async fn look(&self) {
        if self.walker.is_some() {
            self.group.look().await;
        }
    }

    /// News of the leader's end, `None` while it runs.
    pub(crate) fn exit(&self) -> watch::Receiver<Option<ExitStatus>> {
        self.exit.clone()
    }

    /// Ends the server step by step: the caller has closed its input; then SIGTERM, then SIGKILL, to the whole group.
    pub(crate) async fn close(mut self) {
        // A server that is not told by the pipe is not told at all if it was never taken.
        drop(self.stdin.take());
        if !self.exits_within(CLOSE_STEP).await {
            self.group.terminate();
            if !self.exits_within(CLOSE_STEP).await {
                self.group.kill();
                self.exits_within(CLOSE_STEP).await;
            }
        }
        // The server's end, however it came, is the end of whatever else it started; dropping this says so again.
        self.is_struck_out_within(DYING + CLOSE_STEP).await;
    }

    /// Waits for the keeper's end: a program that ends before it would leave the record of a group that has gone.
    async fn is_struck_out_within(&mut self, patience: Duration) {
        let ended = async { while self.exit.changed().await.is_ok() {} };
        if tokio::time::timeout(patience, ended).await.is_err() {
            tracing::warn!(
                pid = self.pid(),
                "an ended server is still written down; the next start strikes it out"
            );
        }
    }

    async fn exits_within(&mut self, patience: Duration) -> bool {
        // A keeper that ended has seen the child's end.
        tokio::time::timeout(patience, self.exit.wait_for(Option::is_some)).await.is_ok()
    }
}

/// Walks the tree below the server now and then; soon at first, because much of what a server starts, it starts at once.
async fn walk(group: ProcessGroup) {
    let mut pause = FIRST_WALK;
    loop {
        tokio::time::sleep(pause).await;
        group.look().await;
        pause = (pause * 2).min(WALK_EVERY);
    }
}

/// A server, and whatever it started. Dropping the last handle kills it all.
#[derive(Debug, Clone)]
pub(crate) struct ProcessGroup(Arc<GroupGuard>);

#[derive(Debug)]
struct GroupGuard {
    leader: SharedLeader,
    ledger: Arc<dyn GroupLedger>,
    server: u32,
}

/// Shared by the guard and the keeper, so that "signal the child" and "reap it" come one after the other. `None` once
/// it was reaped: its number may name somebody else, and no signal goes there any more.
type SharedLeader = Arc<Mutex<Option<Leader>>>;

/// The child that this process waits for.
#[derive(Debug)]
struct Leader {
    child: Option<Pid>,
    /// Whether it is a guard, which does what is asked of it, or the leader of the server's own group.
    is_guard: bool,
    groups: Groups,
}

impl Leader {
    fn terminate(&self) {
        let Some(child) = self.child else { return };
        // Nothing left to signal is what was wanted.
        if self.is_guard {
            kill_process(child, guard::TERMINATE).ok();
        } else {
            kill_process_group(child, Signal::TERM).ok();
        }
    }

    fn kill(&mut self) {
        let Some(child) = self.child else { return };
        if self.is_guard {
            kill_process(child, guard::END).ok();
            // Somebody may have stopped it.
            kill_process(child, Signal::CONT).ok();
        } else {
            // The others first: they are found through the living.
            self.groups.kill_others();
            kill_process_group(child, Signal::KILL).ok();
        }
    }

    /// Ends what a guard held that was killed itself.
    fn kill_in_place_of_a_guard(&mut self) {
        self.groups.kill_others();
        self.groups.kill_own();
    }
}

impl ProcessGroup {
    async fn look(&self) {
        let group = self.clone();
        let look = move || {
            let changes = group.0.lock().as_mut().map(|leader| leader.groups.look());
            // Outside the lock: the ledger may be slow.
            changes.unwrap_or_default().write(&*group.0.ledger);
        };
        // Off the runtime's own threads. A walk that panicked is followed by the next.
        tokio::task::spawn_blocking(look).await.ok();
    }

    fn terminate(&self) {
        if let Some(leader) = &*self.0.lock() {
            leader.terminate();
        }
    }

    /// Has every process of the server killed. Safe at any time and any number of times.
    pub(crate) fn kill(&self) {
        self.0.kill();
    }
}

impl GroupGuard {
    fn lock(&self) -> MutexGuard<'_, Option<Leader>> {
        self.leader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kill(&self) {
        if let Some(leader) = &mut *self.lock() {
            leader.kill();
        }
    }
}

impl Drop for GroupGuard {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The keeper's whole life: start the child, wait for the server's end, end what it left, reap the child, strike out
/// its records.
fn keep(
    ways: &[Containment],
    spec: &ServerSpec,
    session: &str,
    ledger: Arc<dyn GroupLedger>,
    tell: oneshot::Sender<io::Result<Started>>,
) {
    let forks = reap::forks().ok();
    let mut born = match bear(ways, spec) {
        Ok(born) => born,
        Err(error) => {
            tell.send(Err(error)).ok();
            return;
        }
    };
    let record = reap::describe(born.recorded, forks, session, &spec.name);
    // Before the server is asked anything, and however long it takes.
    record.iter().for_each(|record| ledger.record(record));
    let (child, is_guard) = (raw_pid(born.child.id()), born.report.is_some());
    let leader = Leader { child, is_guard, groups: Groups::new(born.child.id(), record) };
    let leader: SharedLeader = Arc::new(Mutex::new(Some(leader)));
    let guard = GroupGuard { leader: leader.clone(), ledger: ledger.clone(), server: born.server };
    let (exited, exit) = watch::channel(None);
    let pipes = (born.child.stdin.take(), born.child.stdout.take(), born.child.stderr.take());
    if let (Some(stdin), Some(stdout), Some(stderr)) = pipes {
        let (group, held) = (ProcessGroup(Arc::new(guard)), born.held.clone());
        // If nobody waits any more, the message comes back, and dropping the group in it kills the child.
        tell.send(Ok(Started { stdin, stdout, stderr, group, held, exit })).ok();
    }
    let told = born.ended.or_else(|| born.report.as_mut().and_then(Report::ended));
    let left = bury(&leader, &mut born.child, told, &exited).map_or(0, |leader| {
        // Whoever closes the server waits until `exited` is dropped.
        leader.groups.strike_out(&*ledger, DYING)
    });
    if left > 0 {
        tracing::warn!(
            server = spec.name,
            pid = born.server,
            left,
            "a killed server's processes are still there; the next start looks again"
        );
    }
    drop(exited);
}

/// Sees to it that nothing of a server that has ended is left, tells of its end, and reaps the child.
///
/// `told` is the server's end as its guard told it: `None` without a guard, and from one that was killed.
fn bury(
    leader: &SharedLeader,
    child: &mut Child,
    told: Option<ExitStatus>,
    exited: &watch::Sender<Option<ExitStatus>>,
) -> Option<Leader> {
    let lock = || leader.lock().unwrap_or_else(PoisonError::into_inner);
    if told.is_none() {
        await_exit(child);
    }
    if let Some(leader) = &mut *lock() {
        leader.kill();
        if leader.is_guard && told.is_none() {
            leader.kill_in_place_of_a_guard();
        }
    }
    if told.is_some() {
        exited.send(told).ok();
        // The guard's end: nothing is left.
        await_exit(child);
    }
    let (status, ended) = {
        let mut leader = lock();
        (child.wait(), leader.take())
    };
    if told.is_none() {
        // A guard has no other end of its own than this one.
        let killed = ExitStatus::from_raw(Signal::KILL.as_raw());
        let is_guard = ended.as_ref().is_some_and(|leader| leader.is_guard);
        let status = status.ok().filter(|status| !(is_guard && status.success())).unwrap_or(killed);
        exited.send(Some(status)).ok();
    }
    ended
}

/// A started server.
struct Born {
    /// The guard, or the server itself.
    child: Child,
    report: Option<Report>,
    /// The server's process, by its number here.
    server: u32,
    /// The group that a later start would look for.
    recorded: u32,
    held: Held,
    /// The server's end, if its guard told of that first.
    ended: Option<ExitStatus>,
}

/// Starts a server, held in the first of these ways that can be gone.
fn bear(ways: &[Containment], spec: &ServerSpec) -> io::Result<Born> {
    let mut obstacles = Vec::new();
    for way in ways {
        if let Some(why) = way.obstacle() {
            obstacles.push((*way, why.to_owned()));
            continue;
        }
        let instead_of = (!obstacles.is_empty()).then(|| contain::listed(&obstacles));
        match bear_in(*way, spec) {
            Ok(born) => return Ok(Born { held: Held { by: *way, instead_of }, ..born }),
            // What went well in the rehearsal may fail later: somebody used up what there is of it.
            Err(error) => match guard::failed_step(&error) {
                Some(why) => {
                    tracing::warn!(server = spec.name, why, "a server can't be held by {}", way.describe());
                    obstacles.push((*way, why));
                }
                None => return Err(error),
            },
        }
    }
    Err(io::Error::other(contain::refusal(&obstacles)))
}

fn bear_in(way: Containment, spec: &ServerSpec) -> io::Result<Born> {
    let mut command = command(spec)?;
    let (plan, mut report) = Plan::new(way, false)?;
    plan.install(&mut command);
    let child = command.spawn()?;
    // The report's writing end goes with it: from now on the guard alone has it.
    drop(command);
    let held = Held { by: way, instead_of: None };
    let own = child.id();
    if !way.is_guarded() {
        return Ok(Born { child, report: None, server: own, recorded: own, held, ended: None });
    }
    // A guard that was killed before it could tell is buried by the keeper like any other.
    let (below, ended) = report.started();
    let below = below.unwrap_or(own);
    let (server, recorded) = if way.is_namespace() {
        // The init's first child. The init is of the guard's group, and the server's own is seen by nobody else.
        (offspring::children(below).first().copied().unwrap_or(own), own)
    } else {
        (below, below)
    };
    Ok(Born { child, report: Some(report), server, recorded, held, ended })
}

/// Waits for the child's end without reaping it.
fn await_exit(child: &Child) {
    let Some(pid) = raw_pid(child.id()) else { return };
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while matches!(waitid(WaitId::Pid(pid), options), Err(error) if error == rustix::io::Errno::INTR) {}
}

fn raw_pid(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}

fn command(spec: &ServerSpec) -> io::Result<Command> {
    let (program, arguments) = spec
        .command
        .split_first()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the command is empty"))?;
    let mut command = Command::new(find(program, std::env::var_os("PATH").as_deref())?);
    command
        .arg0(program)
        .args(arguments)
        .env_clear()
        .envs(child_env(&spec.inherit_env, &spec.env, |name| std::env::var_os(name)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    Ok(command)
}

/// Finds the program on this process's path, not on the one that the server is given.
fn find(program: &str, path: Option<&OsStr>) -> io::Result<PathBuf> {
    if program.contains('/') {
        return Ok(program.into());
    }
    let runs = |file: &PathBuf| {
        file.is_file() && rustix::fs::access(file.as_path(), rustix::fs::Access::EXEC_OK).is_ok()
    };
    // A relative entry would let the working directory choose the program.
    path.map(std::env::split_paths)
        .into_iter()
        .flatten()
        .filter(|folder| Path::is_absolute(folder))
        .map(|folder| folder.join(program))
        .find(runs)
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("no program {program:?} on PATH")))
}

/// The last bytes that a server wrote to stderr.
#[derive(Debug)]
pub(crate) struct StderrTail {
    kept: Arc<Mutex<VecDeque<u8>>>,
    done: watch::Receiver<bool>,
    reader: JoinHandle<()>,
}

impl StderrTail {
    fn follow(stderr: ChildStderr) -> Self {
        let kept = Arc::new(Mutex::new(VecDeque::with_capacity(STDERR_TAIL_BYTES)));
        let (finished, done) = watch::channel(false);
        let reader = tokio::spawn(follow(stderr, kept.clone(), finished));
        Self { kept, done, reader }
    }

    /// Waits up to two seconds for the end of stderr.
    pub(crate) async fn wait(&self) {
        let mut done = self.done.clone();
        tokio::time::timeout(STDERR_WAIT, done.wait_for(|done| *done)).await.ok();
    }

    /// What was kept, trimmed. Still the server's own words.
    pub(crate) fn text(&self) -> String {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: Vec<u8> = kept.iter().copied().collect();
        String::from_utf8_lossy(&bytes).trim().to_owned()
    }
}

impl Drop for StderrTail {
    fn drop(&mut self) {
        // A process that left the group may hold the pipe for ever.
        self.reader.abort();
    }
}

async fn follow(mut stderr: ChildStderr, kept: Arc<Mutex<VecDeque<u8>>>, finished: watch::Sender<bool>) {
    let mut chunk = [0; STDERR_TAIL_BYTES];
    while let Ok(count @ 1..) = stderr.read(&mut chunk).await {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        let surplus = (kept.len() + count).saturating_sub(STDERR_TAIL_BYTES);
        kept.drain(..surplus);
        kept.extend(&chunk[..count]);
    }
    finished.send(true).ok();
}
