//! What the writer remembers of the sessions' open calls, so that admitting a call costs the same however many are open
//! and however long the history is.
//!
//! A transition of ours makes one run's row be read again. After another connection's commit the rows that are not over
//! are read again, and those that are new: nothing else of the index ever changes in a way that matters here. What is
//! not certain is forgotten, and read from the tables.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use holdpoint_core::across_calls::{Admission, Asked, OpenCalls, OpenState, Upstreams, View, holds};
use holdpoint_core::ids::{RunId, SessionName};
use rusqlite::Connection;

use super::view::{self, Entering, IndexRow};

/// Runs that may wait to be read again. Beyond it everything is read anew, which is then not more.
const STALE_MAX: usize = 4096;
/// Sessions that are remembered. One process serves one; tests serve more.
const SESSIONS_MAX: usize = 16;

/// The memory. One for each connection that writes.
#[derive(Debug, Default)]
pub(in crate::store) struct IndexCache {
    sessions: HashMap<SessionName, Known>,
    /// Runs that were written since their rows were read.
    stale: HashSet<RunId>,
    /// Runs that the open transaction has written.
    written: Vec<RunId>,
    /// Whether another connection has committed since the tables were looked at.
    others_wrote: bool,
}

#[derive(Debug)]
struct Known {
    tools: Arc<Upstreams>,
    calls: OpenCalls,
    /// The newest row that was read.
    newest: i64,
}

impl IndexCache {
    /// Another connection has committed.
    pub(in crate::store) fn others_wrote(&mut self) {
        self.others_wrote = true;
    }

    /// A transition of `run` was applied.
    pub(in crate::store) fn wrote(&mut self, run: &RunId) {
        if self.sessions.is_empty() {
            return;
        }
        if self.stale.len() >= STALE_MAX {
            return self.forget();
        }
        self.stale.insert(run.clone());
        self.written.push(run.clone());
    }

    /// The open transaction was committed.
    pub(in crate::store) fn committed(&mut self) {
        self.written.clear();
    }

    /// What the open transaction has written, or a part of it, is undone.
    pub(in crate::store) fn undone(&mut self) {
        // A row that is gone can't be read again, so what was read of it must go.
        if !self.written.is_empty() {
            self.forget();
        }
    }

    fn forget(&mut self) {
        self.sessions.clear();
        self.stale.clear();
        self.written.clear();
    }

    /// Whether a decision that was made outside still holds. Writes nothing.
    pub(in crate::store) fn admission_holds(
        &mut self,
        conn: &Connection,
        admission: &Admission,
    ) -> rusqlite::Result<bool> {
        let asked = &admission.asked;
        // What is noticed on the way is left to those who look outside, who may write.
        let own = view::own(conn, asked, &mut Vec::new())?;
        let elsewhere = if !admission.question && view::meets_session_rules(asked, &own) {
            Some(self.calls(conn, asked)?.elsewhere(asked))
        } else {
            None
        };
        Ok(holds(admission, &View { own, elsewhere }))
    }

    pub(super) fn calls(&mut self, conn: &Connection, asked: &Asked) -> rusqlite::Result<&OpenCalls> {
        self.catch_up(conn, asked)?;
        let session = &asked.session;
        let known = self.sessions.remove(session).filter(|known| Arc::ptr_eq(&known.tools, &asked.tools));
        let known = match known {
            Some(known) => known,
            None => Known::read(conn, asked)?,
        };
        if self.sessions.len() >= SESSIONS_MAX {
            self.sessions.clear();
        }
        Ok(&self.sessions.entry(session.clone()).insert_entry(known).into_mut().calls)
    }

    /// Reads again what may have changed.
    fn catch_up(&mut self, conn: &Connection, asked: &Asked) -> rusqlite::Result<()> {
        if std::mem::take(&mut self.others_wrote) {
            for (session, known) in &mut self.sessions {
                let open =
                    known.calls.iter().filter(|call| !matches!(call.state, OpenState::Finished { .. }));
                self.stale.extend(open.map(|call| call.run.clone()));
                for row in IndexRow::above(conn, session, known.newest)? {
                    known.enter(conn, asked, row)?;
                }
            }
        }
        for run in std::mem::take(&mut self.stale) {
            if let Some(row) = IndexRow::of_run(conn, &run)?
                && let Some(known) = self.sessions.get_mut(&row.session)
            {
                known.enter(conn, asked, row)?;
            }
        }
        Ok(())
    }
}

impl Known {
    fn read(conn: &Connection, asked: &Asked) -> rusqlite::Result<Known> {
        let newest = conn
            .prepare_cached("SELECT COALESCE(MAX(id), 0) FROM proxy_calls")?
            .query_row([], |row| row.get(0))?;
        let mut entering = entering(conn, &asked.tools, asked);
        let calls = view::open_calls(&asked.session, &mut entering)?;
        Ok(Known { tools: Arc::clone(&asked.tools), calls, newest })
    }

    fn enter(&mut self, conn: &Connection, asked: &Asked, row: IndexRow) -> rusqlite::Result<()> {
        self.newest = self.newest.max(row.id);
        row.enter(&mut self.calls, &mut entering(conn, &self.tools, asked))
    }
}

fn entering<'a>(conn: &'a Connection, tools: &'a Upstreams, asked: &Asked) -> Entering<'a> {
    Entering { conn, tools, now: asked.now, noticed: Vec::new() }
}
