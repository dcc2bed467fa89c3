//! What `approve` and `reject` share: show what would run, be sure that a person means it, decide exactly that.
//!
//! Owns the order of these three. Never decides anything but what was shown: the decision carries its hash, and the
//! store refuses it when the stored request has another one by then.

use std::io::Write;

use clap::builder::NonEmptyStringValueParser;
use holdpoint::codes::Code;
use holdpoint::trace;
use holdpoint::view::{ApprovalView, Error, LateOutcome, RunSummary, Verdict};
use holdpoint_actors::clock;
use holdpoint_core::approval::Approval;
use holdpoint_core::event::Event;
use holdpoint_core::ids::{ApprovalId, RunId};
use holdpoint_core::run::RunStatus;
use serde::Serialize;

use super::Database;
use super::records::Records;
use crate::error::CommandError;
use crate::text::{Answer, Ui, line, waiting};

/// The most bytes of an id or a name in a sentence.
const NAME_BYTES_MAX: usize = 256;

/// What is said of a run whose approval was granted and that still waits.
pub(super) const NOT_COLLECTED: [&str; 2] = [
    "Nothing has run yet. Behind the proxy it runs at once while the call is held, else when",
    "the host makes the same call again; in a loop of your own, when the run is resumed.",
];

/// The arguments of both commands.
#[derive(Debug, clap::Args)]
pub(super) struct DecideArgs {
    /// The run's id
    #[arg(value_name = "RUN", value_parser = NonEmptyStringValueParser::new())]
    run: String,
    /// The approval that was read; needed when several wait, and consent enough when given
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    approval: Option<String>,
    #[command(flatten)]
    who: Who,
    /// Decide without being asked
    #[arg(long)]
    yes: bool,
}

/// Who decides, and what they note.
#[derive(Debug, clap::Args)]
pub(super) struct Who {
    /// Who decides, recorded as given and not checked [default: $USER]
    #[arg(long, value_name = "WHO")]
    by: Option<String>,
    /// A note that is recorded with the decision; a rejection's is told to the model
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true,
        allow_hyphen_values = true
    )]
    pub(super) note: String,
}

impl Who {
    /// The name that is recorded; empty when neither the flag nor the environment has one.
    pub(super) fn name(&self) -> String {
        let given = self.by.clone().filter(|name| !name.is_empty());
        given.or_else(|| std::env::var("USER").ok()).unwrap_or_default()
    }
}

/// What is printed in JSON.
#[derive(Debug, Serialize)]
struct Report {
    run: RunSummary,
    approval: ApprovalView,
    /// What the attempt that it asks about came to after all.
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt_came_to: Option<LateOutcome>,
}

pub(super) fn run(
    verdict: Verdict,
    args: &DecideArgs,
    database: &Database,
    ui: &mut Ui,
) -> Result<(), CommandError> {
    let by = args.who.name();
    if by.is_empty() {
        return Err(CommandError::new(Code::UsageByEmpty, "nobody is named as the one who decides")
            .hint("pass --by NAME, or set USER"));
    }
    let path = database.path()?;
    let run = RunId::from(args.run.as_str());
    let mut records = Records::open_to_decide(&path)?;
    let waits = records.pending_approval(&run, args.approval.as_deref().map(ApprovalId::from).as_ref())?;
    if !ui.json() {
        waiting::write(ui.out(), &waits, &path, clock::wall())?;
    }
    let approval = &waits.approval;
    let tool = approval.request.as_ref().map_or("-", |request| request.spec.name.as_str());
    confirm(verdict, args, tool, approval.id.as_str(), ui)?;
    match records.decide_shown(verdict, approval, &by, &args.who.note) {
        Ok(events) => {
            tell_events(&events, ui)?;
            let decided = records.approval(&run, &approval.id)?;
            let run = records.summary(&run)?;
            report(verdict, run, &decided, waits.attempt_came_to, ui)
        }
        Err(error) => {
            // A decision that came too late has expired the approval, and that is on record.
            if let Error::Expired { events, .. } = &error {
                tell_events(events, ui)?;
            }
            Err(error.into())
        }
    }
}

/// Lets pass a decision that a person means: by naming the approval, by `--yes`, or by an answer at the terminal.
fn confirm(
    verdict: Verdict,
    args: &DecideArgs,
    tool: &str,
    approval: &str,
    ui: &mut Ui,
) -> Result<(), CommandError> {
    if args.approval.is_some() || args.yes {
        return Ok(());
    }
    let (verb, past) = match verdict {
        Verdict::Approve => ("approve", "approved"),
        Verdict::Reject => ("reject", "rejected"),
    };
    let clean = |text: &str| line(text, NAME_BYTES_MAX);
    match ui.ask(&format!(
        "{verb} {}, approval {} of run {}?",
        clean(tool),
        clean(approval),
        clean(&args.run)
    ))? {
        Answer::Yes => Ok(()),
        Answer::No => {
            Err(CommandError::new(Code::Declined, format!("the answer was not yes: nothing was {past}")))
        }
        Answer::Nobody => Err(CommandError::new(
            Code::UsageConfirm,
            format!("{verb} was not confirmed, and nobody is at a terminal to be asked"),
        )
        .hint(format!("pass --approval {approval} once you have read what would run, or --yes"))),
    }
}

fn report(
    verdict: Verdict,
    run: RunSummary,
    decided: &Approval,
    attempt_came_to: Option<LateOutcome>,
    ui: &mut Ui,
) -> Result<(), CommandError> {
    if ui.json() {
        return Ok(ui.write_json(&Report { run, approval: ApprovalView::of(decided), attempt_came_to })?);
    }
    let clean = |text: &str| line(text, NAME_BYTES_MAX);
    let out = ui.out();
    writeln!(
        out,
        "approval {}: {} by {}",
        clean(decided.id.as_str()),
        decided.status,
        clean(&decided.decided_by)
    )?;
    run_line(&run, out)?;
    if verdict == Verdict::Approve && run.known_status() == Some(RunStatus::WaitingForApproval) {
        for text in NOT_COLLECTED {
            writeln!(out, "{text}")?;
        }
    }
    Ok(())
}

/// Prints what was appended to the record, on stderr.
pub(super) fn tell_events(events: &[Event], ui: &mut Ui) -> Result<(), CommandError> {
    for event in events {
        ui.err().write_all(trace::short_text_line(event).as_bytes())?;
    }
    Ok(())
}

/// Prints where a run stands.
pub(super) fn run_line(run: &RunSummary, out: &mut dyn Write) -> Result<(), CommandError> {
    let clean = |text: &str| line(text, NAME_BYTES_MAX);
    write!(out, "run {}: {}", clean(&run.id), clean(&run.status))?;
    if !run.reason.is_empty() {
        write!(out, " ({})", clean(&run.reason))?;
    }
    Ok(writeln!(out)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::Captured;

    fn confirmed(json: bool, typed: Option<&'static str>, named: bool, yes: bool) -> Result<(), Code> {
        let (out, err) = (Captured::default(), Captured::default());
        let args = DecideArgs {
            run: "r1".to_owned(),
            approval: named.then(|| "a1".to_owned()),
            who: Who { by: None, note: String::new() },
            yes,
        };
        let mut ui = Ui::of_test(json, typed, &out, &err);
        confirm(Verdict::Approve, &args, "pay", "a1", &mut ui).map_err(|error| error.code)
    }

    #[test]
    fn a_decision_needs_a_name_a_flag_or_a_typed_yes() {
        assert_eq!(confirmed(false, None, true, false), Ok(()));
        assert_eq!(confirmed(false, None, false, true), Ok(()));
        assert_eq!(confirmed(false, Some("y\n"), false, false), Ok(()));
        assert_eq!(confirmed(false, Some("n\n"), false, false), Err(Code::Declined));
        assert_eq!(confirmed(false, Some(""), false, false), Err(Code::UsageConfirm));
        assert_eq!(confirmed(false, None, false, false), Err(Code::UsageConfirm));
    }

    #[test]
    fn a_decision_in_json_says_what_the_attempt_came_to_where_that_is_known() {
        let told = |came_to: Option<LateOutcome>| {
            let (out, err) = (Captured::default(), Captured::default());
            let mut ui = Ui::of_test(true, None, &out, &err);
            let decided = waiting::approval("pay", "{}", "{}");
            report(Verdict::Approve, RunSummary::default(), &decided, came_to, &mut ui).unwrap();
            let told: serde_json::Value = serde_json::from_str(&out.text()).unwrap();
            told.get("attempt_came_to").map(ToString::to_string)
        };
        let known = LateOutcome { observation: "tool_result".to_owned(), summary: "paid kim".to_owned() };
        let shown = r#"{"observation":"tool_result","summary":"paid kim"}"#;
        assert_eq!(told(Some(known)).as_deref(), Some(shown));
        assert_eq!(told(None), None);
    }

    #[test]
    fn json_never_asks() {
        assert_eq!(confirmed(true, Some("y\n"), false, false), Err(Code::UsageConfirm));
        assert_eq!(confirmed(true, None, true, false), Ok(()));
    }
}
