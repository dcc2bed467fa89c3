//! The independent checker: what must hold of a record, of the world's ledger and of what people were told, whatever
//! died when.
//!
//! Written from the specification. Owns the list of properties, each with a name that a report and a broken build refer
//! to. Knows nothing of how the product stores or decides, and opens nothing but copies.

mod apart;
mod asked;
mod canon;
mod course;
mod fold;
mod order;
mod record;
mod times;
mod told;

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use serde_json::Value;

use crate::host::Answer;
pub(crate) use apart::{WORD, When, answer, ask};
pub(crate) use canon::canonical;
pub(crate) use record::Record;

/// What must hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Property {
    /// At most one application per authorisation.
    Once,
    /// Every applied effect has an earlier intent in the record, open when it was applied, with the same arguments.
    Intent,
    /// Every acknowledged answer and decision is in the record.
    Acknowledged,
    /// No decision is overwritten.
    Decision,
    /// Every event is chained.
    Chain,
    /// Tables agree with events.
    Tables,
    /// Every open question can be acted on.
    Question,
    /// Nothing is left leased, open or orphaned after recovery.
    Left,
    /// Every answer is a documented one that fits what happened.
    Explained,
    /// The file is whole.
    Whole,
    /// Nothing runs that is not allowed when it runs.
    Allowed,
    /// The store does what the model says.
    Model,
    /// A log that could not be synced is not written to any more.
    SyncEnds,
    /// Each event may follow those before it.
    Course,
    /// The times of one hand do not run back.
    Times,
    /// Every call comes to an end.
    Ends,
}

impl Property {
    /// Every one.
    pub(crate) const ALL: [Property; 16] = [
        Property::Once,
        Property::Intent,
        Property::Acknowledged,
        Property::Decision,
        Property::Chain,
        Property::Tables,
        Property::Question,
        Property::Left,
        Property::Explained,
        Property::Whole,
        Property::Allowed,
        Property::Model,
        Property::SyncEnds,
        Property::Course,
        Property::Times,
        Property::Ends,
    ];
}

impl fmt::Display for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Property::Once => "at most one application per authorisation",
            Property::Intent => "an effect has an earlier open intent with the same arguments",
            Property::Acknowledged => "what was acknowledged is in the record",
            Property::Decision => "no decision is overwritten",
            Property::Chain => "every event is chained",
            Property::Tables => "tables agree with events",
            Property::Question => "every open question can be acted on",
            Property::Left => "nothing is left leased, open or orphaned",
            Property::Explained => "every answer is a documented one that fits",
            Property::Whole => "the file is whole",
            Property::Allowed => "nothing runs that is not allowed by then",
            Property::Model => "the store does what the model says",
            Property::SyncEnds => "a failed sync ends its writer",
            Property::Course => "each event may follow those before it",
            Property::Times => "the times of one hand do not run back",
            Property::Ends => "every call comes to an end",
        })
    }
}

/// A property that does not hold, and where.
#[derive(Debug, Clone)]
pub(crate) struct Violation {
    pub(crate) property: Property,
    pub(crate) detail: String,
}

/// An answer that a host was given.
#[derive(Debug, Clone)]
pub(crate) struct Told {
    pub(crate) tool: String,
    pub(crate) args: Value,
    pub(crate) answer: Answer,
    /// How long the recording of the disk was when this could no longer be lost with the power.
    pub(crate) mark: u64,
}

/// A decision that an operator's command acknowledged.
#[derive(Debug, Clone)]
pub(crate) struct Decided {
    pub(crate) approval: String,
    pub(crate) approved: bool,
    pub(crate) by: String,
    /// What they noted.
    pub(crate) note: String,
    /// How long the recording of the disk was by then.
    pub(crate) mark: u64,
}

/// A head of the chain that was handed on as evidence.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    pub(crate) seq: i64,
    pub(crate) hash: String,
    /// How long the recording of the disk was by then.
    pub(crate) mark: u64,
}

/// A run that somebody was seen to hold when the record was so long.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub(crate) run: String,
    pub(crate) owner: String,
    pub(crate) seq: i64,
}

/// What is known outside the record.
#[derive(Debug, Default)]
pub(crate) struct Outside {
    pub(crate) told: Vec<Told>,
    pub(crate) decided: Vec<Decided>,
    pub(crate) heads: Vec<Head>,
    /// Who was seen to hold what.
    pub(crate) held: Vec<Held>,
    /// Lines of the world's ledger, with the gate's name of the tool.
    pub(crate) effects: Vec<Effect>,
    /// Processes of servers that are still alive.
    pub(crate) orphans: Vec<String>,
    /// Whether so much time has passed that a grant may be too old.
    pub(crate) aged: bool,
    /// How far apart the clocks of this world's processes were set.
    pub(crate) apart_ms: u64,
    /// Whether the file was an older version's once, which had not all of today's columns.
    pub(crate) older: bool,
}

/// A payment that was applied.
#[derive(Debug, Clone)]
pub(crate) struct Effect {
    /// As the gate calls it.
    pub(crate) tool: String,
    pub(crate) args: Value,
    /// How many intents for it were open at that moment, where the world could look.
    pub(crate) open_intents: Option<u64>,
    /// How long the recording of the disk was by then.
    pub(crate) mark: u64,
}

impl Outside {
    /// The moments from which on something may not be lost any more.
    pub(crate) fn moments(&self) -> Vec<u64> {
        let told = self.told.iter().map(|told| told.mark).filter(|mark| *mark < u64::MAX);
        let decided = self.decided.iter().map(|decided| decided.mark);
        let heads = self.heads.iter().map(|head| head.mark);
        told.chain(decided).chain(heads).chain(self.effects.iter().map(|effect| effect.mark)).collect()
    }

    /// What was known by a moment, of what may not be lost with the power.
    pub(crate) fn by(&self, moment: u64) -> Outside {
        let told = |told: &&Told| told.mark <= moment;
        Outside {
            told: self.told.iter().filter(told).cloned().collect(),
            decided: self.decided.iter().filter(|decided| decided.mark <= moment).cloned().collect(),
            heads: self.heads.iter().filter(|head| head.mark <= moment).cloned().collect(),
            effects: self.effects.iter().filter(|effect| effect.mark <= moment).cloned().collect(),
            // What is not synced yet may be told of otherwise afterwards.
            held: Vec::new(),
            orphans: Vec::new(),
            aged: self.aged,
            apart_ms: self.apart_ms,
            older: self.older,
        }
    }
}

impl Violation {
    /// A file that can't be read at all.
    pub(crate) fn unreadable(detail: String) -> Violation {
        Violation { property: Property::Whole, detail }
    }

    /// The same, with where it was found.
    pub(crate) fn at(self, place: &str) -> Violation {
        Violation { detail: format!("{place}: {}", self.detail), ..self }
    }
}

/// What the runs of an embedding service are called.
pub(crate) const EMBEDDED: &str = "embedded-";

struct Judge<'a> {
    record: &'a Record,
    outside: &'a Outside,
    found: Vec<Violation>,
}

/// Judges what is left at any moment, also right after a death.
pub(crate) fn judge(database: &Path, scratch: &Path, outside: &Outside) -> Result<Vec<Violation>, String> {
    let record = Record::of(database, scratch)?;
    let mut judge = Judge { record: &record, outside, found: Vec::new() };
    judge.at_any_time();
    Ok(judge.found)
}

/// Judges a file that nobody else has or wants.
pub(crate) fn judge_image(image: &Path, outside: &Outside) -> Result<Vec<Violation>, String> {
    let record = Record::at(image)?;
    let mut judge = Judge { record: &record, outside, found: Vec::new() };
    judge.at_any_time();
    Ok(judge.found)
}

/// Judges what is left when everything was recovered and every process has gone.
pub(crate) fn judge_settled(
    database: &Path,
    scratch: &Path,
    outside: &Outside,
) -> Result<Vec<Violation>, String> {
    let record = Record::of(database, scratch)?;
    let mut judge = Judge { record: &record, outside, found: Vec::new() };
    judge.at_any_time();
    judge.nothing_is_left();
    Ok(judge.found)
}

impl Judge<'_> {
    fn fail(&mut self, property: Property, detail: impl Into<String>) {
        self.found.push(Violation { property, detail: detail.into() });
    }

    fn at_any_time(&mut self) {
        if self.record.integrity != "ok" {
            self.fail(Property::Whole, self.record.integrity.clone());
        }
        self.events_are_chained();
        self.found.extend(fold::compare(self.record, !self.outside.older));
        self.found.extend(order::look(self.record));
        self.found.extend(course::look(self.record, !self.outside.older));
        self.found.extend(times::look(self.record, self.outside.apart_ms, !self.outside.older));
        self.runs_are_of_calls();
        self.effects_are_authorised();
        self.told_is_recorded();
        self.evidence_stands();
        self.takeovers_name_who_held();
        self.decisions_stand();
        self.found.extend(asked::look(self.record));
    }

    fn events_are_chained(&mut self) {
        let mut previous = String::new();
        for (expected, event) in (1..).zip(&self.record.events) {
            let fields = [&*event.run, &*event.step, &*event.at, &*event.kind, &*event.payload_text];
            let hash = canon::link(&previous, event.seq, fields);
            if event.seq != expected || event.hash != hash {
                self.fail(
                    Property::Chain,
                    format!("event {} where {expected} with hash {hash} belongs", event.seq),
                );
                return;
            }
            previous = hash;
        }
    }

    /// A run of the proxy's begins together with its row of the index. An embedder's has none.
    fn runs_are_of_calls(&mut self) {
        for run in self.record.runs.iter().filter(|run| !run.id.starts_with(EMBEDDED)) {
            if !self.record.calls.iter().any(|call| call.run == run.id) {
                self.fail(Property::Tables, format!("run {} is of no call", run.id));
            }
        }
    }

    fn effects_are_authorised(&mut self) {
        let mut applied: HashMap<(String, String), u64> = HashMap::new();
        for effect in &self.outside.effects {
            let key = (effect.tool.clone(), canonical(&effect.args));
            *applied.entry(key).or_default() += 1;
            if effect.open_intents == Some(0) {
                let detail =
                    format!("{} {} was applied while no intent for it was open", effect.tool, effect.args);
                self.fail(Property::Intent, detail);
            }
        }
        for ((tool, args), times) in applied {
            let intents = self.intents(&tool, &args);
            if intents == 0 {
                self.fail(Property::Intent, format!("{tool} {args} was applied and has no intent"));
            }
            let authorised = self.authorised(&tool, &args);
            if times > authorised || times > intents {
                let detail =
                    format!("{tool} {args}: applied {times}, authorised {authorised}, intents {intents}");
                self.fail(Property::Once, detail);
            }
        }
    }

    /// Starts of this call in the record.
    fn intents(&self, tool: &str, args: &str) -> u64 {
        let starts = self.record.events.iter().filter(|event| event.kind == "step.tool_started");
        let same =
            starts.filter(|event| event.payload["tool"] == tool && canonical(&event.payload["args"]) == args);
        same.count() as u64
    }

    /// How often this call may be applied: once by the policy where that allows it, and once for each approval.
    fn authorised(&self, tool: &str, args: &str) -> u64 {
        let approved = self.record.approvals.iter().filter(|approval| {
            let capability: Value = serde_json::from_str(&approval.capability).unwrap_or_default();
            // A proxy names its tool there, beside the server's; an embedder has one name for it.
            let name = capability.get("name").unwrap_or(&capability["tool"]);
            approval.status == "approved" && name == tool && canonical(&capability["args"]) == args
        });
        approved.count() as u64 + u64::from(tool == "petty_pay")
    }

    fn evidence_stands(&mut self) {
        for Head { seq, hash, .. } in &self.outside.heads {
            if !self.record.events.iter().any(|event| event.seq == *seq && event.hash == *hash) {
                let detail = format!("the head {seq}:{hash} was handed on, and is ahead of the record");
                self.fail(Property::Acknowledged, detail);
            }
        }
    }

    /// Whoever takes a run over says from whom, and that is who was seen to hold it.
    fn takeovers_name_who_held(&mut self) {
        for Held { run, owner, seq } in &self.outside.held {
            let mut later = self.record.events.iter().filter(|event| event.run == *run && event.seq > *seq);
            let next = later.find(|event| {
                matches!(&*event.kind, "lease.taken_over" | "approval.requested" | "run.finished")
            });
            if let Some(event) = next.filter(|event| event.kind == "lease.taken_over")
                && event.payload["previous_owner"] != **owner
            {
                let detail =
                    format!("run {run} was held by {owner}, and is taken over from {}", event.payload);
                self.fail(Property::Course, detail);
            }
        }
    }

    fn decisions_stand(&mut self) {
        let row = |id: &str| self.record.approvals.iter().find(|approval| approval.id == id);
        for decided in &self.outside.decided {
            let status = if decided.approved { "approved" } else { "rejected" };
            match row(&decided.approval) {
                Some(row) if row.status == status && row.by == decided.by && row.note == decided.note => {}
                // A grant that nobody used in time says so, and still says whose it was.
                Some(row) if self.outside.aged && row.status == "expired" && row.by == decided.by => {}
                Some(row) => {
                    let detail = format!(
                        "{} was {status} by {} with {:?}, and is {} by {} with {:?}",
                        row.id, decided.by, decided.note, row.status, row.by, row.note
                    );
                    self.fail(Property::Decision, detail);
                }
                None => self.fail(
                    Property::Acknowledged,
                    format!("the decided approval {} is gone", decided.approval),
                ),
            }
        }
        let mut decided: HashMap<&str, usize> = HashMap::new();
        for event in self.record.events.iter().filter(|event| event.kind == "approval.decided") {
            if event.payload["status"] != "expired" {
                *decided.entry(event.payload["approval_id"].as_str().unwrap_or_default()).or_default() += 1;
            }
        }
        for (id, times) in decided.into_iter().filter(|(_, times)| *times > 1) {
            self.fail(Property::Decision, format!("approval {id} was decided {times} times"));
        }
    }

    fn nothing_is_left(&mut self) {
        for run in &self.record.runs {
            let over = matches!(&*run.status, "WAITING_FOR_APPROVAL" | "COMPLETED" | "FAILED" | "CANCELLED");
            if !over || !run.owner.is_empty() {
                self.fail(
                    Property::Left,
                    format!("run {} is {} and held by {:?}", run.id, run.status, run.owner),
                );
            }
        }
        for step in self.record.steps.iter().filter(|s| matches!(&*s.status, "deciding" | "executing")) {
            self.fail(Property::Left, format!("step {} of run {} is {}", step.id, step.run, step.status));
        }
        for call in &self.record.calls {
            if !self.record.runs.iter().any(|run| run.id == call.run) {
                self.fail(Property::Left, format!("the call of run {} began nothing", call.run));
            }
        }
        let mut open: HashMap<&str, usize> = HashMap::new();
        for call in self.record.calls.iter().filter(|call| call.open) {
            *open.entry(&call.key).or_default() += 1;
        }
        for (key, times) in open.into_iter().filter(|(_, times)| *times > 1) {
            self.fail(Property::Left, format!("request {key} is open {times} times"));
        }
        if self.record.groups > 0 {
            self.fail(Property::Left, format!("{} process groups are noted as alive", self.record.groups));
        }
        for orphan in &self.outside.orphans {
            self.fail(Property::Left, format!("process {orphan} outlived its gate"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checker::record::Approval;

    #[test]
    fn a_decision_that_lost_whose_it_was_or_what_they_noted_is_noticed() {
        let row = |by: &str, note: &str, status: &str| {
            let [id, by, note, status] = ["a", by, note, status].map(str::to_owned);
            let approvals = vec![Approval { id, by, note, status, ..Approval::default() }];
            let record = Record { approvals, ..Record::default() };
            let (approval, by, note) = ("a".to_owned(), "ana".to_owned(), "once".to_owned());
            let decided = vec![Decided { approval, approved: true, by, note, mark: 0 }];
            let outside = Outside { decided, ..Outside::default() };
            let mut judge = Judge { record: &record, outside: &outside, found: Vec::new() };
            judge.decisions_stand();
            judge.found.into_iter().map(|violation| violation.property).collect::<Vec<_>>()
        };
        assert_eq!(row("ana", "once", "approved"), []);
        for (by, note, status) in
            [("ana", "", "approved"), ("bob", "once", "approved"), ("ana", "once", "pending")]
        {
            assert_eq!(row(by, note, status), [Property::Decision], "{by} {note} {status}");
        }
    }
}
