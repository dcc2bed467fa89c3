//! What a call costs: one caller, and many.

use std::cell::Cell;
use std::time::Duration;

use holdpoint_actors::clock::monotonic;

use crate::host::Host;
use crate::numbers::{median, mib, micros, percentile, rate, told};
use crate::peers::Peer;
use crate::place::{Place, direct};
use crate::report::Section;
use crate::rows::{Copies, Template};
use crate::syncs::Syncs;
use crate::workload::{Arm, Store};
use crate::{Outcome, Size};

/// Calls at a time that the proxy's door surely lets in: it holds 256, and one that was answered may not have left yet.
const AT_THE_DOOR: u64 = 250;
/// After so long without work a proxy has given back what the work took.
const AT_REST: Duration = Duration::from_secs(2);

/// No two calls of a run have the same arguments.
pub(crate) fn arguments() -> String {
    thread_local!(static NEXT: Cell<u64> = const { Cell::new(0) });
    let n = NEXT.get();
    NEXT.set(n + 1);
    format!(r#"{{"to":"ACME Ltd","n":{n}}}"#)
}

/// One thing that is done again and again.
pub(crate) type Act<'a> = Box<dyn FnMut() -> Outcome<()> + 'a>;

/// Takes turns, and gives for each act its median in every round and all of its times, in microseconds.
pub(crate) fn alternate(
    acts: &mut [Act<'_>],
    rounds: usize,
    each: usize,
) -> Outcome<Vec<(Vec<f64>, Vec<f64>)>> {
    let mut measured: Vec<(Vec<f64>, Vec<f64>)> = acts.iter().map(|_| Default::default()).collect();
    for round in 0..rounds {
        for turn in 0..acts.len() {
            // Whoever comes first in one round comes last in another.
            let at = (turn + round) % acts.len();
            let mut times = Vec::with_capacity(each);
            for _ in 0..each {
                let before = monotonic();
                acts[at]()?;
                times.push(micros(monotonic().duration_since(before)));
            }
            measured[at].0.push(median(&times));
            measured[at].1.extend(times);
        }
    }
    Ok(measured)
}

/// The median over rounds of what `f` makes of the rounds' medians.
fn over(rounds: usize, f: impl Fn(usize) -> f64) -> f64 {
    median(&(0..rounds).map(f).collect::<Vec<_>>())
}

/// One caller.
pub(crate) fn one_caller(size: &Size, peers: &mut [Peer]) -> Outcome<Section> {
    let mut section =
        Section::new("One caller", "Medians; *added* is over the same server direct, round by round.");
    let place = Place::new()?;
    let mut proxy = place.proxy()?;
    for _ in 0..size.warm_up {
        proxy.call("echo_put", &arguments())?;
        proxy.call("echo_look", &arguments())?;
    }
    let reading = place.reading()?;
    let template = Template::newest(&reading, "status = 'COMPLETED' AND goal LIKE '%put'")?;
    let mut copies = Copies::beside(&reading, &place.path("unit.db"))?;
    copies.warm(&template)?;
    let mut straight = direct()?;
    let beside = Place::new()?;
    let mut unsynced = beside.proxy_with(Syncs::LeftOut)?;
    let proxy = std::cell::RefCell::new(proxy);
    let mut acts: Vec<Act<'_>> = vec![
        Box::new(|| copies.commit_one(&template)),
        Box::new(|| straight.call("put", &arguments()).map(drop)),
        Box::new(|| proxy.borrow_mut().call("echo_put", &arguments()).map(drop)),
        Box::new(|| proxy.borrow_mut().call("echo_look", &arguments()).map(drop)),
        Box::new(|| unsynced.call("echo_put", &arguments()).map(drop)),
    ];
    let first_peer = acts.len();
    let names: Vec<String> = peers.iter().map(|peer| peer.label.clone()).collect();
    for peer in peers.iter_mut() {
        acts.push(Box::new(|| peer.host.call(&peer.tool, &arguments()).map(drop)));
    }
    let measured = alternate(&mut acts, size.rounds, size.calls_a_round)?;
    let (unit, straight) = (&measured[0].0, &measured[1].0);
    let added = |arm: usize| over(size.rounds, |round| measured[arm].0[round] - straight[round]);
    let units =
        |arm: usize| over(size.rounds, |round| (measured[arm].0[round] - straight[round]) / unit[round]);
    let both = |arm: usize| {
        format!("{}, p99 {}", told(median(&measured[arm].1)), told(percentile(&measured[arm].1, 99)))
    };
    let unit_median = median(&measured[0].1);
    section.row("a mutating call adds, in units", format!("{:.2}", units(2)), "1.9 and 250 µs");
    section.row(
        "a mutating call adds, beyond 1.9 units",
        told(over(size.rounds, |round| measured[2].0[round] - straight[round] - 1.9 * unit[round])),
        "at most 250 µs",
    );
    section.row("a mutating call adds", told(added(2)), "");
    section.row("a read adds", told(added(3)), "at most 300 µs");
    section.row("a mutating call adds where a sync does nothing", told(added(4)), "");
    section.row("the unit: one synced commit of a call's rows", told(unit_median), "");
    section.row("the server direct", both(1), "");
    section.row("Holdpoint, mutating", both(2), "");
    section.row("Holdpoint, read", both(3), "");
    for (at, name) in names.iter().enumerate() {
        section.row(format!("{name} adds"), told(added(first_peer + at)), "");
    }
    Ok(section)
}

/// Many callers: the store alone and the whole proxy, beside an arm that commits once per state change.
pub(crate) fn many_callers(size: &Size) -> Outcome<Section> {
    let mut section = Section::new(
        "Many callers",
        "Calls a second, both of a call's commits included. *Each state* is the same store in a build arm that commits once per state change, four a call.",
    );
    let runtime = tokio::runtime::Runtime::new()?;
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let batched = runtime.block_on(Store::start(&folder.path().join("batched.db"), Arm::Batched))?;
    let each = runtime.block_on(Store::start(&folder.path().join("each.db"), Arm::EachState))?;
    let mut arm_rate = Vec::new();
    for (callers, wanted) in [(1, ""), (64, "at least 35 times"), (256, "at least 60 times")] {
        let (mut ours, mut theirs, mut per_call) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..size.floods {
            let calls = size.store_calls(callers);
            let (took, synced) = runtime.block_on(batched.run(callers, calls))?;
            ours.push(rate(calls, took));
            per_call.push(synced as f64 / calls as f64);
            let calls = size.each_state_calls;
            let (took, _) = runtime.block_on(each.run(callers, calls))?;
            theirs.push(rate(calls, took));
        }
        let (ours, theirs) = (median(&ours), median(&theirs));
        arm_rate.push(theirs);
        section.row(
            format!("store, {callers} at a time"),
            format!(
                "{:.1} times *each state* ({ours:.0} against {theirs:.0} calls/s); {:.3} commits a call",
                ours / theirs,
                median(&per_call)
            ),
            wanted,
        );
    }
    runtime.block_on(batched.stop())?;
    runtime.block_on(each.stop())?;
    for (at_a_time, theirs) in [(64, arm_rate[1]), (AT_THE_DOOR, arm_rate[2])] {
        whole_proxy(size, at_a_time, theirs, &mut section)?;
    }
    Ok(section)
}

fn whole_proxy(size: &Size, at_a_time: u64, theirs: f64, section: &mut Section) -> Outcome<()> {
    let (place, beside) = (Place::new()?, Place::new()?);
    let mut proxy = place.proxy_with(Syncs::Made)?;
    let mut unsynced = beside.proxy_with(Syncs::LeftOut)?;
    let (mut disk, mut free, mut per_call) = (Vec::new(), Vec::new(), Vec::new());
    let flood = |host: &mut Host| -> Outcome<Duration> {
        host.flood("echo_put", at_a_time, size.proxy_calls, arguments)
    };
    flood(&mut proxy)?;
    flood(&mut unsynced)?;
    for _ in 0..size.floods {
        let before = place.synced_commits()?;
        disk.push(rate(size.proxy_calls, flood(&mut proxy)?));
        per_call.push((place.synced_commits()? - before) as f64 / size.proxy_calls as f64);
        free.push(rate(size.proxy_calls, flood(&mut unsynced)?));
    }
    let ours = median(&disk);
    section.row(
        format!("whole proxy, {at_a_time} at a time"),
        format!("{:.1} times *each state* of the store alone ({ours:.0} calls/s)", ours / theirs),
        "at least 8 times",
    );
    section.row(
        format!("whole proxy, {at_a_time} at a time, against the same where a sync does nothing"),
        format!("{:.0} %", 100.0 * ours / median(&free)),
        "at least 80 %",
    );
    section.row(
        format!("synced commits a call, {at_a_time} at a time"),
        format!("{:.4}", median(&per_call)),
        &format!("about 5/{at_a_time} = {:.3} at most", 5.0 / at_a_time as f64),
    );
    std::thread::sleep(AT_REST);
    if let Some(resident) = proxy.resident() {
        section.row(
            format!("its resident memory {} s after the last flood", AT_REST.as_secs()),
            mib(resident),
            "",
        );
    }
    unsynced.end()?;
    proxy.end()
}
