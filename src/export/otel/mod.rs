//! The record as OpenTelemetry: spans of runs, and metrics of calls, for a collector that an operator has already.
//!
//! [`Otlp`] is a [`Sink`]: it is fed by a follower, from any process, and needs no code in the one that owns the runs. Ids
//! are derived (`ids.rs`), so that a restart continues a trace instead of beginning another. The mapping is in `spans.rs` and
//! `steps.rs`; a span is sent when it ends.
//!
//! ```no_run
//! use holdpoint::export::otel::Otlp;
//! use holdpoint::export::{FileCursor, Follower, Stop};
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let stop = Stop::default();
//! let otlp = Otlp::from_env("agent.db".as_ref())?.keep_trying(&stop);
//! let follower = Follower::open("agent.db")?.cursor(FileCursor::new("agent.otlp.cursor"));
//! otlp.follow(follower, &stop)?;
//! # Ok(()) }
//! ```

mod client;
mod console;
mod depth;
mod history;
pub mod ids;
mod make;
mod metrics;
mod payload;
mod settings;
mod spans;
mod steps;
mod tls;
mod wiring;

#[cfg(test)]
mod tests;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use holdpoint_core::event::Event;
use opentelemetry::InstrumentationScope;
use opentelemetry::metrics::MeterProvider as _;
use opentelemetry::metrics::noop::NoopMeterProvider;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use tokio::runtime::Runtime;

pub use settings::Unsupported;
pub use spans::TEXT_BYTES;

use super::{Error, Followed, Follower, Sink, SinkError, Stop};
use client::LastTrouble;
use depth::{Depth, Progress};
use history::{History, Stored};
use metrics::Instruments;
use payload::Payload;
use spans::Mapper;

/// Waits between two tries of a collector that did not take what it was sent.
const WAIT: Duration = Duration::from_secs(1);
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Why nothing is exported.
#[derive(Debug, thiserror::Error)]
pub enum OtlpError {
    /// A variable of the environment can't be followed.
    #[error(transparent)]
    Setting(#[from] Unsupported),
    /// An exporter can't be made of the settings.
    #[error("make the exporter of {signal}: {detail}")]
    Exporter {
        /// Spans or metrics.
        signal: &'static str,
        /// What is wrong.
        detail: String,
    },
    /// There are no threads to be had.
    #[error("start the exporter's thread: {0}")]
    Thread(#[source] std::io::Error),
}

/// What a collector did not take.
#[derive(Debug, thiserror::Error)]
#[error("the collector did not take the {signal}: {detail}")]
pub struct NotTaken {
    signal: &'static str,
    detail: String,
}

/// Something that spans can be given to. [`SpanExporter`] itself can't be kept behind a pointer.
trait SendSpans: Send {
    fn send(&self, runtime: &Runtime, batch: Vec<SpanData>) -> OTelSdkResult;
}

impl<E: SpanExporter + Send> SendSpans for E {
    fn send(&self, runtime: &Runtime, batch: Vec<SpanData>) -> OTelSdkResult {
        runtime.block_on(self.export(batch))
    }
}

/// A sink that makes spans and metrics of events.
///
/// Spans are kept until the collector has taken them, and only then does the follower's cursor move on: over restarts each
/// span is sent at least once, always with the same ids. Its calls block and use a runtime of its own, so they must not be
/// made on a thread of another runtime: `spawn_blocking` is fine.
pub struct Otlp {
    mapper: Mapper,
    history: Option<Box<dyn History>>,
    instruments: Instruments,
    meters: Option<SdkMeterProvider>,
    spans: Option<Box<dyn SendSpans>>,
    waiting: Vec<SpanData>,
    progress: Arc<Progress>,
    delay: Duration,
    batch_max: usize,
    trouble: LastTrouble,
    tries: Option<Stop>,
    /// Taken only when this is dropped.
    runtime: Option<Runtime>,
}

impl fmt::Debug for Otlp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Otlp").field("waiting", &self.waiting.len()).finish_non_exhaustive()
    }
}

/// What an exporter is put together from.
struct Parts {
    spans: Option<Box<dyn SendSpans>>,
    /// None when no metrics are asked for: a provider without a reader complains of every gauge.
    meters: Option<SdkMeterProvider>,
    runtime: Runtime,
    trouble: LastTrouble,
    delay: Duration,
    batch_max: usize,
    text_bytes_max: usize,
}

impl Otlp {
    /// Exports the record at `database` as the `OTEL_*` variables of the environment say.
    ///
    /// # Errors
    /// When one of them holds what is not supported, or no exporter can be made. Nothing is sent yet.
    pub fn from_env(database: &Path) -> Result<Otlp, OtlpError> {
        let parts = wiring::from_env(|name| std::env::var(name).ok())?;
        Ok(Otlp::of(parts, Some(database)))
    }

    /// Exports to an exporter and a meter provider of the caller's. With a `database`, what happened before the first event
    /// is read there, and what waits.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn new(
        spans: impl SpanExporter + 'static,
        meters: SdkMeterProvider,
        database: Option<&Path>,
    ) -> Result<Otlp, OtlpError> {
        let runtime = wiring::runtime()?;
        let parts = Parts {
            spans: Some(Box::new(spans)),
            meters: Some(meters),
            runtime,
            trouble: LastTrouble::default(),
            delay: super::INTERVAL,
            batch_max: 512,
            text_bytes_max: TEXT_BYTES,
        };
        Ok(Otlp::of(parts, database))
    }

    fn of(parts: Parts, database: Option<&Path>) -> Otlp {
        let scope =
            || InstrumentationScope::builder("holdpoint").with_version(env!("CARGO_PKG_VERSION")).build();
        let meter = match &parts.meters {
            Some(meters) => meters.meter_with_scope(scope()),
            None => NoopMeterProvider::new().meter_with_scope(scope()),
        };
        let progress = Arc::new(Progress::default());
        if let Some(database) = database {
            Depth::watch(&meter, database, parts.runtime.handle().clone(), Arc::clone(&progress));
        }
        Otlp {
            mapper: Mapper::new(scope(), parts.text_bytes_max),
            history: database.map(|database| Box::new(Stored::of(database)) as Box<dyn History>),
            instruments: Instruments::of(&meter),
            meters: parts.meters,
            spans: parts.spans,
            waiting: Vec::new(),
            progress,
            delay: parts.delay,
            batch_max: parts.batch_max,
            trouble: parts.trouble,
            tries: None,
            runtime: Some(parts.runtime),
        }
    }

    /// Cuts text that a model, a tool or a person chose at so many bytes: [`TEXT_BYTES`] without this.
    #[must_use]
    pub fn text_bytes(mut self, bytes: usize) -> Otlp {
        self.mapper.text_bytes_max = bytes;
        self
    }

    /// Tries a collector that does not take spans again and again, at growing distances, until it does or `stop` is called.
    /// Without this the first refusal ends the export.
    #[must_use]
    pub fn keep_trying(mut self, stop: &Stop) -> Otlp {
        self.tries = Some(stop.clone());
        self
    }

    /// Follows, and sends everything that is left at the end. Spans wait for others as long as `OTEL_BSP_SCHEDULE_DELAY`
    /// says.
    ///
    /// # Errors
    /// When following fails, or the collector does not take what is left.
    pub fn follow(mut self, follower: Follower, stop: &Stop) -> Result<(Follower, Followed), Error> {
        let (run, seq) = follower.position()?;
        self.progress.seq.store(seq, Ordering::Relaxed);
        if let Some(run) = run {
            drop(self.progress.run.set(run));
        }
        let mut follower = follower.interval(self.delay).poll_only();
        let followed = follower.follow(&mut self, stop);
        // Also after a failure: what was counted up to there is true.
        let finished = self.finish();
        let followed = followed?;
        finished.map_err(|error| Error::Sink(error.into()))?;
        Ok((follower, followed))
    }

    /// Sends the metrics as they stand and ends. What is delivered after it is not counted.
    ///
    /// # Errors
    /// When the collector does not take them.
    pub fn finish(&mut self) -> Result<(), NotTaken> {
        let Some(meters) = &self.meters else { return Ok(()) };
        meters.shutdown().map_err(|error| self.not_taken("metrics", &error))
    }

    fn not_taken(&self, signal: &'static str, error: &dyn fmt::Display) -> NotTaken {
        let detail = match self.trouble.get() {
            Some(trouble) => format!("{error} ({trouble})"),
            None => error.to_string(),
        };
        NotTaken { signal, detail }
    }

    /// Shows the mapper what it has not seen of a run: silently, because what ended then was sent then.
    fn catch_up(&mut self, event: &Event) {
        if event.kind == "run.created" || self.mapper.run(event.run_id.as_str()).is_some() {
            return;
        }
        let Some(history) = &mut self.history else { return };
        let ended = self.mapper.take_ended();
        for before in history.before(event) {
            self.mapper.apply(&before, &Payload::of(&before.payload));
        }
        self.mapper.replace_ended(ended);
    }

    fn send(&mut self, batch: &[SpanData]) -> Result<(), NotTaken> {
        let (Some(spans), Some(runtime)) = (&self.spans, &self.runtime) else { return Ok(()) };
        let mut wait = WAIT;
        loop {
            let Err(error) = spans.send(runtime, batch.to_vec()) else { return Ok(()) };
            let not_taken = self.not_taken("spans", &error);
            match &self.tries {
                Some(stop) if !stop.is_stopped() => {
                    tracing::warn!("{not_taken}; trying again in {} s", wait.as_secs());
                    if stop.wait(wait) {
                        return Err(not_taken);
                    }
                    wait = (2 * wait).min(WAIT_MAX);
                }
                Some(_) | None => return Err(not_taken),
            }
        }
    }
}

impl Drop for Otlp {
    fn drop(&mut self) {
        // A runtime that is dropped on another's thread panics.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Sink for Otlp {
    fn deliver(&mut self, event: &Event) -> Result<(), SinkError> {
        self.catch_up(event);
        let payload = Payload::of(&event.payload);
        self.instruments.note(event, &payload, self.mapper.run(event.run_id.as_str()));
        self.mapper.apply(event, &payload);
        self.waiting.append(&mut self.mapper.take_ended());
        self.progress.seq.store(event.seq, Ordering::Relaxed);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        let waiting = std::mem::take(&mut self.waiting);
        for (sent, batch) in waiting.chunks(self.batch_max).enumerate() {
            if let Err(error) = self.send(batch) {
                self.waiting = waiting[sent * self.batch_max..].to_vec();
                return Err(error.into());
            }
        }
        Ok(())
    }
}
