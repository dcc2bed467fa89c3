//! A file as Markdown: where it is from, a section for each mode and model, a row for each trial.

use std::fmt::Write as _;

use super::cells::{column, excluded, money, options, or_none, text, wall};
use super::file::{ResultFile, Trial};
use super::summary::{Summary, of_column};

impl ResultFile {
    /// Writes the file for people. It ends with one line feed.
    pub fn to_markdown(&self) -> String {
        let mut out = format!(
            "# Results: {}\n\nStarted {}",
            text(&self.taxonomy.name),
            self.started_at.to_rfc3339_seconds()
        );
        match self.commit.as_str() {
            "" => out.push_str(", no commit recorded."),
            commit => push(&mut out, format_args!(" at commit {}.", text(commit))),
        }
        if !self.options.is_empty() {
            push(&mut out, format_args!(" Options: {}.", options(&self.options)));
        }
        out.push_str("\n\n");
        for summary in self.summaries() {
            self.section(&mut out, &summary);
        }
        for note in &self.notes {
            push(&mut out, format_args!("{}\n\n", text(note)));
        }
        out.pop();
        out
    }

    fn section(&self, out: &mut String, summary: &Summary) {
        push(out, format_args!("## {}\n\n", column(&summary.mode, &summary.model)));
        let Summary { trials, scenarios, judged, excluded, .. } = summary;
        push(out, format_args!("{trials} trials over {scenarios} scenarios, {judged} judged"));
        if *excluded > 0 {
            push(out, format_args!(", {excluded} excluded and in no denominator"));
        }
        out.push('.');
        if summary.is_disqualified() {
            push(out, format_args!(" **Disqualified: {} unsafe.**", summary.unsafe_trials));
        }
        out.push_str("\n\n| Outcome | Class | Trials | Denominator |\n|---|---|---:|---|\n");
        for (count, outcome) in summary.counts.iter().zip(&self.taxonomy.outcomes) {
            let of = match count.over.as_str() {
                "" => "judged trials".to_owned(),
                over => format!("trials expecting {}", text(over)),
            };
            let (label, class) = (text(outcome.label()), count.class.as_str());
            push(out, format_args!("| {label} | {class} | {} | {} {of} |\n", count.n, count.of));
        }
        push(
            out,
            format_args!("| Any unsafe | unsafe | {} | {judged} judged trials |\n\n", summary.unsafe_trials),
        );
        sums(out, summary);
        out.push_str("| Scenario | Repeat | Reached | Outcome | Steps | Tool calls | Policy denials | Model calls | Tokens in/out | Cost (USD) | Wall |\n");
        out.push_str("|---|---:|---|---|---:|---:|---:|---:|---:|---:|---:|\n");
        for trial in of_column(self, (&summary.mode, &summary.model)) {
            row(out, trial);
        }
        out.push('\n');
    }
}

fn sums(out: &mut String, summary: &Summary) {
    push(out, format_args!("- policy denials: {}\n", summary.policy_denials));
    for (name, total) in &summary.totals {
        push(out, format_args!("- {}: {total}\n", text(name)));
    }
    let (calls, read, written) = (summary.model_calls, summary.input_tokens, summary.output_tokens);
    push(out, format_args!("- model calls: {calls}, tokens {read} in / {written} out\n"));
    push(out, format_args!("- cost: ${}\n", money(summary.cost_micros as f64)));
    push(out, format_args!("- mean steps of a judged trial: {:.1}\n", summary.mean_steps()));
    push(out, format_args!("- wall time: {}\n\n", wall(summary.wall_ns as f64)));
}

fn row(out: &mut String, trial: &Trial) {
    let outcome = if trial.is_judged() { text(&trial.outcome) } else { excluded(trial) };
    let cells = [
        text(&trial.scenario),
        trial.repeat.to_string(),
        or_none(&trial.reached),
        outcome,
        trial.steps.to_string(),
        trial.tool_calls.to_string(),
        trial.policy_denials.to_string(),
        trial.model_calls.to_string(),
        format!("{}/{}", trial.input_tokens, trial.output_tokens),
        money(trial.cost_micros as f64),
        wall(trial.wall_ns as f64),
    ];
    push(out, format_args!("| {} |\n", cells.join(" | ")));
}

/// Writes into text, which can't fail.
pub(super) fn push(out: &mut String, what: std::fmt::Arguments<'_>) {
    let written = out.write_fmt(what);
    debug_assert!(written.is_ok(), "writing into a String can't fail");
}
