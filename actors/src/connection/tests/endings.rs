//! Servers and actors that end in the middle of something.

use super::*;
use crate::address::AskError;

/// A call that ends the server, with another in flight: both end at once, and the connection comes back.
async fn loses_the_server(tool: &str) -> String {
    let connection = Connection::ready("normal").await;
    let other = connection.call_in_flight("silent", "{}").await;
    let text = no_answer(connection.call(tool, "{}").await);
    no_answer(other.await.unwrap());
    let seen =
        connection.observe_until(|seen| seen.restarts == 1 && seen.state == ConnectionState::Ready).await;
    assert_eq!(seen.failures, 1);
    answered(connection.call("echo", "{}").await);
    connection.close().await;
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_exits_ends_its_calls_without_an_answer() {
    let text = loses_the_server("exit").await;
    assert!(text.starts_with("mcp: server \"fake\": tool \"exit\": the server "), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_closes_its_output_ends_its_calls_without_an_answer() {
    assert!(loses_the_server("close_stdout").await.contains("closed its output"));
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_on_stdout_ends_the_calls_and_is_quoted_escaped() {
    let text = loses_the_server("garbage").await;
    assert!(text.contains("\"Segmentation fault (not really) \\x1b[0m\""), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_past_the_limit_closes_the_connection() {
    assert!(loses_the_server("long_line").await.contains("longer than 16777216 bytes"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_answer_counts_even_without_its_newline() {
    let connection = Connection::ready("normal").await;
    assert_eq!(answered(connection.call("no_newline", "{}").await), r#"{"content":[]}"#);
    connection.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_killed_from_outside_is_noticed_and_started_again() {
    let connection = Connection::ready_in_sight("orphan").await;
    let pids = connection.pids().await;
    let call = connection.call_in_flight("silent", "{}").await;
    let server = rustix::process::Pid::from_raw(pids[0].cast_signed()).unwrap();
    rustix::process::kill_process(server, rustix::process::Signal::KILL).unwrap();
    no_answer(call.await.unwrap());
    all_gone(&pids).await;
    let seen =
        connection.observe_until(|seen| seen.restarts == 1 && seen.state == ConnectionState::Ready).await;
    assert!(seen.last_error.unwrap().contains("signal: 9"));
    connection.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_comes_while_the_server_is_started_again_is_answered_by_it() {
    let connection = Connection::ready_in_sight("normal").await;
    let pids = connection.pids().await;
    let server = rustix::process::Pid::from_raw(pids[0].cast_signed()).unwrap();
    rustix::process::kill_process(server, rustix::process::Signal::KILL).unwrap();
    all_gone(&pids).await;
    // One that meets the end itself is in doubt; the next waits for the new server.
    if let CallEnding::NoAnswer { .. } = connection.call("echo", "{}").await {
        answered(connection.call("echo", "{}").await);
    }
    connection.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_be_had_stays_down_and_says_so() {
    let connection = Connection::start(spec("die_at_start")).await;
    let seen =
        connection.observe_until(|seen| seen.failures >= 3 && seen.state == ConnectionState::Down).await;
    assert!(seen.last_error.unwrap().contains("because of reasons"));
    assert!(seen.next_try_ms.is_some());
    assert!(not_sent(connection.call("echo", "{}").await).contains("not connected"));
    connection.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_actor_answers_its_calls_and_takes_the_server_with_it() {
    let connection = Connection::ready_in_sight("orphan").await;
    let pids = connection.pids().await;
    let call = connection.call_in_flight("silent", "{}").await;
    connection.actor.kill();
    no_answer(call.await.unwrap());
    connection.handle.await.unwrap();
    all_gone(&pids).await;
    let late = connection
        .door
        .call(
            connection.actor.clone(),
            CallRequest {
                tool: "echo".to_owned(),
                arguments: "{}".to_owned(),
                timeout: PATIENCE,
                fence: None,
            },
        )
        .await;
    assert!(not_sent(late).contains("actor ended"));
}

#[cfg(feature = "faults")]
#[tokio::test(flavor = "multi_thread")]
async fn a_panicking_or_failing_actor_answers_its_calls_and_takes_the_server_with_it() {
    for fault in [Fault::Panic, Fault::Error] {
        let connection = Connection::ready_in_sight("orphan").await;
        let pids = connection.pids().await;
        let call = connection.call_in_flight("silent", "{}").await;
        connection.actor.send_message(Msg::Fault(fault)).unwrap();
        no_answer(call.await.unwrap());
        connection.handle.await.unwrap();
        all_gone(&pids).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_actor_killed_while_connecting_leaves_no_process() {
    let connection = Connection::start(spec("mute")).await;
    let started = async {
        while connection.ledger.groups().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, started).await.unwrap();
    let group = connection.ledger.groups().remove(0);
    connection.actor.kill();
    connection.handle.await.unwrap();
    all_gone(&[group.pgid]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closing_connection_lets_the_server_answer_what_it_has() {
    let connection = Connection::ready("stubborn").await;
    let release = Release::new();
    let call = connection.call_in_flight("held", &release.arguments()).await;
    let closed = address::ask(&connection.actor, PATIENCE, Msg::Close);
    let released = async {
        connection.observe_until(|seen| seen.state == ConnectionState::Closing).await;
        let again = address::ask(&connection.actor, PATIENCE, Msg::Close);
        release.release();
        again.await
    };
    let (call, closed, again) = tokio::join!(call, closed, released);
    answered(call.unwrap());
    closed.unwrap();
    again.unwrap();
    connection.handle.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_at_once_again_and_during_a_call_ends_the_server_once_and_answers_everybody() {
    let connection = Connection::ready_in_sight("orphan").await;
    let pids = connection.pids().await;
    let call = connection.call_in_flight("silent", "{}").await;
    let close = || address::ask(&connection.actor, PATIENCE, Msg::Close);
    let (first, second, call) = tokio::join!(close(), close(), call);
    for closed in [first, second] {
        assert!(closed.is_ok(), "{closed:?}");
    }
    no_answer(call.unwrap());
    all_gone(&pids).await;
    connection.handle.await.unwrap();
    let late = address::ask(&connection.actor, PATIENCE, Msg::Close).await;
    assert!(matches!(late, Err(AskError::Down | AskError::Lost)), "nobody is left to close: {late:?}");
}
