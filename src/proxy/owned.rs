//! Files of the operator: read only when nobody else can have written them.
//!
//! Owns the check of a file's kind, owner and mode. A file that others may read is fine; whoever can write it chooses
//! the policy.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::Access;
use thiserror::Error;

/// The longest file that is read: a configuration or a manifest of a thousand tools is far below it.
const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Why a file of the operator's is not used.
#[derive(Debug, Error)]
pub enum OwnedError {
    /// It can't be opened or read.
    #[error("read {path}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// It is a directory, a pipe or a device.
    #[error("{0} is not a regular file")]
    NotRegular(PathBuf),
    /// It is a symbolic link where none is followed.
    #[error("{0} is a symbolic link: name the file itself")]
    Symlink(PathBuf),
    /// Its group or others may write it.
    #[error("{path} has mode {mode:04o}, so that others can write it: take the permission away (chmod go-w)")]
    Writable {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Somebody else may read a file of secrets.
    #[error(
        "{path} has mode {mode:04o}, so that others can read the secrets in it: make it yours alone (chmod 600)"
    )]
    Readable {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// It is another user's.
    #[error("{path} belongs to user {owner}, not to you: use a file of your own")]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Its owner's id.
        owner: u32,
    },
    /// This user may not write a file of the database.
    #[error("{0} can't be written by this user: give the permission back (chmod u+w), or serve as its owner")]
    Unwritable(PathBuf),
    /// This user may not make a file beside the database.
    #[error(
        "{folder} can't be written by this user, so {missing} can't be made in it: give the permission back (chmod u+w), or use a database elsewhere"
    )]
    UnwritableFolder {
        /// The folder of the database.
        folder: PathBuf,
        /// The file that has to be made there.
        missing: PathBuf,
    },
    /// It is longer than any such file needs to be.
    #[error("{0} is longer than 64 MiB")]
    TooLong(PathBuf),
}

/// Reads a file whole, when it is regular, this user's, and nobody else can write it. The open file is judged, so
/// that it can't be exchanged in between.
///
/// # Errors
/// What is wrong with it; every message names the file.
pub fn read_owned(path: &Path) -> Result<Vec<u8>, OwnedError> {
    read_checked(path, check_owned)
}

/// Reads a file of secrets as [`read_owned`] does, when nobody else can read it either.
///
/// # Errors
/// As [`read_owned`].
pub fn read_private(path: &Path) -> Result<Vec<u8>, OwnedError> {
    read_checked(path, |path, metadata| {
        check_owned(path, metadata)?;
        let mode = metadata.mode() & 0o7777;
        if mode & 0o077 == 0 { Ok(()) } else { Err(OwnedError::Readable { path: path.to_owned(), mode }) }
    })
}

fn read_checked(
    path: &Path,
    check: impl FnOnce(&Path, &Metadata) -> Result<(), OwnedError>,
) -> Result<Vec<u8>, OwnedError> {
    let io = |error| OwnedError::Io { path: path.to_owned(), error };
    // Without it, opening a pipe would wait for somebody to write into it.
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file: File = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(io)?;
    let metadata = file.metadata().map_err(io)?;
    check(path, &metadata)?;
    let mut bytes = Vec::new();
    let read = file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(io)?;
    if u64::try_from(read).unwrap_or(u64::MAX) > FILE_BYTES_MAX {
        return Err(OwnedError::TooLong(path.to_owned()));
    }
    Ok(bytes)
}

/// Judges a file by what is known of it.
///
/// # Errors
/// As [`read_owned`].
pub fn check_owned(path: &Path, metadata: &Metadata) -> Result<(), OwnedError> {
    if !metadata.is_file() {
        return Err(OwnedError::NotRegular(path.to_owned()));
    }
    let mode = metadata.mode() & 0o7777;
    if mode & 0o022 != 0 {
        return Err(OwnedError::Writable { path: path.to_owned(), mode });
    }
    if metadata.uid() != rustix::process::getuid().as_raw() {
        return Err(OwnedError::Foreign { path: path.to_owned(), owner: metadata.uid() });
    }
    Ok(())
}

/// Judges the database before the store opens it: it may be missing, but it may be neither a link nor anybody else's.
/// The directory that holds it is the operator's business.
///
/// # Errors
/// As [`read_owned`].
pub fn check_database(path: &Path) -> Result<(), OwnedError> {
    match check_opened_database(path) {
        Err(OwnedError::Io { error, .. }) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        checked => checked,
    }
}

/// Judges the database again once it is open, when it can't be missing any more.
///
/// # Errors
/// As [`read_owned`].
pub fn check_opened_database(path: &Path) -> Result<(), OwnedError> {
    let metadata =
        std::fs::symlink_metadata(path).map_err(|error| OwnedError::Io { path: path.to_owned(), error })?;
    if metadata.is_symlink() {
        return Err(OwnedError::Symlink(path.to_owned()));
    }
    check_owned(path, &metadata)
}

/// Judges whether this user can write the database: its file, those that SQLite keeps beside it, and the folder when one
/// of them has to be made. Changes nothing.
///
/// # Errors
/// The first file that can't be written, or a folder that is missing or can't be written.
pub fn check_writable(path: &Path) -> Result<(), OwnedError> {
    check_writable_by(path, |path, access| rustix::fs::access(path, access).map_err(io::Error::from))
}

fn check_writable_by(
    path: &Path,
    access: impl Fn(&Path, Access) -> io::Result<()>,
) -> Result<(), OwnedError> {
    let mut missing = None;
    for suffix in ["", "-wal", "-shm"] {
        let mut file = path.as_os_str().to_owned();
        file.push(suffix);
        let file = PathBuf::from(file);
        match access(&file, Access::READ_OK | Access::WRITE_OK) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => missing = missing.or(Some(file)),
            Err(error) if is_refusal(&error) => return Err(OwnedError::Unwritable(file)),
            Err(error) => return Err(OwnedError::Io { path: file, error }),
        }
    }
    // With all of them there, SQLite needs nothing of the folder.
    let Some(missing) = missing else { return Ok(()) };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match access(folder, Access::WRITE_OK | Access::EXEC_OK) {
        Ok(()) => Ok(()),
        Err(error) if is_refusal(&error) => {
            Err(OwnedError::UnwritableFolder { folder: folder.to_owned(), missing })
        }
        Err(error) => Err(OwnedError::Io { path: folder.to_owned(), error }),
    }
}

/// Whether a permission is missing, and not the file.
fn is_refusal(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn a_file_that_others_can_write_is_refused_and_one_that_they_can_read_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        fs::write(&path, "x").unwrap();
        for (mode, fine) in
            [(0o600, true), (0o644, true), (0o444, true), (0o620, false), (0o602, false), (0o666, false)]
        {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let read = read_owned(&path);
            assert_eq!(read.is_ok(), fine, "{mode:o}: {read:?}");
            if let Err(error) = read {
                let text = error.to_string();
                assert!(
                    text.contains(path.to_str().unwrap()) && text.contains(&format!("{mode:04o}")),
                    "{text}"
                );
            }
        }
    }

    #[test]
    fn a_file_of_another_user_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("f");
        fs::write(&own, "x").unwrap();
        // Only root can give a file away, and for anybody else root is another user.
        let path = match std::os::unix::fs::chown(&own, Some(12_345), None) {
            Ok(()) => own,
            Err(_) => PathBuf::from("/etc/passwd"),
        };
        let owner = fs::metadata(&path).unwrap().uid();
        for refused in [read_owned(&path).map(drop), check_database(&path)] {
            let refused = refused.unwrap_err();
            assert!(matches!(refused, OwnedError::Foreign { owner: of, .. } if of == owner), "{refused}");
            let text = refused.to_string();
            assert!(text.contains(path.to_str().unwrap()) && text.contains(&owner.to_string()), "{text}");
        }
    }

    #[test]
    fn a_file_of_secrets_is_read_only_when_nobody_else_can() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secrets");
        fs::write(&path, "x").unwrap();
        for (mode, fine) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false), (0o644, false)] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let read = read_private(&path);
            assert_eq!(read.is_ok(), fine, "{mode:o}: {read:?}");
            assert!(fine || read.unwrap_err().to_string().contains("chmod 600"));
        }
    }

    #[test]
    fn a_file_of_another_user_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        fs::write(&path, "x").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        // Only root can give a file away; for everybody else there are root's.
        let given = std::os::unix::fs::chown(&path, Some(12_345), None).is_ok();
        let (path, owned_by) = if given { (path, 12_345) } else { ("/etc/passwd".into(), 0) };
        let refused = read_owned(&path).unwrap_err();
        assert!(matches!(refused, OwnedError::Foreign { owner, .. } if owner == owned_by), "{refused}");
    }

    #[test]
    fn only_a_regular_file_is_read() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(read_owned(dir.path()), Err(OwnedError::NotRegular(_))));
        let pipe = dir.path().join("pipe");
        let mode = rustix::fs::Mode::from_bits_truncate(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert!(matches!(read_owned(&pipe), Err(OwnedError::NotRegular(_))));
        assert!(matches!(read_owned(&dir.path().join("none")), Err(OwnedError::Io { .. })));
    }

    #[test]
    fn the_very_file_that_serving_can_t_write_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("runs.db");
        // The root user may write everything, so the system's answer is played.
        let refusing = |refused: &Path| {
            check_writable_by(&path, |asked, access| {
                if asked == refused {
                    return Err(io::Error::from(io::ErrorKind::PermissionDenied));
                }
                rustix::fs::access(asked, access).map_err(io::Error::from)
            })
        };
        check_writable(&path).unwrap();
        let refused = refusing(dir.path()).unwrap_err();
        assert!(matches!(&refused, OwnedError::UnwritableFolder { missing, .. } if *missing == path));
        assert!(refused.to_string().starts_with(dir.path().to_str().unwrap()), "{refused}");
        for suffix in ["", "-wal", "-shm"] {
            let file = dir.path().join(format!("runs.db{suffix}"));
            fs::write(&file, "").unwrap();
            let refused = refusing(&file).unwrap_err();
            assert!(matches!(&refused, OwnedError::Unwritable(path) if *path == file), "{refused}");
        }
        // Nothing has to be made any more.
        refusing(dir.path()).unwrap();
        let nowhere = check_writable(&dir.path().join("none/runs.db")).unwrap_err();
        assert!(matches!(nowhere, OwnedError::Io { path, .. } if path == dir.path().join("none")));
    }

    #[test]
    fn a_database_may_be_missing_but_no_link() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("runs.db");
        check_database(&path).unwrap();
        assert!(matches!(check_opened_database(&path), Err(OwnedError::Io { .. })), "an open one is there");
        symlink(dir.path().join("elsewhere"), &path).unwrap();
        assert!(matches!(check_database(&path), Err(OwnedError::Symlink(_))));
        assert!(matches!(check_database(dir.path()), Err(OwnedError::NotRegular(_))));
    }
}
