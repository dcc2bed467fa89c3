//! A server on a port of its own, and a client that writes every byte of its requests itself.

use std::net::SocketAddr;
use std::sync::Arc;

use holdpoint::approver::webhook::{
    OperatorName, Options, Secret, Secrets, SignatureStore, Signing, Webhook,
};
use holdpoint::approver::{Approver, Local};
use holdpoint::gate::{Clock, HandClock, Observer};
use holdpoint_core::time::UnixNanos;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::{Scene, Told};

/// The operator's name as a type.
pub(super) fn named(name: &str) -> OperatorName {
    OperatorName::new(name).unwrap()
}

/// The secret that an operator has in these tests: their initial, often enough.
pub(super) fn secret_of(name: &str) -> Secret {
    Secret::new(name[..1].repeat(32)).unwrap()
}

/// Two operators, `ada` and `bob`.
pub(super) fn operators() -> Secrets {
    Secrets::of_operators(["ada", "bob"].map(|name| (named(name), secret_of(name)))).unwrap()
}

/// A channel that is served.
pub(super) struct Server {
    pub(super) address: SocketAddr,
    pub(super) clock: Arc<HandClock>,
    pub(super) told: Arc<Told>,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<std::io::Result<()>>,
}

impl Server {
    /// Serves a scene's database to `ada` and `bob`, at a time at which nothing has expired.
    pub(super) async fn of(scene: &Scene) -> Server {
        Server::with(scene, operators(), Options::default()).await
    }

    pub(super) async fn with(scene: &Scene, secrets: Secrets, options: Options) -> Server {
        Server::at(scene, secrets, options, super::start().plus(std::time::Duration::from_secs(60))).await
    }

    pub(super) async fn at(scene: &Scene, secrets: Secrets, options: Options, now: UnixNanos) -> Server {
        let clock = Arc::new(HandClock::new(now, std::time::Duration::ZERO));
        let local = Local::open(&scene.path).unwrap().clock(Arc::clone(&clock) as Arc<dyn Clock>);
        Server::over(scene, Arc::new(local), secrets, options, clock).await
    }

    pub(super) async fn over(
        scene: &Scene,
        approver: Arc<dyn Approver>,
        secrets: Secrets,
        options: Options,
        clock: Arc<HandClock>,
    ) -> Server {
        let told = Arc::new(Told::default());
        let memory = SignatureStore::open(&scene.path, super::start()).unwrap();
        let hook = Webhook::new(approver, Arc::new(memory), secrets)
            .options(options)
            .unwrap()
            .clock(Arc::clone(&clock) as Arc<dyn Clock>)
            .observer(Arc::clone(&told) as Arc<dyn Observer>);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let serving = tokio::spawn(hook.serve(listener, async { drop(stopped.await) }));
        Server { address, clock, told, stop, serving }
    }

    /// Stops it, and waits for what was begun.
    pub(super) async fn stop(self) {
        self.begin_to_stop().await.unwrap().unwrap();
    }

    /// Tells it to stop.
    pub(super) fn begin_to_stop(self) -> JoinHandle<std::io::Result<()>> {
        self.stop.send(()).unwrap();
        self.serving
    }

    /// A request of Ada's that is signed when it is sent.
    pub(super) fn request(&self, method: &str, target: &str) -> Request {
        let at = self.clock.now().as_nanos() / 1_000_000_000;
        Request {
            method: method.to_owned(),
            target: target.to_owned(),
            body: String::new(),
            at,
            nonce: nonce(),
            operator: "ada".to_owned(),
        }
    }

    /// Sends a request of Ada's.
    pub(super) async fn get(&self, target: &str) -> Reply {
        self.request("GET", target).send(self.address).await
    }

    pub(super) async fn post(&self, target: &str, body: &Value) -> Reply {
        self.request("POST", target).body(body).send(self.address).await
    }

    /// The payloads of one kind of event that it told of.
    pub(super) fn events(&self, kind: &str) -> Vec<Value> {
        let told = self.told.0.lock().unwrap();
        let of_kind = told.iter().filter(|event| event.kind == kind);
        of_kind
            .map(|event| {
                assert_eq!(event.seq, 0, "it is not in the record");
                serde_json::from_str(&event.payload).unwrap()
            })
            .collect()
    }
}

fn nonce() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static COUNT: AtomicU64 = AtomicU64::new(0);
    format!("n{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

/// A request before it is signed.
#[derive(Clone)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) target: String,
    pub(super) body: String,
    pub(super) at: i64,
    pub(super) nonce: String,
    pub(super) operator: String,
}

impl Request {
    pub(super) fn body(mut self, body: &Value) -> Request {
        self.body = body.to_string();
        self
    }

    pub(super) fn by(mut self, operator: &str) -> Request {
        self.operator = operator.to_owned();
        self
    }

    fn signing(&self) -> Signing<'_> {
        Signing {
            timestamp: self.at,
            nonce: self.nonce.as_bytes(),
            method: &self.method,
            target: &self.target,
            body: self.body.as_bytes(),
        }
    }

    /// The headers, signed with the operator's secret.
    pub(super) fn headers(&self) -> Vec<(&'static str, String)> {
        let signature = secret_of(&self.operator).sign(&named(&self.operator), &self.signing());
        let mut headers = self.unsigned();
        headers.push(("X-Approval-Operator", self.operator.clone()));
        headers.push(("X-Approval-Signature", signature));
        headers
    }

    /// The headers, signed as the reference does, with a secret that all share.
    pub(super) fn headers_v1(&self, secret: &Secret) -> Vec<(&'static str, String)> {
        let mut headers = self.unsigned();
        headers.push(("X-Approval-Signature", secret.sign_v1(&self.signing()).unwrap()));
        headers
    }

    fn unsigned(&self) -> Vec<(&'static str, String)> {
        vec![("X-Approval-Timestamp", self.at.to_string()), ("X-Approval-Nonce", self.nonce.clone())]
    }

    pub(super) async fn send(&self, to: SocketAddr) -> Reply {
        self.send_with(to, &self.headers()).await
    }

    /// Sends it with these headers and no others.
    pub(super) async fn send_with(&self, to: SocketAddr, headers: &[(&'static str, String)]) -> Reply {
        let mut text = format!("{} {} HTTP/1.1\r\nHost: {to}\r\n", self.method, self.target);
        text.push_str(&format!("Content-Length: {}\r\n", self.body.len()));
        for (name, value) in headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str("\r\n");
        text.push_str(&self.body);
        let mut stream = TcpStream::connect(to).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.unwrap();
        Reply::of(&String::from_utf8(bytes).unwrap())
    }
}

/// What came back.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) text: String,
}

impl Reply {
    pub(super) fn of(answer: &str) -> Reply {
        let (head, text) = answer.split_once("\r\n\r\n").unwrap_or((answer, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        Reply { status, head: head.to_lowercase(), text: text.to_owned() }
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The status and the code of a refusal.
    pub(super) fn refusal(&self) -> (u16, String) {
        (self.status, self.json()["code"].as_str().unwrap_or_default().to_owned())
    }

    /// What a refusal says.
    pub(super) fn reason(&self) -> String {
        self.json()["error"].as_str().unwrap_or_default().to_owned()
    }
}
