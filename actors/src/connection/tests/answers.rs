//! What a connected server answers, and what each call comes to.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn arguments_and_results_keep_numbers_and_the_order_of_keys() {
    let connection = Connection::ready("normal").await;
    let arguments = r#"{"z":123456789012345678901234567890,"a":1.10,"e":-1e400,"t":"\u00e9"}"#;
    let result = answered(connection.call("echo", arguments).await);
    assert_eq!(result, format!(r#"{{"content":[],"structuredContent":{arguments}}}"#));
    for nothing in ["", " null ", "{}"] {
        let result = answered(connection.call("echo", nothing).await);
        assert!(result.ends_with(r#""structuredContent":{}}"#), "{result}");
    }
    connection.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_a_json_object_is_refused_before_it_is_sent() {
    let connection = Connection::ready("normal").await;
    for bad in ["[1]", "7", "{", r#"{}},"x":{{}"#] {
        let ending = connection.call("echo", bad).await;
        assert!(matches!(ending, CallEnding::KnownFailure { .. }), "{bad}: {ending:?}");
    }
    connection.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_that_the_tool_reports_is_an_answer() {
    let connection = Connection::ready("normal").await;
    assert!(answered(connection.call("fail", "{}").await).contains("no money"));
    connection.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_protocol_error_is_no_answer_and_its_text_is_escaped() {
    let connection = Connection::ready("normal").await;
    assert_eq!(
        no_answer(connection.call("rpc_error", "{}").await),
        "mcp: server \"fake\": tool \"rpc_error\": the server answered with error -32602: no \\x1b[2J such tool"
    );
    connection.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_answer_fails_its_call_at_once_and_no_other() {
    let connection = Connection::ready("normal").await;
    let release = Release::new();
    let other = connection.call_in_flight("held", &release.arguments()).await;
    assert!(no_answer(connection.call("duplicate_keys", "{}").await).contains("two \"isError\" members"));
    assert!(no_answer(connection.call("bad_utf8", "{}").await).contains("UTF-8"));
    assert!(no_answer(connection.call("both", "{}").await).contains("both a result and an error"));
    release.release();
    answered(other.await.unwrap());
    assert_eq!(connection.observe().await.restarts, 0);
    connection.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_too_deep_to_record_is_answered_but_unrecordable() {
    let connection = Connection::ready("normal").await;
    for levels in [257, 300, 100_000] {
        let ending = connection.call("deep", &format!(r#"{{"levels":{levels}}}"#)).await;
        assert!(
            matches!(&ending, CallEnding::Unrecordable { raw, .. } if raw.len() > 2 * levels),
            "{levels}"
        );
    }
    answered(connection.call("deep", r#"{"levels":256}"#).await);
    connection.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn second_answers_and_foreign_ids_are_counted_and_change_nothing() {
    let connection = Connection::ready("normal").await;
    assert_eq!(answered(connection.call("twice", "{}").await), r#"{"content":[]}"#);
    let timeout = Duration::from_millis(200);
    let ending = connection.call_that_left_within("other_id", "{}", timeout).await;
    assert!(matches!(ending, CallEnding::TimedOut { .. }), "{ending:?}");
    answered(connection.call("echo", "{}").await);
    assert_eq!(connection.observe_until(|seen| seen.stray_answers >= 2).await.stray_answers, 2);
    connection.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_asks_back_is_answered_and_a_changed_list_is_noted() {
    let connection = Connection::ready("normal").await;
    answered(connection.call("ask_back", "{}").await);
    answered(connection.call("list_changed", "{}").await);
    answered(connection.call("echo", "{}").await);
    assert_eq!(connection.observe().await.list_changes, 1);
    connection.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timed_out_call_is_cancelled_behind_itself() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let mut spec = spec("normal");
    spec.command.extend(["--log".to_owned(), log.to_str().unwrap().to_owned()]);
    let connection = Connection::start(spec).await;
    connection.tools().await.unwrap();
    let ending = connection.call_that_left_within("silent", "{}", Duration::from_millis(50)).await;
    let text = "mcp: server \"fake\": tool \"silent\": timed out after 50ms".to_owned();
    assert_eq!(ending, CallEnding::TimedOut { text });
    // Calls that end at once must still leave in order.
    for _ in 0..200 {
        connection.call_within("silent", "{}", Duration::from_micros(200)).await;
    }
    connection.close().await;

    let mut called = std::collections::HashSet::new();
    let mut cancelled = 0;
    for line in std::fs::read_to_string(log).unwrap().lines() {
        let message: serde_json::Value = serde_json::from_str(line).unwrap();
        if message["method"] == "tools/call" {
            called.insert(message["id"].as_u64().unwrap());
        } else if message["method"] == "notifications/cancelled" {
            cancelled += 1;
            assert!(called.contains(&message["params"]["requestId"].as_u64().unwrap()), "{line}");
        }
    }
    assert!(cancelled >= 1);
    assert_eq!(cancelled, called.len(), "each call that left was cancelled");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_that_passed_leaves_the_call_unsent() {
    let connection = Connection::ready("normal").await;
    let request = CallRequest {
        tool: "echo".to_owned(),
        arguments: "{}".to_owned(),
        timeout: PATIENCE,
        fence: Some(Instant::now()),
    };
    let text = not_sent(connection.door.call(connection.actor.clone(), request).await);
    assert!(text.contains("lease"), "{text}");
    connection.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_run_side_by_side_up_to_the_bound_and_then_wait_for_a_place() {
    let connection = Connection::ready("normal").await;
    let (mut calls, release) = (Vec::new(), Release::new());
    for _ in 0..MAX_CALLS_IN_FLIGHT {
        let (door, actor, arguments) =
            (connection.door.clone(), connection.actor.clone(), release.arguments());
        calls.push(tokio::spawn(async move {
            let request = CallRequest { tool: "held".to_owned(), arguments, timeout: PATIENCE, fence: None };
            door.call(actor, request).await
        }));
    }
    connection.observe_until(|seen| seen.in_flight == MAX_CALLS_IN_FLIGHT).await;
    let hurried = connection.call_within("echo", "{}", Duration::from_millis(1)).await;
    assert!(not_sent(hurried).contains("64 calls"));
    // It waits for a place first, and then there is one.
    let (ending, ()) = tokio::join!(connection.call("echo", "{}"), async { release.release() });
    answered(ending);
    for call in calls {
        answered(call.await.unwrap());
    }
    connection.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stops_reading_delays_no_timeout() {
    let connection = Connection::ready("stops_reading").await;
    let timeout = Duration::from_millis(200);
    let large = format!(r#"{{"x":"{}"}}"#, "x".repeat(1 << 20));
    let ending = connection.call_that_left_within("echo", &large, timeout).await;
    assert!(matches!(ending, CallEnding::TimedOut { .. }), "{ending:?}");
    not_sent(connection.call_within("echo", "{}", timeout).await);
    connection.close().await;
}
