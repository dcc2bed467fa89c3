//! Real deaths at named points: who dies where, what happens around it, and what is judged after it.
//!
//! A case counts only if the process really died by signal 9 at its point. Each is run in a world of its own.

use std::time::Duration;

use rustix::process::Signal;

use crate::checker::{Property, Violation};
use crate::clock::{Rng, pass, until};
use crate::failing::KINDS;
use crate::host::{End, Heard, Host, PATIENCE};
use crate::inside::{self, Layer};
use crate::older::{AGES, Age};
use crate::world::{Call, LEASE, Programs, Settled, World};

/// How long a death may take that nothing in the workload brings about, but time: the flush, the idle checkpoint.
const BY_ITSELF: Duration = Duration::from_secs(5);
/// How long a stopped process stands: past two thirds of its lease, when nothing may leave any more.
const STOPPED: Duration = Duration::from_millis(2_300);

/// How long somebody may be kept out by a process that stands still.
const LOCKED: Duration = Duration::from_secs(5);

/// Reads and payments that come at once.
const TOGETHER: u64 = 6;
/// Reads one after another, and how long between: in all eight times as long as a read stays unsynced.
const READS: u64 = 16;
const BETWEEN_READS: Duration = Duration::from_millis(50);

/// Outages of one world, one after another.
const OUTAGES: u64 = 2;

/// Images of one recording, where that is not the layer itself.
pub(crate) const IMAGES: usize = 300;

/// Which syncs the calls of a failing world make, roughly: those of the start come first.
const SYNCS_OF_CALLS: std::ops::RangeInclusive<u32> = 7..=13;
/// Images of a recording in which a sync failed.
const IMAGES_FAILING: usize = 300;

/// Where a migration can be died at.
const MIGRATION: [&str; 4] = ["migrate.begun", "migrate.runtime", "migrate.written", "migrate.committed"];

/// How a case goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Story {
    /// The first proxy dies at this point of a read, a payment and an approved payment.
    Proxy(String),
    /// The first proxy dies at this point after a read, when nothing else comes.
    Idle(String),
    /// The proxy that recovers dies at this point.
    Recovery(String),
    /// The operator's command dies at this point of an approval.
    Approval(String),
    /// The operator's command dies at this point of the answer to an interruption.
    Rejection(String),
    /// The proxy is killed from outside while its payment is held there by the world.
    Held(&'static str),
    /// Two proxies recover the same file at once.
    TwoRecoverers,
    /// The server dies instead, with its effect applied or not.
    ServerDies(&'static str),
    /// A proxy is stopped after its intent until its lease is over and somebody else has taken over, and goes on.
    StoppedPastItsLease,
    /// The power is cut at so many moments of what a proxy and an operator wrote.
    PowerCut(usize),
    /// A write, sync or truncation of the first proxy, or of the first service, fails: `<operation>:<how>:<which>`.
    Failing { which: String, embedded: bool },
    /// One sync of the first proxy fails, of those of its calls, in a world for each until something is noticed.
    FailingSyncs,
    /// A rule forbids what was approved, before it is collected.
    PolicyChanged,
    /// An hour passes, after which what was approved may no longer run.
    AnHourLater,
    /// An hour passes before anybody answers.
    NobodyAnswers,
    /// An hour passes before anybody says what follows from an unknown outcome.
    NobodyKnows,
    /// What was approved is asked about anew, and before anybody answers that it is again what was approved.
    Superseded,
    /// Two people answer the same question, one yes and the other no.
    DecidedTwice,
    /// This column of an approved question is changed behind the gate's back.
    Bent(&'static str),
    /// A payment takes longer than a lease lasts, while another proxy looks on.
    LongerThanItsLease,
    /// A server answers after its time.
    LateAnswer,
    /// An operator cancels a payment that is held in its server.
    Cancelled,
    /// A rule forbids the payment from the beginning.
    Denied,
    /// The server's tools are others than were pinned.
    Drifted,
    /// Another question would be one too many.
    TooMany,
    /// A person answers an hour too late.
    AnsweredTooLate,
    /// This column of a question is changed behind the gate's back, and then somebody approves it.
    BentFirst(&'static str),
    /// A server dies with its payment, and a person says that it is not to run again.
    Refused,
    /// The proxy is killed while several payments are applied and not answered.
    SeveralCutOff,
    /// A proxy that takes a run over is stopped when it has read who held it; before it goes on, another one has taken it over,
    /// gone on with it and died.
    TakenOverMeanwhile,
    /// One proxy's clock is an hour ahead of another's, whose payment is held.
    ClocksApart,
    /// Pinning fails in the middle of this operation on its files, or any after it: `<operation>:<how>`.
    PinFails(&'static str),
    /// The proxy that migrates a file of an older version dies at this point.
    Older(Age, &'static str),
    /// A layer that runs inside one process.
    Inside(Layer),
    /// Nobody dies.
    Calm,
}

/// What came of a case.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Cases that this is the sum of; zero is one.
    pub(crate) cases: usize,
    /// Processes that died by signal 9 as they should.
    pub(crate) deaths: usize,
    /// Payments that the world saw.
    pub(crate) effects: usize,
    /// Images of a disk that were judged.
    pub(crate) images: usize,
    /// Operations on files that failed.
    pub(crate) failed: usize,
    pub(crate) violations: Vec<Violation>,
    /// What went wrong with the case itself.
    pub(crate) trouble: Option<String>,
    /// Where to look, when it failed.
    pub(crate) kept: Option<String>,
}

impl Outcome {
    pub(crate) fn is_good(&self) -> bool {
        self.violations.is_empty() && self.trouble.is_none()
    }

    /// Adds another case's outcome, which is told by this name.
    pub(crate) fn add(&mut self, other: Outcome, name: &str) {
        self.cases += 1;
        self.deaths += other.deaths;
        self.effects += other.effects;
        self.images += other.images;
        self.failed += other.failed;
        self.violations.extend(other.violations.into_iter().map(|violation| violation.at(name)));
        let trouble = other.trouble.map(|why| format!("{name}: {why}"));
        self.trouble = self.trouble.take().or(trouble);
        self.kept = self.kept.take().or(other.kept);
    }
}

/// The points of the list, each with a name for the report.
pub(crate) fn named() -> Vec<(String, Story)> {
    let mut all: Vec<Story> = Vec::new();
    // Every commit: begun, its rows written, its events too, committed. Of a read, a payment, an approved one.
    for phase in ["begun", "rows", "written", "committed"] {
        for kind in ["step.tool_started", "step.tool_finished"] {
            all.extend((1..=3).map(|count| Story::Proxy(format!("{phase}/{kind}:{count}"))));
        }
        all.push(Story::Proxy(format!("{phase}/approval.requested:1")));
        all.push(Story::Recovery(format!("{phase}/lease.taken_over:1")));
        all.push(Story::Recovery(format!("{phase}/approval.requested:1")));
        all.push(Story::Recovery(format!("{phase}/run.resumed:1")));
    }
    for point in
        ["session.judging", "session.starting", "session.started", "executor.sending", "session.answered"]
    {
        all.extend((1..=3).map(|count| Story::Proxy(format!("{point}:{count}"))));
    }
    all.extend((1..=4).map(|count| Story::Proxy(format!("front.answering:{count}"))));
    for point in ["flush.written", "flush.committed", "checkpoint.before", "checkpoint.after"] {
        all.push(Story::Idle(format!("{point}:1")));
    }
    for point in MIGRATION {
        all.push(Story::Proxy(format!("{point}:1")));
    }
    all.push(Story::Recovery("recover.before:1".to_owned()));
    for point in ["decide.begun", "decide.written", "decide.committed"] {
        all.push(Story::Approval(format!("{point}:1")));
        all.push(Story::Rejection(format!("{point}:1")));
    }
    all.extend(["before", "after"].map(Story::Held));
    all.push(Story::TwoRecoverers);
    all.extend(["exit", "vanish"].map(Story::ServerDies));
    all.push(Story::StoppedPastItsLease);
    all.push(Story::PowerCut(IMAGES));
    all.push(Story::PolicyChanged);
    all.extend([Story::AnHourLater, Story::NobodyAnswers, Story::NobodyKnows]);
    all.extend([Story::Superseded, Story::DecidedTwice]);
    all.extend(["capability_json", "presentation_json", "request_json"].map(Story::Bent));
    all.extend([Story::Cancelled, Story::Denied, Story::Drifted, Story::TooMany, Story::AnsweredTooLate]);
    all.extend(["capability_json", "presentation_json", "request_json"].map(Story::BentFirst));
    all.extend([Story::Refused, Story::SeveralCutOff, Story::TakenOverMeanwhile]);
    all.extend([Story::LongerThanItsLease, Story::LateAnswer, Story::ClocksApart]);
    all.extend(KINDS.map(Story::PinFails));
    for age in AGES {
        all.extend(MIGRATION.map(|point| Story::Older(age, point)));
    }
    all.push(Story::Calm);
    all.into_iter().map(|story| (name(&story), story)).collect()
}

fn name(story: &Story) -> String {
    match story {
        Story::Proxy(point) => format!("proxy at {point}"),
        Story::Idle(point) => format!("idle proxy at {point}"),
        Story::Recovery(point) => format!("recovery at {point}"),
        Story::Approval(point) => format!("approval at {point}"),
        Story::Rejection(point) => format!("rejection at {point}"),
        Story::Held(place) => format!("proxy killed {place} the effect"),
        Story::TwoRecoverers => "two recoverers".to_owned(),
        Story::ServerDies(mode) => format!("server dies: {mode}"),
        Story::StoppedPastItsLease => "stopped past its lease".to_owned(),
        Story::PowerCut(_) => "power cut".to_owned(),
        Story::Failing { which, .. } => format!("failing {which}"),
        Story::FailingSyncs => "failing syncs".to_owned(),
        Story::PolicyChanged => "forbidden after it was approved".to_owned(),
        Story::AnHourLater => "approved an hour ago".to_owned(),
        Story::NobodyAnswers => "asked an hour ago".to_owned(),
        Story::NobodyKnows => "unknown for an hour".to_owned(),
        Story::Superseded => "replaced before it was collected".to_owned(),
        Story::DecidedTwice => "decided twice".to_owned(),
        Story::Bent(column) => format!("bent after it was approved: {column}"),
        Story::LongerThanItsLease => "longer than its lease".to_owned(),
        Story::LateAnswer => "answered too late".to_owned(),
        Story::Cancelled => "cancelled while its payment is held".to_owned(),
        Story::Denied => "forbidden".to_owned(),
        Story::Drifted => "other tools than were pinned".to_owned(),
        Story::TooMany => "one question too many".to_owned(),
        Story::AnsweredTooLate => "answered an hour too late".to_owned(),
        Story::BentFirst(column) => format!("bent before it was approved: {column}"),
        Story::SeveralCutOff => "several payments cut off".to_owned(),
        Story::Refused => "unknown and refused".to_owned(),
        Story::TakenOverMeanwhile => "taken over meanwhile".to_owned(),
        Story::ClocksApart => "clocks an hour apart".to_owned(),
        Story::PinFails(which) => format!("pin under {which}"),
        Story::Older(age, point) => format!("file of {} at {point}", age.name()),
        Story::Inside(layer) => layer.name.to_owned(),
        Story::Calm => "nobody dies".to_owned(),
    }
}

/// Runs one case.
pub(crate) fn run(
    programs: &Programs,
    label: &str,
    story: &Story,
    broken: Option<&'static str>,
    seed: u64,
) -> Outcome {
    let mut outcome = Outcome::default();
    if let Story::Inside(layer) = story {
        let line = inside::run(programs, layer, seed, broken);
        let failed = inside::failures(&line).into_iter();
        outcome.violations.extend(failed.map(|detail| Violation { property: Property::Model, detail }));
        return outcome;
    }
    if *story == Story::FailingSyncs {
        for n in SYNCS_OF_CALLS {
            let which = format!("sync:eio:{n}");
            let story = Story::Failing { which: which.clone(), embedded: false };
            let of_one = run(programs, &format!("{label}-{n}"), &story, broken, seed);
            outcome.add(of_one, &which);
        }
        return outcome;
    }
    let mut world = match World::make(programs, label, broken) {
        Ok(world) => world,
        Err(why) => return Outcome { trouble: Some(why), ..outcome },
    };
    let mut case = Case { world: &mut world, rng: Rng::new(seed), outcome: &mut outcome };
    if let Err(why) = case.tell(story) {
        outcome.trouble = Some(why);
        // What is left is judged all the same.
        match world.judge() {
            Ok(found) => outcome.violations.extend(found),
            Err(why) => outcome.trouble = Some(why),
        }
    }
    outcome.violations.append(&mut world.wrong);
    outcome.effects = world.effects();
    if (outcome.trouble.is_some() || !outcome.violations.is_empty()) && broken.is_none() {
        world.keep = true;
        outcome.kept = Some(world.root().display().to_string());
    }
    outcome
}

pub(crate) struct Case<'a> {
    pub(crate) world: &'a mut World,
    pub(crate) rng: Rng,
    pub(crate) outcome: &'a mut Outcome,
}

impl Case<'_> {
    fn tell(&mut self, story: &Story) -> Result<(), String> {
        match story {
            Story::Proxy(fault) => self.proxy_dies(fault, Case::workload()),
            Story::Idle(fault) => self.proxy_dies(fault, vec![Call::read("r1")]),
            Story::Recovery(fault) => self.recovery_dies(fault),
            Story::Approval(fault) => self.operator_dies(fault, false),
            Story::Rejection(fault) => self.operator_dies(fault, true),
            Story::Held(place) => self.held(place),
            Story::TwoRecoverers => self.two_recoverers(),
            Story::ServerDies(mode) => self.server_dies(mode),
            Story::StoppedPastItsLease => self.stopped_past_its_lease(),
            Story::PowerCut(images) => self.power_cut(*images),
            Story::Failing { which, embedded } => self.failing(which, *embedded),
            Story::PolicyChanged => {
                self.collected_too_late(|world| world.configure("require_approval", "deny"))
            }
            Story::AnHourLater => self.approved_an_hour_ago(),
            Story::NobodyAnswers => self.nobody_answers(),
            Story::NobodyKnows => self.nobody_knows(),
            Story::Superseded => self.superseded(),
            Story::DecidedTwice => self.decided_twice(),
            Story::Bent(column) => self.bent(column),
            Story::LongerThanItsLease => self.longer_than_its_lease(),
            Story::LateAnswer => self.late_answer(),
            Story::Cancelled => self.cancelled(),
            Story::Denied => self.denied(),
            Story::Drifted => self.drifted(),
            Story::TooMany => self.too_many(),
            Story::AnsweredTooLate => self.answered_too_late(),
            Story::BentFirst(column) => self.bent_first(column),
            Story::SeveralCutOff => self.several_cut_off(),
            Story::Refused => self.refused(),
            Story::TakenOverMeanwhile => self.taken_over_meanwhile(),
            Story::ClocksApart => self.clocks_apart(),
            Story::PinFails(which) => self.pin_fails(which),
            Story::Older(age, point) => self.older(*age, point),
            // They have no world of their own.
            Story::Inside(_) | Story::FailingSyncs => Ok(()),
            Story::Calm => self.calm(),
        }
    }

    pub(crate) fn workload() -> Vec<Call> {
        vec![Call::read("r1"), Call::pay("petty", "p1", None), Call::pay("bank", "b1", None)]
    }

    pub(crate) fn died(&mut self, end: Option<End>) -> Result<(), String> {
        match end {
            Some(End::Killed) => {
                self.outcome.deaths += 1;
                let found = self.world.judge()?;
                self.outcome.violations.extend(found);
                Ok(())
            }
            other => Err(format!("the process never came to its point: {other:?}")),
        }
    }

    pub(crate) fn finish(&mut self, calls: &[Call]) -> Result<(), String> {
        let found = self.world.recover_and_judge(calls, &mut self.rng)?;
        self.outcome.violations.extend(found);
        Ok(())
    }

    fn proxy_dies(&mut self, fault: &str, calls: Vec<Call>) -> Result<(), String> {
        let mut host = self.world.start(Some(fault))?;
        for call in &calls {
            if self.world.settle(&mut host, call, &mut self.rng)? == Settled::Died {
                break;
            }
        }
        let end = host.ends_within(BY_ITSELF);
        self.died(end)?;
        self.finish(&calls)
    }

    /// A proxy is killed while its payment is applied and not answered.
    fn cut_off(&mut self, place: &'static str) -> Result<Call, String> {
        let call = Call::pay("petty", "p1", Some(place));
        let mut host = self.world.start(None)?;
        host.send(&call.tool, &call.args);
        self.world.is_held("petty")?;
        let end = host.kill();
        self.died(end)?;
        self.world.release()?;
        Ok(call)
    }

    fn held(&mut self, place: &'static str) -> Result<(), String> {
        let call = self.cut_off(place)?;
        self.finish(&[call])
    }

    fn recovery_dies(&mut self, fault: &str) -> Result<(), String> {
        let call = self.cut_off("after")?;
        self.world.pass_lease();
        let mut host = self.world.start(Some(fault))?;
        if self.approves_first(fault) {
            self.answer_interruption(&mut host, &call)?;
        }
        let _settled = self.world.settle(&mut host, &call, &mut self.rng)?;
        let end = host.ends_within(BY_ITSELF);
        self.died(end)?;
        self.finish(&[call])
    }

    /// Whether the point is on the way of a repetition that somebody approved.
    fn approves_first(&self, fault: &str) -> bool {
        fault.contains("run.resumed")
    }

    fn answer_interruption(&mut self, host: &mut Host, call: &Call) -> Result<(), String> {
        host.send(&call.tool, &call.args);
        let waiting = until(PATIENCE, || self.world.waiting().ok().and_then(|mut all| all.pop()));
        let waiting = waiting.ok_or("recovery asked nobody")?;
        self.world.decide(&waiting, true, None).map(drop)
    }

    fn operator_dies(&mut self, fault: &str, interruption: bool) -> Result<(), String> {
        let call = match interruption {
            true => self.cut_off("after")?,
            false => Call::pay("bank", "b1", None),
        };
        self.world.pass_lease();
        let mut host = self.world.start(None)?;
        host.send(&call.tool, &call.args);
        let waiting = until(PATIENCE, || self.world.waiting().ok().and_then(|mut all| all.pop()));
        let waiting = waiting.ok_or("nobody was asked")?;
        let end = self.world.decide(&waiting, !interruption, Some(fault))?;
        self.died(Some(end))?;
        let calls = [call, Call::pay("bank", "b2", None)];
        for call in &calls {
            self.world.settle(&mut host, call, &mut self.rng)?;
        }
        let found = self.world.close_and_judge(host, &mut self.rng)?;
        self.outcome.violations.extend(found);
        Ok(())
    }

    fn two_recoverers(&mut self) -> Result<(), String> {
        let call = self.cut_off("after")?;
        self.world.pass_lease();
        let (mut one, mut other) = (self.world.start(None)?, self.world.start(None)?);
        one.send(&call.tool, &call.args);
        other.send(&call.tool, &call.args);
        self.world.settle(&mut one, &call, &mut self.rng)?;
        self.world.settle(&mut other, &call, &mut self.rng)?;
        if other.leave() != Some(End::Exited(0)) {
            return Err("a recoverer did not end in order".to_owned());
        }
        let found = self.world.close_and_judge(one, &mut self.rng)?;
        self.outcome.violations.extend(found);
        Ok(())
    }

    fn taken_over_meanwhile(&mut self) -> Result<(), String> {
        let call = self.cut_off("after")?;
        self.world.see_holders()?;
        self.world.pass_lease();
        let mut late = self.world.spawn(Some("recover.read:1:stop"))?;
        until(PATIENCE, || late.is_stopped().then_some(())).ok_or("the recoverer was never stopped")?;
        let mut other = self.world.start(Some("session.started:1"))?;
        self.answer_interruption(&mut other, &call)?;
        let _died = self.world.settle(&mut other, &call, &mut self.rng)?;
        let end = other.ends_within(PATIENCE);
        self.died(end)?;
        self.world.see_holders()?;
        // The clock of who was stopped is the one that the dead one's lease has to run out by.
        pass(LEASE + STOPPED);
        late.signal(Signal::CONT);
        late.greet();
        self.world.settle(&mut late, &call, &mut self.rng)?;
        if late.leave() != Some(End::Exited(0)) {
            return Err("the recoverer did not end in order".to_owned());
        }
        // Only who starts later ends what the dead one's servers left.
        self.finish(&[call])
    }

    fn stopped_past_its_lease(&mut self) -> Result<(), String> {
        let call = Call::pay("petty", "p1", None);
        let mut stopped = self.world.start(Some("session.started:1:stop"))?;
        let sent = stopped.send(&call.tool, &call.args);
        until(PATIENCE, || stopped.is_stopped().then_some(())).ok_or("the proxy was never stopped")?;
        self.world.pass_lease();
        let mut other = self.world.start(None)?;
        pass(STOPPED);
        // Who was stopped may have stopped with the file's lock, and nobody takes over before it goes on.
        let _asked = until(LOCKED, || {
            other.send(&call.tool, &call.args);
            self.world.waiting().ok().filter(|all| !all.is_empty())
        });
        stopped.signal(Signal::CONT);
        if let Heard::Silence = stopped.hear(sent, PATIENCE) {
            return Err("the call of the stopped proxy was never answered".to_owned());
        }
        let found = self.world.judge()?;
        self.outcome.violations.extend(found);
        self.world.settle(&mut other, &call, &mut self.rng)?;
        if stopped.leave() != Some(End::Exited(0)) {
            return Err("the stopped proxy did not end in order".to_owned());
        }
        let found = self.world.close_and_judge(other, &mut self.rng)?;
        self.outcome.violations.extend(found);
        Ok(())
    }

    fn power_cut(&mut self, images: usize) -> Result<(), String> {
        self.world.record();
        let cut_off = self.cut_off("after")?;
        self.world.pass_lease();
        let mut host = self.world.start(None)?;
        let payment = |server, at: u64| Call::pay(server, &format!("{server}{at}"), None);
        for at in 0..3 {
            let calls = [cut_off.clone(), Call::read("r1"), payment("petty", at), payment("bank", at)];
            self.world.settle_all(&mut host, &calls, &mut self.rng)?;
            match at {
                // Long enough for the idle checkpoint, so that the log begins again.
                1 => pass(Duration::from_millis(1_200 + self.rng.below(400))),
                _ => self.side_by_side(&mut host, at)?,
            }
        }
        let end = host.kill();
        self.died(end)?;
        let images = self.world.cut_power(images, &mut self.rng)?;
        self.outcome.images += images.built;
        self.outcome.violations.extend(images.violations);
        self.come_back(&[cut_off, payment("petty", 0), payment("bank", 0)])
    }

    /// The power really goes, and a proxy comes back to what a disk may have kept of everything; and again.
    fn come_back(&mut self, before: &[Call]) -> Result<(), String> {
        for at in 0..OUTAGES {
            self.world.lose_power(&mut self.rng)?;
            self.outcome.images += 1;
            let found = self.world.judge()?;
            self.outcome.violations.extend(found);
            self.world.pass_lease();
            let mut host = self.world.start(None)?;
            let found = self.world.recovered_unasked()?;
            self.outcome.violations.extend(found);
            self.world.settle_all(&mut host, before, &mut self.rng)?;
            // Nobody waits for these.
            for one in 0..TOGETHER {
                let call = Call::pay("petty", &format!("o{at}{one}"), None);
                host.send(&call.tool, &call.args);
            }
            pass(Duration::from_millis(self.rng.below(30)));
            let end = host.kill();
            self.died(end)?;
        }
        self.world.lose_power(&mut self.rng)?;
        self.finish(before)
    }

    /// Reads and payments come at once, so that they share commits; then reads alone, for many times as long as they stay
    /// unsynced and without a pause in which the log would be copied.
    fn side_by_side(&mut self, host: &mut Host, at: u64) -> Result<(), String> {
        let together =
            |one| [Call::read(&format!("s{at}{one}")), Call::pay("petty", &format!("s{at}{one}"), None)];
        let calls: Vec<Call> = (0..TOGETHER).flat_map(together).collect();
        let sent: Vec<u64> = calls.iter().map(|call| host.send(&call.tool, &call.args)).collect();
        for (call, id) in calls.iter().zip(sent) {
            self.world.hear(host, call, id)?;
        }
        self.world.settle(host, &Call::read(&format!("r{at}")), &mut self.rng)?;
        let early = self.world.told.len();
        for one in 0..READS {
            self.world.settle(host, &Call::read(&format!("t{at}{one}")), &mut self.rng)?;
            if at == 0 && one % 4 == 0 {
                // At once: what is handed on as evidence is synced for whoever sends it on. Only in one round, because that
                // syncs the reads before it, too.
                self.world.keep_head()?;
            }
            pass(BETWEEN_READS);
        }
        self.world.are_kept(early);
        for one in 0..TOGETHER {
            self.world.settle(host, &Call::read(&format!("u{at}{one}")), &mut self.rng)?;
        }
        Ok(())
    }

    /// The first proxy goes on, ends, or is restarted; what it had acknowledged stands, also if the power goes then.
    fn failing(&mut self, which: &str, embedded: bool) -> Result<(), String> {
        if embedded {
            self.world.embed();
        }
        self.world.record();
        self.world.fail(Some(which.to_owned()));
        let mut calls = vec![Call::read("r1"), Call::pay("petty", "p1", None)];
        calls.extend([Call::read("r2"), Call::pay("bank", "b1", None)]);
        calls.extend([Call::read("r3"), Call::pay("petty", "p2", None)]);
        let host = self.world.start(None);
        // Only the one that was started.
        self.world.fail(None);
        let mut host = host?;
        for call in &calls {
            if self.world.settle(&mut host, call, &mut self.rng)? == Settled::Died {
                break;
            }
        }
        if let Some(End::Killed) | None = host.leave() {
            return Err("the proxy did not end by itself".to_owned());
        }
        let hits = self.world.hits();
        self.outcome.failed += hits.iter().filter(|line| line.starts_with("hit ")).count();
        let again = hits.iter().filter(|line| line.starts_with("after "));
        let again = again.map(|line| Violation { property: Property::SyncEnds, detail: line.clone() });
        self.outcome.violations.extend(again);
        let found = self.world.judge()?;
        self.outcome.violations.extend(found);
        if which.starts_with("sync") && self.outcome.failed > 0 && self.world.was_synced() {
            let images = self.world.cut_power(IMAGES_FAILING, &mut self.rng)?;
            self.outcome.images += images.built;
            self.outcome.violations.extend(images.violations);
        }
        self.finish(&calls)
    }
}
