//! The campaign as a list of jobs: what each layer does how often, in which order, and which of it is a shard's.
//!
//! Owns the sizes. A job is known by its layer and number, and its seed follows from them and from the campaign's, so
//! that any shard on any machine does the same. Layers take turns in proportion to their sizes: a run that is stopped
//! early has done its part of each.

use serde_json::{Value, json};

use crate::broken::{self, Broken};
use crate::cases::{self, Outcome, Story};
use crate::chaos;
use crate::checker::Property;
use crate::failing::{self, Sweep};
use crate::inside::{self, Layer};
use crate::random;
use crate::world::Programs;

/// The layers, as the report names them, each with how many jobs it has in the short form and in the long one.
const SIZES: [(Kind, u64, u64); 13] = [
    (Kind::Chaos, 1, 1),
    (Kind::Named, 1, 12),
    (Kind::Failing, 1, 80),
    (Kind::Random, 3, 2_100),
    (Kind::Several, 1, 400),
    (Kind::Power, 1, 300),
    (Kind::Model, 1, 1),
    (Kind::Unguarded, 1, 1),
    (Kind::Replay, 1, 500),
    (Kind::Sequences, 1, 1_000),
    (Kind::Schedules, 1, 2_000),
    (Kind::Fuzz, 1, 100),
    (Kind::Broken, 1, 1),
];

/// Images of one recording in the long form, where the recording would otherwise take longer than they do.
const IMAGES_LONG: usize = 3_000;
/// Of so many rounds of failing operations one is a proxy's, and the others are a service's, which is there sooner.
const SERVICES: u64 = 10;

/// A layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Named,
    Failing,
    Random,
    Several,
    Power,
    Model,
    Unguarded,
    Replay,
    Sequences,
    Schedules,
    Fuzz,
    Broken,
    Chaos,
}

impl Kind {
    pub(crate) const ALL: [Kind; 13] = [
        Kind::Named,
        Kind::Failing,
        Kind::Random,
        Kind::Several,
        Kind::Power,
        Kind::Model,
        Kind::Unguarded,
        Kind::Replay,
        Kind::Sequences,
        Kind::Schedules,
        Kind::Fuzz,
        Kind::Broken,
        Kind::Chaos,
    ];

    /// In a job's name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Kind::Named => "named",
            Kind::Failing => "failing",
            Kind::Random => "random",
            Kind::Several => "several",
            Kind::Power => "power",
            Kind::Model => "model",
            Kind::Unguarded => "unguarded",
            Kind::Replay => "replay",
            Kind::Sequences => "sequences",
            Kind::Schedules => "schedules",
            Kind::Fuzz => "fuzz",
            Kind::Broken => "broken",
            Kind::Chaos => "chaos",
        }
    }

    /// What it does, for the report.
    pub(crate) const fn what(self) -> &'static str {
        match self {
            Kind::Named => "real deaths at named points",
            Kind::Failing => "the Nth write, sync or truncation fails",
            Kind::Random => "real deaths at random moments, twenty-four in a world",
            Kind::Several => {
                "three proxies, an embedding service and an operator on one file, one writer stopped past its lease"
            }
            Kind::Power => "the power is cut",
            Kind::Model => "a model, searched state by state",
            Kind::Unguarded => "the model with one guard left out",
            Kind::Replay => "paths of the model, walked by the real store",
            Kind::Sequences => "random sequences against a reference model",
            Kind::Schedules => "seeded schedules of the actors under a clock that stands still",
            Kind::Fuzz => "foreign bytes, so many for each decoder",
            Kind::Broken => "broken builds",
            Kind::Chaos => "actors that die at a step of a call, or stall past its deadline",
        }
    }
}

/// One piece of work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) kind: Kind,
    /// Which of its layer.
    pub(crate) number: u64,
    /// What it is within its layer, where that has a name.
    pub(crate) label: String,
    work: Work,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Work {
    Case(Story),
    Sweep { what: &'static str, short: bool },
    Lives,
    Processes,
    Inside(Layer),
    Broken(usize),
    Chaos,
}

/// Everything that there is to do, in order.
pub(crate) fn all(short: bool) -> Vec<Job> {
    let mut placed: Vec<(f64, Job)> = Vec::new();
    for (kind, few, many) in SIZES {
        let rounds = if short { few } else { many };
        let of_round = works(kind, short);
        let total = rounds * of_round.len() as u64;
        for round in 0..rounds {
            for (at, (label, work)) in of_round.iter().enumerate() {
                let number = round * of_round.len() as u64 + at as u64;
                let job = Job { kind, number, label: label.clone(), work: work.clone() };
                #[expect(
                    clippy::cast_precision_loss,
                    reason = "a place in an order, not a number that counts"
                )]
                placed.push((number as f64 / total as f64, job));
            }
        }
    }
    placed.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    placed.into_iter().map(|(_, job)| job).collect()
}

/// The works of one round of a layer.
fn works(kind: Kind, short: bool) -> Vec<(String, Work)> {
    let inside = |name, few: u64, many: u64| {
        let layer = Layer { name, count: if short { few } else { many } };
        vec![(String::new(), Work::Inside(layer))]
    };
    match kind {
        Kind::Named => cases::named().into_iter().map(|(name, story)| (name, Work::Case(story))).collect(),
        Kind::Failing => {
            let sweep = |what: &'static str| (what.to_owned(), Work::Sweep { what, short });
            failing::KINDS.into_iter().map(sweep).collect()
        }
        Kind::Random => vec![(String::new(), Work::Lives)],
        Kind::Several => vec![(String::new(), Work::Processes)],
        Kind::Power => {
            let images = if short { cases::IMAGES } else { IMAGES_LONG };
            vec![(String::new(), Work::Case(Story::PowerCut(images)))]
        }
        Kind::Model => inside("model", 1_200_000, 24_000_000),
        Kind::Unguarded => inside("unguarded", 1, 1),
        Kind::Replay => inside("replay", 2_000, 250),
        Kind::Sequences => inside("sequences", 400, 500),
        Kind::Schedules => inside("schedules", 300, 500),
        Kind::Fuzz => inside("fuzz", 5_000, 20_000),
        Kind::Chaos => vec![(String::new(), Work::Chaos)],
        Kind::Broken => {
            let all = broken::all().into_iter().enumerate();
            all.map(|(at, broken)| (broken.name.to_owned(), Work::Broken(at))).collect()
        }
    }
}

/// Says what can be asked for, if nothing of this name can.
pub(crate) fn is_known(only: &str, all: &[Job]) -> Result<(), String> {
    if all.iter().any(|job| job.is_named(only)) {
        return Ok(());
    }
    let layers: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
    let mut labels: Vec<&str> = all.iter().map(|job| &*job.label).filter(|label| !label.is_empty()).collect();
    labels.sort_unstable();
    labels.dedup();
    Err(format!(
        "--only {only}: no job is called so. Name a layer ({}), one job of a layer (named/0), or one of these: {}",
        layers.join(", "),
        labels.join(", ")
    ))
}

impl Job {
    /// Its name, by which a run that is resumed knows it.
    pub(crate) fn name(&self) -> String {
        format!("{}/{}", self.kind.name(), self.number)
    }

    /// Whether it is what somebody asked for: by its layer, by its name, or by what it is within its layer.
    pub(crate) fn is_named(&self, only: &str) -> bool {
        self.kind.name() == only || self.name() == only || (!only.is_empty() && self.label == only)
    }

    /// The seed of its chance.
    pub(crate) fn seed(&self, campaign: u64) -> u64 {
        let layer = Kind::ALL.iter().position(|kind| *kind == self.kind).unwrap_or(0) as u64;
        // Apart from those of every other layer, and from those of the next campaign.
        campaign.wrapping_mul(1_000_000_007).wrapping_add(layer << 40).wrapping_add(self.number)
    }

    /// Does it, and gives its line of the report.
    pub(crate) fn run(&self, programs: &Programs, campaign: u64) -> Value {
        let seed = self.seed(campaign);
        let world = self.name().replace('/', "-");
        match &self.work {
            Work::Case(story) => self.line(seed, &cases::run(programs, &world, story, None, seed)),
            Work::Lives => self.line(seed, &random::lives(programs, &world, None, seed)),
            Work::Processes => self.line(seed, &random::several(programs, &world, seed)),
            Work::Sweep { what, short } => {
                let round = self.number / failing::KINDS.len() as u64;
                let whole = || Sweep::whole(!round.is_multiple_of(SERVICES));
                let sweep = if *short { Sweep::short(what, seed) } else { whole() };
                self.line(seed, &failing::sweep(programs, &world, what, sweep, seed))
            }
            Work::Inside(layer) => {
                // Chunks of a layer begin where others do not come.
                let from = seed.wrapping_mul(1_000_000);
                let told = inside::run(programs, layer, from, None);
                let mut line = self.line(from, &Outcome::default());
                line["failures"] = json!(inside::failures(&told));
                line["told"] = told;
                line
            }
            Work::Chaos => {
                let told = chaos::walk(&programs.folder.join(&world));
                let mut line = self.line(seed, &Outcome::default());
                line["failures"] = json!(inside::failures(&told));
                line["told"] = told;
                line
            }
            Work::Broken(at) => self.broken(programs, &world, *at, seed),
        }
    }

    fn line(&self, seed: u64, outcome: &Outcome) -> Value {
        let mut failures: Vec<String> = outcome
            .violations
            .iter()
            .map(|violation| format!("{}: {}", violation.property, violation.detail))
            .collect();
        failures.extend(outcome.trouble.clone());
        json!({
            "job": self.name(), "label": self.label, "seed": seed, "cases": outcome.cases.max(1),
            "deaths": outcome.deaths, "effects": outcome.effects, "images": outcome.images,
            "failed_operations": outcome.failed, "failures": failures, "kept": outcome.kept,
        })
    }

    /// A broken build fails when nobody notices it.
    fn broken(&self, programs: &Programs, world: &str, at: usize, seed: u64) -> Value {
        let all = broken::all();
        let Broken { name, what, story, property } = &all[at];
        let outcome = cases::run(programs, world, story, Some(name), seed);
        let mut by: Vec<Property> = outcome.violations.iter().map(|violation| violation.property).collect();
        by.sort_unstable();
        by.dedup();
        let noticed = by.contains(property);
        let by: Vec<String> = by.iter().map(ToString::to_string).collect();
        let why = outcome.trouble.clone().unwrap_or_default();
        let failures =
            if noticed { Vec::new() } else { vec![format!("{name} was not noticed: {by:?} {why}")] };
        json!({
            "job": self.name(), "label": self.label, "seed": seed, "cases": 1, "what": what,
            "has_to": property.to_string(), "by": by, "failures": failures,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_jobs_of_a_campaign_share_a_name_or_a_seed() {
        for short in [true, false] {
            let jobs = all(short);
            let names: HashSet<String> = jobs.iter().map(Job::name).collect();
            let seeds: HashSet<u64> = jobs.iter().map(|job| job.seed(7)).collect();
            assert_eq!((names.len(), seeds.len()), (jobs.len(), jobs.len()));
        }
    }

    #[test]
    fn what_is_asked_for_alone_is_asked_for_by_its_whole_name() {
        let jobs = all(true);
        let named = |only: &str| jobs.iter().filter(|job| job.is_named(only)).count();
        assert_eq!((named("random"), named("random/0"), named("power cut"), named("SyncOff")), (3, 1, 1, 1));
        // A part of a name is none, and whoever gives one is told the names.
        assert_eq!((named("power c"), named("name"), named("")), (0, 0, 0));
        let told = is_known("power c", &jobs).unwrap_err();
        assert!(
            told.contains("power cut") && told.contains("schedules") && told.contains("SyncOff"),
            "{told}"
        );
        assert_eq!(is_known("power cut", &jobs), Ok(()));
    }

    #[test]
    fn a_run_that_is_stopped_early_has_done_its_part_of_each_layer() {
        let jobs = all(false);
        let tenth = &jobs[..jobs.len() / 10];
        for (kind, _, many) in SIZES.iter().filter(|(_, _, many)| *many >= 100) {
            let done = tenth.iter().filter(|job| job.kind == *kind).count() as u64;
            let expected = many * works(*kind, false).len() as u64 / 10;
            assert!(done.abs_diff(expected) <= expected / 10 + 2, "{kind:?}: {done} of {expected}");
        }
    }
}
