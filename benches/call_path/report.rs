//! The table: what was measured, beside what is wanted of it.

use std::fmt::Write as _;
use std::process::Command;

use crate::Outcome;

/// Rows under a heading.
#[derive(Debug)]
pub(crate) struct Section {
    title: &'static str,
    about: &'static str,
    rows: Vec<[String; 3]>,
}

impl Section {
    pub(crate) fn new(title: &'static str, about: &'static str) -> Section {
        Section { title, about, rows: Vec::new() }
    }

    /// Adds a row: what, how much, and what is wanted ("" for nothing).
    pub(crate) fn row(&mut self, what: impl Into<String>, measured: impl Into<String>, wanted: &str) {
        self.rows.push([what.into(), measured.into(), wanted.to_owned()]);
    }
}

/// Writes the page.
pub(crate) fn page(
    sections: &[Section],
    command: &str,
    left_out: &[String],
) -> Result<String, std::fmt::Error> {
    let mut page = String::from(INTRODUCTION);
    for Section { title, about, rows } in sections {
        write!(page, "\n## {title}\n\n{about}\n\n| | measured | wanted |\n|---|---|---|\n")?;
        for [what, measured, wanted] in rows {
            writeln!(page, "| {what} | {measured} | {wanted} |")?;
        }
    }
    if !left_out.is_empty() {
        page.push_str("\n## Not measured in this run\n\n");
        for why in left_out {
            writeln!(page, "- {why}")?;
        }
    }
    write!(page, "\n## The run\n\nCommand: `{command}`.\n\n")?;
    for line in machine() {
        writeln!(page, "- {line}")?;
    }
    Ok(page)
}

const INTRODUCTION: &str = "\
# Performance

This page is written by a program that builds every row in one run; nothing in it is typed by hand. What to look at are the ratios: both of their sides
were measured in the same minutes on the same machine, alternating, so that drift cancels. Times depend on the disk and on what else the machine
was doing. Exact counts (commits per call) do not, and are asserted in tests instead (`tests/it/counts.rs`).

The *unit* is one synced commit of the rows of one call, replayed into a warm file beside.
";

/// What it ran on.
fn machine() -> Vec<String> {
    let said = |program: &str, words: &[&str]| {
        let said = Command::new(program).args(words).output().ok()?;
        Some(String::from_utf8_lossy(&said.stdout).lines().next()?.trim().to_owned())
    };
    let cpu = std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("model name"))?;
        Some(line.split(':').nth(1)?.trim().to_owned())
    });
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let disk = Command::new("df").args(["--output=fstype", env!("CARGO_TARGET_TMPDIR")]).output().ok();
    let disk =
        disk.and_then(|said| Some(String::from_utf8_lossy(&said.stdout).lines().nth(1)?.trim().to_owned()));
    let load = std::fs::read_to_string("/proc/loadavg").ok();
    let mut lines = vec![
        format!("Holdpoint {}, SQLite {}", env!("CARGO_PKG_VERSION"), rusqlite::version()),
        format!("{} cores of {}", cores, cpu.unwrap_or_else(|| "an unknown processor".to_owned())),
    ];
    lines.extend(said("uname", &["-sr"]));
    lines.extend(said("rustc", &["--version"]));
    lines.extend(disk.map(|kind| format!("database on {kind}")));
    lines.extend(load.map(|load| {
        let first = load.split(' ').next().unwrap_or_default();
        format!("load average at the end: {first}; above the number of cores, other work was going on beside")
    }));
    lines
}

/// Where the page belongs.
pub(crate) fn save(page: &str) -> Outcome<()> {
    std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/performance.md"), page)?;
    Ok(())
}
