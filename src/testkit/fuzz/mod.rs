//! Arguments made from a schema: those that it accepts, and near misses that it does not.
//!
//! Owns the subset of JSON Schema that it makes values for, and refuses the rest by name. What it makes is the same for the
//! same seed, and every value is judged by the runtime's own acceptance before it is handed out.

mod boundary;
mod generate;
mod mutate;
mod random;

use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt as _;
use holdpoint_actors::clock::monotonic;
use holdpoint_actors::executor::Started;
use holdpoint_actors::lease::Fence;
use holdpoint_actors::session::Acceptance;
use holdpoint_core::ids::{RunId, StepId};
use holdpoint_core::json::Json;
use serde_json::Value;

use super::Failures;
use crate::gate::{Tool, ToolCall};
use generate::Generator;
use random::Random;

/// The longest piece of an argument that a failure repeats, in bytes.
const SHOWN_MAX: usize = 200;

/// How arguments are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fuzz {
    /// Selects the sequence.
    pub seed: u64,
    /// How many arguments [`Fuzz::valid`] makes, and [`Fuzz::invalid`] at most.
    pub count: usize,
    /// The most items of an array whose schema names no other number.
    pub max_items: usize,
    /// The most characters of a string whose schema names no other number.
    pub max_length: usize,
    /// How deep a schema is followed into itself: below, what is optional is left out and arrays are as short as allowed.
    pub max_depth: usize,
}

impl Default for Fuzz {
    fn default() -> Fuzz {
        Fuzz { seed: 1, count: 32, max_items: 4, max_length: 32, max_depth: 4 }
    }
}

/// Why no arguments can be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FuzzError {
    /// The runtime refuses the schema.
    #[error("make arguments: {0}")]
    Schema(String),
    /// The schema uses keywords that nothing is made for.
    #[error("make arguments: the schema at {place} uses {}, which nothing is made for", keywords.join(", "))]
    Unsupported {
        /// Where, as a JSON pointer.
        place: String,
        /// Which.
        keywords: Vec<String>,
    },
    /// Nothing fits the schema, or nothing that is made does.
    #[error("make arguments: the schema at {place} {why}")]
    NoValue {
        /// Where, as a JSON pointer.
        place: String,
        /// Why.
        why: String,
    },
}

impl Fuzz {
    /// Makes `count` arguments that `schema` accepts.
    ///
    /// # Errors
    /// When the schema is refused, uses what nothing is made for, or accepts nothing that is made.
    pub fn valid(&self, schema: &Json) -> Result<Vec<Vec<u8>>, FuzzError> {
        let (document, judge) = compiled(schema)?;
        let mut made = Generator::new(&document, self, Random::new(self.seed));
        (0..self.count).map(|_| one_valid(&mut made, &judge).map(|value| text(&value))).collect()
    }

    /// Makes up to `count` arguments that are refused: first what the runtime refuses before it looks at a schema (too deep, a
    /// key twice, bytes that are no text, half a surrogate pair, cut off, two values), then valid arguments with one change
    /// that the schema refuses.
    ///
    /// # Errors
    /// As [`Fuzz::valid`].
    pub fn invalid(&self, schema: &Json) -> Result<Vec<Vec<u8>>, FuzzError> {
        let (document, judge) = compiled(schema)?;
        let mut made = Generator::new(&document, self, Random::new(self.seed ^ 0x5bd1_e995));
        let first = one_valid(&mut made, &judge)?;
        let mut out = boundary::cases(&document, &first);
        let mut seen: HashSet<Vec<u8>> = out.iter().cloned().collect();
        // Until there are enough, or a valid value brings nothing new.
        while out.len() < self.count {
            let valid = one_valid(&mut made, &judge)?;
            let mut misses = mutate::near_misses(&mut made, &valid);
            made.random.shuffle(&mut misses);
            let before = out.len();
            for miss in misses.iter().map(text) {
                if out.len() < self.count && !judge.accepts(&miss) && seen.insert(miss.clone()) {
                    out.push(miss);
                }
            }
            if out.len() == before {
                break;
            }
        }
        Ok(out)
    }

    /// Puts what is made for each tool's schema through the runtime's acceptance. What is valid must pass and come back from the
    /// tool without a panic, within its timeout; a tool may refuse it all the same, because a schema does not say what a tool
    /// accepts. What is invalid must be refused, and never reaches the tool.
    pub async fn check(&self, tools: &[Arc<dyn Tool>]) -> Failures {
        let mut failures = Failures::default();
        for tool in tools {
            self.check_one(tool, &mut failures).await;
        }
        failures
    }

    async fn check_one(&self, tool: &Arc<dyn Tool>, failures: &mut Failures) {
        let spec = tool.spec();
        let made = Acceptance::of(vec![Arc::clone(tool)]).map_err(|error| error.to_string()).and_then(
            |acceptance| {
                let made = self
                    .valid(&spec.input_schema)
                    .and_then(|valid| Ok((valid, self.invalid(&spec.input_schema)?)));
                made.map(|(valid, invalid)| (acceptance, valid, invalid))
                    .map_err(|error| format!("{}: {error}", spec.name))
            },
        );
        let (acceptance, valid, invalid) = match made {
            Ok(made) => made,
            Err(why) => return failures.add(why),
        };
        for (at, args) in valid.iter().enumerate() {
            let accepted = match acceptance.accept(&spec.name, args) {
                Ok((_, accepted)) => accepted,
                Err(why) => {
                    failures.add(format!("{} refused valid arguments {}: {why}", spec.name, shown(args)));
                    continue;
                }
            };
            let call = ToolCall {
                run_id: RunId::from("testkit-fuzz"),
                step_id: StepId::from(format!("testkit-fuzz-{at}")),
                args: accepted,
                timeout: spec.timeout,
                fence: Fence::stamped(monotonic(), spec.timeout.saturating_mul(2)),
                started: Started::default(),
            };
            let called = AssertUnwindSafe(async { tool.call(call).await }).catch_unwind();
            if let Ok(Err(panic)) = tokio::time::timeout(spec.timeout, called).await {
                let said = holdpoint_actors::panic_text(&*panic);
                failures.add(format!("{} panicked on {}: {said}", spec.name, shown(args)));
            }
        }
        for args in invalid.iter().filter(|args| acceptance.accept(&spec.name, args).is_ok()) {
            failures.add(format!("{} accepted invalid arguments {}", spec.name, shown(args)));
        }
    }
}

/// The runtime's judgement of arguments under one schema.
struct Judge(holdpoint_actors::schema::ArgumentSchema);

impl Judge {
    fn accepts(&self, args: &[u8]) -> bool {
        Json::checked(args).is_ok_and(|args| self.0.check(&args).is_ok())
    }
}

fn compiled(schema: &Json) -> Result<(Value, Judge), FuzzError> {
    let judge = holdpoint_actors::schema::ArgumentSchema::compile(schema).map_err(FuzzError::Schema)?;
    let document = schema.decode().map_err(|error| FuzzError::Schema(error.to_string()))?;
    Ok((document, Judge(judge)))
}

/// One value that the schema accepts. What is made and not accepted shows a schema whose keywords limit each other in ways
/// that are not looked at.
fn one_valid(made: &mut Generator<'_>, judge: &Judge) -> Result<Value, FuzzError> {
    let value = made.value()?;
    if judge.accepts(&text(&value)) {
        return Ok(value);
    }
    let why = format!("refuses what is made for it: {}", shown(&text(&value)));
    Err(FuzzError::NoValue { place: "/".to_owned(), why })
}

fn text(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

fn shown(args: &[u8]) -> String {
    let text = String::from_utf8_lossy(args);
    holdpoint_core::sanitize::truncate(&holdpoint_core::sanitize::sanitize(&text), SHOWN_MAX).into_owned()
}
