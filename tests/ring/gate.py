"""What every scene of the ring stands on: a gate in a temporary folder, real servers, real hosts, an operator.

Nothing here knows how Holdpoint is built. The binary is `HOLDPOINT_BIN`, by default `target/debug/holdpoint`; the servers and
hosts are what `tests/ring/install` put into `target/ring` (or the folder that `RING` names).
"""
import json
import os
import queue
import signal
import subprocess
import sys
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tests", "compare"))

from mcp_host import Host  # noqa: E402  (the path above comes first)
from program import Program, run  # noqa: E402

BINARY = os.path.abspath(os.environ.get("HOLDPOINT_BIN", os.path.join(ROOT, "target", "debug", "holdpoint")))
RING = os.path.abspath(os.environ.get("RING", os.path.join(ROOT, "target", "ring")))
PROGRAM = Program.parse("holdpoint=" + BINARY)
NPM = os.path.join(RING, "npm")


class Broken(Exception):
    """A scene did not go as it must."""


def expect(condition, sentence, *seen):
    if not condition:
        raise Broken(sentence + ("; seen: " + ", ".join(repr(s)[:600] for s in seen) if seen else ""))


def node_server(name, *arguments):
    return ["node", os.path.join(NPM, "node_modules", "@modelcontextprotocol", name, "dist", "index.js"), *arguments]


def python_server(module, *arguments):
    return [os.path.join(RING, "servers", "bin", "python"), "-m", module, *arguments]


def behind_tee(log, command, stubborn=False):
    return [sys.executable, os.path.join(HERE, "tee.py"), log] + (["--stubborn"] if stubborn else []) + ["--"] + command


READ, TIMEOUT = {"side_effect": "read_only"}, "30s"
FILES_RULES = {
    "read_text_file": READ,
    "list_directory": READ,
    # The server says of itself that writing destroys; the operator knows the folder and says otherwise.
    "write_file": {"side_effect": "local_mutation", "outcome": "require_approval", "allow_hint_mismatch": True},
}


def server(name, command, rules, **more):
    entry = {"name": name, "command": command, "default_timeout": TIMEOUT, "manifest": name + ".manifest.json",
             "rules": rules}
    entry.update(more)
    return entry


# Every gate that was made, so that what a failed scene left running can be ended.
GATES = []


class Gate:
    """A configured, pinned gate. Its own files are in one folder, what the servers may touch in another."""

    def __init__(self, root, servers, **settings):
        self.root = root
        self.folder, self.outside = os.path.join(root, "gate"), os.path.join(root, "outside")
        for folder in (self.folder, self.outside):
            os.makedirs(folder, mode=0o700, exist_ok=True)
        self.config = os.path.join(self.folder, "config.json")
        self.database = os.path.join(self.folder, "gate.db")
        self.hosts = []
        GATES.append(self)
        servers = servers(self) if callable(servers) else servers
        for entry in servers:
            entry["env"] = ["RING_MARK=%s" % root]
        config = {"database": "gate.db", "session": "ring", "hold": "0s", "servers": servers}
        config.update(settings)
        with open(self.config, "w", encoding="utf-8") as f:
            json.dump(config, f, indent=2)
        os.chmod(self.config, 0o600)
        run(PROGRAM.pin(self.config), seconds=120)

    def outside_file(self, name):
        return os.path.join(self.outside, name)

    def argv(self):
        return PROGRAM.serve(self.config)

    def host(self, **how):
        """A host of ours, in front of the gate."""
        host = Host(self.argv(), os.path.join(self.root, "stderr-%d" % len(self.hosts)), **how)
        self.hosts.append(host)
        return host

    def operate(self, *command):
        return json.loads(run(PROGRAM.operate(self.database, *command)))

    def pending(self):
        """The waiting run and its approval, learnt as an operator would learn them."""
        for entry in self.operate("runs")["runs"]:
            if entry.get("pending_approval_id"):
                return entry["id"], entry["pending_approval_id"]
        raise Broken("the operator sees nothing that waits")

    def decide(self, verdict):
        run_id, approval = self.pending()
        self.operate(verdict, run_id, "--approval", approval, "--by", "me", "--yes")
        return run_id

    def starts(self, run_id):
        """How many times a run's tool was started, by the record."""
        lines = run(PROGRAM.operate(self.database, "events", run_id)).splitlines()
        return sum(json.loads(line)["type"] == "step.tool_started" for line in lines)

    def intact(self):
        expect(self.operate("verify")["intact"] is True, "the record's chain must be intact")

    def processes(self):
        """Every process that this gate's servers are, by the mark in its environment: (pid, start time)."""
        return marked(self.root)


def abandon(root):
    """Ends whatever the scene in this folder started and did not end: its hosts, and its servers by their mark."""
    for gate in [g for g in GATES if g.root.startswith(root)]:
        for host in gate.hosts:
            if host.process.poll() is None:
                host.kill()
        for pid, _ in gate.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def marked(root):
    """Processes whose environment has this gate's mark, zombies left out."""
    found, needle = set(), ("RING_MARK=%s" % root).encode()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/environ" % pid, "rb") as f:
                if needle not in f.read().split(b"\0"):
                    continue
            with open("/proc/%s/stat" % pid) as f:
                fields = f.read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if fields[0] != "Z":
            found.add((int(pid), fields[19]))
    return found


class RealHost:
    """A host that we did not write, behind its small driver: orders go in as lines, answers come out as lines."""

    def __init__(self, driver, argv, stderr_path):
        self._stderr = open(stderr_path, "ab")
        self.stderr_path = stderr_path
        self.process = subprocess.Popen(driver + argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr)
        self.lines = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def order(self, **what):
        self.process.stdin.write(json.dumps(what).encode() + b"\n")
        self.process.stdin.flush()
        try:
            line = self.lines.get(timeout=90)
        except queue.Empty:
            raise Broken("the host gave no answer in 90 s") from None
        if line is None:
            with open(self.stderr_path, encoding="utf-8", errors="replace") as f:
                raise Broken("the host ended: " + f.read()[-800:])
        answer = json.loads(line)
        expect("failure" not in answer, "the host must not fail", answer)
        return answer

    def tools(self):
        return self.order(op="list")["tools"]

    def call(self, tool, **arguments):
        return self.order(op="call", tool=tool, arguments=arguments)

    def close(self):
        self.process.stdin.close()
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise Broken("the host did not end when its input did") from None
        finally:
            self._stderr.close()


def venv(name):
    return os.path.join(RING, name, "bin", "python")


def driver(name):
    return os.path.join(HERE, "hosts", name)


REAL_HOSTS = {
    "Python SDK 1.30": [venv("mcp1"), driver("python_sdk.py")],
    "Python SDK 2.3": [venv("mcp2"), driver("python_sdk.py")],
    "fastmcp": [venv("fastmcp"), driver("fastmcp_host.py")],
    "TypeScript SDK": ["node", driver("typescript_sdk.mjs"), NPM],
    "inspector": [sys.executable, driver("inspector.py"), NPM],
}
