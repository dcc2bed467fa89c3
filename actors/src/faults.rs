//! Ways for an actor to end, and places in a call where a test lets something happen.
//!
//! Without the `faults` feature no value of [`Failure`] exists, so no message that carries one can be sent, and
//! [`Hooks`] is an empty type whose method does nothing, so that a session reads the same in both.

pub mod process;

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

/// How far a session has come with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Point {
    /// The policy is about to be asked.
    Judging,
    /// The call's start is about to be committed.
    Starting,
    /// Its start is committed, and it is about to be handed to the executor.
    Started,
    /// The executor has answered, and the outcome is about to be recorded.
    Answered,
}

#[cfg(feature = "faults")]
impl Point {
    /// Its name among the points at which a whole process can be ended.
    const fn name(self) -> &'static str {
        match self {
            Point::Judging => "session.judging",
            Point::Starting => "session.starting",
            Point::Started => "session.started",
            Point::Answered => "session.answered",
        }
    }
}

#[cfg(feature = "faults")]
mod armed {
    use std::collections::HashMap;
    use std::fmt;
    use std::sync::{Arc, Mutex};

    use futures_util::future::BoxFuture;
    use holdpoint_core::ids::RunId;

    use super::Point;
    use crate::clock::lock;

    type Hook = Box<dyn FnOnce() -> BoxFuture<'static, ()> + Send>;

    /// What is to happen, once each, when a run's call comes to a point.
    #[derive(Clone, Default)]
    pub struct Hooks(Arc<Mutex<HashMap<(Point, RunId), Hook>>>);

    impl fmt::Debug for Hooks {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_set().entries(lock(&self.0).keys()).finish()
        }
    }

    impl Hooks {
        /// Has `hook` run, and waited for, when the call of `run` is next at `point`.
        pub fn once<F>(&self, point: Point, run: RunId, hook: impl FnOnce() -> F + Send + 'static)
        where
            F: Future<Output = ()> + Send + 'static,
        {
            lock(&self.0).insert((point, run), Box::new(move || Box::pin(hook())));
        }

        pub(crate) async fn at(&self, point: Point, run: &RunId) {
            super::process::reach(point.name());
            let hook = lock(&self.0).remove(&(point, run.clone()));
            if let Some(hook) = hook {
                hook().await;
            }
        }
    }
}

#[cfg(feature = "faults")]
pub use armed::Hooks;

/// Nothing happens.
#[cfg(not(feature = "faults"))]
#[derive(Debug, Clone, Default)]
pub struct Hooks(());

#[cfg(not(feature = "faults"))]
impl Hooks {
    pub(crate) async fn at(&self, _point: Point, _run: &holdpoint_core::ids::RunId) {}
}
