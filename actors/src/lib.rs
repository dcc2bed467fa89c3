//! Who does it: Holdpoint's supervised actors over one SQLite file.
//!
//! Core says what may happen; the actors here make it happen, at most once, and record it. The store is the truth and
//! actors are caches: one that dies is restarted from its arguments and the disk. Start reading at [`session`], which
//! tells the story of one call from top to bottom.

#[cfg(not(unix))]
compile_error!(
    "Holdpoint needs Unix file modes and process groups: build it on Linux (supported), or its core and store on macOS"
);

pub mod address;
pub mod approval;
pub mod clock;
pub mod connection;
pub mod executor;
pub mod faults;
pub mod lease;
pub mod model;
pub mod policy;
pub mod recheck;
pub mod schema;
pub mod session;
pub mod store;
pub mod supervisor;
pub mod tree;

use std::any::Any;

use ractor::RpcReplyPort;

/// Answers, whether or not somebody still listens: an asker that gave up has its own deadline.
pub(crate) fn answer<R: Send + 'static>(reply: RpcReplyPort<R>, answer: R) {
    if reply.send(answer).is_err() {
        tracing::debug!("an answer came too late for its asker");
    }
}

/// What a panic said.
pub fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message").to_owned()
}
