//! How a small file that must not be lost gets onto the disk: beside the old one, synced, and then in its place.
//!
//! Never leaves half a file, and never writes through a symbolic link that somebody put there. Manifests, cursors and
//! recordings are kept this way.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The mode: whoever can write a manifest decides what a server may offer.
const MODE: u32 = 0o600;

/// Puts a file of mode 0600 in place, whole or not at all. What was there before stays when anything fails.
///
/// # Errors
/// When the folder or the file can't be written, or when something else than a file or a link is there.
pub fn replace(path: &Path, text: &str) -> io::Result<()> {
    // A device or a pipe that is named by mistake belongs to others, too.
    if fs::symlink_metadata(path).is_ok_and(|found| !found.is_file() && !found.is_symlink()) {
        return Err(io::Error::other("what is there is no file; name another"));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let temporary = beside(path);
    let written = fill(&temporary, text).and_then(|()| fs::rename(&temporary, path));
    if let Err(problem) = written {
        // It may not exist, or not be ours to remove; the first failure is what counts.
        drop(fs::remove_file(&temporary));
        return Err(problem);
    }
    // The name too must survive a power cut.
    File::open(folder)?.sync_all()
}

/// Tries whether [`replace`] could put a file there: makes the temporary one, and takes it away again.
///
/// # Errors
/// When the folder can't be written.
pub(crate) fn try_beside(path: &Path) -> io::Result<()> {
    let temporary = beside(path);
    create(&temporary)?;
    fs::remove_file(temporary)
}

/// A name in the same folder that nobody else uses.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    PathBuf::from(name)
}

fn fill(path: &Path, text: &str) -> io::Result<()> {
    let mut file = create(path)?;
    // The mask of the process may have taken bits away.
    file.set_permissions(fs::Permissions::from_mode(MODE))?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

fn create(path: &Path) -> io::Result<File> {
    // A process of this id that was killed here may have left its file; a link in its place is removed, not followed.
    match fs::remove_file(path) {
        Err(problem) if problem.kind() != io::ErrorKind::NotFound => return Err(problem),
        Ok(()) | Err(_) => {}
    }
    OpenOptions::new().write(true).create_new(true).mode(MODE).open(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};

    use super::*;

    #[test]
    fn a_manifest_is_replaced_whole_and_is_its_owner_s_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("shop.json");
        for text in ["{\"one\":1}\n", "{}\n"] {
            replace(&path, text).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn a_link_is_replaced_and_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, elsewhere) = (dir.path().join("shop.json"), dir.path().join("elsewhere"));
        fs::write(&elsewhere, "precious").unwrap();
        symlink(&elsewhere, &path).unwrap();
        symlink(&elsewhere, beside(&path)).unwrap();
        replace(&path, "{}\n").unwrap();
        assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "precious");
        assert_eq!(fs::read_to_string(&path).unwrap(), "{}\n");
    }

    #[test]
    fn what_is_no_file_is_never_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("shop.json");
        let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(replace(&path, "{}\n").is_err());
        assert!(fs::symlink_metadata(&path).unwrap().file_type().is_socket());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn what_was_there_stays_when_the_new_one_can_t_be_put_in_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("shop.json");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("inside"), "x").unwrap();
        assert!(replace(&path, "{}\n").is_err());
        assert!(path.join("inside").exists());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file is left");
    }
}
