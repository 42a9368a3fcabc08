#!/usr/bin/env python3
"""Servers that execute their successors, and what becomes of a connection in a program that cannot go on with it."""

import os
import shutil
import signal
import subprocess
import time

import nginx_workers
from harness import SERVER, Lab, main, served, wait_for

HAPROXY = """
global
  nbthread 2
  stats socket {work}/haproxy.sock mode 600 level admin expose-fd listeners
defaults
  mode http
  timeout connect 5s
  timeout client 30s
  timeout server 30s
frontend web
  bind {server}:8081
  http-request return status 200 content-type text/plain string "{text}"
"""

STATIC = """
#include <unistd.h>
int main(void) { char byte; return read(5, &byte, 1) == 1 ? 0 : 3; }
"""

EXECS = """
import os, socket, sys
listener = socket.create_server((sys.argv[1], 8083))
print("ready", flush=True)
connection, _ = listener.accept()
os.dup2(connection.fileno(), 5)
print("gone", flush=True)
os.execv(sys.argv[2], [sys.argv[2]])
"""


class Labs:
    def __init__(self):
        self.lab = Lab()
        os.chmod(self.lab.work, 0o755)

    @property
    def processes(self):
        return self.lab.processes


def there(process):
    return os.path.exists(f"/proc/{process}/exe")


def master(web):
    """The pid in nginx' file; 0 while one is between two names."""
    try:
        return web.master
    except (FileNotFoundError, ValueError):
        return 0


def nginx_upgrade(labs):
    """USR2: the new binary gets the listeners by NGINX in a cleared environment; then the old one leaves. No request fails."""
    web = nginx_workers.Workers.__new__(nginx_workers.Workers)
    web.lab, web.conf, web.listen = labs.lab, os.path.join(labs.lab.work, "nginx.conf"), ""
    web.configure()
    with open(web.conf, encoding="ascii") as file:
        text = file.read()
    # `daemon off` starts no successor, by nginx' own rule.
    text = text.replace("daemon off;", "daemon on;").replace("worker_processes 4", "worker_processes 2")
    with open(web.conf, "w", encoding="ascii") as file:
        file.write(text)
    labs.lab.run("server", shutil.which("nginx"), "-c", web.conf)
    wait_for("nginx answers", web.answers, 15)
    try:
        with served(labs.lab, 50), nginx_workers.Load(web, 4) as load:
            for _ in range(2):
                old = web.master
                os.kill(old, signal.SIGUSR2)
                wait_for("the successor is there", lambda old=old: master(web) not in (0, old), 20)
                wait_for("it has workers", lambda: master(web) and len(web.workers()) >= 2, 20)
                os.kill(old, signal.SIGQUIT)
                wait_for("the old one has left", lambda old=old: not there(old), 30)
                seen = sum(load.seen.values())
                wait_for("more requests", lambda seen=seen: sum(load.seen.values()) > seen + 20, 20)
        assert not load.failed, load.failed[:3]
    finally:
        os.kill(web.master, signal.SIGTERM)
        wait_for("nginx has ended", lambda: not os.path.exists(os.path.join(labs.lab.work, "nginx.pid")), 15)


def haproxy_reload(labs):
    """Master and worker: the master executes itself, and the new worker gets the listeners from the old one by a socket."""
    conf = os.path.join(labs.lab.work, "haproxy.cfg")

    def configure(text):
        with open(conf, "w", encoding="ascii") as file:
            file.write(HAPROXY.format(work=labs.lab.work, server=SERVER, text=text))

    def ask():
        peer = labs.lab.connect(8081, 20)
        peer.sendall(b"GET / HTTP/1.0\r\n\r\n")
        answer = b""
        while part := peer.recv(65_536):
            answer += part
        peer.close()
        assert b" 200 " in answer.split(b"\n", 1)[0], answer
        return answer.rsplit(b"\r\n", 1)[1].decode()

    def answers(text):
        try:
            return ask() == text
        except OSError:
            return False

    def said(words):
        with open(os.path.join(labs.lab.work, "haproxy.log"), encoding="utf-8", errors="replace") as file:
            return file.read().count(words)

    configure("turn0")
    server = labs.lab.start("server", "haproxy", "-W", "-f", conf, log="haproxy.log")
    wait_for("haproxy answers", lambda: answers("turn0"), 15)
    with served(labs.lab, 20):
        for turn in range(1, 4):
            configure(f"turn{turn}")
            server.send_signal(signal.SIGUSR2)
            end = time.monotonic() + 30
            while ask() != f"turn{turn}":  # every answer is one: none fails meanwhile
                assert time.monotonic() < end, "the reload does not come"
            # A master that is still loading takes no further signal.
            wait_for("the old worker has left", lambda turn=turn: said("Former worker") == turn, 30)
    labs.lab.end(server)


def redis_restart(labs):
    """DEBUG RESTART closes what is open and executes the server anew."""
    server = labs.lab.start("server", shutil.which("redis-server"), "--bind", SERVER, "--port", "8082", "--save", "", "--protected-mode", "no",
                            "--enable-debug-command", "yes", log="redis.log")

    def ask(*words):
        return labs.lab.client("redis-cli", "-h", SERVER, "-p", "8082", *words, check=False).strip()

    wait_for("redis answers", lambda: ask("ping") == "PONG", 15)
    for _ in range(2):
        first = ask("info", "server")
        started = [line for line in first.splitlines() if line.startswith("run_id")]
        ask("debug", "restart")
        wait_for("the new one answers", lambda started=started: started[0] not in ask("info", "server") != "", 20)
    with served(labs.lab, 1):
        assert ask("ping") == "PONG"
    labs.lab.end(server)


def a_static_program_ends_the_connection(labs):
    """Nobody can go on with it: the peer sees the end, and a line says why."""
    source = os.path.join(labs.lab.work, "static.c")
    with open(source, "w", encoding="ascii") as file:
        file.write(STATIC)
    binary = source[:-2]
    subprocess.run(["gcc", "-static", "-O1", "-o", binary, source], check=True)
    server = labs.lab.start("server", "python3", "-c", EXECS, SERVER, binary, log="execs.log")
    log = os.path.join(labs.lab.work, "execs.log")

    def said(words):
        with open(log, encoding="utf-8", errors="replace") as file:
            return words in file.read()

    wait_for("it listens", lambda: said("ready"), 15)
    peer = labs.lab.connect(8083)
    assert peer.recv(1) == b"", "the end of the connection"
    peer.close()
    assert server.wait(20) == 3, "its twin is not connected"
    assert said("accelerated sockets end with this program: it is linked statically")


if __name__ == "__main__":
    main(
        "restart",
        [nginx_upgrade, haproxy_reload, redis_restart, a_static_program_ends_the_connection],
        Labs,
        lambda labs: labs.lab.close(),
    )
