//! Watching the database's log, so that what another process commits is seen at once.
//!
//! Owns one thread and one inotify instance while somebody waits. Where there is none, the poll alone tells. The waiter
//! watches for decisions, a follower of the record for events.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The first wait after a write. A commit can be read only some time after its bytes are in the log: once they are synced,
/// which nothing tells of.
const SETTLE: Duration = Duration::from_millis(1);

/// The log beside a database.
pub fn log_of(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push("-wal");
    PathBuf::from(name)
}

/// A watch that runs until it is dropped.
#[derive(Debug)]
pub struct Watch {
    stopped: Arc<AtomicBool>,
}

impl Watch {
    /// Calls `tell` whenever `log` is written to, again at growing distances after the last write, and every `poll`
    /// besides, until `tell` says that nobody listens.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(
        log: PathBuf,
        poll: Duration,
        tell: impl Fn() -> bool + Send + 'static,
    ) -> std::io::Result<Watch> {
        let stopped = Arc::new(AtomicBool::new(false));
        let watch = Watch { stopped: Arc::clone(&stopped) };
        std::thread::Builder::new().name("holdpoint-watch".to_owned()).spawn(move || {
            let mut writes = writes::Writes::default();
            let mut wait = poll;
            while !stopped.load(Ordering::Acquire) {
                let written = writes.next(&log, wait);
                wait = if written { SETTLE } else { (2 * wait).min(poll) };
                if !stopped.load(Ordering::Acquire) && !tell() {
                    return;
                }
            }
        })?;
        Ok(watch)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Release);
    }
}

#[cfg(target_os = "linux")]
mod writes {
    use std::mem::MaybeUninit;
    use std::os::fd::OwnedFd;
    use std::path::Path;
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::fs::inotify;

    /// The writes to one file, as inotify tells of them.
    #[derive(Default)]
    pub(super) struct Writes(Option<OwnedFd>);

    impl Writes {
        /// Waits for a write to `log`, or for `within`. Says whether there was a write.
        pub(super) fn next(&mut self, log: &Path, within: Duration) -> bool {
            // The log may have been made, or made anew, since: watching a file twice is one watch.
            let watched = match &self.0 {
                Some(fd) => inotify::add_watch(fd, log, inotify::WatchFlags::MODIFY).is_ok(),
                None => open(log).map(|fd| self.0 = Some(fd)).is_ok(),
            };
            match &self.0 {
                Some(fd) if watched => {
                    let timeout = Timespec::try_from(within).ok();
                    let ready = poll(&mut [PollFd::new(fd, PollFlags::IN)], timeout.as_ref());
                    let mut buffer = [MaybeUninit::<u8>::uninit(); 4096];
                    if ready.is_err() || ready == Ok(1) && rustix::io::read(fd, &mut buffer).is_err() {
                        self.0 = None;
                    }
                    ready == Ok(1)
                }
                Some(_) | None => {
                    std::thread::sleep(within);
                    false
                }
            }
        }
    }

    fn open(path: &Path) -> std::io::Result<OwnedFd> {
        let fd = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)?;
        inotify::add_watch(&fd, path, inotify::WatchFlags::MODIFY)?;
        Ok(fd)
    }
}

#[cfg(not(target_os = "linux"))]
mod writes {
    use std::path::Path;
    use std::time::Duration;

    /// No watch here: the poll tells.
    #[derive(Default)]
    pub(super) struct Writes;

    impl Writes {
        pub(super) fn next(&mut self, _log: &Path, within: Duration) -> bool {
            std::thread::sleep(within);
            false
        }
    }
}
