//! `holdpoint verify`: whether the chain of events is intact.
//!
//! Owns what is asked and how the answer is told. The walk itself is the store's, page by page, and writes nothing.

use std::io::Write;
use std::str::FromStr;

use holdpoint::codes::Code;
use holdpoint_actors::store::{Head, ReadError, Reader};
use holdpoint_core::chain::VerifyReport;
use serde::Serialize;

use super::Database;
use super::records::{self, Records};
use crate::error::CommandError;
use crate::text::{Ui, line, style};

/// The hex digits of a hash.
const HASH_DIGITS: usize = 64;
/// The most bytes of a stored hash that are printed; a true one has [`HASH_DIGITS`].
const HASH_BYTES_MAX: usize = 128;

/// Check the chain over every run's events
///
/// Prints the newest event's number and hash, and whether every event follows the one before it. Who can write the
/// database can also recompute the chain, or cut its end off: keep the last checked number and hash in another place
/// and pass them the next time, as --head to check everything again, or as --since to check only what is new.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The first event to check [default: the first there is]
    #[arg(long, value_name = "SEQ", value_parser = clap::value_parser!(i64).range(0..))]
    from: Option<i64>,
    /// The last event to check; fails when the chain ends before it [default: the newest]
    #[arg(long, value_name = "SEQ", value_parser = clap::value_parser!(i64).range(0..))]
    to: Option<i64>,
    /// An event's number and hash, kept elsewhere; fails unless the chain reaches it with that hash
    #[arg(long, value_name = "SEQ:HASH")]
    head: Option<KeptHead>,
    /// An event's number and hash, kept elsewhere and trusted: checks it and what came after it, and nothing before
    #[arg(long, value_name = "SEQ:HASH", conflicts_with_all = ["from", "head"])]
    since: Option<KeptHead>,
}

/// A head of the chain that was kept elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
struct KeptHead {
    seq: i64,
    hash: String,
}

impl FromStr for KeptHead {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<KeptHead, Self::Err> {
        let malformed =
            "give a positive event number, a colon and the 64 hex digits of its hash, as verify prints them";
        let (seq, hash) = text.split_once(':').ok_or(malformed)?;
        let seq = seq.parse().map_err(|_| malformed)?;
        let is_hash = hash.len() == HASH_DIGITS && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        if seq < 1 || !is_hash {
            return Err(malformed);
        }
        Ok(KeptHead { seq, hash: hash.to_ascii_lowercase() })
    }
}

/// What is asked: a range, 0 where it is open, and a kept head.
#[derive(Debug)]
struct Question {
    from: i64,
    to: i64,
    kept: Option<KeptHead>,
}

impl Question {
    fn of(args: &Args) -> Result<Question, CommandError> {
        // An event that still gives the trusted hash is the one that was checked then, with all that it follows.
        let from = args.since.as_ref().map(|head| head.seq).or(args.from).unwrap_or(0);
        let (to, kept) = (args.to.unwrap_or(0), args.since.as_ref().or(args.head.as_ref()));
        if from > 0 && to > 0 && to < from {
            return Err(CommandError::usage(format!("--to {to} is before --from {from}")));
        }
        if let Some(head) = kept {
            if to > 0 && head.seq > to {
                return Err(CommandError::usage(format!("the head's event {} is past --to {to}", head.seq)));
            }
            if from > head.seq {
                let message = format!(
                    "the head's event {} is before --from {from}, so it would not be checked",
                    head.seq
                );
                return Err(CommandError::usage(message));
            }
        }
        Ok(Question { from, to, kept: kept.cloned() })
    }
}

/// What was found.
#[derive(Debug)]
struct Finding {
    head: (i64, String),
    report: VerifyReport,
    /// Whether the asked last event was reached.
    reached: bool,
    /// The hash that the kept head's event has now, when the walk came to it.
    found: Option<String>,
}

pub(super) fn run(args: &Args, database: &Database, ui: &mut Ui) -> Result<(), CommandError> {
    let question = Question::of(args)?;
    let mut records = Records::open_to_read(&database.path()?)?;
    let finding = records.read(|reader| walk(reader, &question))?;
    // A head that is kept must not be lost from the record by a power failure, which would make that look forged.
    records::sync(&mut records)?;
    if ui.json() {
        ui.write_json(&Listing::of(&question, &finding))?;
    } else {
        print(&question, &finding, ui.out())?;
    }
    judge(&question, &finding)
}

fn walk(reader: &Reader<'_>, question: &Question) -> Result<Finding, ReadError> {
    let Head { seq, hash } = reader.head()?;
    let to = if question.to == 0 { seq } else { question.to };
    let report = if to > 0 { reader.verify(question.from, to)? } else { VerifyReport::default() };
    let intact = report.broken.is_none();
    let reached = intact && report.checked > 0 && report.to >= question.to;
    let found = match &question.kept {
        Some(kept)
            if intact && (question.to == 0 || reached) && report.checked > 0 && kept.seq <= report.to =>
        {
            if kept.seq == report.to {
                Some(report.hash.clone())
            } else {
                reader.event_hash(kept.seq)?
            }
        }
        Some(_) | None => None,
    };
    Ok(Finding { head: (seq, hash), report, reached, found })
}

impl Finding {
    fn matches(&self, kept: &KeptHead) -> bool {
        self.found.as_deref() == Some(kept.hash.as_str())
    }
}

/// Says what is wrong, if anything is.
fn judge(question: &Question, finding: &Finding) -> Result<(), CommandError> {
    let last = last_checked(finding);
    if let Some(broken) = &finding.report.broken {
        let message = format!("the chain of events is broken at event {}", broken.seq);
        return Err(CommandError::new(Code::ChainBroken, message));
    }
    if question.to > 0 && !finding.reached {
        let message = format!("event {} was not reached: {last}", question.to);
        return Err(CommandError::new(Code::ChainNotReached, message));
    }
    let Some(kept) = &question.kept else { return Ok(()) };
    match &finding.found {
        None => {
            let message = format!("the kept head, event {}, was not reached: {last}", kept.seq);
            Err(CommandError::new(Code::ChainNotReached, message))
        }
        Some(_) if finding.matches(kept) => Ok(()),
        Some(found) => {
            let message = format!(
                "event {} has the hash {found}, and the one that was kept is {}",
                kept.seq, kept.hash
            );
            Err(CommandError::new(Code::ChainHeadMismatch, message))
        }
    }
}

/// How far the walk came. One that begins past the newest event comes to none.
fn last_checked(finding: &Finding) -> String {
    match (finding.report.checked, finding.head.0) {
        (0, 0) => "there are no events".to_owned(),
        (0, newest) => format!("the newest event is {newest}, so none was checked"),
        (_, _) => format!("the last event checked is {}", finding.report.to),
    }
}

fn print(question: &Question, finding: &Finding, out: &mut dyn Write) -> Result<(), CommandError> {
    let hash = |text: &str| if text.is_empty() { "-".to_owned() } else { line(text, HASH_BYTES_MAX) };
    let (good, bad) = (style::GOOD, style::BAD);
    match &finding.head {
        (0, _) => writeln!(out, "head      no events")?,
        (seq, text) => writeln!(out, "head      {seq}:{}", hash(text))?,
    }
    let report = &finding.report;
    if let Some(broken) = &report.broken {
        writeln!(
            out,
            "{bad}broken{bad:#}    at event {}: {}",
            broken.seq,
            line(&broken.detail, HASH_BYTES_MAX * 4)
        )?;
        writeln!(out, "expected  {}", hash(&broken.expected))?;
        writeln!(out, "found     {}", hash(&broken.found))?;
    } else if report.checked == 0 {
        writeln!(out, "{good}intact{good:#}    no events in the range")?;
    } else {
        writeln!(out, "{good}intact{good:#}    {} events, {} to {}", report.checked, report.from, report.to)?;
        writeln!(out, "checked   {}:{}", report.to, hash(&report.hash))?;
    }
    if let Some(kept) = question.kept.as_ref().filter(|kept| finding.matches(kept)) {
        writeln!(out, "kept      event {} has the hash that was kept", kept.seq)?;
    }
    Ok(())
}

/// What is printed in JSON.
#[derive(Debug, Serialize)]
struct Listing<'a> {
    head: HeadView<'a>,
    from: i64,
    to: i64,
    hash: &'a str,
    checked: i64,
    intact: bool,
    #[serde(rename = "break", skip_serializing_if = "Option::is_none")]
    broken: Option<BreakView<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    requested: Option<Requested>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kept_head: Option<KeptView<'a>>,
}

#[derive(Debug, Serialize)]
struct HeadView<'a> {
    seq: i64,
    hash: &'a str,
}

#[derive(Debug, Serialize)]
struct BreakView<'a> {
    seq: i64,
    expected: &'a str,
    found: &'a str,
    detail: &'a str,
}

#[derive(Debug, Serialize)]
struct Requested {
    to: i64,
    reached: bool,
}

#[derive(Debug, Serialize)]
struct KeptView<'a> {
    seq: i64,
    hash: &'a str,
    found: &'a str,
    matches: bool,
}

impl<'a> Listing<'a> {
    fn of(question: &'a Question, finding: &'a Finding) -> Listing<'a> {
        let report = &finding.report;
        Listing {
            head: HeadView { seq: finding.head.0, hash: &finding.head.1 },
            from: report.from,
            to: report.to,
            hash: &report.hash,
            checked: report.checked,
            intact: report.broken.is_none(),
            broken: report.broken.as_ref().map(|broken| BreakView {
                seq: broken.seq,
                expected: &broken.expected,
                found: &broken.found,
                detail: &broken.detail,
            }),
            requested: (question.to > 0).then_some(Requested { to: question.to, reached: finding.reached }),
            kept_head: question.kept.as_ref().map(|kept| KeptView {
                seq: kept.seq,
                hash: &kept.hash,
                found: finding.found.as_deref().unwrap_or_default(),
                matches: finding.matches(kept),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(from: i64, to: i64, head: &str) -> Args {
        let head = (!head.is_empty()).then(|| head.parse().unwrap());
        Args { from: Some(from), to: Some(to), head, since: None }
    }

    fn since(head: &str, to: i64) -> Args {
        Args { from: None, to: Some(to), head: None, since: Some(head.parse().unwrap()) }
    }

    fn finding(report: VerifyReport, reached: bool, found: Option<&str>) -> Finding {
        Finding { head: (9, "h9".to_owned()), report, reached, found: found.map(str::to_owned) }
    }

    fn upto(to: i64) -> VerifyReport {
        VerifyReport { from: 1, to, checked: to, hash: format!("h{to}"), broken: None }
    }

    /// A head of event `seq`, whose hash is one digit over and over.
    fn head(seq: i64, digit: &str) -> String {
        format!("{seq}:{}", digit.repeat(HASH_DIGITS))
    }

    #[test]
    fn a_head_is_a_positive_number_a_colon_and_the_64_hex_digits_of_a_hash() {
        let kept = KeptHead { seq: 3, hash: "a".repeat(HASH_DIGITS) };
        assert_eq!([head(3, "a"), head(3, "A")].map(|head| head.parse()), [Ok(kept.clone()), Ok(kept)]);
        let (hash, number) = ("a".repeat(HASH_DIGITS), ["", "0", "-1", "x", "9223372036854775808"]);
        let no_number = number.map(|number| format!("{number}:{hash}"));
        let no_hash = ["", "3", "3:", "3:ab"].map(str::to_owned);
        let no_digits = [head(3, "g"), format!("{}a", head(3, "a")), head(3, " "), head(3, "é")];
        for bad in no_number.into_iter().chain(no_hash).chain(no_digits) {
            assert!(bad.parse::<KeptHead>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_range_that_can_t_be_walked_is_a_usage_error() {
        let fifth = &*head(5, "a");
        for (from, to, head) in [(5, 4, ""), (0, 4, fifth), (6, 0, fifth)] {
            let error = Question::of(&args(from, to, head)).unwrap_err();
            assert_eq!(error.code, Code::Usage, "{from} {to} {head}");
        }
        for (from, to, head) in [(0, 0, ""), (4, 4, ""), (0, 5, fifth), (5, 0, fifth)] {
            assert!(Question::of(&args(from, to, head)).is_ok(), "{from} {to} {head}");
        }
    }

    #[test]
    fn since_a_trusted_head_only_it_and_what_came_after_are_checked() {
        let question = Question::of(&since(&head(5, "a"), 0)).unwrap();
        let kept = KeptHead { seq: 5, hash: "a".repeat(HASH_DIGITS) };
        assert_eq!((question.from, question.to, question.kept), (5, 0, Some(kept)));
        assert_eq!(Question::of(&since(&head(5, "a"), 4)).unwrap_err().code, Code::Usage);
    }

    #[test]
    fn an_event_that_was_not_reached_fails_an_intact_chain() {
        let question = Question::of(&args(0, 20, "")).unwrap();
        let error = judge(&question, &finding(upto(9), false, None)).unwrap_err();
        assert_eq!(error.code, Code::ChainNotReached);
        let question = Question::of(&args(0, 0, &head(20, "a"))).unwrap();
        assert_eq!(judge(&question, &finding(upto(9), true, None)).unwrap_err().code, Code::ChainNotReached);
    }

    #[test]
    fn a_head_past_the_newest_event_is_told_with_what_there_is() {
        let question = Question::of(&since(&head(20, "a"), 0)).unwrap();
        let told = |head: i64, report: VerifyReport| {
            let finding = Finding { head: (head, String::new()), report, reached: false, found: None };
            judge(&question, &finding).unwrap_err().message
        };
        let not_reached = "the kept head, event 20, was not reached: ";
        let none = VerifyReport::default;
        assert_eq!(told(9, none()), format!("{not_reached}the newest event is 9, so none was checked"));
        assert_eq!(told(0, none()), format!("{not_reached}there are no events"));
        assert_eq!(told(9, upto(9)), format!("{not_reached}the last event checked is 9"));
    }

    #[test]
    fn a_kept_head_must_have_its_hash() {
        let question = Question::of(&args(0, 0, &head(5, "a"))).unwrap();
        assert!(judge(&question, &finding(upto(9), true, Some(&"a".repeat(HASH_DIGITS)))).is_ok());
        let error = judge(&question, &finding(upto(9), true, Some("other"))).unwrap_err();
        assert_eq!(error.code, Code::ChainHeadMismatch);
    }

    #[test]
    fn a_break_is_shown_with_both_hashes() {
        let broken = holdpoint_core::chain::Break {
            seq: 4,
            expected: "aa".to_owned(),
            found: "b\x1bb".to_owned(),
            detail: "event 4 was altered".to_owned(),
        };
        let question = Question::of(&args(0, 0, &head(4, "a"))).unwrap();
        let finding = finding(VerifyReport { broken: Some(broken), ..upto(4) }, false, None);
        let mut out = Vec::new();
        print(&question, &finding, &mut out).unwrap();
        insta::assert_snapshot!(anstream::adapter::strip_str(&String::from_utf8(out).unwrap()), @r"
        head      9:h9
        broken    at event 4: event 4 was altered
        expected  aa
        found     b\x1bb
        ");
        assert_eq!(judge(&question, &finding).unwrap_err().code, Code::ChainBroken);
        let json = serde_json::to_value(Listing::of(&question, &finding)).unwrap();
        assert_eq!(json["break"]["seq"], 4);
        assert_eq!(json["intact"], false);
        assert_eq!(json["kept_head"]["matches"], false);
        assert!(json.get("requested").is_none());
    }
}
