//! The model: lease, intent, effect, outcome, approval, interruption and resolution of runs of one call, with an epoch.
//!
//! Owns what the record must refuse and what must never come about, in about one hundredth of the product's code, written
//! from the specification. `search` walks its states with stateright; `replay` walks the real store along it. A guard
//! can be left out, and then a property must fail: that shows that the property can.

use std::time::Duration;

use stateright::{Checker, Model, Property};

/// Processes that share the record.
pub(crate) const PROCESSES: usize = 3;
/// Holds of one run that are looked at: enough for a stale holder of a stale holder.
const EPOCHS_MAX: u8 = 5;

/// Where a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Standing {
    Absent,
    Running,
    Waiting,
    /// Over, with the call done.
    Completed,
    /// Over because a person said no, or because a grant came too late.
    Cancelled,
}

/// How far the run's one call has come, as the record has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Call {
    /// Decided, not started.
    Decided,
    /// Its intent is committed.
    Executing,
    /// It was cut off, and nobody has said what follows.
    Interrupted,
    /// It has an outcome.
    Done,
}

/// The latest question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Question {
    None,
    Pending,
    Approved,
    Rejected,
    Expired,
}

/// What a process holds of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Session {
    None,
    /// An allowed call, under this epoch.
    Allowed(u8),
    /// An allowed call whose grant, the answer to this question, is collected with the intent: nobody holds the run yet.
    Granted(u8),
    /// Its intent is committed under this epoch, and nothing is sent.
    Started(u8),
    /// The effect has left, and is not recorded.
    Sent(u8),
    /// The outcome is recorded; the run goes on.
    Recorded(u8),
    /// Taken over before anything was started.
    Open(u8),
}

impl Session {
    const fn epoch(self) -> Option<u8> {
        match self {
            Session::None | Session::Granted(_) => None,
            Session::Allowed(epoch)
            | Session::Started(epoch)
            | Session::Sent(epoch)
            | Session::Recorded(epoch)
            | Session::Open(epoch) => Some(epoch),
        }
    }
}

/// One run, and everybody's view of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Run {
    pub(crate) standing: Standing,
    pub(crate) call: Call,
    /// Whether the policy puts the call to a person.
    pub(crate) asks: bool,
    /// The epoch that holds it; zero for nobody.
    pub(crate) holder: u8,
    /// Whether that lease has run out.
    pub(crate) expired: bool,
    /// The newest epoch.
    pub(crate) epochs: u8,
    pub(crate) question: Question,
    /// How many were asked.
    pub(crate) asked: u8,
    /// Whether the latest question is about a call that was cut off.
    pub(crate) about_interruption: bool,
    /// Whether the latest grant is too old.
    pub(crate) stale: bool,
    /// Effects that the world has seen.
    pub(crate) effects: u8,
    /// Effects that somebody allowed: by policy once, and once for each grant.
    pub(crate) allowed: u8,
    /// The epoch whose intent is open.
    pub(crate) intent: u8,
    /// An effect left while its own intent was not open.
    pub(crate) unintended: bool,
    /// An intent was committed by somebody whose lease was over or another's.
    pub(crate) stale_intent: bool,
    /// An outcome was recorded by somebody other than the holder.
    pub(crate) stale_outcome: bool,
    /// A decision was overwritten.
    pub(crate) overwritten: bool,
    pub(crate) sessions: [Session; PROCESSES],
    /// Whose fence has closed: the time of the lease that it was stamped with has passed.
    pub(crate) fenced: [bool; PROCESSES],
}

impl Run {
    pub(crate) fn absent() -> Run {
        Run {
            standing: Standing::Absent,
            call: Call::Decided,
            asks: false,
            holder: 0,
            expired: false,
            epochs: 0,
            question: Question::None,
            asked: 0,
            about_interruption: false,
            stale: false,
            effects: 0,
            allowed: 0,
            intent: 0,
            unintended: false,
            stale_intent: false,
            stale_outcome: false,
            overwritten: false,
            sessions: [Session::None; PROCESSES],
            fenced: [false; PROCESSES],
        }
    }
}

/// What may be tried. Whether the record lets it happen is [`attempt`]'s to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    /// A process begins the run and proposes its call; `asks` when the policy puts it to a person.
    Begin { by: usize, asks: bool },
    /// It commits the intent of its allowed call.
    Start { by: usize },
    /// It sends the effect.
    Send { by: usize },
    /// It records the outcome.
    Record { by: usize },
    /// It completes the run.
    Complete { by: usize },
    /// It dies: what it knew is gone.
    Die { by: usize },
    /// The lease's time passes.
    Expire,
    /// It takes over, or collects a grant.
    Attach { by: usize },
    /// An operator answers the latest question.
    Decide { approve: bool },
    /// So much time passes that a question or a grant is too old.
    Age,
}

/// Guards that can be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Guards {
    /// Only the epoch that holds a run writes to it.
    pub(crate) epoch: bool,
    /// An intent needs a lease that stands, and so does sending.
    pub(crate) lease: bool,
    /// A run is taken over only when its lease has run out.
    pub(crate) live: bool,
    /// What was cut off is put to a person.
    pub(crate) asks_again: bool,
    /// A question is decided once.
    pub(crate) once: bool,
    /// Only the answer to the latest question is a grant.
    pub(crate) latest: bool,
}

impl Guards {
    pub(crate) const ALL: Guards =
        Guards { epoch: true, lease: true, live: true, asks_again: true, once: true, latest: true };
}

/// What came of trying something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attempt {
    pub(crate) run: Run,
    /// Whether the record refused it.
    pub(crate) refused: bool,
}

/// What somebody could try now, refused or not.
pub(crate) fn possible(run: &Run) -> Vec<Action> {
    let mut all = Vec::new();
    for by in 0..PROCESSES {
        match run.sessions[by] {
            Session::None if run.standing == Standing::Absent => {
                all.extend([false, true].map(|asks| Action::Begin { by, asks }));
            }
            Session::None => all.push(Action::Attach { by }),
            Session::Allowed(_) | Session::Granted(_) => {
                all.extend([Action::Start { by }, Action::Die { by }])
            }
            Session::Started(_) => all.extend([Action::Send { by }, Action::Die { by }]),
            Session::Sent(_) => all.extend([Action::Record { by }, Action::Die { by }]),
            Session::Recorded(_) | Session::Open(_) => {
                all.extend([Action::Complete { by }, Action::Die { by }]);
            }
        }
    }
    if run.holder != 0 && !run.expired {
        all.push(Action::Expire);
    }
    if run.question != Question::None {
        all.extend([true, false].map(|approve| Action::Decide { approve }));
        if !run.stale && matches!(run.question, Question::Pending | Question::Approved) {
            all.push(Action::Age);
        }
    }
    all
}

/// Tries something.
pub(crate) fn attempt(before: &Run, action: Action, guards: Guards) -> Attempt {
    let mut run = before.clone();
    let done = match action {
        Action::Begin { by, asks } => begin(&mut run, by, asks),
        Action::Start { by } => start(&mut run, by, guards),
        Action::Send { by } => send(&mut run, by, guards),
        Action::Record { by } => record(&mut run, by, guards),
        Action::Complete { by } => complete(&mut run, by, guards),
        Action::Die { by } => {
            run.sessions[by] = Session::None;
            true
        }
        Action::Expire => {
            run.expired = true;
            for by in 0..PROCESSES {
                run.fenced[by] |= run.sessions[by].epoch() == Some(run.holder);
            }
            true
        }
        Action::Attach { by } => attach(&mut run, by, guards),
        Action::Decide { approve } => decide(&mut run, approve, guards),
        Action::Age => {
            run.stale = true;
            true
        }
    };
    Attempt { run, refused: !done }
}

fn take(run: &mut Run, by: usize) -> u8 {
    run.epochs += 1;
    run.fenced[by] = false;
    run.holder = run.epochs;
    run.expired = false;
    run.epochs
}

fn ask(run: &mut Run, about_interruption: bool) {
    run.standing = Standing::Waiting;
    run.question = Question::Pending;
    run.asked += 1;
    run.about_interruption = about_interruption;
    run.stale = false;
    run.holder = 0;
    run.expired = false;
}

fn begin(run: &mut Run, by: usize, asks: bool) -> bool {
    if run.standing != Standing::Absent {
        return false;
    }
    run.asks = asks;
    let epoch = take(run, by);
    run.standing = Standing::Running;
    if asks {
        ask(run, false);
    } else {
        run.allowed = 1;
        run.sessions[by] = Session::Allowed(epoch);
    }
    true
}

/// Whether a session of this epoch may write, and what becomes of it when not: a hold that ran out is given up.
fn holds(run: &mut Run, by: usize, epoch: u8, must_live: bool, guards: Guards) -> bool {
    let running = run.standing == Standing::Running;
    let own = run.holder == epoch || !guards.epoch && run.holder != 0;
    let live = !must_live || !run.expired || !guards.lease;
    if running && own && live {
        return true;
    }
    run.sessions[by] = Session::None;
    if running && run.holder == epoch {
        run.holder = 0;
        run.expired = false;
    }
    false
}

fn start(run: &mut Run, by: usize, guards: Guards) -> bool {
    if let Session::Granted(question) = run.sessions[by] {
        return start_granted(run, by, question, guards);
    }
    let Session::Allowed(epoch) = run.sessions[by] else { return false };
    if !holds(run, by, epoch, true, guards) {
        return false;
    }
    run.stale_intent |= run.holder != epoch || run.expired;
    run.call = Call::Executing;
    run.intent = epoch;
    run.sessions[by] = Session::Started(epoch);
    true
}

/// The grant is collected with the intent: the run still waits, and takes a lease now. Only the answer to the latest
/// question counts: an earlier one is spent, whatever the record still says of it.
fn start_granted(run: &mut Run, by: usize, question: u8, guards: Guards) -> bool {
    run.sessions[by] = Session::None;
    let waits = run.standing == Standing::Waiting;
    let is_latest = question == run.asked;
    if !is_latest && guards.latest || !waits {
        return false;
    }
    if is_latest && run.question == Question::Approved && run.stale {
        run.standing = Standing::Cancelled;
        run.question = Question::Expired;
        return false;
    }
    if is_latest && run.question != Question::Approved {
        return false;
    }
    run.allowed += u8::from(is_latest);
    let epoch = take(run, by);
    run.standing = Standing::Running;
    run.call = Call::Executing;
    run.intent = epoch;
    run.sessions[by] = Session::Started(epoch);
    true
}

/// The fence: time since the lease was stamped, which nobody else can know better.
fn send(run: &mut Run, by: usize, guards: Guards) -> bool {
    let Session::Started(epoch) = run.sessions[by] else { return false };
    if run.fenced[by] && guards.lease {
        // Known not to have left; what follows is as after any outcome.
        run.sessions[by] = Session::Sent(epoch);
        return false;
    }
    run.unintended |= run.call != Call::Executing || run.intent != epoch;
    run.effects += 1;
    run.sessions[by] = Session::Sent(epoch);
    true
}

fn record(run: &mut Run, by: usize, guards: Guards) -> bool {
    let Session::Sent(epoch) = run.sessions[by] else { return false };
    if !holds(run, by, epoch, false, guards) {
        return false;
    }
    run.stale_outcome |= run.holder != epoch;
    run.call = Call::Done;
    run.intent = 0;
    run.sessions[by] = Session::Recorded(epoch);
    true
}

fn complete(run: &mut Run, by: usize, guards: Guards) -> bool {
    let (Session::Recorded(epoch) | Session::Open(epoch)) = run.sessions[by] else { return false };
    if !holds(run, by, epoch, false, guards) {
        return false;
    }
    run.standing = Standing::Completed;
    run.holder = 0;
    run.expired = false;
    run.sessions[by] = Session::None;
    true
}

fn attach(run: &mut Run, by: usize, guards: Guards) -> bool {
    match run.standing {
        Standing::Absent | Standing::Completed | Standing::Cancelled => false,
        Standing::Waiting if matches!(run.question, Question::Pending | Question::Approved) && run.stale => {
            // It is too late, which ends the run.
            run.question = Question::Expired;
            run.standing = Standing::Cancelled;
            true
        }
        Standing::Waiting if run.question == Question::Approved => {
            run.sessions[by] = Session::Granted(run.asked);
            true
        }
        Standing::Waiting => false,
        Standing::Running if run.holder != 0 && !run.expired && guards.live => false,
        Standing::Running => {
            let cut_off = run.call == Call::Executing;
            let epoch = take(run, by);
            if cut_off && guards.asks_again {
                run.call = Call::Interrupted;
                run.intent = 0;
                ask(run, true);
            } else if cut_off {
                run.call = Call::Decided;
                run.intent = 0;
                run.sessions[by] = Session::Allowed(epoch);
            } else {
                run.sessions[by] = Session::Open(epoch);
            }
            true
        }
    }
}

fn decide(run: &mut Run, approve: bool, guards: Guards) -> bool {
    let open = run.standing == Standing::Waiting && run.question == Question::Pending;
    if open && run.stale {
        run.question = Question::Expired;
        run.standing = Standing::Cancelled;
        return false;
    }
    let again = matches!(run.question, Question::Approved | Question::Rejected);
    if !(open || again && !guards.once) {
        return false;
    }
    run.overwritten |= again;
    run.stale = false;
    if approve {
        run.question = Question::Approved;
    } else {
        run.question = Question::Rejected;
        run.standing = Standing::Cancelled;
    }
    true
}

/// So many runs on one record, searched state by state.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub(crate) runs: usize,
    pub(crate) guards: Guards,
}

/// The names of what must always hold, and of what must be reachable.
pub(crate) const ALWAYS: [&str; 6] = [
    "an effect happens at most as often as somebody allowed it",
    "an effect leaves only under its own open intent",
    "no intent by a stale holder",
    "no outcome by a stale holder",
    "no decision is overwritten",
    "nobody holds a run that waits or is over",
];

impl Model for Record {
    type State = Vec<Run>;
    type Action = (usize, Action);

    fn init_states(&self) -> Vec<Vec<Run>> {
        vec![vec![Run::absent(); self.runs]]
    }

    fn actions(&self, state: &Vec<Run>, actions: &mut Vec<(usize, Action)>) {
        for (at, run) in state.iter().enumerate() {
            actions.extend(possible(run).into_iter().map(|action| (at, action)));
        }
    }

    fn next_state(&self, state: &Vec<Run>, (at, action): (usize, Action)) -> Option<Vec<Run>> {
        let mut next = state.clone();
        next[at] = attempt(&state[at], action, self.guards).run;
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Record>> {
        fn all(state: &[Run], holds: fn(&Run) -> bool) -> bool {
            state.iter().all(holds)
        }
        vec![
            Property::always(ALWAYS[0], |_, state: &Vec<Run>| all(state, |run| run.effects <= run.allowed)),
            Property::always(ALWAYS[1], |_, state: &Vec<Run>| all(state, |run| !run.unintended)),
            Property::always(ALWAYS[2], |_, state: &Vec<Run>| all(state, |run| !run.stale_intent)),
            Property::always(ALWAYS[3], |_, state: &Vec<Run>| all(state, |run| !run.stale_outcome)),
            Property::always(ALWAYS[4], |_, state: &Vec<Run>| all(state, |run| !run.overwritten)),
            Property::always(ALWAYS[5], |_, state: &Vec<Run>| {
                all(state, |run| run.standing == Standing::Running || run.holder == 0)
            }),
            Property::sometimes("a call that was cut off runs again and is done", |_, state: &Vec<Run>| {
                state.iter().any(|run| run.effects == 2 && run.standing == Standing::Completed)
            }),
            Property::sometimes("a call that was cut off is given up", |_, state: &Vec<Run>| {
                state.iter().any(|run| run.about_interruption && run.standing == Standing::Cancelled)
            }),
        ]
    }

    fn within_boundary(&self, state: &Vec<Run>) -> bool {
        state.iter().all(|run| run.epochs <= EPOCHS_MAX)
    }
}

/// What a search found.
#[derive(Debug)]
pub(crate) struct Searched {
    /// States, each counted once.
    pub(crate) unique: usize,
    /// Whether every state within the bounds was looked at.
    pub(crate) whole: bool,
    /// Properties that failed, each with the way there.
    pub(crate) failed: Vec<String>,
}

/// Searches the model until it is exhausted or has so many states.
pub(crate) fn search(record: Record, states_max: usize, within: Duration) -> Searched {
    let checker =
        record.checker().threads(2).target_state_count(states_max).timeout(within).spawn_bfs().join();
    let found = checker.discoveries();
    let mut failed: Vec<String> = ALWAYS
        .iter()
        .filter_map(|name| Some((name, found.get(name)?)))
        .map(|(name, path)| format!("{name}: {:?}", path.clone().into_actions()))
        .collect();
    let unreached = record_sometimes().filter(|name| !found.contains_key(name));
    let whole = checker.state_count() < states_max && checker.is_done();
    if whole {
        failed.extend(unreached.map(|name| format!("never came about: {name}")));
    }
    Searched { unique: checker.unique_state_count(), whole, failed }
}

fn record_sometimes() -> impl Iterator<Item = &'static str> {
    let record = Record { runs: 1, guards: Guards::ALL };
    record.properties().into_iter().map(|property| property.name).filter(|name| !ALWAYS.contains(name))
}

/// The guards that are left out one at a time, and what must then fail.
pub(crate) const UNGUARDED: [(&str, Guards, &str); 6] = [
    ("no epoch", Guards { epoch: false, ..Guards::ALL }, ALWAYS[3]),
    ("the lease is not looked at", Guards { lease: false, ..Guards::ALL }, ALWAYS[2]),
    ("live runs are taken over", Guards { live: false, ..Guards::ALL }, ALWAYS[1]),
    ("what was cut off runs again unasked", Guards { asks_again: false, ..Guards::ALL }, ALWAYS[0]),
    ("an earlier grant is used", Guards { latest: false, ..Guards::ALL }, ALWAYS[0]),
    ("decisions can be changed", Guards { once: false, ..Guards::ALL }, ALWAYS[4]),
];
