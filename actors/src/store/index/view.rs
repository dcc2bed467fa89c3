//! What the rules across calls are shown of the index, read from one connection.
//!
//! The same statements serve the decision outside, on a reader's snapshot, and the one inside, on the writer's own
//! transaction. What a call did is read from its run's record; the index only says where to look, and caches facts that
//! no longer change. A row whose cache is empty is told to be settled ([`Seen::settles`]); nothing is written here.
//! Longer than its neighbours, because every statement of one view is judged against the others here.

use std::sync::Arc;

use holdpoint_core::across_calls::{
    Asked, Asking, Finished, IndexWrite, LastAttempt, OpenCall, OpenCalls, OpenRow, OpenState, Own, RunState,
    Scan, Upstreams, View, judge_finished,
};
use holdpoint_core::approval::Approval;
use holdpoint_core::attempt::{Attempt, AttemptOutcome, executed_step, last_attempt};
use holdpoint_core::ids::{RequestKey, RunId, SessionName, StepId};
use holdpoint_core::run::{Lease, Limits, Reason, RunStatus};
use holdpoint_core::step::Step;
use holdpoint_core::time::UnixNanos;
use rusqlite::{Connection, OptionalExtension as _, Row};

use super::super::reader::{ReadError, Reader};
use super::super::{approvals, endings, runs, steps};

/// A view, and what was noticed on the way to it.
#[derive(Debug, Default)]
pub struct Seen {
    /// What the rules are shown.
    pub view: View,
    /// Facts that the index does not cache yet. Writing them saves reading them again; nothing depends on it.
    pub settles: Vec<IndexWrite>,
}

/// A call whose run is running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningCall {
    /// The run.
    pub run: RunId,
    /// Its tool.
    pub tool: String,
    /// The end of its lease; `None` when nobody holds it.
    pub until: Option<UnixNanos>,
}

/// How much of a session's index is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// The request's own rows. The decision then has to be confirmed by the writer, which knows the others.
    Own,
    /// The session's other requests too, all that are open or in doubt.
    Session,
}

impl Reader<'_> {
    /// Reads what the rules across calls are shown of a call.
    ///
    /// # Errors
    /// When the database can't be read.
    pub fn call_view(&self, asked: &Asked, depth: Depth) -> Result<Seen, ReadError> {
        let mut settles = Vec::new();
        let own = own(self.conn, asked, &mut settles)?;
        let elsewhere = match depth {
            Depth::Session if meets_session_rules(asked, &own) => {
                let (tools, now) = (&*asked.tools, asked.now);
                let mut entering = Entering { conn: self.conn, tools, now, noticed: Vec::new() };
                let calls = open_calls(&asked.session, &mut entering)?;
                let new: Vec<_> =
                    entering.noticed.into_iter().filter(|write| !settles.contains(write)).collect();
                settles.extend(new);
                Some(calls.elsewhere(asked))
            }
            Depth::Session | Depth::Own => None,
        };
        Ok(Seen { view: View { own, elsewhere }, settles })
    }

    /// A session's calls whose runs are running, and the facts that its index does not cache yet.
    ///
    /// # Errors
    /// When the database can't be read.
    pub fn running_calls(
        &self,
        session: &SessionName,
        tools: &Upstreams,
        now: UnixNanos,
    ) -> Result<(Vec<RunningCall>, Vec<IndexWrite>), ReadError> {
        let mut entering = Entering { conn: self.conn, tools, now, noticed: Vec::new() };
        let mut running = Vec::new();
        IndexRow::each_open(self.conn, session, |row| {
            // Whatever waits is not looked at any further: there may be many.
            if row.is_waiting() {
                return Ok(());
            }
            if let Some(OpenState::Running { until }) = row.state(&mut entering)? {
                running.push(RunningCall { run: row.run, tool: row.tool, until });
            }
            Ok(())
        })?;
        Ok((running, entering.noticed))
    }
}

/// Whether the rules come as far as the session's other requests.
pub(super) fn meets_session_rules(asked: &Asked, own: &Own) -> bool {
    let is_unfinished = own.open.as_ref().is_some_and(|open| match open.state {
        RunState::Waiting { .. } | RunState::Running { .. } => true,
        RunState::Absent | RunState::Finished => false,
    });
    let rerun = matches!(own.last, LastAttempt::Unknown(_)) && !asked.class.is_read();
    !is_unfinished && asked.meets_session_rules(rerun)
}

/// The rows of the request itself.
pub(super) fn own(conn: &Connection, asked: &Asked, settles: &mut Vec<IndexWrite>) -> rusqlite::Result<Own> {
    let Some(key) = &asked.key else { return Ok(Own::default()) };
    let open: Option<KeyRow> = conn
        .prepare_cached(
            "SELECT id, run_id, outcome FROM proxy_calls WHERE session = ? AND request_key = ? AND open = 1",
        )?
        .query_row((asked.session.as_str(), key.as_str()), KeyRow::read)
        .optional()?;
    // A closed row is always followed by the one that closed it.
    let Some(open) = open else { return Ok(Own::default()) };
    let standing = Standing::of(conn, &open.run)?;
    let state = run_state(conn, &open.run, standing.as_ref())?;
    let is_finished = state == RunState::Finished;
    let goes_on = is_finished || state == RunState::Absent;
    let mut own = Own { open: Some(OpenRow { id: open.id, run: open.run.clone(), state }), ..Own::default() };
    if !goes_on {
        return Ok(own);
    }
    let mut history = History::new(conn, asked, settles);
    if is_finished {
        history.look_at(&open, standing)?;
    }
    history.closed_rows(key)?;
    (own.recent, own.last) = (history.recent, history.last);
    Ok(own)
}

struct KeyRow {
    id: i64,
    run: RunId,
    outcome: AttemptOutcome,
}

impl KeyRow {
    fn read(row: &Row<'_>) -> rusqlite::Result<KeyRow> {
        Ok(KeyRow {
            id: row.get(0)?,
            run: RunId::from(row.get::<_, String>(1)?),
            outcome: AttemptOutcome::of_code(row.get(2)?),
        })
    }
}

/// The finished runs of a request, read newest first and no further than the rules look.
struct History<'a> {
    conn: &'a Connection,
    asked: &'a Asked,
    settles: &'a mut Vec<IndexWrite>,
    recent: Vec<Finished>,
    last: LastAttempt,
    /// Whether rules 4 and 5 look on.
    scanning: bool,
    /// Whether rule 6 does.
    seeking: bool,
}

impl<'a> History<'a> {
    fn new(conn: &'a Connection, asked: &'a Asked, settles: &'a mut Vec<IndexWrite>) -> History<'a> {
        History {
            conn,
            asked,
            settles,
            recent: Vec::new(),
            last: LastAttempt::None,
            scanning: !asked.window.is_zero(),
            seeking: !asked.class.is_read(),
        }
    }

    fn closed_rows(&mut self, key: &RequestKey) -> rusqlite::Result<()> {
        if !self.scanning && !self.seeking {
            return Ok(());
        }
        let mut statement = self.conn.prepare_cached(
            "SELECT id, run_id, outcome, closed_at FROM proxy_calls
             WHERE session = ? AND request_key = ? AND open = 0 ORDER BY id DESC",
        )?;
        let mut rows = statement.query((self.asked.session.as_str(), key.as_str()))?;
        while let Some(row) = rows.next()? {
            // A row is closed when the next one opens, so none before it was closed later.
            self.scanning &= row.get::<_, i64>(3)? >= self.asked.window_start().as_nanos();
            if !self.scanning && !self.seeking {
                break;
            }
            let row = KeyRow::read(row)?;
            if self.wants(row.outcome) {
                let standing = Standing::of(self.conn, &row.run)?;
                self.look_at(&row, standing)?;
            }
        }
        Ok(())
    }

    /// Whether a row with this cached outcome can still say anything.
    fn wants(&self, outcome: AttemptOutcome) -> bool {
        let seeks = self.seeking && outcome != AttemptOutcome::None;
        // A read that is known to have run refuses nothing, and a model may repeat one a thousand times.
        let scans = self.scanning && !(self.asked.class.is_read() && outcome == AttemptOutcome::Known);
        seeks || scans
    }

    fn look_at(&mut self, row: &KeyRow, standing: Option<Standing>) -> rusqlite::Result<()> {
        let Some(standing) = standing.filter(Standing::is_finished) else { return Ok(()) };
        let record = Record::of(self.conn, &row.run, row.outcome, &self.asked.tools)?;
        if row.outcome == AttemptOutcome::Unseen {
            self.settles.push(settle(&row.run, record.outcome, self.asked.now));
        }
        if self.seeking {
            match (record.outcome, record.attempt) {
                (AttemptOutcome::Unknown, Some(attempt)) => {
                    self.last = LastAttempt::Unknown(attempt);
                    self.seeking = false;
                }
                (AttemptOutcome::Known, _) => {
                    self.last = LastAttempt::Known;
                    self.seeking = false;
                }
                (AttemptOutcome::Unknown, None) | (AttemptOutcome::None | AttemptOutcome::Unseen, _) => {}
            }
        }
        if self.scanning {
            let finished = Finished {
                run: row.run.clone(),
                finished_at: standing.finished_at,
                reason: standing.reason,
                detail: standing.detail,
                outcome: record.outcome,
                executed: record.executed,
                approval: record.approval,
            };
            self.scanning = judge_finished(self.asked, &finished) == Scan::Older;
            self.recent.push(finished);
        }
        Ok(())
    }
}

fn settle(run: &RunId, outcome: AttemptOutcome, at: UnixNanos) -> IndexWrite {
    IndexWrite::Settle { run_id: run.clone(), outcome, at }
}

/// What a finished run's record says.
struct Record {
    outcome: AttemptOutcome,
    attempt: Option<Attempt>,
    executed: Option<StepId>,
    approval: Option<(holdpoint_core::ids::ApprovalId, String)>,
}

impl Record {
    fn of(
        conn: &Connection,
        run: &RunId,
        cached: AttemptOutcome,
        tools: &Upstreams,
    ) -> rusqlite::Result<Record> {
        let approvals: Vec<Arc<Approval>> = approvals::of_run(conn, run)?.into_iter().map(Arc::new).collect();
        let approval = approvals.last().map(|approval| (approval.id.clone(), approval.note.clone()));
        if cached == AttemptOutcome::None {
            return Ok(Record { outcome: cached, attempt: None, executed: None, approval });
        }
        let steps: Vec<Arc<Step>> = steps::as_they_came_out(conn, run)?.into_iter().map(Arc::new).collect();
        let mut ended = Vec::with_capacity(steps.len());
        for step in &steps {
            ended.push((step.id.clone(), endings::get(conn, &step.id)?));
        }
        let ending = |step: &StepId| ended.iter().find(|(id, _)| id == step).and_then(|(_, ending)| *ending);
        let (read, attempt) = last_attempt(&steps, &approvals, ending, |name| tools.get(name));
        // What is cached was a fact when it was written, also about a tool that is no longer offered here.
        let outcome = if cached == AttemptOutcome::Known { cached } else { read };
        let attempt = attempt.filter(|_| outcome == AttemptOutcome::Unknown);
        Ok(Record { outcome, attempt, executed: executed_step(&steps).map(|step| step.id.clone()), approval })
    }
}

/// How a run stands, as far as the rules look.
struct Standing {
    status: RunStatus,
    reason: Option<Reason>,
    detail: String,
    finished_at: Option<UnixNanos>,
    lease: Option<Lease>,
    limits: String,
}

const STANDING: &str =
    "r.status, r.reason, r.reason_detail, r.finished_at, r.lease_owner, r.lease_expires_at, r.limits_json";

impl Standing {
    fn of(conn: &Connection, run: &RunId) -> rusqlite::Result<Option<Standing>> {
        conn.prepare_cached(&format!("SELECT {STANDING} FROM runs r WHERE r.id = ?"))?
            .query_row([run.as_str()], |row| Standing::read(row, 0))
            .optional()
            .map(Option::flatten)
    }

    /// Reads [`STANDING`] from column `at`; `None` when there is no run.
    fn read(row: &Row<'_>, at: usize) -> rusqlite::Result<Option<Standing>> {
        let Some(status) = row.get::<_, Option<String>>(at)? else { return Ok(None) };
        let text = |column: usize| row.get::<_, String>(at + column);
        Ok(Some(Standing {
            // One that nobody knows is none that anything goes on from.
            status: RunStatus::parse(&status).unwrap_or(RunStatus::Interrupted),
            reason: Reason::parse(&text(1)?),
            detail: text(2)?,
            finished_at: UnixNanos::parse(&text(3)?).ok(),
            lease: runs::lease_of(&text(4)?, &text(5)?),
            limits: text(6)?,
        }))
    }

    fn is_finished(&self) -> bool {
        self.status.is_terminal()
    }
}

fn run_state(conn: &Connection, run: &RunId, standing: Option<&Standing>) -> rusqlite::Result<RunState> {
    let Some(standing) = standing else { return Ok(RunState::Absent) };
    Ok(match standing.status {
        RunStatus::WaitingForApproval => RunState::Waiting { approval: asking(conn, run, standing)? },
        RunStatus::Running | RunStatus::Interrupted => RunState::Running { lease: standing.lease.clone() },
        RunStatus::Completed | RunStatus::Failed | RunStatus::Cancelled => RunState::Finished,
    })
}

/// The latest approval of a waiting run.
fn asking(conn: &Connection, run: &RunId, standing: &Standing) -> rusqlite::Result<Option<Asking>> {
    let latest = approvals::latest_asking(conn, run)?;
    Ok(latest.map(|(mut asking, decided_at)| {
        let ttl = Limits::parse(&standing.limits).map_or(0, |limits| limits.grant_ttl);
        let decided = decided_at.filter(|_| ttl > 0);
        asking.grant_until =
            decided.map(|decided| UnixNanos::from_nanos(decided.as_nanos().saturating_add(ttl)));
        asking
    }))
}

/// A row of the index, with its run behind it.
const INDEX_ROW: &str = "p.id, p.request_key, p.tool, p.run_id, p.settled_at, p.outcome, p.session";

/// A row of the index with its run.
pub(super) struct IndexRow {
    pub(super) id: i64,
    key: RequestKey,
    tool: String,
    run: RunId,
    is_settled: bool,
    outcome: AttemptOutcome,
    pub(super) session: SessionName,
    standing: Option<Standing>,
}

/// What entering rows needs to know, and what it notices.
pub(super) struct Entering<'a> {
    pub(super) conn: &'a Connection,
    pub(super) tools: &'a Upstreams,
    pub(super) now: UnixNanos,
    pub(super) noticed: Vec<IndexWrite>,
}

impl IndexRow {
    fn read(row: &Row<'_>) -> rusqlite::Result<IndexRow> {
        Ok(IndexRow {
            id: row.get(0)?,
            key: RequestKey::from(row.get::<_, String>(1)?),
            tool: row.get(2)?,
            run: RunId::from(row.get::<_, String>(3)?),
            is_settled: row.get::<_, i64>(4)? != 0,
            outcome: AttemptOutcome::of_code(row.get(5)?),
            session: SessionName::from(row.get::<_, String>(6)?),
            standing: Standing::read(row, 7)?,
        })
    }

    /// The row of a run.
    pub(super) fn of_run(conn: &Connection, run: &RunId) -> rusqlite::Result<Option<IndexRow>> {
        let sql = format!(
            "SELECT {INDEX_ROW}, {STANDING} FROM proxy_calls p LEFT JOIN runs r ON r.id = p.run_id
             WHERE p.run_id = ?"
        );
        conn.prepare_cached(&sql)?.query_row([run.as_str()], IndexRow::read).optional()
    }

    /// Shows the rows of a session that may be open or in doubt, oldest first, one at a time: there may be many.
    ///
    /// The inner statement is answered by the index `proxy_calls_outcome` alone, so that a long history costs a look at
    /// each of its entries and no more.
    fn each_open(
        conn: &Connection,
        session: &SessionName,
        mut show: impl FnMut(IndexRow) -> rusqlite::Result<()>,
    ) -> rusqlite::Result<()> {
        let mut statement = conn.prepare_cached(&format!(
            "SELECT {INDEX_ROW}, {STANDING} FROM proxy_calls p LEFT JOIN runs r ON r.id = p.run_id
             WHERE p.id IN (SELECT id FROM proxy_calls WHERE session = ? AND outcome IN (0, 3)) ORDER BY p.id"
        ))?;
        let mut rows = statement.query([session.as_str()])?;
        while let Some(row) = rows.next()? {
            show(IndexRow::read(row)?)?;
        }
        Ok(())
    }

    fn is_waiting(&self) -> bool {
        self.standing.as_ref().is_some_and(|standing| standing.status == RunStatus::WaitingForApproval)
    }

    /// The rows of a session above `id`, oldest first.
    pub(super) fn above(
        conn: &Connection,
        session: &SessionName,
        id: i64,
    ) -> rusqlite::Result<Vec<IndexRow>> {
        // The plus keeps SQLite from looking for them by the session, which may have any number of older ones.
        conn.prepare_cached(&format!(
            "SELECT {INDEX_ROW}, {STANDING} FROM proxy_calls p LEFT JOIN runs r ON r.id = p.run_id
             WHERE p.id > ? AND +p.session = ? ORDER BY p.id"
        ))?
        .query_map((id, session.as_str()), IndexRow::read)?
        .collect()
    }

    /// Brings what is known of the row's request up to date.
    pub(super) fn enter(self, calls: &mut OpenCalls, e: &mut Entering<'_>) -> rusqlite::Result<()> {
        let state = self.state(e)?;
        let made_an_attempt = match &state {
            Some(OpenState::Finished { outcome, .. }) => {
                matches!(outcome, AttemptOutcome::Known | AttemptOutcome::Unknown)
            }
            None => self.outcome == AttemptOutcome::Known,
            Some(OpenState::Absent | OpenState::Running { .. } | OpenState::Waiting { .. }) => false,
        };
        if made_an_attempt {
            calls.supersede(&self.key, self.id);
        }
        match state {
            Some(state) => {
                let tool = Arc::from(self.tool.as_str());
                calls.put(OpenCall { id: self.id, key: self.key, tool, run: self.run, state });
            }
            None => calls.remove(&self.run),
        }
        Ok(())
    }

    /// Where the row's run stands; `None` when it is over and leaves nothing that could stand in anybody's way.
    fn state(&self, e: &mut Entering<'_>) -> rusqlite::Result<Option<OpenState>> {
        let Some(standing) = &self.standing else {
            // It is kept, also once it is settled: whoever claimed it may begin it at any time.
            if !self.is_settled {
                e.noticed.push(IndexWrite::SettleEmpty { run_id: self.run.clone(), at: e.now });
            }
            return Ok(Some(OpenState::Absent));
        };
        match run_state(e.conn, &self.run, Some(standing))? {
            RunState::Absent => Ok(Some(OpenState::Absent)),
            RunState::Waiting { approval } => Ok(Some(OpenState::Waiting { approval })),
            RunState::Running { lease } => {
                Ok(Some(OpenState::Running { until: lease.map(|lease| lease.expires_at) }))
            }
            RunState::Finished => self.finished(standing, e),
        }
    }

    fn finished(&self, standing: &Standing, e: &mut Entering<'_>) -> rusqlite::Result<Option<OpenState>> {
        match self.outcome {
            AttemptOutcome::None | AttemptOutcome::Known => return Ok(None),
            AttemptOutcome::Unknown | AttemptOutcome::Unseen => {}
        }
        let is_superseded = self.is_superseded(e.conn)?;
        if is_superseded && self.outcome == AttemptOutcome::Unknown {
            return Ok(None);
        }
        let record = Record::of(e.conn, &self.run, self.outcome, e.tools)?;
        if self.outcome == AttemptOutcome::Unseen {
            e.noticed.push(settle(&self.run, record.outcome, e.now));
        }
        if is_superseded {
            return Ok(None);
        }
        let by_person = matches!(standing.reason, Some(Reason::ApprovalRejected | Reason::OperatorCancelled));
        Ok(Some(OpenState::Finished { outcome: record.outcome, attempt: record.attempt, by_person }))
    }

    /// Whether a newer run of the request is known to have made an attempt.
    fn is_superseded(&self, conn: &Connection) -> rusqlite::Result<bool> {
        conn.prepare_cached(
            "SELECT EXISTS (SELECT 1 FROM proxy_calls
             WHERE session = ? AND request_key = ? AND id > ? AND outcome IN (2, 3))",
        )?
        .query_row((self.session.as_str(), self.key.as_str(), self.id), |row| row.get(0))
    }
}

/// Everything of a session that is open or in doubt.
pub(super) fn open_calls(session: &SessionName, e: &mut Entering<'_>) -> rusqlite::Result<OpenCalls> {
    let mut calls = OpenCalls::new();
    IndexRow::each_open(e.conn, session, |row| row.enter(&mut calls, e))?;
    Ok(calls)
}
