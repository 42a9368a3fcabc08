"""Benchmark suites: kernel and shim interleaved in one run (A B A B), medians, spread, ratio first.

A row whose spread ((max - min) / median) is over 0.3 is printed as noisy and judged neither way. Every row states the
share of connections that the stack served; below 100 % it fails.
"""

import argparse
import json
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests", "apps"))

from harness import SERVER, Lab, wait_for  # noqa: E402

PORT = 6379
NOISY = 0.3


def say(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)


def cpu_seconds(pid):
    """utime + stime of all threads of a process, in seconds."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        for line in file:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    return 0


def find(lab, comm):
    for pid in os.popen(f"ip netns pids knet-{lab.name}-s").read().split():
        try:
            with open(f"/proc/{pid}/comm", encoding="ascii") as file:
                if file.read().startswith(comm):
                    return int(pid)
        except OSError:
            pass
    return None


class Side:
    """One Redis in a lab of its own, on the kernel or under the shim."""

    def __init__(self, label, device, tag):
        self.label = label
        self.lab = NamedLab(device, f"b{os.getpid()}-{tag}")
        kernel = ["--kernel"] if label == "kernel" else []
        begin = time.monotonic()
        self.process = self.lab.start(
            "server", *kernel, "taskset", "-c", "0", "redis-server", "--port", str(PORT), "--bind", SERVER, "--protected-mode",
            "no", "--save", "", "--appendonly", "no", "--dir", self.lab.work, log="redis.log",
        )
        wait_for("redis answers", self.answers, 20)
        self.ready_s = time.monotonic() - begin
        self.redis = find(self.lab, "redis-server")
        self.host = find(self.lab, "knetd")

    def answers(self):
        try:
            peer = self.lab.connect(PORT, 0.5)
            peer.sendall(b"PING\r\n")
            good = peer.recv(16).startswith(b"+PONG")
            peer.close()
            return good
        except OSError:
            return False

    def received(self):
        peer = self.lab.connect(PORT)
        peer.sendall(b"INFO stats\r\n")
        text = peer.recv(1 << 16).decode()
        peer.close()
        return int(text.split("total_connections_received:")[1].split()[0])

    def benchmark(self, clients, requests, *options):
        out = self.lab.client(
            "taskset", "-c", "1", "redis-benchmark", "-h", SERVER, "-p", str(PORT), "-t", "set,get", "-c", str(clients), "-n",
            str(requests), "-r", "100000", "--csv", *options, seconds=240,
        )
        result = {}
        for line in out.splitlines():
            parts = [part.strip('"') for part in line.split(",")]
            if parts[0] in ("SET", "GET"):
                result[parts[0]] = {"rps": float(parts[1]), "p50_ms": float(parts[4]), "p99_ms": float(parts[6])}
        return result

    def close(self):
        self.lab.close()


class NamedLab(Lab):
    def __init__(self, device, name):
        self.wanted = name
        super().__init__(device)

    @property
    def name(self):
        return self.wanted

    @name.setter
    def name(self, _):
        pass


def redis(options):
    cases = [(50, 1), (1000, 1), (1, 1), (50, 16)]
    sides = [Side("kernel", "af_packet", "k"), Side("knet", options.device, "n")]
    rows, raw = [], {}
    try:
        made = sides[1].received()
        accepted = sides[1].lab.stats().get("flows_accepted", 0)
        for round_number in range(options.rounds):
            for clients, depth in cases:
                requests = options.requests // 10 if clients == 1 else options.requests
                for side in sides:
                    left = options.rounds - round_number
                    say(f"redis: {side.label}, {clients} clients, -P {depth}, {left} round(s) left")
                    for test, figures in side.benchmark(clients, requests, "-P", str(depth)).items():
                        for unit, value in figures.items():
                            raw.setdefault((test, clients, depth, unit), {}).setdefault(side.label, []).append(value)
        connections = sides[1].received() - made
        served = sides[1].lab.stats().get("flows_accepted", 0) - accepted
        share = min(1.0, served / max(1, connections))
        for (test, clients, depth, unit), values in raw.items():
            row = {"suite": "redis", "case": f"{test} -c {clients} -P {depth}", "unit": unit}
            row.update(judge(values, unit, bound(clients, depth, unit)))
            row["served_by_stack"] = share
            if share < 1.0:
                row["pass"] = False
            rows.append(row)
        rows.append(single("ready after", "s", sides[0].ready_s, sides[1].ready_s, sides[1].ready_s <= sides[0].ready_s + 0.5))
        grown = (resident(sides[1].redis) - resident(sides[0].redis)) / (1 << 20)
        rows.append(single("program RSS more", "MiB", 0, grown, grown <= 8))
        host = resident(sides[1].host) / (1 << 20) if sides[1].host else 0
        rows.append(single("host RSS", "MiB", 0, host, 0 < host <= 120))
    finally:
        for side in sides:
            side.close()
    return rows


def bound(clients, depth, unit):
    """(bound on the ratio, whether more is better); None = reported only."""
    if depth == 1 and clients == 50 and unit == "rps":
        return (0.5, True)
    if depth == 1 and clients == 1 and unit == "p50_ms":
        return (1.5, False)
    return None


def judge(values, unit, limit):
    kernel, knet = (statistics.median(values[side]) for side in ("kernel", "knet"))
    ratio = knet / kernel if kernel else 0.0
    spread = max((max(v) - min(v)) / statistics.median(v) if statistics.median(v) else 0.0 for v in values.values())
    row = {"kernel": kernel, "knet": knet, "ratio": round(ratio, 3), "spread": round(spread, 3), "raw": values}
    row["bound"] = limit[0] if limit else None
    row["noisy"] = spread > NOISY
    row["pass"] = None if limit is None or row["noisy"] else (ratio >= limit[0] if limit[1] else ratio <= limit[0])
    return row


def single(case, unit, kernel, knet, good):
    return {"suite": "redis", "case": case, "unit": unit, "kernel": round(kernel, 3), "knet": round(knet, 3), "ratio": None,
            "spread": 0.0, "bound": None, "noisy": False, "pass": good}


SUITES = {"redis": redis}


def main():
    parser = argparse.ArgumentParser(prog="scripts/bench.sh", description=__doc__.splitlines()[0])
    parser.add_argument("suites", nargs="*", default=["redis"], metavar="SUITE", help=f"one of {', '.join(SUITES)}")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--device", default="af_xdp", choices=["af_packet", "af_xdp"])
    options = parser.parse_args()
    rows = []
    for suite in options.suites:
        if suite not in SUITES:
            parser.error(f"no suite '{suite}': {', '.join(SUITES)}")
        rows += SUITES[suite](options)
    print(f"{'ratio':>7} {'kernel':>12} {'knet':>12} {'unit':7} {'spread':>6} {'bound':>6} {'':6} case")
    for row in rows:
        verdict = "noisy" if row["noisy"] else {True: "pass", False: "FAIL", None: ""}[row["pass"]]
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
        limit = "" if row["bound"] is None else f"{row['bound']:.2f}"
        print(f"{ratio:>7} {row['kernel']:>12.2f} {row['knet']:>12.2f} {row['unit']:7} {row['spread']:>6.2f} {limit:>6} {verdict:6} "
              f"{row['suite']}: {row['case']}")
    shares = [row["served_by_stack"] for row in rows if "served_by_stack" in row]
    if shares:
        print(f"served by the stack: {min(shares):.0%} of connections; progress dedicated, idle adaptive; redis-server and its host on "
              f"the CPUs that taskset -c 0 leaves them, client on CPU 1; device {options.device}")
    if options.json:
        with open(options.json, "w", encoding="ascii") as file:
            json.dump({"rows": rows}, file, indent=1)
    sys.exit(1 if any(row["pass"] is False for row in rows) else 0)


if __name__ == "__main__":
    main()
