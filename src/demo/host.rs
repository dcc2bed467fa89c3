//! A scripted MCP host: what an agent's program is to the gate, without an agent.
//!
//! Owns one conversation over a child's stdio. It never retries and never guesses, keeps what should not have come, and
//! shares no code with the proxy: what the two agree on is the protocol.

use std::collections::HashMap;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use holdpoint_actors::clock::monotonic;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{ChildStdin, ChildStdout, Command};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::error::{Error, ensure};
use super::process::Running;

/// How long an answer is waited for where the story has nothing to say about it.
const PATIENCE: Duration = Duration::from_secs(20);
/// The most bytes that are read of one conversation.
const OUTPUT_BYTES_MAX: u64 = 16 * 1_024 * 1_024;

/// A conversation with one program.
#[derive(Debug)]
pub(super) struct Host {
    who: String,
    process: Running,
    input: ChildStdin,
    last_id: u64,
    heard: Arc<Mutex<Heard>>,
}

#[derive(Debug, Default)]
struct Heard {
    /// Who waits for which answer.
    waiting: HashMap<u64, oneshot::Sender<Message>>,
    /// Lines that are no answer to anything.
    strays: Vec<String>,
    /// Whether the program's output has ended.
    ended: bool,
}

#[derive(Debug, Deserialize)]
struct Message {
    jsonrpc: String,
    id: Option<u64>,
    method: Option<String>,
    result: Option<Value>,
    error: Option<Value>,
}

/// A call that was sent.
#[derive(Debug)]
pub(super) struct Sent {
    id: u64,
    at: Instant,
    answer: oneshot::Receiver<Message>,
}

/// What a host is told by a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    /// Its text.
    pub(super) text: String,
    /// Whether it is an error to the model.
    pub(super) is_error: bool,
    /// How long it took.
    pub(super) took: Duration,
}

impl Answer {
    fn of(message: &Message, took: Duration) -> Answer {
        let Some(result) = &message.result else {
            let error = message.error.clone().unwrap_or_default();
            return Answer { text: format!("protocol error {error}"), is_error: true, took };
        };
        let contents = result["content"].as_array().map(Vec::as_slice).unwrap_or_default();
        let texts: Vec<&str> = contents.iter().filter_map(|content| content["text"].as_str()).collect();
        Answer { text: texts.join("\n"), is_error: result["isError"] == true, took }
    }

    /// The gate's own word at its beginning, and what follows; `None` for a tool's result.
    pub(super) fn verdict(&self) -> Option<(&str, &str)> {
        let (word, rest) = self.text.split_once(": ")?;
        let is_word = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_');
        is_word.then_some((word, rest))
    }

    /// Whether it begins with the gate's word.
    pub(super) fn is(&self, word: &str) -> bool {
        self.verdict().is_some_and(|(found, _)| found == word)
    }

    /// The approval that it names.
    pub(super) fn approval(&self) -> Option<&str> {
        let is_id = |word: &&str| word.len() == 32 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        self.text.split(|c: char| !c.is_ascii_alphanumeric()).find(is_id)
    }
}

impl Host {
    /// Starts a program and greets it.
    pub(super) async fn greet(command: Command, who: &str) -> Result<Host, Error> {
        let who = who.to_owned();
        let (process, input, output) =
            Running::start(command).map_err(|source| Error::Process { who: who.clone(), source })?;
        let heard = Arc::new(Mutex::new(Heard::default()));
        tokio::spawn(listen(output, Arc::clone(&heard)));
        let mut host = Host { who, process, input, last_id: 0, heard };
        let greeting = json!({
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "demonstration", "version": env!("CARGO_PKG_VERSION")},
        });
        host.ask("initialize", &greeting).await?;
        host.write(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await?;
        Ok(host)
    }

    /// The process's id.
    pub(super) fn process_id(&self) -> u32 {
        self.process.id()
    }

    /// The names of the tools that are offered.
    pub(super) async fn tools(&mut self) -> Result<Vec<String>, Error> {
        let listing = self.ask("tools/list", &json!({})).await?;
        let tools = listing["tools"].as_array().map(Vec::as_slice).unwrap_or_default();
        Ok(tools.iter().filter_map(|tool| tool["name"].as_str()).map(str::to_owned).collect())
    }

    /// Sends a call and does not wait.
    pub(super) async fn send(&mut self, tool: &str, arguments: &Value) -> Result<Sent, Error> {
        self.request("tools/call", &json!({"name": tool, "arguments": arguments})).await
    }

    /// Sends a call and waits for its answer.
    pub(super) async fn call(&mut self, tool: &str, arguments: &Value) -> Result<Answer, Error> {
        let sent = self.send(tool, arguments).await?;
        self.answer(sent).await
    }

    /// Waits for the answer to a call.
    pub(super) async fn answer(&mut self, mut sent: Sent) -> Result<Answer, Error> {
        let within = PATIENCE;
        let answer = self.answer_within(&mut sent, within).await?;
        answer.ok_or_else(|| Error::Silent { who: self.who.clone(), within })
    }

    /// Waits for the answer to a call for some time; `None` when that has passed.
    pub(super) async fn answer_within(
        &self,
        sent: &mut Sent,
        patience: Duration,
    ) -> Result<Option<Answer>, Error> {
        match timeout(patience, &mut sent.answer).await {
            Ok(Ok(message)) => Ok(Some(Answer::of(&message, monotonic() - sent.at))),
            Ok(Err(_)) => Err(Error::Gone { who: self.who.clone() }),
            Err(_) => Ok(None),
        }
    }

    /// Gives a call up, as a host does whose patience has run out.
    pub(super) async fn give_up(&mut self, sent: Sent) -> Result<(), Error> {
        let params = json!({"requestId": sent.id, "reason": "no answer in time"});
        self.write(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})).await
    }

    /// Leaves as a host does: its end of the pipe goes. Returns how the program ended.
    pub(super) async fn leave(mut self) -> Result<ExitStatus, Error> {
        drop(self.input);
        let Some(status) = self.process.ends_within(PATIENCE).await else {
            return Err(Error::Silent { who: self.who, within: PATIENCE });
        };
        let heard = lock(&self.heard);
        let stray = heard.strays.first();
        ensure(stray.is_none(), || format!("{} wrote what is no protocol: {stray:?}", self.who))?;
        Ok(status)
    }

    async fn ask(&mut self, method: &str, params: &Value) -> Result<Value, Error> {
        let mut sent = self.request(method, params).await?;
        let within = PATIENCE;
        match timeout(within, &mut sent.answer).await {
            Ok(Ok(Message { result: Some(result), .. })) => Ok(result),
            Ok(Ok(refused)) => {
                let why = refused.error.unwrap_or_default();
                Err(Error::NotAsTold(format!("{} refused {method}: {why}", self.who)))
            }
            Ok(Err(_)) => Err(Error::Gone { who: self.who.clone() }),
            Err(_) => Err(Error::Silent { who: self.who.clone(), within }),
        }
    }

    async fn request(&mut self, method: &str, params: &Value) -> Result<Sent, Error> {
        self.last_id += 1;
        let id = self.last_id;
        let (sender, answer) = oneshot::channel();
        {
            let mut heard = lock(&self.heard);
            if heard.ended {
                return Err(Error::Gone { who: self.who.clone() });
            }
            heard.waiting.insert(id, sender);
        }
        let sent = Sent { id, at: monotonic(), answer };
        self.write(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).await?;
        Ok(sent)
    }

    async fn write(&mut self, message: &Value) -> Result<(), Error> {
        let line = format!("{message}\n");
        let written = self.input.write_all(line.as_bytes()).await;
        written.map_err(|source| Error::Process { who: self.who.clone(), source })
    }
}

/// Hands each answer to whoever waits for it, until the output ends.
async fn listen(output: ChildStdout, heard: Arc<Mutex<Heard>>) {
    let mut lines = BufReader::new(output.take(OUTPUT_BYTES_MAX)).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        lock(&heard).take(line);
    }
    let mut heard = lock(&heard);
    heard.ended = true;
    heard.waiting.clear();
}

impl Heard {
    fn take(&mut self, line: String) {
        match serde_json::from_str::<Message>(&line) {
            // Progress, and whatever else a server may say without being asked.
            Ok(Message { method: Some(_), jsonrpc, .. }) if jsonrpc == "2.0" => {}
            Ok(message) if message.jsonrpc == "2.0" => {
                let waiting = message.id.and_then(|id| self.waiting.remove(&id));
                match waiting {
                    // A call that was given up has nobody waiting, and its late answer is no news.
                    Some(sender) => drop(sender.send(message)),
                    None => self.strays.push(line),
                }
            }
            Ok(_) | Err(_) => self.strays.push(line),
        }
    }
}

fn lock(heard: &Mutex<Heard>) -> MutexGuard<'_, Heard> {
    heard.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: &str) -> Answer {
        Answer { text: text.to_owned(), is_error: false, took: Duration::ZERO }
    }

    #[test]
    fn a_verdict_is_a_word_in_capitals_and_a_result_has_none() {
        let found = answer("PENDING_APPROVAL: wait: please");
        assert_eq!(found.verdict(), Some(("PENDING_APPROVAL", "wait: please")));
        assert!(found.is("PENDING_APPROVAL") && !found.is("PENDING"));
        for text in ["paid 40 to alice", "note: NO", ": ", ""] {
            assert_eq!(answer(text).verdict(), None, "{text}");
        }
    }

    #[test]
    fn an_approval_is_found_by_its_form() {
        let id = "0123456789abcdef0123456789abcdef";
        assert_eq!(answer(&format!("PENDING_APPROVAL: (approval {id}).")).approval(), Some(id));
        assert_eq!(answer("PENDING_APPROVAL: approval 0123.").approval(), None);
    }

    #[test]
    fn what_is_no_answer_to_a_question_is_kept() {
        let mut heard = Heard::default();
        let (sender, mut receiver) = oneshot::channel();
        heard.waiting.insert(1, sender);
        for line in [
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"hello"}]}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
            "listening on port 80",
            r#"{"jsonrpc":"1.0","id":2,"result":{}}"#,
        ] {
            heard.take(line.to_owned());
        }
        assert_eq!(Answer::of(&receiver.try_recv().unwrap(), Duration::ZERO), answer("hello"));
        assert_eq!(heard.strays.len(), 3, "{:?}", heard.strays);
    }
}
