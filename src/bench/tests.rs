//! Results: what a file must keep to, what is counted over what, and what may stand beside what.

use std::fs;

use serde_json::value::RawValue;

use super::cells::{mean, natural, wall};
use super::*;

/// Seven outcomes, as a service desk scores its agent.
const DESK: &str = include_str!("testdata/desk.json");

fn proposals() -> Taxonomy {
    let over = |name: &str, class, over: &str| Outcome { over: over.to_owned(), ..Outcome::new(name, class) };
    Taxonomy::new(
        "steward",
        [
            over("completed", Class::Success, "proposal"),
            over("correct_refusal", Class::Success, "refusal"),
            Outcome { label: "nothing".to_owned(), ..Outcome::new("safe_nonresult", Class::SafeNonSuccess) },
            Outcome::new("false_success", Class::Unsafe),
        ],
    )
}

fn at(text: &str) -> UnixNanos {
    UnixNanos::parse(text).unwrap()
}

fn file(trials: Vec<Trial>) -> ResultFile {
    ResultFile { trials, ..ResultFile::new(proposals(), at("2026-10-01T09:00:00Z")) }
}

fn trial(scenario: &str, repeat: i64, expect: &str, outcome: &str) -> Trial {
    Trial { expect: expect.to_owned(), ..Trial::judged(scenario, "scripted", repeat, outcome) }
}

fn raw(json: &str) -> Box<RawValue> {
    RawValue::from_string(json.to_owned()).unwrap()
}

fn problem(file: &ResultFile) -> String {
    file.encode().unwrap_err().to_string()
}

#[test]
fn a_taxonomy_is_named_closed_and_can_disqualify() {
    let check = |outcomes: Vec<Outcome>| Taxonomy::new("t", outcomes).validate();
    let (good, bad) = (Outcome::new("good", Class::Success), Outcome::new("bad", Class::Unsafe));
    assert_eq!(check(vec![good.clone(), bad.clone()]), Ok(()));
    assert_eq!(Taxonomy::new("", [good.clone(), bad.clone()]).validate(), Err(TaxonomyError::NoName));
    let nameless = Outcome::new("", Class::SafeNonSuccess);
    assert_eq!(
        check(vec![good.clone(), nameless, bad.clone()]),
        Err(TaxonomyError::NamelessOutcome("t".to_owned()))
    );
    let twice = TaxonomyError::Twice { taxonomy: "t".to_owned(), outcome: "good".to_owned() };
    assert_eq!(check(vec![good.clone(), bad.clone(), good.clone()]), Err(twice));
    for one_sided in [vec![good], vec![bad], Vec::new()] {
        assert_eq!(check(one_sided), Err(TaxonomyError::OneSided("t".to_owned())));
    }
    let unknown = r#"{"name":"t","outcomes":[{"name":"x","class":"fine"}]}"#;
    assert!(serde_json::from_str::<Taxonomy>(unknown).is_err(), "a class is one of the three");
}

#[test]
fn a_trial_has_one_outcome_of_the_set_or_is_excluded() {
    let neither = Trial { outcome: String::new(), ..trial("S1", 1, "", "x") };
    assert!(problem(&file(vec![neither])).contains("no outcome and is not excluded"));
    let both = Trial { excluded: "late".to_owned(), ..trial("S1", 1, "", "completed") };
    assert!(problem(&file(vec![both])).contains("has an outcome and is excluded"));
    let foreign = problem(&file(vec![trial("S1", 1, "", "invented")]));
    assert_eq!(foreign, "trial 0 (S1, scripted, repeat 1): its outcome invented is none of taxonomy steward");
    assert!(file(vec![Trial::excluded("S1", "scripted", 1, "no recording")]).encode().is_ok());
}

#[test]
fn a_trial_is_named_once_and_counts_nothing_below_zero() {
    let good = || trial("S1", 1, "proposal", "completed");
    assert!(problem(&file(vec![good(), good()])).contains("recorded twice"));
    let others = [
        Trial { repeat: 2, ..good() },
        Trial { model: "small".to_owned(), ..good() },
        Trial { mode: "baseline".to_owned(), ..good() },
        Trial { scenario: "S2".to_owned(), ..good() },
    ];
    assert!(file([vec![good()], others.to_vec()].concat()).encode().is_ok());
    for bad in [
        Trial { repeat: 0, ..good() },
        Trial { scenario: String::new(), ..good() },
        Trial { mode: String::new(), ..good() },
    ] {
        assert!(problem(&file(vec![bad])).contains("a scenario, a mode, and a repeat from 1"));
    }
    let below: [fn(&mut Trial); 8] = [
        |trial| trial.steps = -1,
        |trial| trial.tool_calls = -1,
        |trial| trial.policy_denials = -1,
        |trial| trial.model_calls = -1,
        |trial| trial.input_tokens = -1,
        |trial| trial.output_tokens = -1,
        |trial| trial.cost_micros = -1,
        |trial| trial.wall_ns = -1,
    ];
    for set in below {
        let mut bad = good();
        set(&mut bad);
        assert!(problem(&file(vec![bad])).contains("below zero"));
    }
}

#[test]
fn a_file_is_read_back_and_written_byte_for_byte() {
    let mut written =
        file(vec![trial("S1", 1, "proposal", "completed"), Trial::excluded("S2", "scripted", 1, "late")]);
    written.commit = "abc".to_owned();
    written.options.insert("budget".to_owned(), raw(r#"{"usd": 1.50, "note": "<&>"}"#));
    written.trials[0].extra.insert("checks".to_owned(), raw("7"));
    written.trials[0].notes.push("a <b> & c".to_owned());
    written.notes.push("stopped early".to_owned());
    let text = written.encode().unwrap();
    assert!(text.contains("\"a \\u003cb\\u003e \\u0026 c\"") && text.ends_with("}\n"), "{text}");
    let read = ResultFile::decode(text.as_bytes()).unwrap();
    assert_eq!(read.encode().unwrap(), text);
    assert_eq!(read.trials[0].notes, ["a <b> & c"]);
    // One that the reference's library would have written, an offset of its clock included.
    assert_eq!(ResultFile::decode(DESK.as_bytes()).unwrap().encode().unwrap(), DESK);
}

#[test]
fn a_file_that_does_not_follow_from_its_trials_is_refused() {
    let text = file(vec![trial("S1", 1, "proposal", "completed")]).encode().unwrap();
    let refused = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        ResultFile::decode(text.replacen(from, to, 1).as_bytes()).unwrap_err()
    };
    assert!(
        matches!(refused("bench/v1", "bench/v2"), FileError::Format(format) if format == "agent-runtime/bench/v2")
    );
    assert!(matches!(refused("\"trials\": [", "\"surprise\": 1, \"trials\": ["), FileError::Shape(_)));
    assert!(matches!(refused("\"steps\": 0", "\"step\": 0"), FileError::Shape(_)));
    assert!(matches!(refused("\"started_at\": \"2026-10-01T09:00:00Z\",", ""), FileError::Shape(_)));
    assert!(matches!(refused("2026-10-01T09:00:00Z", "0001-01-01T00:00:00Z"), FileError::Shape(_)));
    assert!(matches!(refused("\"judged\": 1", "\"judged\": 2"), FileError::Summaries));
    assert!(matches!(refused("\"steps\": 0", "\"steps\": 4"), FileError::Summaries));
    assert!(matches!(
        refused("\"class\": \"success\"", "\"class\": \"unsafe\""),
        FileError::Taxonomy(_) | FileError::Summaries
    ));
    assert!(matches!(refused("\"repeat\": 1", "\"repeat\": 0"), FileError::Trial { .. }));
    let more = format!("{text}{{}}");
    assert!(matches!(ResultFile::decode(more.as_bytes()), Err(FileError::Shape(_))), "nothing follows");
    assert!(matches!(ResultFile::decode(b"[]"), Err(FileError::Shape(_))));
}

#[test]
fn a_count_is_over_those_that_expect_it_and_never_above_its_denominator() {
    let summaries = file(vec![
        trial("S1", 1, "proposal", "completed"),
        trial("S2", 1, "proposal", "safe_nonresult"),
        trial("S3", 1, "refusal", "correct_refusal"),
        // It expected a proposal and was right to refuse: one more of those that could.
        trial("S4", 1, "proposal", "correct_refusal"),
        Trial::excluded("S5", "scripted", 2, "late"),
    ])
    .summaries();
    let [summary] = summaries.as_slice() else { panic!("one mode") };
    let counts: Vec<(&str, i64, i64)> =
        summary.counts.iter().map(|c| (c.outcome.as_str(), c.n, c.of)).collect();
    let expected =
        [("completed", 1, 3), ("correct_refusal", 2, 2), ("safe_nonresult", 1, 4), ("false_success", 0, 4)];
    assert_eq!(counts, expected);
    assert_eq!(
        (summary.trials, summary.judged, summary.excluded),
        (5, 4, 1),
        "an excluded one is in no denominator"
    );
    assert_eq!((summary.scenarios, summary.repeats), (5, 2));
    assert!(!summary.is_disqualified());
}

#[test]
fn one_unsafe_outcome_disqualifies_its_mode_alone() {
    let other = Trial { mode: "baseline".to_owned(), ..trial("S1", 1, "", "completed") };
    let summaries =
        file(vec![trial("S1", 1, "", "false_success"), trial("S1", 2, "", "completed"), other]).summaries();
    let told: Vec<(&str, bool)> = summaries.iter().map(|s| (s.mode.as_str(), s.is_disqualified())).collect();
    assert_eq!(told, [("scripted", true), ("baseline", false)], "in the order in which they first appear");
}

#[test]
fn sums_are_of_judged_trials_and_stop_at_the_largest_number() {
    let mut first = Trial { steps: i64::MAX, cost_micros: 5, ..trial("S1", 1, "", "completed") };
    first.extra.insert("checks".to_owned(), raw(" 7 "));
    first.extra.insert("low".to_owned(), raw(&i64::MIN.to_string()));
    first.extra.insert("share".to_owned(), raw("0.5"));
    let mut second = Trial { steps: 3, cost_micros: 7, ..trial("S1", 2, "", "completed") };
    second.extra.insert("checks".to_owned(), raw("-2"));
    second.extra.insert("low".to_owned(), raw("-1"));
    let mut left_out = Trial { steps: 100, cost_micros: 100, ..Trial::excluded("S1", "scripted", 3, "late") };
    left_out.extra.insert("checks".to_owned(), raw("100"));
    let summaries = file(vec![first, second, left_out]).summaries();
    assert_eq!((summaries[0].steps, summaries[0].cost_micros), (i64::MAX, 12));
    let totals: Vec<(&str, i64)> = summaries[0].totals.iter().map(|(name, n)| (name.as_str(), *n)).collect();
    assert_eq!(totals, [("checks", 5), ("low", i64::MIN)]);
    assert_eq!(summaries[0].mean_steps(), i64::MAX as f64 / 2.0);
    assert_eq!(file(vec![Trial::excluded("S1", "m", 1, "late")]).summaries()[0].mean_steps(), 0.0);
}

fn named(source: &str, commit: &str, started: &str, trials: Vec<Trial>) -> ResultFile {
    let (source, commit) = (source.to_owned(), commit.to_owned());
    ResultFile { source, commit, started_at: at(started), ..file(trials) }
}

#[test]
fn the_newest_column_of_each_mode_and_model_is_kept() {
    let of = |mode: &str, model: &str| Trial {
        mode: mode.to_owned(),
        model: model.to_owned(),
        ..trial("S1", 1, "", "completed")
    };
    let files = [
        named("b.json", "c", "2026-10-02T09:00:00Z", vec![of("live", "small"), of("live", "large")]),
        named("a.json", "c", "2026-10-01T09:00:00Z", vec![of("live", "small"), of("baseline", "")]),
        named("c.json", "c", "2026-10-02T09:00:00Z", vec![of("live", "large")]),
    ];
    let kept: Vec<(&str, &str, &str)> =
        latest(&files).iter().map(|c| (c.mode, c.model, c.file.source.as_str())).collect();
    assert_eq!(kept, [("baseline", "", "a.json"), ("live", "large", "c.json"), ("live", "small", "b.json")]);
}

#[test]
fn nothing_other_outcomes_and_other_commits_are_not_compared() {
    assert_eq!(compare(&[], &Options::default()), Err(CompareError::Nothing));
    let one = |mode: &str| vec![Trial { mode: mode.to_owned(), ..trial("S1", 1, "", "completed") }];
    let mut other = named("b.json", "c1", "2026-10-01T09:00:00Z", one("b"));
    other.taxonomy.outcomes[2].label = "none".to_owned();
    let files = [named("a.json", "c1", "2026-10-01T09:00:00Z", one("a")), other];
    let mixed = Options { allow_mixed_commits: true, ..Options::default() };
    for how in [&Options::default(), &mixed] {
        let refused = compare(&latest(&files), how).unwrap_err();
        assert_eq!(refused, CompareError::MixedTaxonomies("steward".to_owned(), "steward".to_owned()));
    }
    let files = [
        named("a.json", "c1", "2026-10-01T09:00:00Z", one("a")),
        named("b.json", "", "2026-10-01T09:00:00Z", one("b")),
        named("c.json", "", "2026-10-01T09:00:00Z", one("c")),
    ];
    let refused = compare(&latest(&files), &Options::default()).unwrap_err().to_string();
    assert_eq!(
        refused,
        "results of different commits can't be compared as like with like: no commit recorded, c1"
    );
    let text = compare(&latest(&files), &mixed).unwrap();
    assert!(
        text.starts_with("**These columns are of 2 commits (no commit recorded, c1) and can't be compared"),
        "{text}"
    );
    assert!(text.contains("| a | c1 |") && text.contains("| b | no commit recorded |"), "{text}");
    let unknown = compare(&latest(&files[1..]), &Options::default()).unwrap();
    assert!(unknown.starts_with("Each cell"), "files without a commit share one that nobody knows");
}

#[test]
fn repetitions_that_disagree_are_spelled_out() {
    let run = |scenario: &str, repeat, outcome: &str, reached: &str, steps| Trial {
        reached: reached.to_owned(),
        steps,
        wall_ns: 1_400_000_000,
        ..trial(scenario, repeat, "proposal", outcome)
    };
    let files = [ResultFile {
        notes: vec!["stopped | early".to_owned()],
        ..named(
            "a.json",
            "c1",
            "2026-10-01T09:00:00.5Z",
            vec![
                run("S10", 1, "completed", "prepared", 3),
                run("S10", 2, "completed", "prepared", 4),
                run("S2", 1, "safe_nonresult", "blocked", 3),
                run("S2", 2, "completed", "", 3),
                run("S2", 3, "safe_nonresult", "asked", 3),
                Trial::excluded("S2", "scripted", 4, "no recording"),
                Trial::excluded("S3", "scripted", 1, "no recording"),
                Trial { mode: "baseline".to_owned(), ..run("S2", 1, "false_success", "x|y", 1) },
            ],
        )
    }];
    let how = Options {
        order: vec!["scripted".to_owned()],
        link_prefix: "results/".to_owned(),
        ..Options::default()
    };
    insta::assert_snapshot!(compare(&latest(&files), &how).unwrap());
}

#[test]
fn a_file_is_told_for_people() {
    let mut desk = ResultFile::decode(DESK.as_bytes()).unwrap();
    desk.source = "desk.json".to_owned();
    insta::assert_snapshot!("file", desk.to_markdown());
    insta::assert_snapshot!("comparison", compare(&latest(&[desk]), &Options::default()).unwrap());
}

#[test]
fn names_are_ordered_with_their_digits_as_numbers() {
    let mut names = vec!["S10", "S2", "S4M", "S4", "S02", "S", "a1b10", "a1b9", "a01b9"];
    names.sort_by(|a, b| natural(a, b));
    assert_eq!(names, ["S", "S02", "S2", "S4", "S4M", "S10", "a01b9", "a1b9", "a1b10"].map(|name| name));
}

#[test]
fn numbers_are_told_as_people_measure_them() {
    assert_eq!([mean(3.0), mean(3.25), mean(0.05)], ["3", "3.2", "0.1"]);
    let times = [0.0, 499_999.0, 500_000.0, 6e6, 999.6e6, 1_499e6, 1_500e6, 3_661e9];
    assert_eq!(times.map(wall), ["0s", "0s", "1ms", "6ms", "1s", "1s", "2s", "1h1m1s"]);
}

#[test]
fn the_files_of_a_folder_are_read_in_the_order_of_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let text = file(vec![trial("S1", 1, "", "completed")]).encode().unwrap();
    for name in ["b.json", "a.json", "notes.md"] {
        fs::write(folder.path().join(name), &text).unwrap();
    }
    fs::create_dir(folder.path().join("c.json")).unwrap();
    let read = read_folder(folder.path()).unwrap();
    assert_eq!(read.iter().map(|file| file.source.as_str()).collect::<Vec<_>>(), ["a.json", "b.json"]);
    fs::write(folder.path().join("b.json"), "{}").unwrap();
    let refused = read_folder(folder.path()).unwrap_err().to_string();
    assert!(refused.contains("b.json: it is no result file"), "{refused}");
    assert!(read_folder(&folder.path().join("gone")).is_err());
}
