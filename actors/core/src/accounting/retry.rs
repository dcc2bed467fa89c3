//! The wait before another attempt, and whether there is room for it.

use std::time::Duration;

use crate::run::Run;
use crate::time::UnixNanos;

/// How long to wait between attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryRules {
    /// The wait after the first attempt. It doubles with each.
    pub backoff: Duration,
    /// The longest wait that a provider may ask for.
    pub max_retry_after: Duration,
}

/// What bounds a wait.
#[derive(Debug, Clone, Copy)]
pub struct Room<'a> {
    /// The run, as the step started.
    pub run: &'a Run,
    /// When the step started.
    pub step_started_at: UnixNanos,
    /// When the last attempt ended.
    pub now: UnixNanos,
    /// What is left of the caller's own time.
    pub left: Option<Duration>,
}

/// Says how long to wait after attempt number `attempt`: the backoff, or longer when the provider asks for it.
///
/// # Errors
/// Why the wait would be too long. Nobody waits then: the model counts as unavailable.
pub fn retry_wait(
    rules: &RetryRules,
    attempt: u32,
    retry_after: Option<Duration>,
    room: &Room<'_>,
) -> Result<Duration, String> {
    let doubled = 2_u32.saturating_pow(attempt.saturating_sub(1));
    let wait = rules.backoff.saturating_mul(doubled);
    let asked = retry_after.unwrap_or_default();
    if asked > rules.max_retry_after {
        return Err(format!(
            "the provider asks for a wait of {asked:?}, and {:?} is the longest",
            rules.max_retry_after
        ));
    }
    let wait = wait.max(asked);
    if room.left.is_some_and(|left| wait >= left) {
        return Err(format!("a wait of {wait:?} would pass the caller's deadline"));
    }
    let limits = &room.run.limits;
    let then = room.now.plus(wait);
    let since = |start: UnixNanos| then.as_nanos().saturating_sub(start.as_nanos());
    if limits.max_elapsed_time > 0 && since(room.run.created_at) >= limits.max_elapsed_time {
        return Err(format!("a wait of {wait:?} would reach the limit of elapsed time"));
    }
    let active = room.run.active_ms.saturating_mul(1_000_000).saturating_add(since(room.step_started_at));
    if limits.max_active_time > 0 && active >= limits.max_active_time {
        return Err(format!("a wait of {wait:?} would reach the limit of active time"));
    }
    Ok(wait)
}
