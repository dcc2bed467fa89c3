"""The scenes of bad input: servers, hosts, files and disks that are not as they should be.

Each must come to a clear refusal or a documented answer, in time, with nothing lost: the record stays whole, no mutation runs
twice, and the proxy still serves whoever behaves.
"""
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time

from gate import HERE, PROGRAM, READ, Broken, Gate, expect, server
from program import run, until

RULES = {"act": {"side_effect": "remote_mutation", "outcome": "allow", "timeout": "2s"}, "look": dict(READ, timeout="2s")}


def hostile(way, ledger):
    return [sys.executable, os.path.join(HERE, "hostile.py"), way, ledger]


def gate_with(root, way="fine", pinned_as="fine", **settings):
    """A gate pinned in front of a server that behaves, and then served with one that doesn't."""
    entry = lambda g, w: server("odd", hostile(w, g.outside_file("ledger")), RULES, connect_timeout="2s")
    gate = Gate(root, lambda g: [entry(g, pinned_as)], **settings)
    if way != pinned_as:
        change(gate, lambda config: config["servers"][0].update(command=hostile(way, gate.outside_file("ledger"))))
    return gate


def change(gate, how):
    with open(gate.config, encoding="utf-8") as f:
        config = json.load(f)
    how(config)
    with open(gate.config, "w", encoding="utf-8") as f:
        json.dump(config, f)


def acts(gate):
    try:
        with open(gate.outside_file("ledger"), "rb") as f:
            return f.read().count(b"\n")
    except FileNotFoundError:
        return 0


def fails(argv, *words, status=1, seconds=15):
    """A command that must end by itself with this status, say why on stderr, and print nothing."""
    began = time.monotonic()
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise Broken("still running after %d s: %s" % (seconds, " ".join(argv[-4:]))) from None
    said = done.stderr.decode("utf-8", "replace")
    expect(done.returncode == status, "exit status must be %d" % status, done.returncode, said)
    expect(all(word in said for word in words), "stderr must name %s" % (words,), said)
    expect(done.stdout == b"", "nothing may be on standard output", done.stdout)
    expect("\x1b" not in said and "panicked" not in said, "stderr must be clean", said)
    return said, time.monotonic() - began


# Servers that can't be pinned or served.

def a_server_that_cannot_be_listed(root, way, *words):
    gate = Gate(root, lambda g: [server("odd", hostile("fine", g.outside_file("ledger")), RULES)])
    ways = lambda config: config["servers"][0].update(command=hostile(way, gate.outside_file("ledger")), connect_timeout="2s")
    change(gate, ways)
    manifest = os.path.join(gate.folder, "odd.manifest.json")
    with open(manifest, "rb") as f:
        before = f.read()
    _, took = fails(PROGRAM.pin(gate.config), "odd", *words)
    expect(took < 8, "the refusal must come in time", took)
    with open(manifest, "rb") as f:
        expect(f.read() == before, "the manifest must stay as it was")
    # Served: initialize is answered at once, the list by an error that names no path, and the exit status is 1.
    host = gate.host()
    listed = host.request("tools/list").wait(15)
    expect("error" in listed, "the list must be answered by an error", listed)
    expect(gate.root not in json.dumps(listed), "the error must name no path", listed)
    host.process.stdin.close()
    expect(host.process.wait(15) == 1, "the exit status must be 1", host.process.returncode)
    expect("odd" in host.stderr(), "the report must be on stderr", host.stderr())
    until("every server process to end", 10, lambda: not gate.processes())


def a_server_that_spoils_its_answers(root, way, mutation):
    """`mutation` is the prefixes that a mutation may be answered with. A read's answer may be the server's or an error; it is
    UNAVAILABLE while the connection is being made anew, which is after an answer that could not be trusted."""
    gate = gate_with(root, way)
    host = gate.host()
    host.tools()
    began = time.monotonic()
    acted = host.call("odd_act", {"what": "badly"}, seconds=15)
    expect(acted.prefix in mutation, "the mutation's answer", acted)
    expect(time.monotonic() - began < 6, "the mutation must be answered in time", time.monotonic() - began)
    expect(acts(gate) == 1, "it must have run once", acts(gate))
    looked = host.call("odd_look", {"what": "badly"}, seconds=15)
    expect(looked.prefix in ("RESULT", "UNAVAILABLE"), "the read's answer", looked)
    well = lambda: host.call("odd_look", {"what": "well"}, seconds=15)
    until("the server to be usable again", 20, lambda: "done: look" in well().text)
    again = host.call("odd_act", {"what": "badly"}, seconds=15)
    expect(again.prefix in ("DUPLICATE", "UNKNOWN_OUTCOME") and acts(gate) == 1, "it must not run again", again, acts(gate))
    expect(host.close() == 0 and not host.violations, "the proxy must end well", host.violations)
    gate.intact()


# Hosts.

def a_host_that_sends_nonsense(root):
    gate = gate_with(root)
    host = gate.host()
    host.tools()
    for line in ("{", "not json at all", "[]", "[1,2]", "7", "null", '{"jsonrpc":"2.0"}', '{"jsonrpc":"2.0","id":null,"method":"ping"}',
                 '{"jsonrpc":"2.0","id":{},"method":"ping"}', '{"jsonrpc":"1.0","id":900,"method":"ping"}', "\x00\x01", "",
                 '{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":4711}}',
                 '{"jsonrpc":"2.0","id":901,"result":{}}', "{" * 5000, '{"jsonrpc":"2.0","id":902,"method":"tools/call"}',
                 '{"jsonrpc":"2.0","id":903,"method":"tools/call","params":{"name":7}}',
                 '{"jsonrpc":"2.0","id":904,"method":"tools/call","params":[]}'):
        host.send_raw(line)
        expect("result" in host.request("ping").wait(10), "the session must go on after %r" % line[:60])
    strange = host.request("no/such/method").wait(10)
    expect(strange.get("error", {}).get("code") == -32601, "an unknown method is -32601", strange)
    nobody = host.call("odd_nobody", {})
    expect(nobody.error or nobody.is_error, "an unknown tool is an error", nobody)
    expect(host.call("odd_act", {"what": "well"}).prefix == "RESULT" and acts(gate) == 1, "and a good call still runs")
    host.violations = [v for v in host.violations if b"answer to nothing" not in v]
    expect(host.close() == 0 and not host.violations, "the proxy must end well", host.violations)
    gate.intact()


def a_megabyte_of_arguments(root):
    gate = gate_with(root)
    host = gate.host()
    host.tools()
    big = host.call("odd_look", {"what": "x" * 1_000_000}, seconds=20)
    expect(big.prefix in ("RESULT", "INVALID"), "a megabyte is answered", big)
    many = host.call("odd_look", raw="{%s}" % ",".join('"k%d":1' % i for i in range(60_000)), seconds=20)
    expect(many.prefix == "INVALID", "many unknown keys are invalid", many)
    deep = host.call("odd_look", raw='{"what":%s1%s}' % ("[" * 300, "]" * 300), seconds=20)
    expect(deep.prefix == "INVALID", "too deep is invalid", deep)
    deeper = host.call("odd_look", raw='{"what":%s1%s}' % ("[" * 100_000, "]" * 100_000), seconds=20)
    expect(deeper.prefix in ("INVALID", "PROTOCOL_ERROR"), "much too deep is answered", deeper)
    expect(host.call("odd_look", {"what": "well"}).prefix == "RESULT", "and a good call still runs")
    expect(host.close() == 0 and not host.violations, "the proxy must end well", host.violations)
    gate.intact()


# Files.

def a_configuration_that_is_refused(root):
    gate = gate_with(root)
    with open(gate.config, encoding="utf-8") as f:
        good = f.read()
    parsed = json.loads(good)

    def refuse(text, *words, mode=0o600, owner=None):
        with open(gate.config, "w", encoding="utf-8") as f:
            f.write(text)
        os.chmod(gate.config, mode)
        if owner is not None:
            os.chown(gate.config, owner, -1)
        fails(PROGRAM.serve(gate.config), *words)
        os.chmod(gate.config, 0o600)
        if owner is not None:
            os.chown(gate.config, os.getuid(), -1)

    def changed(**settings):
        return json.dumps(dict(parsed, **settings))

    refuse("{", "config.json")
    refuse("", "config.json")
    refuse(good + "{}", "config.json")
    refuse(changed(colour="red"), "colour")
    refuse(good.replace('"database"', '"hold": "1s", "hold": "2s", "database"', 1), "hold")
    refuse(changed(session="a b"), "session")
    refuse(changed(hold=5), "hold")
    refuse(changed(hold="-1s"), "hold")
    refuse(changed(lease_ttl="1s"), "lease_ttl")
    refuse(changed(policy={"read_only": "abort"}), "abort")
    refuse(changed(servers=[]), "server")
    refuse(changed(servers=[dict(parsed["servers"][0], shell="x")]), "shell")
    refuse(changed(servers=[parsed["servers"][0]] * 2), "odd")
    refuse(good, "config.json", mode=0o666)
    if os.getuid() == 0:
        refuse(good, "config.json", owner=65534)
    fails(PROGRAM.serve(os.path.join(gate.folder, "missing.json")), "missing.json")
    fails(PROGRAM.serve(gate.folder), os.path.basename(gate.folder))
    # A server whose argument reaches the gate's own files.
    refuse(changed(servers=[dict(parsed["servers"][0], command=parsed["servers"][0]["command"] + [gate.folder])]),
           "odd", gate.folder)
    os.remove(os.path.join(gate.folder, "odd.manifest.json"))
    refuse(good, "odd.manifest.json")
    fails(PROGRAM.proxy + ["proxy"], status=2)
    fails(PROGRAM.proxy + ["proxy", "--config", gate.config, "--colour"], status=2)


def a_database_that_is_refused(root):
    gate = gate_with(root)
    host = gate.host()
    expect(host.call("odd_act", {"what": "well"}).prefix == "RESULT", "a good call must run")
    host.close()
    keep = os.path.join(root, "kept.db")
    connection = sqlite3.connect(gate.database)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    shutil.copy(gate.database, keep)

    def refuse(prepare, *words):
        for ending in ("", "-wal", "-shm"):
            if os.path.lexists(gate.database + ending):
                os.remove(gate.database + ending)
        shutil.copy(keep, gate.database)
        os.chmod(gate.database, 0o600)
        prepare()
        fails(PROGRAM.serve(gate.config), "gate.db", *words, seconds=30)
        if os.path.exists(gate.database) and not os.path.isdir(gate.database):
            operator = PROGRAM.operate(gate.database, "runs")
            done = subprocess.run(operator, stdin=subprocess.DEVNULL, capture_output=True, timeout=30)
            expect(b"panicked" not in done.stderr, "the operator's command must not panic", done.stderr)

    def execute(*statements):
        connection = sqlite3.connect(gate.database)
        for statement in statements:
            connection.execute(statement)
        connection.commit()
        connection.close()

    def cut():
        os.truncate(gate.database, os.path.getsize(gate.database) // 2)

    def other_file():
        with open(gate.database, "wb") as f:
            f.write(b"this is a letter, not a database\n" * 200)

    def linked():
        os.rename(gate.database, gate.database + ".real")
        os.symlink(gate.database + ".real", gate.database)

    refuse(lambda: execute("INSERT INTO schema_migrations VALUES (7, '2026-01-01T00:00:00Z')"), "newer")
    refuse(lambda: execute("CREATE TRIGGER t AFTER INSERT ON runs BEGIN SELECT 1; END"))
    refuse(lambda: execute("CREATE VIEW v AS SELECT 1"))
    refuse(cut)
    refuse(other_file)
    refuse(linked)
    refuse(lambda: os.chmod(gate.database, 0o666))
    if os.getuid() == 0:
        refuse(lambda: os.chown(gate.database, 65534, -1))


def a_database_that_another_process_locks(root):
    gate = gate_with(root)
    host = gate.host()
    expect(host.call("odd_act", {"what": "well"}).prefix == "RESULT", "a good call must run")
    lock = sqlite3.connect(gate.database, isolation_level=None, timeout=10)
    lock.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    refused = host.call("odd_act", {"what": "other"}, seconds=40)
    expect(refused.prefix == "UNAVAILABLE" and refused.is_error, "a locked file refuses the call", refused)
    expect(time.monotonic() - began < 20, "in time", time.monotonic() - began)
    expect(acts(gate) == 1, "nothing may run without its intent on disk", acts(gate))
    lock.execute("COMMIT")
    lock.close()
    until("the file to serve again", 20, lambda: host.call("odd_act", {"what": "other"}).prefix in ("RESULT", "DUPLICATE"))
    expect(acts(gate) == 2, "once each", acts(gate))
    expect(host.close() == 0, "the proxy must end with 0")
    gate.intact()


def a_disk_that_is_full(root):
    """Needs to mount a small disk, which only root may; elsewhere the scene says so and passes."""
    disk = os.path.join(root, "gate")
    os.makedirs(disk, mode=0o700)
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m,mode=700", "tmpfs", disk], capture_output=True)
    if mount.returncode != 0:
        print("      a disk that is full: no small disk could be mounted here, so nothing was tried")
        return
    try:
        gate = gate_with(root)
        host = gate.host()
        expect(host.call("odd_act", {"what": "well"}).prefix == "RESULT", "a good call must run")
        ballast = os.path.join(disk, "ballast")
        with open(ballast, "wb") as f:
            try:
                while f.write(b"\0" * 65536):
                    f.flush()
            except OSError:
                pass
        refused = host.call("odd_act", {"what": "other"}, seconds=40)
        expect(refused.prefix == "UNAVAILABLE" and acts(gate) == 1, "a full disk refuses the call", refused, acts(gate))
        os.remove(ballast)
        until("the disk to serve again", 20, lambda: host.call("odd_act", {"what": "other"}).prefix in ("RESULT", "DUPLICATE"))
        expect(acts(gate) == 2, "once each", acts(gate))
        expect(host.close() == 0, "the proxy must end with 0")
        gate.intact()
    finally:
        run(["umount", "--lazy", disk])


UNLISTED = {
    "never answers initialize": ("2s",),
    "listing never comes": ("2s",),
    "endless pages": ("100",),
    "same cursor": ("cursor",),
    "too many tools": ("1000",),
    "same name twice": ("act",),
    "closes its output": (),
    "garbage at once": (),
    "listing is an error": ("tools",),
}
KNOWN, LOST = ("RESULT",), ("UNKNOWN_OUTCOME",)
# By the way of spoiling: what a mutation may be answered.
SPOILED = {
    "garbage before the answer": KNOWN + LOST, "answers twice": KNOWN, "answers another id": LOST, "answers a string id": LOST,
    "result and error": LOST, "key twice in the envelope": LOST, "not UTF-8": LOST, "content is a number": KNOWN + LOST + ("UNRECORDED",),
    "result is a list": LOST + ("UNRECORDED",), "a line of twenty megabytes": LOST + ("UNRECORDED",),
    "half a line, then nothing": LOST, "exits in the call": LOST, "asks for input": KNOWN, "a flood of notifications": KNOWN,
}


def scenes():
    found = {}
    for way, words in UNLISTED.items():
        found["server: " + way] = lambda root, way=way, words=words: a_server_that_cannot_be_listed(root, way, *words)
    for way, mutation in SPOILED.items():
        found["server: " + way] = lambda root, w=way, m=mutation: a_server_that_spoils_its_answers(root, w, m)
    for scene in (a_host_that_sends_nonsense, a_megabyte_of_arguments, a_configuration_that_is_refused,
                  a_database_that_is_refused, a_database_that_another_process_locks, a_disk_that_is_full):
        found[scene.__name__.replace("_", " ")] = scene
    return found
