//! Policies against tables: what a policy must say to each request, and what it must never say to a class of tools.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use holdpoint_actors::policy::Policy;
use holdpoint_actors::session::Acceptance;
use holdpoint_core::ids::{RunId, StepId};
use holdpoint_core::json::ObjectWriter;
use holdpoint_core::policy::{Outcome, PolicyDecision, PolicyView};
use holdpoint_core::run::{Limits, Run};
use holdpoint_core::time::UnixNanos;
use holdpoint_core::tool::{SideEffect, ToolRequest, ToolSpec};

use super::{Failures, Fuzz};
use crate::gate::{Tool, ToolCall, ToolFailure, ToolOutput};

/// What a case expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// That the policy answers this.
    Policy(Outcome),
    /// That the runtime refuses the request before the policy sees it.
    Refused,
}

/// One row of a table: a request, what the policy may look at, and what must come of it.
#[derive(Debug, Clone)]
pub struct PolicyCase {
    /// What the case is about.
    pub name: String,
    /// The tool, by its name.
    pub tool: String,
    /// The arguments as a model would write them; empty for none.
    pub args: String,
    /// What the policy may look at; a run that has just begun unless set.
    pub view: PolicyView,
    /// What must come of it.
    pub expected: Expected,
    /// The kind that a request for an approval must carry; empty for any.
    pub kind: String,
    /// What the reason must contain.
    pub reason: String,
    /// What the capability must contain.
    pub capability: String,
    /// What the presentation must contain.
    pub presentation: String,
}

impl PolicyCase {
    /// A case that expects `outcome` of the policy.
    pub fn new(name: &str, tool: &str, args: &str, outcome: Outcome) -> PolicyCase {
        PolicyCase {
            name: name.to_owned(),
            tool: tool.to_owned(),
            args: args.to_owned(),
            view: a_new_run(),
            expected: Expected::Policy(outcome),
            kind: String::new(),
            reason: String::new(),
            capability: String::new(),
            presentation: String::new(),
        }
    }

    /// A case whose request the runtime must refuse before the policy sees it.
    pub fn refused(name: &str, tool: &str, args: &str) -> PolicyCase {
        PolicyCase { expected: Expected::Refused, ..PolicyCase::new(name, tool, args, Outcome::Deny) }
    }

    /// What is wrong with what came of it, if anything.
    fn disagreement(&self, came: &Came) -> Option<String> {
        let lacks = |what: &str, text: &str, part: &str| {
            (!part.is_empty() && !text.contains(part)).then(|| format!("the {what} lacks {part:?}: {text}"))
        };
        let decision = match (self.expected, came) {
            (Expected::Refused, Came::Refused(_)) => return None,
            (Expected::Policy(outcome), Came::Decided(decision)) if decision.outcome == outcome => decision,
            (Expected::Refused | Expected::Policy(_), other) => return Some(other.detail()),
        };
        let json =
            |field: &Option<holdpoint_core::json::Json>| field.as_ref().map_or("", |f| f.as_str()).to_owned();
        if !self.kind.is_empty() && decision.kind != self.kind {
            return Some(format!("the kind is {:?}, not {:?}", decision.kind, self.kind));
        }
        lacks("reason", &decision.reason, &self.reason)
            .or_else(|| lacks("capability", &json(&decision.capability), &self.capability))
            .or_else(|| lacks("presentation", &json(&decision.presentation), &self.presentation))
    }
}

/// What came of a request.
enum Came {
    Refused(String),
    Failed(String),
    Decided(PolicyDecision),
}

impl Came {
    fn name(&self) -> &str {
        match self {
            Came::Refused(_) => "refused",
            Came::Failed(_) => "error",
            Came::Decided(decision) => decision.outcome.as_str(),
        }
    }

    fn detail(&self) -> String {
        match self {
            Came::Refused(why) | Came::Failed(why) => why.clone(),
            Came::Decided(decision) => decision.reason.clone(),
        }
    }
}

/// A run that has just begun, as a policy sees it.
fn a_new_run() -> PolicyView {
    let run = Run::begun(RunId::from("testkit"), "a case", Limits::default(), UnixNanos::from_nanos(0));
    PolicyView { run, steps: Vec::new(), approvals: Vec::new() }
}

async fn put(policy: &dyn Policy, request: ToolRequest, view: &PolicyView) -> Came {
    match request.policy_form() {
        Ok(handed) => match policy.evaluate(&handed, view).await {
            Ok(decision) => Came::Decided(decision),
            Err(error) => Came::Failed(error.to_string()),
        },
        Err(error) => Came::Failed(error.to_string()),
    }
}

fn request(accepted: (ToolSpec, holdpoint_core::json::Json), view: &PolicyView, at: usize) -> ToolRequest {
    let (spec, args) = accepted;
    ToolRequest { run_id: view.run.id.clone(), step_id: StepId::from(format!("testkit-{at}")), spec, args }
}

/// Puts every case to the policy, through the runtime's own acceptance of a call, and tells of those that disagree in one
/// table.
pub async fn check_policy(policy: &dyn Policy, tools: Vec<Arc<dyn Tool>>, cases: &[PolicyCase]) -> Failures {
    let mut failures = Failures::default();
    let acceptance = match Acceptance::of(tools) {
        Ok(acceptance) => acceptance,
        Err(error) => {
            failures.add(error.to_string());
            return failures;
        }
    };
    let mut rows = Vec::new();
    for (at, case) in cases.iter().enumerate() {
        let came = match acceptance.accept(&case.tool, case.args.as_bytes()) {
            Err(why) => Came::Refused(why),
            Ok(accepted) => put(policy, request(accepted, &case.view, at), &case.view).await,
        };
        if let Some(detail) = case.disagreement(&came) {
            let expected = match case.expected {
                Expected::Refused => "refused".to_owned(),
                Expected::Policy(outcome) if case.kind.is_empty() => outcome.as_str().to_owned(),
                Expected::Policy(outcome) => format!("{outcome} ({})", case.kind),
            };
            let asked = format!("{} {}", case.tool, if case.args.is_empty() { "{}" } else { &case.args });
            rows.push([case.name.clone(), asked, expected, came.name().to_owned(), detail]);
        }
    }
    if !rows.is_empty() {
        let count = format!("{} of {} cases disagree", rows.len(), cases.len());
        failures.add(format!("{count}:\n{}", table(rows)));
    }
    failures
}

/// Rows in aligned columns under a heading.
fn table(rows: Vec<[String; 5]>) -> String {
    let heading = ["case", "request", "expected", "came", "why"].map(str::to_owned);
    let rows: Vec<[String; 5]> = std::iter::once(heading).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 4] = std::array::from_fn(width);
    let mut out = String::new();
    for row in &rows {
        let [name, request, expected, came, why] = row;
        let cells = [name, request, expected, came];
        for (cell, width) in cells.into_iter().zip(widths) {
            out.push_str(&format!("  {cell:<width$}"));
        }
        out.push_str("  ");
        out.extend(why.split_whitespace().flat_map(|word| [word, " "]));
        out.truncate(out.trim_end().len());
        out.push('\n');
    }
    out.truncate(out.trim_end().len());
    out
}

/// Checks that the policy never answers `outcome` to a tool of `class`, over arguments that `fuzz` makes for each such tool
/// and in each of `views`; a run that has just begun when there are none.
///
/// A class that no tool has fails, because the check would say nothing: [`stand_in`] makes a tool of it.
pub async fn never(
    policy: &dyn Policy,
    tools: Vec<Arc<dyn Tool>>,
    (class, outcome): (SideEffect, Outcome),
    fuzz: Fuzz,
    views: &[PolicyView],
) -> Failures {
    let mut failures = Failures::default();
    let specs: Vec<_> =
        tools.iter().map(|tool| tool.spec()).filter(|spec| spec.side_effect == class).collect();
    let acceptance = match Acceptance::of(tools) {
        Ok(acceptance) => acceptance,
        Err(error) => {
            failures.add(error.to_string());
            return failures;
        }
    };
    if specs.is_empty() {
        failures.add(format!("no tool is {class}, so nothing was checked; add a stand-in"));
    }
    let new = [a_new_run()];
    let views = if views.is_empty() { &new[..] } else { views };
    for spec in specs {
        let made = match fuzz.valid(&spec.input_schema) {
            Ok(made) => made,
            Err(error) => {
                failures.add(format!("{}: {error}", spec.name));
                continue;
            }
        };
        for (at, args) in made.iter().enumerate() {
            let accepted = match acceptance.accept(&spec.name, args) {
                Ok(accepted) => accepted,
                Err(why) => {
                    failures.add(format!("{}: the runtime refuses what was made for it: {why}", spec.name));
                    continue;
                }
            };
            for view in views {
                let came = put(policy, request(accepted.clone(), view, at), view).await;
                let asked = format!("{} {}", spec.name, accepted.1);
                match came {
                    Came::Decided(decision) if decision.outcome == outcome => failures.add(format!(
                        "{asked}: {outcome}, which a {class} tool must never get: {}",
                        decision.reason
                    )),
                    Came::Decided(_) => {}
                    Came::Failed(why) | Came::Refused(why) => {
                        failures.add(format!("{asked}: the policy failed: {why}"));
                    }
                }
            }
        }
    }
    failures
}

/// A tool of `class` that does nothing, for a set of tools that has none of it. It takes any object and answers with its
/// name.
pub fn stand_in(name: &str, class: SideEffect) -> Arc<dyn Tool> {
    let spec = ToolSpec::new(name, class, r#"{"type":"object"}"#)
        .describe(format!("stands in for a {class} tool and does nothing"))
        .timeout(Duration::from_secs(1));
    Arc::new(StandIn(spec))
}

struct StandIn(ToolSpec);

#[async_trait]
impl Tool for StandIn {
    fn spec(&self) -> ToolSpec {
        self.0.clone()
    }

    async fn call(&self, _call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let mut content = ObjectWriter::new();
        content.str("stand_in", &self.0.name);
        Ok(ToolOutput::new(content.finish(), format!("stand-in {}", self.0.name)))
    }
}
