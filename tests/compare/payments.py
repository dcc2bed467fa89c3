#!/usr/bin/env python3
"""A payment server that is not real: the upstream of the comparison, over stdio.

It speaks just enough MCP to be pinned and called, with no library, and shares no code with the programs under test.
Tools: `balance` (a read that says so), `pay` (not destructive, by its own word), `refund` (claims nothing).

Each payment appends one line to the ledger and syncs it before anything is answered, so that counting lines counts
effects. The `mode` argument of a payment chooses what happens after the effect:

  slow        waits two seconds, then answers
  block       waits until the file `<ledger>.release` exists, then answers
  error       answers with `isError`
  structured  answers with structured content
  deep        answers with structured content nested past the 256 levels that a runtime records
  exit        ends this process without answering
  silent      never answers
"""
import argparse
import json
import os
import sys
import threading
import time

TEXT = {"type": "string"}
MODES = ["slow", "block", "error", "structured", "deep", "exit", "silent"]


def schema(properties, required):
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


TOOLS = [
    {
        "name": "balance",
        "description": "Tell what an account holds.",
        "inputSchema": schema({"account": TEXT}, ["account"]),
        "annotations": {"readOnlyHint": True},
    },
    {
        "name": "pay",
        "description": "Pay somebody.",
        "inputSchema": schema(
            {"to": TEXT, "amount": {"type": "number"}, "currency": TEXT, "mode": {"type": "string", "enum": MODES}},
            ["to", "amount"],
        ),
        "annotations": {"destructiveHint": False},
    },
    {
        "name": "refund",
        "description": "Give a payment back.",
        "inputSchema": schema({"payment": TEXT}, ["payment"]),
    },
]


class Server:
    """Reads requests from standard input; each call is answered from a thread of its own."""

    def __init__(self, ledger):
        self.ledger = ledger
        self.lock = threading.Lock()

    def send(self, message):
        line = json.dumps(message, separators=(",", ":")) + "\n"
        with self.lock:
            sys.stdout.write(line)
            sys.stdout.flush()

    def answer(self, ident, result):
        self.send({"jsonrpc": "2.0", "id": ident, "result": result})

    def serve(self):
        for line in sys.stdin:
            if not line.strip():
                continue
            message = json.loads(line)
            if "method" not in message or "id" not in message:
                continue
            self.handle(message["id"], message["method"], message.get("params") or {}, line)

    def handle(self, ident, method, params, line):
        if method == "initialize":
            self.answer(ident, {
                "protocolVersion": params.get("protocolVersion", "2025-06-18"),
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "payments-by-nobody", "version": "1.0.0"},
            })
        elif method == "ping":
            self.answer(ident, {})
        elif method == "tools/list":
            self.answer(ident, {"tools": TOOLS})
        elif method == "tools/call":
            threading.Thread(target=self.call, args=(ident, params, line), daemon=True).start()
        else:
            error = {"code": -32601, "message": "no such method"}
            self.send({"jsonrpc": "2.0", "id": ident, "error": error})

    def call(self, ident, params, line):
        tool, arguments = params.get("name"), params.get("arguments") or {}
        if tool == "balance":
            self.answer(ident, text("account %s holds 120.00 EUR" % arguments.get("account")))
        elif tool == "refund":
            self.append(tool, arguments)
            self.answer(ident, text("refunded"))
        elif tool == "pay":
            self.pay(ident, arguments)
        else:
            error = {"code": -32602, "message": "no such tool"}
            self.send({"jsonrpc": "2.0", "id": ident, "error": error})

    def pay(self, ident, arguments):
        to, amount, mode = arguments["to"], arguments["amount"], arguments.get("mode")
        self.append("pay", arguments)
        if mode == "slow":
            time.sleep(2)
        elif mode == "block":
            while not os.path.exists(self.ledger + ".release"):
                time.sleep(0.01)
        elif mode == "exit":
            os._exit(3)
        elif mode == "silent":
            return
        if mode == "error":
            self.answer(ident, dict(text("the card was declined by %s" % to), isError=True))
        elif mode == "structured":
            result = text("paid %s to %s" % (amount, to))
            result["structuredContent"] = {"to": to, "paid": amount}
            self.answer(ident, result)
        elif mode == "deep":
            nested = amount
            for _ in range(300):
                nested = [nested]
            self.answer(ident, dict(text("paid, at depth"), structuredContent={"nested": nested}))
        else:
            self.answer(ident, text("paid %s to %s" % (amount, to)))

    def append(self, tool, arguments):
        line = json.dumps({"tool": tool, "arguments": arguments}, sort_keys=True) + "\n"
        with self.lock:
            fd = os.open(self.ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(fd, line.encode())
                os.fsync(fd)
            finally:
                os.close(fd)


def text(what):
    return {"content": [{"type": "text", "text": what}]}


def main():
    parser = argparse.ArgumentParser(description="a payment server that is not real")
    parser.add_argument("--ledger", default=os.environ.get("PAYMENTS_LEDGER"), help="file that each payment appends to")
    options = parser.parse_args()
    if not options.ledger:
        parser.error("--ledger is required")
    Server(options.ledger).serve()


if __name__ == "__main__":
    main()
