//! `holdpoint explain`: the page of a code, or the list of all of them.

use holdpoint::codes::Code;
use serde::Serialize;

use crate::error::CommandError;
use crate::text::Ui;
use crate::text::style;
use crate::text::table::{Cell, Table};

/// Explain a code of an error, an answer or an exit status; without one, list them
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The code, as errors print it in brackets and answers at their beginning; or an exit status
    code: Option<String>,
}

#[derive(Serialize)]
struct Explained {
    code: &'static str,
    summary: String,
    page: &'static str,
}

impl Explained {
    fn of(code: Code) -> Explained {
        Explained { code: code.as_str(), summary: code.summary(), page: code.page() }
    }
}

pub(super) fn run(args: &Args, ui: &mut Ui) -> Result<(), CommandError> {
    match &args.code {
        None => list(ui),
        Some(text) => page(find(text)?, ui),
    }
}

fn find(text: &str) -> Result<Code, CommandError> {
    let trimmed = text.trim().trim_end_matches(':');
    // Whoever has only an exit status has only its number.
    let status = trimmed.bytes().all(|byte| byte.is_ascii_digit()).then(|| format!("exit.{trimmed}"));
    Code::parse(status.as_deref().unwrap_or(trimmed)).ok_or_else(|| {
        let error = CommandError::new(Code::UsageUnknownCode, format!("there is no code {text:?}"));
        match near(trimmed) {
            Some(code) => error.hint(format!("did you mean {code}?")),
            None => error.hint("holdpoint explain without a code lists them all"),
        }
    })
}

/// A code that has the text, or its last part, in it.
fn near(text: &str) -> Option<Code> {
    let text = text.to_ascii_lowercase().replace([' ', '-'], "_");
    let last = text.rsplit('.').next().unwrap_or_default();
    (last.len() > 2)
        .then(|| Code::ALL.iter().copied().find(|code| code.as_str().to_ascii_lowercase().contains(last)))
        .flatten()
}

fn list(ui: &mut Ui) -> Result<(), CommandError> {
    if ui.json() {
        let all: Vec<Explained> = Code::ALL.iter().copied().map(Explained::of).collect();
        return Ok(ui.write_json(&all)?);
    }
    let mut table = Table::new(&["CODE", "MEANING"]);
    for code in Code::ALL {
        table.row(vec![Cell::own(code), Cell::own(code.summary())]);
    }
    Ok(table.write(ui.out())?)
}

fn page(code: Code, ui: &mut Ui) -> Result<(), CommandError> {
    if ui.json() {
        return Ok(ui.write_json(&Explained::of(code))?);
    }
    let bold = style::BOLD;
    Ok(write!(ui.out(), "{bold}{code}{bold:#}\n\n{}", code.page())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::Captured;

    #[test]
    fn a_page_begins_with_the_code_and_its_summary() {
        let (out, err) = (Captured::default(), Captured::default());
        let mut ui = Ui::of_test(false, None, &out, &err);
        run(&Args { code: Some("store.SYMLINK".to_owned()) }, &mut ui).unwrap();
        insta::assert_snapshot!(out.text(), @r"
        store.symlink

        The path is a symbolic link, and links are not followed.

        Whoever can write the directory could point the link at another database between
        two commands, and a decision would land where nobody looked.

        What to do: name the file that the link points to.
        ");
    }

    #[test]
    fn the_prefix_of_an_answer_is_found_with_its_colon() {
        assert_eq!(find("PENDING_APPROVAL:").unwrap(), Code::AnswerPendingApproval);
    }

    #[test]
    fn an_exit_status_is_found_by_its_number() {
        assert_eq!(find("70").unwrap(), Code::Exit70);
        assert!(find("3").is_err() && find("").is_err());
    }

    #[test]
    fn a_misspelt_code_is_a_usage_error_with_a_near_one() {
        let error = find("symlink").unwrap_err();
        assert_eq!(error.code, Code::UsageUnknownCode);
        assert_eq!(error.hint.as_deref(), Some("did you mean store.symlink?"));
        assert!(find("quux").unwrap_err().hint.unwrap().contains("lists them all"));
    }
}
