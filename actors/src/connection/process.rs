//! The child process of one stdio server: starting it, containing it, ending it and everything it started.
//!
//! The one file with `unsafe`: the hook that runs in the child between fork and exec. Knows nothing of MCP; `session`
//! starts a process and closes it.
//!
//! Each child has a *keeper*, a thread that starts it, waits for it, and ends with it:
//! - the signal that the kernel sends to a child at its parent's death is bound to the parent *thread*, so the thread
//!   that forks must live as long as the child;
//! - the leader is not reaped before the rest of its group is killed, so the number can name nobody else at that moment.
//!
//! [`ProcessGroup`] kills the group when it is dropped, so a killed or panicking actor leaves nothing behind. What a
//! SIGKILL of this very process leaves behind (grandchildren) is the matter of `reap`.
//!
//! The server is not put into a process-id namespace. It would become process 1 there, which changes how signals and
//! orphans reach it, and would see its user mapped; that belongs to a sandbox that an operator chooses.

#![expect(unsafe_code, reason = "the hook between fork and exec is unsafe to install")]

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::io::AsyncReadExt;
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use super::offspring::{FIRST_WALK, Groups, WALK_EVERY};
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

/// A running server: its pipes, its group, and the news of its end.
#[derive(Debug)]
pub(crate) struct Process {
    /// The pipe to the server; taken by the transport.
    pub(crate) stdin: Option<ChildStdin>,
    /// The pipe from the server; taken by the transport.
    pub(crate) stdout: Option<ChildStdout>,
    pub(crate) stderr: StderrTail,
    group: ProcessGroup,
    exit: watch::Receiver<Option<ExitStatus>>,
    walker: JoinHandle<()>,
}

impl Drop for Process {
    fn drop(&mut self) {
        self.walker.abort();
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
    exit: watch::Receiver<Option<ExitStatus>>,
}

impl Process {
    /// Starts the server in a group of its own, with the environment it is given and no more.
    ///
    /// # Errors
    /// When the program cannot be found or started.
    pub(crate) async fn start(
        spec: &ServerSpec,
        session: &str,
        ledger: Arc<dyn GroupLedger>,
    ) -> io::Result<Self> {
        let command = command(spec)?;
        let (session, server) = (session.to_owned(), spec.name.clone());
        let (tell, told) = oneshot::channel();
        std::thread::Builder::new()
            .name("holdpoint-keeper".to_owned())
            .spawn(move || keep(command, &session, &server, ledger, tell))?;
        let gone = |_| io::Error::other("the thread that starts servers ended");
        let started = told.await.map_err(gone)??;
        Ok(Self {
            stdin: Some(ChildStdin::from_std(started.stdin)?),
            stdout: Some(ChildStdout::from_std(started.stdout)?),
            stderr: StderrTail::follow(ChildStderr::from_std(started.stderr)?),
            walker: tokio::spawn(walk(started.group.clone())),
            group: started.group,
            exit: started.exit,
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.group.pgid()
    }

    /// The group, to be killed from elsewhere.
    pub(crate) fn group(&self) -> &ProcessGroup {
        &self.group
    }

    /// Looks for groups that the server's children made. Before the server may end by itself, since nothing below it
    /// can be found through it afterwards.
    pub(crate) async fn look(&self) {
        self.group.look().await;
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
            self.group.signal(Signal::TERM);
            if !self.exits_within(CLOSE_STEP).await {
                self.group.kill();
                self.exits_within(CLOSE_STEP).await;
            }
        }
        // The leader's end, however it came, made the keeper kill the rest of the group; dropping it does so again.
        self.is_struck_out_within(DYING + CLOSE_STEP).await;
    }

    /// Waits for the keeper's end: a program that ends before it would leave the record of a group that has gone.
    async fn is_struck_out_within(&mut self, patience: Duration) {
        let ended = async { while self.exit.changed().await.is_ok() {} };
        if tokio::time::timeout(patience, ended).await.is_err() {
            tracing::warn!(
                pgid = self.pid(),
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

/// The process group of a server, and the groups that its children made. Dropping the last handle kills them all.
#[derive(Debug, Clone)]
pub(crate) struct ProcessGroup(Arc<GroupGuard>);

#[derive(Debug)]
struct GroupGuard {
    leader: SharedLeader,
    ledger: Arc<dyn GroupLedger>,
    pgid: u32,
}

/// Shared by the guard and the keeper, so that "signal the group" and "reap its leader" come one after the other.
/// `None` once the leader was reaped: its number may name somebody else, and no signal goes there any more.
type SharedLeader = Arc<Mutex<Option<Leader>>>;

#[derive(Debug)]
struct Leader {
    pgid: Option<Pid>,
    groups: Groups,
}

impl Leader {
    fn signal(&self, signal: Signal) {
        if let Some(pgid) = self.pgid {
            // Nothing left to signal is what was wanted.
            kill_process_group(pgid, signal).ok();
        }
    }

    fn kill(&mut self) {
        // The others first: they are found through the living.
        self.groups.kill_others();
        self.signal(Signal::KILL);
    }
}

impl ProcessGroup {
    fn pgid(&self) -> u32 {
        self.0.pgid
    }

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

    fn signal(&self, signal: Signal) {
        if let Some(leader) = &*self.0.lock() {
            leader.signal(signal);
        }
    }

    /// Sends SIGKILL to every process of every group of the server. Safe at any time and any number of times.
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

/// The keeper's whole life: start the child, wait for its end, end its groups, reap it, strike out its records.
fn keep(
    mut command: Command,
    session: &str,
    server: &str,
    ledger: Arc<dyn GroupLedger>,
    tell: oneshot::Sender<io::Result<Started>>,
) {
    let forks = reap::forks().ok();
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            tell.send(Err(error)).ok();
            return;
        }
    };
    let pgid = child.id();
    let record = reap::describe(pgid, forks, session, server);
    // Before the server is asked anything, and however long it takes.
    record.iter().for_each(|record| ledger.record(record));
    let groups = Groups::new(record);
    let leader: SharedLeader = Arc::new(Mutex::new(Some(Leader { pgid: raw_pid(pgid), groups })));
    let group = ProcessGroup(Arc::new(GroupGuard { leader: leader.clone(), ledger: ledger.clone(), pgid }));
    let (exited, exit) = watch::channel(None);
    let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    if let (Some(stdin), Some(stdout), Some(stderr)) = pipes {
        // If nobody waits any more, the message comes back, and dropping the group in it kills the child.
        tell.send(Ok(Started { stdin, stdout, stderr, group, exit })).ok();
    }
    await_exit(&child);
    let (status, ended) = {
        let mut leader = leader.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(leader) = &mut *leader {
            leader.kill();
        }
        (child.wait(), leader.take())
    };
    exited.send(Some(status.unwrap_or_default())).ok();
    // Whoever closes the server waits until `exited` is dropped.
    let left = ended.map_or(0, |leader| leader.groups.strike_out(&*ledger, DYING));
    if left > 0 {
        tracing::warn!(
            server,
            pgid,
            left,
            "a killed server's processes are still there; the next start looks again"
        );
    }
    drop(exited);
}

/// Waits for the leader's end without reaping it.
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
        .stderr(Stdio::piped())
        .process_group(0);
    contain(&mut command);
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

/// Binds the child to this process: it gains no privileges, and is killed when this thread ends.
#[cfg(target_os = "linux")]
fn contain(command: &mut Command) {
    let parent = rustix::process::getpid();
    let hook = move || {
        rustix::thread::set_no_new_privs(true)?;
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have died before the signal was asked for.
        if rustix::process::getppid() == Some(parent) {
            Ok(())
        } else {
            Err(io::Error::from_raw_os_error(rustix::io::Errno::SRCH.raw_os_error()))
        }
    };
    // SAFETY: between fork and exec only async-signal-safe calls are allowed. The hook makes three system calls through
    // rustix, compares two integers, and builds an error without allocating.
    unsafe { command.pre_exec(hook) };
}

#[cfg(not(target_os = "linux"))]
fn contain(_command: &mut Command) {}

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
