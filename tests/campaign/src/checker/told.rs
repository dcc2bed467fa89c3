//! What hosts were told: that it is in the record, fits what is there, and is one of the documented answers.
//!
//! Follows section 2.12 of the proxy's specification. An embedding service words its answers itself, and says less.

use serde_json::Value;

use super::record::{Approval, Step};
use super::{Judge, Property, Told, canonical};

const ANSWERS: [&str; 13] = [
    "PENDING_APPROVAL",
    "IN_PROGRESS",
    "INTERRUPTED",
    "UNKNOWN_OUTCOME",
    "UNRECORDED",
    "DENIED",
    "INVALID",
    "REJECTED",
    "EXPIRED",
    "DUPLICATE",
    "BLOCKED",
    "UNAVAILABLE",
    "GATE_STATUS",
];

/// Why an approval is none that this answer to this call may name.
fn misnamed(word: &str, approval: &Approval, tool: &str, args: &str) -> Option<String> {
    let request: Value = serde_json::from_str(&approval.request).unwrap_or_default();
    let of_call = request["spec"]["name"] == tool && canonical(&request["args"]) == args;
    let interruption = approval.kind == "interrupted_side_effect";
    let fits = match word {
        "PENDING_APPROVAL" => of_call && !interruption,
        "INTERRUPTED" | "UNKNOWN_OUTCOME" => of_call && interruption,
        "REJECTED" => of_call && approval.status == "rejected",
        "EXPIRED" => of_call && approval.status == "expired",
        // It is blocked by another request.
        _ => !of_call,
    };
    (!fits).then(|| format!("approval {} is a {} of {request}", approval.id, approval.kind))
}

impl Judge<'_> {
    pub(super) fn told_is_recorded(&mut self) {
        for told in &self.outside.told {
            let wrong = self.wrong_with(told);
            let what = format!("{} {} was told {:?}", told.tool, told.args, told.answer.text);
            for (property, why) in wrong {
                self.fail(property, format!("{what}{why}"));
            }
        }
    }

    /// What does not fit of one answer.
    fn wrong_with(&self, told: &Told) -> Vec<(Property, String)> {
        let args = canonical(&told.args);
        let of_call =
            |step: &&Step| step.decision["tool"] == told.tool && canonical(&step.decision["args"]) == args;
        let steps: Vec<&Step> = self.record.steps.iter().filter(of_call).collect();
        let text = &told.answer.text;
        let unrecorded = |recorded: bool| (!recorded).then(|| (Property::Acknowledged, String::new()));
        let unfit = |fits: bool, why: &str| (!fits).then(|| (Property::Explained, format!(", {why}")));
        let of_effects = |e: &super::Effect| e.tool == told.tool && canonical(&e.args) == args;
        // Only a payment leaves something behind.
        let applied = !told.tool.ends_with("_pay") || self.outside.effects.iter().any(of_effects);
        let found = match told.answer.word() {
            None if told.answer.is_error => vec![
                unrecorded(steps.iter().any(|step| step.observation["kind"] == "tool_error")),
                // A read that got no answer is told so; nothing can have come of it.
                unfit(
                    told.args["mode"] == "error" || !told.tool.ends_with("_pay"),
                    "and the server never said so",
                ),
            ],
            None => {
                let is_done = |step: &&Step| {
                    let same = content_of(step).is_none_or(|content| content == text);
                    step.status == "done" && step.observation["kind"] == "tool_result" && same
                        || self.came_late(&step.id)
                };
                let own = text.strip_prefix("paid ").is_none_or(|of| told.args["ref"] == of);
                vec![
                    unrecorded(steps.iter().any(is_done)),
                    unfit(own, "which is another's answer"),
                    unfit(applied, "and nothing was applied"),
                ]
            }
            Some("DUPLICATE") => {
                let over = |step: &&Step| matches!(&*step.status, "done" | "failed");
                let done: Vec<&&Step> = steps.iter().filter(|step| step.status == "done").collect();
                let quotes = |step: &&&Step| content_of(step).is_none_or(|content| text.contains(content));
                vec![
                    unrecorded(steps.iter().any(over)),
                    unfit(done.is_empty() || done.iter().any(quotes), "and that is not what came of it"),
                    unfit(done.is_empty() || applied, "and nothing was applied"),
                ]
            }
            Some("DENIED") => {
                let denies = |step: &&Step| matches!(step.policy["outcome"].as_str(), Some("deny" | "abort"));
                vec![unfit(steps.iter().any(denies), "and no policy said so")]
            }
            Some(
                word @ ("PENDING_APPROVAL" | "INTERRUPTED" | "UNKNOWN_OUTCOME" | "REJECTED" | "EXPIRED"
                | "BLOCKED"),
            ) => {
                let named = told.answer.approval();
                let row = named.map(|id| self.record.approvals.iter().find(|approval| approval.id == id));
                let why = row.flatten().and_then(|row| misnamed(word, row, &told.tool, &args));
                vec![
                    unrecorded(row.is_none_or(|row| row.is_some())),
                    why.map(|why| (Property::Explained, format!(": {why}"))),
                ]
            }
            Some(word) if ANSWERS.contains(&word) => Vec::new(),
            // A host that leaves is told so, by the protocol.
            Some("PROTOCOL") if text.contains("the session is ending") => Vec::new(),
            Some(_) => vec![unfit(false, "which is no answer")],
        };
        found.into_iter().flatten().collect()
    }

    /// Whether a call's end is recorded beside its run, which a person had cancelled.
    fn came_late(&self, step: &str) -> bool {
        let mut of_step = self.record.events.iter().filter(|event| event.step == step);
        of_step.any(|event| event.kind == "step.tool_finished" && event.payload["late"] == true)
    }
}

/// What a call brought, where that is a text: an embedder's tools have words of their own.
fn content_of(step: &Step) -> Option<&str> {
    step.observation["content"].as_str()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{Answer, Effect, Outside, Record};
    use super::*;

    /// What is wrong with an answer to a payment that was made, when its record has one thing changed.
    fn told(text: &str, change: impl Fn(&mut Step)) -> Vec<Property> {
        let args = json!({"ref": "p1"});
        let mut step = Step {
            status: "done".to_owned(),
            decision: json!({"tool": "petty_pay", "args": args}),
            policy: json!({"outcome": "allow"}),
            observation: json!({"kind": "tool_result", "content": "paid p1"}),
            ..Step::default()
        };
        change(&mut step);
        let id = "0123456789abcdef0123456789abcdef".to_owned();
        let request = json!({"spec": {"name": "petty_pay"}, "args": args}).to_string();
        let asked = Approval { id, request, status: "approved".to_owned(), ..Approval::default() };
        let record = Record { steps: vec![step], approvals: vec![asked], ..Record::default() };
        let answer = Answer { text: text.to_owned(), is_error: false };
        let tool = "petty_pay".to_owned();
        let effect = Effect { tool: tool.clone(), args: args.clone(), open_intents: None, mark: 0 };
        let outside = Outside {
            told: vec![Told { tool, args, answer, mark: 0 }],
            effects: vec![effect],
            ..Outside::default()
        };
        let mut judge = Judge { record: &record, outside: &outside, found: Vec::new() };
        judge.told_is_recorded();
        judge.found.into_iter().map(|violation| violation.property).collect()
    }

    #[test]
    fn an_answer_that_is_not_what_is_recorded_of_its_own_call_is_noticed() {
        let same = |_: &mut Step| {};
        let other = |step: &mut Step| step.observation["content"] = json!("paid p2");
        let denied = |step: &mut Step| step.policy["outcome"] = json!("deny");
        assert_eq!(told("paid p1", same), []);
        assert_eq!(told("paid p1", other), [Property::Acknowledged]);
        assert_eq!(told("paid p2", other), [Property::Explained]);
        assert_eq!(told("DUPLICATE: it succeeded with paid p1", same), []);
        assert_eq!(told("DUPLICATE: it failed", same), [Property::Explained]);
        assert_eq!(
            (told("DENIED: no", denied), told("DENIED: no", same)),
            (vec![], vec![Property::Explained])
        );
        let expired = "EXPIRED: approval 0123456789abcdef0123456789abcdef ran out";
        assert_eq!(told(expired, same), [Property::Explained]);
        assert_eq!(
            told("PENDING_APPROVAL: approval 00000000000000000000000000000000", same),
            [Property::Acknowledged]
        );
        assert_eq!(told("NONSENSE: x", same), [Property::Explained]);
    }
}
