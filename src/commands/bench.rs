//! `holdpoint bench`: results of an agent that was scored, told for people and put beside each other.
//!
//! Owns which files are meant and what a refusal says; what may be compared is told in `holdpoint::bench`. Everything in a
//! file is foreign text, and escaped before it is printed.

use std::path::PathBuf;

use crate::error::CommandError;
use crate::text::Ui;

/// Tell and compare the results of agents that were scored
///
/// A result file holds what one run of a harness tried and how each trial was scored; docs/bench.md describes it.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Summarize(SummarizeArgs),
    Compare(CompareArgs),
}

/// Tell each file's outcomes, sums and trials as Markdown; with --json, its sums
#[derive(Debug, clap::Args)]
struct SummarizeArgs {
    /// Result files, or folders of which every .json file is one
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
}

/// Put the newest results of each mode and model beside each other, as Markdown
///
/// Results that were scored by different outcomes are refused, and so are results of different commits: what the agent
/// saw may have changed with them.
#[derive(Debug, clap::Args)]
struct CompareArgs {
    /// Result files, or folders of which every .json file is one
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// Modes that come first, in this order
    #[arg(long, value_name = "MODE", value_delimiter = ',')]
    order: Vec<String>,
    /// Compare results of different commits all the same, and say above the tables that they are
    #[arg(long)]
    allow_mixed_commits: bool,
    /// Link each column's file, with this before its name
    #[arg(long, value_name = "PREFIX", default_value = "", hide_default_value = true)]
    link_prefix: String,
}

#[cfg(not(feature = "bench"))]
pub(super) fn run(_args: &Args, _ui: &mut Ui) -> Result<(), CommandError> {
    Err(CommandError::usage("this build has no bench").hint("install one without --no-default-features"))
}

#[cfg(feature = "bench")]
pub(super) use with_bench::run;

#[cfg(feature = "bench")]
mod with_bench {
    //! The commands, where there is something to run.

    use std::path::PathBuf;

    use holdpoint::bench::{Options, ReadError, ResultFile, Summary, compare, latest, read_folder};
    use holdpoint::codes::Code;
    use holdpoint_core::sanitize::sanitize;
    use serde::Serialize;

    use super::{Args, Command, CommandError, CompareArgs, SummarizeArgs, Ui};
    use crate::commands::must_be_text;

    pub(in crate::commands) fn run(args: &Args, ui: &mut Ui) -> Result<(), CommandError> {
        match &args.command {
            Command::Summarize(args) => summarize(args, ui),
            Command::Compare(args) => {
                must_be_text(ui, "bench compare")?;
                compared(args, ui)
            }
        }
    }

    /// A file's sums in JSON.
    #[derive(Debug, Serialize)]
    struct Sums {
        file: String,
        summaries: Vec<Summary>,
    }

    fn summarize(args: &SummarizeArgs, ui: &mut Ui) -> Result<(), CommandError> {
        let files = read(&args.paths)?;
        if ui.json() {
            let sums = |file: &ResultFile| Sums { file: file.source.clone(), summaries: file.summaries() };
            return Ok(ui.write_json(&files.iter().map(sums).collect::<Vec<_>>())?);
        }
        for (i, file) in files.iter().enumerate() {
            if i > 0 {
                writeln!(ui.out())?;
            }
            print(&file.to_markdown(), ui)?;
        }
        Ok(())
    }

    fn compared(args: &CompareArgs, ui: &mut Ui) -> Result<(), CommandError> {
        let files = read(&args.paths)?;
        let how = Options {
            order: args.order.clone(),
            allow_mixed_commits: args.allow_mixed_commits,
            link_prefix: args.link_prefix.clone(),
        };
        let text = compare(&latest(&files), &how)
            .map_err(|error| CommandError::new(Code::BenchNotComparable, error.to_string()))?;
        print(&text, ui)
    }

    /// Prints Markdown whose lines hold foreign text.
    fn print(text: &str, ui: &mut Ui) -> Result<(), CommandError> {
        for line in text.lines() {
            writeln!(ui.out(), "{}", sanitize(line))?;
        }
        Ok(())
    }

    fn read(paths: &[PathBuf]) -> Result<Vec<ResultFile>, CommandError> {
        let one = |path: &PathBuf| match path.is_dir() {
            true => read_folder(path),
            false => ResultFile::read(path).map(|file| vec![file]),
        };
        let files: Result<Vec<_>, ReadError> = paths.iter().map(one).collect();
        let files = files.map_err(|error| CommandError::new(Code::BenchFile, error.to_string()))?;
        Ok(files.into_iter().flatten().collect())
    }
}
