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


CASES = [
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
