//! What runs between the fork and the exec of a server: how its processes are held together, and who holds them.
//!
//! The one file with `unsafe`. Never allocates, locks or unwinds after the fork; everything that it needs is decided
//! before, in a [`Plan`]. `process` starts servers with it, `contain` rehearses with it; nobody else knows it.
//!
//! The child that the proxy forks does not become the server, unless it is held by nothing but its process group. It
//! becomes a *guard*, which starts the server, waits for it, and ends whatever is left of it:
//!
//! ```text
//! guard          proxy ── guard ── server ── …          orphans go to the guard, which is their subreaper
//! namespace      proxy ── guard ── init ── server ── …  the init is process 1 of a process-id namespace
//! ```
//!
//! - When the proxy dies, however it dies, the kernel tells the guard (the parent-death signal). In a namespace that
//!   signal kills the guard, the guard's death kills the init, and the kernel kills all that is in a namespace whose
//!   init has died. Without one the guard kills its children until it has none: a process that its parent leaves, in
//!   whichever group or session, becomes a child of the guard.
//! - The guard's end means that nothing is left.
//! - The guard takes two orders from the proxy: [`TERMINATE`] goes on to the server's process group, and [`END`] ends
//!   everything. It takes the first from nobody else. The init takes orders from outside the namespace only.
//! - The server's wait status goes to the keeper through a pipe, and so does the process id of the guard's child.
//! - A server that can't be executed looks as it does without a guard: the error goes from the server's process to the
//!   standard library's own pipe, of which guard and init keep no copy.
//!
//! A namespace comes with a `/proc` of its own, in a mount namespace: with the outer one a server would find strangers
//! under its own process ids. Nothing else is mounted, and what the machine mounts and unmounts arrives inside.
//!
//! Longer than the others: the one file that may be `unsafe` holds all that is, read as a whole.

#![expect(unsafe_code, reason = "forking, the hook between fork and exec, and signal sets are unsafe to use")]

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{DumpableBehavior, Pid, Signal, WaitOptions};
use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags};

use super::contain::Containment;

/// Asks a guard to pass SIGTERM on to the server's process group.
pub(super) const TERMINATE: Signal = Signal::TERM;
/// Asks a guard to kill everything that it holds. Also what a guard without a namespace is told when its proxy dies.
pub(super) const END: Signal = Signal::USR1;

/// Everything about a start that is decided before the fork.
#[derive(Debug)]
pub(super) struct Plan {
    containment: Containment,
    /// The process that the guard serves: this one.
    proxy: Pid,
    /// Where the guard and the init tell the keeper.
    report: OwnedFd,
    uid_map: Vec<u8>,
    gid_map: Vec<u8>,
    /// Whether the server's process ends where it would become the server.
    rehearsal: bool,
}

impl Plan {
    pub(super) fn new(containment: Containment, rehearsal: bool) -> io::Result<(Self, Report)> {
        let (told, report) = pipe_with(PipeFlags::CLOEXEC)?;
        let own = |id: u32| format!("{id} {id} 1\n").into_bytes();
        let plan = Self {
            containment,
            proxy: rustix::process::getpid(),
            report,
            uid_map: own(rustix::process::geteuid().as_raw()),
            gid_map: own(rustix::process::getegid().as_raw()),
            rehearsal,
        };
        Ok((plan, Report(File::from(told))))
    }

    /// Has the command started as planned. The command keeps the plan, and with it the writing end of the report: drop
    /// it once the child runs.
    pub(super) fn install(self, command: &mut Command) {
        command.process_group(0);
        let hook = move || self.enter();
        // SAFETY: between fork and exec only async-signal-safe calls are allowed. What follows from here makes system
        // calls through rustix and libc, compares integers, and builds errors without allocating; `fork` says why it
        // may fork once more.
        unsafe { command.pre_exec(hook) };
    }

    /// Returns in the process that is to become the server, and nowhere else.
    fn enter(&self) -> io::Result<()> {
        rustix::thread::set_no_new_privs(true)?;
        match self.containment {
            Containment::Group => die_with(self.proxy, Signal::KILL),
            Containment::Guard => self.under_a_guard(),
            Containment::PidNamespace => self.in_a_namespace(UnshareFlags::NEWPID),
            Containment::UserNamespace => self.in_a_namespace(UnshareFlags::NEWPID | UnshareFlags::NEWUSER),
        }
    }

    fn under_a_guard(&self) -> io::Result<()> {
        prepare()?;
        die_with(self.proxy, END)?;
        let me = rustix::process::getpid();
        Step::Guard.of(rustix::process::set_child_subreaper(Some(me)))?;
        Step::Guard.of(open(CHILDREN, OFlags::RDONLY))?;
        match fork()? {
            Some(server) => {
                // Either of the two comes first.
                rustix::process::setpgid(Some(server), Some(server)).ok();
                self.settle(c"holdpoint-guard", None);
                tell(STARTED, server.as_raw_nonzero().get());
                guard(server, self.proxy)
            }
            None => {
                die_with(me, Signal::KILL)?;
                self.become_the_server()
            }
        }
    }

    fn in_a_namespace(&self, namespaces: UnshareFlags) -> io::Result<()> {
        prepare()?;
        // SAFETY: the table of file descriptors is not among what is unshared.
        Step::Namespace.of(unsafe { rustix::thread::unshare_unsafe(namespaces) })?;
        if self.containment == Containment::UserNamespace {
            Step::Map.of(write_file(c"/proc/self/setgroups", b"deny"))?;
            Step::Map.of(write_file(c"/proc/self/uid_map", &self.uid_map))?;
            Step::Map.of(write_file(c"/proc/self/gid_map", &self.gid_map))?;
        }
        die_with(self.proxy, Signal::KILL)?;
        // The guard holds the writing end: its end of file is the guard's death, which the init can't see otherwise.
        let (guards_death, guards_life) = Step::Namespace.of(pipe_with(PipeFlags::CLOEXEC))?;
        match fork()? {
            Some(init) => {
                self.settle(c"holdpoint-guard", Some(guards_life.as_fd()));
                tell(STARTED, init.as_raw_nonzero().get());
                guard_of_a_namespace(init, self.proxy)
            }
            None => {
                drop(guards_life);
                self.init(guards_death.as_fd())
            }
        }
    }

    /// The init's part: process 1 of the namespace, which holds everything in it.
    fn init(&self, guards_death: BorrowedFd<'_>) -> io::Result<()> {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // The guard may have died before the signal was asked for, and its id means nothing in here.
        if has_hung_up(guards_death) {
            return Err(Errno::SRCH.into());
        }
        // SAFETY: the table of file descriptors is not among what is unshared.
        Step::Mounts.of(unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) })?;
        let from_outside_only = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
        Step::Mounts.of(rustix::mount::mount_change(c"/", from_outside_only))?;
        let harmless = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        Step::Proc.of(rustix::mount::mount(c"proc", c"/proc", c"proc", harmless, None))?;
        match fork()? {
            Some(server) => {
                rustix::process::setpgid(Some(server), Some(server)).ok();
                self.settle(c"holdpoint-init", None);
                serve_as_init(server)
            }
            None => {
                if self.containment == Containment::UserNamespace {
                    Step::Capabilities.of(drop_capabilities())?;
                }
                self.become_the_server()
            }
        }
    }

    /// The last steps before the exec: a process group of its own, and signals as a program expects to find them.
    fn become_the_server(&self) -> io::Result<()> {
        rustix::process::setpgid(None, None)?;
        unblock_signals()?;
        if self.rehearsal {
            end()
        }
        Ok(())
    }

    /// Makes a guard or an init of this copy of the proxy: keeps the report, as descriptor 0, and the sign of life, as
    /// descriptor 1, and lets go of everything else that could keep something open. Nobody may look into its memory,
    /// which is the proxy's.
    ///
    /// What fails here was tried before the fork, or is a courtesy.
    fn settle(&self, name: &CStr, life: Option<BorrowedFd<'_>>) {
        rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).ok();
        rustix::stdio::dup2_stdin(&self.report).ok();
        let first = if let Some(life) = life {
            rustix::stdio::dup2_stdout(life).ok();
            2
        } else {
            1
        };
        close_from(first).ok();
        rustix::process::chdir(c"/").ok();
        rustix::thread::set_name(name).ok();
    }
}

/// A step that belongs to the containment and not to the server. One that fails is told from an error of the server's
/// own start by what it adds to the error's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
enum Step {
    Guard = 1,
    Descriptors,
    Fork,
    Namespace,
    Map,
    Mounts,
    Proc,
    Capabilities,
}

const STEPS: [Step; 8] = [
    Step::Guard,
    Step::Descriptors,
    Step::Fork,
    Step::Namespace,
    Step::Map,
    Step::Mounts,
    Step::Proc,
    Step::Capabilities,
];
/// Where the step stands in an error's number, above every number of the kernel's.
const STEP_SHIFT: u32 = 16;

impl Step {
    fn of<T>(self, result: rustix::io::Result<T>) -> io::Result<T> {
        let numbered = |errno: Errno| (self as i32) << STEP_SHIFT | errno.raw_os_error();
        result.map_err(|errno| io::Error::from_raw_os_error(numbered(errno)))
    }

    const fn describe(self) -> &'static str {
        match self {
            Self::Guard => "adopting what a server leaves behind",
            Self::Descriptors => "closing what a guard does not need",
            Self::Fork => "starting a guard",
            Self::Namespace => "making a namespace",
            Self::Map => "mapping the user into a namespace",
            Self::Mounts => "making a namespace for mounts",
            Self::Proc => "mounting a /proc of its own",
            Self::Capabilities => "giving up capabilities",
        }
    }
}

/// Says which step of a containment failed and how, if it was one and not the server's own start.
pub(super) fn failed_step(error: &io::Error) -> Option<String> {
    let number = error.raw_os_error()?;
    let step = STEPS.into_iter().find(|step| *step as i32 == number >> STEP_SHIFT)?;
    let errno = io::Error::from_raw_os_error(number & ((1 << STEP_SHIFT) - 1));
    Some(format!("{}: {errno}", step.describe()))
}

/// The keeper's end of the report.
#[derive(Debug)]
pub(super) struct Report(File);

/// The guard's child runs; its process id follows.
const STARTED: u8 = b's';
/// The server has ended; its wait status follows.
const ENDED: u8 = b'e';

impl Report {
    /// Waits for the process id of the guard's child: the server's, or the init's.
    ///
    /// Comes with the server's end if that came first. `None` once the guard has gone.
    pub(super) fn started(&mut self) -> (Option<u32>, Option<ExitStatus>) {
        let mut ended = None;
        while let Some((what, number)) = self.next() {
            match what {
                STARTED => return (u32::try_from(number).ok(), ended),
                _ => ended = Some(ExitStatus::from_raw(number)),
            }
        }
        (None, ended)
    }

    /// Waits for the server's end; `None` if whoever would have told was killed.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        while let Some((what, number)) = self.next() {
            if what == ENDED {
                return Some(ExitStatus::from_raw(number));
            }
        }
        None
    }

    fn next(&mut self) -> Option<(u8, i32)> {
        let mut message = [0; 5];
        self.0.read_exact(&mut message).ok()?;
        let [what, number @ ..] = message;
        Some((what, i32::from_ne_bytes(number)))
    }
}

/// Tells the keeper, if it still listens. Less than a pipe takes in one piece.
fn tell(what: u8, number: i32) {
    let [a, b, c, d] = number.to_ne_bytes();
    rustix::io::write(rustix::stdio::stdin(), &[what, a, b, c, d]).ok();
}

/// What a guard does all its life: wait for its server, pass one signal on, adopt orphans.
fn guard(server: Pid, proxy: Pid) -> ! {
    let mut server = Some(server);
    loop {
        match next_signal() {
            (Signal::CHILD, _) => {
                while let Ok(Some(ended)) = rustix::process::wait(WaitOptions::NOHANG) {
                    note(ended, &mut server);
                }
                if server.is_none() {
                    end_everything(server)
                }
            }
            (TERMINATE, sender) => terminate(server.filter(|_| sender == proxy.as_raw_nonzero().get())),
            // From whomever: a server that ends its guard ends itself.
            (END, _) => end_everything(server),
            _ => {}
        }
    }
}

/// What the guard of a namespace does all its life.
fn guard_of_a_namespace(init: Pid, proxy: Pid) -> ! {
    loop {
        match next_signal() {
            // The init is reaped when the last process of its namespace has gone.
            (Signal::CHILD, _) => match rustix::process::waitpid(Some(init), WaitOptions::NOHANG) {
                Ok(None) | Err(Errno::INTR) => {}
                Ok(Some(_)) | Err(_) => end(),
            },
            (TERMINATE, sender) if sender == proxy.as_raw_nonzero().get() => {
                rustix::process::kill_process(init, TERMINATE).ok();
            }
            (END, _) => {
                rustix::process::kill_process(init, Signal::KILL).ok();
            }
            _ => {}
        }
    }
}

/// What the init of a namespace does all its life. Its end is the end of everything in there.
fn serve_as_init(server: Pid) -> ! {
    /// What the kernel names as the sender of a signal that comes from outside the namespace.
    const OUTSIDE: i32 = 0;
    let mut server = Some(server);
    loop {
        match next_signal() {
            (Signal::CHILD, _) => {
                while let Ok(Some(ended)) = rustix::process::wait(WaitOptions::NOHANG) {
                    note(ended, &mut server);
                }
                if server.is_none() {
                    end()
                }
            }
            (TERMINATE, sender) => terminate(server.filter(|_| sender == OUTSIDE)),
            _ => {}
        }
    }
}

/// Signals the server's group. Not once the server is reaped: its number may name somebody else then.
fn terminate(server: Option<Pid>) {
    if let Some(server) = server {
        rustix::process::kill_process_group(server, TERMINATE).ok();
    }
}

/// Tells the keeper of the server's end. Anybody else who ended was an orphan.
fn note((pid, status): (Pid, rustix::process::WaitStatus), server: &mut Option<Pid>) {
    if *server == Some(pid) {
        tell(ENDED, status.as_raw());
        *server = None;
    }
}

/// Kills the guard's children until it has none, and ends. Whoever they leave becomes its child and is next.
fn end_everything(mut server: Option<Pid>) -> ! {
    loop {
        // A child that is not waited for keeps its number, so nobody else can be hit.
        if kill_children().is_err()
            && let Some(server) = server
        {
            rustix::process::kill_process(server, Signal::KILL).ok();
        }
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some(ended)) => note(ended, &mut server),
            Ok(None) | Err(Errno::INTR) => {}
            Err(_) => end(),
        }
    }
}

/// The children of the thread that reads it: of a process with one thread, all.
const CHILDREN: &CStr = c"/proc/thread-self/children";

fn kill_children() -> rustix::io::Result<()> {
    let list = open(CHILDREN, OFlags::RDONLY)?;
    let mut buffer = [0; 1024];
    let mut pid = 0_i32;
    loop {
        let count = rustix::io::read(&list, &mut buffer)?;
        let Some(text @ [_, ..]) = buffer.get(..count) else { return Ok(()) };
        // Each number is followed by a space, and may stand in two pieces.
        for byte in text {
            if byte.is_ascii_digit() {
                pid = pid.wrapping_mul(10).wrapping_add(i32::from(byte - b'0'));
            } else if let Some(child) = Pid::from_raw(std::mem::take(&mut pid)) {
                rustix::process::kill_process(child, Signal::KILL).ok();
            }
        }
    }
}

/// Blocks every signal, so that those of interest are waited for, and tries what a guard will need.
fn prepare() -> io::Result<()> {
    // SAFETY: both fill in or read a signal set on this stack.
    unsafe {
        let mut all = std::mem::zeroed::<libc::sigset_t>();
        libc::sigfillset(&raw mut all);
        succeeded(libc::sigprocmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut()))?;
        // Children of whoever ignores their ends can't be waited for.
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
    }
    // No descriptor has a number as high as this.
    Step::Descriptors.of(close_from(u32::MAX))
}

fn unblock_signals() -> io::Result<()> {
    // SAFETY: both fill in or read a signal set on this stack.
    unsafe {
        let mut none = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut none);
        succeeded(libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut()))
    }
}

fn succeeded(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Waits for a signal that is blocked; says which, and the process that sent it.
fn next_signal() -> (Signal, i32) {
    // SAFETY: the set and the description of the signal stand on this stack, and each of the three signals comes with
    // a sender.
    let (number, sender) = unsafe {
        let mut wanted = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut wanted);
        for signal in [Signal::CHILD, TERMINATE, END] {
            libc::sigaddset(&raw mut wanted, signal.as_raw());
        }
        let mut about = std::mem::zeroed::<libc::siginfo_t>();
        (libc::sigwaitinfo(&raw const wanted, &raw mut about), about.si_pid())
    };
    // An interruption is no signal; looking after the children is never wrong.
    (Signal::from_named_raw(number).unwrap_or(Signal::CHILD), sender)
}

/// Forks: the child's id in the parent, `None` in the child.
fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: this process is itself the only thread of a forked child, and the C library left its locks usable when it
    // forked that. Both sides go on to make system calls only.
    match unsafe { libc::fork() } {
        -1 => Step::Fork.of(Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::AGAIN))),
        child => Ok(Pid::from_raw(child)),
    }
}

/// Ends this process and nothing of the program that it is a copy of.
fn end() -> ! {
    // SAFETY: runs no handler and flushes no buffer.
    unsafe { libc::_exit(0) }
}

/// Closes every descriptor from this number on.
fn close_from(first: u32) -> rustix::io::Result<()> {
    // SAFETY: nothing in this process uses a descriptor afterwards except those below.
    match unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0_u32) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::NOSYS)),
    }
}

/// Asks for a signal at the death of the parent, which may have died before it was asked for.
fn die_with(parent: Pid, signal: Signal) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(signal))?;
    if rustix::process::getppid() == Some(parent) { Ok(()) } else { Err(Errno::SRCH.into()) }
}

fn has_hung_up(pipe: BorrowedFd<'_>) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut watched = [PollFd::new(&pipe, PollFlags::IN)];
    // What can't be asked counts as gone: the start is tried again, and a server without its guard is not.
    poll(&mut watched, Some(&now)) != Ok(0)
}

/// Leaves no capability of a user namespace to whoever is executed, user 0 included.
fn drop_capabilities() -> rustix::io::Result<()> {
    for number in 0..u64::BITS {
        match rustix::thread::remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(
            1 << number,
        )) {
            Ok(()) => {}
            // The kernel knows no more.
            Err(Errno::INVAL) => break,
            Err(error) => return Err(error),
        }
    }
    let none = CapabilitySet::empty();
    rustix::thread::set_capabilities(
        None,
        CapabilitySets { effective: none, permitted: none, inheritable: none },
    )
}

fn open(path: &CStr, how: OFlags) -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(path, how | OFlags::CLOEXEC, Mode::empty())
}

fn write_file(path: &CStr, text: &[u8]) -> rustix::io::Result<()> {
    let file = open(path, OFlags::WRONLY)?;
    rustix::io::write(&file, text).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_step_is_told_from_a_program_that_cannot_be_executed() {
        for step in STEPS {
            let error = step.of::<()>(Err(Errno::PERM)).unwrap_err();
            let told = failed_step(&error).unwrap();
            assert!(told.starts_with(step.describe()) && told.contains("not permitted"), "{told}");
        }
        for own in [Errno::NOENT, Errno::ACCESS, Errno::SRCH] {
            assert_eq!(failed_step(&io::Error::from(own)), None);
        }
        assert_eq!(failed_step(&io::Error::other("no number")), None);
    }
}
