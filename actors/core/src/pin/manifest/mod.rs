//! The manifest: what a server presented when a person looked at it, kept as a file.
//!
//! Owns the file's form, which is the reference's, so that either program reads the other's. A manifest holds what
//! the checks compare with (two hashes) and what a model is shown (description and schema). It never says what a
//! tool may do; that is the rules'. Reading and writing files is the commands' work.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use super::annotations::Annotations;
use super::canonical::{self, canonical};
use super::listing::{ListedTool, Listing};
use super::scan;
use crate::json::{self, CheckError, ObjectWriter};
use crate::time::{TimeError, UnixNanos};

/// Why a file is no manifest.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Error {
    /// It is not an object, or not JSON.
    #[error("manifest: {0}")]
    Json(#[from] scan::Error),
    /// It could be read in two ways, above all by a repeated key.
    #[error("manifest: not usable JSON: {0}")]
    Unusable(#[from] CheckError),
    /// A field has the wrong kind.
    #[error("manifest: {field} has the wrong kind")]
    Field {
        /// The field, with its tool in front.
        field: String,
    },
    /// The time of the pin can't be read.
    #[error("manifest: pinned_at: {0}")]
    Time(#[from] TimeError),
    /// A pinned schema has no canonical form.
    #[error("manifest: tool {tool:?}: input_schema: {error}")]
    Schema {
        /// The tool.
        tool: String,
        /// Why.
        error: canonical::Error,
    },
    /// An entry stands under another name than its own, so a rule for one would open the other.
    #[error("manifest: the entry {key:?} is about a tool called {name:?}")]
    Name {
        /// Where the entry stands.
        key: String,
        /// What it says of itself.
        name: String,
    },
}

/// One tool as it was pinned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinnedTool {
    /// The server's name for it.
    pub name: String,
    /// The description that a model is shown.
    pub description: String,
    /// The input schema in canonical form.
    pub input_schema: String,
    /// What the live schema must hash to.
    pub schema_hash: String,
    /// What the live description must hash to.
    pub description_hash: String,
    /// The hints as they were received; none when the server sent none.
    pub annotations: Option<Annotations>,
}

impl PinnedTool {
    fn of(tool: &ListedTool) -> Self {
        Self {
            name: tool.name.clone(),
            description: tool.description.clone(),
            input_schema: tool.input_schema.clone(),
            schema_hash: tool.schema_hash(),
            description_hash: tool.description_hash(),
            annotations: tool.annotations.clone(),
        }
    }

    fn read(key: &str, entry: &str) -> Result<Self, Error> {
        let wrong = |field: &str| Error::Field { field: format!("tool {key:?}: {field}") };
        let members = scan::members(entry).map_err(|_| wrong("the entry"))?;
        let text = |field: &str| match scan::last(&members, field) {
            None | Some("null") => Ok(String::new()),
            Some(value) => scan::text(value).ok_or_else(|| wrong(field)),
        };
        let name = match scan::last(&members, "name") {
            None | Some("null") => key.to_owned(),
            Some(_) => text("name")?,
        };
        if name != key {
            return Err(Error::Name { key: key.to_owned(), name });
        }
        let input_schema = canonical(scan::last(&members, "input_schema").unwrap_or(""))
            .map_err(|error| Error::Schema { tool: key.to_owned(), error })?;
        let annotations = match scan::last(&members, "annotations") {
            None => None,
            Some(value) => Annotations::read(value).map_err(wrong)?,
        };
        Ok(Self {
            name,
            description: text("description")?,
            input_schema,
            schema_hash: text("schema_hash")?,
            description_hash: text("description_hash")?,
            annotations,
        })
    }

    fn write(&self, out: &mut ObjectWriter) {
        out.str("name", &self.name)
            .str("description", &self.description)
            .raw("input_schema", &self.input_schema)
            .str("schema_hash", &self.schema_hash)
            .str("description_hash", &self.description_hash);
        if let Some(hints) = &self.annotations {
            out.object("annotations", |out| {
                for (key, hint) in [
                    ("destructiveHint", hints.destructive_hint),
                    ("idempotentHint", hints.idempotent_hint),
                    ("openWorldHint", hints.open_world_hint),
                    ("readOnlyHint", hints.read_only_hint),
                ] {
                    if let Some(hint) = hint {
                        out.bool(key, hint);
                    }
                }
                if let Some(title) = &hints.title {
                    out.str("title", title);
                }
            });
        }
    }
}

/// What one server presented at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// The server's name in the configuration.
    pub server: String,
    /// When it was pinned; unknown when the file doesn't say.
    pub pinned_at: Option<UnixNanos>,
    /// Its tools, by its own names.
    pub tools: BTreeMap<String, PinnedTool>,
}

/// Go's zero time, which is how a manifest says that it doesn't know when.
const NO_TIME: &str = "0001-01-01T00:00:00Z";

impl Manifest {
    /// Pins everything that a server lists.
    pub fn pin(server: &str, pinned_at: UnixNanos, listing: &Listing) -> Self {
        let tools = listing.tools().map(|tool| (tool.name.clone(), PinnedTool::of(tool))).collect();
        Self { server: server.to_owned(), pinned_at: Some(pinned_at), tools }
    }

    /// Reads a manifest; unknown fields are ignored, and of a repeated key the last counts.
    ///
    /// # Errors
    /// Anything that is not a manifest, and a tool under another name than its own.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let text = scan::lossy(bytes);
        scan::whole(&text)?;
        let members = scan::members(&text)?;
        let wrong = |field: &str| Error::Field { field: field.to_owned() };
        let server = match scan::last(&members, "server") {
            None | Some("null") => String::new(),
            Some(value) => scan::text(value).ok_or_else(|| wrong("server"))?,
        };
        let pinned_at = match scan::last(&members, "pinned_at") {
            None | Some("null") => None,
            Some(value) => moment(&scan::text(value).ok_or_else(|| wrong("pinned_at"))?)?,
        };
        let entries = match scan::last(&members, "tools") {
            None | Some("null") => Vec::new(),
            Some(tools) => scan::members(tools).map_err(|_| wrong("tools"))?,
        };
        let mut tools = BTreeMap::new();
        for entry in entries {
            tools.insert(entry.key.clone().into_owned(), PinnedTool::read(&entry.key, entry.value)?);
        }
        Ok(Self { server, pinned_at, tools })
    }

    /// Reads a manifest that can be read in one way only: what a person saw in the file is what it says.
    ///
    /// # Errors
    /// As [`Manifest::parse`], and for a repeated key or anything else that the boundary check refuses.
    pub fn parse_strict(bytes: &[u8]) -> Result<Self, Error> {
        json::check(bytes)?;
        Self::parse(bytes)
    }

    /// Writes the file: JSON indented by two spaces, tools sorted by name, a newline at the end.
    pub fn to_text(&self) -> String {
        let mut out = ObjectWriter::new();
        out.str("server", &self.server);
        match self.pinned_at {
            Some(moment) => out.str("pinned_at", &moment.to_rfc3339()),
            None => out.str("pinned_at", NO_TIME),
        };
        out.sorted_object("tools", |out| {
            for (name, tool) in &self.tools {
                out.object(name, |out| tool.write(out));
            }
        });
        let compact = out.finish();
        let mut text = scan::indented(&compact).unwrap_or(compact);
        text.push('\n');
        text
    }

    /// Gives this manifest with the named tools as `newer` has them: added, replaced or removed. The others stay as
    /// they were pinned.
    pub fn accepting(&self, newer: &Self, names: &BTreeSet<String>) -> Self {
        let mut tools = self.tools.clone();
        for name in names {
            match newer.tools.get(name) {
                Some(tool) => tools.insert(name.clone(), tool.clone()),
                None => tools.remove(name),
            };
        }
        Self { server: newer.server.clone(), pinned_at: newer.pinned_at, tools }
    }
}

/// Reads a moment; one that lies centuries away is unknown rather than wrong.
fn moment(text: &str) -> Result<Option<UnixNanos>, TimeError> {
    match UnixNanos::parse(text) {
        Ok(moment) => Ok(Some(moment)),
        Err(TimeError::Range(_)) => Ok(None),
        Err(error @ (TimeError::Shape(_) | TimeError::Calendar(_))) => Err(error),
    }
}

/// One way in which a server's tool differs from its pin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolChange {
    /// A tool that wasn't pinned.
    Added(PinnedTool),
    /// A pinned tool that is gone.
    Removed(PinnedTool),
    /// Another description, which is text that a model reads.
    Description {
        /// The tool.
        tool: String,
        /// As pinned.
        before: String,
        /// As it is now.
        after: String,
    },
    /// Another input schema.
    Schema {
        /// The tool.
        tool: String,
        /// As pinned, in canonical form.
        before: String,
        /// As it is now, in canonical form.
        after: String,
    },
    /// Other hints. No hash covers them, so nothing but a review shows this.
    Annotations {
        /// The tool.
        tool: String,
        /// As pinned.
        before: Option<Annotations>,
        /// As they are now.
        after: Option<Annotations>,
    },
}

impl ToolChange {
    /// Gives the name of the tool that changed.
    pub fn tool(&self) -> &str {
        match self {
            Self::Added(tool) | Self::Removed(tool) => &tool.name,
            Self::Description { tool, .. } | Self::Schema { tool, .. } | Self::Annotations { tool, .. } => {
                tool
            }
        }
    }
}

/// Compares two manifests, tool by tool in the order of their names.
pub fn diff(old: &Manifest, new: &Manifest) -> Vec<ToolChange> {
    let names: BTreeSet<&String> = old.tools.keys().chain(new.tools.keys()).collect();
    let mut changes = Vec::new();
    for name in names {
        match (old.tools.get(name), new.tools.get(name)) {
            (Some(before), Some(after)) => push_changes(&mut changes, before, after),
            (Some(before), None) => changes.push(ToolChange::Removed(before.clone())),
            (None, Some(after)) => changes.push(ToolChange::Added(after.clone())),
            (None, None) => {}
        }
    }
    changes
}

fn push_changes(changes: &mut Vec<ToolChange>, before: &PinnedTool, after: &PinnedTool) {
    let tool = || before.name.clone();
    // The hash is what holds a tool back, the text is what a model is shown: a difference in either is a change.
    if before.description_hash != after.description_hash || before.description != after.description {
        let (before, after) = (before.description.clone(), after.description.clone());
        changes.push(ToolChange::Description { tool: tool(), before, after });
    }
    if before.schema_hash != after.schema_hash || before.input_schema != after.input_schema {
        let (before, after) = (before.input_schema.clone(), after.input_schema.clone());
        changes.push(ToolChange::Schema { tool: tool(), before, after });
    }
    if before.annotations != after.annotations {
        let (before, after) = (before.annotations.clone(), after.annotations.clone());
        changes.push(ToolChange::Annotations { tool: tool(), before, after });
    }
}

#[cfg(test)]
mod tests;
