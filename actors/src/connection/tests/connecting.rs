//! Connecting, listing and checking, with servers that go wrong before the first call.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

async fn fails(mode: &str) -> String {
    fails_as(spec(mode)).await
}

async fn fails_as(spec: ServerSpec) -> String {
    let connection = Connection::start(spec).await;
    let error = connection.tools().await.unwrap_err();
    connection.close().await;
    error
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connected_server_tells_its_tools_and_its_state() {
    let connection = Connection::ready("two_pages").await;
    let loaded = connection.tools().await.unwrap();
    assert_eq!(loaded.protocol_version, "2025-11-25");
    assert!(loaded.offered.contains("echo"));
    assert_eq!(loaded.listing.get("n").unwrap().input_schema, r#"{"max":9007199254740993,"v":1.1}"#);
    let seen = connection.observe().await;
    assert_eq!((seen.state, seen.restarts, seen.in_flight), (ConnectionState::Ready, 0, 0));
    assert!(seen.pid.is_some() && seen.last_error.is_none());
    assert!(serde_json::to_string(&seen).unwrap().contains(r#""state":"ready""#));
    connection.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_protocol_is_accepted_and_an_unknown_one_is_not() {
    let connection = Connection::ready("old").await;
    assert_eq!(connection.tools().await.unwrap().protocol_version, "2024-11-05");
    connection.close().await;
    let error = fails("future").await;
    assert!(error.contains("connect: ") && error.contains("2026-07-28"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_never_answers_initialize_times_out_in_its_step() {
    let spec = ServerSpec { connect_timeout: Some(Duration::from_millis(300)), ..spec("mute") };
    assert_eq!(fails_as(spec).await, "mcp: server \"fake\": connect timed out after 300ms");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_never_lists_times_out_in_its_step() {
    // Long enough for a busy machine to come as far as the listing.
    let spec = ServerSpec { connect_timeout: Some(Duration::from_secs(3)), ..spec("mute_at_list") };
    assert_eq!(fails_as(spec).await, "mcp: server \"fake\": list tools timed out after 3s");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_connect_timeout_does_not_shorten_the_session() {
    // Long enough for a busy machine to connect.
    let timeout = Duration::from_secs(3);
    let connection = Connection::start(ServerSpec { connect_timeout: Some(timeout), ..spec("normal") }).await;
    connection.tools().await.unwrap();
    answered(connection.call("slow", r#"{"ms":3100}"#).await);
    connection.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_connect_ends_with_what_the_server_said_on_stderr() {
    let error = fails("die_at_start").await;
    assert_eq!(
        error,
        "mcp: server \"fake\": connect: the server closed its output; \
         stderr: \"cannot \\x1b[31mstart\\nbecause of reasons\""
    );
    let error = fails("chatty_then_dies").await;
    assert!(error.ends_with("xxthe end\"") && error.len() < 4096 + 200, "{error}");
    let error = fails("dies_at_list").await;
    assert!(error.contains("list tools: ") && error.ends_with("stderr: \"out of tools\""), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_greeting_is_quoted_escaped() {
    let error = fails("refuses").await;
    assert!(error.contains("error -32000: not \\x1b today"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn text_on_stdout_closes_the_connection_and_is_shown() {
    let error = fails("greets_with_text").await;
    assert!(error.contains("not a JSON-RPC message") && error.contains("\"Server ready!\""), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_does_not_exist_is_named() {
    let mut spec = spec("normal");
    spec.command[0] = "holdpoint-no-such-program".to_owned();
    let error = fails_as(spec.clone()).await;
    assert!(error.contains("no program \"holdpoint-no-such-program\" on PATH"), "{error}");
    spec.command[0] = "/no/such/program".to_owned();
    assert!(fails_as(spec).await.contains("connect: "));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listing_is_bounded() {
    assert!(fails("same_cursor").await.contains("list tools: the server's cursor \"again\" repeats"));
    assert!(fails("endless_pages").await.contains("more than 100 pages"));
    assert!(fails("many_tools").await.contains("more than 1000 tools"));
    assert!(fails("repeated_tools_key").await.contains("two \"tools\" members"));
    let connection = Connection::ready("hundred_pages").await;
    connection.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_starts_for_a_description_that_is_wrong() {
    let spec = ServerSpec { endpoint: Some("http://127.0.0.1:1/mcp".to_owned()), ..ServerSpec::default() };
    let spec = ServerSpec { name: "web".to_owned(), ..spec };
    let arguments = Arguments {
        spec,
        session: "test".to_owned(),
        ledger: Arc::new(MemoryLedger::default()),
        check: everything(),
    };
    let error = McpConnection::spawn(None, McpConnection, arguments).await.unwrap_err();
    assert!(error.to_string().contains("HTTP"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_that_refuses_panics_or_takes_too_long_fails_the_load_step() {
    let refuses: Check = Arc::new(|_| Err("no tool registered".to_owned()));
    let panics: Check = Arc::new(|_| panic!("boom"));
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let dawdles: Check = Arc::new(move |_| {
        wait.lock().unwrap().recv().ok();
        Err("too late to matter".to_owned())
    });
    // Long enough for a busy machine to come as far as the check.
    let short = Some(Duration::from_secs(3));
    for (check, connect_timeout, expected) in [
        (refuses, None, "load: no tool registered"),
        (panics, None, "load: the check of the listing panicked"),
        (dawdles, short, "load timed out after 3s"),
    ] {
        let spec = ServerSpec { connect_timeout, ..spec("normal") };
        let connection = Connection::checked(spec, check).await;
        let error = connection.tools().await.unwrap_err();
        assert!(error.contains(expected), "{error}");
        connection.close().await;
    }
    drop(go);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_the_check_offers_can_be_called() {
    let only_echo: Check = Arc::new(|_| Ok(std::iter::once("echo".to_owned()).collect()));
    let connection = Connection::checked(spec("normal"), only_echo).await;
    connection.tools().await.unwrap();
    answered(connection.call("echo", "{}").await);
    assert!(not_sent(connection.call("fail", "{}").await).contains("no longer offered"));
    connection.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_waits_for_the_server_within_its_time_and_is_then_not_sent() {
    let soon = Duration::from_millis(20);
    let connection = Connection::start(spec("mute")).await;
    assert!(not_sent(connection.call_within("echo", "{}", soon).await).contains("not connected yet"));
    connection.close().await;
    // Whether the next try has begun by then or not, it is told how the last one ended.
    let spec = ServerSpec { connect_timeout: Some(Duration::from_millis(300)), ..spec("mute") };
    let connection = Connection::start(spec).await;
    connection.tools().await.unwrap_err();
    assert!(not_sent(connection.call_within("echo", "{}", soon).await).contains("timed out after 300ms"));
    connection.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_gets_only_the_environment_it_is_given() {
    let spec = ServerSpec { env: vec!["GIVEN=x=y".to_owned(), "EMPTY=".to_owned()], ..spec("normal") };
    let connection = Connection::start(spec).await;
    connection.tools().await.unwrap();
    let result: serde_json::Value =
        serde_json::from_str(&answered(connection.call("env", "{}").await)).unwrap();
    let mut expected = vec!["EMPTY=".to_owned(), "GIVEN=x=y".to_owned()];
    for name in ["HOME", "PATH", "TMPDIR"] {
        expected.extend(std::env::var(name).ok().map(|value| format!("{name}={value}")));
    }
    expected.sort();
    assert_eq!(result["content"][0]["text"].as_str().unwrap(), expected.join("\n"));
    connection.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_server_is_listed_and_checked_again_before_it_is_offered() {
    let folder = tempfile::tempdir().unwrap();
    let marker = folder.path().join("started").to_str().unwrap().to_owned();
    let checked_twice = Arc::new(AtomicBool::new(false));
    let seen = checked_twice.clone();
    let check: Check = Arc::new(move |listing| {
        seen.store(listing.len() == 1, Ordering::SeqCst);
        Ok(listing.tools().map(|tool| tool.name.clone()).collect())
    });
    let spec = ServerSpec { env: vec![format!("MARKER={marker}")], ..spec("changes") };
    let connection = Connection::checked(spec, check).await;
    assert_eq!(connection.tools().await.unwrap().offered.len(), 2);
    no_answer(connection.call("exit", "{}").await);
    connection.observe_until(|seen| seen.restarts == 1 && seen.state == ConnectionState::Ready).await;
    assert!(checked_twice.load(Ordering::SeqCst));
    assert!(not_sent(connection.call("echo", "{}").await).contains("no longer offered"));
    connection.close().await;
}
