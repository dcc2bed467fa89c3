//! Asking a model: what is recorded and charged, what a limit refuses before anything is sent, what is tried again.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{BoxFuture, join};
use holdpoint_actors::clock::monotonic;
use holdpoint_actors::faults::Failure;
use holdpoint_actors::model::{Model, ModelError};
use holdpoint_actors::session::{
    AgentError, Attached, Beginning, CallError, GateError, ModelConfig, OpenStep, Pace, Session, SessionError,
};
use holdpoint_actors::store;
use holdpoint_core::accounting::{CallStatus, ModelCall, project};
use holdpoint_core::decision::Proposal;
use holdpoint_core::model::{Block, Message, ModelRequest, ModelResponse, Price, PriceTable, Role, Usage};
use holdpoint_core::run::{Limits, ModelTotals, Reason, RunStatus};
use tokio::sync::Semaphore;

use crate::bench::*;

type Answer = Result<ModelResponse, ModelError>;
type Play = Box<dyn FnOnce() -> BoxFuture<'static, Answer> + Send>;

/// A model that plays what a test wrote, and remembers what it was asked.
#[derive(Default)]
struct Played {
    plays: Mutex<VecDeque<Play>>,
    asked: Mutex<Vec<ModelRequest>>,
}

impl Played {
    fn answers(answers: impl IntoIterator<Item = Answer>) -> Arc<Played> {
        let played = Played::default();
        for answer in answers {
            played.then(|| Box::pin(async move { answer }));
        }
        Arc::new(played)
    }

    fn then(&self, play: impl FnOnce() -> BoxFuture<'static, Answer> + Send + 'static) {
        self.plays.lock().unwrap().push_back(Box::new(play));
    }

    fn asked(&self) -> Vec<ModelRequest> {
        self.asked.lock().unwrap().clone()
    }
}

#[async_trait]
impl Model for Played {
    fn name(&self) -> &str {
        "paid"
    }

    async fn generate(&self, request: &ModelRequest) -> Answer {
        self.asked.lock().unwrap().push(request.clone());
        let play = self.plays.lock().unwrap().pop_front().expect("the test wrote no more answers");
        play().await
    }
}

const USAGE: Usage = Usage { input_tokens: 300, output_tokens: 40, cached_input_tokens: 0 };
/// At a dollar for a million tokens read and five for a million written.
const COST: i64 = 300 + 40 * 5;

fn prices() -> PriceTable {
    PriceTable::default().with("paid", Price { input: 1_000_000, output: 5_000_000, cached_input: 100_000 })
}

fn said(usage: Usage) -> Answer {
    Ok(ModelResponse { text: "ok".to_owned(), usage, ..ModelResponse::default() })
}

fn transient(retry_after: Option<Duration>) -> Answer {
    Err(ModelError::Transient { why: "too busy".to_owned(), retry_after })
}

fn request() -> ModelRequest {
    let go = Message { role: Role::User, content: vec![Block::text("go")] };
    ModelRequest { messages: vec![go], max_output_tokens: 50, ..ModelRequest::default() }
}

/// A database, one program over it with a model, and a run with an open step.
struct Asking {
    bench: Bench,
    process: Process,
    model: Arc<Played>,
    session: Session,
    step: OpenStep,
}

impl Asking {
    async fn new(model: Arc<Played>, limits: Limits) -> Asking {
        Asking::with(model, limits, |_| {}).await
    }

    async fn with(model: Arc<Played>, limits: Limits, more: impl FnOnce(&mut ModelConfig)) -> Asking {
        let mut config = ModelConfig::new(Arc::clone(&model) as Arc<dyn Model>).prices(prices());
        config.backoff = Duration::from_millis(1);
        more(&mut config);
        let bench = Bench::new();
        let options = store::Options::default();
        let process =
            bench.process_with(&tools(), by_class(), options, |spec| spec.model = Some(config)).await;
        let session = process.gate.begin(r(), "g", limits).await.unwrap();
        let step = session.step().await.unwrap().unwrap();
        Asking { bench, process, model, session, step }
    }

    async fn ask(&self) -> Result<ModelResponse, CallError> {
        self.step.model().generate(&request()).await
    }

    fn calls(&self) -> Vec<ModelCall> {
        self.bench.operator().read(|reader| reader.model_calls(&r())).unwrap()
    }

    fn totals(&self) -> ModelTotals {
        self.bench.run(&r()).totals
    }

    fn statuses(&self) -> Vec<CallStatus> {
        self.calls().iter().map(|call| call.status).collect()
    }

    /// Waits until every attempt has an outcome.
    async fn settled(&self) {
        while self.statuses().contains(&CallStatus::Dispatched) {
            tokio::task::yield_now().await;
        }
    }
}

fn estimate() -> (Usage, i64) {
    let usage = project(&request());
    (usage, usage.input_tokens + usage.output_tokens * 5)
}

#[track_caller]
fn is_limit<T>(result: Result<T, CallError>, expected: Reason) -> String {
    match result {
        Err(CallError::Limit { reason, detail }) if reason == expected => detail,
        Err(other) => panic!("another error: {other}"),
        Ok(_) => panic!("it was sent"),
    }
}

#[track_caller]
fn is_unavailable<T>(result: Result<T, CallError>, expected: u32) -> String {
    match result {
        Err(CallError::Unavailable { attempts, last }) if attempts == expected => last,
        Err(other) => panic!("another error: {other}"),
        Ok(_) => panic!("it was answered"),
    }
}

#[tokio::test]
async fn an_attempt_is_recorded_before_it_is_sent_and_charged_what_is_reported() {
    let usage = Usage { cached_input_tokens: 100, ..USAGE };
    let asking = Asking::new(Played::answers([said(usage)]), limits()).await;
    assert_eq!(asking.step.model().model(), Some("paid"));
    let before = (asking.process.counts().await, asking.bench.clock.count());
    let response = asking.session.input().await.unwrap().model.generate(&request()).await.unwrap();
    assert_eq!(response.text, "ok");
    assert_eq!(asking.bench.clock.count() - before.1, 2, "one reading for each end of it");
    let after = asking.process.counts().await;
    assert_eq!(after.synced_commits - before.0.synced_commits, 1, "its dispatch");
    assert_eq!(after.written_commits - before.0.written_commits, 1, "its outcome");

    let call = asking.calls().pop().unwrap();
    let cost = 200 + 10 + 40 * 5;
    assert_eq!((call.status, call.attempt, call.model.as_str()), (CallStatus::Ok, 1, "paid"));
    assert_eq!((call.usage, call.cost_micros, call.latency_ms), (usage, cost, 1_000));
    assert_eq!((&call.step_id, call.error.as_str()), (asking.step.id(), ""));
    let totals = ModelTotals {
        model_calls: 1,
        input_tokens: 300,
        output_tokens: 40,
        cached_input_tokens: 100,
        estimated_cost_micros: cost,
    };
    assert_eq!(asking.totals(), totals);
    let events = asking.bench.events(&r());
    let payloads: Vec<_> = events
        .iter()
        .filter(|e| e.kind.starts_with("model."))
        .map(|e| e.payload.replace(call.id.as_str(), "#"))
        .collect();
    assert_eq!(
        payloads,
        [
            r##"{"attempt":1,"call_id":"#","model":"paid"}"##.to_owned(),
            format!(
                concat!(
                    r##"{{"attempt":1,"call_id":"#","cost_micros":{},"error":"","latency_ms":1000,"model":"paid","##,
                    r##""status":"ok","usage":{{"input_tokens":300,"output_tokens":40,"cached_input_tokens":100}}}}"##
                ),
                cost
            )
        ]
    );
    assert_eq!(asking.process.seen.events(), events, "an observer hears of each, in order");

    let ended = ended(asking.step.propose(Proposal::complete("")).await.unwrap());
    assert_eq!(
        (ended.totals, asking.session.run().await.totals),
        (totals, totals),
        "the run as it is stored"
    );
    asking.bench.verify();
}

#[tokio::test]
async fn an_attempt_stands_in_the_record_while_the_model_is_asked() {
    let model = Played::answers([]);
    let asking = Asking::new(Arc::clone(&model), limits()).await;
    let path = asking.bench.path();
    let seen = Arc::new(Mutex::new(None));
    let put = Arc::clone(&seen);
    model.then(move || {
        Box::pin(async move {
            let mut record = store::OperatorStore::open(&path, true).unwrap();
            let found = record.read(|reader| Ok((reader.model_calls(&r())?, reader.events(&r())?))).unwrap();
            *put.lock().unwrap() = Some(found);
            said(USAGE)
        })
    });
    asking.ask().await.unwrap();
    let (calls, events) = seen.lock().unwrap().take().unwrap();
    let call = &calls[0];
    assert_eq!((calls.len(), call.status, call.usage), (1, CallStatus::Dispatched, Usage::default()));
    assert_eq!((call.attempt, call.completed_at), (1, None));
    assert_eq!(events.last().unwrap().kind, "model.dispatched");
    assert_eq!(asking.statuses(), [CallStatus::Ok]);
}

#[tokio::test]
async fn a_policy_sees_the_totals_of_the_steps_start() {
    let model = Played::answers([said(USAGE), said(USAGE)]);
    let rules = always(holdpoint_core::policy::PolicyDecision::allow(""));
    let bench = Bench::new();
    let config = ModelConfig::new(model as Arc<dyn Model>);
    let process = bench
        .process_with(&tools(), rules.clone(), store::Options::default(), |spec| spec.model = Some(config))
        .await;
    let session = process.begin().await;
    for n in [1, 2] {
        let step = session.step().await.unwrap().unwrap();
        step.model().generate(&request()).await.unwrap();
        allowed(&step.propose(call("read", &format!("{{\"n\":{n}}}"))).await.unwrap());
        step.execute().await.unwrap();
    }
    let seen: Vec<_> = rules.asked().iter().map(|(_, view)| view.run.totals.model_calls).collect();
    assert_eq!(seen, [0, 1]);
    assert_eq!(
        bench.run(&r()).totals.estimated_cost_micros,
        0,
        "without a price it costs nothing on the books"
    );
    bench.verify();
}

#[tokio::test]
async fn a_limit_on_calls_stops_before_anything_is_sent_and_ends_the_run_with_its_reason() {
    let limits = Limits { max_model_calls: 1, ..limits() };
    let asking = Asking::new(Played::answers([said(USAGE)]), limits).await;
    asking.ask().await.unwrap();
    let error = asking.ask().await.unwrap_err();
    assert!(error.to_string().starts_with("limit_model_calls: 1 model calls were made"), "{error}");
    assert_eq!((asking.model.asked().len(), asking.calls().len()), (1, 1));

    // However it is wrapped, the run ends with the limit's reason.
    #[derive(Debug, thiserror::Error)]
    #[error("the agent could not plan")]
    struct Wrapped(#[source] CallError);
    let run = ended(asking.step.fail(Wrapped(error)).await.unwrap());
    is(&run, RunStatus::Failed, Reason::LimitModelCalls);
    assert!(run.reason_detail.starts_with("the agent could not plan: limit_model_calls: "), "{run:?}");
    assert!(asking.bench.kinds(&r()).ends_with("step.failed limit.exceeded run.finished"));
    asking.bench.verify();
}

#[tokio::test]
async fn limits_on_tokens_and_cost_count_what_the_request_may_come_to() {
    let (usage, cost) = estimate();
    let tokens = USAGE.input_tokens + USAGE.output_tokens + usage.input_tokens + usage.output_tokens;
    for (limits, enough) in [
        (Limits { max_total_tokens: tokens, ..limits() }, true),
        (Limits { max_total_tokens: tokens - 1, ..limits() }, false),
        (Limits { max_estimated_cost_micros: COST + cost, ..limits() }, true),
        (Limits { max_estimated_cost_micros: COST + cost - 1, ..limits() }, false),
    ] {
        let reason = if limits.max_total_tokens > 0 { Reason::LimitTokens } else { Reason::LimitCost };
        let asking = Asking::new(Played::answers([said(USAGE), said(USAGE)]), limits).await;
        asking.ask().await.unwrap();
        let again = asking.ask().await;
        if enough {
            again.unwrap();
        } else {
            is_limit(again, reason);
            assert_eq!(asking.model.asked().len(), 1, "nothing was sent");
        }
    }
}

#[tokio::test]
async fn the_runs_output_cap_lowers_a_requests_and_stands_in_for_a_missing_one() {
    let limits = Limits { max_total_tokens: 1_000_000, max_output_tokens_per_call: 30, ..limits() };
    let asking = Asking::new(Played::answers([said(USAGE), said(USAGE), said(USAGE)]), limits.clone()).await;
    for cap in [0, 50, 20] {
        let request = ModelRequest { max_output_tokens: cap, ..request() };
        asking.step.model().generate(&request).await.unwrap();
    }
    let caps: Vec<_> = asking.model.asked().iter().map(|request| request.max_output_tokens).collect();
    assert_eq!(caps, [30, 30, 20]);

    let uncapped = ModelRequest { max_output_tokens: 0, ..request() };
    let asking = Asking::new(Played::answers([]), Limits { max_output_tokens_per_call: 0, ..limits }).await;
    is_limit(asking.step.model().generate(&uncapped).await, Reason::LimitTokens);
}

#[tokio::test]
async fn where_cost_is_limited_a_model_without_a_price_is_refused_unless_it_is_free() {
    let limits = Limits { max_estimated_cost_micros: 1, ..limits() };
    let unpriced = |config: &mut ModelConfig| config.prices = PriceTable::default();
    let asking = Asking::with(Played::answers([]), limits.clone(), unpriced).await;
    let detail = is_limit(asking.ask().await, Reason::LimitCost);
    assert!(detail.contains("\"paid\" has no price"), "{detail}");

    let free =
        |config: &mut ModelConfig| config.prices = PriceTable::default().with("paid", Price::default());
    Asking::with(Played::answers([said(USAGE)]), limits.clone(), free).await.ask().await.unwrap();
    let let_off = |config: &mut ModelConfig| {
        config.prices = PriceTable::default();
        config.refuse_unpriced = false;
    };
    Asking::with(Played::answers([said(USAGE)]), limits, let_off).await.ask().await.unwrap();
}

#[tokio::test]
async fn requests_at_once_are_held_to_the_limit_together() {
    let model = Played::answers([]);
    let out = Arc::new(Semaphore::new(0));
    let go = Arc::clone(&out);
    model.then(move || {
        Box::pin(async move {
            go.acquire().await.unwrap().forget();
            said(USAGE)
        })
    });
    let asking = Asking::new(model, Limits { max_model_calls: 1, ..limits() }).await;
    let (one, other) = (asking.step.model(), asking.session.current().await.unwrap().model());
    let request = request();
    let first = async { one.generate(&request).await };
    let second = async {
        while asking.model.asked().is_empty() {
            tokio::task::yield_now().await;
        }
        let refused = other.generate(&request).await;
        out.add_permits(1);
        refused
    };
    let (first, second) = join(first, second).await;
    first.unwrap();
    is_limit(second, Reason::LimitModelCalls);
    assert_eq!((asking.model.asked().len(), asking.totals().model_calls), (1, 1));
}

#[tokio::test]
async fn what_may_be_served_later_is_asked_again_and_every_attempt_counts() {
    let model = Played::answers([transient(None), transient(Some(Duration::from_millis(2))), said(USAGE)]);
    let asking = Asking::with(model, limits(), |config| config.max_retries = 2).await;
    asking.ask().await.unwrap();
    assert_eq!(asking.statuses(), [CallStatus::Error, CallStatus::Error, CallStatus::Ok]);
    let calls = asking.calls();
    assert_eq!(calls.iter().map(|call| call.attempt).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!((calls[0].cost_micros, calls[0].error.as_str()), (0, "transient: too busy"));
    assert_eq!((asking.totals().model_calls, asking.totals().estimated_cost_micros), (3, COST));
    assert_eq!(
        asking.bench.kinds(&r()),
        "run.created run.started step.started model.dispatched model.failed model.dispatched model.failed \
         model.dispatched model.completed"
    );
    asking.bench.verify();
}

#[tokio::test]
async fn a_model_that_stays_unavailable_ends_the_run_as_that() {
    let asking = Asking::with(Played::answers([transient(None), transient(None)]), limits(), |config| {
        config.max_retries = 1;
    })
    .await;
    let error = asking.ask().await.unwrap_err();
    assert_eq!(error, CallError::Unavailable { attempts: 2, last: "transient: too busy".to_owned() });
    let run = ended(asking.step.fail(error).await.unwrap());
    is(&run, RunStatus::Failed, Reason::ModelUnavailable);
    assert_eq!(run.totals.model_calls, 2);
    assert!(asking.bench.kinds(&r()).ends_with("step.failed limit.exceeded run.finished"));
}

#[tokio::test]
async fn a_retry_is_a_call_of_its_own_against_the_limits() {
    let limits = Limits { max_model_calls: 1, ..limits() };
    let asking =
        Asking::with(Played::answers([transient(None)]), limits, |config| config.max_retries = 5).await;
    is_limit(asking.ask().await, Reason::LimitModelCalls);
    assert_eq!(asking.model.asked().len(), 1);
}

#[tokio::test]
async fn a_wait_that_is_too_long_is_not_begun() {
    let hour = Duration::from_secs(3600);
    let patient = |config: &mut ModelConfig| {
        config.max_retries = 3;
        config.max_retry_after = Duration::from_secs(60);
    };
    let asking = Asking::with(Played::answers([transient(Some(hour))]), limits(), patient).await;
    let last = is_unavailable(asking.ask().await, 1);
    assert!(last.contains("asks for a wait of 3600s") && last.contains("too busy"), "{last}");

    let elapsed = Limits { max_elapsed_time: 30_000_000_000, ..limits() };
    let asking =
        Asking::with(Played::answers([transient(Some(Duration::from_secs(40)))]), elapsed, patient).await;
    assert!(is_unavailable(asking.ask().await, 1).contains("elapsed time"));

    let asking =
        Asking::with(Played::answers([transient(Some(Duration::from_secs(40)))]), limits(), patient).await;
    let hurried = asking.step.model().until(monotonic() + Duration::from_secs(20));
    assert!(is_unavailable(hurried.generate(&request()).await, 1).contains("deadline"));
    asking.bench.verify();
}

#[tokio::test]
async fn what_is_sent_without_an_answer_is_charged_its_estimate_and_tried_again() {
    let lost = Err(ModelError::NoAnswer { why: "connection reset".to_owned() });
    let asking =
        Asking::with(Played::answers([lost, said(USAGE)]), limits(), |config| config.max_retries = 1).await;
    asking.ask().await.unwrap();
    let calls = asking.calls();
    let (usage, cost) = estimate();
    assert_eq!((calls[0].status, calls[0].usage, calls[0].cost_micros), (CallStatus::Ambiguous, usage, cost));
    let totals = asking.totals();
    assert_eq!((totals.model_calls, totals.estimated_cost_micros), (2, cost + COST));

    let silent = Played::answers([]);
    silent.then(|| Box::pin(std::future::pending()));
    let asking =
        Asking::with(silent, limits(), |config| config.call_timeout = Duration::from_millis(5)).await;
    assert!(is_unavailable(asking.ask().await, 1).contains("no answer within"));
    assert_eq!(asking.statuses(), [CallStatus::Ambiguous]);
    asking.bench.verify();
}

#[tokio::test]
async fn what_was_served_is_charged_as_reported_and_never_asked_for_again() {
    let served = Err(ModelError::Served { usage: USAGE, why: "arguments are not JSON".to_owned() });
    let asking = Asking::with(Played::answers([served]), limits(), |config| config.max_retries = 3).await;
    assert_eq!(is_unavailable(asking.ask().await, 1), "arguments are not JSON");
    let call = asking.calls().pop().unwrap();
    assert_eq!((call.status, call.usage, call.cost_micros), (CallStatus::Error, USAGE, COST));
    assert_eq!(asking.totals().estimated_cost_micros, COST);

    let refused = Err(ModelError::Permanent { why: "no such model".to_owned() });
    let asking = Asking::with(Played::answers([refused]), limits(), |config| config.max_retries = 3).await;
    is_unavailable(asking.ask().await, 1);
    assert_eq!((asking.totals().model_calls, asking.totals().estimated_cost_micros), (1, 0));
}

#[tokio::test]
async fn usage_that_cannot_be_charged_costs_the_estimate_and_the_reply_is_not_used() {
    let negative = Usage { input_tokens: -5, ..USAGE };
    let cached = Usage { cached_input_tokens: 301, ..USAGE };
    let unreadable = Err(ModelError::UnusableUsage { why: "prompt_tokens is 1e9".to_owned() });
    for answer in [said(negative), said(cached), unreadable] {
        let asking = Asking::with(Played::answers([answer]), limits(), |config| config.max_retries = 3).await;
        is_unavailable(asking.ask().await, 1);
        let call = asking.calls().pop().unwrap();
        let (usage, cost) = estimate();
        assert_eq!((call.status, call.usage, call.cost_micros), (CallStatus::Error, usage, cost));
        assert_eq!(asking.totals().input_tokens, usage.input_tokens);
    }
}

#[tokio::test]
async fn totals_stop_at_the_largest_number_and_the_next_call_is_refused() {
    let huge = Usage { input_tokens: i64::MAX, output_tokens: i64::MAX, cached_input_tokens: 0 };
    let limits = Limits { max_total_tokens: i64::MAX, ..limits() };
    let asking = Asking::new(Played::answers([said(USAGE), said(huge)]), limits).await;
    asking.ask().await.unwrap();
    asking.ask().await.unwrap();
    let totals = asking.totals();
    assert_eq!((totals.input_tokens, totals.output_tokens), (i64::MAX, i64::MAX));
    assert_eq!((totals.estimated_cost_micros, totals.model_calls), (i64::MAX, 2));
    is_limit(asking.ask().await, Reason::LimitTokens);
}

#[tokio::test]
async fn a_caller_that_goes_away_leaves_its_attempt_recorded_and_charged() {
    let model = Played::answers([]);
    model.then(|| Box::pin(std::future::pending()));
    let asking = Asking::new(model, limits()).await;
    {
        let caller = asking.step.model();
        let request = request();
        let generating = std::pin::pin!(caller.generate(&request));
        let out = async {
            while asking.model.asked().is_empty() {
                tokio::task::yield_now().await;
            }
        };
        futures_util::future::select(generating, std::pin::pin!(out)).await;
    }
    asking.settled().await;
    assert_eq!(asking.statuses(), [CallStatus::Ambiguous]);
    assert_eq!(asking.totals().estimated_cost_micros, estimate().1);
    asking.bench.verify();
}

#[tokio::test]
async fn an_adapter_that_panics_is_an_attempt_without_an_answer() {
    let model = Played::answers([]);
    model.then(|| Box::pin(async { panic!("no such field") }));
    let asking = Asking::with(model, limits(), |config| config.max_retries = 3).await;
    let last = is_unavailable(asking.ask().await, 1);
    assert!(last.contains("panicked: no such field"), "{last}");
    assert_eq!(asking.statuses(), [CallStatus::Ambiguous], "it may have been sent");
}

#[tokio::test]
async fn nothing_is_sent_once_the_lease_is_lost() {
    let asking = Asking::new(Played::answers([]), limits()).await;
    asking.bench.sql("UPDATE runs SET lease_owner = 'somebody else'");
    let error = asking.ask().await.unwrap_err();
    assert_eq!(error, CallError::Session(SessionError::LeaseLost(r())));
    assert!(asking.model.asked().is_empty() && asking.calls().is_empty());
    is_lease_lost(asking.step.fail(error).await);
    assert_eq!(asking.bench.run(&r()).status, RunStatus::Running, "it is its next owner's");
}

#[tokio::test]
async fn a_record_that_cannot_be_reached_is_not_the_runs_fault() {
    let asking = Asking::new(Played::answers([]), limits()).await;
    let error = CallError::Session(SessionError::Unavailable("the disk is full".to_owned()));
    let failed = asking.step.fail(error).await;
    assert_eq!(failed.unwrap_err(), SessionError::Unavailable("the disk is full".to_owned()));
    assert_eq!(asking.bench.run(&r()).status, RunStatus::Running);
    assert!(!asking.bench.kinds(&r()).contains("step.failed"));
}

#[tokio::test]
async fn a_cancelled_run_asks_no_model_and_is_not_failed_for_it() {
    let asking = Asking::new(Played::answers([]), limits()).await;
    asking.bench.cancel(&r());
    let error = asking.ask().await.unwrap_err();
    assert_eq!(error, CallError::Session(SessionError::LeaseLost(r())));
    let run = ended(asking.step.fail(error).await.unwrap());
    is(&run, RunStatus::Cancelled, Reason::OperatorCancelled);
    asking.bench.verify();
}

#[tokio::test]
async fn an_outcome_is_charged_also_when_the_run_was_cancelled_meanwhile() {
    let model = Played::answers([]);
    let asking = Asking::new(Arc::clone(&model), limits()).await;
    let path = asking.bench.path();
    let wall = Arc::clone(&asking.bench.wall);
    model.then(move || {
        Box::pin(async move {
            let now = holdpoint_actors::clock::Clock::now(&*wall);
            store::OperatorStore::open(&path, false).unwrap().cancel(&r(), "ana", "stop", now).unwrap();
            said(USAGE)
        })
    });
    asking.ask().await.unwrap();
    assert_eq!(asking.totals().estimated_cost_micros, COST);
    assert!(asking.bench.kinds(&r()).ends_with("run.finished model.completed"));
}

#[tokio::test]
async fn an_attempt_whose_writer_died_in_the_middle_is_recorded_by_the_next_one() {
    let model = Played::answers([]);
    let asking = Asking::new(Arc::clone(&model), limits()).await;
    let writer = asking.process.tree().store.address().clone();
    model.then(move || {
        Box::pin(async move {
            assert!(writer.tell(store::Msg::Fail(Failure::Panic)));
            said(USAGE)
        })
    });
    asking.ask().await.unwrap();
    assert_eq!(asking.statuses(), [CallStatus::Ok]);
    assert_eq!(asking.totals().model_calls, 1, "charged once");
    asking.bench.verify();
}

#[tokio::test]
async fn a_step_without_a_model_or_a_hold_asks_nobody() {
    let bench = Bench::new();
    let process = bench.process(&tools(), by_class()).await;
    let session = process.begin().await;
    let step = session.step().await.unwrap().unwrap();
    assert_eq!(step.model().generate(&request()).await.unwrap_err(), CallError::NoModel);
    assert_eq!(session.input().await.unwrap().model.model(), None);
    let run = ended(step.fail(CallError::NoModel).await.unwrap());
    is(&run, RunStatus::Failed, Reason::AgentError);

    let asking = Asking::new(Played::answers([]), limits()).await;
    let approval = pending(asking.step.propose(call("push", "{}")).await.unwrap());
    asking.bench.approve(&approval);
    let Ok(Attached::Allowed(session, step)) = asking.process.gate.attach(r()).await else {
        panic!("granted")
    };
    let waiting = step.model().generate(&request()).await;
    assert!(matches!(waiting, Err(CallError::Session(SessionError::RunState { .. }))), "{waiting:?}");
    step.execute().await.unwrap();
    assert_eq!(session.input().await.unwrap().model.model(), None, "no step is open");
    asking.bench.verify();
}

#[tokio::test]
async fn a_model_is_asked_for_a_step_that_is_recorded_at_either_pace() {
    let bench = Bench::new();
    let model = Played::answers([said(USAGE)]);
    let config = ModelConfig::new(model as Arc<dyn Model>);
    let process = bench
        .process_with(&tools(), by_class(), store::Options::default(), |spec| spec.model = Some(config))
        .await;
    let beginning = Beginning { pace: Pace::Effects, ..Beginning::default() };
    let session = process.gate.begin_with(r(), "g", limits(), beginning).await.unwrap();
    let step = session.step().await.unwrap().unwrap();
    step.model().generate(&request()).await.unwrap();
    allowed(&step.propose(call("finish", "{}")).await.unwrap());
    assert!(step.execute().await.unwrap().run_over);
    assert_eq!(bench.run(&r()).totals.model_calls, 1);
    bench.verify();
}

#[tokio::test]
async fn a_model_that_cannot_be_asked_makes_no_gate() {
    let bench = Bench::new();
    let process = bench.process(&tools(), by_class()).await;
    let mut config = ModelConfig::new(Played::answers([]) as Arc<dyn Model>);
    config.call_timeout = Duration::ZERO;
    let mut spec = holdpoint_actors::session::GateSpec::new(by_class(), Vec::new());
    spec.model = Some(config);
    let refused = holdpoint_actors::session::Gate::new(process.tree().clone(), spec);
    assert_eq!(refused.unwrap_err(), GateError::Model("a model call needs a timeout".to_owned()));
}

#[test]
fn an_error_from_elsewhere_says_what_caused_it() {
    let io = std::io::Error::other("no route");
    assert_eq!(AgentError::from(io).to_string(), "no route");
    let error = AgentError::from(CallError::NoModel);
    assert_eq!((error.reason(), error.call()), (Reason::AgentError, Some(&CallError::NoModel)));
    assert_eq!(AgentError::msg("gave up").reason(), Reason::AgentError);
}
