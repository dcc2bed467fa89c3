//! Models: what is asked, what is answered, what it costs, and the providers' adapters.
//!
//! Owns the price helpers here and nothing else: the types are core's, the trait is the actors', and each adapter is a
//! module behind a feature of its own. Never counts or retries; the accounting caller does, and an agent reaches a model
//! through it alone.

mod prices;

pub use holdpoint_actors::model::{Model, ModelError};
pub use holdpoint_core::model::{
    Block, Message, ModelRequest, ModelResponse, Price, PriceTable, Role, ToolUse, Usage,
};

pub use prices::{DollarsError, NoPrice, free, merge, parse_dollars, price_for};
