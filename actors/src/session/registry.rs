//! The tools that a gate knows, each with its compiled schema and recorded spec.
//!
//! Owns what registration refuses. Never calls a tool.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use holdpoint_core::attempt::Upstream;
use holdpoint_core::json::{Json, is_absent};
use holdpoint_core::tool::{RecordedSpec, ToolSpec};

use super::GateError;
use crate::executor::Tool;
use crate::schema::ArgumentSchema;

/// One registered tool.
#[derive(Clone)]
pub(super) struct Registered {
    pub(super) tool: Arc<dyn Tool>,
    pub(super) spec: ToolSpec,
    pub(super) recorded: RecordedSpec,
    pub(super) upstream: Upstream,
    schema: Arc<ArgumentSchema>,
}

impl Registered {
    /// Judges arguments as the tool's schema does; absent ones are `{}`.
    pub(super) fn check(&self, args: &[u8]) -> Result<Json, String> {
        let args = if is_absent(args) {
            Json::empty_object()
        } else {
            Json::checked(args).map_err(|error| format!("arguments are not usable JSON: {error}"))?
        };
        self.schema.check(&args)?;
        Ok(args)
    }
}

/// Every registered tool, by name.
pub(super) struct Registry {
    tools: BTreeMap<String, Registered>,
    recorded: Vec<RecordedSpec>,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.tools.keys()).finish()
    }
}

impl Registry {
    pub(super) fn of(tools: Vec<Arc<dyn Tool>>) -> Result<Registry, GateError> {
        let mut registry = BTreeMap::new();
        for tool in tools {
            let spec = tool.spec();
            let refuse = |why: String| GateError::Tool { tool: spec.name.clone(), why };
            if spec.name.is_empty() {
                return Err(refuse("a tool needs a name".to_owned()));
            }
            if spec.timeout.is_zero() {
                return Err(refuse("a tool needs a timeout".to_owned()));
            }
            if registry.contains_key(&spec.name) {
                return Err(refuse("the name is taken by another tool".to_owned()));
            }
            let schema = Arc::new(ArgumentSchema::compile(&spec.input_schema).map_err(refuse)?);
            let recorded = spec.recorded();
            let upstream = tool.upstream().unwrap_or_else(|| Upstream {
                name: spec.name.clone(),
                server: String::new(),
                remote: String::new(),
                class: spec.side_effect,
            });
            registry.insert(spec.name.clone(), Registered { tool, spec, recorded, upstream, schema });
        }
        let recorded = registry.values().map(|tool| tool.recorded.clone()).collect();
        Ok(Registry { tools: registry, recorded })
    }

    pub(super) fn get(&self, name: &str) -> Option<&Registered> {
        self.tools.get(name)
    }

    /// The recorded specs, in the order of the tools' names.
    pub(super) fn recorded(&self) -> &[RecordedSpec] {
        &self.recorded
    }

    pub(super) fn specs(&self) -> Vec<ToolSpec> {
        self.tools.values().map(|tool| tool.spec.clone()).collect()
    }
}

/// The runtime's own acceptance of calls, without a runtime: what a gate with these tools lets a decision ask for.
#[derive(Debug)]
pub struct Acceptance(Registry);

impl Acceptance {
    /// Checks the tools as [`super::Gate::new`] does.
    ///
    /// # Errors
    /// The first tool that is unusable, and why.
    pub fn of(tools: Vec<Arc<dyn Tool>>) -> Result<Acceptance, GateError> {
        Registry::of(tools).map(Acceptance)
    }

    /// Judges a call of `tool` with these arguments as a step's decision is judged; gives what would be put to the policy.
    ///
    /// # Errors
    /// Why it would be an invalid decision.
    pub fn accept(&self, tool: &str, args: &[u8]) -> Result<(ToolSpec, Json), String> {
        let registered = self.0.get(tool).ok_or_else(|| format!("unknown tool {tool:?}"))?;
        Ok((registered.spec.clone(), registered.check(args)?))
    }
}
