//! What this program is asked for on its command line.
//!
//! Owns the words and what each needs. Knows nothing of what they lead to.

use std::path::PathBuf;

/// Jobs that are done at a time when nobody says how many: most of them mostly wait.
const SIDE_BY_SIDE: usize = 4;

/// Everything that can be asked for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    /// The command that repeats this, for the report.
    pub(crate) command: String,
    /// When no further job is begun.
    pub(crate) seconds: Option<u64>,
    pub(crate) seed: u64,
    pub(crate) short: bool,
    /// Whether the report is written where it is committed.
    pub(crate) write: bool,
    /// These jobs alone: a layer, one job of a layer, or what jobs are called within theirs.
    pub(crate) only: Option<String>,
    /// Jobs that are done at a time.
    pub(crate) side_by_side: usize,
    /// This part of so many.
    pub(crate) shard: u64,
    pub(crate) shards: u64,
    /// Where the lines of jobs are kept, and looked for.
    pub(crate) resume: Option<PathBuf>,
    /// Folders whose lines are merged.
    pub(crate) folders: Vec<PathBuf>,
}

const KNOWN: &str = "known are --short, --seconds N, --seed S, --shard I/N, --resume DIR, --only NAME, \
                     --jobs N, --write-report, and merge DIR..";

impl Options {
    pub(crate) fn read(words: &[String]) -> Result<Options, String> {
        let mut options = Options {
            command: command(),
            seed: 1,
            shards: 1,
            side_by_side: SIDE_BY_SIDE,
            ..Options::default()
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().cloned().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--seconds" => options.seconds = Some(number(word, &value()?)?),
                "--seed" => options.seed = number(word, &value()?)?,
                "--shard" => (options.shard, options.shards) = shard(&value()?)?,
                "--short" => options.short = true,
                "--write-report" => options.write = true,
                "--only" => options.only = Some(value()?),
                "--jobs" => options.side_by_side = side_by_side(&value()?)?,
                "--resume" => options.resume = Some(PathBuf::from(value()?)),
                other if other.starts_with('-') => return Err(format!("{word}: {KNOWN}")),
                _ => options.folders.push(PathBuf::from(word)),
            }
        }
        Ok(options)
    }
}

fn number(word: &str, text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{word} {text}: not a number"))
}

/// At least one.
fn side_by_side(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(jobs) if jobs > 0 => Ok(jobs),
        Ok(_) | Err(_) => Err(format!("--jobs {text}: say how many jobs are done at a time, at least 1")),
    }
}

/// `I/N`, counted from zero.
fn shard(text: &str) -> Result<(u64, u64), String> {
    let wrong = || format!("--shard {text}: say which of how many, as 0/4 to 3/4");
    let (which, of) = text.split_once('/').ok_or_else(wrong)?;
    match (which.parse(), of.parse()) {
        (Ok(which), Ok(of)) if which < of => Ok((which, of)),
        (Ok(_) | Err(_), Ok(_) | Err(_)) => Err(wrong()),
    }
}

fn command() -> String {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let release = if cfg!(debug_assertions) { "" } else { "--release " };
    let dashes = if words.is_empty() { "" } else { " -- " };
    format!("cargo run {release}-p holdpoint-campaign{dashes}{}", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_is_one_of_so_many_counted_from_zero() {
        assert_eq!(shard("3/4"), Ok((3, 4)));
        for wrong in ["4/4", "1", "a/b", "0/0", "-1/2"] {
            assert!(shard(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn no_job_at_a_time_is_refused() {
        assert_eq!(side_by_side("3"), Ok(3));
        for wrong in ["0", "-1", "many", ""] {
            assert!(side_by_side(wrong).unwrap_err().contains("at least 1"), "{wrong}");
        }
    }

    #[test]
    fn a_word_that_nobody_knows_is_told_with_those_that_are_known() {
        let told = Options::read(&["--shards".to_owned()]).unwrap_err();
        assert!(told.contains("--shard I/N"), "{told}");
    }
}
