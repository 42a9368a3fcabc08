"""Benchmark suites: kernel and shim interleaved in one run (A B A B), medians, spread, ratio first.

A row whose spread ((max - min) / median) is over 0.3 is noisy: it is judged neither way, and its suite runs again; after three
noisy runs it fails. The share of connections that the stack served is stated; below 100 % every row of the case fails.
"""

import argparse
import contextlib
import json
import os
import resource
import sys

if __package__ is None or not __package__:
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    __package__ = "bench"  # noqa: A001

from . import machine
from .calm import Calm
from .clock import Progress, say
from .report import write
from .rows import merge
from .suites import SUITES
from .table import show


def parse():
    parser = argparse.ArgumentParser(prog="scripts/bench.sh", description=__doc__.splitlines()[0])
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"one or more of {', '.join(SUITES)} (default: all)")
    parser.add_argument("--json", metavar="FILE", help="rows and raw rounds")
    parser.add_argument("--report", metavar="DIR", help="one HTML page with plots")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of kernel, shim, kernel, shim ... (default 5)")
    parser.add_argument("--runs", type=int, default=3, help="runs of a suite at most, while a row with a bound is noisy (default 3)")
    parser.add_argument("--progress", default="dedicated", choices=["dedicated", "inline"])
    parser.add_argument("--device", default="af_xdp", choices=["af_packet", "af_xdp"], help="port when only the server is accelerated")
    parser.add_argument("--ends", default="all", choices=["one", "both", "all"], help="redis: which ends are accelerated")
    parser.add_argument("--starts", type=int, default=3, help="redis: starts of each server that are timed (default 3)")
    parser.add_argument("--requests", type=int, default=100_000, help="redis: requests a run (a tenth for one client)")
    parser.add_argument("--flows", type=int, default=1_000_000, help="flows: the largest number")
    parser.add_argument("--connections", type=int, default=1000, help="memory: idle connections (the bound names 100000)")
    parser.add_argument("--ahead", action="store_true", help="both sides at nice -20 and kernel.sched_autogroup_enabled off meanwhile, "
                        "so that neighbours disturb less; the settings come back at the end (root)")
    parser.add_argument("--patience", type=float, default=10, metavar="S", help="redis, pingpong, stream, connrate, cpu: seconds that a "
                        "measurement waits for CPUs that no neighbour shares, or is taken again; 0: do not look (default 10)")
    parser.add_argument("--smoke", action="store_true", help="tiny, one round: whether it works at all, the figures mean nothing")
    options = parser.parse_args()
    for suite in options.suites:
        if suite not in SUITES:
            parser.error(f"no suite '{suite}': {', '.join(SUITES)}")
    if options.smoke:
        options.rounds, options.runs, options.starts, options.requests = 1, 1, 1, 500
    if options.smoke:
        options.patience = 0
    if options.patience < 0:
        parser.error("--patience: seconds, not below 0")
    if min(options.rounds, options.starts, options.runs) < 1 or options.requests < 100:
        parser.error("at least one round, one run, one start and 100 requests")
    options.calm = None
    if options.ahead and os.geteuid() != 0:
        parser.error("--ahead needs root")
    return options


def run(suite, options, progress):
    """The rows of a suite, run again while rows with a bound are noisy."""
    runs = []
    while True:
        runs.append(SUITES[suite].run(options, progress))
        noisy = [row for row in merge(runs) if row["noisy"] and row["bound"] is not None]
        if not noisy or len(runs) >= options.runs:
            return merge(runs)
        progress.expect(SUITES[suite].seconds(options))
        say(f"{suite}: {len(noisy)} rows with a bound are noisy, once more")


def descriptors(wanted):
    """Lets every program have so many descriptors, as far as the limits go (root may raise them)."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(hard, wanted), max(hard, wanted)))
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    say(f"only {hard} descriptors (ulimit -Hn), {wanted} are wanted: some cases will fail")


def measure(suites, options, progress):
    """The rows of all suites, and whether Ctrl-C came before the end: what was measured whole is not lost."""
    rows = []
    for suite in suites:
        try:
            options.calm = options.calm or Calm(options.patience)
            rows += run(suite, options, progress)
        except KeyboardInterrupt:
            say(f"stopped in {suite}; shown are the suites before it")
            return rows, True
    return rows, False


def main():
    options = parse()
    descriptors(11_000)
    progress = Progress()
    wanted = options.suites or list(SUITES)
    for suite in wanted:
        progress.expect(SUITES[suite].seconds(options))
    with machine.ahead_of_others() if options.ahead else contextlib.nullcontext():
        rows, stopped = measure(wanted, options, progress)
    show(rows)
    if options.json:
        with open(options.json, "w", encoding="ascii") as file:
            json.dump({"rows": rows}, file, indent=1)
    if options.report:
        say(f"report: {write(rows, options.report)}")
    if stopped:
        sys.exit(130)
    sys.exit(1 if any(row["pass"] is False for row in rows) else 0)


if __name__ == "__main__":
    main()
