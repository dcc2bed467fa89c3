//! Watching the database's log, so that a decision made in another process is seen at once.
//!
//! Owns one inotify instance while somebody waits. Where there is none, the poll alone tells.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// The log beside a database.
pub(super) fn log_of(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push("-wal");
    PathBuf::from(name)
}

/// Calls `tell` whenever `log` is written to, and every `poll` besides, until `tell` says that nobody listens.
pub(super) async fn watch(log: PathBuf, poll: Duration, tell: impl Fn() -> bool) {
    let mut writes = writes::Writes::of(&log);
    loop {
        if tokio::time::timeout(poll, writes.next()).await.is_err() {
            // The log may have been made, or made anew, since.
            writes.renew(&log);
        }
        if !tell() {
            return;
        }
    }
}

#[cfg(target_os = "linux")]
mod writes {
    use std::mem::MaybeUninit;
    use std::os::fd::OwnedFd;
    use std::path::Path;

    use rustix::fs::inotify;
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    /// The writes to one file.
    pub(super) struct Writes(Option<AsyncFd<OwnedFd>>);

    impl Writes {
        pub(super) fn of(path: &Path) -> Writes {
            Writes(open(path).inspect_err(|error| tracing::debug!(%error, "the log can't be watched; polling")).ok())
        }

        pub(super) fn renew(&mut self, path: &Path) {
            if self.0.is_none() {
                *self = Writes::of(path);
            } else if let Some(fd) = &self.0 {
                // Watching a file twice is one watch; a new file under the name is watched from now on.
                if inotify::add_watch(fd.get_ref(), path, inotify::WatchFlags::MODIFY).is_err() {
                    self.0 = None;
                }
            }
        }

        pub(super) async fn next(&mut self) {
            let Some(fd) = &self.0 else { return std::future::pending().await };
            let drained = fd.async_io(Interest::READABLE, |fd| {
                let mut buffer = [MaybeUninit::<u8>::uninit(); 4096];
                rustix::io::read(fd, &mut buffer).map(|_| ()).map_err(std::io::Error::from)
            });
            if drained.await.is_err() {
                self.0 = None;
            }
        }
    }

    fn open(path: &Path) -> std::io::Result<AsyncFd<OwnedFd>> {
        let fd = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)?;
        inotify::add_watch(&fd, path, inotify::WatchFlags::MODIFY)?;
        AsyncFd::new(fd)
    }
}

#[cfg(not(target_os = "linux"))]
mod writes {
    use std::path::Path;

    /// No watch here: the poll tells.
    pub(super) struct Writes;

    impl Writes {
        pub(super) fn of(_: &Path) -> Writes {
            Writes
        }

        pub(super) fn renew(&mut self, _: &Path) {}

        pub(super) async fn next(&mut self) {
            std::future::pending().await
        }
    }
}
