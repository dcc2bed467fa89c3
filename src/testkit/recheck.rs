//! A run's policy, asked again: whether it decides from what it is handed alone, and what another one would have decided.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use holdpoint_actors::policy::Policy;
use holdpoint_core::ids::RunId;

use super::Failures;
use crate::recheck::{Finding, Report, Specs, recheck as asked_again, text};

/// Asks `policy` again about every evaluation of `run` in `database`, and finds each that it decides otherwise.
///
/// Under the policy that the run had, it finds a policy that reads a clock, a file or a service. A re-check that proves nothing is
/// found as well: one that asked nothing again, or left an evaluation out.
pub async fn recheck(database: impl AsRef<Path>, run: &RunId, policy: Arc<dyn Policy>) -> Failures {
    compared(database.as_ref(), run, policy, &[], true).await
}

/// Asks `policy` again as [`recheck`] does, and finds whether it decides otherwise in exactly these steps, by their indices: what a
/// changed policy would have done.
pub async fn recheck_differs(
    database: impl AsRef<Path>,
    run: &RunId,
    policy: Arc<dyn Policy>,
    steps: &[i64],
) -> Failures {
    compared(database.as_ref(), run, policy, steps, true).await
}

/// Does as [`recheck_differs`] with what the record can rebuild, and passes over the rest, be it everything.
pub async fn recheck_partial(
    database: impl AsRef<Path>,
    run: &RunId,
    policy: Arc<dyn Policy>,
    steps: &[i64],
) -> Failures {
    compared(database.as_ref(), run, policy, steps, false).await
}

async fn compared(
    database: &Path,
    run: &RunId,
    policy: Arc<dyn Policy>,
    steps: &[i64],
    whole: bool,
) -> Failures {
    let mut failures = Failures::default();
    let report = match asked_again(database, run, policy, Specs::Recorded).await {
        Ok(report) => report,
        Err(error) => {
            failures.add(error.to_string());
            return failures;
        }
    };
    let expected: BTreeSet<i64> = steps.iter().copied().collect();
    let found = differing(&report);
    if found != expected {
        failures.add(format!("steps {found:?} differ, expected {expected:?}:\n{}", text(&report)));
    }
    let left_out = report.evaluations.iter().filter(|e| e.result == Finding::NotRecheckable).count();
    if whole && left_out > 0 {
        failures.add(format!("{left_out} evaluation(s) could not be asked again:\n{}", text(&report)));
    } else if whole && report.rechecked() == 0 {
        failures.add(format!("nothing was asked again, so nothing is shown:\n{}", text(&report)));
    }
    failures
}

fn differing(report: &Report) -> BTreeSet<i64> {
    let different = report.evaluations.iter().filter(|evaluation| evaluation.result == Finding::Different);
    different.map(|evaluation| evaluation.step_index.unwrap_or(-1)).collect()
}
