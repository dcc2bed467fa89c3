//! What grows with the record and what must not: a call, the operator's commands, the start, memory.

use std::time::Duration;

use holdpoint_actors::clock::monotonic;
use holdpoint_core::chain::LinkHasher;
use holdpoint_core::time::UnixNanos;
use rusqlite::Connection;
use rusqlite::types::ValueRef;

use crate::calls::{Act, alternate, arguments};
use crate::host::Host;
use crate::numbers::{median, mib, micros, told};
use crate::place::Place;
use crate::report::Section;
use crate::rows::{Copies, Template};
use crate::{Outcome, Size};

/// A place whose record holds one finished, one waiting and one interrupted call.
fn seeded() -> Outcome<(Place, [Template; 3])> {
    let place = Place::new()?;
    let mut proxy = place.proxy()?;
    proxy.call("echo_put", &arguments())?;
    proxy.send_call("echo_wire", &arguments())?;
    until(|| Ok(place.number("SELECT count(*) FROM approvals")? == 1))?;
    proxy.send_call("echo_stall", &arguments())?;
    until(|| Ok(place.number("SELECT count(*) FROM steps WHERE status = 'executing'")? == 1))?;
    proxy.kill()?;
    let conn = Connection::open(place.database())?;
    let finished = Template::newest(&conn, "status = 'COMPLETED'")?;
    let waiting = Template::newest(&conn, "status = 'WAITING_FOR_APPROVAL'")?;
    conn.execute_batch("UPDATE runs SET lease_expires_at = '2026-01-01T00:00:00Z' WHERE status = 'RUNNING'")?;
    let interrupted = Template::newest(&conn, "status = 'RUNNING'")?;
    // The seed itself must not stand in the way of what is measured.
    conn.execute_batch("UPDATE runs SET lease_owner = '', lease_expires_at = '', status = 'CANCELLED', reason = 'operator_cancelled' WHERE status = 'RUNNING'")?;
    Ok((place, [finished, waiting, interrupted]))
}

/// Looks until it is so.
fn until(mut so: impl FnMut() -> Outcome<bool>) -> Outcome<()> {
    let began = monotonic();
    while !so()? {
        if began.elapsed() > Duration::from_secs(120) {
            return Err("waited for two minutes".into());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// A place with so many copies of one template in its record.
fn filled(pick: usize, count: impl Fn(&Template) -> u64) -> Outcome<Place> {
    let (place, templates) = seeded()?;
    let template = &templates[pick];
    Copies::continued(&place.database())?.fill(template, count(template), "SELECT 1")?;
    Ok(place)
}

/// A call on one record against the same on another, round by round.
fn compare(size: &Size, small: &mut Host, large: &mut Host, tool: &str) -> Outcome<(f64, f64)> {
    for _ in 0..20 {
        small.call(tool, &arguments())?;
        large.call(tool, &arguments())?;
    }
    let mut acts: Vec<Act<'_>> = vec![
        Box::new(|| small.call(tool, &arguments()).map(drop)),
        Box::new(|| large.call(tool, &arguments()).map(drop)),
    ];
    let measured = alternate(&mut acts, size.rounds, size.calls_a_round)?;
    let ratios: Vec<f64> = measured[0].0.iter().zip(&measured[1].0).map(|(a, b)| b / a).collect();
    Ok((median(&ratios), median(&measured[1].1)))
}

/// Measures a call, the operator's commands and verification on a large record.
pub(crate) fn large_record(size: &Size) -> Outcome<Section> {
    let mut section = Section::new(
        "A large record",
        "Both files were filled with copies of a real call's rows, in a chain that verifies.",
    );
    let small = filled(0, |template| 10_000 / template.events())?;
    let large = filled(0, |template| size.large_events / template.events())?;
    let events = large.number("SELECT count(*) FROM events")?;
    let runs = large.number("SELECT count(*) FROM runs")?;
    let (mut a, mut b) = (small.proxy()?, large.proxy()?);
    for (tool, what) in [("echo_put", "a mutating call"), ("echo_look", "a read")] {
        let (ratio, time) = compare(size, &mut a, &mut b, tool)?;
        section.row(
            format!("{what} at {events} events against 10,000"),
            format!("{ratio:.2} times ({})", told(time)),
            "at most 1.10",
        );
    }
    let mut status = Vec::new();
    for _ in 0..size.starts {
        let before = monotonic();
        b.call("gate_status", "{}")?;
        status.push(micros(monotonic().duration_since(before)));
    }
    section.row(format!("the status tool at {runs} runs"), told(median(&status)), "under 50 ms");
    b.end()?;
    a.end()?;
    let newest: String =
        large
            .reading()?
            .query_row("SELECT id FROM runs ORDER BY rowid DESC LIMIT 1", [], |row| row.get(0))?;
    for words in [vec!["runs"], vec!["show", newest.as_str()]] {
        let mut times = Vec::new();
        for _ in 0..size.starts {
            let before = monotonic();
            large.operate(&words)?;
            times.push(micros(monotonic().duration_since(before)));
        }
        let what = format!("`holdpoint {}` at {runs} runs, its process included", words[0]);
        section.row(what, told(median(&times)), "under 50 ms");
    }
    verification(&large, &mut section)?;
    Ok(section)
}

fn verification(large: &Place, section: &mut Section) -> Outcome<()> {
    let (mut rates, mut verified) = (Vec::new(), 0.0);
    for _ in 0..3 {
        let before = monotonic();
        read_and_hash(&large.reading()?)?;
        let floor = micros(monotonic().duration_since(before));
        let before = monotonic();
        large.operate(&["verify"])?;
        verified = micros(monotonic().duration_since(before));
        rates.push(floor / verified);
    }
    section.row(
        "`holdpoint verify` against reading and hashing the same bytes",
        format!("{:.0} % ({})", 100.0 * median(&rates), told(verified)),
        "at least 60 %",
    );
    Ok(())
}

/// What no verification can do without: every byte of every event, hashed in one go.
fn read_and_hash(conn: &Connection) -> Outcome<String> {
    let mut hasher = LinkHasher::new("", 0);
    let mut events =
        conn.prepare("SELECT run_id, step_id, at, type, payload_json, hash FROM events ORDER BY seq")?;
    let mut rows = events.query([])?;
    while let Some(row) = rows.next()? {
        for at in 0..6 {
            if let ValueRef::Text(text) = row.get_ref(at)? {
                hasher.field(text);
            }
        }
    }
    Ok(hasher.finish())
}

/// Measures calls, memory and the start where many calls wait for a person.
pub(crate) fn open_calls(size: &Size) -> Outcome<Section> {
    let mut section =
        Section::new("Many open calls", "Calls that wait for a person, of another tool in the same session.");
    let few = filled(1, |_| 10)?;
    let many = filled(1, |_| size.open_calls)?;
    let (mut a, mut b) = (few.proxy()?, many.proxy()?);
    for (tool, what) in [("echo_put", "a mutating call"), ("echo_look", "a read")] {
        let (ratio, time) = compare(size, &mut a, &mut b, tool)?;
        section.row(
            format!("{what} at {} open calls against 10", size.open_calls),
            format!("{ratio:.2} times ({})", told(time)),
            "at most 1.10",
        );
    }
    // Both have made as many calls by now.
    if let (Some(idle), Some(full)) = (a.resident(), b.resident()) {
        let more = format!("{} above the other's {}", mib(full - idle), mib(idle));
        section.row(
            format!("resident memory of {} pending approvals", size.open_calls),
            more,
            "under 10 MiB above",
        );
    }
    a.end()?;
    b.end()?;
    Ok(section)
}

/// Measures the start, an idle proxy, recovery at the start and the wake-up of a held call.
pub(crate) fn start_and_wake(size: &Size) -> Outcome<Section> {
    let mut section = Section::new("Start, memory, wake-up", "Whole processes.");
    let place = Place::new()?;
    place.proxy()?.end()?;
    let (mut greeted, mut idle) = (Vec::new(), None);
    for _ in 0..size.starts {
        let proxy = place.proxy()?;
        greeted.push(micros(proxy.greeted_in));
        idle = proxy.resident();
        proxy.end()?;
    }
    section.row(
        "from the start of the process to the answer to `initialize`",
        told(median(&greeted)),
        "under 30 ms",
    );
    if let Some(idle) = idle {
        section.row("resident memory of an idle proxy", mib(idle), "under 25 MiB");
    }
    section.row(
        format!("a start with {} interrupted runs, until all wait for a person", size.interrupted),
        told(recovery(size.interrupted)?),
        "under 0.5 s",
    );
    section.row("from an approval in another process to the effect", told(wake_up(size)?), "under 50 ms");
    Ok(section)
}

fn recovery(count: u64) -> Outcome<f64> {
    let place = filled(2, |_| count)?;
    let before = monotonic();
    let proxy = place.proxy()?;
    let reading = place.reading()?;
    // The newest are recovered last. Looked for from there, they are found at once: a look at all of them would take the
    // time of one processor from what is measured.
    let newest_first = "SELECT 1 FROM runs WHERE status = 'RUNNING' ORDER BY rowid DESC LIMIT 1";
    let mut left = reading.prepare(&format!("SELECT count(*) FROM ({newest_first})"))?;
    until(|| Ok(left.query_row([], |row| row.get::<_, i64>(0))? == 0))?;
    let took = micros(monotonic().duration_since(before));
    proxy.end()?;
    Ok(took)
}

fn wake_up(size: &Size) -> Outcome<f64> {
    let place = Place::new()?;
    let mut proxy = place.proxy()?;
    let mut times = Vec::new();
    for _ in 0..size.starts {
        proxy.send_call("echo_wire", &arguments())?;
        let pending = "SELECT count(*) FROM approvals WHERE status = 'pending'";
        until(|| Ok(place.number(pending)? == 1))?;
        let (run, id): (String, String) = place.reading()?.query_row(
            "SELECT run_id, id FROM approvals WHERE status = 'pending'",
            [],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )?;
        place.operate(&["approve", &run, "--approval", &id, "--by", "bench"])?;
        let effect: i64 = proxy.answered()?.parse()?;
        let decided: String =
            place
                .reading()?
                .query_row("SELECT decided_at FROM approvals WHERE id = ?", [&id], |row| row.get(0))?;
        let decided = UnixNanos::parse(&decided)?.as_nanos();
        times.push((effect - decided) as f64 / 1e3);
    }
    proxy.end()?;
    Ok(median(&times))
}
