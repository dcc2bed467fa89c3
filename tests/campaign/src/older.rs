//! Files as older versions left them, made from one of today's by taking away what each version brought.
//!
//! Owns the way back, written from the specification (section 1.2). No version before the first is gone back to, and a
//! file that has gone back is whole: only what did not exist then is missing.

/// How old a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Age {
    /// Its runtime's tables are at this version, and it has none of the gate's own.
    Runtime(usize),
    /// The gate's own tables are at this version.
    Own(usize),
}

/// Every age from which a proxy migrates.
pub(crate) const AGES: [Age; 7] = [
    Age::Runtime(1),
    Age::Runtime(2),
    Age::Runtime(3),
    Age::Runtime(4),
    Age::Runtime(5),
    Age::Own(0),
    Age::Own(1),
];

/// What each version of the runtime's tables brought, from the second on, taken away again.
const RUNTIME: [&str; 5] = [
    "DROP TABLE approvals;",
    "DROP TABLE model_calls;
     ALTER TABLE runs DROP COLUMN model_calls; ALTER TABLE runs DROP COLUMN input_tokens;
     ALTER TABLE runs DROP COLUMN output_tokens; ALTER TABLE runs DROP COLUMN cached_input_tokens;
     ALTER TABLE runs DROP COLUMN estimated_cost_micros;",
    "ALTER TABLE runs DROP COLUMN active_ms; ALTER TABLE approvals DROP COLUMN expires_at;",
    "ALTER TABLE runs DROP COLUMN lease_owner; ALTER TABLE runs DROP COLUMN lease_expires_at;",
    "DROP TABLE tool_specs; ALTER TABLE steps DROP COLUMN spec_hash; ALTER TABLE steps DROP COLUMN policy_id;
     ALTER TABLE events DROP COLUMN hash;",
];

/// The same of the gate's own, from the first on.
const OWN: [&str; 2] = [
    "DROP TABLE holdpoint_endings; DROP TABLE holdpoint_groups; DROP TABLE holdpoint_sync;",
    "DROP TABLE holdpoint_signatures; DROP TABLE holdpoint_signature_horizon;",
];

impl Age {
    /// For the report.
    pub(crate) fn name(self) -> String {
        match self {
            Age::Runtime(version) => format!("version {version}"),
            Age::Own(version) => format!("own tables at version {version}"),
        }
    }

    /// What makes a file of today's one of this age.
    pub(crate) fn way_back(self) -> String {
        let own = |to: usize| {
            let steps: String = OWN[to..].iter().rev().copied().collect();
            format!("{steps} DELETE FROM holdpoint_migrations WHERE version > {to};")
        };
        match self {
            Age::Runtime(to) => {
                let steps: String = RUNTIME[to - 1..].iter().rev().copied().collect();
                let noted = format!("DELETE FROM schema_migrations WHERE version > {to};");
                format!("{} DROP TABLE holdpoint_migrations; {steps} {noted}", own(0))
            }
            Age::Own(to) => own(to),
        }
    }
}
