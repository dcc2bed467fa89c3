//! `holdpoint recheck`: asks a policy again about what is recorded.
//!
//! Owns which runs are looked at, under which configuration, and what is printed of each. The database is opened for
//! reading only. What is rebuilt and compared is the library's; what many runs add up to under another configuration is
//! told in `changes`.

mod changes;
mod tools;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use holdpoint::codes::Code;
use holdpoint::proxy::config::Config;
use holdpoint::proxy::owned::check_database;
use holdpoint::proxy::policy::ProxyPolicy;
use holdpoint::proxy::recheck::{RecordedPolicy, policy_of_rules, policy_of_tools};
use holdpoint::proxy::serve::ServeError;
use holdpoint::recheck::{CurrentTools, RecheckError, Rechecker, Record, Report, read, text};
use holdpoint_actors::policy::Policy;
use holdpoint_core::ids::RunId;
use holdpoint_core::sanitize::escape_json;
use tokio::runtime::Runtime;

use super::records::{self, Records};
use super::{runtime, servers};
use crate::error::CommandError;
use crate::text::{Ui, plural, style};

/// How many runs of a session are re-checked when nobody says.
const RUNS: u32 = 50;

/// How many rows of the index are read at a time.
const PAGE_ROWS: i64 = 128;

/// What re-checking does not look at.
const SCOPE: &str = "Only the policy was asked again. What is decided before it is asked (duplicates, repeat windows, what\n\
                     waits or blocks, arguments that don't fit) was not.";

/// Ask the policy again about the recorded calls: which would be decided otherwise now?
///
/// Each decision of the policy is rebuilt from the record, as the policy was asked, and put to the policy that the
/// configuration makes now. With --policy it is put to another configuration's instead, over all runs of the session, and
/// the differences are added up: what would this change have done to everything that happened? Nothing is written.
///
/// Exit status: 0 when decisions were re-checked and none differs, 1 when one differs or none could be re-checked, 2 when
/// the command line can't be used.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The configuration of the proxy whose database is read
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Another configuration: show what its policy would have decided, tool by tool
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Only this run
    #[arg(long, value_name = "RUN", conflicts_with = "session")]
    run: Option<String>,
    /// The session whose runs are re-checked, newest first [default: that of --config]
    #[arg(long, value_name = "NAME")]
    session: Option<String>,
    /// How many runs at most [default: 50; all with --policy]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// Start the servers and take the tools as they are offered now, in place of those that were recorded
    #[arg(long)]
    current_tools: bool,
}

/// Which runs are looked at.
#[derive(Debug)]
enum Selection {
    Run(RunId),
    Session { name: String, limit: Option<u32> },
}

impl Selection {
    fn of(args: &Args, config: &Config) -> Selection {
        match &args.run {
            Some(run) => Selection::Run(RunId::from(run.as_str())),
            None => Selection::Session {
                name: args.session.clone().unwrap_or_else(|| config.session.to_string()),
                limit: args.limit.or(args.policy.is_none().then_some(RUNS)),
            },
        }
    }

    /// Reads the runs, one snapshot each, and gives each to `take`. A row of the index whose run never began is no run.
    fn each(
        &self,
        records: &mut Records,
        mut take: impl FnMut(Record) -> Result<(), CommandError>,
    ) -> Result<(), CommandError> {
        let (name, limit) = match self {
            Selection::Run(run) => {
                let record = records.read(|reader| read(reader, run))?;
                return take(record.ok_or_else(|| records::no_run(run))?);
            }
            Selection::Session { name, limit } => (name, *limit),
        };
        let (mut before, mut taken) = (None, 0);
        loop {
            let page = records.read(|reader| reader.session_runs(name, before, PAGE_ROWS))?;
            let page = page.ok_or_else(no_index)?;
            let Some(last) = page.last() else { return Ok(()) };
            before = Some(last.row);
            for indexed in &page {
                if limit.is_some_and(|limit| taken >= limit) {
                    return Ok(());
                }
                if let Some(record) = records.read(|reader| read(reader, &indexed.run))? {
                    taken += 1;
                    take(record)?;
                }
            }
        }
    }

    fn is_run(&self) -> bool {
        matches!(self, Selection::Run(_))
    }
}

fn no_index() -> CommandError {
    CommandError::new(
        Code::RecheckNothing,
        "the database has no index of a proxy's calls, so no session has runs",
    )
    .hint("--run RUN re-checks one run")
}

/// The policy of one configuration, which runs are put to.
#[derive(Debug)]
struct Judge {
    policy: Arc<ProxyPolicy>,
    policy_id: String,
    tools: Option<Arc<CurrentTools>>,
    runtime: Arc<Runtime>,
}

impl Judge {
    /// The policy that a configuration makes: from its rules alone, or from what its servers offer now.
    fn of(
        config: &Config,
        current_tools: bool,
        runtime: &Arc<Runtime>,
        ui: &mut Ui,
    ) -> Result<Judge, CommandError> {
        let (policy, tools) = if current_tools {
            let offered = tools::offered(config, runtime, ui)?;
            let specs = offered.iter().map(|tool| tool.spec.clone());
            let tools = CurrentTools::of(specs).map_err(|error| of_recheck(&error))?;
            (policy_of_tools(config, &offered), Some(Arc::new(tools)))
        } else {
            (policy_of_rules(config), None)
        };
        let (policy, runtime) = (Arc::new(policy), Arc::clone(runtime));
        Ok(Judge { policy, policy_id: config.policy_id(), tools, runtime })
    }

    fn recheck(&self, record: &Arc<Record>) -> Result<Report, CommandError> {
        let policy =
            RecordedPolicy::new(Arc::clone(&self.policy), self.policy_id.as_str(), Arc::clone(record));
        let rechecker = Rechecker::new(Arc::new(policy) as Arc<dyn Policy>);
        let mut rechecker = rechecker.map_err(|error| of_recheck(&error))?;
        if let Some(tools) = &self.tools {
            rechecker = rechecker.with_current_tools(Arc::clone(tools));
        }
        Ok(self.runtime.block_on(rechecker.recheck(record)))
    }
}

fn of_recheck(error: &RecheckError) -> CommandError {
    let code = match error {
        RecheckError::Policy(_) => Code::Internal,
        RecheckError::Tool { .. } => Code::ConfigInvalid,
    };
    CommandError::new(code, error.to_string())
}

pub(super) fn run(args: &Args, ui: &mut Ui) -> Result<(), CommandError> {
    let config = servers::load(&args.config)?;
    let other = args.policy.as_deref().map(servers::load).transpose()?;
    check_database(&config.database).map_err(ServeError::Database).map_err(servers::of_serve)?;
    let mut records = Records::open_to_read(&config.database)?;
    let selection = Selection::of(args, &config);
    let runtime = Arc::new(runtime()?);
    let judge = Judge::of(other.as_ref().unwrap_or(&config), args.current_tools, &runtime, ui)?;
    match &args.policy {
        None => one_by_one(&selection, &mut records, &judge, ui),
        Some(path) => {
            let present = Judge::of(&config, false, &runtime, ui)?;
            let asked = changes::Asked { path, present: &args.config, selection: &selection };
            changes::run(&asked, &mut records, (&judge, &present), ui)
        }
    }
}

/// What the runs come to.
#[derive(Debug, Default)]
struct Sums {
    runs: u64,
    rechecked: usize,
    not_recheckable: usize,
    differing: u64,
}

/// Reports each run, and fails unless decisions were re-checked and none differs.
fn one_by_one(
    selection: &Selection,
    records: &mut Records,
    judge: &Judge,
    ui: &mut Ui,
) -> Result<(), CommandError> {
    let mut sums = Sums::default();
    selection.each(records, |record| {
        let report = judge.recheck(&Arc::new(record))?;
        if ui.json() {
            write_json_item(&report, sums.runs == 0, ui)?;
        } else {
            write_text(&report, ui)?;
            writeln!(ui.out())?;
        }
        sums.runs += 1;
        sums.rechecked += report.rechecked();
        sums.not_recheckable += report.not_recheckable();
        sums.differing += u64::from(!report.same());
        Ok(())
    })?;
    if ui.json() {
        writeln!(ui.out(), "{}", if sums.runs == 0 { "[]" } else { "\n]" })?;
    } else {
        let (dim, runs) = (style::DIM, plural(sums.runs, "run"));
        writeln!(
            ui.out(),
            "{runs} re-checked under {}: {} re-checked, {} not re-checkable and skipped; {} {}",
            judge.policy_id,
            plural(sums.rechecked as u64, "decision"),
            sums.not_recheckable,
            plural(sums.differing, "run"),
            if sums.differing == 1 { "differs" } else { "differ" }
        )?;
        writeln!(ui.out(), "{dim}{SCOPE}{dim:#}")?;
    }
    sums.judge(selection)
}

impl Sums {
    fn judge(&self, selection: &Selection) -> Result<(), CommandError> {
        proved_something(self.runs, self.rechecked, self.not_recheckable, selection)?;
        if self.differing == 0 {
            return Ok(());
        }
        let message =
            format!("{} of {} would not be decided as recorded", self.differing, plural(self.runs, "run"));
        Err(CommandError::new(Code::RecheckDiffers, message))
    }
}

/// Fails when nothing was re-checked: that nothing differs would then mean nothing.
fn proved_something(
    runs: u64,
    rechecked: impl TryInto<u64>,
    not_recheckable: impl std::fmt::Display,
    selection: &Selection,
) -> Result<(), CommandError> {
    if rechecked.try_into().is_ok_and(|rechecked| rechecked > 0) {
        return Ok(());
    }
    let message = match selection {
        Selection::Session { name, .. } if runs == 0 => {
            format!("no run of session {name:?} was found, so nothing was re-checked")
        }
        Selection::Session { .. } | Selection::Run(_) => {
            format!("no decision of a policy was re-checked ({not_recheckable} not re-checkable)")
        }
    };
    Err(CommandError::new(Code::RecheckNothing, message))
}

/// Writes a run's report, what differs in the colour of failures.
fn write_text(report: &Report, ui: &mut Ui) -> Result<(), CommandError> {
    let (bad, dim) = (style::BAD, style::DIM);
    for line in text(report).lines() {
        match (line.strip_prefix("DIFFERENT"), line.starts_with("skipped")) {
            (Some(rest), _) => writeln!(ui.out(), "{bad}DIFFERENT{bad:#}{rest}")?,
            (None, true) => writeln!(ui.out(), "{dim}{line}{dim:#}")?,
            (None, false) => writeln!(ui.out(), "{line}")?,
        }
    }
    Ok(())
}

/// Writes one report of a list, which is never held whole.
fn write_json_item(report: &Report, is_first: bool, ui: &mut Ui) -> Result<(), CommandError> {
    let item = serde_json::to_string_pretty(report).map_err(std::io::Error::from)?;
    let item = escape_json(&item).replace('\n', "\n  ");
    Ok(write!(ui.out(), "{}\n  {item}", if is_first { "[" } else { "," })?)
}

/// The last part of a path, for a heading.
fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
