//! A stdio MCP server that behaves, or misbehaves as its arguments and its tools say. For the tests of `connection`.
//!
//! `fake_mcp MODE [--log FILE]`. The mode says what goes wrong before a call; the name of the tool that is called says
//! what goes wrong in it. With a log, each line that was read is appended to it as it came.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::value::RawValue;
use serde_json::{Value, json};

#[derive(serde::Deserialize)]
struct Message<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    method: Option<String>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
}

#[derive(serde::Deserialize)]
struct CallParams<'a> {
    name: String,
    #[serde(borrow)]
    arguments: &'a RawValue,
}

struct Server {
    mode: String,
    log: Option<Mutex<File>>,
    children: Mutex<Vec<Child>>,
}

const TOOLS: &[&str] = &[
    "echo",
    "env",
    "slow",
    "held",
    "silent",
    "exit",
    "close_stdout",
    "garbage",
    "twice",
    "other_id",
    "deep",
    "long_line",
    "duplicate_keys",
    "bad_utf8",
    "rpc_error",
    "fail",
    "both",
    "pids",
    "ask_back",
    "list_changed",
    "no_newline",
];

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mode = arguments.next().unwrap_or_else(|| "normal".to_owned());
    let log = arguments.next().filter(|flag| flag == "--log").and(arguments.next()).map(|path| {
        Mutex::new(OpenOptions::new().create(true).append(true).open(path).expect("the log opens"))
    });
    let server = Arc::new(Server { mode, log, children: Mutex::new(Vec::new()) });
    match server.mode.as_str() {
        "die_at_start" => {
            eprint_line("cannot \u{1b}[31mstart\nbecause of reasons");
            std::process::exit(3);
        }
        "chatty_then_dies" => {
            eprint_line(&format!("{}the end", "x".repeat(10_000)));
            std::process::exit(1);
        }
        "greets_with_text" => say("Server ready!"),
        "escapes" => server.start_again("leave_parent"),
        "leave_parent" => {
            rustix::process::setsid().expect("a child leads no group");
            return server.start_again("hold");
        }
        "hold" => return hold(),
        "orphan" => server.start_stubborn_child(false),
        "detached" => server.start_stubborn_child(true),
        _ => {}
    }
    let stdin = std::io::stdin().lock();
    for line in stdin.lines().map_while(Result::ok) {
        if let Some(log) = &server.log {
            writeln!(log.lock().expect("no thread panics"), "{line}").expect("the log is written");
        }
        server.hear(&line);
    }
    if server.mode == "stubborn" {
        loop {
            std::thread::park();
        }
    }
}

/// In a session of its own, below nobody: says so through the pipe that `HOLD` names, and keeps it open.
fn hold() {
    rustix::process::setsid().expect("a child leads no group");
    let path = std::env::var("HOLD").expect("the mode needs a HOLD");
    let mut pipe = OpenOptions::new().write(true).open(path).expect("the pipe opens");
    pipe.write_all(b"x").expect("somebody listens");
    // A test that fails leaves it behind; not for ever.
    std::thread::sleep(Duration::from_secs(100));
    drop(pipe);
}

fn eprint_line(text: &str) {
    writeln!(std::io::stderr(), "{text}").expect("stderr is open");
}

fn say(line: &str) {
    say_bytes(format!("{line}\n").as_bytes());
}

fn say_bytes(bytes: &[u8]) {
    let mut out = std::io::stdout().lock();
    // A reader that hung up is how many of these stories end.
    out.write_all(bytes).and_then(|()| out.flush()).ok();
}

fn result(id: &str, result: impl std::fmt::Display) {
    say(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#));
}

fn text(id: &str, text: &str) {
    result(id, json!({"content": [{"type": "text", "text": text}]}));
}

impl Server {
    /// Starts this program in another mode, with nothing of this one's input and output.
    fn start_again(&self, mode: &str) {
        let program = std::env::current_exe().expect("this program has a path");
        let null = Stdio::null;
        let child = Command::new(program).arg(mode).stdin(null()).stdout(null()).stderr(null()).spawn();
        self.children.lock().expect("no thread panics").push(child.expect("it starts"));
    }

    fn start_stubborn_child(&self, detached: bool) {
        let mut command = Command::new("sh");
        if detached {
            command.process_group(0);
        }
        let child = command
            .args(["-c", "trap '' TERM; exec sleep 1000"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh starts");
        self.children.lock().expect("no thread panics").push(child);
    }

    fn hear(self: &Arc<Self>, line: &str) {
        let message: Message<'_> = serde_json::from_str(line).expect("the client sends JSON");
        let id = message.id.map_or("null", RawValue::get).to_owned();
        match message.method.as_deref() {
            Some("initialize") => self.initialize(&id),
            Some("tools/list") => self.list(&id, message.params.map_or("{}", RawValue::get)),
            Some("tools/call") => {
                let params = message.params.expect("a call has parameters").get().to_owned();
                let server = self.clone();
                std::thread::spawn(move || server.call(&id, &params));
            }
            Some(_) | None => {}
        }
    }

    fn initialize(&self, id: &str) {
        let version = match self.mode.as_str() {
            "mute" => return,
            "refuses" => {
                return say(&format!(
                    r#"{{"id":{id},"error":{{"code":-32000,"message":"not \u001b today"}}}}"#
                ));
            }
            "future" => "2026-07-28",
            "old" => "2024-11-05",
            _ => "2025-11-25",
        };
        result(
            id,
            json!({"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": "fake", "version": "1"}}),
        );
    }

    fn list(&self, id: &str, params: &str) {
        let page: Value = serde_json::from_str(params).expect("parameters are JSON");
        let page = page["cursor"].as_str().unwrap_or("0").to_owned();
        let number: usize = page.parse().unwrap_or(0);
        let tool = |name: &str| json!({"name": name, "description": name, "inputSchema": {"type": "object"}});
        match self.mode.as_str() {
            "mute_at_list" => {}
            "dies_at_list" => {
                eprint_line("out of tools");
                std::process::exit(4);
            }
            "same_cursor" => result(id, json!({"tools": [], "nextCursor": "again"})),
            "endless_pages" => result(id, json!({"tools": [], "nextCursor": (number + 1).to_string()})),
            "hundred_pages" if number < 99 => {
                result(id, json!({"tools": [], "nextCursor": (number + 1).to_string()}));
            }
            "many_tools" => {
                let tools: Vec<Value> = (0..1001).map(|n| tool(&format!("t{n}"))).collect();
                result(id, json!({ "tools": tools }));
            }
            "repeated_tools_key" => result(id, r#"{"tools":[],"tools":[]}"#),
            "two_pages" if number == 0 => {
                let tools: Vec<Value> = TOOLS.iter().map(|name| tool(name)).collect();
                result(id, json!({"tools": tools, "nextCursor": "1"}));
            }
            "two_pages" => result(
                id,
                r#"{"tools":[{"name":"n","inputSchema":{"max":9007199254740993,"v":1.10}}],"nextCursor":""}"#,
            ),
            "changes" => {
                // Another set of tools at each start.
                let marker = std::env::var("MARKER").expect("the mode needs a MARKER");
                let first = OpenOptions::new().create_new(true).write(true).open(marker).is_ok();
                let tools = if first { vec![tool("echo"), tool("exit")] } else { vec![tool("exit")] };
                result(id, json!({ "tools": tools }));
            }
            _ => {
                let tools: Vec<Value> = TOOLS.iter().map(|name| tool(name)).collect();
                result(id, json!({ "tools": tools }));
                if self.mode == "stops_reading" {
                    // This is the thread that reads.
                    loop {
                        std::thread::park();
                    }
                }
            }
        }
    }

    /// Answers a call as its tool's name says. Longer than others, because the tools are read as a list.
    fn call(&self, id: &str, params: &str) {
        let CallParams { name, arguments } = serde_json::from_str(params).expect("call parameters");
        let arguments = arguments.get();
        let values: Value = serde_json::from_str(arguments).expect("arguments are JSON");
        let millis = Duration::from_millis(values["ms"].as_u64().unwrap_or(0));
        let ok = r#"{"content":[]}"#;
        match name.as_str() {
            "echo" => result(id, format!(r#"{{"content":[],"structuredContent":{arguments}}}"#)),
            "env" => {
                let mut names: Vec<String> =
                    std::env::vars().map(|(name, value)| format!("{name}={value}")).collect();
                names.sort();
                text(id, &names.join("\n"));
            }
            "slow" => {
                std::thread::sleep(millis);
                result(id, ok);
            }
            "held" => {
                let until = values["until"].as_str().expect("the file that it waits for");
                while !std::path::Path::new(until).exists() {
                    std::thread::sleep(Duration::from_millis(5));
                }
                result(id, ok);
            }
            "silent" => {}
            "exit" => std::process::exit(7),
            "close_stdout" => {
                // Standard output has no close in Rust: a shell's exec would; ending one's own output is enough here.
                let null = OpenOptions::new().write(true).open("/dev/null").expect("/dev/null opens");
                rustix::stdio::dup2_stdout(&null).expect("stdout is replaced");
            }
            "garbage" => say("Segmentation fault (not really) \u{1b}[0m"),
            "twice" => {
                result(id, ok);
                result(id, r#"{"content":[],"isError":true}"#);
            }
            "other_id" => result("\"not yours\"", ok),
            "deep" => {
                let levels = usize::try_from(values["levels"].as_u64().unwrap_or(300)).unwrap_or(300);
                let deep = format!("{}{}", "[".repeat(levels), "]".repeat(levels));
                result(id, format!(r#"{{"content":[],"structuredContent":{deep}}}"#));
            }
            "long_line" => result(id, json!({"content": [{"type": "text", "text": "x".repeat(20 << 20)}]})),
            "duplicate_keys" => result(id, r#"{"content":[],"isError":true,"isError":false}"#),
            "bad_utf8" => say_bytes(
                format!("{{\"id\":{id},\"result\":{{\"content\":[{{\"type\":\"text\",\"text\":\"")
                    .into_bytes()
                    .into_iter()
                    .chain(*b"\xff\xfe\"}]}}\n")
                    .collect::<Vec<u8>>()
                    .as_slice(),
            ),
            "rpc_error" => {
                say(&format!(
                    r#"{{"id":{id},"error":{{"code":-32602,"message":"no \u001b[2J such\ntool"}}}}"#
                ));
            }
            "fail" => result(id, r#"{"content":[{"type":"text","text":"no money"}],"isError":true}"#),
            "both" => say(&format!(r#"{{"id":{id},"result":{{}},"error":{{"code":1,"message":"m"}}}}"#)),
            "pids" => {
                let children = self.children.lock().expect("no thread panics");
                let pids: Vec<String> = std::iter::once(std::process::id())
                    .chain(children.iter().map(Child::id))
                    .map(|pid| pid.to_string())
                    .collect();
                text(id, &pids.join(" "));
            }
            "ask_back" => {
                say(r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#);
                say(r#"{"jsonrpc":"2.0","id":77,"method":"sampling/createMessage","params":{}}"#);
                result(id, ok);
            }
            "list_changed" => {
                say(r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#);
                result(id, ok);
            }
            "no_newline" => {
                say_bytes(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{ok}}}"#).as_bytes());
                std::process::exit(0);
            }
            other => {
                say(&format!(r#"{{"id":{id},"error":{{"code":-32602,"message":"unknown tool {other}"}}}}"#))
            }
        }
    }
}
