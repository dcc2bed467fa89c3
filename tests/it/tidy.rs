//! Tests of the tree itself: what a reviewer would otherwise have to look for by eye.
//!
//! Reads the repository's files as text and nothing else; knows no type of ours. A rule that needs an exception lists it here,
//! with the reason beside it.

use std::fs;
use std::path::{Path, PathBuf};

/// Lines of a source file, its tests apart. Past this it becomes a folder, or says at its head why it is longer.
const LINES_MAX: usize = 500;

/// Lines of a file of tests, which is a list and reads like one.
const TEST_LINES_MAX: usize = 900;

/// Lines of a function's body. Past this its doc says why it is longer.
const FUNCTION_LINES_MAX: usize = 70;

/// How far above a `sleep` the loop begins that makes it a poll of something visible, in lines.
const POLL_LINES: usize = 10;

/// What core must not touch: it knows no clock, no disk, no network, no randomness, and waits for nothing.
const FOREIGN_TO_CORE: &[&str] = &[
    "std::fs",
    "std::env",
    "std::net",
    "std::process",
    "std::thread",
    "std::io",
    "SystemTime",
    "std::time::Instant",
    "getrandom",
    "rand::",
    "async fn",
    ".await",
];

struct Source {
    /// Relative to the repository's root, with `/`.
    name: String,
    text: String,
}

impl Source {
    /// The part before the inline test module, which is the part that ships.
    fn shipped(&self) -> &str {
        if self.is_test() { "" } else { self.text.split("#[cfg(test)]\nmod ").next().unwrap_or("") }
    }

    /// The part that only tests see.
    fn tested(&self) -> &str {
        if self.is_test() { &self.text } else { &self.text[self.shipped().len()..] }
    }

    fn is_test(&self) -> bool {
        let file = self.name.rsplit('/').next().unwrap_or("");
        self.name.starts_with("tests/")
            || self.name.contains("/tests/")
            || file == "tests.rs"
            || file.ends_with("_tests.rs")
    }

    fn is_this_file(&self) -> bool {
        self.name == "tests/it/tidy.rs"
    }

    /// The leading `//!` lines.
    fn head(&self) -> String {
        self.text.lines().take_while(|line| line.starts_with("//!")).collect::<Vec<_>>().join("\n")
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
    let entries =
        fs::read_dir(folder).unwrap_or_else(|error| panic!("can't list {}: {error}", folder.display()));
    for entry in entries.flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_folder && !matches!(name.as_str(), "target" | ".git" | "node_modules" | "__pycache__" | ".venv")
        {
            walk(&path, found);
        } else if !is_folder {
            found.push(path);
        }
    }
}

/// Every text file of the tree whose name ends in one of these, in a fixed order.
fn files(endings: &[&str]) -> Vec<Source> {
    let mut paths = Vec::new();
    walk(root(), &mut paths);
    paths.sort();
    let wanted = |path: &PathBuf| endings.iter().any(|ending| path.to_string_lossy().ends_with(ending));
    let read = |path: PathBuf| {
        let name = path.strip_prefix(root()).unwrap_or(&path).to_string_lossy().replace('\\', "/");
        fs::read_to_string(&path).ok().map(|text| Source { name, text })
    };
    paths.into_iter().filter(wanted).filter_map(read).collect()
}

fn rust_files() -> Vec<Source> {
    let found = files(&[".rs"]);
    assert!(found.len() > 20, "the walk must find the sources, and found {}", found.len());
    found
}

/// Fails with one line for each offence.
fn none(offences: Vec<String>, rule: &str) {
    assert!(offences.is_empty(), "{rule}:\n  {}", offences.join("\n  "));
}

/// Lines of `text` that hold `needle` outside a comment, as `file:line`.
fn lines_with(source: &Source, text: &str, needle: &str) -> Vec<String> {
    let offset = source.text.find(text).map_or(0, |at| source.text[..at].matches('\n').count());
    let code = |line: &&str| !line.trim_start().starts_with("//");
    let numbered = text.lines().enumerate().filter(|(_, line)| code(line) && line.contains(needle));
    numbered.map(|(at, line)| format!("{}:{}: {}", source.name, offset + at + 1, line.trim())).collect()
}

#[test]
fn every_source_file_opens_with_what_it_owns() {
    let silent = rust_files().into_iter().filter(|s| !s.text.starts_with("//! ")).map(|s| s.name).collect();
    none(silent, "a file opens with `//!`: what it owns, what it never does, who talks to it");
}

#[test]
fn files_stay_short_or_say_why_not() {
    let long = |s: &Source| {
        let (counted, max) =
            if s.is_test() { (s.text.as_str(), TEST_LINES_MAX) } else { (s.shipped(), LINES_MAX) };
        let lines = counted.lines().count();
        let excused = s.head().to_lowercase().contains("longer than");
        (lines > max && !excused).then(|| format!("{} has {lines} lines", s.name))
    };
    let rule = format!(
        "past {LINES_MAX} lines a file becomes a folder, or its head says why it is longer than the others"
    );
    none(rust_files().iter().filter_map(long).collect(), &rule);
}

/// The functions of a formatted file: where each begins, and how many lines its body has.
fn functions(lines: &[&str]) -> Vec<(usize, usize)> {
    let is_function = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().take_while(|word| *word != "fn").collect();
        let before = |word: &&str| word.starts_with("pub") || matches!(*word, "async" | "const" | "unsafe");
        words.len() < line.split_whitespace().count() && words.iter().all(before)
    };
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate().filter(|(_, line)| is_function(line)) {
        let indent = &line[..line.len() - line.trim_start().len()];
        let below = || lines[at..].iter().enumerate();
        let opens = below().find(|(_, line)| line.ends_with(['{', '}', ';'])).map(|(below, _)| below);
        let closes = below().find(|(_, line)| **line == format!("{indent}}}")).map(|(below, _)| below);
        if let (Some(opens), Some(closes)) = (opens.filter(|opens| lines[at + opens].ends_with('{')), closes)
        {
            found.push((at, closes - opens - 1));
        }
    }
    found
}

#[test]
fn functions_stay_short_or_say_why_not() {
    let mut long = Vec::new();
    for source in rust_files().iter().filter(|s| !s.is_this_file()) {
        let lines: Vec<&str> = source.text.lines().collect();
        for (at, length) in functions(&lines).into_iter().filter(|(_, length)| *length > FUNCTION_LINES_MAX) {
            let above = lines[..at].iter().rev().map(|line| line.trim_start());
            let head = above.take_while(|line| line.starts_with("//") || line.starts_with('#'));
            if !head.collect::<String>().to_lowercase().contains("longer than") {
                long.push(format!("{}:{}: {length} lines", source.name, at + 1));
            }
        }
    }
    none(
        long,
        &format!("past {FUNCTION_LINES_MAX} lines a function's doc says why it is longer than the others"),
    );
}

#[test]
fn no_test_is_switched_off() {
    let needle = concat!("#[", "ignore");
    let off = rust_files()
        .iter()
        .filter(|s| !s.is_this_file())
        .flat_map(|s| lines_with(s, &s.text, needle))
        .collect();
    none(off, "a test runs, or goes");
}

#[test]
fn tests_do_not_sleep_until_something_has_probably_happened() {
    let mut sleeping = Vec::new();
    for source in rust_files().iter().filter(|s| !s.is_this_file()) {
        let lines: Vec<&str> = source.tested().lines().collect();
        for (at, line) in lines.iter().enumerate().filter(|(_, line)| line.contains("sleep(")) {
            let above = &lines[at.saturating_sub(POLL_LINES)..at];
            if !above.iter().any(|line| line.contains("while ") || line.contains("loop {")) {
                sleeping.push(format!("{}: {}", source.name, line.trim()));
            }
        }
    }
    none(sleeping, "a test looks again and again for what it can see, or moves the clock by hand");
}

#[test]
fn time_enters_through_the_clock() {
    let needles = [concat!("SystemTime", "::now"), concat!("Instant", "::now")];
    // The runtime's own instants stand still and move with its clock, so a test has them in hand.
    let movable =
        |s: &Source| s.text.contains("use tokio::time::") && !s.text.contains("use std::time::Instant");
    let elsewhere = |s: &&Source| !s.name.ends_with("/clock.rs") && !s.is_test() && !movable(s);
    let read =
        |s: &Source| needles.iter().flat_map(|needle| lines_with(s, &s.text, needle)).collect::<Vec<_>>();
    none(rust_files().iter().filter(elsewhere).flat_map(read).collect(), "only clock.rs reads a clock");
}

#[test]
fn core_touches_nothing_of_the_world() {
    let core = |s: &&Source| s.name.starts_with("actors/core/src/");
    let touch =
        |s: &Source| FOREIGN_TO_CORE.iter().flat_map(|n| lines_with(s, s.shipped(), n)).collect::<Vec<_>>();
    let sources = rust_files();
    assert!(sources.iter().filter(core).count() > 5, "core must be where this test looks for it");
    none(sources.iter().filter(core).flat_map(touch).collect(), "core decides, and touches nothing");
}

#[test]
fn no_file_names_the_machine_that_it_was_written_on() {
    let needles = [
        concat!("/wo", "rk/"),
        concat!("/ro", "ot/"),
        concat!("bash_", "jobs"),
        concat!("\"resol", "ved\": \"http"),
    ];
    let texts =
        files(&[".rs", ".md", ".toml", ".json", ".py", ".mjs", ".txt", ".sql", ".lock", "run", "install"]);
    let mentions = |s: &Source| {
        let hit = needles.iter().find(|needle| s.text.contains(**needle));
        hit.map(|needle| format!("{} mentions {needle}", s.name))
    };
    none(texts.iter().filter_map(mentions).collect(), "no path or address of one machine");
}

#[test]
fn every_decision_record_is_in_the_index() {
    let folder = root().join("docs/decisions");
    let index = fs::read_to_string(folder.join("README.md")).expect("docs/decisions/README.md is the index");
    let records = fs::read_dir(&folder).expect("docs/decisions is a folder").flatten();
    let names = records.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let missing = names.filter(|name| name.ends_with(".md") && name != "README.md");
    none(
        missing.filter(|name| !index.contains(&format!("({name})"))).collect(),
        "a decision is found from the index",
    );
}

#[test]
fn every_test_that_the_conformance_table_names_exists() {
    let table = fs::read_to_string(root().join("docs/conformance.md"))
        .expect("docs/conformance.md maps the rows to tests");
    let mut names = String::new();
    for source in files(&[".rs", ".py"]) {
        let definitions = source.text.lines().map(str::trim_start);
        for line in definitions.filter(|line| line.contains("fn ") || line.starts_with("def ")) {
            names.push_str(line);
            names.push('\n');
        }
    }
    let rows = table.lines().enumerate().filter(|(_, line)| line.starts_with('|'));
    let quoted =
        rows.flat_map(|(at, line)| line.split('`').skip(1).step_by(2).map(move |name| (at + 1, name)));
    let is_test = |name: &str| {
        name.contains('_')
            && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "_:".contains(c))
    };
    let unknown = quoted.filter(|(_, name)| is_test(name)).filter(|(_, name)| {
        let last = name.rsplit("::").next().unwrap_or(name);
        !names.contains(&format!(" {last}("))
    });
    let listed = unknown.map(|(line, name)| format!("docs/conformance.md:{line}: {name}")).collect();
    none(listed, "a test that the table names can be found in the tree");
}

#[test]
fn every_package_takes_the_workspace_lints_and_uses_what_it_depends_on() {
    let mut offences = Vec::new();
    for manifest in files(&["Cargo.toml"]) {
        if !manifest.text.contains("[package]") {
            continue;
        }
        if !manifest.text.contains("[lints]\nworkspace = true") {
            offences.push(format!("{} does not take the workspace's lints", manifest.name));
        }
        let folder = manifest.name.trim_end_matches("Cargo.toml").to_owned();
        let inner = |name: &str| name.starts_with(&folder) && !name[folder.len()..].starts_with("actors/");
        let inner_most =
            |name: &str| inner(name) && !(folder == "actors/" && name.starts_with("actors/core/"));
        let sources: String =
            rust_files().into_iter().filter(|s| inner_most(&s.name)).map(|s| s.text).collect();
        for dependency in dependencies(&manifest.text) {
            let identifier = dependency.replace('-', "_");
            if !sources.contains(&format!("{identifier}::"))
                && !sources.contains(&format!("use {identifier}"))
            {
                offences.push(format!("{} depends on {dependency} and never names it", manifest.name));
            }
        }
    }
    none(offences, "a manifest says what is so");
}

/// Names under `[dependencies]` and `[dev-dependencies]`.
fn dependencies(manifest: &str) -> Vec<String> {
    let mut inside = false;
    let mut found = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            inside = matches!(line, "[dependencies]" | "[dev-dependencies]");
        } else if inside && line.contains('=') {
            let name = line.split(['.', '=', ' ']).next().unwrap_or_default();
            found.push(name.to_owned());
        }
    }
    found
}

#[test]
fn the_readmes_program_is_the_example_and_shorter_than_thirty_lines() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let example = read("examples/first_tool.rs");
    // Past its first words and its lint.
    let program = &example[example.find("use std").unwrap()..];
    assert!(
        read("README.md").contains(&format!("```rust\n{program}```")),
        "the README shows another program"
    );
    assert!(program.lines().count() < 30, "it takes {} lines", program.lines().count());
}
