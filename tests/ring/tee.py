#!/usr/bin/env python3
"""Stands between a proxy and a real server, and writes down what reaches the server.

Usage: tee.py LOG [--stubborn] -- COMMAND [ARGUMENT...]

Each line that the server was given is appended to LOG after the server has it, so a line in LOG is a request that really
arrived. Like the launchers that people configure, it makes the server a grandchild of the proxy. With `--stubborn` it also
ignores a polite end, and starts a sleeper that no closed pipe would wake: what is left of them is the proxy's to clear away.
"""
import os
import signal
import subprocess
import sys
import threading


def copy(source, sink, log=None):
    for line in source:
        try:
            sink.write(line)
            sink.flush()
        except (OSError, ValueError):
            return
        if log:
            log.write(line)
            log.flush()


def main():
    split = sys.argv.index("--")
    log_path, stubborn, command = sys.argv[1], "--stubborn" in sys.argv[2:split], sys.argv[split + 1:]
    if stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def feed():
        with open(log_path, "ab") as log:
            copy(sys.stdin.buffer, server.stdin, log)
        if not stubborn:
            server.stdin.close()

    threading.Thread(target=feed, daemon=True).start()
    copy(server.stdout, sys.stdout.buffer)
    # The feeding thread may still hold standard input, so nothing is wound up.
    os._exit(server.wait() & 0xFF)


if __name__ == "__main__":
    main()
