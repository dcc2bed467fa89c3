//! The fake payment server of the demonstration: an MCP server over stdio that moves no money.
//!
//! Owns three tools and a ledger. Each payment appends one line to the ledger and syncs it before anything is answered,
//! so that counting lines counts effects. It speaks as much MCP as it takes to be pinned and called, and shares nothing
//! with the client that talks to it, so that neither can hide a mistake of the other. The scripts in `tests/compare`
//! have a twin of it, written apart, with the same tools; either can serve.

use std::fs::OpenOptions;
use std::io::{self, BufRead, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use clap::ValueEnum;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Number, Value, json};

/// How long a slow payment takes.
const SLOW: Duration = Duration::from_secs(2);
/// How often a blocked payment looks for its release.
const GLANCE: Duration = Duration::from_millis(10);
/// How deep the content of a deep answer is nested: past what a runtime records.
const DEEP_LEVELS: usize = 300;

/// What happens after a payment's effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// Two seconds pass before the answer.
    Slow,
    /// The answer waits until the file `<ledger>.release` exists.
    Block,
    /// The answer says that the payment failed.
    Error,
    /// The answer has structured content.
    Structured,
    /// The answer has structured content, nested deeper than a runtime records.
    Deep,
    /// The server ends without an answer.
    Exit,
    /// There is no answer.
    Silent,
}

/// How the server's life ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Its input ended.
    InputEnded,
    /// A payment in the mode [`Mode::Exit`] ended it.
    ByPayment,
}

/// A server, with what its threads share.
pub(crate) struct Server<W> {
    ledger: PathBuf,
    mode: Option<Mode>,
    output: Arc<Mutex<W>>,
}

#[derive(Deserialize)]
struct Request {
    id: Option<Box<RawValue>>,
    method: Option<String>,
    #[serde(default)]
    params: Value,
}

#[derive(Deserialize)]
struct Payment {
    to: String,
    amount: Number,
    mode: Option<Mode>,
}

/// What a call is answered with: a result, or an error's code and message.
type Outcome = Result<Value, (i32, String)>;

const INVALID_PARAMS: i32 = -32_602;

impl<W: Write + Send + 'static> Server<W> {
    /// A server that writes effects to `ledger` and answers to `output`. `mode` is for payments that name none.
    pub(crate) fn new(ledger: PathBuf, mode: Option<Mode>, output: W) -> Server<W> {
        Server { ledger, mode, output: Arc::new(Mutex::new(output)) }
    }

    /// Answers requests until the input ends. A call that waits does so on a thread of its own, which ends with the
    /// process.
    pub(crate) fn serve(&self, input: impl BufRead) -> io::Result<Ended> {
        for line in input.lines() {
            let Ok(Request { id: Some(id), method: Some(method), params }) = serde_json::from_str(&line?)
            else {
                continue;
            };
            match method.as_str() {
                "initialize" => {
                    let version = params.get("protocolVersion").cloned();
                    let result = json!({
                        "protocolVersion": version.unwrap_or_else(|| json!("2025-06-18")),
                        "capabilities": {"tools": {}},
                        "serverInfo": {"name": "fake-payments", "version": env!("CARGO_PKG_VERSION")},
                    });
                    self.answer(&id, Ok(result))?;
                }
                "ping" => self.answer(&id, Ok(json!({})))?,
                "tools/list" => self.answer(&id, Ok(json!({"tools": tools()})))?,
                "tools/call" => {
                    if self.call(id, &params)? == Some(Mode::Exit) {
                        return Ok(Ended::ByPayment);
                    }
                }
                _ => self.answer(&id, Err((-32_601, "no such method".to_owned())))?,
            }
        }
        Ok(Ended::InputEnded)
    }

    /// Calls a tool, and returns a payment's mode.
    fn call(&self, id: Box<RawValue>, params: &Value) -> io::Result<Option<Mode>> {
        let arguments = params.get("arguments").unwrap_or(&Value::Null);
        let tool = params.get("name").and_then(Value::as_str).unwrap_or_default();
        let outcome = match tool {
            "balance" => {
                let account = arguments.get("account").and_then(Value::as_str).unwrap_or("?");
                Ok(text(&format!("account {account} holds 120.00 EUR")))
            }
            "refund" => {
                self.append(tool, arguments)?;
                Ok(text("refunded"))
            }
            "pay" => match Payment::deserialize(arguments) {
                Ok(payment) => {
                    self.append(tool, arguments)?;
                    return self.after_the_effect(id, payment);
                }
                Err(problem) => Err((INVALID_PARAMS, format!("not a payment: {problem}"))),
            },
            _ => Err((INVALID_PARAMS, "no such tool".to_owned())),
        };
        self.answer(&id, outcome)?;
        Ok(None)
    }

    fn after_the_effect(&self, id: Box<RawValue>, payment: Payment) -> io::Result<Option<Mode>> {
        let Payment { to, amount, mode } = payment;
        let mode = mode.or(self.mode);
        let paid = text(&format!("paid {amount} to {to}"));
        match mode {
            None => self.answer(&id, Ok(paid))?,
            Some(Mode::Slow) => self.answer_later(id, paid, || thread::sleep(SLOW)),
            Some(Mode::Block) => {
                let mut release = self.ledger.clone().into_os_string();
                release.push(".release");
                let release = PathBuf::from(release);
                self.answer_later(id, paid, move || {
                    while !release.exists() {
                        thread::sleep(GLANCE);
                    }
                });
            }
            Some(Mode::Error) => {
                let declined = with("isError", json!(true), &format!("the card was declined by {to}"));
                self.answer(&id, Ok(declined))?;
            }
            Some(Mode::Structured) => {
                let content = json!({"to": to, "paid": amount});
                let result = with("structuredContent", content, &format!("paid {amount} to {to}"));
                self.answer(&id, Ok(result))?;
            }
            Some(Mode::Deep) => {
                let nested = (0..DEEP_LEVELS).fold(json!(amount), |inner, _| json!([inner]));
                let result = with("structuredContent", json!({"nested": nested}), "paid, at depth");
                self.answer(&id, Ok(result))?;
            }
            Some(Mode::Exit | Mode::Silent) => {}
        }
        Ok(mode)
    }

    fn answer(&self, id: &RawValue, outcome: Outcome) -> io::Result<()> {
        write_answer(&self.output, id, outcome)
    }

    fn answer_later(&self, id: Box<RawValue>, result: Value, wait: impl FnOnce() + Send + 'static) {
        let output = Arc::clone(&self.output);
        thread::spawn(move || {
            wait();
            // When nobody reads any more, the input ends too, and with it the server.
            drop(write_answer(&output, &id, Ok(result)));
        });
    }

    /// Writes an effect down, for good.
    fn append(&self, tool: &str, arguments: &Value) -> io::Result<()> {
        let line = format!("{}\n", json!({"tool": tool, "arguments": arguments}));
        let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(&self.ledger)?;
        file.write_all(line.as_bytes())?;
        file.sync_all()
    }
}

fn write_answer(output: &Mutex<impl Write>, id: &RawValue, outcome: Outcome) -> io::Result<()> {
    let message = match outcome {
        Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
        Err((code, message)) => {
            json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})
        }
    };
    let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
    output.write_all(format!("{message}\n").as_bytes())?;
    output.flush()
}

fn text(what: &str) -> Value {
    json!({"content": [{"type": "text", "text": what}]})
}

fn with(key: &str, value: Value, what: &str) -> Value {
    let mut result = text(what);
    result[key] = value;
    result
}

fn tools() -> Value {
    let string = json!({"type": "string"});
    let modes: Vec<Value> = Mode::value_variants()
        .iter()
        .filter_map(ValueEnum::to_possible_value)
        .map(|mode| json!(mode.get_name()))
        .collect();
    json!([
        {
            "name": "balance",
            "description": "Tell what an account holds.",
            "inputSchema": schema(json!({"account": string}), &["account"]),
            "annotations": {"readOnlyHint": true},
        },
        {
            "name": "pay",
            "description": "Pay somebody.",
            "inputSchema": schema(
                json!({
                    "to": string,
                    "amount": {"type": "number"},
                    "currency": string,
                    "mode": {"type": "string", "enum": modes},
                }),
                &["to", "amount"],
            ),
            "annotations": {"destructiveHint": false},
        },
        {
            "name": "refund",
            "description": "Give a payment back.",
            "inputSchema": schema(json!({"payment": string}), &["payment"]),
        },
    ])
}

fn schema(properties: Value, required: &[&str]) -> Value {
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

#[cfg(test)]
mod tests;
