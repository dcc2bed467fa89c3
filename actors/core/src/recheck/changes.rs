//! Differences over many runs, added up: which decisions of which tools a policy would make otherwise, and how many.
//!
//! Owns the table's key and what counts as looser or stricter. It holds one row for each tool and pair of outcomes, so it
//! stays small however many runs go in.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use serde::{Serialize, Serializer};

use super::report::{Answer, Evaluation, Finding, Report};
use crate::ids::RunId;
use crate::policy::Outcome;

/// How many runs a row names.
pub const EXAMPLES_MAX: usize = 3;

/// What a row calls the outcome of a call that comes to none: it would be refused before the policy, or the policy fails.
const NO_ANSWER: &str = "none";

/// Which way a decision would change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Shift {
    /// More would run, or with less asking.
    Looser,
    /// Less would run, or with more asking.
    Stricter,
    /// As much would run, and a person would be asked something else.
    Otherwise,
}

impl Shift {
    /// The name in reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Shift::Looser => "looser",
            Shift::Stricter => "stricter",
            Shift::Otherwise => "otherwise",
        }
    }

    fn between(then: &Answer, now: Option<&Answer>) -> Shift {
        // What nobody can act on runs no more than what is denied.
        let rank = |answer: &Answer| match answer.known_outcome() {
            Some(Outcome::Allow) => 0,
            Some(Outcome::RequireApproval) => 1,
            Some(Outcome::Deny) | None => 2,
            Some(Outcome::Abort) => 3,
        };
        match rank(then).cmp(&now.map_or(2, rank)) {
            std::cmp::Ordering::Greater => Shift::Looser,
            std::cmp::Ordering::Less => Shift::Stricter,
            std::cmp::Ordering::Equal => Shift::Otherwise,
        }
    }
}

impl fmt::Display for Shift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Shift {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// Decisions of one tool that would change in the same way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The tool.
    pub tool: String,
    /// The outcome that is recorded.
    pub recorded: String,
    /// The outcome now; `none` when there would be none.
    pub now: String,
    /// Which way that goes.
    pub shift: Shift,
    /// How many decisions. A call that was approved has two: one as it was proposed, one as it was collected.
    pub decisions: u64,
    /// How many runs they are in.
    pub runs: u64,
    /// How many of the decisions the present policy makes in the new way already.
    pub already: u64,
    /// Why, as the first of them says.
    pub why: String,
    /// Some of the runs, in the order in which they were added.
    pub examples: Vec<RunId>,
    /// The run that was counted last, by its place.
    #[serde(skip)]
    counted: u64,
}

impl Change {
    fn count_run(&mut self, run: &RunId, place: u64) {
        if self.counted == place {
            return;
        }
        self.counted = place;
        self.runs += 1;
        if self.examples.len() < EXAMPLES_MAX {
            self.examples.push(run.clone());
        }
    }
}

/// What all runs come to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Runs that were added.
    pub runs: u64,
    /// Runs in which something differs.
    pub differing_runs: u64,
    /// Decisions that were re-checked.
    pub rechecked: u64,
    /// Those that stay.
    pub same: u64,
    /// Those that differ.
    pub different: u64,
    /// Of these, how many are looser.
    pub looser: u64,
    /// How many are stricter.
    pub stricter: u64,
    /// How many ask something else.
    pub otherwise: u64,
    /// How many of those that differ the present policy makes in the new way already.
    pub already: u64,
    /// Decisions that the record could not rebuild.
    pub not_recheckable: u64,
}

/// The differences of many runs.
#[derive(Debug, Clone, Default)]
pub struct Changes {
    totals: Totals,
    rows: BTreeMap<(String, String, String), Change>,
}

impl Changes {
    /// Adds a run as the changed policy would have decided it and, for comparison, as the present policy would.
    ///
    /// Both reports must be of the same record.
    pub fn add(&mut self, report: &Report, present: Option<&Report>) {
        let totals = &mut self.totals;
        totals.runs += 1;
        totals.differing_runs += u64::from(!report.same());
        totals.not_recheckable += count(report.not_recheckable());
        totals.rechecked += count(report.rechecked());
        totals.same += count(report.rechecked() - report.differences());
        for (at, evaluation) in report.evaluations.iter().enumerate() {
            if evaluation.result == Finding::Different {
                let present = present.and_then(|report| report.evaluations.get(at));
                self.add_one(
                    &report.run_id,
                    evaluation,
                    present.is_some_and(|present| agree(present, evaluation)),
                );
            }
        }
    }

    fn add_one(&mut self, run: &RunId, evaluation: &Evaluation, already: bool) {
        let now = evaluation.rechecked.as_ref();
        let shift = Shift::between(&evaluation.recorded, now);
        let totals = &mut self.totals;
        totals.different += 1;
        totals.already += u64::from(already);
        match shift {
            Shift::Looser => totals.looser += 1,
            Shift::Stricter => totals.stricter += 1,
            Shift::Otherwise => totals.otherwise += 1,
        }
        let outcome = now.map_or(NO_ANSWER, |answer| &answer.outcome).to_owned();
        let key = (evaluation.tool.clone(), evaluation.recorded.outcome.clone(), outcome.clone());
        let row = match self.rows.entry(key) {
            Entry::Occupied(row) => row.into_mut(),
            Entry::Vacant(place) => place.insert(Change {
                tool: evaluation.tool.clone(),
                recorded: evaluation.recorded.outcome.clone(),
                now: outcome,
                shift,
                decisions: 0,
                runs: 0,
                already: 0,
                why: why(evaluation),
                examples: Vec::new(),
                counted: 0,
            }),
        };
        row.decisions += 1;
        row.already += u64::from(already);
        row.count_run(run, totals.runs);
    }

    /// What all runs come to.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// The rows: what would be looser first, then what would be stricter, and of each the most frequent first.
    pub fn rows(&self) -> Vec<&Change> {
        let mut rows: Vec<&Change> = self.rows.values().collect();
        rows.sort_by(|a, b| a.shift.cmp(&b.shift).then(b.decisions.cmp(&a.decisions)));
        rows
    }
}

fn count(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

/// Whether two policies give one evaluation the same answer.
fn agree(a: &Evaluation, b: &Evaluation) -> bool {
    let outcome =
        |evaluation: &Evaluation| evaluation.rechecked.as_ref().map(|answer| answer.outcome.clone());
    a.seq == b.seq && outcome(a).is_some() && outcome(a) == outcome(b) && a.rechecked_hash == b.rechecked_hash
}

/// The words for a row: what differs, else the reason that the policy gives.
fn why(evaluation: &Evaluation) -> String {
    let reason = evaluation.rechecked.as_ref().map(|answer| answer.reason.as_str());
    if evaluation.detail.is_empty() {
        reason.unwrap_or_default().to_owned()
    } else {
        evaluation.detail.clone()
    }
}
