#!/usr/bin/env python3
"""Each benchmark suite once, tiny: it runs, its rows have their shape, and the stack served every connection. Never a figure."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile

from harness import ROOT, main, wait_for

sys.path.insert(0, os.path.join(ROOT, "benches"))

from bench.calm import TAKES, Calm  # noqa: E402
from bench.rows import KERNEL, KNET, Results  # noqa: E402

AUTOGROUP = "/proc/sys/kernel/sched_autogroup_enabled"
FIELDS = {"suite", "case", "unit", "kernel", "knet", "ratio", "spread", "bound", "goal", "noisy", "pass", "raw", "progress", "threads"}


class Bench:
    processes = []


def suite(name, *more, least=1, served=True, title=None):
    def case(_):
        with tempfile.TemporaryDirectory(prefix="knet-bench-") as folder:
            file = os.path.join(folder, "rows.json")
            words = [sys.executable, os.path.join(ROOT, "benches", "bench"), name, "--smoke", "--json", file, "--report", folder, *more]
            done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=200, check=False)
            # 1 says that a bound was missed, and here no figure means anything.
            assert done.returncode in (0, 1), done.stderr[-2000:]
            assert os.path.exists(file), done.stderr[-2000:]
            with open(file, encoding="ascii") as text:
                rows = json.load(text)["rows"]
            check(name, rows, least, served)
            assert re.search(r"left: ", done.stderr), "no estimate of the time left"
            with open(os.path.join(folder, "index.html"), encoding="utf-8") as text:
                page = text.read()
            assert page.count("<svg") == 1 and "http" not in page, "the page is one plot and stands alone"

    case.__name__ = title or name
    return case


def check(name, rows, least, served):
    assert len(rows) >= least, f"{len(rows)} rows"
    for row in rows:
        assert FIELDS <= set(row), f"{row['case']}: no {FIELDS - set(row)}"
        assert row["suite"] == name
        for side in ("kernel", "knet"):
            assert row[side] is None or math.isfinite(row[side]), row
        assert row["threads"], row
        if served:
            assert row["served_by_stack"] == 1.0, row


def ahead_of_others_and_back(_):
    """`--ahead` changes a setting of the machine, also for a run that is told to stop, and puts it back."""
    if not os.path.exists(AUTOGROUP):
        return "this kernel weighs no sessions"
    with open(AUTOGROUP, encoding="ascii") as file:
        before = file.read()
    words = [sys.executable, os.path.join(ROOT, "benches", "bench"), "flows", "--ahead", "--flows", "100", "--rounds", "1000"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_for("the bench runs ahead", lambda: os.getpriority(os.PRIO_PROCESS, process.pid) == -20 or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130, said
    with open(AUTOGROUP, encoding="ascii") as file:
        assert file.read() == before


class Looks:
    """Paces of two CPUs as they are asked for, one after another; the last one stays."""

    def __init__(self, *paces):
        self.paces = list(paces)
        self.taken = 0

    def calm(self, patience=30):
        calm = Calm(patience, cpus=[0, 1], paces=lambda: [900.0, 880.0])
        calm.paces = lambda: self.paces.pop(0) if len(self.paces) > 1 else self.paces[0]
        return calm

    def take(self):
        self.taken += 1
        return self.taken


ALONE, SHARED = [890.0, 870.0], [890.0, 440.0]


def a_measurement_waits_for_cpus_that_nobody_shares(_):
    looks = Looks(SHARED, SHARED, ALONE)
    assert looks.calm().measured(looks.take) == (1, True)


def a_measurement_that_a_neighbour_joined_is_taken_again(_):
    looks = Looks(ALONE, SHARED, ALONE)
    assert looks.calm().measured(looks.take) == (2, True)


def a_neighbour_who_comes_each_time_is_named_and_ends_the_attempts(_):
    looks = Looks(ALONE, SHARED, ALONE, SHARED, ALONE, SHARED, ALONE)
    assert looks.calm().measured(looks.take) == (TAKES, False)


def a_neighbour_who_stays_costs_the_patience_and_less_of_it_each_time(_):
    looks = Looks(SHARED)
    calm = looks.calm(patience=0.4)
    assert calm.measured(looks.take) == (1, False)
    assert calm.patience == 0.25, calm.patience
    calm.paces = lambda: ALONE
    assert calm.measured(looks.take) == (2, True)
    assert calm.patience == 0.4, calm.patience


def without_patience_nobody_looks(_):
    def never():
        raise AssertionError("looked")

    assert Calm(0, cpus=[0], paces=never).measured(lambda: 5) == (5, None)


def rows_say_how_many_of_their_measurements_were_alone(_):
    results = Results("x")
    for side, calm in ((KERNEL, True), (KNET, True), (KERNEL, False), (KNET, True)):
        results.add("case", "unit", side, 1.0, calm)
    results.add("other", "unit", KERNEL, 1.0)
    results.add("other", "unit", KNET, 1.0)
    results.compare(lambda *_: None)
    case, other = results.done()
    assert case["calm"] == 0.75 and "calm" not in other, (case, other)


def the_pace_of_each_cpu_is_measured(_):
    cpus = sorted(os.sched_getaffinity(0))
    paces = Calm(0).measure()
    assert len(paces) == len(cpus) and min(paces) > 0, paces


CASES = [
    a_measurement_waits_for_cpus_that_nobody_shares,
    a_measurement_that_a_neighbour_joined_is_taken_again,
    a_neighbour_who_comes_each_time_is_named_and_ends_the_attempts,
    a_neighbour_who_stays_costs_the_patience_and_less_of_it_each_time,
    without_patience_nobody_looks,
    rows_say_how_many_of_their_measurements_were_alone,
    the_pace_of_each_cpu_is_measured,
    suite("redis", least=16),
    suite("redis", "--progress", "inline", "--ends", "both", least=7, title="redis_with_both_ends_inline"),
    suite("pingpong", least=13),
    suite("stream", least=16),
    suite("connrate", least=12),
    suite("flows", least=10, served=False),
    suite("idle", least=3),
    suite("memory", least=2),
    suite("preload", served=False),
    suite("cpu", least=3),
    suite("cpu", "--progress", "inline", least=6, title="cpu_with_both_ends_inline"),
    suite("mixed", least=4),
    suite("gpu", least=12),
    ahead_of_others_and_back,
]

if __name__ == "__main__":
    if os.geteuid() != 0:
        print("SKIP bench: needs root for network namespaces")
        sys.exit(0)
    main("bench", CASES, Bench, lambda _: None)
