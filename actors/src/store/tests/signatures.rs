//! The signatures that the approval channel remembers.

use std::sync::Barrier;

use rusqlite::Connection;

use super::support::start_time;
use crate::store::{Arguments, OpenError, OperatorStore, Options, SignatureStore, SignedRequest, Taken};

struct Scene {
    _folder: tempfile::TempDir,
    path: std::path::PathBuf,
    store: SignatureStore,
}

impl Scene {
    fn new() -> Scene {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        drop(Arguments::open(&path, Options { log_bytes: 0, ..Options::default() }).unwrap());
        let store = SignatureStore::open(&path, start_time()).unwrap();
        Scene { _folder: folder, path, store }
    }

    /// Sees a signature of the time `at`, when no time before `oldest` is acceptable.
    fn see(&self, signature: u8, at: i64, oldest: i64) -> Taken {
        see(&self.store, signature, at, oldest)
    }

    fn count(&self) -> i64 {
        let conn = Connection::open(&self.path).unwrap();
        conn.query_row("SELECT COUNT(*) FROM holdpoint_signatures", [], |row| row.get(0)).unwrap()
    }
}

fn see(store: &SignatureStore, signature: u8, at: i64, oldest: i64) -> Taken {
    store.take(&SignedRequest { signature: &[signature; 32], at, oldest, most: 4 }).unwrap()
}

#[test]
fn a_signature_is_taken_once_also_after_a_restart_and_by_another_server() {
    let scene = Scene::new();
    assert_eq!(scene.see(1, 100, 50), Taken::First);
    assert_eq!(scene.see(1, 100, 50), Taken::Again);
    let restarted = SignatureStore::open(&scene.path, start_time()).unwrap();
    assert_eq!(see(&restarted, 1, 100, 50), Taken::Again);
    assert_eq!(see(&restarted, 2, 100, 50), Taken::First);
    assert_eq!(scene.see(2, 100, 50), Taken::Again);
}

#[test]
fn what_is_too_old_to_be_taken_is_forgotten_and_stays_refused() {
    let scene = Scene::new();
    assert_eq!((scene.see(1, 100, 50), scene.see(2, 110, 50)), (Taken::First, Taken::First));
    assert_eq!(scene.see(3, 160, 105), Taken::First);
    assert_eq!(scene.count(), 2, "the first was pruned");
    // The clock was set back, or another server takes older requests.
    assert_eq!(scene.see(1, 100, 50), Taken::Forgotten);
    assert_eq!(scene.see(4, 99, 50), Taken::Forgotten);
    assert_eq!(scene.see(5, 101, 50), Taken::First, "a later one than all that were forgotten");
}

#[test]
fn a_full_memory_takes_nothing_more_until_something_is_too_old() {
    let scene = Scene::new();
    for signature in 0..4 {
        assert_eq!(scene.see(signature, 100 + i64::from(signature), 50), Taken::First);
    }
    assert_eq!(scene.see(9, 110, 50), Taken::Full);
    assert_eq!(scene.see(0, 100, 50), Taken::Again, "what is known is still known");
    assert_eq!(scene.see(9, 110, 101), Taken::First);
    assert_eq!(scene.count(), 4);
}

#[test]
fn of_two_servers_that_see_one_signature_at_the_same_time_one_takes_it() {
    let scene = Scene::new();
    let other = SignatureStore::open(&scene.path, start_time()).unwrap();
    for signature in 0..4 {
        let together = Barrier::new(2);
        let both = [&scene.store, &other];
        let mut seen = std::thread::scope(|scope| {
            let sees = both.map(|store| {
                let together = &together;
                scope.spawn(move || {
                    together.wait();
                    see(store, signature, 100, 50)
                })
            });
            sees.map(|seen| seen.join().unwrap())
        });
        seen.sort_by_key(|seen| *seen != Taken::First);
        assert_eq!(seen, [Taken::First, Taken::Again]);
    }
}

#[test]
fn the_table_is_made_where_it_is_missing_and_nowhere_else() {
    let scene = Scene::new();
    let conn = Connection::open(&scene.path).unwrap();
    // As the reference leaves a file.
    conn.execute_batch(
        "DROP TABLE holdpoint_signatures; DROP TABLE holdpoint_signature_horizon; DROP TABLE holdpoint_endings;
         DROP TABLE holdpoint_groups; DROP TABLE holdpoint_sync; DROP TABLE holdpoint_migrations;",
    )
    .unwrap();
    drop(conn);
    OperatorStore::open(&scene.path, false).unwrap();
    let bare = scene.store.take(&SignedRequest { signature: &[1; 32], at: 100, oldest: 50, most: 4 });
    assert!(bare.is_err(), "an operator's store made no table, and without one nothing is taken");
    let store = SignatureStore::open(&scene.path, start_time()).unwrap();
    assert_eq!(see(&store, 1, 100, 50), Taken::First);
    let missing = SignatureStore::open(&scene.path.with_extension("none"), start_time());
    assert!(matches!(missing, Err(OpenError::File(_))));
}
