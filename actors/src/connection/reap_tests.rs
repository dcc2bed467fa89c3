//! Tests of the judgement about recorded groups, on made-up process tables, and of one real orphan.

use super::*;

const BOOT: &str = "boot";
const SPACE: &str = "pid:[1]";

fn record() -> GroupRecord {
    GroupRecord {
        pgid: 500,
        leader_start_time: 10_000,
        boot_id: BOOT.to_owned(),
        pid_namespace: SPACE.to_owned(),
        forks_before: 1_000,
        owner_pid: 400,
        owner_start_time: 9_000,
        session: "s".to_owned(),
        server: "pay".to_owned(),
    }
}

fn process(pid: u32, group: u32, start_time: u64) -> ProcessStat {
    ProcessStat { pid, state: 'S', group, start_time }
}

fn table(processes: &[ProcessStat]) -> Snapshot {
    Snapshot {
        boot_id: BOOT.to_owned(),
        pid_namespace: SPACE.to_owned(),
        init_start_time: Some(1),
        forks: 1_050,
        pid_max: 32_768,
        processes: processes.to_vec(),
    }
}

#[test]
fn a_group_whose_leader_has_the_recorded_start_time_is_orphaned_once_its_owner_is_gone() {
    assert_eq!(judge(&record(), &table(&[process(500, 500, 10_000)])), Finding::Orphaned);
    let far_later = Snapshot { forks: 10_000_000, ..table(&[process(500, 500, 10_000)]) };
    assert_eq!(judge(&record(), &far_later), Finding::Orphaned, "a living leader needs no other proof");
    let moved = table(&[process(500, 77, 10_000)]);
    assert_eq!(judge(&record(), &moved), Finding::Orphaned, "it left the group and is still ours");
}

#[test]
fn grandchildren_without_their_leader_are_orphaned_while_the_number_cannot_have_come_round() {
    assert_eq!(judge(&record(), &table(&[process(501, 500, 10_001)])), Finding::Orphaned);
    for forks in [1_000 + 16_384, 10_000_000, 1_000, 0] {
        let table = Snapshot { forks, ..table(&[process(501, 500, 10_001)]) };
        assert_eq!(judge(&record(), &table), Finding::Unproven, "{forks}");
    }
}

#[test]
fn a_leader_of_another_start_time_is_a_stranger() {
    let stranger = [process(500, 500, 10_001), process(501, 500, 10_002)];
    assert_eq!(judge(&record(), &table(&stranger)), Finding::NumberReused);
    assert_eq!(judge(&record(), &table(&[process(500, 77, 99_999)])), Finding::NumberReused);
}

#[test]
fn a_member_older_than_the_leader_was_never_in_its_group() {
    assert_eq!(judge(&record(), &table(&[process(501, 500, 9_999)])), Finding::NumberReused);
}

#[test]
fn a_living_owner_keeps_its_servers() {
    let running = [process(400, 400, 9_000), process(500, 500, 10_000)];
    assert_eq!(judge(&record(), &table(&running)), Finding::OwnerLives);
    let reused = [process(400, 400, 9_001), process(500, 500, 10_000)];
    assert_eq!(
        judge(&record(), &table(&reused)),
        Finding::Orphaned,
        "another process under the owner's number"
    );
    let zombie = [ProcessStat { state: 'Z', ..process(400, 400, 9_000) }, process(500, 500, 10_000)];
    assert_eq!(judge(&record(), &table(&zombie)), Finding::Orphaned);
}

#[test]
fn what_has_no_living_member_is_gone() {
    assert_eq!(judge(&record(), &table(&[process(1, 1, 1)])), Finding::Gone);
    let zombie = ProcessStat { state: 'Z', ..process(500, 500, 10_000) };
    assert_eq!(judge(&record(), &table(&[zombie])), Finding::Gone);
    assert_eq!(judge(&record(), &table(&[zombie, process(501, 500, 10_001)])), Finding::Orphaned);
}

#[test]
fn another_boot_or_namespace_is_never_killed() {
    let members = [process(500, 500, 10_000)];
    let rebooted = Snapshot { boot_id: "other".to_owned(), ..table(&members) };
    assert_eq!(judge(&record(), &rebooted), Finding::Gone);
    let elsewhere = Snapshot { pid_namespace: "pid:[2]".to_owned(), ..table(&members) };
    assert_eq!(judge(&record(), &elsewhere), Finding::Elsewhere);
    let younger = Snapshot { init_start_time: Some(10_001), ..table(&members) };
    assert_eq!(judge(&record(), &younger), Finding::Gone, "the namespace's number was given away");
    let unreadable = Snapshot { init_start_time: None, ..table(&members) };
    assert_eq!(judge(&record(), &unreadable), Finding::Unproven);
}

#[test]
fn a_stat_line_is_read_past_any_command_name() {
    let stat = "77 (a) b (c) S 1 55 44 0 -1 4194304 103 0 0 0 0 0 0 0 20 0 1 0 58322 3133440 387";
    assert_eq!(
        ProcessStat::parse(77, stat),
        Some(ProcessStat { pid: 77, state: 'S', group: 55, start_time: 58_322 })
    );
    assert_eq!(ProcessStat::parse(77, "77 (a) S 1"), None);
}
