//! What Claude models cost, as of 2026-09-29.
//!
//! Owns the table. Never fetches a price.

use super::PROVIDER;
use crate::model::{Price, PriceTable};

/// The models' prices under the names that their adapters report, per million tokens in millionths of a dollar.
///
/// Cache reads cost a tenth of input, a twentieth with Opus 5.5, and a fortieth with Fable 5.1 and Mythos 5.1. What was
/// written into a cache is counted as input, so a bill is never understated.
pub fn prices() -> PriceTable {
    const DOLLAR: i64 = 1_000_000;
    let models: [(&[&str], i64, i64, i64); 7] = [
        (&["claude-fable-5-1", "claude-mythos-5-1"], 10 * DOLLAR, 50 * DOLLAR, DOLLAR / 4),
        (&["claude-fable-5", "claude-mythos-5"], 10 * DOLLAR, 50 * DOLLAR, DOLLAR),
        (&["claude-opus-5-5"], 4 * DOLLAR, 20 * DOLLAR, DOLLAR / 5),
        (
            &["claude-opus-5", "claude-opus-4-8", "claude-opus-4-7", "claude-opus-4-6"],
            5 * DOLLAR,
            25 * DOLLAR,
            DOLLAR / 2,
        ),
        (&["claude-sonnet-5"], 2 * DOLLAR, 10 * DOLLAR, DOLLAR / 5),
        (&["claude-sonnet-4-6"], 3 * DOLLAR, 15 * DOLLAR, 3 * DOLLAR / 10),
        (&["claude-haiku-4-5"], DOLLAR, 5 * DOLLAR, DOLLAR / 10),
    ];
    let mut table = PriceTable::default();
    for (names, input, output, cached_input) in models {
        for model in names {
            table = table.with(format!("{PROVIDER}:{model}"), Price { input, output, cached_input });
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_holds_every_current_model_under_its_full_name() {
        let prices = prices();
        for (model, input, output, cached) in [
            ("claude-fable-5-1", 10_000_000, 50_000_000, 250_000),
            ("claude-mythos-5-1", 10_000_000, 50_000_000, 250_000),
            ("claude-fable-5", 10_000_000, 50_000_000, 1_000_000),
            ("claude-mythos-5", 10_000_000, 50_000_000, 1_000_000),
            ("claude-opus-5-5", 4_000_000, 20_000_000, 200_000),
            ("claude-opus-5", 5_000_000, 25_000_000, 500_000),
            ("claude-opus-4-8", 5_000_000, 25_000_000, 500_000),
            ("claude-opus-4-7", 5_000_000, 25_000_000, 500_000),
            ("claude-opus-4-6", 5_000_000, 25_000_000, 500_000),
            ("claude-sonnet-5", 2_000_000, 10_000_000, 200_000),
            ("claude-sonnet-4-6", 3_000_000, 15_000_000, 300_000),
            ("claude-haiku-4-5", 1_000_000, 5_000_000, 100_000),
        ] {
            let price = Price { input, output, cached_input: cached };
            assert_eq!(prices.get(&format!("anthropic:{model}")), Some(&price), "{model}");
            assert_eq!(prices.get(model), None, "the id alone is not a name");
        }
    }
}
