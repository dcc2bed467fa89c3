//! Re-checking: what would this policy decide about what is recorded?
//!
//! Owns the one call that an embedder needs and the report as text. A policy that decides from what it is handed, and
//! from nothing else, decides the same again; so a changed policy shows its effect on the past before it is used, and an
//! unchanged one that differs reads something outside: a clock, a file, a service. It does not show that the record is
//! unaltered; `holdpoint verify` does. Nothing is written, so a record can be re-checked while it is in use.
//!
//! ```no_run
//! use holdpoint::recheck::{Specs, recheck, text};
//! # use std::sync::Arc;
//! # async fn example(stricter: Arc<dyn holdpoint::gate::Policy>) -> Result<(), Box<dyn std::error::Error>> {
//! let report = recheck("agent.db", &"run-1".into(), stricter, Specs::Recorded).await?;
//! print!("{}", text(&report));
//! assert!(report.proves_same(), "{} of {} differ", report.differences(), report.rechecked());
//! # Ok(()) }
//! ```

use std::path::Path;
use std::sync::Arc;

pub use holdpoint_actors::recheck::{CurrentTools, RecheckError, Rechecker, read};
pub use holdpoint_core::recheck::{
    Answer, Change, Changes, Evaluation, Finding, Identity, Record, Report, Shift, SpecSource, Totals,
};

use holdpoint_actors::policy::Policy;
use holdpoint_actors::store::{OpenError, OperatorStore, ReadError};
use holdpoint_core::ids::RunId;
use holdpoint_core::sanitize::sanitize;
use holdpoint_core::tool::ToolSpec;

/// The most bytes of one value that a line shows.
pub const VALUE_BYTES_MAX: usize = 240;

/// Which specs the requests carry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Specs {
    /// Those that were recorded: what would the policy have decided then?
    Recorded,
    /// These, by name, as a gate's [`tools`](crate::gate::Gate::tools) gives them: what would policy and tools decide now?
    Current(Vec<ToolSpec>),
}

/// Why a run was not re-checked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database was refused.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// It has no such run.
    #[error("re-check run {0}: there is none with this id")]
    NotFound(RunId),
    /// The policy or a current tool can't be used.
    #[error(transparent)]
    Refused(#[from] RecheckError),
}

/// Puts every evaluation that a run recorded to `policy` again, and compares.
///
/// The database must exist; it is opened for reading only.
///
/// # Errors
/// When the database, the policy's identity or a current tool is refused, or there is no such run. What is damaged or not
/// recorded is no error but a line of the report.
pub async fn recheck(
    database: impl AsRef<Path>,
    run: &RunId,
    policy: Arc<dyn Policy>,
    specs: Specs,
) -> Result<Report, Error> {
    let mut rechecker = Rechecker::new(policy)?;
    if let Specs::Current(specs) = specs {
        rechecker = rechecker.with_current_tools(Arc::new(CurrentTools::of(specs)?));
    }
    let (database, wanted) = (database.as_ref().to_owned(), run.clone());
    let reading = tokio::task::spawn_blocking(move || -> Result<Option<Record>, Error> {
        let mut store = OperatorStore::open(&database, true)?;
        Ok(store.read(|reader| read(reader, &wanted))?)
    });
    let record = reading.await.map_err(|_panic| ReadError::Panicked)??;
    let record = record.ok_or_else(|| Error::NotFound(run.clone()))?;
    Ok(rechecker.recheck(&record).await)
}

/// The report as text for a terminal: a heading, then a line for each evaluation, those that differ first, then the notes.
/// Every value is escaped and cut at [`VALUE_BYTES_MAX`] bytes, so a line stays one whatever was recorded.
pub fn text(report: &Report) -> String {
    let mut out = format!(
        "run {} {}: {} of {} re-checked evaluations differ; {}; {} specs\n",
        value(report.run_id.as_str()),
        value(&report.run_status),
        report.differences(),
        report.rechecked(),
        identity(report),
        report.spec_source
    );
    let differs = |evaluation: &&Evaluation| evaluation.result == Finding::Different;
    let (different, others): (Vec<_>, Vec<_>) = report.evaluations.iter().partition(differs);
    for evaluation in different.into_iter().chain(others) {
        out.push_str(&line(evaluation));
    }
    for note in &report.notes {
        out.push_str(&format!("note: {}\n", value(note)));
    }
    out
}

fn identity(report: &Report) -> String {
    let given = value(&report.policy_id);
    match report.identity {
        Identity::Unknown => "policy identity unknown".to_owned(),
        Identity::Unchanged => format!("policy unchanged: \"{given}\""),
        Identity::Changed => {
            let mut recorded: Vec<&str> = Vec::new();
            for evaluation in report.evaluations.iter().filter(|evaluation| evaluation.was_rechecked()) {
                let id = evaluation.policy_id.as_str();
                if id != report.policy_id && !recorded.contains(&id) {
                    recorded.push(id);
                }
            }
            let recorded: Vec<String> = recorded.iter().map(|id| format!("\"{}\"", value(id))).collect();
            format!("policy changed: recorded {}, now \"{given}\"", recorded.join(", "))
        }
    }
}

fn line(evaluation: &Evaluation) -> String {
    let tool = if evaluation.tool.is_empty() { "-".into() } else { value(&evaluation.tool) };
    let on_resume = if evaluation.on_resume { " (on resume)" } else { "" };
    let recorded = value(&evaluation.recorded.outcome);
    let (mark, what, why) = match evaluation.result {
        Finding::Same => ("same     ", recorded, evaluation.detail.as_str()),
        Finding::Different => {
            let now = evaluation.rechecked.as_ref();
            let outcome = now.map_or("none", |answer| &answer.outcome);
            let reason = now.map_or("", |answer| &answer.reason);
            let why = if evaluation.detail.is_empty() { reason } else { &evaluation.detail };
            ("DIFFERENT", format!("{recorded} -> {}", value(outcome)), why)
        }
        Finding::NotAnEvaluation | Finding::NotRecheckable => ("skipped  ", value(&evaluation.detail), ""),
    };
    let why = if why.is_empty() { String::new() } else { format!(": {}", value(why)) };
    let (step, seq) = (evaluation.step_index.unwrap_or(-1), evaluation.seq);
    format!("{mark} step {step} seq {seq} {tool}{on_resume}: {what}{why}\n")
}

fn value(text: &str) -> String {
    let clean = sanitize(text);
    if clean.len() <= VALUE_BYTES_MAX {
        return clean.into_owned();
    }
    format!("{}…", &clean[..clean.floor_char_boundary(VALUE_BYTES_MAX)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evaluation(seq: i64, result: Finding) -> Evaluation {
        Evaluation {
            step_index: Some(seq - 1),
            step_id: "s".to_owned(),
            seq,
            tool: "push".to_owned(),
            on_resume: false,
            result,
            recorded: Answer { outcome: "allow".to_owned(), ..Answer::default() },
            rechecked: None,
            recorded_hash: None,
            rechecked_hash: None,
            detail: String::new(),
            spec_source: Some(SpecSource::Recorded),
            policy_id: "rules-v1".to_owned(),
        }
    }

    fn report(evaluations: Vec<Evaluation>) -> Report {
        Report {
            run_id: "r-1".into(),
            run_status: "COMPLETED".to_owned(),
            policy_id: "rules-v2".to_owned(),
            identity: Identity::Changed,
            spec_source: SpecSource::Recorded,
            notes: Vec::new(),
            evaluations,
        }
    }

    #[test]
    fn each_evaluation_is_a_line_and_those_that_differ_come_first() {
        let denied =
            Answer { outcome: "deny".to_owned(), reason: "not today".to_owned(), ..Answer::default() };
        let mut report = report(vec![
            evaluation(1, Finding::Same),
            Evaluation { detail: "as it could not then".to_owned(), ..evaluation(2, Finding::Same) },
            Evaluation {
                detail: "not re-checkable: lost".to_owned(),
                tool: String::new(),
                ..evaluation(3, Finding::NotRecheckable)
            },
            Evaluation {
                rechecked: Some(denied.clone()),
                on_resume: true,
                ..evaluation(4, Finding::Different)
            },
            Evaluation {
                rechecked: Some(denied),
                detail: "another approval".to_owned(),
                ..evaluation(5, Finding::Different)
            },
            Evaluation {
                step_index: None,
                detail: "the policy failed: gone".to_owned(),
                ..evaluation(6, Finding::Different)
            },
            Evaluation { detail: "no evaluation".to_owned(), ..evaluation(7, Finding::NotAnEvaluation) },
        ]);
        report.notes.push("the run is RUNNING".to_owned());
        insta::assert_snapshot!(text(&report), @r#"
        run r-1 COMPLETED: 3 of 5 re-checked evaluations differ; policy changed: recorded "rules-v1", now "rules-v2"; recorded specs
        DIFFERENT step 3 seq 4 push (on resume): allow -> deny: not today
        DIFFERENT step 4 seq 5 push: allow -> deny: another approval
        DIFFERENT step -1 seq 6 push: allow -> none: the policy failed: gone
        same      step 0 seq 1 push: allow
        same      step 1 seq 2 push: allow: as it could not then
        skipped   step 2 seq 3 -: not re-checkable: lost
        skipped   step 6 seq 7 push: no evaluation
        note: the run is RUNNING
        "#);
        report.identity = Identity::Unknown;
        assert!(text(&report).contains("; policy identity unknown; recorded specs\n"));
        report.identity = Identity::Unchanged;
        report.spec_source = SpecSource::Current;
        assert!(text(&report).contains("; policy unchanged: \"rules-v2\"; current specs\n"));
    }

    #[tokio::test]
    async fn what_is_not_there_is_an_error_and_nothing_is_made() {
        use crate::gate::{DefaultPolicy, Runtime};
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("agent.db");
        let asked = async || recheck(&database, &"r".into(), Arc::new(DefaultPolicy), Specs::Recorded).await;
        assert!(matches!(asked().await.unwrap_err(), Error::Open(_)));
        assert!(!database.exists());
        Runtime::builder(&database).start().await.unwrap().stop().await;
        assert!(matches!(asked().await.unwrap_err(), Error::NotFound(run) if run.as_str() == "r"));
    }

    #[test]
    fn a_line_stays_one_whatever_was_recorded() {
        let hostile = "a\nb\u{202e}\x1b[2J";
        let long = "ä".repeat(500);
        let mut report = report(vec![Evaluation {
            tool: hostile.to_owned(),
            recorded: Answer { outcome: hostile.to_owned(), ..Answer::default() },
            rechecked: Some(Answer { outcome: hostile.to_owned(), reason: long, ..Answer::default() }),
            policy_id: hostile.to_owned(),
            ..evaluation(1, Finding::Different)
        }]);
        report.run_id = hostile.into();
        report.run_status = hostile.to_owned();
        report.notes.push(hostile.to_owned());
        let text = text(&report);
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(!text.contains(['\u{202e}', '\x1b']), "{text:?}");
        assert!(text.contains(&format!(": {}…\n", "ä".repeat(VALUE_BYTES_MAX / 2))), "{text}");
    }
}
