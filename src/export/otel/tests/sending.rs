//! What is sent: the same over restarts, kept until it is taken, and counted.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use holdpoint_core::event::Event;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData, ResourceMetrics};
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider, Temporality};
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use serde_json::json;

use super::script::{Script, approved, cancelled, completed, interrupted, with_models};
use super::spans;
use crate::doctor_socket;
use crate::export::otel::Otlp;
use crate::export::otel::history::History;
use crate::export::otel::spans::RUNS_MAX;
use crate::export::tests::Record;
use crate::export::{Follower, MemCursor, Sink as _, Stop};
use crate::gate::Runtime;

/// A record that is a list.
#[derive(Debug)]
struct Told(Vec<Event>);

impl History for Told {
    fn before(&mut self, event: &Event) -> Vec<Event> {
        self.0.iter().filter(|one| one.run_id == event.run_id && one.seq < event.seq).cloned().collect()
    }
}

/// Keeps spans, or refuses them.
#[derive(Debug, Clone, Default)]
struct Memory {
    spans: Arc<Mutex<Vec<SpanData>>>,
    refusals: Arc<Mutex<usize>>,
}

impl Memory {
    fn take(&self) -> Vec<SpanData> {
        std::mem::take(&mut self.spans.lock().unwrap())
    }
}

impl SpanExporter for Memory {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let mut refusals = self.refusals.lock().unwrap();
        if *refusals > 0 {
            *refusals -= 1;
            return Err(OTelSdkError::InternalFailure("not now".to_owned()));
        }
        self.spans.lock().unwrap().extend(batch);
        Ok(())
    }
}

fn otlp(memory: &Memory, history: Option<&Script>) -> Otlp {
    let mut otlp = Otlp::new(memory.clone(), SdkMeterProvider::builder().build(), None).unwrap();
    otlp.history = history.map(|script| Box::new(Told(script.events.clone())) as Box<dyn History>);
    otlp
}

#[test]
fn exporters_that_saw_parts_send_the_same_spans_as_one_that_saw_all() {
    for script in [completed(), approved(), interrupted(), with_models(), cancelled()] {
        let whole = spans(&script.events);
        for cut in 0..=script.events.len() {
            let memory = Memory::default();
            for part in [&script.events[..cut], &script.events[cut..]] {
                // A new process: nothing is remembered.
                let mut otlp = otlp(&memory, Some(&script));
                part.iter().for_each(|event| otlp.deliver(event).unwrap());
                otlp.flush().unwrap();
            }
            let mut parts = memory.take();
            parts
                .iter_mut()
                .for_each(|span| span.instrumentation_scope = whole[0].instrumentation_scope.clone());
            assert_eq!(parts, whole, "{} cut at {cut}", script.run);
        }
    }
}

#[test]
fn runs_that_are_silent_for_long_are_let_go_of_and_go_on_as_if_they_had_not_been() {
    let script = approved();
    let (first, rest) = script.events.split_at(5);
    let memory = Memory::default();
    let mut otlp = otlp(&memory, Some(&script));
    first.iter().for_each(|event| otlp.deliver(event).unwrap());
    for i in 0..RUNS_MAX {
        let mut event = script.events[0].clone();
        event.run_id = format!("other-{i}").into();
        otlp.deliver(&event).unwrap();
    }
    assert!(otlp.mapper.run(script.run).is_none(), "no more runs are kept open than that");
    rest.iter().for_each(|event| otlp.deliver(event).unwrap());
    otlp.flush().unwrap();
    let names: Vec<_> = memory.take().iter().map(|span| (span.name.clone(), span.start_time)).collect();
    let whole: Vec<_> =
        spans(&script.events).iter().map(|span| (span.name.clone(), span.start_time)).collect();
    assert_eq!(names, whole);
}

#[test]
fn spans_are_kept_until_the_collector_has_taken_them() {
    let (memory, script) = (Memory::default(), completed());
    let mut otlp = otlp(&memory, None);
    otlp.batch_max = 3;
    script.events.iter().for_each(|event| otlp.deliver(event).unwrap());
    *memory.refusals.lock().unwrap() = 1;
    let refused = otlp.flush().unwrap_err().to_string();
    assert!(refused.starts_with("the collector did not take the spans: "), "{refused}");
    assert!(memory.take().is_empty());
    otlp.flush().unwrap();
    assert_eq!(memory.take().len(), 4, "all of them, in two requests");
    otlp.flush().unwrap();
    assert!(memory.take().is_empty(), "and none twice");
}

#[test]
fn a_collector_that_is_away_is_tried_until_the_end_is_asked_for() {
    let (memory, script, stop) = (Memory::default(), completed(), Stop::default());
    let mut otlp = otlp(&memory, None).keep_trying(&stop);
    script.events.iter().for_each(|event| otlp.deliver(event).unwrap());
    *memory.refusals.lock().unwrap() = 1;
    otlp.flush().unwrap();
    assert_eq!(memory.take().len(), 4, "the second try was taken");
    script.events.iter().for_each(|event| otlp.deliver(event).unwrap());
    *memory.refusals.lock().unwrap() = usize::MAX;
    stop.stop();
    otlp.flush().unwrap_err();
    assert!(memory.take().is_empty());
}

/// What was counted: each point as name, attributes and value or count.
#[derive(Debug, Clone, Default)]
struct Counted(Arc<Mutex<BTreeMap<String, f64>>>);

impl Counted {
    fn keep<T: Copy>(&self, name: &str, data: &MetricData<T>, number: impl Fn(T) -> f64) {
        let mut all = self.0.lock().unwrap();
        let mut keep = |attributes: Vec<String>, value: f64| {
            all.insert(format!("{name} {}", attributes.join(" ")).trim().to_owned(), value);
        };
        let text = |one: &opentelemetry::KeyValue| one.value.as_str().into_owned();
        let sorted = |all: Vec<&opentelemetry::KeyValue>| {
            let mut all: Vec<_> = all.into_iter().map(|one| (one.key.to_string(), text(one))).collect();
            all.sort();
            all.into_iter().map(|(_, value)| value).collect::<Vec<_>>()
        };
        match data {
            MetricData::Sum(sum) => {
                sum.data_points().for_each(|p| keep(sorted(p.attributes().collect()), number(p.value())));
            }
            MetricData::Gauge(gauge) => {
                gauge.data_points().for_each(|p| keep(sorted(p.attributes().collect()), number(p.value())));
            }
            MetricData::Histogram(of) => {
                of.data_points().for_each(|p| keep(sorted(p.attributes().collect()), number(p.sum())));
            }
            MetricData::ExponentialHistogram(_) => panic!("{name} is none of ours"),
        }
    }
}

impl PushMetricExporter for Counted {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        for metric in metrics.scope_metrics().flat_map(|scope| scope.metrics()) {
            match metric.data() {
                AggregatedMetrics::F64(data) => self.keep(metric.name(), data, |number| number),
                AggregatedMetrics::U64(data) => self.keep(metric.name(), data, |number| number as f64),
                AggregatedMetrics::I64(data) => self.keep(metric.name(), data, |number| number as f64),
            }
        }
        Ok(())
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        Ok(())
    }

    fn temporality(&self) -> Temporality {
        Temporality::Cumulative
    }
}

fn counting(database: Option<&Path>) -> (Otlp, Counted) {
    let counted = Counted::default();
    let reader = PeriodicReader::builder(counted.clone()).build();
    let meters = SdkMeterProvider::builder().with_reader(reader).build();
    (Otlp::new(Memory::default(), meters, database).unwrap(), counted)
}

fn counted(scripts: &[Script], database: Option<&Path>) -> BTreeMap<String, f64> {
    let (mut otlp, counted) = counting(database);
    for event in scripts.iter().flat_map(|script| &script.events) {
        otlp.deliver(event).unwrap();
    }
    otlp.finish().unwrap();
    counted.0.lock().unwrap().clone()
}

#[test]
fn calls_are_counted_by_what_they_were_answered_and_waits_are_timed() {
    let mut refused = Script::begun("r-refused");
    refused.decided("s0", 0, "pay").failed("s0", "invalid_decision");
    refused.decided("s1", 1, "pay").policy("s1", "allow").started("s1", "pay");
    refused.add("step.tool_finished", "s1", json!({"duration_ms": 500, "error": "boom", "tool": "pay"}));
    refused.failed("s1", "tool_error");
    refused.decided("s2", 2, "pay").policy("s2", "require_approval");
    refused.add("approval.requested", "s2", json!({"approval_id": "a9", "kind": "remote_mutation"}));
    refused.add("approval.decided", "s2", json!({"approval_id": "a9", "by": "al", "status": "rejected"}));
    refused.finished("CANCELLED", "approval_rejected");
    let counted =
        counted(&[completed(), approved(), interrupted(), with_models(), cancelled(), refused], None);
    let expected = [
        ("holdpoint.calls OK read", 1.0),
        ("holdpoint.calls OK pay", 2.0),
        ("holdpoint.calls DENIED drop", 1.0),
        // What nobody checked may be anything, so it is no name here.
        ("holdpoint.calls INVALID", 1.0),
        ("holdpoint.calls FAILED pay", 1.0),
        ("holdpoint.calls PENDING_APPROVAL pay", 2.0),
        ("holdpoint.calls UNKNOWN_OUTCOME pay", 1.0),
        ("holdpoint.calls REJECTED pay", 1.0),
        ("holdpoint.holds remote_mutation", 2.0),
        ("holdpoint.holds interrupted_side_effect", 1.0),
        ("holdpoint.hold.duration approved", 2.0),
        ("holdpoint.hold.duration rejected", 1.0),
        ("holdpoint.tool.duration read done", 1.5),
        ("holdpoint.tool.duration pay done", 3.0),
        ("holdpoint.tool.duration pay failed", 0.5),
        ("holdpoint.tool.duration pay late", 2.0),
        ("holdpoint.runs goal_completed COMPLETED", 2.0),
        ("holdpoint.runs goal_failed FAILED", 1.0),
        ("holdpoint.runs limit_tokens FAILED", 1.0),
        ("holdpoint.runs operator_cancelled CANCELLED", 1.0),
        ("holdpoint.runs approval_rejected CANCELLED", 1.0),
        ("holdpoint.model.attempts small error", 1.0),
        ("holdpoint.model.attempts small ok", 1.0),
        ("holdpoint.model.duration small", 0.95),
        ("holdpoint.model.tokens small input", 100.0),
        ("holdpoint.model.tokens small output", 20.0),
        ("holdpoint.model.tokens small cached_input", 50.0),
        ("holdpoint.model.cost small", 0.0002),
    ];
    let expected: BTreeMap<String, f64> =
        expected.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
    assert_eq!(counted, expected);
}

#[test]
fn what_waits_is_read_from_the_record_when_it_is_sent() {
    let record = Record::with_one_that_waits();
    let counted = counted(&[], Some(record.path()));
    let newest = record.newest() as f64;
    let expected = [
        ("holdpoint.approvals.pending", 1.0),
        ("holdpoint.runs.open RUNNING", 0.0),
        ("holdpoint.runs.open WAITING_FOR_APPROVAL", 1.0),
        ("holdpoint.export.lag", newest),
    ];
    let expected: BTreeMap<String, f64> =
        expected.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
    assert_eq!(counted, expected, "no proxy serves it, so none is told of");
}

#[test]
fn what_is_not_delivered_is_counted_from_the_cursor_and_of_the_run_that_is_followed() {
    let record = Record::with_one_that_waits();
    let lag = |follower: Follower, stop: &Stop| {
        let (otlp, counted) = counting(Some(record.path()));
        otlp.follow(follower, stop).unwrap();
        counted.0.lock().unwrap()["holdpoint.export.lag"]
    };
    let follower = || Follower::open(record.path()).unwrap().once();
    let (go, stopped) = (Stop::default(), Stop::default());
    stopped.stop();
    assert_eq!(lag(follower().cursor(MemCursor { seq: record.newest() }), &stopped), 0.0, "nothing is new");
    assert_eq!(lag(follower().cursor(MemCursor { seq: record.newest() - 3 }), &stopped), 3.0);
    assert_eq!(lag(follower().run("r0".into()), &go), 0.0, "the other run's events are nobody's here");
}

#[test]
fn a_proxy_that_answers_is_asked_what_waits_in_it() {
    let record = Record::with_one_that_waits();
    let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    // What its actors report is what real ones do, so that a name which changes is noticed here.
    let (socket, actors) = threads.block_on(async {
        let runtime = Runtime::builder(record.path()).start().await.unwrap();
        let actors = serde_json::to_value(runtime.observe().await).unwrap();
        runtime.stop().await;
        (doctor_socket::bind(record.path()).await.unwrap(), actors)
    });
    let answer = json!({"session": "desk", "actors": actors, "connections": []});
    threads.spawn(doctor_socket::serve(socket, move || {
        let answer = answer.clone();
        async move { answer }
    }));
    let counted = counted(&[], Some(record.path()));
    for point in ["queue intent desk", "queue outcome desk", "calls in_flight desk", "calls held desk"] {
        assert_eq!(counted.get(&format!("holdpoint.proxy.{point}")), Some(&0.0), "{point}: {counted:?}");
    }
    threads.shutdown_background();
}

#[test]
fn an_exporter_over_a_record_goes_on_where_the_one_before_ended() {
    let record = Record::with_one_that_waits();
    let all = |page: u32| {
        let (memory, stop) = (Memory::default(), Stop::default());
        let mut seq = 0;
        loop {
            // A process for every page: it is stopped after it.
            let mut otlp =
                Otlp::new(memory.clone(), SdkMeterProvider::builder().build(), Some(record.path())).unwrap();
            let events = record.events_after(seq, page);
            let Some(last) = events.last() else { break };
            seq = last.seq;
            events.iter().for_each(|event| otlp.deliver(event).unwrap());
            otlp.flush().unwrap();
        }
        drop(stop);
        memory.take()
    };
    let whole = all(1_000);
    assert!(whole.len() >= 3);
    assert_eq!(all(1), whole);
    assert_eq!(all(3), whole);
    assert!(whole.iter().all(|span| span.start_time > UNIX_EPOCH));
}
