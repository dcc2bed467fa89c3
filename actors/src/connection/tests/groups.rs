//! Process groups: nothing outlives a connection, and what outlives this process can be found again.

use std::io::BufRead;
use std::process::{Command, Stdio};

use super::*;

/// A shell in front of the server that makes everything behind it ignore SIGTERM.
fn behind_a_trap(mode: &str) -> ServerSpec {
    let script = format!("trap '' TERM; exec '{}' {mode}", fake_mcp());
    ServerSpec { command: vec!["sh".to_owned(), "-c".to_owned(), script], ..in_sight(mode) }
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_ends_a_grandchild_that_ignores_sigterm() {
    let connection = Connection::ready_in_sight("orphan").await;
    let pids = connection.pids().await;
    assert_eq!(pids.len(), 2);
    let ledger = connection.ledger.clone();
    assert_eq!(ledger.groups().len(), 1);
    connection.close().await;
    all_gone(&pids).await;
    let struck_out = async {
        while !ledger.groups().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, struck_out).await.expect("the record is struck out");
}

/// A ledger that takes its time to strike out, as a database does that somebody else writes to.
#[derive(Debug)]
struct SlowLedger(MemoryLedger);

impl GroupLedger for SlowLedger {
    fn record(&self, group: &GroupRecord) {
        self.0.record(group);
    }

    fn forget(&self, group: &GroupRecord) {
        let (_nobody, news) = std::sync::mpsc::sync_channel::<()>(0);
        news.recv_timeout(Duration::from_millis(100)).unwrap_err();
        self.0.forget(group);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_closed_only_when_its_group_is_struck_out() {
    let ledger = Arc::new(SlowLedger(MemoryLedger::default()));
    let process = process::Process::start(&spec("normal"), "test", ledger.clone()).await.unwrap();
    assert_eq!(ledger.0.groups().len(), 1);
    process.close().await;
    assert_eq!(ledger.0.groups(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_ends_a_server_that_ignores_the_end_of_its_input() {
    let connection = Connection::ready_in_sight("stubborn").await;
    let pids = connection.pids().await;
    connection.close().await;
    all_gone(&pids).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_ends_a_server_that_ignores_everything_that_can_be_ignored() {
    let connection = Connection::start(behind_a_trap("stubborn")).await;
    connection.tools().await.unwrap();
    let pids = connection.pids().await;
    connection.close().await;
    all_gone(&pids).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_leads_a_group_of_its_own_and_is_written_down() {
    let connection = Connection::ready_in_sight("normal").await;
    let pid = connection.observe().await.pid.unwrap();
    let groups = connection.ledger.groups();
    assert_eq!(groups.len(), 1);
    let stat = reap::ProcessStat::read(pid).unwrap();
    assert_eq!((stat.group, groups[0].pgid), (pid, pid));
    assert_eq!(groups[0].leader_start_time, stat.start_time);
    assert_eq!((groups[0].server.as_str(), groups[0].session.as_str()), ("fake", "test"));
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    assert!(status.lines().any(|line| line == "NoNewPrivs:\t1"));

    // While this process lives its servers are nobody's to reap.
    let reaped = reap(&groups, &*connection.ledger).unwrap();
    assert_eq!(reaped[0].finding, Finding::OwnerLives);
    answered(connection.call("echo", "{}").await);
    connection.close().await;
}

/// Starts a group whose leader has ended and whose one member is left, as a SIGKILL of the owner leaves it.
fn orphaned_group() -> (u32, u32, GroupRecord) {
    use std::os::unix::process::CommandExt;
    let forks = reap::forks().unwrap();
    let script = "trap '' TERM; sleep 1000 & echo $!; read line";
    let mut leader = Command::new("sh")
        .args(["-c", script])
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut member = String::new();
    std::io::BufReader::new(leader.stdout.take().unwrap()).read_line(&mut member).unwrap();
    let mut record = reap::describe(leader.id(), Some(forks), "gone", "fake").unwrap();
    drop(leader.stdin.take());
    leader.wait().unwrap();
    // An owner that cannot be alive: this number, started before the machine was.
    record.owner_start_time = 0;
    (leader.id(), member.trim().parse().unwrap(), record)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_start_kills_what_a_killed_owner_left() {
    let (_, member, record) = orphaned_group();
    let ledger = MemoryLedger::default();
    ledger.record(&record);
    let reaped = reap(std::slice::from_ref(&record), &ledger).unwrap();
    assert_eq!(reaped, [Reaped { group: record, finding: Finding::Orphaned, members: 1, ended: true }]);
    all_gone(&[member]).await;
    assert_eq!(ledger.groups(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_start_leaves_a_group_alone_that_it_cannot_prove() {
    let (group, member, record) = orphaned_group();
    let alive = || reap::ProcessStat::read(member).is_some_and(|stat| stat.alive());
    let ledger = MemoryLedger::default();
    for (doubtful, finding) in [
        (GroupRecord { leader_start_time: u64::MAX, ..record.clone() }, Finding::NumberReused),
        (GroupRecord { forks_before: u64::MAX, ..record.clone() }, Finding::Unproven),
        (GroupRecord { boot_id: "another".to_owned(), ..record.clone() }, Finding::Gone),
        (GroupRecord { pid_namespace: "pid:[0]".to_owned(), ..record }, Finding::Elsewhere),
    ] {
        assert_eq!(reap(&[doubtful], &ledger).unwrap()[0].finding, finding);
        assert!(alive(), "{finding:?}");
    }
    let group = rustix::process::Pid::from_raw(group.cast_signed()).unwrap();
    rustix::process::kill_process_group(group, rustix::process::Signal::KILL).unwrap();
    all_gone(&[member]).await;
}

/// Waits until this many groups are written down.
async fn written_down(ledger: &MemoryLedger, count: usize) -> Vec<GroupRecord> {
    let started = Instant::now();
    loop {
        let groups = ledger.groups();
        if groups.len() == count {
            return groups;
        }
        assert!(started.elapsed() < PATIENCE, "waited in vain; at the end: {groups:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_in_a_group_of_its_own_ends_with_the_connection_however_soon_that_ends() {
    for polite in [true, false] {
        let connection = Connection::ready_in_sight("detached").await;
        let (pids, ledger) = (connection.pids().await, connection.ledger.clone());
        assert_eq!(reap::ProcessStat::read(pids[1]).unwrap().group, pids[1]);
        // No regular walk was due yet.
        if polite {
            connection.close().await;
        } else {
            connection.actor.kill();
        }
        all_gone(&pids).await;
        written_down(&ledger, 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_dies_takes_a_child_in_a_group_of_its_own_with_it() {
    let connection = Connection::ready_in_sight("detached").await;
    let pids = connection.pids().await;
    let groups = written_down(&connection.ledger, 2).await;
    assert_eq!((groups[0].pgid, groups[1].pgid), (pids[0], pids[1]));
    let server = rustix::process::Pid::from_raw(pids[0].cast_signed()).unwrap();
    rustix::process::kill_process(server, rustix::process::Signal::KILL).unwrap();
    all_gone(&pids).await;
    connection.close().await;
}

fn pid(number: u32) -> rustix::process::Pid {
    rustix::process::Pid::from_raw(number.cast_signed()).unwrap()
}

fn parent_of(pid: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap();
    parent.trim().parse().unwrap()
}

/// Kills the owner of a server together with the server's guard, and looks at what they left as the next start would.
async fn sigkill_of_the_owner_and_the_guard(mode: &str, groups: usize) {
    let mut owner = Command::new(example("fake_owner"))
        .args([groups.to_string(), fake_mcp(), mode.to_owned()])
        .env("PID_NAMESPACE", "false")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufReader::new(owner.stdout.take().unwrap()).lines();
    let records: Vec<GroupRecord> = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    let pids: Vec<u32> = lines.next().unwrap().unwrap().split(' ').map(|pid| pid.parse().unwrap()).collect();
    let ledger = MemoryLedger::default();
    records.iter().for_each(|record| ledger.record(record));
    let reaped = reap(&records, &ledger).unwrap();
    assert!(reaped.len() == groups && reaped.iter().all(|group| group.finding == Finding::OwnerLives));

    // The owner would do the guard's work.
    rustix::process::kill_process(pid(owner.id()), rustix::process::Signal::STOP).unwrap();
    while reap::ProcessStat::read(owner.id()).is_some_and(|stat| stat.state != 'T') {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    rustix::process::kill_process(pid(parent_of(pids[0])), rustix::process::Signal::KILL).unwrap();
    owner.kill().unwrap();
    owner.wait().unwrap();
    // The kernel's signal ends the server; what the server started is beyond it.
    all_gone(&pids[..1]).await;
    assert!(reap::ProcessStat::read(pids[1]).is_some_and(|stat| stat.alive()));
    let reaped = reap(&records, &ledger).unwrap();
    assert!(reaped.iter().any(|group| group.finding == Finding::Orphaned && group.ended), "{reaped:?}");
    all_gone(&pids).await;
    assert_eq!(ledger.groups(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sigkill_of_the_owner_and_of_the_guard_leaves_nothing_past_the_next_start() {
    sigkill_of_the_owner_and_the_guard("orphan", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nor_does_it_leave_a_child_in_a_group_of_its_own() {
    sigkill_of_the_owner_and_the_guard("detached", 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_guard_is_killed_ends_with_everything_that_was_seen_of_it() {
    let connection = Connection::ready_in_sight("detached").await;
    let pids = connection.pids().await;
    written_down(&connection.ledger, 2).await;
    rustix::process::kill_process(pid(parent_of(pids[0])), rustix::process::Signal::KILL).unwrap();
    all_gone(&pids).await;
    let seen =
        connection.observe_until(|seen| seen.restarts == 1 && seen.state == ConnectionState::Ready).await;
    assert!(seen.last_error.unwrap().contains("signal: 9"));
    connection.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_a_guard_ends_with_what_was_seen_below_it() {
    let ledger = Arc::new(MemoryLedger::default());
    for polite in [true, false] {
        let spec = spec("detached");
        let start = process::Process::start_in(&[Containment::Group], &spec, "test", ledger.clone());
        let process = start.await.unwrap();
        assert_eq!(process.held(), &Held { by: Containment::Group, instead_of: None });
        let pids: Vec<u32> = written_down(&ledger, 2).await.iter().map(|group| group.pgid).collect();
        assert_eq!((process.pid(), parent_of(process.pid())), (pids[0], std::process::id()));
        if polite {
            process.close().await;
        } else {
            drop(process);
        }
        all_gone(&pids).await;
        written_down(&ledger, 0).await;
    }
}
