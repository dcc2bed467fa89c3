//! Re-checking a run: its record is read page by page, and a policy is asked again what it was asked then.
//!
//! Owns the reading and the asking; what is rebuilt and when two answers are the same is core's
//! ([`holdpoint_core::recheck`]). Writes nothing and reads no clock, so it works on the record of a program that runs. A
//! policy is contained as it is in the evaluator: a panic, an error or an overrun is a failure to answer.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use holdpoint_core::ids::RunId;
use holdpoint_core::policy::{PolicyDecision, PolicyView, check_policy_id};
use holdpoint_core::recheck::{Evaluation, Question, Rebuilt, Record, Report, SpecSource};
use holdpoint_core::tool::{ToolRequest, ToolSpec};
use tokio::sync::Semaphore;

use crate::policy::{EVALUATION_TIMEOUT, EVALUATIONS_MAX, Policy};
use crate::schema::ArgumentSchema;
use crate::store::{ReadError, Reader};

/// How many rows are read at a time. Their texts are cut at [`TEXT_CHARS_MAX`](crate::store::TEXT_CHARS_MAX) characters.
pub const PAGE_ROWS: i64 = 128;

/// Why nothing was re-checked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecheckError {
    /// The policy's identity is one that a gate would refuse.
    #[error("ask the policy: {0}")]
    Policy(String),
    /// A current tool is one that a gate would refuse.
    #[error("take tool {tool:?} for a current one: {why}")]
    Tool {
        /// Which.
        tool: String,
        /// Why.
        why: String,
    },
}

/// Reads of a run what re-checking needs, in one snapshot; `None` when there is no such run.
///
/// # Errors
/// When the database can't be read. What is damaged in it is no error: the report says what could not be re-checked.
pub fn read(reader: &Reader<'_>, run: &RunId) -> Result<Option<Record>, ReadError> {
    let Some(listed) = reader.listed_run(run)? else { return Ok(None) };
    let mut record = Record::new(run.clone(), listed.status);
    let mut seq = 0;
    loop {
        let page = reader.events_after(Some(run), seq, PAGE_ROWS)?;
        page.iter().for_each(|event| record.read_event(event));
        match page.last() {
            Some(last) if last.seq > seq => seq = last.seq,
            Some(_) | None => break,
        }
    }
    let mut read = 0;
    loop {
        let page = reader.steps_page(run, PAGE_ROWS, read)?;
        let rows = i64::try_from(page.rows.len()).unwrap_or(i64::MAX);
        page.rows.into_iter().for_each(|step| record.read_step(step));
        read = read.saturating_add(rows);
        if rows < PAGE_ROWS {
            break;
        }
    }
    // A policy saw each approval whole. The one after them tells what a person was asked next.
    let wanted = i64::try_from(record.approvals_wanted()).unwrap_or(i64::MAX);
    let first = reader.first_approvals(run, wanted.saturating_add(1))?;
    record.read_approvals(first.rows, usize::try_from(first.total).unwrap_or(0));
    for hash in record.specs_wanted() {
        let found = match reader.spec(&hash) {
            Ok(found) => Ok(found),
            Err(altered @ ReadError::AlteredSpec { .. }) => Err(altered.to_string()),
            Err(error) => return Err(error),
        };
        record.read_spec(hash, found);
    }
    Ok(Some(record))
}

/// The tools as they are now, by name.
#[derive(Debug)]
pub struct CurrentTools(BTreeMap<String, Current>);

#[derive(Debug)]
struct Current {
    spec: ToolSpec,
    schema: ArgumentSchema,
}

impl CurrentTools {
    /// Takes the specs of tools, and compiles their schemas.
    ///
    /// # Errors
    /// The first tool whose name is taken or whose schema a gate would refuse.
    pub fn of(specs: impl IntoIterator<Item = ToolSpec>) -> Result<CurrentTools, RecheckError> {
        let mut tools = BTreeMap::new();
        for spec in specs {
            let name = spec.name.clone();
            let refuse = |why: String| RecheckError::Tool { tool: name.clone(), why };
            let schema = ArgumentSchema::compile(&spec.input_schema).map_err(refuse)?;
            if tools.insert(name.clone(), Current { spec, schema }).is_some() {
                return Err(refuse("the name is given twice".to_owned()));
            }
        }
        Ok(CurrentTools(tools))
    }

    /// Puts the tool's spec of now into a question, or says what refuses the call before the policy.
    fn put_into(&self, mut question: Question) -> Result<Question, Box<Evaluation>> {
        let Some(tool) = self.0.get(question.tool()) else { return Err(Box::new(question.is_not_offered())) };
        if let Err(why) = tool.schema.check(&question.request().args) {
            return Err(Box::new(question.does_not_fit(&why)));
        }
        question.under(tool.spec.clone());
        Ok(question)
    }
}

/// A policy that recorded runs are put to again.
#[derive(Clone)]
pub struct Rechecker {
    policy: Arc<dyn Policy>,
    policy_id: String,
    tools: Option<Arc<CurrentTools>>,
    /// An evaluation that overran keeps its permit, so that a policy that hangs costs a bounded number of threads.
    permits: Arc<Semaphore>,
    timeout: Duration,
}

impl fmt::Debug for Rechecker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rechecker").field("policy_id", &self.policy_id).finish_non_exhaustive()
    }
}

impl Rechecker {
    /// Takes the policy to ask. Each request carries the spec that was recorded with it.
    ///
    /// # Errors
    /// When the policy's identity is one that a gate would refuse.
    pub fn new(policy: Arc<dyn Policy>) -> Result<Rechecker, RecheckError> {
        let policy_id = policy.id().unwrap_or_default();
        check_policy_id(&policy_id).map_err(RecheckError::Policy)?;
        let permits = Arc::new(Semaphore::new(EVALUATIONS_MAX));
        Ok(Rechecker { policy, policy_id, tools: None, permits, timeout: EVALUATION_TIMEOUT })
    }

    /// Hands each request the spec that its tool has now, after checking its arguments against that tool's schema.
    #[must_use]
    pub fn with_current_tools(mut self, tools: Arc<CurrentTools>) -> Rechecker {
        self.tools = Some(tools);
        self
    }

    /// Bounds one evaluation, in place of [`EVALUATION_TIMEOUT`].
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Rechecker {
        self.timeout = timeout;
        self
    }

    /// Asks the policy again what the run's record says it was asked.
    pub async fn recheck(&self, record: &Record) -> Report {
        let mut evaluations = Vec::new();
        for rebuilt in record.rebuild() {
            evaluations.push(match rebuilt {
                Rebuilt::Settled(evaluation) => *evaluation,
                Rebuilt::Question(question) => self.settle(*question).await,
            });
        }
        let source = if self.tools.is_some() { SpecSource::Current } else { SpecSource::Recorded };
        record.report(evaluations, &self.policy_id, source)
    }

    async fn settle(&self, question: Question) -> Evaluation {
        let question = match &self.tools {
            None => question,
            Some(tools) => match tools.put_into(question) {
                Ok(question) => question,
                Err(evaluation) => return *evaluation,
            },
        };
        match question.handed() {
            Ok(request) => {
                let answer = self.ask(request, question.view().clone()).await;
                question.settle(answer)
            }
            Err(error) => question.can_t_be_asked(&format!("the request has no policy form: {error}")),
        }
    }

    /// Asks the policy, as the evaluator does: on a thread of its own, where it may panic or hang.
    async fn ask(&self, request: ToolRequest, view: PolicyView) -> Result<PolicyDecision, String> {
        let (policy, permits) = (Arc::clone(&self.policy), Arc::clone(&self.permits));
        let runtime = tokio::runtime::Handle::current();
        let asking = async {
            let permit = permits.acquire_owned().await.map_err(|closed| closed.to_string())?;
            let evaluation = tokio::task::spawn_blocking(move || {
                let _permit = permit;
                let evaluate = || runtime.block_on(policy.evaluate(&request, &view));
                std::panic::catch_unwind(AssertUnwindSafe(evaluate))
            });
            match evaluation.await {
                Ok(Ok(answer)) => answer.map_err(|error| error.to_string()),
                Ok(Err(panic)) => Err(format!("panic: {}", crate::panic_text(&*panic))),
                Err(_) => Err("the evaluation was cut off".to_owned()),
            }
        };
        let late = |_| Err("the evaluation overran its deadline".to_owned());
        tokio::time::timeout(self.timeout, asking).await.unwrap_or_else(late)
    }
}
