//! Groups that a server's own children made for themselves: found while the server lives, ended with it.
//!
//! A child that is started detached (a browser under its driver, a command that a shell server runs) leads a group of
//! its own, which a signal to the server's group does not reach. So the tree below the server is walked every so often
//! and once more before the server is killed, and each new group whose leader stands in that tree is written down like
//! the server's own. Without a guard, a process that leaves its parent *and* its group between two walks is not seen.
//!
//! Needed where a server has no guard, and where its guard is killed: then what was seen can still be ended, at once or
//! at the next start. In a namespace there is nothing to look for, and nobody walks.

use std::collections::HashSet;
use std::time::Duration;

use super::reap::{self, GroupLedger, GroupRecord, ProcessStat};

/// The time between two walks, in the end. A walk below a server without children reads one small file for each of its threads.
pub(crate) const WALK_EVERY: Duration = Duration::from_secs(2);
/// The time before the first walk; it doubles from walk to walk, up to [`WALK_EVERY`].
pub(crate) const FIRST_WALK: Duration = Duration::from_millis(50);
/// The most processes that one walk looks at: a server that forks without end is not followed without end.
const MAX_WALKED: usize = 4096;
/// The most groups, its own aside, that are remembered for one server.
const MAX_OTHERS: usize = 256;

/// The groups of one server.
///
/// Kept under a lock that a dropped connection waits for, so nothing here writes to the ledger except
/// [`Groups::strike_out`], which is past that lock; [`Groups::look`] returns what is to be written.
#[derive(Debug)]
pub(crate) struct Groups {
    /// The process below which everything of the server's is: its guard, or the server itself.
    top: u32,
    own: Option<GroupRecord>,
    others: Vec<GroupRecord>,
}

/// What a walk changed, to be told to the ledger outside the lock.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    found: Vec<GroupRecord>,
    ended: Vec<GroupRecord>,
}

impl Changes {
    /// Tells the ledger. May wait for it.
    pub(crate) fn write(self, ledger: &dyn GroupLedger) {
        self.found.iter().for_each(|group| ledger.record(group));
        self.ended.iter().for_each(|group| ledger.forget(group));
    }
}

impl Groups {
    /// Starts with the server's own group, where it could be described.
    pub(crate) fn new(top: u32, own: Option<GroupRecord>) -> Self {
        Self { top, own, others: Vec::new() }
    }

    /// Walks the tree below the top, which has what lost its parent too if it is a guard, and below the leaders of the
    /// known groups.
    pub(crate) fn look(&mut self) -> Changes {
        let before = self.others.len();
        self.look_below(self.pgids().into_iter().chain([self.top]).collect());
        let found = self.others[before..].to_vec();
        let ended = |group: &GroupRecord| reap::wait_until_empty(group.pgid, Duration::ZERO);
        let ended: Vec<GroupRecord> = self.others.extract_if(.., |group| ended(group)).collect();
        Changes { found, ended }
    }

    /// Kills the groups other than the server's own, after a last look below every member of the known groups: a
    /// member's children can be found when the server itself has ended already.
    pub(crate) fn kill_others(&mut self) {
        self.look_below(reap::members(&self.pgids()));
        reap::kill_own(&self.others);
    }

    /// Kills the server's own group, if it is still that.
    pub(crate) fn kill_own(&self) {
        reap::kill_own(self.own.as_slice());
    }

    /// Strikes out the groups that have nobody left, and makes sure that the others are written down. Blocks up to
    /// `patience` a group; returns how many have somebody left.
    pub(crate) fn strike_out(self, ledger: &dyn GroupLedger, patience: Duration) -> usize {
        let (ended, found): (Vec<_>, Vec<_>) = self
            .own
            .into_iter()
            .chain(self.others)
            .partition(|group| reap::wait_until_empty(group.pgid, patience));
        let left = found.len();
        Changes { found, ended }.write(ledger);
        left
    }

    fn pgids(&self) -> Vec<u32> {
        self.own.iter().chain(&self.others).map(|group| group.pgid).collect()
    }

    fn look_below(&mut self, roots: Vec<u32>) {
        let Some(own) = &self.own else { return };
        let known: HashSet<u32> = self.pgids().into_iter().collect();
        let leads = |process: &ProcessStat| process.pid == process.group && !known.contains(&process.pid);
        for leader in below(roots).into_iter().filter(leads) {
            if self.others.len() == MAX_OTHERS {
                tracing::warn!(
                    server = own.server,
                    "a server's children make too many process groups to follow"
                );
                return;
            }
            // The group is younger than the server, and how many forks there were before it is not known better.
            self.others.extend(reap::describe(leader.pid, Some(own.forks_before), &own.session, &own.server));
        }
    }
}

/// The processes below these, themselves not included.
fn below(roots: Vec<u32>) -> Vec<ProcessStat> {
    let mut seen: HashSet<u32> = roots.iter().copied().collect();
    let mut next = roots;
    let mut found = Vec::new();
    while let Some(pid) = next.pop() {
        for child in children(pid) {
            if found.len() == MAX_WALKED {
                return found;
            }
            if seen.insert(child) {
                found.extend(ProcessStat::read(child));
                next.push(child);
            }
        }
    }
    found
}

/// The children of a process, thread by thread and the oldest first; none where the kernel does not list them.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let listed = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("children")).ok();
    let lists: Vec<String> = threads.filter_map(Result::ok).filter_map(listed).collect();
    lists.iter().flat_map(|list| list.split_ascii_whitespace()).filter_map(|pid| pid.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_finds_its_children_and_their_children() {
        let mut child = Command::new("sh").args(["-c", "sleep 1000 & wait"]).spawn().unwrap();
        let grandchildren = loop {
            let found = children(child.id());
            if !found.is_empty() {
                break found;
            }
            std::thread::yield_now();
        };
        let found: Vec<u32> = below(vec![std::process::id()]).iter().map(|process| process.pid).collect();
        assert!(found.contains(&child.id()) && found.contains(&grandchildren[0]));
        for pid in [grandchildren[0], child.id()] {
            let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        }
        child.wait().unwrap();
    }
}
