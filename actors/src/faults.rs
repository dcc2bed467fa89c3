//! Ways for an actor to end, for the chaos tests.
//!
//! Without the `faults` feature no value of [`Failure`] exists, so no message that carries one can be sent.

use ractor::ActorProcessingErr;

/// How an actor is to end.
#[cfg(feature = "faults")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// By a panic in its handler.
    Panic,
    /// By an error from its handler.
    Error,
}

/// How an actor is to end: in this build, not at all.
#[cfg(not(feature = "faults"))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {}

impl Failure {
    /// Ends the actor that handles this.
    ///
    /// # Errors
    /// Always, unless it panics.
    pub fn happen(self) -> Result<(), ActorProcessingErr> {
        #[cfg(feature = "faults")]
        match self {
            Failure::Panic => panic!("a fault was asked for"),
            Failure::Error => Err("a fault was asked for".into()),
        }
        #[cfg(not(feature = "faults"))]
        match self {}
    }
}
