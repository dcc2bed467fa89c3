//! The gate inside an axum service: a payment behind an HTTP route, which runs once and may wait for a person.
//!
//! `cargo run --example axum_service -- service.db`, and from another terminal
//! `curl -d '{"to":"ada","amount":20}' http://127.0.0.1:8080/payments/invoice-7`. The answer says that a person is asked;
//! `holdpoint --db service.db approve invoice-7` approves, and the same request again pays. The payment's name in the
//! address is its run: sent twice it is paid once, also after a restart.

#![expect(clippy::print_stdout, reason = "an example talks to the person who runs it")]

use std::error::Error;
use std::path::Path;

use axum::Router;
use axum::extract::{Path as Named, State};
use axum::http::StatusCode;
use axum::routing::post;
use holdpoint::gate::{
    Approval, Attached, Gate, Limits, ObservationKind, OpenStep, Origin, Proposal, Run, RunId, RunStatus,
    Runtime, Session, SessionError, SideEffect, ToolOutput, ToolSpec, Verdict, tool_fn,
};

type Answer = (StatusCode, String);

const PAY_SCHEMA: &str = r#"{
    "type": "object",
    "required": ["to", "amount"],
    "additionalProperties": false,
    "properties": {"to": {"type": "string"}, "amount": {"type": "integer", "minimum": 1}}
}"#;

/// A record, and the gate over it. A payment that succeeds completes its run.
async fn runtime(database: &Path) -> Result<Runtime, Box<dyn Error>> {
    let spec =
        ToolSpec::new("pay", SideEffect::RemoteMutation, PAY_SCHEMA).describe("Pays somebody.").terminal();
    let pay = tool_fn(spec, |call| async move {
        println!("  paying: {} (idempotency key {})", call.args, call.step_id);
        Ok(ToolOutput::new(r#"{"paid":true}"#, "paid"))
    });
    Ok(Runtime::builder(database).tool(pay).start().await?)
}

fn service(gate: Gate) -> Router {
    Router::new().route("/payments/{name}", post(pay)).with_state(gate)
}

/// The body goes to the gate as it came: it is the gate that says whether it is a payment.
async fn pay(State(gate): State<Gate>, Named(name): Named<String>, body: String) -> Answer {
    let run = RunId::from(name);
    let answered = match gate.begin(run.clone(), "pay as a client asks", Limits::default()).await {
        Ok(session) => propose(session, body).await,
        Err(SessionError::Exists(_)) => collect(&gate, run).await,
        Err(error) => Err(error),
    };
    answered.unwrap_or_else(|error| (StatusCode::SERVICE_UNAVAILABLE, error.to_string()))
}

/// A payment that was not asked for before.
async fn propose(session: Session, body: String) -> Result<Answer, SessionError> {
    let Some(step) = session.step().await? else { return Ok(stands(&session.run().await)) };
    let proposal = Proposal::tool_call("pay", body).from_origin(Origin::Operator);
    let answer = match step.propose(proposal).await? {
        Verdict::Allowed { .. } => execute(&step).await?,
        Verdict::Denied { observation } if observation.kind == ObservationKind::InvalidDecision => {
            (StatusCode::UNPROCESSABLE_ENTITY, observation.summary)
        }
        Verdict::Denied { observation } => (StatusCode::FORBIDDEN, observation.summary),
        Verdict::Pending { approval, .. } => waiting(&approval),
        Verdict::Ended { run } => stands(&run),
    };
    session.close().await;
    Ok(answer)
}

/// A payment that was asked for before: what was granted is paid, exactly as it was asked for then.
async fn collect(gate: &Gate, run: RunId) -> Result<Answer, SessionError> {
    let attached = match gate.attach(run.clone()).await {
        // It is over, waits for its decision still, or somebody else is at it, in this process or another.
        Err(SessionError::RunState { .. } | SessionError::Leased { .. }) => {
            return Ok(stands(&gate.run(&run).await?));
        }
        attached => attached?,
    };
    let (session, answer) = match attached {
        Attached::Allowed(session, step) => {
            let answer = execute(&step).await?;
            (session, answer)
        }
        Attached::Denied(session, observation) => (session, (StatusCode::FORBIDDEN, observation.summary)),
        Attached::Open(session) => {
            (session, (StatusCode::CONFLICT, "not paid: ask under another name".to_owned()))
        }
        Attached::Pending(approval, _) => return Ok(waiting(&approval)),
        Attached::Ended(run) => return Ok(stands(&run)),
    };
    session.close().await;
    Ok(answer)
}

async fn execute(step: &OpenStep) -> Result<Answer, SessionError> {
    let observation = step.execute().await?.observation;
    let status = if observation.is_failure() { StatusCode::BAD_GATEWAY } else { StatusCode::OK };
    Ok((status, observation.content.as_str().to_owned()))
}

fn waiting(approval: &Approval) -> Answer {
    (
        StatusCode::ACCEPTED,
        format!("a person is asked: approval {}; ask again when it is decided", approval.id),
    )
}

/// What is known of a payment that nothing can be done about now.
fn stands(run: &Run) -> Answer {
    match (&run.result, run.status) {
        // What was paid before is told again, and not paid again.
        (Some(result), RunStatus::Completed) => (StatusCode::OK, result.as_str().to_owned()),
        (_, RunStatus::WaitingForApproval) => (StatusCode::ACCEPTED, "a person is asked still".to_owned()),
        (_, RunStatus::Running | RunStatus::Interrupted) => {
            (StatusCode::CONFLICT, "it is being paid".to_owned())
        }
        (_, status) => (StatusCode::GONE, format!("not paid: {status}")),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let database = std::env::args().nth(1).ok_or("usage: axum_service DATABASE")?;
    let runtime = runtime(database.as_ref()).await?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
    println!("serving on http://{}", listener.local_addr()?);
    let ended = async { drop(tokio::signal::ctrl_c().await) };
    axum::serve(listener, service(runtime.gate().clone())).with_graceful_shutdown(ended).await?;
    runtime.stop().await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use holdpoint::view::Records;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// Asks the service, and gives the status and the body.
    async fn ask(address: &str, name: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(address).await.expect("the service");
        let request = format!(
            "POST /payments/{name} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await.expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        (head[9..12].parse().expect("a status"), body.to_owned())
    }

    #[tokio::test]
    async fn a_payment_waits_for_a_person_and_is_paid_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let database = folder.path().join("service.db");
        let runtime = runtime(&database).await.expect("a runtime");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address").to_string();
        let serving = tokio::spawn(axum::serve(listener, service(runtime.gate().clone())).into_future());

        let payment = r#"{"to":"ada","amount":20}"#;
        let (status, told) = ask(&address, "invoice-7", payment).await;
        assert!(status == 202 && told.starts_with("a person is asked"), "{status} {told}");
        // Undecided, it stays where it is.
        assert_eq!(ask(&address, "invoice-7", payment).await.0, 202);

        let mut records = Records::open_to_decide(&database).expect("the record");
        let waiting = records.pending_approval(&RunId::from("invoice-7"), None).expect("what it waits for");
        records.approve_shown(&waiting.approval, "ada", "").expect("a decision");
        let paid = (200, r#"{"paid":true}"#.to_owned());
        assert_eq!(ask(&address, "invoice-7", payment).await, paid);
        assert_eq!(ask(&address, "invoice-7", payment).await, paid, "it is told again, not paid again");

        assert_eq!(ask(&address, "invoice-8", r#"{"to":"ada"}"#).await.0, 422);
        serving.abort();
        runtime.stop().await;
    }
}
