//! A collector of OpenTelemetry data on loopback, and what it was sent, decoded.
//!
//! Owns both ends that a test needs of one: protobuf over HTTP, and gRPC. The messages are written down here from the
//! published protocol, with the fields that are looked at, so that nothing is shared with what encodes them.

#![expect(clippy::unwrap_used, reason = "a test that can not go on fails")]

mod grpc;
pub(crate) mod tls;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::Duration;

use prost::{Message, Oneof};

pub(crate) use grpc::Grpc;

/// How long a request is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// A request as it came.
pub(crate) struct Received {
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Received {
    pub(crate) fn spans(&self) -> Traces {
        Traces::decode(self.body.as_slice()).unwrap()
    }

    pub(crate) fn metrics(&self) -> Metrics {
        Metrics::decode(self.body.as_slice()).unwrap()
    }
}

/// Requests, as a test takes them.
pub(crate) struct Requests(pub(crate) mpsc::Receiver<Received>);

impl Requests {
    /// The next request to a path; those to others are passed over.
    pub(crate) fn next(&self, path: &str) -> Received {
        loop {
            let received =
                self.0.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no request to {path} came"));
            if received.path == path {
                return received;
            }
        }
    }

    /// All that came so far.
    pub(crate) fn all(&self) -> Vec<Received> {
        self.0.try_iter().collect()
    }
}

/// A collector that speaks HTTP, for as long as the test lasts.
pub(crate) struct Http {
    pub(crate) address: SocketAddr,
    pub(crate) requests: Requests,
}

impl Http {
    /// A collector that takes everything.
    pub(crate) fn start() -> Http {
        Http::answering(Vec::new())
    }

    /// A collector that gives these statuses first, one for each request, and takes everything after.
    pub(crate) fn answering(statuses: Vec<u16>) -> Http {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (send, requests) = mpsc::channel();
        std::thread::spawn(move || {
            let mut statuses = statuses.into_iter();
            for stream in listener.incoming() {
                serve(&stream.unwrap(), &send, &mut statuses);
            }
        });
        Http { address, requests: Requests(requests) }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// Answers one connection's only request, and closes it.
fn serve(stream: &TcpStream, send: &mpsc::Sender<Received>, statuses: &mut impl Iterator<Item = u16>) {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    if reader.read_line(&mut line).unwrap_or(0) == 0 {
        return;
    }
    let path = line.split(' ').nth(1).unwrap().to_owned();
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let mut body = vec![0; headers["content-length"].parse().unwrap()];
    reader.read_exact(&mut body).unwrap();
    let status = statuses.next().unwrap_or(200);
    // A test that is over listens no more.
    drop(send.send(Received { path, headers, body }));
    let answer = format!("HTTP/1.1 {status} status\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    drop((&mut &*stream).write_all(answer.as_bytes()));
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Traces {
    #[prost(message, repeated, tag = "1")]
    pub(crate) resource_spans: Vec<ResourceSpans>,
}

impl Traces {
    pub(crate) fn spans(&self) -> Vec<&Span> {
        let scopes = self.resource_spans.iter().flat_map(|resource| &resource.scope_spans);
        scopes.flat_map(|scope| &scope.spans).collect()
    }
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    pub(crate) resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub(crate) attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    pub(crate) scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) spans: Vec<Span>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Scope {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Span {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) span_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    pub(crate) parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    pub(crate) name: String,
    #[prost(fixed64, tag = "7")]
    pub(crate) start: u64,
    #[prost(fixed64, tag = "8")]
    pub(crate) end: u64,
    #[prost(message, repeated, tag = "9")]
    pub(crate) attributes: Vec<KeyValue>,
    #[prost(message, repeated, tag = "11")]
    pub(crate) events: Vec<SpanEvent>,
    #[prost(message, optional, tag = "15")]
    pub(crate) status: Option<Status>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SpanEvent {
    #[prost(fixed64, tag = "1")]
    pub(crate) at: u64,
    #[prost(string, tag = "2")]
    pub(crate) name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Status {
    #[prost(string, tag = "2")]
    pub(crate) message: String,
    /// 0 unset, 1 ok, 2 error.
    #[prost(int32, tag = "3")]
    pub(crate) code: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct KeyValue {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct AnyValue {
    #[prost(oneof = "AnyOf", tags = "1, 2, 3, 4")]
    pub(crate) of: Option<AnyOf>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum AnyOf {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(bool, tag = "2")]
    Bool(bool),
    #[prost(int64, tag = "3")]
    Int(i64),
    #[prost(double, tag = "4")]
    Double(f64),
}

/// Attributes as text, by their keys.
pub(crate) fn told(attributes: &[KeyValue]) -> BTreeMap<&str, String> {
    let text = |value: &Option<AnyValue>| match value.as_ref().and_then(|value| value.of.clone()) {
        Some(AnyOf::Text(text)) => text,
        Some(AnyOf::Bool(yes)) => yes.to_string(),
        Some(AnyOf::Int(number)) => number.to_string(),
        Some(AnyOf::Double(number)) => number.to_string(),
        None => String::new(),
    };
    attributes.iter().map(|one| (one.key.as_str(), text(&one.value))).collect()
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Metrics {
    #[prost(message, repeated, tag = "1")]
    pub(crate) resource_metrics: Vec<ResourceMetrics>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ResourceMetrics {
    #[prost(message, optional, tag = "1")]
    pub(crate) resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) scope_metrics: Vec<ScopeMetrics>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ScopeMetrics {
    #[prost(message, repeated, tag = "2")]
    pub(crate) metrics: Vec<Metric>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Metric {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, optional, tag = "5")]
    pub(crate) gauge: Option<Numbers>,
    #[prost(message, optional, tag = "7")]
    pub(crate) sum: Option<Numbers>,
    #[prost(message, optional, tag = "9")]
    pub(crate) histogram: Option<Histogram>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Numbers {
    #[prost(message, repeated, tag = "1")]
    pub(crate) points: Vec<Number>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Number {
    #[prost(double, optional, tag = "4")]
    pub(crate) double: Option<f64>,
    #[prost(sfixed64, optional, tag = "6")]
    pub(crate) int: Option<i64>,
    #[prost(message, repeated, tag = "7")]
    pub(crate) attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Histogram {
    #[prost(message, repeated, tag = "1")]
    pub(crate) points: Vec<Distribution>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Distribution {
    #[prost(fixed64, tag = "4")]
    pub(crate) count: u64,
    #[prost(double, optional, tag = "5")]
    pub(crate) sum: Option<f64>,
    #[prost(message, repeated, tag = "9")]
    pub(crate) attributes: Vec<KeyValue>,
}

impl Metrics {
    fn metric(&self, name: &str) -> Option<&Metric> {
        let scopes = self.resource_metrics.iter().flat_map(|resource| &resource.scope_metrics);
        scopes.flat_map(|scope| &scope.metrics).find(|metric| metric.name == name)
    }

    /// The number of a counter or gauge at the point with these attributes; none when there is no such point.
    pub(crate) fn number(&self, name: &str, attributes: &[(&str, &str)]) -> Option<i64> {
        let metric = self.metric(name)?;
        let numbers = metric.sum.as_ref().or(metric.gauge.as_ref())?;
        let point = numbers.points.iter().find(|point| has(&point.attributes, attributes))?;
        point.int
    }

    /// How many were timed at the point with these attributes.
    pub(crate) fn timed(&self, name: &str, attributes: &[(&str, &str)]) -> Option<u64> {
        let histogram = self.metric(name)?.histogram.as_ref()?;
        Some(histogram.points.iter().find(|point| has(&point.attributes, attributes))?.count)
    }
}

fn has(attributes: &[KeyValue], expected: &[(&str, &str)]) -> bool {
    let told = told(attributes);
    expected.iter().all(|(key, value)| told.get(key).is_some_and(|known| known == value))
}
