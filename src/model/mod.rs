//! Models: what is asked, what is answered, what it costs, and the providers' adapters.
//!
//! Owns the price helpers here and nothing else: the types are core's, the trait is the actors', and each adapter is a
//! module behind a feature of its own. Never counts or retries; the accounting caller does, and an agent reaches a model
//! through it alone.

#[cfg(feature = "provider-http")]
#[cfg(test)]
mod fake;
#[cfg(feature = "ollama")]
pub mod ollama;
#[cfg(any(feature = "ollama", feature = "openai", feature = "anthropic"))]
mod parts;
mod prices;
#[cfg(feature = "provider-http")]
pub mod provider;

pub use holdpoint_actors::model::{Model, ModelError};
pub use holdpoint_core::model::{
    Block, Message, ModelRequest, ModelResponse, Price, PriceTable, Role, ToolUse, Usage,
};

#[cfg(any(feature = "ollama", feature = "openai"))]
use parts::write_functions;
#[cfg(any(feature = "ollama", feature = "openai", feature = "anthropic"))]
use parts::{Parts, id_or_made_up, input, response, unsupported_block, whether_set};
pub use prices::{DollarsError, NoPrice, free, merge, parse_dollars, price_for};
