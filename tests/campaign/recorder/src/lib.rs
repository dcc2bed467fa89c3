//! Records every write, truncation and sync of one database and its log, by standing before the C library's functions,
//! and has the Nth of them fail when it was asked to (`fail`).
//!
//! Preloaded by the crash campaign into the real programs, never linked into anything. Owns the form of the recording: per
//! operation one byte for its kind, one for the file, the offset and the length as little-endian numbers, and the
//! bytes. An operation is recorded after it has happened, so a sync that is recorded as done is one that was done; one
//! that failed is recorded as that.

#![expect(unsafe_code, reason = "it takes the place of functions of the C library")]

mod fail;

use std::ffi::{CStr, CString, OsString, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::OnceLock;

use fail::{Fate, Operation};
use libc::{off_t, size_t, ssize_t};

type Write = unsafe extern "C" fn(c_int, *const c_void, size_t) -> ssize_t;
type Pwrite = unsafe extern "C" fn(c_int, *const c_void, size_t, off_t) -> ssize_t;
type Sync = unsafe extern "C" fn(c_int) -> c_int;
type Truncate = unsafe extern "C" fn(c_int, off_t) -> c_int;
type Close = unsafe extern "C" fn(c_int) -> c_int;

/// What is recorded, and where to.
struct Recorder {
    log: c_int,
    database: PathBuf,
    wal: PathBuf,
    write: Write,
}

fn recorder() -> Option<&'static Recorder> {
    static RECORDER: OnceLock<Option<Recorder>> = OnceLock::new();
    let made = RECORDER.get_or_init(|| {
        let log = CString::new(std::env::var_os("CAMPAIGN_IO_LOG")?.as_bytes()).ok()?;
        let database = std::env::var_os("CAMPAIGN_IO_FILE")?;
        let mut wal: OsString = database.clone();
        wal.push("-wal");
        let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC;
        // SAFETY: the path is a C string, and the flags and mode are those of open(2).
        let log = unsafe { libc::open(log.as_ptr(), flags, 0o600) };
        // SAFETY: the next `write` is the C library's, which has this type.
        let write = unsafe { std::mem::transmute::<*mut c_void, Write>(next(c"write")) };
        (log >= 0).then(|| Recorder { log, database: database.into(), wal: wal.into(), write })
    });
    made.as_ref()
}

/// The function that this library stands before.
fn next(name: &CStr) -> *mut c_void {
    // SAFETY: the name is a C string.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

/// Which of the two files a descriptor is, if it is one.
fn file(fd: c_int) -> Option<(&'static Recorder, u8)> {
    let recorder = recorder()?;
    let path = std::fs::read_link(format!("/proc/self/fd/{fd}")).ok()?;
    match path {
        path if path == recorder.database => Some((recorder, 0)),
        path if path == recorder.wal => Some((recorder, 1)),
        _ => None,
    }
}

fn record(fd: c_int, kind: u8, offset: off_t, bytes: &[u8]) {
    let Some((recorder, which)) = file(fd) else { return };
    let mut entry = vec![kind, which];
    entry.extend_from_slice(&offset.cast_unsigned().to_le_bytes());
    entry.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    entry.extend_from_slice(bytes);
    // SAFETY: the buffer is alive and as long as is said. One append, so that processes do not mix.
    unsafe { (recorder.write)(recorder.log, entry.as_ptr().cast(), entry.len()) };
}

/// # Safety
/// As of write(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t {
    static NEXT: OnceLock<usize> = OnceLock::new();
    let next = *NEXT.get_or_init(|| next(c"write") as usize);
    let count = match fail::fate(fd, Operation::Write, count) {
        Fate::Happens => count,
        Fate::Short(some) => some,
        Fate::Fails => return -1,
    };
    // SAFETY: the address is that of the C library's `write`; the arguments are the caller's.
    let done = unsafe { std::mem::transmute::<usize, Write>(next)(fd, buffer, count) };
    if done > 0 && fd > 2 && file(fd).is_some() {
        // SAFETY: asking where a descriptor stands changes nothing; the bytes were read by the write itself.
        let (after, bytes) = unsafe {
            (
                libc::lseek(fd, 0, libc::SEEK_CUR),
                std::slice::from_raw_parts(buffer.cast(), done.cast_unsigned()),
            )
        };
        record(fd, 1, after - done as off_t, bytes);
    }
    done
}

/// # Safety
/// As of pwrite(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwrite64(fd: c_int, buffer: *const c_void, count: size_t, at: off_t) -> ssize_t {
    static NEXT: OnceLock<usize> = OnceLock::new();
    let next = *NEXT.get_or_init(|| next(c"pwrite64") as usize);
    let count = match fail::fate(fd, Operation::Write, count) {
        Fate::Happens => count,
        Fate::Short(some) => some,
        Fate::Fails => return -1,
    };
    // SAFETY: the address is that of the C library's `pwrite64`; the arguments are the caller's.
    let done = unsafe { std::mem::transmute::<usize, Pwrite>(next)(fd, buffer, count, at) };
    if done > 0 {
        // SAFETY: the bytes were read by the write itself.
        let bytes = unsafe { std::slice::from_raw_parts(buffer.cast(), done.cast_unsigned()) };
        record(fd, 1, at, bytes);
    }
    done
}

/// # Safety
/// As of pwrite(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwrite(fd: c_int, buffer: *const c_void, count: size_t, at: off_t) -> ssize_t {
    // SAFETY: the same function by another name, where an offset has 64 bits.
    unsafe { pwrite64(fd, buffer, count, at) }
}

fn sync(fd: c_int, name: &CStr) -> c_int {
    if let Fate::Fails = fail::fate(fd, Operation::Sync, 0) {
        record(fd, 4, 0, &[]);
        fail::set_errno(libc::EIO);
        return -1;
    }
    // SAFETY: the address is that of the C library's function of this name, which takes a descriptor.
    let done = unsafe { std::mem::transmute::<*mut c_void, Sync>(next(name))(fd) };
    if done == 0 {
        record(fd, 2, 0, &[]);
    }
    done
}

/// # Safety
/// As of fsync(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fsync(fd: c_int) -> c_int {
    sync(fd, c"fsync")
}

/// # Safety
/// As of fdatasync(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdatasync(fd: c_int) -> c_int {
    sync(fd, c"fdatasync")
}

fn truncate(fd: c_int, length: off_t) -> c_int {
    if let Fate::Fails = fail::fate(fd, Operation::Truncate, 0) {
        return -1;
    }
    // SAFETY: the address is that of the C library's `ftruncate64`, which has this type.
    let done = unsafe { std::mem::transmute::<*mut c_void, Truncate>(next(c"ftruncate64"))(fd, length) };
    if done == 0 {
        record(fd, 3, length, &[]);
    }
    done
}

/// # Safety
/// As of ftruncate(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ftruncate(fd: c_int, length: off_t) -> c_int {
    truncate(fd, length)
}

/// # Safety
/// As of ftruncate(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ftruncate64(fd: c_int, length: off_t) -> c_int {
    truncate(fd, length)
}

/// # Safety
/// As of close(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    static NEXT: OnceLock<usize> = OnceLock::new();
    let next = *NEXT.get_or_init(|| next(c"close") as usize);
    fail::closed(fd);
    // SAFETY: the address is that of the C library's `close`, which takes a descriptor.
    unsafe { std::mem::transmute::<usize, Close>(next)(fd) }
}
