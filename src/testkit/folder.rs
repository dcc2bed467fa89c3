//! A folder of a scenario's own, which goes when the scenario's run is over.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use holdpoint_actors::clock::random;
use holdpoint_core::ids::hex_id;

/// A folder that only its owner can open.
#[derive(Debug)]
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new() -> io::Result<Folder> {
        let path = std::env::temp_dir().join(format!("holdpoint-testkit-{}", hex_id(random())));
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Folder(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::debug!(path = %self.0.display(), %error, "a scenario's folder was left behind");
        }
    }
}
