//! What stands in the cells of a table, and the order of its rows.

use std::cmp::Ordering;

use holdpoint_core::duration::{DurationNanos, format_go_duration};

use super::file::{Raw, Trial};

/// What stands where nothing is.
pub(super) const NONE: &str = "—";

const SECOND: f64 = 1e9;
const MILLISECOND: f64 = 1e6;

/// A name or a remark as Markdown takes it: on one line, and no end of a cell.
pub(super) fn text(text: &str) -> String {
    text.replace('|', "\\|").replace(['\n', '\r'], " ")
}

pub(super) fn or_none(name: &str) -> String {
    if name.is_empty() { NONE.to_owned() } else { text(name) }
}

pub(super) fn excluded(trial: &Trial) -> String {
    format!("_excluded: {}_", text(&trial.excluded))
}

/// A mode, followed by its model.
pub(super) fn column(mode: &str, model: &str) -> String {
    if model.is_empty() { text(mode) } else { format!("{} {}", text(mode), text(model)) }
}

/// A mean: whole where it is, else to a tenth.
pub(super) fn mean(number: f64) -> String {
    if number.fract() == 0.0 { format!("{number:.0}") } else { format!("{number:.1}") }
}

/// Millionths of a unit of money, to four places.
pub(super) fn money(micros: f64) -> String {
    format!("{:.4}", micros / 1e6)
}

/// Nanoseconds: to the millisecond below a second, to the second above.
pub(super) fn wall(nanos: f64) -> String {
    let to = if nanos < SECOND { MILLISECOND } else { SECOND };
    // Halves go up, as the reference rounds. What is rounded is below two to the 63, or as good as.
    let rounded = (nanos / to).round() * to;
    format_go_duration(DurationNanos::from_nanos(rounded as i64))
}

/// Settings as `name=value`, in the order of their names.
pub(super) fn options(options: &Raw) -> String {
    let compact = |raw: &str| serde_json::from_str::<serde_json::Value>(raw).map(|value| value.to_string());
    let pairs = options.iter().map(|(name, value)| {
        let value = compact(value.get()).unwrap_or_else(|_| value.get().to_owned());
        format!("{}={}", text(name), text(&value))
    });
    pairs.collect::<Vec<_>>().join(", ")
}

/// Compares names with the digits in them as numbers, so that S2 comes before S10; names that differ in zeros alone by
/// their bytes.
pub(super) fn natural(left: &str, right: &str) -> Ordering {
    let (mut a, mut b) = (left.as_bytes(), right.as_bytes());
    while let (Some(first), Some(second)) = (a.first(), b.first()) {
        let (m, n) = (digits(a), digits(b));
        if m > 0 && n > 0 {
            let number =
                |run: &[u8]| run.iter().copied().skip_while(|digit| *digit == b'0').collect::<Vec<_>>();
            let (p, q) = (number(&a[..m]), number(&b[..n]));
            match p.len().cmp(&q.len()).then_with(|| p.cmp(&q)) {
                Ordering::Equal => (a, b) = (&a[m..], &b[n..]),
                decided @ (Ordering::Less | Ordering::Greater) => return decided,
            }
            continue;
        }
        match first.cmp(second) {
            Ordering::Equal => (a, b) = (&a[1..], &b[1..]),
            decided @ (Ordering::Less | Ordering::Greater) => return decided,
        }
    }
    a.len().cmp(&b.len()).then_with(|| left.cmp(right))
}

/// How many digits come first.
fn digits(text: &[u8]) -> usize {
    text.iter().take_while(|byte| byte.is_ascii_digit()).count()
}
