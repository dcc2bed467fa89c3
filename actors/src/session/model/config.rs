//! Which model a gate's steps may ask, at which prices, and how patiently.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use holdpoint_core::model::PriceTable;

use crate::model::Model;

/// How long one attempt may take, unless told otherwise.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);
/// The wait after a first failed attempt, unless told otherwise.
const BACKOFF: Duration = Duration::from_secs(1);
/// The longest wait that a provider may ask for, unless told otherwise.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

/// A model and the rules under which it is asked.
#[derive(Clone)]
pub struct ModelConfig {
    /// The model.
    pub model: Arc<dyn Model>,
    /// What it costs. A model without a price costs nothing on the books.
    pub prices: PriceTable,
    /// How long one attempt may take: two minutes unless set.
    pub call_timeout: Duration,
    /// How often a failed attempt is repeated where that may help: not at all unless set.
    pub max_retries: u32,
    /// The wait after the first attempt, which doubles with each: one second unless set.
    pub backoff: Duration,
    /// The longest wait that a provider may ask for: one minute unless set. Asked for a longer one, nobody waits.
    pub max_retry_after: Duration,
    /// Whether a model without a price is refused where the run limits cost: yes unless set. A price of zero is a price.
    pub refuse_unpriced: bool,
}

impl ModelConfig {
    /// `model` without prices or retries.
    pub fn new(model: Arc<dyn Model>) -> ModelConfig {
        ModelConfig {
            model,
            prices: PriceTable::default(),
            call_timeout: CALL_TIMEOUT,
            max_retries: 0,
            backoff: BACKOFF,
            max_retry_after: MAX_RETRY_AFTER,
            refuse_unpriced: true,
        }
    }

    /// The same with these prices.
    #[must_use]
    pub fn prices(mut self, prices: PriceTable) -> ModelConfig {
        self.prices = prices;
        self
    }

    /// The same with up to `retries` further attempts.
    #[must_use]
    pub fn retries(mut self, retries: u32) -> ModelConfig {
        self.max_retries = retries;
        self
    }

    pub(in crate::session) fn check(&self) -> Result<(), String> {
        if self.model.name().is_empty() {
            return Err("a model needs a name to be accounted for".to_owned());
        }
        if self.call_timeout.is_zero() {
            return Err("a model call needs a timeout".to_owned());
        }
        Ok(())
    }
}

impl fmt::Debug for ModelConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelConfig")
            .field("model", &self.model.name())
            .field("prices", &self.prices)
            .field("call_timeout", &self.call_timeout)
            .field("max_retries", &self.max_retries)
            .field("backoff", &self.backoff)
            .field("max_retry_after", &self.max_retry_after)
            .field("refuse_unpriced", &self.refuse_unpriced)
            .finish()
    }
}
