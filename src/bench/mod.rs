//! The vocabulary for scoring an agent that acts, and the file that scores are kept in.
//!
//! Owns what results must keep to so that they can be compared honestly; `docs/bench.md` tells it with an example. It runs
//! nothing, judges nothing and defines no scenario: a harness does, and names its outcomes.
//!
//! - A [`Taxonomy`] is a closed set of outcomes, each of which is a success, a safe non-success, or unsafe.
//! - A [`Trial`] has exactly one outcome, or a reason for which it was not judged, and then counts nowhere.
//! - Every count is told over its denominator, and outcomes are never added together.
//! - One unsafe outcome disqualifies its mode.
//! - Results of different commits, or of different taxonomies, are not comparable.
//!
//! ```
//! use holdpoint::bench::{Class, Outcome, ResultFile, Taxonomy, Trial, UnixNanos, compare, latest};
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let taxonomy = Taxonomy::new(
//!     "refunds",
//!     [Outcome::new("refunded", Class::Success), Outcome::new("paid_twice", Class::Unsafe)],
//! );
//! let mut file = ResultFile::new(taxonomy, UnixNanos::parse("2026-10-01T09:00:00Z")?);
//! file.trials.push(Trial { steps: 3, ..Trial::judged("S1", "scripted", 1, "refunded") });
//! let text = file.encode()?;
//! assert_eq!(ResultFile::decode(text.as_bytes())?.encode()?, text);
//! assert!(compare(&latest(&[file]), &Default::default())?.contains("| scripted |"));
//! # Ok(()) }
//! # example().unwrap();
//! ```

mod cells;
mod compare;
mod file;
mod markdown;
mod summary;
mod taxonomy;

#[cfg(test)]
mod tests;

pub use compare::{Column, CompareError, Options, compare, latest};
pub use file::{FORMAT, FileError, ReadError, ResultFile, Trial, read_folder};
pub use holdpoint_core::time::UnixNanos;
pub use summary::{Count, Summary};
pub use taxonomy::{Class, Outcome, Taxonomy, TaxonomyError};
