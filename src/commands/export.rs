//! `holdpoint export`: hand on every event of the record, once or for as long as it grows.
//!
//! Owns the command's threads: the follower has one of its own, so that a signal ends the command also while whoever
//! reads the output has stopped reading. What is delivered when is told in `holdpoint::export`.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use holdpoint::codes::Code;
use holdpoint::export::{End, Error, FileCursor, Followed, Follower, Head, Jsonl, SinkError, Stop};
use holdpoint_core::ids::RunId;
use tokio::sync::oneshot;

use super::records::{self, Records};
use super::{Database, runtime};
use crate::error::CommandError;
use crate::signals::stop_signal;
use crate::text::{Ui, plural, unlocked};

/// How long an export that was asked to end may take to let go of what it has.
const GRACE: Duration = Duration::from_secs(15);

/// Hand on every event of the record, in the order of its commit
///
/// Reads the database and changes nothing in it, from beside whatever writes it. With --cursor it goes on where the
/// last export of that cursor ended: each event is handed on once, and at most a page of 500 twice when the command is killed.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    to: To,
    /// One run's events only
    #[arg(long, value_name = "RUN")]
    run: Option<String>,
    /// Where to begin, and what to keep the number of the last event in; made when it is missing
    #[arg(long, value_name = "FILE")]
    cursor: Option<PathBuf>,
    /// End when everything that is there was handed on; this is so without --follow
    #[arg(long, conflicts_with = "follow")]
    once: bool,
    /// Go on as the record grows, until SIGINT, SIGTERM, SIGHUP or SIGQUIT
    #[arg(long)]
    follow: bool,
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct To {
    /// To stdout, one JSON object a line
    #[arg(long)]
    jsonl: bool,
    /// To an OpenTelemetry collector, as the OTEL_* variables of the environment say
    #[arg(long)]
    otlp: bool,
}

pub(super) fn run(args: &Args, database: &Database, ui: &mut Ui) -> Result<(), CommandError> {
    if ui.json() {
        return Err(CommandError::usage(
            "export prints nothing of its own in JSON; --jsonl is what writes events",
        ));
    }
    let stop = Stop::default();
    let done = if args.to.otlp {
        otlp::export(args, database, &stop)?
    } else {
        let follower = follower(args, &database.path()?)?;
        on_its_own_thread(follower, &stop, |mut follower, stop| {
            let followed = follower.follow(&mut Jsonl::new(unlocked(&io::stdout())), stop)?;
            Ok((follower, followed))
        })?
    };
    tell(args, &done, ui)
}

#[cfg(not(feature = "otlp"))]
mod otlp {
    //! What a build without OpenTelemetry says.

    use super::{Args, CommandError, Database, Done, Stop};

    pub(super) fn export(_args: &Args, _database: &Database, _stop: &Stop) -> Result<Done, CommandError> {
        Err(CommandError::usage("this build can't export to OpenTelemetry")
            .hint("install one that can: cargo install --path . --locked --features otlp"))
    }
}

#[cfg(feature = "otlp")]
mod otlp {
    //! To a collector, as the environment says.

    use holdpoint::codes::Code;
    use holdpoint::export::otel::{Otlp, OtlpError};

    use super::{Args, CommandError, Database, Done, Stop, follower, on_its_own_thread};

    pub(super) fn export(args: &Args, database: &Database, stop: &Stop) -> Result<Done, CommandError> {
        let path = database.path()?;
        let otlp = Otlp::from_env(&path).map_err(of_otlp)?;
        let otlp = if args.follow { otlp.keep_trying(stop) } else { otlp };
        let follower = follower(args, &path)?;
        on_its_own_thread(follower, stop, move |follower, stop| otlp.follow(follower, stop))
    }

    fn of_otlp(error: OtlpError) -> CommandError {
        let code = match &error {
            OtlpError::Setting(_) | OtlpError::Exporter { .. } => Code::ExportSettings,
            OtlpError::Thread(_) => Code::Internal,
        };
        CommandError::new(code, error.to_string())
    }
}

/// What an export came to.
struct Done {
    followed: Followed,
    head: Option<Head>,
}

fn follower(args: &Args, path: &Path) -> Result<Follower, CommandError> {
    let mut follower = Follower::open(path).map_err(of_export)?;
    if let Some(id) = &args.run {
        let id = RunId::from(id.as_str());
        Records::open_to_read(path)?.summary(&id)?;
        follower = follower.run(id);
    }
    if let Some(cursor) = &args.cursor {
        follower = follower.cursor(FileCursor::new(cursor));
    }
    Ok(if args.follow { follower } else { follower.once() })
}

/// Follows on a thread of its own, until that ends or a signal asks it to.
fn on_its_own_thread(
    follower: Follower,
    stop: &Stop,
    follow: impl FnOnce(Follower, &Stop) -> Result<(Follower, Followed), Error> + Send + 'static,
) -> Result<Done, CommandError> {
    let runtime = runtime()?;
    // From here on no signal ends the process by itself.
    let asked = runtime.block_on(async { stop_signal() })?;
    let (of_thread, (send, mut over)) = (stop.clone(), oneshot::channel());
    std::thread::Builder::new().name("holdpoint-export".to_owned()).spawn(move || {
        let done = follow(follower, &of_thread)
            .and_then(|(mut follower, followed)| Ok(Done { followed, head: follower.head()? }));
        // Nobody waits any more when the time was up.
        drop(send.send(done));
    })?;
    let done = runtime.block_on(async {
        tokio::select! {
            done = &mut over => Some(done),
            _ = asked => {
                stop.stop();
                tokio::time::timeout(GRACE, &mut over).await.ok()
            }
        }
    });
    match done {
        Some(Ok(done)) => done.map_err(of_export),
        Some(Err(_)) => {
            Err(CommandError::new(Code::Internal, "the exporting thread ended without an answer"))
        }
        None => {
            let message =
                format!("asked to end, and what was exported was not taken within {} s", GRACE.as_secs());
            Err(CommandError::new(Code::Output, message)
                .hint("the cursor stands before it, so it comes again the next time"))
        }
    }
}

/// Says up to where the record was handed on, when that is kept.
fn tell(args: &Args, done: &Done, ui: &mut Ui) -> Result<(), CommandError> {
    let Some(head) = &done.head else { return Ok(()) };
    let Followed { events, end, .. } = done.followed;
    let ended = match end {
        End::Drained => "",
        End::Stopped => "asked to end; ",
    };
    let of_run = args.run.as_ref().map_or("", |_| " of the run");
    let events = plural(i64::try_from(events).unwrap_or(i64::MAX), "event");
    Ok(writeln!(
        ui.err(),
        "{ended}{events}{of_run} handed on; the record's head there is {}:{}",
        head.seq,
        head.hash
    )?)
}

fn of_export(error: Error) -> CommandError {
    match error {
        Error::Open(error) => records::of_open(error),
        Error::Read(error) => records::of_read(&error),
        Error::Sync { .. } => CommandError::new(Code::StoreIo, error.to_string()),
        Error::Moved { .. } => CommandError::new(Code::StoreMissing, error.to_string()),
        Error::Cursor(_) | Error::CursorAhead { .. } | Error::EventGone(_) => {
            CommandError::new(Code::ExportCursor, error.to_string())
        }
        Error::Sink(error) => of_sink(error),
    }
}

fn of_sink(error: SinkError) -> CommandError {
    match error.downcast::<io::Error>() {
        Ok(error) => CommandError::from(*error),
        Err(error) => CommandError::new(Code::ExportCollector, error.to_string()),
    }
}
