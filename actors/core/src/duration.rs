//! Durations as operators write them: Go's syntax (`1m30s`, `500ms`), which the configuration files use.
//!
//! A duration counts nanoseconds and may be negative; who reads one from a file decides whether that is allowed.
//! Reading gives the same nanoseconds as the reference, rounding of long fractions included, because a tool's timeout
//! is part of what its specification hashes to.

use std::fmt;
use std::time::Duration;

use thiserror::Error;

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000 * MICROSECOND;
const SECOND: u64 = 1_000 * MILLISECOND;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;

/// A span of time in nanoseconds, up to some 292 years either way.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct DurationNanos(i64);

impl DurationNanos {
    /// Takes nanoseconds.
    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    /// Gives nanoseconds.
    pub const fn as_nanos(self) -> i64 {
        self.0
    }

    /// Gives the same span as the standard library's type, unless it is negative.
    pub fn to_std(self) -> Option<Duration> {
        u64::try_from(self.0).ok().map(Duration::from_nanos)
    }
}

/// Takes the standard library's type; what is too long becomes the longest span there is.
impl From<Duration> for DurationNanos {
    fn from(duration: Duration) -> Self {
        Self(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
    }
}

/// Writes Go's syntax, see [`format_go_duration`].
impl fmt::Display for DurationNanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format_go_duration(*self))
    }
}

/// Why a text is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DurationError {
    /// A number is missing.
    #[error("duration {0:?} is not written like 1m30s or 500ms")]
    Shape(String),
    /// A number has no unit behind it.
    #[error("duration {0:?} has a number without a unit: write ns, us, ms, s, m or h behind it")]
    NoUnit(String),
    /// A unit is not one of those there are.
    #[error("duration {text:?} has the unknown unit {unit:?}: use ns, us, ms, s, m or h")]
    UnknownUnit {
        /// The duration as it is written.
        text: String,
        /// The unit as it is written.
        unit: String,
    },
    /// The span is longer than 292 years.
    #[error("duration {0:?} is too long to be counted in nanoseconds")]
    Range(String),
}

/// Reads a duration: a sign or none, then numbers with a unit each, fractions allowed; or `0` alone.
///
/// The units are `ns`, `us` (or `µs`), `ms`, `s`, `m` and `h`.
pub fn parse_go_duration(text: &str) -> Result<DurationNanos, DurationError> {
    let (negative, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if unsigned == "0" {
        return Ok(DurationNanos(0));
    }
    if unsigned.is_empty() {
        return Err(DurationError::Shape(text.to_owned()));
    }
    let out_of_range = || DurationError::Range(text.to_owned());
    let mut total = 0_u64;
    let mut rest = unsigned;
    while !rest.is_empty() {
        let (nanos, after) = part(text, rest)?;
        total = total.checked_add(nanos).filter(|sum| *sum <= MAGNITUDE_MAX).ok_or_else(out_of_range)?;
        rest = after;
    }
    let signed = if negative { -i128::from(total) } else { i128::from(total) };
    i64::try_from(signed).map(DurationNanos).map_err(|_| out_of_range())
}

/// The magnitude of the most negative duration. The positive ones end one earlier.
const MAGNITUDE_MAX: u64 = 1 << 63;

/// Reads one number with its unit from the start of `rest`; gives its nanoseconds and what follows.
fn part<'a>(text: &str, rest: &'a str) -> Result<(u64, &'a str), DurationError> {
    let (whole, after) = split_digits(rest);
    let (fraction, after) = match after.strip_prefix('.') {
        Some(behind) => split_digits(behind),
        None => ("", after),
    };
    if whole.is_empty() && fraction.is_empty() {
        return Err(DurationError::Shape(text.to_owned()));
    }
    let length = after.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after.len());
    let (unit, after) = after.split_at(length);
    let scale = match unit {
        "ns" => 1,
        // The micro sign and the Greek letter look the same, and both are typed.
        "us" | "\u{b5}s" | "\u{3bc}s" => MICROSECOND,
        "ms" => MILLISECOND,
        "s" => SECOND,
        "m" => MINUTE,
        "h" => HOUR,
        "" => return Err(DurationError::NoUnit(text.to_owned())),
        other => return Err(DurationError::UnknownUnit { text: text.to_owned(), unit: other.to_owned() }),
    };
    let whole = if whole.is_empty() { Some(0) } else { whole.parse::<u64>().ok() };
    whole
        .and_then(|count| count.checked_mul(scale))
        .and_then(|nanos| nanos.checked_add(fraction_nanos(fraction, scale)))
        .filter(|nanos| *nanos <= MAGNITUDE_MAX)
        .map(|nanos| (nanos, after))
        .ok_or_else(|| DurationError::Range(text.to_owned()))
}

fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().take_while(u8::is_ascii_digit).count())
}

/// Gives the nanoseconds of a fraction of a unit, cut to whole ones, with the reference's floating-point steps.
fn fraction_nanos(digits: &str, scale: u64) -> u64 {
    let mut value = 0_u64;
    let mut divisor = 1.0_f64;
    for digit in digits.bytes().map(|byte| u64::from(byte - b'0')) {
        // Digits beyond 63 bits can't change the result.
        let Some(next) = value.checked_mul(10).and_then(|ten| ten.checked_add(digit)) else { break };
        if next > MAGNITUDE_MAX {
            break;
        }
        value = next;
        divisor *= 10.0;
    }
    (value as f64 * (scale as f64 / divisor)) as u64
}

/// Writes a duration as Go does: `0s`, `1.5µs`, `500ms`, `1m30s`, `24h0m0s`.
pub fn format_go_duration(duration: DurationNanos) -> String {
    let nanos = duration.0.unsigned_abs();
    let sign = if duration.0 < 0 { "-" } else { "" };
    let (hours, minutes, seconds) = (nanos / HOUR, nanos / MINUTE % 60, nanos % MINUTE);
    match nanos {
        0 => "0s".to_owned(),
        1..MICROSECOND => format!("{sign}{nanos}ns"),
        MICROSECOND..MILLISECOND => format!("{sign}{}µs", decimal(nanos, MICROSECOND)),
        MILLISECOND..SECOND => format!("{sign}{}ms", decimal(nanos, MILLISECOND)),
        SECOND..MINUTE => format!("{sign}{}s", decimal(seconds, SECOND)),
        MINUTE..HOUR => format!("{sign}{minutes}m{}s", decimal(seconds, SECOND)),
        HOUR.. => format!("{sign}{hours}h{minutes}m{}s", decimal(seconds, SECOND)),
    }
}

/// Writes a number of nanoseconds in a larger unit, without trailing zeros.
fn decimal(nanos: u64, unit: u64) -> String {
    let (whole, fraction) = (nanos / unit, nanos % unit);
    if fraction == 0 {
        return whole.to_string();
    }
    let width = unit.ilog10() as usize;
    let digits = format!("{fraction:0width$}");
    format!("{whole}.{}", digits.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn nanos(text: &str) -> i64 {
        parse_go_duration(text).unwrap().as_nanos()
    }

    #[test]
    fn each_unit_fraction_and_sign_is_read() {
        for (text, expected) in [
            ("0", 0),
            ("-0", 0),
            ("+0", 0),
            ("0s", 0),
            ("5s", 5_000_000_000),
            ("+5s", 5_000_000_000),
            ("-5s", -5_000_000_000),
            ("1.5h", 5_400_000_000_000),
            ("1h15m30.918273645s", 4_530_918_273_645),
            ("10ns", 10),
            ("11us", 11_000),
            ("12µs", 12_000),
            ("12μs", 12_000),
            ("13ms", 13_000_000),
            ("1s1s", 2_000_000_000),
            (".5s", 500_000_000),
            ("5.s", 5_000_000_000),
            // The reference's floats round this one up.
            ("0.9999999999999999999999999ns", 1),
            ("0.4ns", 0),
            ("0.3333333333333333333h", 1_200_000_000_000),
            ("9223372036854775807ns", i64::MAX),
            ("-9223372036854775808ns", i64::MIN),
            ("2562047h47m16.854775807s", i64::MAX),
        ] {
            assert_eq!(nanos(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_refused_with_the_reason() {
        for text in ["", "-", "+", "s", ".s", "-.s", "+.s", " 5s", "five"] {
            assert!(matches!(parse_go_duration(text), Err(DurationError::Shape(_))), "{text}");
        }
        for text in ["3", "5.", "00", "5s3"] {
            assert!(matches!(parse_go_duration(text), Err(DurationError::NoUnit(_))), "{text}");
        }
        for text in ["5S", "1d", "5 s", "5s ", "--5s", "1h-5m"] {
            let error = parse_go_duration(text).unwrap_err();
            assert!(matches!(error, DurationError::UnknownUnit { .. } | DurationError::Shape(_)), "{text}");
        }
        for text in [
            "9223372036854775808ns",
            "-9223372036854775809ns",
            "99999999999999999999s",
            "3000000h",
            "2562047h47m16.854775808s",
        ] {
            assert!(matches!(parse_go_duration(text), Err(DurationError::Range(_))), "{text}");
        }
    }

    #[test]
    fn a_duration_is_written_like_the_reference_does() {
        for (nanos, expected) in [
            (0, "0s"),
            (1, "1ns"),
            (1_100, "1.1µs"),
            (2_200_000, "2.2ms"),
            (500_000_000, "500ms"),
            (1_500_000_000, "1.5s"),
            (90_000_000_000, "1m30s"),
            (600_000_000_000, "10m0s"),
            (86_400_000_000_000, "24h0m0s"),
            (245_000_000_000, "4m5s"),
            (245_001_000_000, "4m5.001s"),
            (18_367_001_000_000, "5h6m7.001s"),
            (480_000_000_001, "8m0.000000001s"),
            (-500, "-500ns"),
            (i64::MAX, "2562047h47m16.854775807s"),
            (i64::MIN, "-2562047h47m16.854775808s"),
        ] {
            assert_eq!(format_go_duration(DurationNanos::from_nanos(nanos)), expected);
        }
    }

    #[test]
    fn only_a_span_that_is_not_negative_has_a_standard_form() {
        assert_eq!(DurationNanos::from_nanos(5).to_std(), Some(Duration::from_nanos(5)));
        assert_eq!(DurationNanos::from_nanos(-5).to_std(), None);
        assert_eq!(DurationNanos::from(Duration::MAX).as_nanos(), i64::MAX);
    }

    proptest! {
        #[test]
        fn every_duration_is_read_back_as_it_was_written(nanos in -100_000_000_000_000_i64..100_000_000_000_000) {
            let duration = DurationNanos::from_nanos(nanos);
            prop_assert_eq!(parse_go_duration(&duration.to_string()).unwrap(), duration);
        }
    }
}
