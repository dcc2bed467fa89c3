#!/usr/bin/env python3
"""An MCP server that misbehaves, in one way at a time.

Usage: hostile.py WAY LEDGER. It offers `look` (a read) and `act` (a mutation that appends a line to LEDGER before anything is
answered), and does what WAY says. `fine` misbehaves in no way.
"""
import json
import os
import sys
import time

WAY, LEDGER = sys.argv[1], sys.argv[2]
SCHEMA = {"type": "object", "properties": {"what": {"type": "string"}}, "additionalProperties": False}
TOOLS = [
    {"name": "act", "description": "Do it.", "inputSchema": SCHEMA, "annotations": {"destructiveHint": False}},
    {"name": "look", "description": "Look.", "inputSchema": SCHEMA, "annotations": {"readOnlyHint": True}},
]


def write(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def answer(ident, result):
    write(json.dumps({"jsonrpc": "2.0", "id": ident, "result": result}))


def text(what):
    return {"content": [{"type": "text", "text": what}]}


def listing(ident, cursor):
    page = int(cursor or 0)
    if WAY == "endless pages":
        tools = [dict(TOOLS[0], name="act%d" % page)]
        answer(ident, {"tools": tools, "nextCursor": str(page + 1)})
    elif WAY == "same cursor":
        answer(ident, {"tools": [dict(TOOLS[0], name="act%d" % (page + 1))] if page == 0 else [], "nextCursor": "1"})
    elif WAY == "too many tools":
        answer(ident, {"tools": [dict(TOOLS[0], name="act%d" % i) for i in range(1001)]})
    elif WAY == "same name twice":
        answer(ident, {"tools": TOOLS + [TOOLS[0]]})
    elif WAY == "closes its output":
        os.close(1)
        time.sleep(60)
    elif WAY == "listing never comes":
        pass
    elif WAY == "listing is an error":
        write(json.dumps({"jsonrpc": "2.0", "id": ident, "error": {"code": -32000, "message": "no\x1b[31m tools\ntoday"}}))
    else:
        answer(ident, {"tools": TOOLS})


# Each is told the call's id and what the honest answer is.
CALLS = {
    "garbage before the answer": lambda i, ok: (write("Starting up... 100% {not json"), ok()),
    "answers twice": lambda i, ok: (ok(), ok()),
    "answers another id": lambda i, ok: answer(999999, text("done")),
    "answers a string id": lambda i, ok: answer(str(i), text("done")),
    "result and error": lambda i, ok: write('{"jsonrpc":"2.0","id":%d,"result":%s,"error":{"code":1,"message":"x"}}'
                                            % (i, json.dumps(text("done")))),
    "key twice in the envelope": lambda i, ok: write('{"jsonrpc":"2.0","id":%d,"id":%d,"result":%s}'
                                                     % (i, i, json.dumps(text("done")))),
    "not UTF-8": lambda i, ok: (sys.stdout.buffer.write(b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text",'
                                                        b'"text":"\xff\xfe"}]}}\n' % i), sys.stdout.flush()),
    "content is a number": lambda i, ok: answer(i, {"content": 7}),
    "result is a list": lambda i, ok: answer(i, [1, 2]),
    "a line of twenty megabytes": lambda i, ok: answer(i, text("x" * 20_000_000)),
    "half a line, then nothing": lambda i, ok: (sys.stdout.write('{"jsonrpc":"2.0","id":%d,"res' % i), sys.stdout.flush(),
                                                os.close(1), time.sleep(60)),
    "exits in the call": lambda i, ok: os._exit(7),
    "asks for input": lambda i, ok: answer(i, {"resultType": "input_required", "inputRequests": {}, "requestState": "s"}),
    "a flood of notifications": lambda i, ok: ([write(
        '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"%d"}}' % n)
        for n in range(5000)], ok()),
}


def call(ident, params):
    tool = params.get("name")
    if tool == "act":
        fd = os.open(LEDGER, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(fd, b"acted\n")
        os.fsync(fd)
        os.close(fd)
    honest = lambda: answer(ident, text("done: %s" % tool))
    # A way that spoils every call would hide whether the server can still be used, so `what: well` is always honest.
    if WAY in CALLS and (params.get("arguments") or {}).get("what") != "well":
        CALLS[WAY](ident, honest)
    else:
        honest()


def main():
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message or "method" not in message:
            continue
        ident, method, params = message["id"], message["method"], message.get("params") or {}
        if method == "initialize":
            if WAY == "never answers initialize":
                continue
            if WAY == "garbage at once":
                write("this server prints a banner")
            answer(ident, {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                           "serverInfo": {"name": "hostile", "version": "1"}})
        elif method == "tools/list":
            listing(ident, params.get("cursor"))
        elif method == "tools/call":
            call(ident, params)
        else:
            write(json.dumps({"jsonrpc": "2.0", "id": ident, "error": {"code": -32601, "message": "no such method"}}))


main()
