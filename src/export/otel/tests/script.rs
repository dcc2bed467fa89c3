//! Runs as their events, written down by hand: between them they hold every kind.

use std::time::{Duration, SystemTime};

use holdpoint_core::event::Event;
use holdpoint_core::time::UnixNanos;
use serde_json::json;

/// Events of one run, a second apart.
pub(super) struct Script {
    pub(super) run: &'static str,
    pub(super) events: Vec<Event>,
}

impl Script {
    pub(super) fn of(run: &'static str) -> Script {
        Script { run, events: Vec::new() }
    }

    pub(super) fn add(&mut self, kind: &str, step: &str, payload: serde_json::Value) -> &mut Script {
        let seq = self.events.len() as i64 + 1;
        let at = UnixNanos::parse("2026-10-01T09:00:00Z").unwrap().plus(Duration::from_secs(seq as u64));
        self.events.push(Event {
            seq,
            run_id: self.run.into(),
            step_id: step.to_owned(),
            at: Some(at),
            kind: kind.to_owned(),
            payload: payload.to_string(),
        });
        self
    }

    pub(super) fn begun(run: &'static str) -> Script {
        let mut script = Script::of(run);
        let limits = json!({"max_steps": 10, "max_consecutive_tool_failures": 3, "loop_threshold": 3,
            "max_model_calls": 4, "approval_ttl": 60_000_000_000_i64});
        script.add("run.created", "", json!({"goal": "pay the invoice", "limits": limits, "tools": []}));
        script.add("run.started", "", json!({}));
        script
    }

    pub(super) fn decided(&mut self, step: &str, index: i64, tool: &str) -> &mut Script {
        self.add("step.started", step, json!({"index": index}));
        let decision =
            json!({"kind": "tool_call", "tool": tool, "args": {"n": 1}, "origin": "model", "reason": "why"});
        self.add("step.decided", step, decision)
    }

    pub(super) fn policy(&mut self, step: &str, outcome: &str) -> &mut Script {
        let answer = json!({"outcome": outcome, "reason": "so", "policy_id": "p1", "spec_hash": "5a"});
        self.add("step.policy", step, answer)
    }

    pub(super) fn started(&mut self, step: &str, tool: &str) -> &mut Script {
        self.add("step.tool_started", step, json!({"args": {"n": 1}, "tool": tool}))
    }

    pub(super) fn done(&mut self, step: &str, tool: &str) -> &mut Script {
        let outcome = json!({"content_hash": "c0", "duration_ms": 1_500, "summary": "did it", "tool": tool});
        self.add("step.tool_finished", step, outcome)
    }

    pub(super) fn failed(&mut self, step: &str, observation: &str) -> &mut Script {
        self.add(
            "step.failed",
            step,
            json!({"content_hash": "c1", "detail": "no", "observation": observation}),
        )
    }

    pub(super) fn finished(&mut self, status: &str, reason: &str) -> &mut Script {
        self.add("run.finished", "", json!({"status": status, "reason": reason, "detail": "d", "steps": 2}))
    }

    /// When the event at a place happened.
    pub(super) fn at(&self, place: usize) -> SystemTime {
        crate::export::otel::make::system_time(self.events[place].at.unwrap())
    }

    pub(super) fn place(&self, kind: &str) -> usize {
        self.events.iter().position(|event| event.kind == kind).unwrap()
    }
}

/// Three steps: read, refused, completed.
pub(super) fn completed() -> Script {
    let mut script = Script::begun("r-done");
    script.decided("s0", 0, "read").policy("s0", "allow").started("s0", "read").done("s0", "read");
    script.decided("s1", 1, "drop").policy("s1", "deny").failed("s1", "policy_denied");
    script.add("step.started", "s2", json!({"index": 2}));
    script.add(
        "step.decided",
        "s2",
        json!({"kind": "complete", "result": {"done": true}, "origin": "operator"}),
    );
    script.finished("COMPLETED", "goal_completed");
    script
}

/// A payment that waits for a person and is granted.
pub(super) fn approved() -> Script {
    let mut script = Script::begun("r-asked");
    script.decided("s0", 0, "pay").policy("s0", "require_approval");
    let asked = json!({"approval_id": "a1", "kind": "remote_mutation", "reason": "money", "hash": "4a",
        "capability": {"tool": "pay"}, "presentation": {"to": "alice"}});
    script.add("approval.requested", "s0", asked);
    let granted = json!({"approval_id": "a1", "by": "al", "note": "fine", "status": "approved"});
    script.add("approval.decided", "s0", granted);
    script.add("run.resumed", "s0", json!({"approval_id": "a1"}));
    script.policy("s0", "require_approval");
    script.add("step.tool_started", "s0", json!({"approval_id": "a1", "args": {}, "tool": "pay"}));
    script.done("s0", "pay").finished("COMPLETED", "goal_completed");
    script
}

/// A call that was cut off, taken over, asked about and run again; then a second step.
pub(super) fn interrupted() -> Script {
    let mut script = Script::begun("r-cut");
    script.decided("s0", 0, "pay").policy("s0", "allow").started("s0", "pay");
    let lease = json!({"owner": "b", "previous_expires_at": "2026-10-01T09:00:30Z", "previous_owner": "a"});
    script.add("lease.taken_over", "", lease);
    script.add("step.interrupted", "s0", json!({"previous_status": {"previous_status": "executing"}}));
    script.add(
        "step.policy",
        "s0",
        json!({"outcome": "require_approval", "kind": "interrupted_side_effect"}),
    );
    let asked = json!({"approval_id": "a2", "kind": "interrupted_side_effect", "reason": "", "hash": "4b",
        "capability": {}, "presentation": {}});
    script.add("approval.requested", "s0", asked);
    script.add(
        "approval.decided",
        "s0",
        json!({"approval_id": "a2", "by": "al", "note": "", "status": "approved"}),
    );
    script.add("run.resumed", "s0", json!({"approval_id": "a2"}));
    script.policy("s0", "allow").started("s0", "pay").done("s0", "pay");
    script.decided("s1", 1, "read").finished("FAILED", "goal_failed");
    script
}

/// Model attempts: one that failed, one that answered, one that nobody heard of again.
pub(super) fn with_models() -> Script {
    let mut script = Script::begun("r-model");
    script.add("step.started", "s0", json!({"index": 0}));
    script.add("model.dispatched", "s0", json!({"call_id": "m1", "attempt": 1, "model": "small"}));
    let failed = json!({"call_id": "m1", "attempt": 1, "model": "small", "status": "error", "latency_ms": 250,
        "usage": {}, "cost_micros": 0, "error": "429 too many requests"});
    script.add("model.failed", "s0", failed);
    script.add("model.dispatched", "s0", json!({"call_id": "m2", "attempt": 2, "model": "small"}));
    let completed = json!({"call_id": "m2", "attempt": 2, "model": "small", "status": "ok", "latency_ms": 700,
        "usage": {"input_tokens": 100, "output_tokens": 20, "cached_input_tokens": 50}, "cost_micros": 200, "error": ""});
    script.add("model.completed", "s0", completed);
    script.add("model.dispatched", "s0", json!({"call_id": "m3", "attempt": 3, "model": "small"}));
    script.add("limit.exceeded", "", json!({"reason": "limit_tokens", "detail": "spent"}));
    let loops = json!({"args_hash": "aa", "observation_hash": "bb", "repeats": 3, "tool": "read"});
    script.add("loop.detected", "", loops);
    script.finished("FAILED", "limit_tokens");
    script
}

/// A run that an operator cancelled while its tool ran.
pub(super) fn cancelled() -> Script {
    let mut script = Script::begun("r-off");
    script.decided("s0", 0, "pay").policy("s0", "allow").started("s0", "pay");
    let over = json!({"by": "al", "detail": "changed my mind", "reason": "operator_cancelled", "status": "CANCELLED", "steps": 1});
    script.add("run.finished", "", over);
    let late = json!({"duration_ms": 2_000, "late": true, "observation": {"kind": "tool_result", "content": {"late": true}},
        "content_hash": "c2", "summary": "paid all the same", "tool": "pay"});
    script.add("step.tool_finished", "s0", late);
    script
}
