//! Process groups that outlived the process that started them, and how to end them without harming a stranger.
//!
//! A server dies with its connection: `process` ends its whole group, and the kernel ends the leader when this process
//! is killed. The kernel does not end the leader's own children then. So each started group is written down through a
//! [`GroupLedger`], and the next start looks at what was written: [`judge`] decides, over a snapshot of the process
//! table and nothing else, and [`reap`] acts on it.
//!
//! # What is checked before anything is killed
//! A number is not a process. A process id, and the id of a group, can be given away again once nothing holds it; while
//! one process is in the group, the kernel does not give its number away. So a group is killed only when
//! 1. the record is of this boot and this process-id namespace, and the namespace is older than the group;
//! 2. the process that started the group is gone: another proxy on the same file keeps its servers;
//! 3. it is still that group. Either its leader is there, with the start time that was recorded. Or the leader is gone,
//!    nothing in the group is older than it, and the number cannot have been given away since: Linux hands out process
//!    ids in a circle, so a number comes round again only after about as many forks as there are ids, and the kernel
//!    counts forks. Fewer than half a circle since the start is taken as proof.
//!
//! Without that proof the group is left alone and reported, for a person to look at. A group that a server's child made
//! for itself is written down by `offspring` once it is seen; one that cut its ties before that is not found: only a
//! process-id namespace would hold it.

use std::io;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde::{Deserialize, Serialize};

/// How long the members of a killed group may take to disappear before that is reported.
const DYING: Duration = Duration::from_secs(2);

/// One started group, as it is written down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRecord {
    /// The group's id, which is the process id of its leader, the server.
    pub pgid: u32,
    /// When the leader started: field 22 of `/proc/PID/stat`, in clock ticks since boot.
    pub leader_start_time: u64,
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// What `/proc/self/ns/pid` points at: ids mean nothing outside their namespace.
    pub pid_namespace: String,
    /// How many forks the kernel had counted at some moment before the group started (`processes` in `/proc/stat`).
    pub forks_before: u64,
    /// The process that started the group.
    pub owner_pid: u32,
    /// When that process started.
    pub owner_start_time: u64,
    /// The proxy session or other label of the owner, for people.
    pub session: String,
    /// The operator's name for the server, for people.
    pub server: String,
}

/// Where started groups are written down, so that the next start can find them.
///
/// Called from threads that may wait, outside any runtime and any lock. A record that could not be stored is lost
/// without harm to the running server.
pub trait GroupLedger: Send + Sync + std::fmt::Debug {
    /// Writes a group down, before its server is asked anything. One that is there already stays as it is.
    fn record(&self, group: &GroupRecord);
    /// Strikes a group out: none of its members is left. Identify it by boot, namespace, id and start time together.
    fn forget(&self, group: &GroupRecord);
}

/// A ledger that remembers nothing past this process: for tests, and for embedders who accept the gap.
#[derive(Debug, Default)]
pub struct MemoryLedger {
    groups: std::sync::Mutex<Vec<GroupRecord>>,
}

impl MemoryLedger {
    /// The groups that are written down.
    #[must_use]
    pub fn groups(&self) -> Vec<GroupRecord> {
        self.groups.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }
}

impl GroupLedger for MemoryLedger {
    fn record(&self, group: &GroupRecord) {
        let mut groups = self.groups.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if !groups.contains(group) {
            groups.push(group.clone());
        }
    }

    fn forget(&self, group: &GroupRecord) {
        self.groups.lock().unwrap_or_else(std::sync::PoisonError::into_inner).retain(|known| known != group);
    }
}

/// What was found about a recorded group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// Nothing of it is left: no member, or the machine or its namespace started again since.
    Gone,
    /// The number names something else by now.
    NumberReused,
    /// The process that started it is running.
    OwnerLives,
    /// It belongs to another process-id namespace, where this process sees nothing.
    Elsewhere,
    /// Members are there, and nothing proves that they are ours. Left alone.
    Unproven,
    /// It is still that group, and its owner is gone.
    Orphaned,
}

/// A recorded group and what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reaped {
    /// The record that was looked at.
    pub group: GroupRecord,
    /// What was found. [`Finding::Orphaned`] groups were killed.
    pub finding: Finding,
    /// Members that were there, and that were killed if the group was orphaned.
    pub members: usize,
    /// Whether a killed group was gone within two seconds. True for every other finding.
    pub ended: bool,
}

/// One process, as `/proc/PID/stat` tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProcessStat {
    pub(crate) pid: u32,
    pub(crate) state: char,
    pub(crate) group: u32,
    pub(crate) start_time: u64,
}

impl ProcessStat {
    fn parse(pid: u32, stat: &str) -> Option<Self> {
        // The command's name stands in parentheses and may hold anything, closing parentheses included.
        let (_, fields) = stat.rsplit_once(')')?;
        let mut fields = fields.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let group = fields.nth(1)?.parse().ok()?;
        let start_time = fields.nth(16)?.parse().ok()?;
        Some(Self { pid, state, group, start_time })
    }

    pub(crate) fn read(pid: u32) -> Option<Self> {
        Self::parse(pid, &std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    pub(crate) fn alive(&self) -> bool {
        !matches!(self.state, 'Z' | 'X' | 'x')
    }
}

/// The process table and the machine, at one moment.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    boot_id: String,
    pid_namespace: String,
    /// When process 1 of this namespace started, if that can be read.
    init_start_time: Option<u64>,
    forks: u64,
    pid_max: u64,
    processes: Vec<ProcessStat>,
}

impl Snapshot {
    fn read() -> io::Result<Self> {
        let mut processes = Vec::new();
        for entry in std::fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let pid = name.to_str().and_then(|name| name.parse().ok());
            // A process may end while the table is read.
            processes.extend(pid.and_then(ProcessStat::read));
        }
        Ok(Self {
            boot_id: boot_id()?,
            pid_namespace: pid_namespace()?,
            init_start_time: ProcessStat::read(1).map(|init| init.start_time),
            forks: forks()?,
            pid_max: number(&std::fs::read_to_string("/proc/sys/kernel/pid_max")?)?,
            processes,
        })
    }

    fn members(&self, pgid: u32) -> impl Iterator<Item = &ProcessStat> {
        self.processes.iter().filter(move |process| process.group == pgid && process.alive())
    }

    fn find(&self, pid: u32) -> Option<&ProcessStat> {
        self.processes.iter().find(|process| process.pid == pid)
    }
}

fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

fn pid_namespace() -> io::Result<String> {
    Ok(std::fs::read_link("/proc/self/ns/pid")?.to_string_lossy().into_owned())
}

/// How many forks the kernel has counted since boot.
pub(crate) fn forks() -> io::Result<u64> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    number(stat.lines().find_map(|line| line.strip_prefix("processes ")).unwrap_or_default())
}

fn number(text: &str) -> io::Result<u64> {
    text.trim().parse().map_err(|_| io::Error::other("the kernel's answer is not a number"))
}

/// Describes a group that was just started, for the ledger. `None` where there is no `/proc` to tell.
pub(crate) fn describe(
    pgid: u32,
    forks_before: Option<u64>,
    session: &str,
    server: &str,
) -> Option<GroupRecord> {
    let owner_pid = std::process::id();
    Some(GroupRecord {
        pgid,
        leader_start_time: ProcessStat::read(pgid)?.start_time,
        boot_id: boot_id().ok()?,
        pid_namespace: pid_namespace().ok()?,
        forks_before: forks_before?,
        owner_pid,
        owner_start_time: ProcessStat::read(owner_pid)?.start_time,
        session: session.to_owned(),
        server: server.to_owned(),
    })
}

/// Decides what a recorded group is by now. See the top of this file for the reasons.
pub(crate) fn judge(record: &GroupRecord, now: &Snapshot) -> Finding {
    if record.boot_id != now.boot_id {
        return Finding::Gone;
    }
    if record.pid_namespace != now.pid_namespace {
        return Finding::Elsewhere;
    }
    // A namespace's number can be given away too, and a namespace ends with all of its processes.
    match now.init_start_time {
        Some(init) if init > record.leader_start_time => return Finding::Gone,
        Some(_) => {}
        None => return Finding::Unproven,
    }
    let owner = now.find(record.owner_pid);
    if owner.is_some_and(|owner| owner.start_time == record.owner_start_time && owner.alive()) {
        return Finding::OwnerLives;
    }
    still(record, now)
}

/// Decides whether a group of this boot and namespace is still the one that was recorded, whoever owns it.
fn still(record: &GroupRecord, now: &Snapshot) -> Finding {
    let leader = now.find(record.pgid);
    if leader.is_some_and(|leader| leader.start_time != record.leader_start_time) {
        return Finding::NumberReused;
    }
    let Some(oldest) = now.members(record.pgid).map(|member| member.start_time).min() else {
        // A leader that moved to another group by itself is still ours, by its start time.
        return if leader.is_some_and(ProcessStat::alive) { Finding::Orphaned } else { Finding::Gone };
    };
    if oldest < record.leader_start_time {
        return Finding::NumberReused;
    }
    let since = now.forks.saturating_sub(record.forks_before);
    // The group's own start is one fork at least: a count that stands still counts nothing.
    let not_come_round = since > 0 && since < now.pid_max / 2;
    if leader.is_some() || not_come_round { Finding::Orphaned } else { Finding::Unproven }
}

/// Looks at recorded groups and kills those that are still theirs and have lost their owner.
///
/// Strikes out of the ledger whatever needs no second look. Blocks for up to two seconds a group: call it on a thread
/// that may wait.
///
/// # Errors
/// When the process table cannot be read, as outside Linux; nothing is killed then.
pub fn reap(records: &[GroupRecord], ledger: &dyn GroupLedger) -> io::Result<Vec<Reaped>> {
    records.iter().map(|record| reap_one(record, ledger)).collect()
}

fn reap_one(record: &GroupRecord, ledger: &dyn GroupLedger) -> io::Result<Reaped> {
    // A snapshot of its own for each group, so that little time passes between the look and the signal.
    let now = Snapshot::read()?;
    let finding = judge(record, &now);
    let members = now.members(record.pgid).count();
    let ended = match finding {
        Finding::Orphaned => kill_orphaned(record),
        Finding::Gone
        | Finding::NumberReused
        | Finding::OwnerLives
        | Finding::Elsewhere
        | Finding::Unproven => true,
    };
    match finding {
        Finding::Gone | Finding::NumberReused => ledger.forget(record),
        Finding::Orphaned if ended => ledger.forget(record),
        Finding::Orphaned | Finding::OwnerLives | Finding::Elsewhere | Finding::Unproven => {}
    }
    Ok(Reaped { group: record.clone(), finding, members, ended })
}

fn kill_orphaned(record: &GroupRecord) -> bool {
    signal_group(record);
    wait_until_empty(record.pgid, DYING)
}

fn signal_group(record: &GroupRecord) {
    let Some(pgid) = i32::try_from(record.pgid).ok().and_then(Pid::from_raw) else { return };
    // Errors mean that there is nothing to kill or that it may not be killed; who needs to know looks again.
    kill_process_group(pgid, Signal::KILL).ok();
    let is_leader = |leader: &ProcessStat| leader.start_time == record.leader_start_time;
    if ProcessStat::read(record.pgid).as_ref().is_some_and(is_leader) {
        kill_process(pgid, Signal::KILL).ok();
    }
}

/// Kills groups of this very process that are still what was recorded. Does not wait for their end.
pub(crate) fn kill_own(records: &[GroupRecord]) {
    if records.is_empty() {
        return;
    }
    let Ok(now) = Snapshot::read() else { return };
    records.iter().filter(|record| still(record, &now) == Finding::Orphaned).for_each(signal_group);
}

/// The living members of some groups, by process id.
pub(crate) fn members(pgids: &[u32]) -> Vec<u32> {
    let Ok(now) = Snapshot::read() else { return Vec::new() };
    pgids.iter().flat_map(|pgid| now.members(*pgid)).map(|member| member.pid).collect()
}

/// Waits until nothing alive is in the group. Blocks; false when something still is after `patience`.
pub(crate) fn wait_until_empty(pgid: u32, patience: Duration) -> bool {
    const PAUSE: Duration = Duration::from_millis(10);
    let mut waited = Duration::ZERO;
    loop {
        match Snapshot::read() {
            Ok(now) if now.members(pgid).next().is_some() => {}
            // Without a table to look at nothing better is known.
            Ok(_) | Err(_) => return true,
        }
        if waited >= patience {
            return false;
        }
        std::thread::sleep(PAUSE);
        waited += PAUSE;
    }
}

#[cfg(test)]
#[path = "reap_tests.rs"]
mod tests;
