//! Exit statuses, and the one place that says which refusal ends with which.
//!
//! Never ends the process: `main` returns what this file says.

use std::process::ExitCode;

use holdpoint::codes::Code;

/// How the process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// It did what it was asked to do.
    Ok,
    /// It failed, refused, or found what it was asked to look for.
    Failed,
    /// The command line can't be used as it stands.
    Usage,
    /// The proxy's supervision ended.
    Supervision,
}

impl Exit {
    /// The number that the process gives its parent.
    pub(crate) const fn status(self) -> u8 {
        match self {
            Exit::Ok => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::Supervision => 70,
        }
    }

    /// How a command ends that failed with `code`.
    pub(crate) const fn of(code: Code) -> Exit {
        match code {
            Code::Exit0 => Exit::Ok,
            Code::Exit2
            | Code::Usage
            | Code::UsageNoDatabase
            | Code::UsageByEmpty
            | Code::UsageConfirm
            | Code::UsageUnknownCode
            | Code::ExportSettings => Exit::Usage,
            Code::Exit70 => Exit::Supervision,
            Code::Exit1
            | Code::AnswerPendingApproval
            | Code::AnswerInProgress
            | Code::AnswerInterrupted
            | Code::AnswerUnknownOutcome
            | Code::AnswerUnrecorded
            | Code::AnswerDenied
            | Code::AnswerInvalid
            | Code::AnswerRejected
            | Code::AnswerExpired
            | Code::AnswerDuplicate
            | Code::AnswerBlocked
            | Code::AnswerUnavailable
            | Code::AnswerGateStatus
            | Code::Declined
            | Code::Output
            | Code::StoreMissing
            | Code::StoreNotADatabase
            | Code::StoreNotRegular
            | Code::StoreSymlink
            | Code::StoreInsecureMode
            | Code::StoreUnsafeSchema
            | Code::StoreNewerSchema
            | Code::StoreOlderSchema
            | Code::StoreLocked
            | Code::StoreDiskFull
            | Code::StoreIo
            | Code::StoreNotKnown
            | Code::RunNotFound
            | Code::RunNotWaiting
            | Code::RunFinished
            | Code::ApprovalNotFound
            | Code::ApprovalNonePending
            | Code::ApprovalAmbiguous
            | Code::ApprovalNotPending
            | Code::ApprovalExpired
            | Code::ApprovalChanged
            | Code::ApprovalHashMismatch
            | Code::ChainBroken
            | Code::ChainNotReached
            | Code::ChainHeadMismatch
            | Code::RecheckDiffers
            | Code::RecheckNothing
            | Code::ConfigUnreadable
            | Code::ConfigInsecure
            | Code::ConfigInvalid
            | Code::ConfigReach
            | Code::ServerDown
            | Code::ServerNothingRegistered
            | Code::ServeListen
            | Code::PinWrite
            | Code::DoctorFailed
            | Code::DemoFailed
            | Code::ExportCursor
            | Code::ExportCollector
            | Code::BenchFile
            | Code::BenchNotComparable
            | Code::Internal => Exit::Failed,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.status())
    }
}
