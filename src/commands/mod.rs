//! The command line: one command a file, whose doc comment is its help.
//!
//! Owns the grammar and the way from parsed arguments to an exit status. Every argument is judged before a database
//! is opened. Never words a failure twice: a command returns its error, and `error.rs` tells it.

mod approve;
mod bench;
mod cancel;
mod check;
mod decide;
mod demo;
mod doctor;
mod events;
mod explain;
mod export;
mod payment_server;
mod pin;
mod proxy;
mod recheck;
mod records;
mod reject;
mod runs;
mod serve_approvals;
mod servers;
mod show;
mod verify;

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};
use holdpoint::codes::Code;
use holdpoint::stderr::{self, LogLines};
use holdpoint_actors::store::Page as Rows;
use holdpoint_core::sanitize::sanitize;
use tracing_subscriber::EnvFilter;

use crate::error::CommandError;
use crate::exit::Exit;
use crate::text::Ui;

/// A gate between an AI agent and its tools: every call recorded, checked, held for a person when the policy says so,
/// and run at most once.
#[derive(Debug, Parser)]
#[command(name = "holdpoint", version, subcommand_required = true, arg_required_else_help = true)]
#[command(after_help = "Exit status: 0 done, 1 failed or refused, 2 the command line can't be used.\n\
    `holdpoint explain` lists every code that an error, an answer or an exit status can carry.")]
struct Cli {
    /// The database of the runs [default: $HOLDPOINT_DB, then $AGENTRT_DB]
    #[arg(long, global = true, value_name = "FILE", help_heading = "For every command")]
    db: Option<PathBuf>,
    /// Print results as JSON; nothing is ever asked then
    #[arg(long, global = true, help_heading = "For every command")]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Proxy(proxy::Args),
    Pin(pin::Args),
    Check(check::Args),
    Runs(runs::Args),
    Show(show::Args),
    Events(events::Args),
    Approve(approve::Args),
    Reject(reject::Args),
    Cancel(cancel::Args),
    Verify(verify::Args),
    Recheck(recheck::Args),
    ServeApprovals(serve_approvals::Args),
    Export(export::Args),
    Bench(bench::Args),
    Doctor(doctor::Args),
    Explain(explain::Args),
    Demo(demo::Args),
    #[command(hide = true)]
    PaymentServer(payment_server::Args),
}

/// Runs the process's command line.
pub(crate) fn main() -> Exit {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(problem) => {
            // Help goes to stdout and is no failure; when nobody reads either stream there is nobody to tell.
            if !problem.use_stderr() {
                return problem.print().map_or(Exit::Ok, |()| Exit::Ok);
            }
            // What was typed may have been pasted from anywhere: it comes back escaped, so without colours.
            let said = problem.render().to_string();
            let lines: Vec<_> = said.lines().map(sanitize).collect();
            return writeln!(std::io::stderr(), "{}", lines.join("\n")).map_or(Exit::Usage, |()| Exit::Usage);
        }
    };
    // The demonstration breaks things on purpose and tells of each itself.
    let level = if matches!(cli.command, Command::Demo(_)) { "off" } else { "warn" };
    log_to_stderr(level);
    let mut ui = Ui::of_process(cli.json);
    let outcome = cli.run(&mut ui).and_then(|()| Ok(ui.flush()?));
    let is_read = stderr::flush(LAST_LINES);
    match outcome {
        Ok(()) => Exit::Ok,
        // Where nobody reads, a complaint would wait for ever.
        Err(error) if is_read => error.report(&mut ui),
        Err(error) => Exit::of(error.code),
    }
}

/// How long whoever reads stderr may take to read the last lines.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Sends logs to stderr, at `level` without `HOLDPOINT_LOG`. What a server lives through is in its journal. A panic is a
/// log entry too. None of it waits for whoever reads the stream.
fn log_to_stderr(level: &str) {
    let filter = EnvFilter::try_from_env("HOLDPOINT_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| LogLines)
        // It would complain on the very stream that can't be written, and die of it.
        .log_internal_errors(false)
        .with_ansi(anstream::AutoStream::choice(&std::io::stderr()) != anstream::ColorChoice::Never)
        .init();
    std::panic::set_hook(Box::new(|panic| tracing::error!("{}", sanitize(&panic.to_string()))));
}

impl Cli {
    fn run(self, ui: &mut Ui) -> Result<(), CommandError> {
        let db = Database { flag: self.db };
        match self.command {
            Command::Proxy(args) => {
                db.must_be_unnamed("proxy")?;
                must_be_text(ui, "proxy")?;
                proxy::run(&args)
            }
            Command::Pin(args) => {
                db.must_be_unnamed("pin")?;
                must_be_text(ui, "pin")?;
                pin::run(&args, ui)
            }
            Command::Check(args) => {
                db.must_be_unnamed("check")?;
                check::run(&args, ui)
            }
            Command::Runs(args) => runs::run(&args, &db.path()?, ui),
            Command::Show(args) => show::run(&args, &db.path()?, ui),
            Command::Events(args) => events::run(&args, &db.path()?, ui),
            Command::Approve(args) => approve::run(&args, &db, ui),
            Command::Reject(args) => reject::run(&args, &db, ui),
            Command::Cancel(args) => cancel::run(&args, &db.path()?, ui),
            Command::Verify(args) => verify::run(&args, &db, ui),
            Command::Recheck(args) => {
                db.must_be_unnamed("recheck")?;
                recheck::run(&args, ui)
            }
            Command::ServeApprovals(args) => serve_approvals::run(&args, &db, ui),
            Command::Export(args) => export::run(&args, &db, ui),
            Command::Bench(args) => {
                db.must_be_unread("bench")?;
                bench::run(&args, ui)
            }
            Command::Doctor(args) => doctor::run(&args, &db, ui),
            Command::Explain(args) => explain::run(&args, ui),
            Command::Demo(args) => demo::run(&args, ui),
            Command::PaymentServer(args) => payment_server::run(args),
        }
    }
}

/// Runs a future to its end, on a runtime of its own.
fn block_on<T>(future: impl Future<Output = T>) -> Result<T, CommandError> {
    Ok(runtime()?.block_on(future))
}

/// A runtime with a thread for each core.
fn runtime() -> Result<tokio::runtime::Runtime, CommandError> {
    built(&mut tokio::runtime::Builder::new_multi_thread())
}

/// A runtime with one thread.
fn runtime_of_one_thread() -> Result<tokio::runtime::Runtime, CommandError> {
    built(tokio::runtime::Builder::new_multi_thread().worker_threads(1))
}

fn built(runtime: &mut tokio::runtime::Builder) -> Result<tokio::runtime::Runtime, CommandError> {
    runtime.enable_all().build().map_err(|problem| {
        CommandError::new(Code::Internal, format!("failed to start the threads that wait: {problem}"))
    })
}

/// Which database the command line names.
#[derive(Debug)]
struct Database {
    flag: Option<PathBuf>,
}

impl Database {
    /// The database that is meant: the flag's, else the environment's.
    fn path(&self) -> Result<PathBuf, CommandError> {
        self.named().ok_or_else(|| {
            CommandError::new(Code::UsageNoDatabase, "no database is named")
                .hint("pass --db FILE or set HOLDPOINT_DB")
        })
    }

    /// The database that is meant, if any.
    fn named(&self) -> Option<PathBuf> {
        // The second variable is the reference's, for people who come from there.
        let variable = |name| std::env::var_os(name).map(PathBuf::from);
        [self.flag.clone(), variable("HOLDPOINT_DB"), variable("AGENTRT_DB")]
            .into_iter()
            .flatten()
            .find(|path| !path.as_os_str().is_empty())
    }

    /// Refuses `--db` where no database is read.
    fn must_be_unread(&self, command: &str) -> Result<(), CommandError> {
        match self.flag {
            None => Ok(()),
            Some(_) => {
                Err(CommandError::usage(format!("{command} reads no database, so --db means nothing")))
            }
        }
    }

    /// Refuses `--db` where the configuration names the database, so that nobody believes it was used.
    fn must_be_unnamed(&self, command: &str) -> Result<(), CommandError> {
        match self.flag {
            None => Ok(()),
            Some(_) => Err(CommandError::usage(format!(
                "{command} takes its database from the configuration, not from --db"
            ))),
        }
    }
}

/// Refuses `--json` where there is no result to print.
fn must_be_text(ui: &Ui, command: &str) -> Result<(), CommandError> {
    if ui.json() { Err(CommandError::usage(format!("{command} has no output in JSON"))) } else { Ok(()) }
}

/// A page of a list, as `--limit` and `--offset` ask for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Page {
    /// How many at most; 0 is all of them.
    limit: u32,
    /// How many are left out first.
    offset: u32,
}

/// How many rows are read at a time when all of them are asked for.
const PAGE_ROWS: u32 = 500;

/// The arguments that ask for a page; `ROWS` when no limit is given.
///
/// The default is filled in here and not by clap, which would keep the first one that it met for all commands.
#[derive(Debug, clap::Args)]
struct PageArgs<const ROWS: u32> {
    #[arg(
        long,
        value_name = "N",
        help = format!("How many rows at most; 0 for all of them, read a page at a time [default: {ROWS}]")
    )]
    limit: Option<u32>,
    /// How many rows to leave out first
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    offset: u32,
}

impl<const ROWS: u32> PageArgs<ROWS> {
    fn page(&self) -> Page {
        Page { limit: self.limit.unwrap_or(ROWS), offset: self.offset }
    }
}

impl Page {
    /// Reads what is asked for, never more than [`PAGE_ROWS`] or the limit at a time, and gives each part to `take`.
    /// Returns how many were read, and how many there are in all.
    fn read<T, E>(
        self,
        mut part: impl FnMut(i64, i64) -> Result<Rows<T>, E>,
        mut take: impl FnMut(T) -> Result<(), E>,
    ) -> Result<(i64, i64), E> {
        let mut read = 0_i64;
        loop {
            let rows = i64::from(if self.limit == 0 { PAGE_ROWS } else { self.limit });
            let page = part(rows, i64::from(self.offset).saturating_add(read))?;
            let count = i64::try_from(page.rows.len()).unwrap_or(i64::MAX);
            for item in page.rows {
                take(item)?;
            }
            read = read.saturating_add(count);
            if self.limit > 0 || count < rows {
                return Ok((read, page.total));
            }
        }
    }

    /// Reads what is asked for into one list. Returns it, and how many there are in all.
    fn collect<T, E>(self, part: impl FnMut(i64, i64) -> Result<Rows<T>, E>) -> Result<Rows<T>, E> {
        let mut rows = Vec::new();
        let (_, total) = self.read(part, |item| {
            rows.push(item);
            Ok(())
        })?;
        Ok(Rows { rows, total })
    }

    /// Whether rows are left after `read` of them.
    fn leaves(self, read: i64, total: i64) -> Option<More> {
        let shown = i64::from(self.offset).saturating_add(read);
        (shown < total).then(|| More { left: total - shown, next: shown })
    }

    /// Whether rows are left after these.
    fn leaves_of<T>(self, rows: &Rows<T>) -> Option<More> {
        self.leaves(i64::try_from(rows.rows.len()).unwrap_or(i64::MAX), rows.total)
    }
}

/// What a page left out at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct More {
    /// How many.
    left: i64,
    /// The offset at which they begin.
    next: i64,
}

impl std::fmt::Display for More {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "… {} more; --offset {} shows them", self.left, self.next)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_grammar_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_for_every_command_stand_before_or_after_it() {
        for line in ["holdpoint --db a.db --json runs", "holdpoint runs --json --db a.db"] {
            let cli = Cli::try_parse_from(line.split(' ')).unwrap();
            assert_eq!((cli.db, cli.json), (Some(PathBuf::from("a.db")), true), "{line}");
        }
        for line in ["holdpoint approve --by al r1 --yes", "holdpoint approve r1 --yes --by al"] {
            assert!(Cli::try_parse_from(line.split(' ')).is_ok(), "{line}");
        }
    }

    #[test]
    fn all_rows_are_read_a_page_at_a_time_and_a_limit_in_one() {
        let all: Vec<i64> = (0..1_234).collect();
        let page = |limit, offset| {
            let mut asked = Vec::new();
            let page = Page { limit, offset };
            let rows: Result<Rows<i64>, ()> = page.collect(|limit, offset| {
                asked.push(limit);
                let rows = all.iter().copied().skip(offset as usize).take(limit as usize).collect();
                Ok(Rows { rows, total: 1_234 })
            });
            let rows = rows.unwrap();
            let more = page.leaves_of(&rows);
            (rows.rows, asked, more)
        };
        assert_eq!(page(0, 0), (all.clone(), vec![500, 500, 500], None));
        assert_eq!(page(0, 1_000), (all[1_000..].to_vec(), vec![500], None));
        assert_eq!(page(10, 4), (all[4..14].to_vec(), vec![10], Some(More { left: 1_220, next: 14 })));
        assert_eq!(page(10, 2_000), (Vec::new(), vec![10], None));
    }
}
