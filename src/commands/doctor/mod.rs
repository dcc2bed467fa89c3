//! `holdpoint doctor`: look at everything that serving depends on, and say what is wrong.
//!
//! Owns the list of findings and how it is told. Never changes anything: no file is created, no schema migrated, no
//! mode tightened, and a server that is started is asked for its tools and ended.

mod configuration;
mod database;
mod running;

use std::path::PathBuf;

use holdpoint::codes::Code;
use serde::Serialize;

use super::Database;
use crate::error::CommandError;
use crate::text::{Ui, line, style};

/// The most bytes of a finding that are printed.
const FINDING_BYTES_MAX: usize = 1_000;

/// Check the database, the configuration and what a running proxy reports
///
/// With --config, everything that serving does before the first call is tried without changing anything; with --db
/// alone, only the database and the proxies that serve it are looked at.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The configuration of the proxy; names the database too
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// What was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Area {
    Database,
    Configuration,
    Running,
}

impl Area {
    const fn heading(self) -> &'static str {
        match self {
            Area::Database => "database",
            Area::Configuration => "configuration",
            Area::Running => "running proxies",
        }
    }
}

/// How it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Health {
    /// As it should be.
    Good,
    /// A fact, good or bad by circumstance.
    Fact,
    /// It works, and somebody should look.
    Doubtful,
    /// It does not work.
    Bad,
}

/// One thing that was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Finding {
    area: Area,
    health: Health,
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

/// Everything that was found.
#[derive(Debug, Default)]
struct Findings {
    all: Vec<Finding>,
    /// What each running proxy reported.
    observations: Vec<serde_json::Value>,
}

impl Findings {
    fn push(&mut self, area: Area, health: Health, text: impl Into<String>) {
        self.all.push(Finding { area, health, text: text.into(), code: None, hint: None });
    }

    fn fail(&mut self, area: Area, error: CommandError) {
        self.all.push(Finding {
            area,
            health: Health::Bad,
            text: error.message,
            code: Some(error.code.as_str()),
            hint: error.hint,
        });
    }

    fn of(&self, area: Area) -> impl Iterator<Item = &Finding> {
        self.all.iter().filter(move |finding| finding.area == area)
    }

    fn failures(&self) -> usize {
        self.all.iter().filter(|finding| finding.health == Health::Bad).count()
    }
}

/// What is printed in JSON.
#[derive(Debug, Serialize)]
struct Listing<'a> {
    healthy: bool,
    findings: &'a [Finding],
    proxies: &'a [serde_json::Value],
}

pub(super) fn run(args: &Args, database: &Database, ui: &mut Ui) -> Result<(), CommandError> {
    let mut findings = Findings::default();
    let path = match &args.config {
        Some(config) => {
            database.must_be_unnamed("doctor --config")?;
            configuration::look(config, &mut findings)
        }
        None => Some(database.path()?),
    };
    if let Some(path) = path {
        database::look(&path, args.config.is_some(), &mut findings);
        running::look(&path, &mut findings)?;
    }
    let failures = findings.failures();
    if ui.json() {
        let listing =
            Listing { healthy: failures == 0, findings: &findings.all, proxies: &findings.observations };
        ui.write_json(&listing)?;
    } else {
        print(&findings, ui)?;
    }
    match failures {
        0 => Ok(()),
        1 => Err(CommandError::new(Code::DoctorFailed, "a check failed")),
        many => Err(CommandError::new(Code::DoctorFailed, format!("{many} checks failed"))),
    }
}

fn print(findings: &Findings, ui: &mut Ui) -> Result<(), CommandError> {
    let out = ui.out();
    let (bold, dim) = (style::BOLD, style::DIM);
    let mut area = None;
    for finding in &findings.all {
        if area != Some(finding.area) {
            let gap = if area.is_some() { "\n" } else { "" };
            writeln!(out, "{gap}{bold}{}{bold:#}", finding.area.heading())?;
            area = Some(finding.area);
        }
        let (style, mark) = match finding.health {
            Health::Good => (style::GOOD, "ok"),
            Health::Fact => (style::DIM, "-"),
            Health::Doubtful => (style::WAITS, "look"),
            Health::Bad => (style::BAD, "FAIL"),
        };
        let code = finding.code.map(|code| format!(" [{code}]")).unwrap_or_default();
        writeln!(out, "  {style}{mark:<5}{style:#} {}{code}", line(&finding.text, FINDING_BYTES_MAX))?;
        if let Some(hint) = &finding.hint {
            writeln!(out, "        {dim}hint:{dim:#} {}", line(hint, FINDING_BYTES_MAX))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::Captured;

    #[test]
    fn findings_stand_under_their_area_with_code_and_hint() {
        let mut findings = Findings::default();
        findings.push(Area::Configuration, Health::Good, "gate.json is readable");
        findings.push(Area::Database, Health::Fact, "3 runs");
        findings.push(Area::Database, Health::Doubtful, "the log has 80 MiB\x1b[2J");
        findings.fail(
            Area::Database,
            CommandError::new(Code::StoreSymlink, "gate.db is a link").hint("name the file"),
        );
        let (out, err) = (Captured::default(), Captured::default());
        print(&findings, &mut Ui::of_test(false, None, &out, &err)).unwrap();
        insta::assert_snapshot!(out.text(), @r"
        configuration
          ok    gate.json is readable

        database
          -     3 runs
          look  the log has 80 MiB\x1b[2J
          FAIL  gate.db is a link [store.symlink]
                hint: name the file
        ");
        assert_eq!(findings.failures(), 1);
    }
}
