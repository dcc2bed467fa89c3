//! Text for people: where it goes, its colours, tables, times, and the block that shows a waiting approval.
//!
//! Owns the two streams of a command. Never prints a foreign character unescaped, and never colours anything that is
//! not a terminal.

pub(crate) mod diff;
pub(crate) mod style;
pub(crate) mod table;
pub(crate) mod times;
pub(crate) mod waiting;

use std::fs::File;
use std::io::{self, BufRead, IsTerminal, Write};
use std::os::fd::AsFd as _;

use anstream::AutoStream;
use holdpoint_core::sanitize::{escape_json, sanitize};
use serde::Serialize;

pub(crate) use holdpoint::view::{counted, line};

type Stream = AutoStream<Box<dyn Write + Send>>;

/// The streams of one command: where results go, where the rest goes, and who can be asked.
pub(crate) struct Ui {
    out: Stream,
    err: Stream,
    json: bool,
    /// Where a person types answers; nobody is there when it is `None`.
    answers: Option<Box<dyn BufRead + Send>>,
}

impl Ui {
    /// The process's own streams. A person can be asked only where both input and output are a terminal: a block
    /// that went into a file was read by nobody.
    pub(crate) fn of_process(json: bool) -> Ui {
        let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
        let asked = stdin.is_terminal() && stdout.is_terminal();
        let (out, err) = (AutoStream::choice(&stdout), AutoStream::choice(&stderr));
        Ui {
            out: AutoStream::new(Box::new(io::BufWriter::new(unlocked(&stdout))), out),
            err: AutoStream::new(Box::new(stderr), err),
            json,
            answers: asked.then(|| Box::new(io::BufReader::new(stdin)) as Box<dyn BufRead + Send>),
        }
    }

    /// Streams of a test, without colours. `answers` is what the person types.
    #[cfg(test)]
    pub(crate) fn of_test(json: bool, answers: Option<&'static str>, out: &Captured, err: &Captured) -> Ui {
        Ui {
            out: AutoStream::new(Box::new(out.clone()), anstream::ColorChoice::Never),
            err: AutoStream::new(Box::new(err.clone()), anstream::ColorChoice::Never),
            json,
            answers: answers.map(|text| Box::new(text.as_bytes()) as Box<dyn BufRead + Send>),
        }
    }

    /// Whether results are JSON.
    pub(crate) fn json(&self) -> bool {
        self.json
    }

    /// Where results go.
    pub(crate) fn out(&mut self) -> &mut dyn Write {
        &mut self.out
    }

    /// Where everything else goes.
    pub(crate) fn err(&mut self) -> &mut dyn Write {
        &mut self.err
    }

    /// Writes a result as JSON, indented, with a line feed.
    pub(crate) fn write_json(&mut self, value: &impl Serialize) -> io::Result<()> {
        let json = serde_json::to_string_pretty(value)?;
        self.out.write_all(escape_json(&json).as_bytes())?;
        self.out.write_all(b"\n")
    }

    /// Writes everything that is buffered.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()?;
        self.err.flush()
    }

    /// Writes an error's text, after the results that come before it.
    pub(crate) fn complain(&mut self, text: &str) -> io::Result<()> {
        let flushed = self.out.flush();
        self.err.write_all(text.as_bytes())?;
        flushed
    }

    /// Whether a person can be asked.
    pub(crate) fn can_ask(&self) -> bool {
        !self.json && self.answers.is_some()
    }

    /// Asks a person, who answers with one line.
    pub(crate) fn ask(&mut self, question: &str) -> io::Result<Answer> {
        let Some(answers) = (if self.json { None } else { self.answers.as_mut() }) else {
            return Ok(Answer::Nobody);
        };
        write!(self.out, "{question} [y/N] ")?;
        self.out.flush()?;
        let mut line = String::new();
        // A line is as long as its writer likes, so it is cut where no answer is longer.
        if io::Read::take(answers, ANSWER_BYTES_MAX).read_line(&mut line)? == 0 {
            writeln!(self.out)?;
            return Ok(Answer::Nobody);
        }
        let answer = line.trim().to_lowercase();
        Ok(if answer == "y" || answer == "yes" { Answer::Yes } else { Answer::No })
    }
}

/// The process's stdout by a descriptor of its own. A thread that is stuck in a write to the standard library's, as one
/// that serves a host that stopped reading, keeps that one's lock, and a command must end all the same.
pub(crate) fn unlocked(stdout: &io::Stdout) -> Box<dyn Write + Send> {
    match stdout.as_fd().try_clone_to_owned() {
        Ok(own) => Box::new(File::from(own)),
        Err(_) => Box::new(io::stdout()),
    }
}

/// The most bytes of an answer that are read.
const ANSWER_BYTES_MAX: u64 = 4_096;

/// What a person answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// `y` or `yes`.
    Yes,
    /// Anything else that was typed.
    No,
    /// There is nobody to ask, or the input ended before an answer.
    Nobody,
}

/// Says how many of something there are: `1 run`, `2 runs`.
pub(crate) fn plural(count: impl TryInto<i64>, noun: &str) -> String {
    match count.try_into().unwrap_or(i64::MAX) {
        1 => format!("1 {noun}"),
        count => format!("{count} {noun}s"),
    }
}

/// Writes a word for a POSIX shell, so that a command that is printed can be pasted.
pub(crate) fn shell_word(text: &str) -> String {
    let plain =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | ':' | ',' | '+' | '=');
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    sanitize(&format!("'{}'", text.replace('\'', r"'\''"))).into_owned()
}

#[cfg(test)]
pub(crate) use tests::Captured;

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// What a command wrote.
    #[derive(Clone, Default, Debug)]
    pub(crate) struct Captured(Arc<Mutex<Vec<u8>>>);

    impl Captured {
        pub(crate) fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl Write for Captured {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn answer(json: bool, typed: Option<&'static str>) -> Answer {
        Ui::of_test(json, typed, &Captured::default(), &Captured::default()).ask("go on?").unwrap()
    }

    #[test]
    fn only_y_and_yes_are_consent() {
        for (typed, expected) in [
            ("y\n", Answer::Yes),
            (" YES \n", Answer::Yes),
            ("yes", Answer::Yes),
            ("\n", Answer::No),
            ("n\n", Answer::No),
            ("yes please\n", Answer::No),
            ("", Answer::Nobody),
        ] {
            assert_eq!(answer(false, Some(typed)), expected, "{typed:?}");
        }
    }

    #[test]
    fn nobody_is_asked_where_nobody_is_or_the_output_is_json() {
        assert_eq!(answer(false, None), Answer::Nobody);
        assert_eq!(answer(true, Some("y\n")), Answer::Nobody);
    }

    #[test]
    fn a_shell_word_can_be_pasted_and_holds_no_control_character() {
        assert_eq!(shell_word("/srv/gate.db"), "/srv/gate.db");
        assert_eq!(shell_word("it's here"), r"'it'\''s here'");
        assert_eq!(shell_word(""), "''");
        assert_eq!(shell_word("a\x1b[2Jb"), r"'a\x1b[2Jb'");
    }
}
