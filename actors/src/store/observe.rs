//! What the writer has done, for `doctor` and for tests that count.

use std::sync::Mutex;

use serde::Serialize;

use super::queue::Queue;
use crate::clock::lock;

/// The writer as it stands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Observation {
    /// How many times the writer was started in this process.
    pub generation: u64,
    /// Transitions applied since it was started.
    pub applied: u64,
    /// Transitions that a guard refused.
    pub refused: u64,
    /// Commits that were synced before they were answered.
    pub synced_commits: u64,
    /// Commits that were not.
    pub written_commits: u64,
    /// Commits of nothing but the row that makes earlier ones durable.
    pub flushes: u64,
    /// Batches that were tried a second time, member by member.
    pub replays: u64,
    /// Pauses that let other processes write.
    pub pauses: u64,
    /// Checkpoints made while idle.
    pub checkpoints: u64,
    /// The number of the newest event that this process knows to be synced.
    pub synced_seq: i64,
    /// Why new intents are refused, when they are.
    pub trouble: Option<String>,
    /// Outcomes, renewals and decisions that wait.
    pub waiting_outcomes: usize,
    /// Intents that wait.
    pub waiting_intents: usize,
}

/// The same, shared between the thread that counts and the actor that tells.
#[derive(Debug, Default)]
pub(super) struct Counts(Mutex<Observation>);

impl Counts {
    pub(super) fn of_generation(generation: u64) -> Counts {
        Counts(Mutex::new(Observation { generation, ..Observation::default() }))
    }

    pub(super) fn note(&self, change: impl FnOnce(&mut Observation)) {
        change(&mut lock(&self.0));
    }

    pub(super) fn observe(&self, queue: &Queue) -> Observation {
        let mut observation = lock(&self.0).clone();
        (observation.waiting_outcomes, observation.waiting_intents) = queue.lengths();
        observation
    }
}
