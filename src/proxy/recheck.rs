//! The proxy's policy as recorded runs are put to it again.
//!
//! Owns what serving has and a record has not: the tools, here from the operator's rules alone or as servers list them
//! now, and the one input that a proxy keeps in memory, which attempt a request repeats. Starts nothing, and reads no
//! database: the run's record is given.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use holdpoint_actors::policy::{Policy, PolicyError};
use holdpoint_core::attempt::{Attempt, Ended, Upstream};
use holdpoint_core::pin::load::{LoadedTool, is_tool_name};
use holdpoint_core::policy::{PolicyDecision, PolicyView};
use holdpoint_core::recheck::Record;
use holdpoint_core::tool::{SideEffect, ToolRequest};

use super::config::{Config, Server};
use super::policy::{PolicyTool, ProxyPolicy, rerun_in};

/// The policy that a configuration makes, without its servers: each rule is taken for a tool, named and classified as
/// serving would. A rule that no tool could be offered under is left out, so its calls are denied.
pub fn policy_of_rules(config: &Config) -> ProxyPolicy {
    let tools = config.servers.iter().flat_map(|server| {
        server.rules.iter().filter_map(move |(remote, said)| {
            let name = said.rule.rename.clone().unwrap_or_else(|| format!("{}_{remote}", server.name));
            let class = SideEffect::parse(&said.rule.side_effect)?;
            let upstream = Upstream { server: server.name.clone(), remote: remote.clone(), class, name };
            is_tool_name(&upstream.name).then(|| PolicyTool {
                upstream,
                fixed: said.rule.fixed.clone(),
                rule: said.outcome,
            })
        })
    });
    ProxyPolicy::new(config.policy.clone(), tools)
}

/// The policy that a configuration makes over the tools that its servers offer now.
pub fn policy_of_tools<'a>(config: &Config, tools: impl IntoIterator<Item = &'a LoadedTool>) -> ProxyPolicy {
    let servers: HashMap<&str, &Server> =
        config.servers.iter().map(|server| (server.name.as_str(), server)).collect();
    let tools = tools.into_iter().map(|tool| {
        let said = servers.get(tool.server.as_str()).and_then(|server| server.rules.get(&tool.remote_name));
        PolicyTool {
            upstream: Upstream {
                name: tool.spec.name.clone(),
                server: tool.server.clone(),
                remote: tool.remote_name.clone(),
                class: tool.spec.side_effect,
            },
            fixed: tool.fixed.clone(),
            rule: said.and_then(|said| said.outcome),
        }
    });
    ProxyPolicy::new(config.policy.clone(), tools)
}

/// A proxy's policy, asked about one recorded run.
#[derive(Debug, Clone)]
pub struct RecordedPolicy {
    policy: Arc<ProxyPolicy>,
    policy_id: String,
    run: Arc<Record>,
}

impl RecordedPolicy {
    /// The policy of this identity, about `run` and no other.
    pub fn new(policy: Arc<ProxyPolicy>, policy_id: impl Into<String>, run: Arc<Record>) -> RecordedPolicy {
        RecordedPolicy { policy, policy_id: policy_id.into(), run }
    }

    /// The attempt that the proxy named in memory as it proposed the request: the policy then asked a person about it, in
    /// the approval after those that it was shown. One that was denied left none, and counts as a fresh request.
    fn named_next(&self, request: &ToolRequest, view: &PolicyView) -> Option<Attempt> {
        let next = self.run.approvals().get(view.approvals.len())?;
        let asks = next.step_id == request.step_id && next.is_interruption();
        // An approval that names the step itself was asked for later, when the step was found cut off.
        Attempt::named_in(&next.capability).filter(|attempt| asks && attempt.step_id != request.step_id)
    }

    /// The step itself, as the attempt that another program's approval asks about.
    fn this_step(&self, request: &ToolRequest, view: &PolicyView) -> Result<Attempt, PolicyError> {
        let asked = view.approvals.iter().rfind(|approval| approval.step_id == request.step_id);
        let started_at = asked.and_then(|asked| self.run.begun_before(asked));
        let started_at = started_at.ok_or_else(|| {
            PolicyError(format!("the record does not say when step {} began", request.step_id))
        })?;
        let (run_id, step_id) = (request.run_id.clone(), request.step_id.clone());
        Ok(Attempt { run_id, step_id, started_at, ended: Ended::CutOff })
    }
}

#[async_trait]
impl Policy for RecordedPolicy {
    async fn evaluate(
        &self,
        request: &ToolRequest,
        view: &PolicyView,
    ) -> Result<PolicyDecision, PolicyError> {
        let rerun = match rerun_in(&view.approvals, request) {
            Some(Some(attempt)) => Some(attempt),
            Some(None) => Some(self.this_step(request, view)?),
            None => self.named_next(request, view),
        };
        Ok(self.policy.decide(request, rerun.as_ref()))
    }

    fn id(&self) -> Option<String> {
        Some(self.policy_id.clone())
    }
}
