//! The report: counts that the run produced, and every failure with the seed that repeats it.
//!
//! Owns the sums and the words. Nothing in it is a constant but its headings.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::broken::Broken;
use crate::cases::Outcome;
use crate::checker::{Property, Violation};
use crate::clock::now;
use crate::inside::Layer;

#[derive(Debug, Default)]
struct Sum {
    cases: usize,
    deaths: usize,
    effects: usize,
    images: usize,
    failed: usize,
    bad: usize,
}

pub(crate) struct Report {
    command: String,
    seed: u64,
    short: bool,
    began: std::time::Instant,
    named: Sum,
    random: Sum,
    several: Sum,
    power: Sum,
    failing: Sum,
    inside: Vec<(&'static str, Value)>,
    points: Vec<(String, bool)>,
    noticed: Vec<(String, String, Property, bool, String)>,
    failures: Vec<String>,
}

impl Report {
    pub(crate) fn new(seed: u64, short: bool, words: &[String]) -> Report {
        Report {
            command: format!("cargo run -p holdpoint-campaign -- {}", words.join(" ")),
            seed,
            short,
            began: now(),
            named: Sum::default(),
            random: Sum::default(),
            several: Sum::default(),
            power: Sum::default(),
            failing: Sum::default(),
            inside: Vec::new(),
            points: Vec::new(),
            noticed: Vec::new(),
            failures: Vec::new(),
        }
    }

    pub(crate) fn named(&mut self, name: &str, seed: u64, outcome: &Outcome) {
        let good = add(&mut self.named, outcome);
        self.points.push((name.to_owned(), good));
        self.note(name, seed, outcome);
    }

    pub(crate) fn random(&mut self, seed: u64, outcome: &Outcome) {
        add(&mut self.random, outcome);
        self.note("random deaths", seed, outcome);
    }

    pub(crate) fn power(&mut self, seed: u64, outcome: &Outcome) {
        add(&mut self.power, outcome);
        self.note("power cut", seed, outcome);
    }

    pub(crate) fn several(&mut self, seed: u64, outcome: &Outcome) {
        add(&mut self.several, outcome);
        self.note("several processes", seed, outcome);
    }

    pub(crate) fn failing(&mut self, which: &str, seed: u64, outcome: &Outcome) {
        // A case whose failure never came is the end of a sweep, and counts for nothing.
        if outcome.failed > 0 {
            add(&mut self.failing, outcome);
        }
        self.note(&format!("failing {which}"), seed, outcome);
    }

    pub(crate) fn broken(&mut self, broken: &Broken, outcome: &Outcome) {
        let seen = outcome.violations.iter().any(|violation| violation.property == broken.property);
        let mut found: BTreeMap<Property, usize> = BTreeMap::new();
        for violation in &outcome.violations {
            *found.entry(violation.property).or_default() += 1;
        }
        let others: Vec<String> = found.keys().map(ToString::to_string).collect();
        if !seen {
            let why = outcome.trouble.clone().unwrap_or_default();
            self.failures.push(format!("broken build {} was not noticed: {others:?} {why}", broken.name));
            crate::say(&format!("NOT NOTICED {}: {others:?} {why}", broken.name));
        }
        let (name, what) = (broken.name.to_owned(), broken.what.to_owned());
        self.noticed.push((name, what, broken.property, seen, others.join("; ")));
    }

    pub(crate) fn inside(&mut self, layer: &Layer, seed: u64, line: &Value) {
        for failure in crate::inside::failures(line) {
            crate::say(&format!("FAILED {}, seed {seed}: {failure}", layer.name));
            self.failures.push(format!("{}, seed {seed}: {failure}", layer.name));
        }
        self.inside.push((layer.name, line.clone()));
    }

    fn note(&mut self, name: &str, seed: u64, outcome: &Outcome) {
        let kept = outcome.kept.as_deref().unwrap_or("nothing kept");
        let said = |Violation { property, detail }: &Violation| {
            format!("{name}, seed {seed}: {property}: {detail} ({kept})")
        };
        let mut found: Vec<String> = outcome.violations.iter().map(said).collect();
        found.extend(outcome.trouble.iter().map(|why| format!("{name}, seed {seed}: {why} ({kept})")));
        for failure in &found {
            crate::say(&format!("FAILED {failure}"));
        }
        self.failures.extend(found);
    }

    pub(crate) fn is_good(&self) -> bool {
        self.failures.is_empty()
    }

    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        let form = if self.short { "short form" } else { "long form" };
        let profile = if cfg!(debug_assertions) { "dev" } else { "campaign" };
        let took = self.began.elapsed().as_secs();
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let mut line = |words: String| {
            text.push_str(&words);
            text.push('\n');
        };
        line(format!("# Crash campaign, {form}\n"));
        line(format!("- command: `{}`", self.command.trim_end_matches(['-', ' '])));
        line(format!("- seed {}, product built with profile `{profile}` and its faults", self.seed));
        line(format!("- {} on {}, {cores} cores; {took} s", kernel(), std::env::consts::ARCH));
        line(format!("- violations: {}\n", self.failures.len()));
        line(
            "| layer | cases | processes killed | payments applied | disk images judged | operations failed | bad cases |"
                .to_owned(),
        );
        line("|---|---|---|---|---|---|---|".to_owned());
        for (name, sum) in [
            ("named points", &self.named),
            ("random deaths, 12 a case", &self.random),
            ("three proxies, an operator, one stopped past its lease", &self.several),
            ("power cuts, beside the named one", &self.power),
            ("the Nth write, sync or truncation fails", &self.failing),
        ] {
            line(format!(
                "| {name} | {} | {} | {} | {} | {} | {} |",
                sum.cases, sum.deaths, sum.effects, sum.images, sum.failed, sum.bad
            ));
        }
        line("\nA death is counted when the parent's wait reports signal 9. Each named case fails if its process comes".to_owned());
        line("to another end. After each death, and again after recovery, a checker that shares no code with the".to_owned());
        line("product reads a copy of the file.\n".to_owned());
        line("| layer inside one process | counted | failures |".to_owned());
        line("|---|---|---|".to_owned());
        for (name, told) in &self.inside {
            line(format!("| {name} | {} | {} |", counts(told), crate::inside::failures(told).len()));
        }
        line(String::new());
        line("| broken build | has to be noticed by | noticed | all that noticed |".to_owned());
        line("|---|---|---|---|".to_owned());
        for (name, what, property, seen, others) in &self.noticed {
            line(format!(
                "| {name}: {what} | {property} | {} | {others} |",
                if *seen { "yes" } else { "NO" }
            ));
        }
        line(format!("\nNamed points ({}):\n", self.points.len()));
        for (name, good) in &self.points {
            line(format!("- {name}{}", if *good { "" } else { ": BAD" }));
        }
        if !self.failures.is_empty() {
            line("\nFailures:\n".to_owned());
            for failure in &self.failures {
                line(format!("- {failure}"));
            }
        }
        text
    }
}

fn add(sum: &mut Sum, outcome: &Outcome) -> bool {
    let good = outcome.violations.is_empty() && outcome.trouble.is_none();
    sum.cases += 1;
    sum.deaths += outcome.deaths;
    sum.effects += outcome.effects;
    sum.images += outcome.images;
    sum.failed += outcome.failed;
    sum.bad += usize::from(!good);
    good
}

/// The numbers of a layer's line.
fn counts(line: &Value) -> String {
    let members = line.as_object().into_iter().flatten();
    let numbers =
        members.filter_map(|(name, value)| Some(format!("{} {}", value.as_u64()?, name.replace('_', " "))));
    let lists = line.as_object().into_iter().flatten().filter(|(name, _)| *name != "failed");
    let lists = lists.filter_map(|(name, value)| Some(format!("{} {name}", value.as_array()?.len())));
    numbers.chain(lists).collect::<Vec<_>>().join(", ")
}

fn kernel() -> String {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
    format!("{} {}", read("ostype").trim(), read("osrelease").trim())
}
