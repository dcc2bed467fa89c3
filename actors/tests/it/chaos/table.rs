//! The table as values: who dies, how, how far the call has come, of what kind it is, and what it comes to.

/// Who dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Victim {
    StoreWriter,
    LeaseKeeper,
    PolicyEvaluator,
    ToolExecutor,
    ApprovalWaiter,
    /// And so everybody.
    Supervisor,
}

/// How.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Death {
    Panic,
    Error,
    Kill,
}

pub(super) const DEATHS: [Death; 3] = [Death::Panic, Death::Error, Death::Kill];

/// How far the call has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Before commit 1, while the policy thinks.
    Judging,
    /// Before commit 1, about to be made.
    Starting,
    /// Commit 1 was begun and is not in the record.
    FirstAbsent,
    /// Commit 1 is in the record, and its reply was lost.
    FirstPresent,
    /// Committed, not sent.
    Started,
    /// Sent, no answer yet.
    Sent,
    /// Answered, commit 2 about to be made.
    Answered,
    /// Commit 2 was begun and is not in the record.
    SecondAbsent,
    /// Commit 2 is in the record, and its reply was lost.
    SecondPresent,
    /// Commit 2 done, answer not delivered.
    Recorded,
}

/// The steps at which any actor can die.
pub(super) const STEPS: [Step; 6] =
    [Step::Judging, Step::Starting, Step::Started, Step::Sent, Step::Answered, Step::Recorded];

/// The steps that only the writer's own death makes: between a commit and its reply.
pub(super) const IN_DOUBT: [Step; 4] =
    [Step::FirstAbsent, Step::FirstPresent, Step::SecondAbsent, Step::SecondPresent];

/// What kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Local,
    Remote,
    /// One that a person approved.
    Approved,
    /// One that runs again, because a person said so when its outcome was unknown.
    ReRun,
}

pub(super) const KINDS: [Kind; 5] = [Kind::Read, Kind::Local, Kind::Remote, Kind::Approved, Kind::ReRun];

impl Kind {
    pub(super) fn tool(self) -> &'static str {
        match self {
            Kind::Read => "read",
            Kind::Local | Kind::ReRun => "local",
            Kind::Remote | Kind::Approved => "remote",
        }
    }
}

/// What the call came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Came {
    /// Answered, and recorded so.
    Answered,
    /// Unavailable: nothing ran and nothing of it is recorded.
    Unavailable,
    /// Recorded as started, and known never to have been sent.
    NotSent,
    /// Sent, and no answer can be learnt.
    NoAnswer,
}

/// What the table says. Before commit 1 an actor that is back already is as good as one that never died.
pub(super) fn expected(victim: Victim, step: Step) -> &'static [Came] {
    match (victim, step) {
        (Victim::StoreWriter, Step::Judging | Step::Starting) => &[Came::Unavailable, Came::Answered],
        (Victim::StoreWriter, Step::FirstAbsent) => &[Came::Unavailable],
        (Victim::StoreWriter, Step::FirstPresent) => &[Came::NotSent],
        // An answer that was on its way when the evaluator died is an answer.
        (Victim::PolicyEvaluator, Step::Judging) => &[Came::Unavailable, Came::Answered],
        (Victim::ToolExecutor | Victim::Supervisor, Step::Sent) => &[Came::NoAnswer],
        (Victim::Supervisor, Step::Judging | Step::Starting) => &[Came::Unavailable],
        (Victim::Supervisor, Step::Started) => &[Came::NotSent],
        (
            Victim::StoreWriter,
            Step::Started
            | Step::Sent
            | Step::Answered
            | Step::SecondAbsent
            | Step::SecondPresent
            | Step::Recorded,
        )
        | (
            Victim::PolicyEvaluator,
            Step::Starting
            | Step::FirstAbsent
            | Step::FirstPresent
            | Step::Started
            | Step::Sent
            | Step::Answered
            | Step::SecondAbsent
            | Step::SecondPresent
            | Step::Recorded,
        )
        | (
            Victim::ToolExecutor,
            Step::Judging
            | Step::Starting
            | Step::FirstAbsent
            | Step::FirstPresent
            | Step::Started
            | Step::Answered
            | Step::SecondAbsent
            | Step::SecondPresent
            | Step::Recorded,
        )
        | (
            Victim::Supervisor,
            Step::FirstAbsent
            | Step::FirstPresent
            | Step::Answered
            | Step::SecondAbsent
            | Step::SecondPresent
            | Step::Recorded,
        )
        | (Victim::LeaseKeeper | Victim::ApprovalWaiter, _) => &[Came::Answered],
    }
}

/// Whether an actor can be made to die so at this step. A kill can't be timed to fall between a commit and its reply.
pub(super) fn is_possible(death: Death, step: Step) -> bool {
    death != Death::Kill || !matches!(step, Step::FirstPresent | Step::SecondPresent)
}
