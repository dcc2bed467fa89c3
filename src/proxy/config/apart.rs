//! The files of a configuration, kept apart.
//!
//! Owns the comparison of paths that the operator gave for different things. One file for two of them is never meant,
//! and whoever writes the second loses the first: a pin over the record, or over another server's pins.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::{Config, ContentError};

/// What SQLite keeps beside a database, under the database's name and these ends.
const BESIDE_DATABASE: [&str; 3] = ["-wal", "-shm", "-journal"];

/// Refuses a file that is named for two things. Every path is absolute by now.
///
/// # Errors
/// The first file that an earlier key names too, with both keys.
pub(super) fn check(config: &Config) -> Result<(), ContentError> {
    let mut taken: Vec<(String, PathBuf)> = Vec::new();
    let itself = config.path.iter().map(|path| ("the configuration itself".to_owned(), resolved(path)));
    taken.extend(itself);
    take(&mut taken, "database".to_owned(), resolved(&config.database))?;
    for end in BESIDE_DATABASE {
        let mut beside = OsString::from(resolved(&config.database));
        beside.push(end);
        take(&mut taken, format!("the database's own {end} file"), resolved(Path::new(&beside)))?;
    }
    for server in &config.servers {
        take(&mut taken, format!("server {:?}: manifest", server.name), resolved(&server.manifest))?;
    }
    Ok(())
}

fn take(taken: &mut Vec<(String, PathBuf)>, key: String, path: PathBuf) -> Result<(), ContentError> {
    if let Some((other, _)) = taken.iter().find(|(_, earlier)| *earlier == path) {
        return Err(ContentError::SameFile { key, other: other.clone(), path });
    }
    taken.push((key, path));
    Ok(())
}

/// The path without links, as far as it exists: a file that is not there yet through its directory.
fn resolved(path: &Path) -> PathBuf {
    let through_directory = || Some(fs::canonicalize(path.parent()?).ok()?.join(path.file_name()?));
    fs::canonicalize(path).ok().or_else(through_directory).unwrap_or_else(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use serde_json::json;
    use tempfile::TempDir;

    use super::*;

    /// Loads a configuration with this database and a server for each manifest, from `gate.json` in `folder`.
    fn load(folder: &TempDir, database: &str, manifests: &[&str]) -> Result<Config, String> {
        let server = |(at, manifest): (usize, &&str)| json!({"name": format!("s{at}"), "command": ["x"], "manifest": manifest});
        let servers: Vec<_> = manifests.iter().enumerate().map(server).collect();
        let path = folder.path().join("gate.json");
        let text = json!({"database": database, "session": "s", "servers": servers}).to_string();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        Config::load(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn one_file_for_two_keys_is_refused_and_both_are_named() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("sub")).unwrap();
        let itself = "the configuration itself";
        for (database, manifests, first, second) in [
            ("runs.db", ["m.json", "m.json"], "server \"s1\": manifest", "server \"s0\": manifest"),
            ("runs.db", ["m.json", "./sub/../m.json"], "server \"s1\": manifest", "server \"s0\": manifest"),
            ("runs.db", ["m.json", "runs.db"], "server \"s1\": manifest", "database"),
            ("runs.db", ["runs.db-wal", "n.json"], "server \"s0\": manifest", "the database's own -wal file"),
            ("runs.db", ["runs.db-shm", "n.json"], "server \"s0\": manifest", "the database's own -shm file"),
            (
                "runs.db",
                ["runs.db-journal", "n.json"],
                "server \"s0\": manifest",
                "the database's own -journal file",
            ),
            ("runs.db", ["gate.json", "n.json"], "server \"s0\": manifest", itself),
            ("gate.json", ["m.json", "n.json"], "database", itself),
        ] {
            let error = load(&folder, database, &manifests).unwrap_err();
            let message = format!("{first} and {second} are the same file, ");
            assert!(error.contains(&message), "{database} {manifests:?}: {error}");
        }
        load(&folder, "runs.db", &["m.json", "n.json"]).unwrap();
    }

    #[test]
    fn a_file_is_the_same_through_a_link_to_its_folder_or_to_itself() {
        let folder = tempfile::tempdir().unwrap();
        symlink(folder.path(), folder.path().join("again")).unwrap();
        // Neither is there yet: the folder decides.
        let both = load(&folder, "runs.db", &["m.json", "again/m.json"]).unwrap_err();
        assert!(
            both.contains("server \"s1\": manifest and server \"s0\": manifest are the same file"),
            "{both}"
        );
        load(&folder, "runs.db", &["again/runs.db-wal"]).unwrap_err();
        load(&folder, "again/runs.db", &["runs.db"]).unwrap_err();
        load(&folder, "runs.db", &["again/gate.json"]).unwrap_err();
        fs::write(folder.path().join("m.json"), "{}").unwrap();
        symlink("m.json", folder.path().join("n.json")).unwrap();
        load(&folder, "runs.db", &["m.json", "n.json"]).unwrap_err();
        fs::write(folder.path().join("o.json"), "{}").unwrap();
        load(&folder, "runs.db", &["m.json", "o.json"]).unwrap();
    }
}
