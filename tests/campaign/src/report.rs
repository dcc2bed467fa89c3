//! The report: sums over the lines of jobs, whoever ran them where, and every failure with the seed that repeats it.
//!
//! Owns the sums and the words. Nothing in it is a constant but its headings and the list of what was found before.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::failing;
use crate::jobs::{self, Kind};

/// Where and how the lines came about.
#[derive(Debug, Clone, Default)]
pub(crate) struct Setting {
    pub(crate) command: String,
    pub(crate) seeds: Vec<u64>,
    pub(crate) short: bool,
    pub(crate) seconds: f64,
    pub(crate) profile: String,
}

#[derive(Debug, Default)]
struct Sum {
    jobs: u64,
    cases: u64,
    deaths: u64,
    effects: u64,
    images: u64,
    failed_operations: u64,
    bad: u64,
    seconds: f64,
}

pub(crate) struct Report<'a> {
    setting: &'a Setting,
    lines: &'a [Value],
    /// What was done of the long form elsewhere, if this is a report of the short one.
    of_long: &'a [Value],
}

/// What the long form is to reach, and where its lines count that.
const WANTED: [(&str, u64, &str); 6] = [
    ("processes killed", 50_000, "/deaths"),
    ("disk images judged", 1_000_000, "/images"),
    ("operations on files failed", 50_000, "/failed_operations"),
    ("sequences", 500_000, "/told/sequences"),
    ("states of the model", 5_000_000, "/told/states"),
    ("schedules", 1_000_000, "/told/schedules"),
];

impl<'a> Report<'a> {
    pub(crate) fn of(setting: &'a Setting, lines: &'a [Value]) -> Report<'a> {
        Report { setting, lines, of_long: &[] }
    }

    /// Tells beside it what was done of the long form.
    pub(crate) fn beside(self, of_long: &'a [Value]) -> Report<'a> {
        Report { of_long, ..self }
    }

    fn of_kind(&self, kind: Kind) -> impl Iterator<Item = &'a Value> {
        let begins = format!("{}/", kind.name());
        self.lines.iter().filter(move |line| line["job"].as_str().unwrap_or_default().starts_with(&begins))
    }

    pub(crate) fn failures(&self) -> Vec<String> {
        self.lines.iter().chain(self.of_long).flat_map(failures).collect()
    }

    pub(crate) fn text(&self) -> String {
        let Setting { command, seeds, short, seconds, profile } = self.setting;
        let form = if *short { "short form" } else { "long form" };
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let failures = self.failures();
        let mut text = format!("# Crash campaign, {form}\n\n");
        let mut line = |words: &str| {
            text.push_str(words);
            text.push('\n');
        };
        line(&format!("- command: `{command}`"));
        line(&format!("- seed {seeds:?}, the product built with profile `{profile}` and its faults"));
        line(&format!("- {} on {}, {cores} cores; {seconds} s of work", kernel(), std::env::consts::ARCH));
        line(&format!("- violations: {}\n", failures.len()));
        self.processes(&mut line);
        line("");
        self.inside(&mut line);
        line("");
        if *short {
            line(&format!(
                "In the short form one write in {} fails, from one on that the seed says, and each sync and truncation; in the long \
                 form each operation.\n",
                failing::WRITES_APART
            ));
        }
        line(HOW_IT_KNOWS);
        line(FOUND);
        self.broken(&mut line);
        self.points(&mut line);
        match (*short, self.of_long) {
            (true, []) => {}
            (true, of_long) => sizes(of_long, &mut line),
            (false, _) => sizes(self.lines, &mut line),
        }
        if !failures.is_empty() {
            line("\nFailures:\n");
            failures.iter().for_each(|failure| line(&format!("- {failure}")));
        }
        text
    }

    fn processes(&self, line: &mut impl FnMut(&str)) {
        line(
            "| layer | jobs of the whole | cases | processes killed | payments applied | disk images judged | operations failed | bad | s of work |",
        );
        line("|---|---|---|---|---|---|---|---|---|");
        let all = jobs::all(self.setting.short);
        for kind in [Kind::Named, Kind::Random, Kind::Several, Kind::Power, Kind::Failing] {
            let mut sum = Sum::default();
            for of_kind in self.of_kind(kind) {
                let number = |name: &str| of_kind[name].as_u64().unwrap_or(0);
                sum.jobs += 1;
                sum.cases += number("cases");
                sum.deaths += number("deaths");
                sum.effects += number("effects");
                sum.images += number("images");
                sum.failed_operations += number("failed_operations");
                sum.bad += u64::from(!failures(of_kind).is_empty());
                sum.seconds += seconds_of(of_kind);
            }
            let whole = all.iter().filter(|job| job.kind == kind).count();
            let Sum { jobs, cases, deaths, effects, images, failed_operations, bad, seconds } = sum;
            line(&format!(
                "| {} | {jobs} of {whole} | {cases} | {deaths} | {effects} | {images} | {failed_operations} | {bad} | {seconds:.1} |",
                kind.what()
            ));
        }
    }

    fn inside(&self, line: &mut impl FnMut(&str)) {
        line("| layer inside one process | jobs of the whole | counted | bad | s of work |");
        line("|---|---|---|---|---|");
        let all = jobs::all(self.setting.short);
        let inside = [
            Kind::Chaos,
            Kind::Model,
            Kind::Unguarded,
            Kind::Replay,
            Kind::Sequences,
            Kind::Schedules,
            Kind::Fuzz,
        ];
        for kind in inside {
            let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
            let (mut jobs, mut bad, mut seconds) = (0, 0, 0.0);
            for of_kind in self.of_kind(kind) {
                jobs += 1;
                bad += u64::from(!failures(of_kind).is_empty());
                seconds += seconds_of(of_kind);
                for (name, value) in of_kind["told"].as_object().into_iter().flatten() {
                    let count = value.as_u64().or_else(|| Some(value.as_array()?.len() as u64));
                    if name != "failed" {
                        *counts.entry(name).or_default() += count.unwrap_or(0);
                    }
                }
            }
            let whole = all.iter().filter(|job| job.kind == kind).count();
            let counted: Vec<String> =
                counts.iter().map(|(name, count)| format!("{count} {}", name.replace('_', " "))).collect();
            let counted = counted.join(", ");
            line(&format!("| {} | {jobs} of {whole} | {counted} | {bad} | {seconds:.1} |", kind.what()));
        }
    }

    fn broken(&self, line: &mut impl FnMut(&str)) {
        line("| broken build | has to be noticed by | noticed | all that noticed |");
        line("|---|---|---|---|");
        for broken in self.of_kind(Kind::Broken) {
            let text = |name: &str| broken[name].as_str().unwrap_or_default();
            let by: Vec<&str> =
                broken["by"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            let noticed = if failures(broken).is_empty() { "yes" } else { "NO" };
            line(&format!(
                "| {}: {} | {} | {noticed} | {} |",
                text("label"),
                text("what"),
                text("has_to"),
                by.join("; ")
            ));
        }
    }

    fn points(&self, line: &mut impl FnMut(&str)) {
        let mut points: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for named in self.of_kind(Kind::Named) {
            let (times, bad) = points.entry(named["label"].as_str().unwrap_or_default()).or_default();
            *times += 1;
            *bad += u64::from(!failures(named).is_empty());
        }
        line(&format!("\nNamed points ({}), each with how often it was died at:\n", points.len()));
        for (name, (times, bad)) in points {
            let bad = if bad == 0 { String::new() } else { format!(", {bad} BAD") };
            line(&format!("- {name}: {times}{bad}"));
        }
    }
}

/// What was reached of what the long form is to reach.
fn sizes(lines: &[Value], line: &mut impl FnMut(&str)) {
    let whole = jobs::all(false).len();
    let bad = lines.iter().filter(|line| !failures(line).is_empty()).count();
    let seconds = lines.iter().map(seconds_of).sum::<f64>().round();
    line(&format!(
        "\nThe long form, as far as it was brought: {} of {whole} jobs in {seconds} s of work, {bad} bad. What it is to reach, \
         and what is reached:\n",
        lines.len()
    ));
    line("| of the long form | to be reached | reached |");
    line("|---|---|---|");
    for (what, wanted, place) in WANTED {
        let reached: u64 = lines.iter().filter_map(|line| line.pointer(place)?.as_u64()).sum();
        line(&format!("| {what} | {wanted} | {reached} |"));
    }
}

const HOW_IT_KNOWS: &str = "\
How each counted case is known to have happened: a death is counted when the parent's wait reports signal 9, and a named case
fails if its process comes to another end. An operation on a file counts as failed when the library that stands before the C
library's functions says which one it struck; the last run of each sweep, in which none was left to strike, is not counted. A
disk image is counted when it was built and judged. A broken build is a failure of this campaign unless the property that has
to notice it does. After each death, and again after recovery, a checker that shares no code with the product reads a copy of
the file, in a fresh process.
";

/// Faults of the product that were found here, each mended with what now holds it.
const FOUND: &str = "\
What it has found so far, and what holds it now:

- Zeros that lengthen an emptied log could reach the disk before the truncation under them, and old pages were then laid over newer
  ones: found by cutting the power after a failed sync, held by the sweep `sync:eio` with its images.
- A grant that a dead process had used could be used once more by a process that had collected it before, after the run waited again:
  found by a path of the model, held by
  `a_grant_that_was_used_by_who_died_is_not_used_again_by_who_had_collected_it_before`.
";

/// How long a job took.
fn seconds_of(line: &Value) -> f64 {
    line["seconds"].as_f64().unwrap_or(0.0)
}

/// What one line says of failures, each with the job and the seed that repeat it.
pub(crate) fn failures(line: &Value) -> Vec<String> {
    let of_line = line["failures"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let (job, label, seed) = (&line["job"], line["label"].as_str().unwrap_or_default(), &line["seed"]);
    let kept = line["kept"].as_str().map(|place| format!(" ({place})")).unwrap_or_default();
    let job = job.as_str().unwrap_or_default();
    of_line.map(|failure| format!("{job} {label}, seed {seed}: {failure}{kept}")).collect()
}

fn kernel() -> String {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
    format!("{} {}", read("ostype").trim(), read("osrelease").trim())
}

#[cfg(test)]
mod tests {
    /// The sum of a column of the committed report's table of processes.
    fn sum(report: &str, column: &str) -> u64 {
        let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
        let mut lines = report.lines().skip_while(|line| !line.starts_with("| layer | jobs"));
        let head = cells(lines.next().expect("the table of processes"));
        let at = head.iter().position(|cell| cell == column).expect("its column");
        let rows = lines.skip(1).take_while(|line| line.starts_with('|'));
        rows.map(|line| cells(line)[at].parse::<u64>().expect("a count")).sum()
    }

    #[test]
    fn the_readme_says_of_the_campaign_what_its_committed_report_says() {
        let report = include_str!("../../../docs/campaign.md");
        let broken = report.lines().skip_while(|line| !line.starts_with("| broken build |")).skip(2);
        let broken: Vec<&str> = broken.take_while(|line| line.starts_with('|')).collect();
        let noticed = broken.iter().filter(|line| line.contains("| yes |")).count();
        let violations = report.lines().find_map(|line| line.strip_prefix("- violations: "));
        let sentence = format!(
            "The committed run killed {} processes, judged {} disk images, failed {} operations on files, noticed {noticed} of {} \
             broken builds, and found {} violations.",
            sum(report, "processes killed"),
            sum(report, "disk images judged"),
            sum(report, "operations failed"),
            broken.len(),
            violations.expect("the number of violations"),
        );
        let readme = include_str!("../../../README.md");
        // The report was written anew when this fails, and the README has to say the same.
        assert!(readme.contains(&sentence), "README.md does not say: {sentence}");
    }
}
