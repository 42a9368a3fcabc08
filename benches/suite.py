"""Benchmark suites: kernel and shim interleaved in one run (A B A B), medians, spread, ratio first.

A row whose spread ((max - min) / median) is over 0.3 is printed as noisy and judged neither way. The share of connections
that the stack served is stated; below 100 % every row of the run fails.
"""

import argparse
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "apps"))

from harness import SERVER, Lab, wait_for  # noqa: E402

PORT = 6379
NOISY = 0.3
MIB = 1 << 20
KERNEL, KNET = "kernel", "knet"


def say(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)


def threads(pid):
    return [int(name) for name in os.listdir(f"/proc/{pid}/task")] if pid else []


def cpu_ns(pid):
    """CPU time of all threads of a process so far."""
    total = 0
    for thread in threads(pid):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as file:
            total += int(file.read().split()[0])
    return total


def resident(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        for line in file:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    return 0


def placement(pid):
    """Names of a process's threads with the CPUs each may use."""
    found = []
    for thread in threads(pid):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/comm", encoding="ascii") as file:
            cpus = ",".join(map(str, sorted(os.sched_getaffinity(thread))))
            found.append(f"{file.read().strip()} on CPU {cpus}")
    return found


def find(lab, comm):
    for pid in os.popen(f"ip netns pids knet-{lab.name}-s").read().split():
        with contextlib.suppress(OSError), open(f"/proc/{pid}/comm", encoding="ascii") as file:
            if file.read().startswith(comm):
                return int(pid)
    return None


class NamedLab(Lab):
    """A lab whose name is chosen: two of them are up at once."""

    def __init__(self, device, name):
        self.wanted = name
        super().__init__(device)

    @property
    def name(self):
        return self.wanted

    @name.setter
    def name(self, _):
        pass


class Side:
    """One Redis in a lab of its own, on the kernel or under the shim."""

    count = 0

    def __init__(self, label, device):
        self.label = label
        Side.count += 1
        self.lab = NamedLab(device, f"b{os.getpid()}-{Side.count}")
        try:
            self.begin()
        except BaseException:
            self.lab.close()
            raise

    def begin(self):
        # The link is up and the peer's first ARP requests are over: what is measured is the server.
        time.sleep(1.2)
        kernel = ["--kernel"] if self.label == KERNEL else []
        begin = time.monotonic()
        self.lab.start(
            "server", *kernel, "taskset", "-c", "0", "redis-server", "--port", str(PORT), "--bind", SERVER, "--protected-mode",
            "no", "--save", "", "--appendonly", "no", "--maxclients", "20000", "--dir", self.lab.work, log="redis.log",
        )
        wait_for("redis answers", self.answers, 20)
        self.ready_s = time.monotonic() - begin
        self.redis = find(self.lab, "redis-server")
        self.host = find(self.lab, "knetd")
        self.resident = resident(self.redis)
        self.host_resident = resident(self.host) if self.host else 0

    def answers(self):
        # A SYN that came too early is not waited for: the next one goes 20 ms later.
        try:
            peer = self.lab.connect(PORT, 0.02)
            peer.settimeout(1)
            peer.sendall(b"PING\r\n")
            good = peer.recv(16).startswith(b"+PONG")
            peer.close()
            return good
        except OSError:
            return False

    def ask(self, *words):
        peer = self.lab.connect(PORT)
        peer.sendall((" ".join(words) + "\r\n").encode())
        text = peer.recv(1 << 16).decode()
        peer.close()
        return text

    def received(self):
        return int(self.ask("INFO", "stats").split("total_connections_received:")[1].split()[0])

    def cpu_ns(self):
        return cpu_ns(self.redis) + cpu_ns(self.host)

    def benchmark(self, clients, requests, depth):
        """Figures of SET and GET, and the CPU time that the server's side took for a request of both."""
        before = self.cpu_ns()
        out = self.lab.client(
            "taskset", "-c", "1", "redis-benchmark", "-h", SERVER, "-p", str(PORT), "-t", "set,get", "-c", str(clients), "-n",
            str(requests), "-r", "100000", "--csv", "-P", str(depth), seconds=240,
        )
        spent = (self.cpu_ns() - before) / 1000 / (2 * requests)
        result = {}
        for line in out.splitlines():
            parts = [part.strip('"') for part in line.split(",")]
            if parts[0] in ("SET", "GET"):
                result[parts[0]] = {"rps": float(parts[1]), "p50_ms": float(parts[4]), "p99_ms": float(parts[6])}
        if len(result) != 2:
            raise AssertionError(f"redis-benchmark said: {out}")
        result["server"] = {"cpu_us": spent}
        return result

    def descriptors_of(self, count):
        """Descriptors that `count` connections add to the server."""
        path = f"/proc/{self.redis}/fd"
        before = len(os.listdir(path))
        peers = [self.lab.connect(PORT) for _ in range(count)]
        try:
            peers[-1].sendall(b"PING\r\n")
            peers[-1].recv(16)
            return len(os.listdir(path)) - before
        finally:
            for peer in peers:
                peer.close()

    def close(self):
        self.lab.close()


class Results:
    """Raw values by case and unit, and the rows that come of them."""

    def __init__(self, suite):
        self.suite = suite
        self.raw = {}
        self.rows = []

    def add(self, case, unit, side, value):
        self.raw.setdefault((case, unit), {}).setdefault(side, []).append(value)

    def compare(self, bounds):
        """One row a case: the ratio of the medians. `bounds` gives (bound on the ratio, more is better) or None."""
        for (case, unit), values in self.raw.items():
            kernel, knet = (statistics.median(values[side]) for side in (KERNEL, KNET))
            limit = bounds(case, unit)
            ratio = knet / kernel if kernel else 0.0
            good = limit and (ratio >= limit[0] if limit[1] else ratio <= limit[0])
            self.row(case, unit, kernel, knet, ratio, limit and limit[0], good, spread(values), values)

    def differ(self, case, unit, values, most):
        """One row whose bound is on how much more the shim takes than the kernel."""
        kernel, knet = (statistics.median(values[side]) for side in (KERNEL, KNET))
        self.row(f"{case} (bound: kernel + {most:g})", unit, kernel, knet, None, most, knet - kernel <= most, 0.0, values)

    def row(self, case, unit, kernel, knet, ratio, bound, good, spread_, values):
        noisy = ratio is not None and spread_ > NOISY
        self.rows.append({
            "suite": self.suite, "case": case, "unit": unit, "kernel": kernel, "knet": knet, "ratio": ratio, "spread": spread_,
            "bound": bound, "noisy": noisy, "pass": None if bound is None or noisy else bool(good), "raw": values,
        })


def spread(values):
    """The larger of both sides' (max - min) / median."""
    return max((max(v) - min(v)) / statistics.median(v) if statistics.median(v) else 0.0 for v in values.values())


def redis(options):
    cases = [(50, 1), (1000, 1), (1, 1), (50, 16), (100, 1), (10_000, 1)]
    results = Results("redis")
    starts = {side: {"ready": [], "rss": [], "host": []} for side in (KERNEL, KNET)}

    def start(label):
        say(f"redis: start on the {label if label == KERNEL else 'shim, ' + options.device}")
        side = Side(label, options.device)
        starts[label]["ready"].append(side.ready_s)
        starts[label]["rss"].append(side.resident / MIB)
        starts[label]["host"].append(side.host_resident / MIB)
        return side

    for _ in range(options.starts - 1):
        for label in (KERNEL, KNET):
            start(label).close()
    sides = []
    try:
        for label in (KERNEL, KNET):
            sides.append(start(label))
        kernel, knet = sides
        made, accepted = knet.received(), knet.lab.stats().get("flows_accepted", 0)
        opens = knet.lab.kernel_tcp()["PassiveOpens"]
        fds = {side.label: [side.descriptors_of(500) / 500] for side in sides}
        for round_number in range(options.rounds):
            for clients, depth in cases:
                if clients == 10_000 and round_number >= max(1, options.rounds // 2):
                    continue
                # Making the connections is a small part of it.
                requests = options.requests // 10 if clients == 1 else max(options.requests, 20 * clients)
                for side in sides:
                    say(f"redis: round {round_number + 1} of {options.rounds}: {side.label}, {clients} clients, -P {depth}")
                    for test, figures in side.benchmark(clients, requests, depth).items():
                        for unit, value in figures.items():
                            results.add(f"{test} -c {clients} -P {depth}", unit, side.label, value)
        # The second question made one connection more than the first one knew of.
        connections = knet.received() - made
        served = knet.lab.stats().get("flows_accepted", 0) - accepted
        share = 1.0 if served >= connections else served / connections
        if knet.lab.kernel_tcp()["PassiveOpens"] != opens:
            share = 0.0
        results.compare(redis_bound)
        scale(results)
        results.differ("ready after", "s", {side: starts[side]["ready"] for side in starts}, 0.5)
        results.differ("program RSS, no connection", "MiB", {side: starts[side]["rss"] for side in starts}, 8)
        results.differ("host RSS, no connection", "MiB", {side: starts[side]["host"] for side in starts}, 120)
        results.differ("descriptors a connection", "", fds, 0.02)
        after = {side.label: [resident(side.redis) / MIB] for side in sides}
        results.row("program RSS, after all of it", "MiB", after[KERNEL][0], after[KNET][0], None, None, None, 0.0, after)
        results.row("host RSS, after all of it", "MiB", 0.0, resident(knet.host) / MIB, None, None, None, 0.0, {})
        for row in results.rows:
            row["served_by_stack"] = share
            if share < 1.0:
                row["pass"] = False
        where = placement(kernel.redis)[:1] + placement(knet.redis)[:1] + placement(knet.host)
        say(f"progress dedicated, idle adaptive; kernel: {where[0]}; shim: {'; '.join(where[1:])}; redis-benchmark on CPU 1")
    finally:
        for side in sides:
            side.close()
    return results.rows


def scale(results):
    """What 10 000 connections cost a request, against 100: the time between two answers, of the same side."""
    for test in ("SET", "GET"):
        few, many = (results.raw[(f"{test} -c {clients} -P 1", "rps")] for clients in (100, 10_000))
        cost = {side: statistics.median(few[side]) / statistics.median(many[side]) for side in (KERNEL, KNET)}
        noise = max(spread({KNET: few[KNET]}), spread({KNET: many[KNET]}))
        results.rows.append({
            "suite": results.suite, "case": f"{test} 10000 clients against 100, time a request (bound on the shim's own)",
            "unit": "x", "kernel": cost[KERNEL], "knet": cost[KNET], "ratio": None, "spread": noise, "bound": 1.5,
            "noisy": noise > NOISY, "pass": None if noise > NOISY else cost[KNET] <= 1.5, "raw": {},
        })


def redis_bound(case, unit):
    """(bound on the ratio, whether more is better); None = reported only."""
    if case.endswith("-c 50 -P 1") and unit == "rps":
        return (0.5, True)
    if case.endswith("-c 1 -P 1") and unit == "p50_ms":
        return (1.5, False)
    return None


def preload(options):
    """`true` with and without the library in front, interleaved."""
    library = os.path.join(ROOT, "target", os.environ.get("KNET_BUILD", "release"), "libknet_frame.so")
    results = Results("preload")
    for _ in range(60 * options.rounds):
        for side, more in ((KERNEL, {}), (KNET, {"LD_PRELOAD": library})):
            begin = time.perf_counter()
            subprocess.run(["/bin/true"], check=True, env={**os.environ, **more})
            results.add("true", "ms", side, (time.perf_counter() - begin) * 1000)
    results.differ("true", "ms", results.raw[("true", "ms")], 2)
    return results.rows


SUITES = {"redis": redis, "preload": preload}


def show(rows):
    print(f"{'ratio':>7} {'kernel':>12} {'knet':>12} {'unit':7} {'spread':>6} {'bound':>6} {'':6} case")
    for row in rows:
        verdict = "noisy" if row["noisy"] else {True: "pass", False: "FAIL", None: ""}[row["pass"]]
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
        limit = "" if row["bound"] is None else f"{row['bound']:.2f}"
        print(f"{ratio:>7} {row['kernel']:>12.2f} {row['knet']:>12.2f} {row['unit']:7} {row['spread']:>6.2f} {limit:>6} {verdict:6} "
              f"{row['suite']}: {row['case']}")
    shares = [row["served_by_stack"] for row in rows if "served_by_stack" in row]
    if shares:
        print(f"served by the stack: {min(shares):.0%} of connections")


def main():
    parser = argparse.ArgumentParser(prog="scripts/bench.sh", description=__doc__.splitlines()[0])
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"one or more of {', '.join(SUITES)} (default: all)")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of kernel, shim, kernel, shim ... (default 5)")
    parser.add_argument("--starts", type=int, default=3, help="starts of each server that are timed (default 3)")
    parser.add_argument("--requests", type=int, default=50_000, help="requests a run (a tenth for one client)")
    parser.add_argument("--device", default="af_xdp", choices=["af_packet", "af_xdp"])
    options = parser.parse_args()
    for suite in options.suites:
        if suite not in SUITES:
            parser.error(f"no suite '{suite}': {', '.join(SUITES)}")
    if options.rounds < 1 or options.starts < 1 or options.requests < 100:
        parser.error("at least one round, one start and 100 requests")
    # 10 000 clients.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard < 11_000:
        say(f"only {hard} descriptors (ulimit -Hn): the case of 10 000 clients will fail")
    rows = []
    for suite in options.suites or SUITES:
        rows += SUITES[suite](options)
    show(rows)
    if options.json:
        with open(options.json, "w", encoding="ascii") as file:
            json.dump({"rows": rows}, file, indent=1)
    sys.exit(1 if any(row["pass"] is False for row in rows) else 0)


if __name__ == "__main__":
    main()
