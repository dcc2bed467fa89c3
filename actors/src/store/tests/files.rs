//! What a file must be before it is opened: whose, what kind, and who may write it.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use rusqlite::StatementStatus;
use tempfile::TempDir;

use super::support::*;
use crate::store::{Arguments, FileError, Insecurity, OpenError, OperatorStore, Options};

fn made() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.db");
    make(&path);
    (folder, path)
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o777
}

fn open(path: &Path) -> Result<(), FileError> {
    match Arguments::open(path, plain()) {
        Ok(_) => Ok(()),
        Err(OpenError::File(error)) => Err(error),
        Err(other) => panic!("{other}"),
    }
}

fn operate(path: &Path, read_only: bool) -> Result<(), FileError> {
    match OperatorStore::open(path, read_only) {
        Ok(_) => Ok(()),
        Err(OpenError::File(error)) => Err(error),
        Err(other) => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_new_database_and_the_files_beside_it_are_their_owner_s_alone() {
    let bench = Bench::start().await;
    bench.intent(begun("r1", holdpoint_core::transition::Durability::Synced)).await;
    for name in ["runs.db", "runs.db-wal", "runs.db-shm"] {
        assert_eq!(mode(&bench.folder.path().join(name)), 0o600, "{name}");
    }
}

#[test]
fn a_file_that_others_can_write_is_refused_by_both_openers() {
    for bits in [0o620, 0o602, 0o666] {
        let (_folder, path) = made();
        chmod(&path, bits);
        for refused in [open(&path), operate(&path, false), operate(&path, true)] {
            let refused = refused.unwrap_err();
            assert!(
                matches!(refused, FileError::Insecure { why: Insecurity::WritableByOthers, mode, .. } if mode == bits),
                "{refused}"
            );
            let text = refused.to_string();
            assert!(text.contains("chmod it to 600") && text.contains(&format!("{bits:o}")), "{text}");
        }
        assert_eq!(mode(&path), bits);
    }
}

#[test]
fn a_file_that_others_can_read_is_tightened_by_who_writes_it_and_left_by_who_reads_it() {
    let (_folder, path) = made();
    chmod(&path, 0o644);
    operate(&path, true).unwrap();
    assert_eq!(mode(&path), 0o644);
    operate(&path, false).unwrap();
    assert_eq!(mode(&path), 0o600);
    chmod(&path, 0o640);
    open(&path).unwrap();
    assert_eq!(mode(&path), 0o600);
}

#[test]
fn the_files_beside_the_database_are_judged_before_anything_is_changed() {
    for suffix in ["-wal", "-shm"] {
        let (folder, path) = made();
        let beside = folder.path().join(format!("runs.db{suffix}"));
        fs::write(&beside, "").unwrap();
        chmod(&beside, 0o622);
        chmod(&path, 0o644);
        for refused in [open(&path), operate(&path, false)] {
            let refused = refused.unwrap_err();
            assert!(matches!(&refused, FileError::Insecure { path, .. } if *path == beside), "{refused}");
        }
        assert_eq!(mode(&path), 0o644);
        fs::remove_file(&beside).unwrap();
        symlink("/dev/null", &beside).unwrap();
        let refused = open(&path).unwrap_err();
        assert!(matches!(refused, FileError::Insecure { why: Insecurity::NotRegular, .. }), "{refused}");
    }
}

#[test]
fn a_file_beside_the_database_that_somebody_else_owns_is_refused() {
    let (folder, path) = made();
    let beside = folder.path().join("runs.db-wal");
    fs::write(&beside, "").unwrap();
    // Only root can give a file away; for others there is nothing to test.
    if std::os::unix::fs::chown(&beside, Some(12_345), None).is_ok() {
        let refused = open(&path).unwrap_err();
        assert!(matches!(refused, FileError::Insecure { why: Insecurity::OtherOwner, .. }), "{refused}");
    }
}

#[test]
fn a_link_is_followed_by_the_writer_and_refused_by_an_operator_s_command() {
    let (folder, path) = made();
    let link = folder.path().join("link.db");
    symlink(&path, &link).unwrap();
    open(&link).unwrap();
    for read_only in [true, false] {
        let refused = operate(&link, read_only).unwrap_err();
        assert!(matches!(refused, FileError::Symlink { .. }), "{refused}");
    }
    // A file beside the link's target counts, not one beside the link.
    let beside = folder.path().join("runs.db-wal");
    fs::write(&beside, "").unwrap();
    chmod(&beside, 0o666);
    assert!(open(&link).is_err());
    let nowhere = folder.path().join("nowhere.db");
    symlink(folder.path().join("missing.db"), &nowhere).unwrap();
    assert!(matches!(open(&nowhere).unwrap_err(), FileError::Io { .. }));
}

#[test]
fn a_directory_is_no_database_and_a_missing_file_is_made_by_the_writer_alone() {
    let folder = tempfile::tempdir().unwrap();
    for refused in [open(folder.path()), operate(folder.path(), true)] {
        assert!(matches!(refused.unwrap_err(), FileError::NotRegular { .. }));
    }
    let missing = folder.path().join("missing.db");
    for read_only in [true, false] {
        let refused = operate(&missing, read_only).unwrap_err();
        assert!(matches!(refused, FileError::Io { .. }), "{refused}");
    }
    assert!(!missing.exists());
    assert!(matches!(open(&folder.path().join("no/such/folder.db")).unwrap_err(), FileError::Io { .. }));
}

#[test]
fn a_path_with_the_characters_of_a_uri_names_that_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a?b#c%20d.db");
    make(&path);
    assert!(path.exists());
    operate(&path, true).unwrap();
    for entry in fs::read_dir(folder.path()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(name.starts_with("a?b#c%20d.db"), "{name}");
    }
}

/// Takes from this thread, for good, what lets the root user write where a mode forbids it.
fn be_held_by_modes() {
    #[cfg(target_os = "linux")]
    {
        use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
        let mut mine = capabilities(None).unwrap();
        mine.effective.remove(CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH);
        set_capabilities(None, mine).unwrap();
    }
}

#[test]
fn a_file_in_a_folder_that_cannot_be_written_is_read_as_it_stands() {
    let (folder, path) = made();
    let names = || -> Vec<_> {
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    };
    assert_eq!(names(), ["runs.db"], "without a writer there is nothing beside it");
    chmod(folder.path(), 0o500);
    let read = std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            be_held_by_modes();
            let denied = fs::write(folder.path().join("more"), "").map_err(|error| error.kind());
            assert_eq!(denied, Err(std::io::ErrorKind::PermissionDenied), "else this shows nothing");
            OperatorStore::open(&path, true).unwrap().read(|reader| reader.head()).unwrap().seq
        });
        reading.join()
    });
    chmod(folder.path(), 0o700);
    assert_eq!(read.unwrap(), 0);
    assert_eq!(names(), ["runs.db"]);
}

#[tokio::test]
async fn what_was_read_is_synced_through_the_log_itself_and_no_link_is_followed() {
    let bench = Bench::start().await;
    bench.intent(begun("r1", holdpoint_core::transition::Durability::Written)).await;
    let mut store = OperatorStore::open(&bench.path, true).unwrap();
    assert_eq!(store.read(|reader| reader.head()).unwrap().seq, 2);
    store.sync().unwrap();
    let (log, away) = (bench.folder.path().join("runs.db-wal"), bench.folder.path().join("away"));
    fs::rename(&log, &away).unwrap();
    symlink(&away, &log).unwrap();
    assert!(store.sync().is_err(), "a link may lead anywhere");
    fs::remove_file(&log).unwrap();
    store.sync().expect("without a log nothing waits to be synced");
}

#[test]
fn a_reader_knows_when_its_path_leads_elsewhere() {
    let (folder, path) = made();
    let store = OperatorStore::open(&path, true).unwrap();
    assert!(store.is_still_there());
    fs::rename(&path, folder.path().join("moved.db")).unwrap();
    assert!(!store.is_still_there());
    make(&path);
    assert!(!store.is_still_there(), "another file in its place is another record");
}

/// SQLite's planner looks at what is bound, unless it is told not to: then each look at a request's past calls parsed and
/// planned its statement anew, which cost several times as much.
#[test]
fn a_kept_statement_is_planned_once_whatever_is_bound() {
    use crate::store::open;

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.db");
    let (writer, _) = open::writer(&path, &Options::default()).unwrap();
    let others = [
        open::existing_writer(&path).unwrap(),
        open::existing_reader(&path).unwrap(),
        open::reader(&path).unwrap(),
        open::side_writer(&path).unwrap(),
    ];
    for conn in others.iter().chain([&writer]) {
        let sql = "SELECT id FROM proxy_calls WHERE session = ? AND request_key = ? AND open = 0";
        for key in ["first", "second", "third"] {
            assert!(!conn.prepare_cached(sql).unwrap().exists(("session", key)).unwrap());
        }
        let kept = conn.prepare_cached(sql).unwrap();
        let counts = [StatementStatus::Run, StatementStatus::RePrepare].map(|of| kept.get_status(of));
        assert_eq!(counts, [3, 0]);
    }
}
