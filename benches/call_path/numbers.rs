//! Medians, and the words for durations.

use std::time::Duration;

/// The value that a share of the others is below; `share` in parts of a hundred.
pub(crate) fn percentile(values: &[f64], share: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (sorted.len().saturating_sub(1) * share).div_ceil(100);
    sorted.get(at).copied().unwrap_or(f64::NAN)
}

pub(crate) fn median(values: &[f64]) -> f64 {
    percentile(values, 50)
}

/// Microseconds.
pub(crate) fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

/// A number of microseconds, in words.
pub(crate) fn told(micros: f64) -> String {
    if micros.abs() >= 1e6 {
        format!("{:.2} s", micros / 1e6)
    } else if micros.abs() >= 1e3 {
        format!("{:.2} ms", micros / 1e3)
    } else {
        format!("{micros:.0} µs")
    }
}

/// Calls a second.
pub(crate) fn rate(calls: u64, took: Duration) -> f64 {
    calls as f64 / took.as_secs_f64()
}

/// Bytes as a page shows them.
pub(crate) fn mib(bytes: f64) -> String {
    format!("{:.1} MiB", bytes / f64::from(1 << 20))
}
