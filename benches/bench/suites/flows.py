"""The stack alone on the in-memory device (benches/flows.rs): 1 to 1 000 000 flows, prefetch on and off, and instruction counts."""

import json
import os
import re
import shutil
import subprocess
import tempfile

from .. import machine
from ..clock import say
from ..rows import AT_LEAST, KNET, Results
from ..world import ROOT

SIZES = (1, 100, 1_000, 10_000, 100_000, 1_000_000)
# Two pages and the tables of a flow.
BYTES_A_FLOW = 10_000
BOUNDS = {100_000: (0.6, 0.8, AT_LEAST), 1_000_000: (0.4, 0.6, AT_LEAST)}


def seconds(options):
    return 30 + options.rounds * 10


def binary():
    """Builds the benchmark and returns its path."""
    profile = ["--profile", "dev"] if os.environ.get("KNET_BUILD") == "debug" else []
    # With the benchmark cargo builds the programs of its package, and the library in front of others must be of the same build.
    subprocess.run(["cargo", "build", "--quiet", *(profile or ["--release"])], cwd=ROOT, stderr=subprocess.DEVNULL, check=True)
    out = subprocess.run(["cargo", "bench", *profile, "--bench", "flows", "--no-run", "--message-format", "json"], cwd=ROOT,
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout
    for line in out.splitlines():
        found = json.loads(line)
        if found.get("reason") == "compiler-artifact" and found["target"]["name"] == "flows" and found.get("executable"):
            return found["executable"]
    raise AssertionError("cargo built no benchmark 'flows'")


def measure(path, sizes, rounds, transactions, prefetch):
    words = [path, "--flows", ",".join(map(str, sizes)), "--rounds", str(rounds), "--transactions", str(transactions), "--prefetch",
             "on" if prefetch else "off"]
    out = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout
    return {line["flows"]: line for line in map(json.loads, out.splitlines())}


def run(options, progress):
    progress.step(seconds(options), "flows: build, then all sizes in turns")
    results = Results("flows")
    sizes = [size for size in SIZES if size <= (1_000 if options.smoke else options.flows)]
    while sizes[-1] * BYTES_A_FLOW > machine.available() * 0.8:
        say(f"flows: {sizes.pop()} flows left out, they need more memory than there is")
    path = binary()
    rounds, transactions = options.rounds, 2_000 if options.smoke else 100_000
    found = {prefetch: measure(path, sizes, rounds, transactions, prefetch) for prefetch in (True, False)}
    for prefetch, lines in found.items():
        base = lines[100]["ns"]
        how = "prefetch" if prefetch else "no prefetch"
        for size, line in lines.items():
            results.absolute(f"{size} flows, {how}", "ns", {KNET: line["ns"]})
            # Rounds in turns: the same round of the two sizes met the same machine.
            rates = {KNET: [few / many for few, many in zip(base, line["ns"])]}
            results.absolute(f"{size} flows, {how}: rate against 100", "x", rates, BOUNDS.get(size) if prefetch else None)
    results.absolute("tables of a flow", "bytes", {KNET: [found[True][100]["table_bytes"]]})
    results.absolute("last-level cache", "KiB", {KNET: [machine.last_level_cache() / 1024]})
    for name, value in instructions(path, options).items():
        results.absolute(name, "a request", {KNET: [value]})
    for row in results.rows:
        row.update(progress="none: the stack alone", threads=["wherever it runs"])
    return results.done()


def instructions(path, options):
    """What callgrind counts, which repeats: instructions and simulated cache misses of a request and its answer."""
    if shutil.which("valgrind") is None:
        say("flows: no valgrind, so no instruction counts")
        return {}
    found = {}
    for size in (100,) if options.smoke else (100, 10_000):
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "out")
            transactions = max(640, size)
            subprocess.run(
                ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", "--collect-atstart=no", "--cache-sim=yes",
                 "--toggle-collect=*serve_burst*", path, "--flows", str(size), "--rounds", "1", "--transactions", str(transactions)],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
            with open(out, encoding="utf-8") as file:
                text = file.read()
        events = re.search(r"^events: (.*)$", text, re.M)[1].split()
        totals = dict(zip(events, map(int, re.search(r"^(?:summary|totals): (.*)$", text, re.M)[1].split())))
        # A first pass over all flows is among it.
        burst = 32
        served = -(-max(size, burst) // burst) * burst + -(-transactions // burst) * burst
        found[f"callgrind, {size} flows: instructions"] = totals["Ir"] / served
        found[f"callgrind, {size} flows: misses of the last-level cache"] = (totals["DLmr"] + totals["DLmw"]) / served
        found[f"callgrind, {size} flows: misses of the first-level cache"] = (totals["D1mr"] + totals["D1mw"]) / served
    return found
