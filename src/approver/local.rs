//! The approver over a database of this machine.
//!
//! Owns nothing but the path: each call opens the file anew, so that a database that was moved or replaced meanwhile is
//! never decided upon by a connection that still holds the old one. Reads and decisions are those of the operator's
//! commands. It never makes or migrates a database.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use holdpoint_actors::clock::{Clock, WallClock};
use holdpoint_actors::session::Observer;
use holdpoint_core::approval::{Approval, ApprovalStatus};
use holdpoint_core::event::Event;
use holdpoint_core::ids::{ApprovalId, RunId};
use holdpoint_core::json::Json;
use holdpoint_core::run::RunStatus;
use holdpoint_core::time::UnixNanos;

use super::{Approver, Decision, Error, Pending, RunReader};
use crate::view::{self, Answer, ListedRun, ReadError, Reader, Records, Verdict, bound_string, bounded};

/// Shows and decides what is in one database. Cheap to clone. Its calls run on tokio's blocking threads.
#[derive(Clone)]
pub struct Local {
    path: PathBuf,
    clock: Arc<dyn Clock>,
    observer: Option<Arc<dyn Observer>>,
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Local").field("path", &self.path).field("clock", &self.clock).finish_non_exhaustive()
    }
}

impl Local {
    /// The approver of the database at `path`. It must exist, in the version of this build, and be no symbolic link.
    /// The program that owns its runs makes and migrates it.
    ///
    /// # Errors
    /// Why it can't be used, in one sentence.
    pub fn open(path: impl AsRef<Path>) -> Result<Local, view::Error> {
        let path = path.as_ref().to_owned();
        Records::open_to_decide(&path)?;
        Ok(Local { path, clock: Arc::new(WallClock), observer: None })
    }

    /// Names who is told of the events of each decision, after its commit.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Local {
        self.observer = Some(observer);
        self
    }

    /// Judges expiry by another clock than the wall's, and stamps decisions with it. For tests: a run that is stamped by
    /// the same clock would have its times moved by every decision.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Local {
        self.clock = clock;
        self
    }

    /// Reads the database, where blocking keeps nobody waiting.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&mut Records) -> Result<T, view::Error> + Send + 'static,
    ) -> Result<T, Error> {
        let path = self.path.clone();
        blocking(move || Ok(read(&mut Records::open_to_read(path)?)?)).await
    }

    /// Records something, and tells the observer. Once begun it is done to the end, also when nobody waits for it any
    /// more.
    async fn decide(
        &self,
        decide: impl FnOnce(&mut Records) -> Result<Vec<Event>, view::Error> + Send + 'static,
    ) -> Result<(), Error> {
        let Local { path, clock, observer } = self.clone();
        blocking(move || {
            let decided = decide(&mut Records::open_to_decide(path)?.with_clock(clock));
            let events = match &decided {
                // A decision that came too late has expired the approval, and that is on record.
                Ok(events) | Err(view::Error::Expired { events, .. }) => events.as_slice(),
                Err(_) => &[],
            };
            if let Some(observer) = &observer {
                events.iter().for_each(|event| observer.committed(event));
            }
            Ok(decided.map(drop)?)
        })
        .await
    }

    async fn decide_shown(&self, verdict: Verdict, decision: &Decision) -> Result<(), Error> {
        check(decision)?;
        let decision = decision.clone();
        self.decide(move |records| {
            let Decision { run, approval, hash, by, note } = &decision;
            records.decide(&Answer { run, approval, shown: Some(hash), verdict, by, note })
        })
        .await
    }
}

#[async_trait]
impl Approver for Local {
    async fn pending(&self, run: &RunId, limit: u32) -> Result<Vec<Pending>, Error> {
        let (run, now) = (run.clone(), self.clock.now());
        self.read(move |records| {
            let found = records.read(|reader| {
                let Some(found) = reader.listed_run(&run)? else { return Ok(None) };
                if found.status != RunStatus::WaitingForApproval.as_str() || limit == 0 {
                    return Ok(Some(Vec::new()));
                }
                let page = reader.approvals_page(&run, Some(ApprovalStatus::Pending), limit.into(), 0)?;
                let shown = page.rows.into_iter().map(|approval| shown(reader, approval, now));
                shown.collect::<Result<_, _>>().map(Some)
            })?;
            found.ok_or(view::Error::NoRun(run))
        })
        .await
    }

    async fn show(&self, run: &RunId, approval: &ApprovalId) -> Result<Pending, Error> {
        let (run, approval, now) = (run.clone(), approval.clone(), self.clock.now());
        self.read(move |records| {
            let found = records.read(|reader| {
                let found = reader.approval(&run, &approval)?;
                found.map(|approval| shown(reader, approval, now)).transpose()
            })?;
            found.ok_or(view::Error::NoApproval { run, approval })
        })
        .await
    }

    async fn approve(&self, decision: &Decision) -> Result<(), Error> {
        self.decide_shown(Verdict::Approve, decision).await
    }

    async fn reject(&self, decision: &Decision) -> Result<(), Error> {
        self.decide_shown(Verdict::Reject, decision).await
    }

    async fn cancel(&self, run: &RunId, by: &str, note: &str) -> Result<(), Error> {
        let named = [("run", run.as_str()), ("one as who decides", by)];
        named.into_iter().try_for_each(|(what, text)| given(what, text))?;
        let (run, by, note) = (run.clone(), by.to_owned(), note.to_owned());
        self.decide(move |records| records.cancel(&run, &by, &note)).await
    }
}

#[async_trait]
impl RunReader for Local {
    async fn run(&self, run: &RunId) -> Result<ListedRun, Error> {
        let run = run.clone();
        self.read(move |records| {
            let found = records.read(|reader| reader.listed_run(&run))?;
            let mut found = found.ok_or(view::Error::NoRun(run))?;
            found.goal = bound_string(found.goal);
            found.reason_detail = bound_string(found.reason_detail);
            found.result = found.result.map(|result| Json::trusted(bounded(&result).to_string()));
            Ok(found)
        })
        .await
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|panic| Err(Error::Failed(Box::new(panic))))
}

fn shown(reader: &Reader<'_>, approval: Approval, now: UnixNanos) -> Result<Pending, ReadError> {
    // An id that a page cut names no row; what it names is shown without a reason.
    let reason = reader.approval_reason(&approval.run_id, &approval.id)?.unwrap_or_default();
    let attempt_came_to = view::attempt_came_to(reader, &approval)?;
    let expired = approval.is_past_expiry(now);
    Ok(Pending { approval, reason, expired, attempt_came_to })
}

fn check(decision: &Decision) -> Result<(), Error> {
    given("run", decision.run.as_str())?;
    given("approval", decision.approval.as_str())?;
    given("one as who decides", &decision.by)
}

fn given(what: &'static str, text: &str) -> Result<(), Error> {
    if text.is_empty() { Err(Error::Incomplete(what)) } else { Ok(()) }
}
