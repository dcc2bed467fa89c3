//! What a command fails with: a message, a code that has a page, and a hint.
//!
//! Owns the one shape in which a refusal reaches a person. Everything foreign in it is escaped here, at the edge, so
//! that nobody who makes an error has to think of it.

use std::fmt;
use std::io;

use holdpoint::codes::Code;
use holdpoint_core::sanitize::{sanitize, truncate};

use crate::exit::Exit;
use crate::text::Ui;
use crate::text::style;

/// The most bytes of a message or hint that are printed.
const TEXT_BYTES_MAX: usize = 4_000;

/// Why a command did not do what it was asked to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CommandError {
    /// What kind of failure it is; decides the exit status.
    pub(crate) code: Code,
    /// What happened, in one sentence without a full stop.
    pub(crate) message: String,
    /// What to do about it, when there is something better to say than the page does.
    pub(crate) hint: Option<String>,
    /// Whether nobody is left to be told.
    silent: bool,
}

impl CommandError {
    /// A failure with a message.
    pub(crate) fn new(code: Code, message: impl Into<String>) -> CommandError {
        CommandError { code, message: message.into(), hint: None, silent: false }
    }

    /// A command line that can't be used.
    pub(crate) fn usage(message: impl Into<String>) -> CommandError {
        CommandError::new(Code::Usage, message)
    }

    /// The same failure with a hint.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> CommandError {
        self.hint = Some(hint.into());
        self
    }

    /// Tells the person at the terminal, and says how the process ends.
    pub(crate) fn report(&self, ui: &mut Ui) -> Exit {
        let exit = Exit::of(self.code);
        if self.silent {
            return exit;
        }
        let clean = |text: &str| truncate(&sanitize(text), TEXT_BYTES_MAX).into_owned();
        let (bad, dim) = (style::BAD, style::DIM);
        let mut text = format!("{bad}error[{}]{bad:#}: {}\n", self.code, clean(&self.message));
        if let Some(hint) = &self.hint {
            text.push_str(&format!("{dim}hint:{dim:#} {}\n", clean(hint)));
        }
        text.push_str(&format!("{dim}more:{dim:#} holdpoint explain {}\n", self.code));
        // When even stderr is gone, the exit status is all that is left to say.
        ui.complain(&text).map_or(exit, |()| exit)
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}] {}", self.code, self.message)
    }
}

impl std::error::Error for CommandError {}

/// The output could not be written. A reader that went away, as `head` does, is not told about it.
impl From<io::Error> for CommandError {
    fn from(error: io::Error) -> CommandError {
        CommandError {
            silent: error.kind() == io::ErrorKind::BrokenPipe,
            ..CommandError::new(Code::Output, format!("failed to write the output: {error}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::Captured;

    fn reported(error: &CommandError) -> (String, Exit) {
        let (out, err) = (Captured::default(), Captured::default());
        let exit = error.report(&mut Ui::of_test(false, None, &out, &err));
        assert_eq!(out.text(), "", "complaints go to stderr");
        (err.text(), exit)
    }

    #[test]
    fn a_failure_prints_its_code_its_hint_and_where_to_read_more() {
        let error = CommandError::new(Code::RunNotFound, "there is no run \"r\x1b[2J\"")
            .hint("holdpoint runs lists them");
        let (text, exit) = reported(&error);
        insta::assert_snapshot!(text, @r#"
        error[run.not_found]: there is no run "r\x1b[2J"
        hint: holdpoint runs lists them
        more: holdpoint explain run.not_found
        "#);
        assert_eq!(exit, Exit::Failed);
    }

    #[test]
    fn a_command_line_that_can_t_be_used_exits_with_two() {
        assert_eq!(reported(&CommandError::usage("no")).1, Exit::Usage);
    }

    #[test]
    fn a_reader_that_went_away_is_not_complained_to() {
        let gone = CommandError::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!(reported(&gone), (String::new(), Exit::Failed));
        let full = CommandError::from(io::Error::from(io::ErrorKind::StorageFull));
        assert!(reported(&full).0.starts_with("error[output]: "));
    }
}
