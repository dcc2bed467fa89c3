//! What a request must pass before its route: the rate, the size, the time, the signature, and not having been here.

use std::sync::Arc;
use std::time::Duration;

use holdpoint::approver::Local;
use holdpoint::approver::webhook::{
    EVENT_DECISION, EVENT_REFUSED, Options, Secret, Secrets, SignatureStore, Webhook,
};
use holdpoint::gate::Limits;
use holdpoint_actors::clock::Clock;
use serde_json::json;

use super::Scene;
use super::client::{Request, Server, named, operators, secret_of};

const UNAUTHORIZED: (u16, &str) = (401, "unauthorized");

fn is(reply: &super::client::Reply, expected: (u16, &str)) {
    let (status, code) = reply.refusal();
    assert_eq!((status, code.as_str()), expected, "{reply:?}");
}

/// A request of Ada's to approve what waits in `r1`.
fn approving(server: &Server, scene: &Scene) -> Request {
    let (id, hash) = (&scene.approval.id, &scene.approval.hash);
    server
        .request("POST", &format!("/runs/r1/approvals/{id}/approve"))
        .body(&json!({"run_id": "r1", "approval_id": id, "hash": hash}))
}

#[tokio::test]
async fn each_check_comes_in_its_place() {
    let scene = Scene::titled("t").await;
    let options = Options { burst: 4, body_bytes_max: 64, ..Options::default() };
    let server = Server::with(&scene, operators(), options).await;
    let mut everything = server.request("POST", "/nowhere");
    everything.body = "x".repeat(65);
    // Too long, unsigned and nowhere.
    is(&everything.send_with(server.address, &[]).await, (413, "body_too_large"));
    // Unsigned and nowhere.
    everything.body.pop();
    is(&everything.send_with(server.address, &[]).await, UNAUTHORIZED);
    // Signed, and nowhere.
    is(&everything.send(server.address).await, (404, "not_found"));
    // Signed, somewhere, and no decision.
    let mut nothing = approving(&server, &scene);
    nothing.body = "x".repeat(64);
    is(&nothing.send(server.address).await, (400, "bad_request"));
    // Too many, too long, unsigned and nowhere.
    everything.body = "x".repeat(65);
    is(&everything.send_with(server.address, &[]).await, (429, "rate_limited"));
    let told: Vec<String> =
        server.events(EVENT_REFUSED).iter().map(|event| event["status"].to_string()).collect();
    assert_eq!(told, ["413", "401", "429"], "of what was refused before its route");
    let last = server.events(EVENT_REFUSED).pop().unwrap();
    assert_eq!((&last["method"], &last["path"]), (&json!("POST"), &json!("/nowhere")));
    assert!(
        last["reason"].is_string() && last["remote"].as_str().unwrap().starts_with("127.0.0.1:"),
        "{last}"
    );
    server.stop().await;
}

#[tokio::test]
async fn what_is_not_signed_as_it_stands_is_refused_and_decides_nothing() {
    let scene = Scene::titled("t").await;
    let server = Server::with(&scene, operators(), Options { burst: 100, ..Options::default() }).await;
    let request = approving(&server, &scene);
    let good = request.headers();
    let without = |name: &str| good.iter().filter(|(other, _)| *other != name).cloned().collect::<Vec<_>>();
    let replaced = |name: &'static str, value: &str| {
        let mut headers = without(name);
        headers.push((name, value.to_owned()));
        headers
    };
    let twice = |name: &str| {
        let again = good.iter().filter(|(other, _)| *other == name);
        good.iter().chain(again).cloned().collect::<Vec<_>>()
    };
    let (timestamp, nonce) = ("X-Approval-Timestamp", "X-Approval-Nonce");
    let (signature, operator) = ("X-Approval-Signature", "X-Approval-Operator");
    let long = Request { nonce: "n".repeat(65), ..request.clone() }.headers();
    let cases = vec![
        ("nothing at all", Vec::new(), "Timestamp"),
        ("no timestamp", without(timestamp), "Timestamp"),
        ("two timestamps", twice(timestamp), "Timestamp"),
        ("a timestamp of words", replaced(timestamp, "now"), "Timestamp"),
        ("a timestamp of another second", replaced(timestamp, &(request.at + 1).to_string()), "match"),
        ("no nonce", without(nonce), "Nonce"),
        ("an empty nonce", replaced(nonce, ""), "Nonce"),
        ("two nonces", twice(nonce), "Nonce"),
        ("a long nonce", long, "Nonce"),
        ("another nonce", replaced(nonce, "other"), "match"),
        ("no signature", without(signature), "Signature"),
        ("two signatures", twice(signature), "Signature"),
        ("no version", replaced(signature, "00"), "match"),
        ("garbage", replaced(signature, "v2=00"), "match"),
        ("no operator", without(operator), "Operator"),
        ("two operators", twice(operator), "Operator"),
        ("another operator", replaced(operator, "bob"), "match"),
        ("nobody's name", replaced(operator, "eve"), "match"),
        ("version 1", request.headers_v1(&secret_of("ada")), "version 1"),
    ];
    let count = cases.len();
    for (what, headers, reason) in cases {
        let refused = request.send_with(server.address, &headers).await;
        is(&refused, UNAUTHORIZED);
        assert!(refused.reason().contains(reason), "{what}: {refused:?}");
    }
    let id = &scene.approval.id;
    for changed in [
        Request { method: "PUT".to_owned(), ..request.clone() },
        Request { target: format!("/runs/r1/approvals/{id}/reject"), ..request.clone() },
        Request { target: format!("{}?format=text", request.target), ..request.clone() },
        Request { body: request.body.replace("r1", "r2"), ..request.clone() },
    ] {
        is(&changed.send_with(server.address, &good).await, UNAUTHORIZED);
    }
    assert_eq!(server.events(EVENT_REFUSED).len(), count + 4);
    assert_eq!(scene.standing(), "pending WAITING_FOR_APPROVAL ");
    assert_eq!(scene.read("SELECT COUNT(*) || '' FROM holdpoint_signatures"), "0", "none was remembered");
    assert_eq!(request.send(server.address).await.status, 202, "as it stands it passes");
    server.stop().await;
}

#[tokio::test]
async fn below_a_prefix_that_is_stripped_a_request_is_signed_without_it() {
    let scene = Scene::titled("t").await;
    let server = Server::of(&scene).await;
    let local = Arc::new(Local::open(&scene.path).unwrap());
    let memory = Arc::new(SignatureStore::open(&scene.path, super::start()).unwrap());
    let hook = Webhook::new(local, memory, operators()).clock(Arc::clone(&server.clock) as Arc<dyn Clock>);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let routes = axum::Router::new().nest("/hooks", hook.router());
    let serving = tokio::spawn(async move { axum::serve(listener, routes).await });
    let below = approving(&server, &scene);
    let asked = Request { target: format!("/hooks{}", below.target), ..below.clone() };
    // A server of one's own keeps connections open, and the client here reads to the end of one.
    let closing = |mut headers: Vec<(&'static str, String)>| {
        headers.push(("Connection", "close".to_owned()));
        headers
    };
    is(&asked.send_with(address, &closing(asked.headers())).await, UNAUTHORIZED);
    assert_eq!(scene.standing(), "pending WAITING_FOR_APPROVAL ");
    assert_eq!(asked.send_with(address, &closing(below.headers())).await.status, 202);
    assert_eq!(scene.standing(), "approved WAITING_FOR_APPROVAL ");
    serving.abort();
    server.stop().await;
}

#[tokio::test]
async fn a_request_is_taken_from_five_minutes_before_to_five_minutes_after_its_time() {
    let scene = Scene::titled("t").await;
    let server = Server::of(&scene).await;
    for (shift, fine) in
        [(-301, false), (-300, true), (300, true), (301, false), (i64::MIN / 2, false), (i64::MAX / 2, false)]
    {
        let mut request = server.request("GET", "/runs/r1/approvals");
        request.at += shift;
        let reply = request.send(server.address).await;
        assert_eq!(reply.status, if fine { 200 } else { 401 }, "{shift}: {reply:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_request_passes_once_also_after_a_restart_and_at_another_server() {
    let scene = Scene::titled("t").await;
    let server = Server::of(&scene).await;
    let other = Server::of(&scene).await;
    let (show, approve) = (server.request("GET", "/runs/r1/approvals"), approving(&server, &scene));
    assert_eq!(show.send(server.address).await.status, 200);
    assert_eq!(approve.send(server.address).await.status, 202);
    for address in [server.address, other.address] {
        for request in [&show, &approve] {
            let replayed = request.send(address).await;
            is(&replayed, UNAUTHORIZED);
            assert!(replayed.reason().contains("already used"), "{replayed:?}");
        }
    }
    server.stop().await;
    other.stop().await;
    let restarted = Server::of(&scene).await;
    assert!(approve.send(restarted.address).await.reason().contains("already used"));
    // The same decision with a nonce of its own is judged on its own.
    is(&approving(&restarted, &scene).send(restarted.address).await, (409, "not_pending"));
    restarted.stop().await;
}

#[tokio::test]
async fn of_one_request_that_is_sent_to_two_servers_at_once_one_passes() {
    let scene = Scene::titled("t").await;
    let servers = [Server::of(&scene).await, Server::of(&scene).await];
    let request = approving(&servers[0], &scene);
    let sent = servers.each_ref().map(|server| {
        let (request, to) = (request.clone(), server.address);
        tokio::spawn(async move { request.send(to).await.status })
    });
    let mut statuses = Vec::new();
    for reply in sent {
        statuses.push(reply.await.unwrap());
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [202, 401]);
    for server in servers {
        server.stop().await;
    }
}

#[tokio::test]
async fn signatures_are_forgotten_when_they_can_not_be_sent_again_and_a_full_memory_takes_no_more() {
    let scene = Scene::titled("t").await;
    let options = Options { remembered_max: 2, ..Options::default() };
    let server = Server::with(&scene, operators(), options).await;
    let first = server.request("GET", "/runs/r1/approvals");
    assert_eq!(first.send(server.address).await.status, 200);
    assert_eq!(server.get("/runs/r1/approvals").await.status, 200);
    let full = server.get("/runs/r1/approvals").await;
    is(&full, UNAUTHORIZED);
    assert!(full.reason().contains("too many signatures"), "{full:?}");
    server.clock.advance(Duration::from_secs(301));
    assert_eq!(server.get("/runs/r1/approvals").await.status, 200);
    assert_eq!(scene.read("SELECT COUNT(*) || '' FROM holdpoint_signatures"), "1");
    server.stop().await;
    // A server whose clock is behind would take the first one for new.
    let behind = Server::of(&scene).await;
    let replayed = first.send(behind.address).await;
    is(&replayed, UNAUTHORIZED);
    assert!(replayed.reason().contains("may have been used already"), "{replayed:?}");
    behind.stop().await;
}

#[tokio::test]
async fn requests_beyond_the_rate_are_refused_until_time_has_passed() {
    let scene = Scene::titled("t").await;
    let server = Server::of(&scene).await;
    for _ in 0..20 {
        assert_eq!(server.get("/runs/r1/approvals").await.status, 200);
    }
    is(&server.get("/runs/r1/approvals").await, (429, "rate_limited"));
    server.clock.advance(Duration::from_millis(100));
    assert_eq!(server.get("/runs/r1/approvals").await.status, 200);
    is(&server.get("/runs/r1/approvals").await, (429, "rate_limited"));
    server.stop().await;
}

#[tokio::test]
async fn a_body_of_sixteen_kibibytes_passes_and_a_longer_one_is_answered_and_decides_nothing() {
    let scene = Scene::titled("t").await;
    let server = Server::of(&scene).await;
    let mut request = approving(&server, &scene);
    let whole = request.body.clone();
    for (length, expected) in [((16 << 10) + 1, 413), (200 << 10, 413), (16 << 10, 202)] {
        request.body = whole.clone() + &" ".repeat(length - whole.len());
        let reply = request.send(server.address).await;
        assert_eq!(reply.status, expected, "{length}: {reply:?}");
        assert_eq!(scene.standing().starts_with("approved"), expected == 202);
    }
    server.stop().await;
}

#[tokio::test]
async fn an_operator_decides_in_their_own_name_only() {
    let scene = Scene::of("t", &["r1", "r2"], Limits::default()).await;
    let server = Server::of(&scene).await;
    let mut request = approving(&server, &scene);
    request.body = request.body.replacen('{', r#"{"by":"bob","#, 1);
    let refused = request.send(server.address).await;
    is(&refused, (403, "wrong_operator"));
    let cancel = server.request("POST", "/runs/r2/cancel").body(&json!({"run_id": "r2", "by": "ada"}));
    is(&cancel.clone().by("bob").send(server.address).await, (403, "wrong_operator"));
    assert_eq!(scene.standing(), "pending WAITING_FOR_APPROVAL ");
    let told = server.events(EVENT_DECISION);
    let line = |event: &serde_json::Value| format!("{} {} {}", event["action"], event["by"], event["status"]);
    let lines: Vec<String> = told.iter().map(line).collect();
    assert_eq!(lines, [r#""approve" "ada" 403"#, r#""cancel" "bob" 403"#]);
    // Bob can't sign as Ada, whatever he calls himself.
    let forged = Request { operator: "bob".to_owned(), ..approving(&server, &scene) };
    let mut headers = forged.headers();
    headers
        .iter_mut()
        .filter(|(name, _)| *name == "X-Approval-Operator")
        .for_each(|(_, value)| *value = "ada".to_owned());
    is(&forged.send_with(server.address, &headers).await, UNAUTHORIZED);
    assert_eq!(request.by("bob").send(server.address).await.status, 202, "in his own he can");
    assert_eq!(scene.read("SELECT decided_by FROM approvals WHERE run_id = 'r1'"), "bob");
    assert_eq!(cancel.send(server.address).await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn one_secret_for_everybody_works_as_the_reference_has_it_where_it_is_switched_on() {
    let scene = Scene::titled("t").await;
    let shared = Secret::new("s".repeat(32)).unwrap();
    let server = Server::with(&scene, Secrets::shared(shared.clone()), Options::default()).await;
    let id = &scene.approval.id;
    let show = server.request("GET", &format!("/runs/r1/approvals/{id}"));
    let text = Request { target: format!("{}?format=text", show.target), ..show.clone() };
    // The query is not part of this signature, so it can be put on by anybody, once.
    let reply = text.send_with(server.address, &show.headers_v1(&shared)).await;
    assert_eq!((reply.status, reply.text.starts_with("APPROVAL PENDING")), (200, true), "{reply:?}");
    is(&show.send_with(server.address, &show.headers_v1(&shared)).await, UNAUTHORIZED);
    let mut approve = approving(&server, &scene);
    is(&approve.send_with(server.address, &approve.headers_v1(&shared)).await, (400, "bad_request"));
    approve.body = approve.body.replacen('{', r#"{"by":"slack:anyone","#, 1);
    let mut headers = approve.headers_v1(&shared);
    headers.push(("X-Approval-Operator", "ada".to_owned()));
    let named = approve.send_with(server.address, &headers).await;
    is(&named, UNAUTHORIZED);
    is(&approve.send(server.address).await, UNAUTHORIZED);
    assert_eq!(approve.send_with(server.address, &approve.headers_v1(&shared)).await.status, 202);
    assert_eq!(scene.read("SELECT decided_by FROM approvals"), "slack:anyone");
    server.stop().await;
    let both =
        Server::with(&scene, operators().and_shared(shared.clone()).unwrap(), Options::default()).await;
    let list = both.request("GET", "/runs/r1/approvals");
    assert_eq!(list.send(both.address).await.status, 200);
    assert_eq!(
        list.send_with(both.address, &list.headers_v1(&shared)).await.status,
        200,
        "another signature"
    );
    both.stop().await;
}

#[tokio::test]
async fn options_that_would_let_nothing_pass_are_refused() {
    let scene = Scene::titled("t").await;
    let usual = Options::default;
    for (options, what) in [
        (Options { skew: Duration::from_millis(999), ..usual() }, "skew"),
        (Options { rate: 0, ..usual() }, "rate"),
        (Options { burst: 0, ..usual() }, "burst"),
        (Options { body_bytes_max: 0, ..usual() }, "body"),
        (Options { list_max: 0, ..usual() }, "list"),
    ] {
        let local = std::sync::Arc::new(Local::open(&scene.path).unwrap());
        let memory = std::sync::Arc::new(SignatureStore::open(&scene.path, super::start()).unwrap());
        let hook =
            Webhook::new(local, memory, Secrets::of_operators([(named("ada"), secret_of("ada"))]).unwrap());
        let refused = hook.options(options).unwrap_err().to_string();
        assert!(refused.contains(what), "{refused}");
    }
}
