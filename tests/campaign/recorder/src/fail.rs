//! The Nth write, sync or truncation of the gate's files fails.
//!
//! Asked for by `CAMPAIGN_IO_FAIL=<operation>:<how>:<n>`, for every regular file in the folder `CAMPAIGN_IO_FOLDER`. Owns
//! the counting and the proof: each strike is a line in the file `CAMPAIGN_IO_HIT`, and so is every sync or write that a
//! log's descriptor still sees after a sync of it has failed. Never decides what is right; the campaign reads the lines.

use std::ffi::{CString, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// What a program does to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Write,
    Sync,
    Truncate,
}

impl Operation {
    fn parse(text: &str) -> Option<Operation> {
        [Operation::Write, Operation::Sync, Operation::Truncate]
            .into_iter()
            .find(|known| known.name() == text)
    }

    const fn name(self) -> &'static str {
        match self {
            Operation::Write => "write",
            Operation::Sync => "sync",
            Operation::Truncate => "truncate",
        }
    }
}

/// What becomes of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Happens,
    /// Only so many bytes of it do.
    Short(usize),
    /// It does not, and the error is set.
    Fails,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Error(c_int),
    /// Half of it is written, and the next write to the file finds no room.
    Short,
}

struct Plan {
    operation: Operation,
    how: How,
    asked: String,
    left: AtomicU64,
    folder: PathBuf,
    hit: c_int,
}

/// The descriptor whose next write finds no room.
static FULL: AtomicI32 = AtomicI32::new(-1);
/// The descriptor of a log that has failed to sync.
static FAILED: AtomicI32 = AtomicI32::new(-1);

fn plan() -> Option<&'static Plan> {
    static PLAN: OnceLock<Option<Plan>> = OnceLock::new();
    PLAN.get_or_init(|| {
        let asked = std::env::var("CAMPAIGN_IO_FAIL").ok()?;
        let mut parts = asked.split(':');
        let operation = Operation::parse(parts.next()?)?;
        let how = match parts.next()? {
            "eio" => How::Error(libc::EIO),
            "enospc" => How::Error(libc::ENOSPC),
            "short" => How::Short,
            _ => return None,
        };
        let left = AtomicU64::new(parts.next()?.parse().ok()?);
        let folder = std::env::var_os("CAMPAIGN_IO_FOLDER")?.into();
        let hit = CString::new(std::env::var_os("CAMPAIGN_IO_HIT")?.as_bytes()).ok()?;
        let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC;
        // SAFETY: the path is a C string, and the flags and mode are those of open(2).
        let hit = unsafe { libc::open(hit.as_ptr(), flags, 0o600) };
        (hit >= 0).then_some(Plan { operation, how, asked, left, folder, hit })
    })
    .as_ref()
}

/// Says what becomes of an operation, and sets the error of one that fails.
pub(crate) fn fate(fd: c_int, operation: Operation, count: usize) -> Fate {
    let Some(plan) = plan() else { return Fate::Happens };
    if fd == plan.hit {
        return Fate::Happens;
    }
    if FAILED.load(Ordering::Acquire) == fd {
        plan.tell(&format!("after {} of the log", operation.name()));
    }
    if operation == Operation::Write
        && FULL.compare_exchange(fd, -1, Ordering::AcqRel, Ordering::Acquire).is_ok()
    {
        set_errno(libc::ENOSPC);
        return Fate::Fails;
    }
    let Some(path) = plan.operation.eq(&operation).then(|| plan.ours(fd)).flatten() else {
        return Fate::Happens;
    };
    let counted = plan.left.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1));
    if counted != Ok(1) {
        return Fate::Happens;
    }
    plan.tell(&format!("hit {} {}", plan.asked, path.display()));
    if operation == Operation::Sync && path.as_os_str().as_bytes().ends_with(b"-wal") {
        FAILED.store(fd, Ordering::Release);
    }
    match plan.how {
        How::Error(code) => {
            set_errno(code);
            Fate::Fails
        }
        How::Short => {
            FULL.store(fd, Ordering::Release);
            Fate::Short((count / 2).max(1))
        }
    }
}

/// A descriptor is closed, and its number may come back as another file's.
pub(crate) fn closed(fd: c_int) {
    for marked in [&FULL, &FAILED] {
        // Most descriptors are not marked.
        let _other = marked.compare_exchange(fd, -1, Ordering::AcqRel, Ordering::Acquire);
    }
}

impl Plan {
    /// The path of a descriptor, if it is one of the gate's files.
    fn ours(&self, fd: c_int) -> Option<PathBuf> {
        let path = std::fs::read_link(format!("/proc/self/fd/{fd}")).ok()?;
        let inside = path.starts_with(&self.folder) && !is_deleted(&path);
        inside.then_some(path)
    }

    fn tell(&self, what: &str) {
        let line = format!("{what}\n");
        // SAFETY: the buffer is alive and as long as is said. It passes this library's own `write`, which lets it pass.
        unsafe { libc::write(self.hit, line.as_ptr().cast(), line.len()) };
    }
}

fn is_deleted(path: &Path) -> bool {
    path.as_os_str().as_bytes().ends_with(b" (deleted)")
}

pub(crate) fn set_errno(code: c_int) {
    // SAFETY: the address is the calling thread's own.
    unsafe { *libc::__errno_location() = code };
}
