//! What a connection says about itself, for `doctor` and for tests. A plain value.

use serde::Serialize;

use super::contain::Containment;

/// Where a connection is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ConnectionState {
    /// Starting the server, greeting it, listing, checking.
    Opening,
    /// Calls are taken.
    Ready,
    /// Waiting to try again. Calls are refused unsent.
    Down,
    /// Ending the server politely.
    Closing,
}

/// A connection at one moment. What it quotes of a server is escaped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Observation {
    /// The operator's name for the server.
    pub server: String,
    /// Where the connection is in its life.
    pub state: ConnectionState,
    /// The server's process, while it is connected.
    pub pid: Option<u32>,
    /// What holds the server's processes together, while it is connected.
    pub held_by: Option<Containment>,
    /// What stood in the way of a stricter hold, if anything did.
    pub held_because: Option<String>,
    /// Attempts to connect after the first.
    pub restarts: u64,
    /// Failures in a row, which set the wait before the next attempt.
    pub failures: u32,
    /// Milliseconds until the next attempt, while down.
    pub next_try_ms: Option<u64>,
    /// Calls whose answer is waited for.
    pub in_flight: usize,
    /// The protocol revision, while connected.
    pub protocol_version: Option<String>,
    /// How many tools are offered, while connected.
    pub offered: usize,
    /// Why the server was last lost or could not be had.
    pub last_error: Option<String>,
    /// Answers that no call waited for: under an unknown id, a second time, or after the call had ended.
    pub stray_answers: u64,
    /// How often the server said that its tools changed. Nothing is done about it before the next restart.
    pub list_changes: u64,
}
