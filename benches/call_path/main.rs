//! The whole table in one run: what a call costs direct, through Holdpoint and through others, and what grows.
//!
//! `cargo bench --bench call_path` writes `docs/performance.md`; `-- --peers` installs other proxies to measure beside, `-- --build`
//! measures builds from nothing too, `-- --quick` is a short run that only prints, and `-- --only PART` prints one part alone. The same program is the server behind every arm (`--serve-echo`).

mod build;
mod calls;
mod echo;
mod growth;
mod host;
mod library;
mod numbers;
mod peers;
mod place;
mod report;
mod rows;
mod syncs;
#[path = "../../actors/benches/workload/mod.rs"]
mod workload;

use std::error::Error;
use std::io::Write;

use report::Section;
use syncs::{BECOME, become_another};

/// What a part of the program gives.
pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// How much is done.
#[derive(Debug)]
pub(crate) struct Size {
    warm_up: u64,
    rounds: usize,
    calls_a_round: usize,
    floods: usize,
    proxy_calls: u64,
    each_state_calls: u64,
    runs: u64,
    starts: usize,
    large_events: u64,
    open_calls: u64,
    interrupted: u64,
    batches: u64,
}

impl Size {
    fn full() -> Size {
        Size {
            warm_up: 200,
            rounds: 40,
            calls_a_round: 10,
            floods: 5,
            proxy_calls: 4_000,
            each_state_calls: 400,
            runs: 9,
            starts: 15,
            large_events: 1_000_000,
            open_calls: 10_000,
            interrupted: 10_000,
            batches: 60,
        }
    }

    fn quick() -> Size {
        Size {
            warm_up: 20,
            rounds: 5,
            floods: 1,
            proxy_calls: 500,
            each_state_calls: 50,
            runs: 1,
            starts: 3,
            large_events: 20_000,
            open_calls: 500,
            interrupted: 200,
            batches: 5,
            ..Size::full()
        }
    }

    /// So many that batches of one size and another are as many.
    fn store_calls(&self, callers: u64) -> u64 {
        self.batches * callers
    }
}

/// A part of the table: its name, and what measures it.
type Part<'a> = (&'static str, Box<dyn FnOnce(&Size) -> Outcome<Section> + 'a>);

/// What the program can be told to do.
const USAGE: &str = "usage: cargo bench --bench call_path -- [--peers] [--build] [--quick] [--only PART]";

/// Refuses a word that it does not know: it would run for long and write a page that nobody asked for.
fn refuse_unknown(words: &[String]) -> Outcome<()> {
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            // Cargo says the first three of every bench.
            "--bench" | "--test" | "--list" | "--peers" | "--build" | "--quick" => {}
            "--only" if words.next().is_some() => {}
            other => return Err(format!("{other:?} is not known here, or lacks a word; {USAGE}").into()),
        }
    }
    Ok(())
}

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let says = |word: &str| words.iter().any(|given| given == word);
    if let [word, another @ ..] = &*words
        && word == BECOME
    {
        return become_another(another).map(|never| match never {});
    }
    if says("--serve-echo") {
        return echo::serve();
    }
    refuse_unknown(&words)?;
    if says("--test") || says("--list") {
        return Ok(());
    }
    let quick = says("--quick");
    let size = if quick { Size::quick() } else { Size::full() };
    let mut left_out = vec![
        "the reference and its proxy: the Go module proxy did not have the module when this was written"
            .to_owned(),
    ];
    let only = words.iter().position(|word| word == "--only").and_then(|at| words.get(at + 1));
    let mut peers = peers::start(says("--peers"), &mut left_out);
    let mut parts: Vec<Part<'_>> = vec![
        ("one caller", Box::new(|size| calls::one_caller(size, &mut peers))),
        ("many callers", Box::new(calls::many_callers)),
        ("a large record", Box::new(growth::large_record)),
        ("many open calls", Box::new(growth::open_calls)),
        ("start, memory, wake-up", Box::new(growth::start_and_wake)),
        ("a step of the library", Box::new(library::steps)),
    ];
    if says("--build") {
        parts.push(("build and size", Box::new(|_| build::from_nothing())));
    } else {
        left_out.push("build and size: run with `-- --build`".to_owned());
    }
    let mut sections = Vec::new();
    for (name, measure) in parts.into_iter().filter(|(name, _)| only.is_none_or(|only| only == name)) {
        match measure(&size) {
            Ok(section) => sections.push(section),
            Err(error) => left_out.push(format!("{name}: {error}")),
        }
    }
    let flags: String =
        ["--peers", "--build"].into_iter().filter(|flag| says(flag)).map(|flag| format!(" {flag}")).collect();
    let flags = if flags.is_empty() { flags } else { format!(" --{flags}") };
    let page = report::page(&sections, &format!("cargo bench --bench call_path{flags}"), &left_out)?;
    std::io::stdout().write_all(page.as_bytes())?;
    if quick || only.is_some() { Ok(()) } else { report::save(&page) }
}
