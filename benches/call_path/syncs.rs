//! A program in which a sync does nothing, to see what syncs cost: the same binary, the same files, the same writes.
//!
//! The kernel answers `fsync` and `fdatasync` for it, by a seccomp filter that is put on before the program is executed. A
//! build or an option that turns syncs off would be one flag away from shipping, and a database in memory costs less in
//! every write. The arm beside it wears a filter of the same length, for a filter is looked at in every system call.

use std::convert::Infallible;
#[cfg(target_os = "linux")]
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use crate::Outcome;

/// The word with which this program becomes another one.
pub(crate) const BECOME: &str = "--become";

/// What becomes of a program's syncs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Syncs {
    Made,
    /// They succeed at once, and nothing is synced.
    LeftOut,
}

impl Syncs {
    const LEFT_OUT: &str = "without-syncs";

    /// How `program` is started so.
    pub(crate) fn command(self, program: &Path) -> Outcome<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        let how = if self == Syncs::LeftOut { Syncs::LEFT_OUT } else { "with-syncs" };
        command.arg(BECOME).arg(how).arg(program);
        Ok(command)
    }
}

/// Becomes the program that is named after [`BECOME`].
#[cfg(target_os = "linux")]
pub(crate) fn become_another(words: &[String]) -> Outcome<Infallible> {
    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

    let [how, program, rest @ ..] = words else { return Err("become what?".into()) };
    let syncs = [libc::SYS_fsync, libc::SYS_fdatasync];
    // What nobody here calls.
    let others = [libc::SYS_acct, libc::SYS_swapon];
    let answered = if how == Syncs::LEFT_OUT { syncs } else { others };
    let filter = SeccompFilter::new(
        answered.map(|call| (call, Vec::new())).into(),
        SeccompAction::Allow,
        SeccompAction::Errno(0),
        std::env::consts::ARCH.try_into()?,
    )?;
    apply_filter(&BpfProgram::try_from(filter)?)?;
    Err(Command::new(program).args(rest).exec().into())
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn become_another(_words: &[String]) -> Outcome<Infallible> {
    Err("syncs are left out by a filter of Linux".into())
}
