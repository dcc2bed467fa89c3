#!/usr/bin/env python3
"""Compares what a proxy does with what the specification says, and with another program that claims to do the same.

  compare.py                               our binary against expected.json
  compare.py --a holdpoint=PATH --b agentrt=agentrt-proxy,agentrt
                                           two programs: the same stories, the answers, effects, rows and events side by side,
                                           and each program's database under the other's operator command
  compare.py --reference                   as the second, with the reference installed at its exact versions if it can be had

Everything here is Python's standard library and was written from the specification, not from either program. `--json` prints
what was seen. The last line is `N passed, N failed`; the exit status is 1 if anything failed.
"""
import argparse
import concurrent.futures
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback

from canonical import canonical, link, parse, sha256
from program import HERE, Program, World
from record import Record
from scenarios import STORIES

REFERENCE = (
    "github.com/joeylking/agent-runtime/cmd/agentrt@v0.5.0",
    "github.com/joeylking/agent-runtime/proxy/cmd/agentrt-proxy@v0.2.0",
)
DEFAULT = os.environ.get("HOLDPOINT_BIN", os.path.join(HERE, "..", "..", "target", "debug", "holdpoint"))


def tell(program, name, root):
    """Tells one story to one program and returns what was seen, or why it could not be told to its end."""
    world = World(program, os.path.join(root, name))
    seen, began = {}, time.monotonic()
    try:
        STORIES[name](world)
        world.end()
        record = Record(world.database)
        seen = {
            "answers": world.answers,
            "effects": world.effects(),
            "facts": world.facts,
            "runs": record.outline(),
            "calls": record.calls(),
        }
        return {"seen": seen, "rows": record.rows(), "wrong": record.checks(), "seconds": time.monotonic() - began}
    except Exception as error:  # a story that cannot be told is a finding like any other
        where = traceback.extract_tb(error.__traceback__)[1]
        wrong = "after %s, in line %s of its story: %s: %s" % (world.answers, where.lineno, type(error).__name__, error)
        return {"seen": seen, "rows": [], "wrong": [wrong], "seconds": time.monotonic() - began}
    finally:
        world.abandon()


def differences(a, b, path=""):
    """Where two JSON values differ, as `path: one | other`."""
    if isinstance(a, dict) and isinstance(b, dict):
        out = []
        for key in sorted(set(a) | set(b)):
            out += differences(a.get(key, "<absent>"), b.get(key, "<absent>"), "%s.%s" % (path, key))
        return out
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return [d for i, (x, y) in enumerate(zip(a, b)) for d in differences(x, y, "%s[%d]" % (path, i))]
    return [] if a == b else ["%s: %s | %s" % (path.lstrip("."), json.dumps(a), json.dumps(b))]


def tell_all(program, names, root, jobs):
    folder = tempfile.mkdtemp(prefix=program.name.split(",")[0] + "-", dir=root)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        return dict(zip(names, pool.map(lambda name: tell(program, name, folder), names)))


def report(title, results, compared):
    """Prints a line a story; `compared` maps a story to what is wrong with it. Returns passed and failed."""
    failed = 0
    for name, result in results.items():
        wrong = result["wrong"] + compared(name, result)
        failed += bool(wrong)
        print("%s %5.1fs  %s: %s" % ("FAIL" if wrong else "ok  ", result["seconds"], title, name.replace("_", " ")))
        for line in wrong[:40]:
            print("        %s" % line)
    return len(results) - failed, failed


def against_expectation(name, result, expected):
    if name not in expected:
        return ["expected.json has no such story"]
    return ["expected | seen  " + d for d in differences(expected[name], result["seen"])] if result["seen"] else []


def two(a, b, names, root, jobs):
    seen_a, seen_b = tell_all(a, names, root, jobs), tell_all(b, names, root, jobs)
    def compared(name, result):
        other = seen_b[name]
        return (other["wrong"] + differences(result["seen"], other["seen"])
                + differences(result["rows"], other["rows"], "rows"))
    totals = [report("%s | %s" % (a.name, b.name), seen_a, compared)]
    for crossed, own in ((a.with_operator(b), seen_a), (b.with_operator(a), seen_b)):
        results = tell_all(crossed, names, root, jobs)
        totals.append(report(crossed.name, results, lambda name, r: differences(own[name]["seen"], r["seen"])))
    return sum(p for p, _ in totals), sum(f for _, f in totals)


def install_reference(root):
    """Installs the reference's two commands, or says in one line that they can't be had."""
    go = shutil.which("go")
    if not go:
        print("reference: not compared, there is no go here")
        return None
    env = dict(os.environ, GOBIN=os.path.join(root, "reference"))
    for module in REFERENCE:
        done = subprocess.run([go, "install", module], env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=600)
        if done.returncode != 0:
            said = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no reason given"]
            print("reference: not compared, %s can't be had: %s" % (module, said[-1].strip()[:160]))
            return None
    binaries = [os.path.join(env["GOBIN"], name) for name in ("agentrt-proxy", "agentrt")]
    return Program.parse("agentrt=" + ",".join(binaries))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--a", default="holdpoint=" + DEFAULT, help="the program; the default is HOLDPOINT_BIN")
    parser.add_argument("--b", help="another program to hold it against")
    parser.add_argument("--reference", action="store_true", help="hold it against the reference too, if it can be had")
    parser.add_argument("--only", action="append", default=[], help="part of a story's name; may be repeated")
    parser.add_argument("--jobs", type=int, default=4, help="stories told at once, 4 by default")
    parser.add_argument("--json", action="store_true", help="print what was seen as JSON, and judge nothing")
    parser.add_argument("--keep", help="keep every story's files in this folder")
    options = parser.parse_args()
    names = [n for n in STORIES if not options.only or any(part in n for part in options.only)]
    if not names:
        parser.error("no story's name has that in it")
    root = tempfile.mkdtemp(prefix="compare-") if not options.keep else os.path.abspath(options.keep)
    os.makedirs(root, exist_ok=True)
    try:
        sys.exit(judge(options, names, root))
    finally:
        if not options.keep:
            shutil.rmtree(root, ignore_errors=True)


def golden():
    """Our own arithmetic against the golden values, so that agreement with it means something. Returns what is wrong."""
    def read(name):
        with open(os.path.join(HERE, "..", "..", "actors", "core", "tests", "vectors", name), encoding="utf-8") as f:
            return json.load(f)
    wrong = []
    for v in read("canonical-json.json")["vectors"]:
        if "canonical" in v and (canonical(parse(v["input"])) != v["canonical"] or sha256(v["canonical"]) != v["sha256"]):
            wrong.append("canonical form of %s" % v["input"][:60])
    for e in read("event-chain.json")["events"]:
        if link(*(e[k] for k in ("previous", "seq", "run_id", "step_id", "at", "type", "payload_json"))) != e["hash"]:
            wrong.append("the link of event %s" % e["seq"])
    approval = read("approval-hash.json")["approval"]
    if sha256(canonical(parse(approval["input"]))) != approval["sha256"]:
        wrong.append("the approval hash")
    return wrong


def judge(options, names, root):
    a = Program.parse(options.a)
    if options.json:
        told = tell_all(a, names, root, options.jobs)
        print(json.dumps({n: dict(told[n]["seen"], wrong=told[n]["wrong"], rows=told[n]["rows"]) for n in names}, indent=1))
        return 0
    with open(os.path.join(HERE, "expected.json"), encoding="utf-8") as f:
        expected = json.load(f)["stories"]
    wrong = golden()
    totals = [(not wrong, bool(wrong))]
    print("%s         arithmetic: the golden values come out%s" % ("FAIL" if wrong else "ok  ", "".join("\n        " + w for w in wrong)))
    told = tell_all(a, names, root, options.jobs)
    totals += [report(a.name, told, lambda name, r: against_expectation(name, r, expected))]
    others = [Program.parse(options.b)] if options.b else []
    if options.reference:
        others += [p for p in [install_reference(root)] if p]
    for index, b in enumerate(others):
        folder = os.path.join(root, "pair-%d" % index)
        os.makedirs(folder)
        totals.append(two(a, b, names, folder, options.jobs))
    passed, failed = sum(p for p, _ in totals), sum(f for _, f in totals)
    print("%d passed, %d failed" % (passed, failed))
    return 1 if failed else 0


if __name__ == "__main__":
    main()
