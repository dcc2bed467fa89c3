//! The database as the commands use it, and what its refusals are called.
//!
//! Owns the translation of what a [view](holdpoint::view) refuses into codes and hints. Never reads or decides anything
//! itself: [`Records`] is the library's.

use holdpoint::codes::Code;
use holdpoint::view::{Error, Fault, OpenError, ReadError};
use holdpoint_actors::store::{FileError, SchemaError};
use holdpoint_core::ids::{ApprovalId, RunId};

use crate::error::CommandError;

pub(super) use holdpoint::view::Records;

/// What to do about a database that is not there, whoever named it.
pub(super) const HOW_TO_FIND: &str = "check --db and HOLDPOINT_DB, or `database` in the configuration; the proxy makes the file when it first starts, and never the folder";

/// What a command says of a refusal.
impl From<Error> for CommandError {
    fn from(error: Error) -> CommandError {
        let message = error.to_string();
        match error {
            Error::Open(error) => of_open(error),
            Error::Locked(why) => CommandError::new(Code::StoreLocked, why),
            Error::NoRun(run) => no_run(&run),
            Error::NoApproval { run, approval } => no_approval(&run, &approval),
            Error::RunNotWaiting { run, status } => CommandError::new(
                Code::RunNotWaiting,
                format!("run {run} is {status} and waits for no approval"),
            ),
            Error::RunFinished { run, status } => {
                CommandError::new(Code::RunFinished, format!("run {run} is {status} already"))
            }
            Error::NoPending(run) => {
                CommandError::new(Code::ApprovalNonePending, format!("no approval of run {run} waits"))
                    .hint("holdpoint show says where the run stands")
            }
            Error::Ambiguous { run, candidates, more } => ambiguous(&run, &candidates, more),
            Error::NotPending { approval, status } => CommandError::new(
                Code::ApprovalNotPending,
                format!("approval {approval} is {status} already"),
            ),
            Error::Expired { approval, at: None, .. } => {
                CommandError::new(Code::ApprovalExpired, format!("approval {approval} has expired"))
            }
            Error::Expired { approval, at: Some(at), .. } => CommandError::new(
                Code::ApprovalExpired,
                format!("approval {approval} expired at {at}: its run is cancelled now"),
            ),
            Error::Changed(approval) => CommandError::new(
                Code::ApprovalChanged,
                format!("approval {approval} changed after it was shown"),
            )
            .hint("run the command again, and read the request before deciding"),
            Error::Hash(approval) => CommandError::new(
                Code::ApprovalHashMismatch,
                format!("what approval {approval} holds does not match its hash"),
            )
            .hint("holdpoint cancel ends the run"),
            Error::Read(error) => of_read(&error),
            Error::ReadOnly => CommandError::new(Code::Internal, message),
            Error::NotRecorded { fault, detail } => {
                CommandError::new(of_fault(fault), format!("nothing was recorded: {detail}"))
            }
            Error::InDoubt(why) => {
                CommandError::new(Code::StoreNotKnown, format!("whether it was recorded is not known: {why}"))
                    .hint("holdpoint show tells what became of it")
            }
        }
    }
}

/// Says that there is no such run.
pub(super) fn no_run(run: &RunId) -> CommandError {
    CommandError::new(Code::RunNotFound, format!("there is no run {run}"))
        .hint("holdpoint runs lists them; an approval's id is not a run's")
}

fn no_approval(run: &RunId, approval: &ApprovalId) -> CommandError {
    CommandError::new(Code::ApprovalNotFound, format!("run {run} has no approval {approval}"))
        .hint("holdpoint show prints what waits")
}

fn ambiguous(run: &RunId, candidates: &[ApprovalId], more: u64) -> CommandError {
    let total = more.saturating_add(u64::try_from(candidates.len()).unwrap_or(u64::MAX));
    let names: Vec<&str> = candidates.iter().map(ApprovalId::as_str).collect();
    let others = if more > 0 { format!(" and {more} more") } else { String::new() };
    let message = format!("{total} approvals of run {run} wait: {}{others}", names.join(", "));
    CommandError::new(Code::ApprovalAmbiguous, message).hint("name one with --approval")
}

/// Makes what was read survive a power failure, before it is printed as evidence.
pub(super) fn sync(records: &mut Records) -> Result<(), CommandError> {
    let failed =
        |problem| CommandError::new(Code::StoreIo, format!("failed to sync what was read: {problem}"));
    records.sync().map_err(failed)
}

pub(super) fn of_read(error: &ReadError) -> CommandError {
    CommandError::new(of_fault(error.fault()), error.to_string())
}

fn of_fault(fault: Option<Fault>) -> Code {
    match fault {
        Some(Fault::Locked) => Code::StoreLocked,
        Some(Fault::Full) => Code::StoreDiskFull,
        Some(Fault::Damaged) => Code::StoreNotADatabase,
        Some(Fault::ReadOnly | Fault::Io | Fault::Statement) | None => Code::StoreIo,
    }
}

/// Why a database was not opened, in one sentence.
pub(super) fn of_open(error: OpenError) -> CommandError {
    let code = match &error {
        OpenError::File(FileError::Symlink { .. }) => Code::StoreSymlink,
        OpenError::File(FileError::NotRegular { .. }) => Code::StoreNotRegular,
        OpenError::File(FileError::Insecure { .. }) => Code::StoreInsecureMode,
        OpenError::File(FileError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            Code::StoreMissing
        }
        OpenError::File(FileError::Io { .. } | FileError::Exchanged { .. })
        | OpenError::NoLog { .. }
        | OpenError::Sql { .. } => Code::StoreIo,
        OpenError::Schema(SchemaError::ForeignCode { .. }) => Code::StoreUnsafeSchema,
        OpenError::Schema(SchemaError::Newer { .. }) => Code::StoreNewerSchema,
        OpenError::Schema(SchemaError::Older { .. }) => Code::StoreOlderSchema,
        OpenError::Schema(SchemaError::NotOurs { .. }) | OpenError::Damaged { .. } => Code::StoreNotADatabase,
        OpenError::Schema(SchemaError::Sql(_)) => Code::StoreIo,
        OpenError::Locked { .. } => Code::StoreLocked,
        OpenError::OldSqlite { .. } => Code::Internal,
    };
    let refused = CommandError::new(code, error.to_string());
    if code != Code::StoreMissing {
        return refused;
    }
    refused.hint(HOW_TO_FIND)
}
