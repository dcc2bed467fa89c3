//! The layers of the crash campaign that run inside one process with the product's own crates.
//!
//! `holdpoint-campaign-inside LAYER [--seed S] [--count N]` runs one of them and prints one line of JSON: what it
//! counted, and every failure with the seed that repeats it. The campaign's own program starts it as a child, also as a
//! deliberately broken build. `service DATABASE WORLD` is one process of others' cases and no layer. Owns the words and the line; each layer is a module.

mod bench;
// The world's ledger, which the service's tools write as the servers do; it looks into the record with
// `rusqlite::Connection`.
#[path = "../../src/payments.rs"]
#[expect(dead_code, reason = "the campaign's own program serves with the other half")]
mod payments;
mod service;
// The layers here need its chance and not its patience.
#[path = "../../src/clock.rs"]
#[expect(dead_code, reason = "the campaign's other half waits with it")]
mod clock;
// What the checker holds the canonical form to; it hashes with `sha2::Sha256`.
#[path = "../../src/checker/canon.rs"]
#[expect(dead_code, reason = "the checker's other half hashes with it")]
mod canon;
mod fuzz;
mod model;
mod replay;
mod schedules;
mod sequences;

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};

/// The longest search of a model that is not exhausted.
const SEARCH_MAX: Duration = Duration::from_secs(3_600);

struct Words {
    layer: String,
    seed: u64,
    count: u64,
}

fn main() -> ExitCode {
    let given: Vec<String> = std::env::args().skip(1).collect();
    if let [layer, database, world] = given.as_slice()
        && layer == "service"
    {
        let served = tokio::runtime::Runtime::new().map_err(|error| error.to_string());
        let served =
            served.and_then(|runtime| runtime.block_on(service::serve(database.as_ref(), world.as_ref())));
        return match served {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => {
                drop(writeln!(std::io::stderr(), "service: {why}"));
                ExitCode::from(2)
            }
        };
    }
    let done = words().and_then(|words| run(&words));
    match done {
        Ok(told) => {
            let good = told["failed"].as_array().is_some_and(Vec::is_empty);
            drop(writeln!(std::io::stdout(), "{told}"));
            if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(why) => {
            drop(writeln!(std::io::stderr(), "inside: {why}"));
            ExitCode::from(2)
        }
    }
}

fn words() -> Result<Words, String> {
    let mut words = std::env::args().skip(1);
    let layer = words.next().ok_or("name a layer")?;
    let mut read = Words { layer, seed: 1, count: 1_000 };
    while let Some(word) = words.next() {
        let value = words.next().and_then(|text| text.parse().ok());
        let value = value.ok_or_else(|| format!("{word} needs a number"))?;
        match word.as_str() {
            "--seed" => read.seed = value,
            "--count" => read.count = value,
            _ => return Err(format!("{word}: known are --seed and --count")),
        }
    }
    Ok(read)
}

fn run(words: &Words) -> Result<Value, String> {
    match words.layer.as_str() {
        "model" => searched(words),
        "unguarded" => unguarded(),
        "replay" => {
            let walked = one_thread()?.block_on(replay::walk(words.seed, words.count))?;
            Ok(
                json!({"paths": walked.paths, "steps": walked.steps, "refused": walked.refused, "failed": walked.failed}),
            )
        }
        "sequences" => {
            let made = sequences::make(words.seed, words.count)?;
            Ok(json!({"sequences": made.sequences, "calls": made.calls, "failed": made.failed}))
        }
        "fuzz" => {
            let mut told = json!({});
            let mut failed = Vec::new();
            // A panic is a failure, and says so through the line.
            std::panic::set_hook(Box::new(|_| {}));
            for target in fuzz::all() {
                failed.extend(fuzz::feed(&target, words.seed, words.count));
                told[target.name] = json!(words.count);
            }
            told["failed"] = json!(failed);
            Ok(told)
        }
        "schedules" => {
            let kept = schedules::keep(words.seed, words.count)?;
            Ok(json!({"schedules": kept.schedules, "turns": kept.turns, "deaths": kept.deaths,
                      "effects": kept.effects, "failed": kept.failed}))
        }
        other => Err(format!("{other}: no such layer")),
    }
}

fn one_thread() -> Result<tokio::runtime::Runtime, String> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())
}

/// One run exhausted, then two on one record until there are so many states.
fn searched(words: &Words) -> Result<Value, String> {
    let states = usize::try_from(words.count).map_err(|error| error.to_string())?;
    let search =
        |runs, states| model::search(model::Record { runs, guards: model::Guards::ALL }, states, SEARCH_MAX);
    let one = search(1, usize::MAX);
    let two = search(2, states.saturating_sub(one.unique));
    let mut failed = [one.failed, two.failed].concat();
    if !one.whole {
        failed.push("the model of one run was not exhausted".to_owned());
    }
    Ok(json!({"states": one.unique + two.unique, "of_one_run": one.unique, "failed": failed}))
}

/// Each guard left out: the property that it holds must fail.
fn unguarded() -> Result<Value, String> {
    let mut noticed = Vec::new();
    let mut failed = Vec::new();
    for (what, guards, property) in model::UNGUARDED {
        let searched = model::search(model::Record { runs: 1, guards }, usize::MAX, SEARCH_MAX);
        match searched.failed.iter().find(|failure| failure.starts_with(property)) {
            Some(path) => noticed.push(json!({"without": what, "path": path})),
            None => failed.push(format!("{what}: {property} still holds")),
        }
    }
    Ok(json!({"noticed": noticed, "failed": failed}))
}
