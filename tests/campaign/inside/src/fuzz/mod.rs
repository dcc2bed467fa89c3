//! Foreign bytes: every decoder that meets them, fed with a corpus that is bent by a seed.
//!
//! Owns the bending and the judgement of what must never happen: a panic, an answer that takes seconds, or a target's own
//! property that fails. Not a fuzzer that is guided by coverage: that needs another compiler than the one that builds
//! the product. What is here runs everywhere, and a seed repeats it to the byte.

mod rows;
mod targets;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::clock::{Rng, now};

pub(crate) use targets::all;

/// What one case may take. A busy machine is slower than anything should be, and not by this much.
const SLOW: Duration = Duration::from_secs(5);
/// How large an input gets.
const BYTES_MAX: usize = 8_192;
/// Failures of a target that are told.
const TOLD_MAX: usize = 5;

/// What decodes foreign bytes.
pub(crate) struct Target {
    pub(crate) name: &'static str,
    /// Inputs to start from: what it takes, and what it has to refuse.
    corpus: &'static [&'static str],
    /// Decodes, and says what is wrong with what came of it.
    decode: fn(&[u8]) -> Result<(), String>,
}

/// Pieces that mean something to one decoder or another.
const PIECES: [&str; 44] = [
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\"",
    "\\",
    "\\u",
    "\\ud83d",
    "\\ude00",
    "\\u0000",
    "\u{0}",
    "\n",
    "\r",
    "\t",
    " ",
    "null",
    "true",
    "false",
    "-0",
    "0",
    "1e400",
    "1E-999999",
    "9007199254740993",
    "0.1",
    "-",
    "+",
    ".",
    "e",
    "{}",
    "[]",
    "\"\"",
    "\u{202e}",
    "\u{1b}[31m",
    "\u{feff}",
    "\u{2028}",
    "<!--",
    "\"$ref\":\"#\"",
    "\"id\":1",
    "30s",
    "-1h",
    "2026-10-01T09:00:00Z",
    "\u{ff}",
];

/// Feeds a target so many inputs; gives the failures, each with the seed of its case.
pub(crate) fn feed(target: &Target, seed: u64, count: u64) -> Vec<String> {
    let mut failed = Vec::new();
    for at in 0..count {
        let of_case = seed.wrapping_mul(1_000_003).wrapping_add(at);
        let input = bend(target.corpus, &mut Rng::new(of_case), at);
        let began = now();
        let decoded = catch_unwind(AssertUnwindSafe(|| (target.decode)(&input)));
        let why = match decoded {
            Ok(Ok(())) if began.elapsed() < SLOW => continue,
            Ok(Ok(())) => format!("it took {:?}", began.elapsed()),
            Ok(Err(why)) => why,
            Err(_) => "it panicked".to_owned(),
        };
        failed.push(format!("{}, case {of_case}: {why}: {:?}", target.name, String::from_utf8_lossy(&input)));
        if failed.len() >= TOLD_MAX {
            break;
        }
    }
    failed
}

/// One input. The corpus itself comes first, as it is.
fn bend(corpus: &[&str], rng: &mut Rng, at: u64) -> Vec<u8> {
    let pick = |rng: &mut Rng| {
        let at = usize::try_from(rng.below(corpus.len() as u64)).unwrap_or(0);
        corpus[at].as_bytes().to_vec()
    };
    if let Some(whole) = usize::try_from(at).ok().and_then(|at| corpus.get(at)) {
        return whole.as_bytes().to_vec();
    }
    let mut input = pick(rng);
    for _ in 0..=rng.below(6) {
        let place =
            |rng: &mut Rng, input: &[u8]| usize::try_from(rng.below(input.len() as u64 + 1)).unwrap_or(0);
        let (one, other) = (place(rng, &input), place(rng, &input));
        let (from, to) = (one.min(other), one.max(other));
        match rng.below(9) {
            0 => {
                if let Some(byte) = input.get_mut(from) {
                    *byte ^= 1 << rng.below(8);
                }
            }
            1 => drop(input.drain(from..to.min(from + 40))),
            2 | 3 => {
                let piece = usize::try_from(rng.below(PIECES.len() as u64)).unwrap_or(0);
                drop(input.splice(from..from, PIECES[piece].bytes()));
            }
            4 => {
                let copied = input[from..to.min(from + 400)].to_vec();
                drop(input.splice(to..to, copied));
            }
            5 => {
                let theirs = pick(rng);
                let cut = usize::try_from(rng.below(theirs.len() as u64 + 1)).unwrap_or(0);
                input.truncate(from);
                input.extend_from_slice(&theirs[cut..]);
            }
            6 => input.insert(from, u8::try_from(rng.below(256)).unwrap_or(0)),
            7 => {
                let (open, close) = if rng.flip() { (b'[', b']') } else { (b'{', b'}') };
                let many = usize::try_from(1 + rng.below(300)).unwrap_or(1);
                drop(input.splice(to..to, std::iter::repeat_n(close, many)));
                drop(input.splice(from..from, std::iter::repeat_n(open, many)));
            }
            _ => input.truncate(to.max(1)),
        }
        input.truncate(BYTES_MAX);
    }
    input
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Wrong in two ways, so that each kind of failure is one.
    const WRONG: Target = Target {
        name: "wrong",
        corpus: &["{\"a\":1}"],
        decode: |input| match input {
            [b'[', ..] => panic!("a bracket"),
            [.., 0] => Err("a zero".to_owned()),
            _ => Ok(()),
        },
    };

    #[test]
    fn a_decoder_that_panics_or_breaks_its_property_is_found_and_its_case_repeats() {
        let failed = feed(&WRONG, 1, 100_000);
        assert_eq!(failed.len(), TOLD_MAX, "{failed:?}");
        assert!(failed.iter().any(|failure| failure.contains("it panicked")), "{failed:?}");
        assert_eq!(feed(&WRONG, 1, 100_000), failed);
    }

    #[test]
    fn the_corpus_comes_first_and_as_it_is() {
        assert_eq!(bend(WRONG.corpus, &mut Rng::new(9), 0), WRONG.corpus[0].as_bytes());
    }
}
