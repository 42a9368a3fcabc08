#!/usr/bin/env python3
"""Redis in the confines of Debian's redis-server.service: alone, and with a host of the system outside. Needs root."""

import contextlib
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys

from harness import ROOT, SERVER, Lab, main, wait_for
from redis import Resp

sys.path.insert(0, os.path.join(ROOT, "tests", "support"))
import redis_unit

LAUNCHER = os.path.join(ROOT, "tests", "support", "redis_unit.py")
# The versions of systemd whose sets the table was made of (Debian 12).
TABLE_OF = re.compile(r"systemd 252\b")
# /run is this service's own; a host of the system listens in it, and is started again when it ends.
SERVICE = r"""
set -e
mount -t tmpfs none /run
build=$1 config=$2 log=$3 socket=/run/knet/knetd.sock
shift 3
keep() {
  unset LD_PRELOAD
  trap 'kill $host; wait $host; exit' TERM
  while true; do
    KNET_LOG="$log" "$build/knetd" --conf "$config" &
    host=$!
    until "$build/knetctl" stats --socket $socket >/dev/null 2>&1; do sleep 0.05; done
    chgrp redis $socket
    touch /run/ready
    wait $host || true
    sleep 0.5
  done
}
keep &
keeper=$!
trap 'kill $keeper; wait $keeper' EXIT
until [ -e /run/ready ]; do sleep 0.05; done
"$@"
"""


class Unit:
    def __init__(self):
        self.lab = Lab()
        self.port = 7400
        self.folder = os.path.join(self.lab.work, "redis")
        user = pwd.getpwnam("redis")
        os.chmod(self.lab.work, 0o755)
        os.mkdir(self.folder, 0o700)
        os.chown(self.folder, user.pw_uid, user.pw_gid)
        self.config = os.path.join(self.lab.work, "knet.conf")
        with open(f"{self.lab.state}/server.conf", encoding="ascii") as file, open(self.config, "w", encoding="ascii") as copy:
            copy.write(file.read())
        os.chmod(self.config, 0o644)
        self.build = os.path.join(ROOT, "target", os.environ.get("KNET_BUILD", "release"))

    @property
    def processes(self):
        return self.lab.processes

    def start(self, *confines, address, log, before=()):
        """Redis as the unit starts it, on a port that no other case uses, with nothing of an earlier case in its folder."""
        self.port += 1
        shutil.rmtree(os.path.join(self.folder, "appendonlydir"), ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.folder, "dump.rdb"))
        path = os.path.join(self.lab.work, log)
        with contextlib.suppress(OSError):
            os.unlink(path)
        return self.lab.start(
            "server", "env", f"KNET_CONF={self.config}", f"KNET_RUN_DIR={self.folder}", *before, sys.executable, LAUNCHER,
            *confines, "redis-server", "--port", str(self.port), "--bind", address, "--protected-mode", "no", "--save", "",
            "--dir", self.folder, "--supervised", "systemd", "--daemonize", "no", log=log,
        )

    def client(self, server, address=SERVER, end="c"):
        def connect():
            assert server.poll() is None, (server.returncode, lines(server))
            with contextlib.suppress(OSError):
                return Resp(self.lab.connect(self.port, 10, address, end))
            return None

        return wait_for("Redis answers", connect, 20)


def lines(process):
    with open(process.log, errors="replace", encoding="utf-8") as log:
        return log.read().splitlines()


def the_table_of_calls_is_systemds(_unit):
    try:
        version = subprocess.run(["systemd-analyze", "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout
    except FileNotFoundError:
        return "no systemd-analyze here"
    if not TABLE_OF.match(version):
        return f"the table is of systemd 252, here is {version.splitlines()[0]}"
    assert redis_unit.calls() == redis_unit.calls_of_systemd()
    return None


def works(client, folder):
    """What Redis does with threads, children, timers and files, beside its socket."""
    assert client.ask("SET", "key", "value") == "OK"
    assert client.ask("GET", "key") == b"value"
    big = os.urandom(3_000_000)
    assert client.ask("SET", "big", big) == "OK"
    assert client.ask("GET", "big") == big
    for _ in range(512):
        client.send("INCR", "n")
    assert [client.reply() for _ in range(512)] == list(range(1, 513))
    assert client.ask("BLPOP", "nothing", "0.2") is None
    assert "started" in client.ask("BGSAVE")
    wait_for("BGSAVE ends", lambda: b"rdb_bgsave_in_progress:0" in client.ask("INFO", "persistence"), 20)
    assert b"rdb_last_bgsave_status:ok" in client.ask("INFO", "persistence")
    assert os.path.getsize(os.path.join(folder, "dump.rdb")) > len(big)
    assert client.ask("CONFIG", "SET", "appendonly", "yes") == "OK"
    wait_for("the AOF is written", lambda: b"aof_rewrite_in_progress:0" in client.ask("INFO", "persistence"), 20)
    assert client.ask("CONFIG", "SET", "appendonly", "no") == "OK"
    assert client.ask("FLUSHALL", "ASYNC") == "OK"


def ends(unit, server, client):
    client.send("SHUTDOWN", "NOSAVE")
    with contextlib.suppress(EOFError, ConnectionResetError):
        client.reply()
    client.close()
    server.wait(10)
    assert server.returncode == 0, (server.returncode, lines(server))
    unit.lab.processes.remove(server)


def alone(unit, *confines):
    """A host that Redis starts is confined as well: it cannot open a port, and Redis is served by the kernel."""
    server = unit.start(*confines, address="0.0.0.0", log="alone.log")
    client = unit.client(server, "127.0.0.1", "s")
    works(client, unit.folder)
    told = [line for line in lines(server) if line.startswith("knet:")]
    assert len(told) == 1 and "kernel sockets are used" in told[0] and "service" in told[0], told
    ends(unit, server, client)


def the_filter_kills_and_redis_lives(unit):
    alone(unit)


def the_filter_refuses_and_redis_lives(unit):
    alone(unit, "--refuse", "1")


def a_host_that_may_not_be_executed(unit):
    """NoExecPaths=/ of the unit: only Redis and the libraries can be executed."""
    alone(unit, "--noexec", os.path.join(unit.build, "knetd"))


def a_host_of_the_system_serves_it(unit):
    log = os.path.join(unit.lab.work, "knetd.log")
    before = ("unshare", "-m", "bash", "-c", SERVICE, "service", unit.build, unit.config, log)
    server = unit.start(address=SERVER, log="served.log", before=before)
    kernel = unit.lab.kernel_tcp()
    clients = [unit.client(server) for _ in range(20)]
    for client in clients:
        assert client.ask("PING") == "PONG"
    works(clients[0], unit.folder)
    after = unit.lab.kernel_tcp()
    moved = {name: after[name] - kernel[name] for name in ("PassiveOpens", "InSegs") if after[name] != kernel[name]}
    assert not moved, f"the kernel served some: {moved}"
    assert not [line for line in lines(server) if line.startswith("knet:")], lines(server)
    out = subprocess.run(
        [os.path.join(unit.build, "knetctl"), "stats", "--socket", f"/proc/{host_of(unit)}/root/run/knet/knetd.sock"],
        stdout=subprocess.PIPE, text=True, check=True,
    ).stdout
    accepted = re.search(r"^(?:\w+\.)?flows_accepted (\d+)$", out, re.MULTILINE)
    assert accepted and int(accepted[1]) >= len(clients), out
    # The host dies and is started again: Redis loses its clients, not its port.
    old = host_of(unit)
    os.kill(int(old), signal.SIGKILL)
    for client in clients:
        client.close()

    def answers():
        with contextlib.suppress(OSError, EOFError):
            client = Resp(unit.lab.connect(unit.port, 1))
            if client.ask("PING") == "PONG":
                return client
        return None

    client = wait_for("Redis answers again", answers, 20)
    assert host_of(unit) != old
    ends(unit, server, client)


def host_of(unit):
    out = subprocess.run(
        ["ip", "netns", "pids", f"knet-{unit.lab.name}-s"], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.split()
    for pid in out:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/comm", encoding="ascii") as comm:
            if comm.read().startswith("knetd: system"):
                return pid
    raise AssertionError("no host of the system runs")


CASES = [
    the_table_of_calls_is_systemds, the_filter_kills_and_redis_lives, the_filter_refuses_and_redis_lives,
    a_host_that_may_not_be_executed, a_host_of_the_system_serves_it,
]

if __name__ == "__main__":
    main("unit", CASES, Unit, lambda unit: unit.lab.close())
