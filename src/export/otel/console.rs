//! Spans and metrics as lines of JSON, for a look at what would be sent.
//!
//! A line is JSON whose strings are escaped, so that nothing that a model chose reaches a terminal as it is.

use std::fmt;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use holdpoint_core::sanitize::escape_json;
use holdpoint_core::time::UnixNanos;
use opentelemetry::trace::Status;
use opentelemetry::{KeyValue, Value};
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::metrics::Temporality;
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, Metric, MetricData, ResourceMetrics};
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use serde_json::{Map, json};

/// Writes each span and each metric as a line.
#[derive(Clone)]
pub(super) struct Console(Arc<Mutex<Box<dyn Write + Send>>>);

impl fmt::Debug for Console {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Console")
    }
}

impl Console {
    pub(super) fn new(out: Box<dyn Write + Send>) -> Console {
        Console(Arc::new(Mutex::new(out)))
    }

    fn write(&self, lines: impl Iterator<Item = serde_json::Value>) -> OTelSdkResult {
        let text: String = lines.map(|line| format!("{}\n", escape_json(&line.to_string()))).collect();
        let mut out = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        out.write_all(text.as_bytes())
            .and_then(|()| out.flush())
            .map_err(|error| OTelSdkError::InternalFailure(format!("write to the console: {error}")))
    }
}

impl SpanExporter for Console {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.write(batch.iter().map(span))
    }
}

impl PushMetricExporter for Console {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        self.write(metrics.scope_metrics().flat_map(|scope| scope.metrics()).map(metric))
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

fn span(span: &SpanData) -> serde_json::Value {
    let events = span.events.iter().map(|event| {
        json!({"name": event.name, "at": time(event.timestamp), "attributes": attributes(event.attributes.iter())})
    });
    let parent = span.parent_span_id.to_string();
    let status = match &span.status {
        Status::Unset => json!("unset"),
        Status::Ok => json!("ok"),
        Status::Error { description } => json!({"error": description}),
    };
    json!({
        "span": span.name,
        "trace_id": span.span_context.trace_id().to_string(),
        "span_id": span.span_context.span_id().to_string(),
        "parent_id": if parent == "0000000000000000" { None } else { Some(parent) },
        "start": time(span.start_time),
        "end": time(span.end_time),
        "status": status,
        "attributes": attributes(span.attributes.iter()),
        "events": events.collect::<Vec<_>>(),
    })
}

fn metric(metric: &Metric) -> serde_json::Value {
    let points = match metric.data() {
        AggregatedMetrics::F64(data) => points(data),
        AggregatedMetrics::U64(data) => points(data),
        AggregatedMetrics::I64(data) => points(data),
    };
    json!({"metric": metric.name(), "unit": metric.unit(), "points": points})
}

fn points<T: Copy + Into<Number>>(data: &MetricData<T>) -> Vec<serde_json::Value> {
    let one =
        |value: T, of: Map<String, serde_json::Value>| json!({"value": value.into().0, "attributes": of});
    match data {
        MetricData::Gauge(gauge) => {
            gauge.data_points().map(|point| one(point.value(), attributes(point.attributes()))).collect()
        }
        MetricData::Sum(sum) => {
            sum.data_points().map(|point| one(point.value(), attributes(point.attributes()))).collect()
        }
        MetricData::Histogram(histogram) => histogram
            .data_points()
            .map(|point| {
                json!({"count": point.count(), "sum": point.sum().into().0, "attributes": attributes(point.attributes())})
            })
            .collect(),
        // None of our instruments is aggregated so.
        MetricData::ExponentialHistogram(_) => Vec::new(),
    }
}

/// A number as JSON writes it.
struct Number(serde_json::Value);

impl From<f64> for Number {
    fn from(number: f64) -> Number {
        Number(json!(number))
    }
}

impl From<u64> for Number {
    fn from(number: u64) -> Number {
        Number(json!(number))
    }
}

impl From<i64> for Number {
    fn from(number: i64) -> Number {
        Number(json!(number))
    }
}

fn attributes<'a>(all: impl Iterator<Item = &'a KeyValue>) -> Map<String, serde_json::Value> {
    all.map(|attribute| (attribute.key.to_string(), value(&attribute.value))).collect()
}

fn value(value: &Value) -> serde_json::Value {
    match value {
        Value::Bool(yes) => json!(yes),
        Value::I64(number) => json!(number),
        Value::F64(number) => json!(number),
        Value::String(text) => json!(text.as_str()),
        // We make no arrays, and a newer kind is told as it prints.
        other @ Value::Array(_) | other => json!(other.to_string()),
    }
}

fn time(at: SystemTime) -> String {
    let nanos = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    UnixNanos::from_nanos(i64::try_from(nanos).unwrap_or(i64::MAX)).to_rfc3339()
}
