//! Tests of the wire over in-memory pipes: what leaves, in which order, and what each request came to.

use tokio::io::{AsyncBufReadExt, BufReader, DuplexStream, Lines as ReadLines, ReadHalf, WriteHalf};

use super::*;

/// The server's end of a wire.
struct Peer {
    input: ReadLines<BufReader<ReadHalf<DuplexStream>>>,
    output: WriteHalf<DuplexStream>,
}

impl Peer {
    async fn hear(&mut self) -> String {
        self.input.next_line().await.unwrap().expect("a line")
    }

    async fn say(&mut self, line: &str) {
        self.output.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }
}

fn wire(pipe_bytes: usize) -> (RawTransport, WireTasks, Peer) {
    let (ours, theirs) = tokio::io::duplex(pipe_bytes);
    let (output, input) = tokio::io::split(ours);
    let (transport, tasks) = RawTransport::start("fake", input, output);
    let (reader, writer) = tokio::io::split(theirs);
    (transport, tasks, Peer { input: BufReader::new(reader).lines(), output: writer })
}

fn result(text: &str) -> Answer {
    Answer::Result { text: text.to_owned(), utf8: true }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(5)
}

#[tokio::test(start_paused = true)]
async fn an_answer_reaches_the_request_with_its_id() {
    let (transport, _tasks, mut peer) = wire(1 << 16);
    let first = transport.request("tools/call", "{}", None).unwrap();
    let second = transport.request("tools/call", "{}", None).unwrap();
    assert!(peer.hear().await.contains("\"id\":1,"));
    assert!(peer.hear().await.contains("\"id\":2,"));
    peer.say(r#"{"id":2,"result":{"n":2}}"#).await;
    peer.say(r#"{"id":1,"result":{"n":1}}"#).await;
    assert_eq!(first.until(soon()).await, Outcome::Answered(result("{\"n\":1}")));
    assert_eq!(second.until(soon()).await, Outcome::Answered(result("{\"n\":2}")));
}

#[tokio::test(start_paused = true)]
async fn a_cancellation_never_overtakes_its_request() {
    let (transport, _tasks, mut peer) = wire(256);
    for round in 0..500_u64 {
        let request = transport.request("tools/call", "{}", None).unwrap();
        let waiting = tokio::spawn(request.until(Instant::now() + Duration::from_millis(round % 3)));
        let mut sent = false;
        // Either it was withdrawn and nothing leaves, or the request leaves first and its cancellation follows.
        while let Ok(line) = tokio::time::timeout(Duration::from_millis(50), peer.hear()).await {
            if line.contains("notifications/cancelled") {
                assert!(sent, "{line}");
            } else {
                sent = true;
            }
        }
        let outcome = waiting.await.unwrap();
        assert_eq!(matches!(outcome, Outcome::TimedOut), sent, "{outcome:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_a_server_never_read_times_out_as_not_sent() {
    let (transport, _tasks, _peer) = wire(16);
    let stuck = transport.request("tools/call", "{}", None).unwrap();
    tokio::task::yield_now().await;
    let behind = transport.request("tools/call", "{}", None).unwrap();
    let at = Instant::now() + Duration::from_secs(1);
    assert!(matches!(behind.until(at).await, Outcome::NotSent(_)));
    // The first one began to leave: nobody knows how much of it was read.
    assert_eq!(stuck.until(at).await, Outcome::TimedOut);
}

#[tokio::test(start_paused = true)]
async fn a_fence_that_passed_keeps_the_request_from_leaving() {
    let (transport, _tasks, mut peer) = wire(1 << 16);
    let late = transport.request("tools/call", "{}", Some(Instant::now())).unwrap();
    let in_time = transport.request("tools/call", "{}", Some(soon())).unwrap();
    assert!(matches!(late.until(soon()).await, Outcome::NotSent(why) if why.contains("lease")));
    assert!(peer.hear().await.contains("\"id\":2,"));
    peer.say(r#"{"id":2,"result":{}}"#).await;
    assert!(matches!(in_time.until(soon()).await, Outcome::Answered(_)));
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_wire_loses_what_left_and_keeps_what_did_not() {
    let (transport, _tasks, mut peer) = wire(128);
    let left = transport.request("tools/call", "{}", None).unwrap();
    peer.hear().await;
    let long = format!("\"{}\"", "x".repeat(1000));
    let partly = transport.request("tools/call", &long, None).unwrap();
    tokio::task::yield_now().await;
    let behind = transport.request("tools/call", "{}", None).unwrap();
    drop(peer);
    assert!(matches!(left.until(soon()).await, Outcome::Lost(_)));
    assert!(matches!(partly.until(soon()).await, Outcome::Lost(_)));
    assert!(matches!(behind.until(soon()).await, Outcome::NotSent(_)));
    assert!(transport.request("tools/call", "{}", None).is_err());
}

#[tokio::test(start_paused = true)]
async fn dropping_the_wire_ends_every_request() {
    let (transport, tasks, mut peer) = wire(1 << 16);
    let left = transport.request("tools/call", "{}", None).unwrap();
    peer.hear().await;
    let queued = transport.request("tools/call", "{}", None).unwrap();
    drop(tasks);
    assert!(matches!(left.until(soon()).await, Outcome::Lost(_)));
    assert!(matches!(queued.until(soon()).await, Outcome::NotSent(_)));
    assert_eq!(&*transport.closed().await, "the connection was closed");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_request_is_cancelled() {
    let (transport, _tasks, mut peer) = wire(1 << 16);
    let request = transport.request("tools/call", "{}", None).unwrap();
    peer.hear().await;
    drop(request);
    assert!(peer.hear().await.contains(r#""notifications/cancelled","params":{"requestId":1,"#));
    let greeting = transport.request("initialize", "{}", None).unwrap();
    peer.hear().await;
    drop(greeting);
    transport.notify("last", "{}");
    assert!(peer.hear().await.contains("last"), "initialize is never cancelled");
}

#[tokio::test(start_paused = true)]
async fn strays_are_counted_and_change_nothing() {
    let (transport, _tasks, mut peer) = wire(1 << 16);
    let request = transport.request("tools/call", "{}", None).unwrap();
    peer.say(r#"{"id":2,"result":{"guess":true}}"#).await;
    peer.hear().await;
    peer.say(r#"{"id":"1","result":{"other":true}}"#).await;
    peer.say(r#"{"id":1,"result":{"first":true}}"#).await;
    peer.say(r#"{"id":1,"result":{"second":true}}"#).await;
    let outcome = request.until(soon()).await;
    assert_eq!(outcome, Outcome::Answered(result("{\"first\":true}")));
    peer.say(r#"{"method":"notifications/tools/list_changed"}"#).await;
    let mut tally = transport.shared.tally.subscribe();
    let seen = *tally.wait_for(|tally| tally.list_changes == 1).await.unwrap();
    assert_eq!(seen, Tally { stray_answers: 3, list_changes: 1 });
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_before_its_request_left_is_a_guess() {
    let (transport, _tasks, mut peer) = wire(16);
    let first = transport.request("tools/call", "{}", None).unwrap();
    tokio::task::yield_now().await;
    let second = transport.request("tools/call", "{}", None).unwrap();
    peer.say(r#"{"id":2,"result":{"guess":true}}"#).await;
    let mut tally = transport.shared.tally.subscribe();
    tally.wait_for(|tally| tally.stray_answers == 1).await.unwrap();
    peer.hear().await;
    peer.hear().await;
    peer.say(r#"{"id":2,"result":{"honest":true}}"#).await;
    let outcome = second.until(soon()).await;
    assert_eq!(outcome, Outcome::Answered(result("{\"honest\":true}")));
    drop(first);
}

#[tokio::test(start_paused = true)]
async fn a_server_may_ping_and_nothing_else() {
    let (_transport, _tasks, mut peer) = wire(1 << 16);
    peer.say(r#"{"id":"a\"b","method":"ping"}"#).await;
    assert_eq!(peer.hear().await, r#"{"jsonrpc":"2.0","id":"a\"b","result":{}}"#);
    for method in ["sampling/createMessage", "roots/list", "elicitation/create"] {
        peer.say(&format!(r#"{{"id":9,"method":"{method}","params":{{}}}}"#)).await;
        assert!(peer.hear().await.contains("-32601"), "{method}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_asks_without_reading_the_answers_loses_its_connection() {
    let (transport, _tasks, mut peer) = wire(64);
    let flood = async {
        loop {
            let line = b"{\"id\":1,\"method\":\"ping\"}\n";
            if peer.output.write_all(line).await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        why = transport.closed() => assert!(why.contains("does not read"), "{why}"),
        () = flood => panic!("the pipe closed without a reason"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_bad_envelope_closes_the_wire_and_shows_how_it_begins() {
    let (transport, _tasks, mut peer) = wire(1 << 16);
    let request = transport.request("tools/call", "{}", None).unwrap();
    peer.hear().await;
    peer.say("oops \u{1b}[2J").await;
    assert!(matches!(request.until(soon()).await, Outcome::Lost(why) if why.contains(r#""oops \x1b[2J""#)));
}

#[tokio::test(start_paused = true)]
async fn finishing_closes_the_input_behind_what_was_queued() {
    let (transport, _tasks, mut peer) = wire(1 << 16);
    transport.notify("last", "{}");
    transport.finish();
    assert!(peer.hear().await.contains("last"));
    assert!(transport.request("tools/call", "{}", None).is_err());
}
