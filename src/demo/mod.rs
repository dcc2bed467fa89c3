//! The demonstration: the real proxy and the real commands, a fake payment server, a scripted host, and a story told to a
//! person.
//!
//! Owns the story's beginning and end: the runtime, the signals that stop it, and what is printed when the files stay.
//! Needs no network and no model. Everything that it starts ends with it, on every path: each process has an owner that
//! ends it by its id, and dropping the story drops them all.

mod actor;
mod error;
mod host;
mod process;
mod scenes;
mod teller;
mod world;

use std::io::{self, Write};
use std::path::Path;

use holdpoint::codes::Code;
use holdpoint_actors::clock::monotonic;

use crate::error::CommandError;
use crate::signals::stop_signal;
use crate::text::{Ui, shell_word, style};
use error::Error;
use scenes::Story;
use teller::{Teller, took};
use world::World;

/// Tells the whole story. The files stay when `keep` says so.
pub(crate) fn run(keep: bool, ui: &mut Ui) -> Result<(), CommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let stopped = stop_signal()?;
        tokio::select! {
            biased;
            name = stopped => Err(CommandError::new(
                Code::DemoFailed,
                format!("{name} stopped the demonstration; everything that it had started has been ended"),
            )),
            told = tell(keep, ui) => told,
        }
    })
}

async fn tell(keep: bool, ui: &mut Ui) -> Result<(), CommandError> {
    let began = monotonic();
    let world = World::make(keep).map_err(|error| failure(0, error, ""))?;
    let mut story = Story { teller: Teller::new(ui), world };
    let mut scene = 0;
    let told = story.tell(&mut scene).await;
    let world = story.world;
    if let Err(error) = told {
        let failed = failure(scene, error, &world.last_words());
        return Err(if keep {
            failed.hint(format!("the files are in {}", world.folder().display()))
        } else {
            failed.hint("holdpoint demo --keep leaves the files to be looked at")
        });
    }
    let (out, bold) = (ui.out(), style::BOLD);
    writeln!(out, "\n{bold}All {scene} scenes happened as told, in {}.{bold:#}", took(began.elapsed()))?;
    if keep {
        show_files(&world, out)?
    } else {
        writeln!(out, "With --keep the files stay.")?
    }
    Ok(())
}

fn failure(scene: usize, error: Error, last_words: &str) -> CommandError {
    // A reader that went away, as `head` does, is no scene that went wrong.
    if let Error::Output(error) = error {
        return error.into();
    }
    let place = if scene == 0 { "the beginning".to_owned() } else { format!("scene {scene}") };
    let log =
        if last_words.is_empty() { String::new() } else { format!("; the proxy's log ends: {last_words}") };
    CommandError::new(Code::DemoFailed, format!("{place} did not happen as told: {error}{log}"))
}

/// Prints where the files are, and the commands to look at them.
fn show_files(world: &World, out: &mut dyn Write) -> io::Result<()> {
    let word = |path: &Path| shell_word(&path.to_string_lossy());
    let (folder, db, config) = (word(world.folder()), word(&world.database()), word(&world.config()));
    let (bold, dim) = (style::BOLD, style::DIM);
    writeln!(out, "\n{bold}The files are in {folder}{bold:#}")?;
    let commands = [
        (format!("export HOLDPOINT_DB={db}"), "so that the commands find the database"),
        ("holdpoint runs".to_owned(), "every call"),
        ("holdpoint show RUN".to_owned(), "one call, step by step"),
        ("holdpoint events RUN".to_owned(), "its part of the chain"),
        ("holdpoint reject RUN".to_owned(), "answer the question that waits"),
        ("holdpoint verify".to_owned(), "the whole chain"),
        (format!("holdpoint doctor --config {config}"), "everything that serving depends on"),
        (format!("cat {folder}/*/ledger"), "what was paid"),
        (format!("cat {folder}/gate/proxy-*.log"), "what the gate told its operator"),
        (format!("rm -r {folder}"), "when you have seen enough"),
    ];
    let width = commands.iter().map(|(command, _)| command.len()).max().unwrap_or_default();
    for (command, what) in commands {
        writeln!(out, "  {command:<width$}{dim}  {what}{dim:#}")?;
    }
    Ok(())
}
