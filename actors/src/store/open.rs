//! Connections: how each kind is opened and set.
//!
//! Owns the order of the checks (the file, then its schema, then its tables) and the settings that every connection
//! shares: a schema that is not trusted, defensive mode, no triggers, no views, and a busy handler that tries again
//! every millisecond, because SQLite's own waits so long between tries that it loses against a busy writer. Never
//! runs a statement on a table before the schema was looked at.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::fault::{Fault, is_readonly_directory};
use super::place::Place;
use super::{Options, files, log, schema};
use crate::clock;
use crate::faults::process::{self, Broken};

/// How long a connection waits for another's lock.
pub const BUSY: Duration = Duration::from_secs(5);
/// The oldest SQLite that is used: older ones could lose a commit when the log was reset under a reader.
const SQLITE_OLDEST: i32 = 3_051_003;
/// Between two tries of the switch to a write-ahead log, which SQLite can refuse without waiting.
const WAL_PAUSE: Duration = Duration::from_millis(5);
/// Distinct statements that a connection keeps prepared; the store has about seventy.
const STATEMENTS: usize = 96;

/// Why a database was not opened. Each says in one sentence what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file itself is refused.
    #[error(transparent)]
    File(#[from] files::Error),
    /// Its schema or version is refused.
    #[error(transparent)]
    Schema(schema::Error),
    /// It is no database, or not a whole one.
    #[error(
        "open {}: it is damaged or no SQLite database ({detail}); restore it from a copy, or name another file",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What SQLite said.
        detail: String,
    },
    /// Another process holds it.
    #[error("open {}: another process kept it locked for {} s; end that process or try again", path.display(), BUSY.as_secs())]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// It can't have a write-ahead log.
    #[error("open {}: its journal mode stays {mode:?}; put it on a local disk, where it can have a write-ahead log", path.display())]
    NoLog {
        /// The file.
        path: PathBuf,
        /// The mode that it has.
        mode: String,
    },
    /// The SQLite that this was linked with is too old.
    #[error(
        "open the database: SQLite {found} is older than 3.51.3, which can lose commits; build with a newer one"
    )]
    OldSqlite {
        /// Its version.
        found: &'static str,
    },
    /// SQLite refused.
    #[error("open {}: {source}", path.display())]
    Sql {
        /// The file.
        path: PathBuf,
        /// What it said.
        source: rusqlite::Error,
    },
}

impl OpenError {
    fn sql(path: &Path, error: rusqlite::Error) -> OpenError {
        let path = path.to_owned();
        match Fault::of(&error) {
            Fault::Damaged => OpenError::Damaged { path, detail: error.to_string() },
            Fault::Locked => OpenError::Locked { path },
            Fault::Full | Fault::ReadOnly | Fault::Io | Fault::Statement => {
                OpenError::Sql { path, source: error }
            }
        }
    }

    pub(super) fn schema(path: &Path, error: schema::Error) -> OpenError {
        match error {
            schema::Error::Sql(error) => OpenError::sql(path, error),
            schema::Error::ForeignCode { .. }
            | schema::Error::Newer { .. }
            | schema::Error::Older { .. }
            | schema::Error::NotOurs { .. } => OpenError::Schema(error),
        }
    }
}

/// Opens the one connection that writes, making the file and migrating it when needed; says which file it is, too.
pub(super) fn writer(path: &Path, options: &Options) -> Result<(Connection, Place), OpenError> {
    let place = look_at(path, options)?;
    let conn = open(&place, options)?;
    Ok((conn, place))
}

/// Looks at the file, or makes it.
fn look_at(path: &Path, options: &Options) -> Result<Place, files::Error> {
    let path = files::create(path, options.own)?;
    Place::of(&path).map_err(|source| files::Error::Io { path, source })
}

/// Opens the file that was looked at. It is judged again once it is open, and nothing is written before.
fn open(place: &Place, options: &Options) -> Result<Connection, OpenError> {
    let path = place.path();
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let mut conn = connect(path, flags, options.busy)?;
    if !place.is_still_there() {
        return Err(files::Error::Exchanged { path: path.to_owned() }.into());
    }
    schema::refuse_foreign_code(&conn, path)
        .and_then(|()| schema::refuse_others(&conn, path, !options.own))
        .and_then(|()| schema::refuse_newer(&conn, path, options.proxy_index))
        .map_err(|e| OpenError::schema(path, e))?;
    files::tighten(path, options.own)?;
    use_log(&conn, path, options.busy)?;
    set_writer(&conn).map_err(|e| OpenError::sql(path, e))?;
    schema::migrate(&mut conn, path, options.proxy_index, options.clock.now())
        .map_err(|e| OpenError::schema(path, e))?;
    // Its thread copies the log itself, when it has answered: a commit that does it keeps its callers waiting.
    conn.pragma_update(None, "wal_autocheckpoint", 0).map_err(|e| OpenError::sql(path, e))?;
    Ok(conn)
}

/// Opens an existing database at this build's version, to write a person's decision. Makes and migrates nothing.
pub(super) fn existing_writer(path: &Path) -> Result<Connection, OpenError> {
    let path = files::existing(path, true)?;
    let conn = connect(&path, OpenFlags::SQLITE_OPEN_READ_WRITE, BUSY)?;
    schema::refuse_foreign_code(&conn, &path)
        .and_then(|()| schema::require_current(&conn, &path))
        .map_err(|e| OpenError::schema(&path, e))?;
    set_writer(&conn).map_err(|e| OpenError::sql(&path, e))?;
    Ok(conn)
}

/// Opens an existing database for reading; changes nothing, not even a mode.
pub(super) fn existing_reader(path: &Path) -> Result<Connection, OpenError> {
    let path = files::existing(path, false)?;
    let checked = |conn: Connection| {
        schema::refuse_foreign_code(&conn, &path)?;
        schema::require_current(&conn, &path)?;
        Ok(conn)
    };
    let opened = connect(&path, OpenFlags::SQLITE_OPEN_READ_ONLY, BUSY)?;
    match checked(opened) {
        // No shared-memory file is there and none can be made. So no writer is alive either: it would have needed
        // one. The file can't change under us and is read without locks.
        Err(schema::Error::Sql(e)) if is_readonly_directory(&e) => {
            let conn =
                connect_to(&immutable_uri(&path), &path, read_flags() | OpenFlags::SQLITE_OPEN_URI, BUSY)?;
            checked(conn)
        }
        other => other,
    }
    .map_err(|e| OpenError::schema(&path, e))
}

/// Opens one more connection for reading a database that this process has open for writing.
pub(super) fn reader(path: &Path) -> Result<Connection, rusqlite::Error> {
    let mut conn = Connection::open_with_flags(path, read_flags())?;
    set(&mut conn, BUSY)?;
    conn.pragma_update(None, "query_only", true)?;
    Ok(conn)
}

/// Opens a short-lived connection that writes one of our own rows; its commits are not synced.
pub(super) fn side_writer(path: &Path) -> Result<Connection, rusqlite::Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut conn = Connection::open_with_flags(path, flags)?;
    set(&mut conn, BUSY)?;
    conn.pragma_update(None, "synchronous", "NORMAL")?;
    set_log(&conn)?;
    Ok(conn)
}

/// When a commit has to copy the log into the database. Whoever writes less often copies it no sooner than a writer's
/// thread does.
fn set_log(conn: &Connection) -> rusqlite::Result<()> {
    conn.pragma_update(None, "wal_autocheckpoint", log::PAGES_MAX)
}

fn read_flags() -> OpenFlags {
    OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX
}

fn connect(path: &Path, access: OpenFlags, busy: Duration) -> Result<Connection, OpenError> {
    connect_to(path, path, access | OpenFlags::SQLITE_OPEN_NO_MUTEX, busy)
}

fn connect_to(name: &Path, path: &Path, flags: OpenFlags, busy: Duration) -> Result<Connection, OpenError> {
    if rusqlite::version_number() < SQLITE_OLDEST {
        return Err(OpenError::OldSqlite { found: rusqlite::version() });
    }
    Connection::open_with_flags(name, flags)
        .and_then(|mut conn| set(&mut conn, busy).map(|()| conn))
        .map_err(|e| OpenError::sql(path, e))
}

/// The settings of every connection. None of them reads the file.
fn set(conn: &mut Connection, busy: Duration) -> rusqlite::Result<()> {
    let tries_max = i32::try_from(busy.as_millis()).unwrap_or(i32::MAX);
    conn.busy_handler(Some(move |tries: i32| {
        thread::sleep(Duration::from_millis(1));
        tries < tries_max
    }))?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false)?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_FKEY, true)?;
    // A plan that may look at bound values is made anew whenever they change: parsed again at each call.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(())
}

/// The settings of a connection that writes what must not be lost.
fn set_writer(conn: &Connection) -> rusqlite::Result<()> {
    let synchronous = if process::is(Broken::SyncOff) { "NORMAL" } else { "FULL" };
    conn.pragma_update(None, "synchronous", synchronous)?;
    set_log(conn)?;
    if cfg!(target_os = "macos") {
        // There a plain sync leaves the bytes in the drive's cache.
        conn.pragma_update(None, "fullfsync", true)?;
        conn.pragma_update(None, "checkpoint_fullfsync", true)?;
    }
    Ok(())
}

fn use_log(conn: &Connection, path: &Path, busy: Duration) -> Result<(), OpenError> {
    let until = clock::monotonic() + busy;
    loop {
        match conn.query_row("PRAGMA journal_mode = WAL", [], |row| row.get::<_, String>(0)) {
            Ok(mode) if mode.eq_ignore_ascii_case("wal") => return Ok(()),
            Ok(mode) => return Err(OpenError::NoLog { path: path.to_owned(), mode }),
            Err(e) if Fault::of(&e) == Fault::Locked && clock::monotonic() < until => {
                thread::sleep(WAL_PAUSE)
            }
            Err(e) => return Err(OpenError::sql(path, e)),
        }
    }
}

/// The file's name as a URI. SQLite decodes `%HH`, ends the path at `?` and the name at `#`.
fn immutable_uri(path: &Path) -> PathBuf {
    use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
    let mut uri = b"file://".to_vec();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'%' => uri.extend_from_slice(b"%25"),
            b'?' => uri.extend_from_slice(b"%3F"),
            b'#' => uri.extend_from_slice(b"%23"),
            other => uri.push(*other),
        }
    }
    uri.extend_from_slice(b"?mode=ro&immutable=1");
    PathBuf::from(std::ffi::OsString::from_vec(uri))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The connections of every kind, under the names of what opens them, and how each syncs.
    fn of_every_kind(path: &Path) -> Vec<(&'static str, Connection, i64)> {
        const NORMAL: i64 = 1;
        const FULL: i64 = 2;
        let options = Options::default();
        vec![
            ("writer", writer(path, &options).unwrap().0, FULL),
            ("existing_writer", existing_writer(path).unwrap(), FULL),
            ("existing_reader", existing_reader(path).unwrap(), FULL),
            ("reader", reader(path).unwrap(), FULL),
            ("side_writer", side_writer(path).unwrap(), NORMAL),
        ]
    }

    #[test]
    fn a_file_that_is_exchanged_after_it_was_looked_at_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let (path, aside) = (folder.path().join("runs.db"), folder.path().join("aside"));
        let place = look_at(&path, &Options::default()).unwrap();
        std::fs::rename(&path, &aside).unwrap();
        std::fs::write(&path, "").unwrap();
        let refused = open(&place, &Options::default()).unwrap_err();
        assert!(matches!(refused, OpenError::File(files::Error::Exchanged { .. })), "{refused}");
        // A link is not followed even to the file itself.
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&aside, &path).unwrap();
        let refused = open(&place, &Options::default()).unwrap_err();
        assert!(matches!(refused, OpenError::Sql { .. }), "{refused}");
        for (file, name) in [(&path, "runs.db"), (&aside, "aside")] {
            assert_eq!(std::fs::read(file).unwrap(), b"", "{name}");
            assert!(
                !files::beside(file, "-wal").exists() && !files::beside(file, "-journal").exists(),
                "{name}"
            );
        }
    }

    #[test]
    fn every_connection_distrusts_the_schema_and_those_that_write_the_record_sync_each_commit() {
        let folder = tempfile::tempdir().unwrap();
        for (kind, conn, synchronous) in of_every_kind(&folder.path().join("runs.db")) {
            let set = |config| conn.db_config(config).unwrap();
            assert!(set(DbConfig::SQLITE_DBCONFIG_DEFENSIVE), "{kind}");
            assert!(set(DbConfig::SQLITE_DBCONFIG_ENABLE_FKEY), "{kind}");
            for off in [
                DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA,
                DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER,
                DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW,
            ] {
                assert!(!set(off), "{kind}: {off:?}");
            }
            let pragma =
                |name: &str| conn.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).unwrap();
            assert_eq!(pragma("trusted_schema"), 0, "{kind}");
            assert_eq!(pragma("synchronous"), synchronous, "{kind}");
            let writes = !conn.is_readonly("main").unwrap();
            let copies_at = if kind == "writer" { 0 } else { log::PAGES_MAX };
            assert!(!writes || pragma("wal_autocheckpoint") == copies_at, "{kind}");
            // What the defensive mode is for: a statement that rewrites the schema itself is refused.
            conn.pragma_update(None, "writable_schema", true).unwrap();
            let rewritten = conn.execute("UPDATE sqlite_schema SET sql = sql", []);
            assert!(rewritten.is_err(), "{kind}");
        }
    }
}
