//! The database as the commands use it: opened, read a snapshot at a time, and decided upon.
//!
//! Owns the translation of what the store refuses into codes and hints, and what an operator means by "the approval
//! of this run". Never runs SQL: the store does.

use std::path::Path;

use holdpoint::codes::Code;
use holdpoint::view::RunSummary;
use holdpoint_actors::clock;
use holdpoint_actors::store::{
    Answer, DecideError, Fault, FileError, OpenError, OperatorStore, ReadError, Reader, SchemaError, Verdict,
};
use holdpoint_core::approval::{Approval, ApprovalStatus};
use holdpoint_core::event::Event;
use holdpoint_core::ids::{ApprovalId, RunId};
use holdpoint_core::run::RunStatus;

use crate::error::CommandError;

/// How many waiting approvals are named when a person must choose.
const CHOICES_MAX: i64 = 20;

/// An approval that waits, and why the policy asks for it.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) approval: Approval,
    pub(super) reason: Option<String>,
}

/// An open database.
#[derive(Debug)]
pub(super) struct Records {
    store: OperatorStore,
}

impl Records {
    /// Opens a database that exists, and changes nothing of it.
    pub(super) fn open_to_read(path: &Path) -> Result<Records, CommandError> {
        OperatorStore::open(path, true).map(|store| Records { store }).map_err(of_open)
    }

    /// Opens a database that exists, to record a person's decision.
    pub(super) fn open_to_decide(path: &Path) -> Result<Records, CommandError> {
        OperatorStore::open(path, false).map(|store| Records { store }).map_err(of_open)
    }

    /// Reads one snapshot.
    pub(super) fn read<T>(
        &mut self,
        read: impl FnOnce(&Reader<'_>) -> Result<T, ReadError>,
    ) -> Result<T, CommandError> {
        self.store.read(read).map_err(|error| of_read(&error))
    }

    /// A run's summary.
    pub(super) fn summary(&mut self, id: &RunId) -> Result<RunSummary, CommandError> {
        self.read(|reader| summary(reader, id))?.ok_or_else(|| no_run(id))
    }

    /// The approval that an operator means: the one that is named, else the only one that waits.
    pub(super) fn waiting(&mut self, run: &RunId, id: Option<&ApprovalId>) -> Result<Waiting, CommandError> {
        self.read(|reader| Ok(waiting(reader, run, id)))?
    }

    /// Records a decision on what was shown. Gives the approval as it stands then, and the events.
    pub(super) fn decide(
        &mut self,
        verdict: Verdict,
        shown: &Approval,
        by: &str,
        note: &str,
    ) -> Result<(Approval, Vec<Event>), DecideError> {
        let (run, approval) = (&shown.run_id, &shown.id);
        let answer = Answer { run, approval, shown: Some(&shown.hash), verdict, by, note };
        let events = self.store.decide(&answer, clock::wall())?;
        let decided = self.store.read(|reader| reader.approval(run, approval))?;
        Ok((decided.unwrap_or_else(|| shown.clone()), events))
    }

    /// Cancels a run.
    pub(super) fn cancel(&mut self, run: &RunId, by: &str, note: &str) -> Result<Vec<Event>, DecideError> {
        self.store.cancel(run, by, note, clock::wall())
    }
}

/// A run's summary, with the approval that it waits for.
pub(super) fn summary(reader: &Reader<'_>, id: &RunId) -> Result<Option<RunSummary>, ReadError> {
    let Some(run) = reader.listed_run(id)? else { return Ok(None) };
    let pending = reader.pending_approval_ids_of(std::slice::from_ref(id), 2)?;
    let ids: Vec<&str> = pending.iter().map(|(_, approval)| approval.as_str()).collect();
    Ok(Some(RunSummary::of(run, &ids)))
}

fn waiting(reader: &Reader<'_>, run: &RunId, id: Option<&ApprovalId>) -> Result<Waiting, CommandError> {
    let read = |error: ReadError| of_read(&error);
    let found = summary(reader, run).map_err(read)?.ok_or_else(|| no_run(run))?;
    if found.known_status() != Some(RunStatus::WaitingForApproval) {
        return Err(not_waiting(run, &found.status));
    }
    let id = match id {
        Some(id) => id.clone(),
        None => only_pending(reader, run)?,
    };
    let approval = reader.approval(run, &id).map_err(read)?.ok_or_else(|| no_approval(run, &id))?;
    match approval.status {
        ApprovalStatus::Pending => {}
        ApprovalStatus::Expired => return Err(expired(&id)),
        status @ (ApprovalStatus::Approved | ApprovalStatus::Rejected) => {
            return Err(decided_before(&id, status));
        }
    }
    let reason = reader.approval_reason(run, &id).map_err(read)?;
    Ok(Waiting { approval, reason })
}

fn only_pending(reader: &Reader<'_>, run: &RunId) -> Result<ApprovalId, CommandError> {
    let page = reader
        .approvals_page(run, Some(ApprovalStatus::Pending), CHOICES_MAX, 0)
        .map_err(|error| of_read(&error))?;
    match page.rows.as_slice() {
        [] => Err(CommandError::new(Code::ApprovalNonePending, format!("no approval of run {run} waits"))
            .hint("holdpoint show says where the run stands")),
        [only] => Ok(only.id.clone()),
        several => {
            let names: Vec<&str> = several.iter().map(|approval| approval.id.as_str()).collect();
            let shown = i64::try_from(several.len()).unwrap_or(i64::MAX);
            let more =
                if page.total > shown { format!(" and {} more", page.total - shown) } else { String::new() };
            let message = format!("{} approvals of run {run} wait: {}{more}", page.total, names.join(", "));
            Err(CommandError::new(Code::ApprovalAmbiguous, message).hint("name one with --approval"))
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

fn not_waiting(run: &RunId, status: &str) -> CommandError {
    CommandError::new(Code::RunNotWaiting, format!("run {run} is {status} and waits for no approval"))
}

fn decided_before(approval: &ApprovalId, status: ApprovalStatus) -> CommandError {
    CommandError::new(Code::ApprovalNotPending, format!("approval {approval} is {status} already"))
}

fn expired(approval: &ApprovalId) -> CommandError {
    CommandError::new(Code::ApprovalExpired, format!("approval {approval} has expired"))
}

/// What a decision was refused for.
pub(super) fn of_decide(error: DecideError) -> CommandError {
    match error {
        DecideError::NoRun(run) => no_run(&run),
        DecideError::NoApproval { run, approval } => no_approval(&run, &approval),
        DecideError::RunIs { run, status } if status.is_terminal() => {
            CommandError::new(Code::RunFinished, format!("run {run} is {status} already"))
        }
        DecideError::RunIs { run, status } => not_waiting(&run, status.as_str()),
        DecideError::NotPending { approval, status } => decided_before(&approval, status),
        DecideError::Expired { approval, at: None, .. } => expired(&approval),
        DecideError::Expired { approval, at: Some(at), .. } => {
            let message = format!("approval {approval} expired at {at}: its run is cancelled now");
            CommandError::new(Code::ApprovalExpired, message)
        }
        DecideError::Changed(approval) => CommandError::new(
            Code::ApprovalChanged,
            format!("approval {approval} changed after it was shown"),
        )
        .hint("run the command again, and read the request before deciding"),
        DecideError::Hash(approval) => {
            let message = format!("what approval {approval} holds does not match its hash");
            CommandError::new(Code::ApprovalHashMismatch, message).hint("holdpoint cancel ends the run")
        }
        DecideError::Read(error) => of_read(&error),
        DecideError::ReadOnly => CommandError::new(Code::Internal, error.to_string()),
        DecideError::NotRecorded { fault, detail } => {
            CommandError::new(of_fault(fault), format!("nothing was recorded: {detail}"))
        }
        DecideError::InDoubt(why) => {
            CommandError::new(Code::StoreNotKnown, format!("whether it was recorded is not known: {why}"))
                .hint("holdpoint show tells what became of it")
        }
    }
}

fn of_read(error: &ReadError) -> CommandError {
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
        OpenError::File(FileError::Io { .. }) | OpenError::NoLog { .. } | OpenError::Sql { .. } => {
            Code::StoreIo
        }
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
    refused.hint("check --db, or HOLDPOINT_DB; the proxy makes the file when it first starts")
}
