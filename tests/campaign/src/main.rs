//! The crash campaign: kills the real programs, again and again, and judges from outside what is left.
//!
//! `cargo run --release -p holdpoint-campaign [-- --short | --seconds N] [--seed S]` builds the product with its faults,
//! does the jobs of every layer, and prints a report. With `--shard I/N` it does its part of them, with `--resume DIR` it
//! keeps a line of each job there and does none twice, and `merge DIR..` makes one report of what was done. Owns the order
//! and the exit status: zero only if nothing was violated, every counted case really happened, and every broken build was
//! noticed.

mod broken;
mod cases;
mod chaos;
mod checker;
mod clock;
mod failing;
mod host;
mod inside;
mod jobs;
mod older;
mod options;
mod outage;
mod payments;
mod power;
mod random;
mod report;
mod stories;
mod world;

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use clock::now;
use jobs::Job;
use options::Options;
use report::{Report, Setting};
use world::{Programs, World};

/// Where a system keeps files in memory. What is looked at here is never a disk: a killed process's writes are in the system's
/// hands, the power is cut in a recording of them, and what fails is made to fail.
const MEMORY: &str = "/dev/shm";
/// Where the report of a long run is committed.
const COMMITTED: &str = "../../docs/campaign.md";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let done = match words.first().map(String::as_str) {
        Some("payment-server") => {
            let ledger = words.get(1).map(PathBuf::from).ok_or_else(|| "name the ledger".to_owned());
            ledger.and_then(|ledger| payments::serve(&ledger)).map(|()| true)
        }
        Some(word) if word == checker::WORD => checker::answer(&words[1..]).map(|()| true),
        Some("merge") => Options::read(&words[1..]).and_then(|options| merge(&options)),
        Some(_) | None => Options::read(&words).and_then(|options| campaign(&options)),
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

fn campaign(options: &Options) -> Result<bool, String> {
    let programs = programs()?;
    // The first world asks the servers for their pins, and the others take them from there.
    drop(World::make(&programs, "first", None)?);
    let mut lines = match &options.resume {
        Some(folder) => kept_lines(std::slice::from_ref(folder))?,
        None => Vec::new(),
    };
    let done: HashSet<String> =
        lines.iter().filter_map(|line| Some(line["job"].as_str()?.to_owned())).collect();
    let all = jobs::all(options.short);
    if let Some(only) = &options.only {
        jobs::is_known(only, &all)?;
    }
    let wanted = |job: &Job| options.only.as_ref().is_none_or(|only| job.is_named(only));
    let ours = |job: &Job| job.number % options.shards == options.shard;
    let jobs: Vec<Job> =
        all.into_iter().filter(|job| wanted(job) && ours(job) && !done.contains(&job.name())).collect();
    let keeping = options.resume.as_ref().map(|folder| keep_in(folder, options)).transpose()?;
    let (made, seconds) = work(&programs, &jobs, options, keeping);
    lines.extend(made);
    let setting = Setting {
        command: options.command.clone(),
        seeds: vec![options.seed],
        short: options.short,
        seconds,
        profile: profile().to_owned(),
    };
    let good = publish(&Report::of(&setting, &lines), options)?;
    if good {
        drop(fs::remove_dir_all(&programs.folder));
        drop(fs::remove_dir_all(&programs.place));
    }
    Ok(good)
}

/// Does jobs side by side until they or the time are over. Gives their lines, and how long it took.
fn work(programs: &Programs, jobs: &[Job], options: &Options, keeping: Option<File>) -> (Vec<Value>, f64) {
    let began = now();
    let time = options.seconds.map(Duration::from_secs);
    let next = AtomicUsize::new(0);
    let lines = Mutex::new((Vec::new(), keeping));
    std::thread::scope(|scope| {
        for _ in 0..options.side_by_side.min(jobs.len()) {
            scope.spawn(|| {
                while time.is_none_or(|time| began.elapsed() < time)
                    && let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let started = now();
                    let mut line = job.run(programs, options.seed);
                    line["seconds"] = json!(started.elapsed().as_secs_f64());
                    line["campaign"] =
                        json!({"seed": options.seed, "short": options.short, "profile": profile()});
                    report::failures(&line).iter().for_each(|failure| say(&format!("FAILED {failure}")));
                    let (lines, keeping) = &mut *lines.lock().unwrap_or_else(PoisonError::into_inner);
                    if let Some(file) = keeping {
                        // A line that is lost is a job that is done again.
                        drop(writeln!(file, "{line}"));
                    }
                    lines.push(line);
                }
            });
        }
    });
    let (lines, _) = lines.into_inner().unwrap_or_else(PoisonError::into_inner);
    (lines, began.elapsed().as_secs_f64().round())
}

/// Says the report, and writes it where it is committed if that was asked for.
fn publish(report: &Report<'_>, options: &Options) -> Result<bool, String> {
    let text = report.text();
    say(&text);
    if options.write {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(COMMITTED);
        fs::write(&path, &text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(report.failures().is_empty())
}

/// Where a shard's lines are kept.
fn keep_in(folder: &Path, options: &Options) -> Result<File, String> {
    let told = |error: std::io::Error| format!("{}: {error}", folder.display());
    fs::create_dir_all(folder).map_err(told)?;
    let name = format!("shard-{}-of-{}.jsonl", options.shard, options.shards);
    OpenOptions::new().create(true).append(true).open(folder.join(name)).map_err(told)
}

/// The lines that earlier runs kept. A torn last one is a job that is done again.
fn kept_lines(folders: &[PathBuf]) -> Result<Vec<Value>, String> {
    let mut lines = Vec::new();
    for folder in folders.iter().filter(|folder| folder.exists()) {
        let told = |error: std::io::Error| format!("{}: {error}", folder.display());
        for entry in fs::read_dir(folder).map_err(told)? {
            let path = entry.map_err(told)?.path();
            if path.extension().is_some_and(|ending| ending == "jsonl") {
                let text = fs::read_to_string(&path).map_err(told)?;
                lines.extend(text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()));
            }
        }
    }
    Ok(lines)
}

/// Makes one report of what several runs kept. Beside a short form, what was done of the long one is told as far as it got.
fn merge(options: &Options) -> Result<bool, String> {
    let mut lines = kept_lines(&options.folders)?;
    // Two machines may have done the same job; with other seeds it is another one.
    let mut seen = HashSet::new();
    lines.retain(|line| {
        let of = &line["campaign"];
        seen.insert((line["job"].to_string(), of["seed"].as_u64(), of["short"].as_bool()))
    });
    let (of_short, of_long): (Vec<Value>, Vec<Value>) =
        lines.into_iter().partition(|line| line["campaign"]["short"] == true);
    let short = !of_short.is_empty();
    let (lines, of_long) = if short { (of_short, of_long) } else { (of_long, Vec::new()) };
    let of_campaign =
        |name: &str| lines.iter().map(|line| line["campaign"][name].clone()).collect::<Vec<_>>();
    let mut seeds: Vec<u64> = of_campaign("seed").iter().filter_map(Value::as_u64).collect();
    seeds.sort_unstable();
    seeds.dedup();
    let mut profiles: Vec<String> =
        of_campaign("profile").iter().filter_map(|p| Some(p.as_str()?.to_owned())).collect();
    profiles.sort_unstable();
    profiles.dedup();
    let seconds = lines.iter().filter_map(|line| line["seconds"].as_f64()).sum::<f64>().round();
    let setting =
        Setting { command: options.command.clone(), seeds, short, seconds, profile: profiles.join(", ") };
    publish(&Report::of(&setting, &lines).beside(&of_long), options)
}

/// As fast as this program itself was built: `release` cannot have the faults, and its twin `campaign` can.
const fn profile() -> &'static str {
    if cfg!(debug_assertions) { "dev" } else { "campaign" }
}

/// Builds the product with its faults, and keeps a copy where no other build overwrites it.
fn programs() -> Result<Programs, String> {
    let campaign = std::env::current_exe().map_err(|error| error.to_string())?;
    let folder = campaign.parent().ok_or("this program is nowhere")?;
    let target = folder.parent().ok_or("this program is nowhere")?;
    let built = if cfg!(debug_assertions) { folder.to_owned() } else { target.join("campaign") };
    // Through whoever chooses the toolchain, also when this program was not started by it.
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
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
        .args(["--profile", profile(), "--target-dir"])
        .arg(target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .map_err(|error| format!("build the product with its faults: {error}"))?;
    if !status.success() {
        return Err(format!("the product was not built with its faults: {status}"));
    }
    let make = |parent: PathBuf| {
        let place = parent.join(format!("holdpoint-campaign-{}", std::process::id()));
        std::fs::create_dir_all(&place).map_err(|error| format!("{}: {error}", place.display()))?;
        place.canonicalize().map_err(|error| error.to_string())
    };
    let place = make(std::env::temp_dir())?;
    // Whoever names a place for temporary files means it.
    let in_memory = Path::new(MEMORY).is_dir() && std::env::var_os("TMPDIR").is_none();
    let folder = if in_memory { make(PathBuf::from(MEMORY))? } else { place.clone() };
    let copy = |from: &Path, name: &str| {
        let to = place.join(name);
        std::fs::copy(from, &to).map(|_| to).map_err(|error| format!("{}: {error}", from.display()))
    };
    Ok(Programs {
        holdpoint: copy(&built.join("holdpoint"), "holdpoint")?,
        recorder: copy(&built.join("libholdpoint_campaign_recorder.so"), "recorder.so")?,
        inside: copy(&built.join("holdpoint-campaign-inside"), "inside")?,
        campaign: copy(&campaign, "campaign")?,
        folder,
        place,
    })
}
