//! Moments and amounts as a person reads them: local time with its offset, so that no reading is ambiguous.

use chrono::{DateTime, Local};
use holdpoint_core::time::UnixNanos;

/// A moment to the second, in the zone of whoever reads: `2026-10-01 09:00:00 +0200`.
pub(crate) fn stamp(at: UnixNanos) -> String {
    local(at, "%Y-%m-%d %H:%M:%S %z")
}

/// A moment to the second, or a dash.
pub(crate) fn stamp_or_dash(at: Option<UnixNanos>) -> String {
    at.map_or_else(|| "-".to_owned(), stamp)
}

fn local(at: UnixNanos, form: &str) -> String {
    DateTime::from_timestamp_nanos(at.as_nanos()).with_timezone(&Local).format(form).to_string()
}

/// Millionths of a dollar, to a hundredth of a cent.
pub(crate) fn dollars(micros: i64) -> String {
    let ten_thousandths = (i128::from(micros) + 50 * i128::from(micros.signum())) / 100;
    let sign = if ten_thousandths < 0 { "-" } else { "" };
    let amount = ten_thousandths.unsigned_abs();
    format!("{sign}${}.{:04}", amount / 10_000, amount % 10_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn money_is_written_to_a_hundredth_of_a_cent() {
        assert_eq!(dollars(0), "$0.0000");
        assert_eq!(dollars(1_234_567), "$1.2346");
        assert_eq!(dollars(-150), "-$0.0002");
        assert_eq!(dollars(i64::MAX), "$9223372036854.7758");
    }

    #[test]
    fn a_moment_names_its_day_and_its_zone() {
        let text = stamp(UnixNanos::from_nanos(1_790_000_000_000_000_000));
        assert!(text.starts_with("2026-09-2"), "{text}");
        assert_eq!(text.len(), "2026-10-01 09:00:00 +0200".len(), "{text}");
    }
}
