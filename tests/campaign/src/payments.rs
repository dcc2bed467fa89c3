//! The payment server that stands for the world: every payment it applies is a synced line in a file that outlives
//! every process of a case.
//!
//! Owns the ledger's form. At the moment of an effect it looks into the gate's record from outside and writes down
//! whether an intent for exactly these arguments is open there. Shares nothing with the gate but the protocol.
//! Its ledger stands on its command line, so that whoever outlives its gate can be found.

use std::fs::OpenOptions;
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use serde_json::{Value, json};

use crate::clock::until;

/// How long a held payment is held, if nobody releases it.
const HELD: Duration = Duration::from_secs(60);
/// How long the record may be locked while it is looked into.
const BUSY: Duration = Duration::from_secs(2);

/// What names the gate's record to the server: its arguments may not reach there.
pub(crate) const RECORD: &str = "CAMPAIGN_RECORD";

/// What names the recording of the disk, where there is one.
pub(crate) const RECORDING: &str = "CAMPAIGN_IO_LOG";

/// How long the recording of the disk is.
pub(crate) fn mark(recording: Option<&Path>) -> u64 {
    recording.and_then(|path| path.metadata().ok()).map_or(0, |file| file.len())
}

struct Server {
    ledger: PathBuf,
    output: Mutex<io::Stdout>,
}

/// Serves until the input ends.
pub(crate) fn serve(ledger: &Path) -> Result<(), String> {
    let server = Arc::new(Server { ledger: ledger.to_owned(), output: Mutex::new(io::stdout()) });
    for line in io::stdin().lock().lines() {
        let line = line.map_err(|error| error.to_string())?;
        let Ok(message) = serde_json::from_str::<Value>(&line) else { continue };
        let Some(id) = message.get("id").cloned() else { continue };
        let params = &message["params"];
        match message["method"].as_str().unwrap_or_default() {
            "initialize" => server.say(
                &id,
                &json!({
                    "protocolVersion": params["protocolVersion"],
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "campaign-payments", "version": "1"},
                }),
            ),
            "tools/list" => server.say(&id, &tools()),
            "tools/call" => {
                let (server, params) = (Arc::clone(&server), params.clone());
                thread::spawn(move || server.call(&id, &params));
            }
            _ => server.say(&id, &json!({})),
        }
    }
    Ok(())
}

impl Server {
    fn call(&self, id: &Value, params: &Value) {
        let (tool, arguments) = (&params["name"], &params["arguments"]);
        if tool != "pay" {
            return self.say(id, &text("the account holds 120.00 EUR"));
        }
        let reference = arguments["ref"].as_str().unwrap_or_default();
        // A mode is for the first time: a repetition that somebody approved is a plain payment.
        let first = !std::fs::read_to_string(beside(&self.ledger, "seen"))
            .is_ok_and(|seen| seen.lines().any(|line| line == reference));
        let mode = arguments["mode"].as_str().filter(|_| first).unwrap_or_default();
        let done = append(&beside(&self.ledger, "seen"), reference).and_then(|()| {
            if mode == "error" {
                return Ok(());
            }
            if mode == "before" {
                self.hold("before");
            }
            if mode == "vanish" {
                die();
            }
            apply(&self.ledger, tool, arguments)?;
            if mode == "after" {
                self.hold("after");
            }
            if mode == "exit" {
                die();
            }
            Ok(())
        });
        match done {
            Ok(()) if mode == "error" => {
                let mut declined = text("the card was declined");
                declined["isError"] = json!(true);
                self.say(id, &declined);
            }
            Ok(()) => self.say(id, &text(&format!("paid {reference}"))),
            Err(why) => self.say(id, &text(&format!("not paid: {why}"))),
        }
    }

    /// Says that a payment is held here, and holds it until it is released.
    fn hold(&self, place: &str) {
        if append(&beside(&self.ledger, "held"), place).is_ok() {
            let release = beside(&self.ledger, "release");
            let _released = until(HELD, || release.exists().then_some(()));
        }
    }

    fn say(&self, id: &Value, result: &Value) {
        let line = json!({"jsonrpc": "2.0", "id": id, "result": result});
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        // When nobody reads any more, the input ends too.
        drop(writeln!(output, "{line}").and_then(|()| output.flush()));
    }
}

/// Writes an effect down for good, with what the gate's record says of it at this moment.
pub(crate) fn apply(ledger: &Path, tool: &Value, arguments: &Value) -> Result<(), String> {
    let record = std::env::var_os(RECORD).map(PathBuf::from);
    let seen = record.map(|record| witness(&record, arguments));
    let (open, why) = match seen {
        Some(Ok(open)) => (json!(open), Value::Null),
        Some(Err(why)) => (Value::Null, json!(why)),
        None => (Value::Null, Value::Null),
    };
    let mark = mark(std::env::var_os(RECORDING).map(PathBuf::from).as_deref());
    let line =
        json!({"tool": tool, "arguments": arguments, "open_intents": open, "no_witness": why, "mark": mark});
    append(ledger, &line.to_string())
}

/// Counts the steps that execute with exactly these arguments.
fn witness(record: &Path, arguments: &Value) -> Result<usize, String> {
    let count = || -> rusqlite::Result<usize> {
        let conn = Connection::open_with_flags(record, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        conn.busy_timeout(BUSY)?;
        let mut statement = conn.prepare(
            "SELECT (SELECT e.payload_json FROM events e WHERE e.step_id = s.id AND e.type = 'step.tool_started'
                     ORDER BY e.seq DESC LIMIT 1)
             FROM steps s WHERE s.status = 'executing'",
        )?;
        let payloads = statement.query_map([], |row| row.get::<_, Option<String>>(0))?;
        let mut open = 0;
        for payload in payloads {
            let payload: Value =
                payload?.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
            open += usize::from(&payload["args"] == arguments);
        }
        Ok(open)
    };
    count().map_err(|error| error.to_string())
}

/// A file beside the ledger.
pub(crate) fn beside(ledger: &Path, what: &str) -> PathBuf {
    ledger.with_extension(what)
}

fn append(path: &Path, line: &str) -> Result<(), String> {
    let written = || -> io::Result<()> {
        let mut file = OpenOptions::new().append(true).create(true).open(path)?;
        file.write_all(format!("{line}\n").as_bytes())?;
        file.sync_all()
    };
    written().map_err(|error| format!("{}: {error}", path.display()))
}

fn text(what: &str) -> Value {
    json!({"content": [{"type": "text", "text": what}]})
}

fn tools() -> Value {
    let string = json!({"type": "string"});
    let schema = |properties: Value, required: Value| json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false});
    let payment = json!({"ref": string, "amount": {"type": "number"}, "mode": string});
    json!({"tools": [
        {"name": "balance", "description": "Tell what an account holds.", "annotations": {"readOnlyHint": true},
         "inputSchema": schema(json!({"ref": string}), json!(["ref"]))},
        {"name": "pay", "description": "Pay somebody.", "annotations": {"destructiveHint": false},
         "inputSchema": schema(payment, json!(["ref", "amount"]))},
    ]})
}

/// Ends without an answer, as a crash does.
fn die() -> ! {
    std::process::abort()
}
