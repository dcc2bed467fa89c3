//! A session's requests that are not over, or whose outcome is unknown, arranged so that asking about one tool costs
//! the same however many calls are open.
//!
//! Owns the arrangement. Whoever reads the index fills it, row by row, and says when a row changed; a row that is
//! settled and not in doubt is dropped.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::{Asked, Asking, Elsewhere, Obstacle, Unresolved};
use crate::approval::ApprovalStatus;
use crate::attempt::{Attempt, AttemptOutcome};
use crate::ids::{RequestKey, RunId};
use crate::time::UnixNanos;

/// One row that may stand in the way of other calls.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenCall {
    /// The row's id: a greater one is newer.
    pub id: i64,
    /// Which request.
    pub key: RequestKey,
    /// Its tool.
    pub tool: Arc<str>,
    /// Its run.
    pub run: RunId,
    /// Where the run stands.
    pub state: OpenState,
}

/// Where the run of such a row stands.
#[derive(Debug, Clone, PartialEq)]
pub enum OpenState {
    /// It was never begun.
    Absent,
    /// It is held until then; `None` when nobody holds it.
    Running {
        /// The end of its lease.
        until: Option<UnixNanos>,
    },
    /// It waits for a person.
    Waiting {
        /// Its latest approval.
        approval: Option<Asking>,
    },
    /// It is over.
    Finished {
        /// What its last attempt came to.
        outcome: AttemptOutcome,
        /// The attempt, when that is unknown.
        attempt: Option<Attempt>,
        /// Whether a person's rejection or cancellation ended it.
        by_person: bool,
    },
}

/// A session's open calls.
#[derive(Debug, Default)]
pub struct OpenCalls {
    calls: HashMap<RunId, OpenCall>,
    /// The runs of each request.
    by_key: BTreeSet<(RequestKey, RunId)>,
    /// The names of tools, each kept once.
    tools: BTreeSet<Arc<str>>,
    /// Finished with an unknown outcome, by tool and age.
    doubts: BTreeSet<(Arc<str>, i64, RunId)>,
    /// Waiting on a question about an unknown outcome, by tool and age.
    interruptions: BTreeSet<(Arc<str>, i64, RunId)>,
    /// Running, by tool and the end of the lease.
    leases: BTreeSet<(Arc<str>, UnixNanos, i64, RunId)>,
    /// Waiting on a pending approval, by its expiry.
    pending: BTreeSet<(UnixNanos, i64, RunId)>,
}

const NEVER: UnixNanos = UnixNanos::from_nanos(i64::MAX);
const LONG_AGO: UnixNanos = UnixNanos::from_nanos(i64::MIN);

impl OpenCalls {
    /// Nothing is open.
    pub fn new() -> OpenCalls {
        OpenCalls::default()
    }

    /// How many rows it holds.
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Whether it holds the row of `run`.
    pub fn contains(&self, run: &RunId) -> bool {
        self.calls.contains_key(run)
    }

    /// The rows, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &OpenCall> {
        self.calls.values()
    }

    /// Takes a row as it stands now, in place of what was known of its run.
    pub fn put(&mut self, mut call: OpenCall) {
        self.remove(&call.run);
        match self.tools.get(&call.tool) {
            Some(known) => call.tool = Arc::clone(known),
            None => drop(self.tools.insert(Arc::clone(&call.tool))),
        }
        let (tool, id, run) = (Arc::clone(&call.tool), call.id, call.run.clone());
        match &call.state {
            OpenState::Absent => {}
            OpenState::Running { until } => {
                self.leases.insert((tool, until.unwrap_or(LONG_AGO), id, run));
            }
            OpenState::Waiting { approval } => {
                if let Some(asking) = approval {
                    if asking.interruption {
                        self.interruptions.insert((tool, id, run.clone()));
                    }
                    if asking.status == ApprovalStatus::Pending {
                        self.pending.insert((asking.expires_at.unwrap_or(NEVER), id, run));
                    }
                }
            }
            OpenState::Finished { attempt, .. } => {
                if attempt.is_some() {
                    self.doubts.insert((tool, id, run));
                }
            }
        }
        self.by_key.insert((call.key.clone(), call.run.clone()));
        self.calls.insert(call.run.clone(), call);
    }

    /// Drops what is finished of the request and older than the row `id`, whose run made an attempt: it has answered
    /// every earlier one, for good.
    pub fn supersede(&mut self, key: &RequestKey, id: i64) {
        let is_older = |call: &&OpenCall| call.id < id && matches!(call.state, OpenState::Finished { .. });
        let older: Vec<_> = self.of_key(key).filter(is_older).map(|call| call.run.clone()).collect();
        for run in older {
            self.remove(&run);
        }
    }

    /// Drops the row of `run`.
    pub fn remove(&mut self, run: &RunId) {
        let Some(call) = self.calls.remove(run) else { return };
        self.by_key.remove(&(call.key.clone(), call.run.clone()));
        let (tool, id, run) = (Arc::clone(&call.tool), call.id, call.run.clone());
        match &call.state {
            OpenState::Absent => {}
            OpenState::Running { until } => {
                self.leases.remove(&(tool, until.unwrap_or(LONG_AGO), id, run));
            }
            OpenState::Waiting { approval } => {
                let expiry = approval.as_ref().and_then(|asking| asking.expires_at).unwrap_or(NEVER);
                self.interruptions.remove(&(tool, id, run.clone()));
                self.pending.remove(&(expiry, id, run));
            }
            OpenState::Finished { .. } => {
                self.doubts.remove(&(tool, id, run));
            }
        }
    }

    /// What stands in the way of `asked`. Pending approvals are counted up to its cap.
    pub fn elsewhere(&self, asked: &Asked) -> Elsewhere {
        let tool: Arc<str> = Arc::from(asked.tool.as_str());
        let interruption = self.oldest_interruption(asked, &tool);
        let abandoned = self.oldest_abandoned(asked, &tool);
        let obstacle = match (interruption, abandoned) {
            (Some((a, obstacle)), Some((b, _))) if a < b => Some(obstacle),
            (_, Some((_, obstacle))) | (Some((_, obstacle)), None) => Some(obstacle),
            (None, None) => None,
        };
        let first = (asked.now, i64::MIN, RunId::from(""));
        let waiting = self.pending.range(first..).filter(|(_, _, run)| self.is_other(asked, run));
        Elsewhere {
            obstacle,
            unresolved: self.oldest_unresolved(asked, &tool),
            pending: waiting.take(asked.max_pending).count(),
        }
    }

    fn is_other(&self, asked: &Asked, run: &RunId) -> bool {
        self.calls.get(run).is_some_and(|call| Some(&call.key) != asked.key.as_ref())
    }

    fn of_tool<'a>(
        &'a self,
        set: &'a BTreeSet<(Arc<str>, i64, RunId)>,
        asked: &'a Asked,
        tool: &Arc<str>,
    ) -> impl Iterator<Item = &'a OpenCall> {
        let tool = Arc::clone(tool);
        let first = (Arc::clone(&tool), i64::MIN, RunId::from(""));
        set.range(first..)
            .take_while(move |(of, _, _)| *of == tool)
            .filter_map(|(_, _, run)| self.calls.get(run))
            .filter(|call| Some(&call.key) != asked.key.as_ref())
    }

    fn of_key<'a>(&'a self, key: &'a RequestKey) -> impl Iterator<Item = &'a OpenCall> {
        let first = (key.clone(), RunId::from(""));
        self.by_key
            .range(first..)
            .take_while(move |(of, _)| of == key)
            .filter_map(|(_, run)| self.calls.get(run))
    }

    fn oldest_interruption(&self, asked: &Asked, tool: &Arc<str>) -> Option<(i64, Obstacle)> {
        self.of_tool(&self.interruptions, asked, tool).find_map(|call| {
            let OpenState::Waiting { approval: Some(asking) } = &call.state else { return None };
            let approval = asking.id.clone();
            if asking.is_live(asked.now) {
                return Some((call.id, Obstacle::Asked { approval }));
            }
            match asking.status {
                ApprovalStatus::Pending | ApprovalStatus::Approved => {
                    Some((call.id, Obstacle::Expired { run: call.run.clone(), approval }))
                }
                // Its run ends with it, so this is a record that nobody here wrote; nothing can be done about it.
                ApprovalStatus::Rejected | ApprovalStatus::Expired => None,
            }
        })
    }

    fn oldest_abandoned(&self, asked: &Asked, tool: &Arc<str>) -> Option<(i64, Obstacle)> {
        let first = (Arc::clone(tool), LONG_AGO, i64::MIN, RunId::from(""));
        self.leases
            .range(first..)
            .take_while(|(of, until, _, _)| of == tool && !until.is_after(asked.wall))
            .filter(|(_, _, _, run)| self.is_other(asked, run))
            .min_by_key(|(_, _, id, _)| *id)
            .map(|(_, _, id, run)| (*id, Obstacle::Abandoned { run: run.clone() }))
    }

    fn oldest_unresolved(&self, asked: &Asked, tool: &Arc<str>) -> Option<Unresolved> {
        self.of_tool(&self.doubts, asked, tool).find_map(|call| {
            let OpenState::Finished { attempt: Some(attempt), by_person: false, .. } = &call.state else {
                return None;
            };
            let answered = self.of_key(&call.key).any(|other| match &other.state {
                // Something about it is going on, and is an obstacle of its own if it must be.
                OpenState::Running { .. } | OpenState::Waiting { .. } => true,
                OpenState::Absent => false,
                OpenState::Finished { outcome, .. } => {
                    other.id > call.id && matches!(outcome, AttemptOutcome::Known | AttemptOutcome::Unknown)
                }
            });
            (!answered).then(|| Unresolved {
                run: call.run.clone(),
                key: call.key.clone(),
                attempt: attempt.clone(),
            })
        })
    }
}
