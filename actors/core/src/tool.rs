//! Tools as the gate knows them: what a tool may do, how it is described, and one exact request to it.
//!
//! Owns the stored forms of a spec and a request. Never calls anything: a tool's code lives above core.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::hash;
use crate::ids::{RunId, SpecHash, StepId};
use crate::json::{self, CheckError, Json, ObjectWriter};

/// What a tool may do to the world, as whoever registers it says. Policy is decided on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SideEffect {
    /// Changes nothing: safe to run again after a crash.
    ReadOnly,
    /// Changes something on this machine.
    LocalMutation,
    /// Changes something elsewhere.
    RemoteMutation,
    /// Changes something that cannot be undone.
    Destructive,
}

impl SideEffect {
    /// Every class, from the mildest.
    pub const ALL: [SideEffect; 4] = [
        SideEffect::ReadOnly,
        SideEffect::LocalMutation,
        SideEffect::RemoteMutation,
        SideEffect::Destructive,
    ];

    /// The name in records, rules and approvals.
    pub const fn as_str(self) -> &'static str {
        match self {
            SideEffect::ReadOnly => "read_only",
            SideEffect::LocalMutation => "local_mutation",
            SideEffect::RemoteMutation => "remote_mutation",
            SideEffect::Destructive => "destructive",
        }
    }

    /// Reads a class by its name; anything else is `None`.
    pub fn parse(text: &str) -> Option<SideEffect> {
        SideEffect::ALL.into_iter().find(|class| class.as_str() == text)
    }

    /// Whether a call may be repeated without asking anyone.
    pub const fn is_read(self) -> bool {
        matches!(self, SideEffect::ReadOnly)
    }
}

impl fmt::Display for SideEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A tool as policy, approvals and the record see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolSpec {
    /// The name that callers use.
    pub name: String,
    /// What the caller is told that the tool does.
    pub description: String,
    /// The JSON Schema of its arguments.
    pub input_schema: Json,
    /// What it may do.
    pub side_effect: SideEffect,
    /// The bound of one call.
    pub timeout: Duration,
    /// Whether its success completes the run.
    pub terminal: bool,
}

/// The time of a call whose spec names none.
const TIMEOUT: Duration = Duration::from_secs(30);

impl ToolSpec {
    /// A tool of this name and class that takes what `schema` describes, with thirty seconds for a call, without a
    /// description, and whose success does not complete the run.
    pub fn new(name: impl Into<String>, side_effect: SideEffect, schema: &str) -> ToolSpec {
        ToolSpec {
            name: name.into(),
            description: String::new(),
            input_schema: Json::trusted(schema),
            side_effect,
            timeout: TIMEOUT,
            terminal: false,
        }
    }

    /// The same tool, with what a caller is told that it does.
    #[must_use]
    pub fn describe(mut self, description: impl Into<String>) -> ToolSpec {
        self.description = description.into();
        self
    }

    /// The same tool, with another bound of a call.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> ToolSpec {
        self.timeout = timeout;
        self
    }

    /// The same tool, whose success completes the run with what it answers.
    #[must_use]
    pub fn terminal(mut self) -> ToolSpec {
        self.terminal = true;
        self
    }

    /// The stored form: struct field order, compact, HTML-escaped, the timeout in nanoseconds.
    pub fn to_json(&self) -> String {
        let mut w = ObjectWriter::new();
        self.write(&mut w);
        w.finish()
    }

    pub(crate) fn write(&self, w: &mut ObjectWriter) {
        w.str("name", &self.name);
        w.str("description", &self.description);
        w.raw("input_schema", self.input_schema.as_str());
        w.str("side_effect", self.side_effect.as_str());
        w.int("timeout", nanos(self.timeout));
        if self.terminal {
            w.bool("terminal", true);
        }
    }

    /// The canonical form that is stored once per distinct spec, and its hash.
    pub fn recorded(&self) -> RecordedSpec {
        let canonical = json::canonical_trusted(&self.to_json());
        let hash = SpecHash::from(hash::sha256_hex(canonical.as_bytes()));
        RecordedSpec { hash, canonical: Json::trusted(canonical) }
    }

    /// Reads a spec from a stored request or from the table of specs.
    pub fn parse(text: &str) -> Result<ToolSpec, String> {
        let raw: SpecText<'_> = serde_json::from_str(text).map_err(|e| e.to_string())?;
        raw.into_spec()
    }
}

/// A spec's canonical form and hash, as the table of specs keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedSpec {
    /// Hex SHA-256 of the canonical form.
    pub hash: SpecHash,
    /// The canonical form.
    pub canonical: Json,
}

#[derive(Deserialize)]
struct SpecText<'a> {
    name: String,
    #[serde(default)]
    description: String,
    #[serde(borrow)]
    input_schema: Option<&'a RawValue>,
    side_effect: String,
    timeout: i64,
    #[serde(default)]
    terminal: bool,
}

impl SpecText<'_> {
    fn into_spec(self) -> Result<ToolSpec, String> {
        let side_effect = SideEffect::parse(&self.side_effect)
            .ok_or_else(|| format!("unknown side effect {:?}", self.side_effect))?;
        Ok(ToolSpec {
            name: self.name,
            description: self.description,
            input_schema: Json::trusted(self.input_schema.map_or("null", RawValue::get)),
            side_effect,
            timeout: Duration::from_nanos(u64::try_from(self.timeout).unwrap_or(0)),
            terminal: self.terminal,
        })
    }
}

/// One exact request to a tool: what an approval binds and what runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolRequest {
    /// The run that asks.
    pub run_id: RunId,
    /// The step that asks. A tool may use it as an idempotency key.
    pub step_id: StepId,
    /// The tool as registered now.
    pub spec: ToolSpec,
    /// The arguments as they were written.
    pub args: Json,
}

impl ToolRequest {
    /// The stored form of an approval's request.
    pub fn to_json(&self) -> String {
        let mut w = ObjectWriter::new();
        w.str("run_id", self.run_id.as_str());
        w.str("step_id", self.step_id.as_str());
        w.object("spec", |spec| self.spec.write(spec));
        w.raw("args", self.args.as_str());
        w.finish()
    }

    /// Reads a stored request.
    pub fn parse(text: &str) -> Result<ToolRequest, String> {
        #[derive(Deserialize)]
        struct Text<'a> {
            run_id: String,
            step_id: String,
            #[serde(borrow)]
            spec: SpecText<'a>,
            #[serde(borrow)]
            args: Option<&'a RawValue>,
        }
        let raw: Text<'_> = serde_json::from_str(text).map_err(|e| e.to_string())?;
        Ok(ToolRequest {
            run_id: RunId::from(raw.run_id),
            step_id: StepId::from(raw.step_id),
            spec: raw.spec.into_spec()?,
            args: raw.args.map_or_else(Json::empty_object, |args| Json::trusted(args.get())),
        })
    }

    /// The form that a policy is handed: the same bytes whether made from what the caller wrote or from the record.
    pub fn policy_form(&self) -> Result<ToolRequest, CheckError> {
        let mut handed = self.clone();
        handed.args = Json::trusted(json::policy_form(self.args.as_str())?);
        handed.spec.input_schema = Json::trusted(json::policy_form_trusted(self.spec.input_schema.as_str()));
        Ok(handed)
    }
}

/// A duration as whole nanoseconds, saturating.
pub(crate) fn nanos(d: Duration) -> i64 {
    i64::try_from(d.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
