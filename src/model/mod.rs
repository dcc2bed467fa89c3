//! Models: what is asked, what is answered, what it costs, and the providers' adapters.
//!
//! Owns the price helpers here and nothing else: the types are core's, the trait is the actors', and each adapter is a
//! module behind a feature of its own. Never counts or retries; the accounting caller of a step does, and an agent reaches
//! a model through it alone.
//!
//! # Which model
//!
//! | module | feature | speaks to |
//! |---|---|---|
//! | [`replay`](crate::replay) | always there | a script, or recordings of a real model |
//! | `ollama` | `ollama` | a local Ollama server |
//! | `openai` | `openai` | OpenAI, and every server that speaks chat completions |
//! | `anthropic` | `anthropic` | Anthropic's Messages API |
//! | `provider` | `provider-http`, with any of them | what the adapters share, for one of your own |
//!
//! An adapter sends one request, waits for the answer, and sorts what went wrong by what it means for the books, see
//! [`ModelError`]. It neither streams nor tries again. Its keys go out over TLS, or to this machine; they are never printed
//! and stand in no error.
//!
//! # What it costs
//!
//! Money is counted in millionths of a dollar. A [`PriceTable`] has a price for each name; a name that it does not hold is
//! charged nothing, so ask [`price_for`] before a run starts:
//!
//! ```
//! use holdpoint::model::{Price, PriceTable, Usage, free, merge, parse_dollars, price_for};
//!
//! let paid = PriceTable::default().with("openai:gpt", Price { input: 2_000_000, output: 8_000_000, cached_input: 500_000 });
//! let prices = merge([free(["ollama:qwen3"]), paid]);
//! assert!(price_for(&prices, "openai:gpt").is_ok() && price_for(&prices, "openai:other").is_err());
//!
//! let usage = Usage { input_tokens: 1_000, output_tokens: 500, cached_input_tokens: 200 };
//! assert_eq!(prices.cost("openai:gpt", &usage), 1_600 + 100 + 4_000);
//! assert!(prices.cost("openai:gpt", &usage) < parse_dollars("$0.01")?);
//! # Ok::<(), holdpoint::model::DollarsError>(())
//! ```

#[cfg(feature = "anthropic")]
pub mod anthropic;
#[cfg(any(feature = "ollama", feature = "openai"))]
mod chat;
#[cfg(feature = "provider-http")]
#[cfg(test)]
mod fake;
#[cfg(all(test, any(feature = "ollama", feature = "openai", feature = "anthropic")))]
mod fixtures;
#[cfg(feature = "ollama")]
pub mod ollama;
#[cfg(feature = "openai")]
pub mod openai;
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
use chat::{Parts, write_functions};
#[cfg(any(feature = "ollama", feature = "openai", feature = "anthropic"))]
use parts::{Answered, Called, input, named, response, unsupported_block, whether_set};
pub use prices::{DollarsError, NoPrice, free, merge, parse_dollars, price_for};
