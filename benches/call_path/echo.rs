//! The server behind every arm: it answers at once, with the moment at which it was asked. It keeps nothing.

use std::io::{BufRead, Write};

use holdpoint_actors::clock::wall;
use serde_json::{Value, json};

use crate::Outcome;

/// Serves until its input ends.
pub(crate) fn serve() -> Outcome<()> {
    let (input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
    for line in input.lines() {
        let request: Value = serde_json::from_str(&line?)?;
        let Some(id) = request.get("id") else { continue };
        let result = match request["method"].as_str().unwrap_or_default() {
            "initialize" => json!({
                "protocolVersion": request["params"]["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "echo", "version": "1"},
            }),
            "tools/list" => json!({"tools": tools()}),
            // What it does is cut off, each time.
            "tools/call" if request["params"]["name"] == "stall" => continue,
            "tools/call" => json!({"content": [{"type": "text", "text": wall().as_nanos().to_string()}]}),
            _ => json!({}),
        };
        writeln!(output, "{}", json!({"jsonrpc": "2.0", "id": id, "result": result}))?;
        output.flush()?;
    }
    Ok(())
}

fn tools() -> Value {
    let schema = json!({
        "type": "object",
        "properties": {"to": {"type": "string"}, "n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": false,
    });
    let tool = |name: &str, reads: bool| {
        json!({
            "name": name,
            "description": "Answers with the time.",
            "inputSchema": schema,
            "annotations": {"readOnlyHint": reads, "destructiveHint": false},
        })
    };
    json!([tool("look", true), tool("put", false), tool("wire", false), tool("stall", false)])
}
