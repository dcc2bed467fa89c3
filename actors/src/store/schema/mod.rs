//! The tables: what a file must hold before anybody reads or writes it, and how older files get there.
//!
//! Owns the versions and the order of migrations; the statements themselves stand in [`runtime`], [`index`] and
//! [`own`], one file for each of the three sets of tables. Everything pending runs in one IMMEDIATE transaction that
//! reads the versions first, so that of two first openers the second finds the work done. Operator commands only ever
//! call [`refuse_foreign_code`] and [`require_current`].

mod index;
mod own;
mod runtime;

use std::path::{Path, PathBuf};

use holdpoint_core::time::UnixNanos;
use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior};

use super::head;
use crate::faults::process;

pub(super) use runtime::VERSION;

/// Why the tables of a file are not what this build works on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A trigger or a view would run its author's SQL inside our statements.
    #[error("open {}: its schema has the {kind} {name:?}, which nobody here made; drop it if it is yours", path.display())]
    ForeignCode {
        /// The file.
        path: PathBuf,
        /// `trigger` or `view`.
        kind: String,
        /// Its name.
        name: String,
    },
    /// A newer build migrated it.
    #[error(
        "open {}: its {tables} are at version {found} and this build knows {known}; use the newer build that \
         migrated it", path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Which set of tables.
        tables: &'static str,
        /// The file's version.
        found: i64,
        /// Ours.
        known: i64,
    },
    /// It was never migrated to this build's version, and whoever opens it may not do so.
    #[error(
        "open {}: its tables are at version {found} and this build reads version {known}; start the program that \
         writes it once, in a version that migrates it", path.display()
    )]
    Older {
        /// The file.
        path: PathBuf,
        /// The file's version.
        found: i64,
        /// Ours.
        known: i64,
    },
    /// It has no migrations table.
    #[error("open {}: it is an SQLite database, but not one of agent runs; name another file", path.display())]
    NotOurs {
        /// The file.
        path: PathBuf,
    },
    /// SQLite refused.
    #[error(transparent)]
    Sql(#[from] rusqlite::Error),
}

/// One set of tables with a migrations table of its own.
struct Tables {
    /// What an error calls them.
    what: &'static str,
    /// The migrations table.
    migrations: &'static str,
    /// Makes it, unless it is there.
    base: &'static str,
    /// The newest version that was applied.
    current: &'static str,
    /// Notes a version as applied.
    note: &'static str,
    /// How `applied_at` is stored.
    stamp: fn(UnixNanos) -> rusqlite::types::Value,
    /// The migrations, from version 1.
    steps: &'static [&'static str],
    /// What a migration does beside its statements.
    after: fn(&Connection, version: i64, now: UnixNanos) -> rusqlite::Result<()>,
}

/// Refuses a file whose schema would run somebody else's SQL. Touches no table.
pub(super) fn refuse_foreign_code(conn: &Connection, path: &Path) -> Result<(), Error> {
    let found = conn
        .query_row(
            "SELECT type, name FROM sqlite_schema WHERE type IN ('trigger', 'view') LIMIT 1",
            [],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .optional()?;
    match found {
        Some((kind, name)) => Err(Error::ForeignCode { path: path.to_owned(), kind, name }),
        None => Ok(()),
    }
}

/// Refuses a file whose runtime tables are not exactly this build's. Writes nothing.
pub(super) fn require_current(conn: &Connection, path: &Path) -> Result<(), Error> {
    let path = || path.to_owned();
    if !has_table(conn, "schema_migrations")? {
        return Err(Error::NotOurs { path: path() });
    }
    let found: i64 = conn.query_row(runtime::TABLES.current, [], |row| row.get(0))?;
    let known = VERSION;
    match found.cmp(&known) {
        std::cmp::Ordering::Less => Err(Error::Older { path: path(), found, known }),
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => {
            Err(Error::Newer { path: path(), tables: runtime::TABLES.what, found, known })
        }
    }
}

/// How the names of our tables begin in a file that has no runs yet: a first opener may have been cut off.
const BEGINNINGS: [&str; 3] = ["schema_migrations", "proxy_", "holdpoint_"];

/// Refuses a file that is another program's. Writes nothing.
///
/// Runs and a version of their tables come together. Where there are neither, nothing of anybody else's may be there,
/// unless an embedder keeps tables of its own in the file, which is then `shared`.
pub(super) fn refuse_others(conn: &Connection, path: &Path, shared: bool) -> Result<(), Error> {
    // In one snapshot: another first opener may be migrating it.
    let seen = conn.unchecked_transaction()?;
    let has_runs = has_table(&seen, "runs")?;
    let is_migrated = has_table(&seen, runtime::TABLES.migrations)?
        && seen.query_row("SELECT EXISTS (SELECT 1 FROM schema_migrations)", [], |row| row.get(0))?;
    if has_runs != is_migrated || !has_runs && !shared && has_tables_of_others(&seen)? {
        return Err(Error::NotOurs { path: path.to_owned() });
    }
    Ok(())
}

fn has_tables_of_others(conn: &Connection) -> rusqlite::Result<bool> {
    let mut named =
        conn.prepare("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'")?;
    let names = named.query_map([], |row| row.get(0))?.collect::<Result<Vec<String>, _>>()?;
    Ok(names.iter().any(|name| !BEGINNINGS.iter().any(|ours| name.starts_with(ours))))
}

/// Refuses a file that a newer build has migrated. Writes nothing.
pub(super) fn refuse_newer(conn: &Connection, path: &Path, proxy_index: bool) -> Result<(), Error> {
    let index = proxy_index.then_some(&index::TABLES);
    for tables in [&runtime::TABLES, &own::TABLES].into_iter().chain(index) {
        if has_table(conn, tables.migrations)? {
            current(conn, path, tables)?;
        }
    }
    Ok(())
}

/// Brings a file to this build's versions, in one transaction.
pub(super) fn migrate(
    conn: &mut Connection,
    path: &Path,
    proxy_index: bool,
    now: UnixNanos,
) -> Result<(), Error> {
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    process::reach("migrate.begun");
    apply(&tx, path, &runtime::TABLES, VERSION, now)?;
    process::reach("migrate.runtime");
    if proxy_index {
        apply(&tx, path, &index::TABLES, i64::MAX, now)?;
    }
    apply(&tx, path, &own::TABLES, i64::MAX, now)?;
    process::reach("migrate.written");
    tx.commit()?;
    process::reach("migrate.committed");
    Ok(())
}

/// Brings the tables that are ours alone to this build's version, in a file whose other tables are at it.
pub(super) fn migrate_own(conn: &mut Connection, path: &Path, now: UnixNanos) -> Result<(), Error> {
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    apply(&tx, path, &own::TABLES, i64::MAX, now)?;
    Ok(tx.commit()?)
}

fn apply(conn: &Connection, path: &Path, tables: &Tables, upto: i64, now: UnixNanos) -> Result<(), Error> {
    conn.execute_batch(tables.base)?;
    let current = current(conn, path, tables)?;
    for (version, step) in
        (1..).zip(tables.steps).filter(|(version, _)| (current + 1..=upto).contains(version))
    {
        conn.execute_batch(step)?;
        conn.execute(tables.note, (version, (tables.stamp)(now)))?;
        (tables.after)(conn, version, now)?;
    }
    Ok(())
}

/// The newest version that was applied, if this build knows it.
fn current(conn: &Connection, path: &Path, tables: &Tables) -> Result<i64, Error> {
    let found: i64 = conn.query_row(tables.current, [], |row| row.get(0))?;
    let known = i64::try_from(tables.steps.len()).unwrap_or(i64::MAX);
    if found > known {
        return Err(Error::Newer { path: path.to_owned(), tables: tables.what, found, known });
    }
    Ok(found)
}

/// Whether a table of this name is there.
pub(super) fn has_table(conn: &Connection, name: &str) -> rusqlite::Result<bool> {
    conn.query_row(
        "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?)",
        [name],
        |row| row.get(0),
    )
}

fn nothing_more(_: &Connection, _: i64, _: UnixNanos) -> rusqlite::Result<()> {
    Ok(())
}

/// A file as an older version left it.
#[cfg(test)]
pub(super) fn migrate_runtime_upto(conn: &Connection, upto: i64, now: UnixNanos) -> Result<(), Error> {
    apply(conn, Path::new("old.db"), &runtime::TABLES, upto, now)
}

#[cfg(test)]
mod tests {
    use holdpoint_core::hash::sha256_hex;

    use super::*;

    /// A released migration is in files out there: whoever changes its text leaves two kinds of files under one version.
    /// What a new version needs is a new migration, and a new line here.
    #[test]
    fn a_released_migration_is_never_edited() {
        let of = |tables: &Tables| -> Vec<String> {
            std::iter::once(tables.base).chain(tables.steps.iter().copied()).map(pinned).collect()
        };
        assert_eq!(of(&runtime::TABLES), RUNTIME);
        assert_eq!(of(&index::TABLES), INDEX);
        assert_eq!(of(&own::TABLES), OWN);
    }

    /// Enough of the hash to know a text by.
    fn pinned(text: &str) -> String {
        sha256_hex(text.as_bytes()).chars().take(16).collect()
    }

    const RUNTIME: [&str; 7] = [
        "abbcc629acaa0f08",
        "e0c0fd6300abc45a",
        "e6026d0c4d6367c4",
        "63b1f64146148233",
        "aa833a3c16f120f3",
        "e9d8fa271cb14868",
        "d628e53ad25f84b1",
    ];
    const INDEX: [&str; 3] = ["9a14b5e42f8a74ec", "e8d8d135ef02ad31", "c093714b7369236b"];
    const OWN: [&str; 3] = ["8d404dc9c2114bcc", "291d8f7fc19706b6", "402f1bd34bc2ad8c"];
}
