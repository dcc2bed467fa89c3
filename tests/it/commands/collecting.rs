//! `export --otlp` as a process, with a collector on loopback: what arrives, what a restart and a collector that is away
//! change of it, and what of the environment is refused.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use holdpoint::export::otel::ids::{SpanOf, span_id, trace_id};
use holdpoint::gate::Limits;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::{HOSTILE, Plan, Ran, Record, assert_harmless};
use crate::collector::{Grpc, Http, Received, Span, tls, told};

fn two_runs() -> Record {
    let runs = vec![
        ("r1", "read the balance", Plan::Reads),
        ("r2", "pay the invoice", Plan::Pays(json!({"to": "alice", "amount": 40}))),
    ];
    Record::of(runs, Limits::default())
}

/// An export with these variables and no others that it reads.
fn export(record: &Record, line: &str, variables: &[(&str, &str)]) -> Command {
    let mut command = record.command(&format!("export --otlp {line}"));
    for (name, _) in std::env::vars() {
        let is_read = name.starts_with("OTEL_") || name.to_ascii_uppercase().ends_with("_PROXY");
        if is_read {
            command.env_remove(name);
        }
    }
    command.envs(variables.iter().copied());
    command
}

fn run(record: &Record, line: &str, variables: &[(&str, &str)]) -> Ran {
    Ran::of(&mut export(record, line, variables))
}

fn names(spans: &[&Span]) -> Vec<String> {
    spans.iter().map(|span| span.name.clone()).collect()
}

fn spans_of(requests: &[Received]) -> Vec<Span> {
    let traces = requests.iter().filter(|request| request.path == "/v1/traces");
    traces.flat_map(|request| request.spans().spans().into_iter().cloned().collect::<Vec<_>>()).collect()
}

#[test]
fn spans_and_metrics_reach_a_collector_over_http() {
    let (record, collector) = (two_runs(), Http::start());
    let exported = run(
        &record,
        "",
        &[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.endpoint()),
            ("OTEL_EXPORTER_OTLP_HEADERS", "x-team=payments"),
            ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test"),
        ],
    );
    assert_eq!((exported.status, exported.out.as_str(), exported.err.as_str()), (0, "", ""));
    let traces = collector.requests.next("/v1/traces");
    assert_eq!(traces.headers["content-type"], "application/x-protobuf");
    assert_eq!(traces.headers["x-team"], "payments");
    let sent = traces.spans();
    let resource = told(&sent.resource_spans[0].resource.as_ref().unwrap().attributes);
    assert_eq!(
        (resource["service.name"].as_str(), resource["deployment.environment"].as_str()),
        ("holdpoint", "test")
    );
    assert_eq!(sent.resource_spans[0].scope_spans[0].scope.as_ref().unwrap().name, "holdpoint");
    let spans = sent.spans();
    // The run that waits is open: what is over is sent.
    assert_eq!(names(&spans), ["agentrt.step", "agentrt.step", "agentrt.run"]);
    let run = spans[2];
    assert_eq!(run.trace_id, trace_id("r1").to_bytes());
    assert_eq!(run.span_id, span_id(SpanOf::Run, "r1").to_bytes());
    assert_eq!((run.parent_span_id.len(), spans[0].parent_span_id.as_slice()), (0, run.span_id.as_slice()));
    assert_eq!(run.status.as_ref().unwrap().code, 1);
    assert_eq!(told(&run.attributes)["agentrt.run.goal"], "read the balance");
    assert_eq!(told(&spans[0].attributes)["agentrt.tool.summary"], "balance: 120");
    assert!(run.start > 1_790_000_000_000_000_000 && run.end > run.start);
    assert_eq!(run.events[0].name, "run.started");
    let metrics = collector.requests.next("/v1/metrics").metrics();
    for (answer, tool) in [("OK", "balance"), ("PENDING_APPROVAL", "pay")] {
        let point = [("holdpoint.answer", answer), ("holdpoint.tool.name", tool)];
        assert_eq!(metrics.number("holdpoint.calls", &point), Some(1), "{answer}");
    }
    assert_eq!(metrics.number("holdpoint.approvals.pending", &[]), Some(1));
    assert_eq!(metrics.number("holdpoint.export.lag", &[]), Some(0));
    assert_eq!(metrics.timed("holdpoint.tool.duration", &[("holdpoint.tool.outcome", "done")]), Some(1));
    let resource = &metrics.resource_metrics[0].resource;
    assert_eq!(told(&resource.as_ref().unwrap().attributes)["service.name"], "holdpoint");
}

#[test]
fn spans_and_metrics_reach_a_collector_over_grpc() {
    let (record, collector) = (two_runs(), Grpc::start());
    let exported = run(
        &record,
        "",
        &[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://{}", collector.address)),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "x-team=payments"),
            ("OTEL_SERVICE_NAME", "desk"),
        ],
    );
    assert_eq!((exported.status, exported.err.as_str()), (0, ""));
    let traces = collector.requests.next("/opentelemetry.proto.collector.trace.v1.TraceService/Export");
    assert_eq!(traces.headers["x-team"], "payments");
    let sent = traces.spans();
    assert_eq!(names(&sent.spans()), ["agentrt.step", "agentrt.step", "agentrt.run"]);
    let resource = &sent.resource_spans[0].resource;
    assert_eq!(told(&resource.as_ref().unwrap().attributes)["service.name"], "desk");
    let metrics = collector.requests.next("/opentelemetry.proto.collector.metrics.v1.MetricsService/Export");
    assert_eq!(metrics.metrics().number("holdpoint.approvals.pending", &[]), Some(1));
}

#[test]
fn a_collector_is_trusted_by_the_certificate_that_is_named_and_knows_us_by_ours() {
    let (record, http, grpc) = (two_runs(), Http::start(), Grpc::start());
    let (certificate, key) = (tls::file("certificate.pem"), tls::file("key.pem"));
    for (protocol, behind) in [("http/protobuf", http.address), ("grpc", grpc.address)] {
        let endpoint = format!("https://localhost:{}", tls::in_front(behind).port());
        let export = |more: &[(&str, &str)]| {
            let plain = [
                ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
                ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
                ("OTEL_METRICS_EXPORTER", "none"),
            ];
            run(&record, "", &[&plain, more].concat())
        };
        let trusted = ("OTEL_EXPORTER_OTLP_CERTIFICATE", certificate.as_str());
        let named = [
            trusted,
            ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", certificate.as_str()),
            ("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", key.as_str()),
        ];
        // Without one or the other nothing arrives: the system vouches for no such collector, and it wants to know us.
        for without in [&named[1..], &[trusted]] {
            let refused = export(without);
            assert_eq!(
                (refused.status, refused.code()),
                (1, "export.collector"),
                "{protocol}: {}",
                refused.err
            );
        }
        let exported = export(&named);
        assert_eq!(exported.status, 0, "{protocol}: {}", exported.err);
    }
    assert_eq!(spans_of(&http.requests.all()).len(), 3);
    assert_eq!(grpc.requests.all().len(), 1);
}

#[test]
fn a_file_of_certificates_that_can_t_be_used_is_refused_by_its_variable() {
    let record = two_runs();
    let (certificate, key) = (tls::file("certificate.pem"), tls::file("key.pem"));
    let missing = record.folder().join("none.pem").into_os_string().into_string().unwrap();
    for protocol in ["http/protobuf", "grpc"] {
        for (roots, ours, our_key, told) in [
            (&missing, &certificate, &key, "OTEL_EXPORTER_OTLP_CERTIFICATE"),
            (&key, &certificate, &key, "OTEL_EXPORTER_OTLP_CERTIFICATE"),
            (&certificate, &key, &key, "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"),
            (&certificate, &certificate, &certificate, "OTEL_EXPORTER_OTLP_CLIENT_KEY"),
        ] {
            let refused = run(
                &record,
                "",
                &[
                    ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
                    ("OTEL_EXPORTER_OTLP_CERTIFICATE", roots),
                    ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", ours),
                    ("OTEL_EXPORTER_OTLP_CLIENT_KEY", our_key),
                ],
            );
            assert_eq!((refused.status, refused.code()), (2, "export.settings"), "{}", refused.err);
            assert!(refused.err.contains(&format!("{told} names ")), "{protocol}: {}", refused.err);
        }
    }
}

#[test]
fn what_a_collector_refused_is_sent_by_the_next_export() {
    let (record, collector) = (two_runs(), Http::answering(vec![400]));
    let cursor = record.folder().join("cursor");
    let line = format!("--cursor {}", cursor.display());
    let variables =
        [("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint()), ("OTEL_METRICS_EXPORTER", "none".to_owned())];
    let variables: Vec<(&str, &str)> =
        variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let refused = run(&record, &line, &variables);
    assert_eq!((refused.status, refused.code()), (1, "export.collector"), "{}", refused.err);
    assert!(refused.err.contains("400"), "{}", refused.err);
    assert!(!cursor.exists(), "nothing was taken");
    assert_eq!(spans_of(&collector.requests.all()).len(), 3);
    let exported = run(&record, &line, &variables);
    assert_eq!(exported.status, 0, "{}", exported.err);
    assert_eq!(spans_of(&collector.requests.all()).len(), 3);
    // The run that waited is cancelled: its spans come now, with what began before the cursor.
    assert_eq!(record.run("cancel r2 --by al").status, 0);
    assert_eq!(run(&record, &line, &variables).status, 0);
    let later = spans_of(&collector.requests.all());
    let kinds: BTreeSet<&str> = later.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(kinds, BTreeSet::from(["agentrt.approval", "agentrt.run", "agentrt.step"]));
    let run = later.iter().find(|span| span.name == "agentrt.run").unwrap();
    let of_run = told(&run.attributes);
    assert_eq!(
        (of_run["agentrt.run.goal"].as_str(), of_run["agentrt.run.by"].as_str()),
        ("pay the invoice", "al")
    );
    assert!(later.iter().all(|span| !told(&span.attributes).contains_key("agentrt.span.start_unknown")));
}

#[test]
fn a_collector_that_can_not_be_reached_is_named_with_why() {
    let record = two_runs();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let endpoint = format!("http://user:secret@{closed}");
    let refused = run(
        &record,
        "",
        &[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint),
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20secret"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "1000"),
        ],
    );
    assert_eq!((refused.status, refused.code()), (1, "export.collector"), "{}", refused.err);
    assert!(refused.err.contains("onnection refused"), "{}", refused.err);
    assert!(!refused.err.contains("secret"), "{}", refused.err);
}

/// A follower's process, ended with its test.
struct Following(Child);

impl Following {
    fn start(mut command: Command) -> Following {
        Following(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    fn end(self) -> Ran {
        kill_process(Pid::from_child(&self.0), Signal::TERM).unwrap();
        Ran::from(self.0.wait_with_output().unwrap())
    }
}

fn cursor_of(path: &Path) -> i64 {
    std::fs::read_to_string(path).unwrap().trim().parse().unwrap()
}

#[test]
fn a_follower_sends_as_the_record_grows_and_everything_at_the_end() {
    // What the collector does not take at first is tried again.
    let (record, collector) = (two_runs(), Http::answering(vec![400]));
    let cursor = record.folder().join("cursor");
    let following = Following::start(export(
        &record,
        &format!("--follow --cursor {}", cursor.display()),
        &[("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.endpoint()), ("OTEL_BSP_SCHEDULE_DELAY", "20")],
    ));
    while !names(&collector.requests.next("/v1/traces").spans().spans()).contains(&"agentrt.run".to_owned()) {
    }
    assert_eq!(record.run("approve r2 --yes --by al").status, 0);
    loop {
        let sent = collector.requests.next("/v1/traces").spans();
        if let Some(approval) = sent.spans().into_iter().find(|span| span.name == "agentrt.approval") {
            let of = told(&approval.attributes);
            assert_eq!(
                (of["agentrt.approval.status"].as_str(), of["agentrt.approval.by"].as_str()),
                ("approved", "al")
            );
            break;
        }
    }
    let ended = following.end();
    assert_eq!(ended.status, 0, "{}", ended.err);
    let last = record.json("verify")["head"]["seq"].as_i64().unwrap();
    assert_eq!(cursor_of(&cursor), last);
    let metrics = collector.requests.next("/v1/metrics").metrics();
    assert_eq!(
        metrics.timed("holdpoint.hold.duration", &[("holdpoint.approval.status", "approved")]),
        Some(1)
    );
}

#[test]
fn the_console_shows_what_would_be_sent_and_none_sends_nothing() {
    let plan = Plan::Pays(json!({"to": HOSTILE}));
    let record = Record::of(vec![("r1", HOSTILE, plan)], Limits::default());
    record.run("cancel r1 --by al");
    let console = [("OTEL_TRACES_EXPORTER", "console"), ("OTEL_METRICS_EXPORTER", "console")];
    let shown = run(&record, "", &console);
    assert_eq!((shown.status, shown.err.as_str()), (0, ""));
    // JSON has no escape for what only piles up: marks stay.
    assert_harmless(&shown.out.replace('\u{301}', ""));
    let lines: Vec<serde_json::Value> =
        shown.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let goal =
        lines.iter().find(|line| line["span"] == "agentrt.run").unwrap()["attributes"]["agentrt.run.goal"]
            .clone();
    assert_eq!(goal, HOSTILE);
    let calls = lines.iter().find(|line| line["metric"] == "holdpoint.calls").unwrap();
    assert_eq!(calls["points"][0]["value"], 1);
    let [no_spans, no_metrics] = ["OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER"].map(|name| (name, "none"));
    let nothing = run(&record, "", &[no_spans, no_metrics]);
    assert_eq!((nothing.status, nothing.out.as_str(), nothing.err.as_str()), (0, "", ""));
    let spans = run(&record, "", &[console[0], no_metrics]);
    assert_eq!((spans.status, spans.err.as_str()), (0, ""));
    assert!(spans.out.contains("\"agentrt.run\"") && !spans.out.contains("\"metric\""), "{}", spans.out);
    let metrics = run(&record, "", &[no_spans, console[1]]);
    assert_eq!((metrics.status, metrics.err.as_str()), (0, ""));
    assert!(
        metrics.out.contains("\"holdpoint.calls\"") && !metrics.out.contains("\"span\""),
        "{}",
        metrics.out
    );
}

#[test]
fn an_environment_that_can_not_be_followed_is_refused_before_anything_is_opened() {
    let record = two_runs();
    let cursor = record.folder().join("cursor");
    for (name, value) in [
        ("OTEL_TRACES_EXPORTER", "zipkin"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "not a url"),
        ("OTEL_SDK_DISABLED", "true"),
    ] {
        let refused = run(&record, &format!("--cursor {}", cursor.display()), &[(name, value)]);
        assert_eq!((refused.status, refused.code()), (2, "export.settings"), "{name}: {}", refused.err);
        assert!(refused.err.contains(name), "{}", refused.err);
        assert!(!cursor.exists());
    }
}
