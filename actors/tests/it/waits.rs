//! How long a request is put off that a provider was too busy for, on a clock that the test moves.
//!
//! Tokio's paused clock moves on by itself only when nothing is left to run. Whoever waits here for the store's threads
//! runs all the while, so time stands until a test says otherwise, and no deadline is met by accident.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use holdpoint_actors::model::{Model, ModelError};
use holdpoint_actors::session::{CallError, ModelConfig, OpenStep, Session};
use holdpoint_actors::store;
use holdpoint_core::model::{ModelRequest, ModelResponse};
use holdpoint_core::run::Limits;
use tokio::task::JoinHandle;
use tokio::time::advance;

use crate::bench::*;

/// What the runtime's timers can tell apart.
const TICK: Duration = Duration::from_millis(1);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Awaits `what` while the clock stands.
async fn standing<T>(what: impl Future<Output = T>) -> T {
    let mut what = std::pin::pin!(what);
    std::future::poll_fn(|context| {
        let polled = what.as_mut().poll(context);
        if polled.is_pending() {
            context.waker().wake_by_ref();
        }
        polled
    })
    .await
}

/// A model that is too busy for one request, each time with the next of these waits to ask for, and for no other one.
struct Busy {
    waits: Mutex<VecDeque<Option<Duration>>>,
    asked: Mutex<Vec<String>>,
}

#[async_trait]
impl Model for Busy {
    fn name(&self) -> &str {
        "busy"
    }

    async fn generate(&self, request: &ModelRequest) -> Result<ModelResponse, ModelError> {
        self.asked.lock().unwrap().push(request.system.clone());
        let wait = self.waits.lock().unwrap().pop_front_if(|_| request.system == WANTED);
        match wait {
            Some(retry_after) => Err(ModelError::Transient { why: "too busy".to_owned(), retry_after }),
            None => Ok(ModelResponse { text: request.system.clone(), ..ModelResponse::default() }),
        }
    }
}

/// The request that is put off.
const WANTED: &str = "wanted";

fn asking_for(what: &str) -> ModelRequest {
    ModelRequest { system: what.to_owned(), ..ModelRequest::default() }
}

/// A request that a model is too busy for, and the run that it belongs to.
struct PutOff {
    bench: Bench,
    _process: Process,
    _session: Session,
    step: OpenStep,
    model: Arc<Busy>,
    answer: JoinHandle<Result<ModelResponse, CallError>>,
}

impl PutOff {
    /// Sends the request to a model that asks for these waits, under rules that allow as many retries.
    async fn with(waits: &[Option<Duration>], limits: Limits, more: impl FnOnce(&mut ModelConfig)) -> PutOff {
        let waits = Mutex::new(waits.iter().copied().collect());
        let model = Arc::new(Busy { waits, asked: Mutex::default() });
        let mut config = ModelConfig::new(Arc::<Busy>::clone(&model)).retries(3);
        more(&mut config);
        let bench = Bench::new();
        let process = bench
            .process_with(&tools(), by_class(), store::Options::default(), |spec| spec.model = Some(config))
            .await;
        let session = process.gate.begin(r(), "g", limits).await.unwrap();
        let step = session.step().await.unwrap().unwrap();
        tokio::time::pause();
        let caller = step.model();
        let answer = tokio::spawn(async move { caller.generate(&asking_for(WANTED)).await });
        PutOff { bench, _process: process, _session: session, step, model, answer }
    }

    /// Says how often the request was sent by now.
    ///
    /// Two other requests go all the way first. Whoever is ready to send has its turn at the run's book before the
    /// second of them has, because the book is opened in the order in which it is asked for.
    async fn sent(&self) -> usize {
        for _ in 0..2 {
            standing(self.step.model().generate(&asking_for("something else"))).await.unwrap();
        }
        self.model.asked.lock().unwrap().iter().filter(|asked| *asked == WANTED).count()
    }

    /// Lets `wait` pass, and checks that the request was sent `before` times until a tick before its end, and once more a
    /// tick after it.
    async fn lasts(&self, wait: Duration, before: usize) {
        assert_eq!(self.sent().await, before, "at once");
        advance(wait - TICK).await;
        assert_eq!(self.sent().await, before, "a tick before {wait:?}");
        advance(2 * TICK).await;
        assert_eq!(self.sent().await, before + 1, "a tick after {wait:?}");
    }

    /// Gives the request's answer, which must be there, and how often it was sent; lets the clock go on.
    async fn end(self) -> (Result<ModelResponse, CallError>, usize) {
        let sent = self.sent().await;
        assert!(self.answer.is_finished(), "it is still waiting, sent {sent} times");
        let answer = standing(self.answer).await.unwrap();
        tokio::time::resume();
        self.bench.verify();
        (answer, sent)
    }
}

#[tokio::test]
async fn a_wait_that_a_provider_orders_lasts_as_long_as_it_says() {
    for asked in [2, 7, 60].map(seconds) {
        let put_off = PutOff::with(&[Some(asked)], limits(), |_| {}).await;
        put_off.lasts(asked, 1).await;
        assert_eq!(put_off.end().await.0.unwrap().text, WANTED);
    }
}

#[tokio::test]
async fn a_wait_is_the_longer_one_of_what_is_ordered_and_a_backoff_that_doubles() {
    let waits = [None, Some(seconds(7)), Some(seconds(7))];
    let put_off = PutOff::with(&waits, limits(), |config| config.backoff = seconds(3)).await;
    for (before, wait) in [3, 7, 12].map(seconds).into_iter().enumerate() {
        put_off.lasts(wait, before + 1).await;
    }
    assert_eq!(put_off.end().await.0.unwrap().text, WANTED);
}

#[tokio::test]
async fn a_wait_of_more_than_a_minute_or_than_there_is_room_for_is_not_begun() {
    let elapsed = Limits { max_elapsed_time: 30_000_000_000, ..limits() };
    let active = Limits { max_active_time: 30_000_000_000, ..limits() };
    type More = fn(&mut ModelConfig);
    let cases: [(u64, Limits, More, &str); 5] = [
        (61, limits(), |_| {}, "a wait of 61s, and 60s is the longest"),
        (10, limits(), |config| config.max_retry_after = seconds(9), "a wait of 10s, and 9s is the longest"),
        (40, elapsed, |_| {}, "a wait of 40s would reach the limit of elapsed time"),
        (40, active, |_| {}, "a wait of 40s would reach the limit of active time"),
        (3, limits(), |config| config.max_retries = 0, "too busy"),
    ];
    for (asked, limits, more, told) in cases {
        let put_off = PutOff::with(&[Some(seconds(asked))], limits, more).await;
        let (answer, sent) = put_off.end().await;
        let Err(CallError::Unavailable { attempts: 1, last }) = answer else { panic!("{answer:?}") };
        assert!(last.contains(told), "{last}");
        assert_eq!(sent, 1);
    }
    let put_off =
        PutOff::with(&[Some(seconds(9))], limits(), |config| config.max_retry_after = seconds(9)).await;
    put_off.lasts(seconds(9), 1).await;
    assert_eq!(put_off.end().await.0.unwrap().text, WANTED);
}
