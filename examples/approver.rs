//! A run that stops for a person, and a chat bot on the other end of a signed HTTP channel who asks one.
//!
//! `cargo run --example approver --features webhook -- [--db FILE] [--reject]`. It needs no model and no network but this
//! machine's. The owner of the run, the channel and the bot are one program here; they share nothing but the database, a
//! port, and the bot's secret.

use std::error::Error;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use holdpoint::approver::webhook::{OperatorName, Secret, Secrets, SignatureStore, Webhook};
use holdpoint::approver::{Local, RunReader as _};
use holdpoint::gate::{
    Attached, Clock, Event, Json, Limits, Observer, Policy, PolicyDecision, PolicyError, PolicyView,
    Proposal, RunId, Runtime, SideEffect, Tool, ToolCall, ToolFailure, ToolOutput, ToolRequest, ToolSpec,
    Verdict, WallClock, async_trait,
};
use holdpoint::trace;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

/// Counts how often something was published, and publishes nothing.
#[derive(Default)]
struct Publish(AtomicUsize);

#[async_trait]
impl Tool for Publish {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "publish_proposal".to_owned(),
            description: "Pushes the frozen proposal and opens a pull request.".to_owned(),
            input_schema: Json::trusted(r#"{"type":"object","required":["proposal_id"]}"#),
            side_effect: SideEffect::RemoteMutation,
            timeout: Duration::from_secs(5),
            terminal: true,
        }
    }

    async fn call(&self, _call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(ToolOutput::new(r#"{"pr":1}"#, "opened pull request 1"))
    }
}

/// Publishing always needs a person, who sees what would be published.
struct Publication;

#[async_trait]
impl Policy for Publication {
    async fn evaluate(
        &self,
        request: &ToolRequest,
        _view: &PolicyView,
    ) -> Result<PolicyDecision, PolicyError> {
        let json = |value: Value| Json::trusted(value.to_string());
        Ok(PolicyDecision::need_approval(
            "publication",
            "publishing pushes a branch and opens a pull request",
            json(json!({"tool": request.spec.name, "proposal_id": "p-1"})),
            json(
                json!({"title": "Upgrade lib to 1.2.4", "base": "main", "files": ["Cargo.toml", "Cargo.lock"]}),
            ),
        ))
    }
}

/// Where everything is told, line by line.
#[derive(Clone)]
struct Out(Arc<Mutex<dyn Write + Send>>);

impl Out {
    fn line(&self, text: &str) {
        let mut out = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // An example whose reader went away has nobody to tell.
        drop(writeln!(out, "{text}"));
    }
}

impl Observer for Out {
    fn committed(&self, event: &Event) {
        self.line(trace::text_line(event).trim_end());
    }
}

/// The whole of it: a run pauses, a bot shows it to a person and sends the answer, the owner goes on.
pub(crate) async fn run(
    out: Arc<Mutex<dyn Write + Send>>,
    database: &Path,
    reject: bool,
) -> Result<(), Box<dyn Error>> {
    let out = Out(out);
    let observer = || Arc::new(out.clone()) as Arc<dyn Observer>;

    // The owner of the run.
    let publish = Arc::new(Publish::default());
    let runtime = Runtime::builder(database)
        .tool(Arc::clone(&publish) as Arc<dyn Tool>)
        .policy(Arc::new(Publication))
        .observer(observer())
        .start()
        .await?;
    let id = RunId::from(format!("upgrade-{}", WallClock.now().as_nanos()));
    let limits = Limits::default().approval_ttl(Duration::from_secs(3_600));
    let session = runtime.gate().begin(id.clone(), "upgrade lib", limits).await?;
    let step = session.step().await?.ok_or("no limit is reached yet")?;
    let call = Proposal::tool_call("publish_proposal", r#"{"proposal_id":"p-1"}"#);
    if !matches!(step.propose(call).await?, Verdict::Pending { .. }) {
        return Err("publishing waits for a person".into());
    }
    session.close().await;

    // The channel: on loopback only. Elsewhere, a proxy that speaks TLS stands in front.
    let secret = Secret::new(random_secret()?).ok_or("a secret has 32 bytes")?;
    let bot = OperatorName::new("chat:ada")?;
    let local = Local::open(database)?.observer(observer());
    let hook = Webhook::new(
        Arc::new(local.clone()),
        Arc::new(SignatureStore::open(database, WallClock.now())?),
        Secrets::of_operators([(bot.clone(), secret.clone())])?,
    );
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(hook.observer(observer()).serve(listener, async { drop(stopped.await) }));

    // The bot: a secret, the run's id that it was told, and nothing else.
    let bot = Bot { name: bot, secret, address, out: out.clone() };
    let shown = bot.show(&id).await?;
    bot.decide(&id, &shown, if reject { "reject" } else { "approve" }).await?;
    drop(stop);
    serving.await??;

    // The owner again: collects the grant, which runs exactly what was recorded.
    match runtime.gate().attach(id.clone()).await {
        Ok(Attached::Allowed(session, step)) => {
            step.execute().await?;
            session.close().await;
        }
        Ok(other) => return Err(format!("a decided run is granted or over, not {other:?}").into()),
        Err(error) => out.line(&format!("not resumed: {error}")),
    }
    let (ended, times) = (local.run(&id).await?, publish.0.load(Ordering::SeqCst));
    let (status, reason) = (ended.status, ended.reason);
    out.line(&format!("run {id} is {status} ({reason}); publish_proposal ran {times} time(s)"));
    runtime.stop().await;
    Ok(())
}

/// A chat bot, or as much of one as matters here.
struct Bot {
    name: OperatorName,
    secret: Secret,
    address: SocketAddr,
    out: Out,
}

impl Bot {
    /// Shows a person what a run waits for, as the channel words it; gives what a decision must name.
    async fn show(&self, run: &RunId) -> Result<Value, Box<dyn Error>> {
        let (_, listed) = self.call("GET", &format!("/runs/{run}/approvals"), "").await?;
        let listed: Value = serde_json::from_str(&listed)?;
        let [waiting] = listed["pending"].as_array().map_or(&[][..], Vec::as_slice) else {
            return Err("exactly one approval waits".into());
        };
        let id = waiting["id"].as_str().unwrap_or_default();
        let (_, text) = self.call("GET", &format!("/runs/{run}/approvals/{id}?format=text"), "").await?;
        text.lines().for_each(|line| self.out.line(&format!("[bot] > {line}")));
        Ok(waiting.clone())
    }

    /// Sends a decision on what was shown, bound to its hash.
    async fn decide(&self, run: &RunId, shown: &Value, verb: &str) -> Result<(), Box<dyn Error>> {
        let (id, hash) = (&shown["id"], &shown["hash"]);
        let body = json!({"run_id": run, "approval_id": id, "hash": hash, "note": "read in the channel"});
        let target = format!("/runs/{run}/approvals/{}/{verb}", id.as_str().unwrap_or_default());
        let (status, answer) = self.call("POST", &target, &body.to_string()).await?;
        let answer: Value = serde_json::from_str(&answer)?;
        self.out.line(&format!("[bot] {verb} by {}: HTTP {status} {}", self.name, answer["status"]));
        if status < 400 { Ok(()) } else { Err(format!("refused: {}", answer["error"]).into()) }
    }

    /// Sends one signed request; gives the status and the body of the answer. A program of yours would use its HTTP client.
    async fn call(&self, method: &str, target: &str, body: &str) -> Result<(u16, String), Box<dyn Error>> {
        let length = body.len();
        let mut head =
            format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n");
        for (name, value) in self.secret.headers(&self.name, method, target, body.as_bytes()) {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        let mut stream = TcpStream::connect(self.address).await?;
        stream.write_all(format!("{head}\r\n{body}").as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or("an answer has a head")?;
        let status = head.split(' ').nth(1).ok_or("an answer has a status")?;
        Ok((status.parse()?, body.to_owned()))
    }
}

fn random_secret() -> std::io::Result<[u8; 32]> {
    let mut secret = [0; 32];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut secret)?;
    Ok(secret)
}

#[tokio::main]
#[cfg_attr(test, expect(dead_code, reason = "its test calls what it calls"))]
async fn main() -> Result<(), Box<dyn Error>> {
    let (mut database, mut reject) = (None, false);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--reject" => reject = true,
            "--db" => database = arguments.next().map(PathBuf::from),
            _ => return Err("usage: approver [--db FILE] [--reject]".into()),
        }
    }
    let fresh = format!("holdpoint-approver-{}.db", WallClock.now().as_nanos());
    let database = database.unwrap_or_else(|| std::env::temp_dir().join(fresh));
    run(Arc::new(Mutex::new(std::io::stdout())), &database, reject).await
}
