//! What the commands refuse: arguments before anything is opened, and databases that can't be trusted.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::{Command, Stdio};

use serde_json::json;

use super::{Ran, Record, bare};

const READING: [&str; 4] = ["runs", "show r1", "events r1", "verify"];
const DECIDING: [&str; 3] = ["approve r1 --yes", "reject r1 --yes", "cancel r1"];

fn record() -> Record {
    Record::waiting(json!({"amount": 20}))
}

#[test]
fn every_argument_is_judged_before_the_database_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("none.db");
    for line in [
        "runs extra",
        "runs --limit x",
        "runs --offset -1",
        "runs --nonsense",
        "show",
        "show r1 extra",
        "events",
        "events r1 --limit",
        "approve",
        "approve r1 r2",
        "approve r1 --approval=",
        "reject",
        "cancel",
        "cancel r1 r2",
        "verify extra",
        "verify --from -1",
        "verify --from 3 --to 2",
        "verify --head 3",
        "verify --head 3:ab",
        "verify --head 0:HASH",
        "verify --to 2 --head 3:HASH",
        "verify --from 4 --head 3:HASH",
        "pin",
        "check",
        "proxy",
        "nonsense",
    ] {
        let line = line.replace("HASH", &"a".repeat(64));
        let ran = Ran::of(bare(&line).env("HOLDPOINT_DB", &path));
        assert_eq!((ran.status, ran.out.as_str()), (2, ""), "{line}: {}", ran.err);
        assert!(!ran.err.contains("none.db"), "{line}: {}", ran.err);
    }
    for command in ["show", "events", "approve", "reject", "cancel"] {
        let ran = Ran::of(bare(command).arg("").env("HOLDPOINT_DB", &path));
        assert_eq!((ran.status, ran.out.as_str()), (2, ""), "{command}, as with a variable that is not set");
    }
    for line in READING.into_iter().chain(DECIDING) {
        let ran = Ran::of(bare(line).env("HOLDPOINT_DB", &path));
        assert_eq!((ran.status, ran.code()), (1, "store.missing"), "{line}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was made");
}

#[test]
fn a_database_that_can_t_be_trusted_is_not_opened() {
    let refused = |record: &Record, code: &str| {
        for line in READING.into_iter().chain(DECIDING) {
            let ran = record.run(line);
            assert_eq!((ran.status, ran.code(), ran.out.as_str()), (1, code, ""), "{line}: {}", ran.err);
            assert!(ran.err.lines().next().unwrap().len() < 600, "{}", ran.err);
        }
    };
    let writable = record();
    fs::set_permissions(&writable.path, Permissions::from_mode(0o660)).unwrap();
    refused(&writable, "store.insecure_mode");

    let mut link = record();
    let target = link.path.clone();
    link.path = link.folder().join("link.db");
    symlink(&target, &link.path).unwrap();
    refused(&link, "store.symlink");

    let mut folder = record();
    folder.path = folder.folder().to_owned();
    refused(&folder, "store.not_regular");

    let trigger = record();
    trigger.tamper("CREATE TRIGGER t AFTER UPDATE ON approvals BEGIN UPDATE runs SET goal = 'mine'; END");
    refused(&trigger, "store.unsafe_schema");

    let view = record();
    view.tamper("CREATE VIEW v AS SELECT 1");
    refused(&view, "store.unsafe_schema");

    let newer = record();
    newer.tamper("INSERT INTO schema_migrations VALUES (7, '2030-01-01T00:00:00Z')");
    refused(&newer, "store.newer_schema");

    let older = record();
    older.tamper("DELETE FROM schema_migrations WHERE version = 6");
    refused(&older, "store.older_schema");

    let other = record();
    other.tamper("DROP TABLE schema_migrations");
    refused(&other, "store.not_a_database");

    let text = record();
    fs::write(&text.path, "this is no database, though it is long enough to be taken for one at a glance")
        .unwrap();
    refused(&text, "store.not_a_database");
}

#[test]
fn reading_changes_nothing_not_even_a_mode() {
    let record = record();
    fs::set_permissions(&record.path, Permissions::from_mode(0o644)).unwrap();
    let before = fs::read(&record.path).unwrap();
    for line in READING {
        assert_eq!(record.run(line).status, 0, "{line}");
    }
    assert!(fs::read(&record.path).unwrap() == before, "the file is another one");
    assert_eq!(fs::metadata(&record.path).unwrap().mode() & 0o777, 0o644);
}

#[test]
fn a_database_in_a_folder_that_can_t_be_written_can_be_read() {
    let record = record();
    fs::set_permissions(record.folder(), Permissions::from_mode(0o555)).unwrap();
    let folder = record.folder().to_owned();
    let ran = std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            start_programs_that_are_held_by_modes();
            let touched = Command::new("touch").arg(folder.join("more")).stderr(Stdio::null()).status();
            assert!(!touched.unwrap().success(), "a program can write there, so this shows nothing");
            READING.map(|line| (line, record.run(line)))
        });
        reading.join()
    });
    fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
    for (line, ran) in ran.unwrap() {
        assert_eq!(ran.status, 0, "{line}: {}", ran.err);
    }
}

/// Takes from the programs that this thread starts, for good, what lets the root user write where a mode forbids it.
pub(super) fn start_programs_that_are_held_by_modes() {
    #[cfg(target_os = "linux")]
    if rustix::process::geteuid().is_root() {
        use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};
        remove_capability_from_bounding_set(CapabilitySet::DAC_OVERRIDE).unwrap();
        remove_capability_from_bounding_set(CapabilitySet::DAC_READ_SEARCH).unwrap();
    }
}

#[test]
fn a_locked_database_is_told_from_a_broken_one() {
    let record = record();
    let held = rusqlite::Connection::open(&record.path).unwrap();
    held.execute_batch("BEGIN IMMEDIATE").unwrap();
    // Readers are not held up by a writer.
    assert_eq!(record.run("runs").status, 0);
    let ran = record.run("cancel r1");
    assert_eq!((ran.status, ran.code()), (1, "store.locked"), "{}", ran.err);
    drop(held);
    assert_eq!(record.run("cancel r1").status, 0);
}

#[test]
fn a_flag_that_would_be_ignored_is_refused() {
    for line in
        ["--db x.db pin --config c.json", "--db x.db check --config c.json", "--json pin --config c.json"]
    {
        let ran = Ran::of(&mut bare(line));
        assert_eq!((ran.status, ran.code()), (2, "usage"), "{line}: {}", ran.err);
    }
}
