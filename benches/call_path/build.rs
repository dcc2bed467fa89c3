//! What building costs, and how large the program is.

use std::path::Path;
use std::process::{Command, Stdio};

use holdpoint_actors::clock::monotonic;

use crate::Outcome;
use crate::report::Section;

const MIB: f64 = 1_048_576.0;

/// Builds from nothing, what the README's commands build and what is shipped, each in a folder of its own.
pub(crate) fn from_nothing() -> Outcome<Section> {
    let mut section = Section::new(
        "Build and size",
        "From an empty target folder, the packages downloaded already, one after the other.",
    );
    cargo(&["fetch"], Path::new(env!("CARGO_TARGET_TMPDIR")))?;
    let program = |folder: &Path, profile: &str| -> Outcome<String> {
        let size = folder.join(profile).join("holdpoint").metadata()?.len();
        Ok(format!("{:.1} MiB", size as f64 / MIB))
    };
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    section.row("`cargo build --release`", cargo(&["build", "--release"], folder.path())?, "");
    section.row("the program that this makes", program(folder.path(), "release")?, "");
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let built = cargo(&["build", "--profile", "dist", "--bin", "holdpoint"], folder.path())?;
    section.row("`cargo build --profile dist --bin holdpoint`", built, "");
    section.row("the program that is shipped", program(folder.path(), "dist")?, "");
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let built = cargo(&["test", "--workspace", "--no-run"], folder.path())?;
    section.row("`cargo test --workspace --no-run`", built, "");
    Ok(section)
}

/// How long it took.
fn cargo(words: &[&str], target: &Path) -> Outcome<String> {
    let before = monotonic();
    let done = Command::new("cargo")
        .args(words)
        .args(["--locked", "--quiet"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("CARGO_TARGET_DIR", target)
        .env("CARGO_INCREMENTAL", "0")
        .stdout(Stdio::null())
        .status()?;
    let seconds = monotonic().duration_since(before).as_secs();
    if done.success() {
        Ok(format!("{} min {} s", seconds / 60, seconds % 60))
    } else {
        Err(format!("`cargo {}`: {done}", words.join(" ")).into())
    }
}
