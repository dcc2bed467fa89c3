//! The table *What a death answers*, walked by the tests of the actors' own package, and counted here.
//!
//! Owns the count alone: each case writes a line when it has come to its end, and a test that fails is a failure of the
//! campaign.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

/// What names the file to the tests.
const COUNTS: &str = "HOLDPOINT_CHAOS_COUNTS";

/// Walks the table, and gives its line.
pub(crate) fn walk(counts: &Path) -> Value {
    told(counts).unwrap_or_else(|why| json!({"failed": [why]}))
}

fn told(counts: &Path) -> Result<Value, String> {
    // Of an earlier run, there is nothing.
    drop(fs::remove_file(counts));
    // Built as `cargo test --workspace` builds them, so that nothing is compiled twice.
    let output = Command::new(env!("CARGO"))
        .args(["test", "--locked", "--quiet", "--workspace", "--test", "it", "chaos::"])
        .env(COUNTS, counts)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .map_err(|error| format!("test the actors: {error}"))?;
    if !output.status.success() {
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        return Err(format!("the actors' tests: {}", said.concat()));
    }
    let text = fs::read_to_string(counts).map_err(|error| format!("the tests counted nothing: {error}"))?;
    drop(fs::remove_file(counts));
    Ok(count(&text))
}

/// Cases by who died or stalled, and by how: a line is `<who> <how> <step> <kind of call>`.
fn count(text: &str) -> Value {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        if let (Some(who), Some(how), Some(_step), Some(_kind)) =
            (words.next(), words.next(), words.next(), words.next())
        {
            *counts.entry(format!("{who} by {how}")).or_default() += 1;
        }
    }
    let all: u64 = counts.values().sum();
    let mut told = json!({"cases": all, "failed": []});
    // Where nothing was counted, nothing was walked.
    if all == 0 {
        told["failed"] = json!(["no case was counted"]);
    }
    counts.into_iter().for_each(|(name, times)| told[name] = json!(times));
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_counted_by_who_died_and_how_and_none_is_a_failure() {
        let told = count(
            "StoreWriter Panic Sent Read\nStoreWriter Panic Sent Local\nPolicy Stall Judging Read\ntorn",
        );
        assert_eq!((&told["cases"], &told["StoreWriter by Panic"]), (&json!(3), &json!(2)));
        assert!(told["failed"].as_array().unwrap().is_empty());
        assert!(!count("").get("failed").unwrap().as_array().unwrap().is_empty());
    }
}
