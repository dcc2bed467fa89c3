//! Followers over records that the gate wrote: what is delivered, what is kept, and what stops them.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use holdpoint_actors::store::OperatorStore;
use holdpoint_core::event::Event;
use holdpoint_core::ids::RunId;
use tempfile::TempDir;

use super::*;
use crate::gate::{
    Json, Limits, Observer, Proposal, Runtime, SideEffect, Tool, ToolCall, ToolFailure, ToolOutput, ToolSpec,
    async_trait,
};
use crate::trace::Trace;

/// A tool that answers with its arguments.
#[derive(Debug)]
struct Echo(&'static str, SideEffect);

#[async_trait]
impl Tool for Echo {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: self.0.to_owned(),
            description: "Of the test.".to_owned(),
            input_schema: Json::trusted(r#"{"type":"object"}"#),
            side_effect: self.1,
            timeout: Duration::from_secs(5),
            terminal: false,
        }
    }

    async fn call(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        Ok(ToolOutput::new(call.args.as_str(), "echoed"))
    }
}

/// A record that goes with its folder.
pub(super) struct Record {
    folder: TempDir,
    path: PathBuf,
}

impl Record {
    pub(super) fn new() -> Record {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runs.db");
        Record { folder, path }
    }

    /// A record of runs with so many steps each, named `r0` and on.
    fn of(steps: &[usize]) -> Record {
        let record = Record::new();
        for (i, steps) in steps.iter().enumerate() {
            record.add(&format!("r{i}"), *steps, "{}");
        }
        record
    }

    /// A run that is over, and one that waits for a person.
    #[cfg(feature = "otlp")]
    pub(super) fn with_one_that_waits() -> Record {
        let record = Record::of(&[2]);
        let threads = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        threads.block_on(async {
            let pay = Arc::new(Echo("pay", SideEffect::RemoteMutation));
            let runtime = Runtime::builder(&record.path).tool(pay).start().await.unwrap();
            let session = runtime.gate().begin("waits".into(), "ask", Limits::default()).await.unwrap();
            let step = session.step().await.unwrap().unwrap();
            step.propose(Proposal::tool_call("pay", "{}")).await.unwrap();
            session.close().await;
            runtime.stop().await;
        });
        record
    }

    #[cfg(feature = "otlp")]
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    #[cfg(feature = "otlp")]
    pub(super) fn newest(&self) -> i64 {
        self.events().last().unwrap().seq
    }

    #[cfg(feature = "otlp")]
    pub(super) fn events_after(&self, seq: i64, count: u32) -> Vec<Event> {
        let mut store = OperatorStore::open(&self.path, true).unwrap();
        store.read(|reader| reader.events_after(None, seq, i64::from(count))).unwrap()
    }

    fn in_folder(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Adds a run of so many steps and a completion.
    fn add(&self, run: &str, steps: usize, args: &str) {
        add(&self.path, run, steps, args, None);
    }

    fn events(&self) -> Vec<Event> {
        let mut store = OperatorStore::open(&self.path, true).unwrap();
        store.read(|reader| reader.events_after(None, 0, 10_000)).unwrap()
    }

    fn follower(&self) -> Follower {
        Follower::open(&self.path).unwrap()
    }

    fn cursor(&self) -> FileCursor {
        FileCursor::new(self.in_folder("cursor"))
    }

    fn tamper(&self, sql: &str) {
        rusqlite::Connection::open(&self.path).unwrap().execute_batch(sql).unwrap();
    }
}

fn add(path: &Path, run: &str, steps: usize, args: &str, observer: Option<Arc<dyn Observer>>) {
    let threads = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    threads.block_on(async {
        let mut builder = Runtime::builder(path).tool(Arc::new(Echo("echo", SideEffect::ReadOnly)));
        if let Some(observer) = observer {
            builder = builder.observer(observer);
        }
        let runtime = builder.start().await.unwrap();
        let limits = Limits { loop_threshold: 1_000, ..Limits::default() };
        let session = runtime.gate().begin(RunId::from(run), "go on", limits).await.unwrap();
        for _ in 0..steps {
            let step = session.step().await.unwrap().unwrap();
            step.propose(Proposal::tool_call("echo", args)).await.unwrap();
            step.execute().await.unwrap();
        }
        let last = session.step().await.unwrap().unwrap();
        last.propose(Proposal::complete("{}")).await.unwrap();
        session.close().await;
        runtime.stop().await;
    });
}

/// A sink that keeps what it was given, and fails where it is told to.
#[derive(Debug, Default)]
struct Kept {
    events: Vec<Event>,
    fails_at: Option<usize>,
    fails_to_flush: bool,
    flushes: usize,
}

impl Sink for Kept {
    fn deliver(&mut self, event: &Event) -> Result<(), SinkError> {
        if self.fails_at == Some(self.events.len()) {
            return Err("full".into());
        }
        self.events.push(event.clone());
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        self.flushes += 1;
        if self.fails_to_flush { Err("stuck".into()) } else { Ok(()) }
    }
}

fn follow(follower: &mut Follower) -> Vec<Event> {
    let mut kept = Kept::default();
    follower.follow(&mut kept, &Stop::default()).unwrap();
    kept.events
}

fn seqs(events: &[Event]) -> Vec<i64> {
    events.iter().map(|event| event.seq).collect()
}

#[test]
fn every_run_is_delivered_in_the_order_of_commits_and_one_run_alone_where_it_is_named() {
    let record = Record::of(&[2, 3]);
    let all = record.events();
    assert_eq!(seqs(&all), (1..=all.len() as i64).collect::<Vec<_>>());
    assert_eq!(follow(&mut record.follower().once()), all);
    let one = follow(&mut record.follower().run(RunId::from("r1")).once());
    let of_run: Vec<Event> = all.iter().filter(|event| event.run_id.as_str() == "r1").cloned().collect();
    assert!(!of_run.is_empty());
    assert_eq!(one, of_run);
}

#[test]
fn what_was_delivered_is_not_delivered_by_the_next_follower_of_the_cursor() {
    let record = Record::of(&[2]);
    let first = follow(&mut record.follower().cursor(record.cursor()).once());
    assert_eq!(record.cursor().load().unwrap(), first.last().unwrap().seq);
    record.add("r1", 1, "{}");
    let second = follow(&mut record.follower().cursor(record.cursor()).once());
    assert!(second.iter().all(|event| event.run_id.as_str() == "r1"));
    assert_eq!([first, second].concat(), record.events());
    let mut kept = Kept::default();
    let mut follower = record.follower().cursor(record.cursor()).once();
    let followed = follower.follow(&mut kept, &Stop::default()).unwrap();
    let last = record.events().len() as i64;
    assert_eq!(followed, Followed { events: 0, last, end: End::Drained });
    assert_eq!(kept.flushes, 0, "nothing new, so nothing to let go of");
}

#[test]
fn a_follower_without_a_cursor_begins_at_the_first_event_each_time() {
    let record = Record::of(&[1]);
    let mut follower = record.follower().once();
    assert_eq!(follow(&mut follower), record.events());
    assert_eq!(follow(&mut follower), record.events());
    assert_eq!(follower.head().unwrap(), None);
}

/// Tells what it was given to another thread.
struct Told(mpsc::Sender<Event>);

impl Sink for Told {
    fn deliver(&mut self, event: &Event) -> Result<(), SinkError> {
        Ok(self.0.send(event.clone())?)
    }
}

#[test]
fn a_live_follower_is_woken_by_the_log_and_stops_with_its_cursor_saved() {
    let record = Record::of(&[1]);
    let before = record.events().len();
    let (send, told) = mpsc::channel();
    let (stop, cursor) = (Stop::default(), record.cursor());
    // Its own look comes after a minute: what comes earlier was told by the log.
    let mut follower = record.follower().cursor(cursor).interval(INTERVAL_MAX);
    let following = {
        let stop = stop.clone();
        std::thread::spawn(move || follower.follow(&mut Told(send), &stop).unwrap())
    };
    let next =
        || told.recv_timeout(Duration::from_secs(30)).expect("an event before the follower's own look");
    for _ in 0..before {
        next();
    }
    record.add("r1", 2, "{}");
    let all = record.events();
    assert_eq!((before..all.len()).map(|_| next()).collect::<Vec<_>>(), all[before..]);
    stop.stop();
    let followed = following.join().unwrap();
    assert_eq!((followed.end, followed.events), (End::Stopped, all.len() as u64));
    assert_eq!(record.cursor().load().unwrap(), all.last().unwrap().seq);
}

/// Stops the follower after so many events.
struct Stops(Kept, usize, Stop);

impl Sink for Stops {
    fn deliver(&mut self, event: &Event) -> Result<(), SinkError> {
        self.0.deliver(event)?;
        if self.0.events.len() == self.1 {
            self.2.stop();
        }
        Ok(())
    }
}

#[test]
fn a_follower_that_is_stopped_within_a_page_saves_its_cursor_there() {
    let record = Record::of(&[3]);
    let stop = Stop::default();
    let mut sink = Stops(Kept::default(), 4, stop.clone());
    let followed = record.follower().cursor(record.cursor()).once().follow(&mut sink, &stop).unwrap();
    assert_eq!(followed, Followed { events: 4, last: 4, end: End::Stopped });
    assert_eq!(record.cursor().load().unwrap(), 4);
    assert_eq!(seqs(&follow(&mut record.follower().cursor(record.cursor()).once()))[0], 5);
    let mut kept = Kept::default();
    let followed = record.follower().once().follow(&mut kept, &stop).unwrap();
    assert_eq!((followed.end, kept.events.len()), (End::Stopped, 0), "one that is stopped delivers nothing");
}

#[test]
fn a_follower_leaves_the_database_as_it_was() {
    let record = Record::of(&[3]);
    // Everything in one file, and nothing left to be written by a connection that closes late.
    record.tamper("PRAGMA busy_timeout = 5000; PRAGMA wal_checkpoint(TRUNCATE)");
    let state = |name: &str| {
        let path = record.in_folder(name);
        let meta = fs::metadata(&path).ok()?;
        Some((fs::read(&path).unwrap(), meta.mtime_nsec(), meta.mode()))
    };
    let before = state("runs.db");
    assert!(!follow(&mut record.follower().cursor(record.cursor()).page_events(2).once()).is_empty());
    assert!(before.is_some());
    assert_eq!(state("runs.db"), before);
    assert!(state("runs.db-wal").is_none_or(|(log, ..)| log.is_empty()), "no log is written");
}

#[test]
fn a_large_record_is_read_a_page_at_a_time_and_a_long_payload_says_that_it_was_cut() {
    let record = Record::new();
    record.add("r0", 12, &format!(r#"{{"s":"{}"}}"#, "x".repeat(70_000)));
    let mut kept = Kept::default();
    record.follower().page_events(7).once().follow(&mut kept, &Stop::default()).unwrap();
    assert_eq!(kept.events, record.events());
    assert_eq!(kept.flushes, kept.events.len().div_ceil(7));
    let cut: Vec<&Event> =
        kept.events.iter().filter(|event| event.payload.contains(r#""truncated":true"#)).collect();
    // Each step decided, and its tool started; the answer is in no event.
    assert_eq!(cut.len(), 24);
    let payload: HashMap<String, serde_json::Value> = serde_json::from_str(&cut[0].payload).unwrap();
    assert!(payload["length"].as_i64().unwrap() > 70_000);
    assert_eq!(payload["head"].as_str().unwrap().len(), 65_536);
}

#[test]
fn a_sink_that_fails_stops_the_follower_and_gets_the_same_event_the_next_time() {
    let record = Record::of(&[2]);
    let mut kept = Kept { fails_at: Some(3), ..Kept::default() };
    let refused = record.follower().cursor(record.cursor()).once().follow(&mut kept, &Stop::default());
    assert!(matches!(refused, Err(Error::Sink(error)) if error.to_string() == "full"));
    assert_eq!((record.cursor().load().unwrap(), kept.flushes), (3, 1), "the three before it were let go of");
    assert_eq!(seqs(&follow(&mut record.follower().cursor(record.cursor()).once()))[0], 4);
}

#[test]
fn what_a_sink_can_not_let_go_of_counts_as_not_delivered() {
    let record = Record::of(&[2]);
    let mut kept = Kept { fails_to_flush: true, ..Kept::default() };
    let mut follower = record.follower().cursor(record.cursor()).page_events(4).once();
    let refused = follower.follow(&mut kept, &Stop::default());
    assert!(matches!(refused, Err(Error::Sink(error)) if error.to_string() == "stuck"));
    assert_eq!((record.cursor().load().unwrap(), kept.events.len()), (0, 4));
    kept.fails_to_flush = false;
    follower.follow(&mut kept, &Stop::default()).unwrap();
    assert_eq!(seqs(&kept.events)[4..6], [1, 2], "they come again");
}

/// Dies after so many events, as a process does.
struct Dies(Arc<Mutex<Vec<i64>>>, usize);

impl Sink for Dies {
    fn deliver(&mut self, event: &Event) -> Result<(), SinkError> {
        let mut seen = self.0.lock().unwrap();
        seen.push(event.seq);
        let dies = seen.len() == self.1;
        drop(seen);
        assert!(!dies, "the sink of the test dies here");
        Ok(())
    }
}

#[test]
fn a_follower_that_is_killed_delivers_at_most_a_page_again() {
    let record = Record::of(&[3]);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (mut sink, cursor) = (Dies(Arc::clone(&seen), 7), record.cursor());
    let mut follower = record.follower().cursor(cursor).page_events(4).once();
    std::thread::spawn(move || follower.follow(&mut sink, &Stop::default())).join().unwrap_err();
    assert_eq!(record.cursor().load().unwrap(), 4, "the page before it was kept");
    let again = seqs(&follow(&mut record.follower().cursor(record.cursor()).page_events(4).once()));
    assert_eq!((seen.lock().unwrap().as_slice(), again[0]), ([1, 2, 3, 4, 5, 6, 7].as_slice(), 5));
    assert_eq!(again.last(), record.events().last().map(|event| &event.seq));
}

#[test]
fn what_a_power_failure_could_take_back_is_not_handed_on() {
    let record = Record::of(&[1]);
    let mut follower = record.follower().cursor(record.cursor()).once();
    // A writer that has its log open, and a path to it that can't be followed: the log can be read and not be synced.
    let writer = rusqlite::Connection::open(&record.path).unwrap();
    writer.execute_batch("UPDATE runs SET goal = goal").unwrap();
    let log = record.in_folder("runs.db-wal");
    fs::rename(&log, record.in_folder("log")).unwrap();
    symlink(record.in_folder("log"), &log).unwrap();
    let mut kept = Kept::default();
    let refused = follower.follow(&mut kept, &Stop::default()).unwrap_err();
    assert!(matches!(refused, Error::Sync { .. }), "{refused}");
    assert_eq!((kept.events.len(), record.cursor().load().unwrap()), (0, 0));
}

#[test]
fn a_database_that_was_moved_is_followed_no_further() {
    let record = Record::of(&[1]);
    let mut follower = record.follower().once();
    fs::rename(&record.path, record.in_folder("moved.db")).unwrap();
    let mut kept = Kept::default();
    let refused = follower.follow(&mut kept, &Stop::default()).unwrap_err();
    assert!(matches!(refused, Error::Moved { .. }), "{refused}");
    assert_eq!(kept.events.len(), 0);
}

#[test]
fn a_cursor_past_the_newest_event_or_below_zero_is_refused() {
    let record = Record::of(&[1]);
    let newest = record.events().len() as i64;
    for (seq, ahead) in [(newest + 1, true), (-1, false)] {
        let mut follower = record.follower().cursor(MemCursor { seq }).once();
        let refused = follower.follow(&mut Kept::default(), &Stop::default()).unwrap_err();
        assert_eq!(matches!(refused, Error::CursorAhead { .. }), ahead, "{refused}");
        assert_eq!(matches!(refused, Error::Cursor(CursorError::Negative(-1))), !ahead, "{refused}");
    }
    assert!(follow(&mut record.follower().cursor(MemCursor { seq: newest }).once()).is_empty());
}

#[test]
fn the_head_is_the_chain_as_far_as_it_was_delivered() {
    let record = Record::of(&[1, 1]);
    let mut follower = record.follower().run(RunId::from("r0")).cursor(record.cursor()).once();
    assert_eq!(follower.head().unwrap(), None, "nothing was delivered yet");
    let last = follow(&mut follower).last().unwrap().seq;
    let head = follower.head().unwrap().unwrap();
    let mut store = OperatorStore::open(&record.path, true).unwrap();
    let report = store.read(|reader| reader.verify(0, last)).unwrap();
    assert_eq!(
        (head.seq, &head.hash, report.broken),
        (last, &report.hash, None),
        "the chain is the database's"
    );
    record.tamper(&format!("DELETE FROM events WHERE seq = {last}"));
    assert!(matches!(follower.head(), Err(Error::EventGone(seq)) if seq == last));
}

/// Bytes that a trace wrote.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Refuses every byte.
struct Closed;

impl std::io::Write for Closed {
    fn write(&mut self, _bytes: &[u8]) -> std::io::Result<usize> {
        Err(std::io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn the_lines_of_an_export_are_those_of_a_trace() {
    let record = Record::new();
    let traced = Shared::default();
    add(
        &record.path,
        "r0",
        2,
        r#"{"a":"<b>&\u2028\u0000","b":1.50}"#,
        Some(Arc::new(Trace::json_lines(traced.clone()))),
    );
    let mut exported = Vec::new();
    record.follower().once().follow(&mut Jsonl::new(&mut exported), &Stop::default()).unwrap();
    assert_eq!(
        String::from_utf8(exported).unwrap(),
        String::from_utf8(traced.0.lock().unwrap().clone()).unwrap()
    );
    let refused = record.follower().once().follow(&mut Jsonl::new(Closed), &Stop::default()).unwrap_err();
    assert!(matches!(refused, Error::Sink(_)), "{refused}");
}

#[test]
fn settings_are_bounded_and_zero_means_the_default() {
    let record = Record::of(&[]);
    add(&record.path, "r0", 0, "{}", None);
    let of = |interval, events| {
        let follower = record.follower().interval(interval).page_events(events);
        (follower.interval, follower.page_events)
    };
    assert_eq!(of(Duration::ZERO, 0), (Duration::from_millis(250), 500));
    assert_eq!(of(Duration::from_secs(3_600), u32::MAX), (Duration::from_secs(60), 10_000));
    assert_eq!(of(Duration::from_secs(1), 7), (Duration::from_secs(1), 7));
}
