//! Compiling a tool's schema, and judging arguments by it.
//!
//! Owns the settings that make a stranger's schema safe to run: no reference leaves it, patterns run in linear time,
//! formats mean the same in every draft, and a panic in the validator is a refusal.

use std::fmt;
use std::panic::AssertUnwindSafe;

use holdpoint_core::json::Json;
use holdpoint_core::pin::canonical::canonical;
use holdpoint_core::schema::cost::{self, Cost};
use holdpoint_core::schema::object::ObjectSchema;
use holdpoint_core::schema::self_contained;
use jsonschema::{Draft, PatternOptions, Retrieve, Uri, Validator};
use serde_json::Value;

/// A compiled pattern's size, in bytes.
const PATTERN_SIZE_MAX: usize = 1 << 20;

/// Complaints that a refusal lists; more help nobody.
const COMPLAINTS_MAX: usize = 3;

/// A compiled schema.
pub struct ArgumentSchema {
    validator: Validator,
    cost: Cost,
}

impl fmt::Debug for ArgumentSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArgumentSchema").finish_non_exhaustive()
    }
}

struct Deny;

impl Retrieve for Deny {
    fn retrieve(&self, uri: &Uri<String>) -> Result<Value, Box<dyn std::error::Error + Send + Sync>> {
        Err(format!("{uri} is outside the schema; write what it refers to inside").into())
    }
}

impl ArgumentSchema {
    /// Compiles `schema`.
    ///
    /// # Errors
    /// When it is no JSON that passes the boundary, reaches outside itself, or is no schema of a known draft.
    pub fn compile(schema: &Json) -> Result<ArgumentSchema, String> {
        let canonical = canonical(schema.as_str()).map_err(|error| error.to_string())?;
        let document = ObjectSchema::read_untyped(&canonical).map_err(|error| error.to_string())?;
        self_contained::check(&document).map_err(|error| error.to_string())?;
        let cost = cost::bound(&document).map_err(|error| error.to_string())?;
        let value: Value = schema.decode().map_err(|error| error.to_string())?;
        let build = || {
            jsonschema::options()
                .with_retriever(Deny)
                .with_pattern_options(
                    PatternOptions::regex().size_limit(PATTERN_SIZE_MAX).dfa_size_limit(PATTERN_SIZE_MAX),
                )
                .should_validate_formats(false)
                .build(&value)
        };
        let validator = std::panic::catch_unwind(AssertUnwindSafe(build))
            .map_err(|panic| format!("the schema could not be compiled: {}", crate::panic_text(&*panic)))?
            .map_err(|error| format!("the schema does not compile: {}", error.masked()))?;
        match validator.draft() {
            Draft::Draft4 | Draft::Draft6 | Draft::Draft7 | Draft::Draft201909 | Draft::Draft202012 => {
                Ok(ArgumentSchema { validator, cost })
            }
            _ => Err("the schema names a draft that is not known; use 2020-12 or an earlier one".to_owned()),
        }
    }

    /// Judges arguments that passed the boundary. Complaints never quote a value.
    ///
    /// # Errors
    /// What does not fit, and where.
    pub fn check(&self, args: &Json) -> Result<(), String> {
        if !self.cost.admits_text(args.as_str()) {
            return Err("checking the arguments would take too long: send fewer or less deeply nested ones"
                .to_owned());
        }
        let value: Value = args.decode().map_err(|error| error.to_string())?;
        let judge = || {
            if self.validator.is_valid(&value) {
                return Ok(());
            }
            let complaints: Vec<String> = self
                .validator
                .iter_errors(&value)
                .take(COMPLAINTS_MAX)
                .map(|error| {
                    let path = error.instance_path().to_string();
                    let place = if path.is_empty() { "the arguments".to_owned() } else { path };
                    format!("at {place}: {}", error.masked())
                })
                .collect();
            Err(complaints.join("; "))
        };
        judged(judge)
    }
}

/// What the validator says; where it panics, the arguments are refused.
fn judged(judge: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    std::panic::catch_unwind(AssertUnwindSafe(judge))
        .unwrap_or_else(|_| Err("the arguments could not be judged by the schema".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    // No arguments are known that make the validator panic, so what stands in for it does.
    #[test]
    fn a_panic_of_the_validator_refuses_the_arguments() {
        let refused = judged(|| panic!("a bug"));
        assert_eq!(refused, Err("the arguments could not be judged by the schema".to_owned()));
    }
}
