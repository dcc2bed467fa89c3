//! Calls a second through the store, by how many wait at a time, beside an arm that commits once per state change.
//! Run with `cargo bench -p holdpoint-actors`.

mod workload;

use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tokio::runtime::Runtime;

use workload::{Arm, Failure, Store};

/// Calls of one measured round for each caller.
const CALLS_EACH: u64 = 4;

fn store(c: &mut Criterion) {
    if let Err(error) = measure(c) {
        panic!("{error}");
    }
}

fn measure(c: &mut Criterion) -> Result<(), Failure> {
    let runtime = Runtime::new()?;
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let mut group = c.benchmark_group("store");
    group.sample_size(10).warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
    for arm in [Arm::Batched, Arm::EachState] {
        let path = folder.path().join(format!("{arm:?}.db"));
        let store = runtime.block_on(Store::start(&path, arm))?;
        for callers in [1, 64, 256] {
            at(&mut group, &runtime, &store, arm, callers);
        }
        runtime.block_on(store.stop())?;
    }
    group.finish();
    Ok(())
}

fn at(group: &mut BenchmarkGroup<'_, WallTime>, runtime: &Runtime, store: &Store, arm: Arm, callers: u64) {
    let calls = callers * CALLS_EACH;
    group.throughput(Throughput::Elements(calls));
    group.bench_function(BenchmarkId::new(format!("{arm:?}"), callers), |b| {
        b.iter_custom(|rounds| match runtime.block_on(store.run(callers, calls * rounds)) {
            Ok((took, _synced)) => took,
            Err(error) => panic!("{error}"),
        });
    });
}

criterion_group!(benches, store);
criterion_main!(benches);
