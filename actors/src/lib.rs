//! Who does it: Holdpoint's supervised actors over one SQLite file.

pub mod approval;
pub mod clock;
pub mod connection;
pub mod executor;
pub mod lease;
pub mod policy;
pub mod session;
pub mod store;
pub mod supervisor;
