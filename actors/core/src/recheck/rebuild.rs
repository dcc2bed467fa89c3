//! One evaluation rebuilt: the request and the view that the policy was handed, or why they can't be had.
//!
//! A step before the evaluated one was over when the policy was asked and is never written again, so as it is stored now
//! is as the policy saw it. An approval may have been decided since: it gets back the status that it had then.

use std::sync::Arc;

use super::record::{Created, Record, Recorded, SeenThen, What, Written};
use super::report::{Answer, Evaluation, Finding, SpecSource};
use crate::approval::{Approval, ApprovalStatus, INTERRUPTED_SIDE_EFFECT};
use crate::json::CheckError;
use crate::policy::PolicyView;
use crate::run::{Run, RunStatus};
use crate::step::Step;
use crate::tool::{ToolRequest, ToolSpec};

/// An evaluation as far as the record gives it.
#[derive(Debug)]
pub enum Rebuilt {
    /// There is nothing to ask; this is what it came to.
    Settled(Box<Evaluation>),
    /// What the policy was asked.
    Question(Box<Question>),
}

/// What the policy was asked, ready to be asked again.
#[derive(Debug)]
pub struct Question {
    pub(super) evaluation: Evaluation,
    /// The request as it was judged then.
    pub(super) then: ToolRequest,
    /// The request as it is judged now.
    pub(super) now: ToolRequest,
    pub(super) view: PolicyView,
    /// Why the recorded answer could not be used.
    pub(super) refused: Option<String>,
}

impl Question {
    /// The tool, by its registered name.
    pub fn tool(&self) -> &str {
        &self.evaluation.tool
    }

    /// The request, whose spec is the recorded one until [`Question::under`] changes it. Its bytes are the stored ones.
    pub fn request(&self) -> &ToolRequest {
        &self.now
    }

    /// What the policy may look at.
    pub fn view(&self) -> &PolicyView {
        &self.view
    }

    /// Puts the spec that the tool has now in place of the recorded one.
    pub fn under(&mut self, spec: ToolSpec) {
        self.now.spec = spec;
        self.evaluation.spec_source = Some(SpecSource::Current);
    }

    /// The request in the form in which a policy is handed one: the same bytes as then, whatever was stored.
    ///
    /// # Errors
    /// When what is stored has no such form; [`Question::can_t_be_asked`] says so in the report.
    pub fn handed(&self) -> Result<ToolRequest, CheckError> {
        self.now.policy_form()
    }

    /// The record does not give what the policy would be handed.
    pub fn can_t_be_asked(self, why: &str) -> Evaluation {
        let mut evaluation = self.came_to(Finding::NotRecheckable, format!("not re-checkable: {why}"));
        evaluation.spec_source = None;
        evaluation
    }

    /// The tool is not among those that there are now.
    pub fn is_not_offered(self) -> Evaluation {
        let detail = format!(
            "{:?} is none of the current tools: the call would be refused before the policy",
            self.tool()
        );
        self.refused_before(detail)
    }

    /// The arguments do not fit the schema that the tool has now.
    pub fn does_not_fit(self, why: &str) -> Evaluation {
        self.refused_before(format!("the arguments do not fit the current tool's schema: {why}"))
    }

    fn refused_before(self, detail: String) -> Evaluation {
        let mut evaluation = self.came_to(Finding::Different, detail);
        evaluation.spec_source = Some(SpecSource::Current);
        evaluation
    }

    pub(super) fn came_to(self, finding: Finding, detail: impl Into<String>) -> Evaluation {
        Evaluation { result: finding, detail: detail.into(), ..self.evaluation }
    }
}

impl Record {
    /// Rebuilds every evaluation of the run, in the order in which they were recorded.
    pub fn rebuild(&self) -> impl Iterator<Item = Rebuilt> + '_ {
        self.written.iter().map(|written| self.rebuilt(written))
    }

    fn rebuilt(&self, written: &Written) -> Rebuilt {
        let step = self.step(&written.step_id);
        let evaluation = heading(written, step.map(|step| &**step));
        let settled = |result, detail: String| {
            Rebuilt::Settled(Box::new(Evaluation { result, detail, ..evaluation.clone() }))
        };
        let can_t = |why: String| settled(Finding::NotRecheckable, format!("not re-checkable: {why}"));
        let recorded = match &written.what {
            What::Failed { why, .. } => {
                let detail = format!("the policy failed, and no evaluation is recorded: {why}");
                return settled(Finding::NotRecheckable, detail);
            }
            What::Unreadable(why) => return can_t(why.clone()),
            What::Answered(recorded) => recorded,
        };
        let view = match (&recorded.view, &recorded.spec_hash) {
            (Some(view), _) => view,
            (None, None) => {
                return can_t("it was recorded before evaluations were recorded whole".to_owned());
            }
            (None, Some(_)) => {
                let detail = if recorded.answer.kind == INTERRUPTED_SIDE_EFFECT {
                    "no evaluation of a policy: the call was cut off, and a person was asked whether it runs again"
                } else {
                    "no evaluation of a policy: a reconciliation put the call that was cut off to a person"
                };
                return settled(Finding::NotAnEvaluation, detail.to_owned());
            }
        };
        match self.question(written, recorded, view) {
            Ok((then, shown)) => Rebuilt::Question(Box::new(Question {
                evaluation: Evaluation { spec_source: Some(SpecSource::Recorded), ..evaluation },
                now: then.clone(),
                then,
                view: shown,
                refused: recorded.refused.clone(),
            })),
            Err(why) => can_t(why),
        }
    }

    /// What the policy was handed, or why that can't be had.
    fn question(
        &self,
        written: &Written,
        recorded: &Recorded,
        view: &SeenThen,
    ) -> Result<(ToolRequest, PolicyView), String> {
        let hash = recorded.spec_hash.as_ref().ok_or("no spec of its tool is recorded")?;
        let step = self.step(&written.step_id).ok_or("its step is not in the record")?;
        whole(step)?;
        let decision = step.decision.as_ref().filter(|decision| decision.is_tool_call());
        let decision = decision.ok_or_else(|| format!("step {} recorded no call of a tool", step.index))?;
        let created = match &self.created {
            Some(Ok(created)) => created,
            Some(Err(why)) => return Err((*why).to_owned()),
            None => return Err("its run's first event is not in the record".to_owned()),
        };
        let shown = self.view_then(written, view, created)?;
        let spec = match self.specs.get(hash) {
            Some(Ok(spec)) => spec.clone(),
            Some(Err(why)) => return Err(why.clone()),
            None => return Err(format!("the tool's spec {hash} was not read")),
        };
        let request = ToolRequest {
            run_id: self.run_id.clone(),
            step_id: step.id.clone(),
            spec,
            args: decision.args_or_empty(),
        };
        Ok((request, shown))
    }

    fn view_then(&self, written: &Written, view: &SeenThen, created: &Created) -> Result<PolicyView, String> {
        let status =
            view.status().ok_or("the status that the run had then is not one that this build knows")?;
        let (steps, approvals) = match (usize::try_from(view.steps), usize::try_from(view.approvals)) {
            (Ok(steps), Ok(approvals)) if steps <= self.steps.len() && approvals <= self.approvals_total => {
                (&self.steps[..steps], approvals)
            }
            (Ok(_) | Err(_), Ok(_) | Err(_)) => {
                return Err(format!(
                    "the policy was shown {} steps and {} approvals, and the run has {} and {}",
                    view.steps,
                    view.approvals,
                    self.steps.len(),
                    self.approvals_total
                ));
            }
        };
        let approvals = self.approvals.get(..approvals).filter(|shown| shown.len() <= super::APPROVALS_MAX);
        let approvals = approvals.ok_or_else(|| {
            format!(
                "the policy was shown {} approvals, more than the {} that are read",
                view.approvals,
                super::APPROVALS_MAX
            )
        })?;
        steps.iter().try_for_each(|step| whole(step))?;
        let approvals = approvals.iter().map(|approval| self.approval_then(approval, written));
        Ok(PolicyView {
            run: Run {
                step_count: view.step_count,
                totals: view.totals(),
                active_ms: view.active_ms,
                status,
                ..Run::begun(self.run_id.clone(), created.goal.clone(), created.limits.clone(), created.at)
            },
            steps: steps.to_vec(),
            approvals: approvals.collect::<Result<_, _>>()?,
        })
    }

    /// The approval with the status that it had as the event was written: that of the last decision before it. One whose
    /// decision left no event, which no program writes, is judged by its time.
    fn approval_then(&self, approval: &Arc<Approval>, written: &Written) -> Result<Arc<Approval>, String> {
        if let Some(damage) = &approval.decode_error {
            return Err(format!("approval {}: {damage}", approval.id));
        }
        let status = match self.decided.get(approval.id.as_str()) {
            Some(decisions) => match decisions.iter().rfind(|(seq, _)| *seq < written.seq) {
                Some((_, Some(status))) => *status,
                Some((_, None)) => {
                    return Err(format!("approval {}: its decision can't be read", approval.id));
                }
                None => ApprovalStatus::Pending,
            },
            None => match (approval.decided_at, written.at) {
                (Some(decided), Some(at)) if decided <= at => approval.status,
                (Some(_) | None, Some(_) | None) => ApprovalStatus::Pending,
            },
        };
        if status == approval.status {
            return Ok(Arc::clone(approval));
        }
        let mut then = Approval { status, ..Approval::clone(approval) };
        if status == ApprovalStatus::Pending {
            then.decided_at = None;
            then.decided_by.clear();
            then.note.clear();
        }
        Ok(Arc::new(then))
    }
}

/// What is known of an evaluation before anything of it is judged.
fn heading(written: &Written, step: Option<&Step>) -> Evaluation {
    let tool = step.and_then(|step| step.decision.as_ref()).map(|decision| decision.tool.clone());
    let (recorded, policy_id, on_resume) = match &written.what {
        What::Answered(recorded) => {
            let status = recorded.view.as_ref().and_then(SeenThen::status);
            let on_resume = status == Some(RunStatus::WaitingForApproval);
            (recorded.answer.clone(), recorded.policy_id.clone(), on_resume)
        }
        What::Failed { again, .. } => {
            let asked = step.and_then(|step| step.policy_id.as_ref());
            (Answer::default(), asked.map(ToString::to_string).unwrap_or_default(), *again)
        }
        What::Unreadable(_) => (Answer::default(), String::new(), false),
    };
    Evaluation {
        step_index: step.map(|step| step.index),
        step_id: written.step_id.clone(),
        seq: written.seq,
        tool: tool.unwrap_or_default(),
        on_resume,
        result: Finding::NotRecheckable,
        recorded,
        rechecked: None,
        recorded_hash: None,
        rechecked_hash: None,
        detail: String::new(),
        spec_source: None,
        policy_id,
    }
}

/// Refuses a step of which something could not be read, or not whole.
fn whole(step: &Step) -> Result<(), String> {
    match &step.decode_error {
        None => Ok(()),
        Some(damage) => Err(format!("step {}: {damage}", step.index)),
    }
}
