//! Tables of prices, and budgets as people write them.
//!
//! Owns the difference between a model that is free and one whose price nobody gave. Never fetches a price.

use holdpoint_core::model::{Price, PriceTable};

/// Nobody gave the price of a model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{model}: no price for this model: add it to the price table, or list it as free")]
pub struct NoPrice {
    /// The name under which it is accounted for.
    pub model: String,
}

/// A text that is no amount of dollars.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DollarsError {
    /// It is no number, or it is below zero or without end.
    #[error("{0:?} is not an amount of dollars: write it like 5, 4.41 or $0.50")]
    Unreadable(String),
    /// It is more than can be counted in millionths.
    #[error("{0:?} is too large an amount of dollars")]
    TooLarge(String),
}

/// Looks the price of `model` up.
///
/// A [`PriceTable`] charges nothing for a name that it does not hold, which is right for a model on this machine and lets
/// a paid one past every budget. Ask here before a run starts.
///
/// ```
/// use holdpoint::model::{Price, PriceTable, free, price_for};
///
/// let prices = free(["ollama:qwen3"]).with("openai:gpt", Price { input: 2_000_000, output: 8_000_000, cached_input: 500_000 });
/// assert_eq!(price_for(&prices, "ollama:qwen3"), Ok(Price::default()));
/// assert_eq!(price_for(&prices, "openai:gpt").map(|price| price.output), Ok(8_000_000));
/// assert!(price_for(&prices, "openai:unheard-of").is_err());
/// ```
///
/// # Errors
/// When the table does not hold the name. A model that is free is held, with a price of nothing.
pub fn price_for(prices: &PriceTable, model: &str) -> Result<Price, NoPrice> {
    prices.get(model).copied().ok_or_else(|| NoPrice { model: model.to_owned() })
}

/// A table in which each of these costs nothing.
pub fn free<N: Into<String>>(models: impl IntoIterator<Item = N>) -> PriceTable {
    models.into_iter().fold(PriceTable::default(), |table, model| table.with(model, Price::default()))
}

/// All tables in one; of a name that several hold, the last price counts.
pub fn merge(tables: impl IntoIterator<Item = PriceTable>) -> PriceTable {
    tables.into_iter().fold(PriceTable::default(), PriceTable::merged)
}

/// Reads an amount of dollars, with or without a `$`, as millionths of a dollar, rounded to the nearest.
///
/// ```
/// assert_eq!(holdpoint::model::parse_dollars("$0.50"), Ok(500_000));
/// assert_eq!(holdpoint::model::parse_dollars(" 4.41 "), Ok(4_410_000));
/// ```
///
/// # Errors
/// When it is no number, below zero, without end, or 2^63 millionths and more.
pub fn parse_dollars(text: &str) -> Result<i64, DollarsError> {
    let trimmed = text.trim();
    let number = trimmed.strip_prefix('$').unwrap_or(trimmed).trim();
    let dollars = number.parse::<f64>().ok().filter(|dollars| dollars.is_finite() && *dollars >= 0.0);
    let micros = dollars.ok_or_else(|| DollarsError::Unreadable(text.to_owned()))? * 1e6 + 0.5;
    // 2^63 is the first float that no longer fits.
    if micros >= 9_223_372_036_854_775_808.0 {
        return Err(DollarsError::TooLarge(text.to_owned()));
    }
    Ok(micros as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_without_a_price_is_refused_and_a_free_one_is_not() {
        let prices = free(["local"]);
        assert_eq!(price_for(&prices, "local"), Ok(Price::default()));
        let missing = price_for(&prices, "paid").unwrap_err();
        assert_eq!(missing, NoPrice { model: "paid".to_owned() });
        assert!(missing.to_string().starts_with("paid: no price for this model"), "{missing}");
    }

    #[test]
    fn the_last_table_that_holds_a_name_gives_its_price() {
        let price = |input| Price { input, ..Price::default() };
        let one = PriceTable::default().with("a", price(1)).with("b", price(1));
        let merged = merge([one, PriceTable::default().with("b", price(2)), free(["c"])]);
        let of = |name| merged.get(name).map(|price| price.input);
        assert_eq!([of("a"), of("b"), of("c"), of("d")], [Some(1), Some(2), Some(0), None]);
        assert_eq!(merge([]), PriceTable::default());
    }

    #[test]
    fn dollars_are_read_as_people_write_them() {
        for (text, micros) in [
            ("5", 5_000_000),
            ("4.41", 4_410_000),
            ("$0.50", 500_000),
            (" $ 1 ", 1_000_000),
            ("0", 0),
            ("0.0000004", 0),
            ("0.0000005", 1),
            ("1e3", 1_000_000_000),
        ] {
            assert_eq!(parse_dollars(text), Ok(micros), "{text:?}");
        }
        for text in ["", "$", "-1", "five", "5 EUR", "NaN", "inf", "-inf", "$$5"] {
            assert_eq!(parse_dollars(text), Err(DollarsError::Unreadable(text.to_owned())));
        }
        assert_eq!(
            parse_dollars("9223372036854.78"),
            Err(DollarsError::TooLarge("9223372036854.78".to_owned()))
        );
        assert!(parse_dollars("9223372036854").is_ok());
    }
}
