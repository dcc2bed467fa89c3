//! Pages: what a front end shows of a database that it may not trust.
//!
//! Every page is bounded in rows, and every text of a row in characters, inside SQL: a crafted database can't make a
//! reader hold more. What was cut says so. A page is for showing; nothing is decided or resumed from one.

use holdpoint_core::approval::{Approval, ApprovalStatus};
use holdpoint_core::event::{Event, EventKind};
use holdpoint_core::ids::{ApprovalId, RunId, StepId};
use holdpoint_core::json::Json;
use holdpoint_core::run::{Limits, ModelTotals, RunStatus};
use holdpoint_core::step::Step;
use holdpoint_core::time::UnixNanos;
use rusqlite::{Connection, OptionalExtension as _, Params, Row};

use super::column::Columns;
use super::reader::{ReadError, Reader};
use super::{approvals, events, steps};

/// The most characters that a page brings of any text.
pub const TEXT_CHARS_MAX: i64 = 65_536;

/// Some rows, and how many there are in all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T> {
    /// The rows.
    pub rows: Vec<T>,
    /// How many there are, of which these are a part.
    pub total: i64,
}

/// A run as a list shows it: names as they are stored, whatever they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedRun {
    /// Its id.
    pub id: String,
    /// What it is for.
    pub goal: String,
    /// Where it stands.
    pub status: String,
    /// Why it ended.
    pub reason: String,
    /// The reason in words.
    pub reason_detail: String,
    /// Its caps; none when they can't be read.
    pub limits: Option<Limits>,
    /// Steps started.
    pub step_count: i64,
    /// When it was made; a time that can't be read is none, here and below.
    pub created_at: Option<UnixNanos>,
    /// When it began.
    pub started_at: Option<UnixNanos>,
    /// When it ended.
    pub finished_at: Option<UnixNanos>,
    /// What it produced.
    pub result: Option<Json>,
    /// What its model attempts came to.
    pub totals: ModelTotals,
    /// Milliseconds of finished steps.
    pub active_ms: i64,
}

impl Reader<'_> {
    /// Runs, newest first.
    pub fn runs_page(&self, limit: i64, offset: i64) -> Result<Page<ListedRun>, ReadError> {
        let select = format!("SELECT {} FROM runs ORDER BY rowid DESC LIMIT ? OFFSET ?", run_columns());
        page(
            self.conn,
            ("SELECT COUNT(*) FROM runs", []),
            (&select, (limit, offset)),
            (limit, offset),
            listed_run,
        )
    }

    /// Runs that wait for an approval, or for the one that they have been granted to be collected, newest first.
    pub fn waiting_runs_page(&self, limit: i64, offset: i64) -> Result<Page<ListedRun>, ReadError> {
        let columns = run_columns();
        let select =
            format!("SELECT {columns} FROM runs WHERE status = ? ORDER BY rowid DESC LIMIT ? OFFSET ?");
        let waiting = RunStatus::WaitingForApproval.as_str();
        page(
            self.conn,
            ("SELECT COUNT(*) FROM runs WHERE status = ?", [waiting]),
            (&select, (waiting, limit, offset)),
            (limit, offset),
            listed_run,
        )
    }

    /// One run as [`Reader::runs_page`] shows it.
    pub fn listed_run(&self, id: &RunId) -> Result<Option<ListedRun>, ReadError> {
        let select = format!("SELECT {} FROM runs WHERE id = ?", run_columns());
        Ok(self.conn.query_row(&select, [id.as_str()], |row| Ok(listed_run(row))).optional()?)
    }

    /// The steps of a run, in order. A column that is too long is read for what identifies it, and named as damaged.
    pub fn steps_page(&self, run: &RunId, limit: i64, offset: i64) -> Result<Page<Step>, ReadError> {
        let select = format!(
            "SELECT {id}, {run_id}, idx, {status}, {decision}, {policy}, {observation}, {started_at}, {finished_at},
                 {spec_hash}, {policy_id}, {long_decision}, {long_policy}, {long_observation}
             FROM steps WHERE run_id = ? ORDER BY idx LIMIT ? OFFSET ?",
            id = capped("id"),
            run_id = capped("run_id"),
            status = capped("status"),
            decision = reduced("decision_json", &[("kind", "$.kind"), ("tool", "$.tool")]),
            policy = reduced("policy_json", &[("outcome", "$.outcome")]),
            observation = reduced("observation_json", &[("kind", "$.kind"), ("summary", "$.summary")]),
            started_at = capped("started_at"),
            finished_at = capped("finished_at"),
            spec_hash = capped("spec_hash"),
            policy_id = capped("policy_id"),
            long_decision = is_long("decision_json"),
            long_policy = is_long("policy_json"),
            long_observation = is_long("observation_json"),
        );
        let of_page = |row: &Row<'_>| {
            let mut step = steps::decode(row);
            let names = [(11, "decision"), (12, "policy"), (13, "observation")];
            step.decode_error = with_cuts(step.decode_error, row, &names);
            step
        };
        page(
            self.conn,
            ("SELECT COUNT(*) FROM steps WHERE run_id = ?", [run.as_str()]),
            (&select, (run.as_str(), limit, offset)),
            (limit, offset),
            of_page,
        )
    }

    /// The approvals of a run, in the order in which they were asked for; with `status`, only those that have it.
    ///
    /// A request that is too long is read as its ids and its tool's name, and named as damaged. To decide on an
    /// approval, read it with [`Reader::approval`].
    pub fn approvals_page(
        &self,
        run: &RunId,
        status: Option<ApprovalStatus>,
        limit: i64,
        offset: i64,
    ) -> Result<Page<Approval>, ReadError> {
        let select = format!(
            "SELECT {id}, {run_id}, {step_id}, {kind}, {capability}, {presentation}, {request}, {hash}, {status},
                 {created_at}, {decided_at}, {decided_by}, {note}, {expires_at}, {long_request}
             FROM approvals WHERE run_id = ?1 AND (?2 = '' OR status = ?2) ORDER BY rowid LIMIT ?3 OFFSET ?4",
            id = capped("id"),
            run_id = capped("run_id"),
            step_id = capped("step_id"),
            kind = capped("kind"),
            capability = capped_json("capability_json"),
            presentation = capped_json("presentation_json"),
            request = reduced_request(),
            hash = capped("hash"),
            status = capped("status"),
            created_at = capped("created_at"),
            decided_at = capped("decided_at"),
            decided_by = capped("decided_by"),
            note = capped("note"),
            expires_at = capped("expires_at"),
            long_request = is_long("request_json"),
        );
        let of_page = |row: &Row<'_>| {
            let mut approval = approvals::decode(row);
            approval.decode_error = with_cuts(approval.decode_error, row, &[(14, "request")]);
            approval
        };
        let status = status.map_or("", ApprovalStatus::as_str);
        page(
            self.conn,
            (
                "SELECT COUNT(*) FROM approvals WHERE run_id = ?1 AND (?2 = '' OR status = ?2)",
                (run.as_str(), status),
            ),
            (&select, (run.as_str(), status, limit, offset)),
            (limit, offset),
            of_page,
        )
    }

    /// The events of a run, in order.
    pub fn events_page(&self, run: &RunId, limit: i64, offset: i64) -> Result<Page<Event>, ReadError> {
        let select =
            format!("SELECT {} FROM events WHERE run_id = ? ORDER BY seq LIMIT ? OFFSET ?", event_columns());
        page(
            self.conn,
            ("SELECT COUNT(*) FROM events WHERE run_id = ?", [run.as_str()]),
            (&select, (run.as_str(), limit, offset)),
            (limit, offset),
            events::decode,
        )
    }

    /// At most `limit` events after the one numbered `seq`, in order: of one run, or of all as they were committed.
    pub fn events_after(&self, run: Option<&RunId>, seq: i64, limit: i64) -> Result<Vec<Event>, ReadError> {
        check(limit, 0)?;
        let rows = |sql: &str, params: &[&dyn rusqlite::ToSql]| {
            self.conn
                .prepare_cached(sql)?
                .query_map(params, |row| Ok(events::decode(row)))?
                .collect::<rusqlite::Result<Vec<_>>>()
        };
        let columns = event_columns();
        Ok(match run {
            None => rows(
                &format!("SELECT {columns} FROM events WHERE seq > ? ORDER BY seq LIMIT ?"),
                &[&seq, &limit],
            ),
            Some(run) => rows(
                &format!("SELECT {columns} FROM events WHERE run_id = ? AND seq > ? ORDER BY seq LIMIT ?"),
                &[&run.as_str(), &seq, &limit],
            ),
        }?)
    }

    /// At most `limit` events of a run before the one numbered `seq`, in order: those that are nearest to it.
    pub fn events_before(&self, run: &RunId, seq: i64, limit: i64) -> Result<Vec<Event>, ReadError> {
        check(limit, 0)?;
        let select = format!(
            "SELECT {} FROM events WHERE run_id = ? AND seq < ? ORDER BY seq DESC LIMIT ?",
            event_columns()
        );
        let mut found = self
            .conn
            .prepare_cached(&select)?
            .query_map((run.as_str(), seq, limit), |row| Ok(events::decode(row)))?
            .collect::<rusqlite::Result<Vec<_>>>()?;
        found.reverse();
        Ok(found)
    }

    /// How many events come after the one numbered `seq`, of one run or of all; counted up to `most`.
    pub fn events_left(&self, run: Option<&RunId>, seq: i64, most: i64) -> Result<i64, ReadError> {
        let count = |filter: &str, params: &[&dyn rusqlite::ToSql]| {
            let sql = format!("SELECT COUNT(*) FROM (SELECT 1 FROM events WHERE {filter} LIMIT ?)");
            self.conn.prepare_cached(&sql)?.query_row(params, |row| row.get(0))
        };
        Ok(match run {
            None => count("seq > ?", &[&seq, &most]),
            Some(run) => count("run_id = ? AND seq > ?", &[&run.as_str(), &seq, &most]),
        }?)
    }

    /// The ids of pending approvals of those of `runs` that wait, at most `max` for each run, oldest first.
    pub fn pending_approval_ids_of(
        &self,
        runs: &[RunId],
        max: i64,
    ) -> Result<Vec<(RunId, ApprovalId)>, ReadError> {
        let sql = format!(
            "SELECT a.run_id, {} FROM approvals a JOIN runs r ON r.id = a.run_id
             WHERE a.run_id = ? AND a.status = ? AND r.status = ? ORDER BY a.rowid LIMIT ?",
            capped("a.id")
        );
        let mut found = Vec::new();
        for run in runs {
            let pending = ApprovalStatus::Pending.as_str();
            let waiting = RunStatus::WaitingForApproval.as_str();
            let mut statement = self.conn.prepare_cached(&sql)?;
            let ids = statement.query_map((run.as_str(), pending, waiting, max.max(0)), |row| {
                Ok(ApprovalId::from(Columns::of(row).text(1, "id")))
            })?;
            for id in ids {
                found.push((run.clone(), id?));
            }
        }
        Ok(found)
    }

    /// The kind and the one line of what a step's tool returned after its run was cancelled, when it did.
    pub fn late_outcome(&self, run: &RunId, step: &StepId) -> Result<Option<(String, String)>, ReadError> {
        let column = "payload_json";
        let sql = format!(
            "SELECT COALESCE({kind}, ''), COALESCE({summary}, '') FROM events
             WHERE run_id = ? AND step_id = ? AND type = ?
               AND CASE WHEN json_valid({column}) THEN json_extract({column}, '$.late') END = 1
             ORDER BY seq DESC LIMIT 1",
            kind = extracted(column, "$.observation.kind"),
            summary = extracted(column, "$.observation.summary"),
        );
        let finished = EventKind::StepToolFinished.as_str();
        Ok(self
            .conn
            .prepare_cached(&sql)?
            .query_row((run.as_str(), step.as_str(), finished), |row| {
                let mut c = Columns::of(row);
                Ok((c.text(0, "kind"), c.text(1, "summary")))
            })
            .optional()?)
    }

    /// Why an approval was asked for, as the event of its request recorded it; nothing when there is no such event,
    /// and none when there is no such approval.
    pub fn approval_reason(&self, run: &RunId, id: &ApprovalId) -> Result<Option<String>, ReadError> {
        let sql = format!(
            "SELECT COALESCE((SELECT {} FROM events e
                 WHERE e.run_id = a.run_id AND e.step_id = a.step_id AND e.type = ?
                   AND CASE WHEN json_valid(e.payload_json)
                            THEN json_extract(e.payload_json, '$.approval_id') END = a.id
                 ORDER BY e.seq LIMIT 1), '')
             FROM approvals a WHERE a.run_id = ? AND a.id = ?",
            extracted("e.payload_json", "$.reason")
        );
        let kind = EventKind::ApprovalRequested.as_str();
        let reason = self
            .conn
            .query_row(&sql, (kind, run.as_str(), id.as_str()), |row| Ok(Columns::of(row).text(0, "reason")))
            .optional()?;
        Ok(reason)
    }
}

fn check(limit: i64, offset: i64) -> Result<(), ReadError> {
    if limit > 0 && offset >= 0 { Ok(()) } else { Err(ReadError::NoPage { limit, offset }) }
}

fn page<T>(
    conn: &Connection,
    count: (&str, impl Params),
    select: (&str, impl Params),
    (limit, offset): (i64, i64),
    decode: impl Fn(&Row<'_>) -> T,
) -> Result<Page<T>, ReadError> {
    check(limit, offset)?;
    let total = conn.query_row(count.0, count.1, |row| row.get(0))?;
    let rows = conn
        .prepare_cached(select.0)?
        .query_map(select.1, |row| Ok(decode(row)))?
        .collect::<Result<_, _>>()?;
    Ok(Page { rows, total })
}

fn run_columns() -> String {
    let limits = format!("CASE WHEN {} THEN '' ELSE limits_json END", is_long("limits_json"));
    let columns = [
        capped("id"),
        capped("goal"),
        capped("status"),
        capped("reason"),
        capped("reason_detail"),
        limits,
        "step_count".to_owned(),
        capped("created_at"),
        capped("started_at"),
        capped("finished_at"),
        capped_json("result_json"),
        "model_calls, input_tokens, output_tokens, cached_input_tokens, estimated_cost_micros, active_ms"
            .to_owned(),
    ];
    columns.join(", ")
}

fn listed_run(row: &Row<'_>) -> ListedRun {
    let mut c = Columns::of(row);
    ListedRun {
        id: c.text(0, "id"),
        goal: c.text(1, "goal"),
        status: c.text(2, "status"),
        reason: c.text(3, "reason"),
        reason_detail: c.text(4, "reason_detail"),
        limits: c.decoded(5, "limits_json", Limits::parse),
        step_count: c.int(6, "step_count"),
        created_at: c.time(7, "created_at"),
        started_at: c.time(8, "started_at"),
        finished_at: c.time(9, "finished_at"),
        result: Some(c.text(10, "result_json")).filter(|text| !text.is_empty()).map(Json::trusted),
        totals: ModelTotals {
            model_calls: c.int(11, "model_calls"),
            input_tokens: c.int(12, "input_tokens"),
            output_tokens: c.int(13, "output_tokens"),
            cached_input_tokens: c.int(14, "cached_input_tokens"),
            estimated_cost_micros: c.int(15, "estimated_cost_micros"),
        },
        active_ms: c.int(16, "active_ms"),
    }
}

fn event_columns() -> String {
    let columns = [
        "seq".to_owned(),
        capped("run_id"),
        capped("step_id"),
        capped("at"),
        capped("type"),
        capped_json("payload_json"),
    ];
    columns.join(", ")
}

/// SQL that is true for a text over the cap. Its bytes are looked at too: `length` stops at the first NUL.
fn is_long(column: &str) -> String {
    format!("(length({column}) > {TEXT_CHARS_MAX} OR octet_length({column}) > 4 * {TEXT_CHARS_MAX})")
}

/// SQL for a text, cut at the cap with a note of its length.
fn capped(column: &str) -> String {
    format!(
        "CASE WHEN {} THEN substr({column}, 1, {TEXT_CHARS_MAX}) || '… (cut, ' || length({column}) || ' characters)'
              ELSE {column} END",
        is_long(column)
    )
}

/// SQL for a JSON column, replaced over the cap by an object that says so and holds its beginning.
fn capped_json(column: &str) -> String {
    format!(
        "CASE WHEN {} THEN json_object('truncated', json('true'), 'length', length({column}),
                                       'head', substr({column}, 1, {TEXT_CHARS_MAX}))
              ELSE {column} END",
        is_long(column)
    )
}

/// SQL for the text at a path of a JSON column, cut at the cap. The column must be valid.
fn extracted(column: &str, path: &str) -> String {
    format!("substr(json_extract({column}, '{path}'), 1, {TEXT_CHARS_MAX})")
}

/// SQL for a JSON column, replaced over the cap by an object of these members, or by nothing if it is no JSON.
fn reduced(column: &str, members: &[(&str, &str)]) -> String {
    let members: Vec<String> =
        members.iter().map(|(name, path)| format!("'{name}', {}", extracted(column, path))).collect();
    reduced_to(column, &members.join(", "))
}

fn reduced_to(column: &str, members: &str) -> String {
    format!(
        "CASE WHEN NOT {} THEN {column} WHEN json_valid({column}) THEN json_object({members}) ELSE '' END",
        is_long(column)
    )
}

fn reduced_request() -> String {
    let column = "request_json";
    let of = |path| extracted(column, path);
    let spec = format!(
        "json_object('name', {}, 'side_effect', {}, 'timeout', CAST(json_extract({column}, '$.spec.timeout') AS INTEGER))",
        of("$.spec.name"),
        of("$.spec.side_effect"),
    );
    let args = format!("json_object('truncated', json('true'), 'length', length({column}))");
    let members = format!(
        "'run_id', {}, 'step_id', {}, 'spec', {spec}, 'args', {args}",
        of("$.run_id"),
        of("$.step_id"),
    );
    reduced_to(column, &members)
}

/// Adds to what is damaged in a row the columns that were too long, as the flags at the given places say.
fn with_cuts(damage: Option<String>, row: &Row<'_>, flags: &[(usize, &str)]) -> Option<String> {
    let mut parts: Vec<String> = damage.into_iter().collect();
    for (index, name) in flags {
        if row.get(*index).unwrap_or(false) {
            parts.push(format!("{name}: over {TEXT_CHARS_MAX} characters, not read whole"));
        }
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}
