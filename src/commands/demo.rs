//! `holdpoint demo`.

use crate::demo;
use crate::error::CommandError;
use crate::text::Ui;

/// Tell the story with a fake payment server, in about ten seconds
///
/// It needs no network, no model and no other program: it starts this one as proxy, payment server and operator, in a
/// private folder that it removes at the end. The exit status says whether every scene happened as told.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Keep the files, and print the commands to look at them
    #[arg(long)]
    keep: bool,
}

pub(super) fn run(args: &Args, ui: &mut Ui) -> Result<(), CommandError> {
    super::must_be_text(ui, "demo")?;
    demo::run(args.keep, ui)
}
