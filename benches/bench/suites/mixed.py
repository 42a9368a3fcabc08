"""Services that run together are measured together: Redis while two more clients move bulk, one each way, with capture, telemetry
and the payload stage on, against the same Redis and the same bulk without them. Values of 3 B to 8 KiB on MTU 9000: frames of 64 B
to 9000 B.

The kernel's side has the same load, and nothing on. `with` and `without` are two servers under the shim, each in a lab of its own.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading

from ..rows import AT_LEAST, KERNEL, KNET, Results
from ..world import ROOT, SERVER, wait_for
from .redis import PORT, Redis

CLIENTS = 50
SIZES = (3, 64, 256, 1024, 1400, 8192)
BULK = 100_000
# A graph on the wall asks so often; here ten times as often.
TELEMETRY_S = 0.1
WITH, WITHOUT = "with", "without"
SERVICES = "capture, telemetry, payload stage"


def seconds(options):
    return 40 + options.rounds * len(sizes(options)) * 3 * 5


def sizes(options):
    return SIZES[:1] if options.smoke else SIZES


def run(options, progress):
    results = Results("mixed")
    progress.step(40, "mixed: start three servers")
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="knet-mixed-"))
        worlds = []
        for label, on in ((KERNEL, None), (KNET, None), (KNET, folder)):
            worlds.append(stack.enter_context(contextlib.closing(Mixed(label, options, on))))
        one_after_the_other(options, progress, results, worlds)
        for world in worlds:
            world.describe(results, "")
    results.compare(bound)
    return results.done()


def one_after_the_other(options, progress, results, worlds):
    requests = options.requests if options.smoke else options.requests // 2
    for turn in range(options.rounds):
        for size in sizes(options):
            rates = {}
            for world in worlds:
                progress.step(5, f"mixed: round {turn + 1} of {options.rounds}: {world.name}, {size} B")
                with world.under_load():
                    figures = world.benchmark(CLIENTS, requests, 1, size)
                rates[world.name] = figures["SET"]["rps"], figures["GET"]["rps"]
            for at, test in enumerate(("SET", "GET")):
                plain, full, kernel = (rates[name][at] for name in (WITHOUT, WITH, KERNEL))
                results.add(f"{test} -d {size}, {SERVICES}, against the kernel", "rps", KERNEL, kernel)
                results.add(f"{test} -d {size}, {SERVICES}, against the kernel", "rps", KNET, full)
                # The two sides of this row are both the shim's.
                results.add(f"{test} -d {size}, {SERVICES}, against the shim without", "rps", KERNEL, plain)
                results.add(f"{test} -d {size}, {SERVICES}, against the shim without", "rps", KNET, full)


def bound(case, _):
    return (0.7, None, AT_LEAST) if case.endswith("against the shim without") else None


class Mixed(Redis):
    """A redis-server, a server for bulk beside it, and perhaps the services."""

    def __init__(self, label, options, services):
        self.name = KERNEL if label == KERNEL else WITH if services else WITHOUT
        self.services = services
        super().__init__(label, options, "one", mtu=9000, device="af_packet")

    def start(self, *command, ready=None):
        if self.services:
            self.add_stage()
        super().start(*command, ready=ready)
        return self

    def add_stage(self):
        """A rules file of a thousand words, none of which comes along."""
        rules = os.path.join(self.services, "rules")
        with open(rules, "w", encoding="ascii") as file:
            file.writelines(f"forbidden-word-{number}\n" for number in range(1000))
        path = os.path.join(self.lab.state, "server.conf")
        with open(path, encoding="ascii") as file:
            config = json.load(file)
        config["gpu"] = {"enabled": True, "pipeline": [{"kernel": "pattern", "patterns_file": rules}]}
        with open(path, "w", encoding="ascii") as file:
            json.dump(config, file)

    @contextlib.contextmanager
    def under_load(self):
        """Bulk both ways by one client, and the services."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.streams())
            if self.services:
                stack.enter_context(self.capture())
                stack.enter_context(self.telemetry())
            yield

    @contextlib.contextmanager
    def streams(self):
        """A value of 100 KB is stored and fetched all the time, by a client each."""
        endless = self.command("redis-benchmark", "-h", SERVER, "-p", str(PORT), "-c", "1", "-n", "1000000000", "-q")
        ways = ("SET", "bulk", "b" * BULK), ("GET", "bulk")
        with contextlib.ExitStack() as stack:
            for words in ways:
                process = stack.enter_context(subprocess.Popen([*endless, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
                stack.callback(process.kill)
                self.made += 1
            wait_for("the bulk flows", lambda: self.fetched() >= BULK, 20)
            yield

    def fetched(self):
        """Bytes of the value in bulk."""
        with contextlib.closing(self.lab.connect(PORT)) as peer:
            self.made += 1
            peer.sendall(b"STRLEN bulk\r\n")
            answer = peer.recv(64)
        return int(answer[1:].split(b"\r")[0]) if answer.startswith(b":") else 0

    @contextlib.contextmanager
    def capture(self):
        knetctl = os.path.join(ROOT, "target", os.environ.get("KNET_BUILD", "release"), "knetctl")
        path = os.path.join(self.services, "all.pcapng")
        words = [knetctl, "capture", "--socket", self.admin(), "-w", path]
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                yield
            finally:
                process.send_signal(signal.SIGINT)
                process.wait(10)
        size = os.path.getsize(path)
        if size < 10_000:
            raise AssertionError(f"the capture has {size} bytes")

    @contextlib.contextmanager
    def telemetry(self):
        """Asks DPDK's telemetry socket as a collector does."""
        over, answers = threading.Event(), []
        path = os.path.join(self.lab.state, "run-s", "dpdk", "knet", "dpdk_telemetry.v2:1")

        def ask():
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
                peer.settimeout(10)
                peer.connect(path)
                peer.recv(1 << 16)
                while True:
                    peer.send(b"/knet/stack/tcp_stat")
                    answers.append(peer.recv(1 << 16))
                    if over.wait(TELEMETRY_S):
                        break

        thread = threading.Thread(target=ask)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
        if not answers:
            raise AssertionError("the telemetry did not answer")

    def admin(self):
        folder = os.path.join(self.lab.state, "run-s")
        return next(os.path.join(folder, name) for name in os.listdir(folder) if name.startswith("host-") and name.endswith(".sock"))
