//! A scripted host in front of a real proxy, as a child process that can be killed.
//!
//! Owns one conversation. It keeps every answer, never guesses, and learns of a death by the end of the output and the
//! exit status.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::clock::{now, until};

/// How long a child may take to end once it was asked to, or an answer to come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// How a proxy ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// By signal 9.
    Killed,
    /// With this status.
    Exited(i32),
}

/// An answer, as a host sees it.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) is_error: bool,
}

impl Answer {
    /// The gate's own word at its beginning; none for a tool's own result.
    pub(crate) fn word(&self) -> Option<&str> {
        let (word, _) = self.text.split_once(':')?;
        let is_word = !word.is_empty() && word.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
        is_word.then_some(word)
    }

    /// The approval that it names.
    pub(crate) fn approval(&self) -> Option<&str> {
        let is_id = |word: &&str| word.len() == 32 && word.bytes().all(|b| b.is_ascii_hexdigit());
        self.text.split(|c: char| !c.is_ascii_alphanumeric()).find(is_id)
    }
}

/// What came of waiting for an answer.
#[derive(Debug, Clone)]
pub(crate) enum Heard {
    Answer(Answer),
    /// The proxy's output has ended.
    Gone,
    /// Nothing came in time.
    Silence,
}

pub(crate) struct Host {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<Value>,
    early: HashMap<u64, Value>,
    last_id: u64,
}

impl Host {
    /// Starts a proxy.
    pub(crate) fn spawn(mut command: Command) -> Result<Host, String> {
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.map_err(|error| format!("start the proxy: {error}"))?;
        let output = child.stdout.take().ok_or("the proxy has no output")?;
        let input = child.stdin.take();
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // What is no protocol is kept as text: it will be missed as an answer.
                let message = serde_json::from_str(&line).unwrap_or(Value::String(line));
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        Ok(Host { child, input, lines, early: HashMap::new(), last_id: 0 })
    }

    /// Greets it, and may find it dead.
    pub(crate) fn greet(&mut self) {
        let greeting = json!({"protocolVersion": "2025-06-18", "capabilities": {},
                              "clientInfo": {"name": "campaign", "version": "1"}});
        let id = self.request("initialize", &greeting);
        let _greeted = self.await_message(id, PATIENCE);
        self.write(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    }

    /// Sends a call and does not wait.
    pub(crate) fn send(&mut self, tool: &str, arguments: &Value) -> u64 {
        self.request("tools/call", &json!({"name": tool, "arguments": arguments}))
    }

    /// Waits for the answer to a call.
    pub(crate) fn hear(&mut self, id: u64, patience: Duration) -> Heard {
        match self.await_message(id, patience) {
            Ok(message) => {
                let result = &message["result"];
                let contents = result["content"].as_array().map(Vec::as_slice).unwrap_or_default();
                let texts: Vec<&str> =
                    contents.iter().filter_map(|content| content["text"].as_str()).collect();
                let text = if result.is_null() {
                    format!("PROTOCOL: {}", message["error"])
                } else {
                    texts.join("\n")
                };
                Heard::Answer(Answer { text, is_error: result["isError"] == true })
            }
            Err(RecvTimeoutError::Disconnected) => Heard::Gone,
            Err(RecvTimeoutError::Timeout) => Heard::Silence,
        }
    }

    fn request(&mut self, method: &str, params: &Value) -> u64 {
        self.last_id += 1;
        let id = self.last_id;
        self.write(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        id
    }

    fn write(&mut self, message: &Value) {
        if let Some(input) = &mut self.input {
            // A dead proxy is noticed by the end of its output.
            drop(input.write_all(format!("{message}\n").as_bytes()));
        }
    }

    fn await_message(&mut self, id: u64, patience: Duration) -> Result<Value, RecvTimeoutError> {
        if let Some(message) = self.early.remove(&id) {
            return Ok(message);
        }
        let began = now();
        loop {
            let left = patience.saturating_sub(began.elapsed());
            let message = self.lines.recv_timeout(left)?;
            match message["id"].as_u64() {
                Some(found) if found == id => return Ok(message),
                Some(found) => drop(self.early.insert(found, message)),
                None => {}
            }
        }
    }

    pub(crate) fn pid(&self) -> Option<Pid> {
        Pid::from_raw(i32::try_from(self.child.id()).ok()?)
    }

    pub(crate) fn signal(&mut self, signal: Signal) {
        if let Some(pid) = self.pid() {
            // Somebody who has gone needs no signal.
            kill_process(pid, signal).ok();
        }
    }

    /// Whether it stands still.
    pub(crate) fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
    }

    /// Waits for its end.
    pub(crate) fn ends_within(&mut self, patience: Duration) -> Option<End> {
        let status = until(patience, || self.child.try_wait().ok().flatten())?;
        Some(match status.signal() {
            Some(9) => End::Killed,
            Some(other) => End::Exited(128 + other),
            None => End::Exited(status.code().unwrap_or(-1)),
        })
    }

    /// Kills it with signal 9 and waits until it is gone.
    pub(crate) fn kill(mut self) -> Option<End> {
        self.signal(Signal::KILL);
        self.ends_within(PATIENCE)
    }

    /// Leaves as a host does: its end of the pipe goes.
    pub(crate) fn leave(mut self) -> Option<End> {
        self.input = None;
        self.ends_within(PATIENCE)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        drop(self.child.wait());
    }
}
