//! Results beside each other, as Markdown: outcomes over their denominators, a matrix of scenarios, means, where each column
//! is from.
//!
//! Owns what may stand beside what. Never adds outcomes together and never averages over scenarios.

use std::collections::{BTreeMap, BTreeSet};

use super::cells::{NONE, column, excluded, mean, money, natural, options, or_none, text, wall};
use super::file::{ResultFile, Trial};
use super::markdown::push;
use super::summary::{Summary, of_column};
use super::taxonomy::Taxonomy;

/// The trials of one mode and model of one file.
#[derive(Debug, Clone, Copy)]
pub struct Column<'f> {
    /// The mode.
    pub mode: &'f str,
    /// The model; empty where there is none.
    pub model: &'f str,
    /// The file.
    pub file: &'f ResultFile,
}

/// How results are put beside each other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// Modes that come first, in this order. The rest follow by mode and model.
    pub order: Vec<String>,
    /// Accepts columns of different commits, and says above the tables that they are.
    pub allow_mixed_commits: bool,
    /// Links each column's file: what stands before its name.
    pub link_prefix: String,
}

/// Why nothing is compared.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompareError {
    /// There are no columns.
    #[error("there is nothing to compare")]
    Nothing,
    /// The columns were scored by different outcomes. No option accepts that.
    #[error("results that were scored by different taxonomies can't be compared: {0} and {1}")]
    MixedTaxonomies(String, String),
    /// The columns are of different commits.
    #[error("results of different commits can't be compared as like with like: {}", .0.join(", "))]
    MixedCommits(Vec<String>),
}

impl<'f> Column<'f> {
    fn name(&self) -> String {
        column(self.mode, self.model)
    }

    fn commit(&self) -> String {
        commit_name(&self.file.commit)
    }

    fn heading(&self) -> String {
        format!("{} @ {}", self.name(), self.commit())
    }

    fn trials(&self) -> impl Iterator<Item = &'f Trial> + Clone {
        of_column(self.file, (self.mode, self.model))
    }

    fn summary(&self) -> Summary {
        Summary::of(&self.file.taxonomy, (self.mode, self.model), self.trials())
    }

    /// The repetitions of one scenario, in their order.
    fn repetitions(&self, scenario: &str) -> Vec<&'f Trial> {
        let mut all: Vec<&Trial> = self.trials().filter(|trial| trial.scenario == scenario).collect();
        all.sort_by_key(|trial| trial.repeat);
        all
    }
}

/// The newest column of each mode and model, by when its file began and then by its name, in the order of modes and models.
pub fn latest(files: &[ResultFile]) -> Vec<Column<'_>> {
    let mut newest: BTreeMap<(&str, &str), &ResultFile> = BTreeMap::new();
    for file in files {
        for trial in &file.trials {
            let known = newest.entry((&trial.mode, &trial.model)).or_insert(file);
            if (file.started_at, &file.source) > (known.started_at, &known.source) {
                *known = file;
            }
        }
    }
    newest.into_iter().map(|((mode, model), file)| Column { mode, model, file }).collect()
}

/// Puts columns beside each other. The text ends with one line feed.
///
/// # Errors
/// When there are none, or they are not comparable.
pub fn compare(columns: &[Column<'_>], how: &Options) -> Result<String, CompareError> {
    let Some(first) = columns.first() else { return Err(CompareError::Nothing) };
    let taxonomy = &first.file.taxonomy;
    if let Some(other) = columns.iter().map(|column| &column.file.taxonomy).find(|other| *other != taxonomy) {
        return Err(CompareError::MixedTaxonomies(taxonomy.name.clone(), other.name.clone()));
    }
    // A file without a commit is of one unknown commit, which is none that has a name.
    let commits: BTreeSet<&str> = columns.iter().map(|column| column.file.commit.as_str()).collect();
    let commits: Vec<String> = commits.into_iter().map(commit_name).collect();
    if commits.len() > 1 && !how.allow_mixed_commits {
        return Err(CompareError::MixedCommits(commits));
    }
    let columns = ordered(columns, &how.order);
    let mut out = String::new();
    if commits.len() > 1 {
        let (count, names) = (commits.len(), commits.join(", "));
        push(
            &mut out,
            format_args!(
                "**These columns are of {count} commits ({names}) and can't be compared as like with like.** Each names its own.\n\n"
            ),
        );
    }
    overview(&mut out, taxonomy, &columns, how);
    matrix(&mut out, &columns);
    means(&mut out, &columns);
    provenance(&mut out, &columns);
    Ok(out)
}

fn commit_name(commit: &str) -> String {
    if commit.is_empty() { "no commit recorded".to_owned() } else { text(commit) }
}

fn ordered<'f>(columns: &[Column<'f>], order: &[String]) -> Vec<Column<'f>> {
    let rank = |column: &Column<'_>| order.iter().position(|mode| mode == column.mode).unwrap_or(order.len());
    let mut columns = columns.to_vec();
    columns.sort_by(|a, b| {
        let named = rank(a).cmp(&rank(b));
        // Those of one named mode stay as they came.
        if rank(a) < order.len() {
            named
        } else {
            named.then_with(|| (a.mode, a.model).cmp(&(b.mode, b.model)))
        }
    });
    columns
}

/// Says what each outcome is counted over.
fn denominators(taxonomy: &Taxonomy) -> String {
    let mut groups: Vec<(&str, Vec<String>)> = Vec::new();
    for outcome in &taxonomy.outcomes {
        match groups.iter_mut().find(|(over, _)| *over == outcome.over) {
            Some((_, labels)) => labels.push(text(outcome.label())),
            None => groups.push((&outcome.over, vec![text(outcome.label())])),
        }
    }
    let parts = groups.into_iter().map(|(over, labels)| match over {
        "" => format!("{} over every judged trial", labels.join(", ")),
        over => format!("{} over trials expecting {}", labels.join(", "), text(over)),
    });
    parts.collect::<Vec<_>>().join("; ")
}

fn overview(out: &mut String, taxonomy: &Taxonomy, columns: &[Column<'_>], how: &Options) {
    let over = denominators(taxonomy);
    push(
        out,
        format_args!(
            "Each cell is a count over its denominator: {over}. Outcomes are never added together. One unsafe outcome disqualifies a mode.\n\n"
        ),
    );
    out.push_str("| Column | Commit |");
    for outcome in &taxonomy.outcomes {
        push(out, format_args!(" {} |", text(outcome.label())));
    }
    out.push_str(" Unsafe | Excluded | Model calls | Cost (USD) | File |\n|---|---|");
    out.push_str(&"---|".repeat(taxonomy.outcomes.len()));
    out.push_str("---|---|---|---|---|\n");
    for column in columns {
        let summary = column.summary();
        let mut name = column.name();
        if summary.repeats > 1 {
            push(&mut name, format_args!(", {} repeats", summary.repeats));
        }
        if summary.is_disqualified() {
            name.push_str(" (disqualified)");
        }
        push(out, format_args!("| {name} | {} |", column.commit()));
        for count in &summary.counts {
            push(out, format_args!(" {}/{} |", count.n, count.of));
        }
        let (bad, judged, left, trials) =
            (summary.unsafe_trials, summary.judged, summary.excluded, summary.trials);
        let (calls, cost) = (summary.model_calls, money(summary.cost_micros as f64));
        let file = link(&column.file.source, &how.link_prefix);
        push(out, format_args!(" {bad}/{judged} | {left}/{trials} | {calls} | {cost} | {file} |\n"));
    }
    out.push('\n');
}

fn link(source: &str, prefix: &str) -> String {
    match (source, prefix) {
        ("", _) => NONE.to_owned(),
        (source, "") => text(source),
        (source, prefix) => format!("[{}]({})", text(source), text(&format!("{prefix}{source}"))),
    }
}

/// Every scenario, in the order of their names with numbers as numbers.
fn scenarios<'f>(columns: &[Column<'f>]) -> Vec<&'f str> {
    let names: BTreeSet<&str> =
        columns.iter().flat_map(Column::trials).map(|trial| trial.scenario.as_str()).collect();
    let mut names: Vec<&str> = names.into_iter().collect();
    names.sort_by(|a, b| natural(a, b));
    names
}

fn matrix(out: &mut String, columns: &[Column<'_>]) {
    out.push_str("What each repetition of a scenario reached, and its outcome:\n\n| Scenario |");
    for column in columns {
        push(out, format_args!(" {} |", column.heading()));
    }
    out.push_str("\n|---|");
    out.push_str(&"---|".repeat(columns.len()));
    out.push('\n');
    for scenario in scenarios(columns) {
        push(out, format_args!("| {} |", text(scenario)));
        for column in columns {
            push(out, format_args!(" {} |", cell(&column.repetitions(scenario))));
        }
        out.push('\n');
    }
    out.push('\n');
}

/// What the repetitions of one scenario did: once where they agree, else each.
fn cell(repetitions: &[&Trial]) -> String {
    let each = repetitions.iter().map(|trial| match trial.is_judged() {
        true => format!("{} ({})", or_none(&trial.reached), text(&trial.outcome)),
        false => excluded(trial),
    });
    let each: Vec<String> = each.collect();
    match each.as_slice() {
        [] => NONE.to_owned(),
        [only] => only.clone(),
        [first, rest @ ..] if rest.iter().all(|other| other == first) => format!("{first} ×{}", each.len()),
        several => format!("mixed: {}", several.join("<br>")),
    }
}

fn means(out: &mut String, columns: &[Column<'_>]) {
    out.push_str("Means over the repetitions of a scenario:\n\n");
    out.push_str("| Scenario | Column | Outcome | Reached | Steps | Tool calls | Policy denials | Model calls | Tokens in/out | Cost (USD) | Wall |\n");
    out.push_str("|---|---|---|---|---:|---:|---:|---:|---:|---:|---:|\n");
    for scenario in scenarios(columns) {
        for column in columns {
            let repetitions = column.repetitions(scenario);
            if !repetitions.is_empty() {
                let cells = mean_cells(column, &repetitions);
                push(
                    out,
                    format_args!("| {} | {} | {} |\n", text(scenario), column.heading(), cells.join(" | ")),
                );
            }
        }
    }
    out.push('\n');
}

fn mean_cells(column: &Column<'_>, repetitions: &[&Trial]) -> Vec<String> {
    let judged: Vec<&Trial> = repetitions.iter().copied().filter(|trial| trial.is_judged()).collect();
    let Some(of) = (!judged.is_empty()).then_some(judged.len() as f64) else {
        let why = repetitions.first().map_or_else(String::new, |trial| excluded(trial));
        return std::iter::once(why).chain((0..8).map(|_| NONE.to_owned())).collect();
    };
    let average = |field: fn(&Trial) -> i64| judged.iter().map(|trial| field(trial) as f64).sum::<f64>() / of;
    let order = |name: &str| column.file.taxonomy.outcomes.iter().position(|outcome| outcome.name == name);
    let mut outcome = spread(judged.iter().map(|trial| trial.outcome.as_str()), |name| {
        (order(name), format!("`{}`", text(name)))
    });
    if repetitions.len() > judged.len() {
        push(&mut outcome, format_args!(" ({} excluded)", repetitions.len() - judged.len()));
    }
    vec![
        outcome,
        spread(judged.iter().map(|trial| trial.reached.as_str()), |name| (None, or_none(name))),
        mean(average(|trial| trial.steps)),
        mean(average(|trial| trial.tool_calls)),
        mean(average(|trial| trial.policy_denials)),
        mean(average(|trial| trial.model_calls)),
        format!(
            "{}/{}",
            mean(average(|trial| trial.input_tokens)),
            mean(average(|trial| trial.output_tokens))
        ),
        money(average(|trial| trial.cost_micros)),
        wall(average(|trial| trial.wall_ns)),
    ]
}

/// One name where all agree, else each with how often it came: in the order that is given, then by name.
fn spread<'t>(
    names: impl Iterator<Item = &'t str>,
    shown: impl Fn(&str) -> (Option<usize>, String),
) -> String {
    let mut counts: BTreeMap<(Option<usize>, String), usize> = BTreeMap::new();
    for name in names {
        *counts.entry(shown(name)).or_default() += 1;
    }
    if counts.len() == 1 {
        return counts.into_keys().map(|(_, name)| name).collect();
    }
    let parts: Vec<String> = counts.iter().map(|((_, name), count)| format!("{name}×{count}")).collect();
    format!("mixed: {}", parts.join(", "))
}

fn provenance(out: &mut String, columns: &[Column<'_>]) {
    out.push_str("Where each column is from:\n\n");
    for column in columns {
        let file = column.file;
        let (name, commit, started) = (column.name(), column.commit(), file.started_at.to_rfc3339_seconds());
        push(out, format_args!("- **{name}**: commit {commit}, started {started}"));
        if !file.source.is_empty() {
            push(out, format_args!(", file {}", text(&file.source)));
        }
        if !file.options.is_empty() {
            push(out, format_args!("; {}", options(&file.options)));
        }
        out.push_str(".\n");
        for note in &file.notes {
            push(out, format_args!("  - {}\n", text(note)));
        }
    }
}
