//! The proxy's policy: what the operator configured for a tool, and what a person is asked.
//!
//! Owns the decision, the capability that an approval grants and the presentation that a person sees. A pure function
//! of the tool, the request and the attempt that the request repeats, if it repeats one; never reads a file or a clock.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use holdpoint_actors::faults::process::{self, Broken};
use holdpoint_core::approval::{Approval, INTERRUPTED_REASON, INTERRUPTED_SIDE_EFFECT, latest_of};
use holdpoint_core::attempt::{Attempt, Upstream};
use holdpoint_core::json::{Json, ObjectWriter};
use holdpoint_core::policy::{Outcome, PolicyDecision, default_outcome};
use holdpoint_core::tool::{SideEffect, ToolRequest};

/// An outcome for each class; a class left out keeps the default policy's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassPolicy(BTreeMap<SideEffect, Outcome>);

impl Default for ClassPolicy {
    fn default() -> ClassPolicy {
        ClassPolicy(SideEffect::ALL.into_iter().map(|class| (class, default_outcome(class))).collect())
    }
}

impl ClassPolicy {
    /// Sets a class's outcome.
    pub fn set(&mut self, class: SideEffect, outcome: Outcome) {
        self.0.insert(class, outcome);
    }

    /// The outcome of a class; one that nobody named is refused.
    pub fn outcome(&self, class: SideEffect) -> Outcome {
        self.0.get(&class).copied().unwrap_or(Outcome::Deny)
    }

    /// Every class and its outcome.
    pub fn iter(&self) -> impl Iterator<Item = (SideEffect, Outcome)> {
        self.0.iter().map(|(class, outcome)| (*class, *outcome))
    }
}

/// A tool as the policy knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyTool {
    /// Its names and class.
    pub upstream: Upstream,
    /// The operator's values for its hidden parameters.
    pub fixed: BTreeMap<String, Json>,
    /// What the operator's rule says of this tool.
    pub rule: Option<Outcome>,
}

/// The proxy's policy over its tools.
#[derive(Clone, PartialEq, Eq)]
pub struct ProxyPolicy {
    classes: ClassPolicy,
    tools: HashMap<String, PolicyTool>,
}

impl fmt::Debug for ProxyPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxyPolicy")
            .field("classes", &self.classes)
            .field("tools", &self.tools.len())
            .finish_non_exhaustive()
    }
}

impl ProxyPolicy {
    /// The policy over `tools`, by their registered names.
    pub fn new(classes: ClassPolicy, tools: impl IntoIterator<Item = PolicyTool>) -> ProxyPolicy {
        let tools = tools.into_iter().map(|tool| (tool.upstream.name.clone(), tool)).collect();
        ProxyPolicy { classes, tools }
    }

    /// The tool of this registered name.
    pub fn tool(&self, name: &str) -> Option<&PolicyTool> {
        self.tools.get(name)
    }

    /// What the operator configured for a tool, and the reason that the record keeps.
    pub fn configured(&self, tool: &PolicyTool) -> (Outcome, String) {
        let Upstream { name, class, .. } = &tool.upstream;
        match tool.rule {
            Some(_) if process::is(Broken::PolicyIgnored) => (Outcome::Allow, String::new()),
            Some(outcome) => (outcome, format!("the operator's rule for {name} says {outcome}")),
            None => {
                let outcome = self.classes.outcome(*class);
                (outcome, format!("side effect {class} is {outcome} by policy"))
            }
        }
    }

    /// Decides a request. `rerun` is the attempt of unknown outcome that it repeats: then a person is asked whatever
    /// is configured, short of a denial.
    pub fn decide(&self, request: &ToolRequest, rerun: Option<&Attempt>) -> PolicyDecision {
        let Some(tool) = self.tools.get(&request.spec.name) else {
            return PolicyDecision::deny(format!("tool {:?} is not offered", request.spec.name));
        };
        let (outcome, reason) = self.configured(tool);
        match (outcome, rerun) {
            (Outcome::Deny, _) => PolicyDecision::deny(reason),
            // Never configured; a denial is the nearest thing that ends nothing.
            (Outcome::Abort, _) => PolicyDecision::deny(reason),
            (Outcome::Allow | Outcome::RequireApproval, Some(attempt)) => ask_again(tool, request, attempt),
            (Outcome::Allow, None) => PolicyDecision::allow(reason),
            (Outcome::RequireApproval, None) => ask(tool, request, reason),
        }
    }

    /// What a person is asked about a call that was cut off while it executed; `None` when there is nothing to ask,
    /// because it was a read or its tool is not offered.
    pub fn interrupted(&self, request: &ToolRequest, attempt: &Attempt) -> Option<PolicyDecision> {
        let tool = self.tools.get(&request.spec.name).filter(|tool| !tool.upstream.class.is_read())?;
        Some(ask_again(tool, request, attempt))
    }
}

/// The attempt that a waiting step's latest approval asks about. `Some(None)` when it asks about the step itself.
pub fn rerun_in<A: AsRef<Approval>>(approvals: &[A], request: &ToolRequest) -> Option<Option<Attempt>> {
    let latest = latest_of(approvals, &request.step_id).filter(|approval| approval.is_interruption())?;
    Some(Attempt::named_in(&latest.capability))
}

fn ask(tool: &PolicyTool, request: &ToolRequest, reason: String) -> PolicyDecision {
    let Upstream { server, remote, class, .. } = &tool.upstream;
    let mut shown = ObjectWriter::new();
    shown.str("question", &format!("Let the model call {remote} on server {server} with these arguments?"));
    if !process::is(Broken::ShownNarrowed) {
        write_capability(&mut shown, tool, request, None);
    }
    shown.str("reason", &reason);
    PolicyDecision::need_approval(
        class.as_str(),
        reason,
        capability(tool, request, None),
        Json::trusted(shown.finish()),
    )
}

fn ask_again(tool: &PolicyTool, request: &ToolRequest, attempt: &Attempt) -> PolicyDecision {
    let Upstream { server, remote, .. } = &tool.upstream;
    let mut shown = ObjectWriter::new();
    shown.str("question", &format!("Call {remote} on server {server} once more with these arguments?"));
    write_capability(&mut shown, tool, request, Some(attempt));
    shown.str("reason", INTERRUPTED_REASON);
    let notice = format!(
        "This call was tried before: the attempt that began at {} (run {}) {}. Nobody can say whether it took effect; \
         it may have. If you approve, it runs one more time, as soon as the model repeats the call. If you reject, \
         this request is over, and the same call, made later, is put to a person again whatever the policy allows.",
        attempt.started_at,
        attempt.run_id,
        attempt.ended.clause()
    );
    shown.str("notice", &notice);
    PolicyDecision::need_approval(
        INTERRUPTED_SIDE_EFFECT,
        INTERRUPTED_REASON,
        capability(tool, request, Some(attempt)),
        Json::trusted(shown.finish()),
    )
}

fn capability(tool: &PolicyTool, request: &ToolRequest, interrupted: Option<&Attempt>) -> Json {
    let mut w = ObjectWriter::new();
    write_capability(&mut w, tool, request, interrupted);
    Json::trusted(w.finish())
}

/// Writes what is granted: the upstream call, with the operator's fixed values. They are not in the request, so that
/// only here a change of one makes the grant one for other bytes.
fn write_capability(
    w: &mut ObjectWriter,
    tool: &PolicyTool,
    request: &ToolRequest,
    interrupted: Option<&Attempt>,
) {
    let Upstream { name, server, remote, class } = &tool.upstream;
    w.str("server", server).str("tool", remote).str("name", name).str("side_effect", class.as_str());
    let narrowed = process::is(Broken::QuestionNarrowed);
    w.raw("args", if narrowed { "{}" } else { request.args.as_str() });
    if !tool.fixed.is_empty() {
        w.sorted_object("fixed", |w| {
            for (parameter, value) in &tool.fixed {
                w.raw(parameter, value.as_str());
            }
        });
    }
    if let Some(attempt) = interrupted {
        w.object("interrupted", |w| attempt.write(w));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use holdpoint_core::attempt::Ended;
    use holdpoint_core::time::UnixNanos;
    use holdpoint_core::tool::ToolSpec;

    use super::*;

    fn tool(class: SideEffect, rule: Option<Outcome>) -> PolicyTool {
        let upstream =
            Upstream { name: "bank_pay".into(), server: "bank".into(), remote: "pay".into(), class };
        PolicyTool { upstream, fixed: BTreeMap::new(), rule }
    }

    fn request() -> ToolRequest {
        ToolRequest {
            run_id: "s.1".into(),
            step_id: "1".into(),
            spec: ToolSpec {
                name: "bank_pay".into(),
                description: String::new(),
                input_schema: Json::empty_object(),
                side_effect: SideEffect::RemoteMutation,
                timeout: Duration::from_secs(1),
                terminal: true,
            },
            args: Json::trusted(r#"{"to":"<a>","n":1.50}"#),
        }
    }

    fn attempt() -> Attempt {
        let started_at = UnixNanos::parse("2026-10-01T09:00:00.5Z").unwrap();
        Attempt { run_id: "s.0".into(), step_id: "9".into(), started_at, ended: Ended::TimedOut }
    }

    fn decide(class: SideEffect, rule: Option<Outcome>, rerun: Option<&Attempt>) -> PolicyDecision {
        ProxyPolicy::new(ClassPolicy::default(), [tool(class, rule)]).decide(&request(), rerun)
    }

    #[test]
    fn the_rule_decides_before_the_class() {
        use Outcome as O;
        use SideEffect as S;
        for (class, rule, outcome) in [
            (S::ReadOnly, None, O::Allow),
            (S::LocalMutation, None, O::Allow),
            (S::RemoteMutation, None, O::RequireApproval),
            (S::Destructive, None, O::Deny),
            (S::Destructive, Some(O::Allow), O::Allow),
            (S::ReadOnly, Some(O::Deny), O::Deny),
        ] {
            let decision = decide(class, rule, None);
            assert_eq!(decision.outcome, outcome, "{class} {rule:?}");
            assert!(decision.reason.contains(outcome.as_str()), "{}", decision.reason);
        }
    }

    #[test]
    fn a_tool_that_is_not_offered_is_denied() {
        let policy = ProxyPolicy::new(ClassPolicy::default(), []);
        assert_eq!(policy.decide(&request(), Some(&attempt())).outcome, Outcome::Deny);
    }

    #[test]
    fn an_ordinary_approval_grants_the_upstream_call_with_its_fixed_values() {
        let mut tool = tool(SideEffect::RemoteMutation, None);
        tool.fixed.insert("z".into(), Json::trusted("1.0"));
        tool.fixed.insert("currency".into(), Json::trusted("\"EUR\""));
        let decision = ProxyPolicy::new(ClassPolicy::default(), [tool]).decide(&request(), None);
        assert_eq!(decision.kind, "remote_mutation");
        let capability = concat!(
            r#""server":"bank","tool":"pay","name":"bank_pay","side_effect":"remote_mutation","#,
            r#""args":{"to":"\u003ca\u003e","n":1.50},"fixed":{"currency":"EUR","z":1.0}"#
        );
        assert_eq!(decision.capability.unwrap().as_str(), format!("{{{capability}}}"));
        let shown = decision.presentation.unwrap();
        assert!(shown.as_str().starts_with(r#"{"question":"#), "{shown}");
        assert!(
            shown.as_str().ends_with(&format!(r#",{capability},"reason":"{}"}}"#, decision.reason)),
            "{shown}"
        );
    }

    #[test]
    fn a_repeat_of_an_unknown_outcome_asks_whatever_the_policy_allows() {
        for rule in [None, Some(Outcome::Allow), Some(Outcome::RequireApproval)] {
            let decision = decide(SideEffect::RemoteMutation, rule, Some(&attempt()));
            assert_eq!(decision.outcome, Outcome::RequireApproval);
            assert_eq!(
                (decision.kind.as_str(), decision.reason.as_str()),
                (INTERRUPTED_SIDE_EFFECT, INTERRUPTED_REASON)
            );
            let capability = decision.capability.unwrap();
            assert_eq!(Attempt::named_in(&capability), Some(attempt()));
            let shown = decision.presentation.unwrap();
            assert!(
                shown.as_str().contains("began at 2026-10-01T09:00:00.5Z (run s.0) timed out"),
                "{shown}"
            );
            let keys: Vec<String> = shown
                .decode::<serde_json::Map<String, serde_json::Value>>()
                .unwrap()
                .keys()
                .cloned()
                .collect();
            assert_eq!(
                keys,
                [
                    "question",
                    "server",
                    "tool",
                    "name",
                    "side_effect",
                    "args",
                    "interrupted",
                    "reason",
                    "notice"
                ]
            );
        }
        assert_eq!(decide(SideEffect::Destructive, None, Some(&attempt())).outcome, Outcome::Deny);
    }

    #[test]
    fn a_read_that_was_cut_off_is_not_asked_about() {
        let policy = |class| ProxyPolicy::new(ClassPolicy::default(), [tool(class, None)]);
        assert_eq!(policy(SideEffect::ReadOnly).interrupted(&request(), &attempt()), None);
        let asked = policy(SideEffect::Destructive).interrupted(&request(), &attempt()).unwrap();
        assert_eq!(asked.kind, INTERRUPTED_SIDE_EFFECT);
    }
}
