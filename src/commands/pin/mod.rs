//! `holdpoint pin`: ask each server for its tools, and write down what may be offered.
//!
//! Owns the order: all servers are asked, everything is shown, and only then is anything written, so that a refusal
//! leaves every manifest as it was.

mod show;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use holdpoint::codes::Code;
use holdpoint::proxy::owned::{OwnedError, read_owned};
use holdpoint::replace::replace;
use holdpoint_actors::clock;
use holdpoint_core::pin::manifest::{Manifest, ToolChange, diff};

use super::{block_on, servers};
use crate::error::CommandError;
use crate::text::{Answer, Ui, line};

/// Ask each server for its tools, and write them down as what may be offered
///
/// A server's manifest is what its tools are compared with at every start: a tool that was not pinned, or whose
/// description or schema is another one by then, is not offered. When a manifest exists, what would change is shown
/// and nothing is replaced without `y` at the prompt or --yes. What is there and is no manifest is never replaced.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The configuration of the proxy
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Replace manifests without being asked
    #[arg(long)]
    yes: bool,
}

/// A server that answered, with the manifest that it would have.
#[derive(Debug)]
struct Asked {
    path: PathBuf,
    new: Manifest,
    old: Old,
}

/// What is in the manifest's place.
#[derive(Debug)]
enum Old {
    /// Nothing.
    Missing,
    /// A manifest.
    Read(Manifest),
    /// Something that is no manifest, and why.
    Unreadable(String),
}

/// What is to be done about a server.
#[derive(Debug, PartialEq)]
enum Plan {
    /// Write the first manifest.
    Write,
    /// Leave the manifest, which is the same.
    Keep,
    /// Replace the manifest, if a person agrees.
    Replace(Vec<ToolChange>),
}

impl Asked {
    /// What to do, unless there is something in the manifest's place that somebody else may need.
    fn plan(&self) -> Result<Plan, CommandError> {
        match &self.old {
            Old::Missing => Ok(Plan::Write),
            Old::Unreadable(why) => {
                let path = line(&self.path.to_string_lossy(), 1_000);
                let why = line(why, 1_000);
                let message = format!("what is at {path} is no manifest, and is not replaced: {why}");
                let hint = "move it away if nobody needs it, or name another file as the server's manifest";
                Err(CommandError::new(Code::PinWrite, message).hint(hint))
            }
            Old::Read(old) => {
                let changes = diff(old, &self.new);
                let same = changes.is_empty() && old.server == self.new.server;
                Ok(if same { Plan::Keep } else { Plan::Replace(changes) })
            }
        }
    }

    fn show(&self, plan: &Plan, ui: &mut Ui) -> Result<(), CommandError> {
        let out = ui.out();
        match (plan, &self.old) {
            (Plan::Write | Plan::Keep, _) => show::manifest(out, &self.new, &self.path)?,
            (Plan::Replace(changes), Old::Read(old)) => {
                show::changes(out, old, &self.new, &self.path, changes)?;
            }
            (Plan::Replace(_), Old::Missing | Old::Unreadable(_)) => {}
        }
        Ok(())
    }
}

/// Shows all, asks where something would be replaced, and writes.
fn settle(asked: &[Asked], yes: bool, ui: &mut Ui) -> Result<(), CommandError> {
    let plans = asked.iter().map(Asked::plan).collect::<Result<Vec<Plan>, _>>()?;
    let replaces = plans.iter().any(|plan| matches!(plan, Plan::Replace(_)));
    if replaces && !yes && !ui.can_ask() {
        for (server, plan) in asked.iter().zip(&plans) {
            server.show(plan, ui)?;
        }
        let message =
            "a manifest would be replaced, and nobody is at a terminal to be asked: nothing was written";
        return Err(CommandError::new(Code::UsageConfirm, message).hint("read what changed, then pass --yes"));
    }
    let mut declined = Vec::new();
    for (server, plan) in asked.iter().zip(&plans) {
        server.show(plan, ui)?;
        let agreed = match plan {
            Plan::Keep => {
                writeln!(ui.out(), "as it was pinned; the manifest stays\n")?;
                continue;
            }
            Plan::Write => true,
            Plan::Replace(_) if yes => true,
            Plan::Replace(_) => {
                let question = format!("replace the manifest of {}?", line(&server.new.server, 128));
                ui.ask(&question)? == Answer::Yes
            }
        };
        if agreed {
            replace(&server.path, &server.new.to_text()).map_err(|problem| {
                let path = server.path.display();
                CommandError::new(Code::PinWrite, format!("failed to write {path}: {problem}"))
            })?;
            writeln!(ui.out(), "written\n")?;
        } else {
            declined.push(server.new.server.clone());
        }
    }
    if declined.is_empty() {
        return Ok(());
    }
    let message = format!("the answer was not yes: the manifest of {} stays", declined.join(", "));
    Err(CommandError::new(Code::Declined, message))
}

pub(super) fn run(args: &Args, ui: &mut Ui) -> Result<(), CommandError> {
    let config = servers::load(&args.config)?;
    let listings = block_on(servers::list_all(&config.servers))?;
    let now = clock::wall();
    let (mut asked, mut failed) = (Vec::new(), Vec::new());
    for (server, listing) in config.servers.iter().zip(listings) {
        match listing {
            Ok(listing) => {
                let (path, new) = (server.manifest.clone(), Manifest::pin(&server.name, now, &listing));
                asked.push(Asked { old: old(&path), path, new });
            }
            Err(error) => failed.push(error),
        }
    }
    let settled = settle(&asked, args.yes, ui);
    let Some(first) = failed.first() else { return settled };
    ui.flush()?;
    for error in &failed[1..] {
        error.report(ui);
    }
    // What was not confirmed is the caller's to put right first; a server that is down shows again then.
    settled.and(Err(first.clone()))
}

fn old(path: &Path) -> Old {
    match read_owned(path) {
        Ok(bytes) => {
            Manifest::parse_strict(&bytes).map_or_else(|why| Old::Unreadable(why.to_string()), Old::Read)
        }
        Err(OwnedError::Io { error, .. }) if error.kind() == ErrorKind::NotFound => Old::Missing,
        Err(why) => Old::Unreadable(why.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::Captured;

    const OLD: &str =
        r#"{"server":"shop","pinned_at":"2026-10-01T09:00:00Z","tools":{"pay":{"description":"Pays."}}}"#;
    const NEW: &str =
        r#"{"server":"shop","pinned_at":"2026-10-02T09:00:00Z","tools":{"pay":{"description":"Pays!"}}}"#;

    fn parsed(text: &str) -> Manifest {
        Manifest::parse(text.as_bytes()).unwrap()
    }

    fn asked(path: &Path, old: Option<&str>, new: &str) -> Asked {
        let old = old.map_or(Old::Missing, |text| {
            std::fs::write(path, text).unwrap();
            Old::Read(parsed(text))
        });
        Asked { path: path.to_owned(), new: parsed(new), old }
    }

    fn settled(asked: &[Asked], yes: bool, typed: Option<&'static str>) -> (Result<(), Code>, String) {
        let (out, err) = (Captured::default(), Captured::default());
        let mut ui = Ui::of_test(false, typed, &out, &err);
        let result = settle(asked, yes, &mut ui).map_err(|error| error.code);
        (result, out.text())
    }

    #[test]
    fn a_first_manifest_is_written_without_a_question() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("shop.json");
        let (result, out) = settled(&[asked(&path, None, NEW)], false, None);
        assert_eq!(result, Ok(()), "{out}");
        assert_eq!(parsed(&std::fs::read_to_string(&path).unwrap()), parsed(NEW));
    }

    #[test]
    fn a_changed_manifest_is_replaced_only_when_somebody_agrees() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("shop.json");
        let text = || std::fs::read_to_string(&path).unwrap();
        let (result, out) = settled(&[asked(&path, Some(OLD), NEW)], false, Some("n\n"));
        assert_eq!((result, text().as_str()), (Err(Code::Declined), OLD), "{out}");
        assert!(out.contains("- Pays.") && out.contains("+ Pays!"), "{out}");
        assert_eq!(settled(&[asked(&path, Some(OLD), NEW)], false, Some("y\n")).0, Ok(()));
        assert_eq!(parsed(&text()), parsed(NEW));
        assert_eq!(settled(&[asked(&path, Some(OLD), NEW)], true, None).0, Ok(()));
        assert_eq!(parsed(&text()), parsed(NEW));
    }

    #[test]
    fn where_nobody_can_be_asked_nothing_at_all_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (dir.path().join("a.json"), dir.path().join("b.json"));
        let servers = [asked(&first, None, NEW), asked(&second, Some(OLD), NEW)];
        let (result, out) = settled(&servers, false, None);
        assert_eq!(result, Err(Code::UsageConfirm));
        assert!(!first.exists() && std::fs::read_to_string(&second).unwrap() == OLD);
        assert!(out.contains("+ Pays!"), "it was shown all the same: {out}");
    }

    #[test]
    fn what_is_no_manifest_is_never_replaced_and_nothing_else_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (dir.path().join("a.json"), dir.path().join("b.json"));
        std::fs::write(&second, "SQLite format 3\0 and all that happened").unwrap();
        let kept = std::fs::read(&second).unwrap();
        let servers = [asked(&first, None, NEW), Asked { old: old(&second), ..asked(&second, None, NEW) }];
        for (yes, typed) in [(true, None), (false, Some("y\ny\n"))] {
            let (result, out) = settled(&servers, yes, typed);
            assert_eq!(result, Err(Code::PinWrite), "{out}");
            assert!(!first.exists() && std::fs::read(&second).unwrap() == kept);
        }
    }

    #[test]
    fn an_unchanged_manifest_stays_with_its_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("shop.json");
        let later = OLD.replace("10-01", "10-05");
        let (result, out) = settled(&[asked(&path, Some(OLD), &later)], false, None);
        assert_eq!(result, Ok(()));
        assert!(out.contains("stays"), "{out}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), OLD);
    }
}
