//! The database file as the operating system sees it: who may write it, and what it really is.
//!
//! Owns the checks that come before SQLite opens a file, because whoever can write the file can forge an approval.
//! Never opens it through SQLite, and changes nothing but the mode of a file that this user owns. Both openers call it.

use std::fmt;
use std::fs::{self, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// What the file's owner alone may do.
const OWNER_ONLY: u32 = 0o600;
/// The bits that let somebody else write.
const OTHERS_WRITE: u32 = 0o022;
/// The bits that let somebody else do anything.
const OTHERS: u32 = 0o077;

/// Why a file was not opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is a symbolic link, and an existing database is named directly.
    #[error("open {}: it is a symbolic link; name the database file itself", path.display())]
    Symlink {
        /// The link.
        path: PathBuf,
    },
    /// It is a directory, a pipe or a device.
    #[error("open {}: it is not a regular file; name the database file itself", path.display())]
    NotRegular {
        /// What was named.
        path: PathBuf,
    },
    /// Somebody else could have written it.
    #[error(
        "open {}: its mode is {mode:03o} and {why}; if its content can be trusted, chown it to the user that runs this \
         and chmod it to 600", path.display()
    )]
    Insecure {
        /// The database, or a file beside it.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
        /// What is wrong with it.
        why: Insecurity,
    },
    /// Its path leads to another file than when it was looked at, or to none.
    #[error("open {}: it was exchanged while it was opened; look at who else writes its folder", path.display())]
    Exchanged {
        /// The database.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error("open {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
}

/// What makes a file one that somebody else could have written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Insecurity {
    /// Its group or everybody may write it.
    WritableByOthers,
    /// A file beside the database belongs to another user than the database.
    OtherOwner,
    /// A file beside the database is no regular file.
    NotRegular,
    /// The database belongs to another user than this one.
    NotYours,
}

impl fmt::Display for Insecurity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Insecurity::WritableByOthers => "its group or others may write it",
            Insecurity::OtherOwner => "it belongs to another user than the database",
            Insecurity::NotRegular => "it is not a regular file",
            Insecurity::NotYours => "it belongs to another user than you",
        })
    }
}

/// Makes a missing database file, for its owner only, and checks it; gives its real path.
///
/// Changes no file that was there. Symbolic links are followed, unless it has to be this user's `own`.
pub(super) fn create(path: &Path, own: bool) -> Result<PathBuf, Error> {
    // Exclusively: of two first openers one makes it, and the other checks it like any other file.
    match OpenOptions::new().read(true).write(true).create_new(true).mode(OWNER_ONLY).open(path) {
        Ok(_) => {}
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(io_error(path, e)),
    }
    let real = if own { named(path)? } else { fs::canonicalize(path).map_err(|e| io_error(path, e))? };
    judge(&real, own)?;
    Ok(real)
}

/// Checks a database that must exist, and gives its real path. With `write`, its mode is tightened as by [`tighten`].
///
/// What is opened is what was named: a symbolic link is refused.
pub(super) fn existing(path: &Path, write: bool) -> Result<PathBuf, Error> {
    let real = named(path)?;
    if write {
        tighten(&real, false)?
    } else {
        judge(&real, false).map(drop)?
    }
    Ok(real)
}

/// Checks a database again and makes it, and the files beside it, their owner's alone, if that is this user.
pub(super) fn tighten(path: &Path, own: bool) -> Result<(), Error> {
    // All are judged before any is changed.
    let found = judge(path, own)?;
    let me = rustix::process::getuid().as_raw();
    for (path, meta) in found {
        if meta.uid() == me && meta.mode() & OTHERS != 0 {
            fs::set_permissions(&path, Permissions::from_mode(OWNER_ONLY)).map_err(|e| io_error(&path, e))?;
        }
    }
    Ok(())
}

/// The real path of a file that is named directly.
fn named(path: &Path) -> Result<PathBuf, Error> {
    let meta = fs::symlink_metadata(path).map_err(|e| io_error(path, e))?;
    if meta.file_type().is_symlink() {
        return Err(Error::Symlink { path: path.to_owned() });
    }
    // The directories above may be links; SQLite names the files beside the database by the real path. The name itself
    // is not resolved, so that a link which takes its place from here on leads nowhere.
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        Some(_) | None => Path::new("."),
    };
    let real = match path.file_name() {
        Some(name) => fs::canonicalize(folder).map(|folder| folder.join(name)),
        None => fs::canonicalize(path),
    };
    real.map_err(|e| io_error(path, e))
}

/// The name of a file beside the database.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Judges a database and the files beside it, which are given.
fn judge(path: &Path, own: bool) -> Result<Vec<(PathBuf, Metadata)>, Error> {
    let meta = fs::metadata(path).map_err(|e| io_error(path, e))?;
    if !meta.is_file() {
        return Err(Error::NotRegular { path: path.to_owned() });
    }
    let owner = meta.uid();
    if own && owner != rustix::process::getuid().as_raw() {
        return Err(insecure(path, &meta, Insecurity::NotYours));
    }
    let mut found = vec![(path.to_owned(), meta)];
    for suffix in ["-wal", "-shm"] {
        let path = beside(path, suffix);
        let meta = match fs::symlink_metadata(&path) {
            Ok(meta) => meta,
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(io_error(&path, e)),
        };
        if !meta.is_file() {
            return Err(insecure(&path, &meta, Insecurity::NotRegular));
        }
        if meta.uid() != owner {
            return Err(insecure(&path, &meta, Insecurity::OtherOwner));
        }
        found.push((path, meta));
    }
    if let Some((path, meta)) = found.iter().find(|(_, meta)| meta.mode() & OTHERS_WRITE != 0) {
        return Err(insecure(path, meta, Insecurity::WritableByOthers));
    }
    Ok(found)
}

fn insecure(path: &Path, meta: &Metadata, why: Insecurity) -> Error {
    Error::Insecure { path: path.to_owned(), mode: meta.mode() & 0o7777, why }
}

fn io_error(path: &Path, source: io::Error) -> Error {
    Error::Io { path: path.to_owned(), source }
}
