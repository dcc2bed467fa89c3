//! What becomes of the database between the first look at it and its opening: it is refused, and nothing of it is touched.

use std::fs::{self, Permissions};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::Path;
use std::sync::Arc;

use holdpoint::proxy::journal::KeptJournal;
use holdpoint::proxy::serve::{Opened, ServeError};
use holdpoint_actors::store::{Arguments, FileError, Insecurity, OpenError, Options, SchemaError};
use holdpoint_actors::tree::TreeError;
use rusqlite::Connection;

use super::Place;

/// A record as somebody may have left it: at this build's version, closed, without a log, and readable by others.
fn record(path: &Path) {
    drop(Arguments::open(path, Options::default()).unwrap());
    sql(path, "PRAGMA journal_mode = DELETE");
    fs::set_permissions(path, Permissions::from_mode(0o644)).unwrap();
}

fn sql(path: &Path, sql: &str) {
    Connection::open(path).unwrap().query_row(sql, [], |_| Ok(())).unwrap();
}

/// Everything in a folder that whoever opens a file could have changed: what is there, its mode, whose, and a hash of its
/// bytes, which are too many to be shown.
fn traces(folder: &Path) -> Vec<(String, u32, u32, u64)> {
    let mut all: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| {
            let (name, path) = (entry.as_ref().unwrap().file_name(), entry.unwrap().path());
            let meta = fs::symlink_metadata(&path).unwrap();
            let bytes = if meta.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
            let mut hash = DefaultHasher::new();
            bytes.hash(&mut hash);
            (name.into_string().unwrap(), meta.mode(), meta.uid(), hash.finish())
        })
        .collect();
    all.sort();
    all
}

/// Has a database change after the first look, and gives why it is not opened then, having seen that nothing was touched.
async fn refused(change: impl FnOnce(&Path, &Path)) -> OpenError {
    let (place, elsewhere) = (Place::new(), tempfile::tempdir().unwrap());
    let (database, other) = (place.path("runs.db"), elsewhere.path().join("other.db"));
    record(&database);
    record(&other);
    let prepared = place.prepare().unwrap();
    change(&database, &other);
    let before = (traces(place.folder.path()), traces(elsewhere.path()));
    let refused = Opened::open(prepared, Arc::new(KeptJournal::default())).await.unwrap_err();
    assert_eq!((traces(place.folder.path()), traces(elsewhere.path())), before, "{refused}");
    let ServeError::Tree(TreeError::Store(error)) = refused else { panic!("{refused}") };
    error
}

#[tokio::test]
async fn a_link_in_the_database_s_place_is_refused_wherever_it_leads() {
    let linked = refused(|database, other| {
        fs::remove_file(database).unwrap();
        symlink(other, database).unwrap();
    });
    let dangling = refused(|database, other| {
        fs::remove_file(database).unwrap();
        symlink(other.with_extension("none"), database).unwrap();
    });
    let empty = refused(|database, other| {
        fs::remove_file(database).unwrap();
        fs::write(other, "").unwrap();
        symlink(other, database).unwrap();
    });
    for refused in [linked.await, dangling.await, empty.await] {
        assert!(matches!(refused, OpenError::File(FileError::Symlink { .. })), "{refused}");
    }
}

#[tokio::test]
async fn a_database_that_others_may_write_by_now_is_refused() {
    let refused =
        refused(|database, _| fs::set_permissions(database, Permissions::from_mode(0o664)).unwrap()).await;
    let OpenError::File(FileError::Insecure { mode: 0o664, why, .. }) = refused else { panic!("{refused}") };
    assert_eq!(why, Insecurity::WritableByOthers);
}

#[tokio::test]
async fn a_database_that_belongs_to_somebody_else_by_now_is_refused() {
    let mine = tempfile::NamedTempFile::new().unwrap();
    // Only root can give a file away; for others there is nothing to test.
    if chown(mine.path(), Some(12_345), None).is_ok() {
        let refused = refused(|database, _| chown(database, Some(12_345), None).unwrap()).await;
        assert!(
            matches!(refused, OpenError::File(FileError::Insecure { why: Insecurity::NotYours, .. })),
            "{refused}"
        );
    }
}

#[tokio::test]
async fn a_database_that_a_newer_build_has_migrated_by_now_is_refused() {
    for (table, stamp) in
        [("schema_migrations", "'x'"), ("proxy_schema_migrations", "1"), ("holdpoint_migrations", "'x'")]
    {
        for mode in ["DELETE", "WAL"] {
            let refused = refused(|database, _| {
                let db = Connection::open(database).unwrap();
                db.execute_batch(&format!("INSERT INTO {table} VALUES (99, {stamp})")).unwrap();
                drop(db);
                sql(database, &format!("PRAGMA journal_mode = {mode}"));
            })
            .await;
            assert!(
                matches!(refused, OpenError::Schema(SchemaError::Newer { found: 99, .. })),
                "{table}, {mode}: {refused}"
            );
        }
    }
}

#[tokio::test]
async fn what_is_no_file_any_more_is_refused() {
    let refused = refused(|database, _| {
        fs::remove_file(database).unwrap();
        fs::create_dir(database).unwrap();
    })
    .await;
    assert!(matches!(refused, OpenError::File(FileError::NotRegular { .. })), "{refused}");
}
