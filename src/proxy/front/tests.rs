//! Tests of the front: what a host may send, and what it is told.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader, DuplexStream, Lines as TokioLines, ReadHalf, WriteHalf};
use tokio::sync::Notify;

use super::*;

/// Answers by the tool's name: `echo` with the arguments, `panic` not at all, `hold` when it is released or cancelled,
/// `stubborn` when it is released.
#[derive(Debug, Default)]
struct Fake {
    release: Notify,
    entered: Notify,
    stopped: AtomicBool,
    stop: Notify,
    saw_cancel: Notify,
    ready: Notify,
}

#[async_trait]
impl Calls for Fake {
    async fn list(&self) -> Result<Vec<String>, ListError> {
        self.ready.notified().await;
        Ok(vec![r#"{"name":"t","inputSchema":{"x":1E400},"vendor":[ 1.10 ]}"#.to_owned()])
    }

    async fn call(&self, call: HostCall) -> CallAnswer {
        if self.stopped.load(Ordering::SeqCst) {
            return CallAnswer::ShuttingDown;
        }
        match call.name.as_str() {
            "echo" => {
                let args = call.arguments.map(|args| String::from_utf8_lossy(&args).into_owned());
                CallAnswer::Result(json!({"args": args}).to_string())
            }
            "panic" => panic!("on purpose"),
            // It does not stop when it is cancelled, as a tool that executes does not.
            "stubborn" => {
                self.entered.notify_one();
                self.release.notified().await;
                CallAnswer::Result("{}".to_owned())
            }
            "hold" => {
                if let Some(progress) = &call.progress {
                    progress.tell(1.0, 15.0, "waiting");
                }
                self.entered.notify_one();
                tokio::select! {
                    () = self.release.notified() => {}
                    () = self.stop.notified() => {}
                    () = call.cancelled.cancelled() => self.saw_cancel.notify_one(),
                }
                CallAnswer::Result("{\n\"held\":true}".to_owned())
            }
            _ => CallAnswer::NoSuchTool,
        }
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.stop.notify_waiters();
    }
}

struct TestHost {
    calls: Arc<Fake>,
    input: WriteHalf<DuplexStream>,
    output: TokioLines<BufReader<ReadHalf<DuplexStream>>>,
    stop: watch::Sender<bool>,
    served: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl TestHost {
    fn new() -> TestHost {
        let calls = Arc::new(Fake::default());
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let (read, write) = tokio::io::split(theirs);
        let (stop, stopped) = watch::channel(false);
        let served = tokio::spawn(serve(read, write, Arc::clone(&calls) as Arc<dyn Calls>, stopped));
        let (read, input) = tokio::io::split(ours);
        TestHost { calls, input, output: BufReader::new(read).lines(), stop, served }
    }

    async fn greeted() -> TestHost {
        let mut host = TestHost::new();
        host.send(
            r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}"#,
        )
        .await;
        host.receive().await;
        host
    }

    async fn send(&mut self, line: &str) {
        self.input.write_all(line.as_bytes()).await.unwrap();
        self.input.write_all(b"\n").await.unwrap();
    }

    async fn call(&mut self, id: u32, name: &str, rest: &str) {
        self.send(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"{name}"{rest}}}}}"#
        ))
        .await;
    }

    async fn receive_text(&mut self) -> String {
        self.output.next_line().await.unwrap().expect("the output ended")
    }

    async fn receive(&mut self) -> Value {
        serde_json::from_str(&self.receive_text().await).unwrap()
    }

    async fn ask(&mut self, line: &str) -> Value {
        self.send(line).await;
        self.receive().await
    }
}

#[tokio::test]
async fn the_first_words_are_answered_at_once() {
    let mut host = TestHost::new();
    let early = host.ask(r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#).await;
    assert_eq!(early["error"]["code"], -32600);
    let pong = host.ask(r#"{"jsonrpc":"2.0","id":2,"method":"ping"}"#).await;
    assert_eq!(pong["result"], json!({}));
    let greeting = host
        .ask(r#"{"jsonrpc":"2.0","id":"a","method":"initialize","params":{"protocolVersion":"2025-03-26"}}"#)
        .await;
    assert_eq!(
        greeting,
        json!({"jsonrpc":"2.0","id":"a","result":{"protocolVersion":"2025-03-26","capabilities":{"tools":{}},
            "serverInfo":{"name":"gated-tools","version":"0.1.0"}}})
    );
    let again = host
        .ask(r#"{"jsonrpc":"2.0","id":3,"method":"initialize","params":{"protocolVersion":"2025-03-26"}}"#)
        .await;
    assert_eq!(again["error"]["code"], -32600);
}

#[tokio::test]
async fn a_version_that_is_not_spoken_gets_the_newest_that_is() {
    let mut host = TestHost::new();
    let line = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2026-07-28"}}"#;
    assert_eq!(host.ask(line).await["result"]["protocolVersion"], "2025-11-25");
}

#[tokio::test]
async fn the_list_waits_and_goes_out_byte_for_byte() {
    let mut host = TestHost::greeted().await;
    host.send(r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#).await;
    // It waits for the servers, and nothing else waits for it.
    assert_eq!(host.ask(r#"{"jsonrpc":"2.0","id":2,"method":"ping"}"#).await["id"], 2);
    host.calls.ready.notify_one();
    assert_eq!(
        host.receive_text().await,
        r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"t","inputSchema":{"x":1E400},"vendor":[ 1.10 ]}]}}"#
    );
}

#[tokio::test]
async fn arguments_reach_the_gate_whatever_they_are() {
    let mut host = TestHost::greeted().await;
    for args in [r#"{"a":1,"a":2}"#, r#"{"s":"\ud800"}"#, r#"{"n":1e99999999}"#, "[ 1.0 ]", "7"] {
        host.call(1, "echo", &format!(r#","arguments":{args}"#)).await;
        assert_eq!(host.receive().await["result"]["args"], args);
    }
    host.call(1, "echo", "").await;
    assert_eq!(host.receive().await["result"]["args"], Value::Null);
}

#[tokio::test]
async fn bad_input_is_answered_and_the_session_goes_on() {
    let mut host = TestHost::greeted().await;
    assert_eq!(
        host.ask("hello").await,
        json!({"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"not one JSON value"}})
    );
    assert_eq!(host.ask("[]").await["error"]["code"], -32600);
    assert_eq!(
        host.ask(r#"{"jsonrpc":"2.0","id":1,"method":"resources/list"}"#).await["error"]["code"],
        -32601
    );
    host.call(2, "nobody", "").await;
    assert_eq!(host.receive().await["error"]["code"], -32602);
    assert_eq!(
        host.ask(r#"{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{}}"#).await["error"]["code"],
        -32602
    );
    host.send(r#"{"jsonrpc":"2.0","method":"notifications/whatever"}"#).await;
    host.send(r#"{"jsonrpc":"2.0","id":9,"result":{}}"#).await;
    assert_eq!(host.ask(r#"{"jsonrpc":"2.0","id":4,"method":"ping"}"#).await["id"], 4);
}

#[tokio::test]
async fn a_line_that_is_too_long_is_refused_by_its_id_and_the_session_goes_on() {
    let mut host = TestHost::greeted().await;
    let long = "x".repeat(17 * 1024 * 1024);
    let line = format!(
        r#"{{"jsonrpc":"2.0","method":"tools/call","params":{{"name":"echo","arguments":{{"a":"{long}"}}}},"id":7}}"#
    );
    let refused = host.ask(&line).await;
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!(7), &json!(-32600)));
    host.call(8, "echo", "").await;
    assert_eq!(host.receive().await["id"], 8);
}

#[tokio::test]
async fn a_handler_that_panics_is_answered() {
    let mut host = TestHost::greeted().await;
    host.call(1, "panic", "").await;
    assert_eq!(host.receive().await["error"]["code"], -32603);
    host.call(1, "echo", "").await;
    assert!(host.receive().await["result"].is_object());
}

#[tokio::test]
async fn calls_run_side_by_side() {
    let mut host = TestHost::greeted().await;
    host.call(1, "hold", "").await;
    host.calls.entered.notified().await;
    host.call(2, "echo", "").await;
    assert_eq!(host.receive().await["id"], 2);
    host.calls.release.notify_one();
    assert_eq!(host.receive_text().await, r#"{"jsonrpc":"2.0","id":1,"result":{ "held":true}}"#);
}

#[tokio::test]
async fn under_the_id_of_a_call_under_way_nothing_is_said_but_its_answer() {
    let mut host = TestHost::greeted().await;
    host.send(r#"{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"hold"}}"#).await;
    host.calls.entered.notified().await;
    for second in [
        r#"{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"echo"}}"#,
        r#"{"jsonrpc":"2.0","id":"\u0061","method":"tools/call","params":{"name":"echo"}}"#,
        r#"{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{}}"#,
        r#"{"jsonrpc":"2.0","id":"a","method":"tools/list"}"#,
        r#"{"jsonrpc":"2.0","id":"a","method":"initialize","params":{"protocolVersion":"2025-06-18"}}"#,
        r#"{"jsonrpc":"2.0","id":"a","method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":"a","method":"resources/list"}"#,
        r#"{"jsonrpc":"1.0","id":"a","method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":"a"}"#,
    ] {
        let refused = host.ask(second).await;
        assert_eq!((&refused["id"], &refused["error"]["code"]), (&Value::Null, &json!(-32600)), "{second}");
    }
    let long = "x".repeat(17 * 1024 * 1024);
    let refused =
        host.ask(&format!(r#"{{"jsonrpc":"2.0","id":"a","method":"ping","params":"{long}"}}"#)).await;
    assert_eq!(refused["id"], Value::Null);
    host.calls.release.notify_one();
    assert_eq!(host.receive_text().await, r#"{"jsonrpc":"2.0","id":"a","result":{ "held":true}}"#);
    let free = host.ask(r#"{"jsonrpc":"2.0","id":"a","method":"ping"}"#).await;
    assert_eq!(
        (&free["id"], &free["result"]),
        (&json!("a"), &json!({})),
        "its answer is out: the id is free"
    );
}

#[tokio::test]
async fn a_second_request_is_refused_by_name_once_the_first_is_cancelled() {
    let mut host = TestHost::greeted().await;
    host.call(1, "stubborn", "").await;
    host.calls.entered.notified().await;
    host.send(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#).await;
    host.call(1, "echo", "").await;
    let refused = host.receive().await;
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!(1), &json!(-32600)));
    host.calls.release.notify_one();
    host.call(2, "echo", "").await;
    assert_eq!(host.receive().await["id"], 2, "a cancelled call has no answer");
}

#[tokio::test]
async fn progress_carries_the_hosts_token_and_comes_before_the_answer() {
    let mut host = TestHost::greeted().await;
    host.call(1, "hold", r#","_meta":{"progressToken":"tök"}"#).await;
    host.calls.entered.notified().await;
    host.calls.release.notify_one();
    let progress = host.receive().await;
    assert_eq!(progress["method"], "notifications/progress");
    assert_eq!(progress["params"]["progressToken"], "tök");
    assert_eq!(progress["params"]["total"].to_string(), "15");
    assert_eq!(host.receive().await["id"], 1);
}

#[tokio::test]
async fn a_cancelled_call_is_told_and_not_answered() {
    let mut host = TestHost::greeted().await;
    host.call(1, "hold", "").await;
    host.calls.entered.notified().await;
    host.send(
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,"reason":"bored"}}"#,
    )
    .await;
    host.calls.saw_cancel.notified().await;
    host.call(2, "echo", "").await;
    assert_eq!(host.receive().await["id"], 2, "the next line is the next call's");
}

#[tokio::test]
async fn at_the_end_of_the_input_calls_under_way_are_answered_first() {
    let mut host = TestHost::greeted().await;
    host.call(1, "hold", "").await;
    host.calls.entered.notified().await;
    host.input.shutdown().await.unwrap();
    assert_eq!(host.receive().await["id"], 1, "the end of the input ends the hold");
    host.served.await.unwrap().unwrap();
    assert!(host.calls.stopped.load(Ordering::SeqCst));
}

#[tokio::test]
async fn a_signal_ends_the_session_as_the_end_of_the_input_does() {
    let mut host = TestHost::greeted().await;
    host.call(1, "hold", "").await;
    host.calls.entered.notified().await;
    host.stop.send_replace(true);
    assert_eq!(host.receive().await["id"], 1);
    host.served.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_host_that_goes_away_ends_the_session() {
    let mut host = TestHost::greeted().await;
    host.call(1, "hold", "").await;
    host.calls.entered.notified().await;
    drop((host.input, host.output));
    host.served.await.unwrap().ok();
    assert!(host.calls.stopped.load(Ordering::SeqCst));
}

#[tokio::test(start_paused = true)]
async fn a_host_that_reads_nothing_holds_up_no_ending() {
    let (ours, theirs) = tokio::io::duplex(256);
    let (read, write) = tokio::io::split(theirs);
    let (stop, stopped) = watch::channel(false);
    let served = tokio::spawn(serve(read, write, Arc::new(Fake::default()) as Arc<dyn Calls>, stopped));
    let (_unread, mut input) = tokio::io::split(ours);
    let pinging = tokio::spawn(async move {
        while input.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n").await.is_ok() {}
    });
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert!(!pinging.is_finished(), "the input is not read on for ever");
    stop.send_replace(true);
    served.await.unwrap().unwrap();
}

#[tokio::test]
async fn more_calls_than_can_be_kept_are_answered_busy() {
    let mut host = TestHost::greeted().await;
    for id in 1..=256 {
        host.call(id, "hold", "").await;
    }
    host.call(999, "echo", "").await;
    let busy = host.receive().await;
    assert_eq!(busy["id"], 999);
    assert!(busy["result"]["content"][0]["text"].as_str().unwrap().starts_with("UNAVAILABLE: "), "{busy}");
    assert_eq!(host.ask(r#"{"jsonrpc":"2.0","id":1000,"method":"ping"}"#).await["id"], 1000);
}
