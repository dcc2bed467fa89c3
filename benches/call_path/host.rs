//! A host: speaks MCP with one child process over its streams, one call at a time or many.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use holdpoint_actors::clock::monotonic;
use serde_json::{Value, json};

use crate::Outcome;

/// A process that serves MCP, and the host in front of it.
#[derive(Debug)]
pub(crate) struct Host {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    next: u64,
    /// From the start of the process to its answer to `initialize`.
    pub(crate) greeted_in: Duration,
}

impl Host {
    /// Starts a server and greets it; waits for its list of tools.
    pub(crate) fn start(mut command: Command) -> Outcome<Host> {
        let before = monotonic();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let input = child.stdin.take();
        let output = child.stdout.take().ok_or("a child without an output")?;
        let mut host =
            Host { child, input, output: BufReader::new(output), next: 1, greeted_in: Duration::ZERO };
        let client = json!({"name": "call-path", "version": "1"});
        let hello = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client});
        host.ask("initialize", &hello.to_string())?;
        host.greeted_in = monotonic().duration_since(before);
        host.say(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#)?;
        host.ask("tools/list", "{}")?;
        Ok(host)
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Resident bytes of its process, where the system tells.
    pub(crate) fn resident(&self) -> Option<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        Some(line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok()? * 1024.0)
    }

    fn say(&mut self, line: &str) -> Outcome<()> {
        let input = self.input.as_mut().ok_or("the host has hung up")?;
        input.write_all(format!("{line}\n").as_bytes())?;
        Ok(input.flush()?)
    }

    fn request(&mut self, method: &str, params: &str) -> Outcome<u64> {
        let id = self.next;
        self.next += 1;
        self.say(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#))?;
        Ok(id)
    }

    /// The next answer, whatever it answers.
    fn answer(&mut self) -> Outcome<Value> {
        loop {
            let mut line = String::new();
            if self.output.read_line(&mut line)? == 0 {
                return Err("the server ended".into());
            }
            let message: Value = serde_json::from_str(&line)?;
            if message.get("id").is_some() && message.get("method").is_none() {
                return Ok(message);
            }
        }
    }

    pub(crate) fn ask(&mut self, method: &str, params: &str) -> Outcome<Value> {
        let id = self.request(method, params)?;
        let answer = self.answer()?;
        if answer["id"] == id { Ok(answer) } else { Err(format!("not the answer to {id}: {answer}").into()) }
    }

    /// Calls a tool and gives its text.
    pub(crate) fn call(&mut self, tool: &str, arguments: &str) -> Outcome<String> {
        let answer = self.ask("tools/call", &params(tool, arguments))?;
        text_of(&answer).ok_or_else(|| format!("a call failed: {answer}").into())
    }

    /// Sends a call and does not wait.
    pub(crate) fn send_call(&mut self, tool: &str, arguments: &str) -> Outcome<u64> {
        self.request("tools/call", &params(tool, arguments))
    }

    /// The text of the next answer, as a success.
    pub(crate) fn answered(&mut self) -> Outcome<String> {
        let answer = self.answer()?;
        text_of(&answer).ok_or_else(|| format!("a call failed: {answer}").into())
    }

    /// Makes `calls` calls, so many at a time, and says how long they took together.
    pub(crate) fn flood(
        &mut self,
        tool: &str,
        at_a_time: u64,
        calls: u64,
        mut arguments: impl FnMut() -> String,
    ) -> Outcome<Duration> {
        let before = monotonic();
        let first = at_a_time.min(calls);
        for _ in 0..first {
            self.send_call(tool, &arguments())?;
        }
        for answered in 0..calls {
            self.answered()?;
            if first + answered < calls {
                self.send_call(tool, &arguments())?;
            }
        }
        Ok(monotonic().duration_since(before))
    }

    /// Hangs up and waits for the end.
    pub(crate) fn end(mut self) -> Outcome<()> {
        drop(self.input.take());
        self.child.wait()?;
        Ok(())
    }

    /// Ends the process as a crash would.
    pub(crate) fn kill(mut self) -> Outcome<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // One that ended in order is gone already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn params(tool: &str, arguments: &str) -> String {
    format!(r#"{{"name":"{tool}","arguments":{arguments}}}"#)
}

fn text_of(answer: &Value) -> Option<String> {
    let result = answer.get("result")?;
    if result["isError"] == true {
        return None;
    }
    Some(result["content"][0]["text"].as_str()?.to_owned())
}
