"""A program under comparison, and the small world a scenario gives it.

Two dialects of the same commands are known: ours (`holdpoint proxy --config F`) and the reference's
(`agentrt-proxy -config F`, with `agentrt` as the operator's command). Everything else is the same for both.
"""
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import time

from mcp_host import Host, HostError

HERE = os.path.dirname(os.path.abspath(__file__))
BASE_RULES = {
    "balance": {"side_effect": "read_only"},
    "pay": {"side_effect": "remote_mutation"},
    "refund": {"side_effect": "destructive"},
}


class Program:
    """How to start the proxy and how to be its operator."""

    def __init__(self, name, proxy, operator, dashes):
        self.name, self.proxy, self.operator, self.dashes = name, proxy, operator, dashes

    @classmethod
    def parse(cls, text):
        """`holdpoint=PATH` or `agentrt=PROXY,OPERATOR`; a bare path is holdpoint's."""
        dialect, _, where = text.partition("=")
        if not where:
            dialect, where = "holdpoint", text
        if dialect == "holdpoint":
            return cls(dialect, [os.path.abspath(where)], [os.path.abspath(where)], "--")
        if dialect == "agentrt":
            proxy, _, operator = where.partition(",")
            return cls(dialect, [proxy], [operator or "agentrt"], "-")
        raise SystemExit("unknown dialect %r: say holdpoint=PATH or agentrt=PROXY,OPERATOR" % dialect)

    def with_operator(self, other):
        """This program's proxy under the other's operator command."""
        crossed = Program("%s, operated by %s" % (self.name, other.name), self.proxy, other.operator, self.dashes)
        crossed.operator_dashes = other.operator_flavour()
        return crossed

    def operator_flavour(self):
        return getattr(self, "operator_dashes", self.dashes)

    def serve(self, config):
        if self.dashes == "--":
            return self.proxy + ["proxy", "--config", config]
        return self.proxy + ["-config", config]

    def pin(self, config):
        if self.dashes == "--":
            return self.proxy + ["pin", "--config", config, "--yes"]
        return self.proxy + ["pin", "-config", config]

    def operate(self, database, *command):
        d = self.operator_flavour()
        words = [re.sub(r"^--", d, w) for w in command]
        return self.operator + [d + "db", database, d + "json"] + words


def run(argv, env=None, seconds=60, codes=(0,)):
    """Runs a command that must end by itself with one of `codes`, and returns its standard output."""
    done = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds)
    if done.returncode not in codes:
        raise HostError("%s ended with %d: %s%s" % (
            " ".join(argv), done.returncode, done.stdout.decode("utf-8", "replace")[-800:],
            done.stderr.decode("utf-8", "replace")[-1500:]))
    return done.stdout.decode("utf-8", "replace")


def until(what, seconds, look):
    """Looks until `look()` is true and returns that; fails by name when time is up."""
    end = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > end:
            raise HostError("waited %.1f s for: %s" % (seconds, what))
        time.sleep(0.02)


class World:
    """One scenario's folder: the gate's files in one place, the ledger in another, and the hosts it started."""

    def __init__(self, program, root):
        self.program, self.root = program, root
        self.gate = os.path.join(root, "gate")
        self.outside = os.path.join(root, "outside")
        for folder in (self.gate, self.outside):
            os.makedirs(folder, mode=0o700)
        self.config = os.path.join(self.gate, "config.json")
        self.database = os.path.join(self.gate, "gate.db")
        self.ledger = os.path.join(self.outside, "ledger")
        self.hosts, self.answers, self.facts = [], [], {}
        self.pinned = False

    # Setting up.

    def configure(self, rules=None, **settings):
        """Writes the configuration; `rules` changes single tools' rules, `settings` top-level keys."""
        merged = {tool: dict(rule) for tool, rule in BASE_RULES.items()}
        for tool, rule in (rules or {}).items():
            merged[tool].update(rule)
        config = {
            "database": "gate.db",
            "session": "compare",
            "hold": "0s",
            "servers": [{
                "name": "bank",
                "command": [sys.executable, os.path.join(HERE, "payments.py"), "--ledger", self.ledger],
                "default_timeout": "10s",
                "manifest": "bank.manifest.json",
                "rules": merged,
            }],
        }
        config.update(settings)
        with open(self.config, "w", encoding="utf-8") as f:
            json.dump(config, f, indent=2)
        os.chmod(self.config, 0o600)
        if not self.pinned:
            run(self.program.pin(self.config))
            self.pinned = True

    def host(self, **how):
        path = os.path.join(self.root, "stderr-%d" % len(self.hosts))
        host = Host(self.program.serve(self.config), path, **how)
        self.hosts.append(host)
        return host

    # Calling, with every answer kept for the comparison.

    def keep(self, label, answer):
        self.answers.append("%s: %s%s" % (label, answer.prefix, " isError" if answer.is_error else ""))
        return answer

    def call(self, label, host, tool, arguments=None, **how):
        return self.keep(label, host.call(tool, arguments, **how))

    def call_past_lease(self, label, host, tool, arguments, seconds=15.0):
        """Repeats a call while another's lease lives; keeps the first answer that is not IN_PROGRESS."""
        end = time.monotonic() + seconds
        while True:
            answer = host.call(tool, arguments)
            if answer.prefix != "IN_PROGRESS" or time.monotonic() > end:
                return self.keep(label, answer)
            time.sleep(0.1)

    def fact(self, name, value):
        """Something that must be the same for every program and is neither an answer nor a row."""
        self.facts[name] = value

    # The world's side, and the operator's.

    def effects(self):
        try:
            with open(self.ledger, "rb") as f:
                return f.read().count(b"\n")
        except FileNotFoundError:
            return 0

    def await_effects(self, count):
        until("%d lines in the ledger" % count, 15, lambda: self.effects() >= count)

    def release(self):
        with open(self.ledger + ".release", "w"):
            pass

    def rows(self, sql, *values):
        connection = sqlite3.connect("file:%s?mode=ro" % self.database, uri=True, timeout=5)
        try:
            return connection.execute(sql, values).fetchall()
        finally:
            connection.close()

    def waiting(self):
        """The newest approval that nobody decided: its run and its id."""
        found = self.rows("SELECT run_id, id FROM approvals WHERE status = 'pending' ORDER BY rowid DESC LIMIT 1")
        if not found:
            raise HostError("no approval is pending")
        return found[0]

    def decide(self, verdict, note=None, which=None):
        run_id, approval = which or self.waiting()
        command = [verdict, run_id, "--approval", approval, "--by", "me", "--yes"]
        if note:
            command += ["--note", note]
        return json.loads(run(self.program.operate(self.database, *command)))

    def operate(self, *command, codes=(0,)):
        return json.loads(run(self.program.operate(self.database, *command), codes=codes))

    def end(self):
        """Closes every host that still runs; each must leave with status 0 and have said nothing but protocol."""
        for host in self.hosts:
            if host.process.poll() is None:
                status = host.close()
                if status != 0:
                    raise HostError("ended with status %s; stderr: %s" % (status, host.stderr()[-1500:]))
            if host.violations:
                raise HostError("not protocol on standard output: %s" % host.violations[:3])

    def abandon(self):
        for host in self.hosts:
            if host.process.poll() is None:
                host.kill()

    def remove(self):
        shutil.rmtree(self.root, ignore_errors=True)
