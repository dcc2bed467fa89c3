//! What asking a model fails with, and what whoever decides a step fails with.
//!
//! Owns the way from an error to the reason that a run ends with.

use std::error::Error;
use std::fmt;

use holdpoint_core::run::Reason;

use crate::session::SessionError;

/// Why there is no answer from the model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The gate has no model.
    #[error("ask a model: the runtime was started without one")]
    NoModel,
    /// A limit of the run forbids it. Nothing was sent.
    #[error("{reason}: {detail}")]
    Limit {
        /// The reason that the run ends with.
        reason: Reason,
        /// In words.
        detail: String,
    },
    /// No attempt gave an answer that can be used.
    #[error("model unavailable after {attempts} attempt(s): {last}")]
    Unavailable {
        /// How many attempts were made.
        attempts: u32,
        /// What came of the last.
        last: String,
    },
    /// The session can't go on, or the record can't be reached.
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// Why whoever decides a step could not.
///
/// Made from any error by `?`, and from words by [`AgentError::msg`]. An error that a [`CallError`] caused keeps it, however
/// it is wrapped, so that a limit ends the run as that limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentError {
    text: String,
    call: Option<CallError>,
}

impl AgentError {
    /// Says in words what went wrong.
    pub fn msg(text: impl Into<String>) -> AgentError {
        AgentError { text: text.into(), call: None }
    }

    /// The reason with which the run ends.
    pub fn reason(&self) -> Reason {
        match &self.call {
            Some(CallError::Limit { reason, .. }) => *reason,
            Some(CallError::Unavailable { .. }) => Reason::ModelUnavailable,
            Some(CallError::NoModel | CallError::Session(_)) | None => Reason::AgentError,
        }
    }

    /// The model's part in it, when it has one.
    pub fn call(&self) -> Option<&CallError> {
        self.call.as_ref()
    }

    /// What keeps the session itself from going on, so that the run is not to be failed for it: its lease is lost, or the
    /// record can't be reached.
    pub(in crate::session) fn of_session(&self) -> Option<&SessionError> {
        match &self.call {
            Some(CallError::Session(error @ (SessionError::LeaseLost(_) | SessionError::Unavailable(_)))) => {
                Some(error)
            }
            Some(
                CallError::Session(_)
                | CallError::NoModel
                | CallError::Limit { .. }
                | CallError::Unavailable { .. },
            )
            | None => None,
        }
    }
}

impl fmt::Display for AgentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl<E: Error + 'static> From<E> for AgentError {
    fn from(error: E) -> AgentError {
        let mut text = error.to_string();
        let mut cause: Option<&(dyn Error + 'static)> = Some(&error);
        let mut call = None;
        while let Some(error) = cause {
            let words = error.to_string();
            // Many errors repeat their cause in their own words.
            if !text.contains(&words) {
                text = format!("{text}: {words}");
            }
            call = call.or_else(|| error.downcast_ref::<CallError>().cloned());
            cause = error.source();
        }
        AgentError { text, call }
    }
}
