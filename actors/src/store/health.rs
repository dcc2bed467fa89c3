//! How a database fares, for whoever looks after it.
//!
//! Owns the questions that `doctor` asks: whether the pages are sound, how much there is, and what was left half done.
//! Never repairs anything.

use holdpoint_core::ids::RunId;
use holdpoint_core::run::RunStatus;

use super::column::Columns;
use super::reader::{ReadError, Reader};

/// How many faults of the pages are told.
const FAULTS_MAX: i64 = 20;
/// How many runs that were left are named.
const LEFT_MAX: i64 = 100;

/// How a database fares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// The version of the runtime's tables.
    pub version: i64,
    /// What is wrong with the pages; nothing when they are sound.
    pub faults: Vec<String>,
    /// How many runs have each status, by its stored name.
    pub runs: Vec<(String, i64)>,
    /// How many approvals of waiting runs are undecided.
    pub pending: i64,
    /// How many events there are.
    pub events: i64,
    /// Runs that say RUNNING, oldest first, at most a hundred.
    pub running: Vec<HeldRun>,
}

/// What is not over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpenRuns {
    /// Runs that say RUNNING.
    pub running: i64,
    /// Runs that wait for an approval.
    pub waiting: i64,
    /// Their undecided approvals.
    pub pending: i64,
}

/// A run that somebody holds, or held when it died.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldRun {
    /// The run.
    pub run: RunId,
    /// Who holds it; empty when it was released.
    pub owner: String,
    /// Until when; none when that can't be read.
    pub expires_at: Option<holdpoint_core::time::UnixNanos>,
}

impl Reader<'_> {
    /// Counts what is not over. Reads the tables of runs and approvals once.
    pub fn open_runs(&self) -> Result<OpenRuns, ReadError> {
        let number = |sql: &str| self.conn.query_row(sql, [], |row| row.get::<_, i64>(0));
        let (running, waiting) = (RunStatus::Running.as_str(), RunStatus::WaitingForApproval.as_str());
        Ok(OpenRuns {
            running: number(&format!("SELECT COUNT(*) FROM runs WHERE status = '{running}'"))?,
            waiting: number(&format!("SELECT COUNT(*) FROM runs WHERE status = '{waiting}'"))?,
            pending: number(&pending())?,
        })
    }

    /// Looks at everything. Reads every page of the file once, which takes a second for some hundred megabytes.
    pub fn health(&self) -> Result<Health, ReadError> {
        let number = |sql: &str| self.conn.query_row(sql, [], |row| row.get::<_, i64>(0));
        let faults = self
            .conn
            .prepare(&format!("PRAGMA quick_check({FAULTS_MAX})"))?
            .query_map([], |row| row.get::<_, String>(0))?
            .filter(|line| line.as_ref().map_or(true, |line| line != "ok"))
            .collect::<Result<_, _>>()?;
        let runs = self
            .conn
            .prepare("SELECT substr(status, 1, 64), COUNT(*) FROM runs GROUP BY 1 ORDER BY 1")?
            .query_map([], |row| Ok((Columns::of(row).text(0, "status"), row.get(1)?)))?
            .collect::<Result<_, _>>()?;
        Ok(Health {
            version: number("SELECT MAX(version) FROM schema_migrations")?,
            faults,
            runs,
            pending: number(&pending())?,
            events: number("SELECT COUNT(*) FROM events")?,
            running: self.held_runs()?,
        })
    }

    fn held_runs(&self) -> Result<Vec<HeldRun>, ReadError> {
        let running = RunStatus::Running.as_str();
        let sql = format!(
            "SELECT substr(id, 1, 256), substr(lease_owner, 1, 256), substr(lease_expires_at, 1, 64) FROM runs
             WHERE status = '{running}' ORDER BY rowid LIMIT {LEFT_MAX}"
        );
        let mut statement = self.conn.prepare(&sql)?;
        let rows = statement.query_map([], |row| {
            let mut c = Columns::of(row);
            Ok(HeldRun {
                run: RunId::from(c.text(0, "id")),
                owner: c.text(1, "lease_owner"),
                expires_at: c.time(2, "lease_expires_at"),
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }
}

fn pending() -> String {
    let waiting = RunStatus::WaitingForApproval.as_str();
    format!(
        "SELECT COUNT(*) FROM approvals a JOIN runs r ON r.id = a.run_id
         WHERE a.status = 'pending' AND r.status = '{waiting}'"
    )
}
