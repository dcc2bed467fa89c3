"""A host made of the inspector's command line: one process a request, so every request meets a proxy just started.

Usage: python3 inspector.py FOLDER_WITH_NODE_MODULES COMMAND [ARGUMENT...]; it obeys the lines on standard input:
{"op":"list"} and {"op":"call","tool":NAME,"arguments":OBJECT}, one JSON answer a line. The inspector reads which server to
start from a file, because its own options would swallow those of the command.
"""
import json
import os
import subprocess
import sys
import tempfile

folder, command, arguments = sys.argv[1], sys.argv[2], sys.argv[3:]
INSPECTOR = os.path.join(os.path.abspath(folder), "node_modules", ".bin", "mcp-inspector")


def inspect(config, *words):
    argv = [INSPECTOR, "--cli", "--config", config, "--server", "gate"] + list(words)
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=90)
    out = done.stdout.decode("utf-8", "replace")
    try:
        return json.loads(out)
    except ValueError:
        raise RuntimeError("status %d: %s %s" % (done.returncode, out[-300:], done.stderr.decode()[-600:])) from None


def obey(config, order):
    if order["op"] == "list":
        return {"tools": [tool["name"] for tool in inspect(config, "--method", "tools/list")["tools"]]}
    pairs = [word for k, v in order["arguments"].items()
             for word in ("--tool-arg", "%s=%s" % (k, v if isinstance(v, str) else json.dumps(v)))]
    result = inspect(config, "--method", "tools/call", "--tool-name", order["tool"], *pairs)
    return {
        "text": "\n".join(block["text"] for block in result.get("content", []) if block["type"] == "text"),
        "is_error": bool(result.get("isError", False)),
        "structured": result.get("structuredContent"),
    }


with tempfile.TemporaryDirectory() as home:
    config = os.path.join(home, "servers.json")
    with open(config, "w", encoding="utf-8") as f:
        json.dump({"mcpServers": {"gate": {"type": "stdio", "command": command, "args": arguments}}}, f)
    for line in sys.stdin:
        try:
            answer = obey(config, json.loads(line))
        except Exception as error:
            answer = {"failure": "%s: %s" % (type(error).__name__, error)}
        print(json.dumps(answer), flush=True)
