//! The crash campaign: kills the real programs, again and again, and judges from outside what is left.
//!
//! `cargo run --release -p holdpoint-campaign [-- --seconds N --seed S --short]` builds the product with its faults, runs
//! every named point, then random deaths and several processes for the time given, then the broken builds, and prints a
//! report. Owns the order and the exit status: zero only if nothing was violated, every counted case really died, and
//! every broken build was noticed.

mod broken;
mod cases;
mod checker;
mod clock;
mod failing;
mod host;
mod inside;
mod payments;
mod power;
mod random;
mod report;
mod world;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use broken::Broken;
use cases::{Outcome, Story};
use clock::now;
use report::Report;
use world::{Programs, World};

/// The time for random deaths and for several processes, when none is given.
const SECONDS: u64 = 120;
const SECONDS_SHORT: u64 = 5;
/// Cases that are run at a time.
const SIDE_BY_SIDE: usize = 4;

struct Options {
    seconds: Option<u64>,
    seed: u64,
    short: bool,
    write: bool,
    only: Option<String>,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let done = match words.first().map(String::as_str) {
        Some("payment-server") => {
            let ledger = words.get(1).map(PathBuf::from).ok_or_else(|| "name the ledger".to_owned());
            ledger.and_then(|ledger| payments::serve(&ledger)).map(|()| true)
        }
        Some(_) | None => options(&words).and_then(|options| campaign(&options)),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            say(&format!("campaign: {why}"));
            ExitCode::from(2)
        }
    }
}

/// Says something to whoever ran this; when nobody listens, the report and the status are left.
fn say(text: &str) {
    drop(writeln!(std::io::stdout(), "{text}"));
}

fn options(words: &[String]) -> Result<Options, String> {
    let mut options = Options { seconds: None, seed: 1, short: false, write: false, only: None };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().cloned().ok_or_else(|| format!("{word} needs a value"));
        let number = |text: String| text.parse::<u64>().map_err(|_| format!("{word} {text}: not a number"));
        match word.as_str() {
            "--seconds" => options.seconds = Some(number(value()?)?),
            "--seed" => options.seed = number(value()?)?,
            "--short" => options.short = true,
            "--write-report" => options.write = true,
            "--only" => options.only = Some(value()?),
            _ => {
                return Err(format!(
                    "{word}: known are --seconds N, --seed S, --short, --only TEXT, --write-report"
                ));
            }
        }
    }
    Ok(options)
}

fn campaign(options: &Options) -> Result<bool, String> {
    let programs = programs()?;
    let mut report = Report::new(options.seed, options.short, &std::env::args().skip(1).collect::<Vec<_>>());
    let wanted = |name: &str| options.only.as_ref().is_none_or(|only| name.contains(only.as_str()));
    // The first world asks the servers for their pins, and the others take them from there.
    drop(World::make(&programs, "first", None)?);
    let named: Vec<_> =
        cases::named().into_iter().enumerate().filter(|(_, (name, _))| wanted(name)).collect();
    let seeded = |at: usize| options.seed.wrapping_add(at as u64);
    let outcomes = side_by_side(named.len(), |turn| {
        let (at, (_, story)) = &named[turn];
        cases::run(&programs, &format!("named-{at}"), story, None, seeded(*at))
    });
    for ((at, (name, _)), outcome) in named.iter().zip(&outcomes) {
        report.named(name, seeded(*at), outcome);
    }
    for kind in failing::KINDS.into_iter().filter(|_| wanted("failing")) {
        let run = |stories: &[Story]| {
            side_by_side(stories.len(), |turn| {
                let Story::Failing(which) = &stories[turn] else { return Outcome::default() };
                cases::run(&programs, &format!("failing-{which}"), &stories[turn], None, options.seed)
            })
        };
        let sweep = failing::Sweep::short(kind, options.seed);
        failing::sweep(kind, sweep, SIDE_BY_SIDE, run, |name, outcome| {
            report.failing(name, options.seed, outcome);
        })?;
    }
    for layer in inside::layers(options.short).into_iter().filter(|layer| wanted(layer.name)) {
        report.inside(&layer, options.seed, &inside::run(&programs, &layer, options.seed, None));
    }
    let broken: Vec<_> = broken::all().into_iter().filter(|broken| wanted(broken.name)).collect();
    let outcomes = side_by_side(broken.len(), |at| {
        let Broken { name, story, .. } = &broken[at];
        cases::run(&programs, &format!("broken-{at}"), story, Some(name), seeded(at))
    });
    for (broken, outcome) in broken.iter().zip(&outcomes) {
        report.broken(broken, outcome);
    }
    let seconds = options.seconds.unwrap_or(if options.short { SECONDS_SHORT } else { SECONDS });
    let (began, time) = (now(), Duration::from_secs(seconds));
    let mut round = 0;
    while wanted("random") && began.elapsed() < time {
        let seed_of = |turn: usize| options.seed.wrapping_mul(1_000_003).wrapping_add((round + turn) as u64);
        let outcomes = side_by_side(SIDE_BY_SIDE, |turn| {
            let (label, seed) = (format!("random-{}", round + turn), seed_of(turn));
            // One in four is of several processes, which wait out real leases, and one of cuts of the power.
            match turn {
                0 => random::several(&programs, &label, seed),
                1 => cases::run(&programs, &label, &Story::PowerCut, None, seed),
                _ => random::lives(&programs, &label, None, seed),
            }
        });
        for (turn, outcome) in outcomes.iter().enumerate() {
            match turn {
                0 => report.several(seed_of(turn), outcome),
                1 => report.power(seed_of(turn), outcome),
                _ => report.random(seed_of(turn), outcome),
            }
        }
        round += SIDE_BY_SIDE;
    }
    let text = report.text();
    say(&text);
    if options.write {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("REPORT.md");
        std::fs::write(&path, &text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    if report.is_good() {
        drop(std::fs::remove_dir_all(&programs.folder));
    }
    Ok(report.is_good())
}

/// Runs cases side by side: each of them mostly waits. Gives their outcomes in order.
fn side_by_side(count: usize, run: impl Fn(usize) -> Outcome + Sync) -> Vec<Outcome> {
    let next = AtomicUsize::new(0);
    let outcomes: Vec<Mutex<Outcome>> = (0..count).map(|_| Mutex::default()).collect();
    std::thread::scope(|scope| {
        for _ in 0..SIDE_BY_SIDE.min(count) {
            scope.spawn(|| {
                while let at = next.fetch_add(1, Ordering::Relaxed)
                    && at < count
                {
                    *outcomes[at].lock().unwrap_or_else(PoisonError::into_inner) = run(at);
                }
            });
        }
    });
    outcomes.into_iter().map(|outcome| outcome.into_inner().unwrap_or_else(PoisonError::into_inner)).collect()
}

/// Builds the product with its faults, and keeps a copy where no other build overwrites it.
fn programs() -> Result<Programs, String> {
    let campaign = std::env::current_exe().map_err(|error| error.to_string())?;
    let folder = campaign.parent().ok_or("this program is nowhere")?;
    let target = folder.parent().ok_or("this program is nowhere")?;
    // As fast as this program itself was built: `release` cannot have the faults, and its twin `campaign` can.
    let (profile, built) = match cfg!(debug_assertions) {
        true => ("dev", folder.to_owned()),
        false => ("campaign", target.join("campaign")),
    };
    let status = Command::new(env!("CARGO"))
        .args([
            "build",
            "--locked",
            "--quiet",
            "--features",
            "holdpoint/faults,holdpoint-campaign-inside/faults",
        ])
        .args([
            "--package",
            "holdpoint",
            "--package",
            "holdpoint-campaign-inside",
            "--package",
            "holdpoint-campaign-recorder",
            "--bin",
            "holdpoint",
            "--bin",
            "holdpoint-campaign-inside",
            "--lib",
        ])
        .args(["--profile", profile, "--target-dir"])
        .arg(target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .map_err(|error| format!("build the product with its faults: {error}"))?;
    if !status.success() {
        return Err(format!("the product was not built with its faults: {status}"));
    }
    let place = std::env::temp_dir().join(format!("holdpoint-campaign-{}", std::process::id()));
    std::fs::create_dir_all(&place).map_err(|error| format!("{}: {error}", place.display()))?;
    let place = place.canonicalize().map_err(|error| error.to_string())?;
    let copy = |from: &Path, name: &str| {
        let to = place.join(name);
        std::fs::copy(from, &to).map(|_| to).map_err(|error| format!("{}: {error}", from.display()))
    };
    Ok(Programs {
        holdpoint: copy(&built.join("holdpoint"), "holdpoint")?,
        recorder: copy(&built.join("libholdpoint_campaign_recorder.so"), "recorder.so")?,
        inside: copy(&built.join("holdpoint-campaign-inside"), "inside")?,
        campaign: copy(&campaign, "campaign")?,
        folder: place.clone(),
    })
}
