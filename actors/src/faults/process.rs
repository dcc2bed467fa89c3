//! Faults of the whole process, asked for in its environment by whoever started it: a real death or a real stop at a
//! named point, a wall clock that is ahead, and deliberately broken behaviour that a checker has to notice.
//!
//! Without the `faults` feature, and in a build without debug assertions whatever its features, everything here is empty or false, and
//! no variable is read. The crash campaign sets them.

/// A way of being wrong on purpose. Each is tied to the property of the campaign's checker that must notice it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// Writes are answered before they are committed.
    AnswerBeforeCommit,
    /// Rows and the events that tell of them are committed apart.
    StateApart,
    /// An outcome is answered and never committed.
    OutcomeSkipped,
    /// An effect leaves without the commit of its intent.
    IntentSkipped,
    /// A call that got no answer, or none in time, is sent again.
    BlindRetry,
    /// A call that got no answer is told as one that failed.
    UnknownAsFailed,
    /// No commit is synced.
    SyncOff,
    /// Events are hashed as if nothing came before them.
    Unchained,
    /// The event that tells of an outcome is left out.
    EventDropped,
    /// A step's row stays behind its events.
    RowDropped,
    /// What is sent is not what was recorded.
    ArgsAltered,
    /// What is stored of a question is not what was hashed.
    QuestionAltered,
    /// A repeated call is taken for a new one.
    WindowIgnored,
    /// What has to be asked is allowed.
    PolicyIgnored,
    /// A server that has ended stays written down.
    GroupKept,
    /// A run that ends keeps its lease.
    LeaseKept,
    /// Whether the lease still stands is not looked at before sending.
    FenceIgnored,
    /// A commit whose sync failed is answered as one that succeeded.
    FailedSyncTaken,
    /// A commit whose sync failed is tried again on the same connection.
    RetryAfterFailedSync,
    /// The events of a change are written as if the batch had been replayed on top of itself.
    BatchTwice,
    /// A call that was cut off is taken for one that succeeded.
    RecoveryMarksDone,
    /// A question names the tool and not the arguments.
    QuestionNarrowed,
    /// The policy is not asked again when a grant is collected.
    PolicyNotAskedAgain,
    /// The proxy's index gets no row of a call.
    IndexDropped,
    /// A grant lasts for ever.
    ExpiryIgnored,
    /// A repetition of what was cut off is granted as the call before it was.
    GrantTwice,
    /// A lease that has run out still lets its holder write.
    LeaseUnchecked,
    /// Whoever held a run once may write to it, also under a lease of somebody else's.
    EpochIgnored,
    /// A run is taken over although its holder is alive.
    LiveTakenOver,
    /// What was written is not synced a moment later.
    ReadsUnsynced,
    /// The log is copied without a sync.
    CheckpointUnsynced,
    /// Leases of live sessions are not renewed.
    LeaseNotRenewed,
    /// A proxy that starts leaves alone what others left.
    NothingRecovered,
    /// A grant is used whatever it has become.
    BentTaken,
    /// A run is taken over as it was read, whoever held it meanwhile.
    SeenIgnored,
    /// The proxy's index says of every attempt that its outcome is known.
    SettledAsKnown,
    /// A grant is used though its step has asked again since.
    SupersededTaken,
    /// Of what others left, only the first run is recovered.
    FirstRecovered,
    /// A question is stored without its end.
    QuestionForEver,
    /// A run that begins is written down as held by somebody else.
    OwnerMistaken,
    /// A run that its holder ends stays unsettled in the proxy's index.
    SettleForgotten,
    /// An outcome is told as of before its call.
    TimesRunBack,
    /// What a person noted with their decision is lost.
    NoteDropped,
    /// Somebody else may decide once more.
    DecidedAgain,
    /// A person is shown a question without its arguments.
    ShownNarrowed,
}

#[cfg(all(feature = "faults", debug_assertions))]
mod armed {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use rustix::process::{Signal, getpid, kill_process};

    use super::Broken;

    /// How long a late death waits: long enough for what was answered to arrive.
    const LATE: Duration = Duration::from_millis(300);
    /// How long a signal may take until every thread has felt it.
    const SETTLE: Duration = Duration::from_millis(50);

    /// What is to happen to the process: `<point>:<count>` kills it, with `:stop` after that stops it, and with
    /// `:late` holds the thread that came there for a moment before the death.
    struct Fault {
        point: String,
        left: AtomicU64,
        signal: Signal,
        wait: Duration,
    }

    static FAULT: LazyLock<Option<Fault>> = LazyLock::new(|| {
        let asked = std::env::var("HOLDPOINT_FAULT").ok()?;
        let mut parts = asked.split(':');
        let point = parts.next()?.to_owned();
        let left = AtomicU64::new(parts.next().and_then(|count| count.parse().ok()).unwrap_or(1));
        let (signal, wait) = match parts.next() {
            Some("stop") => (Signal::STOP, Duration::ZERO),
            Some("late") => (Signal::KILL, LATE),
            Some(_) | None => (Signal::KILL, Duration::ZERO),
        };
        Some(Fault { point, left, signal, wait })
    });

    static BROKEN: LazyLock<String> = LazyLock::new(|| std::env::var("HOLDPOINT_BROKEN").unwrap_or_default());

    static AHEAD: LazyLock<Duration> = LazyLock::new(|| {
        let millis = std::env::var("HOLDPOINT_CLOCK_AHEAD_MS").ok().and_then(|text| text.parse().ok());
        Duration::from_millis(millis.unwrap_or(0))
    });

    /// Dies or stops here, if that was asked for.
    pub fn reach(point: &str) {
        if let Some(fault) = FAULT.as_ref()
            && fault.point == point
            && fault.left.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1))
                == Ok(1)
        {
            std::thread::sleep(fault.wait);
            // A signal that can't be caught: no destructor runs and no buffer is flushed.
            if let Err(error) = kill_process(getpid(), fault.signal) {
                tracing::error!(%error, point, "the fault that was asked for could not strike");
            }
            // Another thread may be the one that is told of a stop, and this one would get a little further.
            std::thread::sleep(SETTLE);
        }
    }

    /// Dies or stops at `<phase>/<kind>` for the first of the kinds for which it was asked for.
    pub fn reach_each(phase: &str, kinds: impl Iterator<Item = &'static str>) {
        if FAULT.as_ref().is_some_and(|fault| fault.point.starts_with(phase)) {
            kinds.for_each(|kind| reach(&format!("{phase}/{kind}")));
        }
    }

    /// Whether to be wrong in this way.
    pub fn is(broken: Broken) -> bool {
        *BROKEN == format!("{broken:?}")
    }

    /// How far the wall clock is ahead.
    pub fn ahead() -> Duration {
        *AHEAD
    }
}

#[cfg(all(feature = "faults", debug_assertions))]
pub use armed::{ahead, is, reach, reach_each};

/// Nothing happens here.
#[cfg(not(all(feature = "faults", debug_assertions)))]
#[inline]
pub fn reach(_point: &str) {}

/// Nothing happens here.
#[cfg(not(all(feature = "faults", debug_assertions)))]
#[inline]
pub fn reach_each(_phase: &str, _kinds: impl Iterator<Item = &'static str>) {}

/// Never.
#[cfg(not(all(feature = "faults", debug_assertions)))]
#[inline]
pub const fn is(_broken: Broken) -> bool {
    false
}

/// Not at all.
#[cfg(not(all(feature = "faults", debug_assertions)))]
#[inline]
pub const fn ahead() -> std::time::Duration {
    std::time::Duration::ZERO
}
