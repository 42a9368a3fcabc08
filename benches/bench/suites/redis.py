"""redis-server and redis-benchmark, unmodified: SET and GET, several numbers of clients, depths and value sizes."""

import contextlib
import os
import statistics
import time
from functools import partial

from .. import machine
from ..clock import say
from ..rows import AT_LEAST, AT_MOST, KERNEL, KNET, NOISY, Results, spread
from ..world import CLIENT_CPU, SERVER, World

PORT = 6379
SMALL, LARGE = 3, 1024
# Clients, pipeline depth, bytes of a value.
ONE_END = [(50, 1, SMALL), (1000, 1, SMALL), (1, 1, SMALL), (50, 16, SMALL), (50, 1, LARGE), (50, 16, LARGE), (100, 1, SMALL),
           (10_000, 1, SMALL)]
BOTH_ENDS = [(50, 1, SMALL), (100, 1, SMALL), (1000, 1, SMALL), (50, 16, SMALL), (50, 1, LARGE), (1000, 1, LARGE), (50, 16, LARGE)]
SMOKE = [(10, 1, SMALL)]


def cases(options, ends):
    if options.smoke:
        return SMOKE
    return ONE_END if ends == "one" else BOTH_ENDS


def wanted(options):
    return ("one", "both") if options.ends == "all" else (options.ends,)


def seconds(options):
    return sum(40 + options.rounds * len(cases(options, ends)) * 2 * 4 for ends in wanted(options))


def run(options, progress):
    rows = []
    for ends in wanted(options):
        rows += one_kind(options, progress, ends)
    return rows


class Redis(World):
    """A redis-server."""

    def __init__(self, label, options, ends, **how):
        super().__init__(label, options, ends=ends, **how)
        try:
            # The link is up and the peer's first ARP requests are over: what is measured is the server.
            time.sleep(1.2)
            begin = time.monotonic()
            self.start("redis-server", "--port", str(PORT), "--bind", SERVER, "--protected-mode", "no", "--save", "", "--appendonly",
                       "no", "--maxclients", "20000", "--dir", self.lab.work, ready=self.answers)
            self.ready_s = time.monotonic() - begin
            host = self.find("s", "knetd")
            self.resident = machine.resident(self.server)
            self.host_resident = machine.resident(host) if host else 0
        except BaseException:
            self.close()
            raise

    def answers(self):
        if self.ends == "both" and self.label == KNET:
            # Nobody on the kernel can ask.
            return self.listens()
        # A SYN that came too early is not waited for: the next one goes 20 ms later.
        with contextlib.suppress(OSError):
            peer = self.lab.connect(PORT, 0.02)
            peer.settimeout(1)
            peer.sendall(b"PING\r\n")
            good = peer.recv(16).startswith(b"+PONG")
            peer.close()
            return good
        return False

    def benchmark(self, clients, requests, depth, size):
        """Figures of SET and GET, and the CPU time that the server's side took for a request of both."""
        before = self.cpu_ns()
        out = self.lab.client(
            "taskset", "-c", str(CLIENT_CPU), "redis-benchmark", "-h", SERVER, "-p", str(PORT), "-t", "set,get", "-c", str(clients),
            "-n", str(requests), "-r", "100000", "--csv", "-P", str(depth), "-d", str(size), seconds=240,
        )
        spent = (self.cpu_ns() - before) / 1000 / (2 * requests)
        result = {}
        for line in out.splitlines():
            parts = [part.strip('"') for part in line.split(",")]
            if parts[0] in ("SET", "GET"):
                result[parts[0]] = {"rps": float(parts[1]), "ms p50": float(parts[4]), "ms p99": float(parts[6])}
        if len(result) != 2:
            raise AssertionError(f"redis-benchmark said: {out}")
        # Each test makes its clients anew, and the program asks for the config with one more.
        self.made += 2 * clients
        result["server"] = {"us CPU": spent}
        return result

    def descriptors_of(self, count):
        """Descriptors that a connection adds to the server."""
        path = f"/proc/{self.server}/fd"
        before = len(os.listdir(path))
        peers = [self.lab.connect(PORT) for _ in range(count)]
        self.made += count
        try:
            peers[-1].sendall(b"PING\r\n")
            peers[-1].recv(16)
            return (len(os.listdir(path)) - before) / count
        finally:
            for peer in peers:
                peer.close()


def one_kind(options, progress, ends):
    results = Results("redis")
    starts = {side: {"s ready": [], "program": [], "host": []} for side in (KERNEL, KNET)}
    worlds = []

    def start(label):
        say(f"redis: start on the {label}, {ends} accelerated")
        world = Redis(label, options, ends)
        starts[label]["s ready"].append(world.ready_s)
        starts[label]["program"].append(world.resident / machine.MIB)
        starts[label]["host"].append(world.host_resident / machine.MIB)
        return world

    progress.step(40, f"redis: starts, {ends} accelerated")
    for _ in range(options.starts - 1 if ends == "one" else 0):
        for label in (KERNEL, KNET):
            start(label).close()
    try:
        worlds = [start(KERNEL), start(KNET)]
        if ends == "one":
            several = 20 if options.smoke else 500
            fds = {world.label: [world.descriptors_of(several)] for world in worlds}
            results.differ("descriptors a connection", "", fds, 0.02)
        for turn in range(options.rounds):
            for clients, depth, size in cases(options, ends):
                if clients == 10_000 and turn >= max(1, options.rounds // 2):
                    continue
                requests = max(options.requests // 10 if clients == 1 else options.requests, 20 * clients)
                for world in worlds:
                    progress.step(4, f"redis: round {turn + 1} of {options.rounds}: {world.label}, {ends}, {clients} clients, -P {depth}, "
                                     f"{size} B")
                    taken, calm = options.calm.measured(partial(world.benchmark, clients, requests, depth, size))
                    for test, figures in taken.items():
                        for unit, value in figures.items():
                            results.add(f"{prefix(ends)}{test} -c {clients} -P {depth} -d {size}", unit, world.label, value, calm)
        results.compare(lambda case, unit: bound(options, case, unit))
        if ends == "one":
            if not options.smoke:
                scale(results)
            after_starts(results, starts, options.progress)
        for world in worlds:
            world.describe(results, "")
    finally:
        for world in worlds:
            world.close()
    return results.done()


def prefix(ends):
    return "both ends, " if ends == "both" else ""


def after_starts(results, starts, progress):
    memory = [("program", "program RSS, no connection", 8), ("host", "host RSS, no connection", 120)]
    if progress == "inline":
        # One process is both.
        memory = [("program", "program RSS, its loop's too, no connection", 8 + 120)]
    for key, case, unit, most in (("s ready", "ready after", "s", 0.5), *((key, case, "MiB", most) for key, case, most in memory)):
        results.differ(case, unit, {side: starts[side][key] for side in starts}, most)


def scale(results):
    """What 10 000 connections cost a request, against 100: the time between two answers, of the same side."""
    for test in ("SET", "GET"):
        few, many = (results.raw[(f"{test} -c {clients} -P 1 -d {SMALL}", "rps")] for clients in (100, 10_000))
        cost = {side: [statistics.median(few[side]) / statistics.median(many[side])] for side in (KERNEL, KNET)}
        noise = max(spread({KNET: few[KNET]}), spread({KNET: many[KNET]}))
        results.absolute(f"{test} 10000 clients against 100, time a request (bound on the shim's own)", "x", cost, (1.5, None, AT_MOST))
        row = results.rows[-1]
        row.update(spread=noise, noisy=noise > NOISY)
        if row["noisy"]:
            row["pass"] = None


def bound(options, case, unit):
    """Bound on the ratio; None = reported only. The issues' bounds for inline are not those of dedicated."""
    inline = options.progress == "inline"
    if case.startswith("both ends"):
        if unit != "rps" or not inline or "-P 1 -d 3" not in case:
            return None
        return {"1000": (4.5, 6.0, AT_LEAST), "50": (3.5, 4.0, AT_LEAST)}.get(case.split(" -c ")[1].split()[0])
    if "-c 50 -P 1 -d 3" in case and inline:
        return {"rps": (1.0, 1.3, AT_LEAST), "us CPU": (0.55, None, AT_MOST), "ms p99": (0.8, None, AT_MOST)}.get(unit)
    if "-c 50 -P 1 -d 3" in case and unit == "rps":
        return (0.5, None, AT_LEAST)
    if "-c 1 -P 1 -d 3" in case and unit == "ms p50":
        return (1.5, None, AT_MOST)
    return None


