//! What may not come after what: rules across calls, told from the events of the proxies alone.
//!
//! Follows section 2.8 of the proxy's specification. A run of an embedder's is a story of its own, to which they do not
//! apply.

use std::collections::HashMap;

use super::record::{Event, Record};
use super::{EMBEDDED, Property, Violation, canonical};

/// A request: the tool and its arguments.
type Request = (String, String);

#[derive(Debug, Default)]
struct Seen {
    /// What each step was decided to be.
    steps: HashMap<String, Request>,
    /// Of each approval: its request, and whether it asks about an unknown outcome.
    asked: HashMap<String, (Request, bool)>,
    /// Questions about unknown outcomes that nobody has answered.
    open: HashMap<String, Request>,
    /// What a person has said no to, and when the event came.
    rejected: HashMap<Request, i64>,
    wrong: Vec<Violation>,
}

/// Looks for what came too late or too early.
pub(super) fn look(record: &Record) -> Vec<Violation> {
    let mut seen = Seen::default();
    record.events.iter().filter(|event| !event.run.starts_with(EMBEDDED)).for_each(|event| seen.hear(event));
    seen.wrong
}

impl Seen {
    fn hear(&mut self, event: &Event) {
        let text = |key: &str| event.payload[key].as_str().unwrap_or_default().to_owned();
        match &*event.kind {
            "step.decided" if event.payload["kind"] == "tool_call" => {
                let request = (text("tool"), canonical(&event.payload["args"]));
                if let Some(seq) = self.rejected.get(&request) {
                    self.fail(Property::Decision, event, &format!("{request:?} was rejected at {seq}"));
                }
                self.steps.insert(event.step.clone(), request);
            }
            "step.tool_started" => self.start(event),
            "approval.requested" => {
                let request = self.steps.get(&event.step).cloned().unwrap_or_default();
                let unknown = text("kind") == "interrupted_side_effect";
                if unknown {
                    self.open.insert(text("approval_id"), request.clone());
                }
                self.asked.insert(text("approval_id"), (request, unknown));
            }
            "approval.decided" => {
                self.open.remove(&text("approval_id"));
                if let ("rejected", Some((request, _))) =
                    (&*text("status"), self.asked.get(&text("approval_id")))
                {
                    self.rejected.insert(request.clone(), event.seq);
                }
            }
            _ => {}
        }
    }

    /// Nothing new of a tool begins while the outcome of another request to it is unknown, unless somebody granted it.
    fn start(&mut self, event: &Event) {
        let granted = event.payload.get("approval_id").is_some();
        let request = self.steps.get(&event.step).cloned().unwrap_or_default();
        let waits = self.open.values().find(|open| open.0 == request.0 && open.1 != request.1);
        if let (false, true, Some(open)) = (granted, request.0.ends_with("_pay"), waits) {
            let why = format!("{request:?} began while the outcome of {open:?} was unknown");
            self.fail(Property::Allowed, event, &why);
        }
    }

    fn fail(&mut self, property: Property, event: &Event, why: &str) {
        let detail = format!("event {} of run {}: {why}", event.seq, event.run);
        self.wrong.push(Violation { property, detail });
    }
}
