//! The database: its files, its schema, its pages, its chain, and what was left half done.
//!
//! Opened for reading only, so nothing of it changes, not even a mode.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use holdpoint::codes::Code;
use holdpoint::proxy::owned::{OwnedError, check_writable};
use holdpoint_actors::clock;
use holdpoint_actors::store::{Head, Health as StoreHealth, HeldRun};
use holdpoint_core::chain::VerifyReport;

use super::{Area, Findings, Health};
use crate::commands::records::{self, Records};
use crate::commands::servers;
use crate::error::CommandError;
use crate::text::{plural, times};

/// A log beyond this is worth a look: it is started over at every checkpoint, unless a reader keeps it.
const LOG_BYTES_MAX: u64 = 64 << 20;
/// How many of the newest events are verified; `holdpoint verify` checks them all.
const EVENTS_VERIFIED: i64 = 1_000;

/// Looks at the database. Only a configuration says that this user is the one who serves it, and so has to write it.
pub(super) fn look(path: &Path, serves: bool, findings: &mut Findings) {
    // Before reading, which makes files beside it.
    let writable = serves.then(|| check_writable(path));
    match read(path, findings) {
        Ok(()) => {}
        // A proxy makes its database at its first start, so a missing one is not a fault of anybody's.
        Err(error) if error.code == Code::StoreMissing => {
            let text = format!("{} does not exist yet", path.display());
            findings.push(Area::Database, Health::Doubtful, text);
        }
        Err(error) => findings.fail(Area::Database, error),
    }
    if let Some(writable) = writable {
        served(writable, findings);
    }
}

/// Tells what reading does not show: whether serving could write the database.
fn served(writable: Result<(), OwnedError>, findings: &mut Findings) {
    match writable {
        // What is broken in another way is not fine because of its modes.
        Ok(()) if findings.of(Area::Database).any(|finding| finding.health == Health::Bad) => {}
        Ok(()) => findings.push(Area::Database, Health::Good, "serving can write it"),
        Err(error) => {
            let code = servers::of_database(&error);
            let missing = code == Code::StoreMissing;
            let failed = CommandError::new(code, error.to_string());
            findings.fail(Area::Database, if missing { failed.hint(records::HOW_TO_FIND) } else { failed });
        }
    }
}

fn read(path: &Path, findings: &mut Findings) -> Result<(), CommandError> {
    let mut records = Records::open_to_read(path)?;
    findings.push(Area::Database, Health::Good, format!("{} can be opened", path.display()));
    files(path, findings);
    let (health, head, report) = records.read(|reader| {
        let head = reader.head()?;
        let report = reader.verify(head.seq.saturating_sub(EVENTS_VERIFIED - 1), head.seq)?;
        Ok((reader.health()?, head, report))
    })?;
    records::sync(&mut records)?;
    pages(&health, findings);
    chain(&head, &report, findings);
    held(&health.running, findings);
    Ok(())
}

fn files(path: &Path, findings: &mut Findings) {
    for suffix in ["", "-wal", "-shm"] {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        let name = PathBuf::from(name);
        let Ok(found) = fs::symlink_metadata(&name) else { continue };
        let (mode, size) = (found.mode() & 0o777, found.len());
        let text = format!("{}: {size} bytes, mode {mode:04o}", name.display());
        let readable = mode & 0o077 != 0;
        let long = suffix == "-wal" && size > LOG_BYTES_MAX;
        let health = if readable || long { Health::Doubtful } else { Health::Fact };
        findings.push(Area::Database, health, text);
        if readable {
            let text = "others can read it: arguments and results of calls are in it (chmod go=)";
            findings.push(Area::Database, Health::Doubtful, text);
        }
        if long {
            let text = "the log is long: a reader that stays open keeps it from being started over";
            findings.push(Area::Database, Health::Doubtful, text);
        }
    }
}

fn pages(health: &StoreHealth, findings: &mut Findings) {
    findings.push(Area::Database, Health::Fact, format!("schema version {}", health.version));
    if health.faults.is_empty() {
        findings.push(Area::Database, Health::Good, "every page is sound (quick_check)");
    }
    for fault in &health.faults {
        let error = CommandError::new(Code::StoreNotADatabase, format!("a page is damaged: {fault}"));
        findings
            .fail(Area::Database, error.hint("restore the file from a copy, together with its -wal file"));
    }
    let total: i64 = health.runs.iter().map(|(_, count)| count).sum();
    let each: Vec<String> = health.runs.iter().map(|(status, count)| format!("{count} {status}")).collect();
    let of = if each.is_empty() { String::new() } else { format!(": {}", each.join(", ")) };
    findings.push(Area::Database, Health::Fact, format!("{}{of}", plural(total, "run")));
    let waiting = format!("{} waiting for a decision", plural(health.pending, "approval"));
    findings.push(Area::Database, Health::Fact, waiting);
    findings.push(Area::Database, Health::Fact, plural(health.events, "event"));
}

fn chain(head: &Head, report: &VerifyReport, findings: &mut Findings) {
    match &report.broken {
        Some(broken) => {
            let message = format!("the chain of events is broken at event {}: {}", broken.seq, broken.detail);
            findings.fail(Area::Database, CommandError::new(Code::ChainBroken, message));
        }
        None if head.seq == 0 => findings.push(Area::Database, Health::Fact, "the chain of events is empty"),
        None => {
            let text = format!("the chain of events is intact from {} to {}", report.from, report.to);
            findings.push(Area::Database, Health::Good, text);
            findings.push(Area::Database, Health::Fact, format!("head {}:{}", head.seq, head.hash));
        }
    }
}

/// Tells runs that nobody holds any more from those that somebody works on.
fn held(running: &[HeldRun], findings: &mut Findings) {
    let now = clock::wall();
    let (live, left): (Vec<_>, Vec<_>) =
        running.iter().partition(|held| held.expires_at.is_some_and(|expiry| expiry > now));
    if !live.is_empty() {
        findings.push(
            Area::Database,
            Health::Fact,
            format!("{} held under a live lease", plural(live.len(), "run")),
        );
    }
    for held in left {
        let owner = if held.owner.is_empty() { "nobody" } else { &held.owner };
        let since = times::stamp_or_dash(held.expires_at);
        let text = format!("run {} was left half done by {owner}; its lease ran out {since}", held.run);
        findings.push(Area::Database, Health::Doubtful, text);
    }
}
