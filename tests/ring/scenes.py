"""The scenes of the ring: hosts that we did not write, servers that we did not write, and the ways they die."""
import json
import os
import signal
import subprocess
import sys
import time

from gate import (BINARY, FILES_RULES, HERE, NPM, READ, REAL_HOSTS, ROOT, Gate, RealHost, behind_tee, expect, node_server,
                  python_server, server)
from mcp_host import Host
from program import run, until

PAYMENTS = os.path.join(HERE, "..", "compare", "payments.py")
PAY_RULES = {"balance": READ, "pay": {"side_effect": "remote_mutation", "outcome": "allow"}}


# Hosts.

def files_gate(root):
    gate = Gate(root, lambda g: [server("files", node_server("server-filesystem", g.outside), FILES_RULES)])
    with open(gate.outside_file("note.txt"), "w") as f:
        f.write("written before the gate was there\n")
    return gate


def a_host_reads_asks_collects_and_writes_once(root, name):
    gate = files_gate(root)
    host = RealHost(REAL_HOSTS[name], gate.argv(), os.path.join(root, "host-stderr"))
    try:
        tools = host.tools()
        offered = ["files_list_directory", "files_read_text_file", "files_write_file", "gate_status"]
        expect(tools == offered, "exactly the classified tools and the status tool are offered", tools)
        read = host.call("files_read_text_file", path=gate.outside_file("note.txt"))
        expect("before the gate" in read["text"] and not read["is_error"], "a read must run", read)
        wish = {"path": gate.outside_file("wish.txt"), "content": "one line\n"}
        asked = host.call("files_write_file", **wish)
        expect(asked["text"].startswith("PENDING_APPROVAL: ") and not asked["is_error"], "a write must wait", asked)
        expect(not os.path.exists(wish["path"]), "nothing may be written before the approval")
        run_id = gate.decide("approve")
        collected = host.call("files_write_file", **wish)
        expect(not collected["is_error"] and "wish.txt" in collected["text"], "an approved write must run", collected)
        with open(wish["path"]) as f:
            expect(f.read() == wish["content"], "the file must hold what was asked")
        before = os.stat(wish["path"])
        again = host.call("files_write_file", **wish)
        expect(again["text"].startswith("DUPLICATE: ") and again["is_error"], "a repeat must be refused", again)
        after = os.stat(wish["path"])
        same = (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
        expect(same and gate.starts(run_id) == 1, "the file must be written once")
    finally:
        host.close()
    gate.intact()
    until("every server process to end", 10, lambda: not gate.processes())


# Servers.

def the_time_server_answers_through_the_gate(root):
    rules = {"get_current_time": READ, "convert_time": READ}
    gate = Gate(root, [server("time", python_server("mcp_server_time"), rules)])
    host = gate.host()
    now = host.call("time_get_current_time", {"timezone": "Etc/UTC"})
    expect(now.prefix == "RESULT" and "UTC" in now.text, "the time must come back", now)
    there = host.call("time_convert_time", {"source_timezone": "Etc/UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"})
    expect("21:00" in there.text, "noon in UTC is nine in Tokyo", there)
    wrong = host.call("time_get_current_time", {"timezone": "Mars/Olympus"})
    expect(wrong.is_error and wrong.prefix == "RESULT", "the server's own error comes back as one", wrong)
    expect(host.close() == 0, "the proxy must end with 0")
    gate.intact()


def the_git_server_commits_once_approved(root):
    rules = {"git_status": READ, "git_log": READ,
             "git_add": {"side_effect": "local_mutation"},
             "git_commit": {"side_effect": "local_mutation", "outcome": "require_approval"}}
    repository = os.path.join(root, "outside", "repository")
    os.makedirs(repository)
    git = lambda *words: run(["git", "-C", repository, "-c", "user.name=ring", "-c", "user.email=ring@localhost", *words])
    git("init", "--quiet")
    git("commit", "--quiet", "--allow-empty", "--message", "first")
    git("config", "user.name", "ring")
    git("config", "user.email", "ring@localhost")
    gate = Gate(root, [server("git", python_server("mcp_server_git"), rules)])
    with open(os.path.join(repository, "new.txt"), "w") as f:
        f.write("new\n")
    host = gate.host()
    status = host.call("git_git_status", {"repo_path": repository})
    expect("new.txt" in status.text, "the status must name the new file", status)
    added = host.call("git_git_add", {"repo_path": repository, "files": ["new.txt"]})
    expect(added.prefix == "RESULT" and not added.is_error, "an allowed mutation must run", added)
    commit = {"repo_path": repository, "message": "second"}
    expect(host.call("git_git_commit", commit).prefix == "PENDING_APPROVAL", "a commit must wait")
    count = lambda: git("rev-list", "--count", "HEAD").strip()
    expect(count() == "1", "nothing may be committed yet")
    gate.decide("approve")
    done = host.call("git_git_commit", commit)
    expect(done.prefix == "RESULT" and not done.is_error and count() == "2", "the commit must be there", done, count())
    expect(host.call("git_git_commit", commit).prefix == "DUPLICATE" and count() == "2", "and be there once")
    host.close()
    gate.intact()


EVERYTHING_RULES = {
    "echo": READ, "get-sum": READ, "get-structured-content": READ, "get-tiny-image": READ,
    "trigger-long-running-operation": READ,
    "toggle-simulated-logging": {"side_effect": "local_mutation", "outcome": "deny"},
}


def the_everything_server_answers_through_the_gate(root):
    gate = Gate(root, [server("every", node_server("server-everything", "stdio"), EVERYTHING_RULES)])
    host = gate.host()
    names = [t["name"] for t in host.tools()]
    expect(names == ["every_" + n for n in sorted(EVERYTHING_RULES)] + ["gate_status"], "the tools in order", names)
    echo = host.call("every_echo", {"message": "caf\u00e9 \u2603 \U0001f600"})
    expect("caf\u00e9 \u2603 \U0001f600" in echo.text, "text must come back as it was", echo)
    total = host.call("every_get-sum", raw='{"a":2.50,"b":1e1}')
    expect("12.5" in total.text, "numbers must arrive", total)
    weather = host.call("every_get-structured-content", {"location": "Chicago"})
    expect(isinstance(weather.structured, dict) and weather.structured, "structured content must come back", weather)
    image = host.call("every_get-tiny-image", {})
    expect("[image omitted]" in image.text, "an image is recorded as a mark", image)
    slow = host.call("every_trigger-long-running-operation", {"duration": 1.5, "steps": 3}, token="slow-1")
    expect(slow.prefix == "RESULT" and not slow.is_error, "a slow tool must be waited for", slow)
    denied = host.call("every_toggle-simulated-logging", {})
    expect(denied.prefix == "DENIED", "a rule's outcome must hold", denied)
    expect(host.close() == 0 and not host.violations, "only protocol on standard output, and status 0", host.violations)
    gate.intact()


def pins_are_per_tool_when_a_server_lists_by_capabilities(root):
    """A client that can do more is shown more tools; a gate that pinned fewer still offers what it pinned."""
    command = node_server("server-everything", "stdio")
    capable = Host(command, os.path.join(root, "capable-stderr"), capabilities={"sampling": {}, "elicitation": {}})
    shown = {t["name"] for t in capable.tools()}
    capable.kill()
    gate = Gate(root, [server("every", command, {"echo": READ})])
    manifest_path = os.path.join(gate.folder, "every.manifest.json")
    with open(manifest_path, encoding="utf-8") as f:
        manifest = json.load(f)
    more = shown - set(manifest["tools"])
    expect(more, "a capable client must be shown more tools", sorted(shown))
    # Pinned by somebody whose client could do more: these tools are not offered now, and only these are refused.
    extra = sorted(more)[0]
    manifest["tools"][extra] = dict(manifest["tools"]["echo"], name=extra)
    with open(manifest_path, "w", encoding="utf-8") as f:
        json.dump(manifest, f)
    with open(gate.config, encoding="utf-8") as f:
        config = json.load(f)
    config["servers"][0]["rules"][extra] = READ
    with open(gate.config, "w", encoding="utf-8") as f:
        json.dump(config, f)
    host = gate.host()
    names = [t["name"] for t in host.tools()]
    expect(names == ["every_echo", "gate_status"], "the missing tool alone must be refused", names)
    # The report is written beside the serving; it is all there when the proxy has ended.
    host.close()
    expect("every: refused %s: " % extra in host.stderr(), "the report must say so", host.stderr())


def four_servers_stand_behind_one_gate(root):
    gate = Gate(root, lambda g: [
        server("files", node_server("server-filesystem", g.outside), FILES_RULES),
        server("every", node_server("server-everything", "stdio"), {"echo": READ}),
        server("time", python_server("mcp_server_time"), {"get_current_time": READ}),
        server("git", python_server("mcp_server_git"), {"git_status": READ}),
    ])
    host = gate.host()
    names = [t["name"] for t in host.tools()]
    expect(names == ["files_list_directory", "files_read_text_file", "files_write_file", "every_echo",
                     "time_get_current_time", "git_git_status", "gate_status"], "configuration order, then by name", names)
    calls = [host.start("every_echo", {"message": "m%d" % i}) for i in range(20)]
    texts = [c.answer().text for c in calls]
    expect(all("m%d" % i in t for i, t in enumerate(texts)), "each call must get its own answer", texts)
    expect(host.close() == 0, "the proxy must end with 0")
    until("every server process to end", 10, lambda: not gate.processes())
    gate.intact()


# Faults.

def payments(gate):
    return [sys.executable, PAYMENTS, "--ledger", gate.outside_file("ledger")]


def lines(path, needle=b""):
    try:
        with open(path, "rb") as f:
            return sum(needle in line for line in f)
    except FileNotFoundError:
        return 0


def one_process(gate, fragment):
    """The pid of the gate's server process whose command line has this in it."""
    for pid, _ in gate.processes():
        try:
            with open("/proc/%d/cmdline" % pid, "rb") as f:
                words = f.read().decode("utf-8", "replace").split("\0")
        except OSError:
            continue
        if fragment in os.path.basename(words[0]) or any(fragment in w for w in words[1:2]):
            return pid
    return None


def answered_at_once(waiting, since):
    answer = waiting.answer(8)
    took = time.monotonic() - since
    expect(took < 3, "the call must be answered at once", "%.1f s" % took, answer)
    return answer


def an_upstream_killed_in_a_payment_leaves_it_unknown(root):
    gate = Gate(root, lambda g: [server("bank", payments(g), PAY_RULES)])
    ledger = gate.outside_file("ledger")
    host = gate.host()
    host.tools()
    waiting = host.start("bank_pay", {"to": "alice", "amount": 1, "mode": "block"})
    until("the payment to take effect", 15, lambda: lines(ledger) == 1)
    since = time.monotonic()
    os.kill(one_process(gate, "payments.py"), signal.SIGKILL)
    answer = answered_at_once(waiting, since)
    expect(answer.prefix == "UNKNOWN_OUTCOME" and not answer.is_error, "the truth is that nobody knows", answer)
    other = host.call("bank_pay", {"to": "bob", "amount": 2})
    expect(other.prefix == "BLOCKED", "another payment must wait for a person", other)
    gate.decide("reject")
    # The connection comes back by itself, checks its pins again, and serves.
    until("the server to be back", 30, lambda: host.call("bank_balance", {"account": "main"}).text.startswith("account"))
    paid = host.call("bank_pay", {"to": "bob", "amount": 2})
    expect(paid.prefix == "RESULT" and lines(ledger) == 2, "once a person decided, others go on", paid)
    host.close()
    gate.intact()


def a_real_upstream_killed_behind_a_launcher(root, reads):
    rule = READ if reads else {"side_effect": "remote_mutation", "outcome": "allow"}
    log = os.path.join(root, "arrived")
    gate = Gate(root, [server("every", behind_tee(log, node_server("server-everything", "stdio")),
                              {"trigger-long-running-operation": rule, "echo": READ})])
    host = gate.host()
    host.tools()
    waiting = host.start("every_trigger-long-running-operation", {"duration": 20, "steps": 20})
    until("the call to arrive at the server", 15, lambda: lines(log, b'"tools/call"') == 1)
    since = time.monotonic()
    os.kill(one_process(gate, "server-everything"), signal.SIGKILL)
    answer = answered_at_once(waiting, since)
    if reads:
        expect(answer.is_error and answer.prefix == "RESULT", "a read that got no answer failed", answer)
    else:
        expect(answer.prefix == "UNKNOWN_OUTCOME", "the truth is that nobody knows", answer)
    host.close()
    gate.intact()
    until("every server process to end", 10, lambda: not gate.processes())


def a_proxy_killed_leaves_no_process_and_the_next_one_serves(root):
    log = os.path.join(root, "arrived")
    files = lambda g: node_server("server-filesystem", g.outside)
    gate = Gate(root, lambda g: [
        server("files", behind_tee(log, files(g), stubborn=True), FILES_RULES),
        server("every", node_server("server-everything", "stdio"), {"trigger-long-running-operation": READ}),
    ])
    first = gate.host()
    first.tools()
    first.start("every_trigger-long-running-operation", {"duration": 20, "steps": 20})
    left_over = gate.processes()
    expect(len(left_over) >= 4, "launcher, sleeper and both servers must be running", left_over)
    first.kill()
    until("the first proxy's servers to be gone", 10, lambda: not left_over & gate.processes())
    second = gate.host()
    second.tools()
    read = second.call("files_list_directory", {"path": gate.outside})
    expect(read.prefix == "RESULT" and not read.is_error, "the second must serve", read)
    expect(second.close() == 0, "the proxy must end with 0")
    until("the second proxy's servers to be gone", 10, lambda: not gate.processes())


def a_stubborn_server_does_not_outlive_its_proxy(root):
    log = os.path.join(root, "arrived")
    gate = Gate(root, lambda g: [
        server("files", behind_tee(log, node_server("server-filesystem", g.outside), stubborn=True), FILES_RULES)])
    until("what pinning started to be gone", 10, lambda: not gate.processes())
    host = gate.host()
    host.tools()
    expect(len(gate.processes()) >= 3, "launcher, sleeper and server must be running", gate.processes())
    expect(host.close(seconds=20) == 0, "the proxy must end with 0")
    until("every server process to end", 10, lambda: not gate.processes())


def a_terminated_proxy_ends_cleanly(root):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        gate = Gate(os.path.join(root, number.name),
                    lambda g: [server("files", node_server("server-filesystem", g.outside), FILES_RULES)])
        host = gate.host()
        host.tools()
        host.process.send_signal(number)
        status = host.process.wait(15)
        expect(status == 0, "%s must end the proxy with 0" % number.name, status)
        until("every server process to end", 10, lambda: not gate.processes())


def the_readme_s_quick_start_works_as_it_stands(root):
    """Every line of it in an empty home; what it builds and downloads is at hand already."""
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as f:
        section = f.read().split("\n## Two minutes")[1].split("\n## ")[0]
    block = lambda kind: section.split("```%s\n" % kind)[1].split("```")[0]
    home, stubs = os.path.join(root, "home"), os.path.join(root, "stubs")
    installed = os.path.join(home, ".cargo", "bin")
    for folder in (home, stubs):
        os.makedirs(folder)
    for name, script in {
        "cargo": 'mkdir -p "%s" && ln -s "%s" "%s/holdpoint"' % (installed, BINARY, installed),
        "npm": 'ln -s "%s" node_modules' % os.path.join(NPM, "node_modules"),
    }.items():
        with open(os.path.join(stubs, name), "w", encoding="utf-8") as f:
            f.write("#!/bin/sh\n%s\n" % script)
        os.chmod(os.path.join(stubs, name), 0o700)
    environment = dict(os.environ, HOME=home, PATH=os.pathsep.join((stubs, installed, os.environ["PATH"])))
    ran = subprocess.run(["bash", "-euc", block("sh")], cwd=ROOT, env=environment, capture_output=True, text=True,
                         stdin=subprocess.DEVNULL, timeout=120)
    expect(ran.returncode == 0, "the quick start must go through", ran.stdout, ran.stderr)
    for tool in ("read_text_file", "list_directory", "write_file"):
        expect("registered %s as files_%s" % (tool, tool) in ran.stdout, "check must list the tool", tool, ran.stdout)
    entry = json.loads(block("json").replace("/home/you", home))["mcpServers"]["gated"]
    host = Host([entry["command"], *entry["args"]], os.path.join(root, "stderr"))
    names = [t["name"] for t in host.tools()]
    expect(names == ["files_list_directory", "files_read_text_file", "files_write_file", "gate_status"], "the tools", names)
    listed = host.call("files_list_directory", {"path": os.path.join(home, "notes")})
    expect(listed.prefix == "RESULT" and not listed.is_error, "a read must run", listed)
    expect(host.close() == 0, "the proxy must end with 0")


def scenes():
    """Every scene by name, in the order in which they are told."""
    found = {}
    for name in REAL_HOSTS:
        label = "%s: lists, reads, asks, is approved, collects, writes once" % name
        found[label] = lambda root, name=name: a_host_reads_asks_collects_and_writes_once(root, name)
    for scene in (the_time_server_answers_through_the_gate, the_git_server_commits_once_approved,
                  the_everything_server_answers_through_the_gate, pins_are_per_tool_when_a_server_lists_by_capabilities,
                  four_servers_stand_behind_one_gate, an_upstream_killed_in_a_payment_leaves_it_unknown,
                  a_proxy_killed_leaves_no_process_and_the_next_one_serves, a_stubborn_server_does_not_outlive_its_proxy,
                  a_terminated_proxy_ends_cleanly, the_readme_s_quick_start_works_as_it_stands):
        found[scene.__name__.replace("_", " ")] = scene
    for reads in (False, True):
        label = "a real upstream killed behind a launcher, in a %s" % ("read" if reads else "mutation")
        found[label] = lambda root, reads=reads: a_real_upstream_killed_behind_a_launcher(root, reads)
    return found
