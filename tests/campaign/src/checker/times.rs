//! The order of times within one run, and how long things were good for by the clock of whoever judged it.
//!
//! The specification reads a clock once for each recorded change, in a fixed order (section 6.1), so the times of one hand
//! do not run back. Of two hands it promises nothing but clocks that agree "well within" a lease (section 9), which the
//! campaign breaks on purpose; where one hand has to have read what the other wrote, they are held to how far apart this
//! world's clocks were set. Not looked at: what is of two runs, because a reading comes before its commit and others
//! commit meanwhile; an operator's cancellation and a takeover beside what the holder wrote last, for the same reason; and
//! what came late, whose reading may be older than the cancellation.

use std::collections::HashMap;

use serde_json::Value;

use super::record::{Event, Record};
use super::{Property, Violation};

/// Nanoseconds since 1970.
type Nanos = i128;

const NANOS_OF_A_MILLI: Nanos = 1_000_000;
const SECONDS_OF_A_DAY: Nanos = 86_400;

/// Reads a time as section 1.1 has it: UTC, with as many digits of a second as it has.
pub(super) fn nanos(text: &str) -> Option<Nanos> {
    let text = text.strip_suffix('Z')?;
    let (date, time) = text.split_once('T')?;
    let (time, fraction) = time.split_once('.').unwrap_or((time, ""));
    let numbers = |text: &str, by: char| -> Option<[Nanos; 3]> {
        let parts: Vec<&str> = text.split(by).collect();
        let digits = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let read = |part: &str| part.parse().ok();
        let parts: [&str; 3] = parts.try_into().ok().filter(|parts: &[&str; 3]| parts.iter().all(digits))?;
        Some([read(parts[0])?, read(parts[1])?, read(parts[2])?])
    };
    let ([year, month, day], [hour, minute, second]) = (numbers(date, '-')?, numbers(time, ':')?);
    let is_fraction = fraction.len() <= 9 && fraction.bytes().all(|byte| byte.is_ascii_digit());
    if !is_fraction || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Days since 1970 of the proleptic calendar, with years that begin in March.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    let seconds = days * SECONDS_OF_A_DAY + hour * 3_600 + minute * 60 + second;
    Some(seconds * 1_000_000_000 + format!("{fraction:0<9}").parse::<Nanos>().ok()?)
}

#[derive(Debug, Default)]
struct Run {
    /// When its last event was, and of which kind.
    last: Option<Nanos>,
    before: String,
    waits: bool,
    /// When its newest step's clock began.
    began: Option<Nanos>,
}

#[derive(Debug, Default)]
struct Asked {
    at: Option<Nanos>,
    decided: Option<Nanos>,
}

struct Times<'a> {
    record: &'a Record,
    /// How far apart the clocks of two hands may be.
    apart: Nanos,
    runs: HashMap<&'a str, Run>,
    asked: HashMap<&'a str, Asked>,
    wrong: Vec<String>,
}

/// Looks for times that run back, and for what was good for longer than it says. `whole` says that no column was ever
/// missing.
pub(super) fn look(record: &Record, apart_ms: u64, whole: bool) -> Vec<Violation> {
    let apart = Nanos::from(apart_ms) * NANOS_OF_A_MILLI;
    let mut times = Times { record, apart, runs: HashMap::new(), asked: HashMap::new(), wrong: Vec::new() };
    record.events.iter().for_each(|event| times.hear(event));
    let wrong = std::mem::take(&mut times.wrong);
    let mut found: Vec<Violation> =
        wrong.into_iter().map(|detail| Violation { property: Property::Times, detail }).collect();
    if whole {
        found.extend(
            times.lasted().into_iter().map(|detail| Violation { property: Property::Allowed, detail }),
        );
    }
    found
}

/// Whether whoever wrote this is known to be who wrote the event before it in its run.
fn is_of_the_same_hand(event: &Event, run: &Run) -> bool {
    let of_a_takeover = matches!(&*run.before, "lease.taken_over" | "step.interrupted");
    match &*event.kind {
        "lease.taken_over" | "approval.decided" => false,
        // What nobody held is taken over without a word.
        "step.interrupted" | "run.resumed" => of_a_takeover,
        "run.finished" => {
            event.payload["reason"] != "operator_cancelled"
                && (!run.waits || run.before == "approval.decided")
        }
        "approval.requested" => true,
        // Of what waits, anybody may come to collect it.
        _ => !run.waits,
    }
}

impl<'a> Times<'a> {
    fn hear(&mut self, event: &'a Event) {
        let Some(at) = nanos(&event.at) else {
            return self.fail(event, &format!("{:?} is no time", event.at));
        };
        if event.kind == "step.tool_finished" && event.payload["late"] == true {
            return;
        }
        let run = self.runs.entry(&event.run).or_default();
        let back = run.last.filter(|last| at < *last && is_of_the_same_hand(event, run));
        let before = std::mem::replace(&mut run.before, event.kind.clone());
        run.last = Some(at);
        let took = run.began.map(|began| (at - began).max(0) / NANOS_OF_A_MILLI);
        match &*event.kind {
            "approval.requested" => run.waits = true,
            "run.resumed" => run.waits = false,
            "step.started" => run.began = Some(at),
            "step.tool_started" if event.payload.get("approval_id").is_some() => run.began = Some(at),
            _ => {}
        }
        if let Some(last) = back {
            self.fail(event, &format!("it was {} ns before the {before} that came before it", last - at));
        }
        let told = event.payload["duration_ms"].as_i64().map(Nanos::from);
        if event.kind == "step.tool_finished" && told != took {
            self.fail(event, &format!("it says that it took {told:?} ms, and took {took:?}"));
        }
        self.between_hands(event, at);
    }

    /// Who decides has read the question, who goes on has read the decision, and who takes over has seen the lease run out.
    fn between_hands(&mut self, event: &'a Event, at: Nanos) {
        let payload = &event.payload;
        let asked = self.asked.entry(payload["approval_id"].as_str().unwrap_or_default()).or_default();
        let after = match &*event.kind {
            "approval.requested" => {
                asked.at = Some(at);
                None
            }
            "approval.decided" if payload["status"] != "expired" => {
                asked.decided = Some(at);
                asked.at
            }
            "approval.decided" => asked.at,
            "run.resumed" => asked.decided,
            _ => None,
        };
        if after.is_some_and(|after| at + self.apart < after) {
            self.fail(event, "it was before what it follows from");
        }
        if event.kind == "lease.taken_over" && !is_of_one_process(payload) {
            let until = nanos(payload["previous_expires_at"].as_str().unwrap_or_default());
            // Both by the clock of who takes it over.
            if until.is_none_or(|until| at < until) {
                self.fail(event, &format!("the lease that it ends was still good: {payload}"));
            }
        }
    }

    /// A question is good until its end, and a grant for as long as its run says: by the clock of who used it.
    fn lasted(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let runs: HashMap<&str, &Value> =
            self.record.runs.iter().map(|run| (&*run.id, &run.limits)).collect();
        let mut until: HashMap<&str, Nanos> = HashMap::new();
        let mut granted: HashMap<&str, Nanos> = HashMap::new();
        for approval in &self.record.approvals {
            let ttl = |name: &str| {
                let ttl = runs.get(&*approval.run).and_then(|limits| limits[name].as_u64()).unwrap_or(0);
                Some(Nanos::from(ttl)).filter(|ttl| *ttl > 0)
            };
            let end = |from: &str, name: &str| nanos(from).zip(ttl(name)).map(|(from, ttl)| from + ttl);
            let (says, is) = (nanos(&approval.expires_at), end(&approval.created_at, "approval_ttl"));
            if says != is {
                let (id, created) = (&approval.id, &approval.created_at);
                wrong
                    .push(format!("approval {id}, asked at {created}, expires at {:?}", approval.expires_at));
            }
            until.extend(is.map(|end| (&*approval.id, end)));
            granted.extend(end(&approval.decided_at, "grant_ttl").map(|end| (&*approval.id, end)));
        }
        for event in &self.record.events {
            let of = event.payload["approval_id"].as_str().unwrap_or_default();
            let end = match &*event.kind {
                "approval.decided" if event.payload["status"] != "expired" => until.get(of),
                "run.resumed" => granted.get(of),
                _ => None,
            };
            if nanos(&event.at).zip(end).is_some_and(|(at, end)| at > *end) {
                wrong.push(format!("{} at {} comes when approval {of} was over", event.kind, event.seq));
            }
        }
        wrong
    }

    fn fail(&mut self, event: &Event, why: &str) {
        self.wrong.push(format!("{} at {} of run {}: {why}", event.kind, event.seq, event.run));
    }
}

/// Whether a process takes over from a session of its own, which it knows to be gone.
fn is_of_one_process(taken: &Value) -> bool {
    let process = |name: &str| {
        taken[name].as_str().and_then(|owner| owner.rsplit_once('/')).map(|(of, _)| of.to_owned())
    };
    process("owner").is_some() && process("owner") == process("previous_owner")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::checker::record::{Approval, Run};

    const APART_MS: u64 = 4_000;

    /// The time so many seconds after nine.
    fn at(seconds: u64) -> String {
        format!("2026-10-01T09:{:02}:{:02}.25Z", seconds / 60, seconds % 60)
    }

    /// A call that is asked about, approved by a person whose clock is behind, collected and taken over.
    fn told() -> Vec<(u64, &'static str, Value)> {
        let taken = json!({"owner": "p:two/b", "previous_owner": "p:one/a", "previous_expires_at": at(40)});
        vec![
            (1, "run.created", json!({})),
            (1, "step.started", json!({})),
            (2, "step.policy", json!({})),
            (6, "approval.requested", json!({"approval_id": "a"})),
            (4, "approval.decided", json!({"approval_id": "a", "status": "approved"})),
            (9, "run.resumed", json!({"approval_id": "a"})),
            (9, "step.policy", json!({})),
            (10, "step.tool_started", json!({"approval_id": "a"})),
            (42, "lease.taken_over", taken),
            (42, "step.interrupted", json!({})),
            (42, "run.resumed", json!({"after": "interruption"})),
            (43, "step.started", json!({})),
            (44, "step.tool_started", json!({})),
            (45, "step.tool_finished", json!({"duration_ms": 2_000})),
            (45, "run.finished", json!({"reason": "goal_completed"})),
        ]
    }

    fn events(told: Vec<(u64, &str, Value)>) -> Vec<Event> {
        let event = |(seq, (seconds, kind, payload)): (i64, (u64, &str, Value))| Event {
            seq,
            run: "r".to_owned(),
            step: String::new(),
            at: at(seconds),
            kind: kind.to_owned(),
            payload_text: payload.to_string(),
            payload,
            hash: String::new(),
        };
        (1..).zip(told).map(event).collect()
    }

    fn found(told: Vec<(u64, &str, Value)>) -> Vec<Violation> {
        look(&Record { events: events(told), ..Record::default() }, APART_MS, true)
    }

    #[test]
    fn a_time_is_read_to_the_nanosecond_and_what_is_none_is_not() {
        assert_eq!(nanos("2026-06-15T09:00:00Z"), Some(1_781_514_000_000_000_000));
        assert_eq!(nanos("1970-01-01T00:00:00.000000001Z"), Some(1));
        assert_eq!(nanos("2000-02-29T23:59:59.5Z"), Some(951_868_799_500_000_000));
        for none in [
            "",
            "2026-06-15T09:00:00",
            "2026-06-15 09:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-06-15T09:00:00.x1Z",
        ] {
            assert_eq!(nanos(none), None, "{none}");
        }
    }

    #[test]
    fn times_that_one_hand_wrote_do_not_run_back_and_those_of_two_may_a_little() {
        assert!(found(told()).is_empty(), "{:?}", found(told()));
        // Each but the first of a hand.
        for of_a_hand in [1, 2, 3, 6, 7, 9, 10, 11, 12, 13, 14] {
            let mut back = told();
            back[of_a_hand].0 = back[of_a_hand - 1].0 - 1;
            let found = found(back);
            assert!(
                found.iter().any(|violation| violation.property == Property::Times),
                "{of_a_hand}: {found:?}"
            );
        }
        // A decision further before its question than the clocks were set apart, and one that was used before it was made.
        for (which, seconds) in [(4, 1), (5, 0)] {
            let mut back = told();
            back[which].0 = seconds;
            back[4].0 += u64::from(which == 5) * 6;
            assert!(!found(back).is_empty(), "{which}");
        }
    }

    #[test]
    fn a_lease_that_was_still_good_is_not_taken_over_but_by_its_own_process() {
        let with = |until: u64, by: &str| {
            let mut told = told();
            told[8].2["previous_expires_at"] = json!(at(until));
            told[8].2["owner"] = json!(by);
            found(told)
        };
        assert!(with(42, "p:two/b").is_empty());
        assert_eq!(with(43, "p:two/b").len(), 1);
        assert!(with(43, "p:one/b").is_empty());
    }

    #[test]
    fn a_call_took_as_long_as_it_says() {
        let mut other = told();
        other[13].2["duration_ms"] = json!(3_000);
        assert_eq!(found(other).len(), 1);
    }

    #[test]
    fn a_question_that_lasts_for_ever_or_is_answered_too_late_is_noticed() {
        let found = |expires_at: String, decided: u64, resumed: u64| {
            let mut told = told();
            (told[4].0, told[5].0) = (decided, resumed);
            told.truncate(6);
            let run: Run = Run {
                id: "r".to_owned(),
                limits: json!({"approval_ttl": 5_000_000_000_u64, "grant_ttl": 9_000_000_000_u64}),
                ..Run::default()
            };
            let approval = Approval {
                id: "a".to_owned(),
                run: "r".to_owned(),
                created_at: at(6),
                decided_at: at(decided),
                expires_at,
                ..Approval::default()
            };
            let record = Record {
                events: events(told),
                runs: vec![run],
                approvals: vec![approval],
                ..Record::default()
            };
            look(&record, APART_MS, true)
        };
        assert!(found(at(11), 11, 20).is_empty());
        for (expires_at, decided, resumed) in
            [(String::new(), 8, 9), (at(12), 8, 9), (at(11), 12, 13), (at(11), 8, 18)]
        {
            let found = found(expires_at.clone(), decided, resumed);
            assert!(
                found.iter().all(|violation| violation.property == Property::Allowed) && !found.is_empty(),
                "{expires_at} {decided} {resumed}: {found:?}"
            );
        }
    }
}
