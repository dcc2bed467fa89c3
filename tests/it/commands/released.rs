//! Databases of every released version, as SQL: each opens, verifies and can be decided on with this build.
//!
//! Owns `released/`: one file a version, the dump of what that version's demonstration left, and one for each version of our
//! own tables that a release will not have had. A release adds its file; none is ever edited to make a test pass.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use holdpoint::gate::Runtime;

use super::{Record, Value};

pub(super) fn released() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/commands/released");
    let mut paths: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let version = |path: &Path| path.file_stem().unwrap().to_string_lossy().into_owned();
    paths.iter().map(|path| (version(path), fs::read_to_string(path).unwrap())).collect()
}

pub(super) fn record_of(sql: &str) -> Record {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gate.db");
    rusqlite::Connection::open(&path).unwrap().execute_batch(sql).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    Record { folder, path }
}

/// What a person who kept this database would look at.
fn told(record: &Record) -> (Value, Value) {
    (record.json("verify"), record.json("runs"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_database_of_every_released_version_opens_verifies_and_is_decided_on() {
    let all = released();
    assert!(all.iter().any(|(version, _)| version == "0.1.0"), "the fixtures must be found");
    for (version, sql) in all {
        let record = record_of(&sql);
        let before = told(&record);
        assert_eq!(before.0["intact"], true, "{version}: {}", before.0);
        assert_eq!(before.0["checked"], before.0["head"]["seq"], "{version}");
        assert!(before.1["total"].as_u64().unwrap() > 0, "{version}");

        // A program that writes migrates the file, and what stood there stays as it was.
        Runtime::builder(&record.path).start().await.unwrap().stop().await;
        assert_eq!(told(&record), before, "{version}: opening it must change neither events nor runs");

        let waiting =
            before.1["runs"].as_array().unwrap().iter().find(|run| run["pending_approval_id"] != Value::Null);
        let run = waiting.expect("a question that waits")["id"].as_str().unwrap();
        let approved = record.json(&format!("approve {run} --approval {} --by tester", record.approval(run)));
        assert_eq!(approved["approval"]["status"], "approved", "{version}: {approved}");
        assert_eq!(record.json("verify")["intact"], true, "{version}");
    }
}
