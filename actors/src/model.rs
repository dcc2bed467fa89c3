//! Models as the runtime calls them: one request, one answer, and what an attempt without a usable answer means.
//!
//! Owns the trait and its endings. Never counts, retries or records: the accounting caller of a step does, and it is the
//! only handle that an agent has.

use std::time::Duration;

use async_trait::async_trait;
use holdpoint_core::model::{ModelRequest, ModelResponse, Usage};

/// A provider's adapter. It neither streams nor retries.
#[async_trait]
pub trait Model: Send + Sync + 'static {
    /// The name under which it is accounted for and priced.
    fn name(&self) -> &str;

    /// Sends one request and waits for its answer. Dropped while it waits, the attempt counts as sent without an answer.
    ///
    /// # Errors
    /// A [`ModelError`], by what it means for the books.
    async fn generate(&self, request: &ModelRequest) -> Result<ModelResponse, ModelError>;
}

/// Why an attempt has no usable answer, by what it means for the books and for another attempt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// The provider did not serve it and may serve it later: nothing is charged, and it may be tried again.
    #[error("transient: {why}")]
    Transient {
        /// What happened.
        why: String,
        /// How long the provider asks to be left alone.
        retry_after: Option<Duration>,
    },
    /// It was sent and no answer came: it may have been served and billed, so an estimate is charged. It may be tried again.
    #[error("{why}")]
    NoAnswer {
        /// What happened.
        why: String,
    },
    /// The provider served and billed it, and the answer cannot be used: what it reported is charged. Not tried again.
    #[error("{why}")]
    Served {
        /// What the provider reported.
        usage: Usage,
        /// What is wrong with the answer.
        why: String,
    },
    /// The provider served it and reported a usage that cannot be charged: an estimate is. Not tried again.
    #[error("{why}")]
    UnusableUsage {
        /// What it reported.
        why: String,
    },
    /// It was refused, or could not be sent: nothing is charged and another attempt would fare alike.
    #[error("{why}")]
    Permanent {
        /// What happened.
        why: String,
    },
}
