"""Reads what a program recorded, straight from its database, and makes it comparable.

Two readings: the *outline*, which the specification fixes and `expected.json` holds (statuses, reasons, the sequence of
events), and the *rows*, in which ids, times, owners, hashes and the wording of sentences are replaced by marks, so that two
programs can be compared cell by cell. `checks` recomputes every hash with the code in `canonical.py`.
"""
import json
import re
import sqlite3

from canonical import approval_hash, canonical, chain_breaks, content_hash, parse, sha256

_ID = re.compile(r"\b[0-9a-f]{32}\b")
_RUN = re.compile(r"\b[A-Za-z0-9_-]{1,64}\.[0-9a-f]{16}\b")
_TIME = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_HASH = re.compile(r"\b[0-9a-f]{64}\b")
# Sentences are each program's own; what must agree is that there is one.
_WORDING = {"reason", "detail", "message", "notice", "question", "summary", "error", "note"}
_MASKED = {"duration_ms", "active_ms", "owner", "lease_owner", "previous_owner", "previous_expires_at", "lease_expires_at"}


class Record:
    def __init__(self, database):
        connection = sqlite3.connect("file:%s?mode=ro" % database, uri=True, timeout=5)
        connection.row_factory = sqlite3.Row
        try:
            read = lambda sql: [dict(r) for r in connection.execute(sql)]
            self.version = connection.execute("SELECT MAX(version) FROM schema_migrations").fetchone()[0]
            self.runs = read("SELECT * FROM runs ORDER BY rowid")
            self.steps = read("SELECT * FROM steps ORDER BY run_id, idx")
            self.approvals = read("SELECT * FROM approvals ORDER BY rowid")
            self.events = read("SELECT * FROM events ORDER BY seq")
            self.specs = read("SELECT * FROM tool_specs ORDER BY hash")
            self.index = read("SELECT * FROM proxy_calls ORDER BY id")
            self.integrity = connection.execute("PRAGMA integrity_check").fetchone()[0]
        finally:
            connection.close()

    def of(self, table, run):
        return [row for row in table if row["run_id"] == run["id"]]

    def outline(self):
        """What the specification fixes, a run at a time in the order in which they began."""
        return [{
            "goal": run["goal"],
            "ends": ("%s %s" % (run["status"], run["reason"])).strip(),
            "steps": [self._step(s) for s in self.of(self.steps, run)],
            "approvals": ["%s %s" % (a["kind"], a["status"]) for a in self.of(self.approvals, run)],
            "events": " ".join(e["type"] for e in self.of(self.events, run)),
        } for run in self.runs]

    @staticmethod
    def _step(step):
        decision = json.loads(step["decision_json"] or "{}")
        observation = json.loads(step["observation_json"] or "{}")
        parts = [step["status"], decision.get("kind", "-"), decision.get("origin", "-"), observation.get("kind", "-")]
        return " ".join(parts)

    def calls(self):
        """The proxy's own index: one line a row."""
        return ["%s %s %s" % (r["tool"], r["side_effect"], "open" if r["open"] else "closed") for r in self.index]

    def rows(self):
        """Every row of every run, with what may differ replaced by a mark."""
        return [{
            "run": _marked(run, {"result_json", "limits_json"}),
            "steps": [_marked(s, {"decision_json", "policy_json", "observation_json"}) for s in self.of(self.steps, run)],
            "approvals": [_marked(a, {"capability_json", "presentation_json", "request_json"})
                          for a in self.of(self.approvals, run)],
            "events": [_marked(e, {"payload_json"}) for e in self.of(self.events, run)],
        } for run in self.runs]

    def checks(self):
        """What is wrong with the record by our own arithmetic; an empty list is a good one."""
        wrong = [] if self.integrity == "ok" else ["SQLite says: %s" % self.integrity]
        if self.version != 6:
            wrong.append("schema version %s, not 6" % self.version)
        columns = ("seq", "run_id", "step_id", "at", "type", "payload_json", "hash")
        wrong += chain_breaks([tuple(e[c] for c in columns) for e in self.events])
        for a in self.approvals:
            computed = approval_hash(a["kind"], a["capability_json"], a["presentation_json"], a["request_json"])
            if computed != a["hash"]:
                wrong.append("approval %s has hash %s, its content gives %s" % (a["id"], a["hash"][:16], computed[:16]))
        for s in self.specs:
            if canonical(parse(s["spec_json"])) != s["spec_json"] or sha256(s["spec_json"]) != s["hash"]:
                wrong.append("tool spec %s is not canonical, or not what its hash says" % s["hash"][:16])
        known = {s["hash"] for s in self.specs}
        for step in self.steps:
            if step["spec_hash"] and step["spec_hash"] not in known:
                wrong.append("step %s names a spec that is not stored" % step["id"])
            observation = parse(step["observation_json"] or "{}")
            if observation.get("content_hash") and "content" in observation:
                if content_hash(canonical(observation["content"])) != observation["content_hash"]:
                    wrong.append("step %s holds content that its hash does not cover" % step["id"])
        return wrong


def _marked(row, json_columns):
    out = {}
    for column, value in row.items():
        if column in json_columns and value:
            out[column] = _mark(column, parse(value))
        else:
            out[column] = _mark(column, value)
    return out


def _mark(key, value):
    if isinstance(value, dict):
        return {k: _mark(k, v) for k, v in value.items()}
    if isinstance(value, list):
        return [_mark(key, v) for v in value]
    if key in _MASKED:
        return "<masked>"
    if isinstance(value, str):
        if key in _WORDING and " " in value:
            return "<sentence>"
        for pattern, mark in ((_HASH, "<hash>"), (_RUN, "<run>"), (_ID, "<id>"), (_TIME, "<time>")):
            value = pattern.sub(mark, value)
        return value
    if key in ("seq", "input_tokens"):
        return "<masked>"
    return value
