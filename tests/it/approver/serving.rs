//! `holdpoint serve-approvals`, as a process of its own.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::json;

use super::Scene;

/// The command, with nothing of the caller's environment that it reads.
fn command(scene: &Scene, secrets: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_holdpoint"));
    command.arg("--db").arg(&scene.path).arg("serve-approvals").arg("--secrets").arg(secrets).args(more);
    command.stdin(Stdio::null()).env("TZ", "UTC").env_remove("HOLDPOINT_LOG").env_remove("AGENTRT_DB");
    command
}

/// A file of secrets beside the scene's database.
fn secrets(scene: &Scene, content: &str, mode: u32) -> PathBuf {
    let path = scene.path.with_file_name("secrets.json");
    fs::write(&path, content).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    path
}

fn of_ada() -> String {
    json!({"operators": {"ada": "a".repeat(32)}}).to_string()
}

fn refused(output: &Output) -> (Option<i32>, String) {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.stdout.is_empty(), "{output:?}");
    (output.status.code(), text)
}

#[tokio::test]
async fn an_address_that_others_can_reach_is_refused_without_a_word_about_tls() {
    let scene = Scene::titled("t").await;
    // It is judged before the file of secrets is looked at.
    for address in ["0.0.0.0:0", "192.0.2.7:8471", "[::]:0"] {
        let output = command(&scene, Path::new("none"), &["--listen", address]).output().unwrap();
        let (status, text) = refused(&output);
        assert_eq!(status, Some(2), "{text}");
        assert!(text.contains("error[usage]") && text.contains("--behind-tls-proxy"), "{text}");
    }
}

#[cfg(not(feature = "webhook"))]
#[tokio::test]
async fn a_build_without_the_channel_says_how_to_get_one() {
    let scene = Scene::titled("t").await;
    let output = command(&scene, &secrets(&scene, &of_ada(), 0o600), &[]).output().unwrap();
    let (status, text) = refused(&output);
    assert_eq!(status, Some(2), "{text}");
    assert!(
        text.contains("this build can't serve approvals") && text.contains("--features webhook"),
        "{text}"
    );
}

#[cfg(feature = "webhook")]
mod served {
    use std::io::{BufRead as _, BufReader, Read as _};
    use std::net::SocketAddr;
    use std::process::Child;

    use holdpoint::gate::{Clock as _, WallClock};
    use rustix::process::Signal;
    use serde_json::Value;

    use super::super::client::Request;
    use super::*;

    /// A running server.
    struct Server {
        child: Child,
        address: SocketAddr,
        first: Value,
    }

    impl Server {
        fn start(scene: &Scene, secrets: &Path, more: &[&str]) -> Server {
            let more = [&["--listen", "127.0.0.1:0", "--json"], more].concat();
            let mut command = command(scene, secrets, &more);
            let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            let mut text = String::new();
            let mut out = BufReader::new(child.stdout.as_mut().unwrap());
            while !text.ends_with("}\n") {
                assert!(out.read_line(&mut text).unwrap() > 0, "it ended before it listened");
            }
            let first: Value = serde_json::from_str(&text).unwrap();
            let address = first["listening"].as_str().unwrap().parse().unwrap();
            Server { child, address, first }
        }

        /// Asks it to end by a signal; gives the lines that it wrote on stderr.
        fn end(mut self, signal: Signal) -> Vec<Value> {
            let id = rustix::process::Pid::from_child(&self.child);
            rustix::process::kill_process(id, signal).unwrap();
            let mut text = String::new();
            self.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
            assert_eq!(self.child.wait().unwrap().code(), Some(0), "{text}");
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
        }
    }

    fn now() -> i64 {
        WallClock.now().as_nanos() / 1_000_000_000
    }

    fn request(method: &str, target: &str, nonce: &str) -> Request {
        Request {
            method: method.to_owned(),
            target: target.to_owned(),
            body: String::new(),
            at: now(),
            nonce: nonce.to_owned(),
            operator: "ada".to_owned(),
        }
    }

    #[tokio::test]
    async fn a_served_channel_decides_tells_and_forgets_nothing_when_it_is_started_again() {
        let scene = Scene::titled("t").await;
        let secrets = secrets(&scene, &of_ada(), 0o600);
        let (first, second) = (Server::start(&scene, &secrets, &[]), Server::start(&scene, &secrets, &[]));
        assert_eq!((&first.first["operators"], &first.first["v1"]), (&json!(["ada"]), &json!(false)));
        let (id, hash) = (&scene.approval.id, &scene.approval.hash);
        let approve = request("POST", &format!("/runs/r1/approvals/{id}/approve"), "n1")
            .body(&json!({"run_id": "r1", "approval_id": id, "hash": hash}));
        assert_eq!(approve.send(first.address).await.status, 202);
        assert_eq!(scene.standing(), "approved WAITING_FOR_APPROVAL ");
        for server in [&first, &second] {
            let replayed = approve.send(server.address).await;
            assert_eq!(replayed.refusal(), (401, "unauthorized".to_owned()));
        }
        let told = first.end(Signal::TERM);
        let kinds: Vec<&str> = told.iter().map(|event| event["type"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["approval.decided", "webhook.decision", "webhook.refused"]);
        assert_eq!((&told[0]["payload"]["by"], &told[1]["payload"]["status"]), (&json!("ada"), &json!(202)));
        second.end(Signal::INT);
        let again = Server::start(&scene, &secrets, &[]);
        let replayed = approve.send(again.address).await;
        assert!(replayed.reason().contains("already used"), "{replayed:?}");
        again.end(Signal::TERM);
        let verified = Command::new(env!("CARGO_BIN_EXE_holdpoint"))
            .args(["--db", scene.path.to_str().unwrap(), "verify"])
            .output()
            .unwrap();
        assert!(verified.status.success(), "{verified:?}");
    }

    #[tokio::test]
    async fn what_can_t_be_used_is_refused_before_anything_is_served() {
        let scene = Scene::titled("t").await;
        let code = |content: &str, mode, more: &[&str]| {
            let secrets = secrets(&scene, content, mode);
            let (status, text) = refused(&command(&scene, &secrets, more).output().unwrap());
            assert_eq!(status, Some(1), "{text}");
            assert!(!text.contains(&"a".repeat(31)), "no secret is repeated: {text}");
            text.split_once("error[").unwrap().1.split_once(']').unwrap().0.to_owned()
        };
        assert_eq!(code(&of_ada(), 0o640, &[]), "config.insecure");
        assert_eq!(
            code(&json!({"operators": {"ada": "a".repeat(31)}}).to_string(), 0o600, &[]),
            "config.invalid"
        );
        assert_eq!(code(&json!({"operator": "a".repeat(32)}).to_string(), 0o600, &[]), "config.invalid");
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap().to_string();
        assert_eq!(code(&of_ada(), 0o600, &["--listen", &address]), "serve.listen");
        fs::rename(&scene.path, scene.path.with_extension("moved")).unwrap();
        assert_eq!(code(&of_ada(), 0o600, &[]), "store.missing");
    }

    #[tokio::test]
    async fn a_proxy_that_speaks_tls_may_stand_in_front() {
        let scene = Scene::titled("t").await;
        let content = json!({"shared_secret_v1": "s".repeat(32)}).to_string();
        let secrets = secrets(&scene, &content, 0o600);
        let mut command = command(&scene, &secrets, &["--listen", "0.0.0.0:0", "--behind-tls-proxy"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let first = lines.next().unwrap();
        let port = first.strip_prefix("listening on http://0.0.0.0:").unwrap().parse().unwrap();
        assert!(lines.next().unwrap().contains("version 1 are taken too"));
        let unsigned = request("GET", "/runs/r1/approvals", "n1");
        let refused = unsigned.send_with(SocketAddr::from(([127, 0, 0, 1], port)), &[]).await;
        assert_eq!(refused.refusal(), (401, "unauthorized".to_owned()));
        rustix::process::kill_process(rustix::process::Pid::from_child(&child), Signal::TERM).unwrap();
        assert!(child.wait().unwrap().success());
    }
}
