//! When a policy answers as it did.
//!
//! The outcome counts and, where a person is asked, the approval that is asked for: its kind and the hash that would bind
//! it. The reason never does. An answer that the runtime could not use is the same only as one that it could not use for
//! the same reason.

use super::rebuild::Question;
use super::report::{Answer, Evaluation, Finding};
use crate::approval::Approval;
use crate::hash::content_hash_of;
use crate::ids::ApprovalHash;
use crate::json::Json;
use crate::policy::PolicyDecision;
use crate::tool::ToolRequest;

impl Question {
    /// Compares today's answer, or the failure to answer, with what is recorded.
    pub fn settle(mut self, answered: Result<PolicyDecision, String>) -> Evaluation {
        let decision = match answered {
            Ok(decision) => decision,
            Err(why) => return self.came_to(Finding::Different, format!("the policy failed: {why}")),
        };
        let usable = decision.check();
        let now = Answer::of(&if usable.is_err() { decision.without_json() } else { decision });
        self.evaluation.rechecked = Some(now.clone());
        let then = &self.evaluation.recorded;
        match (usable, self.refused.take()) {
            (Ok(()), None) => self.compare(&now),
            (Ok(()), Some(why)) => self.came_to(
                Finding::Different,
                format!("the recorded answer could not be used ({why}), and today's can"),
            ),
            (Err(error), Some(why))
                if error.to_string() == why && now.outcome == then.outcome && now.kind == then.kind =>
            {
                self.came_to(
                    Finding::Same,
                    format!("an answer that can't be used, as it could not then: {why}"),
                )
            }
            (Err(error), Some(_) | None) => {
                self.came_to(Finding::Different, format!("the policy's answer can't be used: {error}"))
            }
        }
    }

    fn compare(mut self, now: &Answer) -> Evaluation {
        let then = self.evaluation.recorded.clone();
        self.evaluation.recorded_hash = asked(&then, &self.then);
        self.evaluation.rechecked_hash = asked(now, &self.now);
        if then.outcome != now.outcome {
            return self.came_to(Finding::Different, "");
        }
        if then.asks() && then.kind != now.kind {
            let detail = format!("it asks for an approval of kind {:?}, not {:?}", now.kind, then.kind);
            return self.came_to(Finding::Different, detail);
        }
        if self.evaluation.recorded_hash != self.evaluation.rechecked_hash {
            let detail = format!("it asks for another approval: {}", self.what_differs(&then, now));
            return self.came_to(Finding::Different, detail);
        }
        self.came_to(Finding::Same, "")
    }

    /// Which parts of two approvals of one kind differ.
    fn what_differs(&self, then: &Answer, now: &Answer) -> String {
        let text = |json: &Option<Json>| json.as_ref().map_or("{}", Json::as_str).to_owned();
        let same =
            |a: &Option<Json>, b: &Option<Json>| content_hash_of(&text(a)) == content_hash_of(&text(b));
        let parts = [
            ("another capability", same(&then.capability, &now.capability)),
            ("another presentation", same(&then.presentation, &now.presentation)),
            ("another tool spec", self.then.spec.recorded() == self.now.spec.recorded()),
        ];
        parts.iter().filter(|(_, same)| !same).map(|(part, _)| *part).collect::<Vec<_>>().join(", ")
    }
}

/// The hash of the approval that an answer asks for, if it asks for one.
fn asked(answer: &Answer, request: &ToolRequest) -> Option<ApprovalHash> {
    let json = |part: &Option<Json>| part.clone().unwrap_or_else(Json::empty_object);
    answer.asks().then(|| {
        Approval::hash_of(&answer.kind, &json(&answer.capability), &json(&answer.presentation), request)
    })
}
