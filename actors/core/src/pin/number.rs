//! How a pinned schema writes a number: one text for one decimal value, exactly.
//!
//! Two literals that denote the same decimal get the same text, and no digit of a literal is ever rounded
//! away, so a server can't move a bound from 2^53+1 to 2^53 unseen. Hashes depend on these bytes. Never
//! computes with the value: an `f64` is only asked whether the literal overflows it.

use thiserror::Error;

/// A number that can't be pinned.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Error {
    /// The literal rounds to infinity as an IEEE 754 double.
    #[error("write number {0} within the range of a double")]
    Overflow(String),
    /// The written exponent doesn't fit 64 bits.
    #[error("write number {0} with a smaller exponent")]
    Exponent(String),
}

/// Writes a JSON number literal in its canonical form.
///
/// Plain decimals between 1e-6 and 1e21, `d.ddde+X` or `d.ddde-X` outside; zero keeps its sign. `literal` must
/// follow JSON's number grammar.
///
/// # Errors
/// [`Error::Overflow`] past the range of a double, [`Error::Exponent`] for an exponent that can't be counted.
pub fn canonical_number(literal: &str) -> Result<String, Error> {
    match literal.parse::<f64>() {
        Ok(value) if value.is_finite() => {}
        Ok(_) | Err(_) => return Err(Error::Overflow(shortened(literal))),
    }
    let decimal = Decimal::read(literal).ok_or_else(|| Error::Exponent(shortened(literal)))?;
    Ok(decimal.write())
}

/// Says whether a JSON number literal's magnitude is greater than 2^63.
///
/// Exact for every literal; an exponent too large to count is greater, one too small is not.
#[must_use]
pub fn exceeds_two_to_the_63(literal: &str) -> bool {
    const TWO_TO_THE_63: &str = "9223372036854775808";
    let Some(decimal) = Decimal::read(literal) else {
        return literal.parse::<f64>().is_ok_and(|value| !value.is_finite());
    };
    if decimal.digits.is_empty() {
        return false;
    }
    let places = decimal.leading_exponent();
    if places != TWO_TO_THE_63.len() as i64 - 1 {
        return places >= TWO_TO_THE_63.len() as i64;
    }
    // Same number of integer places: digit by digit, and what is left over after the integer part counts too.
    decimal.digits.as_str() > TWO_TO_THE_63
}

/// A literal long enough to fill a screen is named by its beginning.
fn shortened(literal: &str) -> String {
    const SHOWN: usize = 64;
    if literal.len() <= SHOWN {
        return literal.to_owned();
    }
    format!("{}… ({} characters)", &literal[..SHOWN], literal.len())
}

/// `digits` × 10^`exponent`, with no zero at either end of `digits`; zero has no digits.
struct Decimal {
    negative: bool,
    digits: String,
    exponent: i64,
}

impl Decimal {
    fn read(literal: &str) -> Option<Self> {
        let (negative, unsigned) = match literal.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, literal),
        };
        let (mantissa, written) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all = format!("{whole}{fraction}");
        let significant = all.trim_start_matches('0');
        if significant.is_empty() {
            return Some(Self { negative, digits: String::new(), exponent: 0 });
        }
        let digits = significant.trim_end_matches('0');
        let written: i64 = written.strip_prefix('+').unwrap_or(written).parse().ok()?;
        let exponent = written
            .checked_sub(fraction.len() as i64)?
            .checked_add((significant.len() - digits.len()) as i64)?;
        // The exponent that is written counts from the first digit, so it must fit as well.
        exponent.checked_add(digits.len() as i64)?;
        Some(Self { negative, digits: digits.to_owned(), exponent })
    }

    /// The power of ten of the first digit.
    fn leading_exponent(&self) -> i64 {
        self.digits.len() as i64 - 1 + self.exponent
    }

    fn write(&self) -> String {
        let sign = if self.negative { "-" } else { "" };
        let digits = self.digits.as_str();
        if digits.is_empty() {
            return format!("{sign}0");
        }
        let leading = self.leading_exponent();
        if !(-6..21).contains(&leading) {
            let (first, rest) = digits.split_at(1);
            let point = if rest.is_empty() { "" } else { "." };
            return format!("{sign}{first}{point}{rest}e{leading:+}");
        }
        if self.exponent >= 0 {
            return format!("{sign}{digits}{}", "0".repeat(self.exponent as usize));
        }
        if leading >= 0 {
            let (whole, fraction) = digits.split_at(leading as usize + 1);
            return format!("{sign}{whole}.{fraction}");
        }
        format!("{sign}0.{}{digits}", "0".repeat((-leading - 1) as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_vector_of_a_pinned_number_is_written_as_recorded() {
        let vectors: serde_json::Value =
            serde_json::from_str(include_str!("../../tests/vectors/pinned-schema-numbers.json")).unwrap();
        let numbers = vectors["numbers"].as_array().unwrap();
        assert_eq!(numbers.len(), 17);
        for case in numbers {
            let literal = case["literal"].as_str().unwrap();
            assert_eq!(canonical_number(literal).unwrap(), case["canonical"].as_str().unwrap(), "{literal}");
        }
        for refused in vectors["refused"].as_array().unwrap() {
            let literal = refused.as_str().unwrap();
            assert_eq!(canonical_number(literal), Err(Error::Overflow(literal.to_owned())));
        }
    }

    #[test]
    fn numbers_that_a_double_would_round_keep_every_digit() {
        for (literal, want) in [
            ("12345678901234567890", "12345678901234567890"),
            ("0.1000000000000000000001", "0.1000000000000000000001"),
            ("3.141592653589793238462643383279", "3.141592653589793238462643383279"),
            ("100000000000000000000000000000000001", "1.00000000000000000000000000000000001e+35"),
            ("1e-400", "1e-400"),
        ] {
            assert_eq!(canonical_number(literal).unwrap(), want);
        }
    }

    #[test]
    fn numbers_that_a_double_holds_are_written_as_its_shortest_text() {
        for (literal, want) in [
            ("12e0", "12"),
            ("2.50", "2.5"),
            ("1e-6", "0.000001"),
            ("5e-324", "5e-324"),
            ("1.7976931348623157e308", "1.7976931348623157e+308"),
            ("123456789012345680000", "123456789012345680000"),
            ("-2.5e-3", "-0.0025"),
            ("0.30000000000000004", "0.30000000000000004"),
            ("1.5e300", "1.5e+300"),
            ("0e99999999999999999999", "0"),
            ("-0.00e-5", "-0"),
            ("0.1", "0.1"),
        ] {
            assert_eq!(canonical_number(literal).unwrap(), want);
        }
    }

    #[test]
    fn an_exponent_that_cannot_be_counted_is_refused() {
        let literal = "1e-99999999999999999999";
        assert_eq!(canonical_number(literal), Err(Error::Exponent(literal.to_owned())));
        assert!(matches!(canonical_number("1e99999999999999999999"), Err(Error::Overflow(_))));
        assert!(canonical_number("1e-9223372036854775808").is_ok());
        assert!(canonical_number("0.1e-9223372036854775808").is_err());
    }

    #[test]
    fn a_magnitude_past_two_to_the_63_is_told_exactly() {
        for (literal, past) in [
            ("9223372036854775808", false),
            ("9223372036854775809", true),
            ("9223372036854775808.0000000001", true),
            ("-9223372036854775808", false),
            ("-9223372036854775809", true),
            ("9.223372036854775808e18", false),
            ("9.3e18", true),
            ("9.2e18", false),
            ("1e19", true),
            ("1e18", false),
            ("0", false),
            ("1e-999999999999999999999", false),
            ("1e999999999999999999999", true),
            ("0.5", false),
        ] {
            assert_eq!(exceeds_two_to_the_63(literal), past, "{literal}");
        }
    }

    proptest::proptest! {
        #[test]
        fn a_canonical_number_is_its_own_canonical_form(whole in 0_u64.., fraction in "[0-9]{0,30}", exponent in -400_i32..280) {
            let literal = if fraction.is_empty() {
                format!("{whole}e{exponent}")
            } else {
                format!("{whole}.{fraction}e{exponent}")
            };
            let once = canonical_number(&literal).unwrap();
            proptest::prop_assert_eq!(canonical_number(&once).unwrap(), once.clone());
            proptest::prop_assert_eq!(once.parse::<f64>().unwrap(), literal.parse::<f64>().unwrap());
        }

        #[test]
        fn every_double_is_written_as_a_text_that_reads_back(value in proptest::num::f64::NORMAL) {
            let text = canonical_number(&format!("{value:e}")).unwrap();
            proptest::prop_assert_eq!(text.parse::<f64>().unwrap(), value);
        }
    }
}
