//! The proxy's rules across calls, as one pure function over a view of its index.
//!
//! Owns the order of the rules. Never reads the index: the store builds the view, outside and, to confirm, inside the
//! transaction that begins a call.

use crate::attempt::AttemptOutcome;
use crate::ids::{RequestKey, RunId, SessionName};
use crate::time::UnixNanos;
use crate::tool::SideEffect;

/// A decision that must still hold inside the transaction that acts on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {}

/// A write to the proxy's index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IndexWrite {
    /// A row for a new run of the key, closing the key's open row.
    Open {
        /// The proxy's session.
        session: SessionName,
        /// The request's key, or `invalid:<run id>`.
        key: RequestKey,
        /// The registered tool.
        tool: String,
        /// Its class.
        side_effect: SideEffect,
        /// The run.
        run_id: RunId,
        /// When.
        at: UnixNanos,
        /// The row to close.
        closes: Option<i64>,
    },
    /// A row whose run never began is begun: if a scan settled it meanwhile, it is unsettled.
    Reopen {
        /// The run.
        run_id: RunId,
    },
    /// A run was seen finished.
    Settle {
        /// The run.
        run_id: RunId,
        /// What its last attempt came to.
        outcome: AttemptOutcome,
        /// When it was seen.
        at: UnixNanos,
    },
    /// A row whose run has not begun is settled with no attempt, unless it begins meanwhile.
    SettleEmpty {
        /// The run.
        run_id: RunId,
        /// When it was seen.
        at: UnixNanos,
    },
}
