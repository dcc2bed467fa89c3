//! The layers that run inside one process with the product's own crates, as children of this program.
//!
//! Owns the reading of their one line of JSON. A child that prints no line is a failure.

use std::process::Command;

use serde_json::{Value, json};

use crate::world::Programs;

/// A layer, and how much of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layer {
    pub(crate) name: &'static str,
    pub(crate) count: u64,
}

/// Runs a layer, as a broken build if one is named, and gives its line. What kept it from one is its one failure.
pub(crate) fn run(programs: &Programs, layer: &Layer, seed: u64, broken: Option<&str>) -> Value {
    told(programs, layer, seed, broken).unwrap_or_else(|why| json!({"failed": [why]}))
}

fn told(programs: &Programs, layer: &Layer, seed: u64, broken: Option<&str>) -> Result<Value, String> {
    let mut command = Command::new(&programs.inside);
    command.args([layer.name, "--seed", &seed.to_string(), "--count", &layer.count.to_string()]);
    match broken {
        Some(broken) => command.env("HOLDPOINT_BROKEN", broken),
        None => command.env_remove("HOLDPOINT_BROKEN"),
    };
    let output = command.output().map_err(|error| format!("start {}: {error}", layer.name))?;
    let line = String::from_utf8_lossy(&output.stdout).into_owned();
    serde_json::from_str(line.trim())
        .map_err(|_| format!("{} said {line:?} and {}", layer.name, String::from_utf8_lossy(&output.stderr)))
}

/// What a layer's line says of failures.
pub(crate) fn failures(line: &Value) -> Vec<String> {
    let failed = line["failed"].as_array().map(Vec::as_slice).unwrap_or_default();
    failed.iter().map(|failure| failure.as_str().unwrap_or_default().to_owned()).collect()
}
