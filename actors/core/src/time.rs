//! Moments, as the database and the wire write them.
//!
//! Owns one type, [`UnixNanos`], and its text: RFC 3339 in UTC with nanoseconds, trailing zeros dropped, which is
//! what the reference stores. It never reads a clock: moments come in as arguments. The calendar is the proleptic
//! Gregorian one without leap seconds.

use std::fmt;
use std::time::Duration;

use thiserror::Error;

const NANOS_PER_SECOND: i64 = 1_000_000_000;
const SECONDS_PER_DAY: i64 = 86_400;

/// A moment: nanoseconds since 1970-01-01T00:00:00Z, from the year 1677 to 2262.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct UnixNanos(i64);

/// Why a text is not a moment.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TimeError {
    /// The text does not have the shape `2026-10-01T09:00:00.5Z`.
    #[error("time {0:?} is not written like 2026-10-01T09:00:00.5Z")]
    Shape(String),
    /// A part is out of its range: a month 13, a second 60, 30 February.
    #[error("time {0:?} names a moment that no calendar has")]
    Calendar(String),
    /// The moment is before 1677-09-21 or after 2262-04-11.
    #[error("time {0:?} is too far from 1970 to be counted in nanoseconds")]
    Range(String),
}

impl UnixNanos {
    /// Takes nanoseconds since 1970.
    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    /// Gives nanoseconds since 1970.
    pub const fn as_nanos(self) -> i64 {
        self.0
    }

    /// Gives the moment that is `duration` later, or the last one there is.
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(nanos(duration)))
    }

    /// Gives the moment that is `duration` earlier, or the first one there is.
    pub fn minus(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(duration)))
    }

    /// Gives the whole milliseconds from `earlier` to here, rounded toward zero; negative if `earlier` is later.
    pub fn millis_since(self, earlier: Self) -> i64 {
        self.0.saturating_sub(earlier.0) / 1_000_000
    }

    /// Says whether this moment is strictly later than `other`.
    pub fn is_after(self, other: Self) -> bool {
        self.0 > other.0
    }

    /// Writes the stored form: UTC, nanoseconds without trailing zeros, no fraction for a whole second.
    pub fn to_rfc3339(self) -> String {
        let mut text = self.date_and_time();
        let fraction = self.0.rem_euclid(NANOS_PER_SECOND);
        if fraction != 0 {
            text.push('.');
            push_digits(&mut text, fraction, 9);
            text.truncate(text.trim_end_matches('0').len());
        }
        text.push('Z');
        text
    }

    /// Writes the moment in UTC, cut to its whole second.
    pub fn to_rfc3339_seconds(self) -> String {
        let mut text = self.date_and_time();
        text.push('Z');
        text
    }

    /// Reads RFC 3339 with any offset and at most nine digits of a fraction.
    pub fn parse(text: &str) -> Result<Self, TimeError> {
        let shape = || TimeError::Shape(text.to_owned());
        let calendar = || TimeError::Calendar(text.to_owned());
        let bytes = text.as_bytes();
        let (head, rest) = bytes.split_at_checked(19).ok_or_else(shape)?;
        if head[4] != b'-' || head[7] != b'-' || head[10] != b'T' || head[13] != b':' || head[16] != b':' {
            return Err(shape());
        }
        let number = |from: usize, to: usize| digits(&head[from..to]).ok_or_else(shape);
        let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
        let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
        let (fraction, zone) = fraction(rest).ok_or_else(shape)?;
        let offset = match zone {
            b"Z" => 0,
            [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] => {
                let hours = digits(&[*h1, *h2]).ok_or_else(shape)?;
                let minutes = digits(&[*m1, *m2]).ok_or_else(shape)?;
                if hours > 23 || minutes > 59 {
                    return Err(calendar());
                }
                let seconds = hours * 3600 + minutes * 60;
                if *sign == b'-' { -seconds } else { seconds }
            }
            _ => return Err(shape()),
        };
        if hour > 23 || minute > 59 || second > 59 || day < 1 || day > days_in_month(year, month) {
            return Err(calendar());
        }
        let seconds = days_from_date(year, month, day) * SECONDS_PER_DAY + hour * 3600 + minute * 60 + second;
        // Wide, because the first representable second lies below i64::MIN nanoseconds until its fraction is added.
        let total = i128::from(seconds - offset) * i128::from(NANOS_PER_SECOND) + i128::from(fraction);
        i64::try_from(total).map(Self).map_err(|_| TimeError::Range(text.to_owned()))
    }

    fn date_and_time(self) -> String {
        let seconds = self.0.div_euclid(NANOS_PER_SECOND);
        let (year, month, day) = date_from_days(seconds.div_euclid(SECONDS_PER_DAY));
        let of_day = seconds.rem_euclid(SECONDS_PER_DAY);
        let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
        // Room for the fraction and the `Z` too.
        let mut text = String::with_capacity(30);
        // By hand: a call's rows and events have some twenty times.
        push_digits(&mut text, year, 4);
        for (before, number) in [('-', month), ('-', day), ('T', hour), (':', minute), (':', second)] {
            text.push(before);
            push_digits(&mut text, number, 2);
        }
        text
    }
}

/// Adds the last `width` digits of a number that is not negative.
fn push_digits(text: &mut String, number: i64, width: u32) {
    for place in (0..width).rev() {
        let digit = number / 10_i64.pow(place) % 10;
        text.push(char::from(b'0' + digit.unsigned_abs() as u8));
    }
}

impl fmt::Display for UnixNanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.to_rfc3339())
    }
}

fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

/// Reads a short run of ASCII digits, and nothing but digits.
fn digits(bytes: &[u8]) -> Option<i64> {
    bytes.iter().try_fold(0, |sum, byte| byte.is_ascii_digit().then(|| sum * 10 + i64::from(byte - b'0')))
}

/// Splits `.5Z` into its nanoseconds and the zone that follows.
fn fraction(rest: &[u8]) -> Option<(i64, &[u8])> {
    let Some(after) = rest.strip_prefix(b".") else { return Some((0, rest)) };
    let count = after.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if count == 0 || count > 9 {
        return None;
    }
    let (written, zone) = after.split_at(count);
    let missing = u32::try_from(9 - count).ok()?;
    Some((digits(written)? * 10_i64.pow(missing), zone))
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

/// Gives the days of a month, or 0 for a month that does not exist.
fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 => 28 + i64::from(is_leap(year)),
        _ => 0,
    }
}

/// Days in 400 years, after which the calendar repeats.
const DAYS_400_YEARS: i64 = 146_097;
/// Days from 0000-03-01 to 1970-01-01.
const EPOCH_DAY: i64 = 719_468;

/// Counts days since 1970. Years begin in March here, so that the leap day is the last day of a year.
fn days_from_date(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    // From March on, months have 31, 30, 31, 30, 31 days, again and again: 153 days in five months.
    year * 365 + leap_days + (153 * month + 2) / 5 + day - 1 - EPOCH_DAY
}

/// Gives the year, month and day of a day counted from 1970.
fn date_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + EPOCH_DAY;
    let cycle = days.div_euclid(DAYS_400_YEARS);
    let of_cycle = days.rem_euclid(DAYS_400_YEARS);
    // A leap day ends every 4th year (1,460 days before it), is missing each 100th (36,524) and back at the 400th.
    let year_of_cycle = (of_cycle - of_cycle / 1_460 + of_cycle / 36_524 - of_cycle / 146_096) / 365;
    let of_year = of_cycle - (year_of_cycle * 365 + year_of_cycle / 4 - year_of_cycle / 100);
    let march_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * march_month + 2) / 5 + 1;
    let year = cycle * 400 + year_of_cycle;
    if march_month < 10 { (year, march_month + 3, day) } else { (year + 1, march_month - 9, day) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(text: &str) -> UnixNanos {
        UnixNanos::parse(text).unwrap()
    }

    #[test]
    fn a_whole_second_has_no_fraction_and_other_fractions_lose_their_zeros() {
        assert_eq!(UnixNanos::from_nanos(0).to_rfc3339(), "1970-01-01T00:00:00Z");
        assert_eq!(UnixNanos::from_nanos(1_500_000_000).to_rfc3339(), "1970-01-01T00:00:01.5Z");
        assert_eq!(UnixNanos::from_nanos(1).to_rfc3339(), "1970-01-01T00:00:00.000000001Z");
        assert_eq!(UnixNanos::from_nanos(-1).to_rfc3339(), "1969-12-31T23:59:59.999999999Z");
        assert_eq!(at("2026-10-01T09:00:00.25Z").to_rfc3339_seconds(), "2026-10-01T09:00:00Z");
    }

    #[test]
    fn the_ends_of_the_range_can_be_written_and_read() {
        assert_eq!(UnixNanos::from_nanos(i64::MAX).to_rfc3339(), "2262-04-11T23:47:16.854775807Z");
        assert_eq!(UnixNanos::from_nanos(i64::MIN).to_rfc3339(), "1677-09-21T00:12:43.145224192Z");
        assert_eq!(at("2262-04-11T23:47:16.854775807Z").as_nanos(), i64::MAX);
        assert_eq!(at("1677-09-21T00:12:43.145224192Z").as_nanos(), i64::MIN);
        assert!(matches!(UnixNanos::parse("2262-04-11T23:47:16.854775808Z"), Err(TimeError::Range(_))));
        assert!(matches!(UnixNanos::parse("0001-01-01T00:00:00Z"), Err(TimeError::Range(_))));
    }

    #[test]
    fn an_offset_is_taken_into_account() {
        assert_eq!(at("2026-03-01T00:30:00+01:00"), at("2026-02-28T23:30:00Z"));
        assert_eq!(at("2024-02-28T20:00:00-04:00"), at("2024-02-29T00:00:00Z"));
    }

    #[test]
    fn leap_days_exist_only_in_leap_years() {
        for good in ["2000-02-29T00:00:00Z", "2024-02-29T00:00:00Z"] {
            assert_eq!(at(good).to_rfc3339(), good);
        }
        for bad in ["1900-02-29T00:00:00Z", "2026-02-29T00:00:00Z", "2100-02-29T00:00:00Z"] {
            assert!(matches!(UnixNanos::parse(bad), Err(TimeError::Calendar(_))), "{bad}");
        }
    }

    #[test]
    fn what_is_not_rfc_3339_is_refused() {
        for bad in [
            "",
            "2026-10-01",
            "2026-10-01T09:00:00",
            "2026-10-01 09:00:00Z",
            "2026-10-01T09:00:00z",
            "2026-10-01T09:00:00.Z",
            "2026-10-01T09:00:00.0123456789Z",
            "2026-10-01T09:00:00Z ",
            "2026-10-01T09:00:00+0100",
            "+026-10-01T09:00:00Z",
            "2026-1é-01T09:00:00Z",
        ] {
            assert!(matches!(UnixNanos::parse(bad), Err(TimeError::Shape(_))), "{bad}");
        }
        for bad in [
            "2026-13-01T09:00:00Z",
            "2026-00-01T09:00:00Z",
            "2026-01-00T09:00:00Z",
            "2026-10-01T24:00:00Z",
            "2026-10-01T09:60:00Z",
            "2026-10-01T09:00:60Z",
            "2026-10-01T09:00:00+24:00",
        ] {
            assert!(matches!(UnixNanos::parse(bad), Err(TimeError::Calendar(_))), "{bad}");
        }
    }

    #[test]
    fn adding_stops_at_the_ends_of_the_range() {
        assert_eq!(UnixNanos::from_nanos(i64::MAX).plus(Duration::from_nanos(1)).as_nanos(), i64::MAX);
        assert_eq!(UnixNanos::from_nanos(0).plus(Duration::MAX).as_nanos(), i64::MAX);
        assert_eq!(UnixNanos::from_nanos(i64::MIN).minus(Duration::from_secs(1)).as_nanos(), i64::MIN);
        let start = UnixNanos::from_nanos(0);
        assert_eq!(start.plus(Duration::from_micros(2_999)).millis_since(start), 2);
        assert_eq!(start.millis_since(start.plus(Duration::from_micros(2_999))), -2);
        assert!(start.plus(Duration::from_nanos(1)).is_after(start));
        assert!(!start.is_after(start));
    }

    proptest! {
        #[test]
        fn every_moment_is_read_back_as_it_was_written(nanos: i64) {
            let moment = UnixNanos::from_nanos(nanos);
            prop_assert_eq!(UnixNanos::parse(&moment.to_rfc3339()).unwrap(), moment);
        }

        #[test]
        fn days_count_up_one_by_one(day in -110_000_i64..110_000) {
            let (year, month, of_month) = date_from_days(day);
            prop_assert_eq!(days_from_date(year, month, of_month), day);
            prop_assert!(of_month >= 1 && of_month <= days_in_month(year, month));
            let next = if of_month < days_in_month(year, month) {
                (year, month, of_month + 1)
            } else if month < 12 {
                (year, month + 1, 1)
            } else {
                (year + 1, 1, 1)
            };
            prop_assert_eq!(date_from_days(day + 1), next);
        }
    }
}
