//! The teller: words for a person, one aligned line after the other, at the pace of a reader.
//!
//! Owns the form and the pauses. Foreign text (what the gate or a server answers) is escaped and cut before it stands in
//! a line; nothing pauses where no terminal is, since nobody reads along.

use std::io::{self, IsTerminal};
use std::time::Duration;

use anstyle::Style;
use tokio::time::sleep;
use unicode_width::UnicodeWidthStr;

use super::host::Answer;
use crate::text::{Ui, line, style};

/// Columns of a line.
const WIDTH: usize = 100;
/// Columns of the word at the beginning of a line that says who speaks.
const WHO_WIDTH: usize = 10;
/// The most bytes of what is told of an answer.
const ANSWER_BYTES_MAX: usize = 400;
/// How long a line is left alone at a terminal.
const LINE_PAUSE: Duration = Duration::from_millis(100);
/// How long the end of a scene is left alone at a terminal.
const SCENE_PAUSE: Duration = Duration::from_millis(500);

/// Tells the story.
pub(super) struct Teller<'a> {
    ui: &'a mut Ui,
    paced: bool,
}

impl<'a> Teller<'a> {
    /// A teller on the command's own streams.
    pub(super) fn new(ui: &'a mut Ui) -> Teller<'a> {
        Teller { ui, paced: io::stdout().is_terminal() }
    }

    /// Says something in plain words.
    pub(super) async fn say(&mut self, text: &str) -> io::Result<()> {
        for line in wrapped(text, WIDTH) {
            writeln!(self.ui.out(), "{line}")?;
        }
        self.pause(LINE_PAUSE).await
    }

    /// Begins a scene.
    pub(super) async fn scene(&mut self, number: usize, title: &str) -> io::Result<()> {
        self.pause(SCENE_PAUSE).await?;
        let bold = style::BOLD;
        writeln!(self.ui.out(), "\n{bold}{number}  {title}{bold:#}")?;
        self.pause(LINE_PAUSE).await
    }

    /// Tells what somebody does.
    pub(super) async fn line(&mut self, who: &str, text: &str) -> io::Result<()> {
        self.styled(who, text, style::PLAIN).await
    }

    /// Tells what was found to be so.
    pub(super) async fn found(&mut self, who: &str, text: &str) -> io::Result<()> {
        self.styled(who, text, style::GOOD).await
    }

    /// Tells what a host was answered: the first sentence, and those that have the words that matter in this scene.
    pub(super) async fn answer(&mut self, answer: &Answer, words: &str) -> io::Result<()> {
        let style = match answer.verdict() {
            Some(("PENDING_APPROVAL" | "INTERRUPTED" | "UNKNOWN_OUTCOME" | "BLOCKED", _)) => style::WAITS,
            Some(("IN_PROGRESS", _)) => style::MOVING,
            Some(_) => style::BAD,
            None if answer.is_error => style::BAD,
            None => style::GOOD,
        };
        let text = line(&gist(&answer.text, words), ANSWER_BYTES_MAX);
        // Only the gate's own word carries the colour; a result does as a whole.
        let colored = answer.verdict().map_or(text.len(), |(word, _)| word.len().min(text.len()));
        let text = format!("{text} ({})", took(answer.took));
        self.write("answer", &text, style, colored)?;
        self.pause(LINE_PAUSE).await
    }

    async fn styled(&mut self, who: &str, text: &str, style: Style) -> io::Result<()> {
        let text = line(text, usize::MAX);
        self.write(who, &text, style, text.len())?;
        self.pause(LINE_PAUSE).await
    }

    /// Writes `text` behind `who`, its first `colored` bytes in a style.
    fn write(&mut self, who: &str, text: &str, style: Style, colored: usize) -> io::Result<()> {
        let dim = style::DIM;
        let mut left = colored;
        for (number, part) in wrapped(text, WIDTH - WHO_WIDTH - 3).into_iter().enumerate() {
            let who = if number == 0 { who } else { "" };
            let (bright, plain) = part.split_at(part.floor_char_boundary(left));
            left = left.saturating_sub(part.len() + 1);
            writeln!(self.ui.out(), "   {dim}{who:<WHO_WIDTH$}{dim:#}{style}{bright}{style:#}{plain}")?;
        }
        Ok(())
    }

    /// Shows what is written, and gives it time to be read.
    async fn pause(&mut self, pause: Duration) -> io::Result<()> {
        self.ui.flush()?;
        if self.paced {
            sleep(pause).await;
        }
        Ok(())
    }
}

/// A duration as a person says it.
pub(super) fn took(duration: Duration) -> String {
    if duration < Duration::from_secs(1) {
        format!("{}ms", duration.as_millis())
    } else {
        format!("{:.1}s", duration.as_secs_f64())
    }
}

/// The first sentence of a text and those that have `words` in them, with a mark where others are left out.
fn gist(text: &str, words: &str) -> String {
    let mut told = String::new();
    let mut left_out = false;
    for (number, sentence) in text.split_inclusive(". ").enumerate() {
        if number > 0 && !sentence.contains(words) {
            left_out = true;
            continue;
        }
        if std::mem::take(&mut left_out) {
            told.push_str("… ");
        }
        told.push_str(sentence);
    }
    if left_out {
        told.push('…');
    }
    told
}

/// Breaks text between words. A longer word stays whole: it may be a command to be copied.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut last = String::new();
    for word in text.split(' ') {
        if !last.is_empty() && last.width() + 1 + word.width() > width {
            lines.push(std::mem::take(&mut last));
        } else if !last.is_empty() {
            last.push(' ');
        }
        last.push_str(word);
    }
    lines.push(last);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::Captured;

    #[test]
    fn text_breaks_between_words_only() {
        assert_eq!(wrapped("aa bb cc", 5), ["aa bb", "cc"]);
        assert_eq!(wrapped("a-very-long-word b", 5), ["a-very-long-word", "b"]);
        assert_eq!(wrapped("", 5), [""]);
    }

    #[test]
    fn the_gist_is_the_first_sentence_and_what_matters() {
        let text = "BUSY: one. Two. Three has it. Four.";
        assert_eq!(gist(text, "has it"), "BUSY: one. … Three has it. …");
        assert_eq!(gist(text, "Four"), "BUSY: one. … Four.");
        assert_eq!(gist("paid 1.50 to bob", "paid"), "paid 1.50 to bob");
    }

    #[test]
    fn a_duration_is_told_in_a_unit_that_fits() {
        assert_eq!(took(Duration::from_micros(12_900)), "12ms");
        assert_eq!(took(Duration::from_millis(2_040)), "2.0s");
    }

    #[tokio::test]
    async fn an_answer_is_escaped_cut_and_aligned() {
        let (out, err) = (Captured::default(), Captured::default());
        let mut ui = Ui::of_test(false, None, &out, &err);
        let mut teller = Teller::new(&mut ui);
        let text = format!("PENDING_APPROVAL: \x1b[2J {}", "word ".repeat(200));
        let answer = Answer { text, is_error: false, took: Duration::ZERO };
        teller.answer(&answer, "word").await.unwrap();
        teller.line("host", "bank_pay").await.unwrap();
        let text = out.text();
        assert!(text.starts_with("   answer    PENDING_APPROVAL: \\x1b[2J word"), "{text}");
        assert!(text.lines().all(|line| line.width() <= WIDTH && line.starts_with("   ")), "{text}");
        assert!(text.lines().count() < 8, "{text}");
        assert!(text.ends_with("(0ms)\n   host      bank_pay\n"), "{text}");
    }
}
