//! Which pinned tools may be offered now.
//!
//! Owns the checks between a manifest, the operator's rules and what the server lists now, in their order: the first
//! that fails is the reason a person reads, and the other tools go on. Two of the answers come from elsewhere: the
//! listing was read before, and whoever registers tools says at the end whether it accepts one (it compiles the
//! schema). Anything not registered is not offered.

use std::collections::BTreeMap;
use std::time::Duration;

use thiserror::Error;

use super::contradiction::{Contradiction, contradiction};
use super::listing::{ListedTool, Listing};
use super::manifest::{Manifest, PinnedTool};
use super::report::{Refusal, Registration, Report};
use super::rules::{Rule, Rules};
use crate::duration::DurationNanos;
use crate::json::{self, Json};
use crate::schema::cost::{self, Cost, Uncheckable};
use crate::schema::hidden::{self, Unsound};
use crate::schema::object::{self, ObjectSchema};
use crate::schema::self_contained::{self, ReachesOutside};
use crate::tool::{SideEffect, ToolSpec};

/// What a tool's name may look like: the strictest form that any model's provider takes.
pub const NAME_PATTERN: &str = "^[a-zA-Z0-9_-]{1,64}$";

/// Says whether a name matches [`NAME_PATTERN`].
pub fn is_tool_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
}

/// Why a manifest and rules don't belong together, or not to this server.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Misfit {
    /// The manifest was taken from another server.
    #[error("the manifest is for server {manifest:?}, not {server:?}")]
    OtherServer {
        /// The name in the manifest.
        manifest: String,
        /// The name in the configuration.
        server: String,
    },
    /// Rules name tools that aren't pinned: misspelt names would silently drop tools.
    #[error("rules name tools that the manifest doesn't pin: {}; correct the names, or pin again if the server has new tools", .tools.join(", "))]
    UnpinnedRules {
        /// The names, sorted.
        tools: Vec<String>,
    },
}

/// Finds everything that must be put right before a server is even started.
pub fn misfits(server: &str, manifest: &Manifest, rules: &Rules) -> Vec<Misfit> {
    let mut found = Vec::new();
    if manifest.server != server {
        found.push(Misfit::OtherServer { manifest: manifest.server.clone(), server: server.to_owned() });
    }
    let tools: Vec<String> =
        rules.keys().filter(|name| !manifest.tools.contains_key(*name)).cloned().collect();
    if !tools.is_empty() {
        found.push(Misfit::UnpinnedRules { tools });
    }
    found
}

/// Why one tool is not offered.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Reason {
    /// The server doesn't list it now.
    #[error("the server doesn't offer it any more")]
    Gone,
    /// The live schema hashes differently.
    #[error("the input schema changed since it was pinned")]
    SchemaChanged,
    /// The live description hashes differently.
    #[error("the description changed since it was pinned, and a model would read it")]
    DescriptionChanged,
    /// The pinned hints contradict the class.
    #[error(transparent)]
    Hint(Contradiction),
    /// The live hints contradict the class.
    #[error("the server now says: {0}")]
    LiveHint(Contradiction),
    /// Nobody bounds a call.
    #[error("no timeout: give the rule a timeout, or the server a default_timeout")]
    NoTimeout,
    /// The name can't be offered.
    #[error("the name {0:?} doesn't match {NAME_PATTERN}")]
    Name(String),
    /// The schema doesn't describe an object.
    #[error(transparent)]
    NotAnObject(#[from] object::Refusal),
    /// The schema leads out of itself.
    #[error("the input schema isn't self-contained: {0}")]
    ReachesOutside(#[from] ReachesOutside),
    /// A value that the operator fixed is not usable.
    #[error("the value fixed for {name:?} is not valid JSON: {error}")]
    FixedValue {
        /// The parameter.
        name: String,
        /// Why.
        error: json::CheckError,
    },
    /// A parameter can't be hidden.
    #[error(transparent)]
    Unsound(#[from] Unsound),
    /// The rule names no class there is.
    #[error(
        "the runtime refuses it: side_effect {0:?} is none of read_only, local_mutation, remote_mutation, destructive"
    )]
    Class(String),
    /// Checking arguments against the schema could take for ever, or can't be exact.
    #[error("the runtime refuses it: {0}")]
    Uncheckable(#[from] Uncheckable),
    /// Whoever registers tools doesn't accept it.
    #[error("the runtime refuses it: {0}")]
    Runtime(String),
    /// Another tool of this server has the name.
    #[error("the name {name:?} is already taken by tool {holder:?}")]
    NameTaken {
        /// The name.
        name: String,
        /// The server's name of the tool that has it.
        holder: String,
    },
}

/// A tool that passed every check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadedTool {
    /// The server's name in the configuration.
    pub server: String,
    /// The server's name for the tool.
    pub remote_name: String,
    /// What policy, approvals and models see: the offered name, the operator's description if there is one, and the
    /// schema without the hidden parameters.
    pub spec: ToolSpec,
    /// Parameters that a call may not carry.
    pub deny: Vec<String>,
    /// Parameters that the operator sets in every call.
    pub fixed: BTreeMap<String, Json>,
    /// The contradiction that the operator let pass.
    pub hint_mismatch: Option<String>,
    /// What checking arguments can cost.
    pub cost: Cost,
}

/// What is compared, for one server.
#[derive(Debug, Clone, Copy)]
pub struct Loading<'a> {
    /// The server's name in the configuration.
    pub server: &'a str,
    /// What was pinned.
    pub manifest: &'a Manifest,
    /// What the operator says.
    pub rules: &'a Rules,
    /// What the server lists now.
    pub live: &'a Listing,
    /// The bound of a call whose rule has none.
    pub default_timeout: Option<Duration>,
}

/// Whoever registers tools: says why it doesn't accept one.
pub type Accept<'a> = &'a dyn Fn(&LoadedTool) -> Result<(), String>;

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LoadOutcome {
    /// The tools to offer, sorted by the server's names. None is a failure of the whole load; the report says why.
    pub tools: Vec<LoadedTool>,
    /// What became of every tool.
    pub report: Report,
}

/// Checks every pinned tool and reports on every tool, pinned or listed.
///
/// [`misfits`] must have found nothing.
pub fn check_tools(loading: &Loading<'_>, accept: Accept<'_>) -> LoadOutcome {
    let mut outcome = LoadOutcome::default();
    outcome.report.server = loading.server.to_owned();
    let unpinned = loading.live.tools().filter(|tool| !loading.manifest.tools.contains_key(&tool.name));
    outcome.report.unpinned = unpinned.map(|tool| tool.name.clone()).collect();
    let mut holders: BTreeMap<String, String> = BTreeMap::new();
    for (name, pinned) in &loading.manifest.tools {
        let Some(rule) = loading.rules.get(name) else {
            outcome.report.unclassified.push(name.clone());
            continue;
        };
        let checked = check_tool(loading, pinned, rule, accept).and_then(|tool| {
            let offered = tool.spec.name.clone();
            match holders.get(&offered) {
                Some(holder) => Err(Reason::NameTaken { name: offered, holder: holder.clone() }),
                None => Ok(tool),
            }
        });
        match checked {
            Ok(tool) => {
                holders.insert(tool.spec.name.clone(), name.clone());
                outcome.report.registered.push(Registration {
                    tool: name.clone(),
                    name: tool.spec.name.clone(),
                    side_effect: tool.spec.side_effect,
                    hint_mismatch: tool.hint_mismatch.clone(),
                });
                outcome.tools.push(tool);
            }
            Err(reason) => {
                outcome.report.refused.push(Refusal { tool: name.clone(), reason: reason.to_string() });
            }
        }
    }
    outcome
}

/// Checks one tool. The order is part of the behaviour: the first failure is the reason.
fn check_tool(
    loading: &Loading<'_>,
    pinned: &PinnedTool,
    rule: &Rule,
    accept: Accept<'_>,
) -> Result<LoadedTool, Reason> {
    let live = loading.live.get(&pinned.name).ok_or(Reason::Gone)?;
    if live.schema_hash() != pinned.schema_hash {
        return Err(Reason::SchemaChanged);
    }
    if live.description_hash() != pinned.description_hash {
        return Err(Reason::DescriptionChanged);
    }
    let hint = hint(rule, pinned, live);
    if let Some(hint) = hint.clone().filter(|_| !rule.allow_hint_mismatch) {
        return Err(hint);
    }
    let timeout = timeout(rule, loading.default_timeout).ok_or(Reason::NoTimeout)?;
    let name = rule.rename.clone().unwrap_or_else(|| format!("{}_{}", loading.server, pinned.name));
    if !is_tool_name(&name) {
        return Err(Reason::Name(name));
    }
    let schema = ObjectSchema::read(&pinned.input_schema)?;
    self_contained::check(&schema)?;
    for (name, value) in &rule.fixed {
        let usable = json::check(value.as_str().as_bytes());
        usable.map_err(|error| Reason::FixedValue { name: name.clone(), error })?;
    }
    let restricted = hidden::restrict(&schema, &rule.hidden())?;
    let side_effect =
        SideEffect::parse(&rule.side_effect).ok_or_else(|| Reason::Class(rule.side_effect.clone()))?;
    let cost = cost::bound(&ObjectSchema::read(&restricted)?)?;
    let description = rule.description.clone().unwrap_or_else(|| pinned.description.clone());
    let tool = LoadedTool {
        server: loading.server.to_owned(),
        remote_name: pinned.name.clone(),
        spec: ToolSpec {
            name,
            description,
            input_schema: Json::trusted(restricted),
            side_effect,
            timeout,
            terminal: rule.terminal,
        },
        deny: rule.deny.clone(),
        fixed: rule.fixed.clone(),
        hint_mismatch: hint.map(|hint| hint.to_string()),
        cost,
    };
    accept(&tool).map_err(Reason::Runtime)?;
    Ok(tool)
}

/// The pinned hints first, because they were there when the operator classified the tool; then what is said now.
fn hint(rule: &Rule, pinned: &PinnedTool, live: &ListedTool) -> Option<Reason> {
    let against = |hints| contradiction(&rule.side_effect, hints);
    let pinned = against(pinned.annotations.as_ref()).map(Reason::Hint);
    pinned.or_else(|| against(live.annotations.as_ref()).map(Reason::LiveHint))
}

fn timeout(rule: &Rule, default: Option<Duration>) -> Option<Duration> {
    let own = rule.timeout.and_then(DurationNanos::to_std).filter(|timeout| !timeout.is_zero());
    own.or(default.filter(|timeout| !timeout.is_zero()))
}

#[cfg(test)]
mod tests;
