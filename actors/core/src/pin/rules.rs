//! The operator's rules: what each tool may do, and what a model may see of it.
//!
//! Owns one rule and its JSON form, which the rules file and the proxy's configuration share; the configuration adds
//! fields of its own, so reading a rule hands unknown members back instead of dropping them. A tool without a rule
//! is not offered. Never reads a file and never judges a rule against a tool: that is [`super::load`]'s work.

use std::collections::BTreeMap;

use thiserror::Error;

use super::manifest::Manifest;
use super::scan;
use crate::duration::{DurationError, DurationNanos, parse_go_duration};
use crate::json::{CheckError, Json, ObjectWriter, check_text};

/// Rules by the server's own names for its tools.
pub type Rules = BTreeMap<String, Rule>;

/// What the operator says about one tool.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rule {
    /// The class, as it is written. What is no class is refused when the tool is checked, not before: one misspelt
    /// rule must not close the others.
    pub side_effect: String,
    /// The bound of one call; absent or zero, the server's default counts. A negative one is never read, and is none
    /// where somebody sets it.
    pub timeout: Option<DurationNanos>,
    /// Whether success completes the run.
    pub terminal: bool,
    /// What a model is shown instead of the server's description.
    pub description: Option<String>,
    /// Parameters that a model may not set, in the operator's order.
    pub deny: Vec<String>,
    /// Parameters that the operator sets.
    pub fixed: BTreeMap<String, Json>,
    /// The name that a model is shown instead of `<server>_<tool>`.
    pub rename: Option<String>,
    /// Whether the tool is offered although its hints contradict the class.
    pub allow_hint_mismatch: bool,
}

/// Why a rule can't be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RuleError {
    /// It is not an object.
    #[error("a rule is a JSON object: {0}")]
    Json(#[from] scan::Error),
    /// A field that no rule has; a misspelt `deny` must not be ignored.
    #[error("unknown field {0:?}")]
    UnknownField(String),
    /// A field of the wrong kind.
    #[error("{field} must be {kind}")]
    Field {
        /// The field.
        field: &'static str,
        /// What it must be.
        kind: &'static str,
    },
    /// A timeout that is no duration.
    #[error("timeout: {0}")]
    Timeout(#[from] DurationError),
    /// A timeout below zero: whoever wrote it meant something, and it isn't the server's default.
    #[error("timeout: a duration can't be negative")]
    NegativeTimeout,
}

/// Why a rules file can't be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Error {
    /// It is not JSON, or could be read in two ways.
    #[error("rules: not usable JSON: {0}")]
    Unusable(#[from] CheckError),
    /// It is not an object of rules.
    #[error("rules: {0}")]
    Json(#[from] scan::Error),
    /// One rule can't be read.
    #[error("rules: tool {tool:?}: {error}")]
    Rule {
        /// The tool.
        tool: String,
        /// Why.
        error: RuleError,
    },
}

impl Rule {
    /// Reads a rule, and gives the members that no rule has, by key and as they are written.
    ///
    /// `null` counts as absent.
    ///
    /// # Errors
    /// A value of the wrong kind, and a timeout that is no duration or a negative one.
    pub fn read(text: &str) -> Result<(Self, BTreeMap<String, &str>), RuleError> {
        let mut rule = Self::default();
        let mut others = BTreeMap::new();
        for member in scan::members(text)? {
            let value = member.value;
            if value == "null" && FIELDS.contains(&&*member.key) {
                continue;
            }
            match &*member.key {
                "side_effect" => rule.side_effect = text_of("side_effect", value)?,
                "timeout" => rule.timeout = timeout(&text_of("timeout", value)?)?,
                "terminal" => rule.terminal = truth_of("terminal", value)?,
                "description" => rule.description = filled(text_of("description", value)?),
                "deny" => rule.deny = names(value)?,
                "fixed" => {
                    let kind = |_| RuleError::Field { field: "fixed", kind: "an object of JSON values" };
                    let members = scan::members(value).map_err(kind)?;
                    let fixed =
                        |member: scan::Member<'_>| (member.key.into_owned(), Json::trusted(member.value));
                    rule.fixed = members.into_iter().map(fixed).collect();
                }
                "rename" => rule.rename = filled(text_of("rename", value)?),
                "allow_hint_mismatch" => rule.allow_hint_mismatch = truth_of("allow_hint_mismatch", value)?,
                _ => {
                    others.insert(member.key.into_owned(), value);
                }
            }
        }
        Ok((rule, others))
    }

    /// Gives the parameters that are hidden from a model: the denied as listed, then the fixed by name.
    pub fn hidden(&self) -> Vec<&str> {
        self.deny.iter().chain(self.fixed.keys()).map(String::as_str).collect()
    }
}

const FIELDS: &[&str] =
    &["side_effect", "timeout", "terminal", "description", "deny", "fixed", "rename", "allow_hint_mismatch"];

/// Reads a rules file: an object of rules, each under the server's own name for the tool.
///
/// # Errors
/// JSON that could be read in two ways; a field that no rule has; a rule that can't be read, with its tool.
pub fn parse(bytes: &[u8]) -> Result<Rules, Error> {
    let text = check_text(bytes)?;
    let mut rules = Rules::new();
    for member in scan::members(text)? {
        let named = |error| Error::Rule { tool: member.key.to_string(), error };
        let (rule, others) = Rule::read(member.value).map_err(named)?;
        if let Some((field, _)) = others.into_iter().next() {
            return Err(named(RuleError::UnknownField(field)));
        }
        rules.insert(member.key.into_owned(), rule);
    }
    Ok(rules)
}

/// Writes rules for everything in a manifest, for an operator to edit: every tool in the strictest class, so that
/// nothing runs before somebody has said what it does. Hints are not used: a server doesn't classify itself.
pub fn scaffold(manifest: &Manifest) -> String {
    let mut out = ObjectWriter::new();
    for name in manifest.tools.keys() {
        out.object(name, |out| {
            out.str("side_effect", "destructive").str("timeout", "30s");
        });
    }
    let compact = out.finish();
    let mut text = scan::indented(&compact).unwrap_or(compact);
    text.push('\n');
    text
}

fn text_of(field: &'static str, value: &str) -> Result<String, RuleError> {
    let kind = if field == "timeout" { "a string such as \"5s\"" } else { "a string" };
    scan::text(value).ok_or(RuleError::Field { field, kind })
}

/// Zero stays what it is in the reference: no timeout of the rule's own.
fn timeout(written: &str) -> Result<Option<DurationNanos>, RuleError> {
    if written.is_empty() {
        return Ok(None);
    }
    let timeout = parse_go_duration(written)?;
    if timeout.as_nanos() < 0 { Err(RuleError::NegativeTimeout) } else { Ok(Some(timeout)) }
}

fn truth_of(field: &'static str, value: &str) -> Result<bool, RuleError> {
    scan::truth(value).ok_or(RuleError::Field { field, kind: "true or false" })
}

fn filled(text: String) -> Option<String> {
    if text.is_empty() { None } else { Some(text) }
}

fn names(value: &str) -> Result<Vec<String>, RuleError> {
    let kind = || RuleError::Field { field: "deny", kind: "a list of names" };
    scan::items(value)
        .map_err(|_| kind())?
        .into_iter()
        .map(|item| scan::text(item).ok_or_else(kind))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn every_field_of_a_rules_file_reaches_its_rule() {
        let rules = parse(
            br#"{"write_file":{"side_effect":"local_mutation","timeout":"1m5s","terminal":true,"description":"W.",
                "deny":["force","mode"],"fixed":{"root":"/srv","n":1.50e2,"none":null},"rename":"write",
                "allow_hint_mismatch":true},"read_file":{"side_effect":"read_only","timeout":null,"rename":""}}"#,
        )
        .unwrap();
        let write = &rules["write_file"];
        assert_eq!(write.side_effect, "local_mutation");
        assert_eq!(write.timeout.and_then(DurationNanos::to_std), Some(Duration::from_secs(65)));
        assert!(write.terminal && write.allow_hint_mismatch);
        assert_eq!(write.description.as_deref(), Some("W."));
        assert_eq!(write.rename.as_deref(), Some("write"));
        assert_eq!(write.fixed["n"].as_str(), "1.50e2", "a fixed number keeps its text");
        assert_eq!(write.fixed["none"].as_str(), "null");
        assert_eq!(write.hidden(), ["force", "mode", "n", "none", "root"]);
        assert_eq!(rules["read_file"], Rule { side_effect: "read_only".to_owned(), ..Rule::default() });
    }

    #[test]
    fn what_a_rules_file_does_not_know_is_refused_and_the_tool_is_named() {
        for (rule, reason) in [
            (r#"{"side_effect":"read_only","denny":["x"]}"#, "denny"),
            (r#"{"timeout":"5"}"#, "timeout"),
            (r#"{"timeout":5}"#, "such as \"5s\""),
            (r#"{"timeout":"-1s"}"#, "timeout: a duration can't be negative"),
            (r#"{"timeout":"-1ns"}"#, "timeout: a duration can't be negative"),
            (r#"{"terminal":"yes"}"#, "terminal"),
            (r#"{"deny":"x"}"#, "deny"),
            (r#"{"deny":[1]}"#, "deny"),
            (r#"{"fixed":[]}"#, "fixed"),
            (r#"{"outcome":"allow"}"#, "outcome"),
            ("[]", "object"),
        ] {
            let error = parse(format!(r#"{{"t1":{rule}}}"#).as_bytes()).unwrap_err().to_string();
            assert!(error.contains("\"t1\"") && error.contains(reason), "{rule}: {error}");
        }
        for text in ["", "[]", "{} {}", r#"{"a":{},"a":{}}"#, "{\"a\":"] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn a_timeout_of_zero_is_read_and_is_not_negative_either_way() {
        for zero in ["0s", "-0s", "0"] {
            let (rule, _) = Rule::read(&format!(r#"{{"timeout":"{zero}"}}"#)).unwrap();
            assert_eq!(rule.timeout, Some(DurationNanos::from_nanos(0)), "{zero}");
        }
    }

    #[test]
    fn a_configuration_gets_the_members_that_no_rule_has() {
        let (rule, others) =
            Rule::read(r#"{"side_effect":"destructive","outcome":"deny","repeat_window": "5m","x":[1, 2]}"#)
                .unwrap();
        assert_eq!(rule.side_effect, "destructive");
        let others: Vec<_> = others.into_iter().collect();
        assert_eq!(
            others,
            [
                ("outcome".to_owned(), "\"deny\""),
                ("repeat_window".to_owned(), "\"5m\""),
                ("x".to_owned(), "[1, 2]")
            ]
        );
    }

    #[test]
    fn a_scaffold_names_every_tool_and_opens_none() {
        let manifest =
            Manifest::parse(br#"{"tools":{"b":{"annotations":{"readOnlyHint":true}},"a":{}}}"#).unwrap();
        let text = scaffold(&manifest);
        let rules = parse(text.as_bytes()).unwrap();
        assert_eq!(rules.keys().collect::<Vec<_>>(), ["a", "b"]);
        assert!(rules.values().all(|rule| rule.side_effect == "destructive" && rule.timeout.is_some()));
        assert!(text.starts_with("{\n  \"a\": {\n    \"side_effect\": \"destructive\",\n"));
    }
}
