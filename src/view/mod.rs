//! What an operator's surface shows of a record, and what it may decide.
//!
//! Owns the read models (a run, its steps, what waits for a person), the bound on how much of one value is shown, and
//! the one way in which a person's decision reaches the record: bound to the hash of what they were shown. The
//! commands, the [approver](crate::approver) and a front end of your own all go through [`Records`]. Never resumes a
//! run, and never waits on an actor: everything here blocks.
//!
//! ```no_run
//! use holdpoint::view::{Error, Records};
//!
//! # fn example() -> Result<(), Error> {
//! let mut records = Records::open_to_decide("agent.db")?;
//! let waiting = records.pending_approval(&"invoice-7".into(), None)?;
//! println!("{} asks for {}", waiting.approval.run_id, waiting.approval.kind);
//! match records.approve_shown(&waiting.approval, "ada", "looks right") {
//!     Ok(_events) => println!("granted: it runs when the run is resumed"),
//!     Err(Error::Changed(_)) => println!("it is not what was shown any more: look again"),
//!     Err(error) => return Err(error),
//! }
//! # Ok(()) }
//! ```

mod bound;
mod error;
pub mod fields;
mod line;
pub mod read;
mod records;
mod shapes;

pub use bound::{STRING_BYTES_MAX, STRING_ENDS_BYTES, bound_string, bound_value, bounded};
pub use error::{CANDIDATES_MAX, Error};
pub use holdpoint_actors::store::{Answer, Fault, ListedRun, OpenError, Page, ReadError, Reader, Verdict};
pub use line::{counted, line};
pub use read::{Detail, Waiting, attempt_came_to, careful};
pub use records::Records;
pub use shapes::{ApprovalView, LateOutcome, RunSummary, StepSummary, Usage};
