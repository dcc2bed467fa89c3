//! Tests of the store: real files, a real writer under the real supervisor, faults at named points.

mod batches;
mod decisions;
mod files;
mod guards;
mod pages;
mod restarts;
mod schema;
mod signatures;
mod stored_forms;
pub(super) mod support;
mod trouble;
