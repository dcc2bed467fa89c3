//! Real deaths at random moments, and several processes on one file.
//!
//! Owns two loops. Each begins in a fresh world with a seed of its own, so that a seed printed on failure repeats what
//! chance decided; the moment of a kill is real time, so what it hits is not repeated to the instant.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::process::{Signal, kill_process};

use crate::cases::Outcome;
use crate::checker::Told;
use crate::clock::{Rng, pass};
use crate::host::{End, Heard, Host, PATIENCE};
use crate::world::{Call, LEASE, Programs, World};

/// Proxies that die one after another in one world.
const LIVES: u64 = 24;
/// The latest moment of a proxy's kill after it was started or had greeted, and of a service's, which has no servers to wait
/// for.
const KILL_MS_MAX: u64 = 400;
const KILL_SERVICE_MS_MAX: u64 = 40;
/// Payments of a kind of a world.
const REFERENCES: u64 = 24;
/// How long a host of a doomed proxy waits for an answer.
const DOOMED: Duration = Duration::from_secs(5);

/// Kills one proxy after another at random moments, judging after each death, and recovers in the end.
pub(crate) fn lives(programs: &Programs, label: &str, broken: Option<&'static str>, seed: u64) -> Outcome {
    with_world(programs, label, broken, |world, outcome| {
        let mut rng = Rng::new(seed);
        // Most deaths are a service's, which is there sooner; of every ten worlds one is a proxy's.
        if !seed.is_multiple_of(10) {
            world.embed();
        }
        let mut made: Vec<Call> = Vec::new();
        for _ in 0..LIVES {
            if one_life(world, &mut made, &mut rng)? {
                outcome.deaths += 1;
            }
            outcome.violations.extend(world.judge()?);
            // A recoverer may also come while the dead one's lease still stands.
            if rng.below(4) != 0 {
                world.pass_lease();
            }
        }
        let found = world.recover_and_judge(&made, &mut rng)?;
        outcome.violations.extend(found);
        Ok(())
    })
}

fn with_world(
    programs: &Programs,
    label: &str,
    broken: Option<&'static str>,
    go: impl FnOnce(&mut World, &mut Outcome) -> Result<(), String>,
) -> Outcome {
    let mut outcome = Outcome::default();
    let mut world = match World::make(programs, label, broken) {
        Ok(world) => world,
        Err(why) => return Outcome { trouble: Some(why), ..outcome },
    };
    outcome.trouble = go(&mut world, &mut outcome).err();
    outcome.violations.append(&mut world.wrong);
    outcome.effects = world.effects();
    if (outcome.trouble.is_some() || !outcome.violations.is_empty()) && broken.is_none() {
        world.keep = true;
        outcome.kept = Some(world.root().display().to_string());
    }
    outcome
}

/// One proxy's life: calls come until the kill does. Says whether it really died of it.
fn one_life(world: &mut World, made: &mut Vec<Call>, rng: &mut Rng) -> Result<bool, String> {
    let mut host = world.spawn(None)?;
    let pid = host.pid().ok_or("the proxy has no id")?;
    let latest = if world.is_embedded() { KILL_SERVICE_MS_MAX } else { KILL_MS_MAX };
    let moment = Duration::from_micros(rng.below(latest * 1_000));
    // One of four dies as it starts; a busy machine must not make all of them do so.
    let early = rng.below(4) == 0;
    let (greeted, greeting) = mpsc::channel();
    // Not waited for before it has struck, so the id can't be another's by then.
    let killer = thread::spawn(move || {
        if !early {
            // One that never greets is killed all the same.
            greeting.recv_timeout(PATIENCE).ok();
        }
        pass(moment);
        kill_process(pid, Signal::KILL)
    });
    host.greet();
    // The killer has gone on already if this is an early one.
    greeted.send(()).ok();
    while !killer.is_finished() {
        if rng.below(3) == 0 && world.database().exists() {
            // The file may not be whole enough yet to ask it anything.
            drop(world.decide_all(rng));
        }
        let burst: Vec<Call> = (0..=rng.below(3)).map(|_| draw(rng)).collect();
        let sent: Vec<u64> = burst.iter().map(|call| host.send(&call.tool, &call.args)).collect();
        // Also those whose answers never come: whoever recovers is asked for each of them.
        for call in &burst {
            if !made.iter().any(|other| other.args == call.args && other.tool == call.tool) {
                made.push(call.clone());
            }
        }
        for (call, id) in burst.into_iter().zip(sent) {
            match host.hear(id, DOOMED) {
                Heard::Answer(answer) => {
                    world.told.push(Told { tool: call.tool, args: call.args, answer, mark: 0 })
                }
                Heard::Gone => break,
                Heard::Silence => return Err(format!("{call:?} was never answered")),
            }
        }
    }
    let struck = killer.join().map_err(|_| "the killer died")?;
    struck.map_err(|error| format!("the kill failed: {error}"))?;
    Ok(host.ends_within(PATIENCE) == Some(End::Killed))
}

fn draw(rng: &mut Rng) -> Call {
    let reference = rng.below(REFERENCES);
    match rng.below(6) {
        0 => Call::read(&format!("r{reference}")),
        1 | 2 => Call::pay("bank", &format!("b{reference}"), None),
        // The mode goes with the reference: the same payment is always the same.
        _ => Call::pay("petty", &format!("p{reference}"), (reference == 0).then_some("exit")),
    }
}

/// Three proxies, a service and an operator on one file; one writer at a time is stopped past its lease and goes on.
pub(crate) fn several(programs: &Programs, label: &str, seed: u64) -> Outcome {
    with_world(programs, label, None, |world, outcome| {
        let mut rng = Rng::new(seed);
        let stopped = usize::try_from(rng.below(4)).unwrap_or(0);
        let moment = Duration::from_millis(100 + rng.below(600));
        let stand = LEASE + Duration::from_millis(200 + rng.below(1_500));
        let mut hosts = Vec::new();
        for _ in 0..3 {
            hosts.push((world.start(None)?, shared()));
        }
        // The fourth writer is a program of its own that embeds the gate; its payments are its own.
        let mut service = world.spawn_service(None)?;
        service.greet();
        hosts.push((service, (0..6).map(embedded).collect()));
        let pid = hosts.get(stopped).and_then(|(host, _)| host.pid()).ok_or("a proxy has no id")?;
        let finished = thread::scope(|scope| {
            let talking: Vec<_> = hosts
                .into_iter()
                .enumerate()
                .map(|(at, (host, calls))| {
                    let rng = Rng::new(seed.wrapping_add(at as u64));
                    scope.spawn(move || talk(host, calls, rng))
                })
                .collect();
            pass(moment);
            kill_process(pid, Signal::STOP).ok();
            // Apart from the operator, who may have to wait for a lock that the stopped one holds.
            let standing = scope.spawn(move || {
                pass(stand);
                kill_process(pid, Signal::CONT).ok();
            });
            loop {
                world.decide_all(&mut rng)?;
                if standing.is_finished() && talking.iter().all(thread::ScopedJoinHandle::is_finished) {
                    break;
                }
                pass(Duration::from_millis(20));
            }
            let mut told = Vec::new();
            for thread in talking {
                told.push(thread.join().map_err(|_| "a host died")??);
            }
            Ok::<_, String>(told)
        });
        for (host, told) in finished? {
            world.told.extend(told);
            if host.leave() != Some(End::Exited(0)) {
                return Err("a proxy did not end in order".to_owned());
            }
        }
        let mut last = world.start(None)?;
        world.settle_all(&mut last, &shared(), &mut rng)?;
        let found = world.close_and_judge(last, &mut rng)?;
        outcome.violations.extend(found);
        Ok(())
    })
}

/// Calls that every proxy is asked for.
fn shared() -> Vec<Call> {
    let payments = (0..4).map(|at| Call::pay("petty", &format!("p{at}"), None));
    let approved = (0..3).map(|at| Call::pay("bank", &format!("b{at}"), None));
    payments.chain(approved).chain([Call::read("r1")]).collect()
}

/// A call of the service alone.
fn embedded(at: u64) -> Call {
    Call::pay(if at.is_multiple_of(2) { "petty" } else { "bank" }, &format!("s{at}"), None)
}

/// Asks one proxy for everything, in an order of its own, until each is over.
fn talk(mut host: Host, mut left: Vec<Call>, mut rng: Rng) -> Result<(Host, Vec<Told>), String> {
    let mut told = Vec::new();
    let mut rounds = 0;
    while !left.is_empty() {
        let at = usize::try_from(rng.below(left.len() as u64)).unwrap_or(0);
        let call = left[at].clone();
        let id = host.send(&call.tool, &call.args);
        match host.hear(id, PATIENCE) {
            Heard::Answer(answer) => {
                let over = !matches!(
                    answer.word(),
                    Some(
                        "IN_PROGRESS"
                            | "UNAVAILABLE"
                            | "PENDING_APPROVAL"
                            | "INTERRUPTED"
                            | "UNKNOWN_OUTCOME"
                            | "BLOCKED"
                    )
                );
                told.push(Told { tool: call.tool, args: call.args, answer, mark: 0 });
                if over {
                    left.remove(at);
                } else {
                    pass(Duration::from_millis(10));
                }
            }
            Heard::Gone => return Err("a proxy died that nobody killed".to_owned()),
            Heard::Silence => return Err(format!("{call:?} was never answered")),
        }
        rounds += 1;
        if rounds > 4_000 {
            return Err(format!("{left:?} are stuck"));
        }
    }
    Ok((host, told))
}
