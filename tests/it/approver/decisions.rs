//! What the channel shows and decides, and how it answers what it doesn't do.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use holdpoint::approver::webhook::{EVENT_DECISION, Options};
use holdpoint::approver::{Approver, Decision, Error, Pending};
use holdpoint::gate::{ApprovalId, Attached, HandClock, Limits, RunId, async_trait};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use super::client::{Reply, Server, operators};
use super::{REASON, Scene, start};

fn path(scene: &Scene, rest: &str) -> String {
    format!("/runs/r1/approvals/{}{rest}", scene.approval.id)
}

fn body(scene: &Scene) -> Value {
    json!({"run_id": "r1", "approval_id": scene.approval.id, "hash": scene.approval.hash, "note": "n"})
}

fn with(mut body: Value, key: &str, value: Value) -> Value {
    body[key] = value;
    body
}

#[tokio::test]
async fn a_grant_over_http_is_bound_to_what_was_shown_and_runs_once() {
    let scene = Scene::titled("Release 2").await;
    let server = Server::of(&scene).await;
    let listed = server.get("/runs/r1/approvals").await;
    assert_eq!(listed.status, 200, "{listed:?}");
    let listed = listed.json();
    assert_eq!(listed["run_id"], "r1");
    let shown = server.get(&path(&scene, "")).await.json();
    assert_eq!(listed["pending"], json!([shown]));
    assert_eq!((&shown["hash"], &shown["reason"]), (&json!(scene.approval.hash), &json!(REASON)));
    assert_eq!((&shown["status"], &shown["kind"]), (&json!("pending"), &json!("publication")));
    assert_eq!(shown["presentation"]["title"], "Release 2");

    let decided =
        server.post(&path(&scene, "/approve"), &with(body(&scene), "hash", shown["hash"].clone())).await;
    assert_eq!(decided.status, 202, "{decided:?}");
    let (id, hash) = (&scene.approval.id, &scene.approval.hash);
    assert_eq!(
        decided.json(),
        json!({"status": "approved", "run_id": "r1", "approval_id": id, "hash": hash, "by": "ada"})
    );
    assert_eq!(scene.standing(), "approved WAITING_FOR_APPROVAL ");
    assert_eq!(scene.read("SELECT decided_by || ' ' || note FROM approvals"), "ada n");
    let shown = server.get(&path(&scene, "")).await.json();
    assert_eq!((&shown["status"], &shown["decided_by"]), (&json!("approved"), &json!("ada")));
    let again = server.post(&path(&scene, "/reject"), &body(&scene)).await;
    assert_eq!(again.refusal(), (409, "not_pending".to_owned()));

    let runtime = scene.runtime().await;
    let Attached::Allowed(session, step) = runtime.gate().attach("r1".into()).await.unwrap() else {
        panic!("the grant is collected");
    };
    step.execute().await.unwrap();
    session.close().await;
    runtime.stop().await;
    assert_eq!(scene.published.0.load(Ordering::SeqCst), 1);
    let late = server.post(&path(&scene, "/approve"), &body(&scene)).await;
    assert_eq!(late.refusal(), (409, "run_not_waiting".to_owned()));

    let told: Vec<_> = server.events(EVENT_DECISION);
    let line = |event: &Value| format!("{} {} {}", event["action"], event["by"], event["status"]);
    let lines: Vec<String> = told.iter().map(line).collect();
    assert_eq!(lines, [r#""approve" "ada" 202"#, r#""reject" "ada" 409"#, r#""approve" "ada" 409"#]);
    assert_eq!(told[0]["approval_id"], json!(id));
    assert!(told[0]["remote"].as_str().unwrap().starts_with("127.0.0.1:"), "{told:?}");
    assert!(told[0].get("error").is_none() && told[1]["error"].is_string(), "{told:?}");
    server.stop().await;
}

#[tokio::test]
async fn a_rejection_and_a_cancellation_end_their_runs() {
    let scene = Scene::of("t", &["r1", "r2"], Limits::default()).await;
    let server = Server::of(&scene).await;
    let rejected = server.post(&path(&scene, "/reject"), &body(&scene)).await;
    assert_eq!((rejected.status, &rejected.json()["status"]), (200, &json!("rejected")));
    assert_eq!(scene.standing(), "rejected CANCELLED approval_rejected");
    let cancelled =
        server.post("/runs/r2/cancel", &json!({"run_id": "r2", "by": "ada", "note": "stop"})).await;
    assert_eq!(cancelled.status, 200);
    assert_eq!(cancelled.json(), json!({"status": "cancelled", "run_id": "r2", "by": "ada"}));
    let again = server.post("/runs/r2/cancel", &json!({"run_id": "r2"})).await;
    assert_eq!(again.refusal(), (409, "run_finished".to_owned()));
    assert_eq!(server.get("/runs/r2/approvals").await.json()["pending"], json!([]));
    let told = server.events(EVENT_DECISION);
    assert_eq!((&told[1]["action"], &told[1]["approval_id"]), (&json!("cancel"), &json!("")));
    server.stop().await;
}

#[tokio::test]
async fn what_is_no_decision_on_what_the_path_names_is_refused_and_nothing_is_decided() {
    let scene = Scene::of("t", &["r1", "r2"], Limits::default()).await;
    let server = Server::with(&scene, operators(), Options { burst: 100, ..Options::default() }).await;
    let approve = path(&scene, "/approve");
    let other = scene.read("SELECT id FROM approvals WHERE run_id = 'r2'");
    let repeated = body(&scene).to_string().replacen('{', r#"{"run_id":"r2","#, 1);
    for wrong in [
        with(body(&scene), "run_id", json!("r2")),
        with(body(&scene), "approval_id", json!(other)),
        with(body(&scene), "hash", json!("")),
        with(body(&scene), "hash", json!(7)),
        json!({"run_id": "r1", "approval_id": scene.approval.id}),
        json!("not an object"),
        json!([]),
    ] {
        let refused = server.post(&approve, &wrong).await;
        assert_eq!(refused.refusal(), (400, "bad_request".to_owned()), "{wrong}: {refused:?}");
    }
    for text in ["", "{", &repeated] {
        let mut request = server.request("POST", &approve);
        request.body = text.to_owned();
        assert_eq!(request.send(server.address).await.refusal(), (400, "bad_request".to_owned()), "{text}");
    }
    let refused = server.post("/runs/r2/cancel", &json!({"run_id": "r1"})).await;
    assert_eq!(refused.refusal(), (400, "bad_request".to_owned()));
    assert!(server.events(EVENT_DECISION).is_empty(), "none of these reached the approver");
    for (target, request) in [
        (format!("/runs/r1/approvals/{other}/approve"), with(body(&scene), "approval_id", json!(other))),
        ("/runs/r3/cancel".to_owned(), json!({"run_id": "r3"})),
    ] {
        let refused = server.post(&target, &request).await;
        assert_eq!(refused.refusal(), (404, "not_found".to_owned()), "{target}");
    }
    let changed = server.post(&approve, &with(body(&scene), "hash", json!("0".repeat(64)))).await;
    assert_eq!(changed.refusal(), (409, "approval_changed".to_owned()));
    for target in [
        "/",
        "/runs",
        "/runs/",
        "/approvals",
        "/runs/r3/approvals",
        "/runs/r1/approvals/none",
        "/runs/%ff/approvals",
    ] {
        assert_eq!(server.get(target).await.refusal(), (404, "not_found".to_owned()), "{target}");
    }
    let target = format!("/runs/r2/approvals/{}", scene.approval.id);
    assert_eq!(
        server.get(&target).await.refusal(),
        (404, "not_found".to_owned()),
        "another run's is not shown"
    );
    for (method, target) in
        [("GET", approve.as_str()), ("DELETE", &path(&scene, "")), ("POST", "/runs/r1/approvals")]
    {
        let refused = server.request(method, target).send(server.address).await;
        assert_eq!(refused.refusal(), (404, "not_found".to_owned()), "{method} {target}");
    }
    assert_eq!(scene.standing(), "pending WAITING_FOR_APPROVAL ");
    server.stop().await;
}

#[tokio::test]
async fn an_approval_that_changes_after_it_was_shown_is_not_decided() {
    let scene = Scene::titled("t").await;
    let server = Server::of(&scene).await;
    scene.tamper("UPDATE approvals SET hash = 'another'");
    for rest in ["/approve", "/reject"] {
        let refused = server.post(&path(&scene, rest), &body(&scene)).await;
        assert_eq!(refused.refusal(), (409, "approval_changed".to_owned()));
    }
    scene.tamper(&format!(
        "UPDATE approvals SET hash = '{}', presentation_json = '{{\"title\":\"other\"}}'",
        scene.approval.hash
    ));
    let refused = server.post(&path(&scene, "/approve"), &body(&scene)).await;
    assert_eq!(refused.refusal(), (409, "approval_hash".to_owned()));
    assert_eq!(scene.standing(), "pending WAITING_FOR_APPROVAL ");
    server.stop().await;
}

#[tokio::test]
async fn an_expired_approval_is_gone_and_looking_at_it_writes_nothing() {
    let scene = Scene::expiring().await;
    let later = start().plus(Duration::from_secs(3_600));
    let server = Server::at(&scene, operators(), Options::default(), later).await;
    let shown = server.get(&path(&scene, "")).await;
    assert_eq!(shown.refusal(), (410, "expired".to_owned()));
    assert!(shown.reason().contains("2026-10-01T09:1"), "it says when: {shown:?}");
    let text = server.get(&path(&scene, "?format=text")).await;
    assert_eq!(text.refusal(), (410, "expired".to_owned()));
    assert_eq!(server.get("/runs/r1/approvals").await.json()["pending"][0]["expired"], true);
    assert_eq!(scene.standing(), "pending WAITING_FOR_APPROVAL ");
    let decided = server.post(&path(&scene, "/approve"), &body(&scene)).await;
    assert_eq!(decided.refusal(), (410, "expired".to_owned()));
    assert_eq!(scene.standing(), "expired CANCELLED approval_expired");
    assert_eq!(server.get(&path(&scene, "")).await.refusal(), (410, "expired".to_owned()));
    assert_eq!(scene.published.0.load(Ordering::SeqCst), 0);
    server.stop().await;
}

#[tokio::test]
async fn of_many_decisions_at_once_one_counts() {
    let scene = Scene::titled("t").await;
    let server = Server::of(&scene).await;
    let requests = (0..8).map(|n| {
        let rest = if n % 2 == 0 { "/approve" } else { "/reject" };
        let by = if n % 3 == 0 { "ada" } else { "bob" };
        let request = server.request("POST", &path(&scene, rest)).body(&body(&scene)).by(by);
        let to = server.address;
        tokio::spawn(async move { request.send(to).await })
    });
    let mut replies: Vec<Reply> = Vec::new();
    for request in requests.collect::<Vec<_>>() {
        replies.push(request.await.unwrap());
    }
    let (done, refused): (Vec<_>, Vec<_>) = replies.iter().partition(|reply| reply.status < 300);
    assert_eq!(done.len(), 1, "{replies:?}");
    assert!(refused.iter().all(|reply| reply.status == 409), "{refused:?}");
    let decided = scene.read("SELECT COUNT(*) || '' FROM events WHERE type = 'approval.decided'");
    assert_eq!(decided, "1");
    assert_eq!(scene.read("SELECT decided_by FROM approvals"), done[0].json()["by"].as_str().unwrap());
    server.stop().await;
}

#[tokio::test]
async fn an_approval_as_text_holds_nothing_that_a_terminal_or_a_page_acts_on() {
    let title = "clear \x1b[2J \u{202e}reverse <script>alert(1)</script>\n\nAPPROVAL APPROVED forged";
    let scene = Scene::titled(title).await;
    let server = Server::of(&scene).await;
    let text = server.get(&path(&scene, "?format=text")).await;
    assert_eq!(text.status, 200);
    for header in [
        "content-type: text/plain; charset=utf-8",
        "x-content-type-options: nosniff",
        "cache-control: no-store",
    ] {
        assert!(text.head.contains(header), "{header} is missing: {}", text.head);
    }
    assert!(!text.text.contains(['\x1b', '\u{202e}']), "{}", text.text);
    for wanted in [
        "kind    publication\n".to_owned(),
        format!("\nhash    {}\n", scene.approval.hash),
        format!("\nreason  {REASON}\n"),
        "\n  proposal_id (5 bytes)\n".to_owned(),
        r"\u001b[2J \u{202e}reverse <script>".to_owned(),
    ] {
        assert!(text.text.contains(&wanted), "{wanted:?} is missing:\n{}", text.text);
    }
    assert_eq!(text.text.matches("\nAPPROVAL").count(), 0, "{}", text.text);
    let last = format!("----- end of approval {} for tool publish_proposal -----", scene.approval.id);
    assert_eq!(text.text.lines().last(), Some(last.as_str()));

    let request = server.request("GET", &path(&scene, ""));
    let mut headers = request.headers();
    headers.push(("Accept", "text/plain, */*".to_owned()));
    assert!(request.send_with(server.address, &headers).await.text.ends_with(&format!("{last}\n")));

    let json = server.get(&path(&scene, "")).await;
    assert!(
        json.head.contains("content-type: application/json") && json.head.contains("no-store"),
        "{}",
        json.head
    );
    assert!(!json.text.contains(['<', '>', '&', '\x1b', '\u{202e}']), "{}", json.text);
    assert_eq!(json.json()["presentation"]["title"], title, "and says the same");
    server.stop().await;
}

#[tokio::test]
async fn a_list_is_bounded_and_an_id_may_hold_what_a_path_can_not() {
    let scene = Scene::of("t", &["team/7 ä"], Limits::default()).await;
    scene.tamper(
        "INSERT INTO approvals (id, run_id, step_id, kind, capability_json, presentation_json, request_json, hash, \
             status, created_at)
         SELECT 'second', run_id, step_id, kind, capability_json, presentation_json, request_json, hash, status, \
             created_at FROM approvals",
    );
    let server = Server::with(&scene, operators(), Options { list_max: 1, ..Options::default() }).await;
    let listed = server.get("/runs/team%2F7%20%C3%A4/approvals").await.json();
    assert_eq!(listed["run_id"], "team/7 ä");
    assert_eq!(listed["pending"].as_array().unwrap().len(), 1);
    assert_eq!(listed["pending"][0]["id"], json!(scene.approval.id), "the oldest");
    server.stop().await;
}

#[tokio::test]
async fn trouble_with_the_record_is_answered_without_a_word_about_it() {
    let scene = Scene::titled("t").await;
    let server = Server::of(&scene).await;
    scene.tamper("ALTER TABLE approvals RENAME TO elsewhere");
    let failed = server.post(&path(&scene, "/approve"), &body(&scene)).await;
    assert_eq!(
        (failed.refusal(), failed.reason()),
        ((500, "internal".to_owned()), "internal error".to_owned())
    );
    scene.tamper("ALTER TABLE elsewhere RENAME TO approvals; DROP TABLE holdpoint_signatures");
    let failed = server.post(&path(&scene, "/approve"), &body(&scene)).await;
    assert_eq!(
        (failed.refusal(), failed.reason()),
        ((500, "internal".to_owned()), "internal error".to_owned())
    );
    assert_eq!(scene.standing(), "pending WAITING_FOR_APPROVAL ", "what can't be remembered does not pass");
    server.stop().await;
}

/// An approver somewhere else, which waits before it decides.
struct Elsewhere(Arc<Semaphore>, Arc<Semaphore>);

#[async_trait]
impl Approver for Elsewhere {
    async fn pending(&self, _run: &RunId, _limit: u32) -> Result<Vec<Pending>, Error> {
        Ok(Vec::new())
    }

    async fn show(&self, _run: &RunId, approval: &ApprovalId) -> Result<Pending, Error> {
        Err(Error::InDoubt(format!("secret path to {approval}").into()))
    }

    async fn approve(&self, _decision: &Decision) -> Result<(), Error> {
        self.0.add_permits(1);
        self.1.acquire().await.unwrap().forget();
        Ok(())
    }

    async fn reject(&self, decision: &Decision) -> Result<(), Error> {
        self.approve(decision).await
    }

    async fn cancel(&self, _run: &RunId, _by: &str, _note: &str) -> Result<(), Error> {
        panic!("it is broken");
    }
}

async fn elsewhere(scene: &Scene) -> (Server, Arc<Semaphore>, Arc<Semaphore>) {
    let (begun, go_on) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let approver = Arc::new(Elsewhere(Arc::clone(&begun), Arc::clone(&go_on)));
    let clock = Arc::new(HandClock::new(start(), Duration::ZERO));
    (Server::over(scene, approver, operators(), Options::default(), clock).await, begun, go_on)
}

#[tokio::test]
async fn a_server_that_stops_answers_what_it_began_and_accepts_nothing_more() {
    let scene = Scene::titled("t").await;
    let (server, begun, go_on) = elsewhere(&scene).await;
    // Somebody who never sends anything does not keep it. They are accepted first.
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    let (request, to) =
        (server.request("POST", &path(&scene, "/approve")).body(&body(&scene)), server.address);
    let asked = tokio::spawn(async move { request.send(to).await });
    begun.acquire().await.unwrap().forget();
    let stopping = server.begin_to_stop();
    assert_eq!(silent.read(&mut [0; 16]).await.unwrap(), 0, "it is closed");
    go_on.add_permits(1);
    assert_eq!(asked.await.unwrap().status, 202);
    stopping.await.unwrap().unwrap();
    assert!(TcpStream::connect(to).await.is_err());
}

/// Asks for a rejection and hangs up once it was begun.
async fn asked_and_hung_up(scene: &Scene, server: &Server, begun: &Semaphore) {
    let request = server.request("POST", &path(scene, "/reject")).body(&body(scene));
    let mut text =
        format!("POST {} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n", request.target, request.body.len());
    for (name, value) in request.headers() {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(format!("{text}\r\n{}", request.body).as_bytes()).await.unwrap();
    begun.acquire().await.unwrap().forget();
    drop(stream);
    // Until the server has seen that.
    let refused = server.request("POST", "/nowhere").send(server.address).await;
    assert_eq!(refused.status, 404);
}

#[tokio::test]
async fn a_server_that_stops_waits_for_a_decision_whose_asker_hung_up() {
    let scene = Scene::titled("t").await;
    let (server, begun, go_on) = elsewhere(&scene).await;
    asked_and_hung_up(&scene, &server, &begun).await;
    let (told, to) = (Arc::clone(&server.told), server.address);
    let stopping = server.begin_to_stop();
    while TcpStream::connect(to).await.is_ok() {}
    // Nothing else is left that it could wait for; it has every opportunity to end too early.
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
        assert!(!stopping.is_finished(), "the decision is not made yet");
    }
    go_on.add_permits(1);
    stopping.await.unwrap().unwrap();
    assert_eq!(told.0.lock().unwrap()[0].kind, EVENT_DECISION);
}

#[tokio::test]
async fn a_decision_whose_asker_hung_up_is_told_all_the_same() {
    let scene = Scene::titled("t").await;
    let (server, begun, go_on) = elsewhere(&scene).await;
    asked_and_hung_up(&scene, &server, &begun).await;
    go_on.add_permits(1);
    while server.events(EVENT_DECISION).is_empty() {
        server.told.1.notified().await;
    }
    assert_eq!(server.events(EVENT_DECISION)[0]["status"], 200);
    server.stop().await;
}

#[tokio::test]
async fn an_approver_that_breaks_or_does_not_know_is_answered_for() {
    let scene = Scene::titled("t").await;
    let (server, ..) = elsewhere(&scene).await;
    let broken = server.post("/runs/r1/cancel", &json!({"run_id": "r1"})).await;
    assert_eq!(
        (broken.refusal(), broken.reason()),
        ((500, "internal".to_owned()), "internal error".to_owned())
    );
    let doubt = server.get(&path(&scene, "")).await;
    assert_eq!(doubt.refusal(), (500, "internal".to_owned()));
    assert!(doubt.reason().contains("not known") && !doubt.reason().contains("secret"), "{doubt:?}");
    server.stop().await;
}

#[tokio::test]
async fn a_channel_that_dies_before_its_decision_has_used_the_signature_up_and_decided_nothing() {
    let scene = Scene::titled("t").await;
    let (server, begun, _never) = elsewhere(&scene).await;
    let request = server.request("POST", &path(&scene, "/approve")).body(&body(&scene));
    let (sent, to) = (request.clone(), server.address);
    let asked = tokio::spawn(async move { sent.send(to).await });
    begun.acquire().await.unwrap().forget();
    // The signature is remembered and its approver has not decided: here the process ends.
    asked.abort();
    drop(server);

    let restarted = Server::of(&scene).await;
    let replayed = request.send(restarted.address).await;
    assert_eq!(replayed.refusal(), (401, "unauthorized".to_owned()));
    assert!(replayed.reason().contains("already used"), "{replayed:?}");
    assert_eq!(scene.standing(), "pending WAITING_FOR_APPROVAL ");
    let anew = restarted.request("POST", &path(&scene, "/approve")).body(&body(&scene));
    assert_eq!(anew.send(restarted.address).await.status, 202, "the operator signs it anew");
    assert_eq!(scene.standing(), "approved WAITING_FOR_APPROVAL ");
    restarted.stop().await;
}
