//! Approvals: a person's durable, hash-bound answer to one exact request.
//!
//! Owns the status machine, the hash and the stored form. Never reads a clock: expiry is judged against a time given.

use std::fmt;
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::hash;
use crate::ids::{ApprovalHash, ApprovalId, RunId, StepId};
use crate::json::{self, Json, ObjectWriter};
use crate::time::UnixNanos;
use crate::tool::ToolRequest;

/// The approval kind that asks whether a call whose outcome is unknown runs again.
pub const INTERRUPTED_SIDE_EFFECT: &str = "interrupted_side_effect";

/// The reason that such an approval gives.
pub const INTERRUPTED_REASON: &str = "interrupted while executing; outcome unknown";

/// Where an approval stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ApprovalStatus {
    /// Nobody has answered.
    Pending,
    /// A person said yes. It stays so when it is spent.
    Approved,
    /// A person said no.
    Rejected,
    /// Its time ran out.
    Expired,
}

impl ApprovalStatus {
    /// Every status.
    pub const ALL: [ApprovalStatus; 4] = [
        ApprovalStatus::Pending,
        ApprovalStatus::Approved,
        ApprovalStatus::Rejected,
        ApprovalStatus::Expired,
    ];

    /// The stored name.
    pub const fn as_str(self) -> &'static str {
        match self {
            ApprovalStatus::Pending => "pending",
            ApprovalStatus::Approved => "approved",
            ApprovalStatus::Rejected => "rejected",
            ApprovalStatus::Expired => "expired",
        }
    }

    /// Reads a stored name.
    pub fn parse(text: &str) -> Option<ApprovalStatus> {
        ApprovalStatus::ALL.into_iter().find(|status| status.as_str() == text)
    }

    /// The status after `event`, or an error when the pair is illegal.
    pub const fn after(self, event: ApprovalEvent) -> Result<ApprovalStatus, IllegalApprovalMove> {
        use ApprovalEvent as E;
        use ApprovalStatus as S;
        match (self, event) {
            (S::Pending, E::Approved) => Ok(S::Approved),
            (S::Pending, E::Rejected) => Ok(S::Rejected),
            (S::Pending | S::Approved, E::Expired) => Ok(S::Expired),
            (S::Approved | S::Rejected | S::Expired, E::Approved | E::Rejected)
            | (S::Rejected | S::Expired, E::Expired) => Err(IllegalApprovalMove { from: self, event }),
        }
    }
}

impl fmt::Display for ApprovalStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What may happen to an approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApprovalEvent {
    /// A person says yes.
    Approved,
    /// A person says no.
    Rejected,
    /// Its time is found to have run out.
    Expired,
}

/// A move that the machine does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("move a {from} approval by {event:?}: no such transition")]
pub struct IllegalApprovalMove {
    /// Where the approval stood.
    pub from: ApprovalStatus,
    /// What was to happen.
    pub event: ApprovalEvent,
}

/// An approval as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Approval {
    /// Its id.
    pub id: ApprovalId,
    /// The run that waits.
    pub run_id: RunId,
    /// The step that waits.
    pub step_id: StepId,
    /// What kind of approval it is.
    pub kind: String,
    /// What it grants.
    pub capability: Json,
    /// What the person is shown.
    pub presentation: Json,
    /// The exact request; `None` when the stored one cannot be read.
    pub request: Option<ToolRequest>,
    /// The hash over kind, capability, presentation and request.
    pub hash: ApprovalHash,
    /// Where it stands.
    pub status: ApprovalStatus,
    /// When it was asked for.
    pub created_at: UnixNanos,
    /// Until when it may be decided.
    pub expires_at: Option<UnixNanos>,
    /// When it was decided.
    pub decided_at: Option<UnixNanos>,
    /// By whom, in their own words.
    pub decided_by: String,
    /// What they noted.
    pub note: String,
    /// Why a stored column could not be read. Such an approval can't be decided.
    pub decode_error: Option<String>,
}

/// Why what a person is shown can't be read as what a surface expects.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("read the presentation of approval {approval}: {why}")]
pub struct PresentationError {
    /// The approval.
    pub approval: ApprovalId,
    /// Why.
    pub why: String,
}

impl Approval {
    /// Reads what the person is shown as a type: of the surface that shows it, or of whoever checks it again.
    ///
    /// # Errors
    /// When there is nothing to show, or something else than a `T`.
    pub fn presentation_as<T: DeserializeOwned>(&self) -> Result<T, PresentationError> {
        let fail = |why: String| PresentationError { approval: self.id.clone(), why };
        if self.presentation.is_blank() {
            return Err(fail("there is none".to_owned()));
        }
        self.presentation.decode().map_err(|error| fail(error.to_string()))
    }

    /// The hash that binds the approval: canonical JSON of exactly kind, capability, presentation and request.
    pub fn hash_of(
        kind: &str,
        capability: &Json,
        presentation: &Json,
        request: &ToolRequest,
    ) -> ApprovalHash {
        let mut w = ObjectWriter::new();
        w.raw("capability", or_empty(capability));
        w.str("kind", kind);
        w.raw("presentation", or_empty(presentation));
        w.raw("request", &request.to_json());
        ApprovalHash::from(hash::sha256_hex(json::canonical_trusted(&w.finish()).as_bytes()))
    }

    /// Whether the stored fields still hash to the stored hash.
    pub fn is_intact(&self) -> bool {
        self.decode_error.is_none()
            && self.request.as_ref().is_some_and(|request| {
                Approval::hash_of(&self.kind, &self.capability, &self.presentation, request) == self.hash
            })
    }

    /// Whether nobody decided it in time.
    pub fn is_past_expiry(&self, now: UnixNanos) -> bool {
        self.expires_at.is_some_and(|expiry| now > expiry)
    }

    /// Whether it waits for a person at `now`.
    pub fn is_open(&self, now: UnixNanos) -> bool {
        self.status == ApprovalStatus::Pending && !self.is_past_expiry(now)
    }

    /// Whether it is a grant older than `grant_ttl` nanoseconds; zero never expires.
    pub fn is_stale_grant(&self, grant_ttl: i64, now: UnixNanos) -> bool {
        let ttl = Duration::from_nanos(u64::try_from(grant_ttl).unwrap_or(0));
        self.status == ApprovalStatus::Approved
            && !ttl.is_zero()
            && self.decided_at.is_some_and(|decided| now > decided.plus(ttl))
    }

    /// Whether it asks about a call whose outcome is unknown.
    pub fn is_interruption(&self) -> bool {
        self.kind == INTERRUPTED_SIDE_EFFECT
    }
}

fn or_empty(json: &Json) -> &str {
    if json.is_blank() { "{}" } else { json.as_str() }
}

/// The latest approval of a step, the only one that can grant it.
pub fn latest_of<'a, A: AsRef<Approval>>(approvals: &'a [A], step: &StepId) -> Option<&'a Approval> {
    approvals.iter().map(AsRef::as_ref).rfind(|approval| &approval.step_id == step)
}

#[cfg(test)]
mod tests;
