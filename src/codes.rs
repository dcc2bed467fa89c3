//! Codes: the name of each answer, refusal and exit status, and the page that explains it.
//!
//! Owns the list. The pages are the files of `docs/codes/`, so that they can be read on the web too; their first
//! paragraph is the summary. Never decides anything: who fails picks the code, `holdpoint explain` prints the page.

use std::fmt;

macro_rules! codes {
    ($($name:ident => $text:literal;)+) => {
        /// Names one way in which an answer, a command or a process can end.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Code {
            $(
                #[doc = include_str!(concat!("../docs/codes/", $text, ".md"))]
                $name,
            )+
        }

        impl Code {
            /// Every code, in the order in which they are listed.
            pub const ALL: &[Code] = &[$(Code::$name,)+];

            /// The code as people see and type it.
            pub const fn as_str(self) -> &'static str {
                match self { $(Code::$name => $text,)+ }
            }

            /// The page that explains it: a summary, what it means, and what to do.
            pub const fn page(self) -> &'static str {
                match self { $(Code::$name => include_str!(concat!("../docs/codes/", $text, ".md")),)+ }
            }
        }
    };
}

codes! {
    AnswerPendingApproval => "PENDING_APPROVAL";
    AnswerInProgress => "IN_PROGRESS";
    AnswerInterrupted => "INTERRUPTED";
    AnswerUnknownOutcome => "UNKNOWN_OUTCOME";
    AnswerUnrecorded => "UNRECORDED";
    AnswerDenied => "DENIED";
    AnswerInvalid => "INVALID";
    AnswerRejected => "REJECTED";
    AnswerExpired => "EXPIRED";
    AnswerDuplicate => "DUPLICATE";
    AnswerBlocked => "BLOCKED";
    AnswerUnavailable => "UNAVAILABLE";
    AnswerGateStatus => "GATE_STATUS";

    Exit0 => "exit.0";
    Exit1 => "exit.1";
    Exit2 => "exit.2";
    Exit70 => "exit.70";

    Usage => "usage";
    UsageNoDatabase => "usage.no_database";
    UsageByEmpty => "usage.by_empty";
    UsageConfirm => "usage.confirm";
    UsageUnknownCode => "usage.unknown_code";
    Declined => "declined";
    Output => "output";

    StoreMissing => "store.missing";
    StoreNotADatabase => "store.not_a_database";
    StoreNotRegular => "store.not_regular";
    StoreSymlink => "store.symlink";
    StoreInsecureMode => "store.insecure_mode";
    StoreUnsafeSchema => "store.unsafe_schema";
    StoreNewerSchema => "store.newer_schema";
    StoreOlderSchema => "store.older_schema";
    StoreLocked => "store.locked";
    StoreDiskFull => "store.disk_full";
    StoreIo => "store.io";
    StoreNotKnown => "store.not_known";

    RunNotFound => "run.not_found";
    RunNotWaiting => "run.not_waiting";
    RunFinished => "run.finished";

    ApprovalNotFound => "approval.not_found";
    ApprovalNonePending => "approval.none_pending";
    ApprovalAmbiguous => "approval.ambiguous";
    ApprovalNotPending => "approval.not_pending";
    ApprovalExpired => "approval.expired";
    ApprovalChanged => "approval.changed";
    ApprovalHashMismatch => "approval.hash_mismatch";

    ChainBroken => "chain.broken";
    ChainNotReached => "chain.not_reached";
    ChainHeadMismatch => "chain.head_mismatch";

    RecheckDiffers => "recheck.differs";
    RecheckNothing => "recheck.nothing";

    ConfigUnreadable => "config.unreadable";
    ConfigInsecure => "config.insecure";
    ConfigInvalid => "config.invalid";
    ConfigReach => "config.reach";

    ServerDown => "server.down";
    ServerNothingRegistered => "server.nothing_registered";
    ServeListen => "serve.listen";
    PinWrite => "pin.write";
    DoctorFailed => "doctor.failed";
    DemoFailed => "demo.failed";
    ExportCursor => "export.cursor";
    ExportSettings => "export.settings";
    ExportCollector => "export.collector";
    BenchFile => "bench.file";
    BenchNotComparable => "bench.not_comparable";
    Internal => "internal";
}

impl Code {
    /// Reads a code, whatever its letters' case.
    pub fn parse(text: &str) -> Option<Code> {
        Code::ALL.iter().copied().find(|code| code.as_str().eq_ignore_ascii_case(text))
    }

    /// The first paragraph of the page, on one line.
    pub fn summary(self) -> String {
        let first = self.page().split("\n\n").next().unwrap_or_default();
        first.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_page_has_a_summary_and_says_what_to_do() {
        for code in Code::ALL {
            let page = code.page();
            assert!(code.summary().ends_with('.'), "{code}: {}", code.summary());
            assert!(page.contains("\nWhat to do: "), "{code}");
            assert!(page.ends_with('\n') && !page.ends_with("\n\n"), "{code}");
        }
    }

    #[test]
    fn every_page_belongs_to_one_code() {
        let codes: BTreeSet<String> = Code::ALL.iter().map(|code| format!("{code}.md")).collect();
        assert_eq!(codes.len(), Code::ALL.len());
        let pages: BTreeSet<String> =
            std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/codes"))
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
        assert_eq!(codes, pages);
    }

    #[test]
    fn a_code_is_found_by_its_name_in_any_case() {
        assert_eq!(Code::parse("pending_approval"), Some(Code::AnswerPendingApproval));
        assert_eq!(Code::parse("STORE.SYMLINK"), Some(Code::StoreSymlink));
        assert_eq!(Code::parse("store"), None);
    }
}
