//! What the record keeps so that a decision can be judged again: specs, hashes, the chain.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use holdpoint_actors::model::{Model, ModelError};
use holdpoint_actors::session::ModelConfig;
use holdpoint_actors::store::Options;
use holdpoint_actors::store::faults::{Act, Point};
use holdpoint_core::decision::Proposal;
use holdpoint_core::event::EventKind;
use holdpoint_core::hash::sha256_hex;
use holdpoint_core::model::{ModelRequest, ModelResponse};
use holdpoint_core::run::{Limits, Reason, RunStatus};
use holdpoint_core::tool::{SideEffect, ToolSpec};

use crate::bench::*;

#[tokio::test]
async fn each_distinct_spec_is_kept_once_and_named_by_each_step_that_named_its_tool() {
    let bench = Bench::new();
    let process = bench.process(&tools(), by_class()).await;
    let session = process.begin().await;
    act(&session, call("read", "{\"n\":1}")).await;
    act(&session, call("read", "{\"n\":2}")).await;
    denied(propose(&session, call("read", "{\"n\":\"x\"}")).await.1);
    denied(propose(&session, call("nope", "{}")).await.1);
    let read = spec("read", SideEffect::ReadOnly).recorded();
    let named: Vec<_> = bench.steps(&r()).into_iter().map(|step| step.spec_hash).collect();
    assert_eq!(named, [Some(read.hash.clone()), Some(read.hash.clone()), Some(read.hash.clone()), None]);
    let judged = bench.events(&r()).into_iter().filter(|event| event.kind == "step.policy");
    assert!(judged.into_iter().all(|event| event.payload.contains(read.hash.as_str())));
    let kept = bench.operator().read(|reader| reader.spec(&read.hash)).unwrap().unwrap();
    assert_eq!(kept, read);
    assert_eq!(sha256_hex(kept.canonical.as_str().as_bytes()), read.hash.as_str());
    assert_eq!(ToolSpec::parse(kept.canonical.as_str()).unwrap().name, "read");

    bench.sql("UPDATE tool_specs SET spec_json = replace(spec_json, '\"read\"', '\"reed\"')");
    assert!(
        bench.operator().read(|reader| reader.spec(&read.hash)).is_err(),
        "an altered one is not read back"
    );
}

#[tokio::test]
async fn a_changed_spec_is_kept_under_another_hash_and_both_can_be_read() {
    let bench = Bench::new();
    let base = spec("read", SideEffect::ReadOnly);
    let mut hashes = std::collections::HashSet::new();
    let changes = [
        base.clone(),
        ToolSpec { description: "reworded".to_owned(), ..base.clone() },
        ToolSpec { timeout: std::time::Duration::from_secs(60), ..base.clone() },
        ToolSpec { terminal: true, ..base },
    ];
    for (at, spec) in changes.into_iter().enumerate() {
        let tool = Scripted::with(spec.clone(), |_| Box::pin(async { Ok(Default::default()) }));
        let process = bench.process(&[tool], by_class()).await;
        let id = format!("r{at}").into();
        let session = process.gate.begin(id, "g", limits()).await.unwrap();
        act(&session, call("read", "{}")).await;
        session.close().await;
        hashes.insert(spec.recorded().hash);
    }
    assert_eq!(hashes.len(), 4);
    for hash in hashes {
        assert!(bench.operator().read(|reader| reader.spec(&hash)).unwrap().is_some());
    }
}

#[tokio::test]
async fn programs_that_write_at_the_same_time_extend_one_chain() {
    let bench = Bench::new();
    let mut runs = Vec::new();
    for program in 0..4 {
        let process = bench.process(&tools(), by_class()).await;
        runs.push(tokio::spawn(async move {
            for run in 0..6 {
                let id = format!("r{program}.{run}").as_str().into();
                let session = process.gate.begin(id, "g", limits()).await.unwrap();
                act(&session, call("read", "{}")).await;
                act(&session, call("write", "{}")).await;
                session.close().await;
            }
            process
        }));
    }
    for run in runs {
        run.await.unwrap();
    }
    let head = bench.operator().read(|reader| reader.head()).unwrap();
    assert_eq!(head.seq, 24 * 12, "none is lost and none is written twice");
    bench.verify();
}

#[tokio::test]
async fn an_observer_is_told_of_a_commit_whose_reply_was_lost() {
    for act in [Act::Panic, Act::SyncFails] {
        let bench = Bench::new();
        let options = Options::default();
        let faults = options.faults.clone();
        let process = bench.process_with(&tools(), by_class(), options, |_| {}).await;
        faults.add(Point::Answer, act);
        let session = process.begin().await;
        faults.add(Point::Answer, act);
        let step = session.step().await.unwrap().unwrap();
        faults.add(Point::Answer, act);
        let last = step.propose(call("wipe", "{}")).await.unwrap();
        denied(last);
        assert_eq!(faults.left(), 0);
        assert_eq!(process.seen.events(), bench.events(&r()), "each once, in order");
        bench.verify();
    }
}

/// A model that is too busy the first time.
#[derive(Default)]
struct Busy(AtomicUsize);

#[async_trait]
impl Model for Busy {
    fn name(&self) -> &str {
        "busy"
    }

    async fn generate(&self, _request: &ModelRequest) -> Result<ModelResponse, ModelError> {
        match self.0.fetch_add(1, Ordering::AcqRel) {
            0 => Err(ModelError::Transient { why: "too busy".to_owned(), retry_after: None }),
            _ => Ok(ModelResponse::default()),
        }
    }
}

#[tokio::test]
async fn every_kind_of_event_stands_in_one_chain() {
    let bench = Bench::new();
    let mut config = ModelConfig::new(Arc::new(Busy::default()) as Arc<dyn Model>);
    (config.max_retries, config.backoff) = (1, Duration::from_millis(1));
    let one =
        bench.process_with(&tools(), by_class(), Options::default(), |spec| spec.model = Some(config)).await;
    let session = one.begin().await;
    session.step().await.unwrap().unwrap();
    let request = ModelRequest { max_output_tokens: 9, ..ModelRequest::default() };
    session.current().await.unwrap().model().generate(&request).await.unwrap();

    // Another process takes the run over, is denied a call, asks for one and is allowed it.
    bench.wall.advance(Duration::from_secs(31));
    let two = bench.process(&tools(), by_class()).await;
    let session = open(two.gate.attach(r()).await);
    denied(propose(&session, call("wipe", "{}")).await.1);
    bench.approve(&pending(propose(&session, call("push", "{}")).await.1));
    let (session, step) = granted(two.gate.attach(r()).await);
    step.execute().await.unwrap();
    ended(propose(&session, Proposal::complete("")).await.1);

    // One run meets a limit, and another goes round in a circle.
    for (id, limits, reason) in [
        ("limited", Limits { max_steps: 1, ..limits() }, Reason::LimitSteps),
        ("circling", Limits { loop_threshold: 2, ..limits() }, Reason::LoopDetected),
    ] {
        let session = two.gate.begin(id.into(), "g", limits).await.unwrap();
        drive(&session, &[call("read", "{}"), call("read", "{}"), call("read", "{}")]).await;
        is(&session.run().await, RunStatus::Failed, reason);
    }
    let runs = [r(), "limited".into(), "circling".into()];
    let seen: BTreeSet<String> = runs.iter().flat_map(|run| bench.events(run)).map(|e| e.kind).collect();
    assert_eq!(seen, EventKind::ALL.iter().map(|kind| kind.as_str().to_owned()).collect());
    bench.verify();
}
