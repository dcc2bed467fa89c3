//! What the pure part of a call costs: canonical JSON, hashes, a link of the chain, the request key, the rules across
//! calls. Run with `cargo bench -p holdpoint-core`.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use holdpoint_core::across_calls::{
    Asked, Asking, Elsewhere, OpenCall, OpenCalls, OpenState, Own, View, decide,
};
use holdpoint_core::approval::ApprovalStatus;
use holdpoint_core::chain::{ChainedEvent, link};
use holdpoint_core::hash::{request_key, sha256_hex};
use holdpoint_core::ids::{RequestKey, RunId, SessionName};
use holdpoint_core::json::{canonical, check};
use holdpoint_core::policy::Outcome;
use holdpoint_core::time::UnixNanos;
use holdpoint_core::tool::SideEffect;

const NOW: UnixNanos = UnixNanos::from_nanos(1_700_000_000_000_000_000);

/// Arguments of a payment, as a model writes them.
const SMALL: &str =
    r#"{"to": "ACME Ltd", "amount": 120.50, "currency": "EUR", "note": "invoice 4711 <march>"}"#;

/// About eight kibibytes: an array of small objects, keys out of order.
fn large() -> String {
    let items: Vec<String> = (0..100)
        .map(|i| {
            format!(r#"{{"to": "account-{i}", "amount": {i}.25, "currency": "EUR", "labels": ["a", "ü"]}}"#)
        })
        .collect();
    format!("[{}]", items.join(", "))
}

fn json(c: &mut Criterion) {
    let large = large();
    let mut group = c.benchmark_group("json");
    for (name, text) in [("small", SMALL), ("8KiB", large.as_str())] {
        group.throughput(Throughput::Bytes(text.len() as u64));
        group.bench_with_input(BenchmarkId::new("check", name), text, |b, text| {
            b.iter(|| check(black_box(text.as_bytes())));
        });
        group.bench_with_input(BenchmarkId::new("canonical", name), text, |b, text| {
            b.iter(|| canonical(black_box(text)));
        });
        group.bench_with_input(BenchmarkId::new("sha256", name), text, |b, text| {
            b.iter(|| sha256_hex(black_box(text.as_bytes())));
        });
        group.bench_with_input(BenchmarkId::new("request_key", name), text, |b, text| {
            b.iter(|| request_key(black_box("bank_pay"), Some(text.as_bytes())));
        });
    }
    group.finish();
}

fn chain(c: &mut Criterion) {
    let previous = sha256_hex(b"the event before");
    let event = ChainedEvent {
        seq: 4_711,
        run_id: "01JD0000000000000000000000",
        step_id: "01JD0000000000000000000001",
        at: "2026-10-01T09:00:00.123456789Z",
        kind: "tool.started",
        payload_json: SMALL,
    };
    c.bench_function("chain/link", |b| b.iter(|| link(black_box(&previous), black_box(&event))));
}

fn asked() -> Asked {
    Asked {
        session: SessionName::from("s"),
        key: Some(RequestKey::from("k")),
        tool: "bank_pay".to_owned(),
        class: SideEffect::RemoteMutation,
        window: Duration::from_secs(600),
        outcome: Outcome::Allow,
        max_pending: 64,
        tools: Arc::new(HashMap::new()),
        now: NOW,
        wall: NOW,
    }
}

/// A session with so many calls that wait for a person.
fn waiting(count: i64) -> OpenCalls {
    let mut calls = OpenCalls::new();
    for id in 0..count {
        let asking = Asking {
            id: format!("a{id}").into(),
            interruption: false,
            status: ApprovalStatus::Pending,
            expires_at: Some(NOW.plus(Duration::from_secs(60))),
            grant_until: None,
        };
        calls.put(OpenCall {
            id,
            key: RequestKey::from(format!("key-{id}")),
            tool: Arc::from("bank_wire"),
            run: RunId::from(format!("s.{id}")),
            state: OpenState::Waiting { approval: Some(asking) },
        });
    }
    calls
}

fn rules(c: &mut Criterion) {
    let asked = asked();
    let fresh = View { own: Own::default(), elsewhere: Some(Elsewhere::default()) };
    let mut group = c.benchmark_group("across_calls");
    group.bench_function("decide", |b| b.iter(|| decide(black_box(&asked), black_box(&fresh))));
    for count in [10, 10_000] {
        let calls = waiting(count);
        group.bench_with_input(BenchmarkId::new("elsewhere", count), &calls, |b, calls| {
            b.iter(|| calls.elsewhere(black_box(&asked)));
        });
    }
    group.finish();
}

criterion_group!(benches, json, chain, rules);
criterion_main!(benches);
