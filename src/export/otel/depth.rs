//! What waits: gauges that are asked for when they are sent.
//!
//! Owns what another process can know of it: what the record says of approvals and runs, and what proxies that serve it
//! answer on their doctor's socket, if any do. A gauge that could not be read is not sent.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use holdpoint_actors::clock::monotonic;
use holdpoint_actors::store::{OpenRuns, OperatorStore};
use holdpoint_core::ids::RunId;
use opentelemetry::KeyValue;
use opentelemetry::metrics::{AsyncInstrument, Meter};
use serde_json::Value;
use tokio::runtime::Handle;

use crate::doctor_socket::observe_all;

/// For how long what was read serves the gauges of one collection.
const FRESH: Duration = Duration::from_secs(1);

/// The most events that are counted as not delivered.
const LAG_MAX: i64 = 1_000_000;

/// How far a follower has come.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// The number of the last event that was delivered.
    pub(super) seq: AtomicI64,
    /// The one run that it follows, if it is one.
    pub(super) run: OnceLock<RunId>,
}

/// Reads what waits, once for all gauges that are collected together.
#[derive(Debug)]
pub(super) struct Depth {
    database: PathBuf,
    runtime: Handle,
    progress: Arc<Progress>,
    last: Mutex<Option<(Instant, Sample)>>,
}

/// What was read at one time.
#[derive(Debug, Clone, Default)]
struct Sample {
    record: Option<(OpenRuns, i64)>,
    proxies: Vec<Proxy>,
}

/// What one proxy says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Proxy {
    session: String,
    in_flight: Option<u64>,
    held: Option<u64>,
    intents: Option<u64>,
    outcomes: Option<u64>,
}

impl Proxy {
    fn of(answer: &Value) -> Proxy {
        let number = |pointer: &str| answer.pointer(pointer).and_then(Value::as_u64);
        Proxy {
            session: answer["session"].as_str().unwrap_or_default().to_owned(),
            in_flight: number("/actors/executor/in_flight"),
            held: number("/actors/approval/waiters"),
            intents: number("/actors/store/waiting_intents"),
            outcomes: number("/actors/store/waiting_outcomes"),
        }
    }
}

impl Depth {
    /// Makes the gauges.
    pub(super) fn watch(meter: &Meter, database: &Path, runtime: Handle, progress: Arc<Progress>) {
        let last = Mutex::default();
        let depth = Arc::new(Depth { database: database.to_owned(), runtime, progress, last });
        let gauge = |name: &'static str, unit: &'static str, what: &'static str, tell: Tell| {
            let depth = Arc::clone(&depth);
            meter
                .u64_observable_gauge(name)
                .with_unit(unit)
                .with_description(what)
                .with_callback(move |to| tell(&depth, to))
                .build();
        };
        gauge(
            "holdpoint.approvals.pending",
            "{approval}",
            "Approvals that wait for a person",
            |depth, to| {
                if let Some((open, _)) = depth.sample().record {
                    to.observe(count(open.pending), &[]);
                }
            },
        );
        gauge("holdpoint.runs.open", "{run}", "Runs that are not over", |depth, to| {
            if let Some((open, _)) = depth.sample().record {
                let status = |status: &'static str| [KeyValue::new("holdpoint.run.status", status)];
                to.observe(count(open.running), &status("RUNNING"));
                to.observe(count(open.waiting), &status("WAITING_FOR_APPROVAL"));
            }
        });
        gauge("holdpoint.export.lag", "{event}", "Events that are not delivered yet", |depth, to| {
            if let Some((_, left)) = depth.sample().record {
                to.observe(count(left), &[]);
            }
        });
        gauge("holdpoint.proxy.queue", "{change}", "Changes that wait for a proxy's writer", |depth, to| {
            for proxy in depth.sample().proxies {
                for (lane, waiting) in [("intent", proxy.intents), ("outcome", proxy.outcomes)] {
                    let attributes = [session(&proxy), KeyValue::new("holdpoint.proxy.lane", lane)];
                    waiting.into_iter().for_each(|waiting| to.observe(waiting, &attributes));
                }
            }
        });
        gauge("holdpoint.proxy.calls", "{call}", "Calls that a proxy has sent and holds", |depth, to| {
            for proxy in depth.sample().proxies {
                for (state, calls) in [("in_flight", proxy.in_flight), ("held", proxy.held)] {
                    let attributes = [session(&proxy), KeyValue::new("holdpoint.proxy.state", state)];
                    calls.into_iter().for_each(|calls| to.observe(calls, &attributes));
                }
            }
        });
    }

    fn sample(&self) -> Sample {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((at, sample)) if at.elapsed() < FRESH => sample.clone(),
            Some(_) | None => {
                let sample = Sample { record: self.read(), proxies: self.ask() };
                *last = Some((monotonic(), sample.clone()));
                sample
            }
        }
    }

    fn read(&self) -> Option<(OpenRuns, i64)> {
        let read = || -> Result<_, Box<dyn std::error::Error>> {
            let mut store = OperatorStore::open(&self.database, true)?;
            let (run, seq) = (self.progress.run.get(), self.progress.seq.load(Ordering::Relaxed));
            Ok(store.read(|reader| Ok((reader.open_runs()?, reader.events_left(run, seq, LAG_MAX)?)))?)
        };
        read().inspect_err(|error| tracing::warn!(%error, "what waits can't be told")).ok()
    }

    fn ask(&self) -> Vec<Proxy> {
        let database = self.database.clone();
        // Asked on the runtime and waited for here, on the thread that collects, which is none of the runtime's.
        let (send, answers) = std::sync::mpsc::channel();
        self.runtime.spawn(async move {
            let all = observe_all(&database).await;
            let proxies = all.iter().filter_map(|proxy| proxy.answer.as_ref().ok()).map(Proxy::of).collect();
            // Nobody waits any more.
            drop(send.send(proxies));
        });
        answers.recv().unwrap_or_default()
    }
}

/// Tells one gauge what there is.
type Tell = fn(&Depth, &dyn AsyncInstrument<u64>);

fn session(proxy: &Proxy) -> KeyValue {
    KeyValue::new("holdpoint.session", proxy.session.clone())
}

fn count(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
