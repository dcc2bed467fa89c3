//! Stories in which no process is killed: time passes, a server is late or dies, an operator or a hand at the file comes in
//! between.
//!
//! What a host has to be told in each is part of the story, and anything else is a violation.

use std::time::Duration;

use crate::cases::Case;
use crate::checker::{Property, Violation};
use crate::clock::{pass, until};
use crate::host::{Answer, End, Heard, Host, PATIENCE};
use crate::older::Age;
use crate::world::{Call, World};

/// Longer than a question or a grant is good for here.
const AN_HOUR: Duration = Duration::from_secs(3_600);
/// A lease in the configuration's words, and a time that is longer.
const LEASE: &str = "5s";
const LONGER: Duration = Duration::from_secs(6);
/// How often the other proxy looks on meanwhile.
const GLANCE: Duration = Duration::from_millis(250);
/// No pinning writes, syncs or truncates as often.
const OPERATIONS_OF_A_PIN: usize = 200;
/// A server's time, in the configuration's words.
const SOON: &str = "2s";

impl Case<'_> {
    fn wrong(&mut self, property: Property, detail: String) {
        self.outcome.violations.push(Violation { property, detail });
    }

    /// Makes a call once. Whoever answers must do so with one of these words.
    fn is_told(&mut self, host: &mut Host, call: &Call, words: &[&str]) -> Result<Answer, String> {
        let id = host.send(&call.tool, &call.args);
        let answer = self.world.hear(host, call, id)?.ok_or("a proxy died that nobody killed")?;
        if !words.contains(&answer.word().unwrap_or_default()) {
            let detail = format!("{} {} is told {:?}, and not {words:?}", call.tool, call.args, answer.text);
            self.wrong(Property::Explained, detail);
        }
        Ok(answer)
    }

    fn close(&mut self, host: Host) -> Result<(), String> {
        let found = self.world.close_and_judge(host, &mut self.rng)?;
        self.outcome.violations.extend(found);
        Ok(())
    }

    fn leave(host: Host) -> Result<(), String> {
        match host.leave() {
            Some(End::Exited(0)) => Ok(()),
            other => Err(format!("the proxy did not end in order: {other:?}")),
        }
    }

    /// A payment is approved; then something changes so that it may not run, and it is called again.
    pub(crate) fn collected_too_late(
        &mut self,
        change: impl FnOnce(&mut World) -> Result<(), String>,
    ) -> Result<(), String> {
        let (call, host) = self.called_again_after(true, change, &["DENIED", "EXPIRED"])?;
        self.was_not_applied(&call);
        self.close(host)
    }

    fn was_not_applied(&mut self, call: &Call) {
        if self.world.effects() > 0 {
            self.wrong(Property::Allowed, format!("{} {} was applied", call.tool, call.args));
        }
    }

    /// A payment is asked about, and approved or not; then something changes, and another proxy is asked for it.
    fn called_again_after(
        &mut self,
        approve: bool,
        change: impl FnOnce(&mut World) -> Result<(), String>,
        words: &[&str],
    ) -> Result<(Call, Host), String> {
        let call = Call::pay("bank", "b1", None);
        let mut host = self.world.start(None)?;
        self.is_told(&mut host, &call, &["PENDING_APPROVAL"])?;
        if approve {
            self.world.decide_all(&mut self.rng)?;
        }
        Case::leave(host)?;
        change(self.world)?;
        let mut host = self.world.start(None)?;
        self.is_told(&mut host, &call, words)?;
        Ok((call, host))
    }

    pub(crate) fn approved_an_hour_ago(&mut self) -> Result<(), String> {
        self.collected_too_late(|world| {
            world.pass(AN_HOUR);
            Ok(())
        })
    }

    pub(crate) fn nobody_answers(&mut self) -> Result<(), String> {
        let later = |world: &mut World| {
            world.pass(AN_HOUR);
            Ok(())
        };
        let (call, host) = self.called_again_after(false, later, &["EXPIRED"])?;
        self.was_not_applied(&call);
        self.close(host)
    }

    /// A tool's time is part of what is approved. With another one, its payment is asked about anew; with the old one again,
    /// what was granted first would fit to the byte, and is worth nothing any more.
    pub(crate) fn superseded(&mut self) -> Result<(), String> {
        let asks = ["PENDING_APPROVAL"];
        let (call, host) = self.called_again_after(true, |world| world.configure("20s", "21s"), &asks)?;
        Case::leave(host)?;
        self.world.configure("20s", "20s")?;
        let mut host = self.world.start(None)?;
        let told = self.is_told(&mut host, &call, &asks)?;
        self.was_not_applied(&call);
        let first = self.world.decided.first().map(|decided| decided.approval.clone());
        if told.approval().map(str::to_owned) == first {
            self.wrong(Property::Explained, format!("it waits for {first:?}, which somebody has decided"));
        }
        self.world.settle(&mut host, &call, &mut self.rng)?;
        self.close(host)
    }

    /// A person says yes, and another one no: the second is refused, and the first stands.
    pub(crate) fn decided_twice(&mut self) -> Result<(), String> {
        let call = Call::pay("bank", "b1", None);
        let mut host = self.world.start(None)?;
        self.is_told(&mut host, &call, &["PENDING_APPROVAL"])?;
        let waiting = self.world.waiting()?.pop().ok_or("nobody was asked")?;
        for approve in [true, false] {
            self.world.decide(&waiting, approve, None)?;
        }
        self.world.settle(&mut host, &call, &mut self.rng)?;
        self.close(host)
    }

    /// The stored question is no longer what was approved. What was bent is not judged any further.
    pub(crate) fn bent(&mut self, column: &str) -> Result<(), String> {
        let sql = format!("UPDATE approvals SET {column} = replace({column}, '40', '4000')");
        let words = ["UNAVAILABLE", "DENIED", "PENDING_APPROVAL"];
        let (call, host) = self.called_again_after(true, |world| world.bend(&sql), &words)?;
        self.was_not_applied(&call);
        Case::leave(host)
    }

    /// A person cancels a run whose payment is held in its server. What the server answers then is recorded beside it, and
    /// nobody sends it again.
    pub(crate) fn cancelled(&mut self) -> Result<(), String> {
        let call = Call::pay("petty", "p1", Some("after"));
        let mut host = self.world.start(None)?;
        let sent = host.send(&call.tool, &call.args);
        self.world.is_held("petty")?;
        let cancelled = self.world.cancel_all()?;
        if cancelled.len() != 1 {
            return Err(format!("{cancelled:?} were cancelled"));
        }
        self.world.release()?;
        self.world.hear(&mut host, &call, sent)?;
        self.is_told(&mut host, &call, &["REJECTED"])?;
        let late = self.world.late_outcomes()?;
        if late != 1 {
            self.wrong(
                Property::Acknowledged,
                format!("{late} outcomes are recorded beside the cancelled run"),
            );
        }
        self.close(host)
    }

    /// What is forbidden from the beginning is told so, and nothing of it is sent.
    pub(crate) fn denied(&mut self) -> Result<(), String> {
        self.world.configure("require_approval", "deny")?;
        let call = Call::pay("bank", "b1", None);
        let mut host = self.world.start(None)?;
        self.is_told(&mut host, &call, &["DENIED"])?;
        self.was_not_applied(&call);
        self.close(host)
    }

    /// The servers' tools are others than somebody has pinned: they are not offered, whatever they are called.
    pub(crate) fn drifted(&mut self) -> Result<(), String> {
        self.world.drift()?;
        let call = Call::pay("petty", "p1", None);
        let mut host = self.world.spawn(None)?;
        // It may refuse to serve at all.
        host.greet();
        let sent = host.send(&call.tool, &call.args);
        let heard = host.hear(sent, PATIENCE);
        if let Heard::Answer(Answer { text, .. }) = &heard
            && text.starts_with("paid")
        {
            self.wrong(Property::Allowed, format!("a tool that nobody has pinned says {text:?}"));
        }
        if let Heard::Silence = heard {
            return Err(format!("{call:?} was never answered"));
        }
        self.was_not_applied(&call);
        drop(host);
        Ok(())
    }

    /// So many questions wait that nobody is asked another.
    pub(crate) fn too_many(&mut self) -> Result<(), String> {
        self.world.configure("\"max_pending\":50", "\"max_pending\":1")?;
        let calls = ["b1", "b2"].map(|reference| Call::pay("bank", reference, None));
        let mut host = self.world.start(None)?;
        self.is_told(&mut host, &calls[0], &["PENDING_APPROVAL"])?;
        self.is_told(&mut host, &calls[1], &["BLOCKED"])?;
        let waiting = self.world.waiting()?.len();
        if waiting != 1 {
            self.wrong(Property::Allowed, format!("{waiting} questions wait, and one may"));
        }
        self.world.settle_all(&mut host, &calls, &mut self.rng)?;
        self.close(host)
    }

    /// A person says yes to what was asked an hour ago: the command refuses, and nothing runs.
    pub(crate) fn answered_too_late(&mut self) -> Result<(), String> {
        let call = Call::pay("bank", "b1", None);
        let mut host = self.world.start(None)?;
        self.is_told(&mut host, &call, &["PENDING_APPROVAL"])?;
        Case::leave(host)?;
        self.world.pass(AN_HOUR);
        self.is_refused()?;
        let mut host = self.world.start(None)?;
        self.is_told(&mut host, &call, &["EXPIRED"])?;
        self.was_not_applied(&call);
        self.close(host)
    }

    /// A person says yes to one question that waits, and must be refused.
    fn is_refused(&mut self) -> Result<(), String> {
        let waiting = self.world.waiting()?.pop().ok_or("nobody was asked")?;
        let before = self.world.decided.len();
        // Why it refuses is told in words of its own; that it does is what counts.
        drop(self.world.decide(&waiting, true, None));
        if self.world.decided.len() > before {
            self.world.decided.truncate(before);
            self.wrong(Property::Question, format!("{} could still be approved", waiting.id));
        }
        Ok(())
    }

    /// Somebody changes a question behind the gate's back before anybody has answered it. What was bent is not judged any
    /// further.
    pub(crate) fn bent_first(&mut self, column: &str) -> Result<(), String> {
        let call = Call::pay("bank", "b1", None);
        let mut host = self.world.start(None)?;
        self.is_told(&mut host, &call, &["PENDING_APPROVAL"])?;
        Case::leave(host)?;
        self.world.bend(&format!("UPDATE approvals SET {column} = replace({column}, '40', '4000')"))?;
        self.is_refused()?;
        let host = self.world.start(None)?;
        self.was_not_applied(&call);
        Case::leave(host)
    }

    /// A proxy dies with several payments that are applied and not answered: each is found, and each is asked about.
    pub(crate) fn several_cut_off(&mut self) -> Result<(), String> {
        let calls = ["p1", "p2", "p3"].map(|reference| Call::pay("petty", reference, Some("after")));
        let mut host = self.world.start(None)?;
        for call in &calls {
            host.send(&call.tool, &call.args);
        }
        let world = &*self.world;
        until(PATIENCE, || (world.effects() == calls.len()).then_some(())).ok_or("not all were applied")?;
        let end = host.kill();
        self.died(end)?;
        self.world.release()?;
        self.finish(&calls)
    }

    /// A server dies with a payment, and what came of it stays unknown until a person says what follows, however late.
    pub(crate) fn nobody_knows(&mut self) -> Result<(), String> {
        let call = Call::pay("petty", "p1", Some("exit"));
        let mut host = self.world.start(None)?;
        self.is_told(&mut host, &call, &["UNKNOWN_OUTCOME"])?;
        Case::leave(host)?;
        self.world.pass(AN_HOUR);
        let mut host = self.world.start(None)?;
        self.is_told(&mut host, &call, &["UNKNOWN_OUTCOME", "INTERRUPTED"])?;
        self.world.settle(&mut host, &call, &mut self.rng)?;
        self.close(host)
    }

    /// A server dies with a payment, and a person says no to its repetition: nobody knows to this day what came of it.
    pub(crate) fn refused(&mut self) -> Result<(), String> {
        let call = Call::pay("petty", "p1", Some("exit"));
        let mut host = self.world.start(None)?;
        self.is_told(&mut host, &call, &["UNKNOWN_OUTCOME"])?;
        let waiting = self.world.waiting()?.pop().ok_or("nobody was asked")?;
        self.world.decide(&waiting, false, None)?;
        self.is_told(&mut host, &call, &["REJECTED"])?;
        // Another payment looks through what is not settled yet.
        self.world.settle(&mut host, &Call::pay("petty", "p2", None), &mut self.rng)?;
        self.close(host)
    }

    /// While the outcome of one payment is unknown, another of the same tool has to wait.
    pub(crate) fn server_dies(&mut self, mode: &'static str) -> Result<(), String> {
        let (call, other) = (Call::pay("petty", "p1", Some(mode)), Call::pay("petty", "p2", None));
        let mut host = self.world.start(None)?;
        self.is_told(&mut host, &call, &["UNKNOWN_OUTCOME"])?;
        self.is_told(&mut host, &other, &["BLOCKED"])?;
        self.world.settle_all(&mut host, &[call.clone(), other, call], &mut self.rng)?;
        self.close(host)
    }

    /// The tool's time is over while its server still has the payment: nobody knows, and nobody sends it again.
    pub(crate) fn late_answer(&mut self) -> Result<(), String> {
        self.world.configure("20s", SOON)?;
        let call = Call::pay("petty", "p1", Some("after"));
        let mut host = self.world.start(None)?;
        self.is_told(&mut host, &call, &["UNKNOWN_OUTCOME"])?;
        self.world.release()?;
        self.world.settle(&mut host, &call, &mut self.rng)?;
        self.close(host)
    }

    /// A payment takes longer than a lease: its holder keeps the lease, and nobody else takes it over.
    pub(crate) fn longer_than_its_lease(&mut self) -> Result<(), String> {
        self.world.configure("\"lease_ttl\":\"3s\"", &format!("\"lease_ttl\":\"{LEASE}\""))?;
        let call = Call::pay("petty", "p1", Some("after"));
        let mut holder = self.world.start(None)?;
        let sent = holder.send(&call.tool, &call.args);
        self.world.is_held("petty")?;
        let mut other = self.world.start(None)?;
        let looks = LONGER.as_millis() / GLANCE.as_millis();
        for _ in 0..looks {
            self.is_told(&mut other, &call, &["IN_PROGRESS"])?;
            pass(GLANCE);
        }
        self.world.release()?;
        let paid = self.world.hear(&mut holder, &call, sent)?;
        if !paid.as_ref().is_some_and(|answer| answer.word().is_none() && !answer.is_error) {
            self.wrong(Property::Explained, format!("who held the payment all the time was told {paid:?}"));
        }
        until(PATIENCE, || self.world.waiting().ok().filter(Vec::is_empty)).ok_or("somebody was asked")?;
        Case::leave(holder)?;
        self.close(other)
    }

    /// To a proxy whose clock is an hour ahead, every lease has run out: it takes over from who is alive. Whoever is late by
    /// its own clock then sends nothing and records nothing, and a person says what follows.
    pub(crate) fn clocks_apart(&mut self) -> Result<(), String> {
        let call = Call::pay("petty", "p1", Some("after"));
        let mut holder = self.world.start(None)?;
        let sent = holder.send(&call.tool, &call.args);
        self.world.is_held("petty")?;
        self.world.pass(AN_HOUR);
        let mut ahead = self.world.start(None)?;
        self.is_told(&mut ahead, &call, &["INTERRUPTED", "IN_PROGRESS"])?;
        self.world.release()?;
        let late = self.world.hear(&mut holder, &call, sent)?;
        if late.as_ref().is_none_or(|answer| answer.word().is_none()) {
            self.wrong(
                Property::Explained,
                format!("who lost the payment to another clock was told {late:?}"),
            );
        }
        let found = self.world.judge()?;
        self.outcome.violations.extend(found);
        self.world.settle(&mut ahead, &call, &mut self.rng)?;
        Case::leave(holder)?;
        self.close(ahead)
    }

    /// Pinning again, with one operation after another failing: the pins stay those of before, or are whole.
    pub(crate) fn pin_fails(&mut self, which: &str) -> Result<(), String> {
        for n in 1..=OPERATIONS_OF_A_PIN {
            let before = self.outcome.failed;
            self.world.fail(Some(format!("{which}:{n}")));
            self.world.outdate_pins()?;
            self.world.pin_again()?;
            self.outcome.failed = self.world.hits().iter().filter(|line| line.starts_with("hit ")).count();
            self.world.fail(None);
            for torn in self.world.torn_pins() {
                self.wrong(Property::Whole, format!("{which}:{n}: {torn}"));
            }
            if self.outcome.failed == before {
                return Ok(());
            }
        }
        Err(format!("{which}: pinning has more than {OPERATIONS_OF_A_PIN} operations"))
    }

    /// A proxy dies as it migrates a file of an older version. What is left can't be read with today's statements, so it is
    /// judged once the next one has migrated it: it holds what it held.
    pub(crate) fn older(&mut self, age: Age, point: &str) -> Result<(), String> {
        // The first version had no approvals.
        let mut calls = vec![Call::read("r1"), Call::pay("petty", "p1", None)];
        if age != Age::Runtime(1) {
            calls.push(Call::pay("bank", "b1", None));
        }
        let mut host = self.world.start(None)?;
        self.world.settle_all(&mut host, &calls, &mut self.rng)?;
        Case::leave(host)?;
        self.world.bend(&age.way_back())?;
        self.world.older = true;
        match self.world.start(Some(&format!("{point}:1")))?.ends_within(PATIENCE) {
            Some(End::Killed) => self.outcome.deaths += 1,
            other => return Err(format!("the migration never came to {point}: {other:?}")),
        }
        self.finish(&calls)
    }

    pub(crate) fn calm(&mut self) -> Result<(), String> {
        let mut host = self.world.start(None)?;
        let mut calls = Case::workload();
        calls.extend([Call::pay("petty", "p2", None), Call::pay("petty", "e1", Some("error"))]);
        for call in calls.iter().chain(&calls) {
            self.world.settle(&mut host, call, &mut self.rng)?;
        }
        self.close(host)
    }
}
