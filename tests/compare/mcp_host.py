"""An MCP host over stdio, in the standard library alone.

It starts a program, speaks JSON-RPC to it line by line, and keeps everything that came back, including what should
not have: a line on standard output that is no JSON-RPC is a finding, not noise. It never retries and never guesses.
The comparison and the ring both drive programs through it.
"""
import json
import os
import queue
import re
import signal
import subprocess
import threading
import time

# The thirteen prefixes of an answer; a text that starts with none of them is a result.
PREFIXES = [
    "PENDING_APPROVAL", "IN_PROGRESS", "INTERRUPTED", "UNKNOWN_OUTCOME", "UNRECORDED", "DENIED", "INVALID",
    "REJECTED", "EXPIRED", "DUPLICATE", "BLOCKED", "UNAVAILABLE", "GATE_STATUS",
]
_PREFIX = re.compile(r"^(%s): " % "|".join(PREFIXES))
DEFAULT_WAIT = 20.0


class HostError(Exception):
    """The program broke the protocol, ended, or did not answer in time."""


class Answer:
    """What a host is told by one `tools/call`."""

    def __init__(self, message):
        self.message = message
        self.error = message.get("error")
        result = message.get("result") or {}
        self.is_error = bool(result.get("isError", False))
        self.texts = [c.get("text", "") for c in result.get("content", []) if c.get("type") == "text"]
        self.text = "\n".join(self.texts)
        self.structured = result.get("structuredContent")
        found = _PREFIX.match(self.text)
        self.prefix = found.group(1) if found else ("PROTOCOL_ERROR" if self.error else "RESULT")

    def __repr__(self):
        return "<%s%s %r>" % (self.prefix, " isError" if self.is_error else "", (self.error or self.text)[:200])


class Pending:
    """A request on its way: its id, and the queue its answer comes to."""

    def __init__(self, host, ident):
        self.host, self.ident, self.queue, self.sent = host, ident, queue.Queue(), time.monotonic()

    def wait(self, seconds=DEFAULT_WAIT):
        try:
            message = self.queue.get(timeout=seconds)
        except queue.Empty:
            raise HostError("no answer within %.1f s; stderr: %s" % (seconds, self.host.stderr()[-1500:])) from None
        if message is None:
            raise HostError("the program ended without answering; stderr: %s" % self.host.stderr()[-1500:])
        return message

    def answer(self, seconds=DEFAULT_WAIT):
        return Answer(self.wait(seconds))


class Host:
    """One running program and the conversation with it."""

    def __init__(self, argv, stderr_path, env=None, cwd=None, capabilities=None, name="a-host", version="2025-06-18"):
        self.stderr_path = stderr_path
        self._stderr = open(stderr_path, "ab")
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, env=env, cwd=cwd)
        self.pending, self.notifications, self.violations = {}, [], []
        self.complaints = []  # errors about a line whose id could not be told, which JSON-RPC allows
        self._next, self._lock, self._changed = 0, threading.Lock(), threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._greet(capabilities or {}, name, version)

    def _greet(self, capabilities, name, version):
        params = {"protocolVersion": version, "capabilities": capabilities, "clientInfo": {"name": name, "version": "1"}}
        message = self.request("initialize", params).wait()
        if "result" not in message:
            raise HostError("initialize was refused: %s" % message.get("error"))
        self.initialized = message["result"]
        self.notify("notifications/initialized")

    # What goes out.

    def send_raw(self, line):
        try:
            with self._lock:
                self.process.stdin.write(line.encode() + b"\n")
                self.process.stdin.flush()
        except (OSError, ValueError) as error:
            raise HostError("it no longer listens (%s); stderr: %s" % (error, self.stderr()[-1500:])) from None

    def notify(self, method, params=None):
        message = {"jsonrpc": "2.0", "method": method}
        if params is not None:
            message["params"] = params
        self.send_raw(json.dumps(message))

    def _new(self):
        with self._lock:
            self._next += 1
            waiting = Pending(self, self._next)
            self.pending[waiting.ident] = waiting
        if self._ended:
            waiting.queue.put(None)
        return waiting

    def request(self, method, params=None):
        waiting = self._new()
        message = {"jsonrpc": "2.0", "id": waiting.ident, "method": method}
        if params is not None:
            message["params"] = params
        self.send_raw(json.dumps(message))
        return waiting

    def start(self, tool, arguments=None, raw=None, token=None):
        """Sends a call and does not wait. `raw` is the arguments' JSON text, sent byte for byte."""
        waiting = self._new()
        text = raw if raw is not None else json.dumps({} if arguments is None else arguments)
        meta = "" if token is None else ',"_meta":{"progressToken":%s}' % json.dumps(token)
        self.send_raw('{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%s,"arguments":%s%s}}'
                      % (waiting.ident, json.dumps(tool), text, meta))
        return waiting

    def call(self, tool, arguments=None, seconds=DEFAULT_WAIT, **how):
        return self.start(tool, arguments, **how).answer(seconds)

    def cancel(self, waiting, reason="the host gave up"):
        self.notify("notifications/cancelled", {"requestId": waiting.ident, "reason": reason})

    def tools(self):
        found, cursor = [], None
        for _ in range(20):
            message = self.request("tools/list", {"cursor": cursor} if cursor else {}).wait(60)
            if "result" not in message:
                raise HostError("tools/list was refused: %s" % message.get("error"))
            found += message["result"]["tools"]
            cursor = message["result"].get("nextCursor")
            if not cursor:
                return found
        raise HostError("tools/list has no end")

    # What comes in.

    def _read(self):
        for line in self.process.stdout:
            try:
                message = json.loads(line)
                assert isinstance(message, dict) and message.get("jsonrpc") == "2.0"
            except (ValueError, AssertionError, RecursionError):
                self.violations.append(line[:300])
                continue
            self._take(message)
        self._ended = True
        for waiting in list(self.pending.values()):
            waiting.queue.put(None)

    def _take(self, message):
        if "method" in message and "id" in message:
            self._asked(message)
        elif "method" in message:
            with self._changed:
                self.notifications.append(message)
                self._changed.notify_all()
        elif message.get("id") is None and "error" in message:
            self.complaints.append(message)
        else:
            waiting = self.pending.get(message.get("id"))
            if waiting is None or not waiting.queue.empty():
                self.violations.append(b"an answer to nothing that was asked: " + json.dumps(message)[:300].encode())
            else:
                waiting.queue.put(message)

    def _asked(self, message):
        reply = {"jsonrpc": "2.0", "id": message["id"]}
        if message["method"] == "ping":
            reply["result"] = {}
        else:
            reply["error"] = {"code": -32601, "message": "this host offers nothing"}
        try:
            self.send_raw(json.dumps(reply))
        except HostError:
            pass  # the conversation ended while it was asked

    def progress(self, token, seconds):
        """Waits for the first progress notification of a token; `None` when there was none in time."""
        end = time.monotonic() + seconds
        with self._changed:
            while True:
                for n in self.notifications:
                    if n["method"] == "notifications/progress" and n["params"].get("progressToken") == token:
                        return n["params"]
                left = end - time.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(left)

    # How it ends.

    def stderr(self):
        with open(self.stderr_path, "rb") as f:
            return f.read().decode("utf-8", "replace")

    def close(self, seconds=15.0):
        """Closes standard input, as a host that leaves does, and returns the exit status."""
        try:
            self.process.stdin.close()
        except OSError:
            pass
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise HostError("still running %.0f s after its input ended; stderr: %s"
                            % (seconds, self.stderr()[-1500:])) from None
        self._reader.join(5)
        self._stderr.close()
        return status

    def kill(self):
        """SIGKILL, and nothing else: what a crash is."""
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(10)
        self._reader.join(5)
        self._stderr.close()
